/* SPDX-License-Identifier: Apache-2.0 */
/* Compares digests of equal boxes. */
#include "engine/reshard/replica_check.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#define ROOM_MIN 64

/* Makes the keys of tensors, of chunk contents and of digests different. */
enum seed { TENSOR = 1, CONTENT, BYTES, NAMES, VOLUME, UNKNOWN };

/*
 * What has a digest: a tensor, or a chunk of small ones. If small tensors have digests of their own, the program has
 * marked what others write, too, and the other small tensors are not compared.
 */
struct unit {
	const struct ckpt_entry *first;
	const struct ckpt_entry *end;
	/* Non-empty tensors in it that have no digest of their own, or are the unit. */
	size_t tensors;
	bool small;
	bool own; /* one tensor of a chunk, with its own digest */
	/* A chunk that is not compared, because some of its tensors have their own digests or may vary. */
	bool mixed;
	uint64_t chunk_bytes;
	uint64_t key;
	uint64_t value;
};

static bool is_about(const struct unit *u, const struct ckpt_entry *e)
{
	return e->nbytes > 0 && !e->varies && (u->own || !e->own);
}

static uint64_t join(uint64_t hash, uint64_t more)
{
	return ckpt_hash64(&more, sizeof(more), hash);
}

/*
 * Key of a name for one use of enum seed. `use` is mixed in afterwards and is not the hash's seed, because hashes of
 * similar short names under similar seeds can be equal.
 */
static uint64_t key_of_name(const char *name, uint64_t use)
{
	return join(ckpt_hash64(name, strlen(name), 0), use);
}

/* Key of a tensor without its bytes. */
static uint64_t key_of(const struct ckpt_entry *e, uint64_t seed)
{
	static const int64_t zero[CKPT_NDIM_MAX];
	size_t dims = e->ndim * sizeof(*zero);
	uint64_t hash = key_of_name(e->name, seed << 32 | e->dtype);

	if (dims == 0)
		return hash;
	hash = ckpt_hash64(e->global_start ? e->global_start : zero, dims, hash);
	return ckpt_hash64(e->shape, dims, hash);
}

static uint64_t join_digest(uint64_t hash, const struct ckpt_digest *digest)
{
	return ckpt_hash64(digest->bytes, sizeof(digest->bytes), hash);
}

static const struct ckpt_chunk *chunk_of(
	const struct ckpt_layout *layout, const struct ckpt_entry *e)
{
	return &layout->chunks[ckpt_layout_chunk_at(layout, e->offset)];
}

/* Key of a tensor with its own digest. */
static uint64_t key_alone(const struct ckpt_entry *e, uint64_t chunk_bytes)
{
	return join(key_of(e, CONTENT), chunk_bytes);
}

/* Key of all tensors of a chunk. */
static void take_chunk(const struct ckpt_layout *layout, struct unit *u)
{
	const struct ckpt_chunk *chunk = chunk_of(layout, u->first);
	const struct ckpt_entry *last = layout->entries + layout->entry_count;

	u->first = ckpt_layout_at(layout, chunk->offset);
	u->key = key_alone(u->first, layout->chunk_bytes);
	u->tensors = 0;
	for (u->end = u->first; u->end < last; u->end++) {
		const struct ckpt_entry *e = u->end;

		if (e->offset >= chunk->offset + chunk->length)
			break;
		if (e->nbytes == 0)
			continue;
		if (e != u->first)
			u->key = join(u->key, key_of(e, CONTENT));
		u->tensors += is_about(u, e);
		u->mixed = u->mixed || e->varies;
	}
	u->mixed = u->mixed || layout->digest_count > 0;
	u->value = join_digest(u->value, &chunk->digest);
}

/* The unit of an entry that is not empty. A tensor that is alone in a chunk counts as one with its own digest. */
static struct unit unit_of(const struct ckpt_layout *layout, const struct ckpt_entry *e)
{
	struct unit u = {.first = e,
		.end = e + 1,
		.tensors = 1,
		.chunk_bytes = layout->chunk_bytes,
		.value = BYTES};

