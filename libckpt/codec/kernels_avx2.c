/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX2 and FMA. */
#include "codec/kernels.h"

#if defined(__x86_64__)

/* Before the pragma: its functions name the targets that they need. */
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2")
#endif

#include "codec/kernels_body.h"

static const struct ckpt_kernels kernels = KERNELS;

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const struct ckpt_kernels *ckpt_kernels_avx2(void)
{
	bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
		      __builtin_cpu_supports("bmi2");

	return usable ? &kernels : NULL;
}

#else

const struct ckpt_kernels *ckpt_kernels_avx2(void)
{
	return NULL;
}

#endif
