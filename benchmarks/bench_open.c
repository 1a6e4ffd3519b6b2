/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a checkpoint of very many ranks: from the name of its directory to what one rank needs, and to
 * whom it has to ask for it. The manifest and the catalog are real files, and so are the indexes of the
 * ranks that turn out to hold what is needed; what describes the others is never read, so it is not made.
 *
 *     fsdp      every tensor cut by rows over all ranks
 *     pipeline  16 stages, each of which cuts its tensors over its ranks
 *     uneven    as fsdp, cut at random: no two ranks are alike, and the catalog has a record for each box
 *
 * Each run is a process of its own that reads from the disk, so its memory is its own, too. What a reader
 * does without a catalog is reckoned: one index, times the ranks.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ckpt/error.h>
#include "bench_tool.h"
#include "format/catalog.h"
#include "format/index.h"
#include "format/manifest.h"
#include "format/sealed.h"
#include "layouts.h"

#define MARK_MS  1000.0
#define MARK_MIB 512.0
#define RUNS_MAX 31
#define PARTS    64 /* ranks that one rank's needs may come from */
#define WINDOW   (UINT64_C(4) << 20)
#define ATTEMPT  "0123456789abcdef"

struct options {
	struct bench_common common;
	const char *find; /* this process is one of the runs */
	unsigned world;
	unsigned to; /* world of the reader */
	unsigned tensors;
	unsigned runs;
};

struct found {
	double manifest_ms;
	double all_ms;
	double index_ms; /* of one index, in the mean */
	double mib;
	uint64_t boxes;
	unsigned ranks;
	uint32_t rank[PARTS];
};

/* A box that is needed, and who has it. */
struct need {
	const char *name;
	uint32_t rank;
	int64_t start[2];
	int64_t shape[2];
};

struct needs {
	struct need *items;
	size_t room;
};

/* The part of the catalog that was read last. */
struct window {
	int fd;
	char *data;
	uint64_t offset;
	uint64_t length;
};

/* The layout that is read. */

static struct layouts layouts_for(const struct options *o, enum layouts_cut cut)
{
	return (struct layouts){.cut = cut, .world = o->world, .tensors = o->tensors};
}

static int64_t rows_of(const struct options *o)
{
	struct layouts layouts = layouts_for(o, LAYOUTS_FSDP);

	return layouts_rows(&layouts);
}

static void write_manifest(const struct options *o)
{
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = "0123456789abcdef0123456789abcdef",
		.generation = 1,
		.step = 100,
		.attempt = ATTEMPT,
		.world = o->world};
	struct ckpt_buf out = {0};

	m.ranks = calloc(o->world, sizeof(*m.ranks));
	bench_must_os(m.ranks, "memory");
	for (uint32_t i = 0; i < o->world; i++) {
		struct ckpt_manifest_rank *r = &m.ranks[i];

		*r = (struct ckpt_manifest_rank){.rank = i,
			.attempt = ATTEMPT,
			.index_bytes = 400000,
			.shard_bytes = UINT64_C(16) << 30};
		(void)snprintf(r->node, sizeof(r->node), "node-%05u", i / 8);
		r->index_digest = ckpt_digest_of(&i, sizeof(i));
	}
	bench_must(ckpt_manifest_encode(&m, &out), NULL, "manifest");
	bench_write_file("manifest.json", out.data, out.len);
	ckpt_buf_free(&out);
	free(m.ranks);
}

static double write_catalog(const struct options *o, enum layouts_cut cut, uint64_t *ret_bytes)
{
	struct layouts layouts = layouts_for(o, cut);
	struct ckpt_catalog_builder *builder = NULL;
	struct ckpt_error err = {0};
	struct ckpt_digest digest;
	struct ckpt_buf out = {0};
	uint64_t begun = bench_now_ns();

	bench_must(ckpt_catalog_builder_new(o->world, NULL, &builder), NULL, "catalog");
	for (uint32_t i = 0; i < o->world; i++) {
		struct ckpt_layout *layout = layouts_of(&layouts, i);
		bench_must_os(layout, "memory");
		bench_must(ckpt_catalog_builder_add(builder, i, layout, &err), &err, "catalog");
	}
	bench_must(ckpt_catalog_builder_finish(builder, &out, &err, &digest), &err, "catalog");
	ckpt_catalog_builder_free(builder);
	double ms = bench_ms_since(begun);
	bench_write_file("layout.catalog", out.data, out.len);
	*ret_bytes = out.len;
	ckpt_buf_free(&out);
	return ms;
}

