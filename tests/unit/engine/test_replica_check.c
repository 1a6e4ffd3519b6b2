/* SPDX-License-Identifier: Apache-2.0 */
/* Equal boxes with other bytes: found by their digests, and never where there are none. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/utf8.h"
#include "engine/reshard/replica_check.h"
#include "format/index.h"
#include "lib/prng.h"

#define RANKS   5
#define TENSORS 9
#define CHUNK   64

static size_t left;

/* Every allocation after the first `left` ones. */
static bool fail_late(void *user, size_t size)
{
	(void)user;
	(void)size;
	if (left == 0)
		return true;
	left--;
	return false;
}

struct scene {
	char names[TENSORS][8];
	int64_t shapes[TENSORS];
	struct ckpt_index indexes[RANKS];
	char *shards[RANKS];
	bool shared[RANKS][TENSORS]; /* has a digest of its own */
	bool varies[TENSORS];        /* other ranks may have other bytes of it */
	char data[TENSORS][4 * CHUNK];
};

/* Digests of the shard as it is now. */
static void digest(struct scene *s, uint32_t rank)
{
	struct ckpt_layout *l = s->indexes[rank].layout;

	for (size_t i = 0; i < l->chunk_count; i++)
		l->chunks[i].digest =
			ckpt_digest_of(s->shards[rank] + l->chunks[i].offset, l->chunks[i].length);
	for (const struct ckpt_entry *e = l->entries; e < l->entries + l->entry_count; e++)
		if (e->own)
			l->digests[e->own - 1] =
				ckpt_digest_of(s->shards[rank] + e->offset, e->nbytes);
}

/* What `has` says of the tensors, and one of its own if `own` is a name. */
static void add_rank(
	struct scene *s, uint32_t rank, const bool *has, const char *own, uint64_t chunk_bytes)
{
	struct ckpt_tensor tensors[TENSORS + 1];
	int64_t few = 3;
	size_t n = 0;

	for (size_t i = 0; i < TENSORS; i++)
		if (has[i])
			tensors[n++] = (struct ckpt_tensor){.name = s->names[i],
				.dtype = CKPT_U8,
				.flags = (s->shared[rank][i] ? CKPT_TENSOR_SHARED : 0) |
					 (s->varies[i] ? CKPT_TENSOR_VARIES : 0),
				.ndim = 1,
				.shape = &s->shapes[i]};
	if (own)
		tensors[n++] = (struct ckpt_tensor){
			.name = own, .dtype = CKPT_U8, .ndim = 1, .shape = &few};
	struct ckpt_index *index = &s->indexes[rank];
	assert_int_equal(
		ckpt_layout_build(tensors, n, NULL, 0, chunk_bytes, NULL, &index->layout), 0);
	struct ckpt_layout *l = index->layout;
	s->shards[rank] = calloc(1, l->bytes);
	memcpy(s->shards[rank], l->header, l->header_bytes);
	for (size_t i = 0; i < l->entry_count; i++)
		for (size_t k = 0; k < TENSORS; k++)
			if (strcmp(l->entries[i].name, s->names[k]) == 0)
				memcpy(s->shards[rank] + l->entries[i].offset, s->data[k],
					l->entries[i].nbytes);
	digest(s, rank);
}

static void make(struct scene *s, struct prng *d)
{
	*s = (struct scene){0};
	for (size_t i = 0; i < TENSORS; i++) {
		(void)snprintf(s->names[i], sizeof(s->names[i]), "t.%zu", i);
		s->shapes[i] = (int64_t)prng_below(d, prng_below(d, 2) ? UINT64_C(4) * CHUNK : 20);
		for (size_t k = 0; k < sizeof(s->data[i]); k++)
			s->data[i][k] = (char)prng_next(d);
	}
}

static void clear(struct scene *s)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		ckpt_layout_free(s->indexes[r].layout);
		free(s->shards[r]);
	}
}

static void put_words(struct ckpt_replica_check *found, char out[CKPT_REPLICA_CHECK_WORDS])
{
	*out = 0;
	if (found->differing > 0)
		ckpt_replica_check_word(found, out, CKPT_REPLICA_CHECK_WORDS);
	ckpt_replica_check_clear(found);
}

