/* SPDX-License-Identifier: Apache-2.0 */
#include "damage/victim.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/hang.h"
#include "lib/prng.h"
#include "lib/scratch.h"

static char *made; /* in memory: it must not stay there */

void victim_die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fputc('\n', stderr);
	if (made)
		scratch_remove(made);
	exit(1);
}

static void need(bool ok, const char *what)
{
	if (!ok)
		victim_die("%s: %s (%s)", what, strerror(errno), ckpt_last_error());
}

struct ckpt_engine *victim_engine(const struct victim *victim, uint32_t flags)
{
	struct ckpt_engine_opts opts = {.size = sizeof(opts),
		.flags = flags,
		.pool_bytes = 1,
		.block_bytes = 64 << 10,
		.copy_threads = 1,
		.io = CKPT_IO_THREADS,
		.log_level = CKPT_LOG_WARN,
		.save_timeout_ms = 2 * HANG_LIMIT_MS};
	struct ckpt_engine *engine = NULL;

	return ckpt_engine_open(victim->dir, &opts, &engine) < 0 ? NULL : engine;
}

/* The tensors. */

static void add_tensor(struct victim *v, const char *name, uint32_t dtype, unsigned width,
	int64_t count, struct prng *prng)
{
	struct victim_tensor *t = &v->tensor[v->tensors++];

	(void)snprintf(t->name, sizeof(t->name), "%s", name);
	t->dtype = dtype;
	t->count = count;
	t->bytes = (size_t)count * width;
	t->back = malloc(t->bytes + 1);
	need(t->back != NULL, "malloc");
	for (unsigned step = 1; step <= VICTIM_STEPS; step++) {
		t->want[step] = malloc(t->bytes + 1);
		need(t->want[step] != NULL, "malloc");
		for (size_t i = 0; i < t->bytes; i++)
			t->want[step][i] = (unsigned char)prng_next(prng);
	}
}

static void add_small(struct victim *v, struct prng *prng)
{
	add_tensor(v, "layers.0.weight", CKPT_F32, 4, 300, prng);
	add_tensor(v, "layers.0.bias", CKPT_F32, 4, 7, prng);
	add_tensor(v, "scale", CKPT_F64, 8, 1, prng);
	add_tensor(v, "mask", CKPT_BOOL, 1, 5, prng);
	add_tensor(v, "none", CKPT_F32, 4, 0, prng);
	add_tensor(v, "half", CKPT_BF16, 2, 33, prng);
}

static void add_large(struct victim *v, struct prng *prng)
{
	char name[48];

	for (unsigned i = 0; i < 48; i++) {
		int64_t most = i % 12 == 0 ? 500000 : i % 3 == 0 ? 30000 : 900;
		bool wide = prng_below(prng, 4) > 0;
		(void)snprintf(name, sizeof(name), "layers.%u.%s", i, wide ? "weight" : "codes");
		add_tensor(v, name, wide ? CKPT_F32 : CKPT_U8, wide ? 4 : 1,
			1 + (int64_t)prng_below(prng, (uint64_t)most), prng);
	}
	add_tensor(v, "head", CKPT_F32, 4, 600000, prng);
}

static struct ckpt_tensor describe(const struct victim_tensor *t, unsigned step)
{
	return (struct ckpt_tensor){.size = sizeof(struct ckpt_tensor),
		.name = t->name,
		.dtype = t->dtype,
		.ndim = 1,
		.shape = &t->count,
		.data = t->want[step]};
}

int victim_save(const struct victim *victim, struct ckpt_engine *engine, unsigned step, uint64_t as)
{
	struct ckpt_save *save = NULL;
	int r = ckpt_save_begin(engine, as, NULL, &save);

	for (unsigned i = 0; r == 0 && i < victim->tensors; i++) {
		struct ckpt_tensor tensor = describe(&victim->tensor[i], step);
		r = ckpt_save_add(save, &tensor, 1);
	}
	if (r == 0 && victim->alias)
		r = ckpt_save_add_alias(save, "tied", "layers.0.weight");
	if (r == 0)
		r = ckpt_save_set_meta(save, "{\"epoch\":3,\"seed\":[1,2]}", 24);
	if (r == 0)
		r = ckpt_save_start(save);
	if (r == 0)
		r = ckpt_save_wait(save, CKPT_LEVEL_LOCAL, HANG_LIMIT_MS);
	hang_unless(r != -ETIMEDOUT);
	ckpt_save_free(save);
	return r;
}

