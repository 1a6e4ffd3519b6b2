/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/jobs.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torture/nodes.h"

#define ENTRIES   64
#define VALUE_MAX 8192 /* of what the ranks say here */

struct job {
	const struct job_opts *opts;
	unsigned world;
	void (*body)(struct job_rank *r);
	pthread_barrier_t together;
	bool good[JOB_RANKS];
	int said[JOB_RANKS];
	struct job_rank ranks[JOB_RANKS];
	pthread_t servants[JOB_RANKS];
	/* What is served. */
	pthread_mutex_t lock;
	struct {
		char key[CKPT_EXCHANGE_NAME_MAX];
		char value[VALUE_MAX];
		uint64_t length;
		bool told; /* by rank 0, whether it came first or not */
	} entries[ENTRIES];
};

bool job_all(struct job_rank *r, bool good)
{
	struct job *job = r->job;

	job->good[r->number] = good;
	(void)pthread_barrier_wait(&job->together);
	bool all = true;
	for (unsigned i = 0; i < job->world; i++)
		all = all && job->good[i];
	(void)pthread_barrier_wait(&job->together);
	return all;
}

/* The exchange. */

static unsigned find(const struct job *job, const char *key)
{
	unsigned i = 0;

	while (i < ENTRIES && strcmp(job->entries[i].key, key) != 0)
		i++;
	return i;
}

static int put(struct job_rank *r, const char *key, const void *value, uint64_t length)
{
	struct job *job = r->job;
	unsigned i = find(job, key);

	if (i < ENTRIES) {
		job->entries[i].told = job->entries[i].told || r->number == 0;
		return job->entries[i].length == length &&
				       memcmp(job->entries[i].value, value, length) == 0
			       ? 0
			       : -EEXIST;
	}
	i = find(job, "");
	if (i == ENTRIES || length > VALUE_MAX)
		torture_wrong("the ranks say too much");
	(void)snprintf(job->entries[i].key, sizeof(job->entries[i].key), "%s", key);
	memcpy(job->entries[i].value, value, length);
	job->entries[i].length = length;
	job->entries[i].told = r->number == 0;
	return 0;
}

/* "now/restore-0-read", and whoever asks has come just before it was there. */
static bool is_early(const struct job_rank *r, unsigned at)
{
	const char *end = strstr(r->job->entries[at].key, "-read");

	return r->job->opts->deaf && r->number == 0 && !r->job->entries[at].told && end &&
	       strcmp(end, "-read") == 0;
}

struct reply {
	const void *values[CKPT_EXCHANGE_BATCH];
	uint64_t lengths[CKPT_EXCHANGE_BATCH];
	char memory[JOB_RANKS + 1][VALUE_MAX]; /* as many as anybody asks for */
};

static int apply(
	struct job_rank *r, const struct ckpt_exchange_request *request, struct reply *reply)
{
	struct job *job = r->job;
	int result = 0;
	unsigned used = 0;

	(void)pthread_mutex_lock(&job->lock);
	for (uint32_t i = 0; i < request->count; i++) {
		const char *key = request->keys[i];
		if (request->verb == CKPT_EXCHANGE_PUT) {
			int said = put(r, key, request->values[i], request->lengths[i]);
			result = result < 0 ? result : said;
			continue;
		}
		unsigned at = find(job, key);
		reply->values[i] = NULL;
		if (at == ENTRIES || (request->verb == CKPT_EXCHANGE_GET && is_early(r, at)))
			continue;
		if (request->verb == CKPT_EXCHANGE_DROP) {
			job->entries[at].key[0] = 0;
			continue;
		}
		reply->lengths[i] = job->entries[at].length;
		reply->values[i] = memcpy(
			reply->memory[used++], job->entries[at].value, job->entries[at].length);
	}
	(void)pthread_mutex_unlock(&job->lock);
	return result;
}

static void answer(struct job_rank *r, uint64_t id, int result, const struct reply *reply)
{
	struct ckpt_exchange_answer given = {.size = sizeof(given),
		.id = id,
		.result = result,
		.values = reply->values,
		.lengths = reply->lengths};

	int said = CALL(ckpt_exchange_reply(r->server, &given));
	if (said == -ENOMEM) {
		given.result = said;
		said = CALL(ckpt_exchange_reply(r->server, &given));
	}
	/* Nobody may have waited for it. */
	if (said != 0 && said != -ETIMEDOUT)
		torture_wrong("an answer is not taken: %d: %s", said, ckpt_last_error());
}

