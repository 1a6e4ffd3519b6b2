/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_piece_size.h"

#include "device/cuda_copy_plan.h"

#define AIM_NS 250000
#define VOTES  8 /* votes in a row that change the size */

#define CALM       64 /* entries: up to there each copy has an event */
#define PER_COPY   12 /* beyond that one more copy shares an event per this many entries */
#define COPIES_MAX 32 /* blocks of 8 MiB: 10 ms of PCIe until they are digested */

#define PER_DOUBLING  64 /* entries */
#define DOUBLINGS_MAX 3

void ckpt_cuda_piece_size_init(struct ckpt_cuda_piece_size *pace)
{
	*pace = (struct ckpt_cuda_piece_size){.piece = CKPT_CUDA_PIECE};
}

/* Votes by the bytes that the bus took in AIM_NS. */
static void vote(struct ckpt_cuda_piece_size *pace, uint64_t fits)
{
	int way = 0;

	if (fits >= 2 * pace->piece && pace->piece < CKPT_CUDA_PIECE_MAX)
		way = 1;
	else if (fits < pace->piece / 4 * 3 && pace->piece > CKPT_CUDA_PIECE_MIN)
		way = -1;
	pace->votes = way * pace->votes > 0 ? pace->votes + way : way;
	if (pace->votes == VOTES)
		pace->piece *= 2;
	else if (pace->votes == -VOTES)
		pace->piece /= 2;
	else
		return;
	pace->votes = 0;
}

void ckpt_cuda_piece_size_measure(
	struct ckpt_cuda_piece_size *pace, const struct ckpt_cuda_done *done)
{
	/* For fewer bytes, the time is mostly the fixed cost of a copy. */
	if (pace->busy && done->waited && done->bytes >= CKPT_CUDA_PIECE_MIN &&
		done->at_ns > pace->since_ns)
		vote(pace, done->bytes * AIM_NS / (done->at_ns - pace->since_ns));
	pace->busy = done->waited && done->more;
	pace->since_ns = done->at_ns;
}

unsigned ckpt_cuda_piece_size_copies(uint64_t queued)
{
	return queued < CALM ? 1 : (unsigned)ckpt_min_u64(queued / PER_COPY, COPIES_MAX);
}

uint64_t ckpt_cuda_piece_size_piece(const struct ckpt_cuda_piece_size *pace, uint64_t queued)
{
	return ckpt_min_u64(pace->piece << ckpt_min_u64(queued / PER_DOUBLING, DOUBLINGS_MAX),
		CKPT_CUDA_PIECE_MAX);
}
