/* SPDX-License-Identifier: Apache-2.0 */
/* Generations, the order of steps, busy engines, fences, cancels, forks: who may do what, and when. */
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/kit.h"

static char *dir;
static struct kit_vector v[2];

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	kit_fill(&v[0], "w", 500000, 1);
	kit_fill(&v[1], "b", 1000, 2);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kit_clear(&v[0]);
	kit_clear(&v[1]);
	scratch_remove(dir);
	return 0;
}

static uint64_t generation_of(struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	must_work(ckpt_engine_stats(engine, &stats));
	return stats.generation;
}

static int begin(struct ckpt_engine *engine, uint64_t step)
{
	struct ckpt_save *save = NULL;
	int r = ckpt_save_begin(engine, step, NULL, &save);

	ckpt_save_free(save);
	return r;
}

/* Steps ascend; a step is decided once; going back needs a resume, and that is a new generation. */
static void test_steps_ascend(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 10, v, 2));
	must_work(kit_save(engine, 20, v, 2));
	assert_int_equal(begin(engine, 20), CKPT_ESTEP);
	assert_int_equal(begin(engine, 5), CKPT_ESTEP);
	assert_int_equal(begin(engine, CKPT_STEP_MAX + 1), -EINVAL);
	assert_int_equal(generation_of(engine), 1);
	struct ckpt_restore *restore = NULL;
	must_work(ckpt_restore_open(engine, 10, &restore));
	must_work(ckpt_restore_adopt(restore));
	ckpt_restore_free(restore);
	v[0].data[0] += 1;
	must_work(kit_save(engine, 20, v, 2));
	assert_int_equal(generation_of(engine), 2);
	/* The old step 20 is a branch that was left: the lineage has the new one. */
	must_work(kit_compare(engine, 20, v, 2));
	must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
	ckpt_engine_close(engine);
}

/* A store with commits wants a decision before it is written to. */
static void test_not_resumed(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);

	engine = kit_open(dir, 0);
	assert_int_equal(kit_save(engine, 2, v, 2), CKPT_ENOTRESUMED);
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	assert_int_equal(generation_of(engine), 2);
	ckpt_engine_close(engine);

	engine = kit_open(dir, CKPT_ENGINE_NEW_START);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	uint64_t latest = 0;
	must_work(ckpt_engine_latest(engine, &latest));
	assert_int_equal(latest, 1);
	ckpt_engine_close(engine);
}

/* A live holder refuses; reading beside it is fine; a dead one is succeeded. */
static void test_in_use(void **state)
{
	(void)state;
	int ready[2];
	assert_int_equal(pipe(ready), 0);
	pid_t child = fork();
	if (child == 0) {
		struct ckpt_engine *engine = kit_open(dir, 0);
		int r = kit_save(engine, 1, v, 2);
		(void)!write(ready[1], &r, sizeof(r));
		for (;;)
			(void)pause();
	}
	int r = -1;
	assert_int_equal(read(ready[0], &r, sizeof(r)), sizeof(r));
	assert_int_equal(r, 0);
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), CKPT_EINUSE);
	assert_non_null(strstr(ckpt_last_error(), "live process"));
	struct ckpt_engine *reader = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	must_work(kit_compare(reader, 1, v, 2));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	engine = kit_open(dir, 0);
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	must_work(kit_compare(reader, CKPT_STEP_LATEST, v, 2));
	ckpt_engine_close(reader);
	ckpt_engine_close(engine);
	(void)close(ready[0]);
	(void)close(ready[1]);
}

/* Two on a fresh store: the second to claim is told, and nothing of the first is touched. */
static void test_race_for_the_first_claim(void **state)
{
	(void)state;
	struct ckpt_engine *a = kit_open(dir, 0);
	struct ckpt_engine *b = kit_open(dir, 0);
	must_work(kit_save(a, 1, v, 2));
	assert_int_equal(kit_save(b, 1, v, 2), CKPT_EINUSE);
	must_work(kit_compare(a, 1, v, 2));
	must_work(kit_save(a, 2, v, 2));
	ckpt_engine_close(b);
	ckpt_engine_close(a);
}

/* Somebody claims over a writer that was taken for dead: it publishes nothing any more. */
static void test_fenced(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	int fd = open(scratch_join(dir, "gens/000002.json"), O_CREAT | O_WRONLY, 0666);
	assert_true(fd >= 0);
	(void)close(fd);
	assert_int_equal(kit_save(engine, 2, v, 2), CKPT_EFENCED);
	assert_null(scratch_find(dir, "step-0000000002/manifest.json"));
	assert_int_equal(kit_save(engine, 3, v, 2), CKPT_EFENCED);
	ckpt_engine_close(engine);
}

