/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shards that are decoded with those of earlier steps: what arrives is what was saved, and what is wrong with a base is wrong
 * with the steps that need it, and with no others.
 */
#include "lib/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/shard/chain.h"
#include "engine/shard/findings.h"
#include "lib/chain_fixture.h"
#include "lib/encode_fixture.h"
#include "lib/rig.h"
#include "lib/scratch.h"

#define BLOCK    UINT32_C(65536)
#define CHUNK    16384
#define TENSORS  10
#define ELEMENTS 30000
#define FEW      5000
#define STEPS    17 /* the last one has as many bases as a file may name */

struct data {
	float master[ELEMENTS];
	uint16_t model[ELEMENTS];
	uint16_t half[ELEMENTS];
	uint8_t noise[ELEMENTS];
	float frozen[ELEMENTS];
	int64_t ids[500];
	/* One master of two tensors, of which one stays: their chunks follow each other, and refer to it in different files. */
	float few[FEW];
	uint16_t rounded[FEW];
	uint16_t kept[FEW];
};

struct scene {
	char *dir;
	struct rig rig;
	struct fixture_step steps[STEPS];
	struct ckpt_tensor tensors[STEPS][TENSORS];
	struct data *data; /* of each step */
	struct chain_fixture chain;
};

static const int64_t shapes[TENSORS][1] = {
	{ELEMENTS}, {ELEMENTS}, {20000}, {ELEMENTS}, {29000}, {500}, {0}, {FEW}, {FEW}, {FEW}};

static uint16_t round_bf16(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* A step of training: all of the master moves a little, some of the rest, and the frozen tensor not at all. */
static void move(struct data *now, const struct data *before, struct prng *d)
{
	if (before)
		*now = *before;
	for (size_t i = 0; i < ELEMENTS; i++) {
		if (!before) {
			now->master[i] = ((float)prng_below(d, 2000000) - 1000000) * 1e-7F;
			now->frozen[i] = (float)prng_below(d, 1000000);
			now->half[i] = (uint16_t)prng_next(d);
		}
		now->master[i] += ((float)prng_below(d, 2000) - 1000) * 1e-10F;
		now->model[i] = round_bf16(now->master[i]);
		now->noise[i] = (uint8_t)prng_next(d);
	}
	for (size_t i = 0; i < FEW; i++) {
		now->few[i] = ((float)prng_below(d, 2000000) - 1000000) * 1e-7F;
		now->rounded[i] = round_bf16(now->few[i]);
		if (!before)
			now->kept[i] = now->rounded[i];
	}
	for (size_t i = 0; i < 30; i++) {
		now->half[prng_below(d, 3000)]++;
		now->ids[prng_below(d, 500)]++;
	}
}

static void make_tensors(struct scene *s, size_t n)
{
	static const char *const names[TENSORS] = {
		"master", "model", "half", "noise", "frozen", "ids", "empty", "sm", "sn", "so"};
	static const uint32_t dtypes[TENSORS] = {CKPT_F32, CKPT_BF16, CKPT_F16, CKPT_U8, CKPT_F32,
		CKPT_I64, CKPT_F64, CKPT_F32, CKPT_BF16, CKPT_BF16};
	const struct data *d = &s->data[n];
	const void *data[TENSORS] = {d->master, d->model, d->half, d->noise, d->frozen, d->ids,
		d->ids, d->few, d->rounded, d->kept};

	for (size_t i = 0; i < TENSORS; i++)
		s->tensors[n][i] = (struct ckpt_tensor){.size = sizeof(s->tensors[n][i]),
			.name = names[i],
			.dtype = dtypes[i],
			.ndim = 1,
			.shape = shapes[i],
			.data = data[i]};
}

static void make_step(struct scene *s, size_t n, struct prng *d)
{
	move(&s->data[n], n > 0 ? &s->data[n - 1] : NULL, d);
	make_tensors(s, n);
	s->steps[n] = (struct fixture_step){.dir = s->dir,
		.generation = 1,
		.step = 10 * (n + 1),
		.tensors = s->tensors[n],
		.count = TENSORS,
		.meta = "{}",
		.chunk_bytes = CHUNK,
		.world = 1};
}

static void open_rig(struct scene *s)
{
	struct rig_config config = {
		.dir = s->dir, .block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN};

	rig_open(&s->rig, &config);
	/* They take memory each time. */
	s->rig.core.config.decoders = 2;
}

/* So many steps, each with the one before as its base. */
static struct scene *make_scene(size_t count, bool plain_first)
{
	struct scene *s = calloc(1, sizeof(*s));
	struct prng d = {7};

	s->dir = scratch_make_in_memory();
	s->data = calloc(STEPS, sizeof(*s->data));
	fixture_begin(s->dir);
	for (size_t n = 0; n < count; n++) {
		make_step(s, n, &d);
		if (n == 0 && plain_first)
			chain_fixture_begin_plain(&s->chain, &s->steps[n]);
		else
			chain_fixture_add(&s->chain, &s->steps[n]);
	}
	return s;
}

static void drop_scene(struct scene *s)
{
	chain_fixture_clear(&s->chain);
	free(s->data);
	scratch_remove(s->dir);
	free(s);
}

static uint64_t bytes_of(const struct ckpt_tensor *tensor)
{
	static const uint64_t sizes[CKPT_DTYPE_END] = {[CKPT_F32] = 4,
		[CKPT_BF16] = 2,
		[CKPT_F16] = 2,
		[CKPT_U8] = 1,
		[CKPT_I64] = 8,
		[CKPT_F64] = 8};

	return (uint64_t)tensor->shape[0] * sizes[tensor->dtype];
}

/* Restores so many tensors of a step, from number `first` on, each whole or a range of it. The code. */
static int restore(struct scene *s, struct prng *d, size_t n, size_t first, size_t count)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_target targets[TENSORS];
	char *got[TENSORS];
	struct ckpt_restore *r = rig_restore(&s->rig, s->steps[n].step);

	for (size_t i = 0; i < count; i++) {
		const struct ckpt_tensor *t = &s->tensors[n][first + i];
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
		const char *data = s->tensors[n][first + i].data;
		if (code == 0)
			assert_memory_equal(got[i], data + targets[i].offset, targets[i].length);
		free(got[i]);
	}
	rig_free(r);
	return code;
}

