/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of several ranks that are stored as the difference to the last one: rank 0 decides when they are not. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "lib/prng.h"
#include "lib/rank_rig.h"
#include "lib/scratch.h"

#define RANKS   2
#define WEIGHTS 9000 /* elements: one block of 64 KiB */
#define SLOTS   12

struct job {
	struct rank_rig *rigs;
	float weights[WEIGHTS];
	int64_t number;
	int64_t count;
	int64_t one;
};

static void open_job(struct job *job, struct rank_rig *rigs)
{
	struct prng prng = {5};

	*job = (struct job){.rigs = rigs, .count = WEIGHTS, .one = 1};
	for (size_t i = 0; i < WEIGHTS; i++)
		job->weights[i] = (float)prng_below(&prng, 1 << 24) / (1 << 24);
	core_rig_open_ranks(rigs->rank, RANKS,
		&(struct core_rig_config){.dir = rigs->dir,
			.timeout_ms = 60000,
			.slots = SLOTS,
			.align = 512,
			.encoders = 2,
			.delta = true,
			.keep_last = 1});
	for (uint32_t rank = 0; rank < RANKS; rank++)
		rigs->open[rank] = true;
	for (uint32_t rank = 0; rank < RANKS; rank++)
		assert_int_equal(core_rig_claim(&rigs->rank[rank]), 0);
}

static struct ckpt_save *prepare(struct job *job, uint32_t rank, uint64_t step)
{
	struct core_rig *rig = &job->rigs->rank[rank];
	const struct ckpt_tensor tensors[] = {
		{.size = sizeof(tensors[0]),
			.name = "weights",
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &job->count,
			.data = job->weights},
		{.size = sizeof(tensors[0]),
			.name = "number",
			.dtype = CKPT_I64,
			.ndim = 1,
			.shape = &job->one,
			.data = &job->number},
	};
	struct ckpt_save *save = NULL;

	job->number = (int64_t)step;
	assert_int_equal(ckpt_save_new(&rig->core, NULL, step, false, 0, &save), 0);
	assert_int_equal(ckpt_save_put_tensors(save, tensors, COUNT(tensors), &rig->err), 0);
	assert_int_equal(ckpt_save_prepare(save, &rig->plan, &rig->err), 0);
	return save;
}

static void begin(struct job *job, uint32_t rank, uint64_t step)
{
	job->rigs->save[rank] = prepare(job, rank, step);
	(void)core_rig_post(&job->rigs->rank[rank], job->rigs->save[rank]);
}

/* A save that one rank cannot even begin. */
static void refuse(struct job *job, uint32_t rank, uint64_t step)
{
	struct ckpt_error err = {.size = sizeof(err)};

	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, -ENOMEM, "no room, says the test");
	job->rigs->save[rank] = prepare(job, rank, step);
	ckpt_save_refuse(job->rigs->save[rank], &err);
	core_rig_run(&job->rigs->rank[rank]);
}

/* Of both ranks: what it fails with, the same on both. */
static int end_step(struct job *job)
{
	int code = 1;

	rank_rig_sleep(job->rigs, 300);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		int r = rank_rig_end(job->rigs, rank);

		assert_true(code == 1 || (r < 0) == (code < 0));
		code = code < 0 ? code : r;
	}
	return code;
}

static int save_step(struct job *job, uint64_t step)
{
	for (uint32_t rank = 0; rank < RANKS; rank++)
		begin(job, rank, step);
	return end_step(job);
}

static const struct ckpt_scan_step *find(const struct core_rig *rig, uint64_t step)
{
	return ckpt_scan_find(&rig->core.lineage->scan, rig->core.lineage->generation, step);
}

static unsigned needs(const struct job *job, uint64_t step)
{
	const struct ckpt_scan_step *found = find(&job->rigs->rank[0], step);

	assert_non_null(found);
	return found->base_count;
}

