/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that nobody could open is not committed, however well each rank has written its part; and whether
 * it could be is looked at when a rank has changed what it describes, and at no other time. Nor is one in which two
 * ranks have written different bytes of the same box: that is looked at with every step.
 */
#include "api/kit.h"

#define WORLD ((uint32_t)3)

struct job {
	char *dir;
	char store[200];
	struct ckpt_engine *ranks[WORLD];
	struct kit_vector vectors[WORLD];
	struct ckpt_save *saves[WORLD];
};

static int set_up_with(void **state, uint32_t replicas)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	(void)snprintf(job->store, sizeof(job->store), "%s", scratch_join(job->dir, "store"));
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct ckpt_engine_opts opts = kit_opts();
		opts.rank = rank;
		opts.world = WORLD;
		opts.session = "agree";
		opts.log_level = CKPT_LOG_DEBUG;
		opts.replicas = replicas;
		must_work(ckpt_engine_open(job->store, &opts, &job->ranks[rank]));
		kit_fill(&job->vectors[rank], "w", 1000, 1);
	}
	*state = job;
	return 0;
}

static int set_up(void **state)
{
	return set_up_with(state, CKPT_REPLICAS_CHECK);
}

static int set_up_tolerant(void **state)
{
	return set_up_with(state, CKPT_REPLICAS_WARN);
}

static int tear_down(void **state)
{
	struct job *job = *state;

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		ckpt_save_free(job->saves[rank]);
		ckpt_engine_close(job->ranks[rank]);
		kit_clear(&job->vectors[rank]);
	}
	scratch_remove(job->dir);
	free(job);
	return 0;
}

/* All save; what each is answered. */
static void save_all(struct job *job, uint64_t step, int codes[WORLD])
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		ckpt_save_free(job->saves[rank]);
		job->saves[rank] = kit_start(job->ranks[rank], step, 0, &job->vectors[rank], 1);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		codes[rank] = kit_wait(job->saves[rank]);
}

static void save_well(struct job *job, uint64_t step)
{
	int codes[WORLD];

	save_all(job, step, codes);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(codes[rank], 0);
}

static void refill(struct job *job, uint32_t rank, const char *name, int64_t count)
{
	kit_clear(&job->vectors[rank]);
	kit_fill(&job->vectors[rank], name, count, 1);
}

/* How often rank 0 has looked since the last time that it was asked. */
static unsigned looked(struct job *job)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	unsigned count = 0;

	while (ckpt_engine_log(job->ranks[0], 0, &record) == 0)
		count += strstr(record.message, "all ranks mean the same tensors") != NULL;
	return count;
}

static void check_latest(struct job *job, uint64_t step)
{
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_restore_open(reader, CKPT_STEP_LATEST, &restore));
	assert_int_equal(ckpt_restore_step(restore), step);
	ckpt_restore_free(restore);
	ckpt_engine_close(reader);
}

static void check_says(struct job *job, uint32_t rank, const char *text)
{
	struct ckpt_error error = {.size = sizeof(error)};

	(void)ckpt_save_error(job->saves[rank], &error);
	if (!strstr(error.message, text))
		fail_msg("rank %u says: %s", rank, error.message);
}

static void test_disagreement(void **state)
{
	struct job *job = *state;
	int codes[WORLD];

	save_well(job, 1);
	refill(job, 2, "w", 1001);
	save_all(job, 2, codes);
	assert_int_equal(codes[0], CKPT_EMISMATCH);
	check_says(job, 0, "F32 [1000] says rank 1, F32 [1001] says rank 2");
	for (uint32_t rank = 1; rank < WORLD; rank++) {
		assert_int_equal(codes[rank], CKPT_EMISMATCH);
		check_says(job, rank, "the ranks do not agree about 'w'");
	}
	check_latest(job, 1);
	/* It has not come to be known as good. */
	save_all(job, 3, codes);
	assert_int_equal(codes[0], CKPT_EMISMATCH);
	refill(job, 2, "own", 1001);
	save_well(job, 4);
	check_latest(job, 4);
}

