/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes and checksums are what others compute, in however many pieces the bytes come. */
#include "lib/test.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "lib/prng.h"
#include "s3/crc32c.h"
#include "s3/hash.h"

/* One bit after the other, as the polynomial says. */
static uint32_t slow_crc32c(const unsigned char *data, size_t length)
{
	uint32_t crc = UINT32_MAX;

	while (length-- > 0) {
		crc ^= *data++;
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
	}
	return ~crc;
}

/* The examples of RFC 3720, B.4, and the check value of the catalogue of CRCs. */
static void test_crc32c(void **state)
{
	unsigned char bytes[32];

	(void)state;
	assert_int_equal(ckpt_s3_crc32c(0, "", 0), 0);
	assert_int_equal(ckpt_s3_crc32c(0, "123456789", 9), 0xe3069283);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(ckpt_s3_crc32c(0, bytes, sizeof(bytes)), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	assert_int_equal(ckpt_s3_crc32c(0, bytes, sizeof(bytes)), 0x62a8ab43);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)i;
	assert_int_equal(ckpt_s3_crc32c(0, bytes, sizeof(bytes)), 0x46dd794e);
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(31 - i);
	assert_int_equal(ckpt_s3_crc32c(0, bytes, sizeof(bytes)), 0x113fdb5c);
}

static void test_crc32c_in_pieces(void **state)
{
	enum { SIZE = 70000 };
	struct prng prng = {32};
	unsigned char *bytes = malloc(SIZE);

	(void)state;
	assert_non_null(bytes);
	for (unsigned i = 0; i < SIZE; i++)
		bytes[i] = (unsigned char)prng_next(&prng);
	for (unsigned i = 0; i < 300; i++) {
		size_t start = prng_below(&prng, 64);
		size_t length = prng_below(&prng, i < 200 ? 200 : SIZE - start);
		size_t cut = length > 0 ? prng_below(&prng, length + 1) : 0;
		uint32_t whole = ckpt_s3_crc32c(0, bytes + start, length);
		uint32_t first = ckpt_s3_crc32c(0, bytes + start, cut);
		uint32_t second = ckpt_s3_crc32c(0, bytes + start + cut, length - cut);

		assert_int_equal(whole, slow_crc32c(bytes + start, length));
		assert_int_equal(whole, ckpt_s3_crc32c(first, bytes + start + cut, length - cut));
		assert_int_equal(whole, ckpt_s3_crc32c_join(first, second, length - cut));
	}
	free(bytes);
}

/* Joined by lengths that no memory holds: (a + b) + c is a + (b + c), and zeros move a sum on. */
static void test_join_of_what_is_large(void **state)
{
	struct prng prng = {5};

	(void)state;
	for (unsigned i = 0; i < 1000; i++) {
		uint32_t a = (uint32_t)prng_next(&prng);
		uint32_t b = (uint32_t)prng_next(&prng);
		uint32_t c = (uint32_t)prng_next(&prng);
		uint64_t b_length = prng_next(&prng) >> prng_below(&prng, 64) >> 1;
		uint64_t c_length = prng_next(&prng) >> prng_below(&prng, 64) >> 1;

		assert_int_equal(
			ckpt_s3_crc32c_join(ckpt_s3_crc32c_join(a, b, b_length), c, c_length),
			ckpt_s3_crc32c_join(
				a, ckpt_s3_crc32c_join(b, c, c_length), b_length + c_length));
		assert_int_equal(ckpt_s3_crc32c_join(a, 0, 0), a);
		assert_int_equal(ckpt_s3_crc32c_join(0, b, b_length), b);
	}
}

static void test_crc32c_text(void **state)
{
	static const char *const bad[] = {"", "4waSgw=", "4waSgw===", "4waSgw",
		"4waSgx==", "4waSgw=-", "4waSgw==-", "4waSgw==-0", "4waSgw==-10001",
		"4waSgw==-99999999999999999999", "4waSgw==-3x",
		"4waSgw== ", " 4waSgw==", "4waS gw=", "=4waSgw=", "\xff\xff\xff\xff\xff\xff=="};
	char text[CKPT_S3_CRC32C_TEXT];
	uint32_t crc = 1;
	uint32_t parts = 1;
	struct prng prng = {9};

	(void)state;
	ckpt_s3_crc32c_text(0xe3069283, text);
	assert_string_equal(text, "4waSgw==");
	assert_int_equal(ckpt_s3_crc32c_parse("4waSgw==", &crc, &parts), CKPT_S3_SUM_WHOLE);
	assert_true(crc == 0xe3069283 && parts == 0);
	assert_int_equal(ckpt_s3_crc32c_parse("4waSgw==-10000", &crc, &parts), CKPT_S3_SUM_PARTS);
	assert_true(crc == 0xe3069283 && parts == 10000);
	for (size_t i = 0; i < COUNT(bad); i++) {
		if (ckpt_s3_crc32c_parse(bad[i], &crc, &parts) != CKPT_S3_SUM_NONE)
			fail_msg("'%s' is taken", bad[i]);
	}
	for (unsigned i = 0; i < 1000; i++) {
		uint32_t value = (uint32_t)prng_next(&prng);

		ckpt_s3_crc32c_text(value, text);
		assert_int_equal(ckpt_s3_crc32c_parse(text, &crc, &parts), CKPT_S3_SUM_WHOLE);
		assert_int_equal(crc, value);
	}
}

