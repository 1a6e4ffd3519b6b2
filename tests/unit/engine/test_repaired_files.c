/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a rank whose attempt is not the one that the manifest names, as a repair leaves them: they are found by a
 * listing of the step, wherever the step is read, verified, copied, sent, or looked for.
 */
#include "lib/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "engine/lineage/rank_files.h"
#include "engine/restore/restore_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define WORLD   4
#define WIDE    30000
#define BLOCK   8192 /* a shard has many, of which some have arrived when a later one is bad */
#define ATTEMPT "00000000000000ff"
#define OTHER   "00000000000000fe"
#define STEP    "g000001/step-0000000010"

struct scene {
	char *dir;
	char dest[512];
	struct core_rig rig;
	struct fixture_step step;
	struct fixture_rank ranks[WORLD];
	struct ckpt_tensor tensors[WORLD];
	float own[WORLD][WIDE];
	float out[WORLD][WIDE];
};

static const int64_t shape[1] = {WIDE};
static const char *const names[WORLD] = {"own.0", "own.1", "own.2", "own.3"};

static void on_two_nodes(struct ckpt_manifest *manifest)
{
	for (uint32_t i = 0; i < manifest->world; i++)
		(void)snprintf(manifest->ranks[i].node, sizeof(manifest->ranks[i].node), "%s",
			i < WORLD / 2 ? "a" : "b");
}

/* Step 10 of four ranks, each of which alone has its tensor: nobody else can stand in for it. */
static void make(struct scene *s, void (*make_store)(const char *dir, const char *run_id))
{
	for (uint32_t i = 0; i < WORLD; i++) {
		for (unsigned k = 0; k < WIDE; k++)
			s->own[i][k] = (float)(i * WIDE + k);
		s->tensors[i] = (struct ckpt_tensor){.size = sizeof(s->tensors[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 1,
			.shape = shape,
			.data = s->own[i]};
		s->ranks[i] = (struct fixture_rank){.tensors = &s->tensors[i], .count = 1};
	}
	s->dir = scratch_make_in_memory();
	(void)snprintf(s->dest, sizeof(s->dest), "%s/dest", s->dir);
	make_store(s->dir, FIXTURE_RUN);
	fixture_claim(s->dir, FIXTURE_RUN, 1, 0, 0);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.chunk_bytes = BLOCK,
		.world = WORLD,
		.ranks = s->ranks};
	fixture_commit(&s->step);
	fixture_edit(&s->step, on_two_nodes);
}

static int setup(void **state)
{
	*state = calloc(1, sizeof(struct scene));
	make(*state, fixture_store);
	return 0;
}

static int setup_node(void **state)
{
	*state = calloc(1, sizeof(struct scene));
	make(*state, fixture_node_store);
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void copy(const char *from, const char *to)
{
	static char data[WIDE * sizeof(float) + 65536];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	assert_true(in >= 0 && out >= 0);
	ssize_t n = read(in, data, sizeof(data));
	assert_true(n > 0 && n < (ssize_t)sizeof(data));
	assert_int_equal(write(out, data, (size_t)n), n);
	(void)close(in);
	(void)close(out);
}

static const char *shard_of(const struct scene *s, uint32_t rank, const char *attempt)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_shard(path, 1, 10, rank, attempt);
	return scratch_join(s->dir, path);
}

static const char *index_of(const struct scene *s, uint32_t rank, const char *attempt)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_index(path, 1, 10, rank, attempt);
	return scratch_join(s->dir, path);
}

/* The rank has good files of that attempt, beside its own. */
static void put(const struct scene *s, uint32_t rank, const char *attempt)
{
	copy(fixture_shard(&s->step, rank), shard_of(s, rank, attempt));
	copy(fixture_index(&s->step, rank), index_of(s, rank, attempt));
}

/* The rank was repaired: it has files of that attempt in the place of its own. */
static void repair(const struct scene *s, uint32_t rank, const char *attempt)
{
	put(s, rank, attempt);
	assert_int_equal(unlink(fixture_shard(&s->step, rank)), 0);
	assert_int_equal(unlink(fixture_index(&s->step, rank)), 0);
}

