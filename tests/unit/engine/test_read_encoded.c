/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards that are stored encoded: what arrives is what the plain one has, whatever is wanted of it; whatever byte of
 * the file is changed is found, and named.
 */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/shard/decoders.h"
#include "engine/shard/findings.h"
#include "engine/shard/stored_plan.h"
#include "lib/encode_fixture.h"
#include "lib/rig.h"
#include "lib/scratch.h"
#include "lib/sharded_fixture.h"

#define BLOCK    UINT32_C(65536)
#define CHUNK    16384
#define TENSORS  7
#define ELEMENTS 60000

struct scene {
	char *dir;
	struct rig rig;
	struct fixture_step step;
	struct ckpt_tensor tensors[TENSORS];
	float *master;
	uint16_t *model;
	char *noise;
	struct encode_fixture made;
	/* Of the encoded file. */
	struct ckpt_restore *open; /* for the layout */
	const struct ckpt_layout *layout;
	struct ckpt_encoded *table;
};

static uint16_t round_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void make_tensors(struct scene *s, struct prng *d)
{
	static const int64_t shapes[TENSORS][1] = {
		{ELEMENTS}, {ELEMENTS}, {50000}, {7}, {3000}, {500}, {0}};
	static const char *const names[TENSORS] = {
		"master", "model", "noise", "bias", "scale", "ids", "empty"};
	static const uint32_t dtypes[TENSORS] = {
		CKPT_F32, CKPT_BF16, CKPT_U8, CKPT_F32, CKPT_F32, CKPT_I64, CKPT_F64};
	static int64_t ids[500];

	s->master = calloc(ELEMENTS, sizeof(*s->master));
	s->model = calloc(ELEMENTS, sizeof(*s->model));
	s->noise = calloc(ELEMENTS, 1);
	for (size_t i = 0; i < ELEMENTS; i++) {
		s->master[i] = ((float)prng_below(d, 2000000) - 1000000) * 1e-8F;
		s->model[i] = round_bf16(s->master[i]);
		s->noise[i] = (char)prng_next(d);
	}
	/* Not all are roundings. */
	for (size_t i = 0; i < 50; i++)
		s->model[prng_below(d, ELEMENTS)] = (uint16_t)prng_next(d);
	for (size_t i = 0; i < 500; i++)
		ids[i] = (int64_t)i * 3;
	const void *data[TENSORS] = {
		s->master, s->model, s->noise, s->master + 5, s->master + 99, ids, ids};
	for (size_t i = 0; i < TENSORS; i++)
		s->tensors[i] = (struct ckpt_tensor){.size = sizeof(s->tensors[i]),
			.name = names[i],
			.dtype = dtypes[i],
			.ndim = 1,
			.shape = shapes[i],
			.data = data[i]};
}

static void open_rig(struct scene *s)
{
	struct rig_config config = {
		.dir = s->dir, .block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN};

	rig_open(&s->rig, &config);
}

static char *read_file(const char *path, size_t *ret_length)
{
	struct stat st;
	FILE *f = fopen(path, "rb");

	if (!f)
		fail_msg("%s is missing", path);
	assert_int_equal(fstat(fileno(f), &st), 0);
	char *data = malloc((size_t)st.st_size + 1);
	assert_int_equal(fread(data, 1, (size_t)st.st_size, f), st.st_size);
	assert_int_equal(fclose(f), 0);
	*ret_length = (size_t)st.st_size;
	return data;
}

static void read_table(struct scene *s)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_encoded_trailer trailer;
	size_t length;
	char *data = read_file(encode_fixture_path(&s->step, 0), &length);

	assert_int_equal(length, s->made.bytes);
	assert_int_equal(ckpt_encoded_read_trailer(data + s->made.bytes - CKPT_ENCODED_TRAILER,
				 s->made.bytes, s->layout, "x", &err, &trailer),
		0);
	assert_int_equal(ckpt_encoded_decode(data + trailer.table_offset, &trailer, s->layout, "x",
				 &err, &s->table),
		0);
	free(data);
}

