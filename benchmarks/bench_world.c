/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One agreed commit of very many ranks. Rank 0 is a real engine on a real store; the others are simulated:
 * their records come out of the service that this program serves the exchange from, one request after the
 * other, as a key-value store of one thread does. All but the last of them are there before rank 0 asks;
 * the last one comes when rank 0 has heard of all the others.
 *
 * Measured: from that record on until rank 0's manifest is durable and the outcome can be read by all; and
 * what goes through the service. A follower asks again after a part of what it has waited (engine/talk.c),
 * so they know by then and one such pause, which is added.
 */
#include <errno.h>
#include <ftw.h>
#include <getopt.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ckpt/ckpt.h>
#include "exchange/exchange.h"
#include "exchange/rank_record.h"
#include "format/sealed.h"

#define STEPS_MAX   100
#define TIMEOUT_MS  120000
#define KEYS        256 /* that rank 0 has put and not dropped */
#define TENSORS     1000
/* What an index of that many tensors of 16 MB each takes: a line of JSON and 16 digests. */
#define INDEX_BYTES (TENSORS * (UINT64_C(110) + 16 * 16))
/* engine/talk.c: a follower pauses for a 32nd of what it has waited. */
#define PAUSE_PART  32

struct options {
	const char *dir;
	const char *json;
	unsigned world;
	unsigned steps;
};

struct stored {
	char key[CKPT_EXCHANGE_NAME_MAX];
	char *data;
	uint64_t length;
};

/* The service. One thread answers; the main thread lets the last rank through. */
struct service {
	struct ckpt_exchange_server *server;
	unsigned world;
	struct stored table[KEYS];
	struct ckpt_claim claim;
	unsigned asked_last;       /* for the last rank's record, and it was not there */
	_Atomic uint64_t step;     /* being saved */
	_Atomic bool released;     /* the last rank is durable, too */
	_Atomic bool alone;        /* rank 0 asks for nobody but the last one */
	_Atomic uint64_t told_ns;  /* when the outcome of `step` was put */
	_Atomic uint64_t requests; /* and what they carried */
	_Atomic uint64_t bytes;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static void must(int code, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "bench_world: %s: %s: %s\n", what, ckpt_strerror(code), ckpt_last_error());
	exit(1);
}

static struct stored *find(struct service *s, const char *key)
{
	for (unsigned i = 0; i < KEYS; i++)
		if (s->table[i].data && strcmp(s->table[i].key, key) == 0)
			return &s->table[i];
	return NULL;
}

static void put(struct service *s, const char *key, const void *data, uint64_t length)
{
	char outcome[CKPT_EXCHANGE_KEY_MAX];
	const char *what = strchr(key, '/') + 1;
	struct stored *free_one = NULL;

	for (unsigned i = 0; i < KEYS && !free_one; i++)
		if (!s->table[i].data)
			free_one = &s->table[i];
	if (!free_one)
		must(-ENOSPC, "the table of the service");
	(void)snprintf(free_one->key, sizeof(free_one->key), "%s", key);
	free_one->data = malloc(length + 1);
	memcpy(free_one->data, data, length);
	free_one->length = length;
	if (strcmp(what, "claim-1") == 0)
		must(ckpt_claim_decode(data, length, key, NULL, &s->claim), "claim");
	ckpt_key_outcome(outcome, s->claim.generation, s->step);
	if (strcmp(what, outcome) == 0)
		s->told_ns = now_ns();
}

static void drop(struct service *s, const char *key)
{
	struct stored *found = find(s, key);

	if (!found)
		return;
	free(found->data);
	*found = (struct stored){0};
}

/* What rank `rank` has said of the step under way. */
static void write_record(const struct service *s, unsigned rank, struct ckpt_buf *out)
{
	struct ckpt_rank_record record = {
		.verdict = {.generation = s->claim.generation,
			.step = s->step,
			.nonce = s->claim.nonce},
		.rank = {.rank = rank,
			.index_bytes = INDEX_BYTES,
			.shard_bytes = UINT64_C(16) << 30},
	};

	(void)snprintf(record.rank.node, sizeof(record.rank.node), "node-%05u", rank / 8);
	(void)snprintf(record.rank.attempt, sizeof(record.rank.attempt), "%016llx",
		(unsigned long long)(s->step << 32 | rank));
	memset(&record.rank.index_digest, (int)(rank % 251), sizeof(record.rank.index_digest));
	must(ckpt_rank_record_encode(&record, out), "record");
}

