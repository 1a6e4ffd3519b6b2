/* SPDX-License-Identifier: Apache-2.0 */
/* Callers that were built with another version of the headers: arrays of structs that have grown. */
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

/* struct ckpt_tensor as 0.1.0 had it first. */
#define TENSOR_FIRST offsetof(struct ckpt_tensor, global_shape)

/* The vectors, described in structs of `size` bytes each. What is past the present size is zero. */
static void *describe(const struct kit_vector *vectors, size_t n, uint32_t size)
{
	char *all = calloc(n, size);

	for (size_t i = 0; i < n; i++) {
		struct ckpt_tensor t = kit_tensor(&vectors[i]);
		t.size = size;
		memcpy(all + i * size, &t, size < sizeof(t) ? size : sizeof(t));
	}
	return all;
}

static int add(struct ckpt_engine *engine, uint64_t step, const void *tensors, size_t n)
{
	struct ckpt_save *save = NULL;

	must_work(ckpt_save_begin(engine, step, NULL, &save));
	int r = ckpt_save_add(save, tensors, n);
	if (r == 0) {
		must_work(ckpt_save_start(save));
		must_work(ckpt_save_wait(save, CKPT_LEVEL_LOCAL, TIMEOUT_MS));
	}
	ckpt_save_free(save);
	return r;
}

static void test_tensors(void **state)
{
	static const uint32_t sizes[] = {
		TENSOR_FIRST, sizeof(struct ckpt_tensor), sizeof(struct ckpt_tensor) + 8, 4096};
	struct kit_vector v[3];
	uint64_t step = 0;

	(void)state;
	for (unsigned i = 0; i < 3; i++)
		kit_fill(&v[i], i == 0 ? "a" : i == 1 ? "b" : "c", 100 + i, i);
	struct ckpt_engine *engine = kit_open(dir, 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		char *all = describe(v, 3, sizes[i]);
		v[1].data[5] = (float)i;
		assert_int_equal(add(engine, ++step, all, 3), 0);
		must_work(kit_compare(engine, step, v, 3));
		free(all);
	}
	/* What this library does not know must not be asked of it. */
	char *all = describe(v, 3, sizes[2]);
	all[3 * sizes[2] - 1] = 1;
	assert_int_equal(add(engine, ++step, all, 3), -E2BIG);
	assert_non_null(strstr(ckpt_last_error(), "does not know"));
	free(all);
	ckpt_engine_close(engine);
	for (unsigned i = 0; i < 3; i++)
		kit_clear(&v[i]);
}

#define TARGET_FIRST offsetof(struct ckpt_target, start)

/* Targets of a caller that knows of no boxes, and of one that knows of more. */
static void test_targets(void **state)
{
	static const uint32_t sizes[] = {TARGET_FIRST, sizeof(struct ckpt_target),
		sizeof(struct ckpt_target) + 8, TARGET_FIRST - 1};
	struct kit_vector v;
	float out[2][50];

	(void)state;
	kit_fill(&v, "a", 100, 1);
	struct ckpt_engine *engine = kit_open(dir, 0);
	must_work(kit_save(engine, 1, &v, 1));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		struct ckpt_restore *restore = NULL;
		char *all = calloc(2, sizes[i]);
		for (size_t k = 0; k < 2; k++) {
			struct ckpt_target t = {.size = sizes[i],
				.name = "a",
				.offset = k * sizeof(out[0]),
				.length = sizeof(out[0]),
				.data = out[k]};
			memcpy(all + k * sizes[i], &t, sizes[i] < sizeof(t) ? sizes[i] : sizeof(t));
		}
		memset(out, 0, sizeof(out));
		must_work(ckpt_restore_open(engine, 1, &restore));
		int r = ckpt_restore_bind(restore, (const struct ckpt_target *)(void *)all, 2);
		assert_int_equal(r, sizes[i] < TARGET_FIRST ? -EINVAL : 0);
		must_work(ckpt_restore_start(restore));
		must_work(ckpt_restore_wait(restore, TIMEOUT_MS));
		ckpt_restore_free(restore);
		if (r == 0)
			assert_memory_equal(out, v.data, sizeof(out));
		free(all);
	}
	ckpt_engine_close(engine);
	kit_clear(&v);
}

static void test_bad_sizes(void **state)
{
	static const uint32_t bad[] = {0, 3, 4, TENSOR_FIRST - 1, 4097, UINT32_MAX};
	struct kit_vector v;
	struct ckpt_tensor two[2];

	(void)state;
	kit_fill(&v, "a", 10, 1);
	struct ckpt_engine *engine = kit_open(dir, 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		two[0] = kit_tensor(&v);
		two[0].size = bad[i];
		assert_int_equal(add(engine, 1, two, 1), -EINVAL);
		assert_non_null(strstr(ckpt_last_error(), "ckpt_tensor.size"));
		/* All are of one size. */
		two[1] = two[0];
		two[0].size = sizeof(two[0]);
		assert_int_equal(add(engine, 1, two, 2), -EINVAL);
		assert_non_null(strstr(ckpt_last_error(), "number 1"));
	}
	assert_int_equal(add(engine, 1, NULL, 1), -EINVAL);
	ckpt_engine_close(engine);
	kit_clear(&v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_tensors, setup, teardown),
		cmocka_unit_test_setup_teardown(test_targets, setup, teardown),
		cmocka_unit_test_setup_teardown(test_bad_sizes, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
