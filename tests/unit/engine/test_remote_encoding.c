/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that are stored in one form here and in another one in the remote store, which is a directory. */
#include "lib/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <ckpt/engine.h>

#include "codec/codec.h"
#include "engine/copy/upload_queue.h"
#include "engine/lineage/lineage.h"
#include "engine/shard/chunk_encode.h"
#include "lib/core_rig.h"
#include "lib/prng.h"
#include "lib/scratch.h"

#define PLAIN   ".safetensors"
#define ENCODED ".encoded"
#define MINUTE  60000

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct core_rig rig;
	uint64_t opened;
};

/* An encoder that errs: in chunks of this number on; its digests are those of what it has made. */
static size_t errs_from = SIZE_MAX;
static unsigned errors;

/* The names that the linker gives them. */
// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
void __real_ckpt_chunk_encode(const struct ckpt_chunk_scratch *scratch,
	const struct ckpt_chunk_source *source, size_t chunk, uint8_t *out, uint32_t *refs,
	struct ckpt_encoded_chunk *ret_stored);
void __wrap_ckpt_chunk_encode(const struct ckpt_chunk_scratch *scratch,
	const struct ckpt_chunk_source *source, size_t chunk, uint8_t *out, uint32_t *refs,
	struct ckpt_encoded_chunk *ret_stored);
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)

void __wrap_ckpt_chunk_encode(const struct ckpt_chunk_scratch *scratch,
	const struct ckpt_chunk_source *source, size_t chunk, uint8_t *out, uint32_t *refs,
	struct ckpt_encoded_chunk *ret_stored)
{
	__real_ckpt_chunk_encode(scratch, source, chunk, out, refs, ret_stored);
	if (chunk < errs_from || ret_stored->kind != CKPT_ENCODED_PARTS)
		return;
	/* A part's first byte, its last one, or that in the middle: the head, too, and the offset of a master. */
	out[++errors % 3 == 0 ? 9 : ret_stored->length / (errors % 3) - 1] ^= 4;
	ret_stored->digest = ckpt_digest_of(out, ret_stored->length);
}

static int setup(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	assert_int_equal(mkdir(s->local, 0777), 0);
	assert_int_equal(mkdir(s->remote, 0777), 0);
	*state = s;
	return 0;
}

static int teardown(void **state)
{
	struct scene *s = *state;

	scratch_remove(s->dir);
	free(s);
	return 0;
}

static void begin_again(void **state)
{
	assert_int_equal(teardown(state), 0);
	assert_int_equal(setup(state), 0);
}

static void open_job(
	struct scene *s, struct core_rig_config with, enum ckpt_remote_encoding encoding)
{
	with.dir = s->local;
	with.remote = s->remote;
	core_rig_make(&s->rig, &with);
	s->rig.core.config.remote_encoding = encoding;
	/* No attempt is drawn twice. */
	s->rig.random += 1000 * ++s->opened;
	assert_int_equal(core_rig_open_store(&s->rig), 0);
	core_rig_run(&s->rig);
}

/* Saves step 1 of so many tensors and numbers. */
static int save(struct scene *s, size_t count, size_t floats)
{
	assert_int_equal(core_rig_claim(&s->rig), 0);
	struct ckpt_save *one = core_rig_prepare(&s->rig, 1, count, floats, 0);

	if (!one)
		return s->rig.err.code;
	(void)core_rig_post(&s->rig, one);
	return core_rig_end_save(&s->rig, one);
}

static bool is_there(const struct scene *s)
{
	return access(scratch_join(s->remote, "g000001/step-0000000001/manifest.json"), F_OK) == 0;
}

/* What has failed is tried again. */
static void wait_for_it(struct scene *s)
{
	for (unsigned i = 0; i < 20 && !is_there(s); i++)
		core_rig_sleep(&s->rig, MINUTE);
}

static off_t size_of(const char *path)
{
	struct stat st;

	assert_non_null(path);
	assert_int_equal(stat(path, &st), 0);
	return st.st_size;
}

static void assert_forms(const struct scene *s, const char *here, const char *there)
{
	assert_non_null(scratch_find(s->local, here));
	assert_null(scratch_find(s->local, strcmp(here, PLAIN) == 0 ? ENCODED : PLAIN));
	assert_non_null(scratch_find(s->remote, there));
	assert_null(scratch_find(s->remote, strcmp(there, PLAIN) == 0 ? ENCODED : PLAIN));
}