static void open_rig(struct scene *s)
{
	core_rig_open(&s->rig,
		&(struct core_rig_config){.dir = s->dir, .block_bytes = BLOCK, .slots = 4});
}

static bool is_quarantined(const struct scene *s)
{
	return access(fixture_quarantine(&s->step), F_OK) == 0;
}

static void want(struct scene *s, struct ckpt_restore *r, uint32_t from, uint32_t to)
{
	memset(s->out, 0, sizeof(s->out));
	for (uint32_t i = from; i < to; i++) {
		struct ckpt_target target = {
			.size = sizeof(target), .name = names[i], .data = s->out[i]};
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	}
}

/* Everything of the ranks `from` to `to` - 1, into s->out. */
static int read_ranks(struct scene *s, uint32_t from, uint32_t to)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	uint64_t done;
	uint64_t total;

	if (!(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED))
		return core_rig_end(&s->rig, r);
	want(s, r, from, to);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	ckpt_restore_counters(r, &done, &total);
	int code = core_rig_end(&s->rig, r);
	if (code == 0) {
		assert_memory_equal(s->out[from], s->own[from], (to - from) * sizeof(s->own[0]));
		assert_int_equal(done, total);
	}
	return code;
}

static int export(struct scene *s)
{
	return core_rig_export(&s->rig, 10, s->dest);
}

/* All that may be done with a step that is good, without a word in the log. */
static void check_good(struct scene *s)
{
	open_rig(s);
	assert_int_equal(read_ranks(s, 0, WORLD), 0);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	assert_int_equal(export(s), 0);
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, ""));
	assert_false(is_quarantined(s));
	core_rig_close(&s->rig);
	core_rig_open(&s->rig, &(struct core_rig_config){.dir = s->dest, .read_only = true});
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&s->rig);
}

/* The names in a listing. */

static void test_names(void **state)
{
	static const char all[] = "manifest.json\0"
				  "rank-00000." ATTEMPT ".index\0"
				  "rank-00001." OTHER ".index\0"
				  "rank-00001." OTHER ".safetensors\0"
				  "rank-00001." ATTEMPT ".index\0"
				  "rank-00001." ATTEMPT ".index.tmp-0123456789abcdef\0"
				  "rank-00002." ATTEMPT ".index\0"
				  "rank-00002." OTHER ".safetensors\0"
				  "rank-10000." ATTEMPT ".safetensors\0"
				  "rank-100000." ATTEMPT ".index\0"
				  "rank-999999." ATTEMPT ".safetensors";
	struct ckpt_buf buf = {.data = (char *)all, .len = sizeof(all)};
	struct ckpt_rank_files files = {0};
	struct ckpt_listing listing;
	char attempt[CKPT_ATTEMPT_CHARS] = "";

	(void)state;
	assert_int_equal(ckpt_listing_sort(&buf, 11, &listing), 0);
	assert_int_equal(ckpt_rank_files_take(&files, &listing), 0);
	assert_null(listing.names);
	assert_int_equal(files.count, 9);
	assert_true(ckpt_rank_files_has(&files, 0, CKPT_RANK_INDEX));
	assert_false(ckpt_rank_files_has(&files, 0, CKPT_RANK_SHARD));
	assert_true(ckpt_rank_files_has_both(&files, 1));
	/* Of two attempts: neither is whole. */
	assert_true(ckpt_rank_files_has(&files, 2, CKPT_RANK_INDEX));
	assert_true(ckpt_rank_files_has(&files, 2, CKPT_RANK_SHARD));
	assert_false(ckpt_rank_files_has_both(&files, 2));
	assert_true(ckpt_rank_files_has(&files, 10000, CKPT_RANK_SHARD));
	assert_false(ckpt_rank_files_has(&files, 10000, CKPT_RANK_INDEX));
	assert_true(ckpt_rank_files_has(&files, 100000, CKPT_RANK_INDEX));
	assert_true(ckpt_rank_files_has(&files, 999999, CKPT_RANK_SHARD));
	assert_false(ckpt_rank_files_has(&files, 3, CKPT_RANK_INDEX));
	assert_false(ckpt_rank_files_has(&files, 100001, CKPT_RANK_INDEX));
	assert_true(ckpt_rank_files_next(&files, 1, CKPT_RANK_INDEX, attempt));
	assert_string_equal(attempt, OTHER);
	assert_true(ckpt_rank_files_next(&files, 1, CKPT_RANK_INDEX, attempt));
	assert_string_equal(attempt, ATTEMPT);
	assert_false(ckpt_rank_files_next(&files, 1, CKPT_RANK_INDEX, attempt));
	ckpt_rank_files_clear(&files);
	assert_false(ckpt_rank_files_has(&files, 0, CKPT_RANK_INDEX));
}

