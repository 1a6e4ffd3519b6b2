/* SPDX-License-Identifier: Apache-2.0 */
/* Amazon's examples of signed requests are let in, and everything beside them is not. */
#include "s3/asking.h"

#define SCOPE "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
#define EMPTY "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define NOW_S (NOW_NS / 1000000000)
#define HOST  "examplebucket.s3.amazonaws.com"

static struct guard examples(void)
{
	struct guard guard = {.region = need_text("us-east-1")};

	guard_add(&guard, "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", NULL,
		0);
	return guard;
}

static void sign(struct s3_request *req, const char *names, const char *signature)
{
	char words[512];

	(void)snprintf(words, sizeof(words),
		"AWS4-HMAC-SHA256 Credential=%s, SignedHeaders=%s, Signature=%s", SCOPE, names,
		signature);
	pairs_add(&req->headers, "authorization", words);
}

/* Admits it, or gives the code of the refusal; clears the request. */
static const char *verdict(const struct guard *guard, struct s3_request *req, uint64_t now_s)
{
	static char code[48];
	struct s3_reply reply = {0};
	bool good =
		guard_admits(guard, req, now_s, &reply) && guard_admits_body(guard, req, &reply);

	(void)snprintf(code, sizeof(code), "%s", good ? "admitted" : reply.code);
	s3_reply_clear(&reply);
	s3_request_clear(req);
	return code;
}

static void get(struct s3_request *req, const char *target, const char *signature)
{
	asked(req, "GET", target, NULL, 0, "host", HOST, "x-amz-content-sha256", EMPTY,
		"x-amz-date", "20130524T000000Z", NULL);
	sign(req, "host;x-amz-content-sha256;x-amz-date", signature);
}

static void put(struct s3_request *req, const char *body)
{
	asked(req, "PUT", "/test%24file.text", body, strlen(body), "date",
		"Fri, 24 May 2013 00:00:00 GMT", "host", HOST, "x-amz-content-sha256",
		"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072", "x-amz-date",
		"20130524T000000Z", "x-amz-storage-class", "REDUCED_REDUNDANCY", NULL);
	sign(req, "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

#define LIFECYCLE "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
#define LISTING   "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"

static void test_examples(void **state)
{
	struct guard guard = examples();
	struct s3_request req;

	(void)state;
	asked(&req, "GET", "/test.txt", NULL, 0, "host", HOST, "range", "bytes=0-9",
		"x-amz-content-sha256", EMPTY, "x-amz-date", "20130524T000000Z", NULL);
	sign(&req, "host;range;x-amz-content-sha256;x-amz-date",
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
	assert_string_equal(verdict(&guard, &req, NOW_S), "admitted");
	put(&req, "Welcome to Amazon S3.");
	assert_string_equal(verdict(&guard, &req, NOW_S), "admitted");
	get(&req, "/?lifecycle", LIFECYCLE);
	assert_string_equal(verdict(&guard, &req, NOW_S), "admitted");
	get(&req, "/?max-keys=2&prefix=J", LISTING);
	assert_string_equal(verdict(&guard, &req, NOW_S), "admitted");
	guard_clear(&guard);
}

static void test_an_order_of_the_query_is_as_good_as_another(void **state)
{
	struct guard guard = examples();
	struct s3_request req;

	(void)state;
	get(&req, "/?prefix=J&max-keys=2", LISTING);
	assert_string_equal(verdict(&guard, &req, NOW_S), "admitted");
	guard_clear(&guard);
}

static void test_what_is_beside_it_is_refused(void **state)
{
	struct guard guard = examples();
	struct s3_request req;

	(void)state;
	get(&req, "/?max-keys=3&prefix=J", LISTING);
	assert_string_equal(verdict(&guard, &req, NOW_S), "SignatureDoesNotMatch");
	get(&req, "/other?max-keys=2&prefix=J", LISTING);
	assert_string_equal(verdict(&guard, &req, NOW_S), "SignatureDoesNotMatch");
	put(&req, "Welcome to Amazon S4.");
	assert_string_equal(verdict(&guard, &req, NOW_S), "XAmzContentSHA256Mismatch");
	get(&req, "/?lifecycle", LIFECYCLE);
	pairs_add(&req.headers, "x-amz-acl", "public-read");
	assert_string_equal(verdict(&guard, &req, NOW_S), "AccessDenied");
	get(&req, "/?lifecycle", LIFECYCLE);
	assert_string_equal(verdict(&guard, &req, NOW_S + 901), "RequestTimeTooSkewed");
	get(&req, "/?lifecycle", LIFECYCLE);
	assert_string_equal(verdict(&guard, &req, NOW_S - 901), "RequestTimeTooSkewed");
	get(&req, "/?lifecycle", LIFECYCLE);
	assert_string_equal(verdict(&guard, &req, NOW_S + 900), "admitted");
	guard_clear(&guard);
}

static void test_a_header_of_nonsense(void **state)
{
	static const char *const headers[] = {"", "AWS4-HMAC-SHA256", "Basic dXNlcjpwYXNz",
		"AWS4-HMAC-SHA256 Credential=a/b/c, SignedHeaders=host, Signature=0",
		"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=, Signature=0",
		"AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host, Signature=0, More=1"};
	struct guard guard = examples();
	struct s3_request req;

	(void)state;
	for (size_t i = 0; i < COUNT(headers); i++) {
		asked(&req, "GET", "/", NULL, 0, "host", HOST, "authorization", headers[i], NULL);
		assert_string_equal(verdict(&guard, &req, NOW_S), "AuthorizationHeaderMalformed");
	}
	guard_clear(&guard);
}

static void test_sums(void **state)
{
	static const struct {
		enum hash hash;
		const char *sum;
	} checks[] = {
		{HASH_MD5, "25f9e794323b453885f5181f1b624d0b"},
		{HASH_CRC32, "cbf43926"},
		{HASH_CRC32C, "e3069283"},
		{HASH_CRC64NVME, "ae8b14860a799888"},
	};
	uint8_t sum[HASH_MAX];
	char hex[HASH_TEXT_MAX];

	(void)state;
	for (size_t i = 0; i < COUNT(checks); i++) {
		hash_take(checks[i].hash, "123456789", 9, sum);
		hex_put(sum, hash_size(checks[i].hash), hex);
		assert_string_equal(hex, checks[i].sum);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_examples),
		cmocka_unit_test(test_an_order_of_the_query_is_as_good_as_another),
		cmocka_unit_test(test_what_is_beside_it_is_refused),
		cmocka_unit_test(test_a_header_of_nonsense),
		cmocka_unit_test(test_sums),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
