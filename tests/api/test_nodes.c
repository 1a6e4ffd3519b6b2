/* SPDX-License-Identifier: Apache-2.0 */
/* A job whose nodes have a store each: one outcome for all of them. */
#include "api/node_job.h"

#include <glob.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "lib/scratch.h"

#define SHORT 700 /* milliseconds, which pass */

static void test_one_outcome(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	job_save(job, 2);
	/* The same claim, and the same manifests, in both; each holds its own ranks' files. */
	job_must_be_alike(job, "gens/000001.json");
	job_must_be_alike(job, STEP(1));
	job_must_be_alike(job, STEP(2));
	job_close(job);
	/* What was said of the steps before is gone. */
	assert_false(table_has(&job->table, "job-1/g1-s1"));
	assert_false(table_has(&job->table, "job-1/g1-s1-m"));
	assert_false(table_has(&job->table, "job-1/g1-s1-m-1"));
}

static void test_resume(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	job_close(job);
	job_must_resume(job, 1);
	job_save(job, 2);
	job_close(job);
	job_must_be_alike(job, "gens/000002.json");
	job_must_resume(job, 2);
}

/* As if the node had died between the outcome and its own manifest. */
static void test_imported(void **state)
{
	struct job *job = *state;

	for (uint32_t node = 0; node < NODES; node++) {
		job_open(job);
		if (node > 0)
			assert_int_equal(job_resume(job), 2);
		job_save(job, 3 * node + 1);
		job_save(job, 3 * node + 2);
		job_close(job);
		const char *name = node == 0 ? STEP(2) : "g000002/step-0000000005/manifest.json";
		assert_int_equal(unlink(job_path(job, node, name)), 0);
		job_open(job);
		job_must_be_alike(job, name);
		assert_int_equal(job_resume(job), 3 * node + 2);
		job_close(job);
	}
}

/* Names the files of all ranks of a step on a node anew, as a repair does. */
static void repair_all(struct job *job, uint32_t node, const char *step)
{
	glob_t found;
	char to[400];

	assert_int_equal(
		glob(scratch_join(job_path(job, node, step), "rank-*"), 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 2 * WORLD / NODES);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *from = found.gl_pathv[i];
		int stem = (int)(strchr(strrchr(from, '/'), '.') - from);
		(void)snprintf(
			to, sizeof(to), "%.*s.%016x%s", stem, from, 0xff, strrchr(from, '.'));
		assert_int_equal(rename(from, to), 0);
	}
	globfree(&found);
}

/* Ranks that were repaired are in their node's store: their step is resumed, and its manifest brought when it is lost. */
static void test_repaired(void **state)
{
	struct job *job = *state;

	job_save_two(job);
	for (uint32_t node = 0; node < NODES; node++) {
		repair_all(job, node, "g000001/step-0000000001");
		repair_all(job, node, "g000001/step-0000000002");
	}
	assert_int_equal(unlink(job_path(job, 1, STEP(1))), 0);
	job_must_resume(job, 2);
	job_must_be_alike(job, STEP(1));
	job_close(job);
}

/* A node that comes with an empty disk hears of the run, and of its newest steps; it has nothing of them. */
static void test_new_node(void **state)
{
	struct job *job = *state;

	for (uint32_t node = 0; node < NODES; node++) {
		job_open(job);
		job_save(job, 1);
		job_close(job);
		scratch_remove(strdup(job->stores[node]));
		job_open(job);
		job_must_be_alike(job, STEP(1));
		job_must_be_alike(job, "gens/000001.json");
		job_each(job, job_resume_one);
		/* Nobody begins anew, and nothing is said against the other node's files. */
		for (uint32_t i = 0; i < WORLD; i++)
			assert_true(
				job->ranks[i].result < 0 && job->ranks[i].result != CKPT_ENOSTEP);
		job_close(job);
		for (uint32_t i = 0; i < NODES; i++)
			if (access(job->stores[i], F_OK) == 0)
				scratch_remove(strdup(job->stores[i]));
	}
}

