/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs rank 0 to see whether very many ranks mean the same (engine/save/rank_schema_survey.h): from the manifest's
 * records to a catalog under way that holds them all, and then its file, which is not written. The indexes are
 * real files in a directory of a step. Each run is a process of its own that reads from the disk, so its memory
 * is its own, too: a core without ranks beside it, and the backend of files that an engine would have.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/engine.h>
#include <ckpt/error.h>
#include "bench_tool.h"
#include "device/device.h"
#include "engine/lineage/lineage.h"
#include "engine/runtime/modules.h"
#include "engine/save/rank_schema.h"
#include "engine/save/rank_schema_survey.h"
#include "format/sealed.h"
#include "io/io.h"
#include "layouts.h"

#define RUNS_MAX   31
#define THREADS    2
#define POOL_BYTES (UINT64_C(32) << 20)
#define BLOCK      (UINT32_C(1) << 20)
#define GENERATION 1
#define STEP       100
#define ATTEMPT    "0123456789abcdef"

struct options {
	struct bench_common common;
	bool look; /* this process is one of the runs */
	unsigned world;
	unsigned tensors;
	unsigned runs;
};

struct looked {
	double survey_s;
	double finish_s; /* the file, of what the survey has */
	double mib;      /* at most, of all memory */
	uint64_t bytes;  /* of indexes */
	uint64_t catalog_bytes;
};

/* What an engine has, as far as a survey needs it. */
struct machine {
	struct ckpt_inbox inbox;
	struct ckpt_env_os *env;
	struct ckpt_devices devices;
	struct ckpt_pool *pool;
	struct ckpt_io *io;
	struct ckpt_core core;
};

/* The step. */

static void write_index(const struct layouts *layouts, struct ckpt_manifest_rank *rank)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_index(path, GENERATION, STEP, rank->rank, rank->attempt);
	layouts_write_index(layouts, rank->rank, path, rank);
}

static void write_step(const struct options *o, enum layouts_cut cut)
{
	struct layouts layouts = {.cut = cut, .world = o->world, .tensors = o->tensors};
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = "0123456789abcdef0123456789abcdef",
		.generation = GENERATION,
		.step = STEP,
		.attempt = ATTEMPT,
		.world = o->world};
	struct ckpt_buf out = {0};

	m.ranks = calloc(o->world, sizeof(*m.ranks));
	bench_must_os(m.ranks, "memory");
	for (uint32_t i = 0; i < o->world; i++) {
		m.ranks[i] = (struct ckpt_manifest_rank){.rank = i, .attempt = ATTEMPT};
		(void)snprintf(m.ranks[i].node, sizeof(m.ranks[i].node), "node-%05u", i / 8);
		write_index(&layouts, &m.ranks[i]);
	}
	bench_must(ckpt_manifest_encode(&m, &out), NULL, "manifest");
	bench_write_file("manifest.json", out.data, out.len);
	ckpt_buf_free(&out);
	free(m.ranks);
}

static void drop_step(const struct options *o)
{
	char path[CKPT_PATH_MAX];

	bench_sync(".");
	for (uint32_t i = 0; i < o->world; i++) {
		ckpt_name_index(path, GENERATION, STEP, i, ATTEMPT);
		bench_must_os(bench_uncache(path), path);
	}
}

/* One run. */

static void read_manifest(struct ckpt_manifest *ret_manifest)
{
	struct ckpt_error err = {.size = sizeof(err)};
	FILE *in = fopen("manifest.json", "r");
	struct stat st;

	bench_must_os(in && fstat(fileno(in), &st) == 0, "manifest");
	char *data = malloc((size_t)st.st_size);
	bench_must_os(
		data && fread(data, 1, (size_t)st.st_size, in) == (size_t)st.st_size, "manifest");
	bench_must(
		ckpt_manifest_decode(data, (size_t)st.st_size, "manifest.json", &err, ret_manifest),
		&err, "manifest");
	free(data);
	(void)fclose(in);
}

static void start_machine(struct machine *m, uint32_t world)
{
	struct ckpt_pool_config pool = {.bytes = POOL_BYTES, .block_bytes = BLOCK};
	struct ckpt_io_config io = {.root = -1, .inbox = &m->inbox};
	struct ckpt_core_config config = {.block_bytes = BLOCK,
		.chunk_bytes = CKPT_CHUNK_BYTES,
		.world = 1,
		.node = "node-00000"};
	struct ckpt_error err = {.size = sizeof(err)};

	bench_must(ckpt_inbox_init(&m->inbox), NULL, "queue");
	bench_must(ckpt_env_os_open(THREADS, &m->inbox, &m->env), NULL, "workers");
	bench_must(ckpt_pool_open(&pool, &err, &m->pool), &err, "pool");
	struct ckpt_devices_config devices = {.env = ckpt_env_os_env(m->env)};
	bench_must(ckpt_device_host_open(devices.env, &devices.host), NULL, "device");
	bench_must(ckpt_devices_init(&m->devices, &devices), NULL, "devices");
	bench_must(ckpt_io_open(&io, &m->io), NULL, "I/O");
	struct ckpt_core_parts parts = {.env = ckpt_env_os_env(m->env),
		.io = m->io,
		.root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		.label = ".",
		.devices = &m->devices,
		.pool = m->pool};
	bench_must_os(parts.root >= 0, ".");
	bench_must(ckpt_modules_open(&m->core, &parts, &config, &err), &err, "core");
	/* It has no others to talk to; what they have written is there. */
	m->core.config.world = world;
	m->core.lineage->marker.shared = true;
}

