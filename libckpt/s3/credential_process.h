/* SPDX-License-Identifier: Apache-2.0 */
/* A program that prints keys (credential_process). Blocks: on a worker. */
#ifndef CKPT_S3_CREDENTIAL_PROCESS_H
#define CKPT_S3_CREDENTIAL_PROCESS_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_S3_PROCESS_MS     60000u
#define CKPT_S3_PROCESS_OUTPUT 65536u

struct ckpt_s3_process {
	const char *
		command; /* split as a shell splits words: quotes and backslashes, and no more of a shell */
	const char *whose; /* "the credential_process of profile 'x'" */
	char *const *environment;
	const char *path;    /* where programs are looked for; NULL: the usual folders */
	unsigned timeout_ms; /* 0: CKPT_S3_PROCESS_MS */
	int stop_fd;         /* readable: it is to end now; -1: none */
};

/*
 * What it printed, at most CKPT_S3_PROCESS_OUTPUT bytes, with a NUL behind that is not counted:
 * ckpt_secret_free(output). Its stderr is ours. It runs in a process group of its own, and all of that
 * is killed when the time is up (-ETIMEDOUT), when it is stopped (-ECANCELED) or prints too much. Words never hold
 * what it printed, nor its arguments.
 */
int ckpt_s3_process_run(const struct ckpt_s3_process *process, struct ckpt_error *err,
	char **ret_output, size_t *ret_length);

#endif
