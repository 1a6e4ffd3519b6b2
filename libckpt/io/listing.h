/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a directory. */
#ifndef CKPT_IO_LISTING_H
#define CKPT_IO_LISTING_H

#include "base/buf.h"

/* Names in a directory, without "." and "..": NUL-terminated, one after the other, sorted. */
struct ckpt_listing {
	char *names; /* allocated by who lists, freed by the receiver with ckpt_free */
	size_t bytes;
	size_t count;
};

#define CKPT_LISTING_MAX 1000000 /* more names than that are -EOVERFLOW */

/* From `count` names, NUL-terminated, one after the other, in any order. -ENOMEM. */
int ckpt_listing_sort(const struct ckpt_buf *names, size_t count, struct ckpt_listing *ret_listing);
/*
 * Whether it is there. `at`, 0 at first, is where the name is that was looked at last: of names that are asked for in
 * order the list is gone over once.
 */
bool ckpt_listing_has(const struct ckpt_listing *listing, const char *name, size_t *at);

#endif