/* A gate that stays shut holds the manifest back, and the next save says what it waits for. */
static void test_gate(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = kit_start(engine, 1, CKPT_SAVE_FENCED, v, 2);
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS)), 0);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 200), -ETIMEDOUT);
	assert_int_equal(kit_save(engine, 2, v, 2), -EDEADLK);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(save);
	must_work(kit_compare(engine, 1, v, 2));
	ckpt_engine_close(engine);
}

/* The race is what is tested: it is not the library's. */
__attribute__((no_sanitize("thread"))) static void mutate(struct kit_vector *vector)
{
	for (int64_t i = 0; i < vector->count; i++)
		vector->data[i] += 1;
}

/*
 * A tensor that changed between start and fence, before or after its copy, fails its save, by name,
 * and is not published.
 */
static void torn(bool staged)
{
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	struct ckpt_save *save = kit_start(engine, 2, CKPT_SAVE_FENCED, v, 2);
	if (staged)
		must_work(ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	mutate(&v[0]);
	int r = ckpt_save_fence(save, TIMEOUT_MS);
	assert_int_equal(r, CKPT_ETORN);
	assert_non_null(strstr(ckpt_last_error(), "tensor w "));
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS)), CKPT_ETORN);
	struct ckpt_error error = {.size = sizeof(error)};
	assert_int_equal(ckpt_save_error(save, &error), CKPT_ETORN);
	assert_string_equal(error.tensor, "w");
	assert_int_equal(error.step, 2);
	ckpt_save_free(save);
	uint64_t latest = 0;
	must_work(ckpt_engine_latest(engine, &latest));
	assert_int_equal(latest, 1);
	must_work(kit_save(engine, 3, v, 2));
	ckpt_engine_close(engine);
}

static void test_torn_before_the_copy(void **state)
{
	(void)state;
	torn(false);
}

static void test_torn_after_the_copy(void **state)
{
	(void)state;
	torn(true);
}

/* The caller's own verdict counts like the library's. */
static void test_caller_fails_it(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = kit_start(engine, 1, CKPT_SAVE_FENCED, v, 2);
	must_work(ckpt_save_fail(save, CKPT_ETORN, "b", "its version counter moved"));
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS)), CKPT_ETORN);
	struct ckpt_error error = {.size = sizeof(error)};
	(void)ckpt_save_error(save, &error);
	assert_string_equal(error.message, "its version counter moved");
	ckpt_save_free(save);
	ckpt_engine_close(engine);
}

/* Before the start, too: it never starts, whoever asks is told why, and the step is still to be had. */
static void test_caller_fails_it_early(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = NULL;
	struct ckpt_tensor tensor = kit_tensor(&v[0]);
	struct ckpt_save_info info = {.size = sizeof(info)};
	struct ckpt_error error = {.size = sizeof(error)};
	must_work(ckpt_save_begin(engine, 1, NULL, &save));
	must_work(ckpt_save_add(save, &tensor, 1));
	must_work(ckpt_save_fail(save, CKPT_ETORN, "w", "it was changed meanwhile"));
	assert_int_equal(ckpt_save_error(save, &error), CKPT_ETORN);
	assert_string_equal(error.message, "it was changed meanwhile");
	assert_string_equal(error.tensor, "w");
	assert_int_equal(error.step, 1);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ckpt_save_start(save), CKPT_ETORN);
		assert_string_equal(ckpt_last_error(), "it was changed meanwhile");
	}
	assert_int_equal(ckpt_save_add(save, &tensor, 1), CKPT_ETORN);
	/* The first verdict stays. */
	must_work(ckpt_save_fail(save, CKPT_EDEVICE, NULL, "another reason"));
	assert_int_equal(in_time(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS)), CKPT_ETORN);
	assert_int_equal(in_time(ckpt_save_wait_eager(save, TIMEOUT_MS)), CKPT_ETORN);
	assert_int_equal(in_time(ckpt_save_fence(save, TIMEOUT_MS)), CKPT_ETORN);
	must_work(ckpt_save_info(save, &info));
	assert_int_equal(info.failed, 1);
	ckpt_save_cancel(save);
	ckpt_save_free(save);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
}

