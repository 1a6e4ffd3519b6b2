/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One restore of two ranks, which do not see the same at the same time: what rank 0 has opened is not there yet for
 * the other, or is another one, or is being removed; and one of them turns back while the other goes on.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "exchange/restore_messages.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define RANKS  2
#define FLOATS 10000
#define ALWAYS IO_FAULT_ALWAYS

struct scene {
	char *dir;
	struct core_rig rank[RANKS];
	struct fixture_step step; /* 20; there is also 10 */
	struct ckpt_restore *restore[RANKS];
	float memory[RANKS][FLOATS];
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	s->step = fixture_one(s->dir, fixture_floats(FLOATS));
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	s->step.step = 20;
	fixture_commit(&s->step);
	core_rig_open_ranks(
		s->rank, RANKS, &(struct core_rig_config){.dir = s->dir, .timeout_ms = 60000});
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	/* Of a test that has failed. */
	for (unsigned i = 0; i < RANKS; i++)
		if (s->restore[i])
			(void)core_rig_end(&s->rank[i], s->restore[i]);
	for (unsigned i = 0; i < RANKS; i++)
		core_rig_close(&s->rank[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void sleep_both(struct scene *s, uint64_t ms)
{
	core_rig_sleep_ranks(s->rank, RANKS, ms);
}

static void begin(struct scene *s, unsigned rank)
{
	s->restore[rank] = core_rig_begin(&s->rank[rank], CKPT_STEP_LATEST, CKPT_SINK_MEMORY, NULL);
	assert_non_null(s->restore[rank]);
}

static void begin_both(struct scene *s)
{
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
}

static bool has(const struct scene *s, unsigned rank, uint32_t bit)
{
	return ckpt_latch_get(ckpt_restore_latch(s->restore[rank])) & bit;
}

static void cancel(struct scene *s, unsigned rank)
{
	ckpt_restore_post_cancel(s->restore[rank]);
	core_rig_run(&s->rank[rank]);
}

static int end(struct scene *s, unsigned rank)
{
	int code = core_rig_end(&s->rank[rank], s->restore[rank]);

	s->restore[rank] = NULL;
	return code;
}

static void check_says(const struct scene *s, unsigned rank, const char *text)
{
	if (!strstr(s->rank[rank].err.message, text))
		fail_msg("rank %u says: %s", rank, s->rank[rank].err.message);
}

/* Both have opened step 20, and read it. */
static void check_read(struct scene *s)
{
	for (unsigned i = 0; i < RANKS; i++) {
		struct ckpt_target target = {
			.size = sizeof(target), .name = "w", .data = s->memory[i]};
		assert_true(has(s, i, CKPT_DONE_OPENED));
		assert_int_equal(ckpt_restore_chosen_step(s->restore[i]), 20);
		assert_int_equal(ckpt_restore_add_targets(s->restore[i], &target, 1, NULL), 0);
		ckpt_restore_post_start(s->restore[i]);
		assert_false(ckpt_restore_agreed(s->restore[i]));
	}
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(ckpt_restore_agreed(s->restore[i]));
		assert_int_equal(end(s, i), 0);
		assert_memory_equal(s->memory[i], s->step.tensors[0].data, sizeof(s->memory[i]));
	}
}

static void check_not_noted(const struct scene *s)
{
	assert_int_not_equal(access(fixture_quarantine(&s->step), F_OK), 0);
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rank[1].fault, rule);
}

/* Rank 1 is of a node with a store of its own, which it keeps. */
static void put_on_a_node(struct scene *s)
{
	s->rank[1].core.config.node_store = true;
	s->rank[1].core.config.node_leader = 1;
}

/* A directory that is cached on the way may lack the manifest for a while, or give its name and not the file. */
static void test_seen_later(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "manifest.json", .error = -ENOENT});
	/* It was locked by then. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "manifest.json", .nth = 3, .error = -ENOENT});
	begin_both(s);
	sleep_both(s, 45);
	assert_false(has(s, 0, CKPT_DONE_OPENED) || has(s, 1, CKPT_DONE_OPENED));
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 20);
	assert_int_equal(ckpt_restore_rank_count(s->restore[0]), 0);
	sleep_both(s, 300);
	assert_int_equal(s->rank[1].fault.hits[0] + s->rank[1].fault.hits[1], 2);
	check_read(s);
}

/* What it was locked by is given back before the next look, whatever its descriptor is. */
static void test_lock_given_back(void **state)
{
	struct scene *s = *state;

	unsigned rule = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
				       .path = "manifest.json",
				       .nth = 2,
				       .error = -ENOENT});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_CLOSE, .path = "manifest.json", .hold = true});
	begin(s, 0);
	sleep_both(s, 100);
	int input = dup(STDIN_FILENO);
	(void)close(STDIN_FILENO);
	begin(s, 1);
	sleep_both(s, 300);
	assert_int_equal(s->rank[1].fault.hits[rule], 1);
	assert_false(has(s, 1, CKPT_DONE_OPENED));
	io_fault_clear(&s->rank[1].fault);
	core_rig_let_go(&s->rank[1]);
	if (input >= 0) {
		assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
		(void)close(input);
	}
	sleep_both(s, 300);
	check_read(s);
}

