/* SPDX-License-Identifier: Apache-2.0 */
/* The remote store: what is committed here comes to be there, whole or not at all, whatever ends in between. */
#include <dirent.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/kit.h"

static char *dir;
static char local[512];
static char remote[512];
static char url[600];
static struct kit_vector v[2];

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	(void)snprintf(local, sizeof(local), "%s/local", dir);
	(void)snprintf(remote, sizeof(remote), "%s/remote", dir);
	(void)snprintf(url, sizeof(url), "file://%s", remote);
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

static struct ckpt_engine *open_with(struct ckpt_engine_opts opts)
{
	struct ckpt_engine *engine = NULL;

	opts.remote = url;
	must_work(ckpt_engine_open(local, &opts, &engine));
	return engine;
}

static struct ckpt_engine *open_both(void)
{
	return open_with(kit_opts());
}

static struct ckpt_stats stats_of(struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	must_work(ckpt_engine_stats(engine, &stats));
	return stats;
}

/* The remote store by itself, as any other: each of these steps is whole there, and no other is. */
static void assert_holds(const uint64_t *steps, size_t n)
{
	struct ckpt_catalog *catalog = NULL;
	struct ckpt_engine *engine = kit_open(remote, CKPT_ENGINE_READ_ONLY);

	must_work(ckpt_catalog_open(engine, &catalog));
	size_t found = 0;
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		must_work(ckpt_catalog_step(catalog, i, &info));
		found += info.state == CKPT_STEP_COMMITTED;
	}
	ckpt_catalog_free(catalog);
	assert_int_equal(found, n);
	for (size_t i = 0; i < n; i++)
		must_work(kit_compare(engine, steps[i], v, 2));
	ckpt_engine_close(engine);
}

static void test_a_save_goes_there(void **state)
{
	(void)state;
	struct ckpt_engine *engine = open_both();
	struct ckpt_save *save = kit_start(engine, 1, 0, v, 2);
	must_work(ckpt_save_wait(save, CKPT_LEVEL_REMOTE, TIMEOUT_MS));
	ckpt_save_free(save);
	assert_holds((uint64_t[]){1}, 1);
	struct ckpt_stats stats = stats_of(engine);
	assert_int_equal(stats.uploads_done, 1);
	assert_int_equal(stats.uploads_waiting, 0);
	assert_int_equal(stats.remote_step, 1);
	assert_true(stats.bytes_uploaded > 2000000);
	/* Nobody has wanted the staging memory since: nothing was read again. */
	assert_int_equal(stats.bytes_uploaded_staged, stats.bytes_uploaded);
	must_work(kit_save(engine, 2, v, 2));
	must_work(kit_save(engine, 3, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	assert_holds((uint64_t[]){1, 2, 3}, 3);
	ckpt_engine_close(engine);
}

static uint32_t listed(struct ckpt_catalog *catalog, uint64_t step)
{
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		must_work(ckpt_catalog_step(catalog, i, &info));
		if (info.step == step)
			return info.remote;
	}
	fail_msg("step %llu is not listed", (unsigned long long)step);
	return 0;
}

/* The store knows where its steps have gone, when nobody is there who sends them, and without asking anybody. */
static void test_is_remembered(void **state)
{
	struct ckpt_remote_info info = {.size = sizeof(info)};
	struct ckpt_catalog *catalog = NULL;
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	opts.remote_every = 2;
	struct ckpt_engine *engine = open_with(opts);
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	engine = kit_open(local, 0);
	assert_int_equal(kit_resume(engine), 2);
	must_work(kit_save(engine, 4, v, 2));
	ckpt_engine_close(engine);
	scratch_remove(strdup(remote));

	engine = kit_open(local, CKPT_ENGINE_READ_ONLY);
	must_work(ckpt_catalog_open(engine, &catalog));
	must_work(ckpt_catalog_remote(catalog, &info));
	assert_string_equal(info.remote, url);
	assert_int_equal(info.every, 2);
	assert_int_equal(info.generation, 1);
	assert_int_equal(info.uploaded_step, 2);
	assert_int_equal(info.waiting, 0);
	assert_int_equal(info.code, 0);
	assert_true(info.wall_ms > 0);
	assert_int_equal(listed(catalog, 1), CKPT_REMOTE_EXCLUDED);
	assert_int_equal(listed(catalog, 2), CKPT_REMOTE_UPLOADED);
	assert_int_equal(listed(catalog, 4), CKPT_REMOTE_UNKNOWN);
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
}

/* Nothing is remembered, or what is cannot be read: that changes nothing else. */
static void test_is_not_remembered(void **state)
{
	struct ckpt_remote_info info = {.size = sizeof(info)};
	struct ckpt_catalog *catalog = NULL;
	(void)state;
	struct ckpt_engine *engine = kit_open(local, 0);
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_catalog_open(engine, &catalog));
	assert_int_equal(ckpt_catalog_remote(catalog, &info), CKPT_ENOSTORE);
	assert_int_equal(listed(catalog, 1), CKPT_REMOTE_UNKNOWN);
	ckpt_catalog_free(catalog);
	scratch_put(local, "/remote-0000000001.json", "{\"format\":[1,0]}");
	must_work(ckpt_catalog_open(engine, &catalog));
	assert_int_equal(ckpt_catalog_remote(catalog, &info), CKPT_EFORMAT);
	assert_int_equal(listed(catalog, 1), CKPT_REMOTE_UNKNOWN);
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
}

