/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for secrets: not in core dumps, zeroed in forked children, and cleared when it is freed. Each allocation has
 * its own pages, so it is meant for a few long-lived ones.
 */
#ifndef CKPT_BASE_SECRET_H
#define CKPT_BASE_SECRET_H

#include "base/compiler.h"

/* Zeroed. NULL: out of memory. */
void *ckpt_secret_alloc(size_t size);
char *ckpt_secret_strdup(const char *text);
/* NULL is ignored. */
void ckpt_secret_free(void *secret);

#endif
