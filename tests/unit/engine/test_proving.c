/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks prove that they hold the same: without memory for it, by the register, and where the words are malformed. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/save/save_state.h"
#include "lib/rank_rig.h"
#include "lib/scratch.h"

#define WORDS 100

/* What each rank holds, and says of it. */
static uint64_t words[RANK_RIG_RANKS][WORDS];

/* All ranks write these, each its own, as one box. */
static bool one_box;
static uint64_t boxes[RANK_RIG_RANKS][WORDS];

static uint64_t balances[RANK_RIG_RANKS];
static const char *alike_name = "alike";
static const char *box_name = "box";

static int put_together(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	const int64_t count = WORDS;
	struct core_rig *rig = &s->rank[rank];
	const struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = alike_name,
		.dtype = CKPT_U64,
		.ndim = 1,
		.shape = &count,
		.data = words[rank]};
	struct ckpt_tensor own = tensor;
	char name[16];

	(void)snprintf(name, sizeof(name), "own.%u", rank);
	own.name = one_box ? box_name : name;
	own.data = one_box ? boxes[rank] : words[0];
	ckpt_error_clear(&rig->err);
	int r = ckpt_save_new(&rig->core, NULL, step, false, 0, &s->save[rank]);
	if (r < 0) {
		s->save[rank] = NULL;
		return r;
	}
	r = ckpt_save_put_tensors(s->save[rank], &own, 1, &rig->err);
	if (r == 0)
		r = ckpt_save_put_meta(s->save[rank], "{}", 2, &rig->err);
	if (r == 0)
		r = ckpt_save_put_replicas(s->save[rank], 1, &tensor, 1, NULL, &rig->err);
	if (r == 0) {
		ckpt_save_put_balance(s->save[rank], balances[rank]);
		r = ckpt_save_prepare(s->save[rank], &rig->plan, &rig->err);
	}
	return r;
}

/* Begins it, or tells the others that it cannot be begun. */
static void begin(struct rank_rig *s, uint32_t rank, uint64_t step)
{
	struct core_rig *rig = &s->rank[rank];
	int r = put_together(s, rank, step);

	if (r == 0)
		ckpt_save_post(s->save[rank]);
	else if (s->save[rank])
		ckpt_save_refuse(s->save[rank], &rig->err);
	core_rig_run(rig);
}

static int end(struct rank_rig *s, uint32_t rank)
{
	if (!s->save[rank])
		return -ENOMEM;
	return rank_rig_end(s, rank);
}

static bool is_unchecked(const struct rank_rig *s, uint32_t rank)
{
	return s->save[rank] && s->save[rank]->alike.mode == CKPT_REPLICA_DIGEST_NONE;
}

/*
 * Any allocation fails on any rank: the step is of all ranks or of none, and the next one is well. One that lacks
 * memory for the digests alone costs no step.
 */
static void test_no_memory(void **state)
{
	struct rank_rig *s = *state;
	uint64_t step = 0;

	rank_rig_open_all(s, 2, 2, 60000);
	for (uint32_t poor = 0; poor < 2; poor++) {
		size_t n = 0;
		unsigned unchecked = 0;
		do {
			step++;
			core_rig_count_allocations(&s->rank[poor], ++n);
			begin(s, 0, step);
			begin(s, 1, step);
			bool none = is_unchecked(s, 0) || is_unchecked(s, 1);
			rank_rig_sleep(s, 300);
			bool reached = core_rig_allocations(&s->rank[poor]) >= n;
			rank_rig_sleep(s, 70000);
			int first = end(s, 0);
			int second = end(s, 1);
			assert_true((first == 0) == (second == 0));
			assert_int_not_equal(first, CKPT_EREPLICA);
			unchecked += none && first == 0;
			if (!reached)
				break;
		} while (n < 1000);
		assert_in_range(n, 10, 999);
		assert_in_range(unchecked, 1, 9);
	}
}

/*
 * Rank 0's answer is lost, so that others go by the manifest: they begin anew, and all with them. Until then what
 * is compared are samples, which are of the first line, and hardly ever of the last but one.
 */
