/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/bad_chunk.h"

#include "base/error.h"

const char *ckpt_bad_chunk_tensor(const struct ckpt_layout *layout, uint64_t offset)
{
	const struct ckpt_entry *entry = ckpt_layout_at(layout, offset);

	return entry ? entry->name : NULL;
}

int ckpt_bad_chunk_fail(struct ckpt_error *err, const struct ckpt_layout *layout, size_t chunk,
	const char *file, const struct ckpt_store *store)
{
	const struct ckpt_chunk *c = &layout->chunks[chunk];
	const char *name = ckpt_bad_chunk_tensor(layout, c->offset);
	const char *last = ckpt_bad_chunk_tensor(layout, c->offset + c->length - 1);

	return ckpt_fail_at(err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(store),
			.file = file,
			.tensor = name,
			.has_offset = true,
			.offset = c->offset},
		"%s in %.300s: %u bytes at offset %llu do not match their digest (%s%.200s%s): "
		"they "
		"have changed since they were written; put the file back from a copy, or use an "
		"older step",
		file, store->label, c->length, (unsigned long long)c->offset,
		name ? "tensor " : "its header", name ? name : "",
		last != name ? " and others" : "");
}

int ckpt_bad_chunk_fail_base(struct ckpt_error *err, const struct ckpt_layout *layout, size_t chunk,
	const char *file, const struct ckpt_store *store, uint64_t step)
{
	uint64_t offset = layout->chunks[chunk].offset;
	const char *name = ckpt_bad_chunk_tensor(layout, offset);

	return ckpt_fail_at(err, CKPT_EINTEGRITY,
		&(struct ckpt_where){.tier = ckpt_store_tier(store),
			.file = file,
			.tensor = name,
			.has_offset = true,
			.offset = offset},
		"%s in %.300s: what it has of the chunk at offset %llu (%s%.200s) does not match "
		"its digest, and step %llu is decoded with it: put the file back from a copy, or "
		"use an older step",
		file, store->label, (unsigned long long)offset, name ? "tensor " : "the header",
		name ? name : "", (unsigned long long)step);
}
