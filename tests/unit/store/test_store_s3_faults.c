/* SPDX-License-Identifier: Apache-2.0 */
/* What the store in a bucket promises while the network, the server, its clock or the keys fail. */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/test.h"

#define BLOCK BUCKET_RIG_BLOCK
#define SIZE  (3 * BLOCK + 5)
#define S_NS  UINT64_C(1000000000)

static struct bucket_rig *fresh(struct bucket_rig like)
{
	return bucket_rig_new(like, 11);
}

/* One that has learned what the server can. */
static struct bucket_rig *probed(struct bucket_rig like)
{
	struct bucket_rig *rig = fresh(like);

	assert_int_equal(bucket_rig_publish(rig, "first", "x"), 0);
	rig->http.requests = 0;
	return rig;
}

static void check_words(struct bucket_rig *rig, const char *words)
{
	if (!strstr(rig->err.message, words))
		fail_msg("'%s' is not in: %s", words, rig->err.message);
}

static void test_publish_whose_answer_is_lost(void **state)
{
	struct bucket_rig *rig = probed((struct bucket_rig){0});

	(void)state;
	bucket_rig_faults(rig, "{'do':'drop_reply','operation':'PutObject','times':1}");
	assert_int_equal(bucket_rig_publish(rig, "mine", "mine"), 0);
	assert_true(bucket_rig_holds(rig, "mine", "mine", 4));
	bucket_rig_faults(rig, "{'do':'drop_reply','operation':'PutObject','times':1}");
	assert_int_equal(bucket_rig_publish(rig, "mine", "another"), -EEXIST);
	assert_true(bucket_rig_holds(rig, "mine", "mine", 4));
	/* Who words nothing is told the same. */
	ckpt_store_op_init(&rig->op, NULL, NULL);
	bucket_rig_faults(rig, "{'do':'drop_reply','operation':'PutObject','times':1}");
	ckpt_store_publish(rig->store, &rig->op, "nobody", "x", 1, NULL);
	bucket_rig_until(rig, &rig->op.done);
	assert_int_equal(rig->op.result, 0);
	/* One that lands when all is over changes nothing. */
	bucket_rig_faults(rig, "{'do':'late','operation':'PutObject','times':1,'delay_ms':9000}");
	assert_int_equal(bucket_rig_publish(rig, "late", "1"), 0);
	bucket_rig_settle(rig);
	assert_true(bucket_rig_holds(rig, "late", "1", 1));
	bucket_rig_free(rig);
}

/* Another's is longer than any answer that is waited for. */
static void test_another_has_published_more(void **state)
{
	struct bucket_rig *rig = probed((struct bucket_rig){0});
	char *large = need(100001);

	(void)state;
	memset(large, 'x', 100000);
	assert_int_equal(bucket_rig_publish(rig, "theirs", large), 0);
	bucket_rig_faults(rig, "{'do':'drop','operation':'PutObject','times':1}");
	assert_int_equal(bucket_rig_publish(rig, "theirs", "mine"), -EEXIST);
	rig->op.quiet = true;
	bucket_rig_faults(rig, "{'do':'drop','operation':'PutObject','times':1}");
	assert_int_equal(bucket_rig_publish(rig, "theirs", "mine"), -EEXIST);
	free(large);
	bucket_rig_free(rig);
}

static void test_servers_without_conditions(void **state)
{
	static const enum s3_conditions kinds[] = {S3_CONDITIONS_REFUSED, S3_CONDITIONS_IGNORED};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){0});
		buckets_capabilities(rig->front.buckets)->put = kinds[i];
		ckpt_store_op_init(&rig->op, NULL, NULL);
		ckpt_store_publish(rig->store, &rig->op, "a", "1", 1, NULL);
		bucket_rig_until(rig, &rig->op.done);
		assert_int_equal(rig->op.result, 0);
		assert_true(bucket_rig_logged(rig, "ignores If-None-Match"));
		assert_int_equal(bucket_rig_publish(rig, "a", "2"), -EEXIST);
		assert_true(bucket_rig_holds(rig, "a", "1", 1));
		assert_false(bucket_rig_logged(rig, "ignores If-None-Match"));
		/* Nothing of what was tried is left. */
		assert_int_equal(bucket_rig_list(rig, "."), 0);
		assert_int_equal(rig->op.listing.count, 1);
		ckpt_free(rig->op.listing.names);
		bucket_rig_free(rig);
	}
}

