/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards that are stored in the other form: what is there afterwards, and that a step is whole whatever goes wrong, and
 * wherever it ends.
 */
#include "lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/core_rig.h"
#include "lib/encode_fixture.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "lib/slice.h"
#include "lib/store_fixture.h"

#define WORLD 2
#define WIDE  30000
#define STEP  "g000001/step-0000000010"

struct scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step step;
	struct fixture_rank ranks[WORLD];
	struct ckpt_tensor tensors[WORLD][2];
	float own[WORLD][WIDE];
	uint8_t odd[1001];
	struct ckpt_restore_recoded done; /* by the last one ... */
	struct ckpt_error err;            /* ... which has failed */
	uint64_t opened;
};

static const int64_t shape[1] = {WIDE};
static const int64_t odd_shape[1] = {1001};
static const char *const names[WORLD] = {"own.0", "own.1"};

/* Step 10: numbers that get smaller, and bytes that do not. */
static void make(struct scene *s)
{
	struct prng prng = {7};

	for (size_t i = 0; i < sizeof(s->odd); i++)
		s->odd[i] = (uint8_t)prng_next(&prng);
	for (uint32_t i = 0; i < WORLD; i++) {
		for (unsigned k = 0; k < WIDE; k++)
			s->own[i][k] = (float)(i * WIDE + k) * 1e-3f;
		s->tensors[i][0] = (struct ckpt_tensor){.size = sizeof(struct ckpt_tensor),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = shape,
			.data = s->own[i]};
		s->tensors[i][1] = (struct ckpt_tensor){.size = sizeof(struct ckpt_tensor),
			.name = "odd",
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = odd_shape,
			.data = s->odd};
		s->ranks[i] = (struct fixture_rank){.tensors = s->tensors[i], .count = 2};
	}
	s->dir = scratch_make_in_memory();
	fixture_store(s->dir, FIXTURE_RUN);
	fixture_claim(s->dir, FIXTURE_RUN, 1, 0, 0);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.chunk_bytes = 5000,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
}

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct scene));
	make(*state);
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

/* In a rig of its own, with blocks into which chunks do not fit evenly. */
static void open_rig(struct scene *s, bool read_only)
{
	core_rig_open(&s->rig,
		&(struct core_rig_config){.dir = s->dir, .align = 512, .read_only = read_only});
	/* No attempt is drawn twice. */
	s->rig.random += 1000 * ++s->opened;
}

static int recode(struct scene *s, bool encodes)
{
	struct ckpt_restore *restore = NULL;
	int r = ckpt_restore_new(&s->rig.core, NULL, 10, CKPT_SINK_RECODE, &restore);

	if (r < 0)
		return r;
	if (encodes)
		ckpt_restore_set_encodes(restore);
	ckpt_restore_post_open(restore);
	core_rig_run(&s->rig);
	core_rig_await(&s->rig, restore);
	s->done = ckpt_restore_recoded(restore);
	r = core_rig_end(&s->rig, restore);
	s->err = s->rig.err;
	return r;
}

static int recode_once(struct scene *s, bool encodes)
{
	open_rig(s, false);
	int r = recode(s, encodes);
	core_rig_close(&s->rig);
	return r;
}

/* A name that a file of the rank may have; there is one text. */
static const char *stray(const struct scene *s, uint32_t rank, const char *suffix)
{
	static char path[512];

	(void)snprintf(path, sizeof(path), "%s/" STEP "/rank-%05u.00000000000000aa%s", s->dir, rank,
		suffix);
	return path;
}

static void put_stray(const struct scene *s, uint32_t rank, const char *suffix)
{
	FILE *file = fopen(stray(s, rank, suffix), "w");

	assert_non_null(file);
	assert_true(fputs("begun", file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static struct ckpt_restore *begin(struct scene *s, bool encodes)
{
	struct ckpt_restore *restore = NULL;

	assert_int_equal(ckpt_restore_new(&s->rig.core, NULL, 10, CKPT_SINK_RECODE, &restore), 0);
	if (encodes)
		ckpt_restore_set_encodes(restore);
	ckpt_restore_post_open(restore);
	core_rig_run(&s->rig);
	return restore;
}

static void hold(struct scene *s, enum ckpt_io_op op, const char *path, unsigned nth)
{
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = op, .path = path, .nth = nth, .hold = true});
}

/* Files of the step whose names end so. */
static unsigned count(const struct scene *s, const char *suffix)
{
	DIR *dir = opendir(scratch_join(s->dir, STEP));
	struct dirent *entry;
	unsigned found = 0;

	assert_non_null(dir);
	/* One thread. */
	// NOLINTNEXTLINE(concurrency-mt-unsafe)
	while ((entry = readdir(dir))) {
		size_t length = strlen(entry->d_name);
		found += length > strlen(suffix) &&
			 strcmp(entry->d_name + length - strlen(suffix), suffix) == 0;
	}
	(void)closedir(dir);
	return found;
}

/* Each byte of it is what was saved. */
static void assert_good(struct scene *s)
{
	open_rig(s, true);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&s->rig);
}

