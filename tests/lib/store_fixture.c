/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/store_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/catalog.h"
#include "format/index.h"
#include "format/sealed.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	abort();
}

static char *next_text(void)
{
	static char texts[16][1024];
	static unsigned next;

	return texts[next++ % 16];
}

static const char *below(const char *dir, const char *name)
{
	char *out = next_text();

	(void)snprintf(out, 1024, "%s/%s", dir, name);
	return out;
}

static void make_directory(const char *dir, const char *name)
{
	must(mkdir(below(dir, name), 0777) == 0 || errno == EEXIST, name);
}

static void write_file(const char *path, const void *data, size_t length)
{
	FILE *f = fopen(path, "wb");

	must(f != NULL, path);
	must(fwrite(data, 1, length, f) == length, path);
	must(fclose(f) == 0, path);
}

static void write_marker(const char *dir, const char *run_id, bool shared)
{
	struct ckpt_marker marker = {.shared = shared, .wall_ms = 1};
	struct ckpt_buf buf = {0};

	(void)snprintf(marker.run_id, sizeof(marker.run_id), "%s", run_id);
	must(ckpt_marker_encode(&marker, &buf) == 0, "marker");
	write_file(below(dir, CKPT_NAME_MARKER), buf.data, buf.len);
	ckpt_buf_free(&buf);
	make_directory(dir, CKPT_NAME_GENS);
}

void fixture_store(const char *dir, const char *run_id)
{
	write_marker(dir, run_id, true);
}

void fixture_node_store(const char *dir, const char *run_id)
{
	write_marker(dir, run_id, false);
}

static void write_claim(const char *dir, const char *run_id, uint64_t generation,
	uint64_t parent_generation, uint64_t parent_step, uint32_t world)
{
	struct ckpt_claim claim = {.generation = generation,
		.parent_generation = parent_generation,
		.parent_step = parent_step,
		.nonce = generation * 77,
		.world = world,
		.node = "crafted",
		.wall_ms = 2};
	struct ckpt_buf buf = {0};
	char name[CKPT_PATH_MAX];

	(void)snprintf(claim.run_id, sizeof(claim.run_id), "%s", run_id);
	must(ckpt_claim_encode(&claim, &buf) == 0, "claim");
	ckpt_name_claim(name, generation);
	write_file(below(dir, name), buf.data, buf.len);
	ckpt_buf_free(&buf);
	ckpt_name_generation(name, generation);
	make_directory(dir, name);
}

void fixture_claim(const char *dir, const char *run_id, uint64_t generation,
	uint64_t parent_generation, uint64_t parent_step)
{
	write_claim(dir, run_id, generation, parent_generation, parent_step, 1);
}

void fixture_claim_job(const char *dir, const char *run_id, uint64_t generation, uint32_t world)
{
	write_claim(dir, run_id, generation, 0, 0, world);
}

void fixture_begin(const char *dir)
{
	fixture_store(dir, FIXTURE_RUN);
	fixture_claim(dir, FIXTURE_RUN, 1, 0, 0);
}

static const struct ckpt_tensor *tensor_of(uint32_t dtype, size_t count, const void *data)
{
	static int64_t shape;
	static struct ckpt_tensor tensor;

	shape = (int64_t)count;
	tensor = (struct ckpt_tensor){.size = sizeof(tensor),
		.name = "w",
		.dtype = dtype,
		.ndim = 1,
		.shape = &shape,
		.data = data};
	return &tensor;
}

const struct ckpt_tensor *fixture_floats(size_t count)
{
	static float data[50000];

	must(count <= sizeof(data) / sizeof(data[0]), "room for floats");
	for (size_t i = 0; i < count; i++)
		data[i] = (float)i;
	return tensor_of(CKPT_F32, count, data);
}

const struct ckpt_tensor *fixture_bytes(size_t count)
{
	static char data[300000];

	must(count <= sizeof(data), "room for bytes");
	for (size_t i = 0; i < count; i++)
		data[i] = (char)(i * 2654435761u >> 13);
	return tensor_of(CKPT_U8, count, data);
}

struct fixture_step fixture_one(const char *dir, const struct ckpt_tensor *tensor)
{
	return (struct fixture_step){.dir = dir,
		.generation = 1,
		.step = 10,
		.tensors = tensor,
		.count = 1,
		.chunk_bytes = 16384,
		.world = 1};
}

static void attempt_of(const struct fixture_step *step, char out[CKPT_ATTEMPT_CHARS])
{
	ckpt_name_attempt(out, step->generation * 1000000 + step->step);
}

static void shard_name(const struct fixture_step *step, uint32_t rank, char *out)
{
	char attempt[CKPT_ATTEMPT_CHARS];

	attempt_of(step, attempt);
	ckpt_name_shard(out, step->generation, step->step, rank, attempt);
}

