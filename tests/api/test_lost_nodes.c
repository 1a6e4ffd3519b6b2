/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose nodes have a store each: what is damaged on one of them, and what was lost with one. */
#include "api/node_job.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

/* The shard of one rank of a step, with a byte turned over. */
static void flip(const char *pattern)
{
	glob_t found;

	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	scratch_flip(found.gl_pathv[0], 60000);
	globfree(&found);
}

static void damage(const struct job *job, uint32_t node, const char *pattern)
{
	flip(job_path(job, node, pattern));
}

/* What is left is gone from one of the stores: that is said, and not waited for. */
static void test_let_go(void **state)
{
	struct job *job = *state;

	job_save_two(job);
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000001")));
	damage(job, 0, "g000001/step-0000000002/rank-00000.*.safetensors");
	job_open(job);
	static const int expected[] = {CKPT_EINTEGRITY, CKPT_EINCOMPLETE, CKPT_EQUARANTINED};
	for (size_t round = 0; round < sizeof(expected) / sizeof(expected[0]); round++)
		job_resume_in_vain(job, expected[round]);
}

static void *drain_one(void *argument)
{
	struct rank *rank = argument;

	job_note(rank, ckpt_engine_drain_remote(rank->engine, TIMEOUT_MS));
	return NULL;
}

/* Both nodes have it by then. */
static void save_remotely(struct job *job)
{
	(void)snprintf(job->remote, sizeof(job->remote), "file://%s/remote", job->dir);
	job_open(job);
	job_save(job, 1);
	job_save(job, 2);
	job_each(job, drain_one);
	job_all_must_work(job);
	job_close(job);
}

/* The step that all go on from, after all were told of the damage. */
static uint64_t resume_damaged(struct job *job)
{
	job_open(job);
	job_resume_in_vain(job, CKPT_EINTEGRITY);
	uint64_t step = job_resume(job);
	job_close(job);
	return step;
}

/* What is damaged on one node is put back there; what nobody has is passed over by all nodes. */
static void test_repaired(void **state)
{
	static const char bad[] = "g000001/step-0000000002/rank-00003.*.safetensors";
	static const char note[] = "g000001/step-0000000002/quarantine.json";
	struct job *job = *state;
	char there[300];

	save_remotely(job);
	for (int round = 0; round < 2; round++) {
		damage(job, 1, bad);
		assert_int_equal(resume_damaged(job), 2);
		for (uint32_t node = 0; node < NODES; node++)
			assert_false(job_exists(job, node, note));
	}
	/* Undamaged: nobody is told anything. */
	job_must_resume(job, 2);
	job_close(job);

	damage(job, 1, bad);
	(void)snprintf(there, sizeof(there), "%s/remote/%s", job->dir, bad);
	flip(there);
	assert_int_equal(resume_damaged(job), 1);
	for (uint32_t node = 0; node < NODES; node++)
		assert_true(job_exists(job, node, note));
}

static void forget_stores(const struct job *job)
{
	for (uint32_t node = 0; node < NODES; node++)
		scratch_remove(strdup(job->stores[node]));
}

static int bring_near(
	const struct job *job, uint32_t node, const uint32_t *ranks, size_t count, uint32_t world)
{
	struct ckpt_engine_opts opts = kit_opts();
	uint64_t generation = 0;
	uint64_t step = 0;

	opts.remote = job->remote;
	opts.node = job_node_names[node];
	opts.flags = CKPT_ENGINE_NODE_STORE | job->flags;
	return ckpt_engine_import_ranks(
		job->stores[node], &opts, ranks, count, world, &generation, &step);
}

/* In the store of a node there are the files of step 2 of these ranks, and of no others. */
static void must_have(const struct job *job, uint32_t node, uint32_t from, uint32_t to)
{
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		char pattern[80];
		glob_t found;
		(void)snprintf(
			pattern, sizeof(pattern), "g000001/step-0000000002/rank-%05u.*", rank);
		int r = glob(job_path(job, node, pattern), 0, NULL, &found);
		assert_int_equal(r, rank >= from && rank <= to ? 0 : GLOB_NOMATCH);
		globfree(&found);
	}
}

