/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exporting the files of some ranks: whatever fails on the way, and wherever it is killed, the destination holds
 * whole ranks and is without the others; it is never damaged, and the same again completes it.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define WORLD 3
#define WIDE  3000

struct scene {
	char *dir;
	char *dest;
	struct core_rig rig;
	struct core_rig there;
	struct fixture_step step;
	struct fixture_rank ranks[WORLD];
	struct ckpt_tensor tensors[WORLD];
	float own[WORLD][WIDE];
};

static const int64_t shape[1] = {WIDE};
static const char *const names[WORLD] = {"own.0", "own.1", "own.2"};
static const uint32_t first[] = {0};
static const uint32_t second[] = {1};
static const uint32_t more[] = {1, 2};
static const uint32_t all[] = {2, 0, 1, 0};

/* All ran on one node: that alone would make what is absent damage. */
static void on_one_node(struct ckpt_manifest *manifest)
{
	for (uint32_t i = 0; i < manifest->world; i++)
		manifest->ranks[i].node[0] = 'n';
}

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	for (uint32_t i = 0; i < WORLD; i++) {
		for (unsigned k = 0; k < WIDE; k++)
			s->own[i][k] = (float)(i * WIDE + k);
		s->tensors[i] = (struct ckpt_tensor){.size = sizeof(s->tensors[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = shape,
			.data = s->own[i]};
		s->ranks[i] = (struct fixture_rank){.tensors = &s->tensors[i], .count = 1};
	}
	s->dir = scratch_make_in_memory();
	s->dest = strdup(scratch_join(s->dir, "dest"));
	fixture_begin(s->dir);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.chunk_bytes = 4096,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
	fixture_edit(&s->step, on_one_node);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dir, .read_only = true});
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	free(s->dest);
	free(s);
	return 0;
}

/* Goes on until nothing moves; with a count of 0 of all ranks. NULL: without memory. */
static struct ckpt_restore *begin(struct scene *s, const uint32_t *ranks, size_t count)
{
	struct ckpt_restore *r = NULL;

	if (ckpt_restore_new(&s->rig.core, NULL, 10, CKPT_SINK_STORE, &r) < 0)
		return NULL;
	(void)mkdir(s->dest, 0777);
	int root = open(s->dest, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(root >= 0);
	if (ckpt_restore_set_dest(r, &(struct ckpt_core_place){.root = root, .label = s->dest}) <
		0) {
		(void)close(root);
		ckpt_restore_unref(r);
		return NULL;
	}
	if (count > 0 && ckpt_restore_set_dest_ranks(r, ranks, count) < 0) {
		ckpt_restore_unref(r);
		return NULL;
	}
	ckpt_restore_post_open(r);
	core_rig_run(&s->rig);
	return r;
}

/* The code that it ended with; 1: it had ended before it began. */
static int export_ranks(struct scene *s, const uint32_t *ranks, size_t count)
{
	struct ckpt_restore *r = begin(s, ranks, count);

	if (!r)
		return -ENOMEM;
	core_rig_await(&s->rig, r);
	return core_rig_end(&s->rig, r);
}

/* Which ranks are there, as bits: the others are elsewhere, and nothing is damaged. */
static unsigned look(struct scene *s)
{
	unsigned found = 0;

	core_rig_open(&s->there, &(struct core_rig_config){.dir = s->dest, .read_only = true});
	struct ckpt_restore *r = core_rig_begin(&s->there, 10, CKPT_SINK_NONE, NULL);
	core_rig_await(&s->there, r);
	for (size_t i = 0; i < ckpt_restore_finding_count(r); i++) {
		const struct ckpt_finding *f = ckpt_restore_finding(r, i);
		if (f->error.code != 0 && f->error.code != CKPT_EOTHERNODE)
			fail_msg("rank %u: %s", f->rank, f->error.message);
		if (f->error.code == 0)
			found |= 1u << f->rank;
	}
	int code = core_rig_end(&s->there, r);
	assert_int_equal(code, found ? 0 : CKPT_EOTHERNODE);
	core_rig_close(&s->there);
	return found;
}

/* Begins with nothing, or with rank 0. */
static void start_over(struct scene *s, bool added)
{
	scratch_remove(s->dest);
	s->dest = strdup(scratch_join(s->dir, "dest"));
	if (added)
		assert_int_equal(export_ranks(s, first, 1), 0);
}

static struct fixture_step step_there(const struct scene *s)
{
	struct fixture_step there = s->step;

