/* SPDX-License-Identifier: Apache-2.0 */
/* Units of copying. They are read and written at their own alignment, whatever lies there. */
#ifndef CKPT_DEVICE_UNITS_H
#define CKPT_DEVICE_UNITS_H

#include <stdint.h>

typedef uint8_t __attribute__((may_alias)) ckpt_unit1;
typedef uint16_t __attribute__((may_alias)) ckpt_unit2;
typedef uint32_t __attribute__((may_alias)) ckpt_unit4;
typedef uint64_t __attribute__((may_alias)) ckpt_unit8;
typedef uint64_t __attribute__((vector_size(16), may_alias)) ckpt_unit16;

/* The greatest unit at whose alignment all these addresses and sizes are, or-ed together. */
static inline uint32_t ckpt_unit_of(uint64_t bits)
{
	bits |= 16;
	return (uint32_t)(bits & -bits);
}

static inline void ckpt_unit_copy(uint64_t to, uint64_t from, uint32_t unit)
{
	switch (unit) {
	case 16:
		*(ckpt_unit16 *)(uintptr_t)to = *(const ckpt_unit16 *)(uintptr_t)from;
		break;
	case 8:
		*(ckpt_unit8 *)(uintptr_t)to = *(const ckpt_unit8 *)(uintptr_t)from;
		break;
	case 4:
		*(ckpt_unit4 *)(uintptr_t)to = *(const ckpt_unit4 *)(uintptr_t)from;
		break;
	case 2:
		*(ckpt_unit2 *)(uintptr_t)to = *(const ckpt_unit2 *)(uintptr_t)from;
		break;
	default:
		*(ckpt_unit1 *)(uintptr_t)to = *(const ckpt_unit1 *)(uintptr_t)from;
	}
}

/* One of 8 bytes at most, little-endian. */
static inline uint64_t ckpt_unit_read(uint64_t from, uint32_t unit)
{
	switch (unit) {
	case 8:
		return *(const ckpt_unit8 *)(uintptr_t)from;
	case 4:
		return *(const ckpt_unit4 *)(uintptr_t)from;
	case 2:
		return *(const ckpt_unit2 *)(uintptr_t)from;
	default:
		return *(const ckpt_unit1 *)(uintptr_t)from;
	}
}

#endif
