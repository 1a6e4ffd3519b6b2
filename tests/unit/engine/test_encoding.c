/* SPDX-License-Identifier: Apache-2.0 */
/* Shards that are stored encoded: what is in the file, and saves that fail, wait or are written again. */
#include "lib/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/save/masters.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "engine/shard/chunk_parts.h"
#include "format/encoded.h"
#include "format/index.h"
#include "lib/core_scene.h"
#include "lib/prng.h"
#include "lib/scratch.h"

#define TENSORS 24
#define WEIGHTS 20000 /* elements, more than two blocks of 64 KiB in all */
#define SHARD   ".encoded"

/* A state as of a mixed-precision AdamW, and all that is unusual. */
struct state {
	struct ckpt_tensor tensors[TENSORS];
	int64_t counts[TENSORS];
	size_t count;
	struct prng prng;
};

static size_t bytes_of(const struct state *st, size_t i)
{
	static const size_t widths[CKPT_DTYPE_END] = {[CKPT_BOOL] = 1,
		[CKPT_U8] = 1,
		[CKPT_I64] = 8,
		[CKPT_F16] = 2,
		[CKPT_BF16] = 2,
		[CKPT_F32] = 4,
		[CKPT_F64] = 8,
		[CKPT_F8_E4M3] = 1,
		[CKPT_C64] = 8,
		[CKPT_C32] = 4,
		[CKPT_I32] = 4,
		[CKPT_F4_X2] = 1};

	return (size_t)st->counts[i] * widths[st->tensors[i].dtype];
}

static void *add(struct state *st, const char *name, uint32_t dtype, size_t count)
{
	size_t i = st->count++;

	assert_true(i < TENSORS);
	st->counts[i] = (int64_t)count;
	st->tensors[i] = (struct ckpt_tensor){.size = sizeof(st->tensors[i]),
		.name = name,
		.dtype = dtype,
		.ndim = 1,
		.shape = &st->counts[i]};
	void *data = calloc(1, bytes_of(st, i) + 1);
	assert_non_null(data);
	st->tensors[i].data = data;
	return data;
}

/* As weights of a model are: of similar sizes, and with random mantissas. */
static void add_floats(struct state *st, const char *name, size_t count)
{
	float *x = add(st, name, CKPT_F32, count);

	for (size_t i = 0; i < count; i++)
		x[i] = ((float)prng_below(&st->prng, 1 << 24) / (1 << 24) - 0.5f) * 0.04f;
}

static void add_rounded(struct state *st, const char *name, uint32_t dtype, size_t of)
{
	void *y = add(st, name, dtype, (size_t)st->counts[of]);

	ckpt_codec_round(dtype == CKPT_BF16 ? CKPT_KIND_BF16 : CKPT_KIND_F16, st->tensors[of].data,
		(size_t)st->counts[of], y);
}