static void *serve(void *argument)
{
	struct job_rank *r = argument;
	struct ckpt_exchange_request request = {.size = sizeof(request)};
	struct reply *reply = calloc(1, sizeof(*reply));
	int next = 0;

	torture_set_rank(r->number);
	while (reply && next == 0) {
		DO(next = ckpt_exchange_next(r->server, CKPT_FOREVER, &request));
		if (next == 0)
			answer(r, request.id, apply(r, &request, reply), reply);
	}
	if (next != CKPT_ECLOSED)
		torture_wrong("there are no requests: %d", next);
	free(reply);
	return NULL;
}

static bool begin_service(struct job_rank *r)
{
	pthread_t *servant = &r->job->servants[r->number];

	r->server = NULL;
	if (CALL(ckpt_exchange_server_new(&r->server)) < 0)
		return false;
	if (pthread_create(servant, NULL, serve, r) != 0)
		workload_die("no thread");
	r->workload.opts.exchange = r->server;
	return true;
}

static void end_service(struct job_rank *r)
{
	if (!r->server)
		return;
	DO(ckpt_exchange_server_stop(r->server));
	(void)pthread_join(r->job->servants[r->number], NULL);
	DO(ckpt_exchange_server_free(r->server));
	r->server = NULL;
}

/* The engines. */

static bool open_engine(struct job_rank *r, uint32_t flags)
{
	struct workload *d = &r->workload;

	if (!r->job->opts->refused)
		return errand_open(d, flags);
	d->opts.flags = flags;
	int code = CALL(ckpt_engine_open(d->store, &d->opts, &d->engine));
	if (code == 0)
		torture_wrong("rank %u is not refused", r->number);
	(void)errand_outcome(code == -EINVAL, "be refused with", flags);
	return false;
}

bool job_open_as(struct job_rank *r, uint32_t flags)
{
	const struct job_opts *opts = r->job->opts;

	r->workload.opts.rank = r->number;
	r->workload.opts.world = r->job->world + opts->absent;
	r->workload.opts.session = opts->session;
	r->workload.opts.save_timeout_ms = opts->timeout_ms;
	r->workload.opts.busy = opts->skips ? CKPT_BUSY_SKIP : CKPT_BUSY_WAIT;
	bool served = !opts->served || begin_service(r);
	bool opened = served && open_engine(r, flags);
	if (job_all(r, opened))
		return true;
	if (opened)
		errand_close(&r->workload);
	end_service(r);
	return false;
}

bool job_open(struct job_rank *r)
{
	return job_open_as(r, nodes_ranks() > 0 ? CKPT_ENGINE_NODE_STORE : 0);
}

void job_close(struct job_rank *r)
{
	errand_close(&r->workload);
	end_service(r);
}

/* Saves. */

/* What is this rank's of a tensor. Whether that is a part of it. */
static bool part_of(const struct job_rank *r, int tensor, int64_t *ret_start, int64_t *ret_count)
{
	const int64_t all = errand_counts[tensor];
	const int64_t each = all / r->job->world;
	const bool cut = tensor == 0 && !r->job->opts->copies;
	const bool last = r->number + 1 == r->job->world;

	*ret_start = cut ? r->number * each : 0;
	*ret_count = !cut ? all : last ? all - *ret_start : each;
	return cut;
}

static bool add(struct job_rank *r, struct ckpt_save *save)
{
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		int64_t start;
		int64_t shape;
		const bool cut = part_of(r, i, &start, &shape);
		struct ckpt_tensor tensor = {.size = sizeof(tensor),
			.name = errand_names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = &shape,
			.data = r->workload.live[i] + start,
			.global_shape = cut ? &errand_counts[i] : NULL,
			.global_start = cut ? &start : NULL};
		if (CALL(ckpt_save_add(save, &tensor, 1)) < 0)
			return false;
	}
	return CALL(ckpt_save_add_alias(save, "tied", "head")) == 0 &&
	       CALL(ckpt_save_set_common(save, "job", 3)) == 0;
}

int job_begin(struct job_rank *r, unsigned step, unsigned seed, uint32_t flags,
	struct ckpt_save **ret_save)
{
	struct ckpt_save_opts opts = {.size = sizeof(opts), .flags = flags};

