/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that is damaged here, with a remote store that is damaged as well: every chunk that anybody has is found, none
 * is asked for in vain, and nothing that is here is lost for a better copy that does not come to be.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "lib/sanitized.h"
#include "lib/scratch.h"
#include "repair_scene.h"
#include "staging/reader_quota.h"

/* Chunks of every kind, the header's among them, on either side, and no more is asked for than is needed. */
static void test_any_mixture(void **state)
{
	struct scene *s = *state;
	unsigned headers = 0;

	for (uint64_t seed = 1; seed <= CASES(60); seed++) {
		struct prng prng = {seed};
		uint64_t lost = 0;
		size_t count = 0;
		uint64_t often = 2 + prng_below(&prng, 20);

		for (size_t i = 0; i < s->layout->chunk_count; i++) {
			uint64_t what = prng_below(&prng, often);
			if (what > 1)
				continue;
			damage(s, what ? &s->there : &s->here, i, &prng);
			lost += what ? 0 : s->layout->chunks[i].length;
			count += !what;
			headers += i == 0 && !what;
		}
		if (count > 0) {
			assert_mends(s);
			assert_int_equal(s->far_read, lost);
			assert_int_equal(s->renames, 1);
		}
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
	}
	assert_true(headers > 0);
}

/* One chunk that nobody has, among others. */
static void test_nobody_has_it(void **state)
{
	struct scene *s = *state;
	struct prng prng = {7};

	for (size_t i = 0; i < s->layout->chunk_count; i += 5) {
		damage(s, &s->here, i, &prng);
		damage(s, &s->here, (i + 2) % s->layout->chunk_count, &prng);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
		damage(s, &s->there, i, &prng);
		assert_fails(s);
		restore_files(s);
	}
}

/* A file that is cut anywhere, that is not there, and that was added to. */
static void test_lengths(void **state)
{
	struct scene *s = *state;
	static const long cuts[] = {0, 1, 4095, 4096, 4097, 9000, 50000, 103000, 103100};
	struct prng prng = {3};

	/* The first tensor's chunk is good here, where the file has it. */
	for (size_t i = 0; i < COUNT(cuts); i++) {
		assert_true((uint64_t)cuts[i] < s->layout->bytes);
		assert_int_equal(truncate(fixture_shard(&s->here, 0), cuts[i]), 0);
		assert_mends(s);
	}
	damage(s, &s->there, 1, &prng);
	assert_int_equal(truncate(fixture_shard(&s->here, 0), 50000), 0);
	assert_mends(s);
	/* Then it is needed from there. */
	assert_int_equal(truncate(fixture_shard(&s->here, 0), 5000), 0);
	assert_fails(s);
	assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
	assert_fails(s);
	restore_files(s);

	/* What was added is not needed from anywhere. */
	FILE *file = fopen(fixture_shard(&s->here, 0), "ab");
	assert_int_equal(fputs("more", file) >= 0, true);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	assert_mends(s);
	assert_int_equal(s->far_read, 0);
}

/* Of a file there that was cut, however little, it is said that it is short, and not that its bytes have changed. */
static void test_cut_there(void **state)
{
	struct scene *s = *state;
	static const long cuts[] = {1, 10, 4000, 5000};

	for (size_t i = 0; i < 2 * COUNT(cuts); i++) {
		damage(s, &s->here, s->layout->chunk_count - 1, &(struct prng){i + 1});
		assert_int_equal(
			truncate(fixture_shard(&s->there, 0), (long)s->layout->bytes - cuts[i / 2]),
			0);
		if (i % 2)
			assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
		open_rig(s);
		assert_true(read_it(s) < 0);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "(CKPT_EINCOMPLETE)"));
		core_rig_close(&s->rig);
		assert_int_equal(unlink(fixture_quarantine(&s->here)), 0);
		restore_files(s);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
	}
}