	u.own = e->own > 0;
	u.small = e->nbytes < layout->chunk_bytes;
	u.key = key_alone(e, layout->chunk_bytes);
	if (u.own) {
		u.value = join_digest(u.value, &layout->digests[e->own - 1]);
	} else if (u.small) {
		take_chunk(layout, &u);
	} else {
		/* It has chunks of its own, from its first byte on. */
		const struct ckpt_chunk *chunk = chunk_of(layout, e);

		for (uint64_t done = 0; done < e->nbytes; done += chunk++->length)
			u.value = join_digest(u.value, &chunk->digest);
	}
	return u;
}

/* The unit to compare at this entry. A chunk is compared at its first entry. False: none. */
static bool take_unit(
	const struct ckpt_layout *layout, const struct ckpt_entry *e, struct unit *ret_unit)
{
	if (e->nbytes == 0 || e->varies ||
		(!e->own && e->nbytes < layout->chunk_bytes &&
			chunk_of(layout, e)->offset != e->offset))
		return false;
	*ret_unit = unit_of(layout, e);
	return !ret_unit->mixed;
}

/* The place of a key: free, or in use by it. */
static struct ckpt_replica_check_box *find(const struct ckpt_replica_check *r, uint64_t key)
{
	size_t mask = r->room - 1;
	size_t at = key & mask;

	while (r->boxes[at].count > 0 && r->boxes[at].key != key)
		at = (at + 1) & mask;
	return &r->boxes[at];
}

/*
 * Grows the table, which is at most three quarters full. False: too many boxes or out of memory; no more are added from
 * now on, but those in it are still compared.
 */
static bool make_room(struct ckpt_replica_check *r, size_t more)
{
	uint64_t most = r->most ? r->most : CKPT_REPLICA_CHECK_BOXES;
	struct ckpt_replica_check_box *boxes = r->boxes;
	size_t before = r->room;
	size_t room = before ? before : ROOM_MIN;

	r->full = r->full || r->count + more > most;
	if (r->full)
		return false;
	while (r->count + more > room / 4 * 3)
		room *= 2;
	if (room == before)
		return true;
	r->boxes = ckpt_alloc_array(room, sizeof(*r->boxes));
	if (!r->boxes) {
		r->boxes = boxes;
		r->full = true;
		return false;
	}
	r->room = room;
	for (size_t i = 0; i < before; i++)
		if (boxes[i].count > 0)
			*find(r, boxes[i].key) = boxes[i];
	ckpt_free(boxes);
	return true;
}

static void put(struct ckpt_replica_check *r, struct ckpt_replica_check_box *box, uint64_t key,
	uint64_t value, uint32_t rank)
{
	*box = (struct ckpt_replica_check_box){
		.key = key, .value = value, .rank = rank, .last = rank, .count = 1};
	r->count++;
}

/* Whether a key occurs for the first time. */
static bool is_news(struct ckpt_replica_check *r, uint64_t key)
{
	struct ckpt_replica_check_box *box = find(r, key);

	if (box->count > 0 || r->full)
		return false;
	put(r, box, key, 0, 0);
	return true;
}

bool ckpt_replica_check_has(const uint64_t *held, uint32_t rank)
{
	return held && held[rank / 64] & UINT64_C(1) << rank % 64;
}

static void hold(struct ckpt_replica_check *r, uint32_t one, uint32_t two)
{
	CKPT_ASSERT(one < r->world && two < r->world);
	if (!r->held)
		r->held = ckpt_alloc_array(r->world / 64 + 1, sizeof(*r->held));
	if (!r->held) {
		r->full = true;
		return;
	}
	r->held[one / 64] |= UINT64_C(1) << one % 64;
	r->held[two / 64] |= UINT64_C(1) << two % 64;
}

static void copy_name(char *out, const char *name)
{
	(void)snprintf(out, CKPT_REPLICA_CHECK_NAME, "%s", name);
}

/* Names some tensors of a chunk, because it is unknown which of them differ, unless a single tensor is known. */
static void name_first(struct ckpt_replica_check *r, const struct unit *u)
{
	r->first_tensors = u->tensors;
	r->first_count = 0;
	r->odd_count = 0;
	for (const struct ckpt_entry *e = u->first; e < u->end; e++)
		if (e->nbytes > 0 && r->first_count < CKPT_REPLICA_CHECK_NAMED)
			copy_name(r->first[r->first_count++], e->name);
}

