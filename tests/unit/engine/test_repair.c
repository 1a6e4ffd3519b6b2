/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that is damaged here, with a remote store that is damaged as well: every chunk that anybody has is found, none
 * is asked for in vain, and nothing that is here is lost for a better copy that does not come to be.
 */
#include "lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/copy/upload_queue.h"
#include "format/layout.h"
#include "config.h"
#include "lib/core_rig.h"
#include "lib/encode_fixture.h"
#include "lib/prng.h"
#include "lib/sanitized.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"
#include "staging/reader_quota.h"

#define TENSORS 3
#define CHUNK   5000
#define BLOCK   8192
#define FILES   1024
#define SHARD   ".safetensors"
#define INDEX   ".index"

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct fixture_step here;
	struct fixture_step there;
	struct ckpt_layout *layout;
	char *good;    /* the shard */
	char *index;   /* its index */
	char *encoded; /* another form of the shard that is as good; NULL: none */
	size_t encoded_bytes;
	size_t index_bytes;
	size_t names; /* files and directories here */
	struct core_rig rig;
	uint64_t opened;      /* rigs, so far */
	uint32_t block_bytes; /* 0: BLOCK */
	bool far[FILES];      /* by descriptor: a file of the remote store */
	uint64_t far_read;    /* bytes of its shards that were asked for */
	unsigned renames;     /* new indexes that got their name */
	char old[512];        /* a file that is there until the new ones are */
	bool holds;           /* what is asked of them waits */
	uint64_t dead;        /* a byte of the shard here that the disk cannot read; 0: none */
	int dead_code;        /* what it says of it */
	int far_code;         /* what asking the remote store for bytes comes to; 0: it has them */
	/* Asked when a new index is about to get its name. */
	void (*replaces)(struct scene *s, const char *path);
};

static struct scene *watching;
static enum io_tap_way (*faults)(struct io_tap *tap, struct io_tap_req *r);
static void (*late_faults)(struct io_tap *tap, struct io_tap_req *r);

static enum io_tap_way before(struct io_tap *tap, struct io_tap_req *r)
{
	struct scene *s = watching;

	bool reads = r->req.op == CKPT_IO_OP_READ && strstr(r->path, SHARD);
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

/* What a file holds, which is all of `bytes`; NULL: there is none. */
static char *load(const char *path, size_t *ret_bytes)
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

static void store(const char *path, const char *bytes, size_t count)
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

static int set_up(void **state)
{
	static const int64_t sizes[TENSORS] = {3000, 100001, 700};
	static const char *const names[TENSORS] = {"b", "w", "z"};
	static char bytes[TENSORS][100001];
	static struct ckpt_tensor tensors[TENSORS];
	struct scene *s = calloc(1, sizeof(*s));
	struct ckpt_error err;
	size_t size;

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
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	ckpt_layout_free(s->layout);
	free(s->good);
	free(s->index);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void open_rig(struct scene *s)
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

static int read_it(struct scene *s)
{
	return core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY);
}

static bool holds(const char *path, const char *bytes, size_t count)
{
	size_t size;
	char *data = load(path, &size);
	bool same = data && size == count && memcmp(data, bytes, size) == 0;

	free(data);
	return same;
}

/* Of whatever attempt. */
static bool is_good(struct scene *s)
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

/* The files are as they were written, whatever has become of them. */
static void restore_files(struct scene *s)
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

static bool has_note(struct scene *s)
{
	return access(fixture_quarantine(&s->here), F_OK) == 0;
}

/* Found, made whole, told, and good when it is asked for again. */
static void assert_mends(struct scene *s)
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

/* Said, quarantined, and nothing else is changed. The note is gone then. */
static void assert_fails(struct scene *s)
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

/*
 * What keeps it from being mended says nothing about the step: this process goes on to an older one, and nothing tells
 * the next one not to try.
 */
static void assert_hindered(struct scene *s)
{
	assert_int_equal(s->rig.err.repaired, 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "could not be repaired from "));
	assert_false(has_note(s));
	io_fault_clear(&s->rig.fault);
	assert_int_equal(
		core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), CKPT_EQUARANTINED);
	assert_false(has_note(s));
}

static void damage(
	struct scene *s, const struct fixture_step *step, size_t chunk, struct prng *prng)
{
	const struct ckpt_chunk *c = &s->layout->chunks[chunk];

	scratch_flip(fixture_shard(step, 0), (long)(c->offset + prng_below(prng, c->length)));
}