static void by_the_register(struct rank_rig *s, size_t word, uint64_t found)
{
	rank_rig_open_all(s, 2, 2, 60000);
	for (uint64_t step = 1; step <= 4; step++) {
		words[1][word] ^= step == 3;
		if (step == 2)
			(void)io_fault_add(
				&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
							   .path = "exchange",
							   .error = -EIO,
							   .count = IO_FAULT_ALWAYS});
		for (uint32_t rank = 0; rank < 2; rank++)
			begin(s, rank, step);
		enum ckpt_replica_digest_mode mode = s->save[1]->alike.mode;
		assert_int_equal(s->save[0]->alike.mode, step == 1 || step == 4
								 ? CKPT_REPLICA_DIGEST_FULL
								 : CKPT_REPLICA_DIGEST_SAMPLES);
		assert_int_equal(
			mode, step == 2 ? CKPT_REPLICA_DIGEST_SAMPLES : CKPT_REPLICA_DIGEST_FULL);
		rank_rig_sleep(s, 20000);
		io_fault_clear(&s->rank[0].fault);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(end(s, rank), step >= found ? CKPT_EREPLICA : 0);
	}
	words[1][word] ^= 1;
}

static void test_by_the_register(void **state)
{
	by_the_register(*state, WORDS - 10, 4);
}

static void test_by_the_register_and_samples(void **state)
{
	by_the_register(*state, 3, 3);
}

/* A save of rank 1 that has looked at what it holds, and fails then. */
static void refuse(struct rank_rig *s, uint64_t step)
{
	struct core_rig *rig = &s->rank[1];

	assert_int_equal(put_together(s, 1, step), 0);
	(void)ckpt_fail(&rig->err, -ENOMEM, "out of memory");
	ckpt_save_refuse(s->save[1], &rig->err);
	core_rig_run(rig);
}

/*
 * What samples do not look at becomes different: one of 64 commits in a row reads it, whatever the numbers of the
 * steps are. A step that is of no rank counts for none of them, so that nobody reads everything again after it.
 */
static void test_every_byte_in_64_saves(void **state)
{
	const uint64_t failing = 5;
	struct rank_rig *s = *state;
	uint64_t n = 1;
	int r = 0;

	rank_rig_open_all(s, 2, 2, 60000);
	for (; n <= 66 && r == 0; n++) {
		words[1][WORDS - 10] ^= n == 2;
		if (n == failing)
			refuse(s, 64 * n);
		else
			begin(s, 1, 64 * n);
		begin(s, 0, 64 * n);
		assert_int_equal(s->save[0]->alike.mode,
			n == 1 ? CKPT_REPLICA_DIGEST_FULL : CKPT_REPLICA_DIGEST_SAMPLES);
		rank_rig_sleep(s, 20000);
		r = end(s, 0);
		assert_int_equal(end(s, 1) == 0, r == 0);
		if (n == failing) {
			assert_int_equal(r, CKPT_EABORTED);
			r = 0;
		}
	}
	assert_int_equal(r, CKPT_EREPLICA);
	assert_true(n > failing + 1);
	words[1][WORDS - 10] ^= 1;
}

