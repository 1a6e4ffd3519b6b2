/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/stored_plan.h"

#include <errno.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "engine/shard/stored_place.h"

#define MEMORY_ALIGN 4096
/* Bytes between two stored chunks that are read along with them, which is cheaper than another request. */
#define GAP_MAX      (UINT64_C(64) << 10)
#define REQUEST_MAX  (UINT64_C(64) << 20)

static const struct ckpt_encoded_chunk *stored(const struct ckpt_stored_plan *plan, size_t item)
{
	const struct ckpt_stored_chunk *c = &plan->items[item];

	return &ckpt_stored_table(plan->chain, plan->encoded, c->file)->chunks[c->chunk];
}

static int put(struct ckpt_stored_plan *plan, unsigned file, size_t chunk)
{
	if (plan->count == plan->room) {
		size_t room = plan->room ? plan->room * 2 : 32;
		struct ckpt_stored_chunk *items =
			ckpt_realloc_array(plan->items, room, sizeof(*items));

		if (!items)
			return -ENOMEM;
		plan->items = items;
		plan->room = room;
	}
	plan->items[plan->count++] = (struct ckpt_stored_chunk){.file = file, .chunk = chunk};
	return 0;
}

/* What all files have of a chunk of `file`. *ret_oldest is the last of them. */
static int put_links(
	struct ckpt_stored_plan *plan, unsigned file, size_t chunk, unsigned *ret_oldest)
{
	uint8_t files[CKPT_CHAIN_FILES];
	unsigned count = ckpt_chain_links(plan->chain, file, chunk, files);
	int r = 0;

	for (unsigned i = 0; r == 0 && i < count; i++)
		r = put(plan, files[i], chunk);
	*ret_oldest = files[count - 1];
	return r;
}

int ckpt_stored_plan_add(struct ckpt_stored_plan *plan, size_t chunk)
{
	unsigned file;
	unsigned oldest;
	int r = put_links(plan, 0, chunk, &file);
	const struct ckpt_encoded *encoded = ckpt_stored_table(plan->chain, plan->encoded, file);
	const struct ckpt_encoded_chunk *c = &encoded->chunks[chunk];

	/* A chunk that has a base refers to none. */
	for (size_t i = 0; r == 0 && i < c->ref_count; i++)
		r = put_links(plan, file, encoded->refs[c->first_ref + i], &oldest);
	return r;
}

static int by_chunk(const void *a, const void *b)
{
	const struct ckpt_stored_chunk *x = a;
	const struct ckpt_stored_chunk *y = b;

	if (x->file != y->file)
		return x->file > y->file ? 1 : -1;
	return (x->chunk > y->chunk) - (x->chunk < y->chunk);
}

/* Of the items of a file, the one behind the last. */
static size_t end_of_file(const struct ckpt_stored_plan *plan, size_t from)
{
	size_t end = from;

	while (end < plan->count && plan->items[end].file == plan->items[from].file)
		end++;
	return end;
}

static int put_in_order(struct ckpt_stored_plan *plan)
{
	struct ckpt_stored_place *places = ckpt_alloc_array(plan->count, sizeof(*places));

	plan->order = ckpt_alloc_array(plan->count, sizeof(*plan->order));
	plan->where = ckpt_alloc_array(plan->count, sizeof(*plan->where));
	if (!places || !plan->order || !plan->where) {
		ckpt_free(places);
		return -ENOMEM;
	}
	for (size_t i = 0; i < plan->count; i++)
		places[i] =
			(struct ckpt_stored_place){.offset = stored(plan, i)->offset, .item = i};
	for (size_t end, from = 0; from < plan->count; from = end) {
		end = end_of_file(plan, from);
		ckpt_stored_place_sort(places + from, end - from);
	}
	for (size_t i = 0; i < plan->count; i++)
		plan->order[i] = places[i].item;
	ckpt_free(places);
	return 0;
}