/* The one there serves, for what is here. */
static void test_index(void **state)
{
	struct scene *s = *state;
	struct prng prng = {5};

	for (unsigned round = 0; round < 4; round++) {
		if (round % 2)
			assert_int_equal(unlink(fixture_index(&s->here, 0)), 0);
		else
			scratch_flip(fixture_index(&s->here, 0), 100);
		if (round > 1)
			damage(s, &s->here, 4, &prng);
		assert_mends(s);
		assert_int_equal(s->far_read, round > 1 ? s->layout->chunks[4].length : 0);
		assert_int_equal(s->renames, 1);
	}
	scratch_flip(fixture_index(&s->here, 0), 100);
	scratch_flip(fixture_index(&s->there, 0), 100);
	assert_fails(s);
	assert_int_equal(unlink(fixture_index(&s->there, 0)), 0);
	assert_fails(s);
}

/* The remote store says that it has no such file. */
static void test_not_there(void **state)
{
	struct scene *s = *state;
	struct prng prng = {23};

	damage(s, &s->here, 4, &prng);
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	assert_fails(s);
	assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
	assert_fails(s);
}

/* What disks and file systems say of bytes that they cannot give. */
static const int dead_codes[] = {-EIO, -ENODATA, -EILSEQ, -EBADMSG, -EUCLEAN};

/* A disk that cannot read some of it: of a whole block only the chunks that it cannot. */
static void test_unreadable(void **state)
{
	struct scene *s = *state;
	struct prng prng = {11};

	s->block_bytes = 65536;
	s->dead = s->layout->chunks[10].offset + 2000;
	/* What is aligned may have to do with the chunks beside it. */
	for (size_t i = 0; i < s->layout->chunk_count; i++)
		if (i < 9 || i > 11)
			damage(s, &s->there, i, &prng);
	for (size_t i = 0; i < COUNT(dead_codes); i++) {
		s->dead_code = dead_codes[i];
		scratch_flip(fixture_index(&s->here, 0), 100);
		open_rig(s);
		assert_true(read_it(s) < 0);
		assert_int_equal(s->rig.err.repaired, 1);
		assert_true(is_good(s));
		assert_true(s->far_read >= CHUNK && s->far_read <= 3 * CHUNK);
		core_rig_close(&s->rig);
	}
	/* It may read them the next time, so they are not lost. */
	for (size_t i = 9; i <= 11; i++)
		damage(s, &s->there, i, &prng);
	scratch_flip(fixture_index(&s->here, 0), 100);
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	core_rig_close(&s->rig);
	s->dead = 0;
	assert_mends(s);
}

/* The new file lies elsewhere on the disk. */
static void move_away(struct scene *s, const char *path)
{
	(void)path;
	s->dead = 0;
}

/* All that is wrong is that the disk cannot read some of it: if it cannot be mended, that is no damage either. */
static void test_unreadable_alone(void **state)
{
	struct scene *s = *state;
	uint64_t dead = s->layout->chunks[10].offset + 2000;

	s->replaces = move_away;
	for (size_t i = 0; i < COUNT(dead_codes); i++) {
		s->dead = dead;
		s->dead_code = dead_codes[i];
		s->far_code = CKPT_ENETWORK;
		open_rig(s);
		assert_int_equal(read_it(s), dead_codes[i]);
		assert_int_equal(s->rig.err.repaired, 0);
		assert_true(
			core_rig_logged(&s->rig, CKPT_LOG_ERROR, "could not be repaired from "));
		assert_int_equal(
			core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), dead_codes[i]);
		assert_false(has_note(s));
		s->far_code = 0;
		s->far_read = 0;
		assert_int_equal(read_it(s), dead_codes[i]);
		assert_int_equal(s->rig.err.repaired, 1);
		assert_non_null(strstr(s->rig.err.message, "restore it again"));
		assert_true(s->far_read >= CHUNK && s->far_read <= 3 * CHUNK);
		assert_int_equal(s->renames, 1);
		assert_int_equal(read_it(s), 0);
		core_rig_close(&s->rig);
		assert_true(is_good(s));
		assert_int_equal(scratch_count(s->local), s->names);
	}
	s->dead = dead;
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	open_rig(s);
	assert_int_equal(read_it(s), s->dead_code);
	assert_int_equal(s->rig.err.repaired, 0);
	core_rig_close(&s->rig);
	assert_false(has_note(s));
}

static bool was_whole;

