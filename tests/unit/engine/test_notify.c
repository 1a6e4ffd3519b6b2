/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one job, each on a rig of its own, all on the thread of the test: who is told what, and when, if
 * one of them fails, is refused or skips, or cannot claim.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"
#include "engine/save/save_state.h"
#include "lib/rank_rig.h"
#include "lib/scratch.h"

/* One of many has failed, whoever it is: that is heard while others are still silent. */
static void test_failure_of_one_of_many(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 1, 300, 600000);
	for (uint64_t step = 1; step <= 5; step++) {
		uint32_t rank = (uint32_t)step * 59;
		rank_rig_begin(s, 0, step);
		rank_rig_tell(
			s, step, (struct rank_rig_word){.rank = rank, .as = rank, .code = -ENOSPC});
		for (unsigned i = 0; i < 200 && !rank_rig_ended(s, 0); i++)
			core_rig_sleep(&s->rank[0], 5);
		assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
		rank_rig_check_says(s, 0, "node other failed");
	}
}

/* A claim that nobody could be told of is told with the next save. */
static void test_claim_told_later(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open(s, 0, 2, 60000);
	rank_rig_open(s, 1, 2, 60000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.path = "exchange", .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	for (unsigned i = 0; i < 2100; i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_int_equal(access(rank_rig_told(s, "claim-1"), F_OK), -1);
	io_fault_clear(&s->rank[0].fault);
	rank_rig_begin(s, 0, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(core_rig_claim(&s->rank[1]), 0);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
	/* Once is enough. */
	assert_int_equal(unlink(rank_rig_told(s, "claim-1")), 0);
	rank_rig_begin(s, 0, 2);
	rank_rig_begin(s, 1, 2);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
	assert_int_equal(access(rank_rig_told(s, "claim-1"), F_OK), -1);
}

/* That an earlier claim is told at last says nothing about the one that was made since. */
static void test_claim_told_after_the_next(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_buf other = {.data = (char[]){"x"}, .len = 1};

	rank_rig_open(s, 0, 2, 60000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.path = "claim-1", .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(core_rig_claim(&s->rank[0]), 1);
	rank_rig_sleep(s, 11000);
	assert_true(s->rank[0].core.lineage->claim_untold);
	rank_rig_begin(s, 0, 1);
	ckpt_save_post_cancel(s->save[0]);
	core_rig_run(&s->rank[0]);
	assert_int_equal(rank_rig_end(s, 0), -ECANCELED);
	assert_true(s->rank[0].core.lineage->claim_telling);
	/* Rank 0 goes back to the beginning, and its next claim cannot be told either. */
	s->rank[0].core.lineage->generation = 0;
	rank_rig_put(s, "claim-2", &other);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_true(s->rank[0].core.lineage->claim_untold);
	io_fault_clear(&s->rank[0].fault);
	rank_rig_sleep(s, 300);
	assert_false(s->rank[0].core.lineage->claim_telling);
	assert_int_equal(access(rank_rig_told(s, "claim-1"), F_OK), 0);
	assert_true(s->rank[0].core.lineage->claim_untold);
}

/* A claim that fails is counted, be there no memory to tell it: the others count what they do not hear. */
static void test_claims_are_counted(void **state)
{
	struct rank_rig *s = *state;
	size_t all = 0;

	for (size_t n = 0; n <= all; n++) {
		rank_rig_open(s, 0, 2, 60000);
		(void)io_fault_add(&s->rank[0].fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LIST, .error = -EIO, .count = IO_FAULT_ALWAYS});
		struct ckpt_command *command = ckpt_command_new(
			&s->rank[0].core, sizeof(struct ckpt_claimer), ckpt_claimer_clear);
		core_rig_count_allocations(&s->rank[0], n);
		ckpt_command_post(command, ckpt_claim_body);
		for (unsigned i = 0; i < 200; i++)
			core_rig_sleep(&s->rank[0], 100);
		all = ckpt_max_u64(all, core_rig_allocations(&s->rank[0]));
		assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
		assert_true(command->result < 0);
		assert_int_equal(s->rank[0].core.lineage->claim_tries, 1);
		ckpt_command_unref(command);
		core_rig_close(&s->rank[0]);
		s->open[0] = false;
		(void)unlink(rank_rig_told(s, "claim-1-failed-0"));
		(void)unlink(rank_rig_told(s, "rank-0"));
	}
	assert_true(all > 0);
}

/* A rank cannot even begin: the others hear of it soon, and not at their deadline. */
static void test_refused(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, RANK_RIG_RANKS, RANK_RIG_RANKS, 600000);
	for (uint32_t refused = 0; refused < RANK_RIG_RANKS; refused++) {
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++) {
			if (rank == refused)
				rank_rig_refuse(
					s, rank, 10 + refused, -ENOMEM, "no room, says the test");
			else
				rank_rig_begin(s, rank, 10 + refused);
		}
		rank_rig_sleep(s, 500);
		for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++) {
			if (rank == refused)
				continue;
			assert_true(rank_rig_ended(s, rank));
			assert_int_equal(rank_rig_end(s, rank), CKPT_EABORTED);
			rank_rig_check_says(s, rank, "says the test");
		}
	}
	/* The next one is saved, and a step that was refused is over. */
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++) {
		rank_rig_begin(s, rank, 12);
		assert_int_equal(rank_rig_end(s, rank), CKPT_ESTEP);
		rank_rig_begin(s, rank, 20);
	}
	rank_rig_sleep(s, 500);
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		assert_int_equal(rank_rig_end(s, rank), 0);
}

