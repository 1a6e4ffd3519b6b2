/* SPDX-License-Identifier: Apache-2.0 */
/* Encoded shards of a step that is damaged here or in the remote store, or in both. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "format/encoded.h"
#include "lib/chain_fixture.h"
#include "lib/encode_fixture.h"
#include "lib/sanitized.h"
#include "lib/scratch.h"
#include "repair_scene.h"

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

static uint64_t number(const char *bytes, size_t count)
{
	uint64_t n = 0;

	while (count-- > 0)
		n = n << 8 | (unsigned char)bytes[count];
	return n;
}

/* Damages the stored bytes of a chunk. */
static void damage_stored(const char *path, size_t chunk, struct prng *prng)
{
	size_t bytes;
	char *data = load(path, &bytes);

	assert_non_null(data);
	const char *record =
		data + number(data + bytes - CKPT_ENCODED_TRAILER + 32, 8) + 32 * chunk;
	uint64_t offset = number(record, 8);
	uint32_t length = (uint32_t)number(record + 8, 4);
	free(data);
	scratch_flip(path, (long)(offset + prng_below(prng, length)));
}

static void encode_here(struct scene *s, struct prng *prng)
{
	restore_files(s);
	encode_fixture_rank(&s->here, 0, prng, NULL);
}

static void encode_there(struct scene *s, struct prng *prng)
{
	(void)unlink(encode_fixture_path(&s->there, 0));
	store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
	encode_fixture_rank(&s->there, 0, prng, NULL);
}

/* Both are encoded, and every chunk is good in one of them: all are had, and no other file is asked for. */
static void test_every_chunk_somewhere(void **state)
{
	struct scene *s = *state;
	unsigned both = 0;

	for (uint64_t seed = 1; seed <= CASES(20); seed++) {
		struct prng prng = {seed};
		bool plain = prng_below(&prng, 4) == 0;
		size_t here = 0;
		size_t there = 0;

		restore_files(s);
		if (!plain)
			encode_here(s, &prng);
		encode_there(s, &prng);
		for (size_t i = 0; i < s->layout->chunk_count; i++) {
			uint64_t what = prng_below(&prng, 8);
			if (what == 0 && plain)
				damage(s, &s->here, i, &prng);
			else if (what == 0)
				damage_stored(encode_fixture_path(&s->here, 0), i, &prng);
			else if (what == 1)
				damage_stored(encode_fixture_path(&s->there, 0), i, &prng);
			/* A restore does not need the header of an encoded one. */
			here += what == 0 && i > 0;
			there += what == 1;
		}
		if (here == 0)
			continue;
		both += there > 0;
		assert_mends(s);
		assert_int_equal(s->renames, 1);
		assert_null(scratch_find(s->local, ".encoded"));
	}
	assert_true(both > 0);
	/* One that is bad in both is lost. */
	struct prng prng = {41};
	encode_here(s, &prng);
	encode_there(s, &prng);
	damage_stored(encode_fixture_path(&s->here, 0), 6, &prng);
	damage_stored(encode_fixture_path(&s->there, 0), 6, &prng);
	assert_fails(s);
}

/* A request for stored bytes there fails: the file there is what could not be read. */
static void test_unreadable_there(void **state)
{
	struct scene *s = *state;
	struct prng prng = {43};

	encode_here(s, &prng);
	encode_there(s, &prng);
	damage_stored(encode_fixture_path(&s->here, 0), 6, &prng);
	s->far_code = -EIO;
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	s->far_code = 0;
	core_rig_close(&s->rig);
	assert_mends(s);
}

#define OTHER "00000000000000ff"
#define LAST  "ffffffffffffffff"

static const char *path_here(struct scene *s, const char *attempt, const char *form)
{
	static char path[CKPT_PATH_MAX];

	(void)snprintf(
		path, sizeof(path), "/g000001/step-0000000010/rank-00000.%s%s", attempt, form);
	return scratch_join(s->local, path);
}

/*
 * Two bad files here, an encoded and a plain one, of two attempts or of one, and of the worse one a chunk is bad there,
 * too: the better one is opened again, in the form that it has, whichever was looked at last.
 */