/* Reading. */

/* Any ranks, or all: nothing is said, and the step is listed once for the ranks together. */
static void test_repaired(void **state)
{
	struct scene *s = *state;

	repair(s, 1, ATTEMPT);
	check_good(s);
	scratch_remove(strdup(s->dest));
	repair(s, 0, ATTEMPT);
	repair(s, 2, OTHER);
	repair(s, 3, ATTEMPT);
	check_good(s);
	open_rig(s);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	assert_int_equal(read_ranks(s, 0, WORLD), 0);
	assert_int_equal(s->rig.fault.seen[lists], 1);
	core_rig_close(&s->rig);
}

/* One rank is repaired when another one has had the step listed: the list is made anew, and not for ever. */
static void test_repaired_meanwhile(void **state)
{
	struct scene *s = *state;
	char index[CKPT_PATH_MAX];

	repair(s, 0, ATTEMPT);
	open_rig(s);
	(void)snprintf(index, sizeof(index), "%s", fixture_index_name(&s->step, 3));
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = index, .hold = true});
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_int_equal(s->rig.fault.seen[lists], 1);
	repair(s, 3, OTHER);
	core_rig_let_go(&s->rig);
	assert_int_equal(s->rig.fault.seen[lists], 2);
	assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	/* Of ranks that have no files the list is made anew once, for all that wait together. */
	for (uint32_t i = 1; i < WORLD; i++) {
		(void)unlink(fixture_index(&s->step, i));
		(void)unlink(index_of(s, i, OTHER));
	}
	io_fault_clear(&s->rig.fault);
	lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	assert_int_equal(read_ranks(s, 0, WORLD), CKPT_EINCOMPLETE);
	assert_in_range(s->rig.fault.seen[lists], 1, 2);
	core_rig_close(&s->rig);
}

/* Lets go what is held of that path, and nothing else. */
static void let_go(struct scene *s, const char *path)
{
	struct io_tap *tap = &s->rig.fault.tap;
	struct io_tap_req *kept = NULL;

	for (struct io_tap_req **at = &tap->held; *at;) {
		struct io_tap_req *r = *at;

		if (strstr(r->path, path)) {
			at = &r->next;
			continue;
		}
		*at = r->next;
		r->next = kept;
		kept = r;
	}
	assert_int_equal(io_tap_release(tap), 1);
	tap->held = kept;
	core_rig_run(&s->rig);
}

/*
 * While a bad file of one rank is read the step is listed anew for another one: the list has a new file of the first one,
 * too, whose name comes before that of the bad one.
 */
static void test_listed_for_another(void **state)
{
	struct scene *s = *state;
	char path[CKPT_PATH_MAX];

	repair(s, 1, ATTEMPT);
	scratch_flip(shard_of(s, 1, ATTEMPT), 70000);
	open_rig(s);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_OPENED);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = "rank-00001", .hold = true});
	(void)snprintf(path, sizeof(path), "%s", fixture_shard_name(&s->step, 0));
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = path, .hold = true});
	want(s, r, 0, WORLD);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(s->rig.fault.seen[lists], 1);
	copy(shard_of(s, 1, ATTEMPT), shard_of(s, 1, OTHER));
	scratch_flip(shard_of(s, 1, OTHER), 70000);
	repair(s, 0, OTHER);
	let_go(s, path);
	assert_int_equal(s->rig.fault.seen[lists], 2);
	core_rig_let_go(&s->rig);
	assert_int_equal(s->rig.fault.seen[lists], 2);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_memory_equal(s->out, s->own, sizeof(s->own));
	core_rig_close(&s->rig);
}