/* Chunks of every kind, the header's among them, on either side, and no more is asked for than is needed. */
static void test_any_mixture(void **state)
{
	struct scene *s = *state;
	unsigned headers = 0;

	for (uint64_t seed = 1; seed <= CASES(60); seed++) {
		struct prng prng = {seed};
		uint64_t lost = 0;
		size_t count = 0;
		uint64_t often = 2 + prng_below(&prng, 20);

		for (size_t i = 0; i < s->layout->chunk_count; i++) {
			uint64_t what = prng_below(&prng, often);
			if (what > 1)
				continue;
			damage(s, what ? &s->there : &s->here, i, &prng);
			lost += what ? 0 : s->layout->chunks[i].length;
			count += !what;
			headers += i == 0 && !what;
		}
		if (count > 0) {
			assert_mends(s);
			assert_int_equal(s->far_read, lost);
			assert_int_equal(s->renames, 1);
		}
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
	}
	assert_true(headers > 0);
}

/* One chunk that nobody has, among others. */
static void test_nobody_has_it(void **state)
{
	struct scene *s = *state;
	struct prng prng = {7};

	for (size_t i = 0; i < s->layout->chunk_count; i += 5) {
		damage(s, &s->here, i, &prng);
		damage(s, &s->here, (i + 2) % s->layout->chunk_count, &prng);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
		damage(s, &s->there, i, &prng);
		assert_fails(s);
		restore_files(s);
	}
}

/* A file that is cut anywhere, that is not there, and that was added to. */
static void test_lengths(void **state)
{
	struct scene *s = *state;
	static const long cuts[] = {0, 1, 4095, 4096, 4097, 9000, 50000, 103000, 103100};
	struct prng prng = {3};

	/* The first tensor's chunk is good here, where the file has it. */
	for (size_t i = 0; i < COUNT(cuts); i++) {
		assert_true((uint64_t)cuts[i] < s->layout->bytes);
		assert_int_equal(truncate(fixture_shard(&s->here, 0), cuts[i]), 0);
		assert_mends(s);
	}
	damage(s, &s->there, 1, &prng);
	assert_int_equal(truncate(fixture_shard(&s->here, 0), 50000), 0);
	assert_mends(s);
	/* Then it is needed from there. */
	assert_int_equal(truncate(fixture_shard(&s->here, 0), 5000), 0);
	assert_fails(s);
	assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
	assert_fails(s);
	restore_files(s);

	/* What was added is not needed from anywhere. */
	FILE *file = fopen(fixture_shard(&s->here, 0), "ab");
	assert_int_equal(fputs("more", file) >= 0, true);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	assert_mends(s);
	assert_int_equal(s->far_read, 0);
}

/* Of a file there that was cut, however little, it is said that it is short, and not that its bytes have changed. */
static void test_cut_there(void **state)
{
	struct scene *s = *state;
	static const long cuts[] = {1, 10, 4000, 5000};

	for (size_t i = 0; i < 2 * COUNT(cuts); i++) {
		damage(s, &s->here, s->layout->chunk_count - 1, &(struct prng){i + 1});
		assert_int_equal(
			truncate(fixture_shard(&s->there, 0), (long)s->layout->bytes - cuts[i / 2]),
			0);
		if (i % 2)
			assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
		open_rig(s);
		assert_true(read_it(s) < 0);
		assert_true(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "(CKPT_EINCOMPLETE)"));
		core_rig_close(&s->rig);
		assert_int_equal(unlink(fixture_quarantine(&s->here)), 0);
		restore_files(s);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
	}
}

/* The one there serves, for what is here. */
static void test_index(void **state)
{
	struct scene *s = *state;
	struct prng prng = {5};

	for (unsigned round = 0; round < 4; round++) {
		if (round % 2)
			assert_int_equal(unlink(fixture_index(&s->here, 0)), 0);
		else
			scratch_flip(fixture_index(&s->here, 0), 100);
		if (round > 1)
			damage(s, &s->here, 4, &prng);
		assert_mends(s);
		assert_int_equal(s->far_read, round > 1 ? s->layout->chunks[4].length : 0);
		assert_int_equal(s->renames, 1);
	}
	scratch_flip(fixture_index(&s->here, 0), 100);
	scratch_flip(fixture_index(&s->there, 0), 100);
	assert_fails(s);
	assert_int_equal(unlink(fixture_index(&s->there, 0)), 0);
	assert_fails(s);
}