static void index_name(const struct fixture_step *step, uint32_t rank, char *out)
{
	char attempt[CKPT_ATTEMPT_CHARS];

	attempt_of(step, attempt);
	ckpt_name_index(out, step->generation, step->step, rank, attempt);
}

const char *fixture_shard_name(const struct fixture_step *step, uint32_t rank)
{
	char *name = next_text();

	shard_name(step, rank, name);
	return name;
}

const char *fixture_index_name(const struct fixture_step *step, uint32_t rank)
{
	char *name = next_text();

	index_name(step, rank, name);
	return name;
}

/* `name`, or of that directory another file of the rank and that kind. */
static const char *present(
	const struct fixture_step *step, uint32_t rank, enum ckpt_rank_file kind, const char *name)
{
	char directory[CKPT_PATH_MAX];
	char file[CKPT_PATH_MAX + 256];
	char attempt[CKPT_ATTEMPT_CHARS];
	const char *path = below(step->dir, name);
	enum ckpt_rank_file found_kind;
	uint32_t found;

	ckpt_name_step(directory, step->generation, step->step);
	DIR *dir = access(path, F_OK) == 0 ? NULL : opendir(below(step->dir, directory));
	for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
		if (ckpt_parse_rank_file(e->d_name, &found, &found_kind, attempt) &&
			found == rank && found_kind == kind) {
			(void)snprintf(file, sizeof(file), "%s/%s", directory, e->d_name);
			path = below(step->dir, file);
			break;
		}
	if (dir)
		(void)closedir(dir);
	return path;
}

const char *fixture_shard(const struct fixture_step *step, uint32_t rank)
{
	char name[CKPT_PATH_MAX];

	shard_name(step, rank, name);
	return present(step, rank, CKPT_RANK_SHARD, name);
}

const char *fixture_index(const struct fixture_step *step, uint32_t rank)
{
	char name[CKPT_PATH_MAX];

	index_name(step, rank, name);
	return present(step, rank, CKPT_RANK_INDEX, name);
}

const char *fixture_manifest(const struct fixture_step *step)
{
	char name[CKPT_PATH_MAX];

	ckpt_name_manifest(name, step->generation, step->step);
	return below(step->dir, name);
}

const char *fixture_quarantine(const struct fixture_step *step)
{
	char name[CKPT_PATH_MAX];

	ckpt_name_quarantine(name, step->generation, step->step);
	return below(step->dir, name);
}

/* The bytes of a shard: header, then tensors in their order. */
static char *make_shard(
	const struct fixture_rank *rank, const struct ckpt_layout *layout, bool turned)
{
	char *shard = malloc(layout->bytes);

	must(shard != NULL, "malloc");
	memcpy(shard, layout->header, layout->header_bytes);
	for (size_t i = 0; i < layout->entry_count; i++) {
		const struct ckpt_entry *e = &layout->entries[i];
		const char *from = rank->tensors[e->source].data;
		for (uint64_t k = 0; k < e->nbytes; k++)
			shard[e->offset + k] = (char)(turned ? ~from[k] : from[k]);
	}
	for (size_t i = 0; i < layout->chunk_count; i++)
		layout->chunks[i].digest =
			ckpt_digest_of(shard + layout->chunks[i].offset, layout->chunks[i].length);
	return shard;
}

static void write_rank(const struct fixture_step *step, struct ckpt_manifest_rank *record,
	struct ckpt_layout **ret_layout)
{
	struct fixture_rank same = {step->tensors, step->count, step->alias, step->meta};
	const struct fixture_rank *rank = step->ranks ? &step->ranks[record->rank] : &same;
	struct ckpt_layout *layout = NULL;
	struct ckpt_buf buf = {0};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_alias alias = {0};

	if (rank->alias)
		alias = (struct ckpt_alias){(char *)rank->alias, (char *)rank->tensors[0].name};
	if (ckpt_layout_build(rank->tensors, rank->count, &alias, rank->alias ? 1 : 0,
		    step->chunk_bytes, &err, &layout) < 0 ||
		!layout) {
		(void)fprintf(stderr, "craft: %s\n", err.message);
		abort();
	}
	char *shard = make_shard(rank, layout, !step->ranks && record->rank > 0);
	must(ckpt_index_encode(layout, record->rank, rank->meta,
		     rank->meta ? strlen(rank->meta) : 0, &buf, &err) == 0,
		"index");
	write_file(fixture_shard(step, record->rank), shard, layout->bytes);
	write_file(fixture_index(step, record->rank), buf.data, buf.len);
	record->index_digest = ckpt_digest_of(buf.data, buf.len);
	record->index_bytes = buf.len;
	record->shard_bytes = layout->bytes;
	if (step->node)
		(void)snprintf(record->node, sizeof(record->node), "%s", step->node);
	else
		(void)snprintf(record->node, sizeof(record->node), "node-%u", record->rank);
	attempt_of(step, record->attempt);
	free(shard);
	ckpt_buf_free(&buf);
	*ret_layout = layout;
}

