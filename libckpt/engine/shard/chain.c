/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/chain.h"

#include <string.h>

#include "base/alloc.h"

/* The number in the shard's list of a base; 0: it is not in it. */
static uint8_t find_base(const struct ckpt_encoded *shard, const struct ckpt_encoded_base *base)
{
	for (unsigned i = 0; i < shard->base_count; i++) {
		const struct ckpt_encoded_base *b = &shard->bases[i];

		if (b->generation == base->generation && b->step == base->step &&
			ckpt_digest_equal(&b->index_digest, &base->index_digest))
			return (uint8_t)(i + 1);
	}
	return 0;
}

void ckpt_chain_begin(struct ckpt_chain *chain, const struct ckpt_encoded *encoded)
{
	*chain = (struct ckpt_chain){.files = {encoded}};
	for (unsigned i = 1; i <= encoded->base_count; i++)
		chain->numbers[0][i] = (uint8_t)i;
}

void ckpt_chain_add(struct ckpt_chain *chain, unsigned k, const struct ckpt_encoded *encoded)
{
	const struct ckpt_encoded *shard = chain->files[0];

	CKPT_ASSERT(k >= 1 && k <= shard->base_count);
	chain->files[k] = encoded;
	for (unsigned i = 0; i < encoded->base_count; i++) {
		uint8_t number = find_base(shard, &encoded->bases[i]);

		/* Numbers ascend with steps: what a base is decoded with is older. */
		chain->numbers[k][i + 1] = number < k ? number : 0;
	}
}

/* Whether the base of a chunk is one that it can be decoded with, if it has one. */
static bool is_whole(const struct ckpt_chain *chain, unsigned file, size_t chunk)
{
	if (chain->files[file]->chunks[chunk].base == 0)
		return true;
	unsigned base = ckpt_chain_base(chain, file, chunk);
	return base > 0 && chain->files[base]->chunks[chunk].kind != CKPT_ENCODED_SAME;
}

size_t ckpt_chain_broken(const struct ckpt_chain *chain, unsigned *ret_file)
{
	const struct ckpt_encoded *shard = chain->files[0];

	for (unsigned file = 0; file <= shard->base_count; file++)
		for (size_t i = 0; i < shard->chunk_count; i++)
			if (!is_whole(chain, file, i)) {
				*ret_file = file;
				return i;
			}
	return SIZE_MAX;
}

unsigned ckpt_chain_links(const struct ckpt_chain *chain, unsigned file, size_t chunk,
	uint8_t ret_files[CKPT_CHAIN_FILES])
{
	unsigned count = 0;

	if (chain && chain->files[file]->chunks[chunk].kind == CKPT_ENCODED_SAME)
		file = ckpt_chain_base(chain, file, chunk);
	do {
		CKPT_ASSERT(count < CKPT_CHAIN_FILES);
		ret_files[count++] = (uint8_t)file;
		file = ckpt_chain_base(chain, file, chunk);
	} while (file > 0);
	return count;
}

struct ckpt_encoded *ckpt_chain_plain(const struct ckpt_layout *layout)
{
	struct ckpt_encoded *e = ckpt_alloc(sizeof(*e));

	if (!e)
		return NULL;
	e->bytes = layout->bytes;
	e->table_offset = layout->bytes;
	e->chunk_count = layout->chunk_count;
	e->chunks = ckpt_alloc_array(e->chunk_count, sizeof(*e->chunks));
	if (!e->chunks) {
		ckpt_encoded_free(e);
		return NULL;
	}
	for (size_t i = 0; i < e->chunk_count; i++)
		e->chunks[i] = (struct ckpt_encoded_chunk){.offset = layout->chunks[i].offset,
			.length = layout->chunks[i].length,
			.kind = CKPT_ENCODED_PLAIN,
			.digest = layout->chunks[i].digest};
	return e;
}

bool ckpt_chain_is_alike(const struct ckpt_layout *a, const struct ckpt_layout *b)
{
	if (a->bytes != b->bytes || a->header_bytes != b->header_bytes ||
		a->chunk_bytes != b->chunk_bytes || a->entry_count != b->entry_count ||
		a->chunk_count != b->chunk_count)
		return false;
	/* The cuts depend on these alone. */
	for (size_t i = 0; i < a->entry_count; i++) {
		const struct ckpt_entry *x = &a->entries[i];
		const struct ckpt_entry *y = &b->entries[i];

		if (x->dtype != y->dtype || x->offset != y->offset || x->nbytes != y->nbytes ||
			strcmp(x->name, y->name) != 0)
			return false;
	}
	return true;
}