/* Step 10 of one rank, encoded. */
static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct prng d = {7};

	s->dir = scratch_make_in_memory();
	make_tensors(s, &d);
	s->step = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10,
		.tensors = s->tensors,
		.count = TENSORS,
		.alias = "tied",
		.meta = "{}",
		.chunk_bytes = CHUNK,
		.world = 1};
	fixture_begin(s->dir);
	fixture_commit(&s->step);
	encode_fixture_rank(&s->step, 0, &d, &s->made);
	open_rig(s);
	s->open = rig_restore(&s->rig, 10);
	s->layout = ckpt_restore_index(s->open)->layout;
	read_table(s);
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	rig_free(s->open);
	rig_close(&s->rig);
	ckpt_encoded_free(s->table);
	free(s->master);
	free(s->model);
	free(s->noise);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static uint64_t bytes_of(const struct ckpt_tensor *tensor)
{
	static const uint64_t sizes[CKPT_DTYPE_END] = {
		[CKPT_F32] = 4, [CKPT_BF16] = 2, [CKPT_U8] = 1, [CKPT_I64] = 8, [CKPT_F64] = 8};

	return (uint64_t)tensor->shape[0] * sizes[tensor->dtype];
}

/* Restores so many tensors, from number `first` on, each whole or a range of it. The code. */
static int restore(struct scene *s, struct prng *d, size_t first, size_t count, bool compare)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_target targets[TENSORS];
	char *got[TENSORS];
	struct ckpt_restore *r = rig_restore(&s->rig, 10);
	uint64_t done;
	uint64_t total;

	for (size_t i = 0; i < count; i++) {
		const struct ckpt_tensor *t = &s->tensors[first + i];
		uint64_t bytes = bytes_of(t);
		uint64_t from = bytes == 0 || prng_below(d, 2) ? 0 : prng_below(d, bytes);
		uint64_t left = bytes - from;
		uint64_t length = left == 0 || prng_below(d, 2) ? left : 1 + prng_below(d, left);

		got[i] = calloc(1, length + 1);
		targets[i] = (struct ckpt_target){.size = sizeof(targets[i]),
			.name = t->name,
			.data = got[i],
			.offset = from,
			.length = length};
		if (ckpt_restore_add_targets(r, &targets[i], 1, &err) < 0)
			fail_msg("%s", err.message);
	}
	int code = rig_run(r);
	for (size_t i = 0; i < count; i++) {
		const char *data = s->tensors[first + i].data;
		if (code == 0 && compare)
			assert_memory_equal(got[i], data + targets[i].offset, targets[i].length);
		free(got[i]);
	}
	ckpt_restore_counters(r, &done, &total);
	if (code == 0)
		assert_int_equal(done, total);
	rig_free(r);
	return code;
}

static void test_arrives(void **state)
{
	struct scene *s = *state;
	struct prng d = {1};

	/* There are chunks of each kind, and the file is smaller. */
	assert_true(s->made.plain > 0 && s->made.parts > 0 && s->made.refs > 0);
	assert_true(s->made.bytes < s->table->bytes * 9 / 10);
	for (int i = 0; i < 100; i++) {
		size_t first = prng_below(&d, TENSORS);

		assert_int_equal(
			restore(s, &d, first, 1 + prng_below(&d, TENSORS - first), true), 0);
	}
}

/* The chunk that has this byte of the file; SIZE_MAX: none. */
static size_t stored_at(const struct scene *s, uint64_t at)
{
	for (size_t i = 0; i < s->table->chunk_count; i++)
		if (at >= s->table->chunks[i].offset &&
			at < s->table->chunks[i].offset + s->table->chunks[i].length)
			return i;
	return SIZE_MAX;
}

static bool needs(const struct scene *s, size_t chunk, size_t bad)
{
	const struct ckpt_encoded_chunk *c = &s->table->chunks[chunk];

	for (size_t i = 0; i < c->ref_count; i++)
		if (s->table->refs[c->first_ref + i] == bad)
			return true;
	return chunk == bad;
}

/* What a verification finds is these chunks: the bad one, and what is decoded with it. */
static void check_findings(const struct scene *s, const struct ckpt_restore *r, size_t bad)
{
	const struct ckpt_layout *layout = s->layout;
	size_t n = 0;

	for (size_t i = 0; i < layout->chunk_count; i++) {
		if (!needs(s, i, bad))
			continue;
		assert_true(n < ckpt_restore_finding_count(r));
		const struct ckpt_error *e = &ckpt_restore_finding(r, n++)->error;
		const struct ckpt_entry *entry = ckpt_layout_at(layout, layout->chunks[i].offset);
		assert_int_equal(e->code, CKPT_EINTEGRITY);
		assert_int_equal(e->offset, layout->chunks[i].offset);
		assert_string_equal(e->tensor, entry ? entry->name : "");
		assert_string_equal(e->file, encode_fixture_name(&s->step, 0));
	}
	assert_int_equal(n, ckpt_restore_finding_count(r));
}