/* Eager tensors are the caller's again at once; small and large ones. */
static void test_eager(void **state)
{
	(void)state;
	struct kit_vector large;
	kit_fill(&large, "large", 6 << 20, 5);
	struct kit_vector *all[2] = {&v[0], &large};
	struct ckpt_engine *engine = kit_open(dir, 0);
	for (uint64_t step = 1; step <= 2; step++) {
		struct kit_vector *x = all[step - 1];
		struct ckpt_tensor t = kit_tensor(x);
		t.flags = CKPT_TENSOR_EAGER;
		float *before = malloc((size_t)x->count * sizeof(float));
		memcpy(before, x->data, (size_t)x->count * sizeof(float));
		struct ckpt_save *save = NULL;
		must_work(ckpt_save_begin(engine, step, NULL, &save));
		must_work(ckpt_save_add(save, &t, 1));
		must_work(ckpt_save_start(save));
		must_work(ckpt_save_wait_eager(save, TIMEOUT_MS));
		memset(x->data, 0, (size_t)x->count * sizeof(float));
		must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
		ckpt_save_free(save);
		memcpy(x->data, before, (size_t)x->count * sizeof(float));
		free(before);
		must_work(kit_compare(engine, step, x, 1));
	}
	ckpt_engine_close(engine);
	kit_clear(&large);
}

/* Failed saves leave records, and not more than a few. */
static void test_failed_saves_leave_little(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	for (uint64_t step = 2; step <= 40; step++) {
		struct ckpt_save_info info = {.size = sizeof(info)};
		struct ckpt_save *save = kit_start(engine, step, CKPT_SAVE_FENCED, v, 2);
		/* Until its shard is there. */
		do
			must_work(ckpt_save_info(save, &info));
		while (info.bytes_written < info.bytes);
		must_work(ckpt_save_fail(save, -ECANCELED, NULL, "on purpose"));
		assert_int_equal(
			in_time(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS)), -ECANCELED);
		ckpt_save_free(save);
	}
	must_work(kit_save(engine, 41, v, 2));
	ckpt_engine_close(engine);
	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	must_work(kit_compare(engine, 1, v, 2));
	must_work(kit_compare(engine, 41, v, 2));
	ckpt_engine_close(engine);
	/* Two steps of a manifest, a shard and an index; eight records, and those not yet removed. */
	size_t left = scratch_count(scratch_join(dir, "g000001"));
	assert_in_range(left, 2 * 4 + 8 * 2, 2 * 4 + 12 * 2);
}

/* Skip is an answer at once; waiting is counted. */
static void test_busy(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	opts.busy = CKPT_BUSY_SKIP;
	must_work(ckpt_engine_open(dir, &opts, &engine));
	struct ckpt_save *held = kit_start(engine, 1, CKPT_SAVE_FENCED, v, 2);
	assert_int_equal(kit_save(engine, 2, v, 2), CKPT_ESKIPPED);
	must_work(ckpt_save_fence(held, TIMEOUT_MS));
	must_work(ckpt_save_wait(held, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(held);
	struct ckpt_stats stats = {.size = sizeof(stats)};
	must_work(ckpt_engine_stats(engine, &stats));
	assert_int_equal(stats.saves_skipped, 1);
	ckpt_engine_close(engine);
}

/* Cancelled or committed, never neither; earlier steps stay; the next step works. */
static void test_cancel(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	for (uint64_t step = 2; step < 30; step++) {
		struct ckpt_save *save = kit_start(engine, step, 0, v, 2);
		if (step % 3)
			(void)ckpt_save_wait(save, CKPT_LEVEL_STAGED, TIMEOUT_MS);
		ckpt_save_cancel(save);
		int r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS);
		assert_true(r == 0 || r == -ECANCELED);
		assert_int_equal(kit_compare(engine, step, v, 2), r == 0 ? 0 : CKPT_ENOSTEP);
		ckpt_save_free(save);
	}
	must_work(kit_save(engine, 100, v, 2));
	ckpt_engine_close(engine);
}

/* Closing with a save under way ends it, promptly, and leaves the last one whole. */
static void test_close_under_way(void **state)
{
	(void)state;
	for (uint64_t round = 1; round < 10; round++) {
		struct ckpt_engine *engine = kit_open(dir, 0);
		(void)kit_resume(engine);
		must_work(kit_save(engine, round * 10, v, 2));
		struct ckpt_save *save = kit_start(engine, round * 10 + 5, 0, v, 2);
		ckpt_engine_close(engine);
		int r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0);
		assert_true(r == 0 || r == -ECANCELED);
		ckpt_save_free(save);
		engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
		uint64_t latest = 0;
		must_work(ckpt_engine_latest(engine, &latest));
		assert_int_equal(latest, r == 0 ? round * 10 + 5 : round * 10);
		must_work(kit_compare(engine, latest, v, 2));
		ckpt_engine_close(engine);
	}
}

