/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that may have a copy of their own: whether it differs from the others' is learned from what all tell. */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/types.h>
#include "engine/ranks/replica_digest.h"

#define RANKS   3
#define TENSORS 3
#define BYTES   200 /* of each */
#define GROUP   UINT64_C(0xfedcba9876543210)

struct scene {
	char names[TENSORS][24];
	int64_t shape;
	unsigned char data[RANKS][TENSORS][BYTES];
	struct ckpt_tensor tensors[TENSORS];
	struct ckpt_replica_digest_received told;
	struct ckpt_error err;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->shape = BYTES;
	s->err.size = sizeof(s->err);
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

	ckpt_replica_digest_forget(&s->told);
	free(s);
	return 0;
}

static void tell_own(
	struct scene *s, struct ckpt_replica_digest *alike, uint32_t rank, enum ckpt_own own)
{
	char text[CKPT_REPLICA_DIGEST_TEXT];

	ckpt_replica_digest_clear(alike);
	for (size_t i = 0; i < TENSORS; i++)
		s->tensors[i] = (struct ckpt_tensor){.name = s->names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &s->shape,
			.data = s->data[rank][i]};
	assert_int_equal(
		ckpt_replica_digest_give(alike, GROUP, s->tensors, TENSORS, NULL, &s->err), 0);
	assert_true(ckpt_replica_digest_set_own(alike, GROUP, own));
	assert_false(ckpt_replica_digest_set_own(alike, GROUP + 1, own));
	assert_int_equal(ckpt_replica_digest_look(alike), 0);
	assert_int_equal(
		ckpt_replica_digest_take(alike, CKPT_REPLICA_DIGEST_FULL, 1, rank == 0), 0);
	ckpt_replica_digest_encode(alike, text);
	assert_int_equal(ckpt_replica_digest_receive(&s->told, rank, text, "here", &s->err), 0);
}

/* How many groups are a finding, where ranks say this of their own copies. `alike`: of rank 0, and of the last one. */
static size_t compare_own(struct scene *s, struct ckpt_replica_digest alike[2],
	const enum ckpt_own *own, size_t ranks)
{
	ckpt_replica_digest_forget(&s->told);
	for (uint32_t rank = 0; rank < ranks; rank++)
		tell_own(s, &alike[rank > 0], rank, own[rank]);
	return ckpt_replica_digest_compare(&s->told, &alike[0]).groups;
}

#define U CKPT_OWN_UNKNOWN
#define D CKPT_OWN_DIFFERS
#define N CKPT_OWN_NONE

/* A rank that writes its own copies may hold other bytes, and one that relies on another's copy may not. */
static void test_own(void **state)
{
	static const struct {
		enum ckpt_own own[3];
		bool odd;            /* rank 2 holds other bytes */
		size_t groups;       /* that are an error */
		enum ckpt_own found; /* what the ranks learn that do not know it */
	} cases[] = {
		{{U, U, U}, false, 0, N},
		{{U, U, U}, true, 0, D},
		/* Some have not heard of what was found. */
		{{N, U, N}, false, 0, N},
		{{N, U, N}, true, 1, N},
		{{U, U, N}, true, 1, N},
		{{N, N, U}, true, 1, N},
		{{N, N, N}, true, 1, U},
		{{D, U, D}, true, 0, D},
		/* They are equal by chance: that is no proof. */
		{{D, U, D}, false, 0, D},
		{{U, U, D}, false, 0, D},
		{{D, D, D}, true, 0, D},
	};
	struct scene *s = *state;

	for (size_t i = 0; i < CKPT_COUNT(cases); i++) {
		struct ckpt_replica_digest_owned owned = {.lock = PTHREAD_MUTEX_INITIALIZER};
		struct ckpt_replica_digest alike[2] = {0};

		s->data[2][1][BYTES - 1] ^= cases[i].odd;
		assert_int_equal(compare_own(s, alike, cases[i].own, 3), cases[i].groups);
		assert_true(s->told.split.compared);
		for (size_t rank = 0; rank < 3; rank++) {
			ckpt_replica_digest_forget_own(&owned);
			tell_own(s, &alike[1], 1, cases[i].own[rank]);
			ckpt_replica_digest_learn_own(&owned, &alike[1], &s->told.split);
			assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP),
				cases[i].own[rank] == N ? U : cases[i].found);
		}
		s->data[2][1][BYTES - 1] ^= cases[i].odd;
		ckpt_replica_digest_forget_own(&owned);
		ckpt_replica_digest_clear(&alike[0]);
		ckpt_replica_digest_clear(&alike[1]);
	}
}