/* In words; "": nothing differs. Whoever reads the step comes to the same. */
static const char *compare(struct scene *s)
{
	static char words[CKPT_REPLICA_CHECK_WORDS];
	char again[CKPT_REPLICA_CHECK_WORDS];
	const struct ckpt_index *list[RANKS];
	struct ckpt_replica_check found = {.world = RANKS};
	struct ckpt_replica_check read = {.world = RANKS};
	struct ckpt_tensor_map *tensor_map = NULL;

	for (uint32_t rank = 0; rank < RANKS; rank++) {
		ckpt_replica_check_add(&found, rank, s->indexes[rank].layout);
		list[rank] = &s->indexes[rank];
	}
	ckpt_replica_check_end(&found);
	put_words(&found, words);
	assert_int_equal(ckpt_tensor_map_build(list, RANKS, NULL, &tensor_map), 0);
	left = 0;
	ckpt_alloc_set_hook(fail_late, NULL);
	ckpt_replica_check_compare(&read, tensor_map, list);
	ckpt_alloc_set_hook(NULL, NULL);
	put_words(&read, again);
	ckpt_tensor_map_free(tensor_map);
	assert_string_equal(words, again);
	return words;
}

static void check_words(struct scene *s, const char *text)
{
	const char *words = compare(s);

	if (*text ? !strstr(words, text) : *words != 0)
		fail_msg("\"%s\", and not \"%s\"", words, text);
}

/* Of the first tensor in a chunk that is not empty. */
static uint64_t first_of(const struct ckpt_layout *l, const struct ckpt_chunk *chunk)
{
	for (size_t i = 0; i < l->entry_count; i++)
		if (l->entries[i].nbytes > 0 && l->entries[i].offset >= chunk->offset)
			return l->entries[i].offset;
	return chunk->offset;
}

/* All hold the same: any byte of any rank but the headers' is noticed. */
static void test_any_byte(void **state)
{
	bool has[TENSORS];

	(void)state;
	memset(has, 1, sizeof(has));
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct prng d = {seed};
		struct scene s;

		make(&s, &d);
		s.shapes[0] += 1;
		for (uint32_t r = 0; r < RANKS; r++)
			add_rank(&s, r, has, NULL, CHUNK);
		check_words(&s, "");
		const struct ckpt_layout *l = s.indexes[0].layout;
		uint32_t rank = 1 + (uint32_t)prng_below(&d, RANKS - 1);
		uint64_t at = l->header_bytes + prng_below(&d, l->bytes - l->header_bytes);
		s.shards[rank][at] ^= 1;
		digest(&s, rank);
		/* Of those that share its chunk some are named, the first one of them. */
		const struct ckpt_entry *e = ckpt_layout_at(l, at);
		const struct ckpt_chunk *c = &l->chunks[ckpt_layout_chunk_at(l, at)];
		bool alone =
			e->nbytes >= CHUNK || (e->offset == c->offset && e->nbytes == c->length);
		if (!alone)
			e = ckpt_layout_at(l, first_of(l, c));
		char text[128];
		(void)snprintf(text, sizeof(text),
			"rank %u of the 5 ranks that hold it holds other bytes of %s'%s'", rank,
			alone ? "" : "one or more of ", e->name);
		check_words(&s, text);
		/* Rank 0 differs from every other one: it is the one that is named. */
		s.shards[rank][at] ^= 1;
		digest(&s, rank);
		s.shards[0][at] ^= 1;
		digest(&s, 0);
		text[5] = '0';
		check_words(&s, text);
		clear(&s);
	}
}

/* What ranks 0 and 1 find that cannot be compared; "": nothing. */
static void check_unknown(struct scene *s, const char *text)
{
	struct ckpt_replica_check found = {.world = RANKS};
	char words[256] = "";

	for (uint32_t r = 0; r < 2; r++)
		ckpt_replica_check_add(&found, r, s->indexes[r].layout);
	if (found.unknown > 0)
		ckpt_replica_check_word_unknown(&found, words, sizeof(words));
	assert_string_equal(words, text);
	ckpt_replica_check_clear(&found);
}

