/* SPDX-License-Identifier: Apache-2.0 */
/* File names: what they are, and that only they are read back. */
#include "lib/test.h"

#include <stdbool.h>
#include <string.h>

#include <ckpt/types.h>
#include "format/naming.h"

#define ATTEMPT "0123456789abcdef"

static void test_names(void **state)
{
	char out[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS];

	(void)state;
	ckpt_name_claim(out, 1);
	assert_string_equal(out, "gens/000001.json");
	ckpt_name_generation(out, 999999);
	assert_string_equal(out, "g999999");
	ckpt_name_step(out, 12, 100);
	assert_string_equal(out, "g000012/step-0000000100");
	ckpt_name_step(out, 12, 0);
	assert_string_equal(out, "g000012/step-0000000000");
	ckpt_name_manifest(out, 1, CKPT_STEP_MAX);
	assert_string_equal(out, "g000001/step-9999999999/manifest.json");
	ckpt_name_quarantine(out, 1, 2);
	assert_string_equal(out, "g000001/step-0000000002/quarantine.json");
	ckpt_name_tombstone(out, 1, 2);
	assert_string_equal(out, "g000001/step-0000000002.tombstone");
	ckpt_name_shard(out, 1, 2, 3, ATTEMPT);
	assert_string_equal(out, "g000001/step-0000000002/rank-00003." ATTEMPT ".safetensors");
	ckpt_name_encoded(out, 1, 2, 3, ATTEMPT);
	assert_string_equal(out, "g000001/step-0000000002/rank-00003." ATTEMPT ".encoded");
	ckpt_name_index(out, 1, 2, 999999, ATTEMPT);
	assert_string_equal(out, "g000001/step-0000000002/rank-999999." ATTEMPT ".index");
	ckpt_name_remote(out, 7);
	assert_string_equal(out, "remote-0000000007.json");
	ckpt_name_attempt(attempt, 0xabc);
	assert_string_equal(attempt, "0000000000000abc");
	ckpt_name_attempt(attempt, UINT64_MAX);
	assert_string_equal(attempt, "ffffffffffffffff");
}

static void test_read_back(void **state)
{
	static const uint64_t steps[] = {0, 1, 9, 10, 123456789, CKPT_STEP_MAX - 1, CKPT_STEP_MAX};
	static const uint64_t generations[] = {1, 9, 10, 99999, 100000, CKPT_GENERATION_MAX};
	char out[CKPT_PATH_MAX];
	uint64_t number;

	(void)state;
	for (size_t i = 0; i < COUNT(steps); i++) {
		ckpt_name_step(out, 1, steps[i]);
		assert_true(ckpt_parse_step(strchr(out, '/') + 1, &number));
		assert_int_equal(number, steps[i]);
	}
	for (size_t i = 0; i < COUNT(generations); i++) {
		ckpt_name_generation(out, generations[i]);
		assert_true(ckpt_parse_generation(out, &number));
		assert_int_equal(number, generations[i]);
		ckpt_name_claim(out, generations[i]);
		assert_true(ckpt_parse_claim(strchr(out, '/') + 1, &number));
		assert_int_equal(number, generations[i]);
	}
}

typedef bool parse_fn(const char *name, uint64_t *ret_number);

/* Every change of one byte of a name that is no digit for a digit is refused, as is every other length. */
static void check_exact(parse_fn *parse, const char *name)
{
	char text[64];
	size_t length = strlen(name);
	uint64_t number = 77;

	assert_true(parse(name, &number));
	for (size_t at = 0; at < length; at++) {
		for (int byte = 0; byte < 256; byte++) {
			bool digit = byte >= '0' && byte <= '9';
			bool was_digit = name[at] >= '0' && name[at] <= '9';

			memcpy(text, name, length + 1);
			text[at] = (char)byte;
			number = 77;
			if (text[at] == name[at] || (digit && was_digit))
				continue;
			if (parse(text, &number) || number != 77)
				fail_msg("'%s' is read as %s", text, name);
		}
	}
	for (size_t cut = 0; cut < length; cut++) {
		memcpy(text, name, cut);
		text[cut] = 0;
		assert_false(parse(text, &number));
	}
	memcpy(text, name, length);
	for (int byte = 1; byte < 256; byte++) {
		text[length] = (char)byte;
		text[length + 1] = 0;
		assert_false(parse(text, &number));
	}
}

