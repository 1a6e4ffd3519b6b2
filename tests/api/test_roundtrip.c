/* SPDX-License-Identifier: Apache-2.0 */
/* What goes in comes out, bit for bit, whatever its type, shape, strides, size and name. */
#include "api/kit.h"

static char *dir;

static int setup(void **state)
{
	(void)state;
	dir = scratch_make();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	scratch_remove(dir);
	return 0;
}

/* Larger than the pool, so that it streams; several in a row, so that slots and plans come round. */
static void test_stream(void **state)
{
	(void)state;
	struct kit_vector v[3];
	kit_fill(&v[0], "big", 3 << 20, 1);
	kit_fill(&v[1], "odd", 77777, 2);
	kit_fill(&v[2], "one", 1, 3);
	struct ckpt_engine *engine = kit_open(dir, 0);
	for (uint64_t step = 1; step <= 4; step++) {
		v[0].data[step] += 1;
		must_work(kit_save(engine, step, v, 3));
	}
	must_work(kit_compare(engine, CKPT_STEP_LATEST, v, 3));
	assert_non_null(scratch_find(dir, kit_shard_suffix()));
	struct ckpt_stats stats = {.size = sizeof(stats)};
	must_work(ckpt_engine_stats(engine, &stats));
	assert_int_equal(stats.saves_committed, 4);
	assert_true(stats.pool_starved > 0);
	assert_true(stats.pool_bytes <= 4 << 20);
	ckpt_engine_close(engine);
	engine = kit_open(dir, CKPT_ENGINE_READ_ONLY);
	must_work(kit_compare(engine, 4, v, 3));
	ckpt_engine_close(engine);
	for (int i = 0; i < 3; i++)
		kit_clear(&v[i]);
}

static const uint32_t dtypes[] = {CKPT_BOOL, CKPT_U8, CKPT_I16, CKPT_BF16, CKPT_F32, CKPT_F64,
	CKPT_C64, CKPT_C128, CKPT_F8_E4M3, CKPT_F8_E5M2FNUZ, CKPT_F4_X2, CKPT_I64};
static const unsigned sizes[] = {1, 1, 2, 2, 4, 8, 8, 16, 1, 1, 1, 8};
#define TYPES (sizeof(dtypes) / sizeof(dtypes[0]))

/* A transposed view is saved as what it shows; a transposed target gets it back in place. */
static void test_types_and_strides(void **state)
{
	(void)state;
	const int64_t shape[2] = {37, 101};
	const int64_t flipped[2] = {1, 37};
	struct ckpt_tensor tensors[TYPES];
	char names[TYPES][32];
	unsigned char *memory[TYPES];
	unsigned char *back[TYPES];
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(engine, 7, NULL, &save));
	for (size_t i = 0; i < TYPES; i++) {
		size_t bytes = 37 * 101 * sizes[i];
		memory[i] = malloc(bytes);
		back[i] = calloc(1, bytes);
		for (size_t k = 0; k < bytes; k++)
			memory[i][k] = (unsigned char)(k * 31 + i);
		(void)snprintf(names[i], sizeof(names[i]), "t%zu", i);
		tensors[i] = (struct ckpt_tensor){.size = sizeof(tensors[i]),
			.name = names[i],
			.dtype = dtypes[i],
			.ndim = 2,
			.shape = shape,
			.strides = flipped,
			.data = memory[i]};
	}
	must_work(ckpt_save_add(save, tensors, TYPES));
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(save);

	struct ckpt_restore *restore = NULL;
	must_work(ckpt_restore_open(engine, 7, &restore));
	assert_int_equal(ckpt_restore_count(restore), TYPES);
	for (size_t i = 0; i < TYPES; i++) {
		struct ckpt_target target = {.size = sizeof(target),
			.name = names[i],
			.dtype = dtypes[i],
			.ndim = 2,
			.shape = shape,
			.strides = flipped,
			.data = back[i]};
		must_work(ckpt_restore_bind(restore, &target, 1));
	}
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	ckpt_restore_free(restore);
	for (size_t i = 0; i < TYPES; i++) {
		assert_memory_equal(memory[i], back[i], 37 * 101 * sizes[i]);
		free(memory[i]);
		free(back[i]);
	}
	ckpt_engine_close(engine);
}