/* Each of these is overcome, and leaves the object, whole, and these uploads. */
static void assert_overcome(const char *const *rules, const size_t *uploads, size_t count)
{
	char *data = bucket_rig_bytes(SIZE);

	for (size_t i = 0; i < count; i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){0});
		bucket_rig_faults(rig, rules[i]);
		assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), 0);
		bucket_rig_settle(rig);
		assert_true(bucket_rig_holds(rig, "s", data, SIZE));
		assert_int_equal(bucket_rig_uploads(rig), uploads[i]);
		/* All that is held is the object. */
		assert_int_equal(buckets_held(rig->front.buckets), SIZE);
		bucket_rig_free(rig);
	}
	free(data);
}

static void test_complete(void **state)
{
	static const char *const rules[] = {
		"{'do':'drop_reply','operation':'CompleteMultipartUpload','times':1}",
		"{'do':'error_in_ok','operation':'CompleteMultipartUpload','times':1}",
		"{'do':'drop','operation':'UploadPart','times':3}",
		"{'do':'answer','status':500,'operation':'UploadPart','times':2,'applied':true}",
	};
	static const size_t uploads[COUNT(rules)] = {0};
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	assert_overcome(rules, uploads, COUNT(rules));
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	bucket_rig_faults(rig, "{'do':'error_in_ok','operation':'CompleteMultipartUpload'}");
	assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), CKPT_ENETWORK);
	assert_null(bucket_rig_there(rig, "s"));
	assert_int_equal(bucket_rig_uploads(rig), 0);
	bucket_rig_free(rig);
	free(data);
}

/*
 * A POST may be sent again, by us or by libcurl on a connection that was kept too long, and so be done twice. What that
 * leaves is an upload without a part, which nobody pays for; the shard is made once.
 */
static void test_posts_that_are_done_twice(void **state)
{
	static const char *const rules[] = {
		"{'do':'drop_reply','operation':'CreateMultipartUpload','times':1}",
		"{'do':'twice','operation':'CreateMultipartUpload','times':1,'delay_ms':100}",
		"{'do':'twice','operation':'CompleteMultipartUpload','times':1,'delay_ms':100}",
	};
	static const size_t uploads[] = {1, 1, 0};

	(void)state;
	assert_overcome(rules, uploads, COUNT(rules));
}

/* The answer is damaged behind the upload's id. */
static void test_create_that_fails(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = 7};

	(void)state;
	bucket_rig_faults(rig, "{'do':'truncate','bytes':235,'operation':'CreateMultipartUpload'}");
	rig->http.whole = true;
	assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), CKPT_EFORMAT);
	assert_int_equal(object.fd, -1);
	assert_int_equal(bucket_rig_uploads(rig), 0);
	object.fd = 7;
	bucket_rig_faults(rig, "{'do':'answer','status':403,'code':'AccessDenied'}");
	assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), CKPT_EAUTH);
	assert_int_equal(object.fd, -1);
	object.fd = 7;
	assert_int_equal(bucket_rig_open_file(rig, "s", &object), CKPT_EAUTH);
	assert_int_equal(object.fd, -1);
	bucket_rig_free(rig);
}

/* What stays is said, and by its reason. */
static void test_an_upload_that_stays(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = -1};

	(void)state;
	assert_int_equal(bucket_rig_create(rig, "s", SIZE, &object), 0);
	bucket_rig_faults(rig, "{'do':'answer','status':403,'code':'AccessDenied'}");
	assert_int_equal(bucket_rig_abandon(rig, &object), 0);
	assert_int_equal(bucket_rig_uploads(rig), 1);
	assert_true(
		bucket_rig_logged(rig, "cannot abort the unfinished upload of s in the bucket"));
	bucket_rig_free(rig);
}

