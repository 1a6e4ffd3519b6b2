/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks hold and one of them saves for all: a step is committed if their bytes are the same, and is of
 * no rank if they are not. Each rank is an engine of its own, all in this process.
 */
#include "api/kit.h"

#include <unistd.h>

#define WORLD   4
#define TENSORS 3
#define COUNT   ((int64_t)20000)
#define GROUP   7

struct job {
	char *dir;
	unsigned starts;
	char session[32];
	struct ckpt_engine *ranks[WORLD];
	struct kit_vector tensors[WORLD][TENSORS];
	struct ckpt_save *saves[WORLD];
	struct ckpt_error errors[WORLD];
	struct ckpt_tensor extra; /* that is on all ranks as well; no name: there is none */
	enum ckpt_own own[WORLD]; /* of what each writes a copy of its own */
	bool late;                /* rank 3 does not have the tensors yet */
};

static void close_job(struct job *job)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		ckpt_engine_close(job->ranks[rank]);
}

/* The next start of the job, on what the store has. */
static void open_job(struct job *job, uint32_t replicas)
{
	(void)snprintf(job->session, sizeof(job->session), "start-%u", ++job->starts);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct ckpt_engine_opts opts = kit_opts();

		opts.rank = rank;
		opts.world = WORLD;
		opts.session = job->session;
		opts.replicas = replicas;
		opts.flags = CKPT_ENGINE_NEW_START;
		must_work(ckpt_engine_open(job->dir, &opts, &job->ranks[rank]));
	}
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	for (uint32_t rank = 0; rank < WORLD; rank++)
		for (unsigned i = 0; i < TENSORS; i++) {
			char name[16];
			(void)snprintf(name, sizeof(name), "w%u", i);
			kit_fill(&job->tensors[rank][i], name, COUNT + i, i);
		}
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	for (uint32_t rank = 0; rank < WORLD; rank++)
		for (unsigned i = 0; i < TENSORS; i++)
			kit_clear(&job->tensors[rank][i]);
	scratch_remove(job->dir);
	free(job);
	return 0;
}

/* Rank i writes the tensors of number i, and all say what they hold of all. */
static void start(struct job *job, uint32_t rank, uint64_t step)
{
	struct ckpt_tensor all[TENSORS];

	for (unsigned i = 0; i < TENSORS; i++)
		all[i] = kit_tensor(&job->tensors[rank][i]);
	must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &job->saves[rank]));
	if (rank < TENSORS)
		must_work(ckpt_save_add(job->saves[rank], &all[rank], 1));
	if (rank != 3 || !job->late)
		must_work(ckpt_save_add_replicas(job->saves[rank], GROUP, all, TENSORS));
	struct ckpt_tensor extra = job->extra;
	if (rank == 3)
		extra.data = job->tensors[rank][2].data;
	if (extra.name)
		must_work(ckpt_save_add_replicas(job->saves[rank], GROUP, &extra, 1));
	if (job->own[rank] != CKPT_OWN_NONE)
		must_work(ckpt_save_set_own(job->saves[rank], GROUP, job->own[rank]));
	must_work(ckpt_save_start(job->saves[rank]));
	/* Nothing of it is read any more that this rank does not write. */
	memset(all, 0xff, sizeof(all));
}

/* What it comes to: the same on all ranks. */
static int save(struct job *job, uint64_t step)
{
	int result = 0;

	for (uint32_t rank = 0; rank < WORLD; rank++)
		start(job, rank, step);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		int r = kit_wait(job->saves[rank]);

		job->errors[rank] = (struct ckpt_error){.size = sizeof(struct ckpt_error)};
		if (r < 0)
			(void)ckpt_save_error(job->saves[rank], &job->errors[rank]);
		else
			assert_in_set(ckpt_save_replicas(job->saves[rank], &job->errors[rank]),
				((const unsigned long[]){0, (unsigned long)CKPT_EREPLICA}), 2);
		if (rank > 0)
			assert_int_equal(r, result);
		result = r;
		ckpt_save_free(job->saves[rank]);
	}
	return result;
}

