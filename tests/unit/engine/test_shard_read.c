/* SPDX-License-Identifier: Apache-2.0 */
/* A shard on its way out of a file: which bytes are read, what arrives, and what is told of the rest. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "engine/shard/findings.h"
#include "engine/shard/read.h"
#include "lib/core_rig.h"
#include "lib/fence.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define SHARD   ".safetensors"
#define BLOCK   UINT32_C(8192)
#define TENSORS 5
#define READS   512

struct range {
	uint64_t offset;
	uint64_t length;
};

struct scene {
	char *dir;
	struct core_rig rig;
	struct fixture_step step;
	struct ckpt_tensor tensors[TENSORS];
	int64_t shapes[TENSORS];
	char names[TENSORS][CKPT_NAME_MAX];
	char *data[TENSORS];
	struct range reads[READS]; /* of shards, as they were asked for */
	size_t read_count;
	unsigned wrong_slots; /* said to lie where they do not */
	bool shut_0;          /* descriptor 0 */
	uint64_t written;     /* of a shard that is shorter than what is written of it */
	unsigned beyond;      /* bytes behind that */
	unsigned nonzero;     /* of them */
	struct range bad;     /* nothing of it may be written */
	unsigned bad_written;
	enum io_tap_way (*before)(struct io_tap *tap, struct io_tap_req *req);
};

static struct scene *watching;

/* The slot of the pool that a transfer must name; -1: its memory lies elsewhere. */
static int slot_of(struct scene *s, const char *memory)
{
	const char *base = ckpt_pool_base(s->rig.pool);
	uint64_t bytes = ckpt_pool_bytes(s->rig.pool);

	if (memory < base || memory >= base + bytes)
		return -1;
	return (int)((uint64_t)(memory - base) / (bytes / ckpt_pool_slots(s->rig.pool)));
}

static enum io_tap_way watch(struct io_tap *tap, struct io_tap_req *r)
{
	struct scene *s = watching;

	if (r->req.op == CKPT_IO_OP_READ && strstr(r->path, SHARD)) {
		assert_true(s->read_count < READS);
		s->reads[s->read_count++] = (struct range){r->req.off, r->req.len};
	}
	if ((r->req.op == CKPT_IO_OP_READ || r->req.op == CKPT_IO_OP_WRITE) &&
		strstr(r->path, SHARD))
		s->wrong_slots += r->req.slot != slot_of(s, r->req.buf);
	if (s->written && r->req.op == CKPT_IO_OP_WRITE && strstr(r->path, SHARD)) {
		const char *bytes = r->req.buf;
		for (uint64_t i = 0; i < r->req.len; i++) {
			s->beyond += r->req.off + i >= s->written;
			s->nonzero += r->req.off + i >= s->written && bytes[i] != 0;
		}
	}
	if (s->bad.length && r->req.op == CKPT_IO_OP_WRITE && strstr(r->path, SHARD))
		s->bad_written += r->req.off < s->bad.offset + s->bad.length &&
				  r->req.off + r->req.len > s->bad.offset;
	if (r->req.op == CKPT_IO_OP_CLOSE && r->req.fd == 0)
		s->shut_0 = true;
	return s->before(tap, r);
}

static int set_up(void **state)
{
	/* About the block of a chunk's end, the last of all, and more than one word of chunks. */
	static const size_t bytes[TENSORS] = {20000, 1, 3 * (size_t)BLOCK, 70001, 190000};
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	for (size_t i = 0; i < TENSORS; i++) {
		s->data[i] = malloc(bytes[i]);
		for (size_t k = 0; k < bytes[i]; k++)
			s->data[i][k] = (char)((k + i * 77) * 2654435761u >> 13);
		s->shapes[i] = (int64_t)bytes[i];
		(void)snprintf(s->names[i], sizeof(s->names[i]), "w%zu", i);
		s->tensors[i] = (struct ckpt_tensor){.size = sizeof(s->tensors[i]),
			.name = s->names[i],
			.dtype = CKPT_U8,
			.ndim = 1,
			.shape = &s->shapes[i],
			.data = s->data[i]};
	}
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.tensors = s->tensors,
		.count = TENSORS,
		.chunk_bytes = 4096,
		.alias = "tied",
		.world = 1};
	fixture_begin(s->dir);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	assert_int_equal(s->wrong_slots, 0);
	core_rig_close(&s->rig);
	scratch_remove(s->dir);
	for (size_t i = 0; i < TENSORS; i++)
		free(s->data[i]);
	free(s);
	return 0;
}