/* A step that is as it was saved is not listed. */
static void test_not_listed(void **state)
{
	struct scene *s = *state;

	put(s, 1, ATTEMPT);
	open_rig(s);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	assert_int_equal(read_ranks(s, 0, WORLD), 0);
	assert_int_equal(s->rig.fault.seen[lists], 0);
	core_rig_close(&s->rig);
}

/* What it copies is whole and nothing else, and it has counted all of it. */
static void check_export(struct scene *s)
{
	uint64_t done;
	uint64_t total;
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, s->dest);

	core_rig_run(&s->rig);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_int_equal(done, total);
	/* Marker, claim, manifest; four directories, of which one is gens; and two files of each rank. */
	assert_int_equal(scratch_count(s->dest), 3 + 3 + 2 * WORLD);
	struct core_rig there;
	core_rig_open(&there, &(struct core_rig_config){.dir = s->dest, .read_only = true});
	assert_int_equal(core_rig_read(&there, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&there);
	scratch_remove(strdup(s->dest));
}

/* The files that the manifest names are there, and bad: whoever repaired it was killed before he removed them. */
static void check_bad_beside_good(struct scene *s, const char *said)
{
	open_rig(s);
	assert_int_equal(read_ranks(s, 0, WORLD), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, said));
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, said));
	check_export(s);
	assert_false(is_quarantined(s));
	core_rig_close(&s->rig);
}

static void test_bad_beside_good(void **state)
{
	static const char *const said = "(now " STEP "/rank-00002." ATTEMPT;
	struct scene *s = *state;

	put(s, 2, ATTEMPT);
	/* One that no index describes is passed over. */
	scratch_put(s->dir, "/" STEP "/rank-00002." OTHER ".safetensors", "nothing");
	scratch_put(s->dir, "/" STEP "/rank-00002." OTHER ".index", "nothing");
	scratch_flip(fixture_index(&s->step, 2), 100);
	check_bad_beside_good(s, said);
	assert_int_equal(unlink(fixture_index(&s->step, 2)), 0);
	/* A chunk in the middle, the header, the size. */
	scratch_flip(fixture_shard(&s->step, 2), 70000);
	check_bad_beside_good(s, said);
	scratch_flip(fixture_shard(&s->step, 2), 70000);
	scratch_flip(fixture_shard(&s->step, 2), 20);
	open_rig(s);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	check_export(s);
	core_rig_close(&s->rig);
	assert_int_equal(truncate(fixture_shard(&s->step, 2), 20000), 0);
	check_bad_beside_good(s, said);
}

/* No file is good: the one that the manifest names is told, and every bad chunk of it. */
static void test_all_bad(void **state)
{
	struct scene *s = *state;

	put(s, 2, ATTEMPT);
	scratch_flip(fixture_shard(&s->step, 2), 70000);
	scratch_flip(fixture_shard(&s->step, 2), 100000);
	scratch_flip(shard_of(s, 2, ATTEMPT), 50000);
	open_rig(s);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
	core_rig_run(&s->rig);
	assert_int_equal(r->findings.bad, 2);
	const struct ckpt_finding *finding = ckpt_restore_finding(r, 2);
	assert_string_equal(finding->error.file, fixture_shard_name(&s->step, 2));
	assert_int_equal(finding->rank, 2);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	assert_int_equal(read_ranks(s, 0, 2), 0);
	assert_int_equal(read_ranks(s, 0, WORLD), CKPT_EINTEGRITY);
	assert_string_equal(s->rig.err.file, fixture_shard_name(&s->step, 2));
	assert_int_equal(s->rig.err.rank, 2);
	assert_true(is_quarantined(s));
	core_rig_close(&s->rig);
	/* Of one that is not there no more is said than of one that is. */
	assert_int_equal(unlink(fixture_shard(&s->step, 2)), 0);
	open_rig(s);
	assert_int_equal(read_ranks(s, 0, WORLD), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.file, ATTEMPT));
	assert_int_equal(unlink(shard_of(s, 2, ATTEMPT)), 0);
	assert_int_equal(read_ranks(s, 0, WORLD), CKPT_EINCOMPLETE);
	assert_string_equal(s->rig.err.file, fixture_shard_name(&s->step, 2));
	core_rig_close(&s->rig);
}

