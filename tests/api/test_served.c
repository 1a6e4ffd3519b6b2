/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The exchange that the program serves: several engines and one table of values, which is late, loses
 * requests, answers twice, refuses, or dies. Whatever it does, a step is of all ranks or of none, and nothing
 * waits longer than its deadline.
 */
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/table.h"

#define WORLD    4
#define COUNT    ((int64_t)20000)
#define HELD_MAX 8   /* requests that a thread keeps to itself; fewer than the library lets out */
#define SHORT_MS 700 /* a deadline that passes */

enum weather {
	FAIR,
	STORMY, /* late, lost, twice, refused */
	DEAD,   /* every request is refused */
	SILENT, /* none is answered */
};

struct job {
	char *dir;
	char store[200];
	pthread_mutex_t lock;
	struct table table;
	uint64_t seed; /* guarded by lock */
	atomic_int weather;
	atomic_uint spoilt; /* requests that the weather has met */
	unsigned starts;
	size_t threads; /* before there is any of the library */
	uint32_t timeout_ms;
	struct rank {
		struct job *job;
		struct ckpt_exchange_server *server;
		struct ckpt_engine *engine;
		struct ckpt_save *save;
		struct kit_vector vector;
		pthread_t thread;
		bool served;
		int ended; /* what ckpt_exchange_next() returned at last */
		uint64_t resumed;
	} ranks[WORLD];
};

/* The service. */

static unsigned below(struct job *job, unsigned n)
{
	(void)pthread_mutex_lock(&job->lock);
	job->seed = job->seed * 6364136223846793005u + 1442695040888963407u;
	unsigned drawn = (unsigned)(job->seed >> 33) % n;
	(void)pthread_mutex_unlock(&job->lock);
	return drawn;
}

static int answer(struct rank *rank, uint64_t id, int result, struct table_reply *reply)
{
	const struct ckpt_exchange_answer given = {.size = sizeof(given),
		.id = id,
		.result = result,
		.values = reply->values,
		.lengths = reply->lengths,
		.reason = result < 0 ? "the table says no" : NULL};

	return ckpt_exchange_reply(rank->server, &given);
}

static void must_be(int r, int allowed, int also)
{
	if (r != allowed && r != also) {
		(void)fprintf(stderr, "ckpt_exchange_reply: %d: %s\n", r, ckpt_last_error());
		abort();
	}
}

/* What becomes of a request. */
enum fate { ANSWERED, LOST, LATE };

static void answer_well(
	struct rank *rank, const struct ckpt_exchange_request *request, struct table_reply *reply)
{
	int result = table_apply(&rank->job->table, request, reply);

	must_be(answer(rank, request->id, result, reply), 0, -ETIMEDOUT);
}

static enum fate storm(
	struct rank *rank, const struct ckpt_exchange_request *request, struct table_reply *reply)
{
	struct job *job = rank->job;
	unsigned chance = below(job, 100);

	if (chance < 30)
		atomic_fetch_add(&job->spoilt, 1);
	if (chance < 4)
		return LOST;
	if (chance < 8) {
		/* Done, and nobody hears of it. */
		(void)table_apply(&job->table, request, reply);
		return LOST;
	}
	if (chance < 14) {
		must_be(answer(rank, request->id, -EPIPE, reply), 0, -ETIMEDOUT);
		return ANSWERED;
	}
	if (chance < 30)
		return LATE;
	answer_well(rank, request, reply);
	if (chance % 2)
		must_be(answer(rank, request->id, -EIO, reply), -ENOENT, -ENOENT);
	return ANSWERED;
}

static enum fate serve_one(
	struct rank *rank, const struct ckpt_exchange_request *request, struct table_reply *reply)
{
	switch (atomic_load(&rank->job->weather)) {
	case STORMY:
		return storm(rank, request, reply);
	case DEAD:
		atomic_fetch_add(&rank->job->spoilt, 1);
		must_be(answer(rank, request->id, -EPIPE, reply), 0, -ETIMEDOUT);
		return ANSWERED;
	case SILENT:
		atomic_fetch_add(&rank->job->spoilt, 1);
		return LOST;
	default:
		answer_well(rank, request, reply);
		return ANSWERED;
	}
}

