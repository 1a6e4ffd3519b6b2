/* SPDX-License-Identifier: Apache-2.0 */
/* Which step a restore takes, and what it says of those that it cannot. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/lineage/lineage.h"
#include "engine/restore/restore_state.h"
#include "lib/core_scene.h"
#include "lib/scratch.h"

#define OTHER_RUN "fedcba9876543210fedcba9876543210"
#define ALWAYS    IO_FAULT_ALWAYS
#define STEPS     CORE_SCENE_STEPS

static unsigned add(struct core_scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static void unreadable(struct core_scene *s, const char *step)
{
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = step, .error = -EIO, .count = ALWAYS});
}

static int latest(struct core_scene *s, uint64_t *ret_step)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_NONE, NULL);

	core_rig_await(&s->rig, r);
	*ret_step = ckpt_restore_chosen_step(r);
	return core_rig_end(&s->rig, r);
}

/* An older step in the place of one that may be good would be a loss that nobody is told of. */
static void test_may_be_good(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	scratch_flip(fixture_manifest(&s->steps[2]), 30);
	unreadable(s, "000020/manifest.json");
	assert_int_equal(latest(s, &step), -EIO);
	assert_int_equal(step, 20);
}

/* Of two that may be good the newer one is meant. */
static void test_two_may_be_good(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	unreadable(s, "000020/manifest.json");
	unreadable(s, "000030/manifest.json");
	assert_int_equal(latest(s, &step), -EIO);
	assert_int_equal(step, 30);
}

/* Two that are damaged: the one below them is good. */
static void test_two_damaged(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	scratch_flip(fixture_manifest(&s->steps[1]), 30);
	scratch_flip(fixture_manifest(&s->steps[2]), 30);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 10);
}

/* A newer version has written it: it may be good, and this build cannot tell. */
static void test_newer_manifest(void **state)
{
	static const char text[] = "{\"format\":[9,0],\"kind\":\"commit\"";
	struct core_scene *s = *state;
	struct ckpt_buf buf = {0};
	uint64_t step;

	ckpt_buf_put(&buf, text, strlen(text));
	fixture_seal(&buf, fixture_manifest(&s->steps[2]));
	assert_int_equal(latest(s, &step), CKPT_EVERSION);
	assert_int_equal(step, 30);
	assert_int_equal(core_rig_read(&s->rig, 20, CKPT_SINK_MEMORY), 0);
}

/* Damaged, and the note could not be written: this engine knows it all the same. */
static void test_note_lost(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
		       .path = "quarantine.json",
		       .error = -EIO,
		       .count = ALWAYS});
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot write the quarantine note"));
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 20);
}

static void another_attempt(struct ckpt_manifest *manifest)
{
	memset(manifest->attempt, 'a', CKPT_ATTEMPT_CHARS - 1);
}

/* What has come in its place since is another attempt, and judged anew. */
static void test_another_attempt(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	test_note_lost(state);
	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 20);
	fixture_edit(&s->steps[2], another_attempt);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
}

/* Fewer good ones than asked for, one of them quarantined: there is no such step. */
static void test_too_far_back(void **state)
{
	struct core_scene *s = *state;

	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(1), CKPT_SINK_MEMORY), 0);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(2), CKPT_SINK_MEMORY), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "does not hold the step 2 before the latest"));
}

/* A quarantined step may be removed as long as a good one is left, and when none is. */
static void test_remove_quarantined(void **state)
{
	struct core_scene *s = *state;

	assert_int_equal(core_rig_claim(&s->rig), CKPT_ENOTRESUMED);
	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(core_rig_remove(&s->rig, 10), 0);
	assert_int_equal(core_rig_remove(&s->rig, 20), -EBUSY);
	assert_int_equal(core_rig_remove(&s->rig, 30), 0);
	assert_int_not_equal(access(fixture_manifest(&s->steps[2]), F_OK), 0);
	assert_int_equal(core_rig_remove(&s->rig, 30), CKPT_ENOSTEP);
}