static void check_says(const struct job *job, const char *text)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		if (!strstr(job->errors[rank].message, text))
			fail_msg("rank %u does not say \"%s\": %s", rank, text,
				job->errors[rank].message);
}

/* Where a byte stands. */
static char *byte_of(struct job *job, uint32_t rank, unsigned tensor, size_t at)
{
	return (char *)job->tensors[rank][tensor].data + at;
}

static void test_every_byte_at_first(void **state)
{
	struct job *job = *state;

	open_job(job, CKPT_REPLICAS_CHECK);
	*byte_of(job, 2, 1, 33333) ^= 1;
	assert_int_equal(save(job, 1), CKPT_EREPLICA);
	check_says(job, "rank 2 of the 4 ranks");
	check_says(job, "'w1'");
	check_says(job, "replicas=");
	assert_string_equal(job->errors[0].tensor, "w1");
	/* A step that failed proves nothing. */
	assert_int_equal(save(job, 2), CKPT_EREPLICA);
	uint64_t latest;
	assert_int_equal(ckpt_engine_latest(job->ranks[0], &latest), CKPT_ENOSTEP);
	*byte_of(job, 2, 1, 33333) ^= 1;
	assert_int_equal(save(job, 3), 0);
	must_work(ckpt_engine_latest(job->ranks[0], &latest));
	assert_int_equal(latest, 3);
	close_job(job);
}

/* What was found stays found, though the next samples would miss what is left of it. */
static void test_not_forgotten(void **state)
{
	struct job *job = *state;

	open_job(job, CKPT_REPLICAS_CHECK);
	assert_int_equal(save(job, 1), 0);
	*byte_of(job, 1, 1, 3) ^= 1;
	*byte_of(job, 1, 1, 33333) ^= 1;
	assert_int_equal(save(job, 2), CKPT_EREPLICA);
	*byte_of(job, 1, 1, 3) ^= 1;
	assert_int_equal(save(job, 3), CKPT_EREPLICA);
	assert_int_equal(save(job, 4), CKPT_EREPLICA);
	*byte_of(job, 1, 1, 33333) ^= 1;
	assert_int_equal(save(job, 5), 0);
	close_job(job);
}

/* From then on lines are compared, and what changes is found: also on the rank that writes it. */
static void test_later(void **state)
{
	struct job *job = *state;

	open_job(job, CKPT_REPLICAS_CHECK);
	assert_int_equal(save(job, 1), 0);
	for (int64_t i = 0; i < COUNT; i++)
		job->tensors[1][1].data[i] += 1;
	assert_int_equal(save(job, 2), CKPT_EREPLICA);
	check_says(job, "rank 1 of the 4 ranks");
	check_says(job, "alike at step 1");
	/* Two against two: nobody can tell who is right. */
	for (int64_t i = 0; i < COUNT; i++)
		job->tensors[2][1].data[i] += 1;
	assert_int_equal(save(job, 3), CKPT_EREPLICA);
	check_says(job, "ranks 1 and 2 and rank 0 hold different bytes");
	for (int64_t i = 0; i < COUNT; i++) {
		job->tensors[0][1].data[i] += 1;
		job->tensors[3][1].data[i] += 1;
	}
	assert_int_equal(save(job, 4), 0);
	close_job(job);
}

/* Every byte of a tensor that is new is looked at, and of the others as little as before. */
static void test_only_what_is_new(void **state)
{
	struct job *job = *state;
	int64_t count = COUNT;

	open_job(job, CKPT_REPLICAS_CHECK);
	assert_int_equal(save(job, 1), 0);
	job->extra = kit_tensor(&job->tensors[0][2]);
	job->extra.name = "history";
	job->extra.shape = &count;
	/* Samples hardly ever look there. */
	*byte_of(job, 1, 1, 33333) ^= 1;
	assert_int_equal(save(job, 2), 0);
	*byte_of(job, 3, 2, 33333) ^= 1;
	assert_int_equal(save(job, 3), 0);
	count--;
	assert_int_equal(save(job, 4), CKPT_EREPLICA);
	check_says(job, "rank 3 of the 4 ranks");
	check_says(job, "'history'");
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_null(strstr(job->errors[rank].message, "alike at step"));
	/* A difference that was found is looked for in every byte of all. */
	assert_int_equal(save(job, 5), CKPT_EREPLICA);
	check_says(job, "'w1'");
	close_job(job);
}

