/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several ranks save into one store: one outcome for all of them. Each is an engine of its own; all are in
 * this process, so that a rank can be made to fail, be late or vanish at will.
 */
#include "api/kit.h"

#include <ftw.h>
#include <pthread.h>
#include <stdatomic.h>

#define WORLD           4
#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))
#define COUNT           ((int64_t)50000)
#define SHORT_MS        500 /* a deadline that passes */

static const char *const names[WORLD] = {"w", "x", "y", "z"};

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
		kit_fill(&job->vectors[rank], names[rank], COUNT + rank, rank);
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

static void start_with(
	struct job *job, uint32_t rank, uint64_t step, const struct ckpt_save_opts *opts)
{
	struct ckpt_tensor tensor = kit_tensor(&job->vectors[rank]);

	ckpt_save_free(job->saves[rank]);
	must_work(ckpt_save_begin(job->ranks[rank], step, opts, &job->saves[rank]));
	must_work(ckpt_save_add(job->saves[rank], &tensor, 1));
	must_work(ckpt_save_start(job->saves[rank]));
}

static int wait_rank(struct job *job, uint32_t rank)
{
	return kit_wait(job->saves[rank]);
}

/* The step is there, with `WORLD` good shards; or there is none. */
static void check_step(struct job *job, uint64_t step, bool committed)
{
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *verify = NULL;

	must_work(ckpt_verify_start(reader, step, &verify));
	int r = kit_wait_restore(verify);
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
	shards += kind == FTW_F && dot && strcmp(dot, kit_shard_suffix()) == 0;
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

	open_job(job, LONG_MS);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, step, 0);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			must_work(wait_rank(job, rank));
		check_step(job, step, true);
	}
	assert_int_equal(count_shards(job), 3 * WORLD);
	/* One layout, one catalog; that it says what the indexes do the verification has seen. */
	assert_non_null(scratch_find(job->store, ".catalog"));
	assert_int_equal(
		scratch_count(scratch_join(job->store, "g000001")), 3 * (1 + 2 * WORLD + 1) + 1);
	/* Each rank's first word, the claim, and how the last step ended; of those before it nothing. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		close_rank(job, rank);
	assert_int_equal(scratch_count(scratch_join(job->store, "exchange/job-1")), WORLD + 2);
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
	open_job(job, LONG_MS);
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

	open_job(job, LONG_MS);
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

	int code = ckpt_save_error(job->saves[rank], &error);
	if (code != CKPT_EABORTED || !strstr(error.message, text))
		fail_msg("rank %u says: %d: %s", rank, code, error.message);
	assert_int_equal(error.rank, rank);
}

/* One rank fails: the step is of no rank, at once, everybody says why, and the next one is saved. */
static void test_failed_rank(void **state)
{
	struct job *job = *state;

	open_job(job, LONG_MS);
	for (uint32_t failing = 0; failing < WORLD; failing++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, 1 + failing, CKPT_SAVE_FENCED);
		must_work(ckpt_save_fail(job->saves[failing], CKPT_ETORN, names[failing],
			"it was changed by the test"));
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

/* One cannot even begin: the others hear of it at once, and not at their deadline. */
static void test_refused_rank(void **state)
{
	struct job *job = *state;

	open_job(job, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	for (uint32_t refused = 0; refused < WORLD; refused++) {
		struct ckpt_save *draft = NULL;
		must_work(ckpt_save_begin(job->ranks[refused], 2 + refused, NULL, &draft));
		must_work(ckpt_save_fail(draft, CKPT_ETORN, "w", "refused by the test"));
		for (uint32_t rank = 0; rank < WORLD; rank++)
			if (rank != refused)
				start_rank(job, rank, 2 + refused, 0);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			if (rank == refused)
				continue;
			(void)wait_rank(job, rank);
			check_aborted(job, rank, "refused by the test");
		}
		assert_int_equal(ckpt_save_start(draft), CKPT_ETORN);
		ckpt_save_free(draft);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 10, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	assert_int_equal(count_shards(job), 2 * WORLD);
}

static void check_refused_first(struct job *job, uint32_t refused)
{
	struct ckpt_save *draft = NULL;

	must_work(ckpt_save_begin(job->ranks[refused], 1, NULL, &draft));
	must_work(ckpt_save_fail(draft, CKPT_ETORN, "w", "refused by the test"));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (rank != refused)
			start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		if (rank == refused)
			continue;
		(void)wait_rank(job, rank);
		check_aborted(job, rank, "refused by the test");
	}
	assert_int_equal(ckpt_save_start(draft), CKPT_ETORN);
	ckpt_save_free(draft);
}

/* One is refused before anything is claimed: the others hear of it as soon as there is a claim. */
static void test_refused_first(void **state)
{
	struct job *job = *state;

	for (uint32_t refused = 0; refused < WORLD; refused++) {
		(void)snprintf(job->store, sizeof(job->store), "%s/store-%u", job->dir, refused);
		open_job(job, LONG_MS);
		check_refused_first(job, refused);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, 2, 0);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			must_work(wait_rank(job, rank));
		check_step(job, 2, true);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			close_rank(job, rank);
	}
}

