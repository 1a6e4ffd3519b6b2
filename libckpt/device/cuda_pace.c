/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_pace.h"

#include "device/cuda_pieces.h"

#define CALM       64 /* entries: up to there each copy has an event */
#define PER_COPY   12 /* from there on one copy more for so many entries */
#define COPIES_MAX 32 /* blocks of 8 MiB: a 100th of a second of PCIe until they are digested */

#define PER_DOUBLING  64 /* entries */
#define DOUBLINGS_MAX 3

unsigned ckpt_cuda_pace_copies(uint64_t queued)
{
	return queued < CALM ? 1 : (unsigned)ckpt_min_u64(queued / PER_COPY, COPIES_MAX);
}

uint64_t ckpt_cuda_pace_piece(uint64_t queued)
{
	return ckpt_min_u64(CKPT_CUDA_PIECE << ckpt_min_u64(queued / PER_DOUBLING, DOUBLINGS_MAX),
		CKPT_CUDA_PIECE_MAX);
}