/* Without a remote store the level is none; a step that does not go there has none either. */
static void test_no_such_level(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(local, 0);
	struct ckpt_save *save = kit_start(engine, 1, 0, v, 2);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_REMOTE, 0), CKPT_ELEVEL);
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	assert_int_equal(ckpt_engine_drain_remote(engine, 0), CKPT_ELEVEL);
	ckpt_save_free(save);
	ckpt_engine_close(engine);

	struct ckpt_engine_opts opts = kit_opts();
	opts.remote_every = 10;
	engine = open_with(opts);
	assert_int_equal(kit_resume(engine), 1);
	save = kit_start(engine, 11, 0, v, 2);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_REMOTE, 0), CKPT_ELEVEL);
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(save);
	must_work(kit_save(engine, 20, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	/* What it went on from is there, too: nothing before it is that remote_every takes. */
	assert_holds((uint64_t[]){1, 20}, 2);
}

/* What an engine that was closed, or died, did not send is sent by the next one; the lineage goes along. */
static void test_the_next_start_sends_the_rest(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(local, 0);
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	ckpt_engine_close(engine);

	engine = open_both();
	assert_int_equal(kit_resume(engine), 2);
	must_work(kit_save(engine, 3, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1, 2, 3}, 3);
}

/* A shard that was cut in the middle is no shard: without its index it is sent again. */
static void test_half_a_shard_is_sent_again(void **state)
{
	(void)state;
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);

	char path[1024];
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000001", remote);
	DIR *step = opendir(path);
	assert_non_null(step);
	for (struct dirent *entry = readdir(step); entry; entry = readdir(step)) {
		char file[1400];
		(void)snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
		if (strstr(entry->d_name, ".safetensors"))
			assert_int_equal(truncate(file, 4096), 0);
		else if (entry->d_name[0] != '.')
			assert_int_equal(unlink(file), 0);
	}
	(void)closedir(step);
	assert_holds(NULL, 0);
	engine = open_both();
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1}, 1);
}