static void test_best_of_two_forms(void **state)
{
	struct scene *s = *state;

	for (unsigned i = 0; i < 6; i++) {
		struct prng prng = {i + 1};
		bool encoded_best = i % 2 == 0;
		bool encoded_first = i / 2 == 0;
		bool one_attempt = i / 2 == 2;
		char paths[2][512];

		(void)snprintf(paths[0], sizeof(paths[0]), "%s",
			path_here(s, encoded_first ? LAST : OTHER, SHARD));
		(void)snprintf(paths[1], sizeof(paths[1]), "%s",
			path_here(s, encoded_first || one_attempt ? OTHER : LAST, ".encoded"));
		encode_here(s, &prng);
		assert_int_equal(rename(encode_fixture_path(&s->here, 0), paths[1]), 0);
		store(paths[0], s->good, s->layout->bytes);
		for (unsigned k = 0; k < (encoded_best ? 3 : 1); k++)
			scratch_flip(paths[0], (long)s->layout->chunks[2 + k].offset);
		for (unsigned k = 0; k < (encoded_best ? 1 : 3); k++)
			damage_stored(paths[1], 12 + k, &prng);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
		damage(s, &s->there, encoded_best ? 3 : 13, &prng);
		assert_mends(s);
		assert_int_equal(s->far_read, s->layout->chunks[encoded_best ? 12 : 2].length);
	}
}

/* One attempt has both forms, of which one is bad, as a copy leaves them that was begun anew in the other form. */
static void test_both_forms(void **state)
{
	struct scene *s = *state;
	struct prng prng = {53};

	encode_here(s, &prng);
	store(fixture_shard(&s->here, 0), s->good, s->layout->bytes);
	damage(s, &s->here, 4, &prng);
	open_rig(s);
	assert_int_equal(read_it(s), 0);
	/* The encoded one is tried first, now that one was read. */
	store(fixture_shard(&s->here, 0), s->good, s->layout->bytes);
	damage_stored(encode_fixture_path(&s->here, 0), 6, &prng);
	assert_int_equal(read_it(s), 0);
	assert_int_equal(truncate(encode_fixture_path(&s->here, 0), 100), 0);
	assert_int_equal(read_it(s), 0);
	core_rig_close(&s->rig);
	/* The remote store has both, and what is needed is bad in one. */
	for (unsigned i = 0; i < 2; i++) {
		restore_files(s);
		damage(s, &s->here, 4, &prng);
		encode_there(s, &prng);
		store(fixture_shard(&s->there, 0), s->good, s->layout->bytes);
		if (i == 0)
			damage(s, &s->there, 4, &prng);
		else
			damage_stored(encode_fixture_path(&s->there, 0), 4, &prng);
		assert_mends(s);
	}
	/* Bad in both. */
	damage(s, &s->here, 4, &prng);
	damage(s, &s->there, 4, &prng);
	assert_fails(s);
}

/* A shard that is there in neither form is not said to be an encoded one, whatever was read before. */
static void test_missing(void **state)
{
	struct scene *s = *state;
	struct prng prng = {59};

	encode_here(s, &prng);
	assert_int_equal(unlink(fixture_shard(&s->there, 0)), 0);
	open_rig(s);
	assert_int_equal(read_it(s), 0);
	assert_int_equal(unlink(encode_fixture_path(&s->here, 0)), 0);
	assert_int_equal(read_it(s), CKPT_EINCOMPLETE);
	assert_non_null(strstr(s->rig.err.message, SHARD " (or .encoded) of step 10 is not in "));
	assert_non_null(strstr(s->rig.err.file, SHARD));
	core_rig_close(&s->rig);
}

#define ELEMENTS 20000