/* A key of a simulated rank: what it has said, into `words`; false: nothing yet. */
static bool say_of_rank(struct service *s, const char *what, struct ckpt_buf *words)
{
	unsigned long long generation;
	unsigned long long step;
	unsigned rank;

	if (sscanf(what, "g%llu-s%llu-r%u", &generation, &step, &rank) != 3 || rank == 0 ||
		rank >= s->world || step != s->step)
		return false;
	if (rank == s->world - 1 && !s->released) {
		s->asked_last++;
		return false;
	}
	write_record(s, rank, words);
	return true;
}

static void answer_get(struct service *s, const struct ckpt_exchange_request *request)
{
	static struct ckpt_buf words[CKPT_EXCHANGE_BATCH];
	const void *values[CKPT_EXCHANGE_BATCH] = {NULL};
	uint64_t lengths[CKPT_EXCHANGE_BATCH] = {0};
	struct ckpt_exchange_answer answer = {
		.size = sizeof(answer), .id = request->id, .values = values, .lengths = lengths};

	for (uint32_t i = 0; i < request->count; i++) {
		const struct stored *found = find(s, request->keys[i]);
		words[i].len = 0;
		if (found) {
			values[i] = found->data;
			lengths[i] = found->length;
		} else if (say_of_rank(s, strchr(request->keys[i], '/') + 1, &words[i])) {
			values[i] = words[i].data;
			lengths[i] = words[i].len;
		}
		s->bytes += lengths[i] + strlen(request->keys[i]);
	}
	if (request->count == 1 && s->asked_last > 0)
		s->alone = true;
	(void)ckpt_exchange_reply(s->server, &answer);
}

static void *serve(void *arg)
{
	struct service *s = arg;
	struct ckpt_exchange_request request = {.size = sizeof(request)};

	while (ckpt_exchange_next(s->server, CKPT_FOREVER, &request) == 0) {
		struct ckpt_exchange_answer answer = {.size = sizeof(answer), .id = request.id};
		s->requests++;
		if (request.verb == CKPT_EXCHANGE_GET) {
			answer_get(s, &request);
			continue;
		}
		for (uint32_t i = 0; i < request.count; i++) {
			s->bytes += strlen(request.keys[i]);
			if (request.verb == CKPT_EXCHANGE_DROP) {
				drop(s, request.keys[i]);
			} else {
				put(s, request.keys[i], request.values[i], request.lengths[i]);
				s->bytes += request.lengths[i];
			}
		}
		(void)ckpt_exchange_reply(s->server, &answer);
	}
	return NULL;
}

static void sleep_ms(unsigned ms)
{
	nanosleep(&(struct timespec){.tv_nsec = (long)ms * 1000000}, NULL);
}

struct measured {
	double commit_ms;
	double gather_ms; /* until all but one were heard */
	double all_ms;    /* until every follower has asked again */
	double mib;
	uint64_t requests;
};

static struct measured save_step(struct ckpt_engine *engine, struct service *s, unsigned step)
{
	static float values[1024];
	int64_t shape[1] = {1024};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = shape,
		.data = values};
	struct measured m = {0};
	struct ckpt_save *save = NULL;

	values[0] = (float)step;
	s->released = s->alone = false;
	s->asked_last = 0;
	s->told_ns = s->bytes = s->requests = 0;
	s->step = step;
	must(ckpt_save_begin(engine, step, NULL, &save), "begin");
	must(ckpt_save_add(save, &tensor, 1), "add");
	must(ckpt_save_start(save), "start");
	uint64_t begun_ns = now_ns();
	must(ckpt_save_fence(save, TIMEOUT_MS), "fence");
	while (!s->alone)
		sleep_ms(1);
	uint64_t late_ns = now_ns();
	s->released = true;
	must(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS), "wait");
	while (!s->told_ns)
		sleep_ms(1);
	m.gather_ms = (double)(late_ns - begun_ns) / 1e6;
	m.commit_ms = (double)(s->told_ns - late_ns) / 1e6;
	m.all_ms = m.commit_ms + (double)(s->told_ns - begun_ns) / PAUSE_PART / 1e6;
	m.mib = (double)s->bytes / (1 << 20);
	m.requests = s->requests;
	ckpt_save_free(save);
	return m;
}

