/* SPDX-License-Identifier: Apache-2.0 */
#include "repair_scene.h"

#include "lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "lib/scratch.h"

static struct scene *watching;
static enum io_tap_way (*faults)(struct io_tap *tap, struct io_tap_req *r);
static void (*late_faults)(struct io_tap *tap, struct io_tap_req *r);

static enum io_tap_way before(struct io_tap *tap, struct io_tap_req *r)
{
	struct scene *s = watching;

	bool reads = r->req.op == CKPT_IO_OP_READ &&
		     (strstr(r->path, SHARD) || strstr(r->path, ".encoded"));
	bool far = reads && s->far[r->req.fd];
	s->far_read += far ? r->req.len : 0;
	if (far && s->holds)
		return IO_TAP_HOLD;
	if (far && s->far_code) {
		r->req.result = s->far_code;
		return IO_TAP_ANSWER;
	}
	if (reads && !far && s->dead && r->req.off <= s->dead &&
		s->dead < r->req.off + r->req.len) {
		r->req.result = s->dead_code;
		return IO_TAP_ANSWER;
	}
	if (r->req.op == CKPT_IO_OP_RENAME && strstr(r->req.new_path, INDEX)) {
		s->renames++;
		if (s->replaces)
			s->replaces(s, r->req.new_path);
	}
	return faults(tap, r);
}

static void after(struct io_tap *tap, struct io_tap_req *r)
{
	late_faults(tap, r);
	if (r->req.op == CKPT_IO_OP_OPEN && r->req.result >= 0) {
		assert_true(r->req.result < FILES);
		watching->far[r->req.result] = r->req.root == watching->rig.remote;
	}
}

char *load(const char *path, size_t *ret_bytes)
{
	FILE *file = fopen(path, "rb");
	struct stat st;

	if (!file)
		return NULL;
	assert_int_equal(fstat(fileno(file), &st), 0);
	char *data = malloc((size_t)st.st_size + 1);
	assert_int_equal(fread(data, 1, (size_t)st.st_size, file), (size_t)st.st_size);
	(void)fclose(file);
	*ret_bytes = (size_t)st.st_size;
	return data;
}

void store(const char *path, const char *bytes, size_t count)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, count, file), count);
	assert_int_equal(fclose(file), 0);
}

static void fixture(struct fixture_step *step, const char *dir, const struct ckpt_tensor *tensors)
{
	*step = (struct fixture_step){.dir = dir,
		.generation = 1,
		.step = 10,
		.tensors = tensors,
		.count = TENSORS,
		.chunk_bytes = CHUNK,
		.world = 1};
	assert_int_equal(mkdir(dir, 0777), 0);
	fixture_begin(dir);
	fixture_commit(step);
}

void set_up_with(struct scene *s, const struct ckpt_tensor *tensors)
{
	struct ckpt_error err;
	size_t size;

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	fixture(&s->here, s->local, tensors);
	fixture(&s->there, s->remote, tensors);
	assert_int_equal(ckpt_layout_build(tensors, TENSORS, NULL, 0, CHUNK, &err, &s->layout), 0);
	s->good = load(fixture_shard(&s->here, 0), &size);
	assert_int_equal(size, s->layout->bytes);
	s->index = load(fixture_index(&s->here, 0), &s->index_bytes);
	s->names = scratch_count(s->local);
}

int set_up(void **state)
{
	static const int64_t sizes[TENSORS] = {3000, 100001, 700};
	static const char *const names[TENSORS] = {"b", "w", "z"};
	static char bytes[TENSORS][100001];
	static struct ckpt_tensor tensors[TENSORS];
	struct scene *s = calloc(1, sizeof(*s));

	for (size_t i = 0; i < TENSORS; i++) {
		for (size_t k = 0; k < sizeof(bytes[i]); k++)
			bytes[i][k] = (char)((k + i * 77) * 2654435761u >> 13);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &sizes[i],
			.data = bytes[i]};
	}
	set_up_with(s, tensors);
	*state = s;
	return 0;
}

