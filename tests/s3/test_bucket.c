/* SPDX-License-Identifier: Apache-2.0 */
/* Objects: what was put is what is there, conditions hold, and listings show every name once. */
#include "s3/asking.h"

#include <stdio.h>

#include "lib/prng.h"

static int put(struct buckets *buckets, const char *key, const char *body, const char *header,
	const char *value)
{
	struct s3_request req;
	char target[300];

	(void)snprintf(target, sizeof(target), "/bkt/%s", key);
	asked(&req, "PUT", target, body, strlen(body), header, value, NULL);
	return ask(buckets, &req);
}

static bool holds(struct buckets *buckets, const char *key, const char *body)
{
	const struct rope *content = buckets_content(buckets, "bkt", key);
	char room[64] = "";

	if (!content || content->length != strlen(body))
		return false;
	(void)rope_read(content, 0, room, sizeof(room) - 1);
	return strcmp(room, body) == 0;
}

static void test_once(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){0});

	(void)state;
	assert_int_equal(put(buckets, "k", "one", "if-none-match", "*"), 200);
	assert_int_equal(put(buckets, "k", "two", "if-none-match", "*"), 412);
	assert_true(holds(buckets, "k", "one"));
	assert_int_equal(put(buckets, "k", "two", "if-match", "\"no\""), 412);
	assert_int_equal(
		put(buckets, "k", "two", "if-match", "\"f97c5d29941bfb1b2fdab0874906ab82\""), 200);
	assert_true(holds(buckets, "k", "two"));
	buckets_capabilities(buckets)->put = S3_CONDITIONS_REFUSED;
	assert_int_equal(put(buckets, "k", "three", "if-none-match", "*"), 501);
	assert_int_equal(put(buckets, "new", "three", "if-none-match", "*"), 501);
	assert_null(buckets_content(buckets, "bkt", "new"));
	buckets_capabilities(buckets)->put = S3_CONDITIONS_IGNORED;
	assert_int_equal(put(buckets, "k", "four", "if-none-match", "*"), 200);
	assert_true(holds(buckets, "k", "four"));
	buckets_free(buckets);
}

static void test_a_wrong_sum_changes_nothing(void **state)
{
	static const char *const sums[][2] = {
		{"content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="},
		{"x-amz-checksum-crc32", "AAAAAA=="},
		{"x-amz-checksum-crc32c", "AAAAAA=="},
		{"x-amz-checksum-crc64nvme", "AAAAAAAAAAA="},
		{"x-amz-checksum-sha256", "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU="},
		{"x-amz-checksum-crc32c", "AAAA"},
	};
	struct buckets *buckets = one_bucket((struct buckets_config){0});

	(void)state;
	for (size_t i = 0; i < COUNT(sums); i++) {
		assert_int_equal(put(buckets, "k", "x", sums[i][0], sums[i][1]), 400);
		assert_null(buckets_content(buckets, "bkt", "k"));
	}
	assert_int_equal(put(buckets, "k", "123456789", "x-amz-checksum-crc32c", "4waSgw=="), 200);
	buckets_capabilities(buckets)->checksums_ignored = true;
	assert_int_equal(put(buckets, "k", "x", "x-amz-checksum-crc32c", "AAAAAA=="), 200);
	assert_int_equal(put(buckets, "k", "x", "content-md5", "1B2M2Y8AsgTpgAmY7PhCfg=="), 400);
	buckets_free(buckets);
}

static void range(struct buckets *buckets, const char *spec, int status, const char *wanted)
{
	struct s3_request req;
	struct s3_reply reply;

	asked(&req, "GET", "/bkt/k", NULL, 0, "range", spec, NULL);
	assert_int_equal(ask_for(buckets, &req, &reply), status);
	char *body = body_of(&reply);
	if (wanted)
		assert_string_equal(body, wanted);
	free(body);
	s3_reply_clear(&reply);
}

static void test_ranges(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){0});

	(void)state;
	assert_int_equal(put(buckets, "k", "0123456789", NULL, NULL), 200);
	range(buckets, "bytes=0-0", 206, "0");
	range(buckets, "bytes=3-99", 206, "3456789");
	range(buckets, "bytes=9-", 206, "9");
	range(buckets, "bytes=-4", 206, "6789");
	range(buckets, "bytes=-99", 206, "0123456789");
	range(buckets, "bytes=10-", 416, NULL);
	range(buckets, "bytes=-0", 416, NULL);
	range(buckets, "bytes=5-4", 200, "0123456789");
	range(buckets, "bytes=x", 200, "0123456789");
	range(buckets, "bytes=0-18446744073709551615", 206, "0123456789");
	buckets_free(buckets);
}