static void test_a_server_that_fails(void **state)
{
	struct bucket_rig *rig = probed((struct bucket_rig){.attempts = 4});

	(void)state;
	bucket_rig_faults(rig, "{'do':'answer','status':503,'code':'SlowDown','retry_after_s':7,"
			       "'times':1}");
	uint64_t before = rig->now_ns;
	assert_int_equal(bucket_rig_get(rig, "first"), 0);
	ckpt_free(rig->op.data);
	assert_true(rig->now_ns - before >= 7 * S_NS && rig->now_ns - before < 9 * S_NS);
	/* Half as many at once when it was asked too often, and one more after a good second. */
	assert_int_equal(rig->http.limit, 5);
	rig->http.requests = 0;
	bucket_rig_faults(rig, "{'do':'answer','status':500,'code':'InternalError'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENETWORK);
	assert_int_equal(rig->http.requests, 4);
	assert_int_equal(rig->err.http_status, 500);
	check_words(rig, "500 InternalError");
	check_words(rig, "[request MADEUP]");
	check_words(rig, "tried 4 times");
	rig->http.requests = 0;
	bucket_rig_faults(rig, "{'do':'answer','status':403,'code':'AccessDenied'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_EAUTH);
	bucket_rig_faults(rig, "{'do':'answer','status':404,'code':'NoSuchBucket'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENOSTORE);
	assert_int_equal(rig->http.requests, 2);
	bucket_rig_free(rig);
}

/* For whoever has nobody that tries again: as long as a call may take, if it has been there, and no longer. */
static void test_a_server_that_is_away(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});

	(void)state;
	rig->client.patient = true;
	bucket_rig_faults(rig, "{'do':'drop'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENETWORK);
	assert_int_equal(rig->http.requests, CKPT_S3_ATTEMPTS);
	bucket_rig_faults(rig, "");
	assert_int_equal(bucket_rig_publish(rig, "first", "text"), 0);
	rig->http.requests = 0;
	bucket_rig_faults(rig, "{'do':'drop','times':14}");
	assert_int_equal(bucket_rig_get(rig, "first"), 0);
	ckpt_free(rig->op.data);
	assert_int_equal(rig->http.requests, 15);
	/* While it starts again it answers, and these are not the last of many tries. */
	bucket_rig_faults(rig, "{'do':'drop','times':14},"
			       "{'do':'answer','status':500,'code':'InternalError','times':3}");
	assert_int_equal(bucket_rig_get(rig, "first"), 0);
	ckpt_free(rig->op.data);
	uint64_t before = rig->now_ns;
	bucket_rig_faults(rig, "{'do':'drop'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENETWORK);
	assert_true(rig->now_ns - before > CKPT_S3_CALL_MS * 1000000 / 2);
	assert_true(rig->now_ns - before < CKPT_S3_CALL_MS * 1000000 * 2);
	/* What it says is no absence, and somebody may have said how often. */
	rig->http.requests = 0;
	bucket_rig_faults(rig, "{'do':'answer','status':500,'code':'InternalError'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENETWORK);
	assert_int_equal(rig->http.requests, CKPT_S3_ATTEMPTS);
	rig->http.requests = 0;
	rig->client.attempts = 3;
	bucket_rig_faults(rig, "{'do':'drop'}");
	assert_int_equal(bucket_rig_get(rig, "first"), CKPT_ENETWORK);
	assert_int_equal(rig->http.requests, 3);
	bucket_rig_free(rig);
}

/* By each verb first: a HEAD has no words of the server. */
static void test_clock_and_region(void **state)
{
	static const struct bucket_rig kinds[] = {
		{.behind_s = 3600}, {.behind_s = -3600}, {.region = "eu-north-1"}};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++)
		for (int head = 0; head < 2; head++) {
			struct bucket_rig *rig = fresh(kinds[i]);
			struct ckpt_object object = {.fd = -1};
			rig->op.quiet = true;
			if (head)
				assert_int_equal(bucket_rig_open_file(rig, "x", &object), -ENOENT);
			else
				assert_int_equal(bucket_rig_get(rig, "x"), -ENOENT);
			assert_int_equal(rig->http.requests, 2);
			assert_int_equal(bucket_rig_get(rig, "x"), -ENOENT);
			assert_int_equal(rig->http.requests, 3);
			bucket_rig_free(rig);
		}
}

/* Keys expire by the clock of who looks at them: ours is an hour behind. */
static void test_keys_expire_by_the_servers_clock(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){.behind_s = 3600, .fetched_keys = true});

	(void)state;
	/* Half an hour from now. */
	rig->http.keys = "{\"AccessKeyId\":\"AKIDSHORT\",\"SecretAccessKey\":\"" BUCKET_RIG_SECRET
			 "\",\"Token\":\"token\",\"Expiration\":\"2026-11-18T11:36:40Z\"}";
	guard_add(&rig->guard, "AKIDSHORT", BUCKET_RIG_SECRET, "token", 0);
	rig->op.quiet = true;
	assert_int_equal(bucket_rig_get(rig, "x"), -ENOENT);
	assert_int_equal(rig->http.asked_keys, 1);
	rig->now_ns += 20 * 60 * S_NS;
	bucket_http_run(&rig->http, rig->now_ns);
	assert_int_equal(bucket_rig_get(rig, "x"), -ENOENT);
	assert_true(rig->http.asked_keys > 1);
	bucket_rig_free(rig);
}

#define KEYS(access)                                                                               \
	"{\"AccessKeyId\":\"" access "\",\"SecretAccessKey\":\"" BUCKET_RIG_SECRET                 \
	"\",\"Token\":\"token\",\"Expiration\":\"2036-11-18T11:36:40Z\"}"

/* Whoever gives keys has others as soon as the server refuses these. */
static void renew_keys(void *user, const struct s3_request *asked, struct s3_reply *reply)
{
	struct bucket_rig *rig = user;

	(void)asked;
	if (reply->status == 400)
		rig->http.keys = KEYS("AKIDSECOND");
}

static int do_get(struct bucket_rig *rig)
{
	int r = bucket_rig_get(rig, "small");

	ckpt_free(rig->op.data);
	return r;
}

static int do_open_and_read(struct bucket_rig *rig)
{
	struct ckpt_object object = {.fd = -1};
	char got[100];
	int r = bucket_rig_open_file(rig, "s", &object);

	if (r < 0)
		return r;
	r = bucket_rig_read(rig, &object, got, sizeof(got), 100);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	return r;
}

static int do_list(struct bucket_rig *rig)
{
	int r = bucket_rig_list(rig, ".");

	ckpt_free(rig->op.listing.names);
	return r;
}

static int do_publish(struct bucket_rig *rig)
{
	return bucket_rig_publish(rig, "new", "x");
}

static int do_shard(struct bucket_rig *rig)
{
	char *data = bucket_rig_bytes(SIZE);
	int r = bucket_rig_shard(rig, "t", data, SIZE);

	free(data);
	return r;
}

/*
 * The server's word that keys have expired counts, whatever was told when they were got: others are fetched, once, and
 * what was asked is asked again. To a HEAD it has no word.
 */
static void test_expired_tokens(void **state)
{
	static int (*const verbs[])(struct bucket_rig *) = {
		do_get, do_open_and_read, do_list, do_publish, do_shard};
	char *data = bucket_rig_bytes(SIZE);

	(void)state;
	for (size_t i = 0; i < 2 * COUNT(verbs); i++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.fetched_keys = true});
		bool others = i < COUNT(verbs);
		rig->http.keys = KEYS("AKIDFIRST");
		/* In a minute. */
		guard_add(&rig->guard, "AKIDFIRST", BUCKET_RIG_SECRET, "token",
			rig->http.unix_ns / S_NS + 60);
		guard_add(&rig->guard, "AKIDSECOND", BUCKET_RIG_SECRET, "token", 0);
		assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), 0);
		assert_int_equal(bucket_rig_publish(rig, "small", "x"), 0);
		rig->now_ns += 61 * S_NS;
		bucket_http_run(&rig->http, rig->now_ns);
		rig->http.user = rig;
		rig->http.answered = others ? renew_keys : NULL;
		unsigned asked = rig->http.asked_keys;
		int r = verbs[i % COUNT(verbs)](rig);
		if (others) {
			assert_int_equal(r, 0);
			assert_int_equal(rig->http.asked_keys, asked + 1);
		} else {
			/* The same again are no better. */
			assert_int_equal(r, CKPT_EAUTH);
		}
		bucket_rig_settle(rig);
		bucket_rig_free(rig);
	}
	free(data);
}