	there.dir = s->dest;
	return there;
}

static bool has_manifest(const struct scene *s)
{
	const struct fixture_step there = step_there(s);

	return access(fixture_manifest(&there), F_OK) == 0;
}

static void check(struct scene *s, bool added, int code)
{
	unsigned found = has_manifest(s) ? look(s) : 0;

	if (code == 0)
		assert_int_equal(found, 7);
	else if (added)
		assert_true(found & 1);
	else if (found)
		assert_int_equal(found, 7);
	s->rig.fault.fail_at = 0;
	io_fault_clear(&s->rig.fault);
	assert_int_equal(export_ranks(s, all, 4), 0);
	assert_int_equal(look(s), 7);
}

static void dies_at(struct scene *s, unsigned n)
{
	io_fault_clear(&s->rig.fault);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.nth = n, .count = IO_FAULT_ALWAYS, .error = -EIO});
}

static void every_request_fails(struct scene *s, bool added, bool dies)
{
	unsigned n = 0;
	bool hit = true;

	while (hit) {
		start_over(s, added);
		n++;
		io_fault_clear(&s->rig.fault);
		if (dies) {
			dies_at(s, n);
		} else {
			s->rig.fault.requests = 0;
			s->rig.fault.fail_at = n;
			s->rig.fault.fail_error = -EIO;
		}
		int code = export_ranks(s, all, 4);
		hit = dies ? s->rig.fault.hits[0] > 0 : s->rig.fault.requests >= n;
		assert_true(code <= 0);
		check(s, added, code);
	}
	/* Marker, claim, lock, directories, three ranks, manifest. */
	assert_true(n > 40);
}

static void test_one_request_fails(void **state)
{
	every_request_fails(*state, false, false);
}

static void test_one_request_fails_adding(void **state)
{
	every_request_fails(*state, true, false);
}

/* From one request on all fail, those that would take back what was written as well. */
static void test_killed(void **state)
{
	every_request_fails(*state, false, true);
}

static void test_killed_adding(void **state)
{
	every_request_fails(*state, true, true);
}

/* What follows is about another rank: what was left of the first one is no damage then. */
static void test_killed_and_another(void **state)
{
	struct scene *s = *state;
	unsigned n = 0;
	bool hit = true;

	while (hit) {
		start_over(s, false);
		dies_at(s, ++n);
		assert_true(export_ranks(s, first, 1) <= 0);
		hit = s->rig.fault.hits[0] > 0;
		bool committed = has_manifest(s);
		io_fault_clear(&s->rig.fault);
		assert_int_equal(export_ranks(s, second, 1), 0);
		assert_int_equal(look(s), committed ? 3 : 2);
		assert_int_equal(export_ranks(s, all, 4), 0);
		assert_int_equal(look(s), 7);
	}
	assert_true(n > 20);
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;

	for (int added = 0; added < 2; added++) {
		int code = -ENOMEM;
		for (size_t n = 1; code != 0; n++) {
			start_over(s, added);
			core_rig_count_allocations(&s->rig, n);
			code = export_ranks(s, all, 4);
			(void)core_rig_allocations(&s->rig);
			assert_true(code == 0 || code == -ENOMEM);
			check(s, added, code);
		}
	}
}