/* What was tried is not tried again when the list is made anew. */
static void test_repaired_and_bad(void **state)
{
	struct scene *s = *state;

	repair(s, 1, ATTEMPT);
	scratch_flip(shard_of(s, 1, ATTEMPT), 70000);
	open_rig(s);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	unsigned opens = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = ATTEMPT ".safetensors", .nth = 1000});
	assert_int_equal(read_ranks(s, 0, WORLD), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.fault.seen[lists], 2);
	/* Once, however often it is listed, and once more for who can use a part of it. */
	assert_int_equal(s->rig.fault.seen[opens], 2);
	core_rig_close(&s->rig);
}

/* The disk cannot read one file, or not open it, and the other one is bad: the first may be good the next time. */
static void test_unreadable_beside_bad(void **state)
{
	struct scene *s = *state;
	char own[512];
	char other[512];
	struct stat st;

	put(s, 2, ATTEMPT);
	(void)snprintf(own, sizeof(own), "%s", fixture_shard(&s->step, 2));
	(void)snprintf(other, sizeof(other), "%s", shard_of(s, 2, ATTEMPT));
	assert_int_equal(stat(own, &st), 0);
	for (unsigned i = 0; i < 8; i++) {
		const char *dead = i & 1 ? own : other;
		const char *bad = i & 1 ? other : own;

		/* A chunk, or the size. */
		if (i & 2)
			scratch_flip(bad, 70000);
		else
			assert_int_equal(truncate(bad, st.st_size + 1), 0);
		open_rig(s);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){.op = i & 4 ? CKPT_IO_OP_READ : CKPT_IO_OP_OPEN,
				.path = strrchr(dead, '/') + 1,
				.error = -EIO,
				.count = IO_FAULT_ALWAYS});
		assert_int_equal(read_ranks(s, 0, WORLD), -EIO);
		assert_false(is_quarantined(s));
		core_rig_close(&s->rig);
		if (i & 2)
			scratch_flip(bad, 70000);
		else
			assert_int_equal(truncate(bad, st.st_size), 0);
	}
}

/* There is no room for a shard beside what is left of it, which is of no use. */
static void test_no_room_beside_leftover(void **state)
{
	struct scene *s = *state;
	struct fixture_step there = s->step;
	struct stat st;

	there.dir = s->dest;
	open_rig(s);
	assert_int_equal(export(s), 0);
	/* Another process has left it: its name is not used again. */
	core_rig_close(&s->rig);
	open_rig(s);
	assert_int_equal(unlink(fixture_manifest(&there)), 0);
	assert_int_equal(unlink(fixture_index(&there, 1)), 0);
	assert_int_equal(stat(fixture_shard(&there, 1), &st), 0);
	assert_int_equal(truncate(fixture_shard(&there, 1), 0), 0);
	assert_int_equal(truncate(fixture_shard(&there, 1), st.st_size), 0);
	(void)io_fault_add(
		&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC});
	check_export(s);
	assert_int_equal(s->rig.fault.hits[0], 1);
	core_rig_close(&s->rig);
}

/* Which shards of rank 1 the step has at the destination. */
static unsigned count_shards(const struct scene *s)
{
	const char *dir = scratch_join(s->dest, STEP);
	unsigned count = 0;
	DIR *there = opendir(dir);

	assert_non_null(there);
	for (struct dirent *e = readdir(there); e; e = readdir(there))
		count += strncmp(e->d_name, "rank-00001.", 11) == 0 &&
			 (strstr(e->d_name, ".safetensors") || strstr(e->d_name, ".encoded"));
	(void)closedir(there);
	return count;
}

