/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What it costs rank 0 to see whether very many ranks mean the same (engine/survey.h): from the manifest's
 * records to a catalog under way that holds them all, and then its file, which is not written. The indexes are
 * real files in a directory of a step. Each run is a process of its own that reads from the disk, so its memory
 * is its own, too: a core without ranks beside it, and the backend of files that an engine would have.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/engine.h>
#include <ckpt/error.h>
#include "device/device.h"
#include "engine/agree.h"
#include "engine/survey.h"
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
	const char *dir;
	const char *json;
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
	struct ckpt_device *host;
	struct ckpt_pool *pool;
	struct ckpt_io *io;
	struct ckpt_core core;
};

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void must(int code, const struct ckpt_error *err, const char *what)
{
	if (code >= 0)
		return;
	fprintf(stderr, "bench_survey: %s: %s\n", what,
		err && err->code ? err->message : ckpt_strerror(code));
	exit(1);
}

static void must_os(bool ok, const char *what)
{
	if (!ok)
		must(-errno, NULL, what);
}

/* The step. */

static void write_file(const char *path, const struct ckpt_buf *data)
{
	FILE *out = fopen(path, "w");

	must_os(out && !data->failed, path);
	must_os(fwrite(data->data, 1, data->len, out) == data->len, path);
	must_os(fclose(out) == 0, path);
}

static void write_index(const struct layouts *layouts, struct ckpt_manifest_rank *rank)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_buf out = {0};
	char path[CKPT_PATH_MAX];

	must(layouts_index(layouts, rank->rank, &out, &rank->shard_bytes, &err), &err, "index");
	rank->index_bytes = out.len;
	rank->index_digest = ckpt_digest_of(out.data, out.len);
	ckpt_name_index(path, GENERATION, STEP, rank->rank, rank->attempt);
	write_file(path, &out);
	ckpt_buf_free(&out);
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
	must_os(m.ranks, "memory");
	for (uint32_t i = 0; i < o->world; i++) {
		m.ranks[i] = (struct ckpt_manifest_rank){.rank = i, .attempt = ATTEMPT};
		(void)snprintf(m.ranks[i].node, sizeof(m.ranks[i].node), "node-%05u", i / 8);
		write_index(&layouts, &m.ranks[i]);
	}
	must(ckpt_manifest_encode(&m, &out), NULL, "manifest");
	write_file("manifest.json", &out);
	ckpt_buf_free(&out);
	free(m.ranks);
}

/* The disk's pages go, as far as this machine is asked. */
static void drop_step(const struct options *o)
{
	char path[CKPT_PATH_MAX];

	for (uint32_t i = 0; i < o->world; i++) {
		ckpt_name_index(path, GENERATION, STEP, i, ATTEMPT);
		int fd = open(path, O_RDONLY | O_CLOEXEC);

		must_os(fd >= 0 && fdatasync(fd) == 0, path);
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		close(fd);
	}
}

/* One run. */