static void add_random(struct state *st, const char *name, uint32_t dtype, size_t count)
{
	uint8_t *bytes = add(st, name, dtype, count);
	size_t size = bytes_of(st, st->count - 1);

	for (size_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(prng_next(&st->prng) & (dtype == CKPT_BOOL ? 1 : 0xff));
}

static void fill(struct state *st, uint64_t seed)
{
	*st = (struct state){.prng = {seed}};
	add_floats(st, "opt.master.w", WEIGHTS);
	add_floats(st, "opt.exp_avg.w", WEIGHTS);
	add_rounded(st, "model.w", CKPT_BF16, 0);
	add_floats(st, "opt.master.h", 9001);
	add_rounded(st, "model.h", CKPT_F16, 3);
	/* Not finite, subnormal, and -0: both of what is rounded and of what is not. */
	float *odd = add(st, "odd", CKPT_F32, 333);
	for (size_t i = 0; i < 333; i++)
		odd[i] = i % 5 == 0 ? NAN : i % 5 == 1 ? -INFINITY : i % 5 == 2 ? -0.0f : 1e-41f;
	add_rounded(st, "odd.bf16", CKPT_BF16, 5);
	add_rounded(st, "odd.f16", CKPT_F16, 5);
	/* Nearly the rounding: some elements are others. */
	add_rounded(st, "near", CKPT_BF16, 0);
	((uint16_t *)(uintptr_t)st->tensors[st->count - 1].data)[77] ^= 0x55;
	add_random(st, "bf16.alone", CKPT_BF16, 5001);
	add_random(st, "i64", CKPT_I64, 11);
	add_random(st, "u8", CKPT_U8, 70001);
	add_random(st, "bool", CKPT_BOOL, 4099);
	add_random(st, "f64", CKPT_F64, 777);
	add_random(st, "c64", CKPT_C64, 101);
	add_random(st, "c32", CKPT_C32, 101);
	add_random(st, "f8", CKPT_F8_E4M3, 1003);
	add_random(st, "f4", CKPT_F4_X2, 3);
	add(st, "zeros", CKPT_I32, 30000);
	add(st, "empty", CKPT_BF16, 0);
	add_floats(st, "one", 1);
	add_rounded(st, "one.bf16", CKPT_BF16, st->count - 1);
}

static void drop(struct state *st)
{
	for (size_t i = 0; i < st->count; i++)
		free((void *)(uintptr_t)st->tensors[i].data);
}

static struct ckpt_save *prepare(struct core_scene *s, struct state *st, uint64_t step)
{
	struct core_rig *rig = &s->rig;
	struct ckpt_save *save = NULL;
	int r = ckpt_save_new(&rig->core, NULL, step, false, 0, &save);

	if (r == 0)
		r = ckpt_save_put_tensors(save, st->tensors, st->count, &rig->err);
	if (r == 0)
		r = ckpt_save_put_alias(save, "tied", "model.w", &rig->err);
	if (r == 0)
		r = ckpt_save_put_meta(save, "{}", 2, &rig->err);
	if (r == 0)
		r = ckpt_save_prepare(save, &rig->plan, &rig->err);
	if (r == 0)
		return save;
	if (save)
		ckpt_save_unref(save);
	(void)ckpt_fail(&rig->err, r, "out of memory");
	return NULL;
}

static uint8_t *read_file(const char *path, size_t *ret_length)
{
	FILE *f = path ? fopen(path, "rb") : NULL;
	uint8_t *data = malloc(1 << 20);

	assert_non_null(f);
	assert_non_null(data);
	*ret_length = fread(data, 1, 1 << 20, f);
	assert_true(*ret_length < 1 << 20);
	(void)fclose(f);
	return data;
}

/* A shard's file, its table and its index. */
struct file {
	uint8_t *data;
	size_t length;
	struct ckpt_encoded *table;
	struct ckpt_index *index;
	uint8_t *logical; /* decoded so far */
	unsigned cast;    /* parts that are the rounding of others */
};

static size_t last_length; /* of the file that was checked last */

static void open_file(struct file *f, const char *dir, struct ckpt_error *err)
{
	struct ckpt_encoded_trailer trailer;
	size_t length;
	uint8_t *index = read_file(scratch_find(dir, ".index"), &length);

	*f = (struct file){0};
	f->data = read_file(scratch_find(dir, SHARD), &f->length);
	assert_int_equal(ckpt_index_decode(index, length, "index", err, &f->index), 0);
	free(index);
	assert_int_equal(ckpt_encoded_read_trailer(f->data + f->length - CKPT_ENCODED_TRAILER,
				 f->length, f->index->layout, "file", err, &trailer),
		0);
	assert_int_equal(ckpt_encoded_decode(f->data + trailer.table_offset, &trailer,
				 f->index->layout, "file", err, &f->table),
		0);
	f->logical = malloc(f->index->layout->bytes);
	assert_non_null(f->logical);
}

static void close_file(struct file *f)
{
	free(f->data);
	free(f->logical);
	ckpt_encoded_free(f->table);
	ckpt_index_free(f->index);
}

static uint64_t le(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;

	for (unsigned i = bytes; i > 0; i--)
		value = value << 8 | at[i - 1];
	return value;
}

/* That the chunks of the master are those that the table says. */
static void check_refs(const struct file *f, size_t chunk, uint64_t offset, uint64_t length)
{
	const struct ckpt_encoded_chunk *c = &f->table->chunks[chunk];
	size_t last = ckpt_layout_chunk_at(f->index->layout, offset + length - 1);

	for (size_t i = ckpt_layout_chunk_at(f->index->layout, offset); i <= last; i++) {
		bool found = false;
		for (size_t k = 0; k < c->ref_count; k++)
			found = found || f->table->refs[c->first_ref + k] == i;
		assert_true(found);
	}
}

static void decode_parts(struct file *f, struct ckpt_codec *codec, size_t chunk)
{
	const struct ckpt_encoded_chunk *c = &f->table->chunks[chunk];
	const uint8_t *at = f->data + c->offset;
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	ckpt_chunk_parts_begin(&parts, f->index->layout, chunk);
	while (ckpt_chunk_parts_next(&parts, &part)) {
		size_t length = (size_t)le(at, 4) - 1;
		struct ckpt_codec_chunk coded = {
			.count = part.length / part.width, .width = part.width, .kind = part.kind};
		bool mastered = at[4] == 1;
		at += 5;
		if (mastered) {
			uint64_t master = le(at, 8);
			at += 8;
			length -= 8;
			check_refs(f, chunk, master, 2 * (uint64_t)part.length);
			coded.master = f->logical + master;
			f->cast++;
		}
		assert_int_equal(
			ckpt_decode(codec, &coded, at, length, f->logical + part.offset), 0);
		at += length;
	}
	assert_ptr_equal(at, f->data + c->offset + c->length);
}

/* Chunks follow those that they are decoded from. */
static void decode_file(struct file *f)
{
	struct ckpt_codec *codec = ckpt_codec_open(CKPT_SIMD_PLAIN);
	const struct ckpt_layout *layout = f->index->layout;

	assert_non_null(codec);
	for (size_t i = 0; i < f->table->chunk_count; i++) {
		const struct ckpt_encoded_chunk *c = &f->table->chunks[i];
		const struct ckpt_chunk *chunk = &layout->chunks[i];
		struct ckpt_digest digest = ckpt_digest_of(f->data + c->offset, c->length);

		assert_memory_equal(&digest, &c->digest, sizeof(digest));
		if (c->kind == CKPT_ENCODED_PARTS)
			decode_parts(f, codec, i);
		else
			memcpy(f->logical + chunk->offset, f->data + c->offset, c->length);
		digest = ckpt_digest_of(f->logical + chunk->offset, chunk->length);
		assert_memory_equal(&digest, &chunk->digest, sizeof(digest));
	}
	ckpt_codec_close(codec);
}

/* A step of generation 1 holds this state. Returns how many parts of it are stored as the rounding of others. */
static unsigned check_step(struct core_scene *s, const struct state *st, uint64_t step)
{
	char name[64];
	struct file f;

	(void)snprintf(name, sizeof(name), "g000001/step-%010llu", (unsigned long long)step);
	const char *dir = scratch_join(s->dir, name);
	open_file(&f, dir, &s->rig.err);
	assert_null(scratch_find(dir, ".safetensors"));
	decode_file(&f);
	for (size_t i = 0; i < st->count; i++) {
		const struct ckpt_entry *e = ckpt_layout_find(f.index->layout, st->tensors[i].name);
		assert_non_null(e);
		assert_int_equal(e->nbytes, bytes_of(st, i));
		if (e->nbytes > 0)
			assert_memory_equal(f.logical + e->offset, st->tensors[i].data, e->nbytes);
	}
	last_length = f.length;
	assert_int_equal(core_rig_read(&s->rig, step, CKPT_SINK_MEMORY), 0);
	close_file(&f);
	return f.cast;
}

static void open_rig(struct core_scene *s, const struct core_rig_config *config)
{
	struct core_rig_config with = *config;

	with.dir = s->dir;
	with.align = 4096;
	with.encoders = with.encoders ? with.encoders : 2;
	core_rig_open(&s->rig, &with);
	assert_int_equal(core_rig_claim(&s->rig), 0);
}

static unsigned fault(struct core_scene *s, struct io_fault_rule rule)
{
	return io_fault_add(&s->rig.fault, rule);
}

static int save_step(struct core_scene *s, struct state *st, uint64_t step)
{
	struct ckpt_save *save = prepare(s, st, step);

	if (!save)
		return s->rig.err.code;
	(void)core_rig_post(&s->rig, save);
	return core_rig_end_save(&s->rig, save);
}

/* All types, not finite numbers, odd sizes; the second save has the plan and the encoders of the first one. */
static void round_trip(struct core_scene *s, uint64_t chunk_bytes, unsigned least)
{
	struct ckpt_save_info info;
	struct state st;
	size_t length;

	open_rig(s, &(struct core_rig_config){.chunk_bytes = chunk_bytes, .slots = 20});
	fill(&st, 1);
	struct ckpt_save *save = prepare(s, &st, 1);
	assert_non_null(save);
	assert_int_equal(core_rig_post(&s->rig, save), 0);
	ckpt_save_describe(save, &info);
	free(read_file(scratch_find(s->dir, SHARD), &length));
	assert_int_equal(info.bytes_stored, length);
	assert_int_equal(info.bytes_written, info.bytes);
	assert_true(info.bytes_stored < info.bytes * 4 / 5);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "times smaller"));
	assert_true(check_step(s, &st, 1) >= least);
	drop(&st);
	fill(&st, 2);
	assert_int_equal(save_step(s, &st, 2), 0);
	assert_true(check_step(s, &st, 2) >= least);
	drop(&st);
}

