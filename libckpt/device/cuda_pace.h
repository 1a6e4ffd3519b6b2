/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How large the pieces are in which copies go into the stream, and how many copies share an event. The driver's queue
 * takes about a thousand entries (CUDA says no number), and a call that finds it full waits for the device: then a hold
 * would make the training's thread wait. A block of its own piece and event each would fill it with 4 GB.
 *
 * So the first blocks have an event each, and are digested and written while the rest is copied. The deeper the queue
 * is, the more blocks share one, and the larger the pieces are that blocks which lie side by side are joined to. Of
 * memory that lies together on both sides 10 GB are about 500 entries; other tensors of some size are one more each.
 */
#ifndef CKPT_DEVICE_CUDA_PACE_H
#define CKPT_DEVICE_CUDA_PACE_H

#include "base/attr.h"

/* Copies that may share an event, `queued` entries being in the stream already. */
unsigned ckpt_cuda_pace_copies(uint64_t queued);
/* Bytes of a piece at most. */
uint64_t ckpt_cuda_pace_piece(uint64_t queued);

#endif
