/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of four ranks, cut by rows, restored by the ranks of another world: as it was saved, by three that cut
 * by rows, and by two that cut by columns. The readers of a world are on one node: each is an engine of its own,
 * one after the other, so that a world's rate is that of one disk. Quoted are the bytes that they took from
 * files and the bytes that the disk was asked for, to the bytes that were wanted, and the rate of the bytes
 * wanted to that of the same cut, run in turn. Nothing is in the page cache when a world begins.
 */
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ckpt/ckpt.h>
#include "bench_tool.h"

#define RANKS     4
#define COLUMNS   1024
#define PAIRS_MAX 200

struct options {
	struct bench_common common;
	unsigned tensors;
	unsigned rows;
	unsigned pairs;
};

struct bench {
	char store[512];
	size_t tensors;
	int64_t rows; /* of each */
	float *data;
	struct ckpt_engine *ranks[RANKS];
};

/* Who reads: `world` of them, cut along `dimension`. */
struct way {
	const char *name;
	int64_t world;
	unsigned dimension;
	double rates[PAIRS_MAX];
	double ratios[PAIRS_MAX]; /* to the same cut */
	uint64_t wanted;
	uint64_t read;
	uint64_t disk; /* of these, not had from the page cache */
};

/* Piece `i` of `n`, as torch.chunk has it. */
static void piece(int64_t all, int64_t n, int64_t i, int64_t *ret_start, int64_t *ret_size)
{
	int64_t each = (all + n - 1) / n;
	int64_t start = each * i < all ? each * i : all;

	*ret_start = start;
	*ret_size = all - start < each ? all - start : each;
}

static void name_tensor(char name[32], size_t i)
{
	(void)snprintf(name, 32, "layer.%03zu.weight", i);
}

struct saver {
	struct bench *bench;
	int64_t rank;
	struct ckpt_save *save;
};

static void *save_rank(void *user)
{
	struct saver *s = user;
	const int64_t whole[2] = {s->bench->rows, COLUMNS};
	int64_t start[2] = {0, 0};
	int64_t shape[2] = {0, COLUMNS};

	piece(s->bench->rows, RANKS, s->rank, &start[0], &shape[0]);
	bench_must(ckpt_save_begin(s->bench->ranks[s->rank], 1, NULL, &s->save), NULL, "begin");
	for (size_t i = 0; i < s->bench->tensors; i++) {
		char name[32];
		struct ckpt_tensor t = {.size = sizeof(t),
			.name = name,
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = shape,
			.data = s->bench->data + start[0] * COLUMNS,
			.global_shape = whole,
			.global_start = start};
		name_tensor(name, i);
		bench_must(ckpt_save_add(s->save, &t, 1), NULL, "add");
	}
	bench_must(ckpt_save_start(s->save), NULL, "start");
	bench_must(ckpt_save_wait(s->save, CKPT_LEVEL_LOCAL, 600000), NULL, "save");
	ckpt_save_free(s->save);
	return NULL;
}

static void save_all(struct bench *b)
{
	struct saver savers[RANKS];
	pthread_t threads[RANKS];
	char session[32];

	(void)snprintf(session, sizeof(session), "bench-%ld", (long)time(NULL));
	for (int64_t i = 0; i < RANKS; i++) {
		struct ckpt_engine_opts opts = {.size = sizeof(opts),
			.rank = (uint32_t)i,
			.world = RANKS,
			.session = session};
		bench_must(ckpt_engine_open(b->store, &opts, &b->ranks[i]), NULL, "open");
	}
	for (int64_t i = 0; i < RANKS; i++) {
		savers[i] = (struct saver){.bench = b, .rank = i};
		if (pthread_create(&threads[i], NULL, save_rank, &savers[i]) != 0)
			exit(1);
	}
	for (int i = 0; i < RANKS; i++)
		(void)pthread_join(threads[i], NULL);
	for (int i = RANKS - 1; i >= 0; i--)
		ckpt_engine_close(b->ranks[i]);
}

/* One reader: every tensor's box of it, contiguous. */
static void read_one(
	struct bench *b, struct way *way, int64_t reader, struct ckpt_engine *engine, float *memory)
{
	int64_t start[2] = {0, 0};
	int64_t shape[2] = {b->rows, COLUMNS};
	struct ckpt_target *targets = calloc(b->tensors, sizeof(*targets));
	char(*names)[32] = calloc(b->tensors, sizeof(*names));
	struct ckpt_restore *restore = NULL;
	uint64_t total = 0;

	if (!targets || !names)
		exit(1);
	piece(way->dimension ? COLUMNS : b->rows, way->world, reader, &start[way->dimension],
		&shape[way->dimension]);
	bench_must(ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore), NULL, "open the step");
	for (size_t i = 0; i < b->tensors; i++) {
		name_tensor(names[i], i);
		targets[i] = (struct ckpt_target){.size = sizeof(targets[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = shape,
			.start = start,
			.data = memory + i * (size_t)(shape[0] * shape[1])};
	}
	bench_must(ckpt_restore_bind(restore, targets, b->tensors), NULL, "bind");
	bench_must(ckpt_restore_start(restore), NULL, "start");
	bench_must(ckpt_restore_wait(restore, 600000), NULL, "restore");
	bench_must(ckpt_restore_progress(restore, NULL, &total), NULL, "progress");
	way->read += total;
	way->wanted += (uint64_t)(shape[0] * shape[1]) * sizeof(float) * b->tensors;
	for (int64_t row = 0; row < shape[0]; row++)
		if (memcmp(memory + row * shape[1], b->data + (start[0] + row) * COLUMNS + start[1],
			    (size_t)shape[1] * sizeof(float)) != 0) {
			(void)fprintf(stderr, "bench_reshard: other bytes have come back\n");
			exit(1);
		}
	ckpt_restore_free(restore);
	free(targets);
	free(names);
}

static int uncache_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	(void)info;
	(void)where;
	if (kind == FTW_F)
		(void)bench_uncache(path);
	return 0;
}

