/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fence.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define FENCE    512
#define NONSENSE 65536

struct block {
	size_t size;
	max_align_t data[];
};

static size_t blocks;

/* What the linker makes of the product's names. */
/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
void *__real_ckpt_alloc(size_t size);
void __real_ckpt_free(void *ptr);
void *__wrap_ckpt_alloc(size_t size);
void *__wrap_ckpt_alloc_array(size_t count, size_t size);
void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size);
char *__wrap_ckpt_strdup(const char *text);
void *__wrap_ckpt_memdup(const void *data, size_t size);
void __wrap_ckpt_free(void *ptr);

static unsigned char *fence_of(struct block *block)
{
	return (unsigned char *)block->data + block->size;
}

void *__wrap_ckpt_alloc(size_t size)
{
	if (size > SIZE_MAX - sizeof(struct block) - FENCE)
		return NULL;
	struct block *block = __real_ckpt_alloc(sizeof(*block) + size + FENCE);
	if (!block)
		return NULL;
	block->size = size;
	memset(fence_of(block), 0x5b, FENCE);
	blocks++;
	return block->data;
}

void __wrap_ckpt_free(void *ptr)
{
	if (!ptr)
		return;
	struct block *block = CKPT_CONTAINER(ptr, struct block, data);
	for (size_t i = 0; i < FENCE; i++) {
		if (fence_of(block)[i] == 0x5b)
			continue;
		(void)fprintf(stderr, "heap: byte %zu behind a block of %zu was written\n", i,
			block->size);
		abort();
	}
	blocks--;
	/* Whoever still has a pointer to it finds nonsense. */
	memset(block->data, 0x5c, ckpt_min_u64(block->size, NONSENSE));
	__real_ckpt_free(block);
}

void *__wrap_ckpt_alloc_array(size_t count, size_t size)
{
	size_t total;

	return __builtin_mul_overflow(count, size, &total) ? NULL : __wrap_ckpt_alloc(total);
}

void *__wrap_ckpt_realloc_array(void *ptr, size_t count, size_t size)
{
	void *grown = __wrap_ckpt_alloc_array(count, size);

	if (grown && ptr) {
		const struct block *old = CKPT_CONTAINER(ptr, struct block, data);
		memcpy(grown, ptr, old->size < count * size ? old->size : count * size);
		__wrap_ckpt_free(ptr);
	}
	return grown;
}

void *__wrap_ckpt_memdup(const void *data, size_t size)
{
	void *copy = __wrap_ckpt_alloc(size);

	if (copy && size)
		memcpy(copy, data, size);
	return copy;
}

char *__wrap_ckpt_strdup(const char *text)
{
	return __wrap_ckpt_memdup(text, strlen(text) + 1);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

size_t fence_blocks(void)
{
	return blocks;
}
