/* SPDX-License-Identifier: Apache-2.0 */
/* The digest with 256-bit vectors: over twice as fast in cache, a tenth to a fifth in memory. */
#ifndef CKPT_BASE_DIGEST_AVX2_H
#define CKPT_BASE_DIGEST_AVX2_H

#include "base/compiler.h"

/* This CPU has them, and this build uses them. */
bool ckpt_digest_avx2_usable(void);
/* Precondition: usable. The bytes of ckpt_digest_of(). */
void ckpt_digest_avx2(const void *data, size_t len, uint8_t ret_bytes[16]);

#endif
