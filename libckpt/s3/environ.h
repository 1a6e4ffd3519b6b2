/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment, as it was when it was looked at: once, on the caller's thread, since another one may change it
 * at any time. All of it, because a credential_process is given it again. It may hold keys.
 */
#ifndef CKPT_S3_ENVIRON_H
#define CKPT_S3_ENVIRON_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* Zero is an empty environment. */
struct ckpt_s3_environ {
	char **lines; /* "NAME=value" each, NULL behind the last; pieces of `text` */
	char *text;
	size_t size;
};

/* `environment` is what environ(7) says. NULL: empty. */
int ckpt_s3_environ_take(
	const char *const *environment, struct ckpt_error *err, struct ckpt_s3_environ *ret_vars);
/* NULL: it is not set, or empty. */
const char *ckpt_s3_var(const struct ckpt_s3_environ *vars, const char *name);
/* Clears the memory and frees it. */
void ckpt_s3_environ_clear(struct ckpt_s3_environ *vars);

/*
 * "~" and "~/x" below HOME, else the home in the list of users; anything else as it is. Allocated. -ENOENT:
 * nobody knows a home. That list may lie behind a network.
 */
int ckpt_s3_environ_path(const struct ckpt_s3_environ *vars, const char *path, char **ret_path);

#endif
