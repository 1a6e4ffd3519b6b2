/* SPDX-License-Identifier: Apache-2.0 */
/* Faults do what they are called, once or as often as they are told, and the journal tells the truth. */
#include "s3/asking.h"

#include <stdio.h>

#include "s3/front.h"

static struct front fresh(void)
{
	return (struct front){0};
}

static void furnish(struct front *front)
{
	front->buckets = one_bucket((struct buckets_config){.journal = &front->journal});
	journal_clear(&front->journal);
}

static void rules(struct front *front, const char *json)
{
	char why[160];

	if (!faults_read(&front->faults, json, strlen(json), why))
		fail_msg("%s", why);
}

static enum front_end put(
	struct front *front, uint64_t now_ns, const char *body, struct s3_reply *reply)
{
	struct s3_request req;

	asked(&req, "PUT", "/bkt/k", body, strlen(body), NULL);
	struct fault_rule fault = front_judge(front, &req);
	enum front_end end = front_do(front, now_ns, &fault, &req, reply);
	s3_request_clear(&req);
	return end;
}

static size_t applied(const struct front *front)
{
	size_t count = 0;

	for (size_t i = 0; i < front->journal.count; i++)
		count += front->journal.entries[i].kind == JOURNAL_APPLIED;
	return count;
}

static void test_each_kind(void **state)
{
	static const struct {
		const char *rules;
		enum front_end end;
		int status;
		size_t applied;
	} kinds[] = {
		{"{\"rules\":[]}", FRONT_ANSWERED, 200, 1},
		{"{\"rules\":[{\"do\":\"drop\"}]}", FRONT_CLOSED, 0, 0},
		{"{\"rules\":[{\"do\":\"drop_reply\"}]}", FRONT_CLOSED, 0, 1},
		{"{\"rules\":[{\"do\":\"stall\"}]}", FRONT_STALLED, 0, 1},
		{"{\"rules\":[{\"do\":\"stall_body\"}]}", FRONT_STALLED, 0, 0},
		{"{\"rules\":[{\"do\":\"late\"}]}", FRONT_CLOSED, 0, 0},
		{"{\"rules\":[{\"do\":\"twice\"}]}", FRONT_ANSWERED, 200, 1},
		{"{\"rules\":[{\"do\":\"answer\",\"status\":409}]}", FRONT_ANSWERED, 409, 0},
		{"{\"rules\":[{\"do\":\"answer\",\"status\":500,\"applied\":true}]}",
			FRONT_ANSWERED, 500, 1},
		{"{\"rules\":[{\"do\":\"error_in_ok\"}]}", FRONT_ANSWERED, 200, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++) {
		struct front front = fresh();
		struct s3_reply reply;
		furnish(&front);
		rules(&front, kinds[i].rules);
		assert_int_equal(put(&front, NOW_NS, "x", &reply), kinds[i].end);
		assert_int_equal(reply.status, kinds[i].status);
		assert_int_equal(applied(&front), kinds[i].applied);
		const struct journal_entry *last = &front.journal.entries[front.journal.count - 1];
		assert_int_equal(last->kind, JOURNAL_ANSWERED);
		s3_reply_clear(&reply);
		front_free(&front);
	}
}

static void test_late_ones_land_in_time(void **state)
{
	struct front front = fresh();
	struct s3_reply reply;
	uint64_t ms = 1000000;

	(void)state;
	furnish(&front);
	rules(&front, "{\"rules\":[{\"do\":\"late\",\"delay_ms\":20,\"times\":1},"
		      "{\"do\":\"late\",\"delay_ms\":10,\"times\":1}]}");
	assert_int_equal(put(&front, NOW_NS, "first", &reply), FRONT_CLOSED);
	assert_int_equal(put(&front, NOW_NS, "second", &reply), FRONT_CLOSED);
	assert_int_equal(put(&front, NOW_NS, "third", &reply), FRONT_ANSWERED);
	s3_reply_clear(&reply);
	assert_true(front_land(&front, NOW_NS + 10 * ms - 1) == NOW_NS + 10 * ms);
	assert_int_equal(applied(&front), 1);
	assert_true(front_land(&front, NOW_NS + 10 * ms) == NOW_NS + 20 * ms);
	assert_int_equal(buckets_content(front.buckets, "bkt", "k")->length, 6);
	assert_true(front_land(&front, NOW_NS + 30 * ms) == UINT64_MAX);
	assert_int_equal(buckets_content(front.buckets, "bkt", "k")->length, 5);
	assert_int_equal(applied(&front), 3);
	front_free(&front);
}

static void test_which_and_how_often(void **state)
{
	struct front front = fresh();
	struct s3_reply reply;
	char seen[9] = "";

	(void)state;
	furnish(&front);
	rules(&front, "{\"rules\":[{\"do\":\"drop\",\"operation\":\"GetObject\"},"
		      "{\"do\":\"drop\",\"key\":\"l*\"},"
		      "{\"do\":\"drop\",\"part\":1},"
		      "{\"do\":\"drop\",\"key\":\"k*\",\"nth\":3,\"times\":2}]}");
	for (int i = 0; i < 8; i++) {
		seen[i] = put(&front, NOW_NS, "x", &reply) == FRONT_ANSWERED ? '.' : 'X';
		s3_reply_clear(&reply);
	}
	assert_string_equal(seen, "..XX....");
	front_free(&front);
}

static void test_rules_that_are_wrong(void **state)
{
	static const char *const wrong[] = {"", "{}", "[]", "{\"rules\":[{}]}",
		"{\"rules\":[{\"do\":\"drip\"}]}", "{\"rules\":[{\"do\":\"drop\",\"when\":1}]}",
		"{\"rules\":[{\"do\":\"drop\",\"nth\":-1}]}",
		"{\"rules\":[{\"do\":\"drop\",\"key\":1}]}", "{\"rules\":[{\"do\":\"answer\"}]}",
		"{\"rules\":[7]}"};
	struct faults faults = {0};
	char why[160];

	(void)state;
	static const char right[] = "{\"rules\":[{\"do\":\"drop\"}]}";
	assert_true(faults_read(&faults, right, strlen(right), why));
	for (size_t i = 0; i < COUNT(wrong); i++) {
		why[0] = '\0';
		assert_false(faults_read(&faults, wrong[i], strlen(wrong[i]), why));
		assert_true(why[0]);
		assert_int_equal(faults.count, 1);
	}
	faults_clear(&faults);
}

static void test_the_journal_names_what_was_put(void **state)
{
	struct front front = fresh();
	struct s3_reply reply;
	struct text lines = {0};

	(void)state;
	furnish(&front);
	(void)put(&front, NOW_NS, "", &reply);
	s3_reply_clear(&reply);
	journal_write(&front.journal, 0, &lines);
	assert_non_null(
		strstr(lines.at, "{\"n\":0,\"kind\":\"applied\",\"time_ns\":1369353600000000000,"
				 "\"request\":1,\"operation\":\"PutObject\",\"bucket\":\"bkt\","
				 "\"key\":\"k\",\"sha256\":\"e3b0c44298fc1c149afbf4c8996fb924"));
	assert_non_null(strstr(lines.at, "\"status\":200,\"how\":\"whole\"}\n"));
	text_clear(&lines);
	front_free(&front);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_kind),
		cmocka_unit_test(test_late_ones_land_in_time),
		cmocka_unit_test(test_which_and_how_often),
		cmocka_unit_test(test_rules_that_are_wrong),
		cmocka_unit_test(test_the_journal_names_what_was_put),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