static void test_retention(void **state)
{
	struct job *job = *state;

	job->keep_last = 2;
	job_open(job);
	for (uint64_t step = 1; step <= 5; step++)
		job_save(job, step);
	job_close(job);
	for (uint32_t node = 0; node < NODES; node++) {
		assert_true(job_exists(job, node, STEP(5)));
		assert_true(job_exists(job, node, STEP(4)));
		assert_false(job_exists(job, node, STEP(2)));
		assert_false(job_exists(job, node, STEP(1)));
	}
}

static void must_fail(const struct job *job)
{
	for (uint32_t i = 0; i < WORLD; i++)
		if (!job->ranks[i].absent)
			assert_true(job->ranks[i].result < 0);
}

/* With a deadline that passes. */
static void save_in_vain(struct job *job, uint64_t step)
{
	job->save_ms = SHORT;
	job_try_save(job, step);
	must_fail(job);
}

/* One rank cannot save: the step is of none, on no node, and leaves nothing. */
static void test_abort(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	float *data = job->ranks[3].vector.data;
	job->ranks[3].vector.data = NULL;
	save_in_vain(job, 2);
	job->ranks[3].vector.data = data;
	job_save(job, 3);
	job_close(job);
	for (uint32_t node = 0; node < NODES; node++) {
		assert_false(job_exists(job, node, STEP(2)));
		assert_true(job_exists(job, node, STEP(3)));
	}
}

/* A rank that does not come, be it rank 0: the others' step is over by the deadline, for all. */
static void test_absent(void **state)
{
	static const uint32_t absent[] = {3, 0};
	struct job *job = *state;

	for (unsigned i = 0; i < 2; i++) {
		job_open(job);
		if (i > 0)
			assert_int_equal(job_resume(job), 1);
		job_save(job, i + 1);
		job->ranks[absent[i]].absent = true;
		save_in_vain(job, i + 2);
		job->ranks[absent[i]].absent = false;
		job_close(job);
		job_must_resume(job, i + 1);
		job_close(job);
		for (uint32_t node = 0; node < NODES; node++)
			assert_false(job_exists(
				job, node, i ? "g000002/step-0000000003/manifest.json" : STEP(2)));
	}
}

/* The exchange is gone while they save: nobody says durable; when it is back they go on. */
static void test_dead_exchange(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	table_kill(&job->table, "", false);
	save_in_vain(job, 2);
	table_revive(&job->table);
	job_save(job, 3);
	job_close(job);
	job_must_resume(job, 3);
}

/*
 * It dies with the outcome: rank 0 knows that the step is committed, and has it on its node; nobody else can
 * know. The next start finds it there and brings it to the other node, whose ranks have their parts of it.
 */
static void test_dies_with_the_outcome(void **state)
{
	struct job *job = *state;

	/* A rank that was too slow to have a part in it: again, with more time. */
	for (uint32_t ms = SHORT;; ms *= 2) {
		char outcome[32];
		job_open(job);
		job_save(job, 1);
		(void)snprintf(outcome, sizeof(outcome), "job-%u/g1-s2", job->starts);
		table_kill(&job->table, outcome, false);
		job->save_ms = ms;
		job_try_save(job, 2);
		if (job->ranks[0].result == 0)
			break;
		hang_unless(ms < HANG_LIMIT_MS);
		job_close(job);
		table_revive(&job->table);
		for (uint32_t node = 0; node < NODES; node++)
			scratch_remove(strdup(job->stores[node]));
	}
	/* Rank 1 may have seen it in the store of its node. */
	assert_int_equal(job->ranks[2].result, -ETIMEDOUT);
	assert_int_equal(job->ranks[3].result, -ETIMEDOUT);
	assert_true(job_exists(job, 0, STEP(2)));
	assert_false(job_exists(job, 1, STEP(2)));
	job_close(job);
	table_revive(&job->table);
	job_open(job);
	job_must_be_alike(job, STEP(2));
	assert_int_equal(job_resume(job), 2);
}

/* Not even rank 0 hears that it was put: no store has it, and it is of nobody. */
static void test_outcome_unheard(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	table_kill(&job->table, "job-1/g1-s2", true);
	save_in_vain(job, 2);
	job_close(job);
	table_revive(&job->table);
	job_must_resume(job, 1);
	job_save(job, 2);
	job_close(job);
	job_must_be_alike(job, "g000002/step-0000000002/manifest.json");
}