/* Names are data: none of these is a path, and nothing appears outside the store. */
static void test_names(void **state)
{
	(void)state;
	static const char *const names[] = {"../../x", "/etc/passwd", "a\nb", "quo\"te\\",
		"\xf0\x9f\x90\x89", " ", "manifest.json", "__proto__"};
	struct kit_vector v[8];
	for (int i = 0; i < 8; i++)
		kit_fill(&v[i], names[i], 100 + i, (unsigned)i);
	struct ckpt_engine *engine = kit_open(scratch_join(dir, "store"), 0);
	must_work(kit_save(engine, 1, v, 8));
	must_work(kit_compare(engine, 1, v, 8));
	ckpt_engine_close(engine);
	/* store, ckpt.json, gens, claim, generation, step, shard, index, manifest */
	assert_int_equal(scratch_count(dir), 9);
	for (int i = 0; i < 8; i++)
		kit_clear(&v[i]);
}

/* Empty tensors, scalars, aliases, meta, and a save of nothing at all. */
static void test_edges(void **state)
{
	(void)state;
	const int64_t none[2] = {0, 5};
	double scalar = 42.5;
	struct ckpt_tensor t[2] = {
		{.size = sizeof(t[0]), .name = "none", .dtype = CKPT_F32, .ndim = 2, .shape = none},
		{.size = sizeof(t[0]), .name = "scalar", .dtype = CKPT_F64, .data = &scalar}};
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = NULL;
	must_work(ckpt_save_begin(engine, 1, NULL, &save));
	must_work(ckpt_save_add(save, t, 2));
	must_work(ckpt_save_add_alias(save, "tied", "scalar"));
	must_work(ckpt_save_set_meta(save, "{\"a\": [1, null]}", 16));
	must_work(ckpt_save_start(save));
	must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	ckpt_save_free(save);
	must_work(kit_save(engine, 2, NULL, 0));

	struct ckpt_restore *restore = NULL;
	must_work(ckpt_restore_open(engine, 1, &restore));
	assert_int_equal(ckpt_restore_count(restore), 3);
	size_t at = 0;
	must_work(ckpt_restore_find(restore, "tied", &at));
	struct ckpt_tensor_info info = {.size = sizeof(info)};
	must_work(ckpt_restore_tensor(restore, at, &info));
	assert_string_equal(info.alias_of, "scalar");
	assert_int_equal(ckpt_restore_find(restore, "nope", &at), CKPT_EMISMATCH);
	const char *json = NULL;
	size_t length = 0;
	must_work(ckpt_restore_meta(restore, &json, &length));
	assert_int_equal(length, 16);
	assert_memory_equal(json, "{\"a\": [1, null]}", 16);
	double out = 0;
	struct ckpt_target target = {.size = sizeof(target), .name = "tied", .data = &out};
	must_work(ckpt_restore_bind(restore, &target, 1));
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	assert_true(out == scalar);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
}

/* A range of a tensor reads what it needs and touches nothing else. */
static void test_range(void **state)
{
	(void)state;
	struct kit_vector v;
	kit_fill(&v, "big", 2 << 20, 9);
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, &v, 1));
	struct ckpt_restore *restore = NULL;
	must_work(ckpt_restore_open(engine, 1, &restore));
	unsigned char out[5000];
	memset(out, 0xee, sizeof(out));
	struct ckpt_target target = {.size = sizeof(target),
		.name = "big",
		.offset = (5 << 20) - 1001,
		.length = 4000,
		.data = out + 500};
	must_work(ckpt_restore_bind(restore, &target, 1));
	must_work(ckpt_restore_start(restore));
	must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
	assert_memory_equal(out + 500, (char *)v.data + (5 << 20) - 1001, 4000);
	for (int i = 0; i < 500; i++)
		assert_true(out[i] == 0xee && out[4500 + i] == 0xee);
	uint64_t done = 0;
	uint64_t total = 0;
	must_work(ckpt_restore_progress(restore, &done, &total));
	assert_true(done == total && total <= 2 << 20);
	ckpt_restore_free(restore);
	ckpt_engine_close(engine);
	kit_clear(&v);
}

