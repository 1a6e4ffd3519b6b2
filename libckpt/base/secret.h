/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for what nobody else is to read: it is in no core dump, a forked child has zeros in its place, and nothing
 * of it is left where other memory will be. Each piece has pages of its own: for a few that live long, not for many.
 */
#ifndef CKPT_BASE_SECRET_H
#define CKPT_BASE_SECRET_H

#include "base/compiler.h"

/* Zeroed. NULL: there is none. */
void *ckpt_secret_alloc(size_t size);
char *ckpt_secret_strdup(const char *text);
/* NULL is ignored. */
void ckpt_secret_free(void *secret);

#endif
