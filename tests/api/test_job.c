/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks save into one store: one outcome for all of them. Each is an engine of its own; all are in
 * this process, so that a rank can be made to fail, be late or vanish at will.
 */
#include "api/kit.h"

#include <ftw.h>

#define WORLD           4
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define COUNT           ((int64_t)50000)

struct job {
	char *dir;
	char store[200];
	char session[32];
	unsigned starts;
	struct ckpt_engine *ranks[WORLD];
	struct kit_vector vectors[WORLD];
	struct ckpt_save *saves[WORLD];
};

static struct ckpt_engine_opts options_of(const struct job *job, uint32_t rank, uint32_t timeout_ms)
{
	struct ckpt_engine_opts opts = kit_opts();

	opts.rank = rank;
	opts.world = WORLD;
	opts.session = job->session;
	opts.save_timeout_ms = timeout_ms;
	return opts;
}

static void open_rank(struct job *job, uint32_t rank, uint32_t timeout_ms)
{
	struct ckpt_engine_opts opts = options_of(job, rank, timeout_ms);

	must_work(ckpt_engine_open(job->store, &opts, &job->ranks[rank]));
}

static void open_job(struct job *job, uint32_t timeout_ms)
{
	(void)snprintf(job->session, sizeof(job->session), "job-%u", ++job->starts);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		open_rank(job, rank, timeout_ms);
}

static void close_rank(struct job *job, uint32_t rank)
{
	ckpt_save_free(job->saves[rank]);
	ckpt_engine_close(job->ranks[rank]);
	job->saves[rank] = NULL;
	job->ranks[rank] = NULL;
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	(void)snprintf(job->store, sizeof(job->store), "%s", scratch_join(job->dir, "store"));
	for (unsigned rank = 0; rank < WORLD; rank++)
		kit_fill(&job->vectors[rank], "w", COUNT + rank, rank);
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		close_rank(job, rank);
		kit_clear(&job->vectors[rank]);
	}
	scratch_remove(job->dir);
	free(job);
	return 0;
}

static void start_rank(struct job *job, uint32_t rank, uint64_t step, uint32_t flags)
{
	ckpt_save_free(job->saves[rank]);
	job->saves[rank] = kit_start(job->ranks[rank], step, flags, &job->vectors[rank], 1);
}

static int wait_rank(struct job *job, uint32_t rank)
{
	return ckpt_save_wait(job->saves[rank], CKPT_LEVEL_LOCAL, TIMEOUT_MS);
}

/* The step is there, with `WORLD` good shards; or there is none. */
static void check_step(struct job *job, uint64_t step, bool committed)
{
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *verify = NULL;

	must_work(ckpt_verify_start(reader, step, &verify));
	int r = ckpt_restore_wait(verify, TIMEOUT_MS);
	assert_int_equal(r, committed ? 0 : CKPT_ENOSTEP);
	ckpt_restore_free(verify);
	ckpt_engine_close(reader);
}

static unsigned shards;

static int count_shard(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	const char *dot = strrchr(path, '.');

	(void)info;
	(void)where;
	shards += kind == FTW_F && dot && strcmp(dot, ".safetensors") == 0;
	return 0;
}

static unsigned count_shards(const struct job *job)
{
	shards = 0;
	assert_int_equal(nftw(job->store, count_shard, 16, FTW_PHYS), 0);
	return shards;
}

static void test_one_outcome(void **state)
{
	struct job *job = *state;

	open_job(job, 20000);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, step, 0);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			must_work(wait_rank(job, rank));
		check_step(job, step, true);
	}
	assert_int_equal(count_shards(job), 3 * WORLD);
	/* Each rank's first word, the claim, and of the last step what each told; of those before nothing. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(ckpt_engine_drain(job->ranks[rank], TIMEOUT_MS));
	assert_int_equal(scratch_count(scratch_join(job->store, "exchange/job-1")), 1 + 2 * WORLD);
}

#define ROWS    ((int64_t)1000) /* of all ranks */
#define COLUMNS ((int64_t)300)

/* Rows from `first` on, as a box of the whole matrix. */
static void save_rows(
	struct job *job, uint32_t rank, const float *matrix, int64_t first, int64_t rows)
{
	const int64_t shape[] = {rows, COLUMNS};
	const int64_t whole[] = {ROWS, COLUMNS};
	const int64_t start[] = {first, 0};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "matrix",
		.dtype = CKPT_F32,
		.ndim = 2,
		.shape = shape,
		.data = matrix + first * COLUMNS,
		.global_shape = whole,
		.global_start = start};

	must_work(ckpt_save_begin(job->ranks[rank], 1, NULL, &job->saves[rank]));
	must_work(ckpt_save_add(job->saves[rank], &tensor, 1));
	must_work(ckpt_save_start(job->saves[rank]));
}

/* A box of the matrix, whoever wrote which part of it. */
static void check_box(struct ckpt_engine *engine, const float *matrix, int64_t row, int64_t column,
	int64_t rows, int64_t columns)
{
	const int64_t shape[] = {rows, columns};
	const int64_t start[] = {row, column};
	struct ckpt_target target = {.size = sizeof(target),
		.name = "matrix",
		.ndim = 2,
		.shape = shape,
		.start = start};
	struct ckpt_restore *restore = NULL;
	float *out = calloc((size_t)(rows * columns), sizeof(*out));

	target.data = out;
	must_work(ckpt_restore_open(engine, 1, &restore));
	assert_int_equal(ckpt_restore_world(restore), WORLD);
	must_work(ckpt_restore_bind(restore, &target, 1));
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
	for (int64_t i = 0; i < rows; i++)
		assert_memory_equal(out + i * columns, matrix + (row + i) * COLUMNS + column,
			(size_t)columns * sizeof(*out));
	free(out);
}

