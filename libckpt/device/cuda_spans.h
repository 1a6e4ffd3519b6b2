/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a segment to the kernels of a GPU. */
#ifndef CKPT_DEVICE_CUDA_SPANS_H
#define CKPT_DEVICE_CUDA_SPANS_H

#include "device/cuda_span.h"
#include "device/device.h"

/*
 * Sets all but `staged` and `key`. CKPT_EUNSUPPORTED, without a message: it is neither one run nor rows of disjoint,
 * ascending runs (see ckpt_cuda_walk_begin()), or it is a box of an array (`around`), whose runs are separate in
 * staging, too.
 */
int ckpt_cuda_span_of(const struct ckpt_segment *segment, struct ckpt_cuda_span *ret_span);

#endif
