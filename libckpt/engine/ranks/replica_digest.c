/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what several ranks hold alike. */
#include "engine/ranks/replica_digest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/digest.h"
#include "base/error.h"
#include "device/devices.h"
#include "device/sample_mix.h"
#include "format/dtype.h"

/* All ranks must cut alike, whatever the size of their blocks is. */
#define SEGMENT_BYTES (UINT64_C(8) << 20)
#define DENSE_BYTES   (UINT64_C(256) << 10)
/* What is digested at once. A tensor that is known is digested by every 64th of these pieces. */
#define PIECE_BYTES   (UINT64_C(64) << 10)
/* Samples that the processor fetches while others are hashed. */
#define AHEAD         4

static struct ckpt_view view_of(const struct ckpt_tensor *t)
{
	return (struct ckpt_view){.data = (char *)(uintptr_t)t->data,
		.item = ckpt_dtype_bytes(t->dtype),
		.ndim = t->ndim,
		.shape = t->shape,
		.strides = t->strides,
		.device = (uint32_t)ckpt_devices_number(t->device, t->device_index)};
}

/* Of it there are no bytes to compare: that a rank lacks it is found all the same. */
static bool is_only_named(const struct ckpt_tensor *t, const struct ckpt_view *view)
{
	return t->flags & CKPT_TENSOR_VARIES || ckpt_view_bytes(view) == 0;
}

/* What it is, whatever its bytes are. */
static uint64_t hash_of(const struct ckpt_tensor *t)
{
	uint64_t hash = ckpt_hash64(t->name, strlen(t->name), t->dtype);

	return ckpt_hash64(t->shape, t->ndim * sizeof(*t->shape), hash);
}

static struct ckpt_replica_digest_sums *sums_of(struct ckpt_replica_digest *alike, uint64_t group)
{
	for (size_t i = 0; i < alike->group_count; i++)
		if (alike->sums[i].group == group)
			return &alike->sums[i];
	if (alike->group_count == CKPT_REPLICA_DIGEST_GROUPS)
		return NULL;
	struct ckpt_replica_digest_sums *sums = &alike->sums[alike->group_count++];
	*sums = (struct ckpt_replica_digest_sums){.group = group};
	return sums;
}

int ckpt_replica_digest_give(struct ckpt_replica_digest *alike, uint64_t group,
	const struct ckpt_tensor *tensors, size_t count, void *copies, struct ckpt_error *err)
{
	if (!sums_of(alike, group)) {
		ckpt_free(copies);
		return ckpt_fail(err, -E2BIG, "a save compares the tensors of at most %d groups",
			CKPT_REPLICA_DIGEST_GROUPS);
	}
	struct ckpt_replica_digest_given *grown =
		ckpt_realloc_array(alike->given, alike->given_count + 1, sizeof(*grown));
	if (!grown) {
		ckpt_free(copies);
		return ckpt_fail(err, -ENOMEM, "out of memory");
	}
	alike->given = grown;
	grown[alike->given_count++] = (struct ckpt_replica_digest_given){
		.group = group, .tensors = tensors, .copies = copies, .count = count};
	return 0;
}

bool ckpt_replica_digest_set_own(
	struct ckpt_replica_digest *alike, uint64_t group, enum ckpt_own own)
{
	for (size_t i = 0; i < alike->group_count; i++)
		if (alike->sums[i].group == group) {
			alike->sums[i].own = own;
			return true;
		}
	return false;
}

int ckpt_replica_digest_look(struct ckpt_replica_digest *alike)
{
	uint64_t all = 0;
	size_t count = 0;

	for (size_t i = 0; i < alike->given_count; i++)
		count += alike->given[i].count;
	alike->devices = 0;
	alike->what_count = 0;
	ckpt_free(alike->what);
	alike->what = ckpt_alloc_array(ckpt_max_u64(count, 1), sizeof(*alike->what));
	if (!alike->what)
		return -ENOMEM;
	for (size_t i = 0; i < alike->given_count; i++) {
		const struct ckpt_replica_digest_given *g = &alike->given[i];

		for (size_t k = 0; k < g->count; k++) {
			struct ckpt_view view = view_of(&g->tensors[k]);
			uint64_t hash = hash_of(&g->tensors[k]);
			uint64_t key = ckpt_sample_mix(hash + g->group);

			alike->what[alike->what_count++] =
				(struct ckpt_replica_digest_what){.hash = hash, .key = key};
			/* In whatever order they come. */
			all += key;
			if (!is_only_named(&g->tensors[k], &view))
				alike->devices |= UINT64_C(1) << view.device;
		}
	}
	alike->devices &= ~UINT64_C(1);
	alike->fingerprint = all ? all : 1;
	return 0;
}

