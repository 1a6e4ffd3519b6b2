/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job whose nodes have a store each: ranks 0 and 1 on node a, 2 and 3 on node b, which see nothing of each
 * other's directory. All are in this process, each begun by a thread of its own.
 */
#include "api/table.h"

#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORLD 4
#define NODES 2
#define COUNT ((int64_t)20000)
#define SHORT 700 /* milliseconds, which pass */

struct job;

struct rank {
	struct job *job;
	uint32_t number;
	uint32_t node;
	struct table_service service;
	pthread_t thread;
	struct ckpt_engine *engine;
	struct ckpt_save *save;
	struct kit_vector vector;
	int result;
	char why[512];
	uint64_t step; /* that it is to save or has resumed */
	bool absent;   /* it saves nothing */
};

struct job {
	char *dir;
	char stores[NODES][200];
	struct table table;
	unsigned starts;
	uint32_t save_ms; /* until a save is given up; 0: long */
	uint64_t keep_last;
	bool one_name;
	char remote[300]; /* empty: none */
	uint32_t flags;   /* beside that of stores on nodes */
	struct rank ranks[WORLD];
};

static const char *const node_names[NODES] = {"a", "b"};

static void note(struct rank *rank, int result)
{
	rank->result = result;
	(void)snprintf(rank->why, sizeof(rank->why), "%s", result < 0 ? ckpt_last_error() : "");
}

static void each(struct job *job, void *(*body)(void *rank))
{
	pthread_t threads[WORLD];

	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, body, &job->ranks[i]), 0);
	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}

static void all_must_work(const struct job *job)
{
	for (uint32_t i = 0; i < WORLD; i++)
		if (job->ranks[i].result < 0)
			fail_msg("rank %u: %d: %s", i, job->ranks[i].result, job->ranks[i].why);
}

static void *open_one(void *argument)
{
	struct rank *rank = argument;
	struct job *job = rank->job;
	struct ckpt_engine_opts opts = kit_opts();
	char session[32];

	(void)snprintf(session, sizeof(session), "job-%u", job->starts);
	opts.flags = CKPT_ENGINE_NODE_STORE | job->flags;
	opts.rank = rank->number;
	opts.world = WORLD;
	opts.session = session;
	opts.keep_last = job->keep_last;
	opts.exchange = rank->service.server;
	opts.node = node_names[job->one_name ? 0 : rank->node];
	opts.keeper = rank->node * (WORLD / NODES);
	opts.remote = job->remote[0] ? job->remote : NULL;
	note(rank, ckpt_engine_open(job->stores[rank->node], &opts, &rank->engine));
	return NULL;
}

static void try_open(struct job *job)
{
	job->starts++;
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		rank->service.table = &job->table;
		must_work(ckpt_exchange_server_new(&rank->service.server));
		assert_int_equal(
			pthread_create(&rank->thread, NULL, table_serve, &rank->service), 0);
	}
	each(job, open_one);
}

static void open_job(struct job *job)
{
	try_open(job);
	all_must_work(job);
}

static void *close_one(void *argument)
{
	struct rank *rank = argument;

	ckpt_save_free(rank->save);
	ckpt_engine_close(rank->engine);
	ckpt_exchange_server_quiet(rank->service.server);
	return NULL;
}

static void close_job(struct job *job)
{
	if (!job->ranks[0].service.server)
		return;
	each(job, close_one);
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		assert_int_equal(pthread_join(rank->thread, NULL), 0);
		ckpt_exchange_server_free(rank->service.server);
		rank->service.server = NULL;
		rank->engine = NULL;
		rank->save = NULL;
	}
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	table_init(&job->table);
	for (uint32_t i = 0; i < NODES; i++)
		(void)snprintf(job->stores[i], sizeof(job->stores[i]), "%s",
			scratch_join(job->dir, node_names[i]));
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		*rank = (struct rank){.job = job, .number = i, .node = i / (WORLD / NODES)};
		kit_fill(&rank->vector, "w", COUNT, i);
		(void)snprintf(rank->vector.name, sizeof(rank->vector.name), "w%u", i);
	}
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	close_job(job);
	for (uint32_t i = 0; i < WORLD; i++)
		kit_clear(&job->ranks[i].vector);
	table_clear(&job->table);
	scratch_remove(job->dir);
	free(job);
	return 0;
}

