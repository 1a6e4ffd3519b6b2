/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a segment to the kernels of a GPU, and what they do. Compiled by both sides. */
#ifndef CKPT_DEVICE_CUDA_SPAN_H
#define CKPT_DEVICE_CUDA_SPAN_H

#include <stdint.h>

/*
 * A segment's bytes in the memory of a GPU: runs at a constant pitch, or a grid. A row of the table, which the GPU
 * reads through PCIe in pieces of 16 bytes.
 */
struct ckpt_cuda_span {
	uint64_t data;   /* GPU address of the run that contains the first byte */
	uint64_t run;    /* contiguous bytes; not 0 */
	uint64_t pitch;  /* distance of runs; unused for one run */
	uint64_t offset; /* of the first byte in its run, less than `run` */
	uint64_t length;
	uint64_t staged; /* GPU address of the same bytes in staging; 0 for a sample */
	uint64_t key;    /* of a sample: ckpt_sample_key() */
	/*
	 * 0, or the GPU address of the grid (cuda_grid.h) of the bytes. Then `offset` and `length` are those of the
	 * segment for a sample, and the first item and the number of items for a copy; the others are unused.
	 */
	uint64_t grid;
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct ckpt_cuda_span) == 64, "the host and the kernels agree");

/* Names of the kernels in the module. Arguments: table, number of spans, and for samples the result. */
#define CKPT_CUDA_SAMPLE  "ckpt_sample"
#define CKPT_CUDA_GATHER  "ckpt_gather"
#define CKPT_CUDA_SCATTER "ckpt_scatter"

/* Threads per block. */
#define CKPT_CUDA_SAMPLE_BLOCK 64  /* one thread per span: 10,000 spans use 157 blocks */
#define CKPT_CUDA_COPY_BLOCK   256 /* 32 threads per span */

/* Threads that copy a span together, in lines of 128 bytes or more. */
#define CKPT_CUDA_LANES 32

/*
 * Most blocks that copy. They handle 512 spans at once, with 1 MiB in flight, ten times what PCIe needs; more would
 * only take processors from the training.
 */
#define CKPT_CUDA_COPY_BLOCKS 64

/* Largest span for the copying kernels; larger ones are as fast by the copy engines, which disturb nothing. */
#define CKPT_CUDA_SPAN_MAX (UINT64_C(64) << 10)

#endif