static void commit_for(struct scene *s, uint64_t chunk_bytes, uint32_t block_bytes, unsigned slots)
{
	s->step.chunk_bytes = chunk_bytes;
	fixture_commit(&s->step);
	core_rig_open(&s->rig, &(struct core_rig_config){
				       .dir = s->dir, .block_bytes = block_bytes, .slots = slots});
	watching = s;
	s->before = s->rig.fault.tap.before;
	s->rig.fault.tap.before = watch;
}

/* The step with chunks of this size, and a rig with blocks of 8 KiB. */
static void commit(struct scene *s, uint64_t chunk_bytes)
{
	commit_for(s, chunk_bytes, BLOCK, 6);
}

static unsigned add(struct scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static uint64_t header_bytes(struct scene *s)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	uint64_t bytes = ckpt_restore_index(r)->layout->header_bytes;

	(void)core_rig_end(&s->rig, r);
	return bytes;
}

static struct ckpt_restore *verify(struct scene *s)
{
	s->read_count = 0;
	return core_rig_begin(&s->rig, 10, CKPT_SINK_NONE, NULL);
}

static const struct ckpt_error *finding(struct ckpt_restore *r, size_t i)
{
	assert_true(i < ckpt_restore_finding_count(r));
	return &ckpt_restore_finding(r, i)->error;
}

static uint64_t done_bytes(struct ckpt_restore *r)
{
	uint64_t done;
	uint64_t total;

	ckpt_restore_counters(r, &done, &total);
	return done;
}

/* What must be read, worked out byte by byte: of each block what is wanted, in as few runs as it is. */
struct needs {
	bool chunks[4096];
	uint64_t bytes;
	struct range reads[READS];
	size_t count;
};

static void need(struct needs *n, const struct ckpt_layout *layout, uint64_t lo, uint64_t hi)
{
	assert_true(layout->chunk_count <= COUNT(n->chunks));
	for (size_t i = 0; i < layout->chunk_count; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];
		if (c->offset >= hi || c->offset + c->length <= lo || n->chunks[i])
			continue;
		n->chunks[i] = true;
		n->bytes += c->length;
	}
}

static void need_reads(struct needs *n, const struct ckpt_layout *layout, uint64_t unit)
{
	for (uint64_t at = 0; at < layout->bytes; at += unit) {
		uint64_t end = UINT64_MAX; /* of the run that is open */
		for (size_t i = 0; i < layout->chunk_count; i++) {
			const struct ckpt_chunk *c = &layout->chunks[i];
			uint64_t lo = ckpt_max_u64(c->offset, at);
			uint64_t hi = ckpt_min_u64(c->offset + c->length, at + unit);
			if (!n->chunks[i] || lo >= hi)
				continue;
			if (lo == end)
				n->reads[n->count - 1].length += hi - lo;
			else
				n->reads[n->count++] = (struct range){lo, hi - lo};
			end = hi;
		}
	}
}

