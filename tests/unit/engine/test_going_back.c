/* SPDX-License-Identifier: Apache-2.0 */
/* What a job goes back to is there, whatever retention there, or somebody else, has done with it. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/copy/remote_gc.h"
#include "engine/copy/record_writer.h"
#include "engine/copy/upload_queue.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "remote_scene.h"

/* What a start has held back, or retention removed, is sent after all when the job goes back to it. */
static void test_parent_is_sent(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	for (int i = 0; i < 5; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1) || is_there(s, 2));
	core_rig_close(&rig);
	open_job(s, &rig, 1, 0);
	rig.random = 1000;
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(core_rig_logged(&rig, CKPT_LOG_INFO, "is not sent: retention in"));
	resume(&rig, 1);
	core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_there(s, 2));
	core_rig_close(&rig);
	read_there(s, 1);
}

/* Goes back to a step that remote_every leaves out; `there` is to be in the remote store after that, and to stay. */
static void go_back_between(void **state, uint64_t from, uint64_t to, uint64_t there)
{
	struct core_rig rig;
	(void)set_up(state);
	struct scene *s = *state;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local,
				    .remote = s->remote,
				    .remote_every = 2,
				    .remote_keep_last = 1});
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, from, to);
	pass(&rig, 5);
	assert_false(is_there(s, there));
	resume(&rig, 3);
	pass(&rig, 30);
	assert_true(is_there(s, there) && !is_marked(s, there));
	core_rig_close(&rig);
	read_there(s, there);
	(void)tear_down(state);
}

static void test_between_what_is_sent(void **state)
{
	go_back_between(state, 1, 6, 2);
	/* There is none before it that goes there: it does itself. */
	go_back_between(state, 3, 6, 3);
}

/* What is being removed when the job goes back to it is sent when the removal has ended. */
static void test_parent_is_going(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 1, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_sleep(&rig, MINUTE_MS);
	/* The manifest has gone. */
	(void)io_fault_add(
		&rig.fault, (struct io_fault_rule){.path = ".index", .nth = 1, .hold = true});
	core_rig_sleep(&rig, MINUTE_MS);
	assert_false(is_there(s, 1));
	resume(&rig, 1);
	core_rig_let_go(&rig);
	for (int i = 0; i < 8; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	assert_true(ckpt_upload_queue_rests(&rig.core));
	core_rig_close(&rig);
	read_there(s, 1);
}

/*
 * Somebody else has looked at the claims, and is about to remove the manifest, when the job goes back to the step: it does
 * not count as there, and is sent again.
 */
static void test_parent_is_being_removed(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 5, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	(void)io_fault_add(&other.fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
						 .path = "0000000001/manifest.json",
						 .nth = 1,
						 .hold = true});
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 1);
	resume(&rig, 1);
	/* However short the grace of the job is, that request may come as late as this. */
	for (int i = 0; i < 7; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1));
	core_rig_let_go(&other);
	core_rig_close(&other);
	assert_false(is_there(s, 1));
	for (int i = 0; i < 30; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	core_rig_close(&rig);
	read_there(s, 1);
}

/* The upload queue has found the step there just before the job goes back to it: that says nothing. */
static void test_parent_was_there(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 5, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_close(&rig);
	core_rig_make(&rig, &(struct core_rig_config){
				    .dir = s->local, .remote = s->remote, .remote_keep_last = 5});
	unsigned rule = io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR,
							 .path = "step-0000000001",
							 .nth = 1,
							 .hold = true});
	assert_int_equal(core_rig_open_store(&rig), 0);
	core_rig_run(&rig);
	assert_int_equal(rig.fault.hits[rule], 1);
	resume(&rig, 1);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	/* Its directory is there as long as that. */
	hold(&other, ".index", 1);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), 1);
	assert_false(is_there(s, 1));
	core_rig_let_go(&rig);
	core_rig_let_go(&other);
	core_rig_close(&other);
	for (int i = 0; i < 3; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_true(is_there(s, 1));
	core_rig_close(&rig);
	read_there(s, 1);
}

