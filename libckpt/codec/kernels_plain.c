/* SPDX-License-Identifier: Apache-2.0 */
/* The loops for any processor. */
#include "codec/kernels.h"

#include "codec/kernels_body.h"

const struct ckpt_kernels ckpt_kernels_plain = KERNELS;
