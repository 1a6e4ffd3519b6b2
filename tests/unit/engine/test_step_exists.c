/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step is removed while it is read, by somebody whose locks do not reach here: it is not damaged, nobody
 * notes that it is, and the next one is taken, by all ranks if there are several.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/lineage/lineage.h"
#include "engine/lineage/step_exists.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define RANKS  2
#define STEPS  6
#define FLOATS 10000

struct scene {
	char *dir;
	struct core_rig rank[RANKS]; /* one alone is the first */
	unsigned world;
	struct fixture_step step; /* the newest: 10 times as many as there are */
	struct ckpt_restore *restore[RANKS];
	float *memory[RANKS];
};

static struct fixture_step step_of(const struct scene *s, uint64_t step)
{
	struct fixture_step one = s->step;

	one.step = step;
	return one;
}

/* Steps 10 to `newest`, and so many ranks that read them. */
static void open_all(struct scene *s, uint64_t newest, unsigned world)
{
	for (s->step.step = 10; s->step.step < newest; s->step.step += 10)
		fixture_commit(&s->step);
	fixture_commit(&s->step);
	s->world = world;
	core_rig_open_ranks(
		s->rank, world, &(struct core_rig_config){.dir = s->dir, .timeout_ms = 60000});
}

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	s->step = fixture_one(s->dir, fixture_floats(FLOATS));
	fixture_begin(s->dir);
	for (unsigned i = 0; i < RANKS; i++)
		s->memory[i] = calloc(FLOATS, sizeof(float));
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < s->world; i++)
		core_rig_close(&s->rank[i]);
	for (unsigned i = 0; i < RANKS; i++)
		free(s->memory[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* As a removal does it, but for the directory, in which a note could be left. */
static void take_away(struct scene *s, uint64_t step)
{
	const struct fixture_step one = step_of(s, step);

	assert_int_equal(unlink(fixture_manifest(&one)), 0);
	assert_int_equal(unlink(fixture_index(&one, 0)), 0);
	assert_int_equal(unlink(fixture_shard(&one, 0)), 0);
}

static bool is_noted(const struct scene *s, uint64_t step)
{
	const struct fixture_step one = step_of(s, step);

	return access(fixture_quarantine(&one), F_OK) == 0;
}

/* Nobody was told that the step is bad, be it in a note, by the engine or by its log. */
static void check_not_accused(struct scene *s, uint64_t step)
{
	assert_false(is_noted(s, step));
	for (unsigned i = 0; i < s->world; i++) {
		const struct ckpt_scan_step *known =
			ckpt_scan_find(&s->rank[i].core.lineage->scan, 1, step);
		assert_true(!known || known->state != CKPT_STEP_QUARANTINED);
		assert_false(core_rig_logged(&s->rank[i], CKPT_LOG_ERROR, "quarantined"));
	}
}

/* What this rank asks of the disk at such a path waits. */
static void hold(struct scene *s, unsigned rank, const char *path)
{
	(void)io_fault_add(&s->rank[rank].fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
							 .path = path,
							 .hold = true,
							 .count = IO_FAULT_ALWAYS});
}

static void let_go(struct scene *s, unsigned rank)
{
	io_fault_clear(&s->rank[rank].fault);
	core_rig_let_go(&s->rank[rank]);
}

static void sleep_all(struct scene *s, uint64_t ms)
{
	core_rig_sleep_ranks(s->rank, s->world, ms);
}

static bool has(const struct scene *s, unsigned rank, uint32_t bit)
{
	return ckpt_latch_get(ckpt_restore_latch(s->restore[rank])) & bit;
}

static void begin(struct scene *s, unsigned rank, uint64_t step, enum ckpt_restore_sink sink)
{
	s->restore[rank] = core_rig_begin(&s->rank[rank], step, sink, NULL);
	assert_non_null(s->restore[rank]);
}

/* Open: binds and starts. */
static void start(struct scene *s, unsigned rank)
{
	struct ckpt_target target = {.size = sizeof(target), .name = "w", .data = s->memory[rank]};

	assert_true(has(s, rank, CKPT_DONE_OPENED));
	assert_int_equal(ckpt_restore_add_targets(s->restore[rank], &target, 1, NULL), 0);
	ckpt_restore_post_start(s->restore[rank]);
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

/* One alone: before it is open the next one is taken, as if this one had not been there. */
static void test_opening(void **state)
{
	static const uint64_t wanted[] = {CKPT_STEP_LATEST, CKPT_STEP_BACK(1)};
	struct scene *s = *state;

	open_all(s, 30, 1);
	/* Its lock is given back, whatever its descriptor is. */
	int input = dup(STDIN_FILENO);
	for (unsigned i = 0; i < COUNT(wanted); i++) {
		(void)close(STDIN_FILENO);
		hold(s, 0, ".index");
		begin(s, 0, wanted[i], CKPT_SINK_MEMORY);
		assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 30 - 20 * i);
		take_away(s, 30 - 20 * i);
		if (i == 1) {
			const struct fixture_step newest = step_of(s, 40);
			fixture_commit(&newest);
		}
		let_go(s, 0);
		assert_true(core_rig_logged(
			&s->rank[0], CKPT_LOG_WARN, "was deleted while it was opened"));
		start(s, 0);
		assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 20);
		assert_int_equal(end(s, 0), 0);
		check_not_accused(s, 30 - 20 * i);
	}
	if (input >= 0) {
		assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
		(void)close(input);
	}
}