static void test_round_trip(void **state)
{
	/* Three parts of model.w, two of model.h, and some of `near`. */
	round_trip(*state, 0, 7);
}

static void test_chunks_of_a_block(void **state)
{
	round_trip(*state, 65536, 2);
}

static void test_odd_chunks(void **state)
{
	/* Cut within elements, of which only bytes are left. */
	round_trip(*state, 10001, 0);
}

/* Blocks stream through four slots and one encoder, in any order of what the disk does. */
static void test_without_room(void **state)
{
	struct core_scene *s = *state;
	struct state st;

	open_rig(s, &(struct core_rig_config){.encoders = 1});
	fill(&st, 1);
	fault(s, (struct io_fault_rule){
			 .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = 2, .hold = true});
	struct ckpt_save *save = prepare(s, &st, 1);
	assert_non_null(save);
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	assert_int_equal(save->written_count, 1);
	core_rig_let_go(&s->rig);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	/* The masters need not be in memory any more. */
	assert_int_equal(check_step(s, &st, 1), 0);
	drop(&st);
}

static const struct ckpt_save *watched; /* the save whose job is being done */
static unsigned lists;

int __real_ckpt_masters_new(const struct ckpt_layout *layout, uint32_t block_bytes,
	const atomic_bool *stopped, struct ckpt_masters **ret_masters);