/* A node fetches what its own ranks need, and nothing else, where it can be told what that is. */
static void test_near(void **state)
{
	static const uint32_t all[] = {0, 1, 2, 3};
	static const uint32_t odd[] = {1, 3};
	struct job *job = *state;

	save_remotely(job);
	forget_stores(job);
	for (uint32_t node = 0; node < NODES; node++) {
		must_work(bring_near(job, node, all + (size_t)node * 2, 2, WORLD));
		must_have(job, node, node * 2, node * 2 + 1);
	}
	job_must_resume(job, 2);
	job_close(job);
	/* Others are elsewhere, and not damage. */
	job->flags = CKPT_ENGINE_LOST_NODES;
	scratch_remove(strdup(job_path(job, 1, "g000001")));
	must_work(bring_near(job, 1, all + 2, 2, WORLD));
	must_have(job, 1, 2, 3);
	job_must_resume(job, 2);
	job_close(job);
	job->flags = 0;
	/* Another number of ranks, or ranks that were on several nodes, may need anything. */
	forget_stores(job);
	must_work(bring_near(job, 0, all, 2, WORLD + 1));
	must_have(job, 0, 0, WORLD - 1);
	must_work(bring_near(job, 1, odd, 2, WORLD));
	must_have(job, 1, 0, WORLD - 1);
	job_must_resume(job, 2);
	/* No rank, one that there is none of, and no store of a node. */
	assert_int_equal(bring_near(job, 0, all, 0, WORLD), -EINVAL);
	assert_int_equal(bring_near(job, 0, all + 2, 2, 3), -EINVAL);
}

static void remove_all(const char *pattern)
{
	glob_t found;

	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++)
		assert_int_equal(unlink(found.gl_pathv[i]), 0);
	globfree(&found);
}

/* Of a whole bring that was cut off no file of another node stays, and a store for all nodes is left alone. */
static void test_near_leftovers(void **state)
{
	static const uint32_t own[] = {0, 1};
	static const char manifest[] = "g000001/step-0000000002/manifest.json";
	struct job *job = *state;
	struct ckpt_engine_opts opts = kit_opts();
	uint64_t generation = 0;
	uint64_t step = 0;

	save_remotely(job);
	forget_stores(job);
	must_work(bring_near(job, 0, own, 2, WORLD + 1));
	must_have(job, 0, 0, WORLD - 1);
	remove_all(job_path(job, 0, manifest));
	remove_all(job_path(job, 0, "g000001/step-0000000002/rank-00003.*.index"));
	must_work(bring_near(job, 0, own, 2, WORLD));
	must_have(job, 0, 0, 1);

	opts.remote = job->remote;
	must_work(ckpt_engine_import(job->stores[1], &opts, &generation, &step));
	assert_int_equal(step, 2);
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000002")));
	assert_int_equal(bring_near(job, 1, own, 2, WORLD), -EINVAL);
	assert_false(job_exists(job, 1, manifest));
}

/* What a lost node had: the user says so, and then an older step is chosen, on all ranks. */
static void test_lost_node(void **state)
{
	struct job *job = *state;
	char lost[220];
	char away[220];

	job_save_two(job);
	/* Its manifest is brought from the other node, its files are not. */
	(void)snprintf(lost, sizeof(lost), "%s/g000001/step-0000000002", job->stores[1]);
	(void)snprintf(away, sizeof(away), "%s-away", job->stores[1]);
	assert_int_equal(rename(lost, away), 0);
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	job_close(job);
	job->flags = CKPT_ENGINE_LOST_NODES;
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	assert_int_equal(job_resume(job), 1);
	job_close(job);
	/* Nothing was saved since, so nothing was given up: it is back. */
	scratch_remove(strdup(lost));
	assert_int_equal(rename(away, lost), 0);
	job_must_resume(job, 2);
	job_close(job);
	/* It is not, and a step of the same number is another one. */
	scratch_remove(strdup(lost));
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	assert_int_equal(job_resume(job), 1);
	job_save(job, 2);
	job_close(job);
	job->flags = 0;
	job_must_resume(job, 2);
	job_close(job);
	assert_true(job_exists(job, 1, "g000002/step-0000000002/manifest.json"));
	assert_false(job_exists(job, 0, "g000001/step-0000000002/quarantine.json"));
	/* There is nothing that all have. */
	job->flags = CKPT_ENGINE_LOST_NODES;
	scratch_remove(strdup(job->stores[1]));
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	job_resume_in_vain(job, CKPT_EQUARANTINED);
	assert_non_null(strstr(job->ranks[0].why, "because nodes were lost"));
}

/* With lost_nodes. Rank 0 says why it does not pass over the step. */
static void must_stay(struct job *job, const char *why)
{
	job_open(job);
	for (unsigned round = 0; round < 2; round++) {
		job_resume_in_vain(job, CKPT_EOTHERNODE);
		if (!strstr(job->ranks[0].why, why))
			fail_msg("round %u: \"%s\" is not in: %s", round, why, job->ranks[0].why);
	}
	job_close(job);
}

