/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of much memory that nobody reads soon: past the caches, which belong to the training. */
#ifndef CKPT_DEVICE_STREAM_COPY_H
#define CKPT_DEVICE_STREAM_COPY_H

#include "base/attr.h"

/* As memcpy. Other threads that are told of it afterwards see all of it. */
void ckpt_stream_copy(void *restrict to, const void *restrict from, size_t bytes);

#endif
