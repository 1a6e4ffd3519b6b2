/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The instruction sets of the kernels, one list for each: CKPT_TARGET_BEGIN() tells it to the compiler, and
 * CKPT_TARGET_HERE() asks the processor for all of it.
 */
#ifndef CKPT_CODEC_TARGET_H
#define CKPT_CODEC_TARGET_H

#define CKPT_TARGET_AVX2(each, and) each("avx2") and each("fma") and each("bmi") and each("bmi2")
/* Ice Lake, Zen 4. */
#define CKPT_TARGET_AVX512(each, and)                                                              \
	CKPT_TARGET_AVX2(each, and)                                                                \
	and each("avx512f") and each("avx512bw") and each("avx512dq") and each("avx512vl") and     \
		each("avx512vbmi") and each("avx512vbmi2") and each("popcnt")

#define CKPT_TARGET_HERE(list) (list(__builtin_cpu_supports, &&))

/* Between these, functions are compiled for the instruction sets of the list. */
#define CKPT_TARGET_NAME(feature) feature
#define CKPT_TARGET_TEXT(list)    list(CKPT_TARGET_NAME, ",")
#define CKPT_TARGET_PRAGMA_(text) _Pragma(#text)
#define CKPT_TARGET_PRAGMA(text)  CKPT_TARGET_PRAGMA_(text)
#if defined(__clang__)
#define CKPT_TARGET_BEGIN(list)                                                                    \
	CKPT_TARGET_PRAGMA(clang attribute push(                                                   \
		__attribute__((target(CKPT_TARGET_TEXT(list)))), apply_to = function))
#define CKPT_TARGET_END CKPT_TARGET_PRAGMA(clang attribute pop)
#else
#define CKPT_TARGET_BEGIN(list)                                                                    \
	CKPT_TARGET_PRAGMA(GCC push_options)                                                       \
	CKPT_TARGET_PRAGMA(GCC target(CKPT_TARGET_TEXT(list)))
#define CKPT_TARGET_END CKPT_TARGET_PRAGMA(GCC pop_options)
#endif

#endif
