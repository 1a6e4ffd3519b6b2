/* SPDX-License-Identifier: Apache-2.0 */
/*
 * So many ranks that a reader goes by the catalog of what they hold. Each is an engine of its own, all in this
 * process; the readers are of one rank, as any program that looks at the store.
 */
#include "api/kit.h"

#include <glob.h>
#include <pthread.h>
#include <unistd.h>

#define WORLD   33
#define ROWS    ((int64_t)10) /* of each rank */
#define COLUMNS ((int64_t)50)
#define ALL     (WORLD * ROWS)
#define THREADS 4

struct job {
	char *dir;
	struct ckpt_engine *ranks[WORLD];
	struct ckpt_save *saves[WORLD];
	float matrix[ALL * COLUMNS];
};

/* A part of the matrix, a tensor of its own, and words beside them. */
static void start_rank(struct job *job, uint32_t rank, uint64_t step)
{
	const int64_t shape[] = {ROWS, COLUMNS};
	const int64_t whole[] = {ALL, COLUMNS};
	const int64_t start[] = {rank * ROWS, 0};
	const int64_t one = 1;
	char name[32];
	char meta[32];
	const float number = (float)rank;
	struct ckpt_tensor tensors[] = {{.size = sizeof(tensors[0]),
						.name = "matrix",
						.dtype = CKPT_F32,
						.ndim = 2,
						.shape = shape,
						.data = job->matrix + start[0] * COLUMNS,
						.global_shape = whole,
						.global_start = start},
		{.size = sizeof(tensors[0]),
			.flags = CKPT_TENSOR_EAGER,
			.name = name,
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &one,
			.data = &number}};

	(void)snprintf(name, sizeof(name), "own.%u", rank);
	int length = snprintf(meta, sizeof(meta), "{\"rank\": %u}", rank);
	must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &job->saves[rank]));
	must_work(ckpt_save_add(job->saves[rank], tensors, 2));
	must_work(ckpt_save_set_meta(job->saves[rank], meta, (size_t)length));
	must_work(ckpt_save_start(job->saves[rank]));
	must_work(ckpt_save_wait_eager(job->saves[rank], TIMEOUT_MS));
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	for (int64_t i = 0; i < ALL * COLUMNS; i++)
		job->matrix[i] = (float)i;
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct ckpt_engine_opts opts = kit_opts();
		opts.rank = rank;
		opts.world = WORLD;
		opts.session = "many";
		must_work(ckpt_engine_open(job->dir, &opts, &job->ranks[rank]));
	}
	for (uint64_t step = 1; step <= 2; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, step);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			must_work(ckpt_save_wait(job->saves[rank], CKPT_LEVEL_LOCAL, TIMEOUT_MS));
			ckpt_save_free(job->saves[rank]);
		}
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		ckpt_engine_close(job->ranks[rank]);
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	scratch_remove(job->dir);
	free(job);
	return 0;
}

static struct ckpt_restore *open_step(struct ckpt_engine *engine, uint64_t step)
{
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_restore_open(engine, step, &restore));
	assert_int_equal(ckpt_restore_world(restore), WORLD);
	return restore;
}

/* Rows of the matrix as they come back. */
static int read_rows(
	struct job *job, struct ckpt_engine *engine, uint64_t step, int64_t first, int64_t rows)
{
	static float out[ALL * COLUMNS];
	const int64_t shape[] = {rows, COLUMNS};
	const int64_t start[] = {first, 0};
	struct ckpt_target target = {.size = sizeof(target),
		.name = "matrix",
		.data = out,
		.ndim = 2,
		.shape = shape,
		.start = start};
	struct ckpt_restore *restore = open_step(engine, step);

	memset(out, 0, sizeof(out));
	must_work(ckpt_restore_bind(restore, &target, 1));
	must_work(ckpt_restore_start(restore));
	int r = ckpt_restore_wait(restore, TIMEOUT_MS);
	if (r == 0)
		for (int64_t i = 0; i < rows * COLUMNS; i++)
			assert_true(out[i] == job->matrix[first * COLUMNS + i]);
	ckpt_restore_free(restore);
	return r;
}

