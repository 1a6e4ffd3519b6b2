/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are in the way of the one that was asked for, or are passed over, and what is said of them. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>

#include "lib/core_scene.h"
#include "lib/scratch.h"

#define ALWAYS IO_FAULT_ALWAYS
#define STEPS  CORE_SCENE_STEPS
#define OVER   "were skipped"

/* The manifest of a step cannot be opened, so many times from the nth on. */
static void unreadable(struct core_scene *s, const char *step, unsigned count)
{
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = step, .error = -EIO, .count = count});
}

/* What it came to, and of which step. */
static int choose(struct core_scene *s, uint64_t wanted, uint64_t *ret_step)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, wanted, CKPT_SINK_NONE, NULL);

	*ret_step = ckpt_restore_chosen_step(r);
	return core_rig_end(&s->rig, r);
}

static void check(struct core_scene *s, uint64_t wanted, int code, uint64_t step)
{
	uint64_t chosen;

	assert_int_equal(choose(s, wanted, &chosen), code);
	assert_int_equal(chosen, step);
}

static bool says(struct core_scene *s, const char *text)
{
	return strstr(s->rig.err.message, text) != NULL;
}

static bool warned(struct core_scene *s, const char *text)
{
	return core_rig_logged(&s->rig, CKPT_LOG_WARN, text);
}

/* Nothing is in the way: nothing is said. */
static void test_nothing_to_say(void **state)
{
	struct core_scene *s = *state;

	check(s, CKPT_STEP_LATEST, 0, 30);
	check(s, CKPT_STEP_BACK(2), 0, 10);
	check(s, 20, 0, 20);
	assert_false(warned(s, ""));
}

/* Whoever gets an older step than it asked for is told of every one that is newer. */
static void test_passed_over(void **state)
{
	struct core_scene *s = *state;

	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	scratch_flip(fixture_manifest(&s->steps[1]), 30);
	check(s, CKPT_STEP_LATEST, 0, 10);
	assert_true(warned(s, "the latest step of "));
	check(s, CKPT_STEP_LATEST, 0, 10);
	assert_true(warned(s, "is step 10: 1 quarantined and 1 broken newer steps were skipped"));
	/* Who names it gets what was named. */
	check(s, 10, 0, 10);
	assert_false(warned(s, OVER));
}

/* What is older than the one that was chosen is in nobody's way. */
static void test_older(void **state)
{
	struct core_scene *s = *state;

	unreadable(s, "000010/manifest.json", ALWAYS);
	check(s, CKPT_STEP_LATEST, 0, 30);
	check(s, CKPT_STEP_BACK(1), 0, 20);
	assert_false(warned(s, OVER));
}

/* Nor is a step of a branch that was left. */
static void test_other_branch(void **state)
{
	struct core_scene *s = *state;

	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 20);
	unreadable(s, "000030/manifest.json", ALWAYS);
	check(s, CKPT_STEP_LATEST, 0, 20);
	assert_false(warned(s, OVER));
	check(s, 30, CKPT_ENOSTEP, 0);
	assert_true(says(s, "does not hold step 30"));
}

/* All are damaged: it is said of the newest, and none was passed over in its favour. */
static void test_all_damaged(void **state)
{
	struct core_scene *s = *state;

	for (size_t i = 0; i < STEPS; i++)
		scratch_flip(fixture_manifest(&s->steps[i]), 30);
	check(s, CKPT_STEP_LATEST, CKPT_EINTEGRITY, 30);
	check(s, 20, CKPT_EINTEGRITY, 20);
	assert_false(warned(s, OVER));
}

/* It can be read when it is looked at again. */
static void test_readable_again(void **state)
{
	struct core_scene *s = *state;

	unreadable(s, "000030/manifest.json", 1);
	check(s, CKPT_STEP_LATEST, 0, 30);
	assert_false(warned(s, OVER));
	/* But which one is so many before it was not known. */
	io_fault_clear(&s->rig.fault);
	unreadable(s, "000030/manifest.json", 1);
	check(s, CKPT_STEP_BACK(1), -EIO, 30);
	assert_true(says(s, "which is the step 1 before the latest of "));
}

