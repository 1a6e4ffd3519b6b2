/* SPDX-License-Identifier: Apache-2.0 */
/* remote-NNNNNNNNNN.json: what is written down of a remote store, and what that says of a step. */
#include "sealed_kit.h"

#include "format/remote_record.h"

static int decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_remote_record record;
	int r = ckpt_remote_record_decode(data, length, "f.json", err, &record);

	if (r == 0)
		ckpt_remote_record_clear(&record);
	return r;
}

static struct ckpt_record_step waiting[] = {
	{.generation = 1, .step = 30}, {.generation = 2, .step = 20}};

static const struct ckpt_remote_record full = {.run_id = RUN,
	.remote = "s3://b/run \"42\"",
	.every = 10,
	.generation = 2,
	.node = "node-7",
	.wall_ms = 1700000000000,
	.known_generation = 2,
	.known_step = 40,
	.uploaded_generation = 2,
	.uploaded_step = 10,
	.uploaded_wall_ms = 1600000000000,
	.waiting = waiting,
	.waiting_count = 2,
	.absent = {{.generation = 1, .step = 10, .code = CKPT_EINTEGRITY},
		{.generation = 2, .step = 30}},
	.absent_count = 2,
	.code = CKPT_ENETWORK,
	.tries = 3,
	.since_ms = 1700000000001,
	.next_ms = 1700000000002,
	.reason = "no route"};