/* Runs of one block are read one after the other, and others meanwhile. */
static int range_order(const void *a, const void *b)
{
	const struct range *x = a;
	const struct range *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

struct piece {
	size_t tensor;
	uint64_t offset;
	uint64_t length;
	char *data;
};

/* Binds these; runs; compares what came, what was read, and what was counted. */
static void read_pieces(struct scene *s, struct piece *pieces, size_t count, uint64_t unit)
{
	struct needs *n = calloc(1, sizeof(*n));
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
	uint64_t done;
	uint64_t total;

	for (size_t i = 0; i < count; i++) {
		struct piece *p = &pieces[i];
		p->data = malloc(p->length);
		struct ckpt_target target = {.size = sizeof(target),
			.name = s->names[p->tensor],
			.offset = p->offset,
			.length = p->length,
			.data = p->data};
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
		size_t at = 0;
		while (strcmp(layout->entries[at].name, s->names[p->tensor]) != 0)
			at++;
		uint64_t lo = layout->entries[at].offset + p->offset;
		need(n, layout, lo, lo + p->length);
	}
	need_reads(n, layout, unit);
	s->read_count = 0;
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(total, n->bytes);
	assert_int_equal(done, n->bytes);
	assert_int_equal(s->read_count, n->count);
	qsort(s->reads, s->read_count, sizeof(*s->reads), range_order);
	assert_memory_equal(s->reads, n->reads, n->count * sizeof(*n->reads));
	for (size_t i = 0; i < count; i++)
		assert_memory_equal(pieces[i].data, s->data[pieces[i].tensor] + pieces[i].offset,
			pieces[i].length);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	for (size_t i = 0; i < count; i++)
		free(pieces[i].data);
	free(n);
}

static void some_pieces(struct scene *s, uint64_t chunk_bytes, uint64_t unit)
{
	struct piece pieces[3];

	commit(s, chunk_bytes);
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct prng d = {seed};
		size_t count = 1 + (size_t)prng_below(&d, COUNT(pieces));
		for (size_t i = 0; i < count; i++) {
			size_t tensor = (size_t)prng_below(&d, TENSORS);
			uint64_t bytes = (uint64_t)s->shapes[tensor];
			/* Some end or begin where a chunk does. */
			uint64_t grain = prng_below(&d, 2) ? 1 : chunk_bytes;
			uint64_t lo = prng_below(&d, bytes) / grain * grain;
			uint64_t length = ckpt_min_u64(
				bytes - lo, (prng_below(&d, 9000) / grain + 1) * grain);
			pieces[i] = (struct piece){tensor, lo, length, NULL};
		}
		read_pieces(s, pieces, count, unit);
	}
	/* And all of it. */
	struct piece all[TENSORS];
	for (size_t i = 0; i < TENSORS; i++)
		all[i] = (struct piece){i, 0, (uint64_t)s->shapes[i], NULL};
	read_pieces(s, all, TENSORS, unit);
}

static void test_pieces_of_small_chunks(void **state)
{
	some_pieces(*state, 1000, BLOCK);
}

static void test_pieces_of_chunks(void **state)
{
	some_pieces(*state, 4096, BLOCK);
}

static void test_pieces_of_blocks(void **state)
{
	some_pieces(*state, BLOCK, BLOCK);
}

/* Through memory of its own, which is used again and again. */
static void test_pieces_of_large_chunks(void **state)
{
	some_pieces(*state, 20000, UINT64_C(4) * BLOCK);
}

/* What was let out came before the block of a bad byte in w3. */
static void check_let_out(struct scene *s, uint64_t bad)
{
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
	struct needs *n = calloc(1, sizeof(*n));
	char *memory = malloc((size_t)s->shapes[3]);
	struct ckpt_target target = {.size = sizeof(target), .name = "w3", .data = memory};

	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	need(n, layout, ckpt_layout_at(layout, bad)->offset, bad / BLOCK * BLOCK);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_true(done_bytes(r) <= n->bytes);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	free(memory);
	free(n);
}

/* The greatest chunk that can be read, which is larger than the shard. */
static void test_greatest_chunk(void **state)
{
	struct scene *s = *state;
	struct piece piece = {2, 5, 1000, NULL};

	commit(s, CKPT_SHARD_READ_CHUNK_MAX);
	read_pieces(s, &piece, 1, CKPT_SHARD_READ_CHUNK_MAX);
}

/* However large the pool, so many blocks are under way at once and no more. */
static void test_depth(void **state)
{
	struct scene *s = *state;
	char *memory[TENSORS];

	commit_for(s, 4096, 4096, CKPT_SHARD_READ_DEPTH + 10);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = SHARD,
		       .count = IO_FAULT_ALWAYS,
		       .hold = true});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	for (size_t i = 0; i < TENSORS; i++) {
		memory[i] = malloc((size_t)s->shapes[i]);
		struct ckpt_target target = {
			.size = sizeof(target), .name = s->names[i], .data = memory[i]};
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	}
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_int_equal(s->read_count, CKPT_SHARD_READ_DEPTH);
	io_fault_clear(&s->rig.fault);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	for (size_t i = 0; i < TENSORS; i++)
		free(memory[i]);
}