static void *save_one(void *argument)
{
	struct rank *rank = argument;

	ckpt_save_free(rank->save);
	rank->save = NULL;
	if (rank->absent)
		return NULL;
	struct ckpt_tensor tensor = kit_tensor(&rank->vector);
	struct ckpt_save_opts opts = {.size = sizeof(opts), .timeout_ms = rank->job->save_ms};
	int r = ckpt_save_begin(rank->engine, rank->step, &opts, &rank->save);
	if (r == 0)
		r = ckpt_save_add(rank->save, &tensor, 1);
	if (r == 0)
		r = ckpt_save_start(rank->save);
	if (r == 0)
		r = kit_wait(rank->save);
	note(rank, r);
	return NULL;
}

static void try_save(struct job *job, uint64_t step)
{
	for (uint32_t i = 0; i < WORLD; i++)
		job->ranks[i].step = step;
	each(job, save_one);
}

static void save(struct job *job, uint64_t step)
{
	job->save_ms = 0;
	try_save(job, step);
	all_must_work(job);
}

static int restore_one_of(struct rank *rank)
{
	struct ckpt_restore *restore = NULL;
	float *data = calloc((size_t)COUNT, sizeof(float));
	struct ckpt_target target = {
		.size = sizeof(target), .name = rank->vector.name, .data = data};

	int r = ckpt_restore_open(rank->engine, CKPT_STEP_LATEST, &restore);
	if (r == 0)
		r = ckpt_restore_bind(restore, &target, 1);
	if (r == 0)
		r = ckpt_restore_start(restore);
	if (r == 0)
		r = kit_wait_restore(restore);
	if (r == 0 && memcmp(data, rank->vector.data, (size_t)COUNT * sizeof(float)) != 0)
		r = CKPT_EINTEGRITY;
	if (r == 0)
		r = ckpt_restore_adopt(restore);
	if (r == 0)
		rank->step = ckpt_restore_step(restore);
	ckpt_restore_free(restore);
	free(data);
	return r;
}

static void *resume_one(void *argument)
{
	struct rank *rank = argument;

	rank->step = 0;
	note(rank, restore_one_of(rank));
	return NULL;
}

static uint64_t resume(struct job *job)
{
	each(job, resume_one);
	all_must_work(job);
	for (uint32_t i = 1; i < WORLD; i++)
		assert_int_equal(job->ranks[i].step, job->ranks[0].step);
	return job->ranks[0].step;
}

static char *path_in(const struct job *job, uint32_t node, const char *name)
{
	static char paths[4][400];
	static unsigned next;
	char *path = paths[next++ % 4];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", job->stores[node], name);
	return path;
}

static bool exists(const struct job *job, uint32_t node, const char *name)
{
	return access(path_in(job, node, name), F_OK) == 0;
}

static size_t read_file(const char *path, char *out, size_t size)
{
	FILE *file = fopen(path, "rb");
	size_t length = file ? fread(out, 1, size, file) : 0;

	if (file)
		(void)fclose(file);
	return length;
}

static void must_be_alike(const struct job *job, const char *name)
{
	char one[8192];
	char two[8192];
	size_t length = read_file(path_in(job, 0, name), one, sizeof(one));

	assert_true(length > 0);
	assert_int_equal(read_file(path_in(job, 1, name), two, sizeof(two)), length);
	assert_memory_equal(one, two, length);
}

#define STEP(number) "g000001/step-000000000" #number "/manifest.json"

static void all_must_fail(const struct job *job, int code, const char *why)
{
	for (uint32_t i = 0; i < WORLD; i++) {
		assert_int_equal(job->ranks[i].result, code);
		assert_non_null(strstr(job->ranks[i].why, why));
	}
}

static void resume_in_vain(struct job *job, int code)
{
	each(job, resume_one);
	all_must_fail(job, code, "");
}

/* A start of the job, which goes on from that step. */
static void must_resume(struct job *job, uint64_t step)
{
	open_job(job);
	assert_int_equal(resume(job), step);
}

