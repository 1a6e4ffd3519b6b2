/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One agreed commit of very many ranks. Rank 0 is a real engine on a real store; the others are simulated:
 * their records come out of the service that this program serves the exchange from, one request after the
 * other, as a key-value store of one thread does. All but the last of them are there before rank 0 asks;
 * the last one comes when rank 0 has heard of all the others. What they name, rank 0 finds: each has an index
 * in the step's directory, and no shard, which nobody opens before the step is read. Indexes are written once,
 * and are in later steps by another link, as what they describe has not changed; before each step they are
 * made durable, and taken from the page cache, since it is others who have written them.
 *
 * Measured: from that record on until rank 0's manifest is durable and the outcome can be read by all; and
 * what goes through the service. Before the first step of a layout is published, rank 0 has to read all
 * indexes (engine/save/rank_schema.h), so this step stands by itself. A follower asks again after a part of what it has
 * waited (engine/ranks/exchange_call.c), so they know by then and one such pause, which is added.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/ckpt.h>
#include "bench_tool.h"
#include "exchange/exchange.h"
#include "exchange/rank_messages.h"
#include "format/sealed.h"
#include "layouts.h"

#define STEPS_MAX      100
#define TIMEOUT_MS     600000
#define PATH_BYTES     (CKPT_PATH_MAX + 300)
#define KEYS           256 /* that rank 0 has put and not dropped */
/* A follower pauses for a 32nd of what it has waited (engine/ranks/exchange_call.c), and at least by the size of the job. */
#define PAUSE_PART     32
#define PAUSE_MAX_MS   100.0
#define ASK_BY_RANK_MS 0.02 /* engine/save/commit_follower.c */

struct options {
	struct bench_common common;
	const char *cut;
	unsigned world;
	unsigned tensors;
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
	const struct ckpt_manifest_rank *ranks; /* what they say; attempts are those of the step */
	struct stored table[KEYS];
	struct ckpt_claim claim;
	_Atomic unsigned asked_last; /* for the last rank's record, and it was not there */
	_Atomic uint64_t step;       /* being saved */
	_Atomic bool released;       /* the last rank is durable, too */
	_Atomic bool alone;          /* rank 0 asks for nobody but the last one */
	_Atomic uint64_t told_ns;    /* when the outcome of `step` was put */
	_Atomic uint64_t requests;   /* and what they carried */
	_Atomic uint64_t bytes;
};

/* Where it all happens. */
struct place {
	char dir[250];
	char store[260];
	uint64_t generation;
	uint64_t index_bytes; /* of a step, rank 0's left out */
};

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
		bench_must(-ENOSPC, NULL, "the table of the service");
	(void)snprintf(free_one->key, sizeof(free_one->key), "%s", key);
	free_one->data = malloc(length + 1);
	memcpy(free_one->data, data, length);
	free_one->length = length;
	if (strcmp(what, "claim-1") == 0)
		bench_must(ckpt_claim_decode(data, length, key, NULL, &s->claim), NULL, "claim");
	ckpt_key_outcome(outcome, s->claim.generation, s->step);
	if (strcmp(what, outcome) == 0)
		s->told_ns = bench_now_ns();
}

static void drop(struct service *s, const char *key)
{
	struct stored *found = find(s, key);

	if (!found)
		return;
	free(found->data);
	*found = (struct stored){0};
}

/* Another one of each rank at each step. */
static void attempt_of(char attempt[CKPT_ATTEMPT_CHARS], uint64_t step, unsigned rank)
{
	ckpt_name_attempt(attempt, step << 32 | rank);
}

