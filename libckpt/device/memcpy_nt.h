/* SPDX-License-Identifier: Apache-2.0 */
/* Copies large memory that is not read soon past the caches, which the training uses. */
#ifndef CKPT_DEVICE_MEMCPY_NT_H
#define CKPT_DEVICE_MEMCPY_NT_H

#include "base/compiler.h"

/* Like memcpy. All of it is visible to threads that synchronise with this one afterwards. */
void ckpt_memcpy_nt(void *restrict to, const void *restrict from, size_t bytes);

/*
 * The same for `count` runs of `run` bytes at a constant distance on either side. Worthwhile from CKPT_STREAM_RUN bytes
 * on, because whole lines need not be read before they are written.
 */
#define CKPT_STREAM_RUN 128
void ckpt_stream_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run);

/*
 * For benchmarks: name and speed of copy way number `i`, and whether it is used. NULL: no such number, or no choice
 * yet.
 */
const char *ckpt_stream_way(unsigned i, double *ret_gb_per_s, bool *ret_chosen);

#endif
