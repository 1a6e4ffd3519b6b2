/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that are enqueued together and share an event. Used by the feeder. */
#ifndef CKPT_DEVICE_CUDA_BATCH_H
#define CKPT_DEVICE_CUDA_BATCH_H

#include "device/cuda_state.h"

void ckpt_cuda_batch_begin(struct ckpt_cuda_device *d, uint64_t piece_max);
/* Sets the copy of the next pieces. It has the direction of the others, and is as eager. */
void ckpt_cuda_batch_add(struct ckpt_cuda_device *d, struct ckpt_cuda_flight *flight);
/* Returns the result for that copy. A piece that fails fails all copies with bytes in it. */
int ckpt_cuda_batch_put(struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	const struct ckpt_cuda_piece *piece);
/* Enqueues what is left, and the event. */
void ckpt_cuda_batch_end(struct ckpt_cuda_device *d);

#endif