/* What rank `rank` has said of the step under way. */
static void write_record(const struct service *s, unsigned rank, struct ckpt_buf *out)
{
	struct ckpt_rank_record record = {
		.verdict = {.generation = s->claim.generation,
			.step = s->step,
			.nonce = s->claim.nonce},
		.rank = s->ranks[rank],
		/* Its index has no digests of data: it is one of names, types and boxes alone. */
		.plan = s->ranks[rank].index_digest,
	};

	attempt_of(record.rank.attempt, s->step, rank);
	bench_must(ckpt_rank_record_encode(&record, out), NULL, "record");
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

/* What the ranks have written. */

static void path_of_source(const struct place *p, unsigned rank, char path[PATH_BYTES])
{
	(void)snprintf(path, PATH_BYTES, "%s/indexes/%05u", p->dir, rank);
}

static void write_indexes(
	const struct layouts *layouts, struct place *p, struct ckpt_manifest_rank *ranks)
{
	char path[PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/indexes", p->dir);
	bench_must_os(mkdir(path, 0777) == 0, path);
	for (unsigned i = 1; i < layouts->world; i++) {
		ranks[i].rank = i;
		(void)snprintf(ranks[i].node, sizeof(ranks[i].node), "node-%05u", i / 8);
		path_of_source(p, i, path);
		layouts_write_index(layouts, i, path, &ranks[i]);
		p->index_bytes += ranks[i].index_bytes;
	}
}

static void make_directory(const struct place *p, const char *name)
{
	char path[PATH_BYTES];

	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	bench_must_os(mkdir(path, 0777) == 0 || errno == EEXIST, path);
}

static void path_of_index(
	const struct place *p, uint64_t step, unsigned rank, char path[PATH_BYTES])
{
	char name[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS];

	attempt_of(attempt, step, rank);
	ckpt_name_index(name, p->generation, step, rank, attempt);
	(void)snprintf(path, PATH_BYTES, "%s/%s", p->store, name);
}

/* All but rank 0 have their index in the directory of the step, durable, and rank 0 has never read it. */
static void write_step(const struct place *p, unsigned world, uint64_t step)
{
	char name[CKPT_PATH_MAX];
	char from[PATH_BYTES];
	char to[PATH_BYTES];

	ckpt_name_generation(name, p->generation);
	make_directory(p, name);
	ckpt_name_step(name, p->generation, step);
	make_directory(p, name);
	for (unsigned i = 1; i < world; i++) {
		path_of_source(p, i, from);
		path_of_index(p, step, i, to);
		bench_must_os(link(from, to) == 0, to);
	}
	bench_sync(p->dir);
	for (unsigned i = 1; i < world; i++) {
		path_of_index(p, step, i, to);
		bench_must_os(bench_uncache(to), to);
	}
}

/* Rank 0 makes none if it could not look at all indexes; the step is committed all the same. */
static bool has_catalog(const struct place *p)
{
	char name[CKPT_PATH_MAX];
	char path[PATH_BYTES];
	struct ckpt_digest digest;
	bool found = false;

	ckpt_name_generation(name, p->generation);
	(void)snprintf(path, sizeof(path), "%s/%s", p->store, name);
	DIR *dir = opendir(path);
	bench_must_os(dir, path);
	for (const struct dirent *e; !found && (e = readdir(dir));)
		found = ckpt_parse_catalog(e->d_name, &digest);
	closedir(dir);
	return found;
}

/* What rank 0 saves: its part of the layout. The data follow the descriptions. */
static struct ckpt_tensor *own_tensors(const struct layouts *layouts, size_t *ret_count)
{
	struct ckpt_layout *layout = layouts_of(layouts, 0);
	size_t room = layout ? layout->entry_count * sizeof(struct ckpt_tensor) : 0;
	struct ckpt_tensor *tensors = layout ? calloc(1, room + layout->bytes) : NULL;

	bench_must(tensors ? 0 : -ENOMEM, NULL, "rank 0");
	for (size_t i = 0; i < layout->entry_count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = e->name,
			.dtype = e->dtype,
			.ndim = e->ndim,
			.shape = e->shape,
			.data = (char *)tensors + room + e->offset,
			.global_shape = e->global_shape,
			.global_start = e->global_start};
	}
	*ret_count = layout->entry_count;
	return tensors;
}

/* Steps. */

struct measured {
	double commit_ms;
	double gather_ms; /* until all but one were heard */
	double all_ms;    /* until every follower has asked again */
	double mib;
	double read_mib; /* by rank 0, of files, from the last rank on */
	uint64_t requests;
};

static double min(double a, double b)
{
	return a < b ? a : b;
}

static uint64_t bytes_read(struct ckpt_engine *engine)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	bench_must(ckpt_engine_stats(engine, &stats), NULL, "stats");
	return stats.bytes_read;
}