static int look_as_rank_1(struct core_rig *rig, struct ckpt_store *dest, bool *ret_there)
{
	static const int never;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_upload upload = {.core = &rig->core,
		.dest = dest,
		.generation = 1,
		.step = 1,
		.all = true,
		.parent = true,
		.stop = &never,
		.err = &err};

	rig->core.config.rank = 1;
	ckpt_upload_start(&upload);
	core_rig_run(rig);
	rig->core.config.rank = 0;
	assert_true(upload.task.finished);
	*ret_there = upload.committed;
	return upload.task.result;
}

/* Another rank than 0 knows its claim before that is there: what it finds there then may be removed yet. */
static void test_claim_is_not_there(void **state)
{
	struct scene *s = *state;
	struct ckpt_store *dest;
	struct core_rig rig;
	bool there;

	open_job(s, &rig, 0, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 1);
	core_rig_close(&rig);
	core_rig_open(&rig, &(struct core_rig_config){.dir = s->local});
	resume(&rig, 1);
	int root = open(s->remote, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(
		ckpt_core_open_store(&rig.core,
			&(struct ckpt_core_place){.root = root, .label = s->remote}, &dest),
		0);
	assert_int_equal(look_as_rank_1(&rig, dest, &there), -EAGAIN);
	assert_false(there);
	scratch_put(s->remote, "/gens/000002.json", "{}");
	assert_int_equal(look_as_rank_1(&rig, dest, &there), 0);
	assert_true(there);
	ckpt_store_close(dest);
	assert_int_equal(close(root), 0);
	core_rig_close(&rig);
}

/* The step of a job whose rank 0 has not sent its part: it waits, whatever time passes. */
static struct ckpt_upload_entry *wait_for_others(struct core_rig *rig)
{
	assert_int_equal(core_rig_claim(rig), 0);
	/* Before anything is sent. */
	(void)io_fault_add(&rig->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_LOCK, .path = "manifest.json", .nth = 1, .hold = true});
	save(rig, 1, 1);
	rig->core.config.rank = 1;
	core_rig_let_go(rig);
	pass(rig, 10);
	struct ckpt_upload_entry *entry = ckpt_upload_queue_last(&rig->core);
	assert_non_null(entry);
	assert_int_equal(entry->error.code, 0);
	return entry;
}

/* Whoever takes over lets nobody publish what was on its way: other ranks than 0 hear of it, and not at once. */
static void test_taken_over_there(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	open_job(s, &rig, 0, 0);
	struct ckpt_upload_entry *entry = wait_for_others(&rig);
	/* One that this rank hears of later is its own job's. */
	scratch_put(s->remote, "/gens/000002.json", "{}");
	pass(&rig, 3);
	assert_true(waits(&rig));
	assert_int_equal(unlink(scratch_join(s->remote, "/gens/000002.json")), 0);
	pass(&rig, 3);
	scratch_put(s->remote, "/gens/000002.json", "{}");
	pass(&rig, 3);
	assert_true(waits(&rig));
	pass(&rig, 3);
	assert_false(waits(&rig));
	assert_int_equal(entry->error.code, CKPT_EFENCED);
	assert_non_null(strstr(entry->error.message, "has taken over"));
	assert_int_equal(rig.core.stats.uploads_failed, 1);
	ckpt_upload_entry_unref(entry);
	rig.core.config.rank = 0;
	core_rig_close(&rig);
}

/* A mark that nobody goes on with keeps the upload queue waiting for four graces. */
static void test_parent_stays_marked(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 0, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	core_rig_close(&other);
	resume(&rig, 1);
	assert_true(waits(&rig));
	for (int i = 0; i < 45; i++)
		core_rig_sleep(&rig, MINUTE_MS);
	assert_false(waits(&rig));
	assert_true(is_there(s, 1));
	assert_int_equal(rig.core.upload_queue->record_writer->absent_count, 0);
	core_rig_close(&rig);
	read_there(s, 1);
}