/* Whose tensors a rank is said to hold. */
static uint32_t said_to_hold(const struct fixture_step *step, uint32_t rank)
{
	if (step->lie == step->world)
		return rank == step->world - 1 ? 0 : rank;
	return (rank + step->world - step->lie) % step->world;
}

static void write_catalog(const struct fixture_step *step, struct ckpt_layout **layouts,
	struct ckpt_manifest *manifest)
{
	struct ckpt_catalog_builder *builder = NULL;
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_buf buf = {0};
	char name[CKPT_PATH_MAX];

	must(ckpt_catalog_builder_new(step->world, NULL, &builder) == 0, "catalog");
	for (uint32_t i = 0; step->shrunk && i < step->world; i++)
		for (size_t k = 0; k < layouts[i]->entry_count; k++)
			layouts[i]->entries[k].shape[0]--;
	for (uint32_t i = 0; i < step->world; i++)
		must(ckpt_catalog_builder_add(builder, i, layouts[said_to_hold(step, i)], &err) ==
				0,
			err.message);
	must(ckpt_catalog_builder_finish(builder, &buf, &err, &manifest->catalog) == 0,
		err.message);
	manifest->catalog_bytes = buf.len;
	ckpt_name_catalog(name, step->generation, &manifest->catalog);
	write_file(below(step->dir, name), buf.data, buf.len);
	ckpt_buf_free(&buf);
	ckpt_catalog_builder_free(builder);
}

void fixture_commit(const struct fixture_step *step)
{
	struct ckpt_manifest manifest = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = FIXTURE_RUN,
		.generation = step->generation,
		.step = step->step,
		.wall_ms = 3,
		.world = step->world};
	struct ckpt_buf buf = {0};
	char name[CKPT_PATH_MAX];

	ckpt_name_step(name, step->generation, step->step);
	make_directory(step->dir, name);
	attempt_of(step, manifest.attempt);
	manifest.ranks = calloc(step->world, sizeof(*manifest.ranks));
	struct ckpt_layout **layouts = calloc(step->world, sizeof(struct ckpt_layout *));
	must(manifest.ranks != NULL && layouts != NULL, "calloc");
	for (uint32_t i = 0; i < step->world; i++) {
		manifest.ranks[i].rank = i;
		write_rank(step, &manifest.ranks[i], &layouts[i]);
		if (step->catalog)
			continue;
		ckpt_layout_free(layouts[i]);
		layouts[i] = NULL;
	}
	if (step->catalog)
		write_catalog(step, layouts, &manifest);
	for (uint32_t i = 0; i < step->world; i++)
		ckpt_layout_free(layouts[i]);
	free(layouts);
	must(ckpt_manifest_encode(&manifest, &buf) == 0, "manifest");
	write_file(fixture_manifest(step), buf.data, buf.len);
	ckpt_buf_free(&buf);
	free(manifest.ranks);
}

void fixture_abort(const char *dir, uint64_t generation, uint64_t step)
{
	struct ckpt_manifest manifest = {.kind = CKPT_MANIFEST_ABORT,
		.run_id = FIXTURE_RUN,
		.generation = generation,
		.step = step,
		.wall_ms = 3,
		.world = 1,
		.reason = "a test says so"};
	struct ckpt_buf buf = {0};
	char name[CKPT_PATH_MAX];

	ckpt_name_step(name, generation, step);
	make_directory(dir, name);
	ckpt_name_attempt(manifest.attempt, 5);
	must(ckpt_manifest_encode(&manifest, &buf) == 0, "manifest");
	ckpt_name_manifest(name, generation, step);
	write_file(below(dir, name), buf.data, buf.len);
	ckpt_buf_free(&buf);
}

void fixture_seal(struct ckpt_buf *buf, const char *path)
{
	ckpt_sealed_finish(buf);
	must(!buf->failed, "seal");
	write_file(path, buf->data, buf->len);
	ckpt_buf_free(buf);
}

void fixture_edit(const struct fixture_step *step, void (*edit)(struct ckpt_manifest *manifest))
{
	const char *path = fixture_manifest(step);
	struct ckpt_manifest manifest;
	struct ckpt_buf buf = {0};
	char text[65536];
	FILE *f = fopen(path, "rb");

	must(f != NULL, path);
	size_t length = fread(text, 1, sizeof(text), f);
	must(fclose(f) == 0, path);
	must(ckpt_manifest_decode(text, length, path, NULL, &manifest) == 0, "manifest");
	edit(&manifest);
	must(ckpt_manifest_encode(&manifest, &buf) == 0, "manifest");
	write_file(path, buf.data, buf.len);
	ckpt_buf_free(&buf);
	ckpt_manifest_clear(&manifest);
}