/* Where there are no locks nothing holds a step, and there is nothing to let go of before the next one. */
static void test_opening_without_locks(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".index");
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LOCK, .error = -ENOLCK, .count = IO_FAULT_ALWAYS});
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	take_away(s, 20);
	(void)io_tap_release(&s->rank[0].fault.tap);
	core_rig_run(&s->rank[0]);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 10);
	let_go(s, 0);
	start(s, 0);
	assert_int_equal(end(s, 0), 0);
	check_not_accused(s, 20);
}

/* Who has been given a step is told that it has gone, and asks again. */
static void test_reading(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	take_away(s, 20);
	start(s, 0);
	assert_int_equal(end(s, 0), -EBUSY);
	check_says(s, 0, "was deleted while it was read: ask for the latest again");
	assert_int_equal(s->rank[0].err.step, 20);
	check_not_accused(s, 20);
	assert_int_equal(core_rig_read(&s->rank[0], CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
}

static void test_by_number(void **state)
{
	struct scene *s = *state;
	const enum ckpt_restore_sink sinks[] = {CKPT_SINK_MEMORY, CKPT_SINK_NONE};

	open_all(s, 30, 1);
	for (unsigned i = 0; i < COUNT(sinks); i++) {
		hold(s, 0, ".index");
		begin(s, 0, 30 - 10 * i, sinks[i]);
		take_away(s, 30 - 10 * i);
		let_go(s, 0);
		assert_int_equal(ckpt_restore_finding_count(s->restore[0]), 0);
		assert_int_equal(end(s, 0), CKPT_ENOSTEP);
		check_says(s, 0, "was deleted while it was read");
		assert_non_null(strstr(s->rank[0].err.file, "manifest.json"));
		check_not_accused(s, 30 - 10 * i);
	}
}

/* A verification finds nothing wrong with what is not there, and goes on with what is. */
static void test_verified(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".safetensors");
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_NONE);
	take_away(s, 20);
	let_go(s, 0);
	assert_int_equal(ckpt_restore_finding_count(s->restore[0]), 1);
	assert_int_equal(ckpt_restore_finding(s->restore[0], 0)->error.code, 0);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 10);
	assert_int_equal(end(s, 0), 0);
}

/* What was counted of one that has gone does not count. */
static void test_counted_anew(void **state)
{
	struct scene *s = *state;
	uint64_t done = 0;
	uint64_t total = 0;

	open_all(s, 20, 1);
	(void)io_fault_add(&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
						      .path = "000020/rank-00000",
						      .nth = 2,
						      .hold = true});
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_NONE);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 20);
	take_away(s, 20);
	io_fault_clear(&s->rank[0].fault);
	/* Its header has been read, and counts. */
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_READ, .path = "000020/rank-00000", .error = -EIO});
	core_rig_let_go(&s->rank[0]);
	assert_int_equal(s->rank[0].fault.hits[0], 1);
	assert_int_equal(ckpt_restore_chosen_step(s->restore[0]), 10);
	ckpt_restore_counters(s->restore[0], &done, &total);
	assert_true(done > 0);
	assert_int_equal(done, total);
	assert_int_equal(end(s, 0), 0);
}

static void test_exported(void **state)
{
	struct scene *s = *state;
	const char *copy = scratch_join(s->dir, "copy");

	open_all(s, 20, 1);
	hold(s, 0, "step-0000000020/rank-00000");
	s->restore[0] = core_rig_begin(&s->rank[0], CKPT_STEP_LATEST, CKPT_SINK_STORE, copy);
	take_away(s, 20);
	let_go(s, 0);
	assert_int_equal(end(s, 0), -EBUSY);
	assert_int_equal(core_rig_export(&s->rank[0], CKPT_STEP_LATEST, copy), 0);
}