/* A fork's child is told, from every handle, and the parent goes on. */
static void test_fork(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_restore *parents = NULL;
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_restore_open(engine, 1, &parents));
	struct ckpt_save *save = kit_start(engine, 2, CKPT_SAVE_FENCED, v, 2);
	pid_t child = fork();
	if (child == 0) {
		struct ckpt_stats stats = {.size = sizeof(stats)};
		struct ckpt_save_info info = {.size = sizeof(info)};
		struct ckpt_error error = {.size = sizeof(error)};
		struct ckpt_restore *restore = NULL;
		int bad = 0;
		bad |= ckpt_engine_stats(engine, &stats) != CKPT_EFORKED;
		bad |= begin(engine, 3) != CKPT_EFORKED;
		bad |= ckpt_save_info(save, &info) != CKPT_EFORKED;
		bad |= ckpt_save_error(save, &error) != CKPT_EFORKED;
		bad |= ckpt_restore_error(parents, &error) != CKPT_EFORKED;
		bad |= error.code != 0;
		bad |= ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 1000) != CKPT_EFORKED;
		bad |= ckpt_save_fence(save, 1000) != CKPT_EFORKED;
		bad |= ckpt_restore_open(engine, 1, &restore) != CKPT_EFORKED;
		ckpt_restore_free(parents);
		ckpt_save_free(save);
		ckpt_engine_close(engine);
		_exit(bad);
	}
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	must_work(ckpt_save_fence(save, TIMEOUT_MS));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	assert_int_equal(ckpt_save_error(save, NULL), 0);
	assert_int_equal(ckpt_save_info(save, NULL), -EINVAL);
	assert_int_equal(ckpt_save_error(NULL, NULL), -EINVAL);
	assert_int_equal(ckpt_restore_error(parents, NULL), 0);
	assert_int_equal(ckpt_restore_error(NULL, NULL), -EINVAL);
	ckpt_restore_free(parents);
	ckpt_save_free(save);
	ckpt_engine_close(engine);
}

/* For a child: a while, even if the test that should end it has failed. */
static void idle_on(void)
{
	(void)alarm(HANG_LIMIT_S);
	for (;;)
		(void)pause();
}

/* A child that lives on holds no lock of its parent's: not when that closes, and not when it dies. */
static void test_fork_keeps_no_lock(void **state)
{
	(void)state;
	int ready[2];
	pid_t idle = -1;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	pid_t child = fork();
	if (child == 0)
		idle_on();
	ckpt_engine_close(engine);
	engine = kit_open(dir, 0);
	ckpt_engine_close(engine);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);

	assert_int_equal(pipe(ready), 0);
	child = fork();
	if (child == 0) {
		engine = kit_open(dir, 0);
		idle = fork();
		if (idle != 0)
			(void)!write(ready[1], &idle, sizeof(idle));
		idle_on();
	}
	assert_int_equal(read(ready[0], &idle, sizeof(idle)), sizeof(idle));
	struct ckpt_engine_opts opts = kit_opts();
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), CKPT_EINUSE);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	int r = ckpt_engine_open(dir, &opts, &engine);
	assert_int_equal(kill(idle, SIGKILL), 0);
	must_work(r);
	ckpt_engine_close(engine);
	(void)close(ready[0]);
	(void)close(ready[1]);
}

static uint64_t removed(struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	must_work(ckpt_engine_stats(engine, &stats));
	return stats.steps_removed;
}

/* keep_last, keep_every, pins; a step that is open for reading stays until it is closed. */
static void test_retention(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	opts.keep_last = 2;
	opts.keep_every = 50;
	must_work(ckpt_engine_open(dir, &opts, &engine));
	must_work(kit_save(engine, 10, v, 2));
	must_work(ckpt_engine_pin(engine, 10));
	struct ckpt_restore *reader = NULL;
	for (uint64_t step = 20; step <= 100; step += 10) {
		must_work(kit_save(engine, step, v, 2));
		if (step == 30)
			must_work(ckpt_restore_open(engine, 30, &reader));
	}
	must_work(ckpt_restore_start(reader));
	must_work(ckpt_restore_wait(reader, TIMEOUT_MS));
	must_work(kit_compare(engine, 30, v, 2));
	ckpt_restore_free(reader);
	must_work(kit_save(engine, 110, v, 2));
	/* It runs behind the saves, and what is closed does not wait for it. */
	await(removed(engine) == 7);
	ckpt_engine_close(engine);

	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	struct ckpt_catalog *catalog = NULL;
	must_work(ckpt_catalog_open(engine, &catalog));
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		must_work(ckpt_catalog_step(catalog, i, &info));
		assert_true(info.step == 10 || info.step % 50 == 0 || info.step == 110);
		assert_int_equal(info.state, CKPT_STEP_COMMITTED);
		must_work(kit_compare(engine, info.step, v, 2));
	}
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
}

