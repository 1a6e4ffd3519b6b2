/* SPDX-License-Identifier: Apache-2.0 */
/* Multipart uploads: nothing is there before a Complete, and exactly what it names after it. */
#include "s3/asking.h"

#include <stdio.h>

static char id[64];

static void create(struct buckets *buckets, const char *header, const char *value)
{
	struct s3_request req;
	struct s3_reply reply;

	asked(&req, "POST", "/bkt/k?uploads", NULL, 0, header, value, NULL);
	assert_int_equal(ask_for(buckets, &req, &reply), 200);
	char *xml = body_of(&reply);
	(void)snprintf(id, sizeof(id), "%s", element(xml, "UploadId"));
	free(xml);
	s3_reply_clear(&reply);
}

static int part(struct buckets *buckets, unsigned number, const char *body, char etag[64])
{
	struct s3_request req;
	struct s3_reply reply;
	char target[128];

	(void)snprintf(target, sizeof(target), "/bkt/k?partNumber=%u&uploadId=%s", number, id);
	asked(&req, "PUT", target, body, strlen(body), NULL);
	int status = ask_for(buckets, &req, &reply);
	const char *tag = pairs_get(&reply.headers, "etag");
	(void)snprintf(etag, 64, "%s", tag ? tag : "");
	s3_reply_clear(&reply);
	return status;
}

static int complete(struct buckets *buckets, size_t count, const unsigned *numbers,
	char etags[][64], struct s3_reply *reply)
{
	struct text xml = {0};
	struct s3_request req;
	char target[128];

	text_add(&xml, "<CompleteMultipartUpload>");
	for (size_t i = 0; i < count; i++)
		text_addf(&xml, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>",
			numbers[i], etags[i]);
	text_add(&xml, "</CompleteMultipartUpload>");
	(void)snprintf(target, sizeof(target), "/bkt/k?uploadId=%s", id);
	asked(&req, "POST", target, xml.at, xml.length, "if-none-match", "*", NULL);
	text_clear(&xml);
	return ask_for(buckets, &req, reply);
}

static void test_all_of_it(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){.memory_limit = 1000});
	const unsigned numbers[] = {1, 7};
	char etags[2][64];
	struct s3_reply reply;

	(void)state;
	buckets_capabilities(buckets)->part_minimum = 3;
	create(buckets, NULL, NULL);
	assert_int_equal(part(buckets, 1, "wrong", etags[0]), 200);
	assert_int_equal(part(buckets, 7, "end", etags[1]), 200);
	assert_int_equal(part(buckets, 1, "begin", etags[0]), 200);
	assert_int_equal(part(buckets, 9, "left out", (char[64]){0}), 200);
	assert_null(buckets_content(buckets, "bkt", "k"));
	assert_int_equal(complete(buckets, 2, numbers, etags, &reply), 200);
	char *first = body_of(&reply);
	s3_reply_clear(&reply);
	char room[16] = "";
	assert_int_equal(rope_read(buckets_content(buckets, "bkt", "k"), 0, room, 15), 8);
	assert_string_equal(room, "beginend");
	assert_int_equal(buckets_held(buckets), 8);
	assert_int_equal(buckets_uploads(buckets, "bkt"), 0);
	/* A Complete whose answer was lost is asked again: it is not told that the object is there. */
	assert_int_equal(complete(buckets, 2, numbers, etags, &reply), 200);
	char *second = body_of(&reply);
	s3_reply_clear(&reply);
	assert_string_equal(first, second);
	free(first);
	free(second);
	create(buckets, NULL, NULL);
	assert_int_equal(part(buckets, 1, "other", etags[0]), 200);
	assert_int_equal(complete(buckets, 1, numbers, etags, &reply), 412);
	s3_reply_clear(&reply);
	buckets_capabilities(buckets)->complete = S3_CONDITIONS_IGNORED;
	assert_int_equal(complete(buckets, 1, numbers, etags, &reply), 200);
	s3_reply_clear(&reply);
	assert_int_equal(buckets_content(buckets, "bkt", "k")->length, 5);
	buckets_free(buckets);
}

static void test_what_is_refused_leaves_the_upload(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){0});
	char etags[3][64];
	static const struct {
		const char *code;
		size_t count;
		unsigned numbers[2];
		unsigned tags[2];
	} wrong[] = {
		{"InvalidPart", 1, {1}, {1}},
		{"InvalidPart", 1, {4}, {0}},
		{"InvalidPartOrder", 2, {2, 1}, {1, 0}},
		{"InvalidPartOrder", 2, {1, 1}, {0, 0}},
		{"EntityTooSmall", 2, {1, 2}, {0, 1}},
		{"MalformedXML", 0, {0}, {0}},
	};

	(void)state;
	create(buckets, NULL, NULL);
	for (unsigned n = 0; n < 3; n++)
		assert_int_equal(
			part(buckets, n + 1, (const char *[]){"a", "b", "c"}[n], etags[n]), 200);
	for (size_t i = 0; i < COUNT(wrong); i++) {
		char said[2][64];
		struct s3_reply reply;
		for (size_t k = 0; k < wrong[i].count; k++)
			memcpy(said[k], etags[wrong[i].tags[k]], 64);
		assert_int_equal(
			complete(buckets, wrong[i].count, wrong[i].numbers, said, &reply), 400);
		assert_string_equal(reply.code, wrong[i].code);
		s3_reply_clear(&reply);
		assert_int_equal(buckets_uploads(buckets, "bkt"), 1);
		assert_null(buckets_content(buckets, "bkt", "k"));
	}
	assert_int_equal(part(buckets, 0, "x", etags[0]), 400);
	assert_int_equal(part(buckets, 10001, "x", etags[0]), 400);
	buckets_free(buckets);
}

static void test_abort(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){0});
	struct s3_request req;
	char etag[64], target[128];

	(void)state;
	create(buckets, NULL, NULL);
	assert_int_equal(part(buckets, 1, "x", etag), 200);
	(void)snprintf(target, sizeof(target), "/bkt/k?uploadId=%s", id);
	asked(&req, "DELETE", target, NULL, 0, NULL);
	assert_int_equal(ask(buckets, &req), 204);
	asked(&req, "DELETE", target, NULL, 0, NULL);
	assert_int_equal(ask(buckets, &req), 404);
	assert_int_equal(part(buckets, 1, "x", etag), 404);
	assert_int_equal(buckets_held(buckets), 0);
	buckets_free(buckets);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_of_it),
		cmocka_unit_test(test_what_is_refused_leaves_the_upload),
		cmocka_unit_test(test_abort),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
