/* SPDX-License-Identifier: Apache-2.0 */
/* The table of element types. */
#include "format/dtype.h"

#include <string.h>

struct dtype {
	const char *name;
	const char *stored; /* in the safetensors header */
	uint32_t bytes;
};

/* The names are those of safetensors where it has one, and those of FORMAT.md for the rest. */
static const struct dtype dtypes[CKPT_DTYPE_END] = {
	[CKPT_BOOL] = {"BOOL", "BOOL", 1},
	[CKPT_U8] = {"U8", "U8", 1},
	[CKPT_I8] = {"I8", "I8", 1},
	[CKPT_U16] = {"U16", "U16", 2},
	[CKPT_I16] = {"I16", "I16", 2},
	[CKPT_U32] = {"U32", "U32", 4},
	[CKPT_I32] = {"I32", "I32", 4},
	[CKPT_U64] = {"U64", "U64", 8},
	[CKPT_I64] = {"I64", "I64", 8},
	[CKPT_F16] = {"F16", "F16", 2},
	[CKPT_BF16] = {"BF16", "BF16", 2},
	[CKPT_F32] = {"F32", "F32", 4},
	[CKPT_F64] = {"F64", "F64", 8},
	[CKPT_F8_E4M3] = {"F8_E4M3", "F8_E4M3", 1},
	[CKPT_F8_E5M2] = {"F8_E5M2", "F8_E5M2", 1},
	[CKPT_F8_E8M0] = {"F8_E8M0", "F8_E8M0", 1},
	[CKPT_C64] = {"C64", "C64", 8},
	[CKPT_C128] = {"C128", "U8", 16},
	[CKPT_C32] = {"C32", "U8", 4},
	[CKPT_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", "U8", 1},
	[CKPT_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", "U8", 1},
	[CKPT_F4_X2] = {"F4_X2", "F4", 1},
};

uint32_t ckpt_dtype_bytes(uint32_t dtype)
{
	return dtype < CKPT_DTYPE_END ? dtypes[dtype].bytes : 0;
}

const char *ckpt_dtype_name(uint32_t dtype)
{
	return dtype < CKPT_DTYPE_END ? dtypes[dtype].name : NULL;
}

const char *ckpt_dtype_stored(uint32_t dtype)
{
	return dtype < CKPT_DTYPE_END ? dtypes[dtype].stored : NULL;
}

uint32_t ckpt_dtype_packed(uint32_t dtype)
{
	return dtype == CKPT_F4_X2 ? 2 : 1;
}

uint32_t ckpt_dtype_parse(const char *name)
{
	for (uint32_t i = 1; i < CKPT_DTYPE_END; i++) {
		if (strcmp(dtypes[i].name, name) == 0)
			return i;
	}
	return 0;
}
