/* SPDX-License-Identifier: Apache-2.0 */
/* What is noted of a step that was read and found bad, on disk and by the engine, and what is told. */
#include "lib/test.h"

#include "engine/lineage/lineage.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/core_scene.h"
#include "lib/scratch.h"

static int set_up(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;

	s->step = fixture_one(s->dir, fixture_floats(10000));
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	scratch_flip(fixture_shard(&s->step, 0), 20000);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	return 0;
}

static int read_it(struct core_scene *s)
{
	return core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY);
}

static const struct ckpt_scan_step *known(struct core_rig *rig)
{
	return ckpt_scan_find(&rig->core.lineage->scan, 1, 10);
}

/* What this engine knows is what was said, as much of it as a note holds. */
static void check_known(struct core_rig *rig, const char *said)
{
	const struct ckpt_scan_step *step = known(rig);

	assert_int_equal(step->state, CKPT_STEP_QUARANTINED);
	assert_int_equal(strlen(step->note), ckpt_min_u64(strlen(said), sizeof(step->note) - 1));
	assert_memory_equal(step->note, said, strlen(step->note));
}

/* Why, in the words of the failure: known here, and to whoever opens the store after. */
static void test_why(void **state)
{
	struct core_scene *s = *state;
	struct core_rig other;

	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	check_known(&s->rig, s->rig.err.message);
	core_rig_open(&other, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	check_known(&other, s->rig.err.message);
	core_rig_close(&other);
}

/* Whether it is there; and it is said if it could not be written. */
static bool is_noted(struct core_scene *s)
{
	bool there = access(fixture_quarantine(&s->step), F_OK) == 0;

	assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "is quarantined: "));
	assert_int_equal(
		core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot write the quarantine note"),
		!there);
	return there;
}

static void test_written(void **state)
{
	struct core_scene *s = *state;

	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_true(is_noted(s));
	/* That is said once. */
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "is quarantined: "));
}

static void test_not_written(void **state)
{
	struct core_scene *s = *state;

	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "quarantine.json", .error = -ENOSPC});
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_false(is_noted(s));
	check_known(&s->rig, s->rig.err.message);
}

/* Two who find it at the same time: there is a note, whoever wrote it. */
static void test_written_by_another(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	char *memory = malloc(40000);
	struct ckpt_target target = {.size = sizeof(target), .name = "w", .data = memory};

	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_true(is_noted(s));
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	assert_true(is_noted(s));
	free(memory);
}

/* A step of whoever has taken over since is known to be bad, and is no sign that a claim was lost. */
static void test_of_a_successor(void **state)
{
	struct core_scene *s = *state;
	struct fixture_step later = s->step;

	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 11), 0);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 2, 11);
	later.generation = 3;
	later.step = 20;
	fixture_commit(&later);
	scratch_flip(fixture_shard(&later, 0), 20000);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(core_rig_read(&s->rig, 20, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
		assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
		assert_int_equal(core_rig_remove(&s->rig, 20), CKPT_ENOSTEP);
		assert_int_equal(core_rig_remove(&s->rig, 10), CKPT_EFENCED);
	}
}

/*
 * So is one whose generation this engine has tried to claim, in vain: that somebody has claimed it since is not in
 * what it knows, and the store has lost nothing.
 */
static void test_of_whoever_claimed_instead(void **state)
{
	struct core_scene *s = *state;
	struct fixture_step later = s->step;

	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_RENAME, .path = "gens/000002.json", .error = -ENOSPC});
	assert_int_equal(core_rig_claim(&s->rig), -ENOSPC);
	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 10);
	later.generation = 2;
	later.step = 20;
	fixture_commit(&later);
	scratch_flip(fixture_shard(&later, 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 20, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(access(fixture_quarantine(&later), F_OK), 0);
	assert_int_equal(core_rig_remove(&s->rig, 20), CKPT_ENOSTEP);
	assert_int_equal(core_rig_remove(&s->rig, 10), -EBUSY);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
}

/* Without the memory for a note there is none, not one half made; the step is known to be bad. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	size_t without = 0;
	bool done = false;

	for (size_t n = 1; !done; n++) {
		core_rig_count_allocations(&s->rig, n);
		int r = read_it(s);
		done = core_rig_allocations(&s->rig) < n;
		if (r == CKPT_EINTEGRITY) {
			without += !is_noted(s);
			assert_int_equal(known(&s->rig)->state, CKPT_STEP_QUARANTINED);
		} else {
			assert_int_equal(r, -ENOMEM);
		}
		core_rig_close(&s->rig);
		(void)unlink(fixture_quarantine(&s->step));
		core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	}
	assert_true(without > 0);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_why),
		SCENE(test_written),
		SCENE(test_not_written),
		SCENE(test_written_by_another),
		SCENE(test_of_a_successor),
		SCENE(test_of_whoever_claimed_instead),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
