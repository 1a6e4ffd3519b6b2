/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a store and claiming a generation: who may, who may not, and what they are told. */
#include "lib/test.h"

#include "engine/lineage/lineage.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define OTHER_RUN "fedcba9876543210fedcba9876543210"
#define ALWAYS    IO_FAULT_ALWAYS

struct scene {
	char *dir;
	struct core_rig rig;
	struct core_rig_config config;
};

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	s->config.dir = s->dir;
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

static struct fixture_step fixture(struct scene *s, uint64_t step)
{
	struct fixture_step made = fixture_one(s->dir, fixture_floats(100));

	made.step = step;
	fixture_begin(s->dir);
	fixture_commit(&made);
	return made;
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

/* One claim for one core: the second call says what the first one claimed. */
static void test_twice(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 1);
	assert_int_not_equal(access(scratch_join(s->dir, "gens/000002.json"), F_OK), 0);
	core_rig_close(&s->rig);
}

static void test_read_only(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	s->config.read_only = true;
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), -EROFS);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), -EROFS);
	assert_int_equal(core_rig_remove(&s->rig, 10), -EROFS);
	core_rig_close(&s->rig);
}

/* A rank that only reads claims nothing, be it rank 0, and tells the others nothing of it. */
static void test_read_only_ranks(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	s->config.read_only = true;
	s->config.world = 2;
	for (s->config.rank = 0; s->config.rank < 2; s->config.rank++) {
		core_rig_open(&s->rig, &s->config);
		assert_int_equal(core_rig_claim(&s->rig), -EROFS);
		assert_non_null(strstr(s->rig.err.message, "was opened read only"));
		assert_int_equal(s->rig.core.lineage->claim_tries, 0);
		core_rig_close(&s->rig);
	}
	assert_int_not_equal(access(scratch_join(s->dir, "exchange"), F_OK), 0);
	assert_int_not_equal(access(scratch_join(s->dir, "gens/000002.json"), F_OK), 0);
}

/* A commit that could not be read may be one to resume from: not known is not none. */
static void test_unreadable_commit(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_make(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -EIO,
		       .count = ALWAYS});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot be read"));
	core_rig_close(&s->rig);
}

/* A commit that is damaged may be what is to be resumed; one of a branch that was left is not. */
static void test_damaged_commit(void **state)
{
	struct scene *s = *state;
	struct fixture_step step = fixture(s, 10);

	scratch_flip(fixture_manifest(&step), 20);
	fixture_abort(s->dir, 1, 5);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_ENOTRESUMED);
	assert_non_null(strstr(s->rig.err.message, "is damaged"));
	core_rig_close(&s->rig);
	fixture_claim(s->dir, FIXTURE_RUN, 2, 0, 0);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_close(&s->rig);
}

/* What it is told to resume is of the generation whose claim is damaged: that comes first. */
static void test_commit_after_damaged_claim(void **state)
{
	struct scene *s = *state;
	struct fixture_step step = fixture(s, 10);

	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 10);
	step.generation = 2;
	step.step = 20;
	fixture_commit(&step);
	scratch_flip(scratch_join(s->dir, "gens/000002.json"), 20);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_ENOTRESUMED);
	assert_non_null(strstr(s->rig.err.message, "the newest of step 20"));
	core_rig_close(&s->rig);
}

/* Steps go on after the one that was resumed from. */
static void test_order_after_resume(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 10), CKPT_ESTEP);
	assert_int_equal(core_rig_save(&s->rig, 11), 0);
	core_rig_close(&s->rig);
}

