/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for small things. Large memory is staging, see staging/pool.h. */
#ifndef CKPT_BASE_ALLOC_H
#define CKPT_BASE_ALLOC_H

#include "base/compiler.h"

/* NULL when there is none, or when the size overflows. Zeroed. A size of 0 gives a valid pointer. */
void *ckpt_alloc(size_t size);
void *ckpt_alloc_array(size_t count, size_t size);
/* As realloc, overflow-checked; new bytes are not zeroed; on failure `ptr` is as it was. */
void *ckpt_realloc_array(void *ptr, size_t count, size_t size);
char *ckpt_strdup(const char *text);
void *ckpt_memdup(const void *data, size_t size);
void ckpt_free(void *ptr);

/*
 * Tests make allocations fail: the hook is asked before each one and returns true to fail it.
 * Set while no other thread allocates. NULL: none.
 */
typedef bool ckpt_alloc_hook_fn(void *user, size_t size);
void ckpt_alloc_set_hook(ckpt_alloc_hook_fn *hook, void *user);
/* For other allocators: what the hook says. */
bool ckpt_alloc_refused(size_t size);

#endif
