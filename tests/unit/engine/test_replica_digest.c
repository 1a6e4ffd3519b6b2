/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of what ranks hold alike: what differs is found and named, and nothing else is. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/types.h>
#include "base/error.h"
#include "base/utf8.h"
#include "engine/ranks/replica_digest.h"
#include "exchange/rank_messages.h"
#include "format/index.h"
#include "format/layout.h"

#define RANKS   6
#define TENSORS 200
#define BYTES   200 /* of each; three lines and a little */
#define GROUP   UINT64_C(0xfedcba9876543210)

struct scene {
	char names[TENSORS][24];
	int64_t shape;
	uint32_t flags;
	unsigned char data[RANKS][TENSORS][BYTES];
	struct ckpt_tensor tensors[TENSORS];
	struct ckpt_replica_digest own; /* rank 0's */
	struct ckpt_replica_digest_received told;
	struct ckpt_replica_digest_proved proved;
	uint32_t turn;
	struct ckpt_error err;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->shape = BYTES;
	s->err.size = sizeof(s->err);
	(void)pthread_mutex_init(&s->proved.lock, NULL);
	for (size_t i = 0; i < TENSORS; i++) {
		(void)snprintf(s->names[i], sizeof(s->names[i]), "layers.%zu.weight", i);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			for (size_t k = 0; k < BYTES; k++)
				s->data[rank][i][k] = (unsigned char)(i * 7 + k * 13);
	}
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	ckpt_replica_digest_clear(&s->own);
	ckpt_replica_digest_forget(&s->told);
	ckpt_replica_digest_unprove(&s->proved);
	(void)pthread_mutex_destroy(&s->proved.lock);
	free(s);
	return 0;
}

/* What a rank tells, of tensors from one number on. */
static void tell(struct scene *s, uint32_t rank, enum ckpt_replica_digest_mode mode, uint64_t seed,
	size_t count, size_t from)
{
	struct ckpt_replica_digest alike = {0};
	char text[CKPT_REPLICA_DIGEST_TEXT];

	for (size_t i = 0; i < count; i++) {
		size_t at = (from + i) % count;
		s->tensors[i] = (struct ckpt_tensor){.name = s->names[at],
			.dtype = CKPT_U8,
			.flags = s->flags,
			.ndim = 1,
			.shape = &s->shape,
			.data = s->data[rank][at]};
	}
	assert_int_equal(
		ckpt_replica_digest_give(&alike, GROUP, s->tensors, count, NULL, &s->err), 0);
	assert_int_equal(ckpt_replica_digest_look(&alike), 0);
	if (mode == CKPT_REPLICA_DIGEST_SAMPLES)
		ckpt_replica_digest_prove(&s->proved, &alike);
	else
		ckpt_replica_digest_unprove(&s->proved);
	assert_int_equal(
		ckpt_replica_digest_know(&alike, &s->proved), mode == CKPT_REPLICA_DIGEST_SAMPLES);
	alike.turn = s->turn;
	assert_int_equal(ckpt_replica_digest_take(&alike, mode, seed, rank == 0), 0);
	ckpt_replica_digest_encode(&alike, text);
	assert_true(strlen(text) < CKPT_REPLICA_DIGEST_TEXT);
	assert_int_equal(ckpt_replica_digest_receive(&s->told, rank, text, "here", &s->err), 0);
	if (rank > 0) {
		ckpt_replica_digest_clear(&alike);
		return;
	}
	ckpt_replica_digest_clear(&s->own);
	s->own = alike;
}

/* All ranks, each with the tensors in another order. */
static struct ckpt_replica_digest_finding compare(
	struct scene *s, enum ckpt_replica_digest_mode mode, uint64_t seed, size_t count)
{
	ckpt_replica_digest_forget(&s->told);
	for (uint32_t rank = RANKS; rank-- > 0;)
		tell(s, rank, mode, seed, count, (size_t)rank * 5);
	return ckpt_replica_digest_compare(&s->told, &s->own);
}

static void check_words(const struct ckpt_replica_digest_finding *f, const char *text)
{
	char words[640];

	ckpt_replica_digest_word(f, words, sizeof(words));
	if (!strstr(words, text))
		fail_msg("not \"%s\": %s", text, words);
}