static void save_two(struct job *job)
{
	open_job(job);
	save(job, 1);
	save(job, 2);
	close_job(job);
}

static void test_one_outcome(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	save(job, 2);
	/* The same claim, and the same manifests, in both; each holds its own ranks' files. */
	must_be_alike(job, "gens/000001.json");
	must_be_alike(job, STEP(1));
	must_be_alike(job, STEP(2));
	close_job(job);
	/* What was said of the steps before is gone. */
	assert_false(table_has(&job->table, "job-1/g1-s1"));
	assert_false(table_has(&job->table, "job-1/g1-s1-m"));
	assert_false(table_has(&job->table, "job-1/g1-s1-m-1"));
}

static void test_resume(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	close_job(job);
	must_resume(job, 1);
	save(job, 2);
	close_job(job);
	must_be_alike(job, "gens/000002.json");
	must_resume(job, 2);
}

/* As if the node had died between the outcome and its own manifest. */
static void test_brought(void **state)
{
	struct job *job = *state;

	for (uint32_t node = 0; node < NODES; node++) {
		open_job(job);
		if (node > 0)
			assert_int_equal(resume(job), 2);
		save(job, 3 * node + 1);
		save(job, 3 * node + 2);
		close_job(job);
		const char *name = node == 0 ? STEP(2) : "g000002/step-0000000005/manifest.json";
		assert_int_equal(unlink(path_in(job, node, name)), 0);
		open_job(job);
		must_be_alike(job, name);
		assert_int_equal(resume(job), 3 * node + 2);
		close_job(job);
	}
}

/* A node that comes with an empty disk hears of the run, and of its newest steps; it has nothing of them. */
static void test_new_node(void **state)
{
	struct job *job = *state;

	for (uint32_t node = 0; node < NODES; node++) {
		open_job(job);
		save(job, 1);
		close_job(job);
		scratch_remove(strdup(job->stores[node]));
		open_job(job);
		must_be_alike(job, STEP(1));
		must_be_alike(job, "gens/000001.json");
		each(job, resume_one);
		/* Nobody begins anew, and nothing is said against the other node's files. */
		for (uint32_t i = 0; i < WORLD; i++)
			assert_true(
				job->ranks[i].result < 0 && job->ranks[i].result != CKPT_ENOSTEP);
		close_job(job);
		for (uint32_t i = 0; i < NODES; i++)
			if (access(job->stores[i], F_OK) == 0)
				scratch_remove(strdup(job->stores[i]));
	}
}

static void test_retention(void **state)
{
	struct job *job = *state;

	job->keep_last = 2;
	open_job(job);
	for (uint64_t step = 1; step <= 5; step++)
		save(job, step);
	close_job(job);
	for (uint32_t node = 0; node < NODES; node++) {
		assert_true(exists(job, node, STEP(5)));
		assert_true(exists(job, node, STEP(4)));
		assert_false(exists(job, node, STEP(2)));
		assert_false(exists(job, node, STEP(1)));
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
	try_save(job, step);
	must_fail(job);
}

/* One rank cannot save: the step is of none, on no node, and leaves nothing. */
static void test_abort(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	float *data = job->ranks[3].vector.data;
	job->ranks[3].vector.data = NULL;
	save_in_vain(job, 2);
	job->ranks[3].vector.data = data;
	save(job, 3);
	close_job(job);
	for (uint32_t node = 0; node < NODES; node++) {
		assert_false(exists(job, node, STEP(2)));
		assert_true(exists(job, node, STEP(3)));
	}
}

/* A rank that does not come, be it rank 0: the others' step is over by the deadline, for all. */
static void test_absent(void **state)
{
	static const uint32_t absent[] = {3, 0};
	struct job *job = *state;

	for (unsigned i = 0; i < 2; i++) {
		open_job(job);
		if (i > 0)
			assert_int_equal(resume(job), 1);
		save(job, i + 1);
		job->ranks[absent[i]].absent = true;
		save_in_vain(job, i + 2);
		job->ranks[absent[i]].absent = false;
		close_job(job);
		must_resume(job, i + 1);
		close_job(job);
		for (uint32_t node = 0; node < NODES; node++)
			assert_false(exists(
				job, node, i ? "g000002/step-0000000003/manifest.json" : STEP(2)));
	}
}

/* The exchange is gone while they save: nobody says durable; when it is back they go on. */
static void test_dead_exchange(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	table_kill(&job->table, "", false);
	save_in_vain(job, 2);
	table_revive(&job->table);
	save(job, 3);
	close_job(job);
	must_resume(job, 3);
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
		open_job(job);
		save(job, 1);
		(void)snprintf(outcome, sizeof(outcome), "job-%u/g1-s2", job->starts);
		table_kill(&job->table, outcome, false);
		job->save_ms = ms;
		try_save(job, 2);
		if (job->ranks[0].result == 0)
			break;
		hang_unless(ms < HANG_LIMIT_MS);
		close_job(job);
		table_revive(&job->table);
		for (uint32_t node = 0; node < NODES; node++)
			scratch_remove(strdup(job->stores[node]));
	}
	/* Rank 1 may have seen it in the store of its node. */
	assert_int_equal(job->ranks[2].result, -ETIMEDOUT);
	assert_int_equal(job->ranks[3].result, -ETIMEDOUT);
	assert_true(exists(job, 0, STEP(2)));
	assert_false(exists(job, 1, STEP(2)));
	close_job(job);
	table_revive(&job->table);
	open_job(job);
	must_be_alike(job, STEP(2));
	assert_int_equal(resume(job), 2);
}