/* Another export makes the store between the look for its marker and the list: that is no other thing. */
static void test_made_meanwhile(void **state)
{
	struct scene *s = *state;

	/* The first list is of the store that is read. */
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = ".", .nth = 2, .hold = true});
	struct ckpt_restore *r = begin(s, NULL, 0);
	assert_non_null(r);
	assert_int_equal(s->rig.fault.hits[0], 1);
	fixture_store(s->dest, FIXTURE_RUN);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_int_equal(look(s), 7);
}

/* Names the files of a rank there anew, as a repair does. */
static void rename_there(const struct scene *s, uint32_t rank, const char *attempt)
{
	const struct fixture_step there = step_there(s);
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, rank, attempt);
	assert_int_equal(rename(fixture_shard(&there, rank), scratch_join(s->dest, path)), 0);
	ckpt_name_index(path, 1, 10, rank, attempt);
	assert_int_equal(rename(fixture_index(&there, rank), scratch_join(s->dest, path)), 0);
}

/* A rank that was repaired there is there; what is left of one that is not wanted goes, whatever its attempt is. */
static void test_repaired_there(void **state)
{
	struct scene *s = *state;

	start_over(s, true);
	struct fixture_step there = step_there(s);
	rename_there(s, 0, "00000000000000ff");
	assert_int_equal(look(s), 1);
	assert_int_equal(export_ranks(s, first, 1), 0);
	assert_int_equal(export_ranks(s, all, 4), 0);
	assert_int_equal(look(s), 7);
	assert_int_not_equal(access(scratch_join(s->dest, fixture_shard_name(&there, 0)), F_OK), 0);
	rename_there(s, 1, "00000000000000fe");
	assert_int_equal(export_ranks(s, NULL, 0), 0);
	start_over(s, true);
	there = step_there(s);
	assert_int_equal(unlink(fixture_manifest(&there)), 0);
	scratch_put(s->dest, "/g000001/step-0000000010/rank-00002.00000000000000ff.index", "x");
	assert_int_equal(export_ranks(s, first, 1), 0);
	assert_int_equal(look(s), 1);
	assert_null(scratch_find(s->dest, "00000000000000ff.index"));
}

/*
 * Somebody else repairs the rank meanwhile. His files are taken as they are, and nothing is removed: a third one who
 * listed before may keep another file, and remove these.
 */
static void test_repaired_meanwhile(void **state)
{
	struct scene *s = *state;
	char name[512];
	char shard[512];
	char index[512];

	start_over(s, true);
	assert_int_equal(export_ranks(s, second, 1), 0);
	const struct fixture_step there = step_there(s);
	(void)snprintf(shard, sizeof(shard), "%s", scratch_join(s->dir, "kept.shard"));
	(void)snprintf(index, sizeof(index), "%s", scratch_join(s->dir, "kept.index"));
	assert_int_equal(rename(fixture_shard(&there, 1), shard), 0);
	assert_int_equal(rename(fixture_index(&there, 1), index), 0);
	(void)snprintf(name, sizeof(name), "/%s", fixture_index_name(&there, 1));
	scratch_put(s->dest, name, "x");
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = "gens", .hold = true});
	struct ckpt_restore *r = begin(s, second, 1);
	assert_non_null(r);
	assert_int_equal(s->rig.fault.hits[0], 1);
	ckpt_name_shard(name, 1, 10, 1, "00000000000000ff");
	assert_int_equal(rename(shard, scratch_join(s->dest, name)), 0);
	ckpt_name_index(name, 1, 10, 1, "00000000000000ff");
	assert_int_equal(rename(index, scratch_join(s->dest, name)), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_int_equal(access(scratch_join(s->dest, name), F_OK), 0);
	assert_int_equal(access(scratch_join(s->dest, fixture_index_name(&there, 1)), F_OK), 0);
	assert_int_equal(look(s), 3);
}

