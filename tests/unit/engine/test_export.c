/* SPDX-License-Identifier: Apache-2.0 */
/* Exporting a step: the destination is a store like any other, or it is left without the step. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/reading.h"

struct place {
	char path[512];
};

static struct place place(const struct reading *t, const char *name)
{
	struct place p;

	(void)snprintf(p.path, sizeof(p.path), "%s/%s", t->dir, name);
	return p;
}

/* Where this step's files are when it lies in another directory. */
static struct fixture_step in_dir(const struct fixture_step *step, const char *dir)
{
	struct fixture_step there = *step;

	there.dir = dir;
	return there;
}

static char *read_all(const char *path, size_t *ret_length)
{
	FILE *f = fopen(path, "rb");
	struct stat st;

	if (!f)
		fail_msg("%s is missing", path);
	assert_int_equal(fstat(fileno(f), &st), 0);
	char *bytes = malloc((size_t)st.st_size + 1);
	*ret_length = fread(bytes, 1, (size_t)st.st_size, f);
	assert_int_equal(*ret_length, st.st_size);
	(void)fclose(f);
	return bytes;
}

static void same_file(const char *a, const char *b)
{
	size_t a_length;
	size_t b_length;
	char *a_bytes = read_all(a, &a_length);
	char *b_bytes = read_all(b, &b_length);

	assert_int_equal(a_length, b_length);
	assert_memory_equal(a_bytes, b_bytes, a_length);
	free(a_bytes);
	free(b_bytes);
}

static void same_step(const struct fixture_step *step, const char *dir)
{
	struct fixture_step there = in_dir(step, dir);

	for (uint32_t i = 0; i < step->world; i++) {
		same_file(fixture_shard(step, i), fixture_shard(&there, i));
		same_file(fixture_index(step, i), fixture_index(&there, i));
	}
	same_file(fixture_manifest(step), fixture_manifest(&there));
	same_file(scratch_join(step->dir, "ckpt.json"), scratch_join(dir, "ckpt.json"));
	same_file(
		scratch_join(step->dir, "gens/000001.json"), scratch_join(dir, "gens/000001.json"));
}

static int export_to(struct reading *t, uint64_t step, const char *dest)
{
	struct ckpt_restore *r = rig_export(&t->rig, step, dest);
	int code = rig_wait(r);

	rig_free(r);
	return code;
}

/* Opens the destination by itself, and verifies the step there. */
static void verify_there(struct reading *t, const char *dir, uint64_t step)
{
	rig_close(&t->rig);
	struct rig_config config = {.dir = dir,
		.block_bytes = READING_BLOCK,
		.slots = CKPT_POOL_SLOTS_MIN,
		.read_only = true};
	rig_open(&t->rig, &config);
	struct ckpt_restore *r = rig_verify(&t->rig, CKPT_STEP_LATEST);
	assert_int_equal(rig_wait(r), 0);
	assert_int_equal(ckpt_restore_chosen_step(r), step);
	rig_free(r);
	rig_close(&t->rig);
	reading_open(t, false);
}

static void test_export(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct ckpt_restore *r = rig_export(&t->rig, CKPT_STEP_LATEST, dest.path);
	uint64_t done;
	uint64_t total;

	assert_int_equal(rig_wait(r), 0);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, total);
	assert_true(total > 0);
	rig_free(r);
	same_step(&t->steps[2], dest.path);
	/* ckpt.json, gens, claim, generation, step, shard, index, manifest: and nothing else. */
	assert_int_equal(scratch_count(dest.path), 8);
	verify_there(t, dest.path, 30);
}

/* Several steps may go to one place, each once; an older one changes nothing about the newer. */
static void test_again(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");

	assert_int_equal(export_to(t, 30, dest.path), 0);
	size_t files = scratch_count(dest.path);
	struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);
	assert_int_equal(rig_wait(r), 0);
	assert_true(ckpt_restore_existed(r));
	rig_free(r);
	assert_int_equal(scratch_count(dest.path), files);
	same_step(&t->steps[2], dest.path);
	assert_int_equal(export_to(t, 10, dest.path), 0);
	same_step(&t->steps[0], dest.path);
	same_step(&t->steps[2], dest.path);
	verify_there(t, dest.path, 30);
	/* Onto itself. */
	assert_int_equal(export_to(t, 10, t->dir), 0);
	/* Nor may anybody who has it be asked to let go of it. */
	int fd = reading_lock(&t->steps[2]);
	assert_int_equal(export_to(t, 10, t->dir), 0);
	(void)close(fd);
}