static int by_commit(const void *a, const void *b)
{
	double x = ((const struct measured *)a)->commit_ms;
	double y = ((const struct measured *)b)->commit_ms;

	return (x > y) - (x < y);
}

static void print(const struct options *o, struct measured *found)
{
	struct measured first = found[0];
	FILE *out = o->json ? fopen(o->json, "w") : NULL;

	qsort(found, o->steps, sizeof(found[0]), by_commit);
	const struct measured *m = &found[o->steps / 2];
	printf("%u ranks: all others heard in %.0f ms; committed %.1f ms after the last one was "
	       "durable, known to all by %.1f ms (median of %u; the first step: %.1f ms); %.1f MiB "
	       "in %llu requests a step\n",
		o->world, m->gather_ms, m->commit_ms, m->all_ms, o->steps, first.commit_ms, m->mib,
		(unsigned long long)m->requests);
	if (!out)
		return;
	fprintf(out,
		"{\"benchmark\": \"world\", \"ranks\": %u, \"steps\": %u, \"gather_ms\": %.3f, "
		"\"commit_ms\": %.3f, \"all_ms\": %.3f, \"first_ms\": %.3f, \"mib\": %.3f, "
		"\"requests\": %llu}\n",
		o->world, o->steps, m->gather_ms, m->commit_ms, m->all_ms, first.commit_ms, m->mib,
		(unsigned long long)m->requests);
	fclose(out);
}

static void run(const struct options *o, const char *store)
{
	static struct service service;
	static struct measured found[STEPS_MAX];
	struct ckpt_engine *engine = NULL;
	pthread_t thread;

	service.world = o->world;
	must(ckpt_exchange_server_new(&service.server), "server");
	must(-pthread_create(&thread, NULL, serve, &service), "thread");
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.pool_bytes = 4 << 20,
		.block_bytes = 1 << 20,
		.copy_threads = 1,
		.log_level = CKPT_LOG_ERROR,
		.keep_last = 2,
		.world = o->world,
		.session = "bench",
		.exchange = service.server};
	must(ckpt_engine_open(store, &opts, &engine), "open");
	for (unsigned step = 0; step < o->steps; step++)
		found[step] = save_step(engine, &service, step + 1);
	must(ckpt_engine_drain(engine, TIMEOUT_MS), "drain");
	ckpt_engine_close(engine);
	pthread_join(thread, NULL);
	ckpt_exchange_server_free(service.server);
	print(o, found);
}

static unsigned number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	return *end || value > 1000000 ? 0 : (unsigned)value;
}

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option known[] = {{"dir", required_argument, NULL, 'd'},
		{"ranks", required_argument, NULL, 'r'}, {"steps", required_argument, NULL, 's'},
		{"quick", no_argument, NULL, 'q'}, {"json", required_argument, NULL, 'j'}, {0}};

	for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (c) {
		case 'd':
			o->dir = optarg;
			break;
		case 'r':
			o->world = number(optarg);
			break;
		case 's':
			o->steps = number(optarg);
			break;
		case 'q':
			o->world = 2048;
			o->steps = 3;
			break;
		case 'j':
			o->json = optarg;
			break;
		default:
			return false;
		}
	}
	return o->world >= 2 && o->world <= 50000 && o->steps >= 1 && o->steps <= STEPS_MAX;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	(void)info;
	(void)kind;
	(void)where;
	return remove(path);
}

int main(int argc, char **argv)
{
	struct options o = {.dir = ".", .world = 16384, .steps = 11};
	char dir[250];
	char store[260];

	if (!parse(argc, argv, &o)) {
		fprintf(stderr, "usage: bench_world [--dir DIR] [--ranks N] [--steps N] [--quick] "
				"[--json FILE]\n");
		return 2;
	}
	(void)snprintf(dir, sizeof(dir), "%s/world.XXXXXX", o.dir);
	if (!mkdtemp(dir)) {
		perror(dir);
		return 1;
	}
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	run(&o, store);
	return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0;
}
