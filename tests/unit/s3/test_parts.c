/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of every size are cut as S3 takes them, without a gap, in whole blocks. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "lib/dice.h"
#include "s3/parts.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static void check(uint64_t size, uint64_t wanted, uint64_t block, const struct ckpt_s3_parts *p)
{
	uint64_t offset = 0;
	uint64_t length = 0;
	uint64_t before;

	assert_int_equal(p->size, size);
	assert_true(p->count >= 1 && p->count <= CKPT_S3_PARTS_MAX);
	assert_true(p->part_bytes >= CKPT_S3_PART_MIN && p->part_bytes <= CKPT_S3_PART_MAX);
	assert_int_equal(p->part_bytes % (block ? block : MIB), 0);
	assert_true(p->part_bytes >= wanted || CKPT_S3_PART_MAX % (block ? block : MIB) != 0);
	assert_true(p->single == (p->count == 1));
	ckpt_s3_parts_range(p, 1, &offset, &length);
	assert_int_equal(offset, 0);
	ckpt_s3_parts_range(p, p->count, &offset, &length);
	assert_int_equal(offset + length, size);
	assert_true(length <= p->part_bytes && (length > 0 || size == 0));
	if (p->count > 1) {
		ckpt_s3_parts_range(p, p->count - 1, &before, &length);
		assert_true(length == p->part_bytes && before + length == offset);
	}
}

static void test_sizes(void **state)
{
	static const struct {
		uint64_t size;
		uint64_t wanted;
		uint64_t block;
		uint64_t part;
		uint32_t count;
	} cases[] = {
		{0, 0, 8 * MIB, 16 * MIB, 1},
		{1, 0, 8 * MIB, 16 * MIB, 1},
		{16 * MIB, 0, 8 * MIB, 16 * MIB, 1},
		{16 * MIB + 1, 0, 8 * MIB, 16 * MIB, 2},
		{100 * MIB, 1, 0, 5 * MIB, 20},
		{100 * MIB, 1, 8 * MIB, 8 * MIB, 13},
		{100 * MIB, 20 * MIB, 8 * MIB, 24 * MIB, 5},
		{160000 * MIB, 0, 8 * MIB, 16 * MIB, 10000},
		{160000 * MIB + 1, 0, 8 * MIB, 24 * MIB, 6667},
		{160000 * MIB + 1, 0, 0, 17 * MIB, 9412},
		{5 * GIB, 5 * GIB, 8 * MIB, 5 * GIB, 1},
		{5 * GIB + 1, 5 * GIB, 8 * MIB, 5 * GIB, 2},
		{CKPT_S3_OBJECT_MAX, 0, 8 * MIB, 5 * GIB, 10000},
		{CKPT_S3_OBJECT_MAX - 1, 0, 8 * MIB, 5 * GIB, 10000},
		{CKPT_S3_OBJECT_MAX, 0, 0, 5 * GIB, 10000},
		{10000 * (5 * GIB - 8 * MIB), 0, 8 * MIB, 5 * GIB - 8 * MIB, 10000},
		{10000 * (5 * GIB - 8 * MIB) + 1, 0, 8 * MIB, 5 * GIB, 9985},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_s3_parts p;
		struct ckpt_error err = {0};

		if (ckpt_s3_parts_plan(cases[i].size, cases[i].wanted, cases[i].block, &err, &p) !=
			0)
			fail_msg("%zu: %s", i, err.message);
		check(cases[i].size, cases[i].wanted, cases[i].block, &p);
		assert_int_equal(p.part_bytes, cases[i].part);
		assert_int_equal(p.count, cases[i].count);
	}
}

static void test_refused(void **state)
{
	struct ckpt_s3_parts p;
	struct ckpt_error err = {0};

	(void)state;
	assert_int_equal(ckpt_s3_parts_plan(CKPT_S3_OBJECT_MAX + 1, 0, 8 * MIB, &err, &p), -EFBIG);
	assert_non_null(strstr(err.message, "48.8 TiB"));
	assert_int_equal(ckpt_s3_parts_plan(UINT64_MAX, 0, 8 * MIB, NULL, &p), -EFBIG);
	assert_int_equal(ckpt_s3_parts_plan(1, 5 * GIB + 1, 8 * MIB, NULL, &p), -EINVAL);
	assert_int_equal(ckpt_s3_parts_plan(1, UINT64_MAX, 8 * MIB, NULL, &p), -EINVAL);
	/* 5 GiB is no multiple of three: the last few TiB are out of reach. */
	memset(&err, 0, sizeof(err));
	assert_int_equal(ckpt_s3_parts_plan(CKPT_S3_OBJECT_MAX, 0, 3 * MIB, &err, &p), -EFBIG);
	assert_non_null(strstr(err.message, "whole blocks"));
}

static void test_any_size(void **state)
{
	struct dice dice = {48};

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		uint64_t size = dice_next(&dice) >> dice_below(&dice, 64);
		uint64_t wanted =
			dice_below(&dice, 2) ? 0 : dice_next(&dice) >> (20 + dice_below(&dice, 44));
		uint64_t block =
			dice_below(&dice, 4) == 0 ? 0 : 4096 * (1 + dice_below(&dice, 65536));
		struct ckpt_s3_parts p;
		int r = ckpt_s3_parts_plan(size, wanted, block, NULL, &p);

		if (r == 0) {
			check(size, wanted, block, &p);
			continue;
		}
		/* Refused is only what no parts would do for. */
		if (r == -EINVAL) {
			assert_true(wanted > CKPT_S3_PART_MAX);
		} else {
			uint64_t unit = block ? block : MIB;

			assert_int_equal(r, -EFBIG);
			assert_true(size > CKPT_S3_PART_MAX / unit * unit * CKPT_S3_PARTS_MAX);
		}
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_any_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
