/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a store to write: made where there is none, never made anew, and never shared. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/lineage/lineage.h"
#include "engine/lineage/open.h"
#include "engine/runtime/modules.h"
#include "lib/core_rig.h"
#include "lib/fence.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define MARKER "ckpt.json"
#define RANKS  2

struct scene {
	char *dir;
	struct core_rig rig;
	struct core_rig rank[RANKS];
	struct ckpt_command *command[RANKS];
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* A store with one claim and a step that was aborted. */
static void fixture(struct scene *s)
{
	fixture_begin(s->dir);
	fixture_abort(s->dir, 1, 10);
}

static void make(struct scene *s)
{
	core_rig_make(&s->rig, &(struct core_rig_config){.dir = s->dir});
}

static void add(struct scene *s, struct io_fault_rule rule)
{
	(void)io_fault_add(&s->rig.fault, rule);
}

static bool has_marker(struct scene *s)
{
	return access(scratch_join(s->dir, MARKER), F_OK) == 0;
}

static void open_after(
	struct scene *s, struct io_fault_rule first, struct io_fault_rule second, int code)
{
	make(s);
	add(s, first);
	add(s, second);
	assert_int_equal(core_rig_open_store(&s->rig), code);
}

/* The greatest, in whatever order they are listed, and no byte after the last. */
static void test_newest_claim(void **state)
{
	static char names[] = "000009.json\0"
			      "x\0"
			      "000004.json\0"
			      "000012.json";
	struct ckpt_listing listing = {.names = names, .bytes = 26};

	(void)state;
	assert_string_equal(names + listing.bytes, "000012.json");
	assert_int_equal(ckpt_newest_claim(&listing), 9);
	listing.bytes = 12;
	assert_int_equal(ckpt_newest_claim(&listing), 9);
	assert_int_equal(ckpt_newest_claim(&(struct ckpt_listing){0}), 0);
}

/* What cannot be looked at is not taken for free. */
static void test_not_known(void **state)
{
	struct scene *s = *state;

	fixture(s);
	make(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = "gens", .error = -EIO});
	assert_int_equal(core_rig_open_store(&s->rig), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot list"));
	core_rig_close(&s->rig);
	make(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EIO});
	assert_int_equal(core_rig_open_store(&s->rig), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot lock gens/000001.json"));
	core_rig_close(&s->rig);
	make(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -ENOLCK});
	assert_int_equal(core_rig_open_store(&s->rig), -ENOLCK);
	assert_non_null(strstr(s->rig.err.message, "mount it with locks"));
	core_rig_close(&s->rig);
}

/* Somebody claims between the look at the claims and the scan: it lives, and it is told which it is. */
static void test_claimed_meanwhile(void **state)
{
	struct scene *s = *state;

	fixture(s);
	make(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .hold = true});
	struct ckpt_command *command =
		ckpt_command_new(&s->rig.core, sizeof(struct ckpt_opener), ckpt_opener_clear);
	assert_non_null(command);
	ckpt_command_post(command, ckpt_open_body);
	core_rig_run(&s->rig);
	assert_int_equal(ckpt_latch_get(&command->latch) & CKPT_DONE_END, 0);
	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 10);
	core_rig_let_go(&s->rig);
	assert_int_not_equal(ckpt_latch_get(&command->latch) & CKPT_DONE_END, 0);
	assert_int_equal(command->result, CKPT_EINUSE);
	assert_string_equal(command->error.file, "gens/000002.json");
	ckpt_command_unref(command);
	core_rig_close(&s->rig);
}

/* Made by another since this one looked for it: it is opened. */
static void test_made_meanwhile(void **state)
{
	struct scene *s = *state;

	fixture(s);
	make(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = MARKER, .error = -ENOENT});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 1);
	assert_string_equal(s->rig.core.lineage->marker.run_id, FIXTURE_RUN);
	core_rig_close(&s->rig);
}