static void test_equal(void **state)
{
	struct scene *s = *state;

	for (uint64_t seed = 0; seed < 50; seed++) {
		assert_int_equal(compare(s, CKPT_REPLICA_DIGEST_SAMPLES, seed, TENSORS).groups, 0);
		assert_false(s->told.mixed);
	}
	assert_int_equal(compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS).groups, 0);
}

/* Any bit, anywhere, on any rank: found by the digest of all bytes, with its name. */
static void test_every_bit(void **state)
{
	struct scene *s = *state;

	for (size_t bit = 0; bit < (size_t)8 * BYTES; bit += 3) {
		uint32_t rank = bit % RANKS;
		size_t tensor = bit % TENSORS;

		s->data[rank][tensor][bit / 8] ^= (unsigned char)(1U << bit % 8);
		struct ckpt_replica_digest_finding f =
			compare(s, CKPT_REPLICA_DIGEST_FULL, bit, TENSORS);
		assert_int_equal(f.groups, 1);
		assert_int_equal(f.ranks, RANKS);
		assert_int_equal(f.count, 1);
		assert_int_equal(f.odd[0], rank);
		assert_true(f.minority && f.exact);
		assert_int_equal(f.tensors, 1);
		assert_string_equal(f.names[0], s->names[tensor]);
		s->data[rank][tensor][bit / 8] ^= (unsigned char)(1U << bit % 8);
	}
}

/* Samples are of other lines at other steps: what stays different is found at one of them. */
static void test_any_line_in_the_end(void **state)
{
	struct scene *s = *state;
	const size_t count = 4;

	s->shape = BYTES;
	for (size_t at = 0; at < BYTES; at += 20) {
		uint64_t seed = 0;

		s->data[3][2][at] ^= 1;
		while (compare(s, CKPT_REPLICA_DIGEST_SAMPLES, seed, count).groups == 0)
			assert_true(++seed < 1000);
		s->data[3][2][at] ^= 1;
	}
}

/* Two ranks, with one tensor whose rows alternate in the memory of rank 1. How many turns find that it differs. */
static unsigned count_turns(struct scene *s, char *const data[2], size_t row)
{
	const int64_t shape[] = {2, (int64_t)row};
	const int64_t across[] = {1, 2};
	unsigned found = 0;

	for (s->turn = 0; s->turn < CKPT_REPLICA_DIGEST_TURNS; s->turn++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			struct ckpt_replica_digest alike = {0};
			char text[CKPT_REPLICA_DIGEST_TEXT];

			s->tensors[0] = (struct ckpt_tensor){.name = "large",
				.dtype = CKPT_U8,
				.ndim = 2,
				.shape = shape,
				.strides = rank == 1 ? across : NULL,
				.data = data[rank]};
			assert_int_equal(ckpt_replica_digest_give(
						 &alike, GROUP, s->tensors, 1, NULL, &s->err),
				0);
			assert_int_equal(ckpt_replica_digest_look(&alike), 0);
			ckpt_replica_digest_prove(&s->proved, &alike);
			assert_true(ckpt_replica_digest_know(&alike, &s->proved));
			alike.turn = s->turn;
			assert_int_equal(ckpt_replica_digest_take(
						 &alike, CKPT_REPLICA_DIGEST_SAMPLES, 1, false),
				0);
			ckpt_replica_digest_encode(&alike, text);
			assert_int_equal(
				ckpt_replica_digest_receive(&s->told, rank, text, "here", &s->err),
				0);
			ckpt_replica_digest_clear(&alike);
		}
		found += ckpt_replica_digest_compare(&s->told, &s->own).groups > 0;
		ckpt_replica_digest_forget(&s->told);
	}
	return found;
}

/* Any byte of what is known is read at one turn of 64, and at no other, however the tensor lies. */
static void test_every_byte_in_turn(void **state)
{
	struct scene *s = *state;
	const size_t piece = 65536;
	const size_t row = 35 * piece + 100;
	const size_t at[] = {12345, 63 * piece + 1, row, 69 * piece + 65535, 2 * row - 90};
	char *const data[] = {malloc(2 * row), malloc(2 * row)};

	for (size_t i = 0; i < 2 * row; i++)
		data[0][i] = data[1][i % row * 2 + i / row] = (char)(i * 7 + (i >> 8));
	assert_int_equal(count_turns(s, data, row), 0);
	for (size_t i = 0; i < CKPT_COUNT(at); i++) {
		data[0][at[i]] ^= 1;
		assert_int_equal(count_turns(s, data, row), 1);
		data[0][at[i]] ^= 1;
	}
	free(data[0]);
	free(data[1]);
}