static void test_bytes(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"remote\",\"run_id\":\"" RUN
		"\",\"remote\":\"s3://b/run \\\"42\\\"\",\"every\":10,\"generation\":2,"
		"\"node\":\"node-7\",\"wall_ms\":1700000000000,\"known\":[2,40],"
		"\"there\":[2,10,1600000000000],\"waiting\":[[1,30],[2,20]],\"waiting_more\":0,"
		"\"absent\":[[1,10,-10001],[2,30,0]],\"absent_more\":0,"
		"\"failure\":[-10021,3,1700000000001,1700000000002,\"no route\"]";
	static const char empty_body[] =
		"{\"format\":[1,0],\"kind\":\"remote\",\"run_id\":\"" RUN
		"\",\"remote\":\"file:///r\",\"every\":0,\"generation\":1,\"node\":\"\","
		"\"wall_ms\":0,\"known\":null,\"there\":null,\"waiting\":[],\"waiting_more\":0,"
		"\"absent\":[],\"absent_more\":0,\"failure\":null";
	static const struct ckpt_remote_record empty = {
		.run_id = RUN, .remote = "file:///r", .generation = 1};
	struct ckpt_remote_record back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(CKPT_ENETWORK, -10021);
	assert_int_equal(ckpt_remote_record_encode(&full, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, decode);
	assert_int_equal(ckpt_remote_record_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_string_equal(back.remote, full.remote);
	assert_string_equal(back.node, full.node);
	assert_string_equal(back.reason, full.reason);
	assert_int_equal(back.waiting_count, 2);
	assert_memory_equal(back.waiting, waiting, sizeof(waiting));
	assert_memory_equal(back.absent, full.absent, sizeof(full.absent));
	assert_int_equal(back.uploaded_step, 10);
	assert_int_equal(back.known_step, 40);
	assert_int_equal(back.code, CKPT_ENETWORK);
	ckpt_remote_record_clear(&back);
	out.len = 0;
	assert_int_equal(ckpt_remote_record_encode(&empty, &out), 0);
	kit_check_bytes(&out, empty_body);
	assert_int_equal(ckpt_remote_record_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.known_generation, 0);
	assert_int_equal(back.uploaded_generation, 0);
	assert_int_equal(back.code, 0);
	ckpt_remote_record_clear(&back);
	ckpt_buf_free(&out);
}

#define RECORD(remote, known, there, waiting, absent, failure)                                     \
	"{\"format\":[1,0],\"kind\":\"remote\",\"run_id\":\"" RUN "\",\"remote\":" remote          \
	",\"every\":0,\"generation\":1,\"node\":\"\",\"wall_ms\":0,\"known\":" known               \
	",\"there\":" there ",\"waiting\":" waiting ",\"waiting_more\":0,\"absent\":" absent       \
	",\"absent_more\":0,\"failure\":" failure
#define URL "\"s3://b/r\""

static void test_hostile(void **state)
{
	static const struct sealed_case cases[] = {
		{RECORD(URL, "null", "null", "[]", "[]", "null"), 0, ""},
		{RECORD("\"\"", "null", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"remote\""},
		{RECORD("\"a\\u001b[2J\"", "null", "null", "[]", "[]", "null"), CKPT_EFORMAT,
			"\"remote\""},
		{RECORD("7", "null", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"remote\""},
		{RECORD(URL, "[0,1]", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"known\""},
		{RECORD(URL, "[1,10000000000]", "null", "[]", "[]", "null"), CKPT_EFORMAT,
			"\"known\""},
		{RECORD(URL, "[1]", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"known\""},
		{RECORD(URL, "[1,2,3]", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"known\""},
		{RECORD(URL, "false", "null", "[]", "[]", "null"), CKPT_EFORMAT, "\"known\""},
		{RECORD(URL, "null", "[1,2]", "[]", "[]", "null"), CKPT_EFORMAT, "\"there\""},
		{RECORD(URL, "null", "null", "null", "[]", "null"), CKPT_EFORMAT, "\"waiting\""},
		{RECORD(URL, "null", "null", "[[1,2],[1,2]]", "[]", "null"), CKPT_EFORMAT,
			"\"waiting\""},
		{RECORD(URL, "null", "null", "[[2,1],[1,2]]", "[]", "null"), CKPT_EFORMAT,
			"\"waiting\""},
		{RECORD(URL, "null", "null", "[[1,2,3]]", "[]", "null"), CKPT_EFORMAT,
			"\"waiting\""},
		{RECORD(URL, "null", "null", "[[1,-2]]", "[]", "null"), CKPT_EFORMAT,
			"\"waiting\""},
		{RECORD(URL, "null", "null", "[]", "[[1,2,5]]", "null"), CKPT_EFORMAT,
			"\"absent\""},
		{RECORD(URL, "null", "null", "[]", "[[1,2,-2147483649]]", "null"), CKPT_EFORMAT,
			"\"absent\""},
		{RECORD(URL, "null", "null", "[]", "[[1,2,-0]]", "null"), CKPT_EFORMAT,
			"\"absent\""},
		{RECORD(URL, "null", "null", "[]", "[[1,2,-1],[1,1,0]]", "null"), CKPT_EFORMAT,
			"\"absent\""},
		{RECORD(URL, "null", "null", "[]", "[]", "[0,1,2,3,\"x\"]"), CKPT_EFORMAT,
			"\"failure\""},
		{RECORD(URL, "null", "null", "[]", "[]", "[-1,1,2,3]"), CKPT_EFORMAT,
			"\"failure\""},
		{RECORD(URL, "null", "null", "[]", "[]", "[-1,1,2,3,\"\\n\"]"), CKPT_EFORMAT,
			"\"failure\""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), decode);
}

/* As many as are listed, and one more. */
static void test_most(void **state)
{
	struct ckpt_buf body = {0};

	(void)state;
	for (size_t more = 0; more < 2; more++) {
		body.len = 0;
		ckpt_buf_puts(&body,
			"{\"format\":[1,0],\"kind\":\"remote\",\"run_id\":\"" RUN
			"\",\"remote\":" URL
			",\"every\":0,\"generation\":1,\"node\":\"\",\"wall_ms\":0,"
			"\"known\":null,\"there\":null,\"waiting_more\":0,\"absent\":[],"
			"\"absent_more\":0,\"failure\":null,\"waiting\":[");
		for (size_t i = 0; i < CKPT_RECORD_WAITING_MAX + more; i++)
			ckpt_buf_printf(&body, "%s[1,%zu]", i ? "," : "", i);
		ckpt_buf_put(&body, "]", 2);
		assert_int_equal(kit_decode_body(body.data, decode, NULL), more ? CKPT_EFORMAT : 0);
	}
	ckpt_buf_free(&body);
}

static void test_what_it_says(void **state)
{
	struct ckpt_remote_record r = full;

	(void)state;
	assert_int_equal(ckpt_remote_record_state(&r, 2, 10), CKPT_REMOTE_UPLOADED);
	assert_int_equal(ckpt_remote_record_state(&r, 2, 15), CKPT_REMOTE_EXCLUDED); /* every 10 */
	assert_int_equal(ckpt_remote_record_state(&r, 2, 20), CKPT_REMOTE_PENDING);
	assert_int_equal(ckpt_remote_record_state(&r, 1, 20), CKPT_REMOTE_UPLOADED);
	assert_int_equal(ckpt_remote_record_state(&r, 1, 30), CKPT_REMOTE_PENDING);
	assert_int_equal(ckpt_remote_record_state(&r, 1, 10), CKPT_REMOTE_FAILED);
	assert_int_equal(ckpt_remote_record_why(&r, 1, 10), CKPT_EINTEGRITY);
	assert_int_equal(
		ckpt_remote_record_state(&r, 2, 30), CKPT_REMOTE_EXCLUDED); /* removed there */
	assert_int_equal(ckpt_remote_record_state(&r, 2, 40), CKPT_REMOTE_UPLOADED);
	/* Committed since. */
	assert_int_equal(ckpt_remote_record_state(&r, 2, 50), CKPT_REMOTE_UNKNOWN);
	assert_int_equal(ckpt_remote_record_state(&r, 3, 10), CKPT_REMOTE_UNKNOWN);
	/* One that was given up: what is listed is, and of the rest behind the known nothing is said. */
	r.known_step = 10;
	assert_int_equal(ckpt_remote_record_state(&r, 2, 20), CKPT_REMOTE_PENDING);
	assert_int_equal(ckpt_remote_record_state(&r, 2, 30), CKPT_REMOTE_EXCLUDED);
	assert_int_equal(ckpt_remote_record_state(&r, 2, 40), CKPT_REMOTE_UNKNOWN);
	r.known_step = 40;
	/* More wait than are listed: what is behind the last of them may. */
	r.waiting_more = 1;
	assert_int_equal(ckpt_remote_record_state(&r, 2, 40), CKPT_REMOTE_UNKNOWN);
	assert_int_equal(ckpt_remote_record_state(&r, 2, 10), CKPT_REMOTE_UPLOADED);
	/* More are absent than are listed: what is before the first of them may be. */
	r.absent_more = 1;
	assert_int_equal(ckpt_remote_record_state(&r, 1, 0), CKPT_REMOTE_UNKNOWN);
	assert_int_equal(ckpt_remote_record_state(&r, 1, 10), CKPT_REMOTE_FAILED);
	assert_int_equal(ckpt_remote_record_state(&r, 2, 10), CKPT_REMOTE_UPLOADED);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_most),
		cmocka_unit_test(test_what_it_says),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