/* A server's sum of parts is that of the four bytes of each, the greatest first. */
static void test_sum_of_sums(void **state)
{
	static const uint32_t crcs[] = {0xe3069283, 0x00000001, 0xfffffffe};
	static const unsigned char bytes[] = {
		0xe3, 0x06, 0x92, 0x83, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xfe};

	(void)state;
	assert_int_equal(ckpt_s3_crc32c_of_parts(crcs, COUNT(crcs)),
		ckpt_s3_crc32c(0, bytes, sizeof(bytes)));
}

static void test_hashes(void **state)
{
	uint8_t bytes[CKPT_S3_SHA256];
	char text[CKPT_S3_SHA256_HEX];
	struct ckpt_s3_hash *hash;

	(void)state;
	assert_int_equal(ckpt_s3_sha256("", 0, bytes), 0);
	ckpt_s3_hex(bytes, sizeof(bytes), text);
	assert_string_equal(text, CKPT_S3_SHA256_NONE);
	assert_int_equal(ckpt_s3_sha256("abc", 3, bytes), 0);
	ckpt_s3_hex(bytes, sizeof(bytes), text);
	assert_string_equal(
		text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	assert_int_equal(ckpt_s3_hash_begin(CKPT_S3_HASH_SHA256, &hash), 0);
	assert_int_equal(ckpt_s3_hash_add(hash, "a", 1), 0);
	assert_int_equal(ckpt_s3_hash_add(hash, NULL, 0), 0);
	assert_int_equal(ckpt_s3_hash_add(hash, "bc", 2), 0);
	assert_int_equal(ckpt_s3_hash_end(hash, bytes), 0);
	ckpt_s3_hex(bytes, sizeof(bytes), text);
	assert_string_equal(
		text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	assert_int_equal(ckpt_s3_hash_begin(CKPT_S3_HASH_MD5, &hash), 0);
	assert_int_equal(ckpt_s3_hash_add(hash, "abc", 3), 0);
	assert_int_equal(ckpt_s3_hash_end(hash, bytes), 0);
	ckpt_s3_base64(bytes, CKPT_S3_MD5, text);
	assert_string_equal(text, "kAFQmDzST7DWlj99KOF/cg==");
	assert_int_equal(ckpt_s3_hash_begin(CKPT_S3_HASH_MD5, &hash), 0);
	ckpt_s3_hash_drop(hash);
	ckpt_s3_hash_drop(NULL);
}

/* RFC 4231, cases 1, 2 and 6. */
static void test_hmac(void **state)
{
	uint8_t key[131];
	uint8_t mac[CKPT_S3_SHA256];
	char text[CKPT_S3_SHA256_HEX];

	(void)state;
	memset(key, 0x0b, 20);
	assert_int_equal(ckpt_s3_hmac(key, 20, "Hi There", 8, mac), 0);
	ckpt_s3_hex(mac, sizeof(mac), text);
	assert_string_equal(
		text, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
	assert_int_equal(ckpt_s3_hmac("Jefe", 4, "what do ya want for nothing?", 28, mac), 0);
	ckpt_s3_hex(mac, sizeof(mac), text);
	assert_string_equal(
		text, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	memset(key, 0xaa, sizeof(key));
	assert_int_equal(ckpt_s3_hmac(key, sizeof(key),
				 "Test Using Larger Than Block-Size Key - Hash Key First", 54, mac),
		0);
	ckpt_s3_hex(mac, sizeof(mac), text);
	assert_string_equal(
		text, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

/* RFC 4648, 10; and what is read is exactly what is written. */
static void test_base64(void **state)
{
	static const char *const texts[] = {
		"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"};
	static const char *const bad[] = {"", "Zg", "Zg=", "Zg===", "Zh==", "Z===", "====", "Zg=a",
		"Zg\n=", "Zm8=", "Zm9v", "-g=="};
	uint8_t back[8];
	char text[16];

	(void)state;
	for (size_t i = 0; i < COUNT(texts); i++) {
		ckpt_s3_base64((const uint8_t *)"foobar", i, text);
		assert_string_equal(text, texts[i]);
		assert_true(ckpt_s3_base64_parse(text, i, back));
		assert_memory_equal(back, "foobar", i);
	}
	for (size_t i = 0; i < COUNT(bad); i++)
		assert_false(ckpt_s3_base64_parse(bad[i], 1, back));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_crc32c),
		cmocka_unit_test(test_crc32c_in_pieces),
		cmocka_unit_test(test_join_of_what_is_large),
		cmocka_unit_test(test_crc32c_text),
		cmocka_unit_test(test_sum_of_sums),
		cmocka_unit_test(test_hashes),
		cmocka_unit_test(test_hmac),
		cmocka_unit_test(test_base64),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
