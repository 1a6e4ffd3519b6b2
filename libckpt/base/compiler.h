/* SPDX-License-Identifier: Apache-2.0 */
/* Compiler attributes and the few macros used everywhere. */
#ifndef CKPT_BASE_COMPILER_H
#define CKPT_BASE_COMPILER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CKPT_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#define CKPT_MUST_CHECK        __attribute__((warn_unused_result))

#define CKPT_COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define CKPT_CONTAINER(ptr, type, member)                                                          \
	((type *)(void *)((char *)(1 ? (ptr) : &((type *)0)->member) - offsetof(type, member)))

/* Stays on in release builds, because its cost is negligible. */
#define CKPT_ASSERT(cond) ((cond) ? (void)0 : ckpt_assert_failed(#cond, __FILE__, __LINE__))

/* The same for a switch: no other case may occur. */
/* clang-format off */
#define CKPT_ASSERT_NO_OTHER default: ckpt_assert_failed("no other case", __FILE__, __LINE__)
/* clang-format on */

__attribute__((noreturn, cold)) void ckpt_assert_failed(
	const char *cond, const char *file, int line);

static inline uint64_t ckpt_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t ckpt_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Rounds up to a multiple of `to`, a power of two. The caller has bounded `n`. */
static inline uint64_t ckpt_align_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) & ~(to - 1);
}

#endif