/* A rank that could not look at what it holds counts the commit as the others do: nobody begins anew. */
static void test_a_rank_that_has_looked_at_nothing(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	for (uint64_t step = 1; step <= 4; step++) {
		if (put_together(s, 1, step) < 0) {
			fail();
			return;
		}
		assert_int_equal(s->save[1]->alike.mode,
			step == 1 ? CKPT_REPLICA_DIGEST_FULL : CKPT_REPLICA_DIGEST_SAMPLES);
		/* As where there is no memory for it. */
		if (step == 2)
			ckpt_replica_digest_clear(&s->save[1]->alike);
		ckpt_save_post(s->save[1]);
		begin(s, 0, step);
		assert_int_equal(s->save[0]->alike.mode,
			step == 1 ? CKPT_REPLICA_DIGEST_FULL : CKPT_REPLICA_DIGEST_SAMPLES);
		rank_rig_sleep(s, 20000);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(end(s, rank), 0);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rank_rig_setup, rank_rig_teardown)

/*
 * Boxes that stay different do not make ranks read all that they have alike again. A difference of both kinds is told
 * of both; that of replicas does make them.
 */
static void test_boxes_that_differ(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 60000);
	s->rank[0].core.config.tolerant = true;
	one_box = true;
	boxes[1][0] = 1;
	for (uint64_t step = 1; step <= 4; step++) {
		words[1][0] ^= step == 3;
		for (uint32_t rank = 0; rank < 2; rank++) {
			begin(s, rank, step);
			assert_int_equal(s->save[rank]->alike.mode,
				step == 1 || step == 4 ? CKPT_REPLICA_DIGEST_FULL
						       : CKPT_REPLICA_DIGEST_SAMPLES);
		}
		rank_rig_sleep(s, 20000);
		for (uint32_t rank = 0; rank < 2; rank++) {
			const char *differ = ckpt_save_differ(s->save[rank]);

			assert_non_null(strstr(differ, "different bytes of 'box'"));
			assert_int_equal(strstr(differ, "'alike'; and rank 1") != NULL, step >= 3);
			assert_int_equal(end(s, rank), 0);
		}
		assert_true(
			core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "different bytes of 'box'"));
	}
	words[1][0] ^= 1;
	one_box = false;
}

/* A manifest has no room for all that both differences are called: no name is cut. */
static void test_boxes_with_long_names_that_differ(void **state)
{
	struct rank_rig *s = *state;
	char names[2][301];

	for (size_t i = 0; i < CKPT_COUNT(names); i++)
		(void)snprintf(names[i], sizeof(names[i]), "%c%0*d", (int)('a' + i), 299, 0);
	alike_name = names[0];
	box_name = names[1];
	rank_rig_open_all(s, 3, 3, 60000);
	s->rank[0].core.config.tolerant = true;
	one_box = true;
	boxes[1][0] = 0;
	boxes[2][0] = 1;
	words[2][0] ^= 1;
	for (uint32_t rank = 0; rank < 3; rank++)
		begin(s, rank, 1);
	rank_rig_sleep(s, 20000);
	for (uint32_t rank = 0; rank < 3; rank++) {
		assert_string_equal(ckpt_save_differ(s->save[rank]),
			"rank 2 of the 3 ranks that hold it holds other bytes of...; and rank 2 of "
			"the 3 "
			"ranks that hold it holds other bytes of...");
		assert_int_equal(end(s, rank), 0);
	}
	words[2][0] ^= 1;
	one_box = false;
	alike_name = "alike";
	box_name = "box";
}

/*
 * A step that would lack a tensor makes all ranks read every byte at the next save, whether they were found to differ or
 * not. So that save finds what samples do not look at.
 */
static void lacking(struct rank_rig *s, bool differing)
{
	rank_rig_open_all(s, 2, 2, 60000);
	for (uint64_t step = 1; step <= 3; step++) {
		balances[1] = step == 2;
		words[1][3] ^= differing && step > 1;
		words[1][WORDS - 10] ^= step == 3;
		for (uint32_t rank = 0; rank < 2; rank++) {
			begin(s, rank, step);
			assert_int_equal(s->save[rank]->alike.mode,
				step == 2 ? CKPT_REPLICA_DIGEST_SAMPLES : CKPT_REPLICA_DIGEST_FULL);
		}
		rank_rig_sleep(s, 20000);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(end(s, rank), step == 1   ? 0
						       : step == 2 ? CKPT_EMISMATCH
								   : CKPT_EREPLICA);
	}
	words[1][WORDS - 10] ^= 1;
}

static void test_a_step_that_lacks_a_tensor(void **state)
{
	lacking(*state, false);
}

static void test_a_step_that_lacks_a_tensor_that_differs(void **state)
{
	lacking(*state, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_no_memory),
		TEST(test_by_the_register),
		TEST(test_by_the_register_and_samples),
		TEST(test_every_byte_in_64_saves),
		TEST(test_a_rank_that_has_looked_at_nothing),
		TEST(test_boxes_that_differ),
		TEST(test_boxes_with_long_names_that_differ),
		TEST(test_a_step_that_lacks_a_tensor),
		TEST(test_a_step_that_lacks_a_tensor_that_differs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