static void test_looked_at_once(void **state)
{
	struct job *job = *state;

	for (uint64_t step = 1; step <= 3; step++)
		save_well(job, step);
	assert_int_equal(looked(job), 1);
	/* Other bytes are no other plan; another size, name or tensor is, of whichever rank. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		job->vectors[rank].data[7] += 1;
	save_well(job, 4);
	assert_int_equal(looked(job), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		refill(job, rank, "own", 10 + rank);
		job->vectors[rank].name[0] = (char)('a' + rank);
		save_well(job, 5 + rank);
		assert_int_equal(looked(job), 1);
	}
	save_well(job, 10);
	assert_int_equal(looked(job), 0);
	check_latest(job, 10);
}

static void expect_all(struct job *job, uint64_t step, int code, const char *text)
{
	int codes[WORLD];

	save_all(job, step, codes);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(codes[rank], code);
		check_says(job, rank, text);
	}
}

/* Whoever reads the step is given what one of them wrote. */
static void test_other_bytes(void **state)
{
	struct job *job = *state;
	struct ckpt_stats stats = {.size = sizeof(stats)};

	job->vectors[1].data[7] += 1;
	expect_all(job, 1, CKPT_EREPLICA,
		"rank 1 of the 3 ranks that hold it holds other bytes of 'w' than the rest");
	expect_all(job, 2, CKPT_EREPLICA, "of the 3 ranks");
	check_says(job, 2, "per_rank=");
	job->vectors[1].data[7] -= 1;
	save_well(job, 3);
	(void)looked(job);
	save_well(job, 4);
	assert_int_equal(looked(job), 0);
	/* Nobody describes anything else now. */
	job->vectors[0].data[999] += 1;
	expect_all(job, 5, CKPT_EREPLICA,
		"rank 0 of the 3 ranks that hold it holds other bytes of 'w' than the rest, and "
		"each "
		"of them saves its own under that name (they were alike at step 4");
	job->vectors[2].data[999] += 2;
	expect_all(job, 6, CKPT_EREPLICA, "ranks 1 and 2 and rank 0 hold different bytes of 'w'");
	check_latest(job, 4);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		refill(job, rank, "own", 10);
		job->vectors[rank].name[0] = (char)('a' + rank);
		job->vectors[rank].data[0] = (float)rank;
	}
	save_well(job, 7);
	must_work(ckpt_engine_stats(job->ranks[0], &stats));
	assert_int_equal(stats.unchecked, 0);
}

/* However long the names are, all ranks are told what to do. */
static void test_long_names(void **state)
{
	struct job *job = *state;
	struct kit_vector vectors[WORLD][3];

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		for (size_t i = 0; i < 3; i++) {
			char name[] =
				"0123456789/0123456789/0123456789/0123456789/0123456789/weight";
			name[0] = (char)('a' + i);
			kit_fill(&vectors[rank][i], name, 300000, rank);
		}
		job->saves[rank] = kit_start(job->ranks[rank], 1, 0, vectors[rank], 3);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(kit_wait(job->saves[rank]), CKPT_EREPLICA);
		check_says(job, rank, "ranks 1 and 2 and rank 0 hold different bytes of 'a1234");
		check_says(job, rank, "weight', and ranks differ in ");
		check_says(job, rank, "committed with a warning (replicas=\"warn\")");
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		for (size_t i = 0; i < 3; i++)
			kit_clear(&vectors[rank][i]);
}

static void check_marked(struct job *job, uint64_t step, const char *text)
{
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = NULL;

	must_work(ckpt_restore_open(reader, step, &restore));
	assert_non_null(strstr(ckpt_restore_replicas(restore), text));
	assert_int_equal(*ckpt_restore_replicas(restore) == 0, *text == 0);
	ckpt_restore_free(restore);
	must_work(ckpt_verify_start(reader, step, &restore));
	assert_int_equal(kit_wait_restore(restore), 0);
	assert_non_null(strstr(ckpt_restore_replicas(restore), text));
	assert_int_equal(*ckpt_restore_replicas(restore) == 0, *text == 0);
	ckpt_restore_free(restore);
	ckpt_engine_close(reader);
}

static void test_other_bytes_tolerated(void **state)
{
	static const char text[] = "rank 1 of the 3 ranks that hold it holds other bytes of 'w'";
	struct job *job = *state;

	for (uint64_t step = 1; step <= 3; step++) {
		job->vectors[1].data[7] += step == 3 ? -2 : 1;
		save_well(job, step);
		for (uint32_t rank = 0; rank < WORLD; rank++)
			assert_int_equal(ckpt_save_replicas(job->saves[rank], NULL),
				step == 3 ? 0 : CKPT_EREPLICA);
		check_marked(job, step, step == 3 ? "" : text);
	}
}

/* Each has them beside a tensor that the others do not have, so that no digest is of them alone. */
static void test_not_to_be_compared(void **state)
{
	struct job *job = *state;
	struct ckpt_stats stats = {.size = sizeof(stats)};
	struct kit_vector vectors[WORLD][2];

	for (uint32_t rank = 0; rank < WORLD; rank++) {
		char name[] = "a0";
		name[1] = (char)('0' + rank);
		kit_fill(&vectors[rank][0], name, 5, rank);
		vectors[rank][1] = job->vectors[rank];
		job->saves[rank] = kit_start(job->ranks[rank], 1, 0, vectors[rank], 2);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		assert_int_equal(kit_wait(job->saves[rank]), 0);
		const uint64_t why = rank == 0 ? CKPT_UNCHECKED_BOXES : 0;
		const char *boxes = NULL;
		must_work(ckpt_engine_stats(job->ranks[rank], &stats));
		assert_int_equal(stats.unchecked, why);
		assert_int_equal(ckpt_engine_unchecked(job->ranks[rank], &boxes), why);
		assert_string_equal(boxes, why ? "'w' of ranks 0 and 1" : "");
		kit_clear(&vectors[rank][0]);
	}
}