static struct looked look(void)
{
	static struct machine m;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_select pick = {.chosen = {.generation = GENERATION, .step = STEP}};
	struct looked l = {0};
	struct rusage usage;

	read_manifest(&pick.manifest);
	for (uint32_t i = 0; i < pick.manifest.world; i++)
		l.bytes += pick.manifest.ranks[i].index_bytes;
	start_machine(&m, pick.manifest.world);
	struct ckpt_schema_survey survey = {.core = &m.core,
		.pick = &pick,
		.window = CKPT_RANK_SCHEMA_BYTES_MAX / 4,
		.until_ns = UINT64_MAX,
		.err = &err};
	uint64_t begun = bench_now_ns();
	ckpt_schema_survey_start(&survey);
	for (;;) {
		uint64_t deadline_ns = ckpt_core_step(&m.core);
		if (survey.task.finished)
			break;
		ckpt_inbox_wait(&m.inbox, deadline_ns);
	}
	l.survey_s = bench_ms_since(begun) / 1e3;
	bench_must(survey.task.result, &err, "survey");
	struct ckpt_buf file = {0};
	struct ckpt_digest digest;
	begun = bench_now_ns();
	bench_must(
		ckpt_catalog_builder_finish(survey.builder, &file, &err, &digest), &err, "catalog");
	l.finish_s = bench_ms_since(begun) / 1e3;
	l.catalog_bytes = file.len;
	bench_must_os(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	l.mib = (double)usage.ru_maxrss / 1024;
	return l;
}

static void measure(const struct options *o, enum layouts_cut cut, FILE *out, bool first)
{
	char *again[] = {"bench_survey", "--look", NULL};

	write_step(o, cut);
	for (unsigned i = 0; i < o->runs; i++) {
		drop_step(o);
		struct looked l = {0};
		bench_apart(again, &l, sizeof(l));
		double mb = (double)l.bytes / 1e6;

		printf("%-8s %u ranks of %u tensors: %.2f s for %.0f MB of indexes, %.0f MB/s; "
		       "%.0f MiB at most; a catalog of %.2f MB in %.2f s\n",
			layouts_names[cut], o->world, o->tensors, l.survey_s, mb, mb / l.survey_s,
			l.mib, (double)l.catalog_bytes / 1e6, l.finish_s);
		if (out)
			fprintf(out,
				"%s  {\"cut\": \"%s\", \"survey_s\": %.4f, \"finish_s\": %.4f, "
				"\"mib\": %.1f, \"index_bytes\": %" PRIu64
				", \"catalog_bytes\": %" PRIu64 "}",
				first && i == 0 ? "" : ",\n", layouts_names[cut], l.survey_s,
				l.finish_s, l.mib, l.bytes, l.catalog_bytes);
	}
}

static void run(const struct options *o, FILE *out)
{
	char step[CKPT_PATH_MAX];

	ckpt_name_generation(step, GENERATION);
	bench_must_os(mkdir(step, 0777) == 0, step);
	ckpt_name_step(step, GENERATION, STEP);
	bench_must_os(mkdir(step, 0777) == 0, step);
	if (out)
		fprintf(out,
			"{\"benchmark\": \"survey\", \"ranks\": %u, \"tensors\": %u, \"runs\": [\n",
			o->world, o->tensors);
	for (int cut = 0; cut < LAYOUTS_CUTS; cut++)
		measure(o, (enum layouts_cut)cut, out, cut == 0);
	if (out)
		fprintf(out, "\n]}\n");
}

int main(int argc, char **argv)
{
	struct options o = {.common.dir = ".", .world = 1024, .tensors = 1000, .runs = 3};
	const struct bench_option known[] = {
		{"ranks", "N", &o.world, LAYOUTS_STAGES, CKPT_WORLD_SAVING, 128, NULL, NULL},
		{"tensors", "N", &o.tensors, LAYOUTS_STAGES, 1000000, 100, NULL, NULL},
		{"runs", "N", &o.runs, 1, RUNS_MAX, 1, NULL, NULL},
		{.name = "look", .flag = &o.look}, {0}};
	char dir[300];

	bench_parse(argc, argv, known, &o.common);
	if (o.world % LAYOUTS_STAGES != 0)
		bench_usage(known);
	if (o.look) {
		struct looked l = look();
		return bench_give(&l, sizeof(l));
	}
	bench_scratch(o.common.dir, "survey", dir, sizeof(dir));
	FILE *out = bench_json_open(o.common.json);
	int home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bench_must_os(home >= 0 && chdir(dir) == 0, dir);
	run(&o, out);
	bench_must_os(fchdir(home) == 0, ".");
	bench_json_close(out);
	bench_scratch_remove(dir);
	return 0;
}