uint32_t ckpt_replica_digest_level(uint64_t hash, uint32_t time)
{
	uint64_t bits = ckpt_sample_mix(hash + time) | UINT64_C(1)
							       << (CKPT_REPLICA_DIGEST_LEVELS - 1);

	return (uint32_t)__builtin_ctzll(bits);
}

static void add(struct ckpt_replica_digest_sums *sums, uint64_t hash, uint64_t digest)
{
	digest = ckpt_sample_mix(digest + hash);
	sums->sum += digest;
	for (uint32_t time = 0; time < CKPT_REPLICA_DIGEST_TIMES; time++) {
		struct ckpt_replica_digest_pair *pair =
			&sums->pairs[(size_t)time * CKPT_REPLICA_DIGEST_LEVELS];

		for (uint32_t level = ckpt_replica_digest_level(hash, time) + 1; level-- > 0;
			pair++) {
			pair->sum += (uint32_t)digest;
			pair->weighed += (uint32_t)digest * (uint32_t)hash;
		}
	}
}

/* By this, too, ranks are compared of which one has a proof and another one has none. */
static void add_samples(struct ckpt_replica_digest_sums *sums, uint64_t hash, uint64_t digest)
{
	digest = ckpt_sample_mix(digest + hash);
	sums->samples.sum += (uint32_t)digest;
	sums->samples.weighed += (uint32_t)digest * (uint32_t)hash;
}

/* Of every `step`-th piece from the one of number `first` on. Row-major, however it lies. */
static uint64_t digest_of(
	const struct ckpt_view *view, uint64_t seed, uint64_t first, uint64_t step, char *piece)
{
	uint64_t bytes = ckpt_view_bytes(view);
	bool plain = ckpt_view_contiguous(view);

	for (uint64_t at = first * PIECE_BYTES; at < bytes; at += step * PIECE_BYTES) {
		uint64_t length = ckpt_min_u64(PIECE_BYTES, bytes - at);

		if (!plain)
			ckpt_view_gather(view, at, length, piece);
		seed = ckpt_hash64(plain ? view->data + at : piece, length, seed);
	}
	return seed;
}

static struct ckpt_segment segment_of(
	const struct ckpt_view *view, uint64_t hash, uint64_t at, uint64_t most, uint64_t bytes)
{
	return (struct ckpt_segment){.view = *view,
		.offset = at,
		.length = ckpt_min_u64(most, bytes - at),
		.tensor = (uint32_t)hash};
}

static uint64_t sample_of(const struct ckpt_view *view, uint64_t hash, uint64_t seed)
{
	uint64_t bytes = ckpt_view_bytes(view);
	uint64_t digest = 0;

	for (uint64_t at = 0; at < bytes; at += SEGMENT_BYTES) {
		struct ckpt_segment s = segment_of(view, hash, at, SEGMENT_BYTES, bytes);
		digest += ckpt_segment_sample(&s, seed, false);
	}
	return digest;
}

static void expect(const struct ckpt_tensor *t, uint64_t hash, uint64_t seed)
{
	struct ckpt_view view = view_of(t);
	uint64_t bytes = ckpt_view_bytes(&view);

	if (view.device > 0 || is_only_named(t, &view))
		return;
	struct ckpt_segment s = segment_of(&view, hash, 0, SEGMENT_BYTES, bytes);
	ckpt_segment_expect(&s, seed);
}

static size_t pieces_of(uint64_t bytes, uint64_t cut)
{
	return (bytes + cut - 1) / cut;
}

