/* SPDX-License-Identifier: Apache-2.0 */
/* What a server refuses, a user reads with its reason, its number and what to do. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "s3/error_text.h"

static const struct ckpt_s3_asked asked = {.doing = "write",
	.bucket = "models",
	.key = "run42/ckpt.json",
	.region = "us-east-1",
	.tries = 1};

static int refused(int status, const char *code, struct ckpt_error *err)
{
	struct ckpt_s3_error_reply reply = {
		.message = "Because.", .request_id = "4442587FB7D0A2F9"};

	memset(err, 0, sizeof(*err));
	memcpy(reply.code, code, strlen(code) + 1);
	return ckpt_s3_refused(err, &asked, status, &reply);
}

/* Of what names it in no body: a HEAD, a proxy. */
static void test_request_of_a_header(void **state)
{
	static const struct {
		const char *header;
		const char *body;
		const char *shown; /* NULL: nothing */
	} cases[] = {
		{"tx00-a1:9", "", " [request tx00-a1:9]"},
		{"tx00-a1:9", "4442587FB7D0A2F9", " [request 4442587FB7D0A2F9]"},
		{NULL, "", NULL},
		{"", "", NULL},
		{"a b", "", NULL},
		{"\033[31m", "", NULL},
		{"\xc3\xa4", "", NULL},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_s3_error_reply reply = {.code = ""};
		struct ckpt_s3_asked with = asked;
		struct ckpt_error err = {.code = 0};

		with.request_id = cases[i].header;
		memcpy(reply.request_id, cases[i].body, strlen(cases[i].body) + 1);
		assert_int_equal(ckpt_s3_refused(&err, &with, 403, &reply), CKPT_EAUTH);
		if (cases[i].shown)
			assert_non_null(strstr(err.message, cases[i].shown));
		else
			assert_null(strstr(err.message, "[request"));
	}
}

static void test_codes(void **state)
{
	static const struct {
		int status;
		const char *code;
		int result;
		const char *word; /* of the advice */
	} cases[] = {
		{403, "AccessDenied", CKPT_EAUTH, "allow these keys"},
		{403, "SignatureDoesNotMatch", CKPT_EAUTH, "secret access key"},
		{403, "InvalidAccessKeyId", CKPT_EAUTH, "access key id"},
		{400, "ExpiredToken", CKPT_EAUTH, "expired"},
		{400, "InvalidToken", CKPT_EAUTH, "session token"},
		{403, "RequestTimeTooSkewed", CKPT_EAUTH, "clock"},
		{401, "", CKPT_EAUTH, "keys"},
		{403, "", CKPT_EAUTH, "keys"},
		{403, "NewKindOfDenial", CKPT_EAUTH, "keys"},
		{404, "NoSuchKey", -ENOENT, ""},
		{404, "", -ENOENT, ""},
		{404, "NoSuchBucket", CKPT_ENOSTORE, "bucket's name"},
		{404, "NoSuchUpload", -ESTALE, "sent again"},
		{301, "PermanentRedirect", CKPT_ENOSTORE, "region"},
		{400, "AuthorizationHeaderMalformed", CKPT_ENOSTORE, "region"},
		{403, "QuotaExceeded", -ENOSPC, "quota"},
		{507, "", -ENOSPC, "full"},
		{400, "EntityTooLarge", -EFBIG, ""},
		{400, "KeyTooLongError", -ENAMETOOLONG, "shorter"},
		{400, "BadDigest", CKPT_EINTEGRITY, "on their way"},
		{403, "InvalidObjectState", CKPT_EUNSUPPORTED, "archived"},
		{409, "OperationAborted", -EBUSY, ""},
		{412, "PreconditionFailed", -EEXIST, ""},
		{416, "InvalidRange", -ERANGE, ""},
		{501, "NotImplemented", CKPT_EUNSUPPORTED, "does not support that"},
		{405, "MethodNotAllowed", CKPT_EUNSUPPORTED, "endpoint"},
		{500, "InternalError", CKPT_ENETWORK, ""},
		{503, "SlowDown", CKPT_ENETWORK, "too many requests"},
		{200, "InternalError", CKPT_ENETWORK, ""},
		{400, "SomethingElse", CKPT_ENETWORK, ""},
		{302, "", CKPT_ENETWORK, ""},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_error err;
		int r = refused(cases[i].status, cases[i].code, &err);

		if (r != cases[i].result || !strstr(err.message, cases[i].word))
			fail_msg("%d %s: %d: %s", cases[i].status, cases[i].code, r, err.message);
		assert_int_equal(err.code, r);
		assert_int_equal(err.http_status, cases[i].status);
		assert_string_equal(err.tier, "remote");
		assert_string_equal(err.file, "run42/ckpt.json");
		assert_non_null(strstr(err.message, "s3://models/run42/ckpt.json"));
		assert_non_null(strstr(err.message, cases[i].code));
		assert_non_null(strstr(err.message, "(Because.)"));
		assert_non_null(strstr(err.message, "4442587FB7D0A2F9"));
	}
}

