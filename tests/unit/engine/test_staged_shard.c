/* SPDX-License-Identifier: Apache-2.0 */
/* What goes on to the remote store comes out of the slots that still have it, and out of the file otherwise. */
#include "remote_scene.h"

#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/copy/upload_queue.h"
#include "engine/save/plan.h"
#include "engine/save/save_state.h"
#include "lib/scratch.h"

#define BLOCK          65536
#define SHARD          ".safetensors"
/* Of blocks of 64 KiB with a header of 4 KiB. */
#define FLOATS(blocks) ((size_t)(blocks)*BLOCK / sizeof(float) - 2048)
/* As many as are sent at once, and some more. */
#define BLOCKS         (CKPT_SHARD_READ_OWN + 3)

static struct core_rig rig;

static void open_rig(struct scene *s, unsigned slots)
{
	core_rig_open(&rig,
		&(struct core_rig_config){.dir = s->local, .remote = s->remote, .slots = slots});
	assert_int_equal(core_rig_claim(&rig), 0);
	core_rig_run(&rig);
}

static struct ckpt_save *begin(uint64_t step)
{
	struct ckpt_save *save = core_rig_prepare(&rig, step, 1, FLOATS(BLOCKS), 0);

	assert_int_equal(save->plan->block_count, BLOCKS);
	(void)core_rig_post(&rig, save);
	return save;
}

/* Jobs are held, and done until the save has ended and the upload queue has borrowed slots. */
static void save_and_stop(uint64_t step)
{
	rig.hold_jobs = true;
	struct ckpt_save *save = begin(step);
	while (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_GONE)) {
		core_rig_do_jobs(&rig);
		core_rig_run(&rig);
	}
	assert_int_equal(core_rig_end_save(&rig, save), 0);
	while (ckpt_pool_lent(rig.pool) == 0) {
		assert_non_null(rig.held);
		core_rig_do_jobs(&rig);
		core_rig_run(&rig);
	}
}

static uint64_t uploaded(void)
{
	return atomic_load(&rig.core.upload_queue->bytes);
}

static uint64_t staged(void)
{
	return atomic_load(&rig.core.upload_queue->bytes_left);
}

/* Closes, and looks at what is there. */
static void check_there(struct scene *s, uint64_t steps)
{
	struct core_rig there;

	assert_int_equal(rig.core.upload_queue->count, 0);
	assert_int_equal(ckpt_pool_lent(rig.pool), 0);
	core_rig_close(&rig);
	core_rig_open(&there, &(struct core_rig_config){.dir = s->remote, .read_only = true});
	for (uint64_t step = 1; step <= steps; step++)
		assert_int_equal(core_rig_read(&there, step, CKPT_SINK_NONE), 0);
	core_rig_close(&there);
}

/* Right after a save all of it is there, and none of it is read. */
static void test_nothing_is_read(void **state)
{
	struct scene *s = *state;

	open_rig(s, BLOCKS);
	struct ckpt_save *save = begin(1);
	assert_int_equal(core_rig_end_save(&rig, save), 0);
	core_rig_run(&rig);
	assert_int_equal(uploaded(), FLOATS(BLOCKS) * sizeof(float));
	assert_int_equal(staged(), uploaded());
	assert_int_equal(rig.core.upload_queue->misled, 0);
	check_there(s, 1);
}

/* What does not fit into the pool is not there as a whole, and is read. */
static void test_a_shard_that_streamed(void **state)
{
	struct scene *s = *state;

	open_rig(s, BLOCKS - 1);
	struct ckpt_save *save = begin(1);
	assert_int_equal(core_rig_end_save(&rig, save), 0);
	core_rig_run(&rig);
	assert_true(uploaded() > 0);
	assert_int_equal(staged(), 0);
	check_there(s, 1);
}

/*
 * A save that comes while slots are lent begins with the others, holds its whole shard all the same, and gets those as soon
 * as they are back, whoever else would have them. What it has taken the upload reads from the file.
 */