static void verify(struct ckpt_engine *engine, uint64_t step)
{
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_verify_start(engine, step, &restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
}

/* Changes a byte of the index of a rank. */
static void damage(const struct job *job, uint64_t step, uint32_t rank)
{
	char pattern[64];
	glob_t found;

	(void)snprintf(pattern, sizeof(pattern), "g000001/step-%010u/rank-%05u.*.index",
		(unsigned)step, rank);
	assert_int_equal(glob(scratch_join(job->dir, pattern), 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	scratch_flip(found.gl_pathv[0], 30);
	globfree(&found);
}

static void test_read(void **state)
{
	struct job *job = *state;
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);

	assert_int_equal(read_rows(job, engine, 2, 0, ALL), 0);
	assert_int_equal(read_rows(job, engine, 1, 5, 1), 0);
	assert_int_equal(read_rows(job, engine, 2, 17 * ROWS - 3, 2 * ROWS), 0);
	verify(engine, 1);
	verify(engine, 2);
	ckpt_engine_close(engine);
}

/* What is wrong with one rank is found by who needs it, and by who verifies; nobody else is kept from the step. */
static void test_damage(void **state)
{
	struct job *job = *state;
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = NULL;

	damage(job, 2, 20);
	assert_int_equal(read_rows(job, engine, 2, 0, 20 * ROWS), 0);
	assert_int_equal(read_rows(job, engine, 2, 20 * ROWS, 1), CKPT_EINTEGRITY);
	must_work(ckpt_verify_start(engine, 2, &restore));
	assert_int_equal(in_time(ckpt_restore_wait(restore, TIMEOUT_MS)), CKPT_EINTEGRITY);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	/* Who may write puts it aside, and the one before is the latest. */
	engine = kit_open(job->dir, 0);
	assert_int_equal(read_rows(job, engine, CKPT_STEP_LATEST, 20 * ROWS, 1), CKPT_EINTEGRITY);
	assert_int_equal(read_rows(job, engine, CKPT_STEP_LATEST, 20 * ROWS, 1), 0);
	ckpt_engine_close(engine);
}

static void check_meta(struct ckpt_restore *restore, uint32_t rank)
{
	const char *json = NULL;
	size_t length = 0;
	char meta[32];

	must_work(ckpt_restore_rank_meta(restore, rank, &json, &length));
	assert_int_equal(length, snprintf(meta, sizeof(meta), "{\"rank\": %u}", rank));
	assert_memory_equal(json, meta, length);
}

static void test_told(void **state)
{
	struct job *job = *state;
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_tensor_info info = {.size = sizeof(info)};
	const char *json = NULL;
	size_t length = 0;
	size_t index = 0;

	damage(job, 2, 20);
	struct ckpt_restore *restore = open_step(engine, 2);
	assert_int_equal(ckpt_restore_count(restore), WORLD + 1);
	must_work(ckpt_restore_find(restore, "own.7", &index));
	must_work(ckpt_restore_tensor(restore, index, &info));
	assert_int_equal(info.rank, 7);
	assert_int_equal(info.nbytes, sizeof(float));
	assert_true(info.offset == UINT64_MAX);
	assert_int_equal(info.pieces, 0);
	assert_int_equal(ckpt_restore_find(restore, "own.33", &index), CKPT_EMISMATCH);
	check_meta(restore, 0);
	check_meta(restore, 32);
	check_meta(restore, 0);
	must_work(ckpt_restore_meta(restore, &json, &length));
	assert_memory_equal(json, "{\"rank\": 0}", length);
	assert_int_equal(ckpt_restore_rank_meta(restore, 20, &json, &length), CKPT_EINTEGRITY);
	assert_int_equal(ckpt_restore_rank_meta(restore, WORLD, &json, &length), -ERANGE);
	/* What was read can be asked for once the engine is closed, and nothing else. */
	ckpt_engine_close(engine);
	check_meta(restore, 32);
	assert_int_equal(ckpt_restore_rank_meta(restore, 31, &json, &length), CKPT_ECLOSED);
	assert_int_equal(ckpt_restore_rank_meta(restore, 20, &json, &length), CKPT_ECLOSED);
	ckpt_restore_free(restore);
}

static void *ask_all(void *restore)
{
	const char *json;
	size_t length;
	uintptr_t failed = 0;

	for (uint32_t rank = 0; rank < WORLD; rank++)
		failed += ckpt_restore_rank_meta(restore, rank, &json, &length) < 0;
	return (void *)failed;
}

/* Threads may ask at once, for the same ranks: what one of them was given stays as long as the restore. */
static void test_asked_at_once(void **state)
{
	struct job *job = *state;
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = open_step(engine, 2);
	pthread_t threads[THREADS];
	void *failed;

	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, ask_all, restore), 0);
	for (size_t i = 0; i < THREADS; i++) {
		assert_int_equal(pthread_join(threads[i], &failed), 0);
		assert_null(failed);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		check_meta(restore, rank);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
}

/* Without its catalog it is the same step. */
static void test_without(void **state)
{
	struct job *job = *state;
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_tensor_info info = {.size = sizeof(info)};
	size_t index = 0;

	const char *catalog = scratch_find(job->dir, ".catalog");
	assert_non_null(catalog);
	assert_int_equal(unlink(catalog), 0);
	assert_int_equal(read_rows(job, engine, 2, 0, ALL), 0);
	struct ckpt_restore *restore = open_step(engine, 2);
	must_work(ckpt_restore_find(restore, "matrix", &index));
	must_work(ckpt_restore_tensor(restore, index, &info));
	assert_int_equal(info.pieces, WORLD);
	ckpt_restore_free(restore);
	verify(engine, 2);
	ckpt_engine_close(engine);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_read, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_damage, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_told, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_asked_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_without, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
