/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernels of a GPU are told of a segment, and what they do with it. Read by the compilers of both sides. */
#ifndef CKPT_DEVICE_CUDA_SPAN_H
#define CKPT_DEVICE_CUDA_SPAN_H

#include <stdint.h>

/*
 * A segment's bytes in the memory of a GPU: runs that are a pitch apart, or a grid. A line of the table, which the
 * GPU reads through PCIe in pieces of 16 bytes.
 */
struct ckpt_cuda_span {
	uint64_t data;   /* the run in which the first byte lies, as the GPU addresses it */
	uint64_t run;    /* bytes that lie together; not 0 */
	uint64_t pitch;  /* from run to run; one run: means nothing */
	uint64_t offset; /* of the first byte in its run, less than `run` */
	uint64_t length;
	uint64_t staged; /* the same bytes in staging, as the GPU addresses it; of a sample: 0 */
	uint64_t key;    /* of a sample: ckpt_sample_key() */
	/*
	 * 0, or where the GPU has the grid (cuda_grid.h) that the bytes are. Then `offset` and `length` are those of
	 * the segment for a sample, and the first item and the number of items for a copy; the others mean nothing.
	 */
	uint64_t grid;
} __attribute__((aligned(16)));

_Static_assert(sizeof(struct ckpt_cuda_span) == 64, "the host and the kernels agree");

/* A kernel's name in the module. Arguments: table, number of spans, and for samples where they go. */
#define CKPT_CUDA_SAMPLE  "ckpt_sample"
#define CKPT_CUDA_GATHER  "ckpt_gather"
#define CKPT_CUDA_SCATTER "ckpt_scatter"

/* Threads of a block. */
#define CKPT_CUDA_SAMPLE_BLOCK                                                                     \
	64 /* a thread takes a span: 10,000 spans are spread over 157 blocks */
#define CKPT_CUDA_COPY_BLOCK 256 /* 32 of them take a span */

/* Threads that copy a span: they read and write lines of 128 bytes and more together. */
#define CKPT_CUDA_LANES 32

/*
 * Blocks that copy, at most. They hold 512 spans at once, 1 MiB in flight, which is ten times what PCIe needs; more
 * would only take processors from the training.
 */
#define CKPT_CUDA_COPY_BLOCKS 64

/* What goes through the copying kernels; larger ones the copy engines take as fast, and disturb nobody. */
#define CKPT_CUDA_SPAN_MAX (UINT64_C(64) << 10)

#endif
