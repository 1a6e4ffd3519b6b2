/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks tell each other is read back as it was told, or refused. */
#include "lib/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exchange/exchange.h"
#include "exchange/rank_messages.h"
#include "format/sealed.h"

static struct ckpt_rank_record a_record(void)
{
	struct ckpt_rank_record record = {
		.verdict = {.generation = 3, .step = 70, .nonce = UINT64_C(0xfedcba9876543210)},
		.rank = {.rank = 12,
			.node = "node-7",
			.attempt = "0123456789abcdef",
			.index_bytes = 4321,
			.shard_bytes = UINT64_C(1) << 40}};

	memset(record.rank.index_digest.bytes, 0xa5, sizeof(record.rank.index_digest.bytes));
	memset(record.plan.bytes, 0x5a, sizeof(record.plan.bytes));
	memset(record.common.bytes, 0xc3, sizeof(record.common.bytes));
	record.balance = UINT64_C(0xfedcba9876543210);
	record.stored = UINT64_C(1) << 39;
	record.base = 70;
	memset(record.alike, 'f', sizeof(record.alike) - 1);
	return record;
}

static void test_there_and_back(void **state)
{
	struct ckpt_rank_record in = a_record();
	struct ckpt_rank_record out;
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_rank_record_encode(&in, &buf), 0);
	assert_true(buf.len < CKPT_EXCHANGE_VALUE_MAX);
	assert_int_equal(ckpt_rank_record_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_int_equal(out.verdict.code, 0);
	assert_int_equal(out.verdict.generation, 3);
	assert_int_equal(out.verdict.step, 70);
	assert_true(out.verdict.nonce == in.verdict.nonce);
	assert_int_equal(out.rank.rank, in.rank.rank);
	assert_string_equal(out.rank.node, in.rank.node);
	assert_string_equal(out.rank.attempt, in.rank.attempt);
	assert_true(ckpt_digest_equal(&out.rank.index_digest, &in.rank.index_digest));
	assert_int_equal(out.rank.index_bytes, in.rank.index_bytes);
	assert_int_equal(out.rank.shard_bytes, in.rank.shard_bytes);
	assert_true(ckpt_digest_equal(&out.plan, &in.plan));
	assert_true(ckpt_digest_equal(&out.common, &in.common));
	assert_int_equal(out.balance, in.balance);
	assert_int_equal(out.stored, in.stored);
	assert_int_equal(out.base, in.base);
	assert_string_equal(out.alike, in.alike);
	ckpt_buf_free(&buf);
}