/* Model weights that are the upper halves of their master. */
static int set_up_rounded(void **state)
{
	static const int64_t shape = ELEMENTS;
	static float master[ELEMENTS];
	static uint16_t model[ELEMENTS];
	struct scene *s = calloc(1, sizeof(*s));
	struct ckpt_tensor tensors[TENSORS];
	struct prng prng = {3};

	for (size_t i = 0; i < ELEMENTS; i++) {
		uint32_t bits = 0x3c000000 | (uint32_t)(prng_next(&prng) & 0x00ff7fff);

		memcpy(&master[i], &bits, sizeof(bits));
		model[i] = (uint16_t)(bits >> 16);
	}
	for (size_t i = 0; i < TENSORS; i++)
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = (const char *[]){"a", "master", "model"}[i],
			.dtype = i == 2 ? CKPT_BF16 : CKPT_F32,
			.ndim = 1,
			.shape = &shape,
			.data = i == 2 ? (const void *)model : master};
	set_up_with(s, tensors);
	*state = s;
	return 0;
}

/* A chunk that was good in the file there, but for one that it is decoded with, which is good here, is not called lost. */
static void test_decoded_with_a_bad_one(void **state)
{
	struct scene *s = *state;
	struct prng prng = {47};
	struct encode_fixture made;
	size_t bytes;

	encode_fixture_rank(&s->there, 0, &prng, &made);
	assert_true(made.refs > 0);
	char *data = load(encode_fixture_path(&s->there, 0), &bytes);
	size_t last = s->layout->chunk_count - 1;
	const char *table = data + number(data + bytes - CKPT_ENCODED_TRAILER + 32, 8);
	assert_true(number(table + 32 * last + 14, 2) > 0);
	/* The numbers of the last chunk end the table. */
	size_t master = (uint32_t)number(data + bytes - CKPT_ENCODED_TRAILER - 4, 4);
	free(data);
	damage(s, &s->here, last, &prng);
	assert_mends(s);
	damage(s, &s->here, last, &prng);
	damage_stored(encode_fixture_path(&s->there, 0), master, &prng);
	open_rig(s);
	assert_int_equal(read_it(s), CKPT_EINTEGRITY);
	assert_hindered(s);
	core_rig_close(&s->rig);
	/* Here it is bad, too. */
	damage(s, &s->here, master, &prng);
	assert_fails(s);
}

/* The step here is decoded with an earlier one, step 5. */
static struct fixture_step chain_here(struct scene *s)
{
	static char bytes[TENSORS][100001];
	static struct ckpt_tensor tensors[TENSORS];
	struct chain_fixture chain = {0};
	struct fixture_step before = s->here;
	size_t length;

	memcpy(tensors, s->here.tensors, sizeof(tensors));
	for (size_t i = 0; i < TENSORS; i++) {
		size_t count = (size_t)tensors[i].shape[0];

		memcpy(bytes[i], tensors[i].data, count);
		for (size_t k = 0; k < count; k += 2000)
			bytes[i][k]++;
		tensors[i].data = bytes[i];
	}
	restore_files(s);
	before.step = 5;
	before.tensors = tensors;
	chain_fixture_add(&chain, &before);
	chain_fixture_add(&chain, &s->here);
	assert_true(chain.same > 0 && chain.based > 0);
	chain_fixture_clear(&chain);
	char *manifest = load(fixture_manifest(&s->here), &length);
	store(fixture_manifest(&s->there), manifest, length);
	free(manifest);
	s->names = scratch_count(s->local);
	return before;
}

/* What is wrong with a base is mended in the step that needs it: its own copy there needs no base. */
static void test_chain(void **state)
{
	struct scene *s = *state;
	struct prng prng = {31};
	struct fixture_step before = chain_here(s);

	damage_stored(encode_fixture_path(&before, 0), 6, &prng);
	assert_mends(s);
	assert_true(s->far_read < s->layout->bytes);
	before = chain_here(s);
	damage_stored(encode_fixture_path(&s->here, 0), 1, &prng);
	assert_mends(s);
	before = chain_here(s);
	assert_int_equal(unlink(encode_fixture_path(&before, 0)), 0);
	s->names--;
	assert_mends(s);
	assert_true(s->far_read >= s->layout->bytes);
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_encoded),
		SCENE(test_chain),
		SCENE(test_every_chunk_somewhere),
		SCENE(test_unreadable_there),
		SCENE(test_best_of_two_forms),
		SCENE(test_both_forms),
		SCENE(test_missing),
		cmocka_unit_test_setup_teardown(
			test_decoded_with_a_bad_one, set_up_rounded, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
