/* SPDX-License-Identifier: Apache-2.0 */
/* What the replacements of libc's functions are made of. */
#ifndef CKPT_TESTS_TAP_H
#define CKPT_TESTS_TAP_H

#include <dlfcn.h>
#include <errno.h>

#include "torture/torture.h"

#define SOFT(code) (-((code) | TORTURE_SOFT))

/* The errno of a code. */
static inline int tap_errno(int code)
{
	return -code & 0xffff;
}

/* The next definition of a function, which is the one that is replaced. */
#define TAP_REAL(type, name, params)                                                               \
	static type(*next_##name) params;                                                          \
	__attribute__((constructor)) static void find_##name(void)                                 \
	{                                                                                          \
		next_##name = (type(*) params)dlsym(RTLD_NEXT, #name);                             \
	}                                                                                          \
	static inline type(*get_##name(void)) params                                               \
	{                                                                                          \
		/* Some are called before any constructor. */                                      \
		if (!next_##name)                                                                  \
			find_##name();                                                             \
		return next_##name;                                                                \
	}

/*
 * A function that fails by returning `failed` with errno set, or with `failed` alone. `what` may use
 * its parameters; `carried_out`: it does what it does all the same.
 */
#define TAP(type, name, params, args, what, failed, carried_out, ...)                              \
	TAP_REAL(type, name, params)                                                               \
	static const struct torture_call call_##name = {#name, TORTURE_SYSCALL, {__VA_ARGS__}};    \
	type name params;                                                                          \
	type name params                                                                           \
	{                                                                                          \
		if (!torture_armed() || torture_inside())                                          \
			return get_##name() args;                                                  \
		int code = torture_event(&call_##name, what, __builtin_frame_address(0));          \
		if (code && !(carried_out)) {                                                      \
			errno = tap_errno(code);                                                   \
			return failed;                                                             \
		}                                                                                  \
		torture_enter(__builtin_frame_address(0));                                         \
		type answer = get_##name() args;                                                   \
		torture_leave();                                                                   \
		if (code) {                                                                        \
			errno = tap_errno(code);                                                   \
			return failed;                                                             \
		}                                                                                  \
		return answer;                                                                     \
	}

#endif
