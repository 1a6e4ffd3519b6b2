/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a process that is going to be killed does to a store, and what it writes down of it, outside of the
 * store, line by line:
 *
 *	try STEP SEED    the save is about to start; the seed decides every byte of it
 *	ack STEP SEED    the library has said that it is durable
 *	let STEP BY      may go from now on; unless BY is 0, only once BY is committed
 *	gone STEP        its removal was acknowledged, or that it never came to be
 *	bad STEP         its bytes were damaged on purpose
 *	worn STEP        so were those of one rank, and another one has the same
 *	export STEP      its export was acknowledged
 *
 * Of several processes (rivals.c), each with a number:
 *
 *	claim GENERATION STEP ID    holds the store from now on, and goes on from STEP
 *	end ID                      lets it go now, or is killed
 *	told ID CODE                was refused
 */
#ifndef CKPT_TESTS_WORKLOAD_H
#define CKPT_TESTS_WORKLOAD_H

#include <ckpt/ckpt.h>
#include <stdbool.h>

#include "lib/hang.h"

#define WORKLOAD_TENSORS    3
#define WORKLOAD_TIMEOUT_MS HANG_LIMIT_MS

struct workload {
	char *store;
	char *dest; /* of an export */
	char *log_path;
	int log;
	/* Gets every line instead of the log, if it is set. */
	void (*tell)(struct workload *workload, const char *line, size_t length);
	struct ckpt_engine_opts opts;
	struct ckpt_engine *engine;
	float *live[WORKLOAD_TENSORS]; /* the state that is saved, and restored into */
};

/* Prints a sentence and ends the program: something failed that nobody made fail. */
void workload_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Ends the program with the library's sentence if a call has failed. */
#define workload_must(call) workload_check((call), #call, __FILE__, __LINE__)
void workload_check(int r, const char *call, const char *file, int line);

/*
 * ROOT/store, ROOT/dest and ROOT/log, or the file of CKPT_TEST_LOG; the backend is that of CKPT_TEST_IO.
 */
void workload_init(struct workload *workload, const char *root);
void workload_free(struct workload *workload);
void workload_log(struct workload *workload, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void workload_open(struct workload *workload, uint32_t flags);
void workload_close(struct workload *workload);
/* Fills the state with what `seed` decides; whether it is that. */
void workload_fill(struct workload *workload, unsigned seed);
bool workload_is(const struct workload *workload, unsigned seed);

struct ckpt_save *workload_start(struct workload *workload, unsigned step, unsigned seed);
void workload_finish(
	struct workload *workload, struct ckpt_save *save, unsigned step, unsigned seed);
void workload_save(struct workload *workload, unsigned step, unsigned seed);
/* Restores into the state. The step, or the error. */
int workload_restore(struct workload *workload, uint64_t step, bool adopt);
int workload_verify(struct workload *workload, uint64_t step);
/* 1: it was there already. */
int workload_export(struct workload *workload, uint64_t step);

/* What must hold afterwards. */
void workload_aftermath(struct workload *workload);

#endif
