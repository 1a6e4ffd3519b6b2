/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what is odd, damaged, or fails on the way: into memory, for a verification, into a store. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/shard/findings.h"
#include "engine/shard/read.h"
#include "lib/core_scene.h"
#include "lib/scratch.h"

#define BYTES 65000
#define SHARD ".safetensors"

static int set_up(void **state)
{
	(void)core_scene_set_up(state);
	struct core_scene *s = *state;

	s->step = fixture_one(s->dir, fixture_bytes(BYTES));
	s->step.chunk_bytes = 8192;
	fixture_begin(s->dir);
	return 0;
}

/* The step as it is described now, and a rig with blocks of 8 KiB. */
static void commit(struct core_scene *s)
{
	fixture_commit(&s->step);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .block_bytes = 8192});
}

static unsigned add(struct core_scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static int read_into(struct core_scene *s, enum ckpt_restore_sink sink)
{
	return core_rig_read(&s->rig, s->step.step, sink);
}

static int export(struct core_scene *s)
{
	return core_rig_export(&s->rig, s->step.step, scratch_join(s->dir, "copy"));
}

/* The copy is a store, and its step good. */
static void check_copy(struct core_scene *s)
{
	struct core_rig copy;

	core_rig_open(&copy,
		&(struct core_rig_config){.dir = scratch_join(s->dir, "copy"), .read_only = true});
	assert_int_equal(core_rig_read(&copy, CKPT_STEP_LATEST, CKPT_SINK_NONE), 0);
	assert_int_equal(core_rig_read(&copy, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
	core_rig_close(&copy);
}

/* A header that is longer than a block; tensors without a byte, and perhaps one with some. */
static void long_header(struct core_scene *s, size_t count)
{
	static struct ckpt_tensor tensors[301];
	static char names[301][64];
	static const int64_t none[] = {0, 7};

	for (size_t i = 0; i < count; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "an.empty.tensor.%03zu", i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = none};
	}
	if (count == COUNT(tensors))
		tensors[300] = *fixture_bytes(BYTES);
	s->step.tensors = tensors;
	s->step.count = count;
	commit(s);
	assert_int_equal(read_into(s, CKPT_SINK_MEMORY), 0);
	assert_int_equal(read_into(s, CKPT_SINK_NONE), 0);
	assert_int_equal(export(s), 0);
	check_copy(s);
}

static void test_nothing_but_header(void **state)
{
	long_header(*state, 300);
}

static void test_long_header(void **state)
{
	long_header(*state, 301);
}

/* Chunks larger than the blocks of this engine are read through memory of their own. */
static void test_large_chunks(void **state)
{
	struct core_scene *s = *state;

	s->step.chunk_bytes = 20000;
	commit(s);
	assert_int_equal(read_into(s, CKPT_SINK_MEMORY), 0);
	assert_int_equal(read_into(s, CKPT_SINK_NONE), 0);
	assert_int_equal(export(s), 0);
	check_copy(s);
	scratch_flip(fixture_shard(&s->step, 0), 50000);
	assert_int_equal(read_into(s, CKPT_SINK_NONE), CKPT_EINTEGRITY);
}

/* A format allows what no reader wants to hold in memory. */
static void test_too_large_chunks(void **state)
{
	struct core_scene *s = *state;

	s->step.chunk_bytes = CKPT_SHARD_READ_CHUNK_MAX + UINT64_C(1);
	commit(s);
	assert_int_equal(read_into(s, CKPT_SINK_MEMORY), CKPT_EUNSUPPORTED);
	assert_non_null(strstr(s->rig.err.message, "this version reads up to"));
	assert_int_not_equal(access(fixture_quarantine(&s->step), F_OK), 0);
}

/* Of several failures the one at the lowest offset is told, in whatever order they come. */
static void lowest(struct core_scene *s, unsigned late)
{
	uint64_t header;

	commit(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = SHARD,
		       .nth = late,
		       .error = -EIO,
		       .late = true,
		       .hold = true});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 3 - late, .error = -EIO});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	char *memory = malloc(BYTES);
	struct ckpt_target target = {.size = sizeof(target), .name = "w", .data = memory};
	header = ckpt_restore_index(r)->layout->header_bytes;
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), -EIO);
	assert_int_equal(s->rig.err.offset, header);
	assert_string_equal(s->rig.err.tensor, "w");
	free(memory);
}

