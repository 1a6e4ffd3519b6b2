/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Signatures are those that AWS has published: the examples of S3's documentation and the test suite of
 * Signature Version 4 (its cases of paths that a client normalises are not for S3, which has none). A few
 * more, of what S3 clients have been wrong about, were computed with botocore.
 */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/prng.h"
#include "s3/sign.h"

#define NONE   CKPT_S3_SHA256_NONE
#define ACCESS "AKIDEXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define STS_TOKEN                                                                                  \
	"AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmx" \
	"fpSPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0K" \
	"PkyQDYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZb" \
	"qBAz+scqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
#define UNRESERVED "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define FORM       "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e"

struct vector {
	const char *name;
	const char *method;
	const char *path;
	const char *query;
	struct ckpt_http_header headers[4];
	const char *payload;
	const char *token;
	const char *names; /* that were signed */
	const char *signature;
};

/* Of the service "service", on 2015-08-30 at 12:36:00. */
static const struct vector suite[] = {
	{"header-key-duplicate", "GET", "/", "",
		{{"My-Header1", "value2"}, {"My-Header1", "value2"}, {"My-Header1", "value1"}},
		NONE, NULL, "host;my-header1;x-amz-date",
		"c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
	{"header-value-multiline", "GET", "/", "",
		{{"My-Header1", "value1\n  value2\n     value3"}}, NONE, NULL,
		"host;my-header1;x-amz-date",
		"cfd34249e4b1c8d6b91ef74165d41a32e5fab3306300901bb65a51a73575eefd"},
	{"header-value-order", "GET", "/", "",
		{{"My-Header1", "value4"}, {"My-Header1", "value1"}, {"My-Header1", "value3"},
			{"My-Header1", "value2"}},
		NONE, NULL, "host;my-header1;x-amz-date",
		"08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
	{"header-value-trim", "GET", "/", "",
		{{"My-Header1", " value1"}, {"My-Header2", " \"a   b   c\""}}, NONE, NULL,
		"host;my-header1;my-header2;x-amz-date",
		"acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
	{"relative-relative-unnormalized", "GET", "/example1/example2/../..", "", {{0}}, NONE, NULL,
		"host;x-amz-date",
		"dc33e0856fd4baca4d7aa2146c38958283844764f38c74252a333df5e613003b"},
	{"relative-unnormalized", "GET", "/example/..", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"eca7ead57bb5aa5c8e28007acd4ff04e1ff9a0ff3b237ec1554a184887ff9282"},
	{"slash-dot-slash-unnormalized", "GET", "/./", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"68714168e6557f8f2de0ef956fc24dc2593a4bd2961f8df51898d8a134695145"},
	{"slash-pointless-dot-unnormalized", "GET", "/./example", "", {{0}}, NONE, NULL,
		"host;x-amz-date",
		"beb03f223f7deae4146464f06e29eebbee9c8afbe15c290cf07aa8b119e14cff"},
	{"slash-unnormalized", "GET", "//", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"c88bcd3d312d75078c0cd961d6deae3f4c754924b01669efcfcb439fd5e5b76e"},
	{"slashes-unnormalized", "GET", "//example//", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"87cca117541a147f6df867677d98a7d80dff226d2bfca9e4ffa899665623c7e5"},
	{"space", "GET", "/example%20space/", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
	{"unreserved", "GET", "/" UNRESERVED, "", {{0}}, NONE, NULL, "host;x-amz-date",
		"07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
	{"utf8", "GET", "/%E1%88%B4", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
	{"vanilla", "GET", "/", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
	{"vanilla-empty-query-key", "GET", "/", "Param1=value1", {{0}}, NONE, NULL,
		"host;x-amz-date",
		"a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
	{"vanilla-query-order-encoded", "GET", "/", "Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
		{{0}}, NONE, NULL, "host;x-amz-date",
		"371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac"},
	{"vanilla-query-order-key-case", "GET", "/", "Param2=value2&Param1=value1", {{0}}, NONE,
		NULL, "host;x-amz-date",
		"b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
	{"vanilla-query-unreserved", "GET", "/", UNRESERVED "=" UNRESERVED, {{0}}, NONE, NULL,
		"host;x-amz-date",
		"9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
	{"vanilla-utf8-query", "GET", "/", "\xe1\x88\xb4=bar", {{0}}, NONE, NULL, "host;x-amz-date",
		"2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
	{"vanilla-with-session-token", "GET", "/", "", {{0}}, NONE,
		"6e86291e8372ff2a2260956d9b8aae1d763fbf315fa00fa31553b73ebf194267",
		"host;x-amz-date;x-amz-security-token",
		"07ec1639c89043aa0e3e2de82b96708f198cceab042d4a97044c66dd9f74e7f8"},
	{"post-vanilla", "POST", "/", "", {{0}}, NONE, NULL, "host;x-amz-date",
		"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
	{"post-header-key-sort", "POST", "/", "", {{"My-Header1", "value1"}}, NONE, NULL,
		"host;my-header1;x-amz-date",
		"c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
	{"post-header-value-case", "POST", "/", "", {{"My-Header1", "VALUE1"}}, NONE, NULL,
		"host;my-header1;x-amz-date",
		"cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
	{"post-sts-header-before", "POST", "/", "", {{0}}, NONE, STS_TOKEN,
		"host;x-amz-date;x-amz-security-token",
		"85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead"},
	{"post-vanilla-query", "POST", "/", "Param1=value1", {{0}}, NONE, NULL, "host;x-amz-date",
		"28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
	{"post-x-www-form-urlencoded", "POST", "/", "",
		{{"Content-Type", "application/x-www-form-urlencoded"}, {"Content-Length", "13"},
			{"x-amz-content-sha256", FORM}},
		FORM, NULL, "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
		"d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b"},
	{"post-x-www-form-urlencoded-parameters", "POST", "/", "",
		{{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"},
			{"Content-Length", "13"}, {"x-amz-content-sha256", FORM}},
		FORM, NULL, "content-length;content-type;host;x-amz-content-sha256;x-amz-date",
		"328d1b9eaadca9f5818ef05e8392801e091653bafec24fcab71e7344e7f51422"},
};

/* Of S3's documentation: bucket examplebucket, us-east-1, 2013-05-24. */
static const struct vector documented[] = {
	{"get", "GET", "/test.txt", "", {{"Range", "bytes=0-9"}}, NONE, NULL,
		"host;range;x-amz-content-sha256;x-amz-date",
		"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
	{"put", "PUT", "/test%24file.text", "",
		{{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
			{"Date", "Fri, 24 May 2013 00:00:00 GMT"}},
		"44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072", NULL,
		"date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
		"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
	{"lifecycle", "GET", "/", "lifecycle", {{0}}, NONE, NULL,
		"host;x-amz-content-sha256;x-amz-date",
		"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
	{"list", "GET", "/", "max-keys=2&prefix=J", {{0}}, NONE, NULL,
		"host;x-amz-content-sha256;x-amz-date",
		"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
};

/* With botocore 1.44, eu-central-1, 2026-11-23 18:25:38. The first of the headers is the host. */
static const struct vector others[] = {
	{"valueless", "POST", "/step%3D100/a%2Bb%20c", "uploads",
		{{"host", "b.s3.eu-central-1.amazonaws.com"}}, NONE, NULL,
		"host;x-amz-content-sha256;x-amz-date",
		"e9a56968daf19538c70a99f2e2ce1e533a3a37406b869f9f75dd0d50fd9b6f82"},
	{"part", "PUT", "/bucket/g000001/x.bin", "uploadId=2~a%2fb=&partNumber=7",
		{{"host", "127.0.0.1:9000"}, {"x-amz-checksum-crc32c", "4waSgw=="},
			{"Content-MD5", "kAFQmDzST7DWlj99KOF/cg=="}, {"Expect", "100-continue"}},
		"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		"AQoDYXdzEPT//////////wEXAMPLE==",
		"content-md5;host;x-amz-checksum-crc32c;x-amz-content-sha256;x-amz-date;"
		"x-amz-security-token",
		"10fb73764e1f2260bf5ae425ce77840ce5cdf0ed9c5c4f12ff4efdf5a0694667"},
	{"names", "GET", "/bucket",
		"list-type=2&prefix=a%2Fb%2F&delimiter=%2F&encoding-type=url&max-keys=1000",
		{{"host", "s3.example.com"}, {"x-amz-meta-a-b", "two"}, {"x-amz-meta-a", "one"},
			{"X-Amz-Meta-A1", "  three   spaces  "}},
		NONE, NULL,
		"host;x-amz-content-sha256;x-amz-date;x-amz-meta-a;x-amz-meta-a-b;x-amz-meta-a1",
		"e8e286e1fdb5621fc5005b0d1a0fdeb0bd38bc03df99dd677652946582b45db1"},
	{"conditional", "PUT", "/bucket/manifest.json", "",
		{{"host", "s3.example.com:8443"}, {"If-None-Match", "*"},
			{"Content-Type", "application/json"}},
		"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", "t",
		"content-type;host;if-none-match;x-amz-content-sha256;x-amz-date;x-amz-security-"
		"token",
		"3de1be0c4eec63288e2968fd37b4c17d1429bd82da24a6fd82f68475f0074cac"},
};

static struct ckpt_s3_signing signing_of(const struct vector *v)
{
	struct ckpt_s3_signing s = {.method = v->method,
		.host = "example.amazonaws.com",
		.path = v->path,
		.query = v->query,
		.headers = v->headers,
		.payload = v->payload,
		.region = "us-east-1",
		.service = "service",
		.time_s = 1440938160,
		.access = ACCESS,
		.secret = SECRET,
		.token = v->token};

	while (s.header_count < COUNT(v->headers) && v->headers[s.header_count].name)
		s.header_count++;
	return s;
}

static void check(struct ckpt_s3_signing_key *key, const struct ckpt_s3_signing *s,
	const struct vector *v, const char *scope)
{
	struct ckpt_s3_signed done;
	char wanted[1024];

	assert_int_equal(ckpt_s3_sign(key, s, &done), 0);
	(void)snprintf(wanted, sizeof(wanted),
		"AWS4-HMAC-SHA256 Credential=%s/%s/aws4_request, SignedHeaders=%s, Signature=%s",
		s->access, scope, v->names, v->signature);
	if (strcmp(done.authorization, wanted) != 0)
		fail_msg("%s: %s", v->name, done.authorization);
	assert_int_equal(done.count, 2 + s->payload_header + (s->token != NULL));
	assert_string_equal(done.headers[0].value, done.date);
	assert_ptr_equal(done.headers[done.count - 1].value, done.authorization);
	ckpt_s3_signed_clear(&done);
	assert_int_equal(done.count, 0);
}

static void test_suite(void **state)
{
	struct ckpt_s3_signing_key key = {.made = NULL};

	(void)state;
	for (size_t i = 0; i < COUNT(suite); i++) {
		struct ckpt_s3_signing s = signing_of(&suite[i]);

		check(&key, &s, &suite[i], "20150830/us-east-1/service");
	}
	ckpt_s3_signing_key_clear(&key);
}

static void test_documented(void **state)
{
	struct ckpt_s3_signing_key key = {.made = NULL};

	(void)state;
	for (size_t i = 0; i < COUNT(documented); i++) {
		struct ckpt_s3_signing s = signing_of(&documented[i]);

		s.host = "examplebucket.s3.amazonaws.com";
		s.service = "s3";
		s.payload_header = true;
		s.time_s = 1369353600;
		s.access = "AKIAIOSFODNN7EXAMPLE";
		s.secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";
		check(&key, &s, &documented[i], "20130524/us-east-1/s3");
	}
	ckpt_s3_signing_key_clear(&key);
}

static void test_others(void **state)
{
	struct ckpt_s3_signing_key key = {.made = NULL};

	(void)state;
	for (size_t i = 0; i < COUNT(others); i++) {
		struct ckpt_s3_signing s = signing_of(&others[i]);

		s.host = s.headers->value;
		s.headers++;
		s.header_count--;
		s.region = "eu-central-1";
		s.service = "s3";
		s.payload_header = true;
		s.time_s = 1795458338;
		check(&key, &s, &others[i], "20261123/eu-central-1/s3");
	}
	ckpt_s3_signing_key_clear(&key);
}

/* A key that was kept is used for nothing but what it was made for. */
static void test_kept_key(void **state)
{
	struct ckpt_s3_signing base = signing_of(&suite[13]);
	struct ckpt_s3_signing_key kept = {.made = NULL};
	struct ckpt_s3_signed done;

	(void)state;
	for (unsigned i = 0; i < 64; i++) {
		struct ckpt_s3_signing s = base;
		struct ckpt_s3_signing_key fresh = {.made = NULL};
		struct ckpt_s3_signed again;

		s.secret = i & 1 ? "another" : SECRET;
		s.region = i & 2 ? "us-east-2" : "us-east-1";
		s.service = i & 4 ? "s3" : "service";
		s.time_s += i & 8 ? 86400 : 0;
		s.time_s += i & 16 ? 41039 : 0; /* 23:59:59 of the same day */
		assert_int_equal(ckpt_s3_sign(&kept, &s, &done), 0);
		assert_int_equal(ckpt_s3_sign(&fresh, &s, &again), 0);
		assert_string_equal(done.authorization, again.authorization);
		ckpt_s3_signed_clear(&done);
		ckpt_s3_signed_clear(&again);
		ckpt_s3_signing_key_clear(&fresh);
	}
	ckpt_s3_signing_key_clear(&kept);
	assert_null(kept.made);
}

static void test_queries(void **state)
{
	static const struct {
		const char *query;
		const char *canonical;
	} cases[] = {
		{"", ""},
		{"uploads", "uploads="},
		{"a=", "a="},
		{"&&a&&", "a="},
		{"b=1&a=2", "a=2&b=1"},
		{"a=2&a=1&a", "a=&a=1&a=2"},
		{"a-b=1&a=1", "a=1&a-b=1"},
		{"aa=1&a=1&A=1", "A=1&a=1&aa=1"},
		{"a=b=c", "a=b%3Dc"},
		{"=x", "=x"},
		{"=", "="},
		{"a=%7e%2f%2F+", "a=~%2F%2F%2B"},
		{"a=\xc3\xa4 ", "a=%C3%A4%20"},
		{"a=%00", "a=%00"},
		{"%26=1&%3d=2", "%26=1&%3D=2"},
	};
	struct ckpt_buf out = {0};
	char many[4 * (CKPT_S3_PARAMETERS_MAX + 1) + 1];

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		out.len = 0;
		assert_int_equal(ckpt_s3_canonical_query(cases[i].query, &out), 0);
		ckpt_buf_put(&out, "", 1);
		assert_string_equal(out.data, cases[i].canonical);
	}
	out.len = 0;
	assert_int_equal(ckpt_s3_canonical_query("a=%", &out), -EINVAL);
	assert_int_equal(ckpt_s3_canonical_query("%4=a", &out), -EINVAL);
	assert_int_equal(ckpt_s3_canonical_query("a=%4&a=1", &out), -EINVAL);
	assert_int_equal(out.len, 0);
	for (unsigned i = 0; i < CKPT_S3_PARAMETERS_MAX + 1; i++)
		memcpy(many + 4 * (size_t)i, "a=1&", 5);
	assert_int_equal(ckpt_s3_canonical_query(many, &out), -E2BIG);
	assert_int_equal(ckpt_s3_canonical_query(many + 4, &out), 0);
	ckpt_buf_free(&out);
}

/* Once in order, always in order; and what was put in another order comes to the same. */
static void test_queries_of_any_order(void **state)
{
	static const char *const parameters[] = {
		"a", "a=", "a=1", "a-=1", "A=%41", "b=%2F", "b=/", "=", "%E1=1", "a=10", "a%2D"};
	struct prng prng = {11};

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		size_t order[COUNT(parameters)];
		struct ckpt_buf text[2] = {{0}};
		struct ckpt_buf first = {0};
		struct ckpt_buf second = {0};

		for (size_t n = 0; n < COUNT(order); n++)
			order[n] = n;
		for (unsigned turn = 0; turn < 2; turn++) {
			for (size_t n = COUNT(order) - 1; n > 0; n--) {
				size_t with = prng_below(&prng, n + 1);
				size_t kept = order[n];

				order[n] = order[with];
				order[with] = kept;
			}
			for (size_t n = 0; n < COUNT(order); n++)
				ckpt_buf_printf(&text[turn], "%s&", parameters[order[n]]);
			ckpt_buf_put(&text[turn], "", 1);
		}
		assert_int_equal(ckpt_s3_canonical_query(text[0].data, &first), 0);
		assert_int_equal(ckpt_s3_canonical_query(text[1].data, &second), 0);
		assert_true(
			first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
		ckpt_buf_put(&first, "", 1);
		second.len = 0;
		assert_int_equal(ckpt_s3_canonical_query(first.data, &second), 0);
		assert_memory_equal(first.data, second.data, second.len);
		ckpt_buf_free(&text[0]);
		ckpt_buf_free(&text[1]);
		ckpt_buf_free(&first);
		ckpt_buf_free(&second);
	}
}

/* What is added or changed on the way may be anything: the signature is the same. */
static void test_what_proxies_change(void **state)
{
	static const struct ckpt_http_header changed[] = {{"User-Agent", "x/1"},
		{"EXPECT", "100-continue"}, {"Connection", "close"}, {"Via", "1.1 proxy"},
		{"X-Forwarded-For", "10.0.0.1"}, {"Accept-Encoding", "gzip"},
		{"Transfer-Encoding", "chunked"}, {"X-Amzn-Trace-Id", "1"}};
	struct ckpt_s3_signing s = signing_of(&suite[13]);
	struct ckpt_s3_signing_key key = {.made = NULL};

	(void)state;
	s.headers = changed;
	s.header_count = COUNT(changed);
	check(&key, &s, &suite[13], "20150830/us-east-1/service");
	ckpt_s3_signing_key_clear(&key);
}

static void test_limits(void **state)
{
	struct ckpt_http_header headers[CKPT_S3_HEADERS_MAX];
	struct ckpt_s3_signing s = signing_of(&suite[13]);
	struct ckpt_s3_signing_key key = {.made = NULL};
	struct ckpt_s3_signed done;
	char token[16385];
	char secret[CKPT_S3_SECRET_SIZE];

	(void)state;
	for (size_t i = 0; i < COUNT(headers); i++)
		headers[i] = (struct ckpt_http_header){"x-amz-meta", "v"};
	s.headers = headers;
	s.header_count = COUNT(headers) - 1;
	assert_int_equal(ckpt_s3_sign(&key, &s, &done), -E2BIG);
	assert_null(done.authorization);
	assert_int_equal(done.count, 0);
	s.header_count--;
	memset(token, 't', sizeof(token) - 1);
	token[sizeof(token) - 1] = 0;
	memset(secret, 's', sizeof(secret) - 1);
	secret[sizeof(secret) - 1] = 0;
	s.token = token;
	s.secret = secret;
	s.header_count--;
	assert_int_equal(ckpt_s3_sign(&key, &s, &done), 0);
	ckpt_s3_signed_clear(&done);
	s.query = "a=%zz";
	assert_int_equal(ckpt_s3_sign(&key, &s, &done), -EINVAL);
	ckpt_s3_signed_clear(&done);
	ckpt_s3_signing_key_clear(&key);
}

static bool fail_one(void *user, size_t size)
{
	(void)size;
	return --*(int *)user == 0;
}

/* Without memory there is no signature, and never a wrong one. */
static void test_no_memory(void **state)
{
	int r = -ENOMEM;

	(void)state;
	for (int at = 1; r != 0; at++) {
		struct ckpt_s3_signing s = signing_of(&suite[15]);
		struct ckpt_s3_signing_key key = {.made = NULL};
		struct ckpt_s3_signed done;
		int left = at;

		assert_true(at < 1000);
		ckpt_alloc_set_hook(fail_one, &left);
		r = ckpt_s3_sign(&key, &s, &done);
		ckpt_alloc_set_hook(NULL, NULL);
		assert_true(r == 0 || r == -ENOMEM);
		if (r == 0)
			assert_non_null(strstr(done.authorization, suite[15].signature));
		ckpt_s3_signed_clear(&done);
		ckpt_s3_signing_key_clear(&key);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_suite),
		cmocka_unit_test(test_documented),
		cmocka_unit_test(test_others),
		cmocka_unit_test(test_kept_key),
		cmocka_unit_test(test_queries),
		cmocka_unit_test(test_queries_of_any_order),
		cmocka_unit_test(test_what_proxies_change),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