/* Strides that lead nowhere are refused, whatever their sign; those that are never walked mean nothing. */
static void check_strides(struct ckpt_save *save, const void *data)
{
	static const int64_t bad[][2] = {{INT64_MAX, 1}, {1, INT64_MIN}, {INT64_MAX / 4, 1},
		{INT64_MAX / 8 + 1, -(INT64_MAX / 8)}};
	static const int64_t two[2] = {2, 2};
	static const int64_t one[2] = {1, 1};
	static const int64_t none[2] = {0, 2};
	struct ckpt_tensor t = {
		.size = sizeof(t), .name = "strided", .dtype = CKPT_F32, .ndim = 2, .data = data};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		t.strides = bad[i];
		t.shape = two;
		assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
		assert_non_null(strstr(ckpt_last_error(), "tensor strided: strides["));
	}
	t.strides = bad[0];
	t.shape = one;
	must_work(ckpt_save_add(save, &t, 1));
	t.name = "empty";
	t.shape = none;
	must_work(ckpt_save_add(save, &t, 1));
}

/* What a caller gets wrong is said before anything starts. */
static void test_bad_arguments(void **state)
{
	(void)state;
	struct kit_vector v;
	kit_fill(&v, "x", 10, 1);
	struct ckpt_engine *engine = kit_open(dir, 0);
	struct ckpt_save *save = NULL;
	must_work(ckpt_save_begin(engine, 1, NULL, &save));
	struct ckpt_tensor t = kit_tensor(&v);
	t.dtype = 99;
	assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(), "x"));
	t = kit_tensor(&v);
	t.name = "";
	assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
	int64_t negative = -1;
	t = kit_tensor(&v);
	t.shape = &negative;
	assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
	int64_t huge[3] = {INT64_MAX, INT64_MAX, 2};
	t = kit_tensor(&v);
	t.shape = huge;
	t.ndim = 3;
	assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
	t = kit_tensor(&v);
	t.data = NULL;
	assert_int_equal(ckpt_save_add(save, &t, 1), -EINVAL);
	check_strides(save, v.data);
	assert_int_equal(ckpt_save_set_meta(save, "{", 1), CKPT_EFORMAT);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0), -EINVAL);
	t = kit_tensor(&v);
	must_work(ckpt_save_add(save, &t, 1));
	must_work(ckpt_save_add(save, &t, 1));
	assert_int_equal(ckpt_save_start(save), -EEXIST);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0), -EEXIST);
	assert_int_equal(ckpt_save_wait(save, CKPT_LEVEL_REMOTE, 0), CKPT_ELEVEL);
	ckpt_save_free(save);

	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *other = NULL;
	opts.block_bytes = 12345;
	assert_int_equal(ckpt_engine_open(scratch_join(dir, "o"), &opts, &other), -EINVAL);
	struct {
		struct ckpt_engine_opts opts;
		uint64_t newer;
	} big = {.opts = kit_opts(), .newer = 1};
	big.opts.size = sizeof(big);
	assert_int_equal(ckpt_engine_open(scratch_join(dir, "o"), &big.opts, &other), -E2BIG);
	assert_null(other);
	ckpt_engine_close(engine);
	kit_clear(&v);
}

/* Whoever reads a step is told how it is stored. */
static void check_stored(
	struct ckpt_engine *engine, uint64_t step, const struct ckpt_save_info *saved, bool encoded)
{
	struct ckpt_stored_info infos[CKPT_STORED_INFOS_MAX];
	struct ckpt_restore *restore = NULL;
	uint64_t bytes = 0;
	uint64_t bytes_stored = 0;
	size_t count = 0;
	size_t all = 0;