static void check_marked(struct job *job, uint64_t step, const char *text)
{
	struct ckpt_engine *engine = kit_open(job->dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_restore_open(engine, step, &restore));
	if (*text)
		assert_non_null(strstr(ckpt_restore_replicas(restore), text));
	else
		assert_string_equal(ckpt_restore_replicas(restore), "");
	ckpt_restore_free(restore);
	must_work(ckpt_verify_start(engine, step, &restore));
	assert_int_equal(kit_wait_restore(restore), 0);
	if (*text)
		assert_non_null(strstr(ckpt_restore_replicas(restore), text));
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
}

static void test_tolerant(void **state)
{
	struct job *job = *state;

	open_job(job, CKPT_REPLICAS_WARN);
	assert_int_equal(save(job, 1), 0);
	/* The first line is always looked at, and the other one hardly ever. */
	*byte_of(job, 1, 2, 4) ^= 1;
	*byte_of(job, 1, 2, 33333) ^= 1;
	assert_int_equal(save(job, 2), 0);
	*byte_of(job, 1, 2, 4) ^= 1;
	for (uint64_t step = 3; step <= 4; step++) {
		assert_int_equal(save(job, step), 0);
		check_says(job, "rank 1 of the 4 ranks");
	}
	close_job(job);
	check_marked(job, 1, "");
	for (uint64_t step = 2; step <= 4; step++)
		check_marked(job, step, "rank 1 of the 4 ranks");
}

/* What one rank does not give, or lies otherwise, is no difference. */
static void test_no_false_alarm(void **state)
{
	struct job *job = *state;
	const int64_t shape[] = {100, 50};
	const int64_t across[] = {1, 100};
	float *turned = malloc(5000 * sizeof(*turned));
	float *plain = malloc(5000 * sizeof(*plain));

	for (size_t i = 0; i < 5000; i++)
		turned[i % 50 * 100 + i / 50] = plain[i] = (float)i;
	plain[7] = turned[700] = __builtin_nanf("5");
	open_job(job, CKPT_REPLICAS_CHECK);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			struct ckpt_tensor own = kit_tensor(&job->tensors[rank][0]);
			struct ckpt_tensor t = {.size = sizeof(t),
				.name = "m",
				.dtype = CKPT_F32,
				.ndim = 2,
				.shape = shape,
				.strides = rank == 1 ? across : NULL,
				.data = rank == 1 ? turned : plain};
			char name[16];

			(void)snprintf(name, sizeof(name), "own.%u", rank);
			own.name = name;
			must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &job->saves[rank]));
			must_work(ckpt_save_add(job->saves[rank], &own, 1));
			if (rank != 3)
				must_work(ckpt_save_add_replicas(job->saves[rank], GROUP, &t, 1));
			/* Ranks 0 and 1 are others than 2 and 3. */
			own.name = "half";
			if (rank >= 2)
				own.data = job->tensors[0][1].data;
			must_work(
				ckpt_save_add_replicas(job->saves[rank], 100 + rank / 2, &own, 1));
			must_work(ckpt_save_start(job->saves[rank]));
		}
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			must_work(kit_wait(job->saves[rank]));
			assert_int_equal(ckpt_save_replicas(job->saves[rank], NULL), 0);
			ckpt_save_free(job->saves[rank]);
		}
	}
	close_job(job);
	free(turned);
	free(plain);
}

/* What all ranks know of the group. */
static void check_own(struct job *job, enum ckpt_own own)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(ckpt_engine_own(job->ranks[rank], GROUP), own);
}

static void say_own(struct job *job, enum ckpt_own own)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		job->own[rank] = own;
}