static uint64_t names_of(const struct unit *u)
{
	uint64_t key = 0;

	for (const struct ckpt_entry *e = u->first; e < u->end; e++)
		if (e->nbytes > 0)
			key = ckpt_hash64(e->name, strlen(e->name), key);
	return join(key, NAMES);
}

static bool same_node(const struct ckpt_replica_check *r, uint32_t one, uint32_t two)
{
	return !r->ranks || strcmp(r->ranks[one].node, r->ranks[two].node) == 0;
}

/* Whether those that differ from the first one also differ from each other on one node. */
static bool differs_near(const struct ckpt_replica_check *r, uint32_t rank, uint64_t value)
{
	for (uint32_t i = 0; i < r->odd_count && i < CKPT_REPLICA_CHECK_ODD; i++)
		if (r->odd[i].value != value && same_node(r, r->odd[i].rank, rank))
			return true;
	return false;
}

/* Adds a rank with other bytes than the first rank, in the first unit that differs. */
static void add_odd(struct ckpt_replica_check *r, uint32_t rank, uint64_t value)
{
	r->near = r->near || differs_near(r, rank, value);
	if (r->odd_count < CKPT_REPLICA_CHECK_ODD)
		r->odd[r->odd_count] =
			(struct ckpt_replica_check_odd){.value = value, .rank = rank};
	r->odd_count++;
}

/* `news`: no difference was found for these names before, in any box. */
static void take_difference(struct ckpt_replica_check *r, const struct ckpt_replica_check_box *box,
	uint32_t rank, const struct unit *u, bool news)
{
	bool first = r->differing == 0 || (r->first_tensors > 1 && u->tensors == 1);

	r->near = r->near || same_node(r, box->rank, rank) || same_node(r, box->last, rank);
	if (first) {
		name_first(r, u);
		r->odd_box = *box;
	} else if (news && u->tensors == 1 && r->later_count < CKPT_REPLICA_CHECK_NAMED - 1) {
		copy_name(r->later[r->later_count++], u->first->name);
	}
	r->differing += first || news;
	if (box->key == r->odd_box.key)
		add_odd(r, rank, u->value);
}

static void take_same(
	struct ckpt_replica_check *r, struct ckpt_replica_check_box *box, uint32_t rank)
{
	box->count++;
	box->last = rank;
	if (r->differing == 0 || box->key != r->odd_box.key)
		return;
	r->odd_box = *box;
	r->near = r->near || differs_near(r, rank, box->value);
}

static void take_unknown(struct ckpt_replica_check *r, uint32_t one, uint32_t two, const char *name)
{
	if (!is_news(r, key_of_name(name, UNKNOWN)) || r->unknown++ > 0)
		return;
	copy_name(r->unknown_name, name);
	r->unknown_ranks[0] = one;
	r->unknown_ranks[1] = two;
}

static uint64_t elements_of(const int64_t *shape, uint32_t ndim)
{
	uint64_t count = 1;

	for (uint32_t i = 0; i < ndim; i++)
		count *= (uint64_t)shape[i];
	return count;
}

/*
 * Adds a new box. If all boxes of a tensor have more elements than the tensor, some overlap without being equal. The
 * decoder has checked that the numbers fit.
 */
static void add_volume(struct ckpt_replica_check *r, uint32_t rank, const struct ckpt_entry *e)
{
	uint64_t key = key_of_name(e->name, VOLUME);
	uint64_t whole = elements_of(e->global_shape ? e->global_shape : e->shape, e->ndim);
	struct ckpt_replica_check_box *box = find(r, key);

	if (box->count == 0)
		put(r, box, key, 0, rank);
	if (box->value > whole)
		return;
	box->value += elements_of(e->shape, e->ndim);
	if (box->value > whole)
		take_unknown(r, box->rank, rank, e->name);
}

/*
 * For a new unit: finds tensors that other ranks have in other chunks, without a digest of their own on one side.
 * Single tensors are found by their unit.
 */
