/* SPDX-License-Identifier: Apache-2.0 */
/* A segment as the kernels of a GPU take it. */
#ifndef CKPT_DEVICE_CUDA_SPANS_H
#define CKPT_DEVICE_CUDA_SPANS_H

#include "device/cuda_span.h"
#include "device/device.h"

/*
 * Without `staged` and `key`. CKPT_EUNSUPPORTED, without words: it is neither one run nor rows of runs, in order and
 * apart (see ckpt_cuda_walk_begin()), or a box of an array (`around`), whose runs are apart in staging as well.
 */
int ckpt_cuda_span_of(const struct ckpt_segment *segment, struct ckpt_cuda_span *ret_span);

#endif