/* Two directories that were never stores of one job. */
static void test_strangers(void **state)
{
	struct job *job = *state;
	char kept[220];

	job_open(job);
	job_save(job, 1);
	job_close(job);
	(void)snprintf(kept, sizeof(kept), "%s-kept", job->stores[1]);
	assert_int_equal(rename(job->stores[1], kept), 0);
	scratch_remove(strdup(job->stores[0]));
	job_open(job);
	job_save(job, 1);
	job_close(job);
	scratch_remove(strdup(job->stores[1]));
	assert_int_equal(rename(kept, job->stores[1]), 0);
	job_try_open(job);
	job_all_must_fail(job, CKPT_EMISMATCH, "another run");
}

static void copy_stores(const struct job *job, const char *to)
{
	char path[300];

	for (uint32_t node = 0; node < NODES; node++) {
		(void)snprintf(path, sizeof(path), "%s-%s", job->stores[node], to);
		assert_true(scratch_copy(job->stores[node], path));
	}
}

static void put_back(const struct job *job, uint32_t node, const char *from)
{
	char path[300];

	scratch_remove(strdup(job->stores[node]));
	(void)snprintf(path, sizeof(path), "%s-%s", job->stores[node], from);
	assert_int_equal(rename(path, job->stores[node]), 0);
}

/* Two starts that went on from one step, each on its own copy: what they claimed has one number. */
static void test_two_histories(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	job_close(job);
	copy_stores(job, "before");
	job_must_resume(job, 1);
	job_save(job, 2);
	job_close(job);
	copy_stores(job, "one");
	for (uint32_t node = 0; node < NODES; node++)
		put_back(job, node, "before");
	job_must_resume(job, 1);
	job_save(job, 2);
	job_close(job);
	put_back(job, 0, "one");
	job_try_open(job);
	job_all_must_fail(job, CKPT_EMISMATCH, "did not know of each other");
}

/*
 * The store of rank 0 has only what is in no lineage any more, and that of the other node the step to go on from:
 * nobody starts from nothing beside it.
 */
static void test_lineage_elsewhere(void **state)
{
	struct job *job = *state;

	job_save_two(job);
	copy_stores(job, "left");
	/* A start that goes on from the first step, and dies before node b has a commit of it. */
	for (uint32_t node = 0; node < NODES; node++)
		scratch_remove(strdup(job_path(job, node, "g000001/step-0000000002")));
	job_must_resume(job, 1);
	job_save(job, 2);
	job_close(job);
	scratch_remove(strdup(job_path(job, 1, "g000002")));
	/* Node a was away, and has retired the first step. */
	put_back(job, 0, "left");
	scratch_remove(strdup(job_path(job, 0, "g000001/step-0000000001")));
	job_open(job);
	job_resume_in_vain(job, CKPT_EOTHERNODE);
	job_try_save(job, 3);
	must_fail(job);
	assert_int_equal(job->ranks[0].result, CKPT_ENOTRESUMED);
}

/* A live job on one of the nodes keeps another one out, on all of them. */
static void test_in_use(void **state)
{
	struct job *job = *state;

	job_open(job);
	job_save(job, 1);
	job_close(job);
	struct ckpt_engine *other = kit_open(job->stores[1], CKPT_ENGINE_NODE_STORE);
	job_try_open(job);
	job_all_must_fail(job, CKPT_EINUSE, "");
	ckpt_engine_close(other);
}

/* Two stores under one name: no reader could say which rank's files are missing where. */
static void test_one_name(void **state)
{
	struct job *job = *state;

	job->one_name = true;
	job_try_open(job);
	job_all_must_fail(job, CKPT_EMISMATCH, "a name of its own");
}

/* A store is what it was made as. */
static void test_scope(void **state)
{
	struct job *job = *state;

	ckpt_engine_close(kit_open(job->stores[1], 0));
	job_try_open(job);
	job_all_must_fail(job, -EINVAL, "one for all nodes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_outcome, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_resume, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_imported, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_repaired, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_new_node, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_retention, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_abort, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_absent, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_dead_exchange, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(
			test_dies_with_the_outcome, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_outcome_unheard, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_strangers, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_two_histories, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_lineage_elsewhere, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_in_use, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_one_name, job_set_up, job_tear_down),
		cmocka_unit_test_setup_teardown(test_scope, job_set_up, job_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