/* A mark on what the job goes back to is seen to, though a step that cannot be sent keeps the upload queue busy. */
static void test_parent_is_marked_beside_uploads(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 1000, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	core_rig_close(&other);
	/* The first is made here, the others are made there. */
	(void)io_fault_add(&rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_MKDIR,
					       .path = "step-0000000004",
					       .nth = 2,
					       .count = IO_FAULT_ALWAYS,
					       .error = -EIO});
	assert_int_equal(core_rig_save(&rig, 4), 0);
	pass(&rig, 1);
	resume(&rig, 1);
	pass(&rig, 25);
	assert_true(is_there(s, 1) && !is_marked(s, 1));
	assert_false(ckpt_upload_queue_rests(&rig.core));
	io_fault_clear(&rig.fault);
	core_rig_close(&rig);
	read_there(s, 1);
}

/* Without a claim, as `ckpt upload`: the newest is there, and going, which is no reason to wait, nor to say that it is there. */
static void test_newest_is_going(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	struct core_rig other;

	open_job(s, &rig, 0, 0);
	assert_int_equal(core_rig_claim(&rig), 0);
	save(&rig, 1, 3);
	core_rig_close(&rig);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 3), 0);
	core_rig_close(&other);
	open_job(s, &rig, 0, 0);
	pass(&rig, 1);
	assert_false(waits(&rig));
	assert_int_equal(rig.core.upload_queue->record_writer->absent_count, 1);
	assert_true(core_rig_logged(&rig, CKPT_LOG_INFO, "is being removed from"));
	/* Who goes on from it waits. */
	resume(&rig, 3);
	pass(&rig, 1);
	assert_true(waits(&rig));
	core_rig_close(&rig);
}

/* Somebody has removed its manifest and has died; and the job, which removes nothing there, goes back to it. */
static void go_back_to_what_is_left(struct scene *s, struct core_rig *rig)
{
	struct core_rig other;

	open_job(s, rig, 0, 0);
	assert_int_equal(core_rig_claim(rig), 0);
	save(rig, 1, 3);
	open_other(s, &other);
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_MARK, 1, 1), 0);
	(void)io_fault_add(&other.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_UNLINK, .path = ".index", .error = -EIO});
	assert_int_equal(core_rig_bury(&other, CKPT_TWO_PHASE_DELETE_REMOVE, 1, 1), -EIO);
	core_rig_close(&other);
	assert_false(is_there(s, 1));
	resume(rig, 1);
	pass(rig, 50);
	assert_true(waits(rig) && core_rig_logged(rig, CKPT_LOG_WARN, "ckpt prune"));
}

/* The mark goes at last: what the job goes on from is sent. */
static void test_parent_is_left(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;
	char path[700];

	go_back_to_what_is_left(s, &rig);
	pass(&rig, 100);
	assert_false(core_rig_logged(&rig, CKPT_LOG_WARN, "ckpt prune"));
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000001.tombstone", s->remote);
	assert_int_equal(unlink(path), 0);
	pass(&rig, 2);
	assert_true(is_there(s, 1) && !waits(&rig));
	core_rig_close(&rig);
	read_there(s, 1);
}

/* Once there is a newer step there, it is not needed any more. */
static void test_parent_is_left_behind(void **state)
{
	struct scene *s = *state;
	struct core_rig rig;

	go_back_to_what_is_left(s, &rig);
	save(&rig, 4, 4);
	pass(&rig, 2);
	assert_true(has(s, 2, 4, "/manifest.json") && !is_there(s, 1) && !waits(&rig));
	assert_int_equal(rig.core.upload_queue->record_writer->absent_count, 1);
	core_rig_close(&rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_parent_is_sent),
		cmocka_unit_test(test_between_what_is_sent),
		SCENE(test_parent_is_going),
		SCENE(test_parent_is_being_removed),
		SCENE(test_parent_was_there),
		SCENE(test_claim_is_not_there),
		SCENE(test_taken_over_there),
		SCENE(test_parent_stays_marked),
		SCENE(test_parent_is_marked_beside_uploads),
		SCENE(test_newest_is_going),
		SCENE(test_parent_is_left),
		SCENE(test_parent_is_left_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