/* Where there are no locks there is no retention beside the reader either; it is warned. */
static void test_no_locks(void **state)
{
	static const int codes[] = {-ENOLCK, -EROFS};
	struct core_scene *s = *state;
	uint64_t step;

	for (size_t i = 0; i < COUNT(codes); i++) {
		io_fault_clear(&s->rig.fault);
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = codes[i]});
		assert_int_equal(latest(s, &step), 0);
		assert_int_equal(step, 30);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "cannot lock"));
	}
	io_fault_clear(&s->rig.fault);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EIO});
	assert_int_equal(latest(s, &step), -EIO);
}

/* Removed between the lock and the look: the latest is another one now; a number is gone for good. */
static void test_vanishes(void **state)
{
	/* The scan opens it, the lock does, and then whoever reads it. */
	const struct io_fault_rule gone = {
		.op = CKPT_IO_OP_OPEN, .path = "000030/manifest.json", .nth = 3, .error = -ENOENT};
	struct core_scene *s = *state;
	uint64_t step;

	add(s, gone);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
	io_fault_clear(&s->rig.fault);
	add(s, gone);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "has just been deleted"));
}

/* What follows is looked at and said as if nothing had been there before. */
static void test_after_vanishing(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EAGAIN});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .nth = 2, .error = -EIO});
	assert_int_equal(latest(s, &step), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot lock"));
	io_fault_clear(&s->rig.fault);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK,
		       .path = "000030/manifest.json",
		       .error = -EAGAIN,
		       .count = ALWAYS});
	scratch_flip(fixture_shard(&s->steps[1], 0), 20000);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "do not match their digest"));
}

/* A removal that hangs in the storage keeps its lock: what it removes is no step any more. */
static void test_deletion_hangs(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK,
		       .path = "000030/manifest.json",
		       .error = -EAGAIN,
		       .count = ALWAYS});
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 20);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "step 30 of"));
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "has just been deleted"));
	/* That there is nothing would be a reason to start anew. */
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK,
		       .path = "manifest.json",
		       .error = -EAGAIN,
		       .count = ALWAYS});
	assert_int_equal(latest(s, &step), -EBUSY);
	assert_non_null(strstr(s->rig.err.message, "locked by another process"));
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(1), CKPT_SINK_MEMORY), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "does not hold the step 1 before the latest"));
}

/* Nothing is here, and another node has something: who starts from nothing shall know. */
static void test_nothing_but_elsewhere(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	for (size_t i = 0; i < STEPS; i++)
		fixture_abort(s->dir, 1, s->steps[i].step);
	assert_int_equal(latest(s, &step), CKPT_ENOSTEP);
	s->rig.core.lineage->elsewhere = true;
	assert_int_equal(latest(s, &step), CKPT_EOTHERNODE);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(1), CKPT_SINK_MEMORY), CKPT_ENOSTEP);
}

/* One that is refused lets go, and takes nothing away: an older step is not the latest. */
static void test_deletion_is_refused(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK,
		       .path = "000030/manifest.json",
		       .error = -EAGAIN,
		       .count = 3});
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, "is being removed"));
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EAGAIN, .count = 3});
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), 0);
}

/* Whoever has a lease on it is told to give it up by the first open, and has done so at a later one. */
static void test_lease_is_given_up(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "000030/manifest.json",
		       .nth = 2,
		       .error = -EAGAIN,
		       .count = 3});
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
	assert_int_equal(s->rig.fault.hits[0], 3);
}

/* A manifest that the scan cannot read may be that of a step which is known to be damaged. */
static void test_known_though_unreadable(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000030/manifest.json", .error = -EIO});
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 20);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(0), CKPT_SINK_MEMORY), 0);
	/* Whoever names it is given it. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000030/manifest.json", .error = -EIO});
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.fault.hits[1], 1);
}

/* No scan can read the manifest of step 30, and whoever opens it can. */
static void unreadable_to_scans(struct core_scene *s)
{
	io_fault_clear(&s->rig.fault);
	/* It is scanned, locked and read. */
	for (unsigned i = 0; i < 5; i++)
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
			       .path = "000030/manifest.json",
			       .nth = 1 + 3 * i,
			       .error = -EIO});
}