/* All are refused, and the next one is saved: who claims and who waits for it keep step. */
static void test_all_refused_first(void **state)
{
	struct job *job = *state;

	open_job(job, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct ckpt_save *draft = NULL;
		must_work(ckpt_save_begin(job->ranks[rank], 1, NULL, &draft));
		must_work(ckpt_save_fail(draft, CKPT_ETORN, "w", "refused by the test"));
		ckpt_save_free(draft);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 2, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	check_step(job, 2, true);
}

/* No claim succeeds as long as the claims are elsewhere. */
static void move_claims(const struct job *job, bool away)
{
	const char *there = scratch_join(job->store, "gens");
	const char *elsewhere = scratch_join(job->store, "moved");

	assert_int_equal(rename(away ? there : elsewhere, away ? elsewhere : there), 0);
}

/* It may have heard already that there is no claim. */
static void begin_claim(struct ckpt_save *draft)
{
	int r = ckpt_save_ready(draft, 0);

	assert_true(r == -ETIMEDOUT || r == -ENOENT);
}

/* All ranks try a step that `refused` is refused: there is no generation for it. */
static void fail_claim(struct job *job, uint32_t refused, uint64_t step)
{
	for (uint32_t i = 0; i < WORLD; i++) {
		struct ckpt_save *draft = NULL;
		uint32_t rank = (refused + i) % WORLD;
		must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &draft));
		if (rank == refused)
			must_work(ckpt_save_fail(draft, CKPT_ETORN, "w", "refused by the test"));
		/* Rank 0 claims in its own start: the others hear of it in theirs. */
		else if (rank == 0)
			assert_int_equal(ckpt_save_start(draft), -ENOENT);
		else
			begin_claim(draft);
		job->saves[rank] = draft;
	}
	for (uint32_t rank = 1; rank < WORLD; rank++)
		if (rank != refused)
			assert_int_equal(ckpt_save_start(job->saves[rank]), -ENOENT);
}

/* A claim that was begun for a save that was refused fails: the next save hears nothing of that. */
static void test_claim_failed_for_refused(void **state)
{
	struct job *job = *state;

	for (uint32_t refused = 0; refused < WORLD; refused += WORLD - 1) {
		(void)snprintf(job->store, sizeof(job->store), "%s/store-%u", job->dir, refused);
		open_job(job, LONG_MS);
		move_claims(job, true);
		/* Twice: each is counted on all ranks. */
		for (uint64_t step = 1; step <= 2; step++) {
			fail_claim(job, refused, step);
			for (uint32_t rank = 0; rank < WORLD; rank++) {
				ckpt_save_free(job->saves[rank]);
				job->saves[rank] = NULL;
			}
		}
		move_claims(job, false);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			start_rank(job, rank, 3, 0);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			must_work(wait_rank(job, rank));
		check_step(job, 3, true);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			close_rank(job, rank);
	}
}