/* Retention keeps what is not there yet, and lets it go as soon as it is. */
static void test_retention_waits(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	char claims[600];
	char away[600];
	(void)snprintf(claims, sizeof(claims), "%s/gens", remote);
	(void)snprintf(away, sizeof(away), "%s/away", remote);
	opts.keep_last = 1;
	struct ckpt_engine *engine = open_with(opts);
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	/* A file where a directory was: nothing can be committed there for now. */
	assert_int_equal(rename(claims, away), 0);
	FILE *file = fopen(claims, "w");
	assert_non_null(file);
	(void)fclose(file);
	for (uint64_t step = 2; step <= 5; step++)
		must_work(kit_save(engine, step, v, 2));
	assert_int_equal(ckpt_engine_drain_remote(engine, 0), -ETIMEDOUT);
	for (uint64_t step = 2; step <= 5; step++)
		must_work(kit_compare(engine, step, v, 2));
	assert_int_equal(unlink(claims), 0);
	assert_int_equal(rename(away, claims), 0);
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	assert_holds((uint64_t[]){1, 2, 3, 4, 5}, 5);
	must_work(kit_save(engine, 6, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	engine = kit_open(local, CKPT_ENGINE_READ_ONLY);
	assert_int_equal(kit_compare(engine, 2, v, 2), CKPT_ENOSTEP);
	ckpt_engine_close(engine);
}

/* Nothing of one run comes into the store of another, or into a directory that is somebody's. */
static void test_strangers(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(remote, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = kit_open(local, 0);
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = open_both();
	assert_int_equal(kit_resume(engine), 1);
	assert_int_equal(in_time(ckpt_engine_drain_remote(engine, TIMEOUT_MS)), CKPT_EMISMATCH);
	assert_non_null(strstr(ckpt_last_error(), "another run"));
	struct ckpt_save *save = kit_start(engine, 2, 0, v, 2);
	assert_int_equal(
		in_time(ckpt_save_wait(save, CKPT_LEVEL_REMOTE, TIMEOUT_MS)), CKPT_EMISMATCH);
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0));
	ckpt_save_free(save);
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1}, 1);

	(void)snprintf(url, sizeof(url), "file://%s/home", dir);
	char file[600];
	(void)snprintf(file, sizeof(file), "%s/home", dir);
	assert_int_equal(mkdir(file, 0777), 0);
	(void)snprintf(file, sizeof(file), "%s/home/thesis.tex", dir);
	FILE *thesis = fopen(file, "w");
	assert_non_null(thesis);
	(void)fclose(thesis);
	engine = open_both();
	assert_int_equal(in_time(ckpt_engine_drain_remote(engine, TIMEOUT_MS)), CKPT_EMISMATCH);
	assert_non_null(strstr(ckpt_last_error(), "not empty"));
	ckpt_engine_close(engine);
}

/* A copy of the store as it is now. */
static void copy_local(struct ckpt_engine *engine, uint64_t step, const char *to)
{
	struct ckpt_restore *copy = NULL;

	must_work(ckpt_export_start(engine, step, scratch_join(dir, to), &copy));
	must_work(ckpt_restore_wait(copy, TIMEOUT_MS));
	ckpt_restore_free(copy);
}

static void use_local(const char *name)
{
	(void)snprintf(local, sizeof(local), "%s/%s", dir, name);
}

/* Who goes on from another copy takes over, from what is newest in both; whoever had it uploads no more. */
static void test_taken_over(void **state)
{
	(void)state;
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	copy_local(engine, 1, "copy");
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));

	use_local("copy");
	struct ckpt_engine *other = open_both();
	assert_int_equal(kit_resume(other), 2);
	must_work(kit_save(other, 3, v, 2));
	must_work(ckpt_engine_drain_remote(other, TIMEOUT_MS));
	must_work(kit_save(engine, 3, v, 2));
	assert_int_equal(in_time(ckpt_engine_drain_remote(engine, TIMEOUT_MS)), CKPT_EFENCED);
	ckpt_engine_close(engine);
	must_work(kit_save(other, 4, v, 2));
	must_work(ckpt_engine_drain_remote(other, TIMEOUT_MS));
	ckpt_engine_close(other);
	assert_holds((uint64_t[]){1, 2, 3, 4}, 4);
}