/* What is there is the step, but not whole, or another one. */
static void test_there_and_wrong(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct fixture_step there = in_dir(&t->steps[2], dest.path);

	assert_int_equal(export_to(t, 30, dest.path), 0);
	assert_int_equal(truncate(fixture_shard(&there, 0), 5000), 0);
	assert_int_equal(export_to(t, 30, dest.path), CKPT_EINCOMPLETE);
	assert_int_equal(unlink(fixture_shard(&there, 0)), 0);
	assert_int_equal(export_to(t, 30, dest.path), CKPT_EINCOMPLETE);
	scratch_flip(fixture_index(&there, 0), 100);
	assert_int_equal(export_to(t, 30, dest.path), CKPT_EINTEGRITY);
	assert_int_equal(access(fixture_manifest(&there), F_OK), 0);
	scratch_flip(fixture_manifest(&there), 20);
	struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);
	assert_int_equal(rig_wait(r), -EEXIST);
	assert_non_null(strstr(ckpt_restore_failure(r)->message, "already"));
	rig_free(r);
}

static void test_ranks(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct fixture_step step = t->steps[2];

	step.step = 50;
	step.world = 3;
	reading_commit(t, &step);
	assert_int_equal(export_to(t, 50, dest.path), 0);
	same_step(&step, dest.path);
	verify_there(t, dest.path, 50);
}

static void test_wrong_places(void **state)
{
	struct reading *t = *state;
	struct place other = place(t, "other");
	struct place full = place(t, "full");

	assert_int_equal(mkdir(other.path, 0777), 0);
	fixture_store(other.path, "ffffffffffffffffffffffffffffffff");
	assert_int_equal(export_to(t, 30, other.path), -EEXIST);
	assert_int_equal(scratch_count(other.path), 2);
	assert_int_equal(mkdir(full.path, 0777), 0);
	FILE *f = fopen(scratch_join(full.path, "holiday.jpg"), "wb");
	(void)fclose(f);
	assert_int_equal(export_to(t, 30, full.path), -ENOTEMPTY);
	assert_int_equal(scratch_count(full.path), 1);
	/* What another export makes there for a moment is nothing. */
	struct place probed = place(t, "probed");
	assert_int_equal(mkdir(probed.path, 0777), 0);
	f = fopen(scratch_join(probed.path, ".probe-17-a"), "wb");
	(void)fclose(f);
	assert_int_equal(export_to(t, 30, probed.path), 0);
	/* The same run, and a generation of that number that is another. */
	struct place fork = place(t, "fork");
	assert_int_equal(mkdir(fork.path, 0777), 0);
	fixture_store(fork.path, FIXTURE_RUN);
	fixture_claim(fork.path, FIXTURE_RUN, 2, 1, 10);
	fixture_claim(fork.path, FIXTURE_RUN, 1, 0, 0);
	f = fopen(scratch_join(fork.path, "gens/000001.json"), "ab");
	(void)fputc(' ', f);
	(void)fclose(f);
	assert_int_equal(export_to(t, 30, fork.path), -EEXIST);
}

/* A live process holds the destination. */
static void test_held(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};

	assert_int_equal(export_to(t, 30, dest.path), 0);
	int fd = open(scratch_join(dest.path, "gens/000001.json"), O_RDWR | O_CLOEXEC);
	assert_int_equal(fcntl(fd, F_OFD_SETLK, &lock), 0);
	assert_int_equal(export_to(t, 10, dest.path), CKPT_EINUSE);
	(void)close(fd);
	assert_int_equal(export_to(t, 10, dest.path), 0);
}

/* What an export that was killed has left does not stop the next one. */
static void test_leftovers(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct fixture_step there = in_dir(&t->steps[2], dest.path);

	assert_int_equal(export_to(t, 30, dest.path), 0);
	assert_int_equal(unlink(fixture_manifest(&there)), 0);
	assert_int_equal(truncate(fixture_shard(&there, 0), 5000), 0);
	assert_int_equal(export_to(t, 30, dest.path), 0);
	same_step(&t->steps[2], dest.path);
	/* Killed while it published the marker. */
	struct place early = place(t, "early");
	assert_int_equal(mkdir(early.path, 0777), 0);
	FILE *f = fopen(scratch_join(early.path, "ckpt.json.tmp-0123456789abcdef"), "wb");
	(void)fclose(f);
	assert_int_equal(export_to(t, 30, early.path), 0);
	same_step(&t->steps[2], early.path);
}

/* What an export was cut off with: the first `good` bytes, and what comes then. */
struct leftover {
	double good;
	enum { ZEROS, GARBAGE, NOTHING, MORE } then;
	bool index;
	double most; /* of the bytes of the shard, that are read in the source */
};