/* Ranks that have counted other commits have read other bytes: they compare samples, and all count anew. */
static void test_another_turn(void **state)
{
	struct scene *s = *state;

	for (uint32_t turn = 0; turn < CKPT_REPLICA_DIGEST_TURNS; turn++) {
		for (uint32_t rank = 0; rank < 2; rank++) {
			s->turn = (turn + rank) % CKPT_REPLICA_DIGEST_TURNS;
			tell(s, rank, CKPT_REPLICA_DIGEST_SAMPLES, 1, TENSORS, 0);
		}
		assert_int_equal(ckpt_replica_digest_compare(&s->told, &s->own).groups, 0);
		assert_true(s->told.mixed);
		ckpt_replica_digest_forget(&s->told);
	}
}

static void test_many_tensors(void **state)
{
	struct scene *s = *state;

	/* The fewer differ, the more exactly it is known how many. */
	for (size_t differ = 2; differ <= TENSORS; differ *= 3) {
		for (size_t i = 0; i < differ; i++)
			s->data[4][i * TENSORS / differ][i % BYTES]++;
		struct ckpt_replica_digest_finding f =
			compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
		assert_int_equal(f.groups, 1);
		assert_int_equal(f.odd[0], 4);
		assert_in_range(f.tensors, differ / 4, differ * 4);
		if (f.exact)
			assert_int_equal(f.tensors, differ);
		for (size_t i = 0; i < f.name_count; i++) {
			size_t number = strtoul(f.names[i] + strlen("layers."), NULL, 10);
			assert_memory_not_equal(s->data[4][number], s->data[0][number], BYTES);
		}
		for (uint32_t rank = 0; rank < RANKS; rank++)
			memcpy(s->data[4], s->data[0], sizeof(s->data[4]));
	}
}

/* However many differ, somebody who looks for the cause is given a name. */
static void test_a_name(void **state)
{
	struct scene *s = *state;
	unsigned nameless = 0;

	for (size_t differ = 0; differ < TENSORS; differ++) {
		s->data[4][differ * 77 % TENSORS][differ % BYTES]++;
		struct ckpt_replica_digest_finding f =
			compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
		nameless += f.name_count == 0;
		assert_in_range(f.tensors, (differ + 1) / 4, (differ + 1) * 4);
	}
	assert_in_range(nameless, 0, TENSORS / 50);
}

static void test_who(void **state)
{
	struct scene *s = *state;

	/* Two kinds of three: nobody knows which is right. */
	for (uint32_t rank = 1; rank < RANKS; rank += 2)
		s->data[rank][9][9]++;
	struct ckpt_replica_digest_finding f = compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
	assert_false(f.minority);
	check_words(&f, "ranks 1, 3 and 5 and rank 0 hold different bytes of 'layers.9.weight'");
	/* All of their own, as experts are. */
	for (uint32_t rank = 0; rank < RANKS; rank++)
		s->data[rank][9][9] = (unsigned char)(100 + rank);
	f = compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
	assert_false(f.minority);
	check_words(&f, "ranks 1, 2, 3, 4 and 5 and rank 0 hold");
	/* Rank 0 may be the odd one. */
	for (uint32_t rank = 1; rank < RANKS; rank++)
		s->data[rank][9][9] = 1;
	f = compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
	assert_true(f.minority);
	check_words(&f, "rank 0 of the 6 ranks that hold it holds other bytes");
}

/* Who compares has no names of a group that is not its own: a rank of the group names what differs. */
static void test_clue(void **state)
{
	struct scene *s = *state;
	const struct ckpt_replica_digest nameless = {0};
	struct ckpt_replica_digest_clue clue;
	char text[CKPT_REPLICA_DIGEST_CLUE];

	s->data[4][9][9]++;
	(void)compare(s, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS);
	struct ckpt_replica_digest_finding f = ckpt_replica_digest_compare(&s->told, &nameless);
	assert_int_equal(f.groups, 1);
	assert_int_equal(f.name_count, 0);
	check_words(&f, "rank 4 of the 6 ranks that hold it holds other bytes of about 1 tensor");
	ckpt_replica_digest_clue_encode(&f.clue, text);
	assert_true(ckpt_replica_digest_clue_decode(text, &clue));
	f = ckpt_replica_digest_explain(&clue, &s->own);
	assert_int_equal(f.tensors, 1);
	assert_true(f.exact);
	assert_string_equal(f.names[0], s->names[9]);
	/* Of another group nothing explains it. */
	clue.group++;
	assert_int_equal(ckpt_replica_digest_explain(&clue, &s->own).name_count, 0);
	for (size_t length = strlen(text); length-- > 0;) {
		text[length] = 0;
		assert_false(ckpt_replica_digest_clue_decode(text, &clue));
	}
}