static struct ckpt_step_info info_of(struct ckpt_engine *engine, uint64_t step, uint32_t size)
{
	struct ckpt_catalog *catalog = NULL;
	struct ckpt_step_info info = {0};

	must_work(ckpt_catalog_open(engine, &catalog));
	for (size_t i = 0; i < ckpt_catalog_count(catalog) && info.step != step; i++) {
		memset(&info, 0xff, sizeof(info));
		info.size = size;
		must_work(ckpt_catalog_step(catalog, i, &info));
	}
	ckpt_catalog_free(catalog);
	assert_int_equal(info.step, step);
	return info;
}

/* Why a manifest is broken, and whether its step is of the lineage; a caller of an older build. */
static void test_listing_broken(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 10, v, 2));
	must_work(kit_save(engine, 20, v, 2));
	must_work(kit_save(engine, 30, v, 2));
	struct ckpt_restore *restore = NULL;
	must_work(ckpt_restore_open(engine, 20, &restore));
	must_work(ckpt_restore_adopt(restore));
	ckpt_restore_free(restore);
	must_work(kit_save(engine, 40, v, 2));
	ckpt_engine_close(engine);
	scratch_flip(scratch_join(dir, "g000001/step-0000000020/manifest.json"), 60);
	scratch_flip(scratch_join(dir, "g000001/step-0000000030/manifest.json"), 60);
	scratch_flip(scratch_join(dir, "g000002/step-0000000040/manifest.json"), 60);

	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	uint32_t now = sizeof(struct ckpt_step_info);
	uint32_t before = offsetof(struct ckpt_step_info, code);
	assert_int_equal(info_of(engine, 40, now).code, CKPT_EINTEGRITY);
	assert_int_equal(info_of(engine, 40, now).passed_over, 1);
	assert_int_equal(info_of(engine, 20, now).passed_over, 1);
	/* Its branch was left before it was damaged. */
	assert_int_equal(info_of(engine, 30, now).code, CKPT_EINTEGRITY);
	assert_int_equal(info_of(engine, 30, now).passed_over, 0);
	assert_int_equal(info_of(engine, 10, now).code, 0);
	assert_int_equal(info_of(engine, 10, now).passed_over, 0);
	assert_int_equal(info_of(engine, 40, before).state, CKPT_STEP_BROKEN);
	assert_int_equal(info_of(engine, 40, before).code, -1);
	ckpt_engine_close(engine);
}

/* Removing by hand: not the only good one, not an open one. */
static void test_remove(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, v, 2));
	assert_int_equal(ckpt_catalog_remove(engine, 1), -EBUSY);
	must_work(kit_save(engine, 2, v, 2));
	struct ckpt_restore *reader = NULL;
	must_work(ckpt_restore_open(engine, 1, &reader));
	assert_int_equal(ckpt_catalog_remove(engine, 1), -EBUSY);
	ckpt_restore_free(reader);
	must_work(ckpt_catalog_remove(engine, 1));
	assert_int_equal(ckpt_catalog_remove(engine, 1), CKPT_ENOSTEP);
	assert_null(scratch_find(dir, "step-0000000001"));
	must_work(kit_compare(engine, 2, v, 2));
	ckpt_engine_close(engine);
}

/* Nothing grows over many saves: descriptors, threads. */
static void test_flat(void **state)
{
	(void)state;
	size_t before = scratch_descriptors();
	size_t threads_before = scratch_threads();
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	opts.keep_last = 1;
	must_work(ckpt_engine_open(dir, &opts, &engine));
	for (uint64_t step = 1; step <= 5; step++)
		must_work(kit_save(engine, step, v, 2));
	size_t threads = scratch_threads();
	for (uint64_t step = 6; step <= 60; step++)
		must_work(kit_save(engine, step, v, 2));
	assert_true(scratch_threads() <= threads);
	ckpt_engine_close(engine);
	assert_int_equal(scratch_descriptors(), before);
	scratch_threads_settle(threads_before);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {T(test_steps_ascend), T(test_not_resumed),
		T(test_in_use), T(test_race_for_the_first_claim), T(test_fenced), T(test_gate),
		T(test_torn_before_the_copy), T(test_torn_after_the_copy), T(test_caller_fails_it),
		T(test_caller_fails_it_early), T(test_eager), T(test_failed_saves_leave_little),
		T(test_busy), T(test_cancel), T(test_close_under_way), T(test_fork),
		T(test_fork_keeps_no_lock), T(test_retention), T(test_listing_broken),
		T(test_remove), T(test_flat)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
