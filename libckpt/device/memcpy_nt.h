/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of much memory that nobody reads soon: past the caches, which belong to the training. */
#ifndef CKPT_DEVICE_MEMCPY_NT_H
#define CKPT_DEVICE_MEMCPY_NT_H

#include "base/compiler.h"

/* As memcpy. Other threads that are told of it afterwards see all of it. */
void ckpt_memcpy_nt(void *restrict to, const void *restrict from, size_t bytes);

/*
 * The same for `count` runs of `run` bytes, a step apart on either side. Worth it from
 * CKPT_STREAM_RUN bytes on: then whole lines need not be read before they are written.
 */
#define CKPT_STREAM_RUN 128
void ckpt_stream_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run);

/*
 * For benchmarks: the name of way number `i` of copying, how fast it was, and whether it is the one that is taken. NULL:
 * there is none of that number, or no choice yet.
 */
const char *ckpt_stream_way(unsigned i, double *ret_gb_per_s, bool *ret_chosen);

#endif
