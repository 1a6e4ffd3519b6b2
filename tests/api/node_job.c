/* SPDX-License-Identifier: Apache-2.0 */
#include "api/node_job.h"

#include <unistd.h>

const char *const job_node_names[NODES] = {"a", "b"};

void job_note(struct rank *rank, int result)
{
	rank->result = result;
	(void)snprintf(rank->why, sizeof(rank->why), "%s", result < 0 ? ckpt_last_error() : "");
}

void job_each(struct job *job, void *(*body)(void *rank))
{
	pthread_t threads[WORLD];

	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, body, &job->ranks[i]), 0);
	for (uint32_t i = 0; i < WORLD; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
}

void job_all_must_work(const struct job *job)
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
	opts.node = job_node_names[job->one_name ? 0 : rank->node];
	opts.node_leader = rank->node * (WORLD / NODES);
	opts.remote = job->remote[0] ? job->remote : NULL;
	opts.remote_bytes_per_s = job->remote_bytes_per_s;
	job_note(rank, ckpt_engine_open(job->stores[rank->node], &opts, &rank->engine));
	return NULL;
}

void job_try_open(struct job *job)
{
	job->starts++;
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		rank->service.table = &job->table;
		must_work(ckpt_exchange_server_new(&rank->service.server));
		assert_int_equal(
			pthread_create(&rank->thread, NULL, table_serve, &rank->service), 0);
	}
	job_each(job, open_one);
}

void job_open(struct job *job)
{
	job_try_open(job);
	job_all_must_work(job);
}

static void *close_one(void *argument)
{
	struct rank *rank = argument;

	ckpt_save_free(rank->save);
	ckpt_engine_close(rank->engine);
	ckpt_exchange_server_stop(rank->service.server);
	return NULL;
}

void job_close(struct job *job)
{
	if (!job->ranks[0].service.server)
		return;
	job_each(job, close_one);
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		assert_int_equal(pthread_join(rank->thread, NULL), 0);
		ckpt_exchange_server_free(rank->service.server);
		rank->service.server = NULL;
		rank->engine = NULL;
		rank->save = NULL;
	}
}

int job_set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	table_init(&job->table);
	for (uint32_t i = 0; i < NODES; i++)
		(void)snprintf(job->stores[i], sizeof(job->stores[i]), "%s",
			scratch_join(job->dir, job_node_names[i]));
	for (uint32_t i = 0; i < WORLD; i++) {
		struct rank *rank = &job->ranks[i];
		*rank = (struct rank){.job = job, .number = i, .node = i / (WORLD / NODES)};
		kit_fill(&rank->vector, "w", COUNT, i);
		(void)snprintf(rank->vector.name, sizeof(rank->vector.name), "w%u", i);
	}
	*state = job;
	return 0;
}

int job_tear_down(void **state)
{
	struct job *job = *state;

	job_close(job);
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
	job_note(rank, r);
	return NULL;
}

void job_try_save(struct job *job, uint64_t step)
{
	for (uint32_t i = 0; i < WORLD; i++)
		job->ranks[i].step = step;
	job_each(job, save_one);
}

void job_save(struct job *job, uint64_t step)
{
	job->save_ms = 0;
	job_try_save(job, step);
	job_all_must_work(job);
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

void *job_resume_one(void *argument)
{
	struct rank *rank = argument;

	rank->step = 0;
	job_note(rank, restore_one_of(rank));
	return NULL;
}

uint64_t job_resume(struct job *job)
{
	job_each(job, job_resume_one);
	job_all_must_work(job);
	for (uint32_t i = 1; i < WORLD; i++)
		assert_int_equal(job->ranks[i].step, job->ranks[0].step);
	return job->ranks[0].step;
}

char *job_path(const struct job *job, uint32_t node, const char *name)
{
	static char paths[4][400];
	static unsigned next;
	char *path = paths[next++ % 4];

	(void)snprintf(path, sizeof(paths[0]), "%s/%s", job->stores[node], name);
	return path;
}

bool job_exists(const struct job *job, uint32_t node, const char *name)
{
	return access(job_path(job, node, name), F_OK) == 0;
}

static size_t read_file(const char *path, char *out, size_t size)
{
	FILE *file = fopen(path, "rb");
	size_t length = file ? fread(out, 1, size, file) : 0;

	if (file)
		(void)fclose(file);
	return length;
}

void job_must_be_alike(const struct job *job, const char *name)
{
	char one[8192];
	char two[8192];
	size_t length = read_file(job_path(job, 0, name), one, sizeof(one));

	assert_true(length > 0);
	assert_int_equal(read_file(job_path(job, 1, name), two, sizeof(two)), length);
	assert_memory_equal(one, two, length);
}

void job_all_must_fail(const struct job *job, int code, const char *why)
{
	for (uint32_t i = 0; i < WORLD; i++) {
		assert_int_equal(job->ranks[i].result, code);
		assert_non_null(strstr(job->ranks[i].why, why));
	}
}

void job_resume_in_vain(struct job *job, int code)
{
	job_each(job, job_resume_one);
	job_all_must_fail(job, code, "");
}

void job_must_resume(struct job *job, uint64_t step)
{
	job_open(job);
	assert_int_equal(job_resume(job), step);
}

void job_save_two(struct job *job)
{
	job_open(job);
	job_save(job, 1);
	job_save(job, 2);
	job_close(job);
}
