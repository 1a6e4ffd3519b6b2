/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator: that of libc, with a hook that lets tests make it fail. */
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static ckpt_alloc_hook_fn *alloc_hook;
static void *alloc_hook_user;

void ckpt_alloc_set_hook(ckpt_alloc_hook_fn *hook, void *user)
{
	alloc_hook = hook;
	alloc_hook_user = user;
}

bool ckpt_alloc_refused(size_t size)
{
	return alloc_hook && alloc_hook(alloc_hook_user, size);
}

void *ckpt_alloc(size_t size)
{
	return ckpt_alloc_array(1, size);
}

void *ckpt_alloc_array(size_t count, size_t size)
{
	size_t total;

	if (__builtin_mul_overflow(count, size, &total) || ckpt_alloc_refused(total))
		return NULL;
	return calloc(1, total ? total : 1);
}

void *ckpt_realloc_array(void *ptr, size_t count, size_t size)
{
	size_t total;

	if (__builtin_mul_overflow(count, size, &total) || ckpt_alloc_refused(total))
		return NULL;
	return realloc(ptr, total ? total : 1);
}

char *ckpt_strdup(const char *text)
{
	return ckpt_memdup(text, strlen(text) + 1);
}

void *ckpt_memdup(const void *data, size_t size)
{
	void *copy;

	if (ckpt_alloc_refused(size))
		return NULL;
	copy = malloc(size ? size : 1);
	if (copy && size)
		memcpy(copy, data, size);
	return copy;
}

void ckpt_free(void *ptr)
{
	free(ptr);
}