/* Nothing but that is there of it. */
static void assert_clean(struct scene *s, bool encoded)
{
	assert_int_equal(count(s, ".encoded"), encoded ? WORLD : 0);
	assert_int_equal(count(s, ".safetensors"), encoded ? 0 : WORLD);
	assert_int_equal(count(s, ".index"), WORLD);
	assert_good(s);
}

static void encode_fixtures(struct scene *s, struct prng *prng)
{
	for (uint32_t i = 0; i < WORLD; i++)
		encode_fixture_rank(&s->step, i, prng, NULL);
}

/* There and back; what has the form already is not touched. */
static void test_both_ways(void **state)
{
	struct scene *s = *state;

	open_rig(s, false);
	assert_int_equal(recode(s, true), 0);
	assert_int_equal(s->done.ranks, WORLD);
	assert_true(s->done.bytes_after < s->done.bytes_before * 9 / 10);
	struct ckpt_restore_recoded first = s->done;
	uint64_t written = s->rig.core.store->bytes_written;
	assert_int_equal(recode(s, true), 0);
	assert_int_equal(s->done.ranks, 0);
	assert_int_equal(s->done.bytes_before, first.bytes_after);
	assert_int_equal(s->done.bytes_after, first.bytes_after);
	assert_int_equal(s->rig.core.store->bytes_written, written);
	core_rig_close(&s->rig);
	assert_clean(s, true);
	open_rig(s, false);
	assert_int_equal(recode(s, false), 0);
	assert_int_equal(s->done.ranks, WORLD);
	assert_int_equal(s->done.bytes_after, first.bytes_before);
	core_rig_close(&s->rig);
	assert_clean(s, false);
}

/* Of one that somebody else has encoded, with gaps, in another order, and with references. */
static void test_foreign(void **state)
{
	struct scene *s = *state;
	struct prng prng = {11};

	encode_fixtures(s, &prng);
	assert_int_equal(recode_once(s, true), 0);
	assert_int_equal(s->done.ranks, 0);
	assert_int_equal(recode_once(s, false), 0);
	assert_int_equal(s->done.ranks, WORLD);
	assert_clean(s, false);
}

static void test_read_only(void **state)
{
	struct scene *s = *state;

	open_rig(s, true);
	assert_int_equal(recode(s, true), -EROFS);
	core_rig_close(&s->rig);
	/* Nor by one of several ranks. */
	open_rig(s, false);
	s->rig.core.config.world = 2;
	assert_int_equal(recode(s, true), -EINVAL);
	s->rig.core.config.world = 1;
	core_rig_close(&s->rig);
	assert_clean(s, false);
}

/* A damaged rank is named, and its files stay as they are. */
static void test_damaged(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->step, 1), 60000);
	assert_int_equal(recode_once(s, true), CKPT_EINTEGRITY);
	assert_string_equal(s->err.file, fixture_shard_name(&s->step, 1));
	assert_int_equal(s->err.rank, 1);
	assert_string_equal(s->err.tensor, "own.1");
	assert_int_equal(count(s, ".encoded"), 1);
	assert_int_equal(count(s, ".safetensors"), 1);
	assert_int_equal(count(s, ".index"), WORLD);
	scratch_flip(fixture_shard(&s->step, 1), 60000);
	assert_int_equal(recode_once(s, true), 0);
	assert_int_equal(s->done.ranks, 1);
	assert_clean(s, true);
}

/* What comes back from the disk is not what was written: the old file stays. */
static void test_bad_disk(void **state)
{
	struct scene *s = *state;

	open_rig(s, false);
	hold(s, CKPT_IO_OP_OPEN, ".encoded", 2);
	struct ckpt_restore *restore = begin(s, true);
	const char *made = scratch_find(s->dir, ".encoded");
	assert_non_null(made);
	scratch_flip(made, 7);
	core_rig_let_go(&s->rig);
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "are not what was written"));
	core_rig_close(&s->rig);
	assert_clean(s, false);
}