/* Who reads through memory of its own takes nothing of the pool from others. */
static void test_own_memory_is_no_share(void **state)
{
	struct scene *s = *state;
	struct ckpt_target target = {.size = sizeof(target), .name = "w0"};
	struct ckpt_restore *r[2];
	char *memory[2];

	struct fixture_step large = s->step;
	large.step = 20;
	large.chunk_bytes = 20000;
	fixture_commit(&large);
	/* Slots for one reader. */
	commit_for(s, 4096, BLOCK, CKPT_POOL_SLOTS_MIN);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ,
		       .path = fixture_shard_name(&large, 0),
		       .count = IO_FAULT_ALWAYS,
		       .hold = true});
	for (size_t i = 0; i < COUNT(r); i++) {
		memory[i] = malloc((size_t)s->shapes[0]);
		target.data = memory[i];
		r[i] = core_rig_begin(&s->rig, 20 - 10 * i, CKPT_SINK_MEMORY, NULL);
		assert_int_equal(ckpt_restore_add_targets(r[i], &target, 1, &s->rig.err), 0);
		ckpt_restore_post_start(r[i]);
		core_rig_run(&s->rig);
	}
	assert_false(ckpt_latch_get(ckpt_restore_latch(r[0])) & CKPT_DONE_END);
	assert_int_equal(core_rig_end(&s->rig, r[1]), 0);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r[0]), 0);
	free(memory[0]);
	free(memory[1]);
}

/* The copy is a store, and its step good. */
static void check_copy(struct scene *s)
{
	struct core_rig copy;

	core_rig_open(&copy,
		&(struct core_rig_config){.dir = scratch_join(s->dir, "copy"), .read_only = true});
	assert_int_equal(core_rig_read(&copy, CKPT_STEP_LATEST, CKPT_SINK_NONE), 0);
	core_rig_close(&copy);
}

/* A copy whose header is longer than all memory for its blocks. */
static void test_copy_of_a_long_header(void **state)
{
	enum { MANY = 100 };
	static struct ckpt_tensor tensors[MANY + 1];
	static char names[MANY][CKPT_NAME_MAX];
	static const int64_t none[] = {0, 7};
	struct scene *s = *state;

	for (size_t i = 0; i < MANY; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "%01000zu", i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = CKPT_F32,
			.ndim = 2,
			.shape = none};
	}
	tensors[MANY] = s->tensors[0];
	s->step.tensors = tensors;
	s->step.count = MANY + 1;
	commit(s, BLOCK + 1000);
	assert_true(header_bytes(s) > UINT64_C(5) * 2 * BLOCK);
	assert_int_equal(core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy")), 0);
	check_copy(s);
}

/* Where files are written in whole sectors, what lay in memory behind the last byte stays there. */
static void test_copy_in_sectors(void **state)
{
	struct scene *s = *state;

	commit(s, 4096);
	struct ckpt_restore *r = verify(s);
	s->written = r->pick.manifest.ranks[0].shard_bytes;
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	s->rig.fault.tap.io.align = 4096;
	assert_int_equal(core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy")), 0);
	s->rig.fault.tap.io.align = 1;
	assert_true(s->beyond > 0);
	assert_int_equal(s->nonzero, 0);
	check_copy(s);
}

/*
 * A chunk that ends in another block than it begins in is sent when both ends are known to be good: what an upload
 * has is gone on with, whatever becomes of the rest. With as few blocks as there may be, too.
 */
static void test_nothing_bad_is_copied(void **state)
{
	struct scene *s = *state;
	unsigned straddling = 0;

	commit_for(s, 3000, BLOCK, CKPT_POOL_SLOTS_MIN);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	const struct ckpt_layout *layout = ckpt_restore_index(r)->layout;
	size_t count = layout->chunk_count;
	uint64_t header = layout->header_bytes;
	struct range chunks[256];
	assert_true(count <= COUNT(chunks));
	for (size_t i = 0; i < count; i++)
		chunks[i] = (struct range){layout->chunks[i].offset, layout->chunks[i].length};
	(void)core_rig_end(&s->rig, r);
	for (size_t i = 0; i < count; i++) {
		const struct range *c = &chunks[i];
		uint64_t last = c->offset + c->length - 1;
		if (c->offset < header || c->offset / BLOCK == last / BLOCK)
			continue;
		straddling++;
		s->read_count = 0;
		s->bad = (struct range){c->offset, c->length};
		scratch_flip(fixture_shard(&s->step, 0), (long)last);
		assert_int_equal(core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy")),
			CKPT_EINTEGRITY);
		scratch_flip(fixture_shard(&s->step, 0), (long)last);
	}
	assert_true(straddling > 10);
	assert_int_equal(s->bad_written, 0);
	s->bad.length = 0;
	s->read_count = 0;
	assert_int_equal(core_rig_export(&s->rig, 10, scratch_join(s->dir, "copy")), 0);
	check_copy(s);
}

/* What differs from its digest is told in words that say so, and is not counted as read. */
static void test_changed_chunk(void **state)
{
	struct scene *s = *state;

	commit(s, 4096);
	uint64_t header = header_bytes(s);
	scratch_flip(fixture_shard(&s->step, 0), (long)(header + 50000));
	struct ckpt_restore *r = verify(s);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(finding(r, 0)->code, CKPT_EINTEGRITY);
	assert_non_null(strstr(finding(r, 0)->message, "do not match their digest"));
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	assert_int_equal(core_rig_read(&s->rig, 10, CKPT_SINK_MEMORY), CKPT_EINTEGRITY);
	assert_non_null(strstr(s->rig.err.message, "do not match their digest"));
	check_let_out(s, header + 50000);
}

/* A part that cannot be read ends a verification: it is the one finding, and nothing behind it is read. */
static void test_unreadable(void **state)
{
	struct scene *s = *state;

	commit(s, 4096);
	/* The header is read first, then block after block. */
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 4, .error = -EIO});
	struct ckpt_restore *r = verify(s);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(finding(r, 0)->code, -EIO);
	assert_int_equal(finding(r, 0)->offset, UINT64_C(2) * BLOCK);
	assert_string_equal(finding(r, 0)->tensor, "w0");
	assert_int_equal(s->read_count, 5);
	assert_int_equal(core_rig_end(&s->rig, r), -EIO);
}