static void test_only_canonical(void **state)
{
	uint64_t number = 77;

	(void)state;
	check_exact(ckpt_parse_claim, "123456.json");
	check_exact(ckpt_parse_generation, "g123456");
	check_exact(ckpt_parse_step, "step-1234567890");
	check_exact(ckpt_parse_remote, "remote-1234567890.json");
	/* Generations begin with 1. */
	assert_false(ckpt_parse_claim("000000.json", &number));
	assert_false(ckpt_parse_generation("g000000", &number));
	assert_int_equal(number, 77);
}

static void test_catalogs(void **state)
{
	static const char *const bad[] = {"", ".catalog", "000102030405060708090a0b0c0d0e0f",
		"000102030405060708090a0b0c0d0e0f.catalo",
		"000102030405060708090a0b0c0d0e0f.catalogs",
		"000102030405060708090A0B0c0d0e0f.catalog",
		"000102030405060708090a0b0c0d0e0.catalog",
		"000102030405060708090a0b0c0d0e0f0.catalog",
		"000102030405060708090a0b0c0d0e0g.catalog",
		"000102030405060708090a0b0c0d0e0f.index.."};
	struct ckpt_digest digest;
	struct ckpt_digest back;
	char out[CKPT_PATH_MAX];

	(void)state;
	for (unsigned i = 0; i < sizeof(digest.bytes); i++)
		digest.bytes[i] = (uint8_t)i;
	ckpt_name_catalog(out, 7, &digest);
	assert_string_equal(out, "g000007/000102030405060708090a0b0c0d0e0f.catalog");
	assert_true(ckpt_parse_catalog(strchr(out, '/') + 1, &back));
	assert_true(ckpt_digest_equal(&back, &digest));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(ckpt_parse_catalog(bad[i], &back));
}

static void test_rank_files(void **state)
{
	static const uint32_t ranks[] = {0, 9, 12345, 99999, 100000, 999999};
	static const enum ckpt_rank_file files[] = {
		CKPT_RANK_SHARD, CKPT_RANK_INDEX, CKPT_RANK_ENCODED};
	static const char *const bad[] = {"", "rank-", "rank-00001", "rank-00001.index",
		"rank-0001." ATTEMPT ".index", "rank-000001." ATTEMPT ".index",
		"rank-1000000." ATTEMPT ".index", "rank-00001." ATTEMPT, "rank-00001." ATTEMPT ".",
		"rank-00001." ATTEMPT ".indexes", "rank-00001." ATTEMPT ".index.tmp-" ATTEMPT,
		"rank-00001.0123456789ABCDEF.index", "rank-00001.0123456789abcde.index",
		"rank-00001." ATTEMPT "0.index", "rank-+0001." ATTEMPT ".index",
		"rank-00001." ATTEMPT ".ckpt", "rank-00001." ATTEMPT ".safetensor",
		"xrank-00001." ATTEMPT ".index", "rank-00001-" ATTEMPT ".index"};
	char out[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS] = "same";
	enum ckpt_rank_file file;
	uint32_t rank;

	(void)state;
	for (size_t i = 0; i < COUNT(ranks) * COUNT(files); i++) {
		const char *drawn = i % 2 ? ATTEMPT : "fedcba9876543210";

		ckpt_name_rank_file(
			out, 1, 2, ranks[i / COUNT(files)], files[i % COUNT(files)], drawn);
		assert_true(ckpt_parse_rank_file(strrchr(out, '/') + 1, &rank, &file, attempt));
		assert_int_equal(rank, ranks[i / COUNT(files)]);
		assert_int_equal(file, files[i % COUNT(files)]);
		assert_string_equal(attempt, drawn);
	}
	memcpy(attempt, ATTEMPT, sizeof(attempt));
	rank = 77;
	for (size_t i = 0; i < COUNT(bad); i++)
		if (ckpt_parse_rank_file(bad[i], &rank, &file, attempt) || rank != 77)
			fail_msg("'%s' is read as %u", bad[i], rank);
	assert_string_equal(attempt, ATTEMPT);
}

static void test_attempts(void **state)
{
	static const char *const bad[] = {"", "0123456789abcde", "0123456789abcdef0",
		"0123456789ABCDEF", "0123456789abcdeg", "../../../../../..", "0123456789abcde\n"};

	(void)state;
	assert_true(ckpt_attempt_valid(ATTEMPT));
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(ckpt_attempt_valid(bad[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_read_back),
		cmocka_unit_test(test_only_canonical),
		cmocka_unit_test(test_catalogs),
		cmocka_unit_test(test_rank_files),
		cmocka_unit_test(test_attempts),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