int tear_down(void **state)
{
	struct scene *s = *state;

	ckpt_layout_free(s->layout);
	free(s->good);
	free(s->index);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

void open_rig(struct scene *s)
{
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->local,
				       .remote = s->remote,
				       .block_bytes = s->block_bytes ? s->block_bytes : BLOCK,
				       .slots = 16});
	/* As on a disk that is read past the page cache. */
	s->rig.core.store->align = 4096;
	s->rig.core.upload_queue->dest->align = 4096;
	/* No process draws the attempts of another one. */
	s->rig.random = ++s->opened << 32;
	watching = s;
	s->far_read = 0;
	s->renames = 0;
	faults = s->rig.fault.tap.before;
	s->rig.fault.tap.before = before;
	late_faults = s->rig.fault.tap.after;
	s->rig.fault.tap.after = after;
}

int read_it(struct scene *s)
{
	return core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY);
}

bool holds(const char *path, const char *bytes, size_t count)
{
	size_t size;
	char *data = load(path, &size);
	bool same = data && size == count && memcmp(data, bytes, size) == 0;

	free(data);
	return same;
}

bool is_good(struct scene *s)
{
	char *dir = strdup(fixture_manifest(&s->here));
	bool shard = false;
	bool index = false;

	*strrchr(dir, '/') = 0;
	DIR *names = opendir(dir);
	for (struct dirent *e = readdir(names); e; e = readdir(names)) {
		const char *path = scratch_join(dir, e->d_name);

		if (e->d_name[0] == '.')
			continue;
		shard = shard || holds(path, s->good, s->layout->bytes) ||
			(s->encoded && holds(path, s->encoded, s->encoded_bytes));
		index = index || holds(path, s->index, s->index_bytes);
	}
	(void)closedir(names);
	free(dir);
	return shard && index;
}

void restore_files(struct scene *s)
{
	while (unlink(fixture_shard(&s->here, 0)) == 0)
		;
	while (unlink(fixture_index(&s->here, 0)) == 0)
		;
	for (const char *path; (path = scratch_find(s->local, ".encoded"));)
		assert_int_equal(unlink(path), 0);
	store(fixture_shard(&s->here, 0), s->good, s->layout->bytes);
	store(fixture_index(&s->here, 0), s->index, s->index_bytes);
}

bool has_note(struct scene *s)
{
	return access(fixture_quarantine(&s->here), F_OK) == 0;
}

void assert_mends(struct scene *s)
{
	open_rig(s);
	assert_true(read_it(s) < 0);
	assert_int_equal(s->rig.err.repaired, 1);
	assert_non_null(strstr(s->rig.err.message, "restore it again"));
	assert_null(strstr(s->rig.err.message, "use an older step"));
	assert_true(is_good(s));
	assert_int_equal(scratch_count(s->local), s->names);
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
}

void assert_fails(struct scene *s)
{
	size_t size;
	size_t size_now;
	char *old = load(fixture_shard(&s->here, 0), &size);

	open_rig(s);
	assert_true(read_it(s) < 0);
	assert_int_equal(s->rig.err.repaired, 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "cannot be repaired from "));
	assert_true(has_note(s));
	assert_int_equal(unlink(fixture_quarantine(&s->here)), 0);
	assert_int_equal(s->renames, 0);
	core_rig_close(&s->rig);
	char *now = load(fixture_shard(&s->here, 0), &size_now);
	assert_int_equal(old == NULL, now == NULL);
	if (old) {
		assert_int_equal(size, size_now);
		assert_memory_equal(old, now, size);
	}
	free(old);
	free(now);
}

void assert_hindered(struct scene *s)
{
	assert_int_equal(s->rig.err.repaired, 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "could not be repaired from "));
	assert_false(has_note(s));
	io_fault_clear(&s->rig.fault);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EQUARANTINED);
	assert_false(has_note(s));
}

void damage(struct scene *s, const struct fixture_step *step, size_t chunk, struct prng *prng)
{
	const struct ckpt_chunk *c = &s->layout->chunks[chunk];

	scratch_flip(fixture_shard(step, 0), (long)(c->offset + prng_below(prng, c->length)));
}