/* Whether there is a marker, or generations without one, is not known: none is made. */
static void test_marker_not_known(void **state)
{
	static const struct io_fault_rule gone = {
		.op = CKPT_IO_OP_OPEN, .path = MARKER, .error = -ENOENT};
	static const struct io_fault_rule unreadable = {
		.op = CKPT_IO_OP_OPEN, .path = MARKER, .nth = 2, .error = -EIO};
	static const struct io_fault_rule unlisted = {
		.op = CKPT_IO_OP_LIST, .path = "gens", .error = -EIO};
	struct scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	open_after(s, gone, unreadable, -EIO);
	core_rig_close(&s->rig);
	fixture_claim(s->dir, FIXTURE_RUN, 1, 0, 0);
	assert_int_equal(unlink(scratch_join(s->dir, MARKER)), 0);
	open_after(s, gone, unlisted, -EIO);
	core_rig_close(&s->rig);
	assert_false(has_marker(s));
}

/* The store of one node is for reading as it is; for the ranks of several it is not one for all. */
static void test_scope(void **state)
{
	struct core_rig_config config = {.world = 2, .read_only = true};
	struct scene *s = *state;

	fixture(s);
	fixture_node_store(s->dir, FIXTURE_RUN);
	config.dir = s->dir;
	core_rig_make(&s->rig, &config);
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 1);
	core_rig_close(&s->rig);
	config.read_only = false;
	core_rig_make(&s->rig, &config);
	assert_int_equal(core_rig_open_store(&s->rig), -EINVAL);
	assert_non_null(strstr(s->rig.err.message, "is that of one node"));
	core_rig_close(&s->rig);
	/* Its own user goes on alone, whoever else there was. */
	config.world = 1;
	core_rig_open(&s->rig, &config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_close(&s->rig);
}

/* Of an earlier start of the job. */
static void leave_session(struct scene *s)
{
	assert_int_equal(mkdir(scratch_join(s->dir, "exchange"), 0777), 0);
	assert_int_equal(mkdir(scratch_join(s->dir, "exchange/older"), 0777), 0);
}

/* Opens it, in whatever time it takes. */
static int open_in_time(struct scene *s)
{
	struct ckpt_command *command =
		ckpt_command_new(&s->rig.core, sizeof(struct ckpt_opener), ckpt_opener_clear);

	if (!command)
		return -ENOMEM;
	ckpt_command_post(command, ckpt_open_body);
	for (unsigned i = 0; i < 100; i++)
		core_rig_sleep(&s->rig, 100);
	assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
	int r = command->result;
	assert_int_equal(command->error.code, r);
	ckpt_command_unref(command);
	return r;
}

/* Without memory a store is made whole, or not at all, be it by a rank of several. */
static void open_without_memory(struct scene *s, const struct core_rig_config *like)
{
	struct core_rig_config config = *like;
	size_t failed = 0;
	bool done = false;

	config.dir = s->dir;
	for (size_t n = 1; !done; n++) {
		core_rig_make(&s->rig, &config);
		core_rig_count_allocations(&s->rig, n);
		int r = open_in_time(s);
		done = core_rig_allocations(&s->rig) < n;
		core_rig_close(&s->rig);
		assert_true(r == 0 || (r == -ENOMEM && !done));
		failed += r < 0;
		(void)unlink(scratch_join(s->dir, "exchange/rig/rank-0"));
		core_rig_make(&s->rig, &config);
		assert_int_equal(open_in_time(s), 0);
		core_rig_close(&s->rig);
		(void)unlink(scratch_join(s->dir, "exchange/rig/rank-0"));
		assert_int_equal(unlink(scratch_join(s->dir, MARKER)), 0);
		assert_int_equal(rmdir(scratch_join(s->dir, "gens")), 0);
	}
	assert_true(failed > 3);
}

static void test_no_memory(void **state)
{
	open_without_memory(*state, &(struct core_rig_config){.world = 1});
	open_without_memory(*state, &(struct core_rig_config){.world = 2});
	open_without_memory(*state, &(struct core_rig_config){.world = 1, .node_store = true});
}

/* One try of rank 0 of two, each with a store of its node. */
static int open_on_a_node_without_memory(struct scene *s, size_t fail_at, bool *ret_done)
{
	core_rig_make(&s->rig,
		&(struct core_rig_config){.dir = s->dir, .world = RANKS, .node_store = true});
	core_rig_count_allocations(&s->rig, fail_at);
	int r = open_in_time(s);
	*ret_done = core_rig_allocations(&s->rig) < fail_at;
	core_rig_close(&s->rig);
	return r;
}