/* What was found once stays. Where nothing was compared nothing is known. */
static void test_own_stays(void **state)
{
	const enum ckpt_own all[2] = {U, U};
	struct scene *s = *state;
	struct ckpt_replica_digest_owned owned = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct ckpt_replica_digest alike[2] = {0};
	char text[CKPT_REPLICA_DIGEST_TEXT];

	(void)ckpt_replica_digest_compare(&s->told, &alike[0]);
	assert_false(s->told.split.compared);
	s->data[1][0][0] ^= 1;
	assert_int_equal(compare_own(s, alike, all, 2), 0);
	ckpt_replica_digest_learn_own(
		&owned, &alike[1], &(struct ckpt_replica_digest_split){.compared = false});
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP), U);
	alike[1].mode = CKPT_REPLICA_DIGEST_NONE;
	ckpt_replica_digest_learn_own(&owned, &alike[1], &s->told.split);
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP), U);
	alike[1].mode = CKPT_REPLICA_DIGEST_FULL;
	ckpt_replica_digest_learn_own(&owned, &alike[1], &s->told.split);
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP), D);
	s->data[1][0][0] ^= 1;
	assert_int_equal(compare_own(s, alike, all, 2), 0);
	ckpt_replica_digest_learn_own(&owned, &alike[1], &s->told.split);
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP), D);
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP + 1), U);
	ckpt_replica_digest_forget_own(&owned);
	/* A third kind is malformed. Behind two letters, the low bits of byte 16 of a group say `own`. */
	ckpt_replica_digest_encode(&alike[0], text);
	ckpt_replica_digest_forget(&s->told);
	assert_int_equal(ckpt_replica_digest_receive(&s->told, 0, text, "here", &s->err), 0);
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
	char *at = &text[2 + 126 / 6];
	*at = digits[(size_t)(strchr(digits, *at) - digits) | UINT32_C(3) << 4];
	assert_int_equal(
		ckpt_replica_digest_receive(&s->told, 0, text, "here", &s->err), CKPT_EFORMAT);
	ckpt_replica_digest_clear(&alike[0]);
	ckpt_replica_digest_clear(&alike[1]);
}

/* A rank that hears no other one of a group takes nothing for alike: not from itself alone, and not where a rank is blind. */
static void test_own_alone(void **state)
{
	const enum ckpt_own all[2] = {U, U};
	struct scene *s = *state;
	struct ckpt_replica_digest_owned owned = {.lock = PTHREAD_MUTEX_INITIALIZER};
	struct ckpt_replica_digest alike[2] = {0};
	char text[CKPT_REPLICA_DIGEST_TEXT];

	for (int blind = 0; blind < 2; blind++) {
		/* Two ranks are alike, and the third one has no digests. */
		assert_int_equal(compare_own(s, alike, all, 2), 0);
		struct ckpt_replica_digest third = {0};
		assert_int_equal(
			ckpt_replica_digest_give(&third, GROUP, s->tensors, TENSORS, NULL, &s->err),
			0);
		assert_int_equal(ckpt_replica_digest_look(&third), 0);
		if (blind)
			assert_int_equal(
				ckpt_replica_digest_take(&third, CKPT_REPLICA_DIGEST_NONE, 1, true),
				0);
		else
			ckpt_replica_digest_go_without(&third);
		ckpt_replica_digest_encode(&third, text);
		assert_int_equal(
			ckpt_replica_digest_receive(&s->told, 2, text, "here", &s->err), 0);
		assert_int_equal(ckpt_replica_digest_compare(&s->told, &alike[0]).groups, 0);
		assert_false(s->told.mixed);
		assert_false(s->told.split.compared);
		ckpt_replica_digest_clear(&third);
		ckpt_replica_digest_encode(&third, text);
		assert_string_equal(text, "");
	}
	/* One that has nothing to compare is no obstacle. */
	assert_int_equal(compare_own(s, alike, all, 2), 0);
	assert_int_equal(ckpt_replica_digest_receive(&s->told, 2, "", "here", &s->err), 0);
	(void)ckpt_replica_digest_compare(&s->told, &alike[0]);
	assert_true(s->told.split.compared);
	/* The others have not told of this group. */
	assert_int_equal(compare_own(s, alike, all, 1), 0);
	ckpt_replica_digest_learn_own(&owned, &alike[0], &s->told.split);
	assert_int_equal(ckpt_replica_digest_find_own(&owned, GROUP), D);
	ckpt_replica_digest_forget_own(&owned);
	ckpt_replica_digest_clear(&alike[0]);
	ckpt_replica_digest_clear(&alike[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_own, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own_stays, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own_alone, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
