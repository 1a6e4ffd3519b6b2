/* SPDX-License-Identifier: Apache-2.0 */
#include "io/listing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int ckpt_listing_sort(const struct ckpt_buf *names, size_t count, struct ckpt_listing *ret_listing)
{
	const char **sorted = ckpt_alloc_array(count, sizeof(*sorted));
	char *text = ckpt_alloc(names->len);
	const char *name = names->data;
	char *end = text;

	if (!sorted || !text) {
		ckpt_free(sorted);
		ckpt_free(text);
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++) {
		sorted[i] = name;
		name += strlen(name) + 1;
	}
	if (count > 1)
		qsort(sorted, count, sizeof(*sorted), compare);
	for (size_t i = 0; i < count; i++) {
		size_t size = strlen(sorted[i]) + 1;
		memcpy(end, sorted[i], size);
		end += size;
	}
	ckpt_free(sorted);
	*ret_listing = (struct ckpt_listing){.names = text, .bytes = names->len, .count = count};
	return 0;
}

bool ckpt_listing_has(const struct ckpt_listing *listing, const char *name, size_t *at)
{
	const char *names = listing->names;

	if (listing->bytes == 0)
		return false;
	if (strcmp(names + *at, name) > 0)
		*at = 0;
	for (;;) {
		size_t next = *at + strlen(names + *at) + 1;
		if (next >= listing->bytes || strcmp(names + next, name) > 0)
			return strcmp(names + *at, name) == 0;
		*at = next;
	}
}
