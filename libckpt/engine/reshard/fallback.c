/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces a bad replica by another one. */
#include "engine/reshard/fallback.h"

#include <errno.h>

/* Another rank's replica of an entry of rank `rank`; NULL: all are lost. */
static const struct ckpt_part *find_copy(
	const struct ckpt_fallback *s, uint32_t rank, const struct ckpt_entry *entry)
{
	const struct ckpt_entry *whole = ckpt_layout_find(s->tensor_map->names, entry->name);
	const struct ckpt_part *found = NULL;
	size_t count = 0;

	CKPT_ASSERT(whole);
	const struct ckpt_part *parts = ckpt_tensor_map_parts(s->tensor_map, whole, &count);
	const struct ckpt_part own = {.entry = entry, .rank = rank};
	for (const struct ckpt_part *p = parts; p < parts + count; p++) {
		if (s->lost[p->rank] || !ckpt_part_same(p, &own))
			continue;
		/* Prefers a rank that is read anyway. */
		if (s->again[p->rank].count > 0)
			return p;
		found = found ? found : p;
	}
	return found;
}

int ckpt_fallback_move(
	const struct ckpt_fallback *spare, uint32_t rank, const struct ckpt_targets *wanted)
{
	const struct ckpt_layout *layout = spare->indexes[rank]->layout;

	CKPT_ASSERT(spare->lost[rank]);
	for (size_t i = 0; i < wanted->count; i++)
		if (!find_copy(spare, rank, ckpt_layout_at(layout, wanted->items[i].lo)))
			return -ENODATA;
	for (size_t i = 0; i < wanted->count; i++) {
		const struct ckpt_entry *entry = ckpt_layout_at(layout, wanted->items[i].lo);
		const struct ckpt_part *copy = find_copy(spare, rank, entry);
		int r = ckpt_targets_copy(
			&spare->again[copy->rank], wanted, i, entry->offset, copy->entry->offset);
		if (r < 0)
			return r;
	}
	return 0;
}