struct service {
	uint64_t lost[HELD_MAX];
	size_t lost_count;
	struct ckpt_exchange_request late; /* answered after the next one, or a while */
	struct table_reply reply;
};

static void sort_in(
	struct rank *rank, struct service *s, const struct ckpt_exchange_request *request)
{
	enum fate fate = serve_one(rank, request, &s->reply);

	if (s->late.id)
		answer_well(rank, &s->late, &s->reply);
	s->late.id = 0;
	if (fate == LATE)
		s->late = *request;
	if (fate == LOST)
		s->lost[s->lost_count++] = request->id;
	/* What was lost turns up after all, when nobody waits for it any more, or still does. */
	if (s->lost_count == HELD_MAX)
		while (s->lost_count > 0)
			must_be(answer(rank, s->lost[--s->lost_count], -EIO, &s->reply), 0,
				-ETIMEDOUT);
}

static void *serve(void *argument)
{
	struct rank *rank = argument;
	struct service *s = calloc(1, sizeof(*s));
	struct ckpt_exchange_request request = {.size = sizeof(request)};

	for (;;) {
		int patience_ms = s->late.id ? (int)below(rank->job, 20) : CKPT_FOREVER;
		rank->ended = ckpt_exchange_next(rank->server, patience_ms, &request);
		if (rank->ended == 0) {
			sort_in(rank, s, &request);
		} else if (rank->ended == -ETIMEDOUT) {
			answer_well(rank, &s->late, &s->reply);
			s->late.id = 0;
		} else {
			break;
		}
	}
	free(s);
	return NULL;
}

/* The job. */

static void open_rank(struct job *job, uint32_t number)
{
	struct rank *rank = &job->ranks[number];
	struct ckpt_engine_opts opts = kit_opts();
	char session[32];

	(void)snprintf(session, sizeof(session), "job-%u", job->starts);
	must_work(ckpt_exchange_server_new(&rank->server));
	assert_int_equal(pthread_create(&rank->thread, NULL, serve, rank), 0);
	rank->served = true;
	opts.rank = number;
	opts.world = WORLD;
	opts.session = session;
	opts.save_timeout_ms = job->timeout_ms;
	opts.exchange = rank->server;
	must_work(ckpt_engine_open(job->store, &opts, &rank->engine));
}

static void open_job(struct job *job, uint32_t timeout_ms)
{
	job->starts++;
	job->timeout_ms = timeout_ms;
	for (uint32_t rank = 0; rank < WORLD; rank++)
		open_rank(job, rank);
}

/* The thread that serves is inside ckpt_exchange_next(), or comes back to it. */
static void *close_engine(void *argument)
{
	struct rank *rank = argument;

	ckpt_save_free(rank->save);
	ckpt_engine_close(rank->engine);
	if (!rank->engine)
		ckpt_exchange_server_stop(rank->server);
	return NULL;
}

static void end_rank(struct rank *rank)
{
	if (rank->served) {
		assert_int_equal(pthread_join(rank->thread, NULL), 0);
		assert_int_equal(rank->ended, CKPT_ECLOSED);
	}
	ckpt_exchange_server_free(rank->server);
	rank->save = NULL;
	rank->engine = NULL;
	rank->server = NULL;
	rank->served = false;
}

