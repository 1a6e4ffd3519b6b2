/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps wait for a remote store that does not take them: what is told meanwhile; and when the disk is full, what goes,
 * what stays, and who hears of it.
 */
#include "remote_scene.h"

#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "lib/scratch.h"

#define LAST 4 /* that is saved before the disk is full */

static struct core_rig rig;

static bool is_here(const struct scene *s, uint64_t step)
{
	char path[700];

	(void)snprintf(path, sizeof(path), "%s/g000001/step-%010llu/manifest.json", s->local,
		(unsigned long long)step);
	return access(path, F_OK) == 0;
}

/* A tombstone is looked for there alone: nothing can be sent. */
static void block(int error)
{
	(void)io_fault_add(
		&rig.fault, (struct io_fault_rule){
				    .path = "tombstone", .count = IO_FAULT_ALWAYS, .error = error});
}

/* Steps 1 to LAST are here, and none of them is there. */
static void open_blocked(struct scene *s, uint64_t keep_last)
{
	core_rig_open(&rig, &(struct core_rig_config){
				    .dir = s->local, .remote = s->remote, .keep_last = keep_last});
	core_rig_run(&rig);
	assert_int_equal(core_rig_claim(&rig), 0);
	core_rig_sleep(&rig, MINUTE_MS);
	block(-EIO);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_int_equal(core_rig_save(&rig, step), 0);
	core_rig_sleep(&rig, MINUTE_MS);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_true(is_here(s, step));
	assert_false(is_there(s, 1));
}

/* A save that finds no room; then room is what retention makes. */
static void fill(uint64_t step, int error)
{
	unsigned rule = io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE,
							 .path = ".safetensors",
							 .count = 1,
							 .error = error});

	assert_int_equal(core_rig_save(&rig, step), error);
	assert_int_equal(rig.fault.hits[rule], 1);
	core_rig_sleep(&rig, 1000);
}

static void test_retention_goes_on(void **state)
{
	static const int errors[] = {-ENOSPC, -EDQUOT};
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(errors); i++) {
		open_blocked(s, 2);
		fill(5, errors[i]);
		assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR,
			"retention removes what it would have removed without it"));
		for (uint64_t step = 1; step <= LAST; step++)
			assert_int_equal(is_here(s, step), step > LAST - 2);
		assert_int_equal(core_rig_read(&rig, LAST, CKPT_SINK_NONE), 0);
		/* Until the next save finds it full, what is not there stays again. */
		assert_int_equal(core_rig_save(&rig, 6), 0);
		assert_int_equal(core_rig_save(&rig, 7), 0);
		core_rig_sleep(&rig, MINUTE_MS);
		assert_true(is_here(s, 3) && is_here(s, 4) && is_here(s, 6));
		/* What has gone is told, and does not keep the others from there. */
		io_fault_clear(&rig.fault);
		core_rig_sleep(&rig, 10 * MINUTE_MS);
		assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR, "step 1 of"));
		assert_int_equal(rig.core.stats.uploads_failed, LAST - 2);
		assert_int_equal(rig.core.stats.uploads_done, 4);
		assert_false(is_there(s, 1) || is_there(s, 2));
		assert_true(is_there(s, 3) && is_there(s, 4) && is_there(s, 6) && is_there(s, 7));
		/* And retention does its work: of what is here two stay. */
		assert_int_equal(is_here(s, 4) || is_here(s, 3), false);
		assert_true(is_here(s, 6) && is_here(s, 7));
		core_rig_close(&rig);
		(void)tear_down(state);
		(void)set_up(state);
		s = *state;
	}
}

/* The step that is being sent when the disk is full is locked: it goes when that try has failed. */
static void test_what_is_being_sent(void **state)
{
	struct scene *s = *state;

	open_blocked(s, 2);
	io_fault_clear(&rig.fault);
	unsigned held = io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
							 .path = "step-0000000001/",
							 .nth = 1,
							 .hold = true});
	core_rig_sleep(&rig, MINUTE_MS);
	assert_int_equal(rig.fault.hits[held], 1);
	fill(5, -ENOSPC);
	assert_true(is_here(s, 1));
	assert_false(is_here(s, 2));
	block(-EIO);
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
					       .path = "step-0000000001/",
					       .count = IO_FAULT_ALWAYS,
					       .error = -EIO});
	io_tap_release(&rig.fault.tap);
	core_rig_sleep(&rig, 1000);
	assert_false(is_here(s, 1));
	assert_true(is_here(s, 3) && is_here(s, 4));
	core_rig_close(&rig);
}