/* The step to go on from has been removed by somebody else: nothing is claimed. */
static void test_parent_removed(void **state)
{
	struct scene *s = *state;
	struct fixture_step step = fixture(s, 10);

	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	assert_int_equal(rename(fixture_manifest(&step), scratch_join(s->dir, "away")), 0);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	assert_non_null(strstr(s->rig.err.message, "was deleted meanwhile"));
	assert_int_not_equal(access(scratch_join(s->dir, "gens/000002.json"), F_OK), 0);
	assert_int_equal(rename(scratch_join(s->dir, "away"), fixture_manifest(&step)), 0);
	/* One that cannot be read is there. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000010/manifest.json", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(s->rig.core.lineage->generation, 2);
	core_rig_close(&s->rig);
}

static void test_last_number(void **state)
{
	struct scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	fixture_claim(s->dir, FIXTURE_RUN, CKPT_GENERATION_MAX, 0, 0);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), -ERANGE);
	assert_non_null(strstr(s->rig.err.message, "is the last possible one"));
	core_rig_close(&s->rig);
}

/* What could fail for want of memory fails before anything is claimed. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	size_t n = 0;
	int r;

	core_rig_open(&s->rig, &s->config);
	do {
		core_rig_count_allocations(&s->rig, ++n);
		r = core_rig_claim(&s->rig);
		(void)core_rig_allocations(&s->rig);
		assert_int_equal(s->rig.core.lineage->generation, r == 0 ? 1 : 0);
	} while (r == -ENOMEM);
	assert_int_equal(r, 0);
	assert_true(n > 3);
	core_rig_close(&s->rig);
}

/* A directory whose claim is gone keeps its number; the place of a try that failed is free. */
static void test_next_number(void **state)
{
	struct scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	assert_int_equal(mkdir(scratch_join(s->dir, "g000003"), 0777), 0);
	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "gens/", .error = -EIO, .count = 2});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	/* What the first try left may show itself after the second one: it is known by its nonce. */
	uint64_t nonce = s->rig.core.lineage->tried_nonce;
	assert_int_not_equal(nonce, 0);
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_int_equal(s->rig.core.lineage->tried_nonce, nonce);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 4);
	core_rig_close(&s->rig);
}

/* The storage hangs: the next one who asks is told at once. */
static void test_claim_under_way(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = "gens", .hold = true});
	assert_int_equal(core_rig_claim(&s->rig), 1);
	assert_int_equal(core_rig_claim(&s->rig), -EBUSY);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 1);
	core_rig_close(&s->rig);
}

/* A claim whose sync failed may be there: it is passed, not taken for a stranger's. */
static void test_own_try(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "gens", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 2);
	core_rig_close(&s->rig);
}

/* Whose claim it is that is in the way cannot be read: this is not known to be another's. */
static void test_own_try_unreadable(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR, .path = "gens", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "gens/000001.json", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_close(&s->rig);
}

/* The number that this one tried was taken by another meanwhile: it is another's. */
static void taken(struct scene *s, bool damaged)
{
	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "gens/", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	fixture_claim(s->dir, s->rig.core.lineage->marker.run_id, 1, 0, 0);
	if (damaged)
		scratch_flip(scratch_join(s->dir, "gens/000001.json"), 20);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	assert_non_null(strstr(s->rig.err.message, "another process claimed generation 1"));
	core_rig_close(&s->rig);
}

static void test_number_taken(void **state)
{
	taken(*state, false);
}

static void test_number_taken_and_damaged(void **state)
{
	taken(*state, true);
}

/* Whoever won has cleared the loser's temporary name away. */
static void test_lost_race(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "gens/", .error = -ENOENT});
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .path = "gens/", .error = -EEXIST});
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	core_rig_close(&s->rig);
}

/* A live holder is seen by its lock, whatever its claim looks like now. */
static void test_held(void **state)
{
	struct scene *s = *state;
	struct core_rig other;

	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	core_rig_make(&other, &s->config);
	assert_int_equal(core_rig_open_store(&other), CKPT_EINUSE);
	assert_non_null(strstr(other.err.message, "node rig"));
	core_rig_close(&other);

	scratch_flip(scratch_join(s->dir, "gens/000001.json"), 20);
	core_rig_make(&other, &s->config);
	assert_int_equal(core_rig_open_store(&other), CKPT_EINUSE);
	assert_non_null(strstr(other.err.message, "node unknown"));
	core_rig_close(&other);

	/* It goes away between the look at its lock and the scan. */
	core_rig_make(&other, &s->config);
	(void)io_fault_add(&other.fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
						 .path = "gens/000001.json",
						 .nth = 2,
						 .error = -ENOENT});
	assert_int_equal(core_rig_open_store(&other), CKPT_EINUSE);
	assert_non_null(strstr(other.err.message, "node unknown"));
	core_rig_close(&other);
	core_rig_close(&s->rig);
}

/* What cannot be read beside the way is not why the store cannot be had. */
static void test_held_and_unreadable(void **state)
{
	struct scene *s = *state;
	struct core_rig other;
	const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_OPEN, .path = "quarantine.json", .error = -EIO},
		{.op = CKPT_IO_OP_READ, .path = "000001/manifest.json", .error = -EIO},
	};

	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(core_rig_save(&s->rig, 1), 0);
	for (size_t i = 0; i < CKPT_COUNT(rules); i++) {
		core_rig_make(&other, &s->config);
		(void)io_fault_add(&other.fault, rules[i]);
		assert_int_equal(core_rig_open_store(&other), CKPT_EINUSE);
		assert_int_equal(other.fault.hits[0], 1);
		assert_non_null(strstr(other.err.message, "node rig"));
		core_rig_close(&other);
	}
	core_rig_close(&s->rig);
}