/* A step that was begun before: what the others hear of it is what became of it then, and no refusal. */
static void test_refused_again(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t rank = 0; step == 3 && rank < 2; rank++)
			rank_rig_refuse(s, rank, 1, CKPT_ESTEP, "it was saved, says the test");
		rank_rig_sleep(s, 500);
		assert_int_equal(access(rank_rig_told(s, "g1-s1"), F_OK), step == 2 ? 0 : -1);
		assert_int_equal(access(rank_rig_told(s, "g1-s1-r1"), F_OK), -1);
		for (uint32_t rank = 0; rank < 2; rank++)
			rank_rig_begin(s, rank, step);
		rank_rig_sleep(s, 500);
		for (uint32_t rank = 0; rank < 2; rank++)
			assert_int_equal(rank_rig_end(s, rank), 0);
	}
	assert_int_equal(core_rig_read(&s->rank[0], CKPT_STEP_LATEST, CKPT_SINK_NONE), 0);
}

/* A rank that is told again and again that its step's directory is gone has failed, and says so to all. */
static void test_directory_never_stays(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	unsigned rule =
		io_fault_add(&s->rank[1].fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
							.path = ".safetensors",
							.error = -ENOENT,
							.count = IO_FAULT_ALWAYS});
	rank_rig_begin(s, 0, 1);
	rank_rig_begin(s, 1, 1);
	rank_rig_sleep(s, 500);
	/* Once for each rank that may have taken it along. */
	assert_int_equal(s->rank[1].fault.hits[rule], 3);
	assert_true(rank_rig_ended(s, 0) && rank_rig_ended(s, 1));
	assert_int_equal(rank_rig_end(s, 1), -ENOENT);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	rank_rig_check_says(s, 0, "rank 1 on node rig failed");
	/* The record alone. */
	assert_int_equal(scratch_count(scratch_join(s->dir, "g000001/step-0000000001")), 1);
}

/* What the exchange has refused once is told all the same by an engine that closes: the others wait for it. */
static void test_told_while_closing(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "g1-s1", .error = -EIO});
	rank_rig_begin(s, 1, 1);
	rank_rig_refuse(s, 0, 1, -ENOMEM, "no room, says the test");
	assert_int_equal(access(rank_rig_told(s, "g1-s1"), F_OK), -1);
	s->open[0] = false;
	core_rig_close(&s->rank[0]);
	assert_int_equal(access(rank_rig_told(s, "g1-s1"), F_OK), 0);
	rank_rig_sleep(s, 500);
	assert_int_equal(rank_rig_end(s, 1), CKPT_EABORTED);
	rank_rig_check_says(s, 1, "no room, says the test");
}