/* What ranks write copies of their own of may differ, until a commit has found that it does not. */
static void test_own(void **state)
{
	struct job *job = *state;
	uint64_t latest;

	open_job(job, CKPT_REPLICAS_CHECK);
	say_own(job, CKPT_OWN_UNKNOWN);
	check_own(job, CKPT_OWN_UNKNOWN);
	assert_int_equal(save(job, 1), 0);
	check_own(job, CKPT_OWN_NONE);
	/* One has not heard of it. */
	say_own(job, CKPT_OWN_NONE);
	job->own[3] = CKPT_OWN_UNKNOWN;
	assert_int_equal(save(job, 2), 0);
	*byte_of(job, 2, 1, 3) ^= 1;
	assert_int_equal(save(job, 3), CKPT_EREPLICA);
	check_says(job, "'w1'");
	must_work(ckpt_engine_latest(job->ranks[0], &latest));
	assert_int_equal(latest, 2);
	check_own(job, CKPT_OWN_NONE);
	close_job(job);
	/* Another run finds out for itself. One bit is enough. */
	*byte_of(job, 2, 1, 3) ^= 1;
	*byte_of(job, 2, 1, 33333) ^= 1;
	open_job(job, CKPT_REPLICAS_CHECK);
	say_own(job, CKPT_OWN_UNKNOWN);
	assert_int_equal(save(job, 4), 0);
	assert_string_equal(job->errors[0].message, "");
	check_own(job, CKPT_OWN_DIFFERS);
	say_own(job, CKPT_OWN_DIFFERS);
	*byte_of(job, 2, 1, 33333) ^= 1;
	assert_int_equal(save(job, 5), 0);
	check_own(job, CKPT_OWN_DIFFERS);
	*byte_of(job, 1, 0, 3) ^= 1;
	assert_int_equal(save(job, 6), 0);
	close_job(job);
}

/* Nobody takes for alike what was compared by samples alone, or what a step was committed with in spite of it. */
static void test_own_unchecked(void **state)
{
	struct job *job = *state;

	*byte_of(job, 3, 1, 33333) ^= 1;
	open_job(job, CKPT_REPLICAS_CHECK);
	job->late = true;
	assert_int_equal(save(job, 1), 0);
	job->late = false;
	say_own(job, CKPT_OWN_UNKNOWN);
	/* Three ranks have a proof of the tensors: all have samples, and no more in common. */
	assert_int_equal(save(job, 2), 0);
	check_own(job, CKPT_OWN_UNKNOWN);
	assert_int_equal(save(job, 3), 0);
	check_own(job, CKPT_OWN_DIFFERS);
	close_job(job);
	open_job(job, CKPT_REPLICAS_WARN);
	job->own[0] = CKPT_OWN_NONE;
	assert_int_equal(save(job, 4), 0);
	check_says(job, "rank 3 of the 4 ranks");
	check_own(job, CKPT_OWN_UNKNOWN);
	close_job(job);
}

static void test_refused(void **state)
{
	struct job *job = *state;
	struct ckpt_tensor t = kit_tensor(&job->tensors[0][0]);
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine;

	opts.replicas = 2;
	assert_int_equal(ckpt_engine_open(job->dir, &opts, &engine), -EINVAL);
	open_job(job, CKPT_REPLICAS_CHECK);
	must_work(ckpt_save_begin(job->ranks[0], 1, NULL, &job->saves[0]));
	for (uint64_t group = 0; group < 16; group++)
		must_work(ckpt_save_add_replicas(job->saves[0], group, &t, 1));
	assert_int_equal(ckpt_save_add_replicas(job->saves[0], 16, &t, 1), -E2BIG);
	assert_int_equal(ckpt_save_add_replicas(job->saves[0], 0, NULL, 1), -EINVAL);
	assert_int_equal(ckpt_save_set_own(job->saves[0], 16, CKPT_OWN_UNKNOWN), -EINVAL);
	assert_int_equal(ckpt_save_set_own(job->saves[0], 0, (enum ckpt_own)3), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(), "3"));
	t.dtype = 99;
	assert_int_equal(ckpt_save_add_replicas(job->saves[0], 0, &t, 1), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(), "w0"));
	ckpt_save_free(job->saves[0]);
	close_job(job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_every_byte_at_first, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_not_forgotten, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_later, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_own_unchecked, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_only_what_is_new, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_tolerant, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_no_false_alarm, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_refused, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