/* One page: adds the names and prefixes it shows to `seen`. The token of the next; freed with free(). */
static char *page(struct buckets *buckets, const char *query, const char *token, struct text *seen)
{
	struct s3_request req;
	struct s3_reply reply;
	char target[600];

	(void)snprintf(target, sizeof(target), "/bkt?list-type=2%s%s%s", query,
		token ? "&continuation-token=" : "", token ? token : "");
	asked(&req, "GET", target, NULL, 0, NULL);
	assert_int_equal(ask_for(buckets, &req, &reply), 200);
	char *xml = body_of(&reply);
	s3_reply_clear(&reply);
	for (const char *at = xml; (at = strpbrk(at, "<"));) {
		const char *name = at;
		at++;
		if (strncmp(name, "<Key>", 5) == 0 || strncmp(name, "<CommonPrefixes>", 16) == 0)
			text_addf(seen, "%s ", element(name, name[1] == 'K' ? "Key" : "Prefix"));
	}
	const char *next = element(xml, "NextContinuationToken");
	char *copy = next ? need_text(next) : NULL;
	assert_string_equal(element(xml, "IsTruncated"), copy ? "true" : "false");
	free(xml);
	return copy;
}

/* Names drawn of few letters, so that prefixes and delimiters meet them; in pages of any size the same. */
static void test_pages(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){0});
	struct prng prng = {.state = 5};
	static const char *const queries[] = {
		"", "&delimiter=/", "&prefix=a", "&prefix=a/&delimiter=/", "&start-after=b"};

	(void)state;
	for (int i = 0; i < 200; i++) {
		char key[8] = "";
		for (uint64_t n = 1 + prng_below(&prng, 5), k = 0; k < n; k++)
			key[k] = "ab/c"[prng_below(&prng, k ? 4 : 2)];
		assert_int_equal(put(buckets, key, "", NULL, NULL), 200);
	}
	for (size_t q = 0; q < COUNT(queries); q++) {
		struct text whole = {0};
		text_add(&whole, "");
		assert_null(page(buckets, queries[q], NULL, &whole));
		for (unsigned most = 1; most < 6; most++) {
			struct text pieces = {0};
			char *token = NULL, *next;
			buckets_capabilities(buckets)->page_most = most;
			do {
				next = page(buckets, queries[q], token, &pieces);
				free(token);
				token = next;
			} while (token);
			assert_string_equal(pieces.at, whole.at);
			text_clear(&pieces);
		}
		buckets_capabilities(buckets)->page_most = 0;
		text_clear(&whole);
	}
	buckets_free(buckets);
}

static void test_the_same_again(void **state)
{
	char *said[2];

	(void)state;
	for (int i = 0; i < 2; i++) {
		struct buckets *buckets = one_bucket((struct buckets_config){.seed = 3});
		struct s3_request req;
		struct s3_reply reply;
		struct text all = {0};
		asked(&req, "POST", "/bkt/k?uploads", NULL, 0, NULL);
		assert_int_equal(ask_for(buckets, &req, &reply), 200);
		char *xml = body_of(&reply);
		text_add(&all, xml);
		for (size_t h = 0; h < reply.headers.count; h++)
			text_add(&all, reply.headers.at[h].value);
		free(xml);
		s3_reply_clear(&reply);
		buckets_free(buckets);
		said[i] = all.at;
	}
	assert_string_equal(said[0], said[1]);
	free(said[0]);
	free(said[1]);
}

static void test_memory_comes_back(void **state)
{
	struct buckets *buckets = one_bucket((struct buckets_config){.memory_limit = 10});
	struct s3_request req;

	(void)state;
	assert_int_equal(put(buckets, "a", "12345678", NULL, NULL), 200);
	assert_int_equal(put(buckets, "b", "123", NULL, NULL), 403);
	assert_int_equal(put(buckets, "a", "1", NULL, NULL), 200);
	assert_int_equal(put(buckets, "b", "123", NULL, NULL), 200);
	static const char doomed[] =
		"<Delete><Object><Key>a</Key></Object><Object><Key>b</Key></Object></Delete>";
	asked(&req, "POST", "/bkt?delete", doomed, strlen(doomed), NULL);
	assert_int_equal(ask(buckets, &req), 400);
	buckets_capabilities(buckets)->checksums_ignored = true;
	asked(&req, "POST", "/bkt?delete", doomed, strlen(doomed), NULL);
	assert_int_equal(ask(buckets, &req), 200);
	assert_int_equal(buckets_held(buckets), 0);
	buckets_free(buckets);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_once),
		cmocka_unit_test(test_a_wrong_sum_changes_nothing),
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_pages),
		cmocka_unit_test(test_the_same_again),
		cmocka_unit_test(test_memory_comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
