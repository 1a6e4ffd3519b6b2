/* SPDX-License-Identifier: Apache-2.0 */
/* The digest with 256-bit vectors: more than twice as fast in cache, 10 to 20 % faster in memory. */
#ifndef CKPT_BASE_DIGEST_AVX2_H
#define CKPT_BASE_DIGEST_AVX2_H

#include "base/compiler.h"

/* Whether this CPU and this build support it. */
bool ckpt_digest_avx2_usable(void);
/* Requires ckpt_digest_avx2_usable(). The bytes of ckpt_digest_of(). */
void ckpt_digest_avx2(const void *data, size_t len, uint8_t ret_bytes[16]);

#endif