static void leave(const struct fixture_step *there, const struct leftover *l)
{
	const char *path = fixture_shard(there, 0);
	struct stat st;

	assert_int_equal(unlink(fixture_manifest(there)), 0);
	if (!l->index)
		assert_int_equal(unlink(fixture_index(there, 0)), 0);
	assert_int_equal(stat(path, &st), 0);
	off_t good = (off_t)(l->good * (double)st.st_size);
	if (l->then != MORE)
		assert_int_equal(truncate(path, good), 0);
	if (l->then == MORE || l->then == ZEROS)
		assert_int_equal(truncate(path, st.st_size + (l->then == MORE ? 70000 : 0)), 0);
	FILE *f = fopen(path, "ab");
	for (off_t i = good; l->then == GARBAGE && i < st.st_size; i++)
		(void)fputc((int)(i % 251), f);
	(void)fclose(f);
}

/* Of a rank that was whole the index is the same file as before: no name is used again. */
static void keeps_index(struct reading *t, const struct fixture_step *there)
{
	char kept[512];
	struct stat st;

	(void)snprintf(kept, sizeof(kept), "%s", scratch_join(t->dir, "kept"));
	assert_int_equal(unlink(fixture_manifest(there)), 0);
	assert_int_equal(link(fixture_index(there, 0), kept), 0);
	assert_int_equal(export_to(t, 30, there->dir), 0);
	assert_int_equal(stat(fixture_index(there, 0), &st), 0);
	assert_int_equal(st.st_nlink, 2);
	assert_int_equal(unlink(kept), 0);
}

/* What is good of it is not read in the source again; whatever else it is, the copy is the same. */
static void test_goes_on(void **state)
{
	struct reading *t = *state;
	static const struct leftover cases[] = {{0.5, ZEROS, false, 0.6},
		{0.5, GARBAGE, false, 0.6}, {0.5, NOTHING, false, 0.6}, {0, ZEROS, false, 1},
		{0, NOTHING, false, 1}, {0, GARBAGE, true, 1}, {1, MORE, false, 0.05},
		{1, MORE, true, 0.05}, {1, NOTHING, false, 0.05}, {0.9, GARBAGE, true, 0.2},
		{1, NOTHING, true, 0.02}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "copy%zu", i);
		struct place dest = place(t, name);
		struct fixture_step there = in_dir(&t->steps[2], dest.path);
		char old[512];
		struct stat st;
		uint64_t done;
		uint64_t total;

		assert_int_equal(export_to(t, 30, dest.path), 0);
		assert_int_equal(stat(fixture_shard(&there, 0), &st), 0);
		(void)snprintf(old, sizeof(old), "%s", fixture_shard(&there, 0));
		leave(&there, &cases[i]);
		uint64_t before = t->rig.core.store->bytes_read;
		struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);
		assert_int_equal(rig_wait(r), 0);
		ckpt_restore_counters(r, &done, &total);
		assert_int_equal(done, total);
		rig_free(r);
		uint64_t took = t->rig.core.store->bytes_read - before;
		/* What is asked for is aligned. */
		double size = (double)st.st_size;
		double most = cases[i].most * size + (cases[i].most > 0 ? 16384 : 0);
		if ((double)took > most || (double)took < (1 - cases[i].good) * size - 16384)
			fail_msg("leftover %zu: %llu of %lld bytes are read again", i,
				(unsigned long long)took, (long long)st.st_size);
		same_step(&t->steps[2], dest.path);
		assert_int_equal(scratch_count(dest.path), 8);
		/* What was not whole is replaced by files of another attempt. */
		bool whole = cases[i].good == 1 && cases[i].then == NOTHING && cases[i].index;
		assert_int_equal(access(old, F_OK), whole ? 0 : -1);
		verify_there(t, dest.path, 30);
		keeps_index(t, &there);
	}
}

/* Of several ranks, those that were whole are not read again. */
static void test_goes_on_ranks(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct fixture_step step = t->steps[2];
	struct stat st;

	step.step = 50;
	step.world = 3;
	reading_commit(t, &step);
	struct fixture_step there = in_dir(&step, dest.path);
	assert_int_equal(export_to(t, 50, dest.path), 0);
	assert_int_equal(stat(fixture_shard(&there, 1), &st), 0);
	assert_int_equal(unlink(fixture_index(&there, 1)), 0);
	leave(&there, &(struct leftover){.good = 1, .then = NOTHING, .index = true});
	assert_int_equal(unlink(fixture_shard(&there, 1)), 0);
	uint64_t before = t->rig.core.store->bytes_read;
	assert_int_equal(export_to(t, 50, dest.path), 0);
	assert_true(t->rig.core.store->bytes_read - before < (uint64_t)st.st_size + 16384);
	same_step(&step, dest.path);
	verify_there(t, dest.path, 50);
}