/* Two copies that have each gone on by themselves are not made one. */
static void test_gone_apart(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	copy_local(engine, 1, "copy");
	ckpt_engine_close(engine);
	engine = open_both();
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);

	use_local("copy");
	engine = kit_open(local, 0);
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	ckpt_engine_close(engine);
	engine = open_both();
	must_work(kit_resume(engine) == 2 ? 0 : -1);
	assert_int_equal(in_time(ckpt_engine_drain_remote(engine, TIMEOUT_MS)), CKPT_EFENCED);
	ckpt_engine_close(engine);

	/* The one that is behind is told so before it begins. */
	use_local("local");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 2);
	must_work(kit_save(engine, 3, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	use_local("copy");
	opts.remote = url;
	engine = NULL;
	assert_int_equal(ckpt_engine_open(local, &opts, &engine), CKPT_EMISMATCH);
	assert_non_null(strstr(ckpt_last_error(), "gone apart"));
	assert_null(engine);
}

/* A node that has nothing goes on where the run was, with the same lineage. */
static void test_a_new_node(void **state)
{
	(void)state;
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	ckpt_engine_close(engine);
	engine = open_both();
	assert_int_equal(kit_resume(engine), 1);
	must_work(kit_save(engine, 2, v, 2));
	must_work(kit_save(engine, 3, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);

	/* As the root of a file system is. */
	scratch_put(dir, "/another/lost+found/something", "x");
	use_local("another");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 3);
	must_work(kit_compare(engine, 3, v, 2));
	must_work(kit_save(engine, 4, v, 2));
	assert_int_equal(stats_of(engine).generation, 3);
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1, 2, 3, 4}, 4);
	/* A new start does not ask, and is a lineage of its own. */
	use_local("fresh");
	struct ckpt_engine_opts opts = kit_opts();
	opts.flags = CKPT_ENGINE_NEW_START;
	engine = open_with(opts);
	assert_int_equal(kit_resume(engine), 0);
	ckpt_engine_close(engine);
}

/* Goes on from step 1; of what comes of it the remote store has the claim only. */
static void lose_generation_2(void)
{
	uint64_t generation = 0;
	struct ckpt_engine *engine = open_both();

	assert_int_equal(kit_resume(engine), 1);
	must_work(ckpt_engine_claim(engine, &generation));
	assert_int_equal(generation, 2);
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	char *lost = strdup(scratch_join(remote, "g000002"));
	assert_non_null(lost);
	scratch_remove(lost);
}

/* A claim that only the remote store has counts: the number after it is the next one. */
static void test_a_claim_without_a_step(void **state)
{
	(void)state;
	uint64_t generation = 0;
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	copy_local(engine, 1, "copy");
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	lose_generation_2();

	use_local("copy");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 1);
	must_work(ckpt_engine_claim(engine, &generation));
	assert_int_equal(generation, 3);
	ckpt_engine_close(engine);
}

/* Some ranks were brought on purpose: with a claim that is new there the files of the others do not come. */
static void test_a_claim_and_some_ranks(void **state)
{
	(void)state;
	static const uint32_t ranks[] = {0};
	struct ckpt_engine_opts opts = kit_opts();
	uint64_t generation = 0;
	uint64_t step = 0;
	struct ckpt_restore *copy = NULL;
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_export_ranks_start(engine, 1, scratch_join(dir, "some"), ranks, 1, &copy));
	must_work(ckpt_restore_wait(copy, TIMEOUT_MS));
	ckpt_restore_free(copy);
	ckpt_engine_close(engine);
	lose_generation_2();

	/* As if it had been another rank. */
	use_local("some");
	assert_int_equal(unlink(scratch_find(local, ".index")), 0);
	assert_int_equal(unlink(scratch_find(local, ".safetensors")), 0);
	opts.remote = url;
	must_work(ckpt_engine_import(local, &opts, &generation, &step));
	assert_non_null(scratch_find(local, "000002.json"));
	assert_null(scratch_find(local, ".index"));
	assert_null(scratch_find(local, ".safetensors"));
}

/* A run that ended before its first step was there is the same run on the next node. */
static void test_a_run_without_a_step(void **state)
{
	(void)state;
	char path[1024];
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	(void)snprintf(path, sizeof(path), "%s/g000001", remote);
	char *step = strdup(path);
	assert_non_null(step);
	scratch_remove(step);

	use_local("another");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 0);
	must_work(kit_save(engine, 1, v, 2));
	assert_int_equal(stats_of(engine).generation, 2);
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1}, 1);
}

