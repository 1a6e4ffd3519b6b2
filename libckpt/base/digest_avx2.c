/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 of libxxhash again, compiled for AVX2 whatever the target of the rest is. */
#include "base/digest_avx2.h"

#include <string.h>

#if defined(__x86_64__)

/* Included before the pragma, because its functions have their own targets. */
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

#define XXH_INLINE_ALL
#define XXH_VECTOR 2 /* XXH_AVX2 */
#include <xxhash.h>

void ckpt_digest_avx2(const void *data, size_t len, uint8_t ret_bytes[16])
{
	XXH128_canonical_t bytes;

	XXH128_canonicalFromHash(&bytes, XXH3_128bits(data, len));
	memcpy(ret_bytes, bytes.digest, sizeof(bytes.digest));
}

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

bool ckpt_digest_avx2_usable(void)
{
	return __builtin_cpu_supports("avx2");
}

#else

void ckpt_digest_avx2(const void *data, size_t len, uint8_t ret_bytes[16])
{
	(void)data;
	(void)len;
	(void)ret_bytes;
	ckpt_assert_failed("AVX2 is usable", __FILE__, __LINE__);
}

bool ckpt_digest_avx2_usable(void)
{
	return false;
}

#endif