/* There is no room to repair a rank of a step that is there: what is good of it is not given up for that. */
static void test_no_room_to_repair(void **state)
{
	struct scene *s = *state;

	start_over(s, true);
	const struct fixture_step there = step_there(s);
	assert_int_equal(truncate(fixture_shard(&there, 0), 5000), 0);
	(void)io_fault_add(
		&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC});
	assert_int_equal(export_ranks(s, first, 1), -ENOSPC);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(access(fixture_shard(&there, 0), F_OK), 0);
	assert_int_equal(access(fixture_index(&there, 0), F_OK), 0);
	assert_int_equal(export_ranks(s, first, 1), 0);
	assert_int_equal(look(s), 1);
}

/* An old file that cannot be removed is no reason to take back what is whole now. */
static void test_old_file_stays(void **state)
{
	struct scene *s = *state;
	char index[512];

	for (int added = 0; added < 2; added++) {
		start_over(s, true);
		const struct fixture_step there = step_there(s);
		(void)snprintf(index, sizeof(index), "%s", fixture_index(&there, 0));
		assert_int_equal(truncate(index, 100), 0);
		if (!added)
			assert_int_equal(unlink(fixture_manifest(&there)), 0);
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
							  .path = "rank-00000",
							  .count = IO_FAULT_ALWAYS,
							  .error = -EIO});
		assert_int_equal(export_ranks(s, first, 1), 0);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "old files of rank 0"));
		assert_int_equal(access(index, F_OK), 0);
		assert_int_equal(look(s), 1);
	}
}

/* What is to be added to goes meanwhile: it comes back, of what was asked for. */
static void test_removed_meanwhile(void **state)
{
	struct scene *s = *state;

	start_over(s, true);
	const struct fixture_step there = step_there(s);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LOCK, .path = "gens", .hold = true});
	struct ckpt_restore *r = begin(s, more, 2);
	assert_non_null(r);
	assert_int_equal(s->rig.fault.hits[0], 1);
	assert_int_equal(unlink(fixture_manifest(&there)), 0);
	assert_int_equal(unlink(fixture_index(&there, 0)), 0);
	assert_int_equal(unlink(fixture_shard(&there, 0)), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_int_equal(look(s), 6);
}

/* It is marked for removal meanwhile: what is written then would go with it. */
static void test_marked_meanwhile(void **state)
{
	struct scene *s = *state;

	for (int added = 0; added < 2; added++) {
		start_over(s, added);
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LOCK, .path = "gens", .hold = true});
		struct ckpt_restore *r = begin(s, more, 2);
		assert_non_null(r);
		assert_int_equal(s->rig.fault.hits[0], 1);
		scratch_put(s->dest, "/g000001/step-0000000010.tombstone", "x");
		core_rig_let_go(&s->rig);
		assert_int_equal(core_rig_end(&s->rig, r), -EBUSY);
		const struct fixture_step there = step_there(s);
		assert_int_equal(access(fixture_shard(&there, 1), F_OK), -1);
	}
}

/* Whoever brought it may have died with the names not on the disk yet: this export says that it is there. */
static void test_what_is_there_is_made_durable(void **state)
{
	static const char *const dirs[] = {"step-0000000010", "gens"};
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(dirs); i++) {
		start_over(s, true);
		const struct fixture_step there = step_there(s);
		/* Its claim is looked at only where the step is not. */
		if (i == 1)
			assert_int_equal(unlink(fixture_manifest(&there)), 0);
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_SYNC_DIR, .path = dirs[i], .error = -EIO});
		assert_int_equal(export_ranks(s, first, 1), -EIO);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_int_equal(export_ranks(s, first, 1), 0);
		assert_int_equal(look(s), 1);
	}
}

/*
 * Where the manifest is there a power cut must not leave an index whose shard has no name. The old files stay until the
 * new ones are durable, which have an attempt of their own.
 */