/* Once the copy may be there it is not said that there was nothing to copy. */
static void test_exported_and_not_known(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, "manifest.json.tmp-");
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "manifest.json", .error = -EIO});
	s->restore[0] =
		core_rig_begin(&s->rank[0], 20, CKPT_SINK_STORE, scratch_join(s->dir, "copy"));
	assert_int_equal(s->rank[0].fault.hits[0], 1);
	take_away(s, 20);
	core_rig_let_go(&s->rank[0]);
	assert_int_equal(s->rank[0].fault.hits[1], 1);
	assert_int_equal(end(s, 0), -EIO);
}

/* All that there was has gone: there is nothing, and it is said when it is true. */
static void test_nothing_left(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".index");
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	take_away(s, 20);
	take_away(s, 10);
	let_go(s, 0);
	assert_int_equal(end(s, 0), CKPT_ENOSTEP);
	check_says(s, 0, "holds no step that can be restored");
}

/* Not for ever. */
static void test_again_and_again(void **state)
{
	struct scene *s = *state;
	unsigned trips = 0;

	open_all(s, 10 * STEPS, 1);
	hold(s, 0, ".index");
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	while (!has(s, 0, CKPT_DONE_END)) {
		take_away(s, ckpt_restore_chosen_step(s->restore[0]));
		(void)io_tap_release(&s->rank[0].fault.tap);
		core_rig_run(&s->rank[0]);
		trips++;
	}
	assert_int_equal(trips, CKPT_SELECT_TRIES);
	let_go(s, 0);
	assert_int_equal(end(s, 0), -EBUSY);
	assert_int_equal(core_rig_read(&s->rank[0], CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
}

/* Who gives up while it is looked for has given up. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".index");
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	take_away(s, 20);
	hold(s, 0, "manifest.json");
	(void)io_tap_release(&s->rank[0].fault.tap);
	core_rig_run(&s->rank[0]);
	assert_false(has(s, 0, CKPT_DONE_END));
	ckpt_restore_post_cancel(s->restore[0]);
	core_rig_run(&s->rank[0]);
	assert_true(has(s, 0, CKPT_DONE_END));
	let_go(s, 0);
	assert_int_equal(end(s, 0), -ECANCELED);
	check_not_accused(s, 20);
}

/* Who verifies, gives up, and looks at what was found so far: that stays, whatever the look finds later. */
static void test_cancelled_verification(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".safetensors");
	begin(s, 0, CKPT_STEP_LATEST, CKPT_SINK_NONE);
	take_away(s, 20);
	hold(s, 0, "manifest.json");
	(void)io_tap_release(&s->rank[0].fault.tap);
	core_rig_run(&s->rank[0]);
	ckpt_restore_post_cancel(s->restore[0]);
	core_rig_run(&s->rank[0]);
	assert_true(has(s, 0, CKPT_DONE_END));
	size_t count = ckpt_restore_finding_count(s->restore[0]);
	assert_true(count > 0);
	const struct ckpt_finding *found = ckpt_restore_finding(s->restore[0], 0);
	let_go(s, 0);
	assert_int_equal(ckpt_restore_finding_count(s->restore[0]), count);
	assert_ptr_equal(ckpt_restore_finding(s->restore[0], 0), found);
	assert_int_equal(end(s, 0), -ECANCELED);
}

/* Another one, or the record that there is none, is in its place. */
static void other_attempt(struct ckpt_manifest *manifest)
{
	memcpy(manifest->attempt, "fedcba9876543210", sizeof(manifest->attempt));
}

static void abort_of_the_same(struct ckpt_manifest *manifest)
{
	manifest->kind = CKPT_MANIFEST_ABORT;
	memcpy(manifest->reason, "as it says", 11);
}

static void test_replaced(void **state)
{
	struct scene *s = *state;
	struct fixture_step step;

	open_all(s, 30, 1);
	for (unsigned i = 0; i < 3; i++) {
		hold(s, 0, ".index");
		begin(s, 0, 30 - 10 * i, CKPT_SINK_MEMORY);
		step = step_of(s, 30 - 10 * i);
		if (i < 2) {
			fixture_edit(&step, i == 0 ? other_attempt : abort_of_the_same);
		} else {
			assert_int_equal(unlink(fixture_manifest(&step)), 0);
			fixture_abort(s->dir, 1, step.step);
		}
		assert_int_equal(unlink(fixture_index(&step, 0)), 0);
		let_go(s, 0);
		assert_int_equal(end(s, 0), CKPT_ENOSTEP);
		check_not_accused(s, step.step);
	}
}

/* A handle that a server does not know any more is of a file that is gone. */
static void test_stale(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, 1);
	hold(s, 0, ".index");
	begin(s, 0, 20, CKPT_SINK_MEMORY);
	assert_int_equal(unlink(fixture_index(&s->step, 0)), 0);
	io_fault_clear(&s->rank[0].fault);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "manifest.json", .error = -ESTALE});
	core_rig_let_go(&s->rank[0]);
	assert_int_equal(end(s, 0), CKPT_ENOSTEP);
	check_not_accused(s, 20);
}