static void index_path(char out[64], uint32_t rank)
{
	(void)snprintf(out, 64, "rank-%05u." ATTEMPT ".index", rank);
}

static void write_index(const struct options *o, enum layouts_cut cut, uint32_t rank)
{
	struct layouts layouts = layouts_for(o, cut);
	struct ckpt_manifest_rank record;
	char path[64];

	index_path(path, rank);
	layouts_write_index(&layouts, rank, path, &record);
}

/* The reader. */

static char *read_part(int fd, uint64_t offset, uint64_t length, const char *what)
{
	char *data = malloc(length + 1);

	bench_must_os(data, "memory");
	for (uint64_t done = 0; done < length;) {
		ssize_t n = pread(fd, data + done, length - done, (off_t)(offset + done));

		bench_must_os(n > 0, what);
		done += (uint64_t)n;
	}
	return data;
}

static int open_file(const char *path, uint64_t *ret_length)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	bench_must_os(fd >= 0, path);
	*ret_length = (uint64_t)lseek(fd, 0, SEEK_END);
	return fd;
}

static void read_manifest(void)
{
	struct ckpt_manifest manifest;
	struct ckpt_error err = {0};
	uint64_t length;
	int fd = open_file("manifest.json", &length);
	char *data = read_part(fd, 0, length, "manifest");

	bench_must(ckpt_manifest_decode(data, length, "manifest.json", &err, &manifest), &err,
		"manifest");
	ckpt_manifest_clear(&manifest);
	free(data);
	close(fd);
}

static struct ckpt_layout_catalog *read_root(int fd, uint64_t length)
{
	struct ckpt_layout_catalog *catalog = NULL;
	struct ckpt_error err = {0};
	uint64_t root = 0;
	uint64_t bytes = 0;
	char *head = read_part(fd, 0, CKPT_CATALOG_HEAD_BYTES, "catalog");

	bench_must(ckpt_layout_catalog_measure(
			   head, CKPT_CATALOG_HEAD_BYTES, "catalog", &err, &root, &bytes),
		&err, "catalog");
	bench_must_os(bytes == length, "catalog");
	free(head);
	head = read_part(fd, 0, root, "catalog");
	bench_must(ckpt_layout_catalog_decode(head, root, NULL, "catalog", &err, &catalog), &err,
		"catalog");
	free(head);
	return catalog;
}

static void note_rank(struct found *f, uint32_t rank)
{
	for (unsigned i = 0; i < f->ranks; i++)
		if (f->rank[i] == rank)
			return;
	bench_must(f->ranks == PARTS ? -E2BIG : 0, NULL, "ranks that hold it");
	f->rank[f->ranks++] = rank;
}

/* The bytes of a list. Lists that follow are read with it, as they are likely to be wanted next. */
static const char *list_bytes(struct window *w, const struct ckpt_layout_catalog *catalog,
	const struct ckpt_catalog_tensor *t)
{
	if (!w->data || t->offset < w->offset || t->offset + t->bytes > w->offset + w->length) {
		free(w->data);
		w->offset = t->offset;
		w->length = t->bytes > WINDOW ? t->bytes : WINDOW;
		if (w->length > catalog->bytes - w->offset)
			w->length = catalog->bytes - w->offset;
		w->data = read_part(w->fd, w->offset, w->length, "catalog");
	}
	return w->data + (t->offset - w->offset);
}

static void note(
	struct found *f, struct needs *n, const char *name, const struct ckpt_catalog_box *box)
{
	if (f->boxes == n->room) {
		n->room = n->room ? 2 * n->room : 256;
		n->items = realloc(n->items, n->room * sizeof(*n->items));
		bench_must_os(n->items, "memory");
	}
	n->items[f->boxes++] = (struct need){.name = name,
		.rank = box->rank,
		.start = {box->start[0], box->start[1]},
		.shape = {box->shape[0], box->shape[1]}};
	note_rank(f, box->rank);
}

