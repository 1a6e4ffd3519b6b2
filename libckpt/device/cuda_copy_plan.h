/* SPDX-License-Identifier: Apache-2.0 */
/* A segment as the copies that the CUDA runtime can make of it: runs of bytes, and rows of runs. */
#ifndef CKPT_DEVICE_CUDA_COPY_PLAN_H
#define CKPT_DEVICE_CUDA_COPY_PLAN_H

#include "device/device.h"

/* A copy of more bytes is made in pieces. So large at first, and then what cuda_piece_size.h finds, within bounds. */
#define CKPT_CUDA_PIECE      (UINT64_C(8) << 20)
#define CKPT_CUDA_PIECE_MIN  (UINT64_C(1) << 20)
#define CKPT_CUDA_PIECE_MAX  (UINT64_C(32) << 20)
/* Nor of more runs: short ones cost by their number, not by their bytes. */
#define CKPT_CUDA_PIECE_RUNS (UINT64_C(1) << 16)

/* One copy: `height` runs of `width` bytes. One run: the pitches mean nothing. */
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
		piece_max; /* bytes of a piece: CKPT_CUDA_PIECE, unless it is set before the first */
	uint64_t run;      /* bytes that lie together on both sides */
	uint64_t rows;     /* runs of the segment's view */
	uint64_t device_pitch;
	uint64_t staged_pitch;
	uint64_t base; /* of the first run, among the bytes that `offset` counts */
	uint64_t offset;
	uint64_t end;
	uint64_t row;  /* next */
	uint64_t done; /* bytes of it */
};

/* CKPT_EUNSUPPORTED, without words: the segment is neither one run nor rows of runs, in order and apart. */
int ckpt_cuda_walk_begin(const struct ckpt_segment *segment, struct ckpt_cuda_walk *ret_walk);
/* The next piece; false: there is none. */
bool ckpt_cuda_walk_next(struct ckpt_cuda_walk *walk, struct ckpt_cuda_piece *ret_piece);

#endif