/* What comes of the next look is what is told, and not what came of the last one. */
static void test_not_locked_later(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "manifest.json", .error = -ENOENT});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EIO});
	begin_both(s);
	sleep_both(s, 300);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), -EIO);
		check_says(s, i, "cannot lock");
	}
}

/* Damage is told as what it is. */
static void test_damaged_meanwhile(void **state)
{
	struct scene *s = *state;

	begin(s, 0);
	scratch_flip(fixture_manifest(&s->step), 30);
	begin(s, 1);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
}

/* A part of the deadline at most, to the moment. */
static void test_never_seen_in_time(void **state)
{
	struct scene *s = *state;

	s->rank[1].core.config.save_timeout_ms = 120;
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -ENOENT,
		       .count = ALWAYS});
	begin(s, 0);
	begin(s, 1);
	assert_false(has(s, 1, CKPT_DONE_END));
	core_rig_sleep(&s->rank[1], 28);
	assert_false(s->restore[1]->pick.task.finished);
	core_rig_sleep(&s->rank[1], 4);
	assert_true(s->restore[1]->pick.task.finished);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), -ETIMEDOUT);
}

/* Not for ever; and nobody calls it damaged. */
static void test_never_seen(void **state)
{
	struct scene *s = *state;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -ENOENT,
		       .count = ALWAYS});
	begin_both(s);
	sleep_both(s, 9900);
	assert_false(has(s, 0, CKPT_DONE_END) || has(s, 1, CKPT_DONE_END));
	sleep_both(s, 400);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has(s, i, CKPT_DONE_END));
		assert_false(ckpt_restore_agreed(s->restore[i]));
		assert_int_equal(end(s, i), -ETIMEDOUT);
		check_says(s, i, "rank 1 does not see step 20 of generation 1");
		assert_int_equal(s->rank[i].err.step, 20);
	}
	check_not_noted(s);
}

/* Who gives up meanwhile does not wait for it. */
static void test_cancelled_unseen(void **state)
{
	struct scene *s = *state;

	unsigned rule = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
				       .path = "manifest.json",
				       .error = -ENOENT,
				       .count = ALWAYS});
	begin_both(s);
	sleep_both(s, 500);
	unsigned tries = s->rank[1].fault.hits[rule];
	assert_true(tries > 5);
	cancel(s, 1);
	/* The look that it was about, at once, and no more. */
	assert_int_equal(s->rank[1].fault.hits[rule], tries + 1);
	assert_false(s->restore[1]->pick.timer.set);
	sleep_both(s, 100);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has(s, i, CKPT_DONE_END));
		assert_int_equal(end(s, i), -ECANCELED);
		check_says(s, i, "it was cancelled before the end");
	}
	assert_int_equal(s->rank[1].fault.hits[rule], tries + 1);
}

static void other_attempt(struct ckpt_manifest *manifest)
{
	memcpy(manifest->attempt, "fedcba9876543210", sizeof(manifest->attempt));
}

/* Of one name, and not what rank 0 has opened: half of each would be no step. */
static void test_another_attempt(void **state)
{
	struct scene *s = *state;

	begin(s, 0);
	fixture_edit(&s->step, other_attempt);
	begin(s, 1);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_false(has(s, i, CKPT_DONE_OPENED));
		assert_int_equal(end(s, i), CKPT_EMISMATCH);
		check_says(s, i, "is of attempt fedcba9876543210, but rank 0 has opened attempt ");
	}
	check_says(s, 0, "rank 1 could not restore");
	check_not_noted(s);
}