/* What the bucket has, or may have, is not given up: a node that has not brought it is started again. */
static void test_lost_node_and_bucket(void **state)
{
	struct job *job = *state;
	char there[300];
	char gens[300];
	uint64_t generation;
	uint64_t step;

	save_remotely(job);
	job->flags = CKPT_ENGINE_LOST_NODES;
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000002")));
	must_stay(job, "it is in file://");
	(void)snprintf(there, sizeof(there), "%s/remote/" STEP(2), job->dir);
	assert_int_equal(rename(there, scratch_join(job->dir, "aside")), 0);
	assert_int_equal(mkdir(there, 0777), 0);
	must_stay(job, "it is unknown whether");
	assert_int_equal(rmdir(there), 0);
	/* Nor is anything given up by a node that cannot bring. */
	(void)snprintf(there, sizeof(there), "%s/remote/gens", job->dir);
	(void)snprintf(gens, sizeof(gens), "%s/gens", job->dir);
	assert_int_equal(rename(there, gens), 0);
	assert_int_equal(symlink("/dev/null", there), 0);
	struct ckpt_engine_opts opts = kit_opts();
	opts.remote = job->remote;
	opts.node = job_node_names[0];
	for (unsigned lost = 0; lost < 2; lost++) {
		opts.flags = CKPT_ENGINE_NODE_STORE | (lost ? CKPT_ENGINE_LOST_NODES : 0);
		int r = ckpt_engine_import(job->stores[0], &opts, &generation, &step);
		assert_int_equal(r, lost ? -ENOTDIR : 0);
	}
	opts.flags = CKPT_ENGINE_LOST_NODES;
	assert_int_equal(ckpt_engine_import(job->stores[0], &opts, &generation, &step), -EINVAL);
	assert_int_equal(unlink(there), 0);
	assert_int_equal(rename(gens, there), 0);
	(void)snprintf(there, sizeof(there), "%s/remote/g000001/step-0000000002", job->dir);
	scratch_remove(strdup(there));
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	assert_int_equal(job_resume(job), 1);
	/* Node a still has what it had to upload of step 2, which nobody waits for. */
	job_save(job, 3);
	job_each(job, drain_one);
	job_all_must_work(job);
}

/* As `ckpt upload` does. */
static void upload(const struct job *job)
{
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;

	opts.flags = CKPT_ENGINE_NO_IMPORT;
	opts.remote = job->remote;
	must_work(ckpt_engine_open(job->stores[0], &opts, &engine));
	must_work(ckpt_engine_drain_remote(engine, TIMEOUT_MS));
	ckpt_engine_close(engine);
}

/* The lost node had sent its part of the step, and node a has not sent its own: nothing is lost. */
static void test_lost_node_and_parts(void **state)
{
	struct job *job = *state;
	char there[300];
	char pattern[400];

	save_remotely(job);
	job->flags = CKPT_ENGINE_LOST_NODES;
	(void)snprintf(there, sizeof(there), "%s/remote/g000001/step-0000000002", job->dir);
	(void)snprintf(pattern, sizeof(pattern), "%s/manifest.json", there);
	remove_all(pattern);
	for (uint32_t rank = 0; rank < WORLD / NODES; rank++) {
		(void)snprintf(pattern, sizeof(pattern), "%s/rank-%05u.*", there, rank);
		remove_all(pattern);
	}
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000002")));
	/* Node a would send its part while it runs, and then the step is in the bucket. */
	job->remote_bytes_per_s = 1;
	must_stay(job, "run `ckpt upload` on that store");
	job->remote_bytes_per_s = 0;
	upload(job);
	for (uint32_t node = 0; node < NODES; node++)
		(void)bring_near(job, node, (uint32_t[]){node * 2, node * 2 + 1}, 2, WORLD);
	job_must_resume(job, 2);
	job_close(job);
	/* One of its ranks had not. */
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000002")));
	(void)snprintf(pattern, sizeof(pattern), "%s/manifest.json", there);
	remove_all(pattern);
	(void)snprintf(pattern, sizeof(pattern), "%s/rank-00003.*.index", there);
	remove_all(pattern);
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	assert_int_equal(job_resume(job), 1);
}

/* Node a has the files of node b, too: nothing is lost. */
static void test_lost_node_and_copy(void **state)
{
	struct job *job = *state;
	char pattern[300];
	glob_t found;

	job_save_two(job);
	(void)snprintf(
		pattern, sizeof(pattern), "%s/g000001/step-0000000002/rank-*", job->stores[1]);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *name = strstr(found.gl_pathv[i], "g000001/");
		if (!job_exists(job, 0, name))
			assert_int_equal(rename(found.gl_pathv[i], job_path(job, 0, name)), 0);
	}
	globfree(&found);
	scratch_remove(strdup(job_path(job, 1, "g000001/step-0000000002")));
	job->flags = CKPT_ENGINE_LOST_NODES;
	must_stay(job, "copy them");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_let_go, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_repaired, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_near, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_near_leftovers, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_lost_node, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(
			test_lost_node_and_bucket, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(
			test_lost_node_and_parts, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_lost_node_and_copy, job_set_up, job_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
