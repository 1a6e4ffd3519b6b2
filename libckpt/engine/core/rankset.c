/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/rankset.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

static int by_number(const void *a, const void *b)
{
	uint32_t left = *(const uint32_t *)a;
	uint32_t right = *(const uint32_t *)b;

	return (left > right) - (left < right);
}

int ckpt_rankset_set(struct ckpt_rankset *set, const uint32_t *ranks, size_t count)
{
	CKPT_ASSERT(ranks && count > 0);
	uint32_t *items = ckpt_alloc_array(count, sizeof(*items));
	size_t kept = 0;

	if (!items)
		return -ENOMEM;
	memcpy(items, ranks, count * sizeof(*items));
	qsort(items, count, sizeof(*items), by_number);
	for (size_t i = 0; i < count; i++)
		if (kept == 0 || items[i] != items[kept - 1])
			items[kept++] = items[i];
	ckpt_free(set->items);
	*set = (struct ckpt_rankset){.items = items, .count = kept};
	return 0;
}

bool ckpt_rankset_is_all(const struct ckpt_rankset *set)
{
	return !set->items;
}

bool ckpt_rankset_has(const struct ckpt_rankset *set, uint32_t rank)
{
	return !set->items ||
	       bsearch(&rank, set->items, set->count, sizeof(*set->items), by_number) != NULL;
}

uint32_t ckpt_rankset_last(const struct ckpt_rankset *set)
{
	CKPT_ASSERT(set->count > 0);
	return set->items[set->count - 1];
}

void ckpt_rankset_clear(struct ckpt_rankset *set)
{
	ckpt_free(set->items);
	*set = (struct ckpt_rankset){0};
}