/* The new shard is whole then, under a name that was never used, and the old files are there. */
static void look_before(struct scene *s, const char *path)
{
	char shard[512];

	(void)snprintf(shard, sizeof(shard), "%s/%.*s" SHARD, s->local,
		(int)(strlen(path) - strlen(INDEX)), path);
	was_whole = holds(shard, s->good, s->layout->bytes);
	assert_null(strstr(shard, fixture_shard_name(&s->here, 0)));
	assert_int_equal(access(s->old, F_OK), 0);
}

/* A process that ends there leaves the one or the other; what an earlier one has left goes. */
static void test_order(void **state)
{
	struct scene *s = *state;
	struct prng prng = {13};
	char path[256];

	damage(s, &s->here, 4, &prng);
	(void)snprintf(s->old, sizeof(s->old), "%s", fixture_shard(&s->here, 0));
	(void)snprintf(path, sizeof(path), "/g000001/step-0000000010/rank-00000.0123456789abcdef%s",
		SHARD);
	scratch_put(s->local, path, "the half of it");
	s->replaces = look_before;
	was_whole = false;
	assert_mends(s);
	assert_true(was_whole);
}

#define OTHER "00000000000000ff"

/* The remote store has the rank's good files under another attempt: it was repaired there, or sent a second time. */
static void name_anew(const struct fixture_step *step)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, 0, OTHER);
	assert_int_equal(rename(fixture_shard(step, 0), scratch_join(step->dir, path)), 0);
	ckpt_name_index(path, 1, 10, 0, OTHER);
	assert_int_equal(rename(fixture_index(step, 0), scratch_join(step->dir, path)), 0);
}

/* A file of the name that the manifest has, which nothing has been written to, as an upload that was killed leaves it. */
static void leave_there(struct scene *s, uint64_t bytes)
{
	const char *path = scratch_join(s->remote, fixture_shard_name(&s->there, 0));

	store(path, "", 0);
	assert_int_equal(truncate(path, (off_t)bytes), 0);
}

/* What is bad there of one file is had from another one. The step is lost when there is none. */
static void test_leftover_there(void **state)
{
	struct scene *s = *state;
	const uint64_t sizes[] = {s->layout->bytes, s->layout->bytes - 1, s->layout->bytes + 1, 0};
	char good[512];

	name_anew(&s->there);
	(void)snprintf(good, sizeof(good), "%s", fixture_shard(&s->there, 0));
	for (size_t i = 0; i < 3 * COUNT(sizes); i++) {
		leave_there(s, sizes[i / 3]);
		if (i % 3 == 0)
			assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
		else
			damage(s, &s->here, i, &(struct prng){i + 1});
		if (i % 3 == 2)
			scratch_flip(fixture_index(&s->here, 0), 100);
		assert_mends(s);
	}
	/* What is needed is bad in each of them. */
	leave_there(s, s->layout->bytes);
	damage(s, &s->here, 4, &(struct prng){1});
	scratch_flip(good, (long)s->layout->chunks[4].offset);
	assert_fails(s);
	/* One that the disk there cannot read is not lost. */
	s->far_code = -EIO;
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	core_rig_close(&s->rig);
}

/* A good shard of another attempt here. */
static void put_other(struct scene *s)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, 0, OTHER);
	store(scratch_join(s->local, path), s->good, s->layout->bytes);
}

/* The rank has several files here: one that is whole serves, and else the one with the fewest bad chunks. */
static void test_files_here(void **state)
{
	struct scene *s = *state;
	char other[512];

	for (unsigned i = 0; i < 6; i++) {
		unsigned bad_own = i % 3 == 1 ? 1 : 3;
		unsigned bad_other = i % 3 == 2 ? 1 : 3;

		put_other(s);
		(void)snprintf(other, sizeof(other), "%s", scratch_find(s->local, OTHER SHARD));
		scratch_flip(fixture_index(&s->here, 0), 100);
		for (unsigned k = 0; k < bad_own; k++)
			damage(s, &s->here, 2 + k, &(struct prng){i + 1});
		for (unsigned k = 0; i % 3 && k < bad_other; k++)
			scratch_flip(other, (long)s->layout->chunks[12 + k].offset);
		/* What is bad in the worse one cannot be had from there, either. */
		size_t lost = i % 3 == 1 ? 12 : 2;
		damage(s, &s->there, lost + 1, &(struct prng){i + 1});
		/* The one that was opened last is of another size: it is of no use. */
		if (i > 2)
			scratch_put(s->local,
				"/g000001/step-0000000010/rank-00000.ffffffffffffffff" SHARD,
				"the half of it");
		assert_mends(s);
		assert_int_equal(s->far_read, i % 3 ? s->layout->chunks[14 - lost].length : 0);
		damage(s, &s->there, lost + 1, &(struct prng){i + 1});
		restore_files(s);
	}
}