	for (size_t i = 0; i < CKPT_STORED_INFOS_MAX; i++)
		infos[i] = (struct ckpt_stored_info){.size = sizeof(infos[i])};
	must_work(ckpt_restore_open(engine, step, &restore));
	must_work(ckpt_restore_rank_stored(restore, 0, infos, CKPT_STORED_INFOS_MAX, &count));
	must_work(ckpt_restore_rank_stored(restore, 0, NULL, 0, &all));
	assert_int_equal(all, count);
	assert_int_equal(infos[0].form, CKPT_STORED_FILE);
	assert_int_equal(infos[0].bytes, saved->bytes);
	assert_int_equal(infos[0].bytes_stored, saved->bytes_stored);
	for (size_t i = 1; i < count; i++) {
		bytes += infos[i].bytes;
		bytes_stored += infos[i].bytes_stored;
		/* The tensor; and the header, which has no type. */
		assert_int_equal(infos[i].form, CKPT_STORED_COMPRESSED);
		assert_int_equal(infos[i].dtype, i == 1 ? 0 : CKPT_F32);
		assert_true(infos[i].bytes_stored < infos[i].bytes);
	}
	assert_int_equal(count, encoded ? 3 : 1);
	assert_int_equal(bytes, encoded ? saved->bytes : 0);
	assert_true(bytes_stored < saved->bytes_stored);
	assert_int_equal(ckpt_restore_rank_stored(restore, 1, NULL, 0, &all), -ERANGE);
	assert_int_equal(ckpt_restore_rank_stored(restore, 0, NULL, 1, &all), -EINVAL);
	ckpt_restore_free(restore);
}

/* A store has steps of both kinds, whatever the engine that reads them would write. */
static void test_encodings(void **state)
{
	(void)state;
	struct ckpt_engine_opts opts = kit_opts();
	struct ckpt_engine *engine = NULL;
	struct kit_vector v;

	opts.encoding = 3;
	assert_int_equal(ckpt_engine_open(dir, &opts, &engine), -EINVAL);
	assert_non_null(strstr(ckpt_last_error(), "encoding is 3"));
	kit_fill(&v, "w", 400000, 1);
	for (uint64_t step = 1; step <= 3; step++) {
		struct ckpt_save_info info = {.size = sizeof(info)};

		opts.encoding = step == 2 ? CKPT_ENCODING_COMPACT : CKPT_ENCODING_PLAIN;
		int r = ckpt_engine_open(dir, &opts, &engine);
		if (r == CKPT_EUNSUPPORTED) {
			assert_non_null(strstr(ckpt_last_error(), "without zstd"));
			break;
		}
		must_work(r);
		assert_int_equal(kit_resume(engine), step - 1);
		struct ckpt_save *save = kit_start(engine, step, 0, &v, 1);
		must_work(kit_wait(save));
		must_work(ckpt_save_info(save, &info));
		assert_int_equal(info.bytes_written, info.bytes);
		assert_true(step == 2 ? info.bytes_stored < info.bytes
				      : info.bytes_stored == info.bytes);
		ckpt_save_free(save);
		check_stored(engine, step, &info, step == 2);
		for (uint64_t i = 1; i <= step; i++)
			must_work(kit_compare(engine, i, &v, 1));
		ckpt_engine_close(engine);
	}
	kit_clear(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stream, setup, teardown),
		cmocka_unit_test_setup_teardown(test_types_and_strides, setup, teardown),
		cmocka_unit_test_setup_teardown(test_names, setup, teardown),
		cmocka_unit_test_setup_teardown(test_edges, setup, teardown),
		cmocka_unit_test_setup_teardown(test_range, setup, teardown),
		cmocka_unit_test_setup_teardown(test_encodings, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_arguments, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
