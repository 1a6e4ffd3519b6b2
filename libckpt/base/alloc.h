/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for small objects. For large memory see staging/pool.h. */
#ifndef CKPT_BASE_ALLOC_H
#define CKPT_BASE_ALLOC_H

#include "base/compiler.h"

/* NULL when out of memory, or when the size overflows. Zeroed. A size of 0 gives a valid pointer. */
void *ckpt_alloc(size_t size);
void *ckpt_alloc_array(size_t count, size_t size);
/* Like realloc, with an overflow check. New bytes are not zeroed; after a failure `ptr` is unchanged. */
void *ckpt_realloc_array(void *ptr, size_t count, size_t size);
char *ckpt_strdup(const char *text);
void *ckpt_memdup(const void *data, size_t size);
void ckpt_free(void *ptr);

/*
 * For tests: the hook is called before each allocation, which fails if it returns true. Set it while no other thread
 * allocates. NULL: none.
 */
typedef bool ckpt_alloc_hook_fn(void *user, size_t size);
void ckpt_alloc_set_hook(ckpt_alloc_hook_fn *hook, void *user);
/* For other allocators: asks the hook. */
bool ckpt_alloc_refused(size_t size);

#endif
