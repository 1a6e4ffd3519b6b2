/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a step: everything that is wrong is found, each thing once, and nothing is changed. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/shard/findings.h"
#include "lib/prng.h"
#include "lib/reading.h"

/* A second store in the same directory's place: every rank of `world` writes step 50. */
static struct fixture_step commit_world(struct reading *t, uint32_t world, uint64_t chunk_bytes)
{
	struct fixture_step step = t->steps[2];

	step.step = 50;
	step.world = world;
	step.chunk_bytes = chunk_bytes;
	reading_commit(t, &step);
	return step;
}

static const struct ckpt_error *finding(struct ckpt_restore *r, size_t i)
{
	assert_true(i < ckpt_restore_finding_count(r));
	return &ckpt_restore_finding(r, i)->error;
}

static void test_good(void **state)
{
	struct reading *t = *state;
	size_t files = scratch_count(t->dir);
	struct ckpt_restore *r = rig_verify(&t->rig, CKPT_STEP_LATEST);
	uint64_t done;
	uint64_t total;

	assert_int_equal(rig_wait(r), 0);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(finding(r, 0)->code, 0);
	assert_int_equal(ckpt_restore_finding(r, 0)->step, 30);
	assert_int_equal(ckpt_restore_finding(r, 0)->generation, 1);
	assert_string_equal(finding(r, 0)->file, fixture_shard_name(&t->steps[2], 0));
	ckpt_restore_counters(r, &done, &total);
	struct stat st;
	assert_int_equal(stat(fixture_shard(&t->steps[2], 0), &st), 0);
	assert_int_equal(total, st.st_size);
	assert_int_equal(done, total);
	rig_free(r);
	assert_int_equal(scratch_count(t->dir), files);
}

/* Any single byte of the shard: its chunk is named, and only that. */
static void test_any_byte(void **state)
{
	struct reading *t = *state;
	const char *path = fixture_shard(&t->steps[2], 0);
	struct ckpt_restore *open = rig_restore(&t->rig, 30);
	const struct ckpt_layout *layout = ckpt_restore_index(open)->layout;
	size_t files = scratch_count(t->dir);

	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct prng d = {seed};
		/* Every third time a byte of the header. */
		uint64_t at = prng_below(&d, seed % 3 ? layout->bytes : layout->header_bytes);
		const struct ckpt_chunk *chunk = &layout->chunks[ckpt_layout_chunk_at(layout, at)];
		scratch_flip(path, (long)at);
		struct ckpt_restore *r = rig_verify(&t->rig, 30);
		assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
		assert_int_equal(ckpt_restore_failure(r)->offset, chunk->offset);
		assert_int_equal(ckpt_restore_finding_count(r), 1);
		assert_int_equal(finding(r, 0)->code, CKPT_EINTEGRITY);
		assert_int_equal(finding(r, 0)->offset, chunk->offset);
		const struct ckpt_entry *e = ckpt_layout_at(layout, chunk->offset);
		assert_string_equal(finding(r, 0)->tensor, e ? e->name : "");
		rig_free(r);
		scratch_flip(path, (long)at);
	}
	rig_free(open);
	assert_int_equal(scratch_count(t->dir), files);
}

/* Many bad chunks: all of them, in order, each once. */
static void test_many_bad(void **state)
{
	struct reading *t = *state;
	const char *path = fixture_shard(&t->steps[2], 0);
	struct ckpt_restore *open = rig_restore(&t->rig, 30);
	const struct ckpt_layout *layout = ckpt_restore_index(open)->layout;
	bool *bad = calloc(layout->chunk_count, sizeof(*bad));
	struct prng d = {5};
	size_t count = 0;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		bad[i] = i == 0 || prng_below(&d, 3) == 0;
		count += bad[i];
		const struct ckpt_chunk *c = &layout->chunks[i];
		if (bad[i])
			scratch_flip(path, (long)(c->offset + prng_below(&d, c->length)));
	}
	struct ckpt_restore *r = rig_verify(&t->rig, 30);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_int_equal(ckpt_restore_finding_count(r), count);
	for (size_t i = 0, n = 0; i < layout->chunk_count; i++)
		if (bad[i])
			assert_int_equal(finding(r, n++)->offset, layout->chunks[i].offset);
	rig_free(r);
	rig_free(open);
	free(bad);
}

/* Past the limit the verification ends, with what it has. */
static void test_too_many(void **state)
{
	struct reading *t = *state;
	struct fixture_step step = commit_world(t, 1, 256);
	struct stat st;

	assert_int_equal(stat(fixture_shard(&step, 0), &st), 0);
	assert_int_equal(truncate(fixture_shard(&step, 0), 0), 0);
	assert_int_equal(truncate(fixture_shard(&step, 0), st.st_size), 0);
	struct ckpt_restore *r = rig_verify(&t->rig, 50);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_int_equal(ckpt_restore_finding_count(r), CKPT_FINDINGS_MAX);
	rig_free(r);
}

