/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it takes many ranks to agree: from the moment when the last of them has its part durable until all
 * of them know that the step is committed. Each rank is a process of its own with an engine of its own; all
 * share one directory. A straggler, another rank at each step, is late by --late milliseconds, as ranks
 * are: the others have been waiting for it by then.
 *
 * The ceiling is what the file system takes for the three files that no protocol can do without: a record,
 * the manifest, the outcome, each written, synced, renamed, and its directory synced.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ckpt/ckpt.h>
#include "bench_tool.h"

#define WORLD_MAX  64
#define STEPS_MAX  1000
#define FLOATS     16384
#define TIMEOUT_MS 60000

struct options {
	struct bench_common common;
	unsigned world;
	unsigned steps;
	unsigned late_ms;
};

/* Shared by the processes. Times of CLOCK_MONOTONIC, which all of a machine share. */
struct board {
	pthread_barrier_t barrier;
	uint64_t durable_ns[STEPS_MAX][WORLD_MAX];
	uint64_t local_ns[STEPS_MAX][WORLD_MAX];
};

static void save_step(struct ckpt_engine *engine, const struct options *o, struct board *board,
	unsigned rank, unsigned step, float *values)
{
	int64_t shape[1] = {FLOATS};
	int64_t whole[1] = {(int64_t)FLOATS * o->world};
	int64_t start[1] = {(int64_t)FLOATS * rank};
	struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "w",
		.dtype = CKPT_F32,
		.ndim = 1,
		.shape = shape,
		.data = values,
		.global_shape = whole,
		.global_start = start};
	struct ckpt_save_info info = {.size = sizeof(info)};
	struct ckpt_save *save = NULL;

	pthread_barrier_wait(&board->barrier);
	if (step % o->world == rank)
		bench_sleep_ms(o->late_ms);
	uint64_t begun_ns = bench_now_ns();
	bench_must(ckpt_save_begin(engine, step + 1, NULL, &save), NULL, "begin");
	bench_must(ckpt_save_add(save, &tensor, 1), NULL, "add");
	bench_must(ckpt_save_start(save), NULL, "start");
	bench_must(ckpt_save_fence(save, TIMEOUT_MS), NULL, "fence");
	bench_must(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS), NULL, "wait");
	board->local_ns[step][rank] = bench_now_ns();
	bench_must(ckpt_save_info(save, &info), NULL, "info");
	board->durable_ns[step][rank] = begun_ns + info.durable_ns;
	ckpt_save_free(save);
}

static int run_rank(const struct options *o, struct board *board, unsigned rank, const char *store)
{
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.pool_bytes = 4 << 20,
		.block_bytes = 1 << 20,
		.copy_threads = 1,
		.log_level = CKPT_LOG_ERROR,
		.keep_last = 2,
		.rank = rank,
		.world = o->world,
		.session = "bench"};
	static float values[FLOATS];
	struct ckpt_engine *engine = NULL;

	bench_must(ckpt_engine_open(store, &opts, &engine), NULL, "open");
	for (unsigned step = 0; step < o->steps; step++) {
		values[0] = (float)step;
		save_step(engine, o, board, rank, step, values);
	}
	bench_must(ckpt_engine_drain(engine, TIMEOUT_MS), NULL, "drain");
	pthread_barrier_wait(&board->barrier);
	ckpt_engine_close(engine);
	return 0;
}

static struct board *make_board(unsigned world)
{
	pthread_barrierattr_t shared;
	struct board *board = mmap(
		NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (board == MAP_FAILED)
		return NULL;
	pthread_barrierattr_init(&shared);
	pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&board->barrier, &shared, world);
	return board;
}

static int run_ranks(const struct options *o, struct board *board, const char *store)
{
	int bad = 0;

	for (unsigned rank = 0; rank < o->world; rank++)
		if (fork() == 0)
			_exit(run_rank(o, board, rank, store));
	for (unsigned rank = 0; rank < o->world; rank++) {
		int status;
		wait(&status);
		/* The others would wait at the barrier for ever. */
		if (status != 0 && !bad++)
			kill(0, SIGTERM);
	}
	return bad;
}

/* One file made durable as the store does it. */
static uint64_t publish_ns(const char *dir, unsigned number)
{
	char name[300];
	char final[300];
	static const char text[500] = "{";

	(void)snprintf(name, sizeof(name), "%s/probe.tmp", dir);
	(void)snprintf(final, sizeof(final), "%s/probe-%u", dir, number);
	uint64_t begun_ns = bench_now_ns();
	int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
	int at = open(dir, O_RDONLY | O_DIRECTORY);
	bench_must_os(fd >= 0 && at >= 0 && write(fd, text, sizeof(text)) >= 0 &&
			      fdatasync(fd) >= 0 && rename(name, final) >= 0 && fsync(at) >= 0,
		dir);
	close(fd);
	close(at);
	return bench_now_ns() - begun_ns;
}

static void print(const struct options *o, const double *ms, const double *probe)
{
	double commit = ms[o->steps / 2];
	double floor = 3 * probe[o->steps / 2];
	FILE *out = bench_json_open(o->common.json);

	printf("%u ranks, one late by %u ms: committed %.1f ms after the last part was durable "
	       "(median of %u; 90 of 100 within %.1f); three files take %.1f\n",
		o->world, o->late_ms, commit, o->steps, ms[o->steps * 9 / 10], floor);
	if (!out)
		return;
	fprintf(out,
		"{\"benchmark\": \"commit\", \"ranks\": %u, \"late_ms\": %u, \"steps\": %u, "
		"\"commit_ms\": %.3f, \"commit_p90_ms\": %.3f, \"floor_ms\": %.3f}\n",
		o->world, o->late_ms, o->steps, commit, ms[o->steps * 9 / 10], floor);
	bench_json_close(out);
}

static void measure(const struct options *o, const struct board *board, const char *dir)
{
	static double ms[STEPS_MAX];
	static double probe[STEPS_MAX];

	for (unsigned step = 0; step < o->steps; step++) {
		uint64_t durable = 0;
		uint64_t local = 0;
		for (unsigned rank = 0; rank < o->world; rank++) {
			if (board->durable_ns[step][rank] > durable)
				durable = board->durable_ns[step][rank];
			if (board->local_ns[step][rank] > local)
				local = board->local_ns[step][rank];
		}
		ms[step] = (double)(local - durable) / 1e6;
		probe[step] = (double)publish_ns(dir, step) / 1e6;
	}
	bench_sort(ms, o->steps);
	bench_sort(probe, o->steps);
	print(o, ms, probe);
}

int main(int argc, char **argv)
{
	struct options o = {.common.dir = ".", .world = 8, .steps = 100, .late_ms = 50};
	const struct bench_option known[] = {
		{.name = "ranks", .word = "N", .number = &o.world, .least = 1, .most = WORLD_MAX},
		{.name = "steps",
			.word = "N",
			.number = &o.steps,
			.least = 1,
			.most = STEPS_MAX,
			.quick = 5},
		{.name = "late", .word = "MS", .number = &o.late_ms, .most = 999}, {0}};
	char dir[250];
	char store[260];

	bench_parse(argc, argv, known, &o.common);
	bench_scratch(o.common.dir, "commit", dir, sizeof(dir));
	(void)snprintf(store, sizeof(store), "%s/store", dir);
	struct board *board = make_board(o.world);
	int bad = board ? run_ranks(&o, board, store) : 1;
	if (!bad)
		measure(&o, board, dir);
	bench_scratch_remove(dir);
	return bad != 0;
}