/* What a follower that has waited so long waits until it asks again, at most. */
static double pause_of(unsigned world, double waited_ms)
{
	double pause_ms = min(waited_ms / PAUSE_PART, PAUSE_MAX_MS);

	return pause_ms > world * ASK_BY_RANK_MS ? pause_ms : world * ASK_BY_RANK_MS;
}

static struct measured save_step(struct ckpt_engine *engine, struct service *s, uint64_t step,
	const struct ckpt_tensor *tensors, size_t count)
{
	struct measured m = {0};
	struct ckpt_save *save = NULL;

	s->released = s->alone = false;
	s->asked_last = 0;
	s->told_ns = s->bytes = s->requests = 0;
	s->step = step;
	bench_must(ckpt_save_begin(engine, step, NULL, &save), NULL, "begin");
	bench_must(ckpt_save_add(save, tensors, count), NULL, "add");
	bench_must(ckpt_save_start(save), NULL, "start");
	uint64_t begun_ns = bench_now_ns();
	bench_must(ckpt_save_fence(save, TIMEOUT_MS), NULL, "fence");
	while (!s->alone)
		bench_sleep_ms(1);
	uint64_t read_bytes = bytes_read(engine);
	uint64_t late_ns = bench_now_ns();
	s->released = true;
	bench_must(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS), NULL, "wait");
	while (!s->told_ns)
		bench_sleep_ms(1);
	m.gather_ms = (double)(late_ns - begun_ns) / 1e6;
	m.commit_ms = (double)(s->told_ns - late_ns) / 1e6;
	m.all_ms = m.commit_ms + pause_of(s->world, (double)(s->told_ns - begun_ns) / 1e6);
	m.mib = (double)s->bytes / (1 << 20);
	m.read_mib = (double)(bytes_read(engine) - read_bytes) / (1 << 20);
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

static void print_one(const char *which, const struct measured *m)
{
	printf("%s: all others heard in %.0f ms; committed %.1f ms after the last one was durable, "
	       "known to all by %.1f ms; %.1f MiB read; %.1f MiB exchanged in %" PRIu64
	       " requests\n",
		which, m->gather_ms, m->commit_ms, m->all_ms, m->read_mib, m->mib, m->requests);
}

static void print(const struct options *o, const struct place *p, struct measured *found)
{
	const struct measured *first = &found[0];
	const struct measured *m = &found[1 + (o->steps - 1) / 2];
	FILE *out = bench_json_open(o->common.json);

	qsort(found + 1, o->steps - 1, sizeof(found[0]), by_commit);
	printf("%u ranks of %u tensors (%s), %.0f MiB of indexes\n", o->world, o->tensors, o->cut,
		(double)p->index_bytes / (1 << 20));
	print_one("the first step", first);
	print_one("each after it (median)", m);
	if (out)
		fprintf(out,
			"{\"benchmark\": \"world\", \"ranks\": %u, \"tensors\": %u, "
			"\"cut\": \"%s\", \"index_bytes\": %" PRIu64
			", \"steps\": %u, \"gather_ms\": %.3f, "
			"\"commit_ms\": %.3f, \"all_ms\": %.3f, \"read_mib\": %.3f, \"mib\": %.3f, "
			"\"requests\": %" PRIu64 ", \"first_ms\": %.3f, \"first_all_ms\": %.3f, "
			"\"first_read_mib\": %.3f, \"first_mib\": %.3f, \"first_requests\": "
			"%" PRIu64 "}\n",
			o->world, o->tensors, o->cut, p->index_bytes, o->steps, m->gather_ms,
			m->commit_ms, m->all_ms, m->read_mib, m->mib, m->requests, first->commit_ms,
			first->all_ms, first->read_mib, first->mib, first->requests);
	bench_json_close(out);
}