/*
 * Tensors with digests of their own, each rank's beside other tensors: a difference is found in each of them and named,
 * and what is beside them may differ.
 */
static void test_own_digests(void **state)
{
	static const char *const own[RANKS] = {"own.0", "a.1", "z.2", NULL, "t.55"};

	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct prng d = {seed};
		struct scene s;

		make(&s, &d);
		memset(s.shared, 1, sizeof(s.shared));
		/* In two ranks at least. */
		size_t k = prng_below(&d, TENSORS);
		uint32_t first = (uint32_t)prng_below(&d, RANKS - 1);
		uint32_t rank = first + 1 + (uint32_t)prng_below(&d, RANKS - 1 - first);
		s.shapes[k] += 1;
		for (uint32_t r = 0; r < RANKS; r++) {
			bool has[TENSORS];
			for (size_t i = 0; i < TENSORS; i++)
				has[i] = i == k ? r == first || r == rank : prng_below(&d, 4) > 0;
			add_rank(&s, r, has, own[r], CHUNK);
		}
		check_words(&s, "");
		check_unknown(&s, "");
		const struct ckpt_entry *e = ckpt_layout_find(s.indexes[rank].layout, s.names[k]);
		s.shards[rank][e->offset + prng_below(&d, e->nbytes)] ^= 1;
		e = own[rank] ? ckpt_layout_find(s.indexes[rank].layout, own[rank]) : NULL;
		if (e)
			s.shards[rank][e->offset] ^= 1;
		digest(&s, rank);
		char text[128];
		(void)snprintf(text, sizeof(text),
			"rank %u and rank %u hold different bytes of '%s'", rank, first,
			s.names[k]);
		assert_string_equal(compare(&s), text);
		clear(&s);
	}
}

/* Of the tensors in a chunk some have digests of their own: the others are not compared, and may be each rank's own. */
static void test_some_own_digests(void **state)
{
	struct ckpt_replica_check kept = {.world = RANKS};
	struct prng d = {11};
	bool has[TENSORS] = {[1] = true, [2] = true, [3] = true};
	struct scene s;

	(void)state;
	make(&s, &d);
	s.shapes[1] = s.shapes[2] = s.shapes[3] = 9;
	for (uint32_t r = 0; r < RANKS; r++) {
		s.shared[r][2] = true;
		add_rank(&s, r, has, NULL, CHUNK);
	}
	/* A part with a digest of its own takes no more places than one without. */
	ckpt_replica_check_add(&kept, 0, s.indexes[0].layout);
	assert_int_equal(kept.count, 2 * 3);
	ckpt_replica_check_clear(&kept);
	const struct ckpt_layout *l = s.indexes[1].layout;
	s.shards[1][ckpt_layout_find(l, "t.3")->offset] ^= 1;
	digest(&s, 1);
	check_words(&s, "");
	check_unknown(&s, "'t.1' of ranks 0 and 1, and 1 more tensor");
	s.shards[1][ckpt_layout_find(l, "t.2")->offset] ^= 1;
	digest(&s, 1);
	assert_string_equal(compare(&s),
		"rank 1 of the 5 ranks that hold it holds other bytes of 't.2' than the rest");
	clear(&s);
	/* The same is true of a tensor that has no digest of its own and is alone in its chunk. */
	make(&s, &d);
	s.shapes[1] = 9;
	s.shapes[2] = CHUNK - 1;
	for (uint32_t r = 0; r < RANKS; r++) {
		s.shared[r][1] = true;
		has[3] = false;
		add_rank(&s, r, has, NULL, CHUNK);
	}
	l = s.indexes[1].layout;
	s.shards[1][ckpt_layout_find(l, "t.2")->offset] ^= 1;
	digest(&s, 1);
	check_words(&s, "");
	check_unknown(&s, "'t.2' of ranks 0 and 1");
	clear(&s);
	/* One rank was told that others write it, and one was not. Alone in its chunk it can be compared all the same. */
	for (size_t alone = 0; alone < 2; alone++) {
		make(&s, &d);
		s.shapes[1] = s.shapes[2] = alone ? CHUNK - 1 : 9;
		s.shared[0][1] = s.shared[0][2] = true;
		has[3] = false;
		for (uint32_t r = 0; r < RANKS; r++)
			add_rank(&s, r, has, NULL, CHUNK);
		check_words(&s, "");
		check_unknown(&s, alone ? "" : "'t.1' of ranks 0 and 1, and 1 more tensor");
		l = s.indexes[0].layout;
		s.shards[0][ckpt_layout_find(l, "t.1")->offset] ^= 1;
		digest(&s, 0);
		check_words(
			&s, alone ? "rank 0 of the 5 ranks that hold it holds other bytes of 't.1'"
				  : "");
		clear(&s);
	}
}