/* What is newer there, and damaged, keeps nobody from going on with what is here. */
static void test_damage_there_and_a_step_here(void **state)
{
	(void)state;
	char path[1024];
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	copy_local(engine, 2, "copy");
	must_work(kit_save(engine, 3, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000003", remote);
	scratch_flip(scratch_find(path, ".safetensors"), 1000000);

	use_local("copy");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 2);
	must_work(kit_save(engine, 4, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
}

/* What is damaged there is passed over; when nothing is left, that is no empty store. */
static void test_a_new_node_and_damage(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	char path[1024];
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", remote);
	scratch_flip(scratch_find(path, ".safetensors"), 1000000);
	use_local("another");
	engine = open_both();
	assert_int_equal(kit_resume(engine), 1);
	ckpt_engine_close(engine);

	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000001", remote);
	scratch_flip(scratch_find(path, ".safetensors"), 1000000);
	use_local("third");
	opts.remote = url;
	engine = NULL;
	assert_int_equal(ckpt_engine_open(local, &opts, &engine), CKPT_EINTEGRITY);
	assert_null(engine);
}

/* A step that is damaged here is not sent; the others are. */
static void test_damage_does_not_travel(void **state)
{
	(void)state;
	struct ckpt_engine *engine = kit_open(local, 0);
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	ckpt_engine_close(engine);
	(void)snprintf(remote, sizeof(remote), "%s/g000001/step-0000000001", local);
	scratch_flip(scratch_find(remote, ".safetensors"), 1000000);
	(void)snprintf(remote, sizeof(remote), "%s/remote", dir);
	engine = open_both();
	assert_int_equal(in_time(ckpt_engine_drain_remote(engine, TIMEOUT_MS)), CKPT_EINTEGRITY);
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){2}, 1);
}

/* Ending in the middle of it leaves nothing that could be taken for a step. */
static void test_closed_in_between(void **state)
{
	(void)state;
	for (uint64_t step = 1; step <= 6; step++) {
		struct ckpt_engine *engine = open_both();
		if (step > 1)
			assert_int_equal(kit_resume(engine), step - 1);
		struct ckpt_save *save = kit_start(engine, step, 0, v, 2);
		must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
		ckpt_engine_close(engine);
		int r = ckpt_save_wait(save, CKPT_LEVEL_REMOTE, 0);
		assert_true(r == 0 || r == CKPT_ECLOSED);
		ckpt_save_free(save);
	}
	struct ckpt_engine *engine = open_both();
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1, 2, 3, 4, 5, 6}, 6);
}

static void test_refused(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;

	opts.remote = "ftp://somewhere";
	assert_int_equal(ckpt_engine_open(local, &opts, &engine), CKPT_EUNSUPPORTED);
	(void)snprintf(url, sizeof(url), "file://%s", local);
	opts.remote = url;
	assert_int_equal(ckpt_engine_open(local, &opts, &engine), -EINVAL);
	opts.flags = CKPT_ENGINE_READ_ONLY;
	assert_int_equal(ckpt_engine_open(local, &opts, &engine), -EINVAL);
	assert_null(engine);
}

static void break_here(const char *suffix, long offset)
{
	char path[1024];

	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", local);
	scratch_flip(scratch_find(path, suffix), offset);
}