/* Where retention removes nothing the save fails, and so does the next; nothing that is there is touched. */
static void test_nothing_may_go(void **state)
{
	struct scene *s = *state;

	open_blocked(s, 0);
	for (unsigned i = 0; i < 2; i++) {
		fill(5 + i, -ENOSPC);
		for (uint64_t step = 1; step <= LAST; step++)
			assert_true(is_here(s, step));
		io_fault_clear(&rig.fault);
		block(-EIO);
	}
	assert_int_equal(core_rig_read(&rig, LAST, CKPT_SINK_NONE), 0);
	io_fault_clear(&rig.fault);
	core_rig_sleep(&rig, 10 * MINUTE_MS);
	assert_int_equal(rig.core.stats.uploads_done, LAST);
	assert_int_equal(rig.core.stats.uploads_failed, 0);
	core_rig_close(&rig);
}

/* Another failure than a full disk is no reason to let go of what is nowhere else. */
static void test_only_a_full_disk(void **state)
{
	struct scene *s = *state;

	open_blocked(s, 1);
	fill(5, -EIO);
	for (uint64_t step = 1; step <= LAST; step++)
		assert_true(is_here(s, step));
	core_rig_close(&rig);
}

/* Whatever it is: since when, why, how many steps wait, and how old the newest one is that was sent. */
static void test_is_told(void **state)
{
	static const int errors[] = {-EIO, -EACCES, -ENOSPC, CKPT_ENETWORK, CKPT_EAUTH};
	struct scene *s = *state;

	open_job(s, &rig, 0, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	for (size_t i = 0; i < COUNT(errors); i++) {
		struct ckpt_stats stats = {.size = sizeof(stats)};
		uint64_t sent = 10 * (i + 1);
		char told[120];

		save(&rig, sent, sent);
		core_rig_sleep(&rig, MINUTE_MS);
		block(errors[i]);
		uint64_t since_ms = ckpt_env_wall_ms(&rig.env);
		save(&rig, sent + 1, sent + 1);
		(void)snprintf(told, sizeof(told),
			"try 1 failed, the next is in 1 s, 1 steps wait, the newest sent is step "
			"%llu, 60 s ago: ",
			(unsigned long long)sent);
		assert_true(core_rig_logged(&rig, CKPT_LOG_ERROR, told));
		save(&rig, sent + 2, sent + 2);
		core_rig_sleep(&rig, 5 * MINUTE_MS);
		(void)snprintf(told, sizeof(told), "2 steps wait, the newest sent is step %llu, ",
			(unsigned long long)sent);
		assert_true(core_rig_logged(&rig, CKPT_LOG_WARN, told));
		ckpt_upload_queue_report(&rig.core, &stats);
		assert_int_equal(stats.remote_code, errors[i]);
		assert_int_equal(stats.remote_failing_ms, since_ms);
		assert_int_equal(stats.remote_step, sent);
		assert_int_equal(stats.uploads_waiting, 2);
		io_fault_clear(&rig.fault);
		core_rig_sleep(&rig, 2 * MINUTE_MS);
		ckpt_upload_queue_report(&rig.core, &stats);
		assert_int_equal(stats.remote_code, 0);
		assert_int_equal(stats.remote_failing_ms, 0);
		assert_int_equal(stats.remote_step, sent + 2);
		assert_true(is_there(s, sent + 1) && is_there(s, sent + 2));
	}
	core_rig_close(&rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_is_told),
		SCENE(test_retention_goes_on),
		SCENE(test_what_is_being_sent),
		SCENE(test_nothing_may_go),
		SCENE(test_only_a_full_disk),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