/* What a start waits for can be waited for a little at a time. */
static void test_ready(void **state)
{
	struct job *job = *state;
	struct ckpt_save *draft = NULL;

	open_job(job, LONG_MS);
	must_work(ckpt_save_begin(job->ranks[1], 1, NULL, &draft));
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(ckpt_save_ready(draft, 10), -ETIMEDOUT);
	assert_int_equal(ckpt_save_error(draft, NULL), 0);
	assert_int_equal(ckpt_save_ready(draft, -1), -EINVAL);
	start_rank(job, 0, 1, 0);
	must_work(ckpt_save_ready(draft, TIMEOUT_MS));
	must_work(ckpt_save_ready(draft, 0));
	ckpt_save_free(draft);
	for (uint32_t rank = 1; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	/* What it finds is the save's failure. */
	struct ckpt_engine_opts opts = options_of(job, 0, LONG_MS);
	opts.session = "job-2";
	for (uint32_t rank = 0; rank < WORLD; rank++)
		close_rank(job, rank);
	must_work(ckpt_engine_open(job->store, &opts, &job->ranks[0]));
	must_work(ckpt_save_begin(job->ranks[0], 2, NULL, &draft));
	assert_int_equal(in_time(ckpt_save_ready(draft, TIMEOUT_MS)), CKPT_ENOTRESUMED);
	assert_int_equal(ckpt_save_error(draft, NULL), CKPT_ENOTRESUMED);
	assert_int_equal(ckpt_save_start(draft), CKPT_ENOTRESUMED);
	ckpt_save_free(draft);
}

#define STEPS_MAX 20000
#define COMMITS   15

/* One rank's training: it saves at every step, and each step takes its time. */
struct trainer {
	struct job *job;
	uint32_t rank;
	pthread_t thread;
	pthread_barrier_t *together;
	atomic_bool *enough;
	uint64_t steps;
	struct ckpt_save *saves[STEPS_MAX + 1];
};

static void spin(uint64_t rounds)
{
	for (volatile uint64_t i = 0; i < rounds; i++)
		;
}

static void *train(void *argument)
{
	struct trainer *t = argument;
	uint64_t last = 0;
	unsigned commits = 0;
	uint64_t drawn = t->rank + 1;

	while (t->steps < STEPS_MAX) {
		(void)pthread_barrier_wait(t->together);
		bool enough = atomic_load(t->enough);
		(void)pthread_barrier_wait(t->together);
		if (enough)
			return NULL;
		drawn = drawn * UINT64_C(6364136223846793005) + 1;
		spin(drawn >> 44);
		struct ckpt_save *save = kit_start(
			t->job->ranks[t->rank], ++t->steps, 0, &t->job->vectors[t->rank], 1);
		t->saves[t->steps] = save;
		if (t->rank > 0 || ckpt_save_error(save, NULL) == CKPT_ESKIPPED)
			continue;
		/* It has begun: the one before it is over. */
		commits += last && ckpt_save_wait(t->saves[last], CKPT_LEVEL_LOCAL, 0) == 0;
		last = t->steps;
		atomic_store(t->enough, commits >= COMMITS);
	}
	return NULL;
}

/* Rank 0 skips what comes too soon, for all: however they are late, steps go on being committed. */
static void test_skip(void **state)
{
	struct job *job = *state;
	struct trainer *trainers = calloc(WORLD, sizeof(*trainers));
	pthread_barrier_t together;
	atomic_bool enough = false;
	unsigned counts[2] = {0};

	(void)snprintf(job->session, sizeof(job->session), "job-skip");
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct ckpt_engine_opts opts = options_of(job, rank, LONG_MS);
		opts.busy = CKPT_BUSY_SKIP;
		must_work(ckpt_engine_open(job->store, &opts, &job->ranks[rank]));
	}
	assert_int_equal(pthread_barrier_init(&together, NULL, WORLD), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		trainers[rank].job = job;
		trainers[rank].rank = rank;
		trainers[rank].together = &together;
		trainers[rank].enough = &enough;
		assert_int_equal(
			pthread_create(&trainers[rank].thread, NULL, train, &trainers[rank]), 0);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(pthread_join(trainers[rank].thread, NULL), 0);
	for (uint64_t step = 1; step <= trainers[0].steps; step++) {
		int first = kit_wait(trainers[0].saves[step]);
		assert_true(first == 0 || first == CKPT_ESKIPPED);
		counts[first == 0]++;
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			struct ckpt_save *save = trainers[rank].saves[step];
			int r = kit_wait(save);
			if (r != first)
				fail_msg("rank %u says of step %llu: %d: %s", rank,
					(unsigned long long)step, r, ckpt_last_error());
			ckpt_save_free(save);
		}
	}
	assert_true(counts[1] >= COMMITS);
	assert_true(counts[0] > 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		close_rank(job, rank);
	/* Of what was skipped nothing is left: a directory, two files of each rank, a manifest; and one catalog. */
	assert_int_equal(scratch_count(scratch_join(job->store, "g000001")),
		counts[1] * (1 + 2 * WORLD + 1) + 1);
	(void)pthread_barrier_destroy(&together);
	free(trainers);
}

/* A rank that is not there any more: the others learn by their deadline that there is no such step. */
static void vanish(struct job *job, uint32_t gone)
{
	const struct ckpt_save_opts in_vain = {.size = sizeof(in_vain), .timeout_ms = SHORT_MS};

	open_job(job, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (rank != gone)
			start_with(job, rank, 2, &in_vain);
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

	open_job(job, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	struct ckpt_engine_opts opts = options_of(job, 0, LONG_MS);
	struct ckpt_engine *second = NULL;
	opts.session = "job-2";
	assert_int_equal(ckpt_engine_open(job->store, &opts, &second), CKPT_EINUSE);
	assert_null(second);
}

/* Whose rank 0 is gone, and whose successor has claimed: they are told so, soon, and with every step. */
static void test_survivors(void **state)
{
	struct job *job = *state;
	struct ckpt_engine_opts opts = options_of(job, 0, LONG_MS);
	struct ckpt_error error = {.size = sizeof(error)};
	struct ckpt_engine *second = NULL;
	uint64_t generation;

	open_job(job, LONG_MS);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		start_rank(job, rank, 1, 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(wait_rank(job, rank));
	close_rank(job, 0);
	start_rank(job, 1, 2, 0);
	opts.session = "job-2";
	opts.flags = CKPT_ENGINE_NEW_START;
	must_work(ckpt_engine_open(job->store, &opts, &second));
	must_work(ckpt_engine_claim(second, &generation));
	start_rank(job, 2, 2, 0);
	for (uint32_t rank = 1; rank < 3; rank++) {
		assert_int_equal(wait_rank(job, rank), CKPT_EFENCED);
		(void)ckpt_save_error(job->saves[rank], &error);
		assert_non_null(strstr(error.message, "another start of the job runs"));
		start_rank(job, rank, 3, 0);
		assert_int_equal(wait_rank(job, rank), CKPT_EFENCED);
	}
	ckpt_engine_close(second);
}

/* Ranks that do not belong together. */
static void test_strangers(void **state)
{
	struct job *job = *state;
	struct ckpt_engine_opts opts = options_of(job, 0, LONG_MS);
	struct ckpt_save *save = NULL;
	const char *const bad[] = {"", ".a", "a/b", "a b",
		"0123456789012345678901234567890123456789012345678901234567890123456789", NULL};

	for (size_t i = 0; i < COUNT_OF(bad); i++) {
		opts.session = bad[i];
		assert_int_equal(ckpt_engine_open(job->store, &opts, &job->ranks[0]), -EINVAL);
	}
	opts = options_of(job, 0, LONG_MS);
	opts.session = "job-1";
	opts.world = 50001;
	assert_int_equal(ckpt_engine_open(job->store, &opts, &job->ranks[0]), -EINVAL);
	opts = options_of(job, WORLD, LONG_MS);
	opts.session = "job-1";
	assert_int_equal(ckpt_engine_open(job->store, &opts, &job->ranks[0]), -EINVAL);
	open_job(job, LONG_MS);
	start_rank(job, 0, 1, 0);
	/* Another store: its rank 0 never says anything. */
	close_rank(job, 1);
	opts = options_of(job, 1, SHORT_MS);
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
		RANKS(test_refused_rank),
		RANKS(test_refused_first),
		RANKS(test_all_refused_first),
		RANKS(test_claim_failed_for_refused),
		RANKS(test_ready),
		RANKS(test_skip),
		RANKS(test_vanished_rank),
		RANKS(test_vanished_leader),
		RANKS(test_next_start),
		RANKS(test_survivors),
		RANKS(test_strangers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