static void assert_good_there(const struct scene *s)
{
	struct core_rig rig;

	core_rig_open(&rig, &(struct core_rig_config){.dir = s->remote, .read_only = true});
	assert_int_equal(core_rig_read(&rig, 1, CKPT_SINK_NONE), 0);
	core_rig_close(&rig);
}

/* Blocks and chunks of several sizes, aligned or not; tensors smaller and larger than these. */
static void test_compact_there(void **state)
{
	static const struct {
		uint32_t block;
		uint64_t chunk;
		uint32_t align;
		size_t count;
		size_t floats;
	} cases[] = {
		{0, 0, 0, 3, 10000},
		{65536, 65536, 512, 2, 100000},
		{65536, 5000, 4096, 40, 2500},
		{65536, 60001, 512, 7, 33333},
		{131072, 4096, 512, 1, 1},
		{65536, 100, 512, 2, 20000},
	};
	struct scene *s = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		open_job(s,
			(struct core_rig_config){.block_bytes = cases[i].block,
				.chunk_bytes = cases[i].chunk,
				.align = cases[i].align},
			CKPT_REMOTE_COMPACT);
		assert_int_equal(save(s, cases[i].count, cases[i].floats), 0);
		core_rig_run(&s->rig);
		assert_true(is_there(s));
		assert_forms(s, PLAIN, ENCODED);
		off_t plain = size_of(scratch_find(s->local, PLAIN));
		off_t encoded = size_of(scratch_find(s->remote, ENCODED));
		/* A table of 32 bytes for each chunk is all that it may be larger. */
		uint64_t chunk = cases[i].chunk ? cases[i].chunk : 16384;
		uint64_t chunks = (uint64_t)plain / chunk + cases[i].count + 4096 / chunk + 100;
		assert_true((uint64_t)encoded < (uint64_t)plain + 32 * chunks + 80);
		assert_int_equal(atomic_load(&s->rig.core.upload_queue->bytes), plain);
		core_rig_close(&s->rig);
		assert_good_there(s);
		begin_again(state);
		s = *state;
	}
}

#define HALVES   20011
/* Cases, the first ones, in which the encoder does not err. */
#define ALL_GOOD 6

/*
 * Weights of 16 bits, which take no room beside those that they are the rounding of, and some that are of none. Of what an
 * encoder that errs makes of them nothing is stored that does not come back.
 */
static void test_masters(void **state)
{
	static const uint64_t chunks[] = {16384, 65536, 5000, 60001, 4096, 100, 16384, 5000};
	static float master[HALVES];
	static uint16_t bf16[HALVES];
	static uint16_t f16[HALVES];
	static uint16_t alone[HALVES];
	static const int64_t count[1] = {HALVES};
	static const int64_t few[1] = {9000};
	struct prng prng = {3};
	struct scene *s = *state;

	for (size_t i = 0; i < HALVES; i++) {
		master[i] = ((float)prng_below(&prng, 1 << 24) / (1 << 24) - 0.5f) * 0.04f;
		alone[i] = (uint16_t)prng_next(&prng);
	}
	ckpt_codec_round(CKPT_KIND_BF16, master, HALVES, bf16);
	ckpt_codec_round(CKPT_KIND_F16, master, HALVES, f16);
	const struct ckpt_tensor like = {.size = sizeof(like), .ndim = 1, .shape = count};
	struct ckpt_tensor tensors[7];
	for (unsigned i = 0; i < 7; i++)
		tensors[i] = like;
	tensors[0].name = "other";
	tensors[0].data = alone;
	tensors[0].shape = few;
	tensors[1].name = "master";
	tensors[1].data = master;
	tensors[2].name = "small";
	tensors[2].data = master;
	tensors[2].shape = few;
	tensors[0].dtype = tensors[1].dtype = tensors[2].dtype = CKPT_F32;
	tensors[3].name = "w.bf16";
	tensors[3].data = bf16;
	tensors[4].name = "w.f16";
	tensors[4].data = f16;
	tensors[5].name = "w.small";
	tensors[5].data = bf16;
	tensors[5].shape = few;
	tensors[6].name = "w.alone";
	tensors[6].data = alone;
	tensors[3].dtype = tensors[5].dtype = tensors[6].dtype = CKPT_BF16;
	tensors[4].dtype = CKPT_F16;
	for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		struct ckpt_save *one = NULL;
		open_job(s, (struct core_rig_config){.chunk_bytes = chunks[i], .align = 512},
			CKPT_REMOTE_COMPACT);
		assert_int_equal(core_rig_claim(&s->rig), 0);
		assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &one), 0);
		assert_int_equal(ckpt_save_put_tensors(one, tensors, 7, &s->rig.err), 0);
		assert_int_equal(ckpt_save_prepare(one, &s->rig.plan, &s->rig.err), 0);
		errs_from = i < ALL_GOOD ? SIZE_MAX : 3;
		errors = 0;
		(void)core_rig_post(&s->rig, one);
		assert_int_equal(core_rig_end_save(&s->rig, one), 0);
		core_rig_run(&s->rig);
		errs_from = SIZE_MAX;
		assert_true(i < ALL_GOOD || errors > 5);
		assert_int_equal(i >= ALL_GOOD, core_rig_logged(&s->rig, CKPT_LOG_WARN,
							"did not decode to what they were"));
		assert_true(is_there(s));
		off_t plain = size_of(scratch_find(s->local, PLAIN));
		off_t encoded = size_of(scratch_find(s->remote, ENCODED));
		/* Of parts that are as small as that nothing is found; and of those that end within an element. */
		if (i < ALL_GOOD && chunks[i] >= 16384 && chunks[i] % 2 == 0)
			assert_true(plain - encoded > (2 * HALVES + 9000) * 2 * 9 / 10);
		core_rig_close(&s->rig);
		assert_good_there(s);
		begin_again(state);
		s = *state;
	}
}

