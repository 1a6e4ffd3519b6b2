/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a program that prints keys (credential_process). Blocks: use a worker. */
#ifndef CKPT_S3_CREDENTIAL_PROCESS_H
#define CKPT_S3_CREDENTIAL_PROCESS_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_PROCESS_MS     60000u
#define CKPT_S3_PROCESS_OUTPUT 65536u

struct ckpt_s3_process {
	const char *
		/* Split like a shell command: quotes and backslashes, no other shell syntax. */
		command;
	const char *whose; /* "the credential_process of profile 'x'" */
	char *const *environment;
	const char *path;    /* search path of programs; NULL: the default */
	unsigned timeout_ms; /* 0: CKPT_S3_PROCESS_MS */
	int stop_fd;         /* when it is readable, the program is stopped; -1: none */
};

/*
 * Its output, at most CKPT_S3_PROCESS_OUTPUT bytes and an uncounted NUL: ckpt_secret_free(output). Its stderr is ours.
 * It runs in its own process group, which is killed at the time limit (-ETIMEDOUT), at a stop (-ECANCELED) and if it
 * prints too much. No message contains its output or arguments.
 */
int ckpt_s3_process_run(const struct ckpt_s3_process *process, struct ckpt_error *err,
	char **ret_output, size_t *ret_length);

#endif