/* The chunks, from where the tensors are said to lie. */

static int by_offset(const void *a, const void *b)
{
	const struct victim_tensor *x = a;
	const struct victim_tensor *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static void cut(struct victim *v, uint64_t offset, uint64_t length, unsigned first)
{
	for (uint64_t at = 0; at < length; at += v->chunk_bytes) {
		uint64_t rest = length - at;
		need(v->chunks < VICTIM_CHUNKS, "more chunks than there is room for");
		v->chunk[v->chunks++] = (struct victim_chunk){.offset = offset + at,
			.length = rest < v->chunk_bytes ? rest : v->chunk_bytes,
			.first = first};
	}
}

static void find_chunks(struct victim *v)
{
	bool open = false;

	/* Offset 40 of an index, little-endian. */
	for (unsigned i = 0; i < v->files; i++)
		if (v->file[i].kind == VICTIM_INDEX)
			for (unsigned k = v->chunk_bytes ? 8 : 0; k < 8; k++)
				v->chunk_bytes |= (uint64_t)v->file[i].bytes[40 + k] << (8 * k);
	need(v->chunk_bytes > 0, "chunk_bytes");
	cut(v, 0, v->header_bytes, VICTIM_TENSORS);
	for (unsigned i = 0; i < v->tensors; i++) {
		const struct victim_tensor *t = &v->tensor[i];
		struct victim_chunk *last = &v->chunk[v->chunks - 1];
		if (t->bytes == 0)
			continue;
		if (open && t->bytes < v->chunk_bytes &&
			last->length + t->bytes <= v->chunk_bytes) {
			last->length += t->bytes;
			last->shared = true;
			continue;
		}
		cut(v, t->offset, t->bytes, i);
		open = t->bytes < v->chunk_bytes;
	}
}

static void find_offsets(struct victim *v)
{
	struct ckpt_engine *engine = victim_engine(v, CKPT_ENGINE_READ_ONLY);
	struct ckpt_restore *restore = NULL;

	need(engine && ckpt_restore_open(engine, 1, &restore) == 0, "restore_open");
	v->header_bytes = UINT64_MAX;
	for (unsigned i = 0; i < v->tensors; i++) {
		struct ckpt_tensor_info info = {.size = sizeof(info)};
		size_t at = 0;
		need(ckpt_restore_find(restore, v->tensor[i].name, &at) == 0, "find");
		need(ckpt_restore_tensor(restore, at, &info) == 0, "tensor");
		v->tensor[i].offset = info.offset;
		if (info.offset < v->header_bytes)
			v->header_bytes = info.offset;
	}
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	qsort(v->tensor, v->tensors, sizeof(v->tensor[0]), by_offset);
}

/* The files. */

static struct victim *loading;

static enum victim_kind kind_of(const char *path)
{
	if (strstr(path, "ckpt.json"))
		return VICTIM_MARKER;
	if (strstr(path, "gens/"))
		return VICTIM_CLAIM;
	if (strstr(path, "manifest.json"))
		return VICTIM_MANIFEST;
	return strstr(path, ".index") ? VICTIM_INDEX : VICTIM_SHARD;
}

static int load(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	struct victim *v = loading;

	(void)ftw;
	if (type != FTW_F)
		return 0;
	need(v->files < VICTIM_FILES, "more files than a store of two steps has");
	struct victim_file *f = &v->file[v->files++];
	(void)snprintf(f->path, sizeof(f->path), "%s", path + strlen(v->dir) + 1);
	f->kind = kind_of(f->path);
	const char *step = strstr(f->path, "/step-");
	f->step = step ? (unsigned)strtoul(step + 6, NULL, 10) : 0;
	f->size = f->now_size = (size_t)st->st_size;
	f->room = f->size;
	f->bytes = malloc(f->size + 1);
	f->now = malloc(f->size + 1);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	need(fd >= 0 && f->bytes && f->now, path);
	need(read(fd, f->bytes, f->size) == (ssize_t)f->size, path);
	memcpy(f->now, f->bytes, f->size);
	(void)close(fd);
	return 0;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct victim_file *)a)->path, ((const struct victim_file *)b)->path);
}

