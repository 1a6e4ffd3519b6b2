/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A life of a store with one failure in it: every allocation in turn, and every request to the disk. It
 * ends, says what failed, gives everything back, and no step that was acknowledged is lost.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/slice.h"
#include "lib/store_fixture.h"

#define FLOATS 20000
#define SLICES 4

struct life {
	char *dir;
	struct core_rig rig;
	uint64_t acked; /* newest step that must be there */
};

static void fixture(struct life *l)
{
	struct fixture_step step = fixture_one(l->dir, fixture_floats(FLOATS));

	fixture_begin(l->dir);
	fixture_commit(&step);
	step.step = 20;
	fixture_commit(&step);
	/* One that its process did not live to decide. */
	step.step = 30;
	fixture_commit(&step);
	assert_int_equal(unlink(fixture_manifest(&step)), 0);
	/* And one that died with its claim. */
	assert_int_equal(mkdir(scratch_join(l->dir, "g000002"), 0777), 0);
	l->acked = 20;
}

static void set_up(struct life *l, const struct core_rig_config *config)
{
	struct core_rig_config with = *config;

	l->dir = scratch_make_in_memory();
	fixture(l);
	with.dir = l->dir;
	core_rig_make(&l->rig, &with);
}

static void save(struct life *l, uint64_t step, uint32_t flags)
{
	struct ckpt_save *s = core_rig_prepare(&l->rig, step, 3, FLOATS, flags);

	if (!s)
		return;
	(void)core_rig_post(&l->rig, s);
	if (core_rig_end_save(&l->rig, s) == 0)
		l->acked = step;
}

/* Resumes, saves until retention takes something away, reads, verifies, exports, and removes. */
static void train(struct life *l)
{
	struct core_rig *rig = &l->rig;

	if (core_rig_open_store(rig) < 0 ||
		core_rig_read(rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY) < 0)
		return;
	if (core_rig_adopt(rig, 1, 20) < 0 || core_rig_claim(rig) < 0)
		return;
	for (uint64_t step = 40; step <= 60; step += 10)
		save(l, step, step == 50 ? CKPT_TENSOR_EAGER : 0);
	(void)core_rig_read(rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	(void)core_rig_read(rig, CKPT_STEP_LATEST, CKPT_SINK_NONE);
	(void)core_rig_export(rig, CKPT_STEP_LATEST, scratch_join(l->dir, "copy"));
	if (l->acked == 60)
		(void)core_rig_remove(rig, 50);
}

/* Finds that the newest step is damaged: by reading it, and by verifying it. */
static void doubt(struct life *l)
{
	struct core_rig *rig = &l->rig;

	scratch_flip(fixture_shard(
			     &(struct fixture_step){.dir = l->dir, .generation = 1, .step = 20}, 0),
		60000);
	l->acked = 10;
	if (core_rig_open_store(rig) < 0)
		return;
	assert_true(core_rig_read(rig, 20, CKPT_SINK_NONE) < 0);
	assert_true(core_rig_read(rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY) < 0);
	(void)core_rig_read(rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY);
	assert_true(core_rig_export(rig, 20, scratch_join(l->dir, "copy")) < 0);
}

/* Ends this one; the next process finds what it must. */
static void tear_down(struct life *l)
{
	struct core_rig_config config = {.dir = l->dir};
	struct core_rig *rig = &l->rig;

	core_rig_close(rig);
	core_rig_open(rig, &config);
	int r = core_rig_read(rig, l->acked, CKPT_SINK_MEMORY);
	if (r < 0)
		fail_msg("step %llu is lost: %s", (unsigned long long)l->acked, rig->err.message);
	core_rig_close(rig);
	scratch_remove(l->dir);
}

typedef void live_fn(struct life *l);

static void sweep_allocations(live_fn *live, const struct core_rig_config *config)
{
	struct life *l = calloc(1, sizeof(*l));
	size_t all;

	for (size_t n = 1, done = 0; !done; n++) {
		if (!slice_turn(n, SLICES))
			continue;
		set_up(l, config);
		core_rig_count_allocations(&l->rig, n);
		live(l);
		all = core_rig_allocations(&l->rig);
		done = all < n;
		tear_down(l);
	}
	assert_true(all > 100);
	free(l);
}

static void sweep_requests(live_fn *live, const struct core_rig_config *config, int error)
{
	struct life *l = calloc(1, sizeof(*l));
	unsigned all;

	for (unsigned n = 1, done = 0; !done; n++) {
		if (!slice_turn(n, SLICES))
			continue;
		set_up(l, config);
		l->rig.fault.fail_at = n;
		l->rig.fault.fail_error = error;
		live(l);
		all = l->rig.fault.requests;
		done = all < n;
		tear_down(l);
	}
	assert_true(all > 50);
	free(l);
}

static const struct core_rig_config whole = {.slots = 16, .keep_last = 2};
/* The shard has more blocks than staging has. */
static const struct core_rig_config little = {.keep_last = 2};
/* Chunks larger than a block. */
static const struct core_rig_config small = {.block_bytes = 8192, .slots = 64, .chunk_bytes = 8192};

static void test_no_memory(void **state)
{
	(void)state;
	sweep_allocations(train, &whole);
	sweep_allocations(train, &little);
}

static void test_no_memory_for_damage(void **state)
{
	(void)state;
	sweep_allocations(doubt, &whole);
	sweep_allocations(doubt, &small);
}

static void test_bad_disk(void **state)
{
	(void)state;
	sweep_requests(train, &whole, -EIO);
	sweep_requests(train, &little, -EIO);
	sweep_requests(train, &little, -ENOENT);
}

static void test_bad_disk_for_damage(void **state)
{
	(void)state;
	sweep_requests(doubt, &whole, -EIO);
	sweep_requests(doubt, &small, -EIO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_no_memory_for_damage),
		cmocka_unit_test(test_bad_disk),
		cmocka_unit_test(test_bad_disk_for_damage),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