/* More is wrong than is kept: what comes behind is not read. */
static void test_full(void **state)
{
	struct scene *s = *state;

	commit(s, 50);
	uint64_t header = header_bytes(s);
	for (uint64_t i = 0; i < CKPT_FINDINGS_MAX; i++)
		scratch_flip(fixture_shard(&s->step, 0), (long)(header + 50 * i));
	struct ckpt_restore *r = verify(s);
	assert_int_equal(ckpt_restore_finding_count(r), CKPT_FINDINGS_MAX);
	uint64_t last = (header + UINT64_C(50) * (CKPT_FINDINGS_MAX - 1)) / BLOCK;
	assert_true(s->read_count <= 1 + last + 1 + 4);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
}

/* A header of more than one block comes block by block, and a verification that is stopped leaves the rest. */
static void test_header_of_blocks(void **state)
{
	struct scene *s = *state;

	for (size_t i = 0; i < TENSORS; i++) {
		memset(s->names[i], 'a' + (int)i, CKPT_NAME_MAX - 1);
		s->names[i][CKPT_NAME_MAX - 1] = 0;
	}
	s->step.alias = NULL;
	commit_for(s, 4096, 4096, 6);
	uint64_t header = header_bytes(s);
	struct ckpt_restore *r = verify(s);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	assert_true(header > 4096 && header <= 8192);
	struct range first = {0, 4096};
	struct range second = {4096, header - 4096};
	assert_memory_equal(&s->reads[0], &first, sizeof(first));
	assert_memory_equal(&s->reads[1], &second, sizeof(second));
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = SHARD, .hold = true});
	r = verify(s);
	assert_int_equal(done_bytes(r), 0);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	core_rig_let_go(&s->rig);
	assert_int_equal(s->read_count, 1);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
}

/* What is large is let go of when it is not needed any more, not when the restore is. */
static void test_memory_is_let_go(void **state)
{
	struct scene *s = *state;
	char *memory = malloc((size_t)s->shapes[0]);
	struct ckpt_target target = {.size = sizeof(target), .name = "w0", .data = memory};

	commit(s, 20000);
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	assert_null(r->load.ways);
	assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
	ckpt_restore_post_start(r);
	core_rig_run(&s->rig);
	assert_true(ckpt_latch_get(ckpt_restore_latch(r)) & CKPT_DONE_END);
	assert_null(r->load.ways);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	free(memory);
}

/* A restore that is cancelled before it was started does not come near its targets, nor the shard. */
static void test_cancelled_before_the_start(void **state)
{
	struct scene *s = *state;

	commit(s, 4096);
	unsigned opened =
		add(s, (struct io_fault_rule){
			       .op = CKPT_IO_OP_OPEN, .path = SHARD, .nth = IO_FAULT_ALWAYS});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
	ckpt_restore_post_cancel(r);
	core_rig_run(&s->rig);
	assert_false(r->load.binder.ranks[0].sealed);
	assert_int_equal(s->rig.fault.seen[opened], 0);
	assert_int_equal(core_rig_end(&s->rig, r), -ECANCELED);
}