static int restore_all(struct scene *s, size_t n)
{
	struct prng d = {1};
	int code = restore(s, &d, n, 0, TENSORS);

	(void)unlink(fixture_quarantine(&s->steps[n]));
	return code;
}

/* A verification of a step ends with this code. */
static struct ckpt_restore *verify(struct scene *s, size_t n, int code)
{
	struct ckpt_restore *r = rig_verify(&s->rig, s->steps[n].step);

	assert_int_equal(rig_wait(r), code);
	(void)unlink(fixture_quarantine(&s->steps[n]));
	return r;
}

static void test_arrives(void **state)
{
	struct scene *s = make_scene(STEPS, false);
	struct prng d = {3};

	(void)state;
	/* There is all that there can be. */
	assert_true(s->chain.same > 0 && s->chain.based > 0 && s->chain.table.ref_count > 0);
	assert_int_equal(s->chain.table.base_count, CKPT_ENCODED_BASES_MAX);
	open_rig(s);
	for (size_t n = 0; n < STEPS; n += 4) {
		rig_free(verify(s, n, 0));
		assert_int_equal(restore_all(s, n), 0);
	}
	for (int i = 0; i < 30; i++) {
		size_t first = prng_below(&d, TENSORS);

		assert_int_equal(restore(s, &d, prng_below(&d, STEPS), first,
					 1 + prng_below(&d, TENSORS - first)),
			0);
	}
	rig_close(&s->rig);
	drop_scene(s);
}

