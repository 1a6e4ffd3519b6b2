/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of many runs of bytes at a constant distance on either side. */
#ifndef CKPT_DEVICE_COPY_RUNS_H
#define CKPT_DEVICE_COPY_RUNS_H

#include <string.h>
#include "device/memcpy_nt.h"

static inline __attribute__((always_inline)) void ckpt_copy_sized(char *restrict to,
	int64_t to_step, const char *restrict from, int64_t from_step, uint64_t count, size_t size)
{
	for (int64_t i = 0; i < (int64_t)count; i++)
		memcpy(to + i * to_step, from + i * from_step, size);
}

/* Copies `count` runs. Common element sizes are constants, so that the compiler emits moves. */
static inline void ckpt_copy_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run)
{
	switch (run) {
	case 1:
		ckpt_copy_sized(to, to_step, from, from_step, count, 1);
		break;
	case 2:
		ckpt_copy_sized(to, to_step, from, from_step, count, 2);
		break;
	case 4:
		ckpt_copy_sized(to, to_step, from, from_step, count, 4);
		break;
	case 8:
		ckpt_copy_sized(to, to_step, from, from_step, count, 8);
		break;
	case 16:
		ckpt_copy_sized(to, to_step, from, from_step, count, 16);
		break;
	default:
		for (int64_t i = 0; i < (int64_t)count; i++)
			ckpt_memcpy_nt(to + i * to_step, from + i * from_step, run);
	}
}

/* The same into memory that is not read soon. */
static inline void ckpt_scatter_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run)
{
	if (run < CKPT_STREAM_RUN)
		ckpt_copy_runs(to, to_step, from, from_step, count, run);
	else
		ckpt_stream_runs(to, to_step, from, from_step, count, run);
}

#endif