static void run(const struct options *o, const struct layouts *layouts, struct place *p)
{
	static struct service service;
	static struct measured found[STEPS_MAX];
	struct ckpt_manifest_rank *ranks = calloc(o->world, sizeof(*ranks));
	struct ckpt_engine *engine = NULL;
	pthread_t thread;
	size_t count;

	bench_must(ranks ? 0 : -ENOMEM, NULL, "ranks");
	write_indexes(layouts, p, ranks);
	struct ckpt_tensor *tensors = own_tensors(layouts, &count);
	service.world = o->world;
	service.ranks = ranks;
	bench_must(ckpt_exchange_server_new(&service.server), NULL, "server");
	bench_must(-pthread_create(&thread, NULL, serve, &service), NULL, "thread");
	/* Nothing is removed: what a step has cost the keeper would be in the next one's figure. */
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.pool_bytes = 16 << 20,
		.block_bytes = 1 << 20,
		.log_level = CKPT_LOG_ERROR,
		.world = o->world,
		.session = "bench",
		.exchange = service.server};
	bench_must(ckpt_engine_open(p->store, &opts, &engine), NULL, "open");
	bench_must(ckpt_engine_claim(engine, &p->generation), NULL, "claim");
	for (unsigned step = 0; step < o->steps; step++) {
		write_step(p, o->world, step + 1);
		found[step] = save_step(engine, &service, step + 1, tensors, count);
		if (step == 0 && !has_catalog(p))
			bench_must(CKPT_EINCOMPLETE, NULL, "the catalog of the layout");
	}
	bench_must(ckpt_engine_drain(engine, TIMEOUT_MS), NULL, "drain");
	ckpt_engine_close(engine);
	pthread_join(thread, NULL);
	ckpt_exchange_server_free(service.server);
	free(tensors);
	free(ranks);
	print(o, p, found);
}

static bool find_cut(const char *name, enum layouts_cut *ret_cut)
{
	for (int cut = 0; cut < LAYOUTS_CUTS; cut++)
		if (strcmp(layouts_names[cut], name) == 0) {
			*ret_cut = (enum layouts_cut)cut;
			return true;
		}
	return false;
}

int main(int argc, char **argv)
{
	struct options o = {.common.dir = ".",
		.cut = layouts_names[LAYOUTS_FSDP],
		.world = 16384,
		.tensors = 1000,
		.steps = 11};
	const struct bench_option known[] = {
		{"ranks", "N", &o.world, 2, CKPT_WORLD_SAVING, 2048, NULL, NULL},
		{"tensors", "N", &o.tensors, LAYOUTS_STAGES, 1000000, 0, NULL, NULL},
		{"steps", "N", &o.steps, 2, STEPS_MAX, 3, NULL, NULL},
		{.name = "cut", .word = "CUT", .text = &o.cut}, {0}};
	struct layouts layouts = {0};
	struct place place = {0};

	bench_parse(argc, argv, known, &o.common);
	if (!find_cut(o.cut, &layouts.cut) ||
		(layouts.cut == LAYOUTS_PIPELINE && o.world % LAYOUTS_STAGES != 0))
		bench_usage(known);
	layouts.world = o.world;
	layouts.tensors = o.tensors;
	bench_scratch(o.common.dir, "world", place.dir, sizeof(place.dir));
	(void)snprintf(place.store, sizeof(place.store), "%s/store", place.dir);
	run(&o, &layouts, &place);
	bench_scratch_remove(place.dir);
	return 0;
}
