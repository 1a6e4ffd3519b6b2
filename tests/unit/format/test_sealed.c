/* SPDX-License-Identifier: Apache-2.0 */
/* The seal, and the three files of fixed size: marker, claim, quarantine note. */
#include "sealed_kit.h"

#include <errno.h>

static int marker_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_marker marker;

	return ckpt_marker_decode(data, length, "f.json", err, &marker);
}

static int claim_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_claim claim;

	return ckpt_claim_decode(data, length, "f.json", err, &claim);
}

static int quarantine_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_quarantine note;

	return ckpt_quarantine_decode(data, length, "f.json", err, &note);
}

static const struct ckpt_marker marker = {.run_id = RUN, .wall_ms = 1700000000000};

static const struct ckpt_claim claim = {.run_id = RUN,
	.generation = 2,
	.parent_generation = 1,
	.parent_step = CKPT_STEP_MAX,
	.nonce = UINT64_MAX,
	.world = 1,
	.node = "node-7",
	.wall_ms = INT64_MAX};

static int tombstone_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_tombstone stone;

	return ckpt_tombstone_decode(data, length, "f.json", err, &stone);
}

static const struct ckpt_quarantine note = {.generation = 999999,
	.step = 0,
	.code = CKPT_EINTEGRITY,
	.wall_ms = 5,
	.reason = "chunk 3 differs"};

/* The digest is of all bytes before its own member, and stands at a fixed distance from the end. */
static void test_seal(void **state)
{
	struct ckpt_buf out = {0};
	char hex[CKPT_DIGEST_HEX];
	struct ckpt_digest digest = ckpt_digest_of("{\"a\":1", 6);

	(void)state;
	ckpt_buf_puts(&out, "{\"a\":1");
	ckpt_sealed_finish(&out);
	ckpt_digest_hex(&digest, hex);
	assert_int_equal(out.len, 6 + 46);
	assert_memory_equal(out.data, "{\"a\":1,\"digest\":\"", 17);
	assert_memory_equal(out.data + 17, hex, 32);
	assert_memory_equal(out.data + 49, "\"}\n", 3);
	assert_int_equal(ckpt_sealed_open(out.data, out.len, "f.json", NULL), 0);
	ckpt_buf_free(&out);
	/* A buffer that failed stays so. */
	out.failed = true;
	ckpt_sealed_finish(&out);
	assert_true(out.failed && out.len == 0);
}

#define M(version, kind, rest)        "{\"format\":" version ",\"kind\":" kind rest
#define MARKER_REST(run, scope, wall) ",\"run_id\":" run ",\"scope\":" scope ",\"wall_ms\":" wall
#define GOOD_REST                     MARKER_REST("\"" RUN "\"", "\"shared\"", "1")
#define WITH(member)                  M("[1,0]", "\"store\"", GOOD_REST "," member)

static void test_hostile_json(void **state)
{
	static const struct sealed_case cases[] = {
		{WITH("\"a\":[1,2,{\"b\":null}]"), 0, ""},
		{WITH("\"digest\":1"), CKPT_EFORMAT, "\"digest\" occurs twice"},
		{WITH("\"kind\":\"store\""), CKPT_EFORMAT, "\"kind\" occurs twice"},
		{WITH("\"\\u006bind\":\"store\""), CKPT_EFORMAT, "\"kind\" occurs twice"},
		{WITH("\"scope\":\"node\""), CKPT_EFORMAT, "\"scope\" occurs twice"},
		/* Members that are not known are passed over, if they are JSON. */
		{WITH("\"a\":1,\"a\":\"\\u0000\""), 0, ""},
		{WITH("\"a\":[9223372036854775808,-1,1e999]"), 0, ""},
		{WITH("\"a\":\"\xff\""), CKPT_EFORMAT, "not UTF-8"},
		{WITH("\"a\":\"\xed\xa0\x80\""), CKPT_EFORMAT, "not UTF-8"},
		{WITH("\"a\":\"\\ud800\""), CKPT_EFORMAT, "half a surrogate pair"},
		{WITH("\"a\":01"), CKPT_EFORMAT, ""},
		{WITH("\"a\":{\"b\":1"), CKPT_EFORMAT, ""},
		{"[1", CKPT_EFORMAT, ""},
		{"\"a\"", CKPT_EFORMAT, ""},
		{"", CKPT_EFORMAT, "too short"},
		{WITH("\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"), 0,
			""},
		{WITH("\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"),
			CKPT_EFORMAT, "nested deeper than 32"},
	};
	struct ckpt_buf many = {0};

	(void)state;
	kit_check_cases(cases, COUNT(cases), marker_decode);
	/* As long as it may be, and a byte longer; the seal of both is right. */
	for (size_t extra = 0; extra < 2; extra++) {
		many.len = 0;
		ckpt_buf_puts(&many, WITH("\"a\":1"));
		ckpt_buf_fill(&many, ' ', CKPT_SEALED_MAX - many.len - 46 + extra);
		ckpt_buf_put(&many, "", 1);
		assert_int_equal(
			kit_decode_body(many.data, marker_decode, NULL), extra ? CKPT_EFORMAT : 0);
	}
	ckpt_buf_free(&many);
}