/* What is on the way to a server has words of its own. */
static void drop_words(void *user, const struct s3_request *asked, struct s3_reply *reply)
{
	(void)user;
	(void)asked;
	if (reply->status >= 300)
		rope_clear(&reply->body);
}

/*
 * A try that nobody has answered may be carried out long after the next one has succeeded. What was refused, or never
 * sent, is not.
 */
static void test_deletions_that_may_be_under_way(void **state)
{
	static const struct {
		const char *rules;
		bool wordless;
		bool uncertain;
		int result;
	} cases[] = {
		{"", false, false, 0},
		{"{'do':'refuse','times':1}", false, false, 0},
		{"{'do':'answer','status':503,'code':'SlowDown','times':1}", false, false, 0},
		{"{'do':'answer','status':403,'code':'AccessDenied'}", false, false, CKPT_EAUTH},
		{"{'do':'answer','status':503,'times':1}", true, true, 0},
		{"{'do':'answer','status':500,'code':'InternalError','times':1}", false, true, 0},
		{"{'do':'answer','status':502,'times':1}", true, true, 0},
		{"{'do':'answer','status':504,'times':1}", true, true, 0},
		{"{'do':'drop_reply','times':1}", false, true, 0},
		{"{'do':'stall','times':1}", false, true, 0},
		{"{'do':'late','times':1,'delay_ms':100000}", false, true, 0},
		{"{'do':'late','times':1},{'do':'answer','status':503,'code':'SlowDown','times':1}",
			false, true, 0},
		/* By whoever speaks HTTP, and not by us. */
		{"{'do':'twice','times':1,'delay_ms':100000}", false, true, 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bucket_rig *rig = probed((struct bucket_rig){0});

		rig->http.answered = cases[i].wordless ? drop_words : NULL;
		bucket_rig_faults(rig, cases[i].rules);
		assert_int_equal(bucket_rig_remove(rig, "first"), cases[i].result);
		if (rig->op.uncertain != cases[i].uncertain)
			fail_msg("%s: uncertain is %d", cases[i].rules, rig->op.uncertain);
		/* Of the next one nothing is under way. */
		bucket_rig_faults(rig, "");
		assert_int_equal(bucket_rig_remove(rig, "first"), 0);
		assert_false(rig->op.uncertain);
		bucket_rig_free(rig);
	}
}

/* How it comes that a request would leave much later than it was asked for. */
struct pause {
	const char *rules;
	bool keys;      /* they are waited for */
	bool suspended; /* the machine was, else the process stood still */
};

/* Asked for while what it goes by is new; then time goes by. */
static void stand_still(const struct pause *pause, bool removes)
{
	struct bucket_rig like = {.fetched_keys = pause->keys};
	struct bucket_rig *rig = pause->keys ? fresh(like) : probed(like);
	struct ckpt_store_op *op = bucket_rig_op(rig);

	rig->http.keys = KEYS("AKIDFIRST");
	guard_add(&rig->guard, "AKIDFIRST", BUCKET_RIG_SECRET, "token", 0);
	bucket_rig_faults(rig, pause->rules);
	op->not_after_ns = ckpt_env_age(&rig->env) + 360 * S_NS;
	if (removes)
		ckpt_store_remove(rig->store, op, "first");
	else
		ckpt_store_publish(rig->store, op, "second", "x", 1, NULL);
	bucket_rig_now(rig);
	while (!pause->keys && rig->http.under_way > 0)
		assert_true(bucket_rig_step(rig));
	unsigned before = rig->http.requests;
	if (pause->suspended)
		rig->suspended_ns = 2000 * S_NS;
	else
		rig->now_ns += 2000 * S_NS;
	bucket_http_run(&rig->http, rig->now_ns);
	assert_int_equal(bucket_rig_wait(rig), -ETIMEDOUT);
	check_words(rig, "it was not sent within its time limit");
	assert_int_equal(rig->http.requests, before);
	bucket_rig_settle(rig);
	assert_int_equal(bucket_rig_holds(rig, "first", "x", 1), !pause->keys);
	assert_null(bucket_rig_there(rig, "second"));
	/* What goes by nothing is asked for. */
	bucket_rig_faults(rig, "");
	assert_int_equal(bucket_rig_publish(rig, "second", "x"), 0);
	bucket_rig_free(rig);
}

static void test_nothing_is_asked_too_late(void **state)
{
	static const char slow[] =
		"{'do':'answer','status':503,'code':'SlowDown','retry_after_s':100,'times':1}";
	static const struct pause pauses[] = {
		{slow, false, false}, {slow, false, true}, {"", true, false}, {"", true, true}};

	(void)state;
	for (size_t i = 0; i < COUNT(pauses); i++) {
		stand_still(&pauses[i], true);
		stand_still(&pauses[i], false);
	}
}

/* A try that would be too late is not waited for. */
static void test_no_wait_for_what_is_too_late(void **state)
{
	struct bucket_rig *rig = probed((struct bucket_rig){0});
	struct ckpt_store_op *op = bucket_rig_op(rig);

	(void)state;
	bucket_rig_faults(rig, "{'do':'answer','status':503,'code':'SlowDown','retry_after_s':7}");
	op->not_after_ns = ckpt_env_age(&rig->env) + 20 * S_NS;
	uint64_t before_ns = rig->now_ns;
	ckpt_store_remove(rig->store, op, "first");
	assert_int_equal(bucket_rig_wait(rig), CKPT_ENETWORK);
	check_words(rig, "503 SlowDown");
	assert_int_equal(rig->http.requests, 3);
	assert_true(rig->now_ns < before_ns + 20 * S_NS);
	bucket_rig_free(rig);
}

static void drop_range(void *user, struct s3_request *asked)
{
	(void)user;
	for (size_t i = 0; i < asked->headers.count; i++)
		if (strcmp(asked->headers.at[i].name, "range") == 0)
			asked->headers.at[i].name[0] = 'R';
}

static void other_range(void *user, struct s3_request *asked)
{
	(void)user;
	for (size_t i = 0; i < asked->headers.count; i++)
		if (strcmp(asked->headers.at[i].name, "range") == 0)
			asked->headers.at[i].value[6]++;
}

static void test_reads(void **state)
{
	struct bucket_rig *rig = fresh((struct bucket_rig){0});
	struct ckpt_object object = {.fd = -1};
	char *data = bucket_rig_bytes(SIZE);
	char *got = need(SIZE);

	(void)state;
	assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), 0);
	assert_int_equal(bucket_rig_open_file(rig, "s", &object), 0);
	bucket_rig_faults(rig, "{'do':'truncate','bytes':10,'times':2}");
	assert_int_equal(bucket_rig_read(rig, &object, got, 100, 100), 0);
	assert_memory_equal(got, data + 100, 100);
	/* What it changes is signed, but not every server looks. */
	guard_clear(&rig->guard);
	rig->http.proxy = drop_range;
	assert_int_equal(bucket_rig_read(rig, &object, got, 100, 100), CKPT_ENETWORK);
	check_words(rig, "another range");
	rig->http.proxy = other_range;
	assert_int_equal(bucket_rig_read(rig, &object, got, 100, 100), CKPT_ENETWORK);
	rig->http.proxy = NULL;
	/* Another's now. */
	data[0]++;
	assert_int_equal(bucket_rig_shard(rig, "s", data, SIZE), 0);
	assert_int_equal(bucket_rig_read(rig, &object, got, 100, 100), -EBUSY);
	assert_int_equal(bucket_rig_shut(rig, &object), 0);
	free(got);
	free(data);
	bucket_rig_free(rig);
}

