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

#endif