static void test_names_in_order(void **state)
{
	struct scene *s = *state;

	start_over(s, true);
	const struct fixture_step there = step_there(s);
	assert_int_equal(export_ranks(s, second, 1), 0);
	/* After what is there: the new shard, the new index. */
	for (unsigned nth = 2; nth <= 3; nth++) {
		char shard[512];
		char index[512];

		(void)snprintf(shard, sizeof(shard), "%s", fixture_shard(&there, 1));
		(void)snprintf(index, sizeof(index), "%s", fixture_index(&there, 1));
		scratch_flip(shard, 5000);
		assert_int_equal(truncate(index, 100), 0);
		io_fault_clear(&s->rig.fault);
		(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR,
							  .path = "step-0000000010",
							  .nth = nth,
							  .hold = true});
		struct ckpt_restore *r = begin(s, second, 1);
		assert_non_null(r);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_int_equal(access(shard, F_OK), 0);
		assert_int_equal(access(index, F_OK), 0);
		core_rig_let_go(&s->rig);
		assert_int_equal(core_rig_end(&s->rig, r), 0);
		assert_int_equal(access(shard, F_OK), -1);
		assert_int_equal(access(index, F_OK), -1);
		assert_int_equal(look(s), 3);
	}
}

/* What was added is taken back, but never the shard of an index that may be there. */
static void test_taken_back_in_order(void **state)
{
	struct scene *s = *state;

	for (unsigned removed = 0; removed < 2; removed++) {
		start_over(s, true);
		const struct fixture_step there = step_there(s);
		io_fault_clear(&s->rig.fault);
		/* That of the new index, and what follows its removal. */
		(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_SYNC_DIR,
							  .path = "step-0000000010",
							  .nth = 3,
							  .count = 1 + removed,
							  .error = -EIO});
		if (!removed)
			(void)io_fault_add(
				&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK,
						       .path = "rank-00001",
						       .nth = 1,
						       .error = -EIO});
		assert_int_equal(export_ranks(s, second, 1), -EIO);
		assert_int_equal(s->rig.fault.hits[0], 1 + removed);
		assert_int_equal(access(fixture_shard(&there, 1), F_OK), 0);
		assert_int_equal(look(s), removed ? 1 : 3);
	}
}

/* What cannot be read just now may be good: it stays, and is not copied again. */
static void test_not_to_be_read(void **state)
{
	struct scene *s = *state;
	/* `nth`: it is opened to be checked, and the index where it comes from is. */
	static const struct {
		bool index;
		unsigned nth;
		bool indexed;
	} cases[] = {{true, 3, true}, {false, 2, true}, {false, 1, false}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct stat before;
		struct stat after;
		start_over(s, true);
		const struct fixture_step there = step_there(s);
		assert_int_equal(stat(fixture_shard(&there, 0), &before), 0);
		if (!cases[i].indexed)
			assert_int_equal(unlink(fixture_index(&there, 0)), 0);
		io_fault_clear(&s->rig.fault);
		const char *path = cases[i].index ? fixture_index_name(&there, 0)
						  : fixture_shard_name(&there, 0);
		(void)io_fault_add(&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN,
							  .path = path,
							  .nth = cases[i].nth,
							  .error = -EACCES});
		assert_int_equal(export_ranks(s, all, 4), -EACCES);
		assert_int_equal(s->rig.fault.hits[0], 1);
		assert_int_equal(stat(fixture_shard(&there, 0), &after), 0);
		assert_int_equal(before.st_ino, after.st_ino);
		io_fault_clear(&s->rig.fault);
		assert_int_equal(export_ranks(s, all, 4), 0);
		assert_int_equal(look(s), 7);
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_one_request_fails),
		TEST(test_one_request_fails_adding),
		TEST(test_killed),
		TEST(test_killed_adding),
		TEST(test_killed_and_another),
		TEST(test_no_memory),
		TEST(test_made_meanwhile),
		TEST(test_removed_meanwhile),
		TEST(test_repaired_there),
		TEST(test_repaired_meanwhile),
		TEST(test_no_room_to_repair),
		TEST(test_old_file_stays),
		TEST(test_marked_meanwhile),
		TEST(test_what_is_there_is_made_durable),
		TEST(test_names_in_order),
		TEST(test_taken_back_in_order),
		TEST(test_not_to_be_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