/* Rank `to / 2` of `to` needs its rows of every tensor: whom it has to ask. */
static void go_over(const struct options *o, const struct ckpt_layout_catalog *catalog, int fd,
	struct found *f, struct needs *n)
{
	int64_t first = rows_of(o) * (o->to / 2) / o->to;
	int64_t start[2] = {first, 0};
	int64_t shape[2] = {rows_of(o) * (o->to / 2 + 1) / o->to - first, LAYOUTS_COLUMNS};
	struct window window = {.fd = fd};

	for (size_t i = 0; i < catalog->tensor_count; i++) {
		const struct ckpt_catalog_tensor *t = &catalog->tensors[i];
		struct ckpt_catalog_list list;
		struct ckpt_catalog_walk walk;
		struct ckpt_catalog_box box;
		struct ckpt_error err = {0};

		bench_must(ckpt_catalog_open_list(catalog, t, list_bytes(&window, catalog, t),
				   "catalog", &err, &list),
			&err, "list");
		ckpt_catalog_walk_begin(&walk, &list, start, shape);
		while (ckpt_catalog_walk_next(&walk, &box))
			note(f, n, t->name, &box);
	}
	free(window.data);
}

/* What the index of a rank says of it is what the catalog has said. */
static void compare(const struct ckpt_index *index, const struct found *f, const struct needs *n)
{
	for (uint64_t i = 0; i < f->boxes; i++) {
		const struct need *need = &n->items[i];
		const struct ckpt_entry *e;

		if (need->rank != index->rank)
			continue;
		e = ckpt_layout_find(index->layout, need->name);
		bool same = e && memcmp(e->shape, need->shape, sizeof(need->shape)) == 0 &&
			    memcmp(e->global_start, need->start, sizeof(need->start)) == 0;
		bench_must(same ? 0 : CKPT_EINTEGRITY, NULL, "index and catalog");
	}
}

static struct ckpt_index *read_index(uint32_t rank)
{
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	uint64_t length;
	char path[64];

	index_path(path, rank);
	int fd = open_file(path, &length);
	char *data = read_part(fd, 0, length, path);
	bench_must(ckpt_index_decode(data, length, path, &err, &index), &err, "index");
	free(data);
	close(fd);
	return index;
}

/* From nothing to what the rank needs. The indexes are compared with the catalog where they are read. */
static struct found find_needs(const struct options *o, bool indexes)
{
	struct found f = {0};
	struct needs needs = {0};
	struct rusage usage;
	uint64_t length;
	uint64_t begun = bench_now_ns();

	read_manifest();
	f.manifest_ms = bench_ms_since(begun);
	int fd = open_file("layout.catalog", &length);
	struct ckpt_layout_catalog *catalog = read_root(fd, length);
	go_over(o, catalog, fd, &f, &needs);
	uint64_t found_ns = bench_now_ns();
	for (unsigned i = 0; indexes && i < f.ranks; i++) {
		struct ckpt_index *index = read_index(f.rank[i]);
		compare(index, &f, &needs);
		ckpt_index_free(index);
	}
	f.index_ms = f.ranks > 0 ? bench_ms_since(found_ns) / f.ranks : 0;
	f.all_ms = bench_ms_since(begun);
	ckpt_layout_catalog_free(catalog);
	free(needs.items);
	close(fd);
	bench_must_os(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	f.mib = (double)usage.ru_maxrss / 1024;
	return f;
}

static struct found find_apart(const struct options *o)
{
	struct found f = {0};
	char world[16];
	char to[16];
	char *argv[] = {"bench_open", "--find", ".", "--ranks", world, "--to", to, NULL};