/* Bytes wanted in a second, of all readers of a world, one after the other. */
static double read_world(struct bench *b, struct way *way, float *memory)
{
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.flags = CKPT_ENGINE_READ_ONLY,
		.node_ranks = (uint32_t)way->world};
	double seconds = 0;

	(void)nftw(b->store, uncache_one, 16, FTW_PHYS);
	way->read = way->wanted = 0;
	way->disk = bench_disk_bytes();
	for (int64_t i = 0; i < way->world; i++) {
		struct ckpt_engine *engine = NULL;
		bench_must(ckpt_engine_open(b->store, &opts, &engine), NULL, "open");
		uint64_t begin = bench_now_ns();
		read_one(b, way, i, engine, memory);
		seconds += bench_ms_since(begin) / 1e3;
		ckpt_engine_close(engine);
	}
	way->disk = bench_disk_bytes() - way->disk;
	return (double)way->wanted / seconds;
}

static double median(const double *values, unsigned count)
{
	double sorted[PAIRS_MAX];

	memcpy(sorted, values, count * sizeof(*values));
	bench_sort(sorted, count);
	return count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
}

static void say(const struct way *ways, size_t count, const struct options *o, FILE *json)
{
	(void)printf("%-24s %12s %16s %16s %14s\n", "readers", "MB/s wanted", "read to wanted",
		"disk to wanted", "to same cut");
	for (size_t i = 0; i < count; i++)
		(void)printf("%-24s %12.0f %16.3f %16.3f %14.3f\n", ways[i].name,
			median(ways[i].rates, o->pairs) / 1e6,
			(double)ways[i].read / (double)ways[i].wanted,
			(double)ways[i].disk / (double)ways[i].wanted,
			median(ways[i].ratios, o->pairs));
	if (!json)
		return;
	(void)fprintf(json, "{\"benchmark\":\"reshard\",\"runs\":%u,\"ways\":[", o->pairs);
	for (size_t i = 0; i < count; i++)
		(void)fprintf(json,
			"%s{\"name\":\"%s\",\"rate\":%.0f,\"read_to_wanted\":%.4f,"
			"\"disk_to_wanted\":%.4f,\"ratio\":%.4f}",
			i ? "," : "", ways[i].name, median(ways[i].rates, o->pairs),
			(double)ways[i].read / (double)ways[i].wanted,
			(double)ways[i].disk / (double)ways[i].wanted,
			median(ways[i].ratios, o->pairs));
	(void)fprintf(json, "]}\n");
}

int main(int argc, char **argv)
{
	struct options o = {.common.dir = ".", .tensors = 8, .rows = 16411, .pairs = 9};
	const struct bench_option known[] = {
		{"tensors", "N", &o.tensors, 1, 1000000, 2, NULL, NULL},
		{"rows", "N", &o.rows, 1, 1 << 20, 0, NULL, NULL},
		{"runs", "N", &o.pairs, 1, PAIRS_MAX, 2, NULL, NULL}, {0}};
	bench_parse(argc, argv, known, &o.common);
	struct bench b = {.tensors = o.tensors, .rows = o.rows};
	struct way ways[] = {{.name = "4, the same rows", .world = RANKS},
		{.name = "3, by rows", .world = 3},
		{.name = "2, by columns", .world = 2, .dimension = 1}};
	size_t count = sizeof(ways) / sizeof(ways[0]);
	size_t elements = (size_t)o.rows * COLUMNS;
	float *memory = malloc(b.tensors * elements * sizeof(float));

	b.data = malloc(elements * sizeof(float));
	if (!memory || !b.data)
		return 1;
	memset(memory, 1, b.tensors * elements * sizeof(float));
	for (size_t i = 0; i < elements; i++)
		b.data[i] = (float)(i * 2654435761u % 1000003);
	bench_scratch(o.common.dir, "reshard", b.store, sizeof(b.store));
	save_all(&b);
	for (unsigned run = 0; run < o.pairs; run++) {
		/* Each comes first now and then. */
		for (size_t k = 0; k < count; k++) {
			struct way *way = &ways[(run + k) % count];
			way->rates[run] = read_world(&b, way, memory);
		}
		for (size_t k = 0; k < count; k++)
			ways[k].ratios[run] = ways[k].rates[run] / ways[0].rates[run];
	}
	FILE *json = bench_json_open(o.common.json);
	say(ways, count, &o, json);
	bench_json_close(json);
	bench_scratch_remove(b.store);
	free(b.data);
	free(memory);
	return 0;
}