/* Not even rank 0 hears that it was put: no store has it, and it is of nobody. */
static void test_outcome_unheard(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	table_kill(&job->table, "job-1/g1-s2", true);
	save_in_vain(job, 2);
	close_job(job);
	table_revive(&job->table);
	must_resume(job, 1);
	save(job, 2);
	close_job(job);
	must_be_alike(job, "g000002/step-0000000002/manifest.json");
}

/* Two directories that were never stores of one job. */
static void test_strangers(void **state)
{
	struct job *job = *state;
	char kept[220];

	open_job(job);
	save(job, 1);
	close_job(job);
	(void)snprintf(kept, sizeof(kept), "%s-kept", job->stores[1]);
	assert_int_equal(rename(job->stores[1], kept), 0);
	scratch_remove(strdup(job->stores[0]));
	open_job(job);
	save(job, 1);
	close_job(job);
	scratch_remove(strdup(job->stores[1]));
	assert_int_equal(rename(kept, job->stores[1]), 0);
	try_open(job);
	all_must_fail(job, CKPT_EMISMATCH, "another run");
}

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
	flip(path_in(job, node, pattern));
}

/* What is left is gone from one of the stores: that is said, and not waited for. */
static void test_let_go(void **state)
{
	struct job *job = *state;

	save_two(job);
	scratch_remove(strdup(path_in(job, 1, "g000001/step-0000000001")));
	damage(job, 0, "g000001/step-0000000002/rank-00000.*.safetensors");
	open_job(job);
	static const int expected[] = {CKPT_EINTEGRITY, CKPT_EINCOMPLETE, CKPT_EQUARANTINED};
	for (size_t round = 0; round < sizeof(expected) / sizeof(expected[0]); round++)
		resume_in_vain(job, expected[round]);
}

static void *drain_one(void *argument)
{
	struct rank *rank = argument;

	note(rank, ckpt_engine_drain_remote(rank->engine, TIMEOUT_MS));
	return NULL;
}

/* Both nodes have it by then. */
static void save_remotely(struct job *job)
{
	(void)snprintf(job->remote, sizeof(job->remote), "file://%s/remote", job->dir);
	open_job(job);
	save(job, 1);
	save(job, 2);
	each(job, drain_one);
	all_must_work(job);
	close_job(job);
}

/* The step that all go on from, after all were told of the damage. */
static uint64_t resume_damaged(struct job *job)
{
	open_job(job);
	resume_in_vain(job, CKPT_EINTEGRITY);
	uint64_t step = resume(job);
	close_job(job);
	return step;
}