	(void)snprintf(world, sizeof(world), "%u", o->world);
	(void)snprintf(to, sizeof(to), "%u", o->to);
	bench_apart(argv, &f, sizeof(f));
	return f;
}

static void drop_index(uint32_t rank)
{
	char path[64];

	index_path(path, rank);
	(void)bench_uncache(path);
}

static int by_time(const void *a, const void *b)
{
	double x = ((const struct found *)a)->all_ms;
	double y = ((const struct found *)b)->all_ms;

	return (x > y) - (x < y);
}

/* False: it has missed its mark. */
static bool measure(const struct options *o, enum layouts_cut cut, FILE *out, bool last)
{
	struct found runs[RUNS_MAX];
	uint64_t bytes = 0;
	double peak = 0;
	double build_ms = write_catalog(o, cut, &bytes);
	struct options again = *o;
	bool good = true;

	for (int other = 0; other < 2; other++) {
		again.to = other ? o->world * 3 / 4 : o->world;
		struct found needs = find_needs(&again, false);
		for (unsigned i = 0; i < needs.ranks; i++)
			write_index(o, cut, needs.rank[i]);
		for (unsigned i = 0; i < o->runs; i++) {
			bench_sync(".");
			(void)bench_uncache("manifest.json");
			(void)bench_uncache("layout.catalog");
			for (unsigned k = 0; k < needs.ranks; k++)
				drop_index(needs.rank[k]);
			runs[i] = find_apart(&again);
			peak = runs[i].mib > peak ? runs[i].mib : peak;
		}
		qsort(runs, o->runs, sizeof(runs[0]), by_time);
		const struct found *m = &runs[o->runs / 2];
		if (cut != LAYOUTS_UNEVEN)
			good = good && m->all_ms < MARK_MS && peak < MARK_MIB;
		printf("%-8s %u ranks of %u tensors, read by %u: %.0f ms (manifest %.0f), %.1f "
		       "MiB; "
		       "%" PRIu64 " boxes of %u ranks; the catalog has %.2f MiB, put together in "
		       "%.1f s; all indexes: %.0f s\n",
			layouts_names[cut], o->world, o->tensors, again.to, m->all_ms,
			m->manifest_ms, peak, m->boxes, m->ranks, (double)bytes / (1 << 20),
			build_ms / 1e3, m->index_ms * o->world / 1e3);
		if (out)
			fprintf(out,
				"  {\"cut\": \"%s\", \"readers\": %u, \"all_ms\": %.3f, "
				"\"manifest_ms\": %.3f, \"index_ms\": %.3f, \"mib\": %.3f, "
				"\"boxes\": "
				"%" PRIu64 ", \"asked\": %u, \"catalog_bytes\": %" PRIu64
				", \"build_ms\": %.3f}%s",
				layouts_names[cut], again.to, m->all_ms, m->manifest_ms,
				m->index_ms, peak, m->boxes, m->ranks, bytes, build_ms,
				last && other ? "\n" : ",\n");
	}
	return good;
}

static bool run(const struct options *o, FILE *out)
{
	bool good = true;

	if (out)
		fprintf(out,
			"{\"benchmark\": \"open\", \"ranks\": %u, \"tensors\": %u, \"runs\": [\n",
			o->world, o->tensors);
	write_manifest(o);
	for (int cut = 0; cut < LAYOUTS_CUTS; cut++)
		good = measure(o, (enum layouts_cut)cut, out, cut + 1 == LAYOUTS_CUTS) && good;
	if (out)
		fprintf(out, "], \"mark_ms\": %.0f, \"mark_mib\": %.0f, \"good\": %s}\n", MARK_MS,
			MARK_MIB, good ? "true" : "false");
	if (!good)
		fprintf(stderr, "bench_open: more than %.0f ms, or than %.0f MiB\n", MARK_MS,
			MARK_MIB);
	return good;
}

int main(int argc, char **argv)
{
	struct options o = {
		.common.dir = ".", .world = 16384, .to = 16384, .tensors = 1000, .runs = 9};
	const struct bench_option known[] = {
		{"ranks", "N", &o.world, LAYOUTS_STAGES, CKPT_WORLD_SAVING, 2048, NULL, NULL},
		{"tensors", "N", &o.tensors, LAYOUTS_STAGES, 1000000, 200, NULL, NULL},
		{"runs", "N", &o.runs, 1, RUNS_MAX, 3, NULL, NULL},
		{.name = "find", .text = &o.find},
		{.name = "to", .number = &o.to, .least = 1, .most = CKPT_WORLD_SAVING}, {0}};
	char dir[300];

	bench_parse(argc, argv, known, &o.common);
	if (o.world % LAYOUTS_STAGES != 0)
		bench_usage(known);
	if (o.find) {
		struct found f = find_needs(&o, true);
		return bench_give(&f, sizeof(f));
	}
	bench_scratch(o.common.dir, "open", dir, sizeof(dir));
	FILE *out = bench_json_open(o.common.json);
	int home = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bench_must_os(home >= 0 && chdir(dir) == 0, dir);
	bool good = run(&o, out);
	bench_must_os(fchdir(home) == 0, ".");
	bench_json_close(out);
	bench_scratch_remove(dir);
	return !good;
}