/* At once: each waits for what is not answered. */
static void close_job(struct job *job)
{
	pthread_t threads[WORLD];

	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(
			pthread_create(&threads[rank], NULL, close_engine, &job->ranks[rank]), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(pthread_join(threads[rank], NULL), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		end_rank(&job->ranks[rank]);
	/* None was left behind. */
	scratch_threads_settle(job->threads);
}

static void *nothing(void *argument)
{
	return argument;
}

static int set_up(void **state)
{
	struct job *job = calloc(1, sizeof(*job));

	job->dir = scratch_make();
	(void)snprintf(job->store, sizeof(job->store), "%s", scratch_join(job->dir, "store"));
	(void)pthread_mutex_init(&job->lock, NULL);
	table_init(&job->table);
	for (unsigned rank = 0; rank < WORLD; rank++) {
		job->ranks[rank].job = job;
		kit_fill(&job->ranks[rank].vector, "w", COUNT, rank);
		(void)snprintf(job->ranks[rank].vector.name, sizeof(job->ranks[rank].vector.name),
			"w%u", rank);
	}
	/* A sanitizer's own begins with the first of ours. */
	assert_int_equal(pthread_create(&job->ranks[0].thread, NULL, nothing, NULL), 0);
	assert_int_equal(pthread_join(job->ranks[0].thread, NULL), 0);
	job->threads = scratch_threads();
	*state = job;
	return 0;
}

static int tear_down(void **state)
{
	struct job *job = *state;

	close_job(job);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		kit_clear(&job->ranks[rank].vector);
	table_clear(&job->table);
	(void)pthread_mutex_destroy(&job->lock);
	scratch_remove(job->dir);
	free(job);
	return 0;
}

static int begin(struct rank *rank, uint64_t step, uint32_t flags, uint32_t timeout_ms)
{
	const struct ckpt_save_opts opts = {
		.size = sizeof(opts), .flags = flags, .timeout_ms = timeout_ms};
	struct ckpt_tensor tensor = kit_tensor(&rank->vector);

	ckpt_save_free(rank->save);
	rank->save = NULL;
	must_work(ckpt_save_begin(rank->engine, step, &opts, &rank->save));
	must_work(ckpt_save_add(rank->save, &tensor, 1));
	return ckpt_save_start(rank->save);
}

static void save_all(struct job *job, uint64_t step)
{
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(begin(&job->ranks[rank], step, 0, 0));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(kit_wait(job->ranks[rank].save));
}

static bool is_committed(struct job *job, uint64_t step)
{
	struct ckpt_engine *reader = kit_open(job->store, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *verify = NULL;

	must_work(ckpt_verify_start(reader, step, &verify));
	int r = kit_wait_restore(verify);
	if (r != 0 && r != CKPT_ENOSTEP)
		fail_msg("step %llu: %d", (unsigned long long)step, r);
	ckpt_restore_free(verify);
	ckpt_engine_close(reader);
	return r == 0;
}

/* Waits for all. Whoever says that it is durable, or not, is right. */
static bool settle(struct job *job, uint64_t step)
{
	int said[WORLD];

	for (uint32_t rank = 0; rank < WORLD; rank++)
		said[rank] = kit_wait(job->ranks[rank].save);
	bool committed = is_committed(job, step);
	for (uint32_t rank = 0; rank < WORLD; rank++) {
		if (said[rank] == 0)
			assert_true(committed);
		else if (said[rank] != -ETIMEDOUT)
			assert_false(committed);
	}
	return committed;
}

static void *resume(void *argument)
{
	struct rank *rank = argument;

	rank->resumed = kit_resume(rank->engine);
	return NULL;
}

/* All at once: it is one restore. */
static uint64_t resume_all(struct job *job)
{
	pthread_t threads[WORLD];

	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(
			pthread_create(&threads[rank], NULL, resume, &job->ranks[rank]), 0);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		assert_int_equal(pthread_join(threads[rank], NULL), 0);
	for (uint32_t rank = 1; rank < WORLD; rank++)
		assert_int_equal(job->ranks[rank].resumed, job->ranks[0].resumed);
	return job->ranks[0].resumed;
}

static void test_one_outcome(void **state)
{
	struct job *job = *state;

	open_job(job, LONG_MS);
	for (uint64_t step = 1; step <= 3; step++) {
		save_all(job, step);
		assert_true(is_committed(job, step));
	}
	close_job(job);
	/* Each rank's first word, the claim, and how the last step ended; of those before it nothing. */
	assert_int_equal(table_count(&job->table), WORLD + 2);
	assert_true(table_has(&job->table, "job-1/claim-1"));
	/* Nothing of it is in the store. */
	assert_int_equal(access(scratch_join(job->store, "exchange"), F_OK), -1);
}

static void test_storm(void **state)
{
	struct job *job = *state;
	unsigned commits = 0;

	for (uint64_t seed = 1; seed <= 3 || commits == 0; seed++) {
		/* Longer and longer on a machine on which nothing commits. */
		uint32_t ms = SHORT_MS << (seed > 3 ? seed - 3 : 0);
		hang_unless(ms < HANG_LIMIT_MS);
		open_job(job, LONG_MS);
		uint64_t resumed = resume_all(job);
		save_all(job, resumed + 1);
		job->seed = seed;
		atomic_store(&job->weather, STORMY);
		for (uint64_t step = resumed + 2; step < resumed + 5; step++) {
			for (uint32_t rank = 0; rank < WORLD; rank++)
				(void)begin(&job->ranks[rank], step, 0, ms);
			commits += settle(job, step);
		}
		atomic_store(&job->weather, FAIR);
		close_job(job);
	}
	print_message(
		"%u steps committed, %u requests spoilt\n", commits, atomic_load(&job->spoilt));
	assert_true(atomic_load(&job->spoilt) > 0);
}

/* The service dies in the middle of a save, and comes back. */
static void die(struct job *job, enum weather how)
{
	bool alive = true;

	open_job(job, LONG_MS);
	save_all(job, 1);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(begin(&job->ranks[rank], 2, CKPT_SAVE_FENCED, SHORT_MS));
	atomic_store(&job->weather, how);
	/* On a slow machine its deadline may have passed by then. */
	for (uint32_t rank = 0; rank < WORLD; rank++)
		alive &= ckpt_save_fence(job->ranks[rank].save, TIMEOUT_MS) == 0;
	/* Rank 0 cannot hear of the others' parts. */
	assert_false(settle(job, 2));
	assert_true(!alive || atomic_load(&job->spoilt) > 0);
	atomic_store(&job->weather, FAIR);
	save_all(job, 3);
	assert_true(is_committed(job, 3));
}

static void test_dead(void **state)
{
	die(*state, DEAD);
}

static void test_silent(void **state)
{
	die(*state, SILENT);
}

/* Closed while the service is silent, or while there is none: it does not hang. */
static void close_in_vain(struct job *job, enum weather weather)
{
	open_job(job, LONG_MS);
	save_all(job, 1);
	atomic_store(&job->weather, weather);
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(begin(&job->ranks[rank], 2, rank == 3 ? CKPT_SAVE_FENCED : 0, 0));
	for (uint32_t rank = 0; rank < WORLD; rank++)
		must_work(ckpt_save_wait(job->ranks[rank].save, CKPT_LEVEL_STAGED, TIMEOUT_MS));
	if (weather == FAIR)
		for (uint32_t rank = 0; rank < WORLD; rank++)
			ckpt_exchange_server_stop(job->ranks[rank].server);
	close_job(job);
	assert_false(is_committed(job, 2));
}

static void test_close_silent(void **state)
{
	close_in_vain(*state, SILENT);
}

static void test_close_unserved(void **state)
{
	close_in_vain(*state, FAIR);
}

/* A claim that nobody carries to the others. */
static void test_claim_in_vain(void **state)
{
	struct job *job = *state;
	struct ckpt_error error = {.size = sizeof(error)};

	open_job(job, 1000);
	atomic_store(&job->weather, SILENT);
	assert_int_equal(begin(&job->ranks[1], 1, 0, 0), -ETIMEDOUT);
	assert_int_equal(ckpt_save_error(job->ranks[1].save, &error), -ETIMEDOUT);
	/* Or has not even taken it, on a machine that is busy. */
	if (!strstr(error.message, "do not reach each other: the program"))
		fail_msg("%s", error.message);
}

/* One engine of two ranks, which this thread serves itself while another one starts a save. */
struct single {
	struct ckpt_exchange_server *server;
	struct ckpt_engine *engine;
	struct ckpt_save *save;
	struct kit_vector vector;
	const char *store;
	const struct ckpt_engine_opts *opts;
	pthread_t thread;
	int result;
};

static void *start_single(void *argument)
{
	struct single *f = argument;

	f->result = ckpt_save_start(f->save);
	return NULL;
}

static void *open_in_turn(void *argument)
{
	struct single *f = argument;

	f->result = ckpt_engine_open(f->store, f->opts, &f->engine);
	return NULL;
}

/* The engine's first word. */
static void answer_hello(struct single *f, uint32_t rank)
{
	struct ckpt_exchange_request request = {.size = sizeof(request)};
	struct ckpt_exchange_answer given = {.size = sizeof(given)};

	must_work(ckpt_exchange_next(f->server, TIMEOUT_MS, &request));
	assert_int_equal(request.verb, CKPT_EXCHANGE_PUT);
	assert_int_equal(request.count, 1);
	assert_string_equal(request.keys[0], rank == 0 ? "Job_1.x/rank-0" : "Job_1.x/rank-1");
	given.id = request.id;
	must_work(ckpt_exchange_reply(f->server, &given));
}

static void open_single(struct job *job, struct single *f, uint32_t rank)
{
	struct ckpt_engine_opts opts = kit_opts();

	*f = (struct single){0};
	opts.rank = rank;
	opts.world = 2;
	opts.save_timeout_ms = LONG_MS;
	opts.session = "Job_1.x";
	must_work(ckpt_exchange_server_new(&f->server));
	opts.exchange = f->server;
	f->store = job->store;
	f->opts = &opts;
	assert_int_equal(pthread_create(&f->thread, NULL, open_in_turn, f), 0);
	answer_hello(f, rank);
	assert_int_equal(pthread_join(f->thread, NULL), 0);
	must_work(f->result);
	kit_fill(&f->vector, "w", 100, 1);
	struct ckpt_tensor tensor = kit_tensor(&f->vector);
	must_work(ckpt_save_begin(f->engine, 1, NULL, &f->save));
	must_work(ckpt_save_add(f->save, &tensor, 1));
	assert_int_equal(pthread_create(&f->thread, NULL, start_single, f), 0);
}

static void close_single(struct single *f)
{
	ckpt_save_free(f->save);
	ckpt_engine_close(f->engine);
	ckpt_exchange_server_free(f->server);
	kit_clear(&f->vector);
}

static void test_answers(void **state)
{
	struct single f;
	struct ckpt_exchange_request request = {.size = sizeof(request)};
	struct ckpt_exchange_answer given = {.size = sizeof(given)};
	const void *values[2] = {NULL, NULL};
	uint64_t lengths[2] = {0, 0};

	open_single(*state, &f, 1);
	must_work(ckpt_exchange_next(f.server, TIMEOUT_MS, &request));
	assert_int_equal(request.verb, CKPT_EXCHANGE_GET);
	assert_int_equal(request.count, 2);
	assert_string_equal(request.keys[0], "Job_1.x/claim-1");
	assert_in_range(request.timeout_ms, 1, 30000);
	given.id = request.id;
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -EINVAL);
	given.values = values;
	given.lengths = lengths;
	given.result = 5;
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -EINVAL);
	given.result = 0;
	values[1] = "x";
	lengths[1] = CKPT_EXCHANGE_VALUE_MAX + 1;
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -E2BIG);
	assert_non_null(strstr(ckpt_last_error(), "1048577"));
	given.size = 0;
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -EINVAL);
	given.size = sizeof(given);
	/* Rubbish is the sender's fault, and is found by whoever reads it. */
	values[0] = "rubbish";
	lengths[0] = 7;
	values[1] = NULL;
	must_work(ckpt_exchange_reply(f.server, &given));
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -ENOENT);
	assert_int_equal(pthread_join(f.thread, NULL), 0);
	assert_true(f.result == CKPT_EFORMAT || f.result == CKPT_EINTEGRITY);
	close_single(&f);
}