/* The request that begins with plan->first. False: there is none. */
static bool find_request(struct ckpt_stored_plan *plan)
{
	plan->end = plan->first;
	if (plan->first == plan->count)
		return false;
	for (; plan->end < plan->count; plan->end++) {
		const struct ckpt_encoded_chunk *c = stored(plan, plan->order[plan->end]);
		uint64_t end = c->offset + c->length;

		if (plan->end == plan->first) {
			plan->at = c->offset & ~(plan->align - 1);
			plan->want = end;
			continue;
		}
		if (plan->narrow ||
			plan->items[plan->order[plan->end]].file != ckpt_stored_plan_file(plan) ||
			end > plan->at + REQUEST_MAX ||
			(c->offset > plan->want && c->offset - plan->want > GAP_MAX))
			break;
		plan->want = ckpt_max_u64(plan->want, end);
	}
	return true;
}

static uint64_t request_bytes(const struct ckpt_stored_plan *plan)
{
	return ckpt_align_up(plan->want, plan->align) - plan->at;
}

int ckpt_stored_plan_finish(struct ckpt_stored_plan *plan)
{
	size_t all = plan->count;

	if (all == 0)
		return 0;
	qsort(plan->items, all, sizeof(*plan->items), by_chunk);
	plan->count = 1;
	for (size_t i = 1; i < all; i++)
		if (by_chunk(&plan->items[i], &plan->items[plan->count - 1]) != 0)
			plan->items[plan->count++] = plan->items[i];
	if (put_in_order(plan) < 0)
		return -ENOMEM;
	for (plan->first = 0; find_request(plan); plan->first = plan->end) {
		for (size_t i = plan->first; i < plan->end; i++)
			plan->where[plan->order[i]] =
				plan->bytes + (stored(plan, plan->order[i])->offset - plan->at);
		plan->bytes += request_bytes(plan);
	}
	plan->first = 0;
	plan->end = 0;
	return 0;
}

int ckpt_stored_plan_begin(struct ckpt_stored_plan *plan)
{
	plan->allocated = ckpt_alloc(plan->bytes + MEMORY_ALIGN);
	if (!plan->allocated)
		return -ENOMEM;
	plan->memory = plan->allocated + (0 - (uintptr_t)plan->allocated) % MEMORY_ALIGN;
	return 0;
}

bool ckpt_stored_plan_next(struct ckpt_stored_plan *plan, struct ckpt_stored_request *ret_request)
{
	plan->first = plan->end;
	if (!find_request(plan))
		return false;
	/* One for a single chunk goes where that belongs, which the larger one has left room for. */
	size_t item = plan->order[plan->first];
	uint64_t where = plan->where[item] - (stored(plan, item)->offset - plan->at);
	*ret_request = (struct ckpt_stored_request){.file = plan->items[item].file,
		.data = plan->memory + where,
		.offset = plan->at,
		.length = request_bytes(plan),
		.end = plan->want};
	CKPT_ASSERT(where + ret_request->length <= plan->bytes);
	return true;
}

void ckpt_stored_plan_take(struct ckpt_stored_plan *plan)
{
	for (size_t i = plan->first; i < plan->end; i++) {
		size_t item = plan->order[i];

		plan->items[item].bytes = (const uint8_t *)plan->memory + plan->where[item];
	}
}

bool ckpt_stored_plan_narrow(struct ckpt_stored_plan *plan)
{
	if (plan->narrow)
		return false;
	plan->narrow = true;
	plan->end = plan->first;
	return true;
}

int ckpt_stored_plan_decode(const struct ckpt_stored_plan *plan, struct ckpt_chunk_decoder *decoder,
	const atomic_bool *stopped, size_t chunk, char *out, const char **ret_bytes)
{
	const struct ckpt_stored_chunks chunks = {.layout = plan->layout,
		.encoded = plan->encoded,
		.chain = plan->chain,
		.items = plan->items,
		.count = plan->count,
		.stopped = stopped};

	return ckpt_chunk_decode(decoder, &chunks, chunk, out, ret_bytes);
}

void ckpt_stored_plan_clear(struct ckpt_stored_plan *plan)
{
	ckpt_free(plan->items);
	ckpt_free(plan->order);
	ckpt_free(plan->where);
	ckpt_free(plan->allocated);
	*plan = (struct ckpt_stored_plan){0};
}