/* What four ranks saved in uneven parts is read by one, by two halves, and by columns. */
static void test_other_world(void **state)
{
	static const int64_t cuts[WORLD + 1] = {0, 1, 400, 999, ROWS};
	struct job *job = *state;
	struct kit_vector matrix;

	kit_fill(&matrix, "matrix", ROWS * COLUMNS, 7);
	open_job(job, 20000);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		save_rows(job, rank, matrix.data, cuts[rank], cuts[rank + 1] - cuts[rank]);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	check_box(reader, matrix.data, 0, 0, ROWS, COLUMNS);
	check_box(reader, matrix.data, 0, 0, ROWS / 2, COLUMNS);
	check_box(reader, matrix.data, ROWS / 2, 0, ROWS / 2, COLUMNS);
	check_box(reader, matrix.data, 0, 100, ROWS, 100);
	check_box(reader, matrix.data, 399, 299, 2, 1);
	ckpt_engine_close(reader);
	kit_clear(&matrix);
}

/* One rank is late: nobody is told that the step is durable before it is. */
static void test_late_rank(void **state)
{
	struct job *job = *state;

	open_job(job, 20000);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, rank == 2 ? CKPT_SAVE_FENCED : 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(
			ckpt_save_wait(job->saves[rank], CKPT_LEVEL_LOCAL, 50), -ETIMEDOUT);
	must_work(ckpt_save_fence(job->saves[2], TIMEOUT_MS));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	check_step(job, 1, true);
}

static void check_aborted(struct job *job, uint32_t rank, const char *text)
{
	struct ckpt_error error = {.size = sizeof(error)};

	assert_int_equal(ckpt_save_error(job->saves[rank], &error), CKPT_EABORTED);
	if (!strstr(error.message, text))
		fail_msg("rank %u says: %s", rank, error.message);
	assert_int_equal(error.rank, rank);
}

/* One rank fails: the step is of no rank, at once, everybody says why, and the next one is saved. */
static void test_failed_rank(void **state)
{
	struct job *job = *state;

	open_job(job, 600000);
	for (uint32_t failing = 0; failing < WORLD; failing++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, 1 + failing, CKPT_SAVE_FENCED);
		must_work(ckpt_save_fail(
			job->saves[failing], CKPT_ETORN, "w", "it was changed by the test"));
		for (uint32_t rank = 0; rank < WORLD; rank++)
			if (rank != failing)
				(void)ckpt_save_fence(job->saves[rank], TIMEOUT_MS);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			int r = wait_rank(job, rank);
			assert_int_equal(r, rank == failing ? CKPT_ETORN : CKPT_EABORTED);
			if (rank != failing)
				check_aborted(job, rank, "changed by the test");
		}
		check_step(job, 1 + failing, false);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 100, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	check_step(job, 100, true);
	assert_int_equal(count_shards(job), WORLD);
}

/* A rank that is not there any more: the others learn by their deadline that there is no such step. */
static void vanish(struct job *job, uint32_t gone)
{
	open_job(job, 2000);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (rank != gone)
			start_rank(job, rank, 2, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		if (rank == gone)
			continue;
		int r = wait_rank(job, rank);
		assert_true(r == CKPT_EABORTED || r == -ETIMEDOUT);
	}
	check_step(job, 1, true);
	check_step(job, 2, false);
}

static void test_vanished_rank(void **state)
{
	vanish(*state, 3);
}

static void test_vanished_leader(void **state)
{
	vanish(*state, 0);
}

/* The next start of the job, while the first one still thinks that it lives. */
static void test_next_start(void **state)
{
	struct job *job = *state;

	open_job(job, 20000);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	struct ckpt_engine_opts opts = options_of(job, 0, 20000);
	struct ckpt_engine *second = NULL;
	opts.session = "job-2";
	assert_int_equal(ckpt_engine_open(job->store, &opts, &second), CKPT_EINUSE);
	assert_null(second);
}

/* Ranks that do not belong together. */
static void test_strangers(void **state)
{
	struct job *job = *state;
	struct ckpt_engine_opts opts = options_of(job, 0, 2000);
	struct ckpt_save *save = NULL;
	const char *const bad[] = {"", ".a", "a/b", "a b",
		"0123456789012345678901234567890123456789012345678901234567890123456789", NULL};

	for (size_t i = 0; i < COUNT_OF(bad); i++) {
		opts.session = bad[i];
		assert_int_equal(ckpt_engine_open(job->store, &opts, &job->ranks[0]), -EINVAL);
	}
	opts = options_of(job, WORLD, 2000);
	opts.session = "job-1";
	assert_int_equal(ckpt_engine_open(job->store, &opts, &job->ranks[0]), -EINVAL);
	open_job(job, 2000);
	start_rank(job, 0, 1, 0);
	/* Another store: its rank 0 never says anything. */
	close_rank(job, 1);
	opts = options_of(job, 1, 2000);
	must_work(ckpt_engine_open(scratch_join(job->dir, "other"), &opts, &job->ranks[1]));
	must_work(ckpt_save_begin(job->ranks[1], 1, NULL, &save));
	assert_int_equal(ckpt_save_start(save), -ETIMEDOUT);
	ckpt_save_free(save);
}

#define RANKS(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		RANKS(test_one_outcome),
		RANKS(test_other_world),
		RANKS(test_late_rank),
		RANKS(test_failed_rank),
		RANKS(test_vanished_rank),
		RANKS(test_vanished_leader),
		RANKS(test_next_start),
		RANKS(test_strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