static void test_lowest_comes_last(void **state)
{
	lowest(*state, 1);
}

static void test_lowest_comes_first(void **state)
{
	lowest(*state, 2);
}

/* A verification that was cancelled keeps nothing of what comes back later. */
static void test_cancelled_verification(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	/* The header is read first. */
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = SHARD,
		       .nth = 2,
		       .count = 2,
		       .error = -EIO,
		       .late = true,
		       .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_int_equal(ckpt_restore_failure(r)->code, -ECANCELED);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
}

/* Cancelled, and then let go of, while bytes are on their way into memory: told once they have come. */
static void test_cancelled_twice(void **state)
{
	struct core_scene *s = *state;
	char *memory = malloc(BYTES);
	struct ckpt_target target = {.size = sizeof(target), .name = "w", .data = memory};

	commit(s);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	s->rig.hold_jobs = true;
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	/* What is wanted is put in order; the digests; then the copies wait. */
	for (int i = 0; i < 2; i++) {
		core_rig_do_jobs(&s->rig);
		core_rig_run(&s->rig);
	}
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_false(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
	ckpt_restore_post_release(r);
	core_rig_run(&s->rig);
	assert_false(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_failure(r)->code, -ECANCELED);
	ckpt_restore_unref(r);
	free(memory);
}

/* Cancelled while a manifest is read that turns out to be damaged. */
static void test_cancelled_at_the_manifest(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	scratch_flip(fixture_manifest(&s->step), 30);
	/* The scan opens it, the lock does, and then whoever reads it. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "manifest.json", .nth = 3, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
}

/* More is wrong than is kept: the first thousand are, and the rest is not read. */
static void test_too_many_findings(void **state)
{
	struct core_scene *s = *state;

	s->step.chunk_bytes = 50;
	commit(s);
	for (long at = 0; at < BYTES; at += 50)
		scratch_flip(fixture_shard(&s->step, 0), at);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), CKPT_FINDINGS_MAX);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
}

/* The last that is kept is a header: what comes after it is not read. */
static void test_last_finding(void **state)
{
	struct core_scene *s = *state;
	const char *shard;
	struct ckpt_restore *r;

	s->step.chunk_bytes = 50;
	s->step.world = 3;
	commit(s);
	shard = fixture_shard(&s->step, 0);
	r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	/* Chunks of the tensor begin where the header ends. */
	FILE *f = fopen(shard, "rb");
	unsigned char length[8];
	assert_int_equal(fread(length, 1, 8, f), 8);
	(void)fclose(f);
	long header = 8 + length[0] + 256L * length[1];
	for (long i = 0; i < CKPT_FINDINGS_MAX - 1; i++)
		scratch_flip(shard, header + 50 * i);
	scratch_flip(fixture_shard(&s->step, 1), 20);
	scratch_flip(fixture_shard(&s->step, 1), header);
	unsigned reads = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
					.path = fixture_shard_name(&s->step, 1),
					.nth = IO_FAULT_ALWAYS});
	unsigned next = add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
				       .path = fixture_index_name(&s->step, 2),
				       .nth = IO_FAULT_ALWAYS});
	r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), CKPT_FINDINGS_MAX);
	assert_int_equal(s->rig.fault.seen[next], 0);
	const struct ckpt_finding *last = ckpt_restore_finding(r, CKPT_FINDINGS_MAX - 1);
	assert_int_equal(last->rank, 1);
	assert_int_equal(last->error.offset, 0);
	assert_int_equal(s->rig.fault.seen[reads], 1);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
}

static void other_index(struct ckpt_manifest *manifest)
{
	manifest->ranks[0].index_digest = manifest->ranks[1].index_digest;
	manifest->ranks[0].index_bytes = manifest->ranks[1].index_bytes;
}

/* An index in its place that is whole, and another rank's. */
static void test_index_of_another_rank(void **state)
{
	struct core_scene *s = *state;

	s->step.world = 2;
	fixture_commit(&s->step);
	fixture_edit(&s->step, other_index);
	assert_int_equal(rename(fixture_index(&s->step, 1), fixture_index(&s->step, 0)), 0);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir});
	assert_int_equal(read_into(s, CKPT_SINK_NONE), CKPT_EFORMAT);
	assert_non_null(strstr(s->rig.err.message, "of rank 1, the manifest"));
	s->step.world = 1;
}

