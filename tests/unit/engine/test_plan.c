/* SPDX-License-Identifier: Apache-2.0 */
/* The plan of a save is taken over by what is described alike, and by nothing else. */
#include "engine/save/plan.h"

#include "lib/test.h"

static const int64_t shape[] = {4};

static const struct ckpt_tensor tensors[] = {
	{.size = sizeof(*tensors), .name = "a", .dtype = CKPT_F32, .ndim = 1, .shape = shape},
	{.size = sizeof(*tensors), .name = "b", .dtype = CKPT_F32, .ndim = 1, .shape = shape},
};

static const struct ckpt_alias aliases[] = {{"z", "a"}, {"y", "b"}, {"x", "a"}};

static struct ckpt_plan *build(const struct ckpt_alias *list, size_t count)
{
	struct ckpt_plan *plan = NULL;

	assert_int_equal(
		ckpt_plan_build(tensors, 2, list, count, 1 << 20, 1 << 20, NULL, &plan), 0);
	return plan;
}

/* The fingerprint is a filter, no proof: with one that lies, every difference is seen all the same. */
static void test_aliases(void **state)
{
	static const struct ckpt_alias others[][3] = {
		{{"z", "b"}, {"y", "b"}, {"x", "a"}},
		{{"w", "a"}, {"y", "b"}, {"x", "a"}},
		{{"x", "a"}, {"x", "a"}, {"x", "a"}},
	};
	struct ckpt_plan *plan = build(aliases, 3);

	(void)state;
	assert_true(ckpt_plan_fits(plan, tensors, 2, aliases, 3));
	assert_false(ckpt_plan_fits(plan, tensors, 2, aliases, 2));
	for (size_t i = 0; i < CKPT_COUNT(others) - 1; i++) {
		struct ckpt_plan *other = build(others[i], 3);
		uint64_t fingerprint = plan->fingerprint;

		plan->fingerprint = other->fingerprint;
		assert_false(ckpt_plan_fits(plan, tensors, 2, others[i], 3));
		plan->fingerprint = fingerprint;
		ckpt_plan_free(other);
	}
	assert_false(ckpt_plan_fits(plan, tensors, 2, others[CKPT_COUNT(others) - 1], 3));
	ckpt_plan_free(plan);
}

/* The same of another whole, or from elsewhere in it, is another tensor; the same said in more words is not. */
static void test_boxes(void **state)
{
	static const int64_t wide[] = {8};
	static const int64_t wider[] = {9};
	static const int64_t zero[] = {0};
	static const int64_t two[] = {2};
	static const struct {
		const int64_t *whole;
		const int64_t *start;
		unsigned kind;
	} boxes[] = {{NULL, NULL, 0}, {shape, NULL, 0}, {shape, zero, 0}, {wide, NULL, 1},
		{wide, zero, 1}, {wider, NULL, 2}, {wide, two, 3}, {wider, two, 4}};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(boxes); i++) {
		struct ckpt_tensor one = tensors[0];
		struct ckpt_plan *plan = NULL;

		one.global_shape = boxes[i].whole;
		one.global_start = boxes[i].start;
		assert_int_equal(
			ckpt_plan_build(&one, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &plan), 0);
		assert_true(ckpt_plan_fits(plan, &one, 1, NULL, 0));
		for (size_t k = 0; k < CKPT_COUNT(boxes); k++) {
			struct ckpt_tensor other = tensors[0];
			struct ckpt_plan *same = NULL;

			other.global_shape = boxes[k].whole;
			other.global_start = boxes[k].start;
			assert_int_equal(
				ckpt_plan_build(&other, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &same),
				0);
			if (boxes[i].kind != boxes[k].kind)
				assert_false(ckpt_plan_fits(plan, &other, 1, NULL, 0));
			uint64_t fingerprint = plan->fingerprint;
			plan->fingerprint = same->fingerprint;
			assert_int_equal(ckpt_plan_fits(plan, &other, 1, NULL, 0),
				boxes[i].kind == boxes[k].kind);
			plan->fingerprint = fingerprint;
			ckpt_plan_free(same);
		}
		ckpt_plan_free(plan);
	}
}

/* Whether a tensor has a digest of its own is a part of the plan, and of what rank 0 looks at again. */
static void test_own_digests(void **state)
{
	struct ckpt_tensor one = tensors[0];
	struct ckpt_plan *plain = NULL;
	struct ckpt_plan *plan = NULL;

	(void)state;
	assert_int_equal(ckpt_plan_build(&one, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &plain), 0);
	one.flags = CKPT_TENSOR_SHARED;
	assert_int_equal(ckpt_plan_build(&one, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &plan), 0);
	assert_int_equal(plain->layout->digest_count, 0);
	assert_int_equal(plan->layout->digest_count, 1);
	assert_false(ckpt_digest_equal(&plain->digest, &plan->digest));
	assert_true(ckpt_plan_fits(plan, &one, 1, NULL, 0));
	assert_false(ckpt_plan_fits(plain, &one, 1, NULL, 0));
	assert_false(ckpt_plan_fits(plan, &tensors[0], 1, NULL, 0));
	plain->fingerprint = plan->fingerprint;
	assert_false(ckpt_plan_fits(plain, &one, 1, NULL, 0));
	ckpt_plan_free(plain);
	ckpt_plan_free(plan);
	/* A tensor as long as a chunk has that one's. */
	assert_int_equal(ckpt_plan_build(&one, 1, NULL, 0, 16, 1 << 20, NULL, &plan), 0);
	assert_int_equal(plan->layout->digest_count, 0);
	assert_true(ckpt_plan_fits(plan, &one, 1, NULL, 0));
	ckpt_plan_free(plan);
}

/* So is whether other ranks may have other bytes of it. Then it has no digest of its own. */
static void test_varies(void **state)
{
	struct ckpt_tensor one = tensors[0];
	struct ckpt_plan *plain = NULL;
	struct ckpt_plan *plan = NULL;

	(void)state;
	assert_int_equal(ckpt_plan_build(&one, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &plain), 0);
	one.flags = CKPT_TENSOR_VARIES | CKPT_TENSOR_SHARED;
	assert_int_equal(ckpt_plan_build(&one, 1, NULL, 0, 1 << 20, 1 << 20, NULL, &plan), 0);
	assert_true(plan->layout->entries[0].varies);
	assert_int_equal(plan->layout->digest_count, 0);
	assert_false(ckpt_digest_equal(&plain->digest, &plan->digest));
	assert_true(ckpt_plan_fits(plan, &one, 1, NULL, 0));
	assert_false(ckpt_plan_fits(plan, &tensors[0], 1, NULL, 0));
	plain->fingerprint = plan->fingerprint;
	assert_false(ckpt_plan_fits(plain, &one, 1, NULL, 0));
	ckpt_plan_free(plain);
	ckpt_plan_free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_aliases),
		cmocka_unit_test(test_own_digests),
		cmocka_unit_test(test_varies),
		cmocka_unit_test(test_boxes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
