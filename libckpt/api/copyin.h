/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that begin with their size: taking a caller's of any version, and giving one back. */
#ifndef CKPT_API_COPYIN_H
#define CKPT_API_COPYIN_H

#include "base/compiler.h"
#include "engine/runtime/runtime.h"

/*
 * Copies a caller's struct to `to` (`size` bytes): fields that an older caller lacks are zero. -E2BIG
 * when a newer caller has set fields that this library does not know; -EINVAL without a size. Words
 * into this thread's error. `what` names the struct.
 */
int ckpt_copy_in(void *to, size_t size, const void *from, const char *what);

/*
 * The same for `count` structs that lie one behind the other, all of the size that the first one says:
 * `least` when the struct was first released. *ret_copies is for ckpt_free(), or NULL: the caller's are
 * of this version, to be used as they are. -EINVAL too when sizes differ; -ENOMEM.
 */
int ckpt_copy_in_all(void **ret_copies, size_t size, size_t least, const void *from, size_t count,
	const char *what);

/* Copies `from` to the caller's struct as far as the size that the caller set in it says. */
int ckpt_copy_out(void *to, const void *from, size_t size, const char *what);

/* 0, or CKPT_EFORKED worded. `engine` not NULL. */
int ckpt_check_fork(const struct ckpt_engine *engine);

#endif