static void test_marker(void **state)
{
	static const char body[] = "{\"format\":[1,0],\"kind\":\"store\",\"run_id\":\"" RUN
				   "\",\"scope\":\"node\",\"wall_ms\":1700000000000";
	struct ckpt_marker shared = marker;
	struct ckpt_marker back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_marker_encode(&marker, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, marker_decode);
	assert_int_equal(ckpt_marker_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_string_equal(back.run_id, RUN);
	assert_false(back.shared);
	assert_int_equal(back.wall_ms, marker.wall_ms);
	out.len = 0;
	shared.partial = true;
	assert_int_equal(ckpt_marker_encode(&shared, &out), 0);
	assert_non_null(memmem(out.data, out.len, "\"ranks\"", 7));
	assert_int_equal(ckpt_marker_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_true(back.partial && !back.shared);
	out.len = 0;
	shared.shared = true;
	shared.wall_ms = UINT64_MAX; /* of a clock gone mad */
	assert_int_equal(ckpt_marker_encode(&shared, &out), 0);
	assert_int_equal(ckpt_marker_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_true(back.shared);
	assert_int_equal(back.wall_ms, INT64_MAX);
	ckpt_buf_free(&out);
}

static void test_versions(void **state)
{
	static const struct sealed_case cases[] = {
		{M("[1,0]", "\"store\"", GOOD_REST), 0, ""},
		{M("[1,7]", "\"store\"", GOOD_REST ",\"new\":{\"a\":[{}]}"), 0, ""},
		{M("[1,9223372036854775807]", "\"store\"", GOOD_REST), 0, ""},
		{M("[2,0]", "\"store\"", GOOD_REST), CKPT_EVERSION, "install libckpt 2.0 or newer"},
		{M("[2,0]", "\"whatever\"", ""), CKPT_EVERSION, "f.json is of format 2.0"},
		{M("[2,0]", "[{}]", ",\"run_id\":1"), CKPT_EVERSION, "f.json is of format 2.0"},
		{"{\"format\":[2,0]", CKPT_EVERSION, "f.json is of format 2.0"},
		{M("[9223372036854775807,1]", "\"store\"", ""), CKPT_EVERSION,
			"9223372036854775807.1"},
		{M("[0,1]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "format 0"},
		{M("[-1,1]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("[1]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("[1,0,0]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("[\"1\",0]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("[1.0,0]", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("1", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{M("{}", "\"store\"", GOOD_REST), CKPT_EFORMAT, "has no \"format\""},
		{"{\"kind\":\"store\"" GOOD_REST, CKPT_EFORMAT, "has no \"format\""},
		{M("[1,0]", "\"claim\"", GOOD_REST), CKPT_EFORMAT, "is not of kind \"store\""},
		{M("[1,0]", "1", GOOD_REST), CKPT_EFORMAT, "is not of kind \"store\""},
		{"{\"format\":[1,0]" GOOD_REST, CKPT_EFORMAT, "is not of kind \"store\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), marker_decode);
}

static void test_bad_markers(void **state)
{
#define BAD(run, scope, wall) M("[1,0]", "\"store\"", MARKER_REST(run, scope, wall))
	static const struct sealed_case cases[] = {
		{BAD("\"" RUN "0\"", "\"node\"", "1"), CKPT_EFORMAT, "\"run_id\" is missing, or"},
		{BAD("\"0011\"", "\"node\"", "1"), CKPT_EFORMAT, "\"run_id\""},
		{BAD("\"00112233445566778899AABBCCDDEEFF\"", "\"node\"", "1"), CKPT_EFORMAT,
			"\"run_id\""},
		{BAD("\"../../../../../../../../../../..\"", "\"node\"", "1"), CKPT_EFORMAT,
			"\"run_id\""},
		{BAD("1", "\"node\"", "1"), CKPT_EFORMAT, "\"run_id\""},
		{BAD("\"" RUN "\"", "\"nodes\"", "1"), CKPT_EFORMAT, "\"scope\""},
		{BAD("\"" RUN "\"", "true", "1"), CKPT_EFORMAT, "\"scope\""},
		{BAD("\"" RUN "\"", "\"node\"", "-1"), CKPT_EFORMAT, "\"wall_ms\""},
		{BAD("\"" RUN "\"", "\"node\"", "1.5"), CKPT_EFORMAT, "\"wall_ms\""},
		{BAD("\"" RUN "\"", "\"node\"", "null"), CKPT_EFORMAT, "\"wall_ms\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), marker_decode);
}

static void test_claim(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"claim\",\"run_id\":\"" RUN
		"\",\"generation\":2,\"parent\":{\"generation\":1,\"step\":9999999999},"
		"\"nonce\":\"ffffffffffffffff\",\"world\":1,\"node\":\"node-7\","
		"\"wall_ms\":9223372036854775807";
	static const char first_body[] =
		"{\"format\":[1,0],\"kind\":\"claim\",\"run_id\":\"" RUN
		"\",\"generation\":1,\"parent\":null,\"nonce\":\"0000000000000001\",\"world\":1,"
		"\"node\":\"\",\"wall_ms\":0";
	struct ckpt_claim first = {.run_id = RUN, .generation = 1, .nonce = 1, .world = 1};
	struct ckpt_claim back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_claim_encode(&claim, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, claim_decode);
	assert_int_equal(ckpt_claim_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_string_equal(back.run_id, claim.run_id);
	assert_int_equal(back.generation, claim.generation);
	assert_int_equal(back.parent_generation, claim.parent_generation);
	assert_int_equal(back.parent_step, claim.parent_step);
	assert_true(back.nonce == claim.nonce);
	assert_int_equal(back.world, claim.world);
	assert_string_equal(back.node, claim.node);
	assert_int_equal(back.wall_ms, claim.wall_ms);
	out.len = 0;
	assert_int_equal(ckpt_claim_encode(&first, &out), 0);
	kit_check_bytes(&out, first_body);
	assert_int_equal(ckpt_claim_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.parent_generation, 0);
	assert_int_equal(back.parent_step, 0);
	/* The last generation has no successor. */
	out.len = 0;
	first.generation = CKPT_GENERATION_MAX;
	assert_int_equal(ckpt_claim_encode(&first, &out), 0);
	out.len = 0;
	first.generation = CKPT_GENERATION_MAX + 1;
	assert_int_equal(ckpt_claim_encode(&first, &out), -ERANGE);
	ckpt_buf_free(&out);
}

#define CLAIM(generation, parent, nonce, world, node)                                              \
	M("[1,0]", "\"claim\"",                                                                    \
		",\"run_id\":\"" RUN "\",\"generation\":" generation ",\"parent\":" parent         \
		",\"nonce\":" nonce ",\"world\":" world ",\"node\":" node ",\"wall_ms\":1")
#define NONCE   "\"" ATTEMPT "\""
#define NODE_64 "0123456789012345678901234567890123456789012345678901234567890123"

static void test_bad_claims(void **state)
{
	static const struct sealed_case cases[] = {
		{CLAIM("3", "null", NONCE, "1", "\"n\""), 0, ""},
		{CLAIM("3", "{\"generation\":2,\"step\":0}", NONCE, "1", "\"n\""), 0, ""},
		{CLAIM("3", "{\"generation\":2,\"step\":0,\"new\":1}", NONCE, "1000000", "\"\""), 0,
			""},
		{CLAIM("3", "null", NONCE, "1", "\"" NODE_64 "\""), 0, ""},
		{CLAIM("3", "null", NONCE, "1", "\"" NODE_64 "x\""), CKPT_EFORMAT, "\"node\""},
		{CLAIM("3", "null", NONCE, "1", "1"), CKPT_EFORMAT, "\"node\""},
		{CLAIM("3", "null", NONCE, "1", "\"\\u001b[2J\""), CKPT_EFORMAT, "\"node\""},
		{CLAIM("3", "nul", NONCE, "1", "\"n\""), CKPT_EFORMAT, ""},
		{CLAIM("0", "null", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"generation\""},
		{CLAIM("1000000", "null", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"generation\""},
		{CLAIM("-1", "null", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"generation\""},
		/* A parent that is no ancestor would make the lineage a circle. */
		{CLAIM("3", "{\"generation\":3,\"step\":1}", NONCE, "1", "\"n\""), CKPT_EFORMAT,
			"\"parent\""},
		{CLAIM("3", "{\"generation\":4,\"step\":1}", NONCE, "1", "\"n\""), CKPT_EFORMAT,
			"\"parent\""},
		{CLAIM("3", "{\"generation\":0,\"step\":1}", NONCE, "1", "\"n\""), CKPT_EFORMAT,
			"\"parent\""},
		{CLAIM("3", "{\"generation\":2,\"step\":10000000000}", NONCE, "1", "\"n\""),
			CKPT_EFORMAT, "\"parent\""},
		{CLAIM("3", "{\"generation\":2}", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"parent\""},
		{CLAIM("3", "{}", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"parent\""},
		{CLAIM("3", "[]", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"parent\""},
		{CLAIM("3", "2", NONCE, "1", "\"n\""), CKPT_EFORMAT, "\"parent\""},
		{CLAIM("3", "null", "1", "1", "\"n\""), CKPT_EFORMAT, "\"nonce\""},
		{CLAIM("3", "null", "\"1\"", "1", "\"n\""), CKPT_EFORMAT, "\"nonce\""},
		{CLAIM("3", "null", NONCE, "0", "\"n\""), CKPT_EFORMAT, "\"world\""},
		{CLAIM("3", "null", NONCE, "1000001", "\"n\""), CKPT_EFORMAT, "\"world\""},
		{CLAIM("3", "null", NONCE, "4294967297", "\"n\""), CKPT_EFORMAT, "\"world\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), claim_decode);
}

static void test_quarantine(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"quarantine\",\"generation\":999999,\"step\":0,"
		"\"code\":-10001,\"reason\":\"chunk 3 differs\",\"wall_ms\":5";
	struct ckpt_quarantine back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_quarantine_encode(&note, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, quarantine_decode);
	assert_int_equal(ckpt_quarantine_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.generation, note.generation);
	assert_int_equal(back.step, note.step);
	assert_int_equal(back.code, note.code);
	assert_int_equal(back.wall_ms, note.wall_ms);
	assert_string_equal(back.reason, note.reason);
	ckpt_buf_free(&out);
}

#define NOTE(generation, step, code, reason, wall)                                                 \
	M("[1,0]", "\"quarantine\"",                                                               \
		",\"generation\":" generation ",\"step\":" step ",\"code\":" code                  \
		",\"reason\":" reason ",\"wall_ms\":" wall)

static void test_tombstone(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"tombstone\",\"generation\":1,\"step\":9999999999,"
		"\"by\":999999,\"nonce\":\"00000000000000ab\",\"wall_ms\":7";
	const struct ckpt_tombstone stone = {.generation = 1,
		.step = UINT64_C(9999999999),
		.by = 999999,
		.nonce = 0xab,
		.wall_ms = 7};
	struct ckpt_tombstone back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_tombstone_encode(&stone, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, tombstone_decode);
	assert_int_equal(ckpt_tombstone_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.generation, stone.generation);
	assert_int_equal(back.step, stone.step);
	assert_int_equal(back.by, stone.by);
	assert_int_equal(back.nonce, stone.nonce);
	assert_int_equal(back.wall_ms, stone.wall_ms);
	ckpt_buf_free(&out);
}

#define STONE_OF(generation, step, by, nonce, wall)                                                \
	M("[1,0]", "\"tombstone\"",                                                                \
		",\"generation\":" generation ",\"step\":" step ",\"by\":" by ",\"nonce\":" nonce  \
		",\"wall_ms\":" wall)
#define STONE(generation, step, by, wall)                                                          \
	STONE_OF(generation, step, by, "\"0123456789abcdef\"", wall)

static void test_bad_tombstones(void **state)
{
	static const struct sealed_case cases[] = {
		{STONE("1", "0", "1", "0"), 0, ""},
		{STONE("0", "0", "1", "0"), CKPT_EFORMAT, "\"generation\""},
		{STONE("1", "10000000000", "1", "0"), CKPT_EFORMAT, "\"step\""},
		{STONE("1", "0", "0", "0"), CKPT_EFORMAT, "\"by\""},
		{STONE("1", "0", "1000000", "0"), CKPT_EFORMAT, "\"by\""},
		{STONE_OF("1", "0", "1", "7", "0"), CKPT_EFORMAT, "\"nonce\""},
		{STONE("1", "0", "1", "-1"), CKPT_EFORMAT, "\"wall_ms\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), tombstone_decode);
}

static void test_bad_notes(void **state)
{
	static const struct sealed_case cases[] = {
		{NOTE("1", "9999999999", "-2147483648", "\"\"", "0"), 0, ""},
		{NOTE("0", "1", "-1", "\"\"", "0"), CKPT_EFORMAT, "\"generation\""},
		{NOTE("1", "10000000000", "-1", "\"\"", "0"), CKPT_EFORMAT, "\"step\""},
		{NOTE("1", "1", "-2147483649", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "2147483648", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "\"x\"", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "0", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "-0", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "1", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		{NOTE("1", "1", "-1.0", "\"\"", "0"), CKPT_EFORMAT, "\"code\""},
		/* What people read is one printable line. */
		{NOTE("1", "1", "-1", "\"a\\nb\"", "0"), CKPT_EFORMAT, "\"reason\""},
		{NOTE("1", "1", "-1", "\"\x7f\"", "0"), CKPT_EFORMAT, "\"reason\""},
		{NOTE("1", "1", "-1", "\"\\u009b2J\"", "0"), CKPT_EFORMAT, "\"reason\""},
		{NOTE("1", "1", "-1", "null", "0"), CKPT_EFORMAT, "\"reason\""},
		{NOTE("1", "1", "-1", "\"\"", "-1"), CKPT_EFORMAT, "\"wall_ms\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), quarantine_decode);
}

/* Whatever a message or a host name holds, the file can be read back, as one printable line. */
static void test_texts(void **state)
{
	struct ckpt_quarantine odd = note;
	struct ckpt_quarantine back;
	struct ckpt_claim claim_odd = claim;
	struct ckpt_claim claim_back;
	struct ckpt_buf out = {0};

	(void)state;
	(void)snprintf(
		odd.reason, sizeof(odd.reason), "a\n\x1b[2J\"\\/\xff \xc3\xa4 \xf0\x9f\x98\x80");
	assert_int_equal(ckpt_quarantine_encode(&odd, &out), 0);
	assert_int_equal(ckpt_quarantine_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_string_equal(back.reason, "a??[2J\"\\/? \xc3\xa4 \xf0\x9f\x98\x80");
	/* As long as it can be, none of it UTF-8: not longer when read back. */
	out.len = 0;
	memset(odd.reason, 0xff, sizeof(odd.reason));
	assert_int_equal(ckpt_quarantine_encode(&odd, &out), 0);
	assert_int_equal(ckpt_quarantine_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(strlen(back.reason), sizeof(back.reason) - 1);
	out.len = 0;
	memset(claim_odd.node, '\xc3', sizeof(claim_odd.node));
	assert_int_equal(ckpt_claim_encode(&claim_odd, &out), 0);
	assert_int_equal(ckpt_claim_decode(out.data, out.len, "f", NULL, &claim_back), 0);
	assert_int_equal(strlen(claim_back.node), sizeof(claim_back.node) - 1);
	ckpt_buf_free(&out);
}

static void test_untouched_on_failure(void **state)
{
	struct ckpt_marker back;
	struct ckpt_marker before;

	(void)state;
	memset(&back, 0x5a, sizeof(back));
	before = back;
	assert_int_equal(ckpt_marker_decode("x", 1, "f", NULL, &back), CKPT_EFORMAT);
	assert_memory_equal(&back, &before, sizeof(back));
}

/* Reading takes no memory, so none can lack. */
static void test_reading_takes_no_memory(void **state)
{
	struct kit_alloc alloc = {.fail_at = 1};
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_claim_encode(&claim, &out), 0);
	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	assert_int_equal(claim_decode(out.data, out.len, NULL), 0);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(alloc.count, 0);
	ckpt_buf_free(&out);
}

static void test_without_memory(void **state)
{
	size_t failures = 0;
	int r;

	(void)state;
	do {
		struct kit_alloc alloc = {.fail_at = ++failures};
		struct ckpt_buf out = {0};

		ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
		r = ckpt_claim_encode(&claim, &out);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		ckpt_buf_free(&out);
	} while (r < 0);
	assert_true(failures > 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_seal),
		cmocka_unit_test(test_hostile_json),
		cmocka_unit_test(test_marker),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_bad_markers),
		cmocka_unit_test(test_claim),
		cmocka_unit_test(test_bad_claims),
		cmocka_unit_test(test_quarantine),
		cmocka_unit_test(test_tombstone),
		cmocka_unit_test(test_bad_tombstones),
		cmocka_unit_test(test_bad_notes),
		cmocka_unit_test(test_texts),
		cmocka_unit_test(test_untouched_on_failure),
		cmocka_unit_test(test_reading_takes_no_memory),
		cmocka_unit_test(test_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