/* Which ends a removal can bring about, and which it cannot. */
static void test_doubtful(void **state)
{
	static const int doubtful[] = {CKPT_EINTEGRITY, CKPT_EINCOMPLETE, CKPT_EFORMAT,
		CKPT_EOTHERNODE, -EIO, -ENOENT, -ESTALE};
	static const int certain[] = {0, EIO, -EACCES, -EBUSY, -ECANCELED, -ENOMEM, -ENOSPC, -EROFS,
		-ETIMEDOUT, CKPT_ECLOSED, CKPT_ENOSTEP, CKPT_EVERSION};

	(void)state;
	for (size_t i = 0; i < COUNT(doubtful); i++)
		assert_true(ckpt_step_exists_is_doubtful(doubtful[i]));
	for (size_t i = 0; i < COUNT(certain); i++)
		assert_false(ckpt_step_exists_is_doubtful(certain[i]));
}

/* What is still there is damaged, and so is what cannot be looked for. */
static void test_still_there(void **state)
{
	struct scene *s = *state;
	struct fixture_step step;

	open_all(s, 30, 1);
	for (unsigned i = 0; i < 3; i++) {
		step = step_of(s, 30 - 10 * i);
		hold(s, 0, ".index");
		begin(s, 0, step.step, CKPT_SINK_MEMORY);
		assert_int_equal(unlink(fixture_index(&step, 0)), 0);
		if (i == 1)
			scratch_flip(fixture_manifest(&step), 20);
		io_fault_clear(&s->rank[0].fault);
		if (i == 2)
			(void)io_fault_add(
				&s->rank[0].fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
							   .path = "manifest.json",
							   .error = -EIO});
		core_rig_let_go(&s->rank[0]);
		assert_int_equal(end(s, 0), CKPT_EINCOMPLETE);
		assert_true(is_noted(s, step.step));
	}
}

/* All ranks: both end so, and take the next one together. */
static void take_next(struct scene *s)
{
	check_not_accused(s, 20);
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	sleep_all(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		start(s, i);
	sleep_all(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(ckpt_restore_chosen_step(s->restore[i]), 10);
		assert_int_equal(end(s, i), 0);
	}
}

/* Rank `odd` finds that it has gone when it opens it, and the other one does not. */
static void test_ranks_opening(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, RANKS);
	hold(s, 1, ".index");
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	sleep_all(s, 500);
	take_away(s, 20);
	let_go(s, 1);
	sleep_all(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_false(has(s, i, CKPT_DONE_OPENED));
		assert_int_equal(end(s, i), -EBUSY);
		check_says(s, i, "step 20 of ");
		check_says(s, i, "was deleted while it was read");
		assert_int_equal(s->rank[i].err.step, 20);
	}
	check_says(s, 0, "rank 1 could not restore");
	take_next(s);
}

static void ranks_reading(struct scene *s, unsigned odd)
{
	open_all(s, 20, RANKS);
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	sleep_all(s, 500);
	start(s, 1 - odd);
	take_away(s, 20);
	start(s, odd);
	sleep_all(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), -EBUSY);
		check_says(s, i, "was deleted while it was read");
	}
	take_next(s);
}

static void test_rank_0_reading(void **state)
{
	ranks_reading(*state, 0);
}

static void test_rank_1_reading(void **state)
{
	ranks_reading(*state, 1);
}

/* What a rank calls damaged rank 0 looks for itself, before it notes that. */
static void test_ranks_noting(void **state)
{
	struct scene *s = *state;

	open_all(s, 20, RANKS);
	hold(s, 1, ".index");
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	sleep_all(s, 500);
	take_away(s, 20);
	io_fault_clear(&s->rank[1].fault);
	(void)io_fault_add(&s->rank[1].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "manifest.json", .error = -EIO});
	core_rig_let_go(&s->rank[1]);
	sleep_all(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_EINCOMPLETE);
	take_next(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_opening),
		SCENE(test_opening_without_locks),
		SCENE(test_reading),
		SCENE(test_by_number),
		SCENE(test_verified),
		SCENE(test_counted_anew),
		SCENE(test_exported),
		SCENE(test_exported_and_not_known),
		SCENE(test_nothing_left),
		SCENE(test_again_and_again),
		SCENE(test_cancelled),
		SCENE(test_cancelled_verification),
		SCENE(test_replaced),
		SCENE(test_stale),
		cmocka_unit_test(test_doubtful),
		SCENE(test_still_there),
		SCENE(test_ranks_opening),
		SCENE(test_rank_0_reading),
		SCENE(test_rank_1_reading),
		SCENE(test_ranks_noting),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
