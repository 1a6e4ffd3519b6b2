/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for AVX2 and FMA. */
#include "codec/kernels.h"
#include "codec/target.h"

#if defined(__x86_64__)

/* Before the pragma: its functions name the targets that they need. */
#include <immintrin.h>

CKPT_TARGET_BEGIN(CKPT_TARGET_AVX2)

#include "codec/kernels_body.h"

static const struct ckpt_kernels kernels = KERNELS;

CKPT_TARGET_END

const struct ckpt_kernels *ckpt_kernels_avx2(void)
{
	return CKPT_TARGET_HERE(CKPT_TARGET_AVX2) ? &kernels : NULL;
}

#else

const struct ckpt_kernels *ckpt_kernels_avx2(void)
{
	return NULL;
}

#endif
