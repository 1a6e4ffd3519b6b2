/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/gc/seen_tombstones.h"

#include <errno.h>

#include "base/alloc.h"

struct ckpt_seen_tombstone *ckpt_seen_tombstones_find(
	const struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < seen_tombstones->count; i++)
		if (seen_tombstones->items[i].generation == generation &&
			seen_tombstones->items[i].step == step)
			return &seen_tombstones->items[i];
	return NULL;
}

int ckpt_seen_tombstones_note(struct ckpt_seen_tombstones *seen_tombstones,
	const struct ckpt_seen_tombstone *seen_tombstone)
{
	struct ckpt_seen_tombstone *known = ckpt_seen_tombstones_find(
		seen_tombstones, seen_tombstone->generation, seen_tombstone->step);

	if (known) {
		if (!ckpt_digest_equal(&known->stone, &seen_tombstone->stone))
			*known = *seen_tombstone;
		return 0;
	}
	struct ckpt_seen_tombstone *items = ckpt_realloc_array(
		seen_tombstones->items, seen_tombstones->count + 1, sizeof(*items));
	if (!items)
		return -ENOMEM;
	seen_tombstones->items = items;
	items[seen_tombstones->count++] = *seen_tombstone;
	return 0;
}

void ckpt_seen_tombstones_drop(
	struct ckpt_seen_tombstones *seen_tombstones, uint64_t generation, uint64_t step)
{
	struct ckpt_seen_tombstone *known =
		ckpt_seen_tombstones_find(seen_tombstones, generation, step);

	if (known)
		*known = seen_tombstones->items[--seen_tombstones->count];
}

void ckpt_seen_tombstones_clear(struct ckpt_seen_tombstones *seen_tombstones)
{
	ckpt_free(seen_tombstones->items);
	*seen_tombstones = (struct ckpt_seen_tombstones){0};
}