/* The same, and each has said that the others may write it. */
static void save_shared(struct job *job, uint64_t step, int codes[WORLD])
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		struct kit_vector own;
		char name[] = "a0";
		name[1] = (char)('0' + rank);
		kit_fill(&own, name, 5, rank);
		struct ckpt_tensor tensors[2] = {kit_tensor(&own), kit_tensor(&job->vectors[rank])};

		tensors[1].flags = CKPT_TENSOR_SHARED;
		ckpt_save_free(job->saves[rank]);
		must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &job->saves[rank]));
		must_work(ckpt_save_add(job->saves[rank], tensors, 2));
		must_work(ckpt_save_start(job->saves[rank]));
		must_work(ckpt_save_wait(job->saves[rank], CKPT_LEVEL_STAGED, TIMEOUT_MS));
		kit_clear(&own);
	}
	for (uint32_t rank = 0; rank < WORLD; rank++)
		codes[rank] = kit_wait(job->saves[rank]);
}

static void test_compared_by_their_own_digests(void **state)
{
	struct job *job = *state;
	struct ckpt_stats stats = {.size = sizeof(stats)};
	int codes[WORLD];

	for (uint64_t step = 1; step <= 4; step++) {
		job->vectors[1].data[7] += step == 3 ? 1 : step == 4 ? -1 : 0;
		save_shared(job, step, codes);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			assert_int_equal(codes[rank], step == 3 ? CKPT_EREPLICA : 0);
			if (step == 3)
				check_says(job, rank,
					"rank 1 of the 3 ranks that hold it holds other bytes of "
					"'w' than the rest, and each of them saves its own under "
					"that name (they were alike at step 2");
		}
	}
	check_latest(job, 4);
	must_work(ckpt_engine_stats(job->ranks[0], &stats));
	assert_int_equal(stats.unchecked, 0);
}

/* What rank `rank` says to have in common with the others. */
static void begin_with(struct job *job, uint32_t rank, uint64_t step, const char *common)
{
	struct ckpt_tensor tensor = kit_tensor(&job->vectors[rank]);

	ckpt_save_free(job->saves[rank]);
	must_work(ckpt_save_begin(job->ranks[rank], step, NULL, &job->saves[rank]));
	must_work(ckpt_save_add(job->saves[rank], &tensor, 1));
	if (common)
		must_work(ckpt_save_set_common(job->saves[rank], common, strlen(common)));
	must_work(ckpt_save_start(job->saves[rank]));
}

/* What each rank takes for another's to save would be in no shard, and nobody could tell. */
static void test_in_common(void **state)
{
	static const char *const said[][WORLD] = {
		{"w", "w", "w"}, {"w", "w", "w mine"}, {"w", NULL, "w"}, {NULL, "w", "w"}};
	struct job *job = *state;

	for (uint64_t step = 0; step < 4; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++)
			begin_with(job, rank, step + 1, said[step][rank]);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			int expected = step == 0 ? 0 : CKPT_EMISMATCH;
			assert_int_equal(in_time(ckpt_save_wait(
						 job->saves[rank], CKPT_LEVEL_LOCAL, TIMEOUT_MS)),
				expected);
			if (expected < 0)
				check_says(job, rank,
					"differ in the tensors and values that all ranks must "
					"have");
		}
	}
	check_latest(job, 1);
	assert_int_equal(ckpt_save_set_common(job->saves[0], "w", 1), -EINVAL);
	ckpt_save_free(job->saves[0]);
	must_work(ckpt_save_begin(job->ranks[0], 9, NULL, &job->saves[0]));
	assert_int_equal(ckpt_save_set_common(job->saves[0], NULL, 1), -EINVAL);
	assert_int_equal(ckpt_save_set_common(job->saves[0], "w", 0), -EINVAL);
}

/* The same of what only some ranks hold: what they add and take away cancels out. */
static void test_balance(void **state)
{
	static const int64_t numbers[4][WORLD] = {{7, -4, -3}, {0, 0, 1}, {2, -1, 0}, {0, 0, 0}};
	struct job *job = *state;

	for (uint64_t step = 1; step <= 4; step++) {
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			struct ckpt_tensor tensor = kit_tensor(&job->vectors[rank]);
			struct ckpt_save **save = &job->saves[rank];

			ckpt_save_free(*save);
			must_work(ckpt_save_begin(job->ranks[rank], step, NULL, save));
			must_work(ckpt_save_add(*save, &tensor, 1));
			must_work(ckpt_save_set_balance(*save, (uint64_t)numbers[step - 1][rank]));
			must_work(ckpt_save_start(*save));
		}
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			bool good = step == 1 || step == 4;
			assert_int_equal(in_time(ckpt_save_wait(
						 job->saves[rank], CKPT_LEVEL_LOCAL, TIMEOUT_MS)),
				good ? 0 : CKPT_EMISMATCH);
			if (!good)
				check_says(job, rank, "would lack a tensor");
		}
	}
	check_latest(job, 4);
	assert_int_equal(ckpt_save_set_balance(job->saves[0], 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_disagreement, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_looked_at_once, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_long_names, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_other_bytes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_other_bytes_tolerated, set_up_tolerant, tear_down),
		cmocka_unit_test_setup_teardown(test_not_to_be_compared, set_up, tear_down),
		cmocka_unit_test_setup_teardown(
			test_compared_by_their_own_digests, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_in_common, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_balance, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