/* Whoever reads the store anew: all ranks' parts are whole, and the manifest says what rank 0 knows. */
static void check_step(const struct job *job, uint64_t step)
{
	struct core_rig reader;

	core_rig_open(&reader, &(struct core_rig_config){.dir = job->rigs->dir, .read_only = true});
	const struct ckpt_scan_step *found = ckpt_scan_find(&reader.core.lineage->scan, 1, step);
	assert_non_null(found);
	assert_int_equal(found->base_count, needs(job, step));
	assert_int_equal(core_rig_read(&reader, step, CKPT_SINK_NONE), 0);
	core_rig_close(&reader);
}

static void lose_base(const struct job *job, uint32_t rank)
{
	struct ckpt_pool *pool = job->rigs->rank[rank].pool;
	struct ckpt_slot *slots[SLOTS];

	for (unsigned i = 0; i < SLOTS; i++)
		slots[i] = ckpt_pool_get(pool);
	for (unsigned i = 0; i < SLOTS; i++)
		ckpt_pool_put(pool, slots[i]);
}

/* All ranks store the same steps by themselves, and retention keeps what the last one needs. */
static void test_together(void **state)
{
	static struct job job;

	open_job(&job, *state);
	for (uint64_t step = 1; step <= 36; step++) {
		unsigned count = (unsigned)((step - 1) % (CKPT_BASES_MAX + 1));

		assert_int_equal(save_step(&job, step), 0);
		assert_int_equal(needs(&job, step), count);
		assert_int_equal(job.rigs->rank[0].core.lineage->scan.step_count, count + 1);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			assert_int_equal(
				job.rigs->rank[rank].core.saver->run.open, count < CKPT_BASES_MAX);
		if (step % 6 == 0)
			check_step(&job, step);
	}
}

/* One that has lost its base stores its part by itself; all end the chain at the same step, sooner where that was much. */
static void test_one_without(void **state)
{
	static struct job job;

	open_job(&job, *state);
	for (uint64_t step = 1; step <= 15; step++) {
		/* After the second time the differences have come to as much as the first step. */
		if (step == 5 || step == 13)
			lose_base(&job, step == 5);
		assert_int_equal(save_step(&job, step), 0);
		assert_int_equal(needs(&job, step), step < 14 ? step - 1 : step - 14);
		check_step(&job, step);
	}
	for (uint32_t rank = 0; rank < RANKS; rank++)
		lose_base(&job, rank);
	assert_int_equal(save_step(&job, 16), 0);
	assert_int_equal(needs(&job, 16), 0);
	check_step(&job, 16);
}

/* What rank 0 does not allow fails on all, once. */
static void test_not_allowed(void **state)
{
	static struct job job;

	open_job(&job, *state);
	assert_int_equal(save_step(&job, 1), 0);
	job.rigs->rank[0].core.saver->run.open = false;
	assert_int_equal(save_step(&job, 2), CKPT_EABORTED);
	rank_rig_check_says(job.rigs, 1, "rank 0 does not allow");
	assert_int_equal(save_step(&job, 3), 0);
	assert_int_equal(needs(&job, 3), 0);
	assert_int_equal(save_step(&job, 4), 0);
	assert_int_equal(needs(&job, 4), 1);
	/* Nor the difference to another step. */
	job.rigs->rank[0].core.saver->run.last.step = 3;
	assert_int_equal(save_step(&job, 5), CKPT_EABORTED);
	rank_rig_check_says(job.rigs, 1, "the last one of rank 0 is step 3");
	check_step(&job, 4);
}

/* A step that fails on one is no base of any. */
static void test_failed(void **state)
{
	static struct job job;

	open_job(&job, *state);
	assert_int_equal(save_step(&job, 1), 0);
	assert_int_equal(save_step(&job, 2), 0);
	(void)io_fault_add(&job.rigs->rank[1].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .path = ".encoded", .error = -ENOSPC});
	assert_true(save_step(&job, 3) < 0);
	io_fault_clear(&job.rigs->rank[1].fault);
	assert_int_equal(save_step(&job, 4), 0);
	assert_int_equal(needs(&job, 4), 0);
	assert_int_equal(save_step(&job, 5), 0);
	assert_int_equal(needs(&job, 5), 1);
	check_step(&job, 5);
}

