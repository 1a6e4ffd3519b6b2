/* SPDX-License-Identifier: Apache-2.0 */
/* Divides a segment into copies that the CUDA runtime can make: runs of bytes, and rows of runs. */
#ifndef CKPT_DEVICE_CUDA_COPY_PLAN_H
#define CKPT_DEVICE_CUDA_COPY_PLAN_H

#include "device/device.h"

/* Larger copies are divided into pieces. This is their initial size; later cuda_piece_size.h sets it, within bounds. */
#define CKPT_CUDA_PIECE      (UINT64_C(8) << 20)
#define CKPT_CUDA_PIECE_MIN  (UINT64_C(1) << 20)
#define CKPT_CUDA_PIECE_MAX  (UINT64_C(32) << 20)
/* Most runs of a piece: the cost of short runs depends on their number. */
#define CKPT_CUDA_PIECE_RUNS (UINT64_C(1) << 16)

/* One copy: `height` runs of `width` bytes. With one run the pitches are unused. */
struct ckpt_cuda_piece {
	char *device;
	char *staged;
	uint64_t width;
	uint64_t height;
	uint64_t device_pitch;
	uint64_t staged_pitch;
};

/* The walk over a segment. */
struct ckpt_cuda_walk {
	char *data;
	char *staged;
	uint64_t
		/* Bytes of a piece: CKPT_CUDA_PIECE, unless it is set before the first. */
		piece_max;
	uint64_t run;  /* contiguous bytes on both sides */
	uint64_t rows; /* number of runs in the segment's view */
	uint64_t device_pitch;
	uint64_t staged_pitch;
	uint64_t base; /* of the first run, counted like `offset` */
	uint64_t offset;
	uint64_t end;
	uint64_t row;  /* next run */
	uint64_t done; /* bytes of it that are done */
};

/* CKPT_EUNSUPPORTED, without a message: the segment is neither one run nor rows of disjoint, ascending runs. */
int ckpt_cuda_walk_begin(const struct ckpt_segment *segment, struct ckpt_cuda_walk *ret_walk);
/* The next piece; false: there is none. */
bool ckpt_cuda_walk_next(struct ckpt_cuda_walk *walk, struct ckpt_cuda_piece *ret_piece);

#endif