/*
 * What is meant to differ is never compared, of any size: with chunks of its own, in a chunk with nothing else, and beside
 * other tensors, which are compared by digests of their own. Nor is it told as what cannot be compared.
 */
static void test_varies(void **state)
{
	static const int64_t sizes[] = {9, CHUNK, INT64_C(3) * CHUNK};
	const bool has[TENSORS] = {[1] = true, [2] = true, [3] = true};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(sizes); i++) {
		for (int beside = 0; beside < 2; beside++) {
			struct prng d = {i};
			struct scene s;

			make(&s, &d);
			s.shapes[1] = s.shapes[2] = sizes[i];
			s.shapes[3] = beside ? 9 : 0;
			s.varies[1] = s.varies[2] = true;
			for (uint32_t r = 0; r < RANKS; r++) {
				s.shared[r][1] = s.shared[r][3] = true;
				add_rank(&s, r, has, NULL, CHUNK);
				const struct ckpt_layout *l = s.indexes[r].layout;
				memset(s.shards[r] + ckpt_layout_find(l, "t.1")->offset, (int)r, 1);
				memset(s.shards[r] + ckpt_layout_find(l, "t.2")->offset, (int)r, 1);
				digest(&s, r);
			}
			check_words(&s, "");
			check_unknown(&s, "");
			if (beside)
				s.shards[1][ckpt_layout_find(s.indexes[1].layout, "t.3")->offset] ^=
					1;
			digest(&s, 1);
			assert_string_equal(compare(&s),
				beside ? "rank 1 of the 5 ranks that hold it holds other bytes of "
					 "'t.3' than the rest"
				       : "");
			clear(&s);
		}
	}
}

/* Whatever else a rank has, and however it cuts: equal bytes are never taken for others. */
static void test_no_false_alarm(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		static const char *const own[RANKS] = {"own.0", "a.1", "z.2", NULL, "t.55"};
		struct prng d = {seed};
		struct scene s;

		make(&s, &d);
		for (uint32_t r = 0; r < RANKS; r++) {
			bool has[TENSORS];
			for (size_t i = 0; i < TENSORS; i++) {
				has[i] = prng_below(&d, 4) > 0;
				s.shared[r][i] = seed % 2 && prng_below(&d, 2);
			}
			add_rank(&s, r, has, own[r], prng_below(&d, 3) ? CHUNK : CHUNK / 2);
		}
		check_words(&s, "");
		clear(&s);
	}
}