/*
 * Without memory a rank says to the others that it cannot open its store, unless it has none for the opening itself.
 * With enough, it waits for rank 1, which does not come.
 */
static void test_no_memory_on_a_node(void **state)
{
	struct scene *s = *state;
	size_t untold = 0;
	size_t failed = 0;
	bool done = false;

	fixture_node_store(s->dir, FIXTURE_RUN);
	for (size_t n = 1; !done; n++) {
		leave_session(s);
		int r = open_on_a_node_without_memory(s, n, &done);
		assert_true(r == -ETIMEDOUT || (r == -ENOMEM && !done));
		if (r == -ENOMEM) {
			failed++;
			untold += access(scratch_join(s->dir, "exchange/rig/stores"), F_OK) != 0;
		}
		scratch_remove(strdup(scratch_join(s->dir, "exchange")));
	}
	assert_true(failed > 8);
	/* The command, its lock and its condition, and the state of the opening. */
	assert_int_equal(untold, 4);
}

/* Modules that could not be opened leave nothing, and no pointer to what has gone. fence.c finds what is left. */
static void test_no_memory_for_modules(void **state)
{
	struct scene *s = *state;
	struct ckpt_core core;
	size_t blocks;
	int r = -ENOMEM;

	core_rig_open(&s->rig,
		&(struct core_rig_config){
			.dir = s->dir, .world = RANKS, .remote = s->dir, .remote_keep_last = 1});
	blocks = fence_blocks();
	for (size_t n = 1; r < 0; n++) {
		ckpt_error_clear(&s->rig.err);
		core_rig_count_allocations(&s->rig, n);
		r = ckpt_modules_open(&core, &s->rig.core.parts, &s->rig.core.config, &s->rig.err);
		(void)core_rig_allocations(&s->rig);
		if (r == 0) {
			/* Store and exchange, nine modules and the store of the remote one: each allocates. */
			assert_true(n >= 12);
			ckpt_modules_close(&core);
		} else {
			assert_int_equal(r, -ENOMEM);
			assert_int_equal(s->rig.err.code, -ENOMEM);
		}
		assert_int_equal(fence_blocks(), blocks);
		assert_null(core.store);
		assert_null(core.exchange);
		assert_null(core.growth);
		assert_null(core.shrink);
		assert_null(core.allowance);
		assert_null(core.lineage);
		assert_null(core.saver);
		assert_null(core.seen_tombstones);
		assert_null(core.upload_queue);
		assert_null(core.remote_gc);
	}
	core_rig_close(&s->rig);
}

/* Rank 0 holds the store for all: the others keep it out of nothing by being there before. */
static void test_rank_1_first(void **state)
{
	struct core_rig_config config = {.world = RANKS, .rank = 1};
	struct scene *s = *state;

	fixture(s);
	config.dir = s->dir;
	core_rig_open(&s->rank[1], &config);
	config.rank = 0;
	core_rig_open(&s->rank[0], &config);
	core_rig_close(&s->rank[0]);
	core_rig_close(&s->rank[1]);
}

/* Rank 0 knows what there is to sweep, as it was when it came; one that fails to find out sweeps nothing. */
static void test_left_behind(void **state)
{
	struct core_rig_config config = {.world = RANKS};
	struct scene *s = *state;

	fixture(s);
	leave_session(s);
	config.dir = s->dir;
	core_rig_open(&s->rig, &config);
	assert_int_equal(s->rig.core.lineage->sessions.count, 1);
	assert_string_equal(s->rig.core.lineage->sessions.names, "older");
	core_rig_close(&s->rig);
}

/* Whoever comes with the session of another start of the job would take what that has told for its own. */
static void test_used_session(void **state)
{
	struct core_rig_config config = {.world = RANKS, .rank = 1};
	struct scene *s = *state;

	fixture(s);
	leave_session(s);
	config.dir = s->dir;
	core_rig_open(&s->rig, &config);
	/* Rank 0 sweeps. */
	assert_null(s->rig.core.lineage->sessions.names);
	core_rig_close(&s->rig);
	core_rig_make(&s->rig, &config);
	s->rig.random = 2000;
	assert_int_equal(core_rig_open_store(&s->rig), -EINVAL);
	assert_non_null(strstr(s->rig.err.message, "the session rig of "));
	assert_non_null(strstr(s->rig.err.message, "was used before"));
	core_rig_close(&s->rig);
	/* Whether it was is not known. */
	core_rig_make(&s->rig, &config);
	add(s, (struct io_fault_rule){.path = "exchange", .error = -EIO, .count = IO_FAULT_ALWAYS});
	assert_int_equal(open_in_time(s), -ETIMEDOUT);
	core_rig_close(&s->rig);
}

