/* SPDX-License-Identifier: Apache-2.0 */
/* A save that is stopped, torn, starved or refused: what is told, and that everything comes back. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "engine/runtime/commands.h"
#include "engine/save/plan.h"
#include "engine/save/save_state.h"
#include "lib/core_scene.h"
#include "lib/scratch.h"

#define MIB    (1 << 20)
#define BLOCKS 10 /* of 64 KiB, in a pool of four */
#define FLOATS (BLOCKS * 16384)
#define ALWAYS IO_FAULT_ALWAYS

static void open_rig(struct core_scene *s, const struct core_rig_config *config)
{
	struct core_rig_config with = *config;

	with.dir = s->dir;
	core_rig_open(&s->rig, &with);
	assert_int_equal(core_rig_claim(&s->rig), 0);
}

static unsigned add(struct core_scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static uint32_t bits(struct ckpt_save *save)
{
	return ckpt_latch_get(ckpt_save_latch(save));
}

/* Stopped while its copies are under way: the first reason counts, and is told once they are back. */
static void test_stopped_while_copying(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_error verdict = {.size = sizeof(verdict)};

	open_rig(s, &(struct core_rig_config){0});
	ckpt_error_clear(&verdict);
	(void)ckpt_fail(&verdict, CKPT_ETORN, "somebody saw a change");
	s->rig.hold_jobs = true;
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, FLOATS, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_false(ckpt_save_refused(save));
	/* Whoever says it twice has said it once. */
	ckpt_save_post_cancel(save);
	ckpt_save_post_cancel(save);
	core_rig_run(&s->rig);
	ckpt_save_post_failure(save, &verdict);
	core_rig_run(&s->rig);
	assert_false(bits(save) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ECANCELED);
	assert_null(scratch_find(s->dir, ".safetensors"));
}

/* A thread is at its fence when it fails, and another one has the next save start. */
static void test_plan_is_not_taken_from_a_fence(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	const struct ckpt_plan *plan = save->plan;
	atomic_fetch_add(&save->plan_users, 1);
	assert_null(ckpt_save_take_plan(save));
	assert_ptr_equal(save->plan, plan);
	atomic_fetch_sub(&save->plan_users, 1);
	assert_int_equal(ckpt_save_check_samples(save, &s->rig.err), 0);
	struct ckpt_plan *taken = ckpt_save_take_plan(save);
	assert_ptr_equal(taken, plan);
	/* Too late: there is nothing to look at any more. */
	assert_int_equal(ckpt_save_check_samples(save, &s->rig.err), 0);
	assert_null(ckpt_save_take_plan(save));
	ckpt_plan_free(taken);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

/* Whoever cancels a save that has ended changes nothing. */
static void test_cancelled_after_the_end(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_error verdict = {.size = sizeof(verdict)};

	open_rig(s, &(struct core_rig_config){0});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	ckpt_save_post_cancel(save);
	ckpt_error_clear(&verdict);
	(void)ckpt_fail(&verdict, CKPT_ETORN, "somebody saw a change");
	ckpt_save_post_failure(save, &verdict);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), 0);
}

/* Cancelled while it waits for a slot and all that it has is written: the last digests end it. */
static void test_cancelled_while_starved(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	s->rig.hold_jobs = true;
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, FLOATS, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	core_rig_do_jobs(&s->rig);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.core.stats.pool_starved, 1);
	assert_int_equal(save->written_count, CKPT_POOL_SLOTS_MIN);
	assert_int_equal(save->digested_count, 0);
	ckpt_save_post_cancel(save);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ECANCELED);
	assert_null(scratch_find(s->dir, ".safetensors"));
}

/*
 * The write of one block fails while the next one is kept for its successor, which waits for a slot that
 * a reader has: nobody waits for anybody.
 */
static void test_failed_while_starved(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, FLOATS, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	/* After the header. */
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = ".safetensors",
		       .nth = 2,
		       .count = ALWAYS,
		       .hold = true});
	struct ckpt_restore *reader = core_rig_begin(&s->rig, 1, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_pool_free(s->rig.pool), 2);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
		       .path = ".safetensors",
		       .error = -EIO,
		       .late = true,
		       .hold = true});
	save = core_rig_prepare(&s->rig, 2, 1, FLOATS, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(ckpt_pool_free(s->rig.pool), 0);
	assert_int_equal(save->written_count, 1);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -EIO);
	io_fault_clear(&s->rig.fault);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, reader), 0);
}

