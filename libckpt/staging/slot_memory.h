/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for staging: not inherited by children, not in core dumps. It is a memfd, which could be passed to another
 * process; but private memory where only that gets huge pages, because a block in 4 KiB pages has hundreds of
 * fragments, for which a disk needs several requests.
 */
#ifndef CKPT_STAGING_SLOT_MEMORY_H
#define CKPT_STAGING_SLOT_MEMORY_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_HUGE_PAGE (UINT64_C(2) << 20)

struct ckpt_slot_memory {
	char *base; /* aligned to CKPT_HUGE_PAGE */
	size_t bytes;
	/* Address space from `base` on; after `bytes` it is empty or added memory. */
	size_t reserved;
	bool huge;     /* reserved huge pages, or advice that the kernel follows */
	bool resident; /* all pages of `bytes` are present */
};

/*
 * Maps reserved huge pages, all present: `bytes` is a multiple of their size. False: not available. `reserve`: address
 * space to grow into; if that fails, only `bytes`.
 */
bool ckpt_slot_memory_open_huge(size_t bytes, size_t reserve, struct ckpt_slot_memory *ret_mapping);
/* Maps ordinary pages, not present yet. `bytes` and `reserve` are multiples of 4096. Sets `err`. */
int ckpt_slot_memory_open(
	size_t bytes, size_t reserve, struct ckpt_error *err, struct ckpt_slot_memory *ret_mapping);
void ckpt_slot_memory_close(struct ckpt_slot_memory *mapping);

/*
 * Adds memory at [base + at, base + at + bytes), which is empty: reserved huge pages if the mapping uses them and
 * enough are left. The pages are not present yet. Any thread, because the struct is not changed. Sets `err`.
 */
int ckpt_slot_memory_add(
	const struct ckpt_slot_memory *mapping, size_t at, size_t bytes, struct ckpt_error *err);
/* Gives back the pages of a part, which consists of whole pages. Pages that cannot be dropped stay. */
void ckpt_slot_memory_drop(char *at, size_t bytes);
/* Unmaps added memory. The pages of one addition are freed when all of it is removed or dropped. */
void ckpt_slot_memory_remove(const struct ckpt_slot_memory *mapping, size_t at, size_t bytes);

/* Makes the pages present without changing their contents, even while others write. 0 or -errno. */
int ckpt_slot_memory_touch(char *at, size_t bytes);
/* The same, page by page, for kernels before Linux 5.14. */
void ckpt_slot_memory_touch_pages(char *at, size_t bytes);

/*
 * Whether the kernel follows advice to use huge pages, by the contents of `enabled` or `shmem_enabled`: the general
 * file, and the one for this page size, NULL on kernels without it.
 */
bool ckpt_slot_memory_advice_heeded(const char *general, const char *of_size);

#endif