static void test_verified(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *r = rig_verify(&s->rig, 10);
	uint64_t done;
	uint64_t total;

	assert_int_equal(rig_wait(r), 0);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_int_equal(ckpt_restore_finding(r, 0)->error.code, 0);
	assert_string_equal(
		ckpt_restore_finding(r, 0)->error.file, encode_fixture_name(&s->step, 0));
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(total, s->table->bytes);
	assert_int_equal(done, total);
	rig_free(r);
}

/* One byte of the file is another: in a gap that says nothing, and anywhere else it is found. */
static void test_any_byte(void **state)
{
	struct scene *s = *state;
	const char *path = encode_fixture_path(&s->step, 0);
	struct prng d = {3};
	unsigned found = 0;

	for (int round = 0; round < 120; round++) {
		uint64_t at = prng_below(&d, s->made.bytes);

		/* The end by itself, as it is small. */
		if (round % 4 == 0)
			at = s->table->table_offset +
			     prng_below(&d, s->made.bytes - s->table->table_offset);
		size_t bad = stored_at(s, at);
		bool magic = at >= s->made.bytes - CKPT_ENCODED_TRAILER &&
			     at < s->made.bytes - CKPT_ENCODED_TRAILER + 8;
		bool gap = bad == SIZE_MAX && at < s->table->table_offset;
		int code = gap ? 0 : magic ? CKPT_EINCOMPLETE : CKPT_EINTEGRITY;

		scratch_flip(path, (long)at);
		struct ckpt_restore *r = rig_verify(&s->rig, 10);
		assert_int_equal(rig_wait(r), code);
		if (bad != SIZE_MAX) {
			check_findings(s, r, bad);
			found++;
		} else if (!gap) {
			assert_int_equal(ckpt_restore_finding_count(r), 1);
			assert_string_equal(ckpt_restore_finding(r, 0)->error.file,
				encode_fixture_name(&s->step, 0));
		}
		rig_free(r);
		/* What was not changed arrives. Nothing that was does. */
		int restored = restore(s, &d, 0, TENSORS, true);
		assert_true(restored == 0 || restored == code);
		assert_true(restored == code || bad != SIZE_MAX);
		scratch_flip(path, (long)at);
		(void)unlink(fixture_quarantine(&s->step));
	}
	assert_true(found > 20);
}

/* A verification and a restore of all say the same, of that file. */
static void check_refused(struct scene *s, int code, const char *file)
{
	struct prng d = {1};
	struct ckpt_restore *r = rig_verify(&s->rig, 10);

	assert_int_equal(rig_wait(r), code);
	assert_int_equal(ckpt_restore_finding_count(r), 1);
	assert_string_equal(ckpt_restore_finding(r, 0)->error.file, file);
	rig_free(r);
	assert_int_equal(restore(s, &d, 0, TENSORS, false), code);
	(void)unlink(fixture_quarantine(&s->step));
}

static void test_cut(void **state)
{
	struct scene *s = *state;
	const char *path = encode_fixture_path(&s->step, 0);
	const uint64_t lengths[] = {0, 79, 80, s->made.bytes / 2, s->table->table_offset,
		s->made.bytes - 1, s->made.bytes + 1, s->made.bytes + 4096};
	size_t length;
	char *data = read_file(path, &length);

	for (size_t i = 0; i < COUNT(lengths); i++) {
		assert_int_equal(truncate(path, (off_t)lengths[i]), 0);
		check_refused(s, CKPT_EINCOMPLETE, encode_fixture_name(&s->step, 0));
		FILE *f = fopen(path, "wb");
		assert_non_null(f);
		assert_int_equal(fwrite(data, 1, length, f), length);
		assert_int_equal(fclose(f), 0);
	}
	free(data);
	assert_int_equal(unlink(path), 0);
	/* What is there in neither form is told as the plain file. */
	check_refused(s, CKPT_EINCOMPLETE, fixture_shard_name(&s->step, 0));
}