/* A later generation is there: all of them are told so, with every step. */
static void test_fenced(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	s->rank[0].core.lineage->fenced = true;
	for (uint64_t step = 1; step <= 2; step++) {
		rank_rig_begin(s, 0, step);
		rank_rig_begin(s, 1, step);
		rank_rig_sleep(s, 500);
		assert_int_equal(rank_rig_end(s, 0), CKPT_EFENCED);
		assert_true(rank_rig_ended(s, 1));
		/* It is so for all of them, and is called so. */
		assert_int_equal(rank_rig_end(s, 1), CKPT_EFENCED);
		rank_rig_check_says(s, 1, "a later generation has taken over");
	}
}

/* Of ranks that do not have the same nobody is the odd one: all are told so. */
static void test_mismatch(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, RANK_RIG_RANKS, RANK_RIG_RANKS, 600000);
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++) {
		rank_rig_prepare(s, rank, 1);
		s->save[rank]->common.bytes[0] ^= rank == 1;
	}
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++)
		(void)core_rig_post(&s->rank[rank], s->save[rank]);
	rank_rig_sleep(s, 500);
	for (uint32_t rank = 0; rank < RANK_RIG_RANKS; rank++) {
		assert_int_equal(rank_rig_end(s, rank), CKPT_EMISMATCH);
		rank_rig_check_says(s, rank, "rank 1 on node rig and rank 0 differ");
	}
}

/* How much of the part of rank 1 is there when rank 0 says that the step is of no rank. */
enum progress { WRITING, SYNCING, CLOSED_GATE, PROGRESS_COUNT };

static void hold_part(struct rank_rig *s, enum progress progress)
{
	struct io_fault *fault = &s->rank[1].fault;

	if (progress == WRITING)
		(void)io_fault_add(fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_WRITE, .path = "safetensors", .hold = true});
	if (progress == SYNCING)
		(void)io_fault_add(
			fault, (struct io_fault_rule){
				       .op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	rank_rig_prepare(s, 1, progress + 1);
	s->save[1]->fenced = progress == CLOSED_GATE;
	(void)core_rig_post(&s->rank[1], s->save[1]);
}

/* Nobody finishes a part of a step that is over, nor keeps it, nor tells of it. */
static void test_heard_before_the_part(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	for (enum progress progress = WRITING; progress < PROGRESS_COUNT; progress++) {
		uint64_t step = progress + 1;
		int code = progress == SYNCING ? -ENOMEM : CKPT_ESKIPPED;
		char key[32];

		hold_part(s, progress);
		rank_rig_sleep(s, 2000);
		assert_false(rank_rig_ended(s, 1));
		rank_rig_refuse(s, 0, step, code, "it does not want it, says the test");
		rank_rig_sleep(s, 600);
		assert_true(rank_rig_ended(s, 1));
		core_rig_let_go(&s->rank[1]);
		io_fault_clear(&s->rank[1].fault);
		rank_rig_sleep(s, 100);
		assert_int_equal(rank_rig_end(s, 1), code == CKPT_ESKIPPED ? code : CKPT_EABORTED);
		rank_rig_check_says(s, 1, "says the test");
		(void)snprintf(key, sizeof(key), "g1-s%u-r1", (unsigned)step);
		assert_int_equal(access(rank_rig_told(s, key), F_OK), -1);
		(void)snprintf(key, sizeof(key), "g000001/step-000000000%u", (unsigned)step);
		assert_int_equal(scratch_count(scratch_join(s->dir, key)), 0);
	}
	/* That it has heard of those keeps nothing of the next one away. */
	rank_rig_begin(s, 0, 10);
	rank_rig_begin(s, 1, 10);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), 0);
	assert_int_equal(rank_rig_end(s, 1), 0);
}