/* A large tensor lies elsewhere in each shard, and is compared all the same. */
static void test_shard_location(void **state)
{
	static const char *const own[RANKS] = {"a", "z", NULL, "b", "y"};
	struct prng d = {7};
	struct scene s;
	bool has[TENSORS] = {0};

	(void)state;
	make(&s, &d);
	has[4] = has[6] = true;
	s.shapes[4] = INT64_C(3) * CHUNK + 5;
	s.shapes[6] = CHUNK;
	for (uint32_t r = 0; r < RANKS; r++)
		add_rank(&s, r, has, own[r], CHUNK);
	check_words(&s, "");
	for (uint32_t r = 3; r < RANKS; r++) {
		for (size_t t = 4; t <= 6; t += 2) {
			const struct ckpt_entry *e =
				ckpt_layout_find(s.indexes[r].layout, s.names[t]);
			s.shards[r][e->offset + e->nbytes - 1] ^= 1;
		}
		digest(&s, r);
	}
	check_words(&s, "ranks 3 and 4 of the 5 ranks that hold it hold other bytes of 't.4' than "
			"the rest, and "
			"ranks differ in 't.6'");
	/* Two hold one thing, two another: there are no fewer. */
	const struct ckpt_entry *e = ckpt_layout_find(s.indexes[2].layout, s.names[4]);
	s.shards[2][e->offset] ^= 1;
	digest(&s, 2);
	check_words(&s, "ranks 2, 3 and 4 and rank 0 hold different bytes of 't.4', and ranks "
			"differ in 't.6'");
	clear(&s);
}

/* Each of two ranks has it beside a tensor of its own: nothing has a digest of it alone. */
static void test_beside_others(void **state)
{
	static const char *const own[RANKS] = {"a", NULL, "a", NULL, NULL};
	struct prng d = {8};
	struct ckpt_replica_check found = {.world = RANKS};
	struct scene s;
	bool has[TENSORS] = {0};
	char words[256];

	(void)state;
	make(&s, &d);
	has[3] = has[4] = true;
	s.shapes[3] = 7;
	s.shapes[4] = INT64_C(2) * CHUNK;
	for (uint32_t r = 0; r < RANKS; r++)
		add_rank(&s, r, has, own[r], CHUNK);
	for (uint32_t r = 0; r < 2; r++)
		ckpt_replica_check_add(&found, r, s.indexes[r].layout);
	assert_int_equal(found.unknown, 1);
	ckpt_replica_check_word_unknown(&found, words, sizeof(words));
	assert_string_equal(words, "'t.3' of ranks 0 and 1");
	assert_int_equal(found.differing, 0);
	/* Of both kinds there is one by now. */
	for (uint32_t r = 2; r < RANKS; r++)
		ckpt_replica_check_add(&found, r, s.indexes[r].layout);
	assert_int_equal(found.unknown, 1);
	for (uint32_t r = 0; r < RANKS; r++)
		assert_true(ckpt_replica_check_has(found.held, r));
	ckpt_replica_check_clear(&found);
	clear(&s);
}

/* Cut into 2 and into 3: they overlap, and no digest is of what both hold. Cut by one of the two they do not. */
static void test_cut_otherwise(void **state)
{
	static const int64_t starts[RANKS] = {0, 300, 0, 200, 400};
	static const int64_t shapes[RANKS] = {300, 300, 200, 200, 200};
	struct ckpt_replica_check found = {.world = RANKS};
	const int64_t whole = 600;
	char words[256];

	(void)state;
	for (uint32_t r = 0; r < RANKS; r++) {
		struct ckpt_layout *layout = NULL;
		const struct ckpt_tensor tensor = {.name = "w",
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &shapes[r],
			.global_shape = &whole,
			.global_start = &starts[r]};

		assert_int_equal(ckpt_layout_build(&tensor, 1, NULL, 0, CHUNK, NULL, &layout), 0);
		ckpt_replica_check_add(&found, r, layout);
		assert_int_equal(found.unknown, r >= 2);
		ckpt_layout_free(layout);
	}
	assert_int_equal(found.differing, 0);
	ckpt_replica_check_word_unknown(&found, words, sizeof(words));
	assert_string_equal(words, "'w' of ranks 0 and 2");
	ckpt_replica_check_clear(&found);
}