/* Another store is given the file as it is, and what it gets is good. */
static void test_exported(void **state)
{
	struct scene *s = *state;
	const char *dest = scratch_join(s->dir, "copy");
	struct fixture_step there = s->step;
	size_t length;
	char *here = read_file(encode_fixture_path(&s->step, 0), &length);
	uint64_t gap = 0;

	/* What lies between the chunks is not given on. */
	while (stored_at(s, gap) != SIZE_MAX)
		gap++;
	assert_true(gap < s->table->table_offset);
	scratch_flip(encode_fixture_path(&s->step, 0), (long)gap);
	struct ckpt_restore *r = rig_export(&s->rig, 10, dest);
	uint64_t done;
	uint64_t total;

	assert_int_equal(rig_wait(r), 0);
	ckpt_restore_counters(r, &done, &total);
	assert_int_equal(done, total);
	rig_free(r);
	there.dir = dest;
	char *copy = read_file(encode_fixture_path(&there, 0), &length);
	assert_int_equal(length, s->made.bytes);
	assert_memory_equal(copy, here, length);
	free(here);
	free(copy);
	/* One that is damaged is not given on. */
	scratch_flip(encode_fixture_path(&s->step, 0), (long)s->table->chunks[3].offset);
	r = rig_export(&s->rig, 10, scratch_join(s->dir, "other"));
	assert_int_equal(rig_wait(r), CKPT_EINTEGRITY);
	assert_string_equal(ckpt_restore_failure(r)->file, encode_fixture_name(&s->step, 0));
	rig_free(r);
}

/* A table that is longer than what is read of the file's end at first. */
static void test_long_table(void **state)
{
	struct prng d = {5};
	struct scene s = {.dir = scratch_make_in_memory()};

	(void)state;
	make_tensors(&s, &d);
	s.step = (struct fixture_step){.dir = s.dir,
		.generation = 1,
		.step = 10,
		.tensors = s.tensors,
		.count = TENSORS,
		.chunk_bytes = 100,
		.world = 1};
	fixture_begin(s.dir);
	fixture_commit(&s.step);
	encode_fixture_rank(&s.step, 0, &d, &s.made);
	open_rig(&s);
	assert_true(s.made.parts + s.made.plain > 3000);
	for (int i = 0; i < 5; i++)
		assert_int_equal(restore(&s, &d, 0, TENSORS, true), 0);
	rig_close(&s.rig);
	free(s.master);
	free(s.model);
	free(s.noise);
	scratch_remove(s.dir);
}

/* Some ranks are encoded, and one may be damaged: what others have as well arrives, and nothing that is wrong does. */
static void check_ranks(uint64_t seed, unsigned *ret_refused)
{
	struct prng d = {seed};
	struct ckpt_error err = {.size = sizeof(err)};
	struct sharded *sharded = calloc(1, sizeof(*sharded));
	struct sharded_goal goals[8];
	struct scene s = {.dir = scratch_make_in_memory()};
	struct encode_fixture made;
	bool copied = true;

	fixture_begin(s.dir);
	sharded_make(sharded, &d, 1 + (uint32_t)prng_below(&d, 4), 2 + prng_below(&d, 90));
	sharded_commit(sharded, s.dir, 10, 1 + prng_below(&d, seed % 3 ? 6000 : 60000));
	uint32_t bad = (uint32_t)prng_below(&d, sharded->world);
	for (uint32_t i = 0; i < sharded->world; i++) {
		if (i != bad && prng_below(&d, 2))
			continue;
		encode_fixture_rank(&sharded->step, i, &d, &made);
		if (i == bad && prng_below(&d, 2))
			scratch_flip(encode_fixture_path(&sharded->step, i),
				(long)prng_below(&d, made.bytes));
	}
	open_rig(&s);
	struct ckpt_restore *r = rig_restore(&s.rig, 10);
	for (size_t i = 0; i < COUNT(goals); i++) {
		size_t tensor = (size_t)prng_below(&d, SHARDED_TENSORS);

		sharded_want(sharded, &d, tensor, &goals[i]);
		copied = copied && sharded_has_copy(sharded, tensor, bad);
		assert_int_equal(ckpt_restore_add_targets(r, &goals[i].target, 1, &err), 0);
	}
	int code = rig_run(r);
	assert_true(code == 0 || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE);
	assert_true(code == 0 || !copied);
	*ret_refused += code < 0;
	for (size_t i = 0; i < COUNT(goals); i++) {
		assert_true(code < 0 || sharded_got(&goals[i]));
		sharded_forget(&goals[i]);
	}
	rig_free(r);
	rig_close(&s.rig);
	sharded_clear(sharded);
	free(sharded);
	scratch_remove(s.dir);
}

static void test_ranks(void **state)
{
	unsigned refused = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 60; seed++)
		check_ranks(seed, &refused);
	assert_true(refused > 5);
}