static void test_stop(void **state)
{
	(void)state;
	for (int kind = 0; kind < 3; kind++) {
		struct bucket_rig *rig = fresh((struct bucket_rig){.fetched_keys = kind == 2});
		struct ckpt_store_op ops[5];
		if (kind == 1)
			bucket_rig_faults(rig, "{'do':'answer','status':503,'retry_after_s':100}");
		for (size_t i = 0; i < COUNT(ops); i++) {
			ckpt_store_op_init(&ops[i], NULL, NULL);
			ckpt_store_get(rig->store, &ops[i], "x", 100);
		}
		bucket_rig_now(rig);
		if (kind == 1) {
			bucket_http_run(&rig->http, rig->now_ns + S_NS);
			bucket_rig_now(rig);
		}
		assert_false(ckpt_s3_client_idle(&rig->client, NULL));
		uint64_t before = rig->now_ns;
		ckpt_s3_client_stop(&rig->client);
		for (size_t i = 0; i < COUNT(ops); i++) {
			bucket_rig_until(rig, &ops[i].done);
			assert_int_equal(ops[i].result, -ECANCELED);
		}
		assert_true(rig->now_ns - before <= 2 * S_NS);
		assert_true(ckpt_s3_client_idle(&rig->client, NULL));
		assert_int_equal(bucket_rig_get(rig, "x"), -ECANCELED);
		bucket_rig_free(rig);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_publish_whose_answer_is_lost),
		cmocka_unit_test(test_another_has_published_more),
		cmocka_unit_test(test_servers_without_conditions),
		cmocka_unit_test(test_complete),
		cmocka_unit_test(test_posts_that_are_done_twice),
		cmocka_unit_test(test_deletions_that_may_be_under_way),
		cmocka_unit_test(test_nothing_is_asked_too_late),
		cmocka_unit_test(test_no_wait_for_what_is_too_late),
		cmocka_unit_test(test_create_that_fails),
		cmocka_unit_test(test_an_upload_that_stays),
		cmocka_unit_test(test_a_server_that_fails),
		cmocka_unit_test(test_a_server_that_is_away),
		cmocka_unit_test(test_clock_and_region),
		cmocka_unit_test(test_keys_expire_by_the_servers_clock),
		cmocka_unit_test(test_expired_tokens),
		cmocka_unit_test(test_reads),
		cmocka_unit_test(test_stop),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