int __wrap_ckpt_masters_new(const struct ckpt_layout *layout, uint32_t block_bytes,
	const atomic_bool *stopped, struct ckpt_masters **ret_masters);

/* No copy waits for the list of tensors that may be masters: a worker makes it, when a block has been copied. */
int __wrap_ckpt_masters_new(const struct ckpt_layout *layout, uint32_t block_bytes,
	const atomic_bool *stopped, struct ckpt_masters **ret_masters)
{
	lists += watched && watched->staged_count > 0;
	return __real_ckpt_masters_new(layout, block_bytes, stopped, ret_masters);
}

/* As workers do them: what is urgent first, otherwise the oldest; or always the newest. */
static struct ckpt_job *take_job(struct core_rig *rig, bool newest)
{
	struct ckpt_job **found = &rig->held;

	for (struct ckpt_job **at = &rig->held; *at && !newest; at = &(*at)->next)
		if ((*at)->urgent >= (*found)->urgent)
			found = at;
	struct ckpt_job *job = *found;
	if (job)
		*found = job->next;
	return job;
}

static void save_in_order(struct core_scene *s, unsigned slots, bool newest, unsigned least)
{
	struct ckpt_job *job;
	struct state st;

	open_rig(s, &(struct core_rig_config){.slots = slots, .encoders = 8});
	fill(&st, 1);
	struct ckpt_save *save = prepare(s, &st, 1);
	assert_non_null(save);
	s->rig.hold_jobs = true;
	assert_int_equal(core_rig_post(&s->rig, save), 1);
	lists = 0;
	while ((job = take_job(&s->rig, newest))) {
		watched = save;
		job->work(job);
		watched = NULL;
		ckpt_inbox_push(&s->rig.inbox, &job->node);
		core_rig_run(&s->rig);
	}
	s->rig.hold_jobs = false;
	/* Without room for the whole shard there are no masters. */
	assert_int_equal(lists, slots == 20);
	assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	assert_true(check_step(s, &st, 1) >= least);
	drop(&st);
}

static void test_any_order(void **state)
{
	save_in_order(*state, 20, true, 7);
}

/* A slot stays as long as the block behind it is encoded with it. */
static void test_slot_is_kept(void **state)
{
	save_in_order(*state, 4, false, 0);
}