static void read_manifest(struct ckpt_manifest *ret_manifest)
{
	struct ckpt_error err = {.size = sizeof(err)};
	FILE *in = fopen("manifest.json", "r");
	struct stat st;

	must_os(in && fstat(fileno(in), &st) == 0, "manifest");
	char *data = malloc((size_t)st.st_size);
	must_os(data && fread(data, 1, (size_t)st.st_size, in) == (size_t)st.st_size, "manifest");
	must(ckpt_manifest_decode(data, (size_t)st.st_size, "manifest.json", &err, ret_manifest),
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

	must(ckpt_inbox_init(&m->inbox), NULL, "queue");
	must(ckpt_env_os_open(THREADS, &m->inbox, &m->env), NULL, "workers");
	must(ckpt_pool_open(&pool, &err, &m->pool), &err, "pool");
	must(ckpt_device_host_open(ckpt_env_os_env(m->env), &m->host), NULL, "device");
	must(ckpt_io_open(&io, &m->io), NULL, "I/O");
	struct ckpt_core_parts parts = {.env = ckpt_env_os_env(m->env),
		.io = m->io,
		.root = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
		.label = ".",
		.host = m->host,
		.pool = m->pool};
	must_os(parts.root >= 0, ".");
	must(ckpt_core_init(&m->core, &parts, &config, &err), &err, "core");
	/* It has no others to talk to; what they have written is there. */
	m->core.config.world = world;
	m->core.marker.shared = true;
}

static struct looked look(void)
{
	static struct machine m;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_pick pick = {.chosen = {.generation = GENERATION, .step = STEP}};
	struct looked l = {0};
	struct rusage usage;

	read_manifest(&pick.manifest);
	for (uint32_t i = 0; i < pick.manifest.world; i++)
		l.bytes += pick.manifest.ranks[i].index_bytes;
	start_machine(&m, pick.manifest.world);
	struct ckpt_survey survey = {.core = &m.core,
		.pick = &pick,
		.window = CKPT_AGREE_BYTES_MAX / 4,
		.until_ns = UINT64_MAX,
		.err = &err};
	double begun = seconds();
	ckpt_survey_start(&survey);
	for (;;) {
		uint64_t deadline_ns = ckpt_core_step(&m.core);
		if (survey.task.finished)
			break;
		ckpt_inbox_wait(&m.inbox, deadline_ns);
	}
	l.survey_s = seconds() - begun;
	must(survey.task.result, &err, "survey");
	struct ckpt_buf file = {0};
	struct ckpt_digest digest;
	begun = seconds();
	must(ckpt_catalog_builder_finish(survey.builder, &file, &err, &digest), &err, "catalog");
	l.finish_s = seconds() - begun;
	l.catalog_bytes = file.len;
	must_os(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	l.mib = (double)usage.ru_maxrss / 1024;
	return l;
}

/* The same in a process of its own, which leaves its memory to the system. */
static struct looked look_apart(void)
{
	struct looked l = {0};
	int ends[2];

	must_os(pipe(ends) == 0, "pipe");
	pid_t child = fork();
	must_os(child >= 0, "fork");
	if (child == 0) {
		(void)dup2(ends[1], STDOUT_FILENO);
		execl("/proc/self/exe", "bench_survey", "--look", (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	bool whole = read(ends[0], &l, sizeof(l)) == (ssize_t)sizeof(l);
	close(ends[0]);
	int status = 0;
	must_os(waitpid(child, &status, 0) == child, "wait");
	must(whole && status == 0 ? 0 : -EIO, NULL, "a run");
	return l;
}

static void measure(const struct options *o, enum layouts_cut cut, FILE *out, bool first)
{
	write_step(o, cut);
	for (unsigned i = 0; i < o->runs; i++) {
		drop_step(o);
		struct looked l = look_apart();
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
	must_os(mkdir(step, 0777) == 0, step);
	ckpt_name_step(step, GENERATION, STEP);
	must_os(mkdir(step, 0777) == 0, step);
	if (out)
		fprintf(out,
			"{\"benchmark\": \"survey\", \"ranks\": %u, \"tensors\": %u, \"runs\": [\n",
			o->world, o->tensors);
	for (int cut = 0; cut < LAYOUTS_CUTS; cut++)
		measure(o, (enum layouts_cut)cut, out, cut == 0);
	if (out)
		fprintf(out, "\n]}\n");
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
		{"ranks", required_argument, NULL, 'r'}, {"tensors", required_argument, NULL, 't'},
		{"runs", required_argument, NULL, 'n'}, {"quick", no_argument, NULL, 'q'},
		{"json", required_argument, NULL, 'j'}, {"look", no_argument, NULL, 'l'}, {0}};

	for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
		switch (c) {
		case 'd':
			o->dir = optarg;
			break;
		case 'r':
			o->world = number(optarg);
			break;
		case 't':
			o->tensors = number(optarg);
			break;
		case 'n':
			o->runs = number(optarg);
			break;
		case 'q':
			o->world = 128;
			o->tensors = 100;
			o->runs = 1;
			break;
		case 'j':
			o->json = optarg;
			break;
		case 'l':
			o->look = true;
			break;
		default:
			return false;
		}
	}
	return o->world >= LAYOUTS_STAGES && o->world % LAYOUTS_STAGES == 0 &&
	       o->world <= CKPT_WORLD_SAVING && o->tensors >= LAYOUTS_STAGES && o->runs >= 1 &&
	       o->runs <= RUNS_MAX;
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
	struct options o = {.dir = ".", .world = 1024, .tensors = 1000, .runs = 3};
	char dir[300];

	if (!parse(argc, argv, &o)) {
		fprintf(stderr,
			"usage: bench_survey [--dir DIR] [--ranks N] [--tensors N] [--runs N] "
			"[--quick] [--json FILE]\n");
		return 2;
	}
	if (o.look) {
		struct looked l = look();
		return write(STDOUT_FILENO, &l, sizeof(l)) != (ssize_t)sizeof(l);
	}
	(void)snprintf(dir, sizeof(dir), "%s/survey.XXXXXX", o.dir);
	must_os(mkdtemp(dir), dir);
	FILE *out = o.json ? fopen(o.json, "we") : NULL;
	int home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	must_os(!o.json || out, o.json);
	must_os(home >= 0 && chdir(dir) == 0, dir);
	run(&o, out);
	must_os(fchdir(home) == 0, ".");
	must_os(!out || fclose(out) == 0, o.json);
	return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0;
}