/* An exchange that refuses everything is asked again until three quarters of `timeout_ms` are over. */
static void expect_patience(struct scene *s, uint32_t timeout_ms, uint64_t patience_ms)
{
	const struct core_rig_config config = {
		.dir = s->dir, .world = RANKS, .rank = 1, .timeout_ms = timeout_ms};

	for (int heals = 0; heals < 2; heals++) {
		core_rig_make(&s->rig, &config);
		add(s, (struct io_fault_rule){
			       .path = "exchange", .error = -EIO, .count = IO_FAULT_ALWAYS});
		struct ckpt_command *command = ckpt_command_new(
			&s->rig.core, sizeof(struct ckpt_opener), ckpt_opener_clear);
		ckpt_command_post(command, ckpt_open_body);
		core_rig_run(&s->rig);
		for (uint64_t ms = 0; ms < patience_ms - 500; ms += 500) {
			core_rig_sleep(&s->rig, 500);
			assert_false(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
			if (heals && ms >= patience_ms / 2)
				break;
		}
		if (heals)
			io_fault_clear(&s->rig.fault);
		for (unsigned i = 0; i < 6; i++)
			core_rig_sleep(&s->rig, 500);
		assert_true(ckpt_latch_get(&command->latch) & CKPT_DONE_END);
		assert_int_equal(command->result, heals ? 0 : -ETIMEDOUT);
		ckpt_command_unref(command);
		core_rig_close(&s->rig);
	}
	assert_int_equal(unlink(scratch_join(s->dir, "exchange/rig/rank-1")), 0);
}

static void test_patience(void **state)
{
	struct scene *s = *state;

	fixture(s);
	leave_session(s);
	expect_patience(s, 1000, 7500);
	expect_patience(s, 60000, 45000);
	expect_patience(s, 600000, 90000);
}

/* One that a node keeps for itself is not one for all, whoever opens it later. */
static void test_made_for_a_node(void **state)
{
	struct core_rig_config config = {.node_store = true};
	struct scene *s = *state;

	config.dir = s->dir;
	core_rig_open(&s->rig, &config);
	assert_false(s->rig.core.lineage->marker.shared);
	core_rig_close(&s->rig);
	config.node_store = false;
	config.world = RANKS;
	core_rig_make(&s->rig, &config);
	assert_int_equal(core_rig_open_store(&s->rig), -EINVAL);
	core_rig_close(&s->rig);
}

static void sleep_both(struct scene *s, unsigned ms)
{
	for (unsigned at = 0; at < ms; at += 5)
		for (unsigned i = 0; i < RANKS; i++)
			core_rig_sleep(&s->rank[i], 5);
}

/* Two ranks of a node with a store of its own, which say to each other what they find; of so many. */
static void begin_among(struct scene *s, uint32_t world)
{
	for (unsigned i = 0; i < RANKS; i++) {
		core_rig_make(&s->rank[i], &(struct core_rig_config){.dir = s->dir,
						   .rank = i,
						   .world = world,
						   .node_store = true,
						   .timeout_ms = 60000});
		s->rank[i].random = UINT64_C(1000) * (i + 1);
		s->command[i] = ckpt_command_new(
			&s->rank[i].core, sizeof(struct ckpt_opener), ckpt_opener_clear);
	}
}

static void begin_on_a_node(struct scene *s)
{
	begin_among(s, RANKS);
}

static void post_both(struct scene *s)
{
	for (unsigned i = 0; i < RANKS; i++)
		ckpt_command_post(s->command[i], ckpt_open_body);
}

static bool has_ended(struct scene *s, unsigned rank)
{
	return ckpt_latch_get(&s->command[rank]->latch) & CKPT_DONE_END;
}

static void end_on_a_node(struct scene *s)
{
	for (unsigned i = 0; i < RANKS; i++) {
		ckpt_command_unref(s->command[i]);
		core_rig_close(&s->rank[i]);
	}
}

static void test_ranks_of_a_node(void **state)
{
	struct scene *s = *state;

	fixture_node_store(s->dir, FIXTURE_RUN);
	fixture_claim(s->dir, FIXTURE_RUN, 1, 0, 0);
	leave_session(s);
	begin_on_a_node(s);
	post_both(s);
	sleep_both(s, 3000);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has_ended(s, i));
		assert_int_equal(s->command[i]->result, 0);
		assert_false(s->rank[i].core.lineage->marker.shared);
	}
	assert_string_equal(
		s->rank[0].core.lineage->marker.run_id, s->rank[1].core.lineage->marker.run_id);
	/* What the nodes say to each other is in none of their stores. */
	assert_null(s->rank[0].core.lineage->sessions.names);
	end_on_a_node(s);
}

