/* SPDX-License-Identifier: Apache-2.0 */
/* A bucket is asked where its owner expects it, and an endpoint that cannot be is refused in words. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/utf8.h"
#include "lib/prng.h"
#include "s3/endpoint.h"

#define AUTO    CKPT_S3_ADDRESSING_AUTO
#define PATH    CKPT_S3_ADDRESSING_PATH
#define VIRTUAL CKPT_S3_ADDRESSING_VIRTUAL

static void check(const struct ckpt_s3_endpoint_config *config, const char *host, const char *url)
{
	struct ckpt_s3_endpoint endpoint;
	struct ckpt_error err = {0};
	struct ckpt_buf out = {0};

	if (ckpt_s3_endpoint_make(config, &err, &endpoint) != 0)
		fail_msg("%s: %s", url, err.message);
	assert_string_equal(endpoint.host, host);
	ckpt_s3_endpoint_url(&endpoint, "a/b c", "x=1", &out);
	ckpt_buf_put(&out, "", 1);
	assert_string_equal(out.data, url);
	ckpt_buf_free(&out);
}

static void test_aws(void **state)
{
	static const struct {
		struct ckpt_s3_endpoint_config config;
		const char *host;
		const char *url;
	} cases[] = {
		{{.bucket = "models", .region = "eu-central-1"},
			"models.s3.eu-central-1.amazonaws.com",
			"https://models.s3.eu-central-1.amazonaws.com/a/b%20c?x=1"},
		{{.bucket = "models"}, "models.s3.us-east-1.amazonaws.com",
			"https://models.s3.us-east-1.amazonaws.com/a/b%20c?x=1"},
		{{.bucket = "models", .region = "us-gov-west-1", .fips = true},
			"models.s3-fips.us-gov-west-1.amazonaws.com",
			"https://models.s3-fips.us-gov-west-1.amazonaws.com/a/b%20c?x=1"},
		{{.bucket = "models", .region = "cn-north-1", .dualstack = true},
			"models.s3.dualstack.cn-north-1.amazonaws.com.cn",
			"https://models.s3.dualstack.cn-north-1.amazonaws.com.cn/a/b%20c?x=1"},
		{{.bucket = "models", .region = "us-west-2", .dualstack = true, .fips = true},
			"models.s3-fips.dualstack.us-west-2.amazonaws.com",
			"https://models.s3-fips.dualstack.us-west-2.amazonaws.com/a/b%20c?x=1"},
		{{.bucket = "models", .region = "us-isob-east-1"},
			"models.s3.us-isob-east-1.sc2s.sgov.gov",
			"https://models.s3.us-isob-east-1.sc2s.sgov.gov/a/b%20c?x=1"},
		/* No certificate covers a dot; capitals and '_' are no host's. */
		{{.bucket = "my.models", .region = "eu-west-1"}, "s3.eu-west-1.amazonaws.com",
			"https://s3.eu-west-1.amazonaws.com/my.models/a/b%20c?x=1"},
		{{.bucket = "My_Models", .region = "us-east-1"}, "s3.us-east-1.amazonaws.com",
			"https://s3.us-east-1.amazonaws.com/My_Models/a/b%20c?x=1"},
		{{.bucket = "models", .region = "eu-west-1", .addressing = PATH},
			"s3.eu-west-1.amazonaws.com",
			"https://s3.eu-west-1.amazonaws.com/models/a/b%20c?x=1"},
		{{.bucket = "my.models", .region = "eu-west-1", .addressing = VIRTUAL},
			"my.models.s3.eu-west-1.amazonaws.com",
			"https://my.models.s3.eu-west-1.amazonaws.com/a/b%20c?x=1"},
		{{.bucket = "models-", .region = "eu-west-1"}, "s3.eu-west-1.amazonaws.com",
			"https://s3.eu-west-1.amazonaws.com/models-/a/b%20c?x=1"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		check(&cases[i].config, cases[i].host, cases[i].url);
}