/*
 * What this start of the job has saved may lack its manifest in the store of a node, and the next one brings it
 * there: nobody says that it is gone from there, and nobody notes it.
 */
static void test_not_on_the_node(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(core_rig_adopt(&s->rank[i], 1, 20), 0);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(core_rig_claim(&s->rank[i]), 0);
	put_on_a_node(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -ENOENT,
		       .count = ALWAYS});
	begin_both(s);
	sleep_both(s, 11000);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), -ETIMEDOUT);
		check_says(s, i, "does not see step 20");
	}
	check_not_noted(s);
}

/* What was saved before this start has been brought to the node, if it had any of it: so it is gone from there. */
static void test_gone_from_the_node(void **state)
{
	struct scene *s = *state;

	put_on_a_node(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -ENOENT,
		       .count = ALWAYS});
	begin_both(s);
	sleep_both(s, 300);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINCOMPLETE);
		check_says(s, i, "which rank 0 has opened, is no longer in ");
	}
}

/* One that is being removed there may stay: the removal of a process that has been fenced is refused. */
static void test_locked_on_the_node(void **state)
{
	struct scene *s = *state;

	put_on_a_node(s);
	unsigned rule =
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EAGAIN, .count = 8});
	begin_both(s);
	sleep_both(s, 800);
	assert_int_equal(s->rank[1].fault.hits[rule], 8);
	check_read(s);
}

/* All have opened it when one of them turns back: who has been given it hears of that while it reads. */
static void test_turned_back(void **state)
{
	struct scene *s = *state;

	begin_both(s);
	for (unsigned i = 0; i < 100 && !has(s, 0, CKPT_DONE_OPENED); i++)
		core_rig_sleep(&s->rank[0], 5);
	assert_true(has(s, 0, CKPT_DONE_OPENED));
	assert_false(has(s, 1, CKPT_DONE_OPENED));
	cancel(s, 1);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has(s, i, CKPT_DONE_END));
		assert_int_equal(end(s, i), -ECANCELED);
	}
	check_says(s, 0, "rank 1 could not restore");
	/* Both are where they were: the next one goes well. */
	begin_both(s);
	sleep_both(s, 500);
	check_read(s);
}

/*
 * Rank 0 turns back while it says that all have opened it: what it has said is the outcome, and it turns back while the
 * others read.
 */
static void test_turned_back_late(void **state)
{
	struct scene *s = *state;
	struct io_fault *fault = &s->rank[0].fault;

	unsigned rule = io_fault_add(fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						    .path = "exchange/rig/restore-1-opened",
						    .hold = true});
	begin_both(s);
	sleep_both(s, 500);
	assert_int_equal(fault->hits[rule], 1);
	cancel(s, 0);
	io_fault_clear(fault);
	core_rig_let_go(&s->rank[0]);
	sleep_both(s, 500);
	assert_true(has(s, 1, CKPT_DONE_OPENED));
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has(s, i, CKPT_DONE_END));
		assert_int_equal(end(s, i), -ECANCELED);
	}
	check_says(s, 1, "rank 0 could not restore");
}

/* Who turns back because a target did not fit says so, unless another one did fit since. */
static void test_refused_target(void **state)
{
	struct scene *s = *state;
	struct ckpt_target no = {.size = sizeof(no), .name = "no", .data = s->memory[1]};
	struct ckpt_target yes = {.size = sizeof(yes), .name = "w", .data = s->memory[1]};

	for (unsigned again = 0; again < 2; again++) {
		struct ckpt_error err = {.size = sizeof(err)};
		begin_both(s);
		sleep_both(s, 500);
		assert_true(has(s, 1, CKPT_DONE_OPENED));
		assert_int_equal(
			ckpt_restore_add_targets(s->restore[1], &no, 1, &err), CKPT_EMISMATCH);
		if (again)
			assert_int_equal(ckpt_restore_add_targets(s->restore[1], &yes, 1, &err), 0);
		cancel(s, 1);
		sleep_both(s, 500);
		assert_int_equal(end(s, 1), -ECANCELED);
		assert_int_equal(end(s, 0), again ? -ECANCELED : CKPT_EMISMATCH);
		check_says(s, 0, again ? "cancelled" : "'no'");
	}
}