/* Which ranks hold what others hold; and where there are more boxes than are kept, that is said. */
static void test_who_and_how_many(void **state)
{
	struct prng d = {9};
	struct ckpt_replica_check found = {.world = RANKS};
	struct ckpt_replica_check few = {.world = RANKS, .most = 8};
	struct scene s;

	(void)state;
	make(&s, &d);
	for (uint32_t r = 0; r < RANKS; r++) {
		bool has[TENSORS] = {0};

		has[r == 3 ? 1 : r] = true;
		s.shapes[r] = INT64_C(2) * CHUNK;
		add_rank(&s, r, has, NULL, CHUNK);
		ckpt_replica_check_add(&found, r, s.indexes[r].layout);
		ckpt_replica_check_add(&few, r, s.indexes[r].layout);
	}
	for (uint32_t r = 0; r < RANKS; r++)
		assert_int_equal(ckpt_replica_check_has(found.held, r), r == 1 || r == 3);
	assert_false(found.full);
	/* Those that are kept are still compared. */
	assert_true(few.full);
	assert_int_equal(few.count, 4);
	assert_true(ckpt_replica_check_has(few.held, 1) && ckpt_replica_check_has(few.held, 3));
	assert_int_equal(few.unknown, 0);
	ckpt_replica_check_clear(&few);
	ckpt_replica_check_clear(&found);
	clear(&s);
}

/* Two ranks with tensors that have nothing in common but a bit of their names and types. */
static void test_short_names(void **state)
{
	struct ckpt_replica_check found = {.world = RANKS};

	(void)state;
	for (uint32_t r = 0; r < 2; r++) {
		struct ckpt_layout *l = NULL;
		struct ckpt_tensor tensors[13];
		char names[13][4] = {0};

		for (uint32_t i = 0; i < 13; i++) {
			memcpy(names[i], "x.a", 4);
			names[i][2] = (char)('a' + 2 * i + r);
			tensors[i] = (struct ckpt_tensor){
				.name = names[i], .dtype = r ? CKPT_I8 : CKPT_U8, .ndim = 0};
		}
		assert_int_equal(ckpt_layout_build(tensors, 13, NULL, 0, 1, NULL, &l), 0);
		for (size_t i = 0; i < l->chunk_count; i++)
			l->chunks[i].digest.bytes[0] = (uint8_t)r;
		ckpt_replica_check_add(&found, r, l);
		ckpt_layout_free(l);
	}
	assert_int_equal(found.differing, 0);
	assert_null(found.held);
	ckpt_replica_check_clear(&found);
}

/* Without memory, from the first allocation on or from a later one: fewer are compared, and that is known. */
static void test_no_memory(void **state)
{
	struct prng d = {10};
	struct scene s;
	bool has[TENSORS] = {[1] = true, [4] = true, [6] = true};
	bool full = true;

	(void)state;
	make(&s, &d);
	s.shapes[1] = s.shapes[4] = s.shapes[6] = CHUNK;
	for (uint32_t r = 0; r < RANKS; r++) {
		s.data[4][0] = (char)r;
		add_rank(&s, r, has, NULL, CHUNK);
	}
	for (size_t n = 0; full; n++) {
		struct ckpt_replica_check found = {.world = RANKS};

		left = n;
		ckpt_alloc_set_hook(fail_late, NULL);
		for (uint32_t r = 0; r < RANKS; r++)
			ckpt_replica_check_add(&found, r, s.indexes[r].layout);
		ckpt_alloc_set_hook(NULL, NULL);
		full = found.full;
		assert_int_equal(full, n < 2);
		/* Without its memory for who was compared with whom it is still found that they differ. */
		assert_int_equal(found.differing > 0, n > 0);
		ckpt_replica_check_clear(&found);
	}
	clear(&s);
}

static struct ckpt_chunk *chunk_of(const struct ckpt_layout *l, const char *name)
{
	return &l->chunks[ckpt_layout_chunk_at(l, ckpt_layout_find(l, name)->offset)];
}