/* Somebody else has repaired it meanwhile: his files came after the step was listed. */
static void repair_meanwhile(struct scene *s, const char *path)
{
	char name[CKPT_PATH_MAX];

	(void)path;
	put_other(s);
	ckpt_name_index(name, 1, 10, 0, OTHER);
	store(scratch_join(s->local, name), s->index, s->index_bytes);
	s->replaces = NULL;
}

/* A later job has claimed the store. */
static void claim_meanwhile(struct scene *s, const char *path)
{
	(void)path;
	fixture_claim(s->local, FIXTURE_RUN, 2, 1, 10);
	s->replaces = NULL;
}

/* Of two that repair it at once each removes only what was there before both; after a later claim nothing is removed. */
static void test_two_at_once(void **state)
{
	struct scene *s = *state;
	char old[512];

	damage(s, &s->here, 4, &(struct prng){1});
	(void)snprintf(old, sizeof(old), "%s", fixture_shard(&s->here, 0));
	s->replaces = repair_meanwhile;
	s->names += 2;
	assert_mends(s);
	assert_int_not_equal(access(old, F_OK), 0);
	assert_non_null(scratch_find(s->local, OTHER SHARD));
	assert_non_null(scratch_find(s->local, OTHER INDEX));
}

static void test_claimed_meanwhile(void **state)
{
	struct scene *s = *state;

	damage(s, &s->here, 4, &(struct prng){1});
	(void)snprintf(s->old, sizeof(s->old), "%s", fixture_shard(&s->here, 0));
	s->replaces = claim_meanwhile;
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.repaired, 1);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "generation 2 has taken over"));
	assert_int_equal(access(s->old, F_OK), 0);
	/* The new files, the claim, and the directory that it comes with. */
	assert_int_equal(scratch_count(s->local), s->names + 2 + 2);
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
}

/* Whichever request fails, what is here is as good as before or better, and the next one mends it. */
static void test_every_failure(void **state)
{
	struct scene *s = *state;
	unsigned repaired = 0;
	unsigned failed = 0;

	for (unsigned n = 1;; n++) {
		struct prng prng = {n};

		damage(s, &s->here, 3, &prng);
		damage(s, &s->there, 4, &prng);
		scratch_flip(fixture_index(&s->here, 0), 100);
		open_rig(s);
		s->rig.fault.fail_error = -EIO;
		s->rig.fault.fail_at = s->rig.fault.requests + n;
		int r = read_it(s);
		bool reached = s->rig.fault.requests >= s->rig.fault.fail_at;
		assert_true(r < 0);
		repaired += s->rig.err.repaired;
		failed += !s->rig.err.repaired;
		assert_true(!s->rig.err.repaired || is_good(s));
		s->rig.fault.fail_at = 0;
		assert_false(has_note(s));
		if (r == CKPT_EINTEGRITY && !s->rig.err.repaired)
			assert_hindered(s);
		core_rig_close(&s->rig);
		if (!is_good(s))
			assert_mends(s);
		damage(s, &s->there, 4, &(struct prng){n});
		restore_files(s);
		if (!reached)
			break;
	}
	assert_true(repaired > 5 && failed > 5);
}