/* Bad bytes do not travel: the destination stays a store without the step. */
static void test_damage(void **state)
{
	struct reading *t = *state;
	static const struct {
		long offset; /* to turn over; -1: the shard is removed, -2: the index */
		int code;
	} cases[] = {{300, CKPT_EINTEGRITY}, {5000, CKPT_EINTEGRITY}, {300000, CKPT_EINTEGRITY},
		{-1, CKPT_EINCOMPLETE}, {-2, CKPT_EINCOMPLETE}};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char name[16];
		(void)snprintf(name, sizeof(name), "copy%zu", i);
		struct place dest = place(t, name);
		if (cases[i].offset == -1)
			assert_int_equal(unlink(fixture_shard(&t->steps[2], 0)), 0);
		else if (cases[i].offset == -2)
			assert_int_equal(unlink(fixture_index(&t->steps[2], 0)), 0);
		else
			scratch_flip(fixture_shard(&t->steps[2], 0), cases[i].offset);
		struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);
		assert_int_equal(rig_wait(r), cases[i].code);
		if (cases[i].offset >= 0)
			assert_true(ckpt_restore_failure(r)->offset <= cases[i].offset);
		rig_free(r);
		/* ckpt.json, gens, claim. */
		assert_int_equal(scratch_count(dest.path), 3);
		assert_int_equal(access(fixture_quarantine(&t->steps[2]), F_OK), -1);
		reading_repair(t);
		assert_int_equal(export_to(t, 30, dest.path), 0);
	}
}

static void test_cancel(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");

	rig_hold_after(&t->rig, 0);
	struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);
	rig_wait_held(&t->rig, 1);
	ckpt_restore_post_cancel(r);
	assert_int_equal(rig_wait(r), -ECANCELED);
	rig_let_go(&t->rig);
	rig_free(r);
	/* After any number of transfers: no step is there, until all of it is; what is there is gone on with. */
	bool ended = false;
	for (size_t n = 1; !ended; n++) {
		rig_hold_after(&t->rig, n);
		r = rig_export(&t->rig, 30, dest.path);
		(void)rig_wait_held_or_end(&t->rig, r);
		ckpt_restore_post_cancel(r);
		rig_let_go(&t->rig);
		/* A manifest on its way is let through. */
		int code = rig_wait(r);
		rig_free(r);
		assert_true(code == 0 || code == -ECANCELED);
		ended = code == 0;
		struct fixture_step there = in_dir(&t->steps[2], dest.path);
		assert_int_equal(access(fixture_manifest(&there), F_OK), ended ? 0 : -1);
	}
	same_step(&t->steps[2], dest.path);
}

/* The engine closes in the middle. */
static void test_close(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	struct ckpt_restore *r = rig_export(&t->rig, 30, dest.path);

	rig_close(&t->rig);
	int code = rig_wait(r);
	assert_true(code == 0 || code == CKPT_ECLOSED);
	rig_free(r);
	reading_open(t, false);
}

static void test_no_memory(void **state)
{
	struct reading *t = *state;
	struct place dest = place(t, "copy");
	int code = -ENOMEM;

	for (size_t n = 1; code != 0; n += 7) {
		struct ckpt_restore *r = rig_export(&t->rig, 77, dest.path);
		assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
		rig_free(r);
		reading_fail_allocation(n);
		code = ckpt_restore_new(&t->rig.core, NULL, 30, CKPT_SINK_STORE, &r);
		if (code == 0) {
			int root = open(dest.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			assert_true(root >= 0);
			code = ckpt_restore_set_dest(
				r, &(struct ckpt_core_place){.root = root, .label = dest.path});
			if (code == 0) {
				ckpt_restore_post_open(r);
				code = rig_wait(r);
				rig_free(r);
			} else {
				(void)close(root);
				ckpt_restore_unref(r);
			}
		}
		(void)reading_allow_allocations();
		assert_true(code == 0 || code == -ENOMEM);
	}
	same_step(&t->steps[2], dest.path);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reading_setup, reading_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_export),
		TEST(test_again),
		TEST(test_there_and_wrong),
		TEST(test_ranks),
		TEST(test_wrong_places),
		TEST(test_held),
		TEST(test_leftovers),
		TEST(test_goes_on),
		TEST(test_goes_on_ranks),
		TEST(test_damage),
		TEST(test_cancel),
		TEST(test_close),
		TEST(test_no_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