/* A claim that vanishes before it is locked is nobody's. */
static void test_claim_vanishes(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_make(&s->rig, &s->config);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "gens/000001.json", .error = -ENOENT});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 1);
	core_rig_close(&s->rig);
}

/* It has not been seen, and is there: nobody is told that it was lost. */
static void test_claim_not_seen(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_make(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "gens/000001.json",
		       .nth = 2,
		       .error = -ENOENT});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	assert_non_null(strstr(s->rig.err.message, "another process claimed generation 1"));
	core_rig_close(&s->rig);
}

/* What another one has claimed and saved meanwhile is read, and known to be bad: that is still another's. */
static void test_bad_step_of_another(void **state)
{
	struct scene *s = *state;

	fixture_store(s->dir, FIXTURE_RUN);
	core_rig_open(&s->rig, &s->config);
	struct fixture_step step = fixture(s, 10);
	scratch_flip(fixture_shard(&step, 0), 4100);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	assert_non_null(strstr(s->rig.err.message, "another process claimed generation 1"));
	core_rig_close(&s->rig);
}

/* One that was lost is missed, whoever looks and however often. */
static void test_claim_lost(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	assert_int_equal(unlink(scratch_join(s->dir, "gens/000001.json")), 0);
	core_rig_open(&s->rig, &s->config);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(core_rig_claim(&s->rig), CKPT_EINCOMPLETE);
		assert_non_null(strstr(s->rig.err.message,
			"gens/000001.json is missing, though step 10 was committed"));
		assert_string_equal(s->rig.err.file, "gens/000001.json");
	}
	core_rig_close(&s->rig);
	/* Whoever starts anew does not need to know. */
	s->config.new_start = true;
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 2);
	core_rig_close(&s->rig);
}

/* Generations without the marker that names their run: another one would make strangers of them. */
static void test_marker_lost(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	assert_int_equal(unlink(scratch_join(s->dir, "ckpt.json")), 0);
	core_rig_make(&s->rig, &s->config);
	assert_int_equal(core_rig_open_store(&s->rig), CKPT_EINCOMPLETE);
	core_rig_close(&s->rig);
	assert_int_not_equal(access(scratch_join(s->dir, "ckpt.json"), F_OK), 0);
}

/* A claim of a newer format may say anything: nobody guesses. */
static void test_newer_claim(void **state)
{
	struct scene *s = *state;
	static const char text[] = "{\"format\":[9,0],\"kind\":\"claim\"";
	struct ckpt_buf buf = {0};

	fixture(s, 10);
	ckpt_buf_put(&buf, text, strlen(text));
	fixture_seal(&buf, scratch_join(s->dir, "gens/000002.json"));
	core_rig_make(&s->rig, &s->config);
	assert_int_equal(core_rig_open_store(&s->rig), CKPT_EVERSION);
	core_rig_close(&s->rig);
}

/* A claim that was copied from another generation or another run says nothing about this one. */
static void copied_claim(struct scene *s, const char *run, uint64_t generation)
{
	struct fixture_step step = fixture(s, 10);
	char from[512];

	fixture_claim(s->dir, run, generation, 0, 0);
	(void)snprintf(
		from, sizeof(from), "%s/gens/%06llu.json", s->dir, (unsigned long long)generation);
	if (generation != 2)
		assert_int_equal(rename(from, scratch_join(s->dir, "gens/000002.json")), 0);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "gens/000002.json does not verify"));
	assert_int_equal(core_rig_remove(&s->rig, step.step), CKPT_EINTEGRITY);
	core_rig_close(&s->rig);
}

static void test_claim_of_another_generation(void **state)
{
	copied_claim(*state, FIXTURE_RUN, 3);
}

static void test_claim_of_another_run(void **state)
{
	copied_claim(*state, OTHER_RUN, 2);
}

/* What others have put beside the library's files is theirs. */
static void test_strange_names(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	assert_int_equal(mkdir(scratch_join(s->dir, "g000001/notes"), 0777), 0);
	assert_int_equal(mkdir(scratch_join(s->dir, "lost+found"), 0777), 0);
	assert_int_equal(mkdir(scratch_join(s->dir, "gens/old"), 0777), 0);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 1);
	assert_int_equal(core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), 0);
	core_rig_close(&s->rig);
}

