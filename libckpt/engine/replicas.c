/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing digests of equal boxes. */
#include "engine/replicas.h"

#include <string.h>

static const struct ckpt_chunk *chunk_of(
	const struct ckpt_layout *layout, const struct ckpt_entry *entry)
{
	return &layout->chunks[ckpt_layout_chunk_at(layout, entry->offset)];
}

/* A chunk that begins with these entries holds the same ones of both ranks, and nothing else. */
static bool same_content(const struct ckpt_layout *a, const struct ckpt_entry *x,
	const struct ckpt_layout *b, const struct ckpt_entry *y, uint64_t length)
{
	uint64_t end = x->offset + length;

	for (; x < a->entries + a->entry_count && x->offset < end; x++, y++) {
		struct ckpt_part one = {.entry = x};
		struct ckpt_part two = {.entry = y};

		if (y == b->entries + b->entry_count || x->dtype != y->dtype ||
			!ckpt_part_same(&one, &two) || strcmp(x->name, y->name) != 0)
			return false;
	}
	return true;
}

/* Both hold the same box: whether their bytes are known to differ. */
static bool differ(const struct ckpt_layout *a, const struct ckpt_entry *x,
	const struct ckpt_layout *b, const struct ckpt_entry *y)
{
	if (x->nbytes == 0 || a->chunk_bytes != b->chunk_bytes)
		return false;
	const struct ckpt_chunk *one = chunk_of(a, x);
	const struct ckpt_chunk *two = chunk_of(b, y);
	if (x->nbytes < a->chunk_bytes) {
		/* Of those in a shared chunk the first one sees to all. */
		return one->offset == x->offset && two->offset == y->offset &&
		       one->length == two->length && same_content(a, x, b, y, one->length) &&
		       !ckpt_digest_equal(&one->digest, &two->digest);
	}
	/* It has chunks of its own, cut from its beginning. */
	for (uint64_t done = 0; done < x->nbytes; done += one++->length, two++)
		if (!ckpt_digest_equal(&one->digest, &two->digest))
			return true;
	return false;
}

struct ckpt_replicas ckpt_replicas_compare(
	const struct ckpt_wholes *wholes, const struct ckpt_index *const *indexes)
{
	struct ckpt_replicas found = {0};

	for (size_t i = 0; i < wholes->names->entry_count; i++) {
		const struct ckpt_entry *whole = &wholes->names->entries[i];
		size_t count = 0;
		const struct ckpt_part *parts = ckpt_wholes_parts(wholes, whole, &count);
		const struct ckpt_part *first = parts;
		bool bad = false;

		for (const struct ckpt_part *p = parts + 1; p < parts + count && !bad; p++) {
			if (!ckpt_part_same(first, p)) {
				first = p;
				continue;
			}
			bad = differ(indexes[first->rank]->layout, first->entry,
				indexes[p->rank]->layout, p->entry);
			if (bad && found.tensors++ == 0) {
				found.name = whole->name;
				found.rank = first->rank;
				found.other = p->rank;
			}
		}
	}
	return found;
}