/* A limit of file sizes: the advice is about it. */
static void test_too_large(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -EFBIG});
	assert_int_equal(core_rig_save(&s->rig, 1), -EFBIG);
	assert_non_null(strstr(s->rig.err.message, "ulimit -f"));
}

/* A file whose write failed is written once more, under another name, and no third time. */
static void test_written_again(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){.slots = 12});
	unsigned rule =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -EIO});
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "again under another name"));
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), 0);
	rule = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC,
			      .path = ".safetensors",
			      .error = -EIO,
			      .count = 2});
	assert_int_equal(core_rig_save(&s->rig, 2), -EIO);
	assert_int_equal(s->rig.fault.hits[rule], 2);
	assert_null(scratch_find(scratch_join(s->dir, "g000001/step-0000000002"), ".safetensors"));
}

/* A full disk is full for another file as well: this is no bad block. */
static void test_full_is_not_tried_again(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){.slots = 12});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -ENOSPC});
	assert_int_equal(core_rig_save(&s->rig, 1), -ENOSPC);
}

/* What became of the bad file is not what the save fails with later. */
static void test_failed_after_writing_again(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){.slots = 12});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -EIO});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_UNLINK, .path = ".safetensors", .error = -EACCES});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = ".index", .error = -ENOSPC});
	assert_int_equal(core_rig_save(&s->rig, 1), -ENOSPC);
	assert_non_null(strstr(s->rig.err.message, ".index"));
}

/* The record of a save that failed says why. */
static bool is_said(struct core_scene *s, const char *why)
{
	char text[2000] = "";
	FILE *f = fopen(scratch_join(s->dir, "g000001/step-0000000001/manifest.json"), "r");

	assert_non_null(f);
	size_t length = fread(text, 1, sizeof(text) - 1, f);
	(void)fclose(f);
	return length > 0 && strstr(text, why);
}

/* Its deadline passes before there is anything to publish. */
static void test_too_late(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .hold = true});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	core_rig_sleep(&s->rig, 2000);
	assert_true(bits(save) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ETIMEDOUT);
	assert_true(is_said(s, "step 1 was not durable in"));
}

/* A manifest that could not be published: once the record of that has won, the files go. */
static void test_failed_publication(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000001/manifest.json", .error = -EIO});
	assert_int_equal(core_rig_save(&s->rig, 1), -EIO);
	const char *step = scratch_join(s->dir, "g000001/step-0000000001");
	assert_non_null(scratch_find(step, "manifest.json"));
	assert_null(scratch_find(step, ".safetensors"));
	assert_null(scratch_find(step, ".index"));
	assert_true(is_said(s, "cannot publish"));
	assert_int_equal(core_rig_save(&s->rig, 2), 0);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, "has answered at last"));
}

/* Alone on the store of one node: there is no exchange to say how a step has ended, and its register does. */
static void test_alone_on_a_node(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){.node_store = true});
	assert_false(s->rig.core.lineage->marker.shared);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .error = -ENOSPC});
	assert_int_equal(core_rig_save(&s->rig, 1), -ENOSPC);
	assert_int_equal(
		ckpt_scan_find(&s->rig.core.lineage->scan, 1, 1)->state, CKPT_STEP_ABORTED);
	assert_int_equal(scratch_count(scratch_join(s->dir, "g000001/step-0000000001")), 1);
	assert_non_null(scratch_find(s->dir, "step-0000000001/manifest.json"));
	assert_int_equal(core_rig_save(&s->rig, 2), 0);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
}

/* Records of aborted steps are kept for a while, not for ever. */
static void test_many_failures(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
		       .path = ".safetensors",
		       .error = -ENOSPC,
		       .count = ALWAYS});
	for (uint64_t step = 1; step <= CKPT_ABORTED_KEPT + 1; step++) {
		assert_non_null(step == 1 ? s->dir : scratch_find(s->dir, "0000000001"));
		assert_int_equal(core_rig_save(&s->rig, step), -ENOSPC);
	}
	assert_null(scratch_find(s->dir, "0000000001"));
	assert_non_null(scratch_find(s->dir, "0000000002"));
}

/* Whichever piece of memory is not to be had: it is saved, or it has failed. */
static void test_no_memory(void **state)
{
	struct core_scene *s = *state;
	size_t all = 0;

	open_rig(s, &(struct core_rig_config){0});
	for (size_t n = 1; n == 1 || all >= n - 1; n++) {
		struct ckpt_save *save = core_rig_prepare(&s->rig, n, 2, 100, 0);
		core_rig_count_allocations(&s->rig, n);
		int r = core_rig_post(&s->rig, save);
		all = core_rig_allocations(&s->rig);
		assert_true(r == 0 || r == -ENOMEM);
		assert_int_equal(core_rig_end_save(&s->rig, save), r);
		assert_int_equal(core_rig_read(&s->rig, n, CKPT_SINK_MEMORY), r ? CKPT_ENOSTEP : 0);
	}
	assert_true(all > 5);
}