void victim_make(struct victim *victim, bool large, uint64_t seed)
{
	struct prng prng = {.state = seed};

	*victim = (struct victim){.dir = scratch_make_in_memory(), .alias = !large};
	made = victim->dir;
	if (large)
		add_large(victim, &prng);
	else
		add_small(victim, &prng);
	struct ckpt_engine *engine = victim_engine(victim, 0);
	need(engine != NULL, "engine_open");
	for (unsigned step = 1; step <= VICTIM_STEPS; step++)
		need(victim_save(victim, engine, step, step) == 0, "save");
	ckpt_engine_close(engine);
	find_offsets(victim);
	loading = victim;
	need(nftw(victim->dir, load, 16, FTW_PHYS) == 0, "nftw");
	need(victim->files == VICTIM_FILES, "fewer files than a store of two steps has");
	qsort(victim->file, victim->files, sizeof(victim->file[0]), by_path);
	find_chunks(victim);
}

void victim_free(struct victim *victim)
{
	scratch_remove(victim->dir);
	made = NULL;
	for (unsigned i = 0; i < victim->files; i++) {
		free(victim->file[i].bytes);
		free(victim->file[i].now);
	}
	for (unsigned i = 0; i < victim->tensors; i++) {
		free(victim->tensor[i].back);
		for (unsigned step = 1; step <= VICTIM_STEPS; step++)
			free(victim->tensor[i].want[step]);
	}
}

/* Damage. */

bool victim_differs(const struct victim_file *file)
{
	return file->gone || file->now_size != file->size ||
	       memcmp(file->now, file->bytes, file->size) != 0;
}

static void write_file(
	const char *path, const unsigned char *bytes, size_t from, size_t to, int flags)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);

	need(fd >= 0, path);
	need(pwrite(fd, bytes + from, to - from, (off_t)from) == (ssize_t)(to - from), path);
	(void)close(fd);
}

void victim_spoil(struct victim *victim, unsigned file, const void *bytes, size_t size)
{
	struct victim_file *f = &victim->file[file];
	const char *path = scratch_join(victim->dir, f->path);
	size_t from = 0;
	size_t to = size;
	int flags = O_TRUNC | O_CREAT;

	if (!f->gone && size == f->now_size) {
		const unsigned char *b = bytes;
		while (from < to && b[from] == f->now[from])
			from++;
		while (to > from && b[to - 1] == f->now[to - 1])
			to--;
		flags = 0;
	}
	if (size > f->room) {
		f->now = realloc(f->now, size + 1);
		need(f->now != NULL, "realloc");
		f->room = size;
	}
	memcpy(f->now + from, (const unsigned char *)bytes + from, to - from);
	f->now_size = size;
	f->gone = false;
	write_file(path, f->now, from, to, flags);
}

void victim_flip(struct victim *victim, unsigned file, size_t offset, unsigned char mask)
{
	struct victim_file *f = &victim->file[file];

	f->now[offset] ^= mask;
	write_file(scratch_join(victim->dir, f->path), f->now, offset, offset + 1, 0);
}

void victim_unlink(struct victim *victim, unsigned file)
{
	struct victim_file *f = &victim->file[file];

	need(unlink(scratch_join(victim->dir, f->path)) == 0, f->path);
	f->gone = true;
}

void victim_repair(struct victim *victim, unsigned file)
{
	victim_spoil(victim, file, victim->file[file].bytes, victim->file[file].size);
}

static int remove_below(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	return ftw->level == 0 ? 0 : type == FTW_DP ? rmdir(path) : unlink(path);
}

void victim_reset(struct victim *victim)
{
	need(nftw(victim->dir, remove_below, 16, FTW_DEPTH | FTW_PHYS) == 0, "nftw");
	for (unsigned i = 0; i < victim->files; i++) {
		char path[256];
		(void)snprintf(path, sizeof(path), "%s/%s", victim->dir, victim->file[i].path);
		for (char *p = path + strlen(victim->dir) + 1; (p = strchr(p, '/')); p++) {
			*p = 0;
			need(mkdir(path, 0755) == 0 || errno == EEXIST, path);
			*p = '/';
		}
		victim->file[i].gone = true;
		victim_repair(victim, i);
	}
}
