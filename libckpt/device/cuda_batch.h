/* SPDX-License-Identifier: Apache-2.0 */
/* Copies that go into the stream together and share an event. The feeder's. */
#ifndef CKPT_DEVICE_CUDA_BATCH_H
#define CKPT_DEVICE_CUDA_BATCH_H

#include "device/cuda_state.h"

void ckpt_cuda_batch_begin(struct ckpt_cuda_device *d, uint64_t piece_max);
/* The copy that the next pieces are of; of the same direction, and as eager, as the others. */
void ckpt_cuda_batch_add(struct ckpt_cuda_device *d, struct ckpt_cuda_flight *flight);
/* The result of that copy: a piece that has failed is a failure of all that it has bytes of. */
int ckpt_cuda_batch_put(struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	const struct ckpt_cuda_piece *piece);
/* Enqueues what is left, and the event. */
void ckpt_cuda_batch_end(struct ckpt_cuda_device *d);

#endif
