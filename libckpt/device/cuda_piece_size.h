/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large the pieces are in which copies go into the stream, and how many copies share an event.
 *
 * The training's own transfers go through the same copy engine, and wait for the piece that is under way. So a piece is
 * what the bus takes in a quarter of a millisecond, rounded down to a power of two, within bounds:
 *
 *     piece = 2^floor(log2(rate x 0.25 ms)), 1 MiB to 32 MiB
 *
 * 4 MiB at 25 GB/s (PCIe 4), 8 MiB at 55 (PCIe 5), 32 MiB at 300 (NVLink-C2C, where 8 MiB are 28 us), 1 MiB on a few
 * lanes. Smaller ones would cost bandwidth, larger ones gain none. The rate is a group's bytes by the time between its
 * completion and that of the one before, if the stream was busy meanwhile. A single one says little: whoever wakes late,
 * or a collective that has the bus, makes it long. So the size is doubled or halved when eight in a row say so, and down
 * only when it is a third more than that. What is in the stream already stays as it is.
 *
 * The driver's queue takes about a thousand entries (CUDA says no number), and a call that finds it full waits for the
 * device: then a hold would make the training's thread wait. A block of its own piece and event each would fill it with
 * 4 GB. So the first blocks have an event each, and are digested and written while the rest is copied. The deeper the
 * queue is, the more blocks share one, and the larger the pieces are that blocks which lie side by side are joined to: up
 * to eight times, which is 2 ms. Of memory that lies together on both sides 10 GB are about 500 entries; other tensors of
 * some size are one more each. On a bus that is slower than 8 GB/s they are more than the queue takes.
 */
#ifndef CKPT_DEVICE_CUDA_PIECE_SIZE_H
#define CKPT_DEVICE_CUDA_PIECE_SIZE_H

#include "base/compiler.h"

/* Guarded by the device's lock: the waiter measures, the feeder asks. */
struct ckpt_cuda_piece_size {
	uint64_t piece;
	int votes; /* in a row: above 0 for larger pieces, below for smaller ones */
	bool busy; /* the stream has had work since `since_ns`, when a group was done */
	uint64_t since_ns;
};

/* A group that is done. */
struct ckpt_cuda_done {
	uint64_t at_ns;
	uint64_t bytes; /* of pieces that are one run; 0: there was something else in it */
	bool waited;    /* it was not done when the waiter came to it, which so knows when it was */
	bool more;      /* the next group is in the stream already */
};

void ckpt_cuda_piece_size_init(struct ckpt_cuda_piece_size *pace);
void ckpt_cuda_piece_size_measure(
	struct ckpt_cuda_piece_size *pace, const struct ckpt_cuda_done *done);

/* Copies that may share an event, `queued` entries being in the stream already. */
unsigned ckpt_cuda_piece_size_copies(uint64_t queued);
/* Bytes of a piece at most. */
uint64_t ckpt_cuda_piece_size_piece(const struct ckpt_cuda_piece_size *pace, uint64_t queued);

#endif
