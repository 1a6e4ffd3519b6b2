/* SPDX-License-Identifier: Apache-2.0 */
/* Copies into buckets, many by one engine: what one has needed goes with it. */
#include "api/kit.h"

#include <dirent.h>

static char *dir;

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	/* Nobody listens there, and nobody is asked for keys. */
	(void)setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1);
	(void)setenv("AWS_ACCESS_KEY_ID", "A", 1);
	(void)setenv("AWS_SECRET_ACCESS_KEY", "S", 1);
	(void)setenv("AWS_REGION", "us-east-1", 1);
	(void)setenv("AWS_MAX_ATTEMPTS", "1", 1);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(dir);
	return 0;
}

/* This process' threads that speak HTTP. */
static unsigned count_threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	const struct dirent *entry;
	unsigned count = 0;

	assert_non_null(tasks);
	while ((entry = readdir(tasks))) {
		char path[300];
		char name[32] = "";
		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
		FILE *file = fopen(path, "r");
		/* It may have ended meanwhile. */
		if (!file)
			continue;
		if (fgets(name, sizeof(name), file))
			count += strncmp(name, "ckpt-http-", 10) == 0;
		(void)fclose(file);
	}
	(void)closedir(tasks);
	return count;
}

static void wait_for_none(void)
{
	await(count_threads() == 0);
}

static void test_threads_go_with_their_copy(void **state)
{
	struct kit_vector v;

	(void)state;
	kit_fill(&v, "v", 1000, 3);
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, &v, 1));
	for (int i = 0; i < 3; i++) {
		struct ckpt_restore *restore = NULL;
		/* The second finds no such step, and asks no bucket; the third is waited for by nobody. */
		must_work(ckpt_export_start(
			engine, i == 1 ? 7 : CKPT_STEP_LATEST, "s3://bkt/run", &restore));
		if (i < 2)
			assert_int_equal(in_time(ckpt_restore_wait(restore, TIMEOUT_MS)),
				i == 1 ? CKPT_ENOSTEP : CKPT_ENETWORK);
		ckpt_restore_free(restore);
		wait_for_none();
	}
	/* Or with the engine, whichever comes first. */
	struct ckpt_restore *restore = NULL;
	must_work(ckpt_export_start(engine, CKPT_STEP_LATEST, "s3://bkt/run", &restore));
	ckpt_engine_close(engine);
	assert_int_equal(count_threads(), 0);
	ckpt_restore_free(restore);
	kit_clear(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_threads_go_with_their_copy, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