static void other_size(struct ckpt_manifest *manifest)
{
	manifest->ranks[0].shard_bytes++;
}

static void test_index_of_another_size(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	fixture_edit(&s->step, other_size);
	assert_int_equal(read_into(s, CKPT_SINK_MEMORY), CKPT_EFORMAT);
	assert_non_null(strstr(s->rig.err.message, "the manifest"));
}

/* Something else stands where a file was: the file is missing, and it is said what is there. */
static void test_no_files(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = SHARD, .error = -EISDIR});
	assert_int_equal(read_into(s, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
	assert_non_null(strstr(s->rig.err.message, "but something else"));
	io_fault_clear(&s->rig.fault);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = fixture_index_name(&s->step, 0),
		       .error = -ELOOP});
	assert_int_equal(read_into(s, CKPT_SINK_NONE), CKPT_EINCOMPLETE);
	assert_non_null(strstr(s->rig.err.message, "but something else"));
}

/* Step 0 is a step. */
static void test_step_zero(void **state)
{
	struct core_scene *s = *state;

	s->step.step = 0;
	commit(s);
	scratch_flip(fixture_shard(&s->step, 0), 30000);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 0, CKPT_SINK_NONE, NULL);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(ckpt_restore_finding(r, 0)->step, 0);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
}

/* The disk fails: while the header is read, while the copy is made, while it is written. */
static void test_header_unreadable(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = SHARD, .error = -EIO});
	assert_int_equal(read_into(s, CKPT_SINK_NONE), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot read"));
}

static void test_copy_not_made(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = SHARD, .nth = 2, .error = -ENOSPC});
	assert_int_equal(export(s), -ENOSPC);
	assert_null(scratch_find(scratch_join(s->dir, "copy"), "manifest.json"));
}

static void test_copy_not_written(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = 3, .error = -EIO});
	assert_int_equal(export(s), -EIO);
	assert_null(scratch_find(scratch_join(s->dir, "copy"), "manifest.json"));
}

/* Of two ranks the first could not be made durable: that the second could helps nobody. */
static void test_copy_not_synced(void **state)
{
	struct core_scene *s = *state;

	s->step.world = 2;
	commit(s);
	unsigned syncs =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_FDATASYNC, .path = "rank-00000.", .error = -EIO});
	assert_int_equal(export(s), -EIO);
	assert_int_equal(s->rig.fault.hits[syncs], 1);
	assert_null(scratch_find(scratch_join(s->dir, "copy"), "manifest.json"));
}

static void test_copy_not_published(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	unsigned writes =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_WRITE, .path = "manifest.json", .error = -EIO});
	assert_int_equal(export(s), -EIO);
	assert_int_equal(s->rig.fault.hits[writes], 1);
	assert_null(scratch_find(scratch_join(s->dir, "copy"), "manifest.json"));
}

/* Of a destination that has the step already one shard is opened: its own. */
static void test_copy_is_there(void **state)
{
	struct core_scene *s = *state;

	commit(s);
	assert_int_equal(export(s), 0);
	unsigned opened =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_OPEN, .path = SHARD, .nth = IO_FAULT_ALWAYS});
	assert_int_equal(export(s), 0);
	assert_int_equal(s->rig.fault.seen[opened], 1);
	check_copy(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, core_scene_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_nothing_but_header),
		SCENE(test_long_header),
		SCENE(test_large_chunks),
		SCENE(test_too_large_chunks),
		SCENE(test_lowest_comes_last),
		SCENE(test_lowest_comes_first),
		SCENE(test_cancelled_verification),
		SCENE(test_cancelled_twice),
		SCENE(test_cancelled_at_the_manifest),
		SCENE(test_too_many_findings),
		SCENE(test_last_finding),
		SCENE(test_index_of_another_rank),
		SCENE(test_index_of_another_size),
		SCENE(test_no_files),
		SCENE(test_step_zero),
		SCENE(test_header_unreadable),
		SCENE(test_copy_not_made),
		SCENE(test_copy_not_written),
		SCENE(test_copy_is_there),
		SCENE(test_copy_not_synced),
		SCENE(test_copy_not_published),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