static void test_a_save_in_between(void **state)
{
	struct scene *s = *state;

	open_rig(s, BLOCKS);
	save_and_stop(1);
	assert_int_equal(ckpt_pool_lent(rig.pool), CKPT_SHARD_READ_OWN);
	struct ckpt_save *save = begin(2);
	assert_true(save->hold);
	assert_int_equal(save->next, BLOCKS - CKPT_SHARD_READ_OWN);
	assert_int_equal(ckpt_pool_owed(rig.pool), CKPT_SHARD_READ_OWN);
	/* Somebody reads: nothing of what comes back is his. */
	struct ckpt_restore *r = core_rig_begin(&rig, 1, CKPT_SINK_NONE, NULL);
	core_rig_do_jobs(&rig);
	core_rig_run(&rig);
	assert_int_equal(save->next, BLOCKS);
	assert_int_equal(ckpt_pool_lent(rig.pool), 0);
	assert_int_equal(ckpt_pool_owed(rig.pool), 0);
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_end_save(&rig, save), 0);
	assert_int_equal(core_rig_end(&rig, r), 0);
	core_rig_run(&rig);
	assert_int_equal(rig.core.stats.pool_starved, 0);
	assert_true(staged() > 0 && staged() < uploaded());
	assert_int_equal(rig.core.upload_queue->misled, 0);
	check_there(s, 2);
}

/* One that is given up while it waits for what is lent leaves it to others. */
static void test_a_save_that_is_given_up(void **state)
{
	struct scene *s = *state;

	open_rig(s, BLOCKS);
	save_and_stop(1);
	struct ckpt_save *save = begin(2);
	ckpt_save_post_cancel(save);
	core_rig_run(&rig);
	assert_int_equal(ckpt_pool_owed(rig.pool), 0);
	core_rig_let_go(&rig);
	assert_int_equal(core_rig_end_save(&rig, save), -ECANCELED);
	core_rig_run(&rig);
	assert_true(staged() > 0);
	check_there(s, 1);
}

static void change(unsigned slot)
{
	assert_true(ckpt_pool_lend(rig.pool, slot, ckpt_pool_slot(rig.pool, slot)->uses));
	ckpt_pool_slot(rig.pool, slot)->data[BLOCK - 1] ^= 1;
	ckpt_pool_take_back(rig.pool, slot);
}

/* Memory that changes: every byte is compared, so it is noticed, and the file is sent. The last byte is of the next block's chunk. */
static void test_other_bytes(void **state)
{
	struct scene *s = *state;

	open_rig(s, BLOCKS);
	save_and_stop(1);
	change(BLOCKS - 2);
	core_rig_let_go(&rig);
	assert_int_equal(rig.core.upload_queue->misled, 1);
	assert_true(core_rig_logged(&rig, CKPT_LOG_WARN, "staging memory"));
	assert_int_equal(rig.core.upload_queue->count, 1);
	uint64_t before = staged();
	core_rig_sleep(&rig, 5000);
	assert_int_equal(staged(), before);
	assert_int_equal(rig.core.stats.uploads_retried, 0);
	check_there(s, 1);
}

/* Whatever there is no memory for, what is uploaded is whole. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	bool failed = true;

	open_rig(s, BLOCKS);
	for (uint64_t step = 1; failed; step++) {
		struct ckpt_save *save = core_rig_prepare(&rig, step, 1, FLOATS(BLOCKS), 0);
		core_rig_count_allocations(&rig, step);
		(void)core_rig_post(&rig, save);
		failed = core_rig_allocations(&rig) >= step;
		(void)core_rig_end_save(&rig, save);
		core_rig_sleep(&rig, 120000);
		assert_int_equal(rig.core.upload_queue->count, 0);
		assert_int_equal(ckpt_pool_free(rig.pool), BLOCKS);
	}
	assert_true(staged() > 0);
	core_rig_close(&rig);
}

int main(void)
{
#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
	static const struct CMUnitTest tests[] = {
		SCENE(test_nothing_is_read),
		SCENE(test_a_shard_that_streamed),
		SCENE(test_a_save_in_between),
		SCENE(test_a_save_that_is_given_up),
		SCENE(test_other_bytes),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