static void rename_files(const struct fixture_step *step, const char *attempt, bool shard)
{
	const char *from = shard ? encode_fixture_path(step, 0) : fixture_index(step, 0);
	char to[1024];

	(void)snprintf(to, sizeof(to), "%.*s/rank-00000.%s.%s", (int)(strrchr(from, '/') - from),
		from, attempt, shard ? "encoded" : "index");
	assert_int_equal(rename(from, to), 0);
}

/* A base that was repaired has files of another attempt; one that was stored plain has the same bytes. */
static void test_other_files(void **state)
{
	struct scene *s = make_scene(3, true);

	(void)state;
	rename_files(&s->steps[1], "00000000000000aa", false);
	rename_files(&s->steps[1], "00000000000000bb", true);
	open_rig(s);
	rig_free(verify(s, 2, 0));
	assert_int_equal(restore_all(s, 2), 0);
	rig_close(&s->rig);
	drop_scene(s);
}

/* A finding names the file. */
static bool is_found(const struct ckpt_restore *r, const char *file)
{
	for (size_t i = 0; i < ckpt_restore_finding_count(r); i++)
		if (strcmp(ckpt_restore_finding(r, i)->error.file, file) == 0)
			return true;
	return false;
}

/* A byte of each step's shard is another one: what is decoded with it is found and named, and the rest is good. */
static void test_damaged_link(void **state)
{
	struct scene *s = make_scene(4, false);
	unsigned later = 0;
	unsigned restores = 0;

	(void)state;
	open_rig(s);
	for (size_t bad = 0; bad < 4; bad++) {
		const char *path = encode_fixture_path(&s->steps[bad], 0);
		const char *name = encode_fixture_name(&s->steps[bad], 0);

		for (long at = 5000; at < 60000; at += 26001) {
			struct stat st;

			assert_int_equal(stat(path, &st), 0);
			/* Not the table. */
			if (at > st.st_size / 2)
				break;
			scratch_flip(path, at);
			for (size_t n = 0; n < 4; n++) {
				struct ckpt_restore *r = rig_verify(&s->rig, s->steps[n].step);
				int code = rig_wait(r);

				(void)unlink(fixture_quarantine(&s->steps[n]));
				assert_true(code == 0 || code == CKPT_EINTEGRITY);
				assert_true(n >= bad || code == 0);
				assert_true(n != bad || code == CKPT_EINTEGRITY);
				if (code < 0) {
					assert_true(is_found(r, name));
					assert_int_equal(ckpt_restore_finding(r, 0)->error.step,
						(int64_t)s->steps[n].step);
				}
				if (code < 0 && n > bad) {
					char text[64];

					(void)snprintf(text, sizeof(text), "step %llu is decoded",
						(unsigned long long)s->steps[n].step);
					assert_non_null(strstr(
						ckpt_restore_finding(r, 0)->error.message, text));
					later++;
				}
				rig_free(r);
				/* The header is not restored. */
				int restored = restore_all(s, n);
				assert_true(restored == code || restored == 0);
				restores += restored < 0 && n > bad;
			}
			scratch_flip(path, at);
		}
	}
	assert_true(later > 5 && restores > 5);
	rig_close(&s->rig);
	drop_scene(s);
}

/* Without a base the steps that need it are incomplete. Others are not. */
static void test_missing(void **state)
{
	struct scene *s = make_scene(4, false);

	(void)state;
	open_rig(s);
	assert_int_equal(unlink(encode_fixture_path(&s->steps[1], 0)), 0);
	for (size_t n = 0; n < 4; n++) {
		int code = n == 0 ? 0 : CKPT_EINCOMPLETE;
		struct ckpt_restore *r = verify(s, n, code);

		if (n > 1) {
			const struct ckpt_error *e = &ckpt_restore_finding(r, 0)->error;

			assert_int_equal(e->step, (int64_t)s->steps[n].step);
			assert_non_null(strstr(e->message, "is decoded with the shard of step 20"));
		}
		rig_free(r);
		assert_int_equal(restore_all(s, n), code);
	}
	rig_close(&s->rig);
	drop_scene(s);
}