/* The ranks that are named are those of the tensor that is named first; and words are not too long. */
static void test_words(void **state)
{
	static const uint32_t odd[3] = {3, 1, 2};
	struct ckpt_replica_check found = {.world = RANKS};
	char names[3][200];
	char words[CKPT_REPLICA_CHECK_WORDS];
	const int64_t shape = CHUNK;

	(void)state;
	for (uint32_t i = 0; i < 3; i++) {
		memset(names[i], 'x', sizeof(names[i]) - 1);
		names[i][0] = (char)('a' + i);
		names[i][199] = 0;
		/* Cut in the middle of a character it is not valid. */
		memcpy(names[i] + 79, "\xc3\xa4", 2);
	}
	for (uint32_t r = 0; r < RANKS; r++) {
		struct ckpt_layout *l = NULL;
		struct ckpt_tensor tensors[3];

		for (uint32_t i = 0; i < 3; i++)
			tensors[i] = (struct ckpt_tensor){
				.name = names[i], .dtype = CKPT_U8, .ndim = 1, .shape = &shape};
		assert_int_equal(ckpt_layout_build(tensors, 3, NULL, 0, CHUNK, NULL, &l), 0);
		for (uint32_t i = 0; i < 3; i++)
			if (odd[i] == r)
				chunk_of(l, names[i])->digest.bytes[0] = 1;
		ckpt_replica_check_add(&found, r, l);
		ckpt_layout_free(l);
	}
	assert_int_equal(found.differing, 3);
	ckpt_replica_check_word(&found, words, sizeof(words));
	assert_true(strlen(words) < CKPT_REPLICA_CHECK_WORDS);
	assert_true(ckpt_utf8_is_line(words));
	assert_string_equal(ckpt_replica_check_name(&found), names[1]);
	assert_non_null(
		strstr(words, "rank 1 of the 5 ranks that hold it holds other bytes of 'bxxx"));
	assert_non_null(strstr(words, "than the rest, and ranks differ in 2 more"));
	ckpt_replica_check_clear(&found);
}

/* Two that differ are on one node or not, whoever has it first. */
static void test_near(void **state)
{
	static const char *const nodes[][RANKS] = {
		{"a", "b", "b", "c", "d"}, {"a", "b", "c", "b", "d"}, {"a", "b", "c", "d", "e"}};
	const int64_t shape = CHUNK;
	const struct ckpt_tensor tensor = {
		.name = "w", .dtype = CKPT_U8, .ndim = 1, .shape = &shape};

	(void)state;
	/* Ranks 0 and 1 have the same, or 1 and 3 other ones of their own. */
	for (size_t i = 0; i < 2 * COUNT(nodes); i++) {
		struct ckpt_manifest_rank ranks[RANKS] = {0};
		struct ckpt_index indexes[RANKS] = {0};
		const struct ckpt_index *list[RANKS];
		struct ckpt_replica_check found = {.world = RANKS, .ranks = ranks};
		struct ckpt_replica_check read = {.world = RANKS, .ranks = ranks};
		struct ckpt_tensor_map *w = NULL;

		for (uint32_t r = 0; r < RANKS; r++) {
			struct ckpt_layout *l = NULL;
			(void)snprintf(ranks[r].node, sizeof(ranks[r].node), "%s", nodes[i / 2][r]);
			assert_int_equal(
				ckpt_layout_build(&tensor, 1, NULL, 0, CHUNK, NULL, &l), 0);
			uint32_t differs_from = i % 2 ? 0 : 1;
			if (r > differs_from)
				l->chunks[l->chunk_count - 1].digest.bytes[0] = (uint8_t)r;
			ckpt_replica_check_add(&found, r, l);
			indexes[r].layout = l;
			list[r] = &indexes[r];
		}
		assert_int_equal(found.near, i / 2 < 2);
		assert_int_equal(ckpt_tensor_map_build(list, RANKS, NULL, &w), 0);
		ckpt_replica_check_compare(&read, w, list);
		assert_int_equal(read.near, i / 2 < 2);
		ckpt_tensor_map_free(w);
		ckpt_replica_check_clear(&found);
		for (uint32_t r = 0; r < RANKS; r++)
			ckpt_layout_free(indexes[r].layout);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_byte),
		cmocka_unit_test(test_own_digests),
		cmocka_unit_test(test_some_own_digests),
		cmocka_unit_test(test_varies),
		cmocka_unit_test(test_no_false_alarm),
		cmocka_unit_test(test_shard_location),
		cmocka_unit_test(test_beside_others),
		cmocka_unit_test(test_cut_otherwise),
		cmocka_unit_test(test_short_names),
		cmocka_unit_test(test_who_and_how_many),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_near),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