/* What is damaged on one node is put back there; what nobody has is passed over by all nodes. */
static void test_mended(void **state)
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
			assert_false(exists(job, node, note));
	}
	/* Undamaged: nobody is told anything. */
	must_resume(job, 2);
	close_job(job);

	damage(job, 1, bad);
	(void)snprintf(there, sizeof(there), "%s/remote/%s", job->dir, bad);
	flip(there);
	assert_int_equal(resume_damaged(job), 1);
	for (uint32_t node = 0; node < NODES; node++)
		assert_true(exists(job, node, note));
}

/* What a lost node had: the user says so, and then an older step is chosen, on all ranks. */
static void test_lost_node(void **state)
{
	struct job *job = *state;
	char lost[220];
	char away[220];

	save_two(job);
	/* Its manifest is brought from the other node, its files are not. */
	(void)snprintf(lost, sizeof(lost), "%s/g000001/step-0000000002", job->stores[1]);
	(void)snprintf(away, sizeof(away), "%s-away", job->stores[1]);
	assert_int_equal(rename(lost, away), 0);
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	resume_in_vain(job, CKPT_EELSEWHERE);
	close_job(job);
	job->flags = CKPT_ENGINE_LOST_NODES;
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	assert_int_equal(resume(job), 1);
	close_job(job);
	/* Nothing was saved since, so nothing was given up: it is back. */
	scratch_remove(strdup(lost));
	assert_int_equal(rename(away, lost), 0);
	must_resume(job, 2);
	close_job(job);
	/* It is not, and a step of the same number is another one. */
	scratch_remove(strdup(lost));
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	assert_int_equal(resume(job), 1);
	save(job, 2);
	close_job(job);
	job->flags = 0;
	must_resume(job, 2);
	close_job(job);
	assert_true(exists(job, 1, "g000002/step-0000000002/manifest.json"));
	assert_false(exists(job, 0, "g000001/step-0000000002/quarantine.json"));
	/* There is nothing that all have. */
	job->flags = CKPT_ENGINE_LOST_NODES;
	scratch_remove(strdup(job->stores[1]));
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	resume_in_vain(job, CKPT_EELSEWHERE);
	resume_in_vain(job, CKPT_EQUARANTINED);
	assert_non_null(strstr(job->ranks[0].why, "because nodes were lost"));
}

/* With lost_nodes. Rank 0 says why it does not pass over the step. */
static void must_stay(struct job *job, const char *why)
{
	open_job(job);
	for (unsigned round = 0; round < 2; round++) {
		resume_in_vain(job, CKPT_EELSEWHERE);
		assert_non_null(strstr(job->ranks[0].why, why));
	}
	close_job(job);
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
	scratch_remove(strdup(path_in(job, 1, "g000001/step-0000000002")));
	must_stay(job, "it is in file://");
	(void)snprintf(there, sizeof(there), "%s/remote/" STEP(2), job->dir);
	assert_int_equal(rename(there, scratch_join(job->dir, "aside")), 0);
	assert_int_equal(mkdir(there, 0777), 0);
	must_stay(job, "is not known");
	assert_int_equal(rmdir(there), 0);
	/* Nor is anything given up by a node that cannot bring. */
	(void)snprintf(there, sizeof(there), "%s/remote/gens", job->dir);
	(void)snprintf(gens, sizeof(gens), "%s/gens", job->dir);
	assert_int_equal(rename(there, gens), 0);
	assert_int_equal(symlink("/dev/null", there), 0);
	struct ckpt_engine_opts opts = kit_opts();
	opts.remote = job->remote;
	opts.node = node_names[0];
	for (unsigned lost = 0; lost < 2; lost++) {
		opts.flags = CKPT_ENGINE_NODE_STORE | (lost ? CKPT_ENGINE_LOST_NODES : 0);
		int r = ckpt_engine_bring(job->stores[0], &opts, &generation, &step);
		assert_int_equal(r, lost ? -ENOTDIR : 0);
	}
	opts.flags = CKPT_ENGINE_LOST_NODES;
	assert_int_equal(ckpt_engine_bring(job->stores[0], &opts, &generation, &step), -EINVAL);
	assert_int_equal(unlink(there), 0);
	assert_int_equal(rename(gens, there), 0);
	(void)snprintf(there, sizeof(there), "%s/remote/g000001/step-0000000002", job->dir);
	scratch_remove(strdup(there));
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	assert_int_equal(resume(job), 1);
	/* Node a still has what it had to upload of step 2, which nobody waits for. */
	save(job, 3);
	each(job, drain_one);
	all_must_work(job);
}