static void test_custom(void **state)
{
	static const struct {
		const char *url;
		enum ckpt_s3_addressing addressing;
		const char *host;
		const char *whole;
	} cases[] = {
		{"http://127.0.0.1:9000", AUTO, "127.0.0.1:9000",
			"http://127.0.0.1:9000/models/a/b%20c?x=1"},
		{"http://minio_1:9000/", AUTO, "minio_1:9000",
			"http://minio_1:9000/models/a/b%20c?x=1"},
		{"https://S3.Example.COM", AUTO, "s3.example.com",
			"https://s3.example.com/models/a/b%20c?x=1"},
		{"HTTPS://s3.example.com:443//", AUTO, "s3.example.com",
			"https://s3.example.com/models/a/b%20c?x=1"},
		{"http://s3.example.com:80", AUTO, "s3.example.com",
			"http://s3.example.com/models/a/b%20c?x=1"},
		{"http://s3.example.com:443", AUTO, "s3.example.com:443",
			"http://s3.example.com:443/models/a/b%20c?x=1"},
		{"https://s3.example.com:80", VIRTUAL, "models.s3.example.com:80",
			"https://models.s3.example.com:80/a/b%20c?x=1"},
		{"https://x.co/storage/v1/s3/", AUTO, "x.co",
			"https://x.co/storage/v1/s3/models/a/b%20c?x=1"},
		{"https://x.co/storage/v1/s3", VIRTUAL, "models.x.co",
			"https://models.x.co/storage/v1/s3/a/b%20c?x=1"},
		{"http://[::1]:9000", AUTO, "[::1]:9000", "http://[::1]:9000/models/a/b%20c?x=1"},
		{"https://[2001:DB8::1]", PATH, "[2001:db8::1]",
			"https://[2001:db8::1]/models/a/b%20c?x=1"},
		{"http://[::ffff:1.2.3.4]:00080", AUTO, "[::ffff:1.2.3.4]",
			"http://[::ffff:1.2.3.4]/models/a/b%20c?x=1"},
		{"http://localhost:65535", VIRTUAL, "models.localhost:65535",
			"http://models.localhost:65535/a/b%20c?x=1"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_s3_endpoint_config config = {.url = cases[i].url,
			.bucket = "models",
			.region = "Default_1.x",
			.addressing = cases[i].addressing};

		check(&config, cases[i].host, cases[i].whole);
	}
}

/* The bucket itself: "/" of a host of its own, and no slash behind its name in a path. */
static void test_bucket_itself(void **state)
{
	static const struct {
		const char *url;
		enum ckpt_s3_addressing addressing;
		const char *path;
	} cases[] = {
		{"", AUTO, "/"},
		{"", PATH, "/models"},
		{"http://h", AUTO, "/models"},
		{"http://h/x", PATH, "/x/models"},
		{"http://h/x", VIRTUAL, "/x/"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_s3_endpoint_config config = {
			.url = cases[i].url, .bucket = "models", .addressing = cases[i].addressing};
		struct ckpt_s3_endpoint endpoint;
		struct ckpt_buf out = {0};

		assert_int_equal(ckpt_s3_endpoint_make(&config, NULL, &endpoint), 0);
		ckpt_s3_endpoint_path(&endpoint, "", &out);
		ckpt_buf_put(&out, "", 1);
		assert_string_equal(out.data, cases[i].path);
		ckpt_buf_free(&out);
	}
}

static void refused(const struct ckpt_s3_endpoint_config *config, int code, const char *word)
{
	struct ckpt_s3_endpoint endpoint;
	struct ckpt_error err = {0};
	int r = ckpt_s3_endpoint_make(config, &err, &endpoint);

	if (r != code || !strstr(err.message, word))
		fail_msg("'%s': %d, not %d: %s", config->url, r, code, err.message);
	assert_null(strstr(err.message, "hunter2"));
}

static const struct {
	const char *url;
	const char *word;
} bad_urls[] = {
	{"localhost:9000", "http://"},
	{"//localhost", "http://"},
	{"ftp://localhost", "http://"},
	{"https:/localhost", "http://"},
	{"https://", "names no host"},
	{"https:///x", "names no host"},
	{"https://:9000", "names no host"},
	{"https://user:hunter2@host", "'@'"},
	{"hunter2@host", "'@'"},
	{"https://host:", "port"},
	{"https://host:0", "port"},
	{"https://host:65536", "port"},
	{"https://host:99999999999999999999", "port"},
	{"https://host:9000x", "port"},
	{"https://host:-1", "port"},
	{"https://host:90:00", "port"},
	{"https://ho st", "invalid host name"},
	{"https://host.", "invalid host name"},
	{"https://.host", "invalid host name"},
	{"https://a..b", "invalid host name"},
	{"https://-a", "invalid host name"},
	{"https://h\r\nx-evil: 1", "invalid host name"},
	{"https://h\xc3\xb6st", "invalid host name"},
	{"https://[::1", "invalid host name"},
	{"https://::1", "names no host"},
	{"https://[::1%25eth0]", "invalid host name"},
	{"https://[]", "invalid host name"},
	{"https://[", "invalid host name"},
	{"https://]", "invalid host name"},
	{"https://[::1]x:80", "invalid host name"},
	{"https://[1.2.3.4]", "invalid host name"},
	{"https://host/a//b", "single slashes"},
	{"https://host/..", "single slashes"},
	{"https://host/./a", "single slashes"},
	{"https://host/a%20b", "single slashes"},
	{"https://host/a b", "single slashes"},
	{"https://host?x=1", "single slashes"},
	{"https://host?x/y", "single slashes"},
	{"https://host/#x", "single slashes"},
};

static void test_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(bad_urls); i++) {
		struct ckpt_s3_endpoint_config config = {
			.url = bad_urls[i].url, .bucket = "models"};

		refused(&config, -EINVAL, bad_urls[i].word);
	}
	refused(
		&(struct ckpt_s3_endpoint_config){
			.url = "http://10.0.0.1", .bucket = "models", .addressing = VIRTUAL},
		-EINVAL, "address");
	refused(
		&(struct ckpt_s3_endpoint_config){
			.url = "http://[::1]", .bucket = "models", .addressing = VIRTUAL},
		-EINVAL, "address");
	refused(&(struct ckpt_s3_endpoint_config){.bucket = "My_Bucket", .addressing = VIRTUAL},
		-EINVAL, "path addressing");
	refused(
		&(struct ckpt_s3_endpoint_config){
			.url = "http://h", .bucket = "models", .fips = true},
		-EINVAL, "FIPS");
	refused(
		&(struct ckpt_s3_endpoint_config){
			.bucket = "models", .region = "cn-north-1", .fips = true},
		CKPT_EUNSUPPORTED, "China");
	refused(&(struct ckpt_s3_endpoint_config){.bucket = "models--use1-az4--x-s3"},
		CKPT_EUNSUPPORTED, "S3 Express");
}

