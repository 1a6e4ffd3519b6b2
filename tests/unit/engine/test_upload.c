/* SPDX-License-Identifier: Apache-2.0 */
/* An upload, and what is there under the names that it writes: it is compared. What it counts. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "config.h"
#include "lib/encode_fixture.h"
#include "lib/scratch.h"
#include "sending_scene.h"

#define FLOATS 50000

static void append(const char *path)
{
	FILE *file = fopen(path, "ab");

	assert_non_null(file);
	assert_int_equal(fputc('}', file), '}');
	assert_int_equal(fclose(file), 0);
}

/* The upload was told that a file there is not what it was to be. */
static void check_differs(struct scene *s, const char *path)
{
	assert_true(s->upload.task.finished);
	assert_int_equal(s->upload.task.result, CKPT_EINTEGRITY);
	assert_true(s->upload.differs);
	assert_false(s->upload.committed);
	assert_string_equal(s->err.file, path);
	assert_string_equal(s->err.tier, "remote");
	assert_non_null(strstr(s->err.message, path));
	assert_non_null(strstr(s->err.message, "is in s3://bucket/run already, and differs"));
	assert_non_null(strstr(s->err.message, "remove it there, and upload the step again"));
	ckpt_error_clear(&s->err);
}

/*
 * An index that is there and is not the rank's own is found before its shard is sent: with that it would be taken for
 * all that the rank has to send.
 */
static void test_another_index(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;

	open_upload(s);
	/* It says so, and is a directory. */
	s->dest->label = s->place.label;
	far.dir = s->there;
	unsigned writes = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARDS, .nth = 1000});
	for (unsigned longer = 0; longer < 2; longer++) {
		unsigned locks = io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_LOCK, .path = SHARDS, .hold = true});
		start_upload(s);
		assert_int_equal(s->rig.fault.hits[locks], 1);
		copy(fixture_index(&s->step, 0), fixture_index(&far, 0));
		if (longer)
			append(fixture_index(&far, 0));
		else
			scratch_flip(fixture_index(&far, 0), 20);
		core_rig_let_go(&s->rig);
		check_differs(s, fixture_index_name(&s->step, 0));
		assert_int_equal(s->rig.fault.seen[writes], 0);
		assert_int_equal(unlink(fixture_index(&far, 0)), 0);
	}
	start_upload(s);
	assert_true(s->upload.committed);
	close_upload(s);
}

/* Somebody else sends the same index while the shard is sent, and then one that is not the same. */
static void test_index_comes_meanwhile(void **state)
{
	struct scene *s = *state;
	struct fixture_step far = s->step;

	open_upload(s);
	s->dest->label = s->place.label;
	far.dir = s->there;
	for (unsigned changed = 0; changed < 2; changed++) {
		unsigned writes = io_fault_add(&s->rig.fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_WRITE, .path = SHARDS, .hold = true});
		start_upload(s);
		assert_int_equal(s->rig.fault.hits[writes], 1);
		copy(fixture_index(&s->step, 0), fixture_index(&far, 0));
		if (changed)
			scratch_flip(fixture_index(&far, 0), 20);
		core_rig_let_go(&s->rig);
		if (changed) {
			check_differs(s, fixture_index_name(&s->step, 0));
		} else {
			assert_int_equal(s->upload.task.result, 0);
			assert_true(s->upload.committed);
			scratch_remove(strdup(scratch_join(s->there, "g000001")));
		}
	}
	close_upload(s);
}

/* A catalog is an aid: a step is sent, whatever became of the one that another step has brought. */
static void test_damaged_catalog(void **state)
{
	struct scene *s = *state;
	struct fixture_step far;

	s->step.step = 11;
	s->step.catalog = true;
	fixture_commit(&s->step);
	far = s->step;
	far.dir = s->there;
	open_upload(s);
	s->dest->label = s->place.label;
	start_upload(s);
	assert_true(s->upload.committed);
	const char *found = scratch_find(s->there, ".catalog");
	assert_non_null(found);
	char *catalog = strdup(found);
	for (unsigned changed = 0; changed < 2; changed++) {
		assert_int_equal(unlink(fixture_manifest(&far)), 0);
		if (changed)
			scratch_flip(catalog, 20);
		start_upload(s);
		assert_true(s->upload.committed);
	}
	free(catalog);
	close_upload(s);
}