/* The engine closes while somebody still reads what it asked. */
static void test_answer_after_close(void **state)
{
	struct single f;
	struct ckpt_exchange_request request = {.size = sizeof(request)};
	struct ckpt_exchange_answer given = {.size = sizeof(given)};

	open_single(*state, &f, 0);
	must_work(ckpt_exchange_next(f.server, TIMEOUT_MS, &request));
	assert_int_equal(request.verb, CKPT_EXCHANGE_PUT);
	given.id = request.id;
	must_work(ckpt_exchange_reply(f.server, &given));
	assert_int_equal(pthread_join(f.thread, NULL), 0);
	must_work(f.result);
	/* The part of rank 1. */
	must_work(ckpt_exchange_next(f.server, TIMEOUT_MS, &request));
	assert_int_equal(request.verb, CKPT_EXCHANGE_GET);
	ckpt_save_free(f.save);
	f.save = NULL;
	ckpt_engine_close(f.engine);
	f.engine = NULL;
	assert_int_equal(strncmp(request.keys[0], "Job_1.x/", 8), 0);
	given.id = request.id;
	given.result = -EIO;
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -ETIMEDOUT);
	assert_int_equal(ckpt_exchange_reply(f.server, &given), -ENOENT);
	assert_int_equal(ckpt_exchange_next(f.server, CKPT_FOREVER, &request), CKPT_ECLOSED);
	close_single(&f);
}