/* What has come in its place since, and cannot be read at first, is another one: what is known is not of it. */
static void test_unreadable_and_another(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	test_note_lost(state);
	scratch_flip(fixture_shard(&s->steps[2], 0), 20000);
	fixture_edit(&s->steps[2], another_attempt);
	unreadable_to_scans(s);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
	assert_int_equal(s->rig.fault.hits[0], 1);
}

/* Nor is one bad of which nothing bad is known. */
static void test_unreadable_and_good(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	unreadable_to_scans(s);
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 30);
	assert_int_equal(s->rig.fault.hits[0], 1);
}

/* Who gives up does not wait for a removal, and is not given an older step. */
static void test_cancelled_beside_a_deletion(void **state)
{
	struct core_scene *s = *state;

	unsigned rule = add(s,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EAGAIN, .count = ALWAYS});
	struct ckpt_restore *r = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, NULL);
	for (unsigned i = 0; i < 5; i++)
		core_rig_sleep(&s->rig, 20);
	assert_int_equal(s->rig.fault.hits[rule], 6);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
	/* The try that it was about, at once, and no more. */
	assert_int_equal(s->rig.fault.hits[rule], 7);
	assert_false(r->pick.timer.set);
	for (unsigned i = 0; i < 100; i++)
		core_rig_sleep(&s->rig, 20);
	assert_int_equal(s->rig.fault.hits[rule], 7);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
}

/* The only one that there was: nothing is left, whatever was said of it. */
static void test_all_vanish(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -EAGAIN, .count = ALWAYS});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_LIST, .path = "g000001", .nth = 2, .error = -ENOENT});
	assert_int_equal(latest(s, &step), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "holds no step that can be restored"));
}

/* Step 40, which seems to be there until it is read under the lock: it was aborted. */
static void seem_committed(struct core_scene *s)
{
	io_fault_clear(&s->rig.fault);
	fixture_abort(s->dir, 1, 40);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000040/manifest.json", .error = -EIO});
}

/* The lock on it is given back before anything else, whatever its descriptor is. */
static void test_lock_given_back(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	unsigned files = s->rig.fault.tap.open_files;
	unsigned held = 0;
	seem_committed(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_CLOSE,
		       .path = "000040/manifest.json",
		       .hold = true,
		       .count = ALWAYS});
	struct ckpt_restore *r = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_NONE, NULL);
	for (; s->rig.fault.tap.held; held++) {
		assert_int_equal(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END, 0);
		core_rig_let_go(&s->rig);
	}
	assert_true(held > 1);
	assert_int_equal(ckpt_restore_chosen_step(r), 30);
	assert_int_equal(core_rig_end(&s->rig, r), 0);

	seem_committed(s);
	int input = dup(STDIN_FILENO);
	(void)close(STDIN_FILENO);
	assert_int_equal(latest(s, &step), 0);
	if (input >= 0) {
		assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
		(void)close(input);
	}
	assert_int_equal(step, 30);
	assert_int_equal(s->rig.fault.tap.open_files, files);
}

/* Of two that were read only the last one is held. */
static void test_aborted_and_not_locked(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	seem_committed(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .nth = 2, .error = -EIO});
	assert_int_equal(latest(s, &step), -EIO);
	assert_int_equal(step, 30);
}