/* Whoever cannot open it says so: the others do not wait for it. */
static void refused_on_a_node(struct scene *s, unsigned odd)
{
	fixture_node_store(s->dir, FIXTURE_RUN);
	begin_on_a_node(s);
	(void)io_fault_add(&s->rank[odd].fault,
		(struct io_fault_rule){.path = MARKER, .error = -EACCES, .count = IO_FAULT_ALWAYS});
	/* After the first word of that rank: it has not ended before this one is said. */
	(void)io_fault_add(&s->rank[odd].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "exchange/", .nth = 2, .hold = true});
	post_both(s);
	sleep_both(s, 300);
	for (unsigned i = 0; i < RANKS; i++)
		assert_false(has_ended(s, i));
	(void)io_tap_release(&s->rank[odd].fault.tap);
	sleep_both(s, 1000);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has_ended(s, i));
		assert_int_equal(s->command[i]->result, -EACCES);
		/* Its own words say which file. */
		assert_true((strcmp(s->command[i]->error.file, MARKER) == 0) == (i == odd));
	}
	const char *own = s->command[odd]->error.message;
	const char *other = s->command[1 - odd]->error.message;
	assert_non_null(strstr(other, own));
	assert_true(odd == 0 || (strncmp(other, "rank 1 on node ", 15) == 0 &&
					strstr(other, " could not open its store: ")));
	end_on_a_node(s);
}

static void test_refused_by_rank_0(void **state)
{
	refused_on_a_node(*state, 0);
}

static void test_refused_by_rank_1(void **state)
{
	refused_on_a_node(*state, 1);
}

/* A rank whose engine is closed fails for the others, too, whose engines are not closed. */
static void test_closed_on_a_node(void **state)
{
	struct scene *s = *state;

	fixture_node_store(s->dir, FIXTURE_RUN);
	begin_on_a_node(s);
	(void)io_fault_add(&s->rank[1].fault,
		(struct io_fault_rule){
			.path = "exchange/", .error = -EIO, .count = IO_FAULT_ALWAYS});
	post_both(s);
	sleep_both(s, 500);
	s->rank[1].core.closing = true;
	ckpt_exchange_call_stop_all(&s->rank[1].core);
	/* It tries to say its first word for a second, and then why it has failed. */
	sleep_both(s, 1500);
	io_fault_clear(&s->rank[1].fault);
	sleep_both(s, 1500);
	assert_true(has_ended(s, 0) && has_ended(s, 1));
	assert_int_equal(s->command[1]->result, CKPT_ECLOSED);
	assert_int_equal(s->command[0]->result, -ECANCELED);
	assert_non_null(strstr(s->command[0]->error.message, "rank 1 on node "));
	s->rank[1].core.closing = false;
	end_on_a_node(s);
}