/* A copy has what was saved in a plain file, and needs no other step. */
static void test_exported(void **state)
{
	struct scene *s = make_scene(4, false);
	const char *dest = scratch_join(s->dir, "copy");
	struct fixture_step there = s->steps[3];
	size_t here;

	(void)state;
	open_rig(s);
	struct ckpt_restore *r = rig_export(&s->rig, s->steps[3].step, dest);
	assert_int_equal(rig_wait(r), 0);
	rig_free(r);
	there.dir = dest;
	assert_int_equal(access(encode_fixture_path(&there, 0), F_OK), -1);
	FILE *f = fopen(fixture_shard(&there, 0), "rb");
	assert_non_null(f);
	char *got = malloc(s->chain.index->layout->bytes + 1);
	here = fread(got, 1, s->chain.index->layout->bytes + 1, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(here, s->chain.index->layout->bytes);
	assert_memory_equal(got, s->chain.shard, here);
	free(got);
	rig_close(&s->rig);
	/* By itself. */
	struct rig_config config = {
		.dir = dest, .block_bytes = BLOCK, .slots = CKPT_POOL_SLOTS_MIN, .read_only = true};
	rig_open(&s->rig, &config);
	rig_free(verify(s, 3, 0));
	assert_int_equal(restore_all(s, 3), 0);
	rig_close(&s->rig);
	drop_scene(s);
}

/* Tables of which all digests fit, and that no writer makes. */
static void check_refused(struct scene *s, size_t n, int code, const char *text)
{
	struct ckpt_restore *r;

	chain_fixture_put_table(&s->chain, &s->steps[n]);
	r = verify(s, n, code);
	if (!strstr(ckpt_restore_finding(r, 0)->error.message, text))
		fail_msg("%s", ckpt_restore_finding(r, 0)->error.message);
	rig_free(r);
	assert_int_equal(restore_all(s, n), code);
}

static size_t find_kind(const struct ckpt_encoded *table, unsigned kind, bool based)
{
	for (size_t i = 0; i < table->chunk_count; i++)
		if (table->chunks[i].kind == kind && (table->chunks[i].base > 0) == based)
			return i;
	fail();
	return 0;
}

static void test_malformed(void **state)
{
	struct scene *s = make_scene(4, false);
	struct ckpt_encoded *t = &s->chain.table;
	struct ckpt_encoded_base kept[CKPT_ENCODED_BASES_MAX];
	size_t same = find_kind(t, CKPT_ENCODED_SAME, true);
	size_t based = find_kind(t, CKPT_ENCODED_PARTS, true);

	(void)state;
	memcpy(kept, t->bases, sizeof(kept));
	open_rig(s);
	rig_free(verify(s, 3, 0));
	/* The step itself, and a later one. */
	t->bases[2].step = 40;
	check_refused(s, 3, CKPT_EFORMAT, "not older than its own step");
	t->bases[2].step = 50;
	check_refused(s, 3, CKPT_EFORMAT, "not older than its own step");
	memcpy(t->bases, kept, sizeof(kept));
	t->bases[2].generation = 2;
	check_refused(s, 3, CKPT_EFORMAT, "not older than its own step");
	memcpy(t->bases, kept, sizeof(kept));
	/* Another index than that of the step. */
	t->bases[1].index_digest.bytes[3]++;
	check_refused(s, 3, CKPT_EINTEGRITY, "step 40 is decoded with the shard of step 20");
	memcpy(t->bases, kept, sizeof(kept));
	t->bases[1].index_bytes++;
	check_refused(s, 3, CKPT_EINCOMPLETE, "step 40 is decoded with the shard of step 20");
	memcpy(t->bases, kept, sizeof(kept));
	/* A chunk that is nowhere: its base has it from another one. */
	uint8_t number = t->chunks[same].base;
	t->chunks[same].base = 3;
	check_refused(s, 3, CKPT_EFORMAT, "cannot be decoded with");
	t->chunks[same].base = number;
	/* A list that lacks what a base names. */
	t->bases[1] = kept[2];
	t->base_count = 2;
	for (size_t i = 0; i < t->chunk_count; i++)
		if (t->chunks[i].base == 3)
			t->chunks[i].base = 2;
	check_refused(s, 3, CKPT_EFORMAT, "cannot be decoded with");
	/* Another base than the one that it was encoded with. */
	memcpy(t->bases, kept, sizeof(kept));
	t->base_count = 3;
	for (size_t i = 0; i < t->chunk_count; i++)
		if (t->chunks[i].base == 2)
			t->chunks[i].base = 3;
	t->chunks[based].base = 1;
	check_refused(s, 3, CKPT_EINTEGRITY, "do not match their digest");
	rig_close(&s->rig);
	drop_scene(s);
}

/* A base with other tensors. */
static void test_other_layout(void **state)
{
	struct scene *s = make_scene(2, false);
	struct fixture_step other = s->steps[0];
	struct ckpt_tensor tensors[TENSORS];
	struct chain_fixture chain = {0};

	(void)state;
	memcpy(tensors, s->tensors[0], sizeof(tensors));
	tensors[1].dtype = CKPT_F16;
	other.tensors = tensors;
	other.step = 5;
	chain_fixture_add(&chain, &other);
	s->chain.table.bases[0] = chain.last;
	open_rig(s);
	check_refused(s, 1, CKPT_EFORMAT, "has other tensors");
	rig_close(&s->rig);
	chain_fixture_clear(&chain);
	drop_scene(s);
}

/* Whatever records say, with digests that fit: what arrives is right, or nothing does. */
static void test_any_records(void **state)
{
	struct scene *s = make_scene(4, true);
	struct ckpt_encoded *t = &s->chain.table;
	struct ckpt_encoded_chunk *kept = malloc(t->chunk_count * sizeof(*kept));
	struct prng d = {11};
	unsigned good = 0;

	(void)state;
	memcpy(kept, t->chunks, t->chunk_count * sizeof(*kept));
	open_rig(s);
	for (int round = 0; round < 60; round++) {
		for (unsigned i = 0; i <= prng_below(&d, 2); i++) {
			struct ckpt_encoded_chunk *c = &t->chunks[prng_below(&d, t->chunk_count)];
			const struct ckpt_encoded_chunk *other =
				&kept[prng_below(&d, t->chunk_count)];
			uint16_t refs = c->ref_count;

			if (prng_below(&d, 2))
				c->base = (uint8_t)prng_below(&d, 5);
			else if (prng_below(&d, 2))
				*c = *other;
			else
				c->kind = (uint8_t)prng_below(&d, 4);
			c->ref_count = refs;
		}
		chain_fixture_put_table(&s->chain, &s->steps[3]);
		good += restore_all(s, 3) == 0;
		memcpy(t->chunks, kept, t->chunk_count * sizeof(*kept));
	}
	assert_true(good > 0 && good < 60);
	free(kept);
	rig_close(&s->rig);
	drop_scene(s);
}

static const char *golden;

/* What was written once is read for ever. */
static void test_golden(void **state)
{
	struct rig_config config = {.dir = golden,
		.block_bytes = BLOCK,
		.slots = CKPT_POOL_SLOTS_MIN,
		.read_only = true};
	struct rig rig;

	(void)state;
	rig_open(&rig, &config);
	for (uint64_t step = 1; step <= 4; step++) {
		struct ckpt_restore *r = rig_verify(&rig, step);

		assert_int_equal(rig_wait(r), 0);
		rig_free(r);
	}
	rig_close(&rig);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_arrives),
		cmocka_unit_test(test_other_files),
		cmocka_unit_test(test_damaged_link),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_exported),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_other_layout),
		cmocka_unit_test(test_any_records),
	};

	if (argc != 2)
		return 2;
	golden = argv[1];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