/* One that a rank does not even begin is no reason to fail the next one: there it still has the base that the others had. */
static void test_refused(void **state)
{
	static struct job job;

	open_job(&job, *state);
	assert_int_equal(save_step(&job, 1), 0);
	assert_int_equal(save_step(&job, 2), 0);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		uint64_t step = 3 + 3 * rank;

		begin(&job, 1 - rank, step);
		refuse(&job, rank, step);
		assert_true(end_step(&job) < 0);
		/* The one that was refused has stored it as the difference to the step before. */
		assert_int_equal(save_step(&job, step + 1), 0);
		assert_true(needs(&job, step + 1) > 0);
		assert_int_equal(save_step(&job, step + 2), 0);
		check_step(&job, step + 2);
	}
}

/* Rank 0 knows alone that the last step was removed: no step is committed that needs it. */
static void test_base_is_removed(void **state)
{
	static struct job job;

	open_job(&job, *state);
	assert_int_equal(save_step(&job, 1), 0);
	assert_int_equal(save_step(&job, 2), 0);
	assert_int_equal(core_rig_remove(&job.rigs->rank[0], 2), 0);
	assert_int_equal(save_step(&job, 3), CKPT_EABORTED);
	rank_rig_check_says(job.rigs, 1, "was removed or is damaged");
	assert_int_equal(save_step(&job, 4), 0);
	assert_int_equal(needs(&job, 4), 0);
	check_step(&job, 4);
	assert_int_equal(save_step(&job, 5), 0);
	assert_int_equal(needs(&job, 5), 1);
}

/* Or that a step is damaged which the last one needs. */
static void test_base_is_damaged(void **state)
{
	static struct job job;
	struct core_rig *first;

	open_job(&job, *state);
	first = &job.rigs->rank[0];
	for (uint64_t step = 1; step <= 3; step++)
		assert_int_equal(save_step(&job, step), 0);
	scratch_flip(
		scratch_find(scratch_join(job.rigs->dir, "g000001/step-0000000001"), ".index"), 10);
	assert_int_equal(core_rig_read(first, 1, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(find(first, 1)->state, CKPT_STEP_QUARANTINED);
	assert_int_equal(find(first, 3)->state, CKPT_STEP_COMMITTED);
	assert_int_equal(save_step(&job, 4), CKPT_EABORTED);
	assert_int_equal(save_step(&job, 5), 0);
	assert_int_equal(needs(&job, 5), 0);
	check_step(&job, 5);
}

/* What keep_every keeps is a matter of each rank. Where they differ the step is whole all the same, and rank 0 says so. */
static void test_ranks_differ(void **state)
{
	static struct job job;

	open_job(&job, *state);
	job.rigs->rank[0].core.config.keep_every = 3;
	for (uint64_t step = 1; step <= 4; step++)
		assert_int_equal(save_step(&job, step), 0);
	assert_int_equal(needs(&job, 3), 2);
	assert_int_equal(needs(&job, 4), 3);
	assert_true(core_rig_logged(&job.rigs->rank[0], CKPT_LOG_WARN, "give all ranks the same"));
	check_step(&job, 4);
}

int main(void)
{
#define RIG(test) cmocka_unit_test_setup_teardown(test, rank_rig_setup, rank_rig_teardown)
	const struct CMUnitTest tests[] = {
		RIG(test_together),
		RIG(test_one_without),
		RIG(test_not_allowed),
		RIG(test_failed),
		RIG(test_refused),
		RIG(test_base_is_removed),
		RIG(test_base_is_damaged),
		RIG(test_ranks_differ),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