static void test_sentences(void **state)
{
	struct ckpt_s3_asked bucket = asked;
	struct ckpt_s3_error_reply reply = {.code = "PermanentRedirect", .region = "eu-west-1"};
	struct ckpt_error err = {0};

	(void)state;
	bucket.key = "";
	bucket.doing = "list";
	bucket.tries = 10;
	assert_int_equal(ckpt_s3_refused(&err, &bucket, 301, &reply), CKPT_ENOSTORE);
	assert_string_equal(err.message,
		"cannot list s3://models (tried 10 times): the server "
		"answers 301 PermanentRedirect; the bucket is in region "
		"eu-west-1, and the request went to us-east-1; set the bucket's "
		"region or endpoint");
	memset(&err, 0, sizeof(err));
	assert_int_equal(ckpt_s3_refused(&err, &bucket, 404, NULL), -ENOENT);
	assert_string_equal(
		err.message, "cannot list s3://models (tried 10 times): the server answers 404");
	/* The first failure stays. */
	assert_int_equal(ckpt_s3_refused(&err, &asked, 403, NULL), CKPT_EAUTH);
	assert_true(err.code == -ENOENT && err.http_status == 404);
	assert_int_equal(ckpt_s3_refused(NULL, &asked, 403, NULL), CKPT_EAUTH);
	memset(&err, 0, sizeof(err));
	assert_int_equal(ckpt_s3_unanswered(
				 &err, &asked, CKPT_ENETWORK, "connection refused by 127.0.0.1:1"),
		CKPT_ENETWORK);
	assert_string_equal(err.message, "cannot write s3://models/run42/ckpt.json: connection "
					 "refused by 127.0.0.1:1");
	memset(&err, 0, sizeof(err));
	assert_int_equal(ckpt_s3_unanswered(&err, &asked, -ETIMEDOUT, ""), -ETIMEDOUT);
	assert_non_null(strstr(err.message, "ETIMEDOUT"));
	assert_int_equal(err.http_status, 0);
}

/* However long and strange everything is: one line, which says the most important first. */
static void test_long_and_strange(void **state)
{
	struct ckpt_s3_asked strange = asked;
	struct ckpt_s3_error_reply reply;
	struct ckpt_error err = {0};
	char key[1025];

	(void)state;
	memset(&reply, '%', sizeof(reply));
	reply.code[sizeof(reply.code) - 1] = 0;
	reply.message[sizeof(reply.message) - 1] = 0;
	reply.region[sizeof(reply.region) - 1] = 0;
	reply.endpoint[sizeof(reply.endpoint) - 1] = 0;
	reply.request_id[sizeof(reply.request_id) - 1] = 0;
	memset(key, 'k', sizeof(key) - 1);
	key[0] = '\n';
	key[sizeof(key) - 1] = 0;
	strange.key = key;
	assert_int_equal(ckpt_s3_refused(&err, &strange, 403, &reply), CKPT_EAUTH);
	assert_true(ckpt_utf8_is_line(err.message));
	assert_memory_equal(err.message, "cannot write s3://models/", 25);
	assert_non_null(strstr(err.message, "...: the server answers 403 %%%%"));
}

static bool fail_all(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void test_no_memory(void **state)
{
	struct ckpt_error err = {0};
	int r;

	(void)state;
	ckpt_alloc_set_hook(fail_all, NULL);
	r = ckpt_s3_refused(&err, &asked, 404, NULL);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, -ENOENT);
	assert_string_equal(err.message, ckpt_code_text(-ENOENT));
	assert_int_equal(err.http_status, 404);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_request_of_a_header),
		cmocka_unit_test(test_codes),
		cmocka_unit_test(test_sentences),
		cmocka_unit_test(test_long_and_strange),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