/* A block, or the table: the file is written again, once, with the same contents. */
static void test_written_again(void **state)
{
	struct core_scene *s = *state;
	struct state st;

	open_rig(s, &(struct core_rig_config){.slots = 20});
	fill(&st, 1);
	assert_int_equal(save_step(s, &st, 1), 0);
	(void)check_step(s, &st, 1);
	size_t length = last_length;
	unsigned rule =
		fault(s, (struct io_fault_rule){
				 .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = 3, .error = -EIO});
	assert_int_equal(save_step(s, &st, 2), 0);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	assert_true(check_step(s, &st, 2) >= 5);
	/* Nothing of the bad file is in the good one. */
	assert_int_equal(last_length, length);
	/* One request a block, and the table is the last. */
	unsigned last = (unsigned)s->rig.plan->block_count + 1;
	io_fault_clear(&s->rig.fault);
	rule = fault(s, (struct io_fault_rule){
				.op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = last, .error = -EIO});
	assert_int_equal(save_step(s, &st, 3), 0);
	assert_int_equal(s->rig.fault.hits[rule], 1);
	assert_int_equal(s->rig.fault.seen[rule], 2 * last);
	assert_true(check_step(s, &st, 3) >= 5);
	assert_int_equal(last_length, length);
	io_fault_clear(&s->rig.fault);
	fault(s, (struct io_fault_rule){
			 .op = CKPT_IO_OP_FDATASYNC, .path = SHARD, .error = -EIO, .count = 2});
	assert_int_equal(save_step(s, &st, 4), -EIO);
	io_fault_clear(&s->rig.fault);
	fault(s, (struct io_fault_rule){
			 .op = CKPT_IO_OP_WRITE, .path = SHARD, .nth = last, .error = -ENOSPC});
	assert_int_equal(save_step(s, &st, 5), -ENOSPC);
	assert_null(scratch_find(scratch_join(s->dir, "g000001/step-0000000004"), SHARD));
	assert_null(scratch_find(scratch_join(s->dir, "g000001/step-0000000005"), SHARD));
	drop(&st);
}

/* With blocks that are being encoded, that wait for an encoder, and that wait for their masters. */
static void test_cancelled(void **state)
{
	struct core_scene *s = *state;
	struct state st;

	open_rig(s, &(struct core_rig_config){.slots = 20});
	fill(&st, 1);
	for (uint64_t rounds = 0; rounds < 6; rounds++) {
		struct ckpt_save *save = prepare(s, &st, rounds + 1);

		assert_non_null(save);
		s->rig.hold_jobs = true;
		assert_int_equal(core_rig_post(&s->rig, save), 1);
		for (uint64_t i = 0; i < rounds; i++) {
			core_rig_do_jobs(&s->rig);
			core_rig_run(&s->rig);
		}
		ckpt_save_post_cancel(save);
		core_rig_run(&s->rig);
		core_rig_let_go(&s->rig);
		int r = core_rig_end_save(&s->rig, save);
		assert_true(r == -ECANCELED || (r == 0 && rounds > 3));
	}
	assert_int_equal(save_step(s, &st, 100), 0);
	assert_true(check_step(s, &st, 100) >= 5);
	drop(&st);
}

/* The only large pieces are those of encoders. */
static bool refuse_large(void *user, size_t size)
{
	(void)user;
	return size >= CKPT_CODEC_CHUNK_BYTES;
}

static void check_plain(struct core_scene *s, uint64_t step)
{
	char name[64];

	(void)snprintf(name, sizeof(name), "g000001/step-%010llu", (unsigned long long)step);
	const char *dir = scratch_join(s->dir, name);
	assert_non_null(scratch_find(dir, ".safetensors"));
	assert_null(scratch_find(dir, SHARD));
	assert_int_equal(core_rig_read(&s->rig, step, CKPT_SINK_MEMORY), 0);
}

/* Encoding never costs a step. */
static void test_stored_plain(void **state)
{
	struct core_scene *s = *state;
	struct ckpt_save_info info;
	struct state st;

	open_rig(s, &(struct core_rig_config){.slots = 20});
	fill(&st, 1);
	ckpt_alloc_set_hook(refuse_large, NULL);
	for (uint64_t step = 1; step <= 2; step++) {
		struct ckpt_save *save = prepare(s, &st, step);
		assert_non_null(save);
		assert_int_equal(core_rig_post(&s->rig, save), 0);
		ckpt_save_describe(save, &info);
		assert_int_equal(info.bytes_stored, info.bytes);
		assert_int_equal(core_rig_end_save(&s->rig, save), 0);
	}
	ckpt_alloc_set_hook(NULL, NULL);
	check_plain(s, 1);
	check_plain(s, 2);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_WARN, "step 1 is stored plain"));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_WARN, "is stored plain"));
	assert_int_equal(save_step(s, &st, 3), 0);
	assert_true(check_step(s, &st, 3) >= 5);
	drop(&st);
}