/* Ranks are looked at one by one: a bad one does not hide the others. */
static void test_ranks(void **state)
{
	struct reading *t = *state;
	struct fixture_step step = commit_world(t, 6, READING_CHUNK);

	assert_int_equal(unlink(fixture_shard(&step, 1)), 0);
	assert_int_equal(unlink(fixture_index(&step, 2)), 0);
	scratch_flip(fixture_shard(&step, 3), 5000);
	assert_int_equal(truncate(fixture_shard(&step, 4), 5000), 0);
	struct ckpt_restore *r = rig_verify(&t->rig, 50);
	assert_int_equal(rig_wait(r), CKPT_EINCOMPLETE);
	assert_int_equal(ckpt_restore_failure(r)->rank, 1);
	static const int codes[] = {
		0, CKPT_EINCOMPLETE, CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EINCOMPLETE, 0};
	assert_int_equal(ckpt_restore_finding_count(r), COUNT(codes));
	for (uint32_t i = 0; i < COUNT(codes); i++) {
		assert_int_equal(ckpt_restore_finding(r, i)->rank, i);
		assert_int_equal(finding(r, i)->code, codes[i]);
		assert_int_equal(finding(r, i)->rank, i);
	}
	assert_string_equal(finding(r, 2)->file, fixture_index_name(&step, 2));
	assert_non_null(strstr(finding(r, 1)->message, "node-1"));
	rig_free(r);
}

static void test_manifest(void **state)
{
	struct reading *t = *state;

	scratch_flip(fixture_manifest(&t->steps[1]), 40);
	struct ckpt_restore *r = rig_verify(&t->rig, 20);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_non_null(strstr(finding(r, 0)->file, "manifest.json"));
	assert_int_equal(ckpt_restore_finding(r, 0)->step, 20);
	rig_free(r);
	r = rig_verify(&t->rig, 77);
	assert_int_equal(rig_wait(r), CKPT_ENOSTEP);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	rig_free(r);
}

/* A header longer than a chunk and than a block. */
static void test_long_header(void **state)
{
	struct reading *t = *state;
	enum { MANY = 3000 };
	static char names[MANY][64];
	static int64_t shape = 1;
	static const char byte = 'x';
	struct ckpt_tensor *tensors = calloc(MANY, sizeof(*tensors));
	struct fixture_step step = t->steps[2];

	for (size_t i = 0; i < MANY; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "a.rather.long.name.of.tensor.%zu", i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &shape,
			.data = &byte};
	}
	step.step = 60;
	step.tensors = tensors;
	step.count = MANY;
	step.alias = NULL;
	fixture_commit(&step);
	struct ckpt_restore *r = rig_verify(&t->rig, 60);
	assert_int_equal(rig_wait(r), 0);
	rig_free(r);
	scratch_flip(fixture_shard(&step, 0), 2 * READING_BLOCK + 5);
	r = rig_verify(&t->rig, 60);
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(finding(r, 0)->offset, 2 * READING_BLOCK / READING_CHUNK * READING_CHUNK);
	rig_free(r);
	free(tensors);
}

static void test_cancel(void **state)
{
	struct reading *t = *state;
	struct ckpt_restore *r = rig_verify(&t->rig, 30);

	ckpt_restore_post_cancel(r);
	int code = rig_wait(r);
	assert_true(code == 0 || code == -ECANCELED);
	rig_free(r);
	rig_hold_after(&t->rig, 0);
	r = rig_verify(&t->rig, 30);
	rig_wait_held(&t->rig, 1);
	ckpt_restore_post_cancel(r);
	assert_int_equal(rig_wait(r), -ECANCELED);
	assert_int_equal(ckpt_restore_finding_count(r), 0);
	rig_let_go(&t->rig);
	rig_free(r);
}

static void test_no_memory(void **state)
{
	struct reading *t = *state;

	for (size_t n = 1;; n++) {
		struct ckpt_restore *r = NULL;
		reading_fail_allocation(n);
		int code = ckpt_restore_new(&t->rig.core, NULL, 30, CKPT_SINK_NONE, &r);
		if (code == 0) {
			ckpt_restore_post_open(r);
			code = rig_wait(r);
			rig_free(r);
		}
		bool was_reached = reading_allow_allocations();
		assert_true(code == 0 || code == -ENOMEM);
		if (!was_reached)
			break;
	}
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, reading_setup, reading_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_good),
		TEST(test_any_byte),
		TEST(test_many_bad),
		TEST(test_too_many),
		TEST(test_ranks),
		TEST(test_manifest),
		TEST(test_long_header),
		TEST(test_cancel),
		TEST(test_no_memory),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
