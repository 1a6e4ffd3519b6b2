/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy of the environment, made once on the caller's thread, because another thread may change it at any time. All of
 * it, because a credential_process inherits it. It may contain keys.
 */
#ifndef CKPT_S3_ENVIRON_H
#define CKPT_S3_ENVIRON_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* Zero is an empty environment. */
struct ckpt_s3_environ {
	char **lines; /* "NAME=value" each, followed by NULL; they point into `text` */
	char *text;
	size_t size;
};

/* `environment` is that of environ(7). NULL: empty. */
int ckpt_s3_environ_take(
	const char *const *environment, struct ckpt_error *err, struct ckpt_s3_environ *ret_vars);
/* NULL: it is not set, or is empty. */
const char *ckpt_s3_var(const struct ckpt_s3_environ *vars, const char *name);
/* Clears and frees the memory. */
void ckpt_s3_environ_clear(struct ckpt_s3_environ *vars);

/*
 * Expands "~" and "~/x" by HOME, else by the user database, which may be on a network; other paths are copied. -ENOENT:
 * no home directory is known.
 */
int ckpt_s3_environ_path(const struct ckpt_s3_environ *vars, const char *path, char **ret_path);

#endif