/* Damage here is found, put back from there, and what is asked for again is good, here as there. */
static void test_damage_is_put_back(void **state)
{
	(void)state;
	char path[1024];
	struct ckpt_engine *engine = open_both();
	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", local);
	size_t files = scratch_count(path);

	for (int round = 0; round < 4; round++) {
		if (round == 0 || round == 3)
			break_here(".safetensors", 5000);
		else
			assert_int_equal(
				unlink(scratch_find(path, round == 1 ? ".safetensors" : ".index")),
				0);
		if (round == 3)
			break_here(".index", 100);
		engine = open_both();
		assert_true(kit_compare(engine, CKPT_STEP_LATEST, v, 2) < 0);
		struct ckpt_error error = {.size = sizeof(error)};
		assert_true(ckpt_last_error_record(&error) < 0);
		assert_int_equal(error.repaired, 1);
		assert_non_null(strstr(error.message, "is whole again, with"));
		assert_non_null(strstr(error.message, "restore it again"));
		assert_null(strstr(error.message, "put the file back"));
		must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
		assert_int_equal(kit_resume(engine), 2);
		ckpt_engine_close(engine);
		assert_int_equal(scratch_count(path), files);
		engine = kit_open(local, CKPT_ENGINE_READ_ONLY);
		must_work(kit_compare(engine, 2, v, 2));
		ckpt_engine_close(engine);
	}
}

static void break_there(long offset)
{
	char path[1024];

	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", remote);
	scratch_flip(scratch_find(path, ".safetensors"), offset);
}

static void save_two(void)
{
	struct ckpt_engine *engine = open_both();

	must_work(kit_save(engine, 1, v, 2));
	must_work(kit_save(engine, 2, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
}

/* Neither has a whole shard, and together they have every chunk. */
static void test_damage_in_different_chunks(void **state)
{
	(void)state;
	char path[1024];

	save_two();
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", local);
	size_t files = scratch_count(path);
	break_here(".safetensors", 1000000);
	break_there(5000);
	struct ckpt_engine *engine = open_both();
	assert_int_equal(kit_compare(engine, CKPT_STEP_LATEST, v, 2), CKPT_EINTEGRITY);
	assert_non_null(strstr(ckpt_last_error(), "with 1 chunk (0.2 MiB) from file://"));
	must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 2));
	assert_int_equal(kit_resume(engine), 2);
	ckpt_engine_close(engine);
	engine = kit_open(local, CKPT_ENGINE_READ_ONLY);
	must_work(kit_compare(engine, 2, v, 2));
	ckpt_engine_close(engine);
	assert_int_equal(scratch_count(path), files);
}

/* Nobody has that chunk: the step is quarantined as ever, and the one before it is next. */
static void test_damage_on_both_sides(void **state)
{
	(void)state;
	char path[1024];

	save_two();
	break_here(".safetensors", 1000001);
	break_there(1000000);
	struct ckpt_engine *engine = open_both();
	assert_int_equal(kit_compare(engine, CKPT_STEP_LATEST, v, 2), CKPT_EINTEGRITY);
	assert_null(strstr(ckpt_last_error(), "whole again"));
	assert_int_equal(kit_resume(engine), 1);
	ckpt_engine_close(engine);
	/* What is here is as it was: most of it is good. */
	(void)snprintf(path, sizeof(path), "%s/g000001/step-0000000002", local);
	assert_non_null(scratch_find(path, ".safetensors"));
}

static struct ckpt_catalog *list(struct ckpt_engine *engine)
{
	struct ckpt_catalog *catalog = NULL;

	must_work(ckpt_catalog_open(engine, &catalog));
	return catalog;
}

/* The steps that are to go, as bits. */
static unsigned expired(struct ckpt_catalog *catalog, uint64_t keep_last, uint64_t keep_every)
{
	unsigned steps = 0;

	must_work(ckpt_catalog_expire(catalog, keep_last, keep_every));
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		must_work(ckpt_catalog_step(catalog, i, &info));
		steps |= info.expired ? 1u << info.step : 0;
	}
	return steps;
}

typedef int act_fn(struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);

/* On a step by its number. */
static int act(
	act_fn *what, struct ckpt_engine *engine, const struct ckpt_catalog *catalog, uint64_t step)
{
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		must_work(ckpt_catalog_step(catalog, i, &info));
		if (info.step == step)
			return what(engine, catalog, i);
	}
	return CKPT_ENOSTEP;
}