/* A save that fails, and then cannot note it for want of memory, has failed as it would have. */
static void test_failed_without_memory(void **state)
{
	struct core_scene *s = *state;
	size_t all = 0;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
		       .path = ".safetensors",
		       .error = -ENOSPC,
		       .count = ALWAYS});
	for (size_t n = 1; n == 1 || all >= n - 1; n++) {
		struct ckpt_save *save = core_rig_prepare(&s->rig, n, 1, FLOATS, 0);
		core_rig_count_allocations(&s->rig, n);
		int r = core_rig_post(&s->rig, save);
		all = core_rig_allocations(&s->rig);
		assert_true(r == -ENOSPC || r == -ENOMEM);
		(void)core_rig_end_save(&s->rig, save);
		assert_null(scratch_find(s->dir, ".safetensors"));
	}
	assert_true(all > 5);
}

/* A stray write into what the library itself holds is found like a change of a tensor, and named. */
static void test_torn_header(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_error err = {.size = sizeof(err)};

	open_rig(s, &(struct core_rig_config){0});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	struct ckpt_segment *header = &save->plan->segments[0];
	assert_int_equal(header->tensor, CKPT_PLAN_HEADER);
	header->view.data[0] ^= 1;
	assert_int_equal(ckpt_save_check_samples(save, &err), CKPT_ETORN);
	assert_string_equal(err.tensor, "the header");
	assert_int_equal(core_rig_post(&s->rig, save), CKPT_ETORN);
	header->view.data[0] ^= 1;
	assert_int_equal(core_rig_end_save(&s->rig, save), CKPT_ETORN);
	assert_string_equal(s->rig.err.tensor, "the header");
}

/* Too large to be copied on the spot: with room for all, the eager blocks come before the others. */
static void test_large_eager(void **state)
{
	static const int64_t shapes[] = {3 * MIB / 4, 18 * MIB / 4};
	struct core_scene *s = *state;
	char *data = calloc(18, MIB);
	struct ckpt_tensor tensors[] = {
		{.size = sizeof(tensors[0]), .name = "a", .ndim = 1, .shape = &shapes[0]},
		{.size = sizeof(tensors[0]),
			.name = "b",
			.ndim = 1,
			.shape = &shapes[1],
			.flags = CKPT_TENSOR_EAGER},
	};
	struct ckpt_save *save = NULL;

	open_rig(s, &(struct core_rig_config){.block_bytes = MIB, .chunk_bytes = MIB, .slots = 24});
	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &save), 0);
	for (size_t i = 0; i < COUNT(tensors); i++) {
		tensors[i].dtype = CKPT_F32;
		tensors[i].data = data;
	}
	assert_int_equal(ckpt_save_put_tensors(save, tensors, COUNT(tensors), &s->rig.err), 0);
	assert_int_equal(ckpt_save_prepare(save, &s->rig.plan, &s->rig.err), 0);
	/* Their order needs memory: the second allocation of a save that has begun. */
	(void)ckpt_save_ref(save);
	core_rig_count_allocations(&s->rig, 2);
	assert_int_equal(core_rig_post(&s->rig, save), -ENOMEM);
	(void)core_rig_allocations(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), -ENOMEM);
	ckpt_save_unref(save);

	assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 2, false, 0, &save), 0);
	assert_int_equal(ckpt_save_put_tensors(save, tensors, COUNT(tensors), &s->rig.err), 0);
	assert_int_equal(ckpt_save_prepare(save, &s->rig.plan, &s->rig.err), 0);
	s->rig.hold_jobs = true;
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	size_t eager = save->eager_left;
	assert_true(eager >= 18 && eager < save->plan->block_count);
	/* The block of the tensor that is not eager, and no other, is last. */
	assert_true(save->plan->blocks[save->order[eager - 1]].eager);
	assert_false(save->plan->blocks[save->order[eager]].eager);
	core_rig_let_go(&s->rig);
	assert_true(bits(save) & CKPT_DONE_EAGER);
	/* From here on it is the caller's, though the fence is still to come. */
	memset(data + 4 * MIB, 7, 14 * MIB);
	assert_int_equal(ckpt_save_check_samples(save, &s->rig.err), 0);
	/* The other is not. */
	memset(data, 7, 3 * MIB);
	assert_int_equal(ckpt_save_check_samples(save, &s->rig.err), CKPT_ETORN);
	memset(&s->rig.err, 0, sizeof(s->rig.err));
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(core_rig_read(&s->rig, 2, CKPT_SINK_MEMORY), 0);
	free(data);
}