	*ret_save = NULL;
	workload_fill(&r->workload, seed);
	int code = CALL(ckpt_save_begin(r->workload.engine, step, &opts, ret_save));
	if (code < 0)
		return code;
	/* What it has not started with it cannot save: the others are told. */
	if (!add(r, *ret_save)) {
		code = ckpt_last_error_record(NULL);
		(void)CALL(ckpt_save_fail(*ret_save, code, NULL, "not described"));
		return code;
	}
	return CALL(ckpt_save_start(*ret_save));
}

int job_start(struct job_rank *r, unsigned step, unsigned seed, uint32_t flags,
	struct ckpt_save **ret_save)
{
	if (r->number == 0)
		workload_log(&r->workload, "try %u %u\n", step, seed);
	(void)job_all(r, true);
	return job_begin(r, step, seed, flags, ret_save);
}

static bool is_over(int code)
{
	return code == CKPT_EABORTED || code == CKPT_ESKIPPED;
}

/* What they were told of one step. */
static void judge(struct job_rank *r, unsigned step)
{
	const int *said = r->job->said;

	for (unsigned i = 0; i < r->job->world; i++) {
		for (unsigned k = 0; k < r->job->world; k++)
			if (said[i] == 0 && is_over(said[k]))
				torture_wrong("step %u is durable for rank %u, and for rank %u %d",
					step, i, k, said[k]);
		/* Whoever was told so was told what is true for all. */
		if (is_over(said[i]))
			workload_log(&r->workload, "gone %u\n", step);
	}
}

void job_end(struct job_rank *r, struct ckpt_save *save, unsigned step, unsigned seed, int said)
{
	if (save && said == 0)
		said = errand_end(&r->workload, save, step, seed);
	else if (save)
		DO(ckpt_save_free(save));
	r->job->said[r->number] = said;
	(void)job_all(r, true);
	if (r->number == 0)
		judge(r, step);
	(void)job_all(r, true);
}

bool job_goes_on(struct job_rank *r, bool good)
{
	bool once = torture->plans > 0 && torture->plan[0].mode == TORTURE_ONCE;

	return job_all(r, good) || once;
}

bool job_save(struct job_rank *r, unsigned step, unsigned seed)
{
	struct ckpt_save *save = NULL;
	int said = job_start(r, step, seed, 0, &save);

	job_end(r, save, step, seed, said);
	said = r->job->said[r->number];
	return job_goes_on(r, errand_outcome(said == 0, "save", step));
}

void job_save_three(struct job_rank *r)
{
	if (!job_open(r))
		workload_die("open: %s", ckpt_last_error());
	for (unsigned step = 1; step <= 3; step++)
		if (!job_save(r, step, step))
			workload_die("step %u is not there", step);
	job_close(r);
}

bool job_spoil(struct job_rank *r, unsigned step, unsigned seed, bool fails)
{
	struct ckpt_save *save = NULL;
	bool mine = fails && r->number > 0;
	int said = job_start(r, step, seed, mine ? CKPT_SAVE_FENCED : 0, &save);

	if (said == 0 && mine)
		(void)CALL(ckpt_save_fail(save, CKPT_ETORN, "head", "spoilt by the test"));
	job_end(r, save, step, seed, said);
	said = r->job->said[r->number];
	if (!errand_outcome(said < 0, "spoil", step) && fails)
		torture_wrong("step %u is durable for rank %u, and was spoilt", step, r->number);
	return job_goes_on(r, is_over(said) || said == CKPT_ETORN || said == CKPT_EINCOMPLETE);
}

/* Restores. */

bool job_bind(struct job_rank *r, struct ckpt_restore *restore)
{
	if (nodes_ranks() == 0)
		return errand_bind(&r->workload, restore);
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		int64_t start;
		int64_t count;
		(void)part_of(r, i, &start, &count);
		struct ckpt_target target = {.size = sizeof(target),
			.dtype = CKPT_F32,
			.name = errand_names[i],
			.ndim = 1,
			.shape = &count,
			.start = &start,
			.data = r->workload.live[i] + start};
		memset(target.data, 0xee, (size_t)count * sizeof(float));
		if (CALL(ckpt_restore_bind(restore, &target, 1)) < 0)
			return false;
	}
	return true;
}