/* What is removed there is what the list lets go, was marked, and is still to go when it is looked at again. */
static void test_pruned(void **state)
{
	(void)state;
	struct ckpt_engine *engine = open_both();
	for (uint64_t step = 1; step <= 5; step++)
		must_work(kit_save(engine, step, v, 2));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);

	engine = kit_open(remote, CKPT_ENGINE_READ_ONLY);
	struct ckpt_catalog *catalog = list(engine);
	assert_int_equal(act(ckpt_catalog_mark, engine, catalog, 1), -EINVAL);
	assert_int_equal(ckpt_catalog_expire(catalog, 0, 0), -EINVAL);
	assert_int_equal(expired(catalog, 1, 2), 1u << 1 | 1u << 3);
	assert_int_equal(expired(catalog, 9, 0), 0);
	assert_int_equal(expired(catalog, 2, 0), 1u << 1 | 1u << 2 | 1u << 3);
	assert_int_equal(ckpt_catalog_mark(engine, catalog, 99), -EINVAL);
	assert_int_equal(act(ckpt_catalog_mark, engine, catalog, 4), -EINVAL);
	assert_int_equal(act(ckpt_catalog_remove_marked, engine, catalog, 1), -EINVAL);
	for (uint64_t step = 1; step <= 3; step++)
		must_work(act(ckpt_catalog_mark, engine, catalog, step));
	ckpt_catalog_free(catalog);
	assert_holds((uint64_t[]){1, 2, 3, 4, 5}, 5);

	/* What is marked does not count as kept. */
	catalog = list(engine);
	assert_int_equal(expired(catalog, 3, 0), 0);
	assert_int_equal(act(ckpt_catalog_remove_marked, engine, catalog, 2), -EINVAL);
	must_work(act(ckpt_catalog_unmark, engine, catalog, 2));
	must_work(act(ckpt_catalog_unmark, engine, catalog, 3));
	ckpt_catalog_free(catalog);

	catalog = list(engine);
	assert_int_equal(expired(catalog, 4, 0), 1u << 1);
	assert_int_equal(act(ckpt_catalog_unmark, engine, catalog, 1), -EINVAL);
	assert_int_equal(act(ckpt_catalog_unmark, engine, catalog, 4), -EINVAL);
	/* A job has claimed a generation since the list was made. */
	scratch_put(remote, "/gens/000002.json", "{}");
	assert_int_equal(act(ckpt_catalog_remove_marked, engine, catalog, 1), CKPT_EFENCED);
	assert_int_equal(unlink(scratch_join(remote, "gens/000002.json")), 0);
	must_work(act(ckpt_catalog_remove_marked, engine, catalog, 1));
	assert_int_equal(act(ckpt_catalog_remove_marked, engine, catalog, 1), -EBUSY);
	ckpt_catalog_free(catalog);
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){2, 3, 4, 5}, 4);
	assert_null(scratch_find(remote, ".tombstone"));

	/* A job that is started again has it still, and sends it. */
	engine = open_both();
	assert_int_equal(kit_resume(engine), 5);
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
	assert_holds((uint64_t[]){1, 2, 3, 4, 5}, 5);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_a_save_goes_there),
		SCENE(test_is_remembered),
		SCENE(test_is_not_remembered),
		SCENE(test_no_such_level),
		SCENE(test_the_next_start_sends_the_rest),
		SCENE(test_half_a_shard_is_sent_again),
		SCENE(test_retention_waits),
		SCENE(test_strangers),
		SCENE(test_taken_over),
		SCENE(test_gone_apart),
		SCENE(test_a_new_node),
		SCENE(test_a_claim_without_a_step),
		SCENE(test_a_claim_and_some_ranks),
		SCENE(test_a_run_without_a_step),
		SCENE(test_damage_there_and_a_step_here),
		SCENE(test_a_new_node_and_damage),
		SCENE(test_damage_does_not_travel),
		SCENE(test_damage_is_put_back),
		SCENE(test_damage_in_different_chunks),
		SCENE(test_damage_on_both_sides),
		SCENE(test_closed_in_between),
		SCENE(test_refused),
		SCENE(test_pruned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
