/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The size of the pieces in which copies are enqueued, and how many copies share an event.
 *
 * The training's own transfers use the same copy engine, and wait for the piece in progress. So a piece is what the bus
 * takes in a quarter of a millisecond, rounded down to a power of two, within bounds:
 *
 *     piece = 2^floor(log2(rate x 0.25 ms)), 1 MiB to 32 MiB
 *
 * That is 4 MiB at 25 GB/s (PCIe 4), 8 MiB at 55 (PCIe 5), 32 MiB at 300 (NVLink-C2C, where 8 MiB take 28 us), 1 MiB on
 * a few lanes. Smaller pieces cost bandwidth, larger ones gain none. The rate is a group's bytes divided by the time
 * since
 * the previous group completed, if the stream was busy meanwhile. A single measurement is unreliable: a thread that
 * wakes
 * late or a collective on the bus makes it too long. So the size is doubled or halved only when eight in a row agree,
 * and
 * halved only by a margin of a third. Enqueued pieces stay as they are.
 *
 * The driver's queue has about a thousand entries (CUDA documents no number), and a call that finds it full waits for
 * the
 * device: then a hold would block the training's thread. With a piece and an event per block, 4 GB would fill it. So
 * the
 * first blocks have an event each, and are digested and written while the rest is copied. The deeper the queue is, the
 * more blocks share an event, and the larger the pieces are that adjacent blocks are joined to: up to eight times,
 * which
 * is 2 ms. 10 GB of memory that is contiguous on both sides need about 500 entries; each other large tensor one more.
 * On
 * a bus slower than 8 GB/s they are more than the queue takes.
 */
#ifndef CKPT_DEVICE_CUDA_PIECE_SIZE_H
#define CKPT_DEVICE_CUDA_PIECE_SIZE_H

#include "base/compiler.h"

/* Guarded by the device's lock: the waiter measures, the feeder reads. */
struct ckpt_cuda_piece_size {
	uint64_t piece;
	int votes; /* in a row: positive for larger pieces, negative for smaller ones */
	bool busy; /* the stream was busy since `since_ns`, when a group was done */
	uint64_t since_ns;
};

/* A completed group. */
struct ckpt_cuda_done {
	uint64_t at_ns;
	uint64_t bytes; /* of pieces that are one run; 0: it also contained others */
	bool waited;    /* the waiter had to wait for it, so its completion time is known */
	bool more;      /* the next group is enqueued already */
};

void ckpt_cuda_piece_size_init(struct ckpt_cuda_piece_size *pace);
void ckpt_cuda_piece_size_measure(
	struct ckpt_cuda_piece_size *pace, const struct ckpt_cuda_done *done);

/* How many copies may share an event if `queued` entries are enqueued. */
unsigned ckpt_cuda_piece_size_copies(uint64_t queued);
/* Most bytes of a piece. */
uint64_t ckpt_cuda_piece_size_piece(const struct ckpt_cuda_piece_size *pace, uint64_t queued);

#endif