/* In a chunk that is shorter than an element nothing is searched for. */
static void test_short_chunks(void **state)
{
	static float master[40];
	static uint16_t rounded[40];
	static const int64_t count[1] = {40};
	struct scene *s = *state;

	for (size_t i = 0; i < 40; i++)
		master[i] = (float)i * 0.3f;
	ckpt_codec_round(CKPT_KIND_BF16, master, 40, rounded);
	const struct ckpt_tensor tensors[2] = {{.size = sizeof(tensors[0]),
						       .name = "master",
						       .dtype = CKPT_F32,
						       .ndim = 1,
						       .shape = count,
						       .data = master},
		{.size = sizeof(tensors[0]),
			.name = "rounded",
			.dtype = CKPT_BF16,
			.ndim = 1,
			.shape = count,
			.data = rounded}};
	for (uint64_t chunk = 1; chunk <= 4; chunk++) {
		struct ckpt_save *one = NULL;
		open_job(s, (struct core_rig_config){.chunk_bytes = chunk}, CKPT_REMOTE_COMPACT);
		assert_int_equal(core_rig_claim(&s->rig), 0);
		assert_int_equal(ckpt_save_new(&s->rig.core, NULL, 1, false, 0, &one), 0);
		assert_int_equal(ckpt_save_put_tensors(one, tensors, 2, &s->rig.err), 0);
		assert_int_equal(ckpt_save_prepare(one, &s->rig.plan, &s->rig.err), 0);
		(void)core_rig_post(&s->rig, one);
		assert_int_equal(core_rig_end_save(&s->rig, one), 0);
		core_rig_run(&s->rig);
		assert_true(is_there(s));
		assert_forms(s, PLAIN, ENCODED);
		core_rig_close(&s->rig);
		assert_good_there(s);
		begin_again(state);
		s = *state;
	}
}

static void test_plain_there(void **state)
{
	struct scene *s = *state;

	open_job(s, (struct core_rig_config){.encoders = 2}, CKPT_REMOTE_PLAIN);
	assert_int_equal(save(s, 3, 10000), 0);
	core_rig_run(&s->rig);
	assert_true(is_there(s));
	assert_forms(s, ENCODED, PLAIN);
	core_rig_close(&s->rig);
	assert_good_there(s);
}

/* What has the form already is sent as it is. */
static void test_as_it_is(void **state)
{
	static const struct {
		uint32_t encoders;
		enum ckpt_remote_encoding encoding;
		const char *form;
	} cases[] = {
		{0, CKPT_REMOTE_AS_STORED, PLAIN},
		{0, CKPT_REMOTE_PLAIN, PLAIN},
		{2, CKPT_REMOTE_AS_STORED, ENCODED},
		{2, CKPT_REMOTE_COMPACT, ENCODED},
	};
	struct scene *s = *state;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		open_job(s, (struct core_rig_config){.encoders = cases[i].encoders},
			cases[i].encoding);
		assert_int_equal(save(s, 3, 10000), 0);
		core_rig_run(&s->rig);
		assert_true(is_there(s));
		assert_forms(s, cases[i].form, cases[i].form);
		assert_int_equal(size_of(scratch_find(s->local, cases[i].form)),
			size_of(scratch_find(s->remote, cases[i].form)));
		core_rig_close(&s->rig);
		assert_good_there(s);
		begin_again(state);
		s = *state;
	}
}

