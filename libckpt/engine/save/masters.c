/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/masters.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

/* Elements of a tensor that are compared. */
#define SAMPLES   64
/* Tensors with the same samples, of which the one with the most similar name is taken. */
#define ALIKE_MAX 16
/* Bytes at the end of a name that are compared. */
#define NAME_END  128

struct ckpt_master_candidate {
	size_t entry;
	uint64_t elements;
	uint64_t key; /* of the sampled elements, rounded; 0 before they are sampled */
};

static bool is_16_bits(uint32_t dtype)
{
	return dtype == CKPT_BF16 || dtype == CKPT_F16;
}

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

static int by_key(const void *a, const void *b)
{
	const struct ckpt_master_candidate *x = a;
	const struct ckpt_master_candidate *y = b;

	if (x->elements != y->elements)
		return compare(x->elements, y->elements);
	return x->key != y->key ? compare(x->key, y->key) : compare(x->entry, y->entry);
}

/* The first one that is not before so many elements with this key. */
static size_t first_of(
	const struct ckpt_master_candidate *tensors, size_t count, uint64_t elements, uint64_t key)
{
	size_t low = 0;
	size_t high = count;

	CKPT_ASSERT(tensors || count == 0);
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		const struct ckpt_master_candidate *t = &tensors[middle];

		if (t->elements < elements || (t->elements == elements && t->key < key))
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static bool any_of(const struct ckpt_masters *masters, uint64_t elements)
{
	size_t i = first_of(masters->tensors[0], masters->tensor_count, elements, 0);

	return i < masters->tensor_count && masters->tensors[0][i].elements == elements;
}

/* The blocks in which the chunks of an entry end. */
static void mark_blocks(struct ckpt_masters *masters, const struct ckpt_layout *layout,
	const struct ckpt_entry *entry, uint32_t block_bytes)
{
	size_t last = ckpt_layout_chunk_at(layout, entry->offset + entry->nbytes - 1);
	uint64_t end = layout->chunks[last].offset + layout->chunks[last].length;

	for (uint64_t block = entry->offset / block_bytes; block <= (end - 1) / block_bytes;
		block++)
		masters->waiting[block] = true;
}

static void list_tensors(struct ckpt_masters *masters, const struct ckpt_layout *layout)
{
	for (size_t i = 0; i < layout->entry_count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];

		if (e->dtype == CKPT_F32 && e->nbytes > 0)
			masters->tensors[0][masters->tensor_count++] =
				(struct ckpt_master_candidate){
					.entry = i, .elements = e->nbytes / 4};
	}
	qsort(masters->tensors[0], masters->tensor_count, sizeof(*masters->tensors[0]), by_key);
}

static int list_weights(struct ckpt_masters *masters, const struct ckpt_layout *layout,
	uint32_t block_bytes, const atomic_bool *stopped)
{
	bool any_f16 = false;
	size_t room = 0;

	for (size_t i = 0; i < layout->entry_count; i++)
		room += is_16_bits(layout->entries[i].dtype);
	masters->weights = ckpt_alloc_array(room, sizeof(*masters->weights));
	if (!masters->weights)
		return -ENOMEM;
	for (size_t i = 0; i < layout->entry_count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];

		if (atomic_load(stopped))
			return -ECANCELED;
		if (!is_16_bits(e->dtype) || e->nbytes == 0 || !any_of(masters, e->nbytes / 2))
			continue;
		any_f16 = any_f16 || e->dtype == CKPT_F16;
		masters->weights[masters->weight_count++] = i;
		mark_blocks(masters, layout, e, block_bytes);
	}
	if (!any_f16)
		return 0;
	masters->tensors[1] = ckpt_alloc_array(masters->tensor_count, sizeof(*masters->tensors[1]));
	return masters->tensors[1] ? 0 : -ENOMEM;
}

int ckpt_masters_new(const struct ckpt_layout *layout, uint32_t block_bytes,
	const atomic_bool *stopped, struct ckpt_masters **ret_masters)
{
	struct ckpt_masters *masters = ckpt_alloc(sizeof(*masters));
	size_t blocks = (size_t)((layout->bytes + block_bytes - 1) / block_bytes);
	int r = -ENOMEM;

	*ret_masters = NULL;
	if (!masters)
		return r;
	masters->of = ckpt_alloc_array(layout->entry_count, sizeof(*masters->of));
	masters->waiting = ckpt_alloc_array(blocks, sizeof(*masters->waiting));
	masters->tensors[0] = ckpt_alloc_array(layout->entry_count, sizeof(*masters->tensors[0]));
	if (masters->of && masters->waiting && masters->tensors[0]) {
		list_tensors(masters, layout);
		r = list_weights(masters, layout, block_bytes, stopped);
	}
	if (r == 0 && masters->weight_count > 0) {
		*ret_masters = masters;
		return 0;
	}
	ckpt_masters_free(masters);
	return r;
}