/*
 * A rank lacks two tensors: the ranks that have them name them, by the clue, too. So it is of tensors that have no bytes to
 * compare: empty ones, and those that are meant to differ.
 */
static void test_lacking(void **state)
{
	struct scene *s = *state;
	const struct ckpt_replica_digest nameless = {0};

	for (int kind = 0; kind < 3; kind++) {
		s->shape = kind == 1 ? 0 : BYTES;
		s->flags = kind == 2 ? CKPT_TENSOR_VARIES : 0;
		s->data[1][3][0] += kind == 2;
		for (size_t lacks = 0; lacks <= 2; lacks++) {
			char text[CKPT_REPLICA_DIGEST_CLUE];
			struct ckpt_replica_digest_clue clue;

			ckpt_replica_digest_forget(&s->told);
			tell(s, 0, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS, 0);
			tell(s, 1, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS - lacks, 0);
			struct ckpt_replica_digest_finding f =
				ckpt_replica_digest_compare(&s->told, &nameless);
			assert_int_equal(f.groups, lacks > 0);
			assert_int_equal(f.name_count, 0);
			ckpt_replica_digest_clue_encode(&f.clue, text);
			assert_int_equal(ckpt_replica_digest_clue_decode(text, &clue), lacks > 0);
			if (lacks == 0)
				continue;
			f = ckpt_replica_digest_explain(&clue, &s->own);
			assert_true(f.exact);
			assert_int_equal(f.tensors, lacks);
			assert_int_equal(f.name_count, lacks);
			for (size_t i = 0; i < lacks; i++)
				assert_in_set((uintptr_t)strtoul(
						      f.names[i] + strlen("layers."), NULL, 10),
					((const uintmax_t[]){TENSORS - 1, TENSORS - 2}), 2);
		}
	}
}

/* However long names are, and however many ranks there are: a sentence is whole, and says how many are not named. */
static void test_long_names(void **state)
{
	char names[CKPT_REPLICA_DIGEST_NAMED][200];
	struct ckpt_replica_digest_finding f = {.groups = 1,
		.ranks = 1000000,
		.count = 20,
		.odd = {999990, 999991, 999992, 999993, 999994, 999995, 999996, 999997},
		.minority = true,
		.tensors = 9,
		.name_count = CKPT_REPLICA_DIGEST_NAMED};
	char words[640];

	(void)state;
	for (int i = 0; i < CKPT_REPLICA_DIGEST_NAMED; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "layers.%d.%0120d.w\xc3\xa4ight", i, 0);
		f.names[i] = names[i];
	}
	for (size_t size = 256; size <= sizeof(words); size++) {
		ckpt_replica_digest_word(&f, words, size);
		assert_non_null(strstr(words, " of 'layers.0.0"));
		assert_non_null(strstr(words, "00...000"));
		assert_non_null(strstr(words, "w\xc3\xa4ight'"));
		const char *end = strstr(words, " and about ");
		assert_non_null(end);
		assert_string_equal(end + strlen(" and about 8"), " more than the rest");
		assert_int_equal(end[strlen(" and about ")] - '0',
			9 - (strstr(words, "'layers.1") != NULL) -
				(strstr(words, "'layers.2") != NULL) - 1);
		ckpt_replica_digest_word_lack(&f, words, size);
		assert_string_equal(words + strlen(words) - strlen(" more"), " more");
	}
	/* Characters stay whole. */
	for (size_t most = 16; most < CKPT_REPLICA_DIGEST_NAME; most++) {
		char out[CKPT_REPLICA_DIGEST_NAME];

		(void)memset(names[0], 0, sizeof(names[0]));
		for (size_t i = 0; i + 3 < sizeof(names[0]); i += 3)
			memcpy(names[0] + i, "\xe2\x82\xac", 3);
		ckpt_replica_digest_word_name(names[0], most, out);
		assert_in_range(strlen(out), most - 4, most);
		assert_true(ckpt_utf8_is_line(out));
	}
}