/* Who opens alone gives up, rank 0 after 3/4 of its patience, and the others later; it says who is missing. */
static void test_alone_on_a_node(void **state)
{
	static const struct {
		unsigned late_ms;
		const char *why;
	} cases[RANKS] = {
		{41250, "of 2 ranks these have not opened the stores of their nodes in time: 1:"},
		{48750, "rank 0 has not said in time whether the stores of all nodes are open"}};
	struct scene *s = *state;

	fixture_node_store(s->dir, FIXTURE_RUN);
	leave_session(s);
	for (unsigned rank = 0; rank < RANKS; rank++) {
		begin_on_a_node(s);
		ckpt_command_post(s->command[rank], ckpt_open_body);
		for (unsigned ms = 0; ms < cases[rank].late_ms - 50; ms += 50)
			core_rig_sleep(&s->rank[rank], 50);
		assert_false(has_ended(s, rank));
		for (unsigned ms = 0; ms < 300; ms += 50)
			core_rig_sleep(&s->rank[rank], 50);
		assert_true(has_ended(s, rank));
		assert_int_equal(s->command[rank]->result, -ETIMEDOUT);
		assert_non_null(strstr(s->command[rank]->error.message, cases[rank].why));
		end_on_a_node(s);
		scratch_remove(strdup(scratch_join(s->dir, "exchange/rig")));
	}
}

/*
 * Rank 1 began long before rank 0, and gives up first. All hear who has; and rank 0, which lives, says which ranks it has
 * not heard of.
 */
static void test_early_deadline_on_a_node(void **state)
{
	struct scene *s = *state;

	fixture_node_store(s->dir, FIXTURE_RUN);
	leave_session(s);
	begin_among(s, RANKS + 1);
	ckpt_command_post(s->command[1], ckpt_open_body);
	for (unsigned ms = 0; ms < 30000; ms += 50)
		core_rig_sleep(&s->rank[1], 50);
	ckpt_command_post(s->command[0], ckpt_open_body);
	for (unsigned ms = 0; ms < 20000; ms += 50)
		for (unsigned i = 0; i < RANKS; i++)
			core_rig_sleep(&s->rank[i], 50);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_true(has_ended(s, i));
		assert_int_equal(s->command[i]->result, -ETIMEDOUT);
		assert_int_equal(s->command[i]->error.sys_errno, ETIMEDOUT);
	}
	const char *why = s->command[0]->error.message;
	assert_non_null(strstr(why, "of 3 ranks these had not opened the stores of their nodes "
				    "when another one gave up: 2: start all of them"));
	assert_non_null(strstr(why, "(rank 1 on node "));
	assert_non_null(strstr(why, ": rank 0 has not said in time whether"));
	end_on_a_node(s);
}

/* What is no record of a store is no damage of one: the exchange is named. */
static void test_strange_record_on_a_node(void **state)
{
	static const char *const names[RANKS] = {"store-r1", "stores"};
	char path[64];
	struct scene *s = *state;

	fixture_node_store(s->dir, FIXTURE_RUN);
	for (unsigned k = 0; k < RANKS; k++) {
		leave_session(s);
		(void)snprintf(path, sizeof(path), "/exchange/rig/%s", names[k]);
		scratch_put(s->dir, path, "nonsense");
		begin_on_a_node(s);
		ckpt_command_post(s->command[k], ckpt_open_body);
		for (unsigned ms = 0; ms < 2000; ms += 50)
			core_rig_sleep(&s->rank[k], 50);
		assert_true(has_ended(s, k));
		const struct ckpt_error *why = &s->command[k]->error;
		assert_int_equal(s->command[k]->result, -EIO);
		assert_int_equal(why->code, -EIO);
		assert_int_equal(why->sys_errno, EIO);
		assert_string_equal(why->file, "");
		assert_non_null(strstr(why->message, names[k]));
		assert_non_null(strstr(why->message, " of the exchange cannot be read: "));
		end_on_a_node(s);
		scratch_remove(strdup(scratch_join(s->dir, "exchange")));
	}
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_newest_claim),
		SCENE(test_not_known),
		SCENE(test_claimed_meanwhile),
		SCENE(test_made_meanwhile),
		SCENE(test_marker_not_known),
		SCENE(test_scope),
		SCENE(test_no_memory),
		SCENE(test_no_memory_on_a_node),
		SCENE(test_no_memory_for_modules),
		SCENE(test_left_behind),
		SCENE(test_used_session),
		SCENE(test_patience),
		SCENE(test_made_for_a_node),
		SCENE(test_ranks_of_a_node),
		SCENE(test_refused_by_rank_0),
		SCENE(test_refused_by_rank_1),
		SCENE(test_closed_on_a_node),
		SCENE(test_alone_on_a_node),
		SCENE(test_early_deadline_on_a_node),
		SCENE(test_strange_record_on_a_node),
		SCENE(test_rank_1_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