void ckpt_masters_free(struct ckpt_masters *masters)
{
	if (!masters)
		return;
	ckpt_free(masters->of);
	ckpt_free(masters->waiting);
	ckpt_free(masters->tensors[0]);
	ckpt_free(masters->tensors[1]);
	ckpt_free(masters->weights);
	ckpt_free(masters);
}

/* Where samples of so many elements are taken: everywhere, and not at even distances. */
static uint64_t place_of(uint64_t elements, size_t sample)
{
	const uint64_t seed[2] = {elements, sample};

	return elements <= SAMPLES ? sample % elements
				   : ckpt_hash64(seed, sizeof(seed), 0) % elements;
}

/* The sampled elements of `width` bytes. */
static void take_samples(const struct ckpt_chunk_source *source, uint64_t offset, uint64_t elements,
	size_t width, void *ret_samples)
{
	uint8_t *to = ret_samples;
	uint8_t room[4];

	for (size_t i = 0; i < SAMPLES; i++, to += width)
		memcpy(to,
			source->bytes(
				source->user, offset + place_of(elements, i) * width, width, room),
			width);
}

static void take_keys(
	const struct ckpt_masters *masters, size_t tensor, const struct ckpt_chunk_source *source)
{
	static const enum ckpt_chunk_kind kinds[2] = {CKPT_KIND_BF16, CKPT_KIND_F16};
	struct ckpt_master_candidate t = masters->tensors[0][tensor];
	uint32_t values[SAMPLES];
	uint16_t rounded[SAMPLES];

	take_samples(source, source->layout->entries[t.entry].offset, t.elements, 4, values);
	for (size_t i = 0; i < CKPT_COUNT(kinds) && masters->tensors[i]; i++) {
		ckpt_codec_round(kinds[i], values, SAMPLES, rounded);
		t.key = ckpt_hash64(rounded, sizeof(rounded), 0);
		masters->tensors[i][tensor] = t;
	}
}

/* The length of the longest run of bytes that two names have in common, looking at their ends. */
static size_t similarity(const char *a, const char *b)
{
	uint8_t runs[NAME_END + 1] = {0}; /* that end at each byte of b */
	size_t a_length = strlen(a);
	size_t b_length = strlen(b);
	size_t longest = 0;

	a += a_length > NAME_END ? a_length - NAME_END : 0;
	b += b_length > NAME_END ? b_length - NAME_END : 0;
	b_length = ckpt_min_u64(b_length, NAME_END);
	for (; *a; a++)
		for (size_t i = b_length; i > 0; i--) {
			runs[i] = *a == b[i - 1] ? (uint8_t)(runs[i - 1] + 1) : 0;
			longest = runs[i] > longest ? runs[i] : longest;
		}
	return longest;
}

/* Of some tensors with the same samples, the one whose name is most like the weight's. */
static const struct ckpt_entry *most_similar(const struct ckpt_master_candidate *tensors,
	size_t count, const struct ckpt_entry *entries, const char *name)
{
	const struct ckpt_entry *best = &entries[tensors[0].entry];
	size_t best_similarity = count > 1 ? similarity(name, best->name) : 0;

	for (size_t i = 1; i < count; i++) {
		const struct ckpt_entry *e = &entries[tensors[i].entry];
		size_t likeness = similarity(name, e->name);

		if (likeness > best_similarity) {
			best = e;
			best_similarity = likeness;
		}
	}
	return best;
}

/* What one is the rounding of; 0: of no tensor. */
static uint64_t find_one(struct ckpt_masters *masters, const struct ckpt_chunk_source *source,
	const struct ckpt_entry *weight)
{
	const struct ckpt_master_candidate *tensors = masters->tensors[weight->dtype == CKPT_F16];
	uint64_t elements = weight->nbytes / 2;
	uint16_t samples[SAMPLES];
	size_t alike = 0;

	take_samples(source, weight->offset, elements, sizeof(*samples), samples);
	uint64_t key = ckpt_hash64(samples, sizeof(samples), 0);
	size_t first = first_of(tensors, masters->tensor_count, elements, key);
	while (alike < ALIKE_MAX && first + alike < masters->tensor_count) {
		const struct ckpt_master_candidate *t = &tensors[first + alike];

		masters->compared++;
		if (t->elements != elements || t->key != key)
			break;
		alike++;
	}
	return alike == 0
		       ? 0
		       : most_similar(tensors + first, alike, source->layout->entries, weight->name)
				 ->offset;
}

void ckpt_masters_find(struct ckpt_masters *masters, const struct ckpt_chunk_source *source,
	const atomic_bool *stopped)
{
	for (size_t i = 0; i < masters->tensor_count && !atomic_load(stopped); i++)
		take_keys(masters, i, source);
	for (size_t i = 0; i < CKPT_COUNT(masters->tensors) && !atomic_load(stopped); i++)
		if (masters->tensors[i])
			qsort(masters->tensors[i], masters->tensor_count,
				sizeof(*masters->tensors[i]), by_key);
	for (size_t i = 0; i < masters->weight_count && !atomic_load(stopped); i++) {
		size_t entry = masters->weights[i];

		masters->of[entry] = find_one(masters, source, &source->layout->entries[entry]);
	}
}