/* What a rank tells of a step, with the longest name of a node and the largest numbers: heard. How long it is. */
static size_t hear_record(struct scene *s, uint32_t rank, const char *text)
{
	struct ckpt_rank_record record = {.verdict = {.generation = CKPT_GENERATION_MAX,
						  .step = CKPT_STEP_MAX,
						  .nonce = UINT64_MAX},
		.rank = {.rank = CKPT_WORLD_MAX - 1,
			.attempt = "0123456789abcdef",
			.index_bytes = CKPT_INDEX_MAX,
			.shard_bytes = CKPT_SHARD_BYTES_MAX}};
	struct ckpt_buf buf = {0};

	memset(record.rank.node, 'n', sizeof(record.rank.node) - 1);
	(void)snprintf(record.alike, sizeof(record.alike), "%s", text);
	assert_int_equal(ckpt_rank_record_encode(&record, &buf), 0);
	memset(&record, 0, sizeof(record));
	assert_int_equal(ckpt_rank_record_decode(buf.data, buf.len, "here", NULL, &record), 0);
	assert_int_equal(
		ckpt_replica_digest_receive(&s->told, rank, record.alike, "here", &s->err), 0);
	size_t length = buf.len;
	ckpt_buf_free(&buf);
	return length;
}

/* Of a rank that is in so many groups. */
static size_t record_of_groups(struct scene *s, size_t groups)
{
	struct ckpt_replica_digest alike = {0};
	char text[CKPT_REPLICA_DIGEST_TEXT];

	for (size_t i = 0; i < groups; i++) {
		s->tensors[i] = (struct ckpt_tensor){.name = s->names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &s->shape,
			.data = s->data[0][i]};
		assert_int_equal(ckpt_replica_digest_give(
					 &alike, GROUP + i, &s->tensors[i], 1, NULL, &s->err),
			0);
	}
	assert_int_equal(ckpt_replica_digest_look(&alike), 0);
	assert_int_equal(ckpt_replica_digest_take(&alike, CKPT_REPLICA_DIGEST_FULL, 1, false), 0);
	ckpt_replica_digest_encode(&alike, text);
	size_t length = hear_record(s, 0, text);
	/* All that is told of the groups is heard. */
	assert_int_equal(s->told.count, groups);
	for (size_t i = 0; i < groups; i++) {
		const struct ckpt_replica_digest_sums *heard = &s->told.entries[i].sums;

		assert_true(heard->group == alike.sums[i].group);
		assert_true(heard->sum == alike.sums[i].sum);
		assert_int_equal(heard->deep, alike.sums[i].deep);
		assert_int_equal(heard->kind, alike.sums[i].kind);
		assert_memory_equal(
			&heard->samples, &alike.sums[i].samples, sizeof(heard->samples));
		assert_memory_equal(
			heard->pairs, alike.sums[i].pairs, heard->told * sizeof(*heard->pairs));
	}
	ckpt_replica_digest_forget(&s->told);
	ckpt_replica_digest_clear(&alike);
	return length;
}

/* The whole record of a rank, and not only its digests. */
static void test_a_kib_each(void **state)
{
	struct scene *s = *state;

	for (size_t groups = 1; groups <= CKPT_REPLICA_DIGEST_GROUPS; groups++)
		assert_in_range(record_of_groups(s, groups), 1, groups <= 10 ? 1024 : 1280);
}

/* Each rank of many tells a KiB at most, and the one that is odd is found, whichever it is. */
static void test_many_ranks(void **state)
{
	static const uint32_t worlds[] = {1024, 16384};
	struct scene *s = *state;
	char text[CKPT_REPLICA_DIGEST_TEXT];
	char odd[CKPT_REPLICA_DIGEST_TEXT];

	for (uint32_t rank = 0; rank < 2; rank++) {
		s->data[rank][17][3] = (unsigned char)rank;
		tell(s, rank, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS, 0);
	}
	ckpt_replica_digest_encode(&s->own, text);
	struct ckpt_replica_digest other = s->own;
	other.sums[0] = s->told.entries[1].sums;
	ckpt_replica_digest_encode(&other, odd);
	for (size_t i = 0; i < CKPT_COUNT(worlds); i++)
		for (uint32_t at = 0; at < worlds[i]; at += worlds[i] - 1) {
			ckpt_replica_digest_forget(&s->told);
			for (uint32_t rank = 0; rank < worlds[i]; rank++)
				assert_in_range(
					hear_record(s, rank, rank == at ? odd : text), 1, 1024);
			struct ckpt_replica_digest_finding f =
				ckpt_replica_digest_compare(&s->told, &s->own);
			assert_int_equal(f.ranks, worlds[i]);
			assert_true(f.minority);
			assert_int_equal(f.count, 1);
			assert_int_equal(f.odd[0], at);
			assert_string_equal(f.names[0], s->names[17]);
		}
}

