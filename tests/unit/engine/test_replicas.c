/* SPDX-License-Identifier: Apache-2.0 */
/* Equal boxes with other bytes: found by their digests, and never where there are none. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/replicas.h"
#include "lib/dice.h"

#define RANKS   5
#define TENSORS 9
#define CHUNK   64

struct scene {
	char names[TENSORS][8];
	int64_t shapes[TENSORS];
	struct ckpt_index indexes[RANKS];
	const struct ckpt_index *list[RANKS];
	char *shards[RANKS];
	char data[TENSORS][4 * CHUNK];
};

/* Digests of the shard as it is now. */
static void digest(struct scene *s, uint32_t rank)
{
	struct ckpt_layout *l = s->indexes[rank].layout;

	for (size_t i = 0; i < l->chunk_count; i++)
		l->chunks[i].digest =
			ckpt_digest_of(s->shards[rank] + l->chunks[i].offset, l->chunks[i].length);
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
				.ndim = 1,
				.shape = &s->shapes[i]};
	if (own)
		tensors[n++] = (struct ckpt_tensor){
			.name = own, .dtype = CKPT_U8, .ndim = 1, .shape = &few};
	struct ckpt_index *index = &s->indexes[rank];
	assert_int_equal(
		ckpt_layout_build(tensors, n, NULL, 0, chunk_bytes, NULL, &index->layout), 0);
	struct ckpt_layout *l = index->layout;
	s->list[rank] = index;
	s->shards[rank] = calloc(1, l->bytes);
	memcpy(s->shards[rank], l->header, l->header_bytes);
	for (size_t i = 0; i < l->entry_count; i++)
		for (size_t k = 0; k < TENSORS; k++)
			if (strcmp(l->entries[i].name, s->names[k]) == 0)
				memcpy(s->shards[rank] + l->entries[i].offset, s->data[k],
					l->entries[i].nbytes);
	digest(s, rank);
}

static void make(struct scene *s, struct dice *d)
{
	*s = (struct scene){0};
	for (size_t i = 0; i < TENSORS; i++) {
		(void)snprintf(s->names[i], sizeof(s->names[i]), "t.%zu", i);
		s->shapes[i] = (int64_t)dice_below(d, dice_below(d, 2) ? 4 * CHUNK : 20);
		for (size_t k = 0; k < sizeof(s->data[i]); k++)
			s->data[i][k] = (char)dice_next(d);
	}
}

static void clear(struct scene *s)
{
	for (uint32_t r = 0; r < RANKS; r++) {
		ckpt_layout_free(s->indexes[r].layout);
		free(s->shards[r]);
	}
}

static struct ckpt_replicas compare(struct scene *s)
{
	struct ckpt_wholes *w = NULL;

	assert_int_equal(ckpt_wholes_build(s->list, RANKS, NULL, &w), 0);
	struct ckpt_replicas found = ckpt_replicas_compare(w, s->list);
	ckpt_wholes_free(w);
	return found;
}

/* All hold the same: any byte of any rank but the headers' is noticed. */
static void test_any_byte(void **state)
{
	bool has[TENSORS];

	(void)state;
	memset(has, 1, sizeof(has));
	for (uint64_t seed = 1; seed <= 300; seed++) {
		struct dice d = {seed};
		struct scene s;

		make(&s, &d);
		s.shapes[0] += 1;
		for (uint32_t r = 0; r < RANKS; r++)
			add_rank(&s, r, has, NULL, CHUNK);
		assert_int_equal(compare(&s).tensors, 0);
		const struct ckpt_layout *l = s.indexes[0].layout;
		uint32_t rank = 1 + (uint32_t)dice_below(&d, RANKS - 1);
		uint64_t at = l->header_bytes + dice_below(&d, l->bytes - l->header_bytes);
		s.shards[rank][at] ^= 1;
		digest(&s, rank);
		struct ckpt_replicas found = compare(&s);
		assert_int_equal(found.tensors, 1);
		assert_int_equal(found.rank, 0);
		assert_int_equal(found.other, rank);
		/* Of those that share its chunk the first is named. */
		const struct ckpt_entry *e = ckpt_layout_at(l, at);
		const struct ckpt_chunk *c = &l->chunks[ckpt_layout_chunk_at(l, at)];
		if (e->nbytes < CHUNK)
			e = ckpt_layout_at(l, c->offset);
		assert_string_equal(found.name, e->name);
		/* Rank 0 differs from every other one, and is counted once. */
		s.shards[rank][at] ^= 1;
		digest(&s, rank);
		s.shards[0][at] ^= 1;
		digest(&s, 0);
		found = compare(&s);
		assert_int_equal(found.tensors, 1);
		assert_int_equal(found.other, 1);
		clear(&s);
	}
}

/* Whatever else a rank has, and however it cuts: equal bytes are never taken for others. */
static void test_no_false_alarm(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 300; seed++) {
		static const char *const own[RANKS] = {"own.0", "a.1", "z.2", NULL, "t.55"};
		struct dice d = {seed};
		struct scene s;

		make(&s, &d);
		for (uint32_t r = 0; r < RANKS; r++) {
			bool has[TENSORS];
			for (size_t i = 0; i < TENSORS; i++)
				has[i] = dice_below(&d, 4) > 0;
			add_rank(&s, r, has, own[r], dice_below(&d, 3) ? CHUNK : CHUNK / 2);
		}
		assert_int_equal(compare(&s).tensors, 0);
		clear(&s);
	}
}

/* A large tensor lies elsewhere in each shard, and is compared all the same. */
static void test_elsewhere(void **state)
{
	static const char *const own[RANKS] = {"a", "z", NULL, "b", "y"};
	struct dice d = {7};
	struct scene s;
	bool has[TENSORS] = {0};

	(void)state;
	make(&s, &d);
	has[4] = has[6] = true;
	s.shapes[4] = 3 * CHUNK + 5;
	s.shapes[6] = CHUNK;
	for (uint32_t r = 0; r < RANKS; r++)
		add_rank(&s, r, has, own[r], CHUNK);
	assert_int_equal(compare(&s).tensors, 0);
	for (uint32_t r = 3; r < RANKS; r++) {
		for (size_t t = 4; t <= 6; t += 2) {
			const struct ckpt_entry *e =
				ckpt_layout_find(s.indexes[r].layout, s.names[t]);
			s.shards[r][e->offset + e->nbytes - 1] ^= 1;
		}
		digest(&s, r);
	}
	struct ckpt_replicas found = compare(&s);
	assert_int_equal(found.tensors, 2);
	assert_string_equal(found.name, s.names[4]);
	assert_int_equal(found.rank, 0);
	assert_int_equal(found.other, 3);
	clear(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_any_byte),
		cmocka_unit_test(test_no_false_alarm),
		cmocka_unit_test(test_elsewhere),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