/* The remote store says that it has no such file. */
static void test_not_there(void **state)
{
	struct scene *s = *state;
	struct prng prng = {23};

	damage(s, &s->here, 4, &prng);
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	assert_fails(s);
	assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
	assert_fails(s);
}

#if CKPT_HAVE_CODEC
/* Encoded shards: one here, with a plain one there; one there, which comes as it is; and one here that is cut. */
static void test_encoded(void **state)
{
	struct scene *s = *state;
	struct prng prng = {29};
	struct encode_fixture made;

	encode_fixture_rank(&s->here, 0, &prng, &made);
	scratch_flip(encode_fixture_path(&s->here, 0), made.middle);
	assert_mends(s);
	assert_true(s->far_read > 0 && s->far_read < s->layout->bytes / 4);
	encode_fixture_rank(&s->there, 0, &prng, &made);
	s->encoded = load(encode_fixture_path(&s->there, 0), &s->encoded_bytes);
	damage(s, &s->here, 4, &prng);
	assert_mends(s);
	restore_files(s);
	encode_fixture_rank(&s->here, 0, &prng, &made);
	assert_int_equal(truncate(encode_fixture_path(&s->here, 0), (off_t)made.bytes / 2), 0);
	assert_mends(s);
	free(s->encoded);
}
#endif
/* What disks and file systems say of bytes that they cannot give. */
static const int dead_codes[] = {-EIO, -ENODATA, -EILSEQ, -EBADMSG, -EUCLEAN};

/* A disk that cannot read some of it: of a whole block only the chunks that it cannot. */
static void test_unreadable(void **state)
{
	struct scene *s = *state;
	struct prng prng = {11};

	s->block_bytes = 65536;
	s->dead = s->layout->chunks[10].offset + 2000;
	/* What is aligned may have to do with the chunks beside it. */
	for (size_t i = 0; i < s->layout->chunk_count; i++)
		if (i < 9 || i > 11)
			damage(s, &s->there, i, &prng);
	for (size_t i = 0; i < COUNT(dead_codes); i++) {
		s->dead_code = dead_codes[i];
		scratch_flip(fixture_index(&s->here, 0), 100);
		open_rig(s);
		assert_true(read_it(s) < 0);
		assert_int_equal(s->rig.err.repaired, 1);
		assert_true(is_good(s));
		assert_true(s->far_read >= CHUNK && s->far_read <= 3 * CHUNK);
		core_rig_close(&s->rig);
	}
	/* It may read them the next time, so they are not lost. */
	for (size_t i = 9; i <= 11; i++)
		damage(s, &s->there, i, &prng);
	scratch_flip(fixture_index(&s->here, 0), 100);
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	core_rig_close(&s->rig);
	s->dead = 0;
	assert_mends(s);
}

/* The new file lies elsewhere on the disk. */
static void move_away(struct scene *s, const char *path)
{
	(void)path;
	s->dead = 0;
}

/* All that is wrong is that the disk cannot read some of it: if it cannot be mended, that is no damage either. */
static void test_unreadable_alone(void **state)
{
	struct scene *s = *state;
	uint64_t dead = s->layout->chunks[10].offset + 2000;

	s->replaces = move_away;
	for (size_t i = 0; i < COUNT(dead_codes); i++) {
		s->dead = dead;
		s->dead_code = dead_codes[i];
		s->far_code = CKPT_ENETWORK;
		open_rig(s);
		assert_int_equal(read_it(s), dead_codes[i]);
		assert_int_equal(s->rig.err.repaired, 0);
		assert_true(
			core_rig_logged(&s->rig, CKPT_LOG_ERROR, "could not be repaired from "));
		assert_int_equal(
			core_rig_read(&s->rig, CKPT_STEP_LATEST, CKPT_SINK_MEMORY), dead_codes[i]);
		assert_false(has_note(s));
		s->far_code = 0;
		s->far_read = 0;
		assert_int_equal(read_it(s), dead_codes[i]);
		assert_int_equal(s->rig.err.repaired, 1);
		assert_non_null(strstr(s->rig.err.message, "restore it again"));
		assert_true(s->far_read >= CHUNK && s->far_read <= 3 * CHUNK);
		assert_int_equal(s->renames, 1);
		assert_int_equal(read_it(s), 0);
		core_rig_close(&s->rig);
		assert_true(is_good(s));
		assert_int_equal(scratch_count(s->local), s->names);
	}
	s->dead = dead;
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	open_rig(s);
	assert_int_equal(read_it(s), s->dead_code);
	assert_int_equal(s->rig.err.repaired, 0);
	core_rig_close(&s->rig);
	assert_false(has_note(s));
}