/* However many copies of the rank were killed, one of the shards that they have begun stays beside the new one. */
static void test_many_leftovers(void **state)
{
	struct scene *s = *state;
	struct fixture_step there = s->step;

	there.dir = s->dest;
	open_rig(s);
	assert_int_equal(export(s), 0);
	assert_int_equal(unlink(fixture_manifest(&there)), 0);
	assert_int_equal(unlink(fixture_index(&there, 1)), 0);
	scratch_flip(fixture_shard(&there, 1), 70000);
	scratch_put(s->dest, "/" STEP "/rank-00001.fffffffffffffffe.safetensors", "begun");
	scratch_put(s->dest, "/" STEP "/rank-00001.ffffffffffffffff.safetensors", "begun");
	scratch_put(
		s->dest, "/" STEP "/rank-00001.ffffffffffffffff.encoded", "begun in either form");
	assert_int_equal(count_shards(s), 4);
	(void)io_fault_add(
		&s->rig.fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, s->dest);
	core_rig_run(&s->rig);
	assert_non_null(s->rig.fault.tap.held);
	assert_int_equal(count_shards(s), 2);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_int_equal(count_shards(s), 1);
	core_rig_close(&s->rig);
}

/* What cannot be listed just now may be there: that is no damage. */
static void test_not_to_be_listed(void **state)
{
	struct scene *s = *state;

	repair(s, 1, ATTEMPT);
	open_rig(s);
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .error = -EACCES});
	assert_int_equal(read_ranks(s, 0, WORLD), -EACCES);
	assert_non_null(strstr(s->rig.err.message, "cannot list " STEP));
	assert_false(is_quarantined(s));
	assert_int_equal(read_ranks(s, 0, WORLD), 0);
	core_rig_close(&s->rig);
}

static void test_without_memory(void **state)
{
	struct scene *s = *state;
	size_t total = 1;

	repair(s, 1, ATTEMPT);
	put(s, 2, ATTEMPT);
	scratch_flip(fixture_shard(&s->step, 2), 70000);
	open_rig(s);
	for (size_t fail_at = 0; fail_at <= total; fail_at++) {
		core_rig_count_allocations(&s->rig, fail_at);
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
		if (r)
			core_rig_run(&s->rig);
		size_t count = core_rig_allocations(&s->rig);
		int code = r ? core_rig_end(&s->rig, r) : -ENOMEM;
		assert_true(code == (fail_at ? -ENOMEM : 0) || code == 0);
		if (fail_at == 0)
			total = count;
		assert_false(is_quarantined(s));
	}
	core_rig_close(&s->rig);
}

/* Where every node has a store. */

/* A repaired rank is here, and its node with it; one of which nothing is here is elsewhere. */
static void test_of_a_node(void **state)
{
	struct scene *s = *state;

	repair(s, 2, ATTEMPT);
	repair(s, 3, ATTEMPT);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(unlink(fixture_shard(&s->step, i)), 0);
		assert_int_equal(unlink(fixture_index(&s->step, i)), 0);
	}
	open_rig(s);
	unsigned lists = io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_LIST, .path = STEP, .nth = 1000});
	assert_int_equal(read_ranks(s, 2, WORLD), 0);
	/* One list says both who is elsewhere and what the others' files are. */
	assert_int_equal(s->rig.fault.seen[lists], 1);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_NONE), 0);
	core_rig_close(&s->rig);
}

/* Removing. */

static void test_removed(void **state)
{
	struct scene *s = *state;

	repair(s, 1, ATTEMPT);
	put(s, 2, ATTEMPT);
	s->step.step = 20;
	fixture_commit(&s->step);
	open_rig(s);
	assert_int_equal(core_rig_remove(&s->rig, 10), 0);
	core_rig_close(&s->rig);
	assert_int_not_equal(access(scratch_join(s->dir, STEP), F_OK), 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test_setup_teardown(test_repaired, setup, teardown),
		cmocka_unit_test_setup_teardown(test_repaired_meanwhile, setup, teardown),
		cmocka_unit_test_setup_teardown(test_listed_for_another, setup, teardown),
		cmocka_unit_test_setup_teardown(test_not_listed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_beside_good, setup, teardown),
		cmocka_unit_test_setup_teardown(test_all_bad, setup, teardown),
		cmocka_unit_test_setup_teardown(test_repaired_and_bad, setup, teardown),
		cmocka_unit_test_setup_teardown(test_unreadable_beside_bad, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_room_beside_leftover, setup, teardown),
		cmocka_unit_test_setup_teardown(test_many_leftovers, setup, teardown),
		cmocka_unit_test_setup_teardown(test_not_to_be_listed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_without_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_of_a_node, setup_node, teardown),
		cmocka_unit_test_setup_teardown(test_removed, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
