/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for staging: not inherited by children, not in core dumps. It is a memfd's, so that it can be
 * handed to another process, but where only private memory gets huge pages, it is private: in pages of
 * 4 KiB a block is hundreds of pieces, which a disk takes as several requests.
 */
#ifndef CKPT_STAGING_SLOT_MEMORY_H
#define CKPT_STAGING_SLOT_MEMORY_H

#include <ckpt/error.h>
#include "base/compiler.h"

#define CKPT_HUGE_PAGE (UINT64_C(2) << 20)

struct ckpt_slot_memory {
	char *base; /* aligned to CKPT_HUGE_PAGE */
	size_t bytes;
	size_t reserved; /* address space from `base` on: behind `bytes` it is empty, or added */
	bool huge;       /* of huge pages, or advised and the kernel heeds it */
	bool resident;   /* every page of `bytes` is there */
};

/*
 * Of reserved huge pages, all there: `bytes` is a multiple of their size. False if it cannot be had. `reserve`: the
 * address space that it may grow into; where that cannot be had, it is as much as `bytes`.
 */
bool ckpt_slot_memory_open_huge(size_t bytes, size_t reserve, struct ckpt_slot_memory *ret_mapping);
/* Of ordinary pages, not there yet. `bytes` and `reserve` are multiples of 4096. Words into `err`. */
int ckpt_slot_memory_open(
	size_t bytes, size_t reserve, struct ckpt_error *err, struct ckpt_slot_memory *ret_mapping);
void ckpt_slot_memory_close(struct ckpt_slot_memory *mapping);

/*
 * Adds memory at [base + at, base + at + bytes), which is empty: of reserved huge pages if the mapping is of them and
 * there are enough. None of its pages is there yet. The struct is not changed: any thread may do it. Words into `err`.
 */
int ckpt_slot_memory_add(
	const struct ckpt_slot_memory *mapping, size_t at, size_t bytes, struct ckpt_error *err);
/* Gives back the pages of such a part, or of a piece of it, which is whole pages. Any that cannot be stays. */
void ckpt_slot_memory_drop(char *at, size_t bytes);
/* Empties such a part again. What was added together gives back its pages when all of it is removed, or dropped. */
void ckpt_slot_memory_remove(const struct ckpt_slot_memory *mapping, size_t at, size_t bytes);

/* Makes the pages be there and leaves what they hold, whoever writes meanwhile. 0 or -errno. */
int ckpt_slot_memory_touch(char *at, size_t bytes);
/* The same, page by page, for kernels that cannot do it at once (before Linux 5.14). */
void ckpt_slot_memory_touch_pages(char *at, size_t bytes);

/*
 * Whether advice to use huge pages is heeded, from the texts of `enabled` or `shmem_enabled`: the
 * general one and the one for this page size, NULL on kernels that lack it.
 */
bool ckpt_slot_memory_advice_heeded(const char *general, const char *of_size);

#endif