/* What a record needs room for. */
struct room {
	size_t words;
	size_t late;
	size_t segments;
	bool gathers;
};

static void count_room(const struct ckpt_tensor *t, bool known, bool names, struct room *room)
{
	struct ckpt_view view = view_of(t);
	uint64_t bytes = ckpt_view_bytes(&view);

	room->words += names ? strlen(t->name) + 1 : 0;
	if (is_only_named(t, &view))
		return;
	if (view.device == 0) {
		room->gathers = room->gathers || !ckpt_view_contiguous(&view);
		return;
	}
	room->late++;
	room->segments += pieces_of(bytes, SEGMENT_BYTES);
	room->segments += known ? 0 : pieces_of(bytes, DENSE_BYTES);
}

/* Room for names, for what is on GPUs, and for what does not lie together. */
static int make_room(struct ckpt_replica_digest *alike, bool names)
{
	const struct ckpt_replica_digest_what *what = alike->what;
	struct room room = {0};

	for (size_t i = 0; i < alike->given_count; i++) {
		const struct ckpt_replica_digest_given *g = &alike->given[i];

		for (size_t k = 0; k < g->count; k++, what++)
			count_room(&g->tensors[k], what->known, names, &room);
	}
	if (names) {
		alike->names = ckpt_alloc_array(alike->what_count, sizeof(*alike->names));
		alike->words = ckpt_alloc(room.words);
	}
	if (room.gathers)
		alike->piece = ckpt_alloc(PIECE_BYTES);
	if (room.late > 0)
		alike->late = ckpt_alloc_array(room.late, sizeof(*alike->late));
	if (room.segments > 0)
		alike->segments = ckpt_alloc_array(room.segments, sizeof(*alike->segments));
	return (names && (!alike->names || !alike->words)) || (room.gathers && !alike->piece) ||
			       (room.late > 0 && !alike->late) ||
			       (room.segments > 0 && !alike->segments)
		       ? -ENOMEM
		       : 0;
}

static size_t cut(struct ckpt_replica_digest *alike, const struct ckpt_view *view, uint64_t hash,
	uint64_t most)
{
	uint64_t bytes = ckpt_view_bytes(view);

	for (uint64_t at = 0; at < bytes; at += most)
		alike->segments[alike->segment_count++] = segment_of(view, hash, at, most, bytes);
	return pieces_of(bytes, most);
}

static void take_late(struct ckpt_replica_digest *alike, const struct ckpt_view *view,
	const struct ckpt_replica_digest_what *what, const struct ckpt_replica_digest_sums *sums)
{
	struct ckpt_replica_digest_late *late = &alike->late[alike->late_count++];

	*late = (struct ckpt_replica_digest_late){.hash = what->hash,
		.place = (uint32_t)(sums - alike->sums),
		.first = alike->segment_count};
	late->count = cut(alike, view, what->hash, SEGMENT_BYTES);
	late->deep = what->known ? 0 : cut(alike, view, what->hash, DENSE_BYTES);
}

/* The digest of what is read of a tensor now: all of it, or the pieces whose turn it is and samples. */
static uint64_t read_one(const struct ckpt_replica_digest *alike, const struct ckpt_view *view,
	const struct ckpt_replica_digest_what *what, uint64_t sample, uint64_t seed)
{
	if (!what->known)
		return digest_of(view, seed, 0, 1, alike->piece);
	/* By the hash, so that small tensors do not all have the same turn. */
	uint64_t first = (alike->turn - what->hash) % CKPT_REPLICA_DIGEST_TURNS;
	return digest_of(view, seed + sample, first, CKPT_REPLICA_DIGEST_TURNS, alike->piece);
}

