/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and their names. */
#ifndef CKPT_FORMAT_DTYPE_H
#define CKPT_FORMAT_DTYPE_H

#include <ckpt/types.h>
#include "base/compiler.h"

/* Bytes of an element; 0 for an invalid type. */
uint32_t ckpt_dtype_bytes(uint32_t dtype);
/* The name in the index, such as "BF16" or "C128"; NULL for an invalid type. */
const char *ckpt_dtype_name(uint32_t dtype);
/* The name in the safetensors header: the same, or "U8" for a type that safetensors lacks. */
const char *ckpt_dtype_stored(uint32_t dtype);
/* Number of safetensors values in one element. */
uint32_t ckpt_dtype_packed(uint32_t dtype);
/* The type of a name in the index; 0 if there is none. */
uint32_t ckpt_dtype_parse(const char *name);

#endif
