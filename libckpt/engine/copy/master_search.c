/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/copy/master_search.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/shard/chunk_parts.h"
#include "format/dtype.h"

/* Elements of a tensor that are compared. */
#define SAMPLES 64

struct ckpt_master_candidate_key {
	uint64_t elements;
	uint64_t key; /* of the samples, rounded */
	size_t entry;
};

static const enum ckpt_chunk_kind kinds[2] = {CKPT_KIND_BF16, CKPT_KIND_F16};

static bool is_half(uint32_t dtype)
{
	return dtype == CKPT_BF16 || dtype == CKPT_F16;
}

int ckpt_master_search_open(struct ckpt_master_search *search, const struct ckpt_layout *layout)
{
	bool wanted[2] = {false, false};
	size_t room = 0;

	*search = (struct ckpt_master_search){.layout = layout};
	for (size_t i = 0; i < layout->entry_count; i++) {
		uint32_t dtype = layout->entries[i].dtype;

		/* Of a smaller chunk there is no sample. */
		room += dtype == CKPT_F32 && layout->chunk_bytes >= 4;
		if (is_half(dtype))
			wanted[dtype == CKPT_F16] = true;
	}
	search->of = ckpt_alloc_array(layout->entry_count, sizeof(*search->of));
	bool good = search->of != NULL;
	for (unsigned i = 0; i < CKPT_COUNT(kinds) && good; i++) {
		if (!wanted[i] || room == 0)
			continue;
		search->keys[i] = ckpt_alloc_array(room, sizeof(*search->keys[i]));
		good = search->keys[i] != NULL;
	}
	if (good)
		return 0;
	ckpt_master_search_close(search);
	return -ENOMEM;
}

void ckpt_master_search_close(struct ckpt_master_search *search)
{
	ckpt_free(search->of);
	ckpt_free(search->keys[0]);
	ckpt_free(search->keys[1]);
	*search = (struct ckpt_master_search){0};
}

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_key(const void *a, const void *b)
{
	const struct ckpt_master_candidate_key *x = a;
	const struct ckpt_master_candidate_key *y = b;

	if (x->elements != y->elements)
		return compare(x->elements, y->elements);
	return x->key != y->key ? compare(x->key, y->key) : compare(x->entry, y->entry);
}

/* Where samples are taken of so many elements: among those that are in a tensor's first chunk, of either type. */
static size_t place_of(const struct ckpt_master_search *search, uint64_t elements, size_t sample)
{
	const uint64_t seed[2] = {elements, sample};
	uint64_t among = ckpt_min_u64(elements, search->layout->chunk_bytes / 4);

	return (size_t)(among <= SAMPLES ? sample % among
					 : ckpt_hash64(seed, sizeof(seed), 0) % among);
}

static void note_master(struct ckpt_master_search *search, size_t entry, const uint8_t *data)
{
	uint64_t elements = search->layout->entries[entry].nbytes / 4;
	uint32_t values[SAMPLES];
	uint16_t rounded[SAMPLES];

	for (size_t i = 0; i < SAMPLES; i++)
		memcpy(&values[i], data + 4 * place_of(search, elements, i), 4);
	for (unsigned i = 0; i < CKPT_COUNT(kinds); i++) {
		if (!search->keys[i])
			continue;
		ckpt_codec_round(kinds[i], values, SAMPLES, rounded);
		search->keys[i][search->count] =
			(struct ckpt_master_candidate_key){.elements = elements,
				.key = ckpt_hash64(rounded, sizeof(rounded), 0),
				.entry = entry};
	}
	search->count++;
}

static void sort(struct ckpt_master_search *search)
{
	for (unsigned i = 0; i < CKPT_COUNT(kinds) && !search->sorted; i++)
		if (search->keys[i])
			qsort(search->keys[i], search->count, sizeof(*search->keys[i]), by_key);
	search->sorted = true;
}

static void find_master(struct ckpt_master_search *search, size_t entry, const uint8_t *data)
{
	const struct ckpt_entry *weight = &search->layout->entries[entry];
	const struct ckpt_master_candidate_key *keys = search->keys[weight->dtype == CKPT_F16];
	uint64_t elements = weight->nbytes / 2;
	uint16_t samples[SAMPLES];
	size_t low = 0;
	size_t high = search->count;

	if (!keys)
		return;
	sort(search);
	for (size_t i = 0; i < SAMPLES; i++)
		memcpy(&samples[i], data + 2 * place_of(search, elements, i), 2);
	struct ckpt_master_candidate_key like = {
		.elements = elements, .key = ckpt_hash64(samples, sizeof(samples), 0)};
	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (by_key(&keys[middle], &like) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < search->count && keys[low].elements == elements && keys[low].key == like.key)
		search->of[entry] = search->layout->entries[keys[low].entry].offset;
}

void ckpt_master_search_look(struct ckpt_master_search *search, size_t chunk, const void *data)
{
	const struct ckpt_chunk *c = &search->layout->chunks[chunk];

	for (; search->next < search->layout->entry_count; search->next++) {
		const struct ckpt_entry *e = &search->layout->entries[search->next];

		if (e->nbytes == 0)
			continue;
		if (e->offset >= c->offset + c->length)
			return;
		const uint8_t *at = (const uint8_t *)data + (e->offset - c->offset);
		if (e->dtype == CKPT_F32 && (search->keys[0] || search->keys[1]))
			note_master(search, search->next, at);
		else if (is_half(e->dtype))
			find_master(search, search->next, at);
	}
}

/* Other chunks may refer to one with larger elements, so that refers to none. */
static bool may_refer(const struct ckpt_master_search *search, size_t chunk)
{
	const struct ckpt_chunk *c = &search->layout->chunks[chunk];
	const struct ckpt_entry *first = ckpt_layout_at(search->layout, c->offset);

	return first && ckpt_dtype_bytes(first->dtype) < 4 && c->length <= CKPT_CODEC_CHUNK_BYTES;
}

size_t ckpt_master_search_ranges(struct ckpt_master_search *search, size_t chunk,
	struct ckpt_master_range ranges[CKPT_MASTER_RANGES])
{
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;
	uint64_t at = 0;
	size_t count = 0;

	ckpt_chunk_parts_begin(&parts, search->layout, chunk);
	while (ckpt_chunk_parts_next(&parts, &part)) {
		if (!part.entry || (part.kind != CKPT_KIND_BF16 && part.kind != CKPT_KIND_F16))
			continue;
		uint64_t *of = &search->of[part.entry - search->layout->entries];
		if (*of && (count == CKPT_MASTER_RANGES || !may_refer(search, chunk)))
			*of = 0;
		if (!*of)
			continue;
		ranges[count++] = (struct ckpt_master_range){
			.offset = *of + 2 * (part.offset - part.entry->offset),
			.length = 2 * (uint64_t)part.length,
			.at = at};
		at += 2 * (uint64_t)part.length;
	}
	return count;
}
