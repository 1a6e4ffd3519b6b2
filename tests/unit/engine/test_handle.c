/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of a restore: what it answers at any time, what it takes with it, and in a child. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "engine/restore/restore_state.h"
#include "lib/core_scene.h"
#include "lib/hang.h"
#include "lib/scratch.h"

static int set_up(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;

	s->step = fixture_one(s->dir, fixture_floats(50000));
	s->step.alias = "tied";
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	return 0;
}

static bool has(struct ckpt_restore *r, uint32_t bit)
{
	return (ckpt_latch_get(ckpt_restore_latch(r)) & bit) != 0;
}

/* Nothing is known of one that was not posted, nor said. */
static void test_new(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_restore *r;
	size_t index;
	char byte;
	struct ckpt_target target = {
		.size = sizeof(target), .name = "w", .length = 1, .data = &byte};

	assert_int_equal(ckpt_restore_new(&s->rig.core, NULL, 10, CKPT_SINK_MEMORY, &r), 0);
	assert_null(ckpt_restore_index(r));
	assert_int_equal(ckpt_restore_name_find(r, "w", &s->rig.err, &index), CKPT_EMISMATCH);
	assert_int_equal(ckpt_restore_name_count(r), 0);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), -EINVAL);
	assert_true(ckpt_restore_has_targets(r));
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(ckpt_restore_failure(r)->code, 0);
	assert_int_equal(ckpt_restore_failure(r)->size, sizeof(struct ckpt_error));
	assert_int_equal(ckpt_restore_failure(r)->step, -1);
	ckpt_restore_counters(r, NULL, NULL);
	ckpt_restore_unref(r);
	ckpt_restore_unref(NULL);
}

/* Made, or not: there is none that lacks a lock. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_restore *r;
	size_t n = 0;
	int code;

	do {
		core_rig_count_allocations(&s->rig, ++n);
		code = ckpt_restore_new(&s->rig.core, NULL, 10, CKPT_SINK_MEMORY, &r);
		assert_int_equal(code, core_rig_allocations(&s->rig) < n ? 0 : -ENOMEM);
	} while (code < 0);
	/* Itself, its lock, and the two of its latch. */
	assert_int_equal(n, 5);
	ckpt_restore_unref(r);
}

static void other_size(struct ckpt_manifest *manifest)
{
	manifest->ranks[0].shard_bytes++;
}

/* An index that was read and does not describe the shard of the manifest is shown to nobody. */
static void test_refused(void **state)
{
	struct core_scene *s = *state;

	fixture_edit(&s->step, other_size);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(has(r, CKPT_DONE_END));
	assert_null(ckpt_restore_index(r));
	assert_int_equal(ckpt_restore_name_count(r), 0);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EFORMAT);
}

/* What a verification has found is told at its end, when there is an order in it. */
static void test_findings(void **state)
{
	struct core_scene *s = *state;

	scratch_flip(fixture_shard(&s->step, 0), 5000);
	(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
						  .path = ".safetensors",
						  .nth = 3,
						  .count = IO_FAULT_ALWAYS,
						  .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_false(has(r, CKPT_DONE_END));
	assert_int_equal(r->findings.count, 1);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	/* It has an index, which no tensors are bound by. */
	assert_non_null(r->shard.index);
	assert_null(ckpt_restore_index(r));
	assert_false(ckpt_restore_has_targets(r));
	io_fault_clear(&s->rig.fault);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
}

/* Asked for twice before anybody has looked: once is enough. */
static void test_posted_twice(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);

	hang_watch();
	ckpt_restore_post_cancel(r);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
	(void)alarm(0);
}

static int export_it(struct core_scene *s)
{
	return core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy"));
}

/* The directory that was given to it is closed with it, whatever its number. */
static void test_destination(void **state)
{
	struct core_scene *s = *state;
	size_t before = scratch_descriptors();

	assert_int_equal(export_it(s), 0);
	assert_int_equal(scratch_descriptors(), before);
	int input = dup(STDIN_FILENO);
	(void)close(STDIN_FILENO);
	/* The step is there by now, and stays as it is. */
	assert_int_equal(export_it(s), 0);
	bool closed = close(STDIN_FILENO) != 0;
	if (input >= 0) {
		assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
		(void)close(input);
	}
	assert_true(closed);
	assert_int_equal(scratch_descriptors(), before);
}

/* In a child it answers nothing, and waits for no lock: whoever held it is not there. */
static void test_fork(void **state)
{
	struct core_scene *s = *state;
	int status;

	assert_int_equal(ckpt_fork_watch(), 0);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_false(ckpt_restore_forked(r));
	assert_int_equal(ckpt_restore_name_count(r), 2);
	pthread_mutex_lock(&ckpt_restore_latch(r)->lock);
	pid_t child = fork();
	if (child == 0) {
		hang_watch();
		_exit(ckpt_restore_forked(r) && !ckpt_restore_index(r) &&
					ckpt_restore_name_count(r) == 0 &&
					ckpt_restore_finding_count(r) == 0
				? 0
				: 1);
	}
	pthread_mutex_unlock(&ckpt_restore_latch(r)->lock);
	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_false(ckpt_restore_forked(r));
	(void)core_rig_end(&s->rig, r);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_new),
		SCENE(test_no_memory),
		SCENE(test_refused),
		SCENE(test_findings),
		SCENE(test_posted_twice),
		SCENE(test_destination),
		SCENE(test_fork),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