/* ... and turns out to be damaged then: the engine knows the attempt even where no note can be written. */
static void test_readable_and_damaged(void **state)
{
	struct core_scene *s = *state;

	unreadable(s, "000030/manifest.json", 1);
	(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
						  .path = "quarantine.json",
						  .error = -EIO,
						  .count = ALWAYS});
	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.step, 30);
	check(s, CKPT_STEP_LATEST, 0, 20);
}

/* ... or to be none: it was aborted. */
static void test_readable_and_aborted(void **state)
{
	struct core_scene *s = *state;

	fixture_abort(s->dir, 1, 40);
	unreadable(s, "000040/manifest.json", 1);
	check(s, CKPT_STEP_LATEST, 0, 30);
	io_fault_clear(&s->rig.fault);
	unreadable(s, "000040/manifest.json", 1);
	check(s, 40, CKPT_ENOSTEP, 40);
	assert_true(says(s, "step 40 was aborted: a test says so"));
}

/* There is no step: which, as it was asked for. */
static void test_none(void **state)
{
	struct core_scene *s = *state;

	check(s, 25, CKPT_ENOSTEP, 0);
	assert_true(says(s, "does not hold step 25"));
	check(s, CKPT_STEP_BACK(UINT32_MAX), CKPT_ENOSTEP, 0);
	assert_true(says(s, "does not hold the step 4294967295 before the latest"));
	fixture_claim(s->dir, FIXTURE_RUN, 2, 0, 0);
	check(s, CKPT_STEP_LATEST, CKPT_ENOSTEP, 0);
	assert_true(says(s, "holds no step that can be restored"));
}

/* What is quarantined in a run that is over is no reason to hold up the one that began after it. */
static void test_quarantined_before_new_start(void **state)
{
	struct core_scene *s = *state;

	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	fixture_claim(s->dir, FIXTURE_RUN, 2, 0, 0);
	check(s, CKPT_STEP_LATEST, CKPT_ENOSTEP, 0);
}

/* A damaged claim hides what came before it, and nothing else; whoever asks for that hears why. */
static void test_damaged_claim(void **state)
{
	static const char claim[] = "gens/000002.json";
	struct core_scene *s = *state;
	struct fixture_step step = s->steps[0];

	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 30);
	scratch_flip(scratch_join(s->dir, claim), 20);
	check(s, CKPT_STEP_LATEST, CKPT_EINTEGRITY, 0);
	assert_string_equal(s->rig.err.file, claim);
	check(s, 30, CKPT_EINTEGRITY, 0);
	assert_true(says(s, "gens/000002.json does not verify"));

	step.generation = 2;
	step.step = 40;
	fixture_commit(&step);
	check(s, CKPT_STEP_LATEST, 0, 40);
	assert_true(warned(s, "gens/000002.json does not verify"));
	/* What fails after that is said in its own words. */
	scratch_flip(fixture_shard(&step, 0), 20000);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_string_equal(s->rig.err.file, fixture_shard_name(&step, 0));
	step.step = 50;
	fixture_commit(&step);
	unreadable(s, "000050/manifest.json", ALWAYS);
	check(s, CKPT_STEP_BACK(1), -EIO, 50);
	assert_true(says(s, "it is unknown which is"));
}

/* Without memory nothing is known of a step, and nothing found. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	size_t failures = 0;
	bool done = false;

	for (size_t n = 1; !done; n++) {
		core_rig_count_allocations(&s->rig, n);
		struct ckpt_restore *r =
			core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_NONE, NULL);
		done = core_rig_allocations(&s->rig) < n;
		if (!r)
			continue;
		size_t found = ckpt_restore_finding_count(r);
		int code = core_rig_end(&s->rig, r);
		assert_true(code == 0 || (code == -ENOMEM && !done));
		assert_int_equal(found, code == 0);
		failures += code < 0;
	}
	assert_true(failures > 3);
}

#define SCENE(test)                                                                                \
	cmocka_unit_test_setup_teardown(test, core_scene_set_up_three, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_nothing_to_say),
		SCENE(test_passed_over),
		SCENE(test_older),
		SCENE(test_other_branch),
		SCENE(test_all_damaged),
		SCENE(test_readable_again),
		SCENE(test_readable_and_damaged),
		SCENE(test_readable_and_aborted),
		SCENE(test_none),
		SCENE(test_quarantined_before_new_start),
		SCENE(test_damaged_claim),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