/* The bound on bytes per second holds for what is sent, and a close does not wait for it. */
static void test_rate(void **state)
{
	struct scene *s = *state;

	open_job(s, (struct core_rig_config){.remote_bytes_per_s = 100000}, CKPT_REMOTE_COMPACT);
	assert_int_equal(save(s, 3, 100000), 0);
	core_rig_run(&s->rig);
	assert_false(is_there(s));
	core_rig_sleep(&s->rig, 1000);
	assert_false(is_there(s));
	core_rig_close(&s->rig);
	assert_null(scratch_find(s->remote, ENCODED));
	open_job(s, (struct core_rig_config){.remote_bytes_per_s = 100000}, CKPT_REMOTE_COMPACT);
	assert_int_equal(core_rig_read(&s->rig, 1, CKPT_SINK_MEMORY), 0);
	assert_int_equal(core_rig_adopt(&s->rig, 1, 1), 0);
	assert_int_equal(core_rig_claim(&s->rig), 0);
	for (unsigned i = 0; i < 30 && !is_there(s); i++)
		core_rig_sleep(&s->rig, 1000);
	assert_true(is_there(s));
	core_rig_close(&s->rig);
	assert_good_there(s);
}

/* A chunk that is bad here is named, and nothing of it is committed there. */
static void test_bad_here(void **state)
{
	struct scene *s = *state;

	open_job(s, (struct core_rig_config){0}, CKPT_REMOTE_COMPACT);
	/* Before the upload opens it. */
	(void)io_fault_add(&s->rig.fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = PLAIN, .hold = true});
	assert_int_equal(save(s, 3, 10000), 0);
	core_rig_run(&s->rig);
	const char *path = scratch_find(s->local, PLAIN);
	scratch_flip(path, 70000);
	core_rig_let_go(&s->rig);
	core_rig_sleep(&s->rig, MINUTE);
	assert_true(
		core_rig_logged(&s->rig, CKPT_LOG_WARN, "do not match their digest (tensor w1)"));
	assert_false(is_there(s));
	assert_null(scratch_find(s->remote, ENCODED));
	core_rig_close(&s->rig);
}

/* Requests fail one after the other, here and there: in the end it is there, whole, and nothing else is. */
static void test_every_request(void **state)
{
	struct scene *s = *state;
	bool reached = true;

	for (unsigned n = 1; reached; n++) {
		open_job(s, (struct core_rig_config){.timeout_ms = 60000}, CKPT_REMOTE_COMPACT);
		unsigned rule = io_fault_add(&s->rig.fault,
			(struct io_fault_rule){.path = "rank-", .nth = n, .error = -EIO});
		bool saved = save(s, 3, 10000) == 0;
		core_rig_run(&s->rig);
		reached = s->rig.fault.hits[rule] > 0;
		if (saved)
			wait_for_it(s);
		assert_int_equal(is_there(s), saved);
		core_rig_close(&s->rig);
		if (saved) {
			assert_good_there(s);
			assert_null(scratch_find(s->remote, PLAIN));
		}
		assert_true(n < 1000);
		begin_again(state);
		s = *state;
	}
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;
	bool failed = true;

	for (size_t n = 1; failed; n++) {
		open_job(s, (struct core_rig_config){0}, CKPT_REMOTE_COMPACT);
		(void)io_fault_add(&s->rig.fault,
			(struct io_fault_rule){.op = CKPT_IO_OP_READ, .path = PLAIN, .hold = true});
		assert_int_equal(save(s, 2, 20000), 0);
		core_rig_run(&s->rig);
		core_rig_count_allocations(&s->rig, n);
		core_rig_let_go(&s->rig);
		core_rig_run(&s->rig);
		failed = core_rig_allocations(&s->rig) >= n;
		wait_for_it(s);
		assert_true(is_there(s));
		core_rig_close(&s->rig);
		assert_good_there(s);
		assert_forms(s, PLAIN, ENCODED);
		assert_true(n < 1000);
		begin_again(state);
		s = *state;
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_compact_there, setup, teardown),
		cmocka_unit_test_setup_teardown(test_masters, setup, teardown),
		cmocka_unit_test_setup_teardown(test_short_chunks, setup, teardown),
		cmocka_unit_test_setup_teardown(test_plain_there, setup, teardown),
		cmocka_unit_test_setup_teardown(test_as_it_is, setup, teardown),
		cmocka_unit_test_setup_teardown(test_rate, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_here, setup, teardown),
		cmocka_unit_test_setup_teardown(test_every_request, setup, teardown),
		cmocka_unit_test_setup_teardown(test_no_memory, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