static void take_one(struct ckpt_replica_digest *alike, const struct ckpt_tensor *t,
	const struct ckpt_replica_digest_what *what, uint64_t group, uint64_t seed)
{
	struct ckpt_replica_digest_sums *sums = sums_of(alike, group);
	struct ckpt_view view = view_of(t);

	if (is_only_named(t, &view)) {
		add_samples(sums, what->hash, 0);
		add(sums, what->hash, 0);
		return;
	}
	if (!what->known)
		sums->deep += (uint32_t)what->key & ~CKPT_REPLICA_DIGEST_OWN;
	/* Of a GPU there are samples alone, so that a known tensor is digested otherwise there, too. */
	sums->kind +=
		(uint32_t)ckpt_sample_mix(what->key + (what->known ? 2 : 0) + (view.device > 0));
	if (view.device > 0) {
		take_late(alike, &view, what, sums);
		return;
	}
	uint64_t sample = sample_of(&view, what->hash, seed);
	add_samples(sums, what->hash, sample);
	add(sums, what->hash, read_one(alike, &view, what, sample, seed));
}

static void keep_names(struct ckpt_replica_digest *alike)
{
	const struct ckpt_replica_digest_what *what = alike->what;
	char *at = alike->words;

	for (size_t i = 0; i < alike->given_count; i++) {
		const struct ckpt_replica_digest_given *g = &alike->given[i];

		for (size_t k = 0; k < g->count; k++, what++) {
			size_t size = strlen(g->tensors[k].name) + 1;

			memcpy(at, g->tensors[k].name, size);
			alike->names[alike->name_count++] =
				(struct ckpt_replica_digest_name){.hash = what->hash,
					.group = g->group,
					.name = at,
					.known = what->known};
			at += size;
		}
	}
}

/* It is the caller's again. */
static void return_given(struct ckpt_replica_digest *alike)
{
	for (size_t i = 0; i < alike->given_count; i++)
		ckpt_free(alike->given[i].copies);
	ckpt_free(alike->given);
	alike->given = NULL;
	alike->given_count = 0;
}

int ckpt_replica_digest_take(struct ckpt_replica_digest *alike, enum ckpt_replica_digest_mode mode,
	uint64_t seed, bool names)
{
	const struct ckpt_replica_digest_what *what = alike->what;

	alike->mode = mode;
	if (mode == CKPT_REPLICA_DIGEST_NONE) {
		ckpt_replica_digest_go_without(alike);
		return 0;
	}
	if (make_room(alike, names) < 0)
		return -ENOMEM;
	if (names)
		keep_names(alike);
	for (size_t i = 0; i < alike->group_count; i++) {
		alike->sums[i].kind = (uint32_t)ckpt_sample_mix(alike->turn);
		alike->sums[i].deep = alike->sums[i].kind & ~CKPT_REPLICA_DIGEST_OWN;
	}
	for (size_t i = 0; i < alike->given_count; i++) {
		const struct ckpt_replica_digest_given *g = &alike->given[i];

		for (size_t k = 0; k < g->count; k++, what++) {
			if (what->known && k + AHEAD < g->count)
				expect(&g->tensors[k + AHEAD], what[AHEAD].hash, seed);
			take_one(alike, &g->tensors[k], what, g->group, seed);
		}
	}
	return_given(alike);
	return 0;
}

static uint64_t sum_of(const struct ckpt_segment *segments, size_t count)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < count; i++)
		sum += segments[i].sample;
	return sum;
}

void ckpt_replica_digest_add_late(struct ckpt_replica_digest *alike)
{
	for (size_t i = 0; i < alike->late_count; i++) {
		const struct ckpt_replica_digest_late *late = &alike->late[i];
		const struct ckpt_segment *segments = &alike->segments[late->first];
		struct ckpt_replica_digest_sums *sums = &alike->sums[late->place];
		uint64_t sample = sum_of(segments, late->count);

		add_samples(sums, late->hash, sample);
		add(sums, late->hash,
			late->deep ? sum_of(segments + late->count, late->deep) : sample);
	}
	alike->late_count = 0;
}

void ckpt_replica_digest_clear(struct ckpt_replica_digest *alike)
{
	return_given(alike);
	ckpt_free(alike->names);
	ckpt_free(alike->words);
	ckpt_free(alike->piece);
	ckpt_free(alike->what);
	ckpt_free(alike->segments);
	ckpt_free(alike->late);
	*alike = (struct ckpt_replica_digest){0};
}

void ckpt_replica_digest_go_without(struct ckpt_replica_digest *alike)
{
	ckpt_replica_digest_clear(alike);
	alike->without = true;
}