/* The step that was tried before, and turned out to be none, has no part in what is wrong with the claim. */
static void test_aborted_and_claim_damaged(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	for (size_t i = 0; i < STEPS; i++)
		fixture_abort(s->dir, 1, s->steps[i].step);
	scratch_flip(scratch_join(s->dir, "gens/000001.json"), 20);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000030/manifest.json", .error = -EIO});
	assert_int_equal(latest(s, &step), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(step, 0);
	assert_int_equal(s->rig.err.step, -1);
	assert_string_equal(s->rig.err.file, "gens/000001.json");
}

/* Somebody who removes for ever is not waited for. */
static void test_vanishes_always(void **state)
{
	struct core_scene *s = *state;
	uint64_t step;

	unsigned rule = add(s,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .error = -ENOENT, .count = ALWAYS});
	assert_int_equal(latest(s, &step), -EBUSY);
	assert_int_equal(s->rig.fault.hits[rule], 5);
	assert_non_null(strstr(s->rig.err.message, "5 steps"));
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_BACK(1), CKPT_SINK_MEMORY), CKPT_ENOSTEP);
	assert_non_null(strstr(s->rig.err.message, "has just been deleted"));
}

static void of_another_run(struct ckpt_manifest *manifest)
{
	memcpy(manifest->run_id, OTHER_RUN, sizeof(OTHER_RUN));
}

static void of_another_step(struct ckpt_manifest *manifest)
{
	manifest->step = 29;
}

static void of_another_generation(struct ckpt_manifest *manifest)
{
	manifest->generation = 2;
}

/* A manifest that was copied here from elsewhere describes files that are not here. */
static void copied(struct core_scene *s, void (*edit)(struct ckpt_manifest *))
{
	uint64_t step;

	fixture_edit(&s->steps[2], edit);
	assert_int_equal(core_rig_read(&s->rig, 30, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "copied here from elsewhere"));
	assert_int_equal(latest(s, &step), 0);
	assert_int_equal(step, 20);
	assert_int_not_equal(access(fixture_quarantine(&s->steps[2]), F_OK), 0);
}

static void test_of_another_run(void **state)
{
	copied(*state, of_another_run);
}

static void test_of_another_step(void **state)
{
	copied(*state, of_another_step);
}

static void test_of_another_generation(void **state)
{
	copied(*state, of_another_generation);
}

/* What stands in the place of a manifest is damage, and no reason to wait for it. */
static void test_no_file(void **state)
{
	static const int codes[] = {-EISDIR, -ELOOP, -ENXIO, -ENOTDIR};
	struct core_scene *s = *state;
	uint64_t step;

	for (size_t i = 0; i < COUNT(codes); i++) {
		io_fault_clear(&s->rig.fault);
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
			       .path = "000030/manifest.json",
			       .error = codes[i],
			       .count = ALWAYS});
		assert_int_equal(latest(s, &step), 0);
		assert_int_equal(step, 20);
	}
}

#define SCENE(test)                                                                                \
	cmocka_unit_test_setup_teardown(test, core_scene_set_up_three, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_may_be_good),
		SCENE(test_two_may_be_good),
		SCENE(test_two_damaged),
		SCENE(test_newer_manifest),
		SCENE(test_note_lost),
		SCENE(test_another_attempt),
		SCENE(test_too_far_back),
		SCENE(test_remove_quarantined),
		SCENE(test_no_locks),
		SCENE(test_no_file),
		SCENE(test_vanishes),
		SCENE(test_vanishes_always),
		SCENE(test_after_vanishing),
		SCENE(test_deletion_hangs),
		SCENE(test_nothing_but_elsewhere),
		SCENE(test_deletion_is_refused),
		SCENE(test_lease_is_given_up),
		SCENE(test_known_though_unreadable),
		SCENE(test_unreadable_and_another),
		SCENE(test_unreadable_and_good),
		SCENE(test_cancelled_beside_a_deletion),
		SCENE(test_all_vanish),
		SCENE(test_lock_given_back),
		SCENE(test_aborted_and_not_locked),
		SCENE(test_aborted_and_claim_damaged),
		SCENE(test_of_another_run),
		SCENE(test_of_another_step),
		SCENE(test_of_another_generation),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
