/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks of one job, each on a rig of its own, all on the thread of the test: who hears of a claim, and of its failure. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/runtime/commands.h"
#include "engine/save/save_state.h"
#include "lib/rank_rig.h"

static void fail_telling(struct rank_rig *s, const char *key)
{
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.path = key, .error = -EIO, .count = IO_FAULT_ALWAYS});
}

/* Rank 0 claims, and gives up telling it. */
static void claim_untold(struct rank_rig *s)
{
	fail_telling(s, "claim-1");
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	rank_rig_sleep(s, 11000);
	assert_true(s->rank[0].core.lineage->claim_untold);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_WARN, "were not told of the claim"));
}

/* A save that tells it, and is not waited for. */
static void begin_and_cancel(struct rank_rig *s, uint64_t step)
{
	rank_rig_begin(s, 0, step);
	ckpt_save_post_cancel(s->save[0]);
	core_rig_run(&s->rank[0]);
	assert_int_equal(rank_rig_end(s, 0), -ECANCELED);
}

/* Why rank 0 could not claim, all others say in its words; it is not their failure, and the next try is a new one. */
static void test_others_say_why(void **state)
{
	struct rank_rig *s = *state;
	char why[256];

	rank_rig_open(s, 0, 2, 60000);
	rank_rig_open(s, 1, 2, 60000);
	for (unsigned i = 0; i < 2; i++) {
		(void)io_fault_add(&s->rank[0].fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LIST, .error = -EIO, .count = IO_FAULT_ALWAYS});
		assert_true(core_rig_claim(&s->rank[0]) < 0);
		(void)snprintf(why, sizeof(why), "%.200s", rank_rig_message(s, 0));
		assert_non_null(strstr(why, "gens"));
		assert_false(s->rank[0].core.lineage->claim_untold);
		assert_true(core_rig_claim(&s->rank[1]) < 0);
		rank_rig_check_says(s, 1, "rank 0 could not claim a generation: ");
		rank_rig_check_says(s, 1, why);
		io_fault_clear(&s->rank[0].fault);
	}
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_int_equal(core_rig_claim(&s->rank[1]), 0);
}

/* Neither made nor told: there is nothing that the next save could tell. */
static void test_neither_made_nor_told(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open(s, 0, 2, 60000);
	fail_telling(s, "claim-1-failed");
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LIST, .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	rank_rig_sleep(s, 11000);
	assert_false(s->rank[0].core.lineage->claim_untold);
}

/* One that cannot be told again and again is told with every save, by one at a time, until it is. */
static void test_told_at_last(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_core *core = &s->rank[0].core;

	rank_rig_open(s, 0, 2, 60000);
	claim_untold(s);
	for (uint64_t step = 1; step <= 3; step++) {
		begin_and_cancel(s, 10 * step);
		assert_true(core->lineage->claim_telling);
		unsigned commands = core->commands;
		begin_and_cancel(s, 10 * step + 1);
		assert_int_equal(core->commands, commands);
		rank_rig_sleep(s, 11000);
		assert_false(core->lineage->claim_telling);
		assert_int_equal(core->commands, commands - 1);
		assert_true(core->lineage->claim_untold);
	}
	io_fault_clear(&s->rank[0].fault);
	begin_and_cancel(s, 50);
	rank_rig_sleep(s, 300);
	assert_false(core->lineage->claim_untold);
	assert_int_equal(access(rank_rig_told(s, "claim-1"), F_OK), 0);
}

/* Without memory to tell it, the save goes on, and the next one tells it. */
static void test_told_without_memory(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_core *core = &s->rank[0].core;

	rank_rig_open(s, 0, 2, 60000);
	claim_untold(s);
	for (size_t n = 1; n <= 2; n++) {
		core_rig_count_allocations(&s->rank[0], n);
		ckpt_claim_retell(core);
		assert_true(core_rig_allocations(&s->rank[0]) >= n);
		assert_false(core->lineage->claim_telling);
		assert_true(core->lineage->claim_untold);
	}
	io_fault_clear(&s->rank[0].fault);
	begin_and_cancel(s, 1);
	rank_rig_sleep(s, 300);
	assert_false(core->lineage->claim_untold);
}

/* An engine that closes waits for what it is telling, and then ends. */
static void test_closed_while_telling(void **state)
{
	struct rank_rig *s = *state;
	struct core_rig *rig = &s->rank[0];

	rank_rig_open(s, 0, 2, 60000);
	claim_untold(s);
	begin_and_cancel(s, 1);
	assert_true(rig->core.lineage->claim_telling);
	struct ckpt_command *closer =
		ckpt_command_new(&rig->core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(rig);
	assert_false(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	rank_rig_sleep(s, 11000);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	ckpt_command_unref(closer);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rank_rig_setup, rank_rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_others_say_why),
		TEST(test_neither_made_nor_told),
		TEST(test_told_at_last),
		TEST(test_told_without_memory),
		TEST(test_closed_while_telling),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