/* Who verifies, or reads only, does so alone. */
static void test_alone(void **state)
{
	struct scene *s = *state;

	s->restore[0] = core_rig_begin(&s->rank[0], 20, CKPT_SINK_NONE, NULL);
	assert_null(s->restore[0]->ranks);
	assert_int_equal(ckpt_restore_finding_count(s->restore[0]), 1);
	assert_true(ckpt_restore_agreed(s->restore[0]));
	assert_int_equal(end(s, 0), 0);
	assert_int_equal(core_rig_read(&s->rank[1], 20, CKPT_SINK_NONE), 0);
	s->rank[0].core.config.read_only = true;
	begin(s, 0);
	assert_true(has(s, 0, CKPT_DONE_OPENED));
	assert_null(s->restore[0]->ranks);
	assert_true(ckpt_restore_agreed(s->restore[0]));
	assert_int_equal(end(s, 0), 1);
	s->rank[0].core.config.read_only = false;
	begin_both(s);
	sleep_both(s, 500);
	check_read(s);
}

/* What stands where rank 0 tells what it has picked. */
static void tell_nonsense(struct scene *s)
{
	FILE *file = fopen(scratch_join(s->dir, "exchange/rig/restore-1"), "wx");

	assert_non_null(file);
	assert_int_equal(fputs("nonsense", file) < 0, 0);
	assert_int_equal(fclose(file), 0);
}

/* Another start of the job has told something else: rank 0 does not go on. */
static void test_begun_before(void **state)
{
	struct scene *s = *state;

	tell_nonsense(s);
	begin(s, 0);
	sleep_both(s, 500);
	assert_int_equal(end(s, 0), -EINVAL);
	check_says(s, 0, "was begun before");
	check_not_noted(s);
}

/* Nor does who cannot read what it has heard: of no step, so there is none to look for. */
static void test_strange_choice(void **state)
{
	struct scene *s = *state;

	tell_nonsense(s);
	begin(s, 1);
	sleep_both(s, 500);
	assert_int_equal(end(s, 1), -EIO);
	check_not_noted(s);
}

/* Where there is nothing to pick nothing is told but that. */
static void test_nothing_picked(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < RANKS; i++)
		s->restore[i] = core_rig_begin(&s->rank[i], 99, CKPT_SINK_MEMORY, NULL);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_ENOSTEP);
	assert_int_not_equal(access(scratch_join(s->dir, "exchange/rig/restore-1"), F_OK), 0);
}

/* Rank 0 opens what it has picked once that is told. */
static void test_told_first(void **state)
{
	struct scene *s = *state;

	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "exchange/rig/restore-1", .hold = true});
	begin(s, 0);
	sleep_both(s, 100);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 20);
	assert_false(ckpt_task_active(&s->restore[0]->sink_task));
	core_rig_let_go(&s->rank[0]);
	begin(s, 1);
	sleep_both(s, 500);
	check_read(s);
}

/* Who gives up while it listens does so at once; it goes once what it has said is there. */
static void test_cancelled_while_listening(void **state)
{
	struct scene *s = *state;

	s->rank[1].core.config.save_timeout_ms = 2000;
	begin(s, 1);
	sleep_both(s, 200);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
		       .path = "exchange/rig/restore-1",
		       .hold = true,
		       .count = ALWAYS});
	cancel(s, 1);
	assert_true(s->restore[1]->ranks->call.task.finished);
	assert_true(has(s, 1, CKPT_DONE_END));
	ckpt_restore_post_release(s->restore[1]);
	sleep_both(s, 5000);
	assert_false(has(s, 1, CKPT_DONE_GONE));
	io_fault_clear(&s->rank[1].fault);
	core_rig_let_go(&s->rank[1]);
	sleep_both(s, 500);
	assert_true(has(s, 1, CKPT_DONE_GONE));
	assert_int_equal(end(s, 1), -ECANCELED);
}

/* Before anything was picked it is of no step that they all turn back. */
static void test_turned_back_from_none(void **state)
{
	struct scene *s = *state;

	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = "ckpt.json", .hold = true});
	begin(s, 0);
	cancel(s, 0);
	core_rig_let_go(&s->rank[0]);
	begin(s, 1);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), -ECANCELED);
	check_says(s, 1, "rank 0 could not restore");
	assert_int_equal(s->rank[1].err.step, -1);
}

