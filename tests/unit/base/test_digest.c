/* SPDX-License-Identifier: Apache-2.0 */
/* Digests: those of `xxhsum -H2`, however the bytes lie and whatever the CPU has. */
#include "lib/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "base/digest_avx2.h"

#define LONGEST 1048583

static const struct {
	size_t len;
	const char *hex; /* printed by xxhsum -H2 0.8.1 for the first `len` bytes of the pattern */
} vectors[] = {
	{0, "99aa06d3014798d86001c324468d497f"},
	{1, "a6cd5e9392000f6ac44bdff4074eecdb"},
	{3, "95c705060a313bf8a1c4a8259b827291"},
	{4, "afbf64f9281b8de2fde8d93ae8794d8e"},
	{8, "2761698c33953c430234362aaf47b71a"},
	{9, "0d39db6431d37a74895c8a562da51412"},
	{16, "29be75b0bbbb5284aafffcec5df2cb27"},
	{17, "db7e8f77961e47fd878751509ecfdb8b"},
	{128, "ba44fd018231af4cbbe087d879edcc78"},
	{129, "522c922743fd67f1b8075934107218e5"},
	{240, "4f49ccc8526aa7ad407883ea5ef95b9a"},
	{241, "50b62ee1ee6455a7bc424a2c480dd281"},
	{1024, "53bd178b75ab292e1fd15e7d36f5e1bc"},
	{1025, "d1ad5f4a3cce4374fe08e5a874d23fd2"},
	{65536, "463ae68f708ee10132152aa15c5ff65a"},
	{1048576, "490d2e4880066606e2786b358eab4a67"},
	{LONGEST, "8119ab399ae5fb2ca80bea05304486e6"},
};

static unsigned char *pattern;

static int make_pattern(void **state)
{
	(void)state;
	pattern = malloc(LONGEST + 1);
	if (!pattern)
		return -1;
	for (uint32_t i = 0; i < LONGEST + 1; i++)
		pattern[i] = (unsigned char)(i * UINT32_C(2654435761) >> 13);
	return 0;
}

static int free_pattern(void **state)
{
	(void)state;
	free(pattern);
	return 0;
}

static void assert_digest(struct ckpt_digest digest, const char *expected)
{
	char hex[CKPT_DIGEST_HEX];

	ckpt_digest_hex(&digest, hex);
	assert_string_equal(hex, expected);
}

static void test_vectors(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(vectors); i++) {
		size_t len = vectors[i].len;

		assert_digest(ckpt_digest_of(pattern, len), vectors[i].hex);
		assert_digest(ckpt_digest_of_two(pattern, len, NULL, 0), vectors[i].hex);
		assert_digest(ckpt_digest_of_two(NULL, 0, pattern, len), vectors[i].hex);
	}
	assert_digest(ckpt_digest_of(NULL, 0), vectors[0].hex);
}

/* The vectorised one, where there is one, and the plain one. */
static void test_both_implementations(void **state)
{
	(void)state;
	if (!ckpt_digest_avx2_usable()) {
		print_message("this CPU has no AVX2: only the plain one is here\n");
		return;
	}
	for (size_t len = 0; len < 3000; len++) {
		struct ckpt_digest plain = ckpt_digest_of_two(pattern + len % 7, len, NULL, 0);
		struct ckpt_digest vector;

		ckpt_digest_avx2(pattern + len % 7, len, vector.bytes);
		assert_true(ckpt_digest_equal(&vector, &plain));
	}
}

static void test_two_parts(void **state)
{
	const size_t len = 2500;
	struct ckpt_digest whole = ckpt_digest_of(pattern, len);

	(void)state;
	for (size_t cut = 0; cut <= len; cut++) {
		struct ckpt_digest parts =
			ckpt_digest_of_two(pattern, cut, pattern + cut, len - cut);

		assert_true(ckpt_digest_equal(&whole, &parts));
	}
}

static void test_one_bit_changes_it(void **state)
{
	const size_t len = 4096;
	struct ckpt_digest before = ckpt_digest_of(pattern, len);

	(void)state;
	for (size_t bit = 0; bit < len * 8; bit += 61) {
		struct ckpt_digest after;
		uint64_t sample = ckpt_hash64(pattern, len, 7);

		pattern[bit / 8] ^= (unsigned char)(1u << bit % 8);
		after = ckpt_digest_of(pattern, len);
		assert_false(ckpt_digest_equal(&before, &after));
		assert_true(sample != ckpt_hash64(pattern, len, 7));
		pattern[bit / 8] ^= (unsigned char)(1u << bit % 8);
	}
	assert_true(ckpt_hash64(pattern, len, 1) != ckpt_hash64(pattern, len, 2));
}

static void test_hex(void **state)
{
	static const char *const bad[] = {
		"",
		"99aa06d3014798d86001c324468d497",
		"99aa06d3014798d86001c324468d497f0",
		"99AA06d3014798d86001c324468d497f",
		"99aa06d3014798d86001c324468d497g",
		" 9aa06d3014798d86001c324468d497f",
		"0x9aa06d3014798d86001c324468d497",
	};
	struct ckpt_digest digest;
	struct ckpt_digest before;

	(void)state;
	assert_true(ckpt_digest_parse(vectors[0].hex, &digest));
	assert_digest(digest, vectors[0].hex);
	before = digest;
	for (size_t i = 0; i < COUNT(bad); i++) {
		/* A copy of just its size, so that reading past it is noticed. */
		char *text = strdup(bad[i]);

		assert_non_null(text);
		assert_false(ckpt_digest_parse(text, &digest));
		assert_memory_equal(&digest, &before, sizeof(digest));
		free(text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vectors),
		cmocka_unit_test(test_both_implementations),
		cmocka_unit_test(test_two_parts),
		cmocka_unit_test(test_one_bit_changes_it),
		cmocka_unit_test(test_hex),
	};

	return cmocka_run_group_tests(tests, make_pattern, free_pattern);
}