/* One rank has a proof and another one has none: what both have samples of is compared. */
static void test_mixed(void **state)
{
	struct scene *s = *state;

	for (int differ = 0; differ < 2; differ++) {
		/* In the first line, which every sample has. */
		s->data[2][17][3] ^= differ;
		for (uint32_t rank = 0; rank < RANKS; rank++)
			tell(s, rank,
				rank < 3 ? CKPT_REPLICA_DIGEST_FULL : CKPT_REPLICA_DIGEST_SAMPLES,
				1, TENSORS, 0);
		/* Those of one kind, by all that they have. */
		struct ckpt_replica_digest_finding f =
			ckpt_replica_digest_compare(&s->told, &s->own);
		assert_true(s->told.mixed);
		assert_int_equal(f.groups, differ);
		ckpt_replica_digest_forget(&s->told);
		/* The two kinds, by samples. */
		tell(s, 0, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS, 0);
		tell(s, 1, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS, 0);
		tell(s, 2, CKPT_REPLICA_DIGEST_SAMPLES, 1, TENSORS, 0);
		f = ckpt_replica_digest_compare(&s->told, &s->own);
		assert_true(s->told.mixed);
		assert_int_equal(f.groups, differ);
		if (differ)
			check_words(&f, "rank 2 of the 3 ranks that hold it holds other bytes of "
					"'layers.17.weight'");
		ckpt_replica_digest_forget(&s->told);
	}
}

/* What is in depth of the tensors that are new, whatever becomes of the rest. */
static void test_only_what_is_new(void **state)
{
	struct scene *s = *state;
	struct ckpt_replica_digest alike = {0};
	int64_t grown = BYTES - 1;

	tell(s, 1, CKPT_REPLICA_DIGEST_SAMPLES, 1, TENSORS - 1, 0);
	for (unsigned save = 0; save < 3; save++, grown--) {
		size_t unknown = 0;

		s->tensors[TENSORS - 1] = s->tensors[0];
		s->tensors[TENSORS - 1].name = s->names[TENSORS - 1];
		s->tensors[TENSORS - 1].shape = &grown;
		assert_int_equal(
			ckpt_replica_digest_give(&alike, GROUP, s->tensors, TENSORS, NULL, &s->err),
			0);
		assert_int_equal(ckpt_replica_digest_look(&alike), 0);
		assert_false(ckpt_replica_digest_know(&alike, &s->proved));
		for (size_t i = 0; i < alike.what_count; i++)
			unknown += !alike.what[i].known;
		assert_int_equal(unknown, 1);
		ckpt_replica_digest_prove(&s->proved, &alike);
		assert_true(ckpt_replica_digest_know(&alike, &s->proved));
		ckpt_replica_digest_clear(&alike);
		/* Of another group it is something else. */
		assert_int_equal(
			ckpt_replica_digest_give(&alike, GROUP + 1, s->tensors, 1, NULL, &s->err),
			0);
		assert_int_equal(ckpt_replica_digest_look(&alike), 0);
		assert_false(ckpt_replica_digest_know(&alike, &s->proved));
		ckpt_replica_digest_clear(&alike);
	}
}

/* A rank that has no digests says nothing. */
static void test_not_compared(void **state)
{
	struct scene *s = *state;

	tell(s, 1, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS, 0);
	tell(s, 2, CKPT_REPLICA_DIGEST_NONE, 1, TENSORS, 0);
	assert_int_equal(ckpt_replica_digest_compare(&s->told, &s->own).groups, 0);
	assert_false(s->told.mixed);
	/* A rank with fewer tensors of the group is found out. */
	tell(s, 3, CKPT_REPLICA_DIGEST_FULL, 1, TENSORS - 1, 0);
	assert_int_equal(ckpt_replica_digest_compare(&s->told, &s->own).groups, 1);
}

