/* SPDX-License-Identifier: Apache-2.0 */
/* Objects of every size are cut as S3 takes them, into whole blocks, and into no more parts than there may be. */
#include "lib/test.h"

#include <stdbool.h>

#include "lib/prng.h"
#include "s3/multipart.h"

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)
#define TIB (UINT64_C(1) << 40)

static uint64_t count_of(uint64_t size, uint64_t part)
{
	return (size + part - 1) / part;
}

static void test_sizes(void **state)
{
	static const struct {
		uint64_t block;
		uint64_t size;
		uint64_t part;
		uint64_t count;
	} cases[] = {
		{8 * MIB, 0, 8 * MIB, 0},
		{8 * MIB, 1, 8 * MIB, 1},
		{8 * MIB, 8 * MIB, 8 * MIB, 1},
		{8 * MIB, 8 * MIB + 1, 8 * MIB, 2},
		{8 * MIB, 80000 * MIB, 8 * MIB, 10000},
		{8 * MIB, 80000 * MIB + 1, 16 * MIB, 5001},
		{8 * MIB, 160000 * MIB + 1, 24 * MIB, 6667},
		{8 * MIB, 5 * TIB, 528 * MIB, 9930},
		{64 * MIB, 5 * TIB, 576 * MIB, 9103},
		{8 * MIB, 10000 * 5 * GIB, 5 * GIB, 10000},
		{64 * MIB, 10000 * 5 * GIB, 5 * GIB, 10000},
		{64 * MIB, 1, 64 * MIB, 1},
		/* None is below 5 MiB. */
		{64 << 10, 100 * MIB, 5 * MIB, 20},
		{4 * MIB, 100 * MIB, 8 * MIB, 13},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		uint64_t part = ckpt_s3_parts_bytes(&ckpt_s3_limits, cases[i].block, cases[i].size);

		assert_int_equal(part, cases[i].part);
		assert_int_equal(count_of(cases[i].size, part), cases[i].count);
	}
}

static void test_room(void **state)
{
	const struct ckpt_s3_limits small = {
		.part_max = 10 * MIB, .object_max = 1 * GIB, .parts_max = 4};

	(void)state;
	assert_int_equal(ckpt_s3_parts_room(&ckpt_s3_limits, 8 * MIB), 10000 * 5 * GIB);
	assert_int_equal(ckpt_s3_parts_room(&ckpt_s3_limits, 64 * MIB), 10000 * 5 * GIB);
	assert_int_equal(ckpt_s3_parts_room(&small, 1 * MIB), 40 * MIB);
	/* No more than two blocks of four are in a part of ten. */
	assert_int_equal(ckpt_s3_parts_room(&small, 4 * MIB), 32 * MIB);
	assert_int_equal(ckpt_s3_parts_bytes(&small, 4 * MIB, 32 * MIB), 8 * MIB);
}

/* Under any limits: whole blocks, neither too small nor too many, and no more than are needed. */
static void test_any_size(void **state)
{
	struct prng prng = {48};

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		uint64_t block = 4096 * (1 + prng_below(&prng, 16384));
		const struct ckpt_s3_limits limits = {
			.part_min = prng_below(&prng, 2) ? 0 : prng_below(&prng, 64 * MIB),
			.part_max = 256 * MIB + prng_below(&prng, 5 * GIB),
			.object_max = prng_next(&prng) >> (16 + prng_below(&prng, 24)),
			.parts_max = 1 + (uint32_t)prng_below(&prng, 10000)};
		uint64_t room = ckpt_s3_parts_room(&limits, block);
		uint64_t size = prng_below(&prng, 8) == 0 ? room : prng_below(&prng, room + 1);
		uint64_t part = ckpt_s3_parts_bytes(&limits, block, size);

		assert_true(room <= limits.object_max);
		assert_true(part >= block && part % block == 0);
		assert_true(part >= limits.part_min && part <= limits.part_max);
		assert_true(count_of(size, part) <= limits.parts_max);
		if (part > block && part - block >= limits.part_min)
			assert_true(count_of(size, part - block) > limits.parts_max);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_room),
		cmocka_unit_test(test_any_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