/* One that failed has no files, and says why in one printable line. */
static void test_failure(void **state)
{
	struct ckpt_rank_record in = {
		.verdict = {.code = -ENOSPC, .reason = "no space\non \x01the disk"},
		.rank = {.rank = 3, .node = "n"}};
	struct ckpt_rank_record out;
	struct ckpt_verdict verdict = {.code = -1};
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_rank_record_encode(&in, &buf), 0);
	assert_int_equal(ckpt_rank_record_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_int_equal(out.verdict.code, -ENOSPC);
	assert_string_equal(out.verdict.reason, "no space?on ?the disk");
	assert_int_equal(out.rank.rank, 3);
	/* And it is no verdict. */
	assert_int_equal(
		ckpt_verdict_decode(buf.data, buf.len, "key", NULL, &verdict), CKPT_EFORMAT);
	assert_int_equal(verdict.code, -1);
	buf.len = 0;
	in.verdict.code = 0;
	assert_int_equal(ckpt_verdict_encode(&in.verdict, &buf), 0);
	assert_int_equal(ckpt_verdict_decode(buf.data, buf.len, "key", NULL, &verdict), 0);
	assert_int_equal(verdict.code, 0);
	assert_int_equal(
		ckpt_rank_record_decode(buf.data, buf.len, "key", NULL, &out), CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

/* Every bit turned over, every length: nothing of it is taken for a record. */
static void test_damage(void **state)
{
	struct ckpt_rank_record in = a_record();
	struct ckpt_rank_record out;
	struct ckpt_buf buf = {0};
	char *copy;

	(void)state;
	assert_int_equal(ckpt_rank_record_encode(&in, &buf), 0);
	copy = malloc(buf.len);
	for (size_t i = 0; i < buf.len; i++) {
		for (unsigned bit = 0; bit < 8; bit++) {
			memcpy(copy, buf.data, buf.len);
			copy[i] ^= (char)(1u << bit);
			assert_true(ckpt_rank_record_decode(copy, buf.len, "key", NULL, &out) < 0);
		}
		memcpy(copy, buf.data, i);
		assert_true(ckpt_rank_record_decode(copy, i, "key", NULL, &out) < 0);
	}
	free(copy);
	ckpt_buf_free(&buf);
}

static void check_sealed(const char *json, bool good)
{
	struct ckpt_rank_record out;
	struct ckpt_buf buf = {0};

	ckpt_buf_puts(&buf, json);
	ckpt_sealed_finish(&buf);
	assert_int_equal(ckpt_rank_record_decode(buf.data, buf.len, "key", NULL, &out),
		good ? 0 : CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

#define HEAD    "{\"format\":[1,0],\"kind\":\"rank\""
#define ATTEMPT "0123456789abcdef"
#define VERDICT(code, generation, step, nonce)                                                     \
	",\"code\":" code ",\"reason\":\"\",\"generation\":" generation ",\"step\":" step          \
	",\"nonce\":\"" nonce "\""
#define PART(attempt, rank, digest, bytes, shard)                                                  \
	",\"attempt\":\"" attempt "\",\"rank\":" rank ",\"node\":\"\",\"index_digest\":\"" digest  \
	"\",\"index_bytes\":" bytes ",\"shard_bytes\":" shard ",\"plan\":\"" digest                \
	"\",\"common\":\"" digest "\",\"alike\":\"\",\"balance\":\"0000000000000000\""             \
	",\"stored\":" shard ",\"base\":0"
#define BODY(code, rank, attempt, digest, bytes)                                                   \
	HEAD VERDICT(code, "1", "0", ATTEMPT) PART(attempt, rank, digest, bytes, "1")
#define DIGEST ATTEMPT ATTEMPT

/* What has a digest of its own may be wrong all the same. */
static void test_hostile(void **state)
{
	(void)state;
	check_sealed(BODY("0", "1", ATTEMPT, DIGEST, "1"), true);
	check_sealed(BODY("-1", "1", ATTEMPT, DIGEST, "1"), false);
	check_sealed(BODY("2147483648", "1", ATTEMPT, DIGEST, "1"), false);
	check_sealed(BODY("0", "1000000", ATTEMPT, DIGEST, "1"), false);
	check_sealed(BODY("0", "\"1\"", ATTEMPT, DIGEST, "1"), false);
	check_sealed(BODY("0", "1", "0123456789ABCDEF", DIGEST, "1"), false);
	check_sealed(BODY("0", "1", "../../etc/passwd", DIGEST, "1"), false);
	check_sealed(BODY("0", "1", ATTEMPT, ATTEMPT, "1"), false);
	check_sealed(BODY("0", "1", ATTEMPT, DIGEST, "99999999999999"), false);
	check_sealed(HEAD ",\"code\":0,\"reason\":\"\"", false);
	check_sealed(HEAD VERDICT("0", "1000000", "0", ATTEMPT)
			     PART(ATTEMPT, "1", DIGEST, "1", "1"),
		false);
	check_sealed(HEAD VERDICT("0", "1", "10000000000", ATTEMPT)
			     PART(ATTEMPT, "1", DIGEST, "1", "1"),
		false);
	check_sealed(HEAD VERDICT("0", "1", "0", "12") PART(ATTEMPT, "1", DIGEST, "1", "1"), false);
	/* A manifest that said so would not be one; of what has failed it does not matter. */
	check_sealed(BODY("0", "1", ATTEMPT, DIGEST, "0"), false);
	check_sealed(BODY("1", "1", ATTEMPT, DIGEST, "0"), true);
	check_sealed(
		HEAD VERDICT("0", "1", "0", ATTEMPT) PART(ATTEMPT, "1", DIGEST, "1", "0"), false);
}

static void test_outcome(void **state)
{
	struct ckpt_outcome in = {.verdict = {.generation = 9, .step = 8, .nonce = 7},
		.attempt = "0123456789abcdef",
		.bytes = UINT64_C(1) << 50,
		.clue = "Babc-_"};
	struct ckpt_outcome out;
	struct ckpt_buf buf = {0};

	(void)state;
	assert_int_equal(ckpt_outcome_encode(&in, &buf), 0);
	assert_int_equal(ckpt_outcome_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_int_equal(out.verdict.code, 0);
	assert_string_equal(out.attempt, in.attempt);
	assert_true(out.bytes == in.bytes);
	assert_string_equal(out.clue, in.clue);
	assert_false(out.compared);
	assert_false(out.follow);
	buf.len = 0;
	in.follow = true;
	in.compared = true;
	in.differ = UINT64_C(0xfedcba9876543210);
	assert_int_equal(ckpt_outcome_encode(&in, &buf), 0);
	assert_int_equal(ckpt_outcome_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_true(out.compared);
	assert_true(out.differ == in.differ);
	assert_true(out.follow);
	buf.len = 0;
	in.verdict.code = CKPT_ESKIPPED;
	in.attempt[0] = '\0';
	memcpy(in.verdict.reason, "busy", sizeof("busy"));
	assert_int_equal(ckpt_outcome_encode(&in, &buf), 0);
	assert_int_equal(ckpt_outcome_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_int_equal(out.verdict.code, CKPT_ESKIPPED);
	assert_string_equal(out.verdict.reason, "busy");
	assert_int_equal(out.bytes, 0);
	assert_false(out.open);
	assert_false(out.compared);
	buf.len = 0;
	in.open = true;
	assert_int_equal(ckpt_outcome_encode(&in, &buf), 0);
	assert_int_equal(ckpt_outcome_decode(buf.data, buf.len, "key", NULL, &out), 0);
	assert_true(out.open);
	ckpt_buf_free(&buf);
}

static void check_differ(const char *differ, bool good)
{
	struct ckpt_outcome out;
	struct ckpt_buf buf = {0};

	ckpt_buf_printf(&buf,
		"{\"format\":[1,0],\"kind\":\"outcome\"" VERDICT("0", "1", "0",
			ATTEMPT) ",\"attempt\":\"" ATTEMPT "\",\"bytes\":1,\"open\":0,\"alike\":0,"
				 "\"clue\":\"\",\"differ\":\"%s\",\"follow\":0",
		differ);
	ckpt_sealed_finish(&buf);
	assert_int_equal(
		ckpt_outcome_decode(buf.data, buf.len, "key", NULL, &out), good ? 0 : CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

static void test_differ(void **state)
{
	(void)state;
	check_differ("", true);
	check_differ(ATTEMPT, true);
	check_differ("0123456789abcde", false);
	check_differ(ATTEMPT "0", false);
	check_differ("-123456789abcdef", false);
	check_differ("0123456789ABCDEF", false);
}

/* What is about another step, or was left by another start of the job, is not taken. */
static void test_subject(void **state)
{
	const struct ckpt_verdict asked = {.generation = 9, .step = 8, .nonce = 7};
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_verdict other = asked;

	(void)state;
	other.code = -EIO;
	assert_int_equal(ckpt_verdict_check(&other, &asked, "key", NULL), 0);
	other.step++;
	assert_int_equal(ckpt_verdict_check(&other, &asked, "key", NULL), CKPT_EFORMAT);
	other = asked;
	other.generation++;
	assert_int_equal(ckpt_verdict_check(&other, &asked, "key", NULL), CKPT_EFORMAT);
	other = asked;
	other.nonce++;
	assert_int_equal(ckpt_verdict_check(&other, &asked, "g9-s8", &err), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "g9-s8"));
	assert_non_null(strstr(err.message, "same session"));
}

static void test_credentials_json(void **state)
{
	char key[CKPT_EXCHANGE_KEY_MAX];

	(void)state;
	ckpt_key_claim(key, UINT32_MAX);
	assert_string_equal(key, "claim-4294967295");
	ckpt_key_claim_failed(key, 1, UINT32_MAX);
	assert_string_equal(key, "claim-1-failed-4294967295");
	ckpt_key_rank(key, CKPT_GENERATION_MAX, UINT64_C(9999999999), CKPT_WORLD_MAX - 1);
	assert_string_equal(key, "g999999-s9999999999-r999999");
	ckpt_key_outcome(key, 1, 0);
	assert_string_equal(key, "g1-s0");
	assert_true(ckpt_session_valid("a"));
	assert_true(ckpt_session_valid("job_1.restart-2"));
	assert_false(ckpt_session_valid(""));
	assert_false(ckpt_session_valid("."));
	assert_false(ckpt_session_valid(".."));
	assert_false(ckpt_session_valid("a/b"));
	assert_false(ckpt_session_valid("a b"));
	assert_true(ckpt_session_valid(
		"0123456789012345678901234567890123456789012345678901234567890123"));
	assert_false(ckpt_session_valid(
		"01234567890123456789012345678901234567890123456789012345678901234"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_there_and_back),
		cmocka_unit_test(test_failure),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_outcome),
		cmocka_unit_test(test_differ),
		cmocka_unit_test(test_subject),
		cmocka_unit_test(test_credentials_json),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