/*
 * Of all that is wrong the first in the file is told, in whatever order it was found. While the first
 * block is still to come, the third one is looked at all the same.
 */
static void first_of_findings(struct scene *s, uint64_t chunk_bytes, uint64_t second)
{
	commit(s, chunk_bytes);
	uint64_t header = header_bytes(s);
	scratch_flip(fixture_shard(&s->step, 0), (long)(header + 1));
	scratch_flip(fixture_shard(&s->step, 0), (long)(header + second));
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_READ, .path = SHARD, .nth = 2, .hold = true});
	struct ckpt_restore *r = verify(s);
	assert_int_equal(r->findings.count, 1);
	core_rig_let_go(&s->rig);
	assert_int_equal(ckpt_restore_finding_count(r), 2);
	assert_int_equal(finding(r, 0)->offset, header);
	assert_int_equal(core_rig_end(&s->rig, r), CKPT_EINTEGRITY);
	assert_int_equal(s->rig.err.offset, header);
}

static void test_first_of_findings(void **state)
{
	first_of_findings(*state, 4096, 20000);
}

/* The third chunk begins in the second block. */
static void test_first_of_findings_that_straddle(void **state)
{
	first_of_findings(*state, 5000, 12000);
}

/* One block could not be written; that one before it was, later, mends nothing. */
static void test_copy_written_late(void **state)
{
	struct scene *s = *state;

	commit(s, 4096);
	add(s, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .path = SHARD, .hold = true});
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = 2, .error = -EIO});
	struct ckpt_restore *r =
		core_rig_begin(&s->rig, 10, CKPT_SINK_STORE, scratch_join(s->dir, "copy"));
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), -EIO);
	assert_null(scratch_find(scratch_join(s->dir, "copy"), "manifest.json"));
}

/* Descriptor 0 is one like any other: it is shut when it is not needed any more. */
static void with_no_stdin(
	struct scene *s, const struct io_fault_rule *open, enum ckpt_restore_sink sink, int error)
{
	int stdin_fd = dup(STDIN_FILENO);
	const char *dest = sink == CKPT_SINK_STORE ? scratch_join(s->dir, "copy") : NULL;

	commit(s, 4096);
	add(s, *open);
	add(s, (struct io_fault_rule){
		       .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = 3, .error = error});
	struct ckpt_restore *r = core_rig_begin(&s->rig, 10, sink, dest);
	(void)close(STDIN_FILENO);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end(&s->rig, r), error);
	assert_true(s->shut_0);
	assert_int_equal(dup2(stdin_fd, STDIN_FILENO), STDIN_FILENO);
	(void)close(stdin_fd);
}

static const struct io_fault_rule shard = {.op = CKPT_IO_OP_OPEN, .path = SHARD, .hold = true};

static void test_shard_is_shut(void **state)
{
	with_no_stdin(*state, &shard, CKPT_SINK_NONE, 0);
}

static void test_shard_is_shut_after_a_failure(void **state)
{
	with_no_stdin(*state, &shard, CKPT_SINK_STORE, -EIO);
}

static void test_manifest_is_let_go(void **state)
{
	/* The scan opens it first, and then who locks it. */
	const struct io_fault_rule manifest = {
		.op = CKPT_IO_OP_OPEN, .path = "manifest.json", .nth = 2, .hold = true};

	with_no_stdin(*state, &manifest, CKPT_SINK_NONE, 0);
}

/* What fails once the step is known names it, and whose part of it if it is of one rank's. */
static void test_no_memory_is_told(void **state)
{
	struct scene *s = *state;
	char *memory = malloc((size_t)s->shapes[0]);
	struct ckpt_target target = {.size = sizeof(target), .name = "w0", .data = memory};
	size_t failed = 0;
	size_t ranked = 0;

	commit(s, 20000);
	for (size_t n = 1, done = 0; !done; n++) {
		struct ckpt_restore *r = core_rig_begin(&s->rig, 10, CKPT_SINK_MEMORY, NULL);
		assert_int_equal(ckpt_restore_add_targets(r, &target, 1, &s->rig.err), 0);
		core_rig_count_allocations(&s->rig, n);
		ckpt_restore_post_start(r);
		core_rig_run(&s->rig);
		done = core_rig_allocations(&s->rig) < n;
		assert_int_equal(core_rig_end(&s->rig, r), done ? 0 : -ENOMEM);
		if (done)
			continue;
		failed++;
		assert_int_equal(s->rig.err.step, 10);
		ranked += s->rig.err.rank == 0;
		assert_true(s->rig.err.rank == 0 || s->rig.err.rank == -1);
	}
	/* The files that are under way are nobody's alone. */
	assert_true(failed == ranked + 1);
	free(memory);
}