/* Decoders that there are, and blocks whose stored bytes are in memory. */
static unsigned decoders;
static unsigned most_decoders;
static unsigned blocks;
static unsigned most_blocks;

struct ckpt_chunk_decoder *__real_ckpt_chunk_decoder_open(void);
struct ckpt_chunk_decoder *__wrap_ckpt_chunk_decoder_open(void);
void __real_ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder);
void __wrap_ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder);
int __real_ckpt_stored_plan_begin(struct ckpt_stored_plan *plan);
int __wrap_ckpt_stored_plan_begin(struct ckpt_stored_plan *plan);
void __real_ckpt_stored_plan_clear(struct ckpt_stored_plan *plan);
void __wrap_ckpt_stored_plan_clear(struct ckpt_stored_plan *plan);

struct ckpt_chunk_decoder *__wrap_ckpt_chunk_decoder_open(void)
{
	if (++decoders > most_decoders)
		most_decoders = decoders;
	return __real_ckpt_chunk_decoder_open();
}

void __wrap_ckpt_chunk_decoder_close(struct ckpt_chunk_decoder *decoder)
{
	decoders -= decoder != NULL;
	__real_ckpt_chunk_decoder_close(decoder);
}

int __wrap_ckpt_stored_plan_begin(struct ckpt_stored_plan *plan)
{
	blocks += plan->bytes > 0;
	if (blocks > most_blocks)
		most_blocks = blocks;
	return __real_ckpt_stored_plan_begin(plan);
}

void __wrap_ckpt_stored_plan_clear(struct ckpt_stored_plan *plan)
{
	blocks -= plan->allocated && plan->bytes > 0;
	__real_ckpt_stored_plan_clear(plan);
}

/* Several shards that are read at once, with so many decoders and so many stored bytes in all; 0: as many as usual. */
static void read_together(struct scene *s, uint32_t with_decoders, uint64_t stored_bytes)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct sharded *sharded = calloc(1, sizeof(*sharded));
	struct sharded_goal goals[8];
	struct encode_fixture made;
	struct prng d = {7};

	fixture_begin(s->dir);
	sharded_make_wide(sharded, &d, 4, UINT64_C(600) << 10);
	sharded_commit(sharded, s->dir, 10, CHUNK);
	for (uint32_t i = 0; i < sharded->world; i++)
		encode_fixture_rank(&sharded->step, i, &d, &made);
	rig_open(&s->rig, &(struct rig_config){.dir = s->dir, .block_bytes = BLOCK, .slots = 64});
	s->rig.core.config.decoders = with_decoders;
	s->rig.core.config.stored_bytes = stored_bytes;
	struct ckpt_restore *r = rig_restore(&s->rig, 10);
	for (size_t i = 0; i < COUNT(goals); i++) {
		sharded_want(sharded, &d, i % SHARDED_TENSORS, &goals[i]);
		assert_int_equal(ckpt_restore_add_targets(r, &goals[i].target, 1, &err), 0);
	}
	most_decoders = 0;
	most_blocks = 0;
	assert_int_equal(rig_run(r), 0);
	for (size_t i = 0; i < COUNT(goals); i++) {
		assert_true(sharded_got(&goals[i]));
		sharded_forget(&goals[i]);
	}
	rig_free(r);
	rig_close(&s->rig);
	/* Nothing of it is kept when all have been read. */
	assert_true(decoders == 0 && blocks == 0 && !s->rig.core.decoders);
	sharded_clear(sharded);
	free(sharded);
}

/* Each read goes on, with a block at a time and the one decoder that there is for all of them. */
static void test_bounded(void **state)
{
	struct scene s = {.dir = scratch_make_in_memory()};

	(void)state;
	read_together(&s, 1, 1);
	assert_int_equal(most_decoders, 1);
	assert_true(most_blocks >= 1 && most_blocks <= 4);
	scratch_remove(s.dir);
	s.dir = scratch_make_in_memory();
	read_together(&s, 0, 0);
	assert_true(most_decoders >= 1 && most_decoders <= CKPT_DECODERS_MAX);
	assert_true(most_blocks > 4);
	scratch_remove(s.dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_arrives, setup, teardown),
		cmocka_unit_test_setup_teardown(test_verified, setup, teardown),
		cmocka_unit_test_setup_teardown(test_any_byte, setup, teardown),
		cmocka_unit_test_setup_teardown(test_cut, setup, teardown),
		cmocka_unit_test_setup_teardown(test_exported, setup, teardown),
		cmocka_unit_test(test_long_table),
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