/* Node a has the files of node b, too: nothing is lost. */
static void test_lost_node_and_copy(void **state)
{
	struct job *job = *state;
	char pattern[300];
	glob_t found;

	save_two(job);
	(void)snprintf(
		pattern, sizeof(pattern), "%s/g000001/step-0000000002/rank-*", job->stores[1]);
	assert_int_equal(glob(pattern, 0, NULL, &found), 0);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		const char *name = strstr(found.gl_pathv[i], "g000001/");
		if (!exists(job, 0, name))
			assert_int_equal(rename(found.gl_pathv[i], path_in(job, 0, name)), 0);
	}
	globfree(&found);
	scratch_remove(strdup(path_in(job, 1, "g000001/step-0000000002")));
	job->flags = CKPT_ENGINE_LOST_NODES;
	must_stay(job, "copy them");
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

	open_job(job);
	save(job, 1);
	close_job(job);
	copy_stores(job, "before");
	must_resume(job, 1);
	save(job, 2);
	close_job(job);
	copy_stores(job, "one");
	for (uint32_t node = 0; node < NODES; node++)
		put_back(job, node, "before");
	must_resume(job, 1);
	save(job, 2);
	close_job(job);
	put_back(job, 0, "one");
	try_open(job);
	all_must_fail(job, CKPT_EMISMATCH, "did not know of each other");
}

/*
 * The store of rank 0 has only what is in no lineage any more, and that of the other node the step to go on from:
 * nobody starts from nothing beside it.
 */
static void test_lineage_elsewhere(void **state)
{
	struct job *job = *state;

	save_two(job);
	copy_stores(job, "left");
	/* A start that goes on from the first step, and dies before node b has a commit of it. */
	for (uint32_t node = 0; node < NODES; node++)
		scratch_remove(strdup(path_in(job, node, "g000001/step-0000000002")));
	must_resume(job, 1);
	save(job, 2);
	close_job(job);
	scratch_remove(strdup(path_in(job, 1, "g000002")));
	/* Node a was away, and has retired the first step. */
	put_back(job, 0, "left");
	scratch_remove(strdup(path_in(job, 0, "g000001/step-0000000001")));
	open_job(job);
	resume_in_vain(job, CKPT_EELSEWHERE);
	try_save(job, 3);
	must_fail(job);
	assert_int_equal(job->ranks[0].result, CKPT_ENOTRESUMED);
}

/* A live job on one of the nodes keeps another one out, on all of them. */
static void test_in_use(void **state)
{
	struct job *job = *state;

	open_job(job);
	save(job, 1);
	close_job(job);
	struct ckpt_engine *other = kit_open(job->stores[1], CKPT_ENGINE_NODE_STORE);
	try_open(job);
	all_must_fail(job, CKPT_EINUSE, "");
	ckpt_engine_close(other);
}

/* Two stores under one name: no reader could say which rank's files are missing where. */
static void test_one_name(void **state)
{
	struct job *job = *state;

	job->one_name = true;
	try_open(job);
	all_must_fail(job, CKPT_EMISMATCH, "a name of its own");
}

/* A store is what it was made as. */
static void test_scope(void **state)
{
	struct job *job = *state;

	ckpt_engine_close(kit_open(job->stores[1], 0));
	try_open(job);
	all_must_fail(job, -EINVAL, "one for all nodes");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_one_outcome, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_resume, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_brought, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_new_node, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_retention, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_abort, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_absent, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_dead_exchange, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_dies_with_the_outcome, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_outcome_unheard, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_strangers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_let_go, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_mended, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lost_node, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lost_node_and_bucket, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lost_node_and_copy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_two_histories, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_lineage_elsewhere, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_in_use, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_one_name, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_scope, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