/* The index that is there after the publishing is another one: the old one stays. */
static void test_bad_index(void **state)
{
	struct scene *s = *state;

	open_rig(s, false);
	hold(s, CKPT_IO_OP_OPEN, ".index", 3);
	/* Whose name is found by that of its shard. */
	struct ckpt_restore *restore = begin(s, true);
	char made[512];
	(void)snprintf(made, sizeof(made), "%s", scratch_find(s->dir, ".encoded"));
	(void)snprintf(strrchr(made, '.'), 7, ".index");
	scratch_flip(made, 7);
	core_rig_let_go(&s->rig);
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "though it was written just now"));
	core_rig_close(&s->rig);
	assert_clean(s, false);
}

/* One that was killed has begun a shard. It goes before the new one is created, and also where none is needed. */
static void test_begun(void **state)
{
	struct scene *s = *state;

	put_stray(s, 0, ".encoded");
	put_stray(s, 1, ".safetensors");
	open_rig(s, false);
	hold(s, CKPT_IO_OP_OPEN, ".encoded", 1);
	struct ckpt_restore *restore = begin(s, true);
	assert_int_equal(count(s, ".encoded"), 0);
	core_rig_let_go(&s->rig);
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), 0);
	core_rig_close(&s->rig);
	assert_clean(s, true);
	put_stray(s, 0, ".encoded");
	put_stray(s, 1, ".safetensors");
	assert_int_equal(recode_once(s, true), 0);
	assert_int_equal(s->done.ranks, 0);
	assert_int_equal(s->done.bytes_before, s->done.bytes_after);
	assert_clean(s, true);
}

/* One was killed before it removed the old files: the new ones are used, unless they are bad. */
static void test_finished(void **state)
{
	static const char *const bad[] = {NULL, ".encoded", ".index"};
	struct scene *s = *state;

	for (unsigned i = 0; i < 3; i++) {
		scratch_remove(s->dir);
		make(s);
		open_rig(s, false);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_UNLINK, .count = IO_FAULT_ALWAYS, .error = -EIO});
		assert_int_equal(recode(s, true), -EIO);
		core_rig_close(&s->rig);
		assert_int_equal(count(s, ".encoded"), 1);
		assert_int_equal(count(s, ".index"), WORLD + 1);
		if (bad[i]) {
			char made[512];
			(void)snprintf(made, sizeof(made), "%s", scratch_find(s->dir, ".encoded"));
			(void)snprintf(strrchr(made, '.'), 9, "%s", bad[i]);
			scratch_flip(made, 70);
		}
		assert_int_equal(recode_once(s, true), 0);
		assert_int_equal(s->done.ranks, bad[i] ? 2 : 1);
		assert_clean(s, true);
	}
}

/* What readers can read can be stored again: a shard that is bad has a good one beside it, which has no index yet. */
static void test_bad_beside_good(void **state)
{
	static const long places[] = {10, 60000};
	struct scene *s = *state;

	for (unsigned i = 0; i < 4; i++) {
		scratch_remove(s->dir);
		make(s);
		assert_true(scratch_copy(fixture_shard(&s->step, 1), stray(s, 1, ".safetensors")));
		scratch_flip(fixture_shard(&s->step, 1), places[i % 2]);
		if (i >= 2)
			assert_true(
				scratch_copy(fixture_index(&s->step, 1), stray(s, 1, ".index")));
		assert_good(s);
		assert_int_equal(recode_once(s, true), 0);
		assert_int_equal(s->done.ranks, WORLD);
		assert_clean(s, true);
	}
}

/* A job has taken the store over meanwhile: what is in the list may be its files. */
static void test_fenced(void **state)
{
	struct scene *s = *state;

	open_rig(s, false);
	hold(s, CKPT_IO_OP_OPEN, ".encoded", 2);
	struct ckpt_restore *restore = begin(s, true);
	fixture_claim(s->dir, FIXTURE_RUN, 2, 1, 10);
	core_rig_let_go(&s->rig);
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), CKPT_EFENCED);
	assert_non_null(strstr(s->rig.err.message, "the old files of rank 0 of step 10 stay"));
	core_rig_close(&s->rig);
	assert_int_equal(count(s, ".safetensors"), WORLD);
	assert_int_equal(count(s, ".index"), WORLD + 1);
	/* Nor are those removed that were begun. */
	put_stray(s, 1, ".encoded");
	open_rig(s, false);
	hold(s, CKPT_IO_OP_READ, "rank-00001", 2);
	restore = begin(s, true);
	fixture_claim(s->dir, FIXTURE_RUN, 3, 1, 10);
	core_rig_let_go(&s->rig);
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), CKPT_EFENCED);
	core_rig_close(&s->rig);
	assert_int_equal(access(stray(s, 1, ".encoded"), F_OK), 0);
	assert_int_equal(recode_once(s, true), 0);
	assert_clean(s, true);
}

#define MANY 12