/* What cannot be is not believed: a commit without the part of this rank. */
static void test_commit_before_the_part(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_outcome outcome = {.attempt = "0123456789abcdef"};
	struct ckpt_buf buf = {0};

	rank_rig_open_all(s, 2, 2, 4000);
	outcome.verdict.generation = s->rank[0].core.lineage->generation;
	outcome.verdict.nonce = s->rank[0].core.lineage->nonce;
	outcome.verdict.step = WRITING + 1;
	assert_int_equal(ckpt_outcome_encode(&outcome, &buf), 0);
	rank_rig_put(s, "g1-s1", &buf);
	ckpt_buf_free(&buf);
	hold_part(s, WRITING);
	rank_rig_sleep(s, 1000);
	assert_false(rank_rig_ended(s, 1));
	rank_rig_sleep(s, 4000);
	core_rig_let_go(&s->rank[1]);
	rank_rig_sleep(s, 100);
	assert_int_equal(rank_rig_end(s, 1), -ETIMEDOUT);
	assert_int_equal(s->rank[1].core.stats.saves_committed, 0);
}

/* What rank 0 says of another step takes nothing away that it has yet to hear of the one it is about. */
static void test_failure_outlasts_a_skip(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_save *first;

	rank_rig_open_all(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	rank_rig_begin(s, 0, 1);
	first = s->save[0];
	rank_rig_refuse(s, 1, 1, -ENOMEM, "no room, says the test");
	rank_rig_begin(s, 1, 2);
	rank_rig_refuse(s, 0, 2, CKPT_ESKIPPED, "the save of step 1 still runs");
	rank_rig_sleep(s, 600);
	assert_int_equal(rank_rig_end(s, 1), CKPT_ESKIPPED);
	s->save[0] = first;
	assert_false(rank_rig_ended(s, 0));
	io_fault_clear(&s->rank[0].fault);
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	rank_rig_check_says(s, 0, "no room, says the test");
}

/* A step that is on its way is not spoilt by a second one of the same number. */
static void test_same_step_twice(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open_all(s, 2, 2, 600000);
	for (uint32_t first = 0; first < 2; first++) {
		rank_rig_begin(s, first, first + 1);
		struct ckpt_save *save = s->save[first];
		rank_rig_refuse(s, first, first + 1, -ETIMEDOUT, "the storage still holds that");
		s->save[first] = save;
		rank_rig_begin(s, 1 - first, first + 1);
		rank_rig_sleep(s, 500);
		assert_int_equal(rank_rig_end(s, 0), 0);
		assert_int_equal(rank_rig_end(s, 1), 0);
	}
}

/* A rank that could not join the claim: rank 0 need not wait for it. */
static void test_astray(void **state)
{
	struct rank_rig *s = *state;

	rank_rig_open(s, 0, 3, 600000);
	rank_rig_open(s, 1, 2, 600000);
	assert_int_equal(core_rig_claim(&s->rank[0]), 0);
	assert_int_equal(core_rig_claim(&s->rank[1]), CKPT_EMISMATCH);
	rank_rig_begin(s, 0, 1);
	rank_rig_refuse(s, 1, 1, CKPT_EMISMATCH, "it is one of two ranks");
	rank_rig_sleep(s, 500);
	assert_int_equal(rank_rig_end(s, 0), CKPT_EABORTED);
	rank_rig_check_says(s, 0, "it is one of two ranks");
}

/* Asks as ckpt_save_start() does. 1: it waits. */
static int ask(struct rank_rig *s, uint64_t step, uint64_t patience_ms, struct ckpt_command **ret)
{
	struct ckpt_command *command =
		ckpt_command_new(&s->rank[1].core, sizeof(struct ckpt_skipper), NULL);
	struct ckpt_skipper *skipper = CKPT_CONTAINER(command, struct ckpt_skipper, command);

	skipper->step = step;
	skipper->patience_ns = patience_ms * 1000000;
	*ret = command;
	ckpt_command_post(command, ckpt_skipper_body);
	core_rig_run(&s->rank[1]);
	return ckpt_latch_get(&command->latch) & CKPT_DONE_END ? command->result : 1;
}

static int answer(struct ckpt_command *command)
{
	assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
	int r = command->result;

	assert_int_equal(command->error.code, r);
	ckpt_command_unref(command);
	return r;
}

/* Rank 0 alone decides; the others hear it whether they have begun the step or not. */
static void test_skipped(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_command *command;
	struct ckpt_save *first[2];

	rank_rig_open_all(s, 2, 2, 600000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .hold = true});
	for (uint32_t rank = 0; rank < 2; rank++) {
		rank_rig_begin(s, rank, 1);
		first[rank] = s->save[rank];
	}
	assert_int_equal(ask(s, 2, 60000, &command), 1);
	rank_rig_refuse(s, 0, 2, CKPT_ESKIPPED, "the save of step 1 still runs");
	rank_rig_sleep(s, 300);
	assert_int_equal(answer(command), CKPT_ESKIPPED);
	/* The last save ends: nothing was said, and the next one may begin. */
	assert_int_equal(ask(s, 3, 60000, &command), 1);
	io_fault_clear(&s->rank[0].fault);
	core_rig_let_go(&s->rank[0]);
	rank_rig_sleep(s, 300);
	assert_int_equal(answer(command), 0);
	for (uint32_t rank = 0; rank < 2; rank++) {
		s->save[rank] = first[rank];
		assert_int_equal(rank_rig_end(s, rank), 0);
	}
	/* Step 1 is over, and who is late may still ask for step 2. */
	assert_int_equal(access(rank_rig_told(s, "g1-s2"), F_OK), 0);
	rank_rig_begin(s, 1, 3);
	rank_rig_refuse(s, 0, 3, CKPT_ESKIPPED, "the save of step 2 still runs");
	rank_rig_sleep(s, 300);
	assert_int_equal(rank_rig_end(s, 1), CKPT_ESKIPPED);
	rank_rig_check_says(s, 1, "the save of step 2 still runs");
	assert_int_equal(s->rank[1].core.stats.saves_skipped, 1);
	assert_int_equal(s->rank[1].core.stats.saves_failed, 0);
	/* A failure is for the save to find; and nobody waits for ever. */
	rank_rig_begin(s, 1, 4);
	assert_int_equal(ask(s, 5, 1000, &command), 1);
	rank_rig_refuse(s, 0, 5, -EIO, "it fails");
	rank_rig_sleep(s, 100);
	assert_int_equal(answer(command), 0);
	assert_int_equal(ask(s, 6, 1000, &command), 1);
	rank_rig_sleep(s, 1200);
	assert_int_equal(answer(command), 0);
	rank_rig_begin(s, 0, 7);
	rank_rig_sleep(s, 100);
}