static bool was_whole;

/* The new shard is whole then, under a name that was never used, and the old files are there. */
static void look_before(struct scene *s, const char *path)
{
	char shard[512];

	(void)snprintf(shard, sizeof(shard), "%s/%.*s" SHARD, s->local,
		(int)(strlen(path) - strlen(INDEX)), path);
	was_whole = holds(shard, s->good, s->layout->bytes);
	assert_null(strstr(shard, fixture_shard_name(&s->here, 0)));
	assert_int_equal(access(s->old, F_OK), 0);
}

/* A process that ends there leaves the one or the other; what an earlier one has left goes. */
static void test_order(void **state)
{
	struct scene *s = *state;
	struct prng prng = {13};
	char path[256];

	damage(s, &s->here, 4, &prng);
	(void)snprintf(s->old, sizeof(s->old), "%s", fixture_shard(&s->here, 0));
	(void)snprintf(path, sizeof(path), "/g000001/step-0000000010/rank-00000.0123456789abcdef%s",
		SHARD);
	scratch_put(s->local, path, "the half of it");
	s->replaces = look_before;
	was_whole = false;
	assert_mends(s);
	assert_true(was_whole);
}

#define OTHER "00000000000000ff"

/* The remote store has the rank's good files under another attempt: it was repaired there, or sent a second time. */
static void name_anew(const struct fixture_step *step)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, 0, OTHER);
	assert_int_equal(rename(fixture_shard(step, 0), scratch_join(step->dir, path)), 0);
	ckpt_name_index(path, 1, 10, 0, OTHER);
	assert_int_equal(rename(fixture_index(step, 0), scratch_join(step->dir, path)), 0);
}

/* A file of the name that the manifest has, which nothing has been written to, as an upload that was killed leaves it. */
static void leave_there(struct scene *s, uint64_t bytes)
{
	const char *path = scratch_join(s->remote, fixture_shard_name(&s->there, 0));

	store(path, "", 0);
	assert_int_equal(truncate(path, (off_t)bytes), 0);
}

/* What is bad there of one file is had from another one. The step is lost when there is none. */
static void test_leftover_there(void **state)
{
	struct scene *s = *state;
	const uint64_t sizes[] = {s->layout->bytes, s->layout->bytes - 1, s->layout->bytes + 1, 0};
	char good[512];

	name_anew(&s->there);
	(void)snprintf(good, sizeof(good), "%s", fixture_shard(&s->there, 0));
	for (size_t i = 0; i < 3 * COUNT(sizes); i++) {
		leave_there(s, sizes[i / 3]);
		if (i % 3 == 0)
			assert_int_equal(unlink(fixture_shard(&s->here, 0)), 0);
		else
			damage(s, &s->here, i, &(struct prng){i + 1});
		if (i % 3 == 2)
			scratch_flip(fixture_index(&s->here, 0), 100);
		assert_mends(s);
	}
	/* What is needed is bad in each of them. */
	leave_there(s, s->layout->bytes);
	damage(s, &s->here, 4, &(struct prng){1});
	scratch_flip(good, (long)s->layout->chunks[4].offset);
	assert_fails(s);
	/* One that the disk there cannot read is not lost. */
	s->far_code = -EIO;
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	core_rig_close(&s->rig);
}

/* A good shard of another attempt here. */
static void put_other(struct scene *s)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, 0, OTHER);
	store(scratch_join(s->local, path), s->good, s->layout->bytes);
}

/* The rank has several files here: one that is whole serves, and else the one with the fewest bad chunks. */
static void test_files_here(void **state)
{
	struct scene *s = *state;
	char other[512];

	for (unsigned i = 0; i < 6; i++) {
		unsigned bad_own = i % 3 == 1 ? 1 : 3;
		unsigned bad_other = i % 3 == 2 ? 1 : 3;

		put_other(s);
		(void)snprintf(other, sizeof(other), "%s", scratch_find(s->local, OTHER SHARD));
		scratch_flip(fixture_index(&s->here, 0), 100);
		for (unsigned k = 0; k < bad_own; k++)
			damage(s, &s->here, 2 + k, &(struct prng){i + 1});
		for (unsigned k = 0; i % 3 && k < bad_other; k++)
			scratch_flip(other, (long)s->layout->chunks[12 + k].offset);
		/* What is bad in the worse one cannot be had from there, either. */
		size_t lost = i % 3 == 1 ? 12 : 2;
		damage(s, &s->there, lost + 1, &(struct prng){i + 1});
		/* The one that was opened last is of another size: it is of no use. */
		if (i > 2)
			scratch_put(s->local,
				"/g000001/step-0000000010/rank-00000.ffffffffffffffff" SHARD,
				"the half of it");
		assert_mends(s);
		assert_int_equal(s->far_read, i % 3 ? s->layout->chunks[14 - lost].length : 0);
		damage(s, &s->there, lost + 1, &(struct prng){i + 1});
		restore_files(s);
	}
}

