/* SPDX-License-Identifier: Apache-2.0 */
/* Names in a directory. */
#ifndef CKPT_IO_LISTING_H
#define CKPT_IO_LISTING_H

#include "base/buf.h"

/* Names in a directory, without "." and "..": each NUL-terminated, sorted. */
struct ckpt_listing {
	char *names; /* freed by the receiver with ckpt_free() */
	size_t bytes;
	size_t count;
};

#define CKPT_LISTING_MAX 1000000 /* with more names listing fails with -EOVERFLOW */

/* Makes a listing of `count` NUL-terminated names in any order. -ENOMEM. */
int ckpt_listing_sort(const struct ckpt_buf *names, size_t count, struct ckpt_listing *ret_listing);
/*
 * Whether the name is in it. `at` starts at 0 and holds the position of the last search, so that a sorted series of
 * searches passes over the list once.
 */
bool ckpt_listing_has(const struct ckpt_listing *listing, const char *name, size_t *at);

#endif