static bool no_memory(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

/* A restore that one rank had no memory to begin was one of all ranks: the next is the next for it, too. */
static void test_restores_are_counted(void **state)
{
	struct rank_rig *s = *state;
	struct ckpt_restore *restore = NULL;

	rank_rig_open_all(s, 2, 2, 1000);
	ckpt_alloc_set_hook(no_memory, NULL);
	int code = ckpt_restore_new(
		&s->rank[1].core, NULL, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, &restore);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(code, -ENOMEM);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(ckpt_restore_new(&s->rank[i].core, NULL, CKPT_STEP_LATEST,
					 CKPT_SINK_MEMORY, &restore),
			0);
		assert_int_equal(restore->ranks->number, 1 + i);
		ckpt_restore_unref(restore);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, rank_rig_setup, rank_rig_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_failure_of_one_of_many),
		TEST(test_claim_told_later),
		TEST(test_claim_told_after_the_next),
		TEST(test_claims_are_counted),
		TEST(test_refused),
		TEST(test_refused_again),
		TEST(test_directory_never_stays),
		TEST(test_told_while_closing),
		TEST(test_fenced),
		TEST(test_mismatch),
		TEST(test_heard_before_the_part),
		TEST(test_commit_before_the_part),
		TEST(test_failure_outlasts_a_skip),
		TEST(test_same_step_twice),
		TEST(test_astray),
		TEST(test_skipped),
		TEST(test_restores_are_counted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
