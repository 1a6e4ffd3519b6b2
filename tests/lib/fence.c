/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/fence.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/compiler.h"

#define PAGE       ((size_t)4096)
#define ARRAYS_MAX 256

void *__real_ckpt_alloc(size_t size);
void *__wrap_ckpt_alloc(size_t size);
void *__real_ckpt_alloc_array(size_t count, size_t size);
void *__wrap_ckpt_alloc_array(size_t count, size_t size);
void *__real_ckpt_realloc_array(void *old, size_t count, size_t size);
void *__wrap_ckpt_realloc_array(void *old, size_t count, size_t size);
char *__real_ckpt_strdup(const char *text);
char *__wrap_ckpt_strdup(const char *text);
void *__real_ckpt_memdup(const void *data, size_t size);
void *__wrap_ckpt_memdup(const void *data, size_t size);
void __real_ckpt_free(void *block);
void __wrap_ckpt_free(void *block);

/* Its memory is kept for the next one of so many pages. */
struct array {
	char *map;
	size_t pages; /* bytes, without the last one, which nobody may touch */
	char *at;     /* it ends where the last page begins; NULL: none */
	size_t bytes;
};

static struct array arrays[ARRAYS_MAX];
static size_t blocks;

size_t fence_blocks(void)
{
	return blocks;
}

static void *taken(void *block)
{
	blocks += block != NULL;
	return block;
}

static size_t pages_of(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

static struct array *find(const void *at)
{
	for (size_t i = 0; i < ARRAYS_MAX; i++)
		if (at && arrays[i].at == at)
			return &arrays[i];
	return NULL;
}

/* One that is free, of so many pages if there is any. */
static struct array *find_free(size_t pages)
{
	struct array *found = NULL;

	for (size_t i = 0; i < ARRAYS_MAX; i++) {
		struct array *array = &arrays[i];
		if (array->at)
			continue;
		if (array->pages == pages)
			return array;
		if (!found || !array->map)
			found = array;
	}
	if (!found)
		abort();
	return found;
}

/* Filled with what nobody has written. */
static struct array *put_up(size_t bytes)
{
	size_t pages = pages_of(bytes);
	struct array *array = find_free(pages);

	if (array->pages != pages) {
		if (array->map && munmap(array->map, array->pages + PAGE) != 0)
			abort();
		array->map = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		array->pages = pages;
		if (array->map == MAP_FAILED || mprotect(array->map + pages, PAGE, PROT_NONE) != 0)
			abort();
	}
	array->at = array->map + pages - bytes;
	array->bytes = bytes;
	memset(array->at, 0x5a, bytes);
	return array;
}

static void put_down(struct array *array)
{
	memset(array->at, 0x5a, array->bytes);
	array->at = NULL;
}

void *__wrap_ckpt_realloc_array(void *old, size_t count, size_t size)
{
	struct array *before = find(old);

	if (old && !before)
		return __real_ckpt_realloc_array(old, count, size);
	/* Whether there is memory is asked of the allocator. */
	void *block = __real_ckpt_realloc_array(NULL, count, size);
	if (!block)
		return NULL;
	__real_ckpt_free(block);
	struct array *after = put_up(count * size > 0 ? count * size : 1);
	if (!before)
		return taken(after->at);
	memcpy(after->at, before->at, before->bytes < after->bytes ? before->bytes : after->bytes);
	put_down(before);
	return after->at;
}

void *__wrap_ckpt_alloc(size_t size)
{
	return taken(__real_ckpt_alloc(size));
}

void *__wrap_ckpt_alloc_array(size_t count, size_t size)
{
	return taken(__real_ckpt_alloc_array(count, size));
}

char *__wrap_ckpt_strdup(const char *text)
{
	return taken(__real_ckpt_strdup(text));
}

void *__wrap_ckpt_memdup(const void *data, size_t size)
{
	return taken(__real_ckpt_memdup(data, size));
}

void __wrap_ckpt_free(void *block)
{
	struct array *array = find(block);

	blocks -= block != NULL;
	if (array)
		put_down(array);
	else
		__real_ckpt_free(block);
}