static void save_plain(struct core_scene *s, struct state *st, unsigned slots)
{
	open_rig(s, &(struct core_rig_config){.slots = slots});
	s->rig.core.config.encoders = 0;
	s->rig.core.saver->estimate_min = 0;
	for (uint64_t step = 1; step <= 2; step++) {
		assert_int_equal(save_step(s, st, step), 0);
		core_rig_run(&s->rig);
	}
}

/* After the first step that is stored plain, once. */
static void test_estimate(void **state)
{
	struct core_scene *s = *state;
	struct state st;

	fill(&st, 1);
	save_plain(s, &st, 20);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "step 1 is durable"));
	assert_true(core_rig_logged(
		&s->rig, CKPT_LOG_INFO, "would have made the file of step 1 about 1."));
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "step 2 is durable"));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_INFO, "would have made"));
	drop(&st);
}

/* What is not in staging any more is not read again for it. */
static void test_nothing_to_estimate(void **state)
{
	struct core_scene *s = *state;
	struct state st;

	fill(&st, 1);
	save_plain(s, &st, 4);
	assert_true(core_rig_logged(&s->rig, CKPT_LOG_INFO, "step 2 is durable"));
	assert_false(core_rig_logged(&s->rig, CKPT_LOG_INFO, "would have made"));
	assert_false(s->rig.core.saver->estimated);
	drop(&st);
}

/* All that a save allocates is allocated anew. */
static void forget(struct core_rig *rig)
{
	rig->core.saver->estimated = false;
	ckpt_plan_free(rig->plan);
	rig->plan = NULL;
	ckpt_encoders_fini(&rig->core.saver->encoders);
}

/* How many of some saves ended how. */
struct sweep {
	uint64_t step; /* of the last one */
	size_t failed;
	size_t plain;
	size_t encoded;
};

/* Fails each allocation of a save in turn. What is committed can be read. */
static void sweep_allocations(struct core_scene *s, struct state *st, struct sweep *sweep)
{
	char name[64];
	size_t at = 0;
	size_t seen;

	do {
		forget(&s->rig);
		core_rig_count_allocations(&s->rig, ++at);
		int r = save_step(s, st, ++sweep->step);
		seen = core_rig_allocations(&s->rig);
		(void)snprintf(name, sizeof(name), "g000001/step-%010llu",
			(unsigned long long)sweep->step);
		assert_true(r == 0 || r == -ENOMEM);
		sweep->failed += r < 0;
		if (r < 0)
			continue;
		bool encoded = scratch_find(scratch_join(s->dir, name), SHARD) != NULL;
		sweep->encoded += encoded;
		sweep->plain += !encoded;
		assert_int_equal(core_rig_read(&s->rig, sweep->step, CKPT_SINK_MEMORY), 0);
		scratch_remove(strdup(scratch_join(s->dir, name)));
	} while (seen >= at);
}

/* No more saves fail than of those that are stored plain: without memory for the encoding they are that. */
static void check_no_memory(struct core_scene *s, unsigned slots)
{
	struct sweep plain = {0};
	struct state st;

	fill(&st, 1);
	open_rig(s, &(struct core_rig_config){.slots = slots});
	s->rig.core.config.encoders = 0;
	s->rig.core.saver->estimate_min = 0;
	sweep_allocations(s, &st, &plain);
	assert_true(plain.failed > 20 && plain.encoded == 0);
	struct sweep compact = {.step = plain.step};
	s->rig.core.config.encoders = 2;
	sweep_allocations(s, &st, &compact);
	assert_int_equal(compact.failed, plain.failed);
	assert_true(compact.plain > 3 && compact.encoded > 1);
	assert_true(s->rig.core.saver->said_plain);
	drop(&st);
}

static void test_no_memory(void **state)
{
	struct core_scene *s = *state;

	check_no_memory(s, 20);
	assert_true(s->rig.core.saver->said_no_masters);
}

static void test_no_memory_without_room(void **state)
{
	check_no_memory(*state, 4);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			test_round_trip, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_chunks_of_a_block, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_odd_chunks, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_without_room, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_any_order, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_slot_is_kept, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_written_again, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_cancelled, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_stored_plain, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_estimate, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_nothing_to_estimate, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_no_memory, core_scene_set_up, core_scene_tear_down),
		cmocka_unit_test_setup_teardown(
			test_no_memory_without_room, core_scene_set_up, core_scene_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