static void test_misuse(void **state)
{
	struct job *job = *state;
	struct ckpt_exchange_request request = {.size = sizeof(request)};
	struct ckpt_engine *second = NULL;

	open_job(job, LONG_MS);
	struct ckpt_engine_opts opts = kit_opts();
	opts.rank = 1;
	opts.world = WORLD;
	opts.session = "job-2";
	opts.exchange = job->ranks[1].server;
	assert_int_equal(ckpt_engine_open(job->store, &opts, &second), -EBUSY);
	assert_non_null(strstr(ckpt_last_error(), "a server for each"));
	save_all(job, 1);
	assert_int_equal(ckpt_exchange_next(NULL, 0, &request), -EINVAL);
	assert_int_equal(ckpt_exchange_next(job->ranks[0].server, 0, NULL), -EINVAL);
	request.size = 8;
	assert_int_equal(ckpt_exchange_next(job->ranks[0].server, 0, &request), -EINVAL);
	assert_int_equal(ckpt_exchange_reply(job->ranks[0].server, NULL), -EINVAL);
	assert_int_equal(ckpt_exchange_server_new(NULL), -EINVAL);
	ckpt_exchange_server_free(NULL);
	ckpt_exchange_server_stop(NULL);
	request.size = sizeof(request);
	pid_t child = fork();
	if (child == 0)
		_exit(ckpt_exchange_next(job->ranks[0].server, CKPT_FOREVER, &request) ==
					CKPT_EFORKED
				? 0
				: 1);
	int status = -1;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	save_all(job, 2);
}

/* A job of one rank has nobody to talk to. */
static void test_alone(void **state)
{
	struct job *job = *state;
	struct rank *rank = &job->ranks[0];
	struct ckpt_engine_opts opts = kit_opts();

	must_work(ckpt_exchange_server_new(&rank->server));
	opts.exchange = rank->server;
	must_work(ckpt_engine_open(job->store, &opts, &rank->engine));
	assert_int_equal(pthread_create(&rank->thread, NULL, serve, rank), 0);
	rank->served = true;
	must_work(begin(rank, 1, 0, 0));
	must_work(kit_wait(rank->save));
	(void)close_engine(rank);
	end_rank(rank);
	assert_int_equal(table_count(&job->table), 0);
}

#define JOB(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		JOB(test_one_outcome),
		JOB(test_storm),
		JOB(test_dead),
		JOB(test_silent),
		JOB(test_close_silent),
		JOB(test_close_unserved),
		JOB(test_claim_in_vain),
		JOB(test_answers),
		JOB(test_answer_after_close),
		JOB(test_misuse),
		JOB(test_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