/* A generation's directory that goes away while it is read holds no steps. */
static void test_directory_vanishes(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_make(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = "g000001", .error = -ENOENT});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->scan.step_count, 0);
	core_rig_close(&s->rig);
}

/* The store of another node holds commits that this one does not: to start beside them would be to lose them. */
static void test_commits_elsewhere(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	s->rig.core.lineage->elsewhere = true;
	assert_int_equal(core_rig_claim(&s->rig), CKPT_ENOTRESUMED);
	assert_non_null(strstr(s->rig.err.message, "another node"));
	core_rig_close(&s->rig);
	/* What is wrong here comes first. */
	fixture(s, 10);
	core_rig_make(&s->rig, &s->config);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
		       .path = "manifest.json",
		       .error = -EIO,
		       .count = ALWAYS});
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	s->rig.core.lineage->elsewhere = true;
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_non_null(strstr(s->rig.err.message, "cannot be read"));
	core_rig_close(&s->rig);
}

/* A claim comes after the newest one that any node has. */
static void test_newest_elsewhere(void **state)
{
	struct scene *s = *state;

	core_rig_open(&s->rig, &s->config);
	s->rig.core.lineage->newest_elsewhere = 7;
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.core.lineage->generation, 8);
	core_rig_close(&s->rig);
}

/* That the step to go on from cannot be read is no concern of the claim's, nor of what is said when that fails. */
static void test_parent_unreadable(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_OPEN, .path = "000010/manifest.json", .error = -EIO});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_RENAME, .path = "000002.json", .error = -ENOSPC});
	assert_int_equal(core_rig_claim(&s->rig), -ENOSPC);
	assert_null(strstr(s->rig.err.message, "manifest"));
	core_rig_close(&s->rig);
}

/* Its process may have died before the name of its manifest was durable; a claim counts on it. */
static void test_parent_is_durable_first(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_SYNC_DIR, .path = "step-0000000010", .error = -EIO});
	assert_int_equal(core_rig_claim(&s->rig), -EIO);
	assert_non_null(
		strstr(s->rig.err.message, "cannot sync the directory g000001/step-0000000010"));
	assert_int_not_equal(access(scratch_join(s->dir, "gens/000002.json"), F_OK), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	assert_int_equal(s->rig.fault.seen[0], 2);
	core_rig_close(&s->rig);
}

/* Between the manifest that was read and its directory that is synced. */
static void test_parent_removed_while_it_is_synced(void **state)
{
	struct scene *s = *state;

	fixture(s, 10);
	core_rig_open(&s->rig, &s->config);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 10), 0);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_SYNC_DIR, .path = "step-0000000010", .error = -ENOENT});
	assert_int_equal(core_rig_claim(&s->rig), CKPT_EINUSE);
	assert_non_null(strstr(s->rig.err.message, "was deleted meanwhile"));
	assert_int_not_equal(access(scratch_join(s->dir, "gens/000002.json"), F_OK), 0);
	core_rig_close(&s->rig);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_twice),
		SCENE(test_read_only),
		SCENE(test_read_only_ranks),
		SCENE(test_unreadable_commit),
		SCENE(test_damaged_commit),
		SCENE(test_commit_after_damaged_claim),
		SCENE(test_order_after_resume),
		SCENE(test_parent_removed),
		SCENE(test_parent_is_durable_first),
		SCENE(test_parent_removed_while_it_is_synced),
		SCENE(test_last_number),
		SCENE(test_no_memory),
		SCENE(test_next_number),
		SCENE(test_claim_under_way),
		SCENE(test_own_try_unreadable),
		SCENE(test_own_try),
		SCENE(test_number_taken),
		SCENE(test_number_taken_and_damaged),
		SCENE(test_lost_race),
		SCENE(test_held),
		SCENE(test_held_and_unreadable),
		SCENE(test_claim_vanishes),
		SCENE(test_claim_not_seen),
		SCENE(test_bad_step_of_another),
		SCENE(test_claim_lost),
		SCENE(test_marker_lost),
		SCENE(test_newer_claim),
		SCENE(test_claim_of_another_generation),
		SCENE(test_claim_of_another_run),
		SCENE(test_strange_names),
		SCENE(test_directory_vanishes),
		SCENE(test_commits_elsewhere),
		SCENE(test_newest_elsewhere),
		SCENE(test_parent_unreadable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