static void test_many_groups(void **state)
{
	struct scene *s = *state;
	char text[CKPT_REPLICA_DIGEST_TEXT];

	for (uint32_t rank = 0; rank < 2; rank++) {
		struct ckpt_replica_digest alike = {0};

		for (size_t i = 0; i < CKPT_REPLICA_DIGEST_GROUPS; i++) {
			s->tensors[i] = (struct ckpt_tensor){.name = s->names[0],
				.dtype = CKPT_U8,
				.ndim = 1,
				.shape = &s->shape,
				.data = s->data[rank][rank == 1 && i == 5 ? 1 : 0]};
			assert_int_equal(ckpt_replica_digest_give(
						 &alike, i, &s->tensors[i], 1, NULL, &s->err),
				0);
		}
		assert_int_equal(
			ckpt_replica_digest_give(&alike, 99, s->tensors, 1, NULL, &s->err), -E2BIG);
		assert_int_equal(ckpt_replica_digest_look(&alike), 0);
		assert_int_equal(
			ckpt_replica_digest_take(&alike, CKPT_REPLICA_DIGEST_FULL, 1, false), 0);
		ckpt_replica_digest_encode(&alike, text);
		assert_int_equal(
			ckpt_replica_digest_receive(&s->told, rank, text, "here", &s->err), 0);
		ckpt_replica_digest_clear(&alike);
	}
	struct ckpt_replica_digest_finding f = ckpt_replica_digest_compare(&s->told, &s->own);
	assert_int_equal(f.groups, 1);
	/* Nothing is known of their names here. */
	assert_int_equal(f.name_count, 0);
	check_words(&f, "rank 1 and rank 0 hold different bytes of about 1 tensor");
}

static void test_malformed(void **state)
{
	struct scene *s = *state;
	struct ckpt_replica_digest alike = {0};
	char text[CKPT_REPLICA_DIGEST_TEXT];

	for (const char *const *bad = (const char *const[]){"x", "-A", "--", "f", "f,", "fA", "fB",
		     "fBzz", "fNzz", "f9", NULL};
		*bad; bad++) {
		assert_int_equal(ckpt_replica_digest_receive(&s->told, 1, *bad, "here", &s->err),
			CKPT_EFORMAT);
		ckpt_error_clear(&s->err);
	}
	s->tensors[0] = (struct ckpt_tensor){.name = s->names[0],
		.dtype = CKPT_U8,
		.ndim = 1,
		.shape = &s->shape,
		.data = s->data[0][0]};
	assert_int_equal(ckpt_replica_digest_give(&alike, GROUP, s->tensors, 1, NULL, &s->err), 0);
	assert_int_equal(ckpt_replica_digest_look(&alike), 0);
	assert_int_equal(ckpt_replica_digest_take(&alike, CKPT_REPLICA_DIGEST_FULL, 1, false), 0);
	ckpt_replica_digest_encode(&alike, text);
	ckpt_replica_digest_clear(&alike);
	/* Cut off anywhere, with anything behind its end, or with a bit there that means nothing, it is no digest. */
	size_t whole = strlen(text);
	char bad[CKPT_REPLICA_DIGEST_TEXT + 1];
	for (size_t length = 1; length < whole; length++) {
		memcpy(bad, text, length);
		bad[length] = 0;
		assert_int_equal(ckpt_replica_digest_receive(&s->told, 1, bad, "here", &s->err),
			CKPT_EFORMAT);
		ckpt_error_clear(&s->err);
	}
	for (const char *c = "A.,"; *c; c++) {
		(void)snprintf(bad, sizeof(bad), "%s%c", text, *c);
		assert_int_equal(ckpt_replica_digest_receive(&s->told, 1, bad, "here", &s->err),
			CKPT_EFORMAT);
		ckpt_error_clear(&s->err);
	}
	text[whole - 1]++;
	assert_int_equal(
		ckpt_replica_digest_receive(&s->told, 1, text, "here", &s->err), CKPT_EFORMAT);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_equal, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_every_bit, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_any_line_in_the_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_every_byte_in_turn, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_another_turn, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_tensors, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_a_name, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_who, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_clue, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lacking, set_up, tear_down),
		cmocka_unit_test(test_long_names),
		cmocka_unit_test_setup_teardown(test_a_kib_each, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_ranks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_mixed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_only_what_is_new, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_compared, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_many_groups, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_malformed, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