/* That there is no memory is a failure, and says nothing about the step. */
static int verify_without(struct scene *s)
{
	struct ckpt_restore *r = verify(s);

	if (!r)
		return -ENOMEM;
	for (size_t i = 0; i < r->findings.count; i++)
		assert_int_not_equal(r->findings.items[i].error.code, -ENOMEM);
	return core_rig_end(&s->rig, r);
}

/* Without memory it fails and says so, or does what it is to do: never less, and nothing is left behind. */
static void sweep(struct scene *s, enum ckpt_restore_sink sink, int code)
{
	char copy[32];
	unsigned unharmed = 0;

	for (size_t n = 1, done = 0; !done; n++) {
		(void)snprintf(copy, sizeof(copy), "copy-%zu", n);
		const char *dest = scratch_join(s->dir, copy);
		size_t blocks = fence_blocks();
		s->read_count = 0;
		int r;
		core_rig_count_allocations(&s->rig, n);
		if (sink == CKPT_SINK_STORE)
			r = core_rig_export(&s->rig, 10, dest);
		else if (sink == CKPT_SINK_NONE)
			r = verify_without(s);
		else
			r = core_rig_read(&s->rig, 10, sink);
		done = core_rig_allocations(&s->rig) < n;
		assert_true(r == code || (r == -ENOMEM && !done));
		unharmed += r == code && !done;
		assert_int_equal(fence_blocks(), blocks);
	}
	/*
	 * What the scan had no memory for is read again, under the lock; and so is what the look at damage had none for.
	 * Comparing ranks is done without.
	 */
	assert_in_range(unharmed, 0, code == 0 ? 4 : 6);
}

static void sweep_all(struct scene *s, uint64_t chunk_bytes)
{
	commit(s, chunk_bytes);
	sweep(s, CKPT_SINK_MEMORY, 0);
	sweep(s, CKPT_SINK_NONE, 0);
	scratch_flip(fixture_shard(&s->step, 0), 100000);
	sweep(s, CKPT_SINK_NONE, CKPT_EINTEGRITY);
}

/* Of several ranks each lets go of what it had before the next one begins. */
static void test_no_memory_for_ranks(void **state)
{
	struct scene *s = *state;
	uint64_t done;
	uint64_t total;

	s->step.world = 3;
	commit(s, 20000);
	struct ckpt_restore *r = verify(s);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(total, 3 * r->pick.manifest.ranks[0].shard_bytes);
	assert_int_equal(done, total);
	assert_int_equal(core_rig_end(&s->rig, r), 0);
	sweep(s, CKPT_SINK_NONE, 0);
	sweep(s, CKPT_SINK_STORE, 0);
}

static void test_no_memory(void **state)
{
	sweep_all(*state, 4096);
}

static void test_no_memory_for_large_chunks(void **state)
{
	sweep_all(*state, 20000);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_pieces_of_small_chunks),
		SCENE(test_pieces_of_chunks),
		SCENE(test_pieces_of_blocks),
		SCENE(test_pieces_of_large_chunks),
		SCENE(test_greatest_chunk),
		SCENE(test_depth),
		SCENE(test_own_memory_is_no_share),
		SCENE(test_copy_of_a_long_header),
		SCENE(test_copy_in_sectors),
		SCENE(test_nothing_bad_is_copied),
		SCENE(test_changed_chunk),
		SCENE(test_unreadable),
		SCENE(test_full),
		SCENE(test_header_of_blocks),
		SCENE(test_memory_is_let_go),
		SCENE(test_cancelled_before_the_start),
		SCENE(test_first_of_findings),
		SCENE(test_first_of_findings_that_straddle),
		SCENE(test_copy_written_late),
		SCENE(test_shard_is_shut),
		SCENE(test_shard_is_shut_after_a_failure),
		SCENE(test_manifest_is_let_go),
		SCENE(test_no_memory_is_told),
		SCENE(test_no_memory_for_ranks),
		SCENE(test_no_memory),
		SCENE(test_no_memory_for_large_chunks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