/* Both have opened it, and begin to read. */
static void start_both(struct scene *s)
{
	begin_both(s);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		struct ckpt_target target = {
			.size = sizeof(target), .name = "w", .data = s->memory[i]};
		assert_true(has(s, i, CKPT_DONE_OPENED));
		assert_int_equal(ckpt_restore_add_targets(s->restore[i], &target, 1, NULL), 0);
		ckpt_restore_post_start(s->restore[i]);
	}
}

static void hold_reads(struct scene *s, unsigned rank)
{
	(void)io_fault_add(&s->rank[rank].fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
							 .path = ".safetensors",
							 .hold = true,
							 .count = ALWAYS});
}

static void let_go(struct scene *s, unsigned rank)
{
	io_fault_clear(&s->rank[rank].fault);
	core_rig_let_go(&s->rank[rank]);
}

/* What another rank has come to is told at once, whatever the storage of this one does. */
static void test_hangs_while_another_ends(void **state)
{
	struct scene *s = *state;

	for (unsigned hung = 0; hung < RANKS; hung++) {
		hold_reads(s, hung);
		start_both(s);
		core_rig_run(&s->rank[hung]);
		cancel(s, 1 - hung);
		sleep_both(s, 500);
		assert_true(has(s, hung, CKPT_DONE_END));
		let_go(s, hung);
		for (unsigned i = 0; i < RANKS; i++)
			assert_int_equal(end(s, i), -ECANCELED);
	}
	/* Rank 0 alone notes damage. */
	scratch_flip(fixture_shard(&s->step, 0), 20000);
	hold_reads(s, 1);
	start_both(s);
	sleep_both(s, 500);
	assert_true(has(s, 1, CKPT_DONE_END));
	let_go(s, 1);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
}

/* Damage is told by rank 0 when it is noted, so that the same is not picked again, and noted by no other. */
static void test_noted_by_rank_0(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->step, 0), 20000);
	unsigned rule = io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "quarantine.json", .hold = true});
	hold_reads(s, 0);
	start_both(s);
	sleep_both(s, 500);
	assert_true(has(s, 1, CKPT_DONE_END));
	assert_false(has(s, 0, CKPT_DONE_END));
	(void)io_tap_release(&s->rank[0].fault.tap);
	sleep_both(s, 100);
	assert_int_equal(s->rank[0].fault.hits[rule], 1);
	assert_false(has(s, 0, CKPT_DONE_END));
	check_not_noted(s);
	let_go(s, 0);
	sleep_both(s, 100);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
	assert_int_equal(access(fixture_quarantine(&s->step), F_OK), 0);
}

/* Who has said that all was read may change its mind, and does not know yet whether it is believed. */
static void test_cancelled_after_reading(void **state)
{
	struct scene *s = *state;

	hold_reads(s, 0);
	start_both(s);
	sleep_both(s, 300);
	assert_false(has(s, 1, CKPT_DONE_END));
	cancel(s, 1);
	assert_false(has(s, 1, CKPT_DONE_END));
	let_go(s, 0);
	sleep_both(s, 500);
	int code = end(s, 1);
	assert_true(code == 0 || code == -ECANCELED);
	assert_int_equal(end(s, 0), code);
}

/* Whoever has let go of it is not kept by what the others may come to. */
static void test_released_after_reading(void **state)
{
	struct scene *s = *state;

	hold_reads(s, 0);
	start_both(s);
	sleep_both(s, 300);
	assert_false(has(s, 1, CKPT_DONE_END));
	ckpt_restore_post_release(s->restore[1]);
	core_rig_run(&s->rank[1]);
	assert_true(has(s, 1, CKPT_DONE_END));
	let_go(s, 0);
	sleep_both(s, 500);
	assert_int_equal(end(s, 1), -ECANCELED);
	(void)end(s, 0);
}