/* A reader has the step listed anew for each rank whose files have got other names since, as often as that is. */
static void test_reader_beside(void **state)
{
	struct scene *s = *state;
	char paths[MANY][16];
	struct fixture_step step = {.dir = s->dir,
		.generation = 1,
		.step = 11,
		.tensors = fixture_floats(100),
		.count = 1,
		.chunk_bytes = 5000,
		.world = MANY};

	fixture_commit(&step);
	open_rig(s, true);
	for (unsigned i = 0; i < MANY; i++) {
		(void)snprintf(paths[i], sizeof(paths[i]), "rank-%05u", i);
		hold(s, CKPT_IO_OP_OPEN, paths[i], 1);
	}
	struct ckpt_restore *restore = core_rig_begin(&s->rig, 11, CKPT_SINK_NONE, NULL);
	for (unsigned i = 0; i < MANY; i++) {
		const char *old[2] = {fixture_index(&step, i), fixture_shard(&step, i)};
		for (unsigned k = 0; k < 2; k++) {
			char name[512];
			(void)snprintf(name, sizeof(name), "%s", old[k]);
			memset(strstr(name, paths[i]) + 11, 'a', 16);
			assert_int_equal(rename(old[k], name), 0);
		}
		assert_int_equal(s->rig.fault.hits[i], 1);
		core_rig_let_go(&s->rig);
	}
	core_rig_await(&s->rig, restore);
	assert_int_equal(core_rig_end(&s->rig, restore), 0);
	core_rig_close(&s->rig);
}

/* One that is cancelled has ended when it changes nothing any more. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;

	open_rig(s, false);
	hold(s, CKPT_IO_OP_UNLINK, ".safetensors", 1);
	struct ckpt_restore *restore = begin(s, true);
	ckpt_restore_post_cancel(restore);
	core_rig_run(&s->rig);
	assert_false(ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_END);
	core_rig_let_go(&s->rig);
	assert_true(ckpt_latch_get(ckpt_restore_latch(restore)) & CKPT_DONE_END);
	assert_int_equal(core_rig_end(&s->rig, restore), -ECANCELED);
	core_rig_close(&s->rig);
	assert_int_equal(count(s, ".safetensors"), WORLD - 1);
	assert_good(s);
	assert_int_equal(recode_once(s, true), 0);
	assert_clean(s, true);
}

/*
 * Request number n fails, or all from that one on do, as where the process is killed: the step is whole, and the next
 * one ends it and leaves nothing behind.
 */
static void test_every_request(void **state)
{
	struct scene *s = *state;
	struct prng prng = {13};

	for (unsigned way = 0; way < 4; way++) {
		bool encodes = way & 1;
		bool dies = way & 2;
		bool reached = true;

		for (unsigned n = 1; reached; n++) {
			if (!slice_turn(n, 8))
				continue;
			scratch_remove(s->dir);
			make(s);
			if (!encodes)
				encode_fixtures(s, &prng);
			open_rig(s, false);
			unsigned rule = io_fault_add(
				&s->rig.fault, (struct io_fault_rule){.nth = n,
						       .count = dies ? IO_FAULT_ALWAYS : 1,
						       .error = -EIO});
			int r = recode(s, encodes);
			reached = s->rig.fault.hits[rule] > 0;
			assert_true(reached || r == 0);
			io_fault_clear(&s->rig.fault);
			core_rig_close(&s->rig);
			assert_good(s);
			assert_int_equal(recode_once(s, encodes), 0);
			assert_clean(s, encodes);
			assert_true(n < 1000);
		}
	}
}

/* Without memory it fails, and everything is as it was, or done. */
static void test_no_memory(void **state)
{
	struct scene *s = *state;
	bool failed = true;

	for (size_t n = 1; failed; n++) {
		if (!slice_turn(n, 4))
			continue;
		scratch_remove(s->dir);
		make(s);
		open_rig(s, false);
		core_rig_count_allocations(&s->rig, n);
		int r = recode(s, true);
		failed = core_rig_allocations(&s->rig) >= n;
		assert_true(r == 0 || (failed && r == -ENOMEM));
		core_rig_close(&s->rig);
		assert_good(s);
		assert_true(n < 2000);
	}
	assert_clean(s, true);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_both_ways, setup, teardown),
		cmocka_unit_test_setup_teardown(test_foreign, setup, teardown),
		cmocka_unit_test_setup_teardown(test_read_only, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_disk, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_index, setup, teardown),
		cmocka_unit_test_setup_teardown(test_begun, setup, teardown),
		cmocka_unit_test_setup_teardown(test_finished, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_beside_good, setup, teardown),
		cmocka_unit_test_setup_teardown(test_fenced, setup, teardown),
		cmocka_unit_test_setup_teardown(test_reader_beside, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cancelled, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_request, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