/* Somebody else has repaired it meanwhile: his files came after the step was listed. */
static void repair_meanwhile(struct scene *s, const char *path)
{
	char name[CKPT_PATH_MAX];

	(void)path;
	put_other(s);
	ckpt_name_index(name, 1, 10, 0, OTHER);
	store(scratch_join(s->local, name), s->index, s->index_bytes);
	s->replaces = NULL;
}

/* A later job has claimed the store. */
static void claim_meanwhile(struct scene *s, const char *path)
{
	(void)path;
	fixture_claim(s->local, FIXTURE_RUN, 2, 1, 10);
	s->replaces = NULL;
}

/* Of two that repair it at once each removes only what was there before both; after a later claim nothing is removed. */
static void test_two_at_once(void **state)
{
	struct scene *s = *state;
	char old[512];

	damage(s, &s->here, 4, &(struct prng){1});
	(void)snprintf(old, sizeof(old), "%s", fixture_shard(&s->here, 0));
	s->replaces = repair_meanwhile;
	s->names += 2;
	assert_mends(s);
	assert_int_not_equal(access(old, F_OK), 0);
	assert_non_null(scratch_find(s->local, OTHER SHARD));
	assert_non_null(scratch_find(s->local, OTHER INDEX));
}

static void test_claimed_meanwhile(void **state)
{
	struct scene *s = *state;

	damage(s, &s->here, 4, &(struct prng){1});
	(void)snprintf(s->old, sizeof(s->old), "%s", fixture_shard(&s->here, 0));
	s->replaces = claim_meanwhile;
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.repaired, 1);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "generation 2 has taken over"));
	assert_int_equal(access(s->old, F_OK), 0);
	/* The new files, the claim, and the directory that it comes with. */
	assert_int_equal(scratch_count(s->local), s->names + 2 + 2);
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
}

/* Whichever request fails, what is here is as good as before or better, and the next one mends it. */
static void test_every_failure(void **state)
{
	struct scene *s = *state;
	unsigned repaired = 0;
	unsigned failed = 0;

	for (unsigned n = 1;; n++) {
		struct prng prng = {n};

		damage(s, &s->here, 3, &prng);
		damage(s, &s->there, 4, &prng);
		scratch_flip(fixture_index(&s->here, 0), 100);
		open_rig(s);
		s->rig.fault.fail_error = -EIO;
		s->rig.fault.fail_at = s->rig.fault.requests + n;
		int r = read_it(s);
		bool reached = s->rig.fault.requests >= s->rig.fault.fail_at;
		assert_true(r < 0);
		repaired += s->rig.err.repaired;
		failed += !s->rig.err.repaired;
		assert_true(!s->rig.err.repaired || is_good(s));
		s->rig.fault.fail_at = 0;
		assert_false(has_note(s));
		if (r == CKPT_EINTEGRITY && !s->rig.err.repaired)
			assert_hindered(s);
		core_rig_close(&s->rig);
		if (!is_good(s))
			assert_mends(s);
		damage(s, &s->there, 4, &(struct prng){n});
		restore_files(s);
		if (!reached)
			break;
	}
	assert_true(repaired > 5 && failed > 5);
}