bool job_holds(struct job_rank *r, unsigned seed)
{
	bool same = true;

	if (nodes_ranks() == 0)
		return workload_is(&r->workload, seed);
	workload_fill(&r->want, seed);
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		int64_t start;
		int64_t count;
		(void)part_of(r, i, &start, &count);
		same &= memcmp(r->workload.live[i] + start, r->want.live[i] + start,
				(size_t)count * sizeof(float)) == 0;
	}
	return same;
}

static int restore(struct job_rank *r, uint64_t step, unsigned expected, unsigned seed)
{
	struct ckpt_restore *handle = NULL;
	int code = CALL(ckpt_restore_open(r->workload.engine, step, &handle));

	if (r->job->opts->in_turn && r->number == 0)
		(void)job_all(r, true);
	if (code < 0)
		return code;
	if (!job_bind(r, handle) || CALL(ckpt_restore_start(handle)) < 0)
		code = ckpt_last_error_record(NULL);
	else
		code = errand_wait(handle);
	if (errand_endless(code) && ckpt_restore_error(handle, NULL) == 0)
		torture_wrong("restoring step %u has no end", expected);
	if (code == 0 && (ckpt_restore_step(handle) != expected || !job_holds(r, seed)))
		torture_wrong("rank %u has step %u, and not what was saved as %u", r->number,
			(unsigned)ckpt_restore_step(handle), expected);
	r->generation = ckpt_restore_generation(handle);
	if (code == 0)
		code = CALL(ckpt_restore_adopt(handle));
	DO(ckpt_restore_free(handle));
	return code;
}

int job_restore(struct job_rank *r, uint64_t step, unsigned expected, unsigned seed)
{
	struct job *job = r->job;

	int code = restore(r, step, expected, seed);
	if (job->opts->in_turn && r->number > 0)
		(void)job_all(r, true);
	job->said[r->number] = code;
	bool all = job_all(r, code == 0);
	for (unsigned i = job->world; i > 0; i--) {
		if (all && job->ranks[i - 1].generation != r->generation)
			torture_wrong("step %u is of two generations", expected);
		code = job->said[i - 1] < 0 ? job->said[i - 1] : code;
	}
	(void)job_all(r, true);
	return code;
}

/* All of it. */

static void *run_rank(void *argument)
{
	struct job_rank *r = argument;

	torture_set_rank(r->number);
	r->job->body(r);
	return NULL;
}

static void give_state(struct workload *own, const struct workload *d)
{
	*own = *d;
	for (int i = 0; i < WORKLOAD_TENSORS; i++) {
		own->live[i] = calloc((size_t)errand_counts[i], sizeof(float));
		if (!own->live[i])
			workload_die("out of memory");
	}
}

static void take_state(struct workload *own)
{
	for (int i = 0; i < WORKLOAD_TENSORS; i++)
		free(own->live[i]);
}

static struct job *make_job(struct workload *d)
{
	struct job *job = calloc(1, sizeof(*job));

	if (!job)
		workload_die("out of memory");
	job->world = nodes_ranks() > 0 ? nodes_ranks() : 2;
	if (pthread_barrier_init(&job->together, NULL, job->world) != 0)
		workload_die("no barrier");
	(void)pthread_mutex_init(&job->lock, NULL);
	for (unsigned i = 0; i < job->world; i++) {
		job->ranks[i].job = job;
		job->ranks[i].number = i;
		give_state(&job->ranks[i].workload, d);
		give_state(&job->ranks[i].want, d);
		if (nodes_ranks() > 0)
			nodes_settle(&job->ranks[i].workload, i);
	}
	return job;
}

void job_run(struct workload *d, const struct job_opts *opts, void (*body)(struct job_rank *r))
{
	struct job *job = make_job(d);
	pthread_t others[JOB_RANKS];

	job->opts = opts;
	job->body = body;
	for (unsigned i = 1; i < job->world; i++)
		if (pthread_create(&others[i], NULL, run_rank, &job->ranks[i]) != 0)
			workload_die("no thread");
	(void)run_rank(&job->ranks[0]);
	for (unsigned i = 1; i < job->world; i++)
		(void)pthread_join(others[i], NULL);
	for (unsigned i = 0; i < job->world; i++) {
		take_state(&job->ranks[i].workload);
		take_state(&job->ranks[i].want);
		if (nodes_ranks() > 0)
			free(job->ranks[i].workload.store);
	}
	(void)pthread_mutex_destroy(&job->lock);
	(void)pthread_barrier_destroy(&job->together);
	free(job);
}