static void test_regions(void **state)
{
	static const char *const bad[] = {"eu west", "EU-WEST-1", "eu.west", "../x", "a/b", "-a",
		"a-", "evil.com#", "x@y",
		"0123456789012345678901234567890123456789012345678901234567890123"};

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++)
		refused(&(struct ckpt_s3_endpoint_config){.bucket = "models", .region = bad[i]},
			-EINVAL, "not a region");
	refused(
		&(struct ckpt_s3_endpoint_config){
			.url = "http://h", .bucket = "models", .region = "a/b"},
		-EINVAL, "not a region");
}

/* The longest of everything fits, and is told apart from what does not. */
static void test_lengths(void **state)
{
	char url[1024];
	char bucket[CKPT_S3_BUCKET_MAX + 1];
	struct ckpt_s3_endpoint_config config = {.url = url, .bucket = bucket};
	struct ckpt_s3_endpoint endpoint;

	(void)state;
	memset(bucket, 'b', sizeof(bucket) - 1);
	bucket[sizeof(bucket) - 1] = 0;
	memset(url, 'h', sizeof(url));
	memcpy(url, "http://", 7);
	for (size_t at = 7 + 63; at < 7 + CKPT_S3_HOST_MAX; at += 64)
		url[at] = '.';
	memcpy(url + 7 + CKPT_S3_HOST_MAX, ":65535", 7);
	assert_int_equal(ckpt_s3_endpoint_make(&config, NULL, &endpoint), 0);
	assert_int_equal(strlen(endpoint.host), CKPT_S3_HOST_MAX + 6);
	config.addressing = VIRTUAL;
	refused(&config, -EINVAL, "path addressing");
	bucket[63] = 0;
	refused(&config, -EINVAL, "path addressing");
	url[7 + CKPT_S3_HOST_MAX] = 'h';
	refused(&config, -EINVAL, "host");
}

/* Any text: an endpoint whose URL is of printable ASCII without blanks, or a sentence. */
static void test_any_text(void **state)
{
	static const char *const words[] = {"http://", "https://", "host", ".", ":", "80", "9000",
		"/", "[", "]", "::1", "1.2.3.4", "?", "#", "%41", "-", "_", " ", "\n", "\xc3\xa4",
		"..", "A"};
	struct prng prng = {4711};

	(void)state;
	for (unsigned i = 0; i < 200000; i++) {
		char url[256] = "";
		size_t length = 0;
		struct ckpt_s3_endpoint endpoint;
		struct ckpt_error err = {0};
		struct ckpt_buf out = {0};
		struct ckpt_s3_endpoint_config config = {.url = url,
			.bucket = prng_below(&prng, 2) ? "models" : "My.Bucket_",
			.addressing = (enum ckpt_s3_addressing)prng_below(&prng, 3)};

		for (uint64_t n = prng_below(&prng, 9); n > 0; n--) {
			const char *word = words[prng_below(&prng, COUNT(words))];

			memcpy(url + length, word, strlen(word) + 1);
			length += strlen(word);
		}
		if (ckpt_s3_endpoint_make(&config, &err, &endpoint) < 0) {
			assert_true(err.message[0] && ckpt_utf8_is_line(err.message));
			continue;
		}
		ckpt_s3_endpoint_url(&endpoint, "k", "", &out);
		ckpt_buf_put(&out, "", 1);
		for (const char *at = out.data; *at; at++)
			if (!(*at > 32 && *at < 0x7f && !strchr("?#%@", *at)))
				fail_msg("'%s' gives %s", url, out.data);
		assert_null(strstr(out.data + 8, "//"));
		ckpt_buf_free(&out);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_aws),
		cmocka_unit_test(test_custom),
		cmocka_unit_test(test_bucket_itself),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_regions),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_any_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