/* Without room for all they come in order, and are told when the last of them is copied. */
static void test_large_eager_starved(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){.block_bytes = MIB, .chunk_bytes = MIB});
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 18 * MIB / 4, CKPT_TENSOR_EAGER);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	assert_true(bits(save) & CKPT_DONE_EAGER);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
}

/* While the engine closes nothing is begun any more: neither a save nor a restore. */
static void test_closing(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_restore *restore;

	open_rig(s, &(struct core_rig_config){0});
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	struct ckpt_save *late = core_rig_prepare(&s->rig, 3, 1, 100, 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000001/manifest.json", .hold = true});
	restore = core_rig_begin(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_NONE, NULL);
	struct ckpt_command *closer =
		ckpt_command_new(&s->rig.core, sizeof(struct ckpt_closer), NULL);
	ckpt_command_post(closer, ckpt_closer_body);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_post(&s->rig, late), CKPT_ECLOSED);
	assert_int_equal(core_rig_end_save(&s->rig, late), CKPT_ECLOSED);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), CKPT_ECLOSED);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, restore), CKPT_ECLOSED);
	assert_true(ckpt_latch_get(&closer->latch) & CKPT_DONE_END);
	ckpt_command_unref(closer);
}

/* A parent is chosen between saves, not beneath one. */
static void test_adopt_while_saving(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	s->rig.hold_jobs = true;
	struct ckpt_save *save = core_rig_prepare(&s->rig, 1, 1, 100, 0);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 1), -EBUSY);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 1), 0);
}

/* One rank alone on a node of its own has nobody to ask, nor to tell: its store holds the register. */
static void test_alone_on_its_node(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	s->rig.core.config.node_store = true;
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000002/manifest.json", .error = -EIO});
	assert_int_equal(core_rig_save(&s->rig, 2), -EIO);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -ENOSPC});
	assert_int_equal(core_rig_save(&s->rig, 3), -ENOSPC);
	for (uint64_t step = 2; step <= 3; step++)
		assert_int_equal(ckpt_scan_find(&s->rig.core.lineage->scan, 1, step)->state,
			CKPT_STEP_ABORTED);
	assert_non_null(scratch_find(scratch_join(s->dir, "g000001/step-0000000003"), ".json"));
}

/* Nobody else takes its directory away: what is not there is a failure. */
static void test_directory_lost(void **state)
{
	struct core_scene *s = *state;

	open_rig(s, &(struct core_rig_config){0});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = ".safetensors", .error = -ENOENT});
	assert_int_equal(core_rig_save(&s->rig, 1), -ENOENT);
}

/* No record could be left, or it is not this save's: that is said, and nothing is remembered. */
static void test_no_record(void **state)
{
	struct core_scene *s = *state;
	const int errors[] = {-EIO, -EEXIST};

	open_rig(s, &(struct core_rig_config){0});
	for (uint64_t step = 1; step <= 2; step++) {
		io_fault_clear(&s->rig.fault);
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_WRITE, .path = ".safetensors", .error = -ENOSPC});
		add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME,
			       .path = "manifest.json",
			       .error = errors[step - 1]});
		assert_int_equal(core_rig_save(&s->rig, step), -ENOSPC);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "no abort record for step"));
		assert_null(ckpt_scan_find(&s->rig.core.lineage->scan, 1, step));
	}
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, core_scene_set_up, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_stopped_while_copying),
		SCENE(test_plan_is_not_taken_from_a_fence),
		SCENE(test_cancelled_after_the_end),
		SCENE(test_cancelled_while_starved),
		SCENE(test_failed_while_starved),
		SCENE(test_too_large),
		SCENE(test_written_again),
		SCENE(test_full_is_not_tried_again),
		SCENE(test_failed_after_writing_again),
		SCENE(test_too_late),
		SCENE(test_failed_publication),
		SCENE(test_alone_on_a_node),
		SCENE(test_many_failures),
		SCENE(test_no_memory),
		SCENE(test_failed_without_memory),
		SCENE(test_torn_header),
		SCENE(test_large_eager),
		SCENE(test_large_eager_starved),
		SCENE(test_closing),
		SCENE(test_adopt_while_saving),
		SCENE(test_alone_on_its_node),
		SCENE(test_directory_lost),
		SCENE(test_no_record),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