/* A step of which a file there differs is not sent, and says so; what comes after it is. */
static void test_another_index_is_of_its_step(void **state)
{
	static const char *const store[] = {"ckpt.json", "gens/000001.json"};
	struct scene *s = *state;
	char name[512];

	(void)snprintf(name, sizeof(name), "/%s", fixture_index_name(&s->step, 0));
	s->step.step = 20;
	fixture_commit(&s->step);
	assert_int_equal(mkdir(scratch_join(s->there, "gens"), 0777), 0);
	for (size_t i = 0; i < sizeof(store) / sizeof(*store); i++) {
		char *from = strdup(scratch_join(s->here, store[i]));
		copy(from, scratch_join(s->there, store[i]));
		free(from);
	}
	scratch_put(s->there, name, "{}");
	open_job(s, 0);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.core.upload_queue->halted, 0);
	assert_int_equal(s->rig.core.stats.uploads_failed, 1);
	assert_int_equal(s->rig.core.stats.uploads_done, 1);
	assert_int_equal(s->rig.core.upload_queue->lost.code, CKPT_EINTEGRITY);
	assert_int_equal(s->rig.core.upload_queue->lost.step, 10);
	assert_string_equal(s->rig.core.upload_queue->lost.file, name + 1);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "is not uploaded: "));
	core_rig_close(&s->rig);
}

#if CKPT_HAVE_CODEC

/*
 * What is sent counts as the bytes of the shards, while it is sent and when it is there, whether the files are smaller
 * than these or larger.
 */
static void test_counts_bytes_of_shards(void **state)
{
	struct scene *s = *state;
	struct prng prng = {5};
	struct encode_fixture made;

	s->step.step = 11;
	s->step.ranks = NULL;
	s->step.tensors = fixture_floats(FLOATS);
	s->step.count = 1;
	fixture_commit(&s->step);
	for (uint32_t i = 0; i < WORLD; i++)
		encode_fixture_rank(&s->step, i, &prng, &made);
	open_upload_in(s, 4096);
	s->rig.core.parts.remote.bucket = NULL;
	const uint64_t shard = 4096 + FLOATS * sizeof(float);
	assert_true(made.bytes < shard / 3 * 2);
	unsigned half = (unsigned)(made.bytes / 4096 / 2);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .path = ".encoded", .nth = half, .hold = true});
	start_upload(s);
	assert_false(s->upload.task.finished);
	assert_in_range(s->bytes, shard / 3, shard * 2 / 3);
	core_rig_let_go(&s->rig);
	assert_true(s->upload.committed);
	assert_int_equal(s->bytes, WORLD * shard);
	end_upload(s);
}

static void test_counts_no_more_than_shards(void **state)
{
	struct scene *s = *state;
	struct prng prng = {5};
	struct encode_fixture made;

	s->step.step = 11;
	/* The table has more than the codec saves. */
	s->step.chunk_bytes = 64;
	fixture_commit(&s->step);
	for (uint32_t i = 0; i < WORLD; i++)
		encode_fixture_rank(&s->step, i, &prng, &made);
	open_upload(s);
	s->rig.core.parts.remote.bucket = NULL;
	const uint64_t shard = 4096 + WIDE * sizeof(float);
	assert_true(made.bytes > shard);
	start_upload(s);
	assert_true(s->upload.committed);
	assert_int_equal(s->bytes, WORLD * shard);
	end_upload(s);
}

#endif

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_another_index, setup, teardown),
		cmocka_unit_test_setup_teardown(test_index_comes_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged_catalog, setup, teardown),
		cmocka_unit_test_setup_teardown(test_another_index_is_of_its_step, setup, teardown),
#if CKPT_HAVE_CODEC
		cmocka_unit_test_setup_teardown(test_counts_bytes_of_shards, setup, teardown),
		cmocka_unit_test_setup_teardown(test_counts_no_more_than_shards, setup, teardown),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