/* Its own disk is full, somebody else has the store, and the bucket does not answer or will not. */
static void test_hindrances(void **state)
{
	struct scene *s = *state;
	static const int far_codes[] = {CKPT_ENETWORK, CKPT_EAUTH, -ETIMEDOUT, -EIO};
	static const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC},
		{.op = CKPT_IO_OP_OPEN, .path = CKPT_STORE_TEMP, .error = -EACCES},
		{.op = CKPT_IO_OP_OPEN, .path = CKPT_STORE_TEMP, .error = -ENOENT},
		{.op = CKPT_IO_OP_WRITE, .path = CKPT_STORE_TEMP, .error = -EDQUOT},
		{.op = CKPT_IO_OP_WRITE, .path = CKPT_STORE_TEMP, .error = -EFBIG},
		{.op = CKPT_IO_OP_FDATASYNC, .error = -EIO},
		{.op = CKPT_IO_OP_RENAME, .error = -ENOENT},
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .error = -EIO},
	};

	for (size_t i = 0; i < COUNT(rules) + COUNT(far_codes); i++) {
		damage(s, &s->here, 4, &(struct prng){i + 1});
		open_rig(s);
		if (i < COUNT(rules))
			(void)io_fault_add(&s->rig.fault, rules[i]);
		else
			s->far_code = far_codes[i - COUNT(rules)];
		assert_int_equal(read_it(s), CKPT_EINTEGRITY);
		assert_true(i >= COUNT(rules) || s->rig.fault.hits[0] > 0);
		s->far_code = 0;
		assert_hindered(s);
		core_rig_close(&s->rig);
		assert_int_equal(scratch_count(s->local), s->names);
		if (!is_good(s))
			assert_mends(s);
	}
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;
	struct prng prng = {17};
	bool done = false;

	for (size_t n = 1; !done; n++) {
		damage(s, &s->here, 3, &prng);
		open_rig(s);
		core_rig_count_allocations(&s->rig, n);
		int r = read_it(s);
		done = core_rig_allocations(&s->rig) < n;
		assert_true(r < 0);
		assert_true(!s->rig.err.repaired || is_good(s));
		assert_int_equal(s->rig.err.repaired || !done, true);
		/* Old files that could not be removed do no harm. */
		assert_true(scratch_count(s->local) == s->names || s->rig.err.repaired);
		core_rig_close(&s->rig);
		assert_false(has_note(s));
		restore_files(s);
	}
}

/* One that was given up says nothing about the step: the next restore mends it. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;
	struct prng prng = {19};

	/* The index, too: it is found before anything is bound. */
	scratch_flip(fixture_index(&s->here, 0), 100);
	damage(s, &s->here, 4, &prng);
	open_rig(s);
	s->holds = true;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(s->rig.core.restorer->repairing);
	assert_non_null(s->rig.fault.tap.held);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	s->holds = false;
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
	assert_false(s->rig.core.restorer->repairing);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "cannot be repaired from "));
	assert_false(is_good(s));
	assert_true(read_it(s) < 0);
	assert_int_equal(s->rig.err.repaired, 1);
	assert_true(is_good(s));
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
	assert_int_equal(scratch_count(s->local), s->names);
}

/* One that waits for staging memory, which others have, gives up at once. */
static void test_cancelled_without_memory(void **state)
{
	struct scene *s = *state;
	struct ckpt_task nobody = {0};
	struct ckpt_reader_quota others = {0};
	struct ckpt_slot *slots[16];
	size_t count = 0;

	scratch_flip(fixture_index(&s->here, 0), 100);
	open_rig(s);
	ckpt_reader_quota_join(&others, s->rig.pool, &nobody);
	while ((slots[count] = ckpt_reader_quota_get(&others)) != NULL)
		count++;
	assert_true(count > 0);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(s->rig.core.restorer->repairing);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_false(s->rig.core.restorer->repairing);
	while (count > 0)
		ckpt_reader_quota_put(&others, slots[--count]);
	ckpt_reader_quota_leave(&others);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
	core_rig_close(&s->rig);
	assert_false(has_note(s));
	assert_mends(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_any_mixture),
		SCENE(test_nobody_has_it),
		SCENE(test_lengths),
		SCENE(test_cut_there),
		SCENE(test_index),
		SCENE(test_not_there),
		SCENE(test_unreadable),
		SCENE(test_unreadable_alone),
		SCENE(test_order),
		SCENE(test_leftover_there),
		SCENE(test_files_here),
		SCENE(test_two_at_once),
		SCENE(test_claimed_meanwhile),
		SCENE(test_every_failure),
		SCENE(test_hindrances),
		SCENE(test_no_memory),
		SCENE(test_cancelled),
		SCENE(test_cancelled_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
