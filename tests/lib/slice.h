/* SPDX-License-Identifier: Apache-2.0 */
/* One of N slices of a long test, as `--slice I/N` on the command line: see tests/run/draw.py. */
#ifndef CKPT_TESTS_SLICE_H
#define CKPT_TESTS_SLICE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct slice {
	uint64_t at;
	uint64_t of; /* 0 counts as 1: everything */
};

static inline bool slice_parse(struct slice *slice, const char *text)
{
	char *end = NULL;

	slice->at = strtoull(text, &end, 10);
	slice->of = *end == '/' ? strtoull(end + 1, &end, 10) : 0;
	return *end == '\0' && slice->at < slice->of;
}

/* Whether the nth item, counted from 0, belongs to the slice. */
static inline bool slice_has(const struct slice *slice, uint64_t n)
{
	return slice->of == 0 || n % slice->of == slice->at;
}

/*
 * The same for a loop within a test of many: whether the nth turn is in the slice of this run of scripts/test.
 * By hand, and with --full, all are.
 */
static inline bool slice_turn(uint64_t n, uint64_t of)
{
	const char *text = getenv("CKPT_TEST_FULL") ? NULL : getenv("CKPT_TEST_SLICE");
	uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	if (!text)
		return true;
	for (; *text; text++)
		hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
	return n % of == (hash >> 32) % of;
}

#endif
