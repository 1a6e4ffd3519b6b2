/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other about a restore is read back as it was told, under its key, or refused. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/exchange.h"
#include "exchange/restore_messages.h"
#include "format/sealed.h"

#define KEY "restore-3-opened"

static struct ckpt_restore_record a_record(void)
{
	return (struct ckpt_restore_record){.rank = 2,
		.world = 4,
		.wanted = CKPT_STEP_LATEST,
		.generation = 7,
		.step = 100,
		.attempt = "0123456789abcdef",
		.run_id = "00112233445566778899aabbccddeeff"};
}

static void check_same(const struct ckpt_restore_record *a, const struct ckpt_restore_record *b)
{
	assert_int_equal(a->verdict.code, b->verdict.code);
	assert_int_equal(a->rank, b->rank);
	assert_int_equal(a->world, b->world);
	assert_true(a->wanted == b->wanted);
	assert_int_equal(a->generation, b->generation);
	assert_int_equal(a->step, b->step);
	assert_string_equal(a->attempt, b->attempt);
	assert_string_equal(a->run_id, b->run_id);
}

static void test_there_and_back(void **state)
{
	const uint64_t wanted[] = {CKPT_STEP_LATEST, CKPT_STEP_BACK(3), 0, CKPT_STEP_MAX};
	struct ckpt_restore_record in = a_record();
	struct ckpt_restore_record out;

	(void)state;
	for (size_t i = 0; i < COUNT(wanted); i++) {
		struct ckpt_buf buf = {0};
		in.wanted = wanted[i];
		assert_int_equal(ckpt_restore_record_encode(&in, KEY, &buf), 0);
		assert_true(buf.len < CKPT_EXCHANGE_VALUE_MAX);
		assert_int_equal(ckpt_restore_record_decode(buf.data, buf.len, KEY, NULL, &out), 0);
		check_same(&in, &out);
		/* It is of no other restore, part or rank. */
		out.rank = 99;
		assert_int_equal(ckpt_restore_record_decode(
					 buf.data, buf.len, "restore-4-opened", NULL, &out),
			CKPT_EFORMAT);
		assert_int_equal(out.rank, 99);
		ckpt_buf_free(&buf);
	}
}

/* A failure before anything was chosen: no step, and one printable line. */
static void test_failure(void **state)
{
	struct ckpt_restore_record in = {
		.verdict = {.code = CKPT_ENOSTEP, .reason = "none\non \x01the disk"},
		.world = 4,
		.wanted = CKPT_STEP_LATEST,
		.run_id = "00112233445566778899aabbccddeeff"};
	struct ckpt_restore_record out;
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_restore_record_encode(&in, KEY, &buf), 0);
	assert_int_equal(ckpt_restore_record_decode(buf.data, buf.len, KEY, NULL, &out), 0);
	check_same(&in, &out);
	assert_string_equal(out.verdict.reason, "none?on ?the disk");
	ckpt_buf_free(&buf);
}

/* Every bit turned over, every length. */
static void test_damage(void **state)
{
	struct ckpt_restore_record in = a_record();
	struct ckpt_restore_record out;
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_restore_record_encode(&in, KEY, &buf), 0);
	char *copy = malloc(buf.len);
	for (size_t i = 0; i < buf.len; i++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			memcpy(copy, buf.data, buf.len);
			copy[i] ^= (char)(1u << bit);
			assert_true(ckpt_restore_record_decode(copy, buf.len, KEY, NULL, &out) < 0);
		}
		memcpy(copy, buf.data, i);
		assert_true(ckpt_restore_record_decode(copy, i, KEY, NULL, &out) < 0);
	}
	free(copy);
	ckpt_buf_free(&buf);
}

static void check_sealed(const char *json, bool good)
{
	struct ckpt_restore_record out;
	struct ckpt_buf buf = {0};

	ckpt_buf_puts(&buf, json);
	ckpt_sealed_finish(&buf);
	assert_int_equal(ckpt_restore_record_decode(buf.data, buf.len, KEY, NULL, &out),
		good ? 0 : CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

#define BODY(key, code, rank, world, wanted, generation, step, attempt, run)                       \
	"{\"format\":[1,0],\"kind\":\"restore\",\"key\":\"" key "\",\"code\":" code                \
	",\"reason\":\"\",\"rank\":" rank ",\"world\":" world ",\"wanted\":\"" wanted              \
	"\",\"generation\":" generation ",\"step\":" step ",\"attempt\":\"" attempt                \
	"\",\"run_id\":\"" run "\""
#define HEX16 "0123456789abcdef"
#define HEX32 HEX16 HEX16

/* What has a digest of its own may be wrong all the same. */
static void test_hostile(void **state)
{
	(void)state;
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "1", "5", HEX16, HEX32), true);
	check_sealed(BODY(KEY, "17", "3", "4", HEX16, "0", "0", HEX16, HEX32), true);
	check_sealed(BODY("restore-3", "0", "3", "4", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "-1", "3", "4", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "2147483648", "3", "4", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "4", "4", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "0", "0", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "1000001", HEX16, "1", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "4", "latest", "1", "5", HEX16, HEX32), false);
	/* Well, with no step. */
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "0", "0", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "1000000", "5", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "1", "10000000000", HEX16, HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "1", "5", "../../etc/passwd", HEX32), false);
	check_sealed(BODY(KEY, "0", "3", "4", HEX16, "1", "5", HEX16, HEX16), false);
}

static void test_credentials_json(void **state)
{
	char key[CKPT_EXCHANGE_KEY_MAX];

	(void)state;
	ckpt_key_restore(key, 1);
	assert_string_equal(key, "restore-1");
	ckpt_key_restore_part(key, UINT32_MAX, CKPT_RESTORE_OPENING);
	assert_string_equal(key, "restore-4294967295-opened");
	ckpt_key_restore_part(key, 2, CKPT_RESTORE_READING);
	assert_string_equal(key, "restore-2-read");
	ckpt_key_restore_part(key, 2, CKPT_RESTORE_MENDING);
	assert_string_equal(key, "restore-2-mended");
	ckpt_key_restore_rank(key, 2, CKPT_RESTORE_READING, 999999);
	assert_string_equal(key, "restore-2-read-r999999");
	ckpt_key_hello(key, 999999);
	assert_string_equal(key, "rank-999999");
}

/* Two first words are never the same, and each is what it was. */
static void test_hello(void **state)
{
	struct ckpt_buf words[3] = {{0}};

	(void)state;
	for (size_t i = 0; i < COUNT(words); i++)
		assert_int_equal(ckpt_hello_encode(i / 2, &words[i]), 0);
	assert_int_equal(words[0].len, words[1].len);
	assert_memory_equal(words[0].data, words[1].data, words[0].len);
	assert_int_equal(words[0].len, words[2].len);
	assert_memory_not_equal(words[0].data, words[2].data, words[0].len);
	for (size_t i = 0; i < COUNT(words); i++)
		ckpt_buf_free(&words[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_failure),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_credentials_json),
		cmocka_unit_test(test_hello),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