/* Its own disk is full, somebody else has the store, and the bucket does not answer or will not. */
static void test_hindrances(void **state)
{
	struct scene *s = *state;
	static const int far_codes[] = {CKPT_ENETWORK, CKPT_EAUTH, -ETIMEDOUT, -EIO};
	static const struct io_fault_rule rules[] = {
		{.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC},
		{.op = CKPT_IO_OP_OPEN, .path = CKPT_STORE_TEMP, .error = -EACCES},
		{.op = CKPT_IO_OP_OPEN, .path = CKPT_STORE_TEMP, .error = -ENOENT},
		{.op = CKPT_IO_OP_WRITE, .path = CKPT_STORE_TEMP, .error = -EDQUOT},
		{.op = CKPT_IO_OP_WRITE, .path = CKPT_STORE_TEMP, .error = -EFBIG},
		{.op = CKPT_IO_OP_FDATASYNC, .error = -EIO},
		{.op = CKPT_IO_OP_RENAME, .error = -ENOENT},
		{.op = CKPT_IO_OP_SYNC_DIR, .path = "step-", .error = -EIO},
	};

	for (size_t i = 0; i < COUNT(rules) + COUNT(far_codes); i++) {
		damage(s, &s->here, 4, &(struct prng){i + 1});
		open_rig(s);
		if (i < COUNT(rules))
			(void)io_fault_add(&s->rig.fault, rules[i]);
		else
			s->far_code = far_codes[i - COUNT(rules)];
		assert_int_equal(read_it(s), CKPT_EINTEGRITY);
		assert_true(i >= COUNT(rules) || s->rig.fault.hits[0] > 0);
		s->far_code = 0;
		assert_hindered(s);
		core_rig_close(&s->rig);
		assert_int_equal(scratch_count(s->local), s->names);
		if (!is_good(s))
			assert_mends(s);
	}
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;
	struct prng prng = {17};
	bool done = false;

	for (size_t n = 1; !done; n++) {
		damage(s, &s->here, 3, &prng);
		open_rig(s);
		core_rig_count_allocations(&s->rig, n);
		int r = read_it(s);
		done = core_rig_allocations(&s->rig) < n;
		assert_true(r < 0);
		assert_true(!s->rig.err.repaired || is_good(s));
		assert_int_equal(s->rig.err.repaired || !done, true);
		/* Old files that could not be removed do no harm. */
		assert_true(scratch_count(s->local) == s->names || s->rig.err.repaired);
		core_rig_close(&s->rig);
		assert_false(has_note(s));
		restore_files(s);
	}
}

/* One that was given up says nothing about the step: the next restore mends it. */
static void test_cancelled(void **state)
{
	struct scene *s = *state;
	struct prng prng = {19};

	/* The index, too: it is found before anything is bound. */
	scratch_flip(fixture_index(&s->here, 0), 100);
	damage(s, &s->here, 4, &prng);
	open_rig(s);
	s->holds = true;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(s->rig.core.repairing);
	assert_non_null(s->rig.fault.tap.held);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	s->holds = false;
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
	assert_false(s->rig.core.repairing);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_ERROR, "cannot be repaired from "));
	assert_false(is_good(s));
	assert_true(read_it(s) < 0);
	assert_int_equal(s->rig.err.repaired, 1);
	assert_true(is_good(s));
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
	assert_int_equal(scratch_count(s->local), s->names);
}

/* One that waits for staging memory, which others have, gives up at once. */
static void test_cancelled_without_memory(void **state)
{
	struct scene *s = *state;
	struct ckpt_task nobody = {0};
	struct ckpt_reader_quota others = {0};
	struct ckpt_slot *slots[16];
	size_t count = 0;

	scratch_flip(fixture_index(&s->here, 0), 100);
	open_rig(s);
	ckpt_reader_quota_join(&others, s->rig.pool, &nobody);
	while ((slots[count] = ckpt_reader_quota_get(&others)) != NULL)
		count++;
	assert_true(count > 0);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(s->rig.core.repairing);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_false(s->rig.core.repairing);
	while (count > 0)
		ckpt_reader_quota_put(&others, slots[--count]);
	ckpt_reader_quota_leave(&others);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
	core_rig_close(&s->rig);
	assert_false(has_note(s));
	assert_mends(s);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_any_mixture),
		SCENE(test_nobody_has_it),
		SCENE(test_lengths),
		SCENE(test_cut_there),
		SCENE(test_index),
		SCENE(test_not_there),
#if CKPT_HAVE_CODEC
		SCENE(test_encoded),
#endif
		SCENE(test_unreadable),
		SCENE(test_unreadable_alone),
		SCENE(test_order),
		SCENE(test_leftover_there),
		SCENE(test_files_here),
		SCENE(test_two_at_once),
		SCENE(test_claimed_meanwhile),
		SCENE(test_every_failure),
		SCENE(test_hindrances),
		SCENE(test_no_memory),
		SCENE(test_cancelled),
		SCENE(test_cancelled_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