/* Without memory for what they tell each other there is none at all. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = NULL;
	size_t failed = 0;

	for (bool done = false; !done;) {
		core_rig_count_allocations(&s->rank[0], failed + 1);
		int code = ckpt_restore_new(
			&s->rank[0].core, NULL, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, &r);
		done = core_rig_allocations(&s->rank[0]) <= failed;
		assert_int_equal(code, done ? 0 : -ENOMEM);
		failed += !done;
	}
	assert_true(failed > 3);
	assert_non_null(r->ranks);
	ckpt_restore_unref(r);
}

/* Who comes when rank 0 has turned back is told from which step, be it that it does not see what was chosen. */
static void test_came_late(void **state)
{
	struct scene *s = *state;

	begin(s, 0);
	cancel(s, 0);
	sleep_both(s, 100);
	assert_int_equal(end(s, 0), -ECANCELED);
	assert_int_equal(access(scratch_join(s->dir, "exchange/rig/restore-1"), F_OK), 0);
	/* Before the outcome. */
	unsigned rule = add(s,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "exchange/rig/restore-1", .error = -ENOENT});
	begin(s, 1);
	sleep_both(s, 100);
	assert_int_equal(s->rank[1].fault.hits[rule], 1);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[1]), 0);
	assert_int_equal(end(s, 1), -ECANCELED);
	check_says(s, 1, "rank 0 could not restore");
	assert_int_equal(s->rank[1].err.step, 20);
}

/* Into the exchange: rank 1 says of a step that it is damaged. */
static void say_damaged(
	struct scene *s, uint32_t number, int code, uint64_t generation, uint64_t step)
{
	struct ckpt_restore_record record = {
		.verdict = {.code = code, .reason = "the test says so"},
		.rank = 1,
		.world = RANKS,
		.wanted = CKPT_STEP_LATEST,
		.generation = generation,
		.step = step,
		.attempt = "0123456789abcdef",
		.run_id = FIXTURE_RUN};
	char key[CKPT_EXCHANGE_KEY_MAX];
	struct ckpt_buf buf = {0};

	ckpt_key_restore_part(key, number, CKPT_RESTORE_OPENING);
	assert_int_equal(ckpt_restore_record_encode(&record, key, &buf), 0);
	FILE *file = fopen(scratch_join(s->dir, scratch_join("exchange/rig", key)), "wx");
	assert_non_null(file);
	assert_int_equal(fwrite(buf.data, 1, buf.len, file), buf.len);
	assert_int_equal(fclose(file), 0);
	ckpt_buf_free(&buf);
}

/* Only the step that it was said of is noted, be it that rank 0 has opened another one. */
static void test_said_of_another(void **state)
{
	static const struct {
		int code;
		uint64_t generation;
		uint64_t step;
	} said[] = {{CKPT_EINTEGRITY, 1, 10}, {CKPT_EINCOMPLETE, 2, 20}, {CKPT_EFORMAT, 1, 20}};
	struct scene *s = *state;

	for (uint32_t i = 0; i < COUNT(said); i++) {
		check_not_noted(s);
		begin(s, 0);
		say_damaged(s, i + 1, said[i].code, said[i].generation, said[i].step);
		sleep_both(s, 500);
		assert_int_equal(end(s, 0), said[i].code);
		check_says(s, 0, "the test says so");
	}
	assert_int_equal(access(fixture_quarantine(&s->step), F_OK), 0);
	s->step.step = 10;
	check_not_noted(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_seen_later),
		SCENE(test_lock_given_back),
		SCENE(test_not_locked_later),
		SCENE(test_damaged_meanwhile),
		SCENE(test_never_seen_in_time),
		SCENE(test_never_seen),
		SCENE(test_cancelled_unseen),
		SCENE(test_another_attempt),
		SCENE(test_not_on_the_node),
		SCENE(test_gone_from_the_node),
		SCENE(test_locked_on_the_node),
		SCENE(test_turned_back),
		SCENE(test_turned_back_late),
		SCENE(test_refused_target),
		SCENE(test_alone),
		SCENE(test_no_memory),
		SCENE(test_begun_before),
		SCENE(test_strange_choice),
		SCENE(test_nothing_picked),
		SCENE(test_told_first),
		SCENE(test_cancelled_while_listening),
		SCENE(test_turned_back_from_none),
		SCENE(test_hangs_while_another_ends),
		SCENE(test_noted_by_rank_0),
		SCENE(test_cancelled_after_reading),
		SCENE(test_released_after_reading),
		SCENE(test_came_late),
		SCENE(test_said_of_another),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