static void add_small(struct ckpt_replica_check *r, uint32_t rank, const struct unit *u)
{
	for (const struct ckpt_entry *e = u->first; e < u->end; e++) {
		if (!is_about(u, e))
			continue;
		const uint64_t alone = key_alone(e, u->chunk_bytes);
		const bool by_unit = alone == u->key && !u->mixed;
		const struct ckpt_replica_check_box *other = find(r, alone);
		struct ckpt_replica_check_box *box = find(r, key_of(e, TENSOR));

		if (box->count > 0 || (!by_unit && other->count > 0)) {
			take_unknown(r, box->count > 0 ? box->rank : other->rank, rank, e->name);
			continue;
		}
		if (!by_unit)
			put(r, box, key_of(e, TENSOR), 0, rank);
		add_volume(r, rank, e);
	}
}

/* Places for a unit: its own, one for its names, and three for each tensor. */
static void add_unit(struct ckpt_replica_check *r, uint32_t rank, const struct unit *u)
{
	bool fits = make_room(r, 2 + 3 * u->tensors);

	if (r->room == 0)
		return;
	if (u->mixed) {
		if (fits)
			add_small(r, rank, u);
		return;
	}
	struct ckpt_replica_check_box *box = find(r, u->key);
	if (box->count > 0) {
		hold(r, box->rank, rank);
		if (box->value == u->value)
			take_same(r, box, rank);
		else
			take_difference(r, box, rank, u, is_news(r, names_of(u)));
		return;
	}
	if (!fits)
		return;
	put(r, box, u->key, u->value, rank);
	if (u->small)
		add_small(r, rank, u);
	else
		add_volume(r, rank, u->first);
}

void ckpt_replica_check_add(
	struct ckpt_replica_check *replicas, uint32_t rank, const struct ckpt_layout *layout)
{
	const struct ckpt_entry *last = layout->entries + layout->entry_count;
	uint64_t done = 0; /* end of the chunk added last */

	for (const struct ckpt_entry *e = layout->entries; e < last; e++) {
		if (e->nbytes == 0 || e->varies || (!e->own && e->offset < done))
			continue;
		const struct unit u = unit_of(layout, e);
		add_unit(replicas, rank, &u);
		if (!u.own)
			done = u.end[-1].offset + u.end[-1].nbytes;
	}
}

/* Compares parts with the same box, sorted by rank. `named`: a box of this tensor was found to differ. */
static bool compare_run(struct ckpt_replica_check *r, const struct ckpt_part *parts, size_t count,
	const struct ckpt_index *const *indexes, bool named)
{
	const struct ckpt_part *first = parts;
	const struct ckpt_part *end = parts + count;
	struct unit one;

	while (first < end && !take_unit(indexes[first->rank]->layout, first->entry, &one))
		first++;
	if (first == end)
		return named;
	struct ckpt_replica_check_box box = {.key = one.key,
		.value = one.value,
		.rank = first->rank,
		.last = first->rank,
		.count = 1};
	for (const struct ckpt_part *p = first + 1; p < end; p++) {
		struct unit u;

		if (!take_unit(indexes[p->rank]->layout, p->entry, &u))
			continue;
		if (u.key != one.key)
			continue;
		if (u.value == one.value) {
			take_same(r, &box, p->rank);
			continue;
		}
		take_difference(r, &box, p->rank, &u, !named);
		named = true;
	}
	return named;
}

void ckpt_replica_check_compare(struct ckpt_replica_check *replicas,
	const struct ckpt_tensor_map *tensor_map, const struct ckpt_index *const *indexes)
{
	for (size_t i = 0; i < tensor_map->names->entry_count; i++) {
		size_t count = 0;
		const struct ckpt_part *part =
			ckpt_tensor_map_parts(tensor_map, &tensor_map->names->entries[i], &count);
		const struct ckpt_part *end = part + count;
		bool named = false;

		while (part < end) {
			size_t run = 1;
			while (part + run < end && ckpt_part_same(part, part + run))
				run++;
			if (run > 1)
				named = compare_run(replicas, part, run, indexes, named);
			part += run;
		}
	}
}

void ckpt_replica_check_end(struct ckpt_replica_check *replicas)
{
	ckpt_free(replicas->boxes);
	replicas->boxes = NULL;
	replicas->room = 0;
	replicas->count = 0;
}

void ckpt_replica_check_clear(struct ckpt_replica_check *replicas)
{
	ckpt_free(replicas->held);
	ckpt_free(replicas->boxes);
	*replicas = (struct ckpt_replica_check){0};
}
