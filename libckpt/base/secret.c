/* SPDX-License-Identifier: Apache-2.0 */
#include "base/secret.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/alloc.h"

struct secret {
	size_t size; /* of the mapping; 0 in a forked child */
	max_align_t data[];
};

void *ckpt_secret_alloc(size_t size)
{
	struct secret *secret;
	size_t whole;

	if (__builtin_add_overflow(size, sizeof(*secret), &whole) || ckpt_alloc_refused(whole))
		return NULL;
	secret = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (secret == MAP_FAILED)
		return NULL;
	/* If an old kernel does not support it, this is ordinary memory. */
	(void)madvise(secret, whole, MADV_DONTDUMP);
	(void)madvise(secret, whole, MADV_WIPEONFORK);
	secret->size = whole;
	return secret->data;
}

char *ckpt_secret_strdup(const char *text)
{
	size_t size = strlen(text) + 1;
	char *copy = ckpt_secret_alloc(size);

	if (copy)
		memcpy(copy, text, size);
	return copy;
}

void ckpt_secret_free(void *secret)
{
	struct secret *whole;

	if (!secret)
		return;
	whole = CKPT_CONTAINER(secret, struct secret, data);
	if (whole->size > 0)
		(void)munmap(whole, whole->size);
}
