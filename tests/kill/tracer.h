/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program under ptrace and kills it at one of its system calls, counted over all its threads. */
#ifndef CKPT_TESTS_TRACER_H
#define CKPT_TESTS_TRACER_H

#include <stdbool.h>
#include <stdint.h>

/* The traced program calls prctl() with this where counting is to begin. */
#define TRACER_BEGIN 0x636b7074

struct tracer_end {
	uint64_t stops; /* entries of system calls and returns from them */
	bool killed;
	int status; /* as of wait(); of a program that was not killed */
	long call;  /* number of the system call it was killed at */
	bool entry; /* before the call has done anything */
};

/*
 * Kills at stop number `at`, counted from 1; never, with 0. Calls that reach no farther than the memory
 * and threads of the process are not counted. Returns -errno where tracing is not permitted.
 */
int tracer_run(char *const argv[], uint64_t at, struct tracer_end *ret_end);

#endif
