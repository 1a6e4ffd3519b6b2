/* SPDX-License-Identifier: Apache-2.0 */
/* What users write for a store is taken apart as they meant it, or refused with a reason. */
#include "lib/test.h"

#include <ckpt/error.h>
#include <errno.h>
#include <string.h>

#include "base/utf8.h"
#include "lib/prng.h"
#include "s3/escape.h"
#include "s3/uri.h"

static void test_taken_apart(void **state)
{
	static const struct {
		const char *text;
		bool remote;
		const char *bucket;
		const char *path;
	} good[] = {
		{"s3://models", true, "models", ""},
		{"s3://models/", true, "models", ""},
		{"s3://models/run42", true, "models", "run42"},
		{"s3://models/a/b/", true, "models", "a/b"},
		{"S3://models/a", true, "models", "a"},
		{"s3://My_Bucket.x/..a/b..", true, "My_Bucket.x", "..a/b.."},
		{"s3://abc/with space+%20?#&=@:", true, "abc", "with space+%20?#&=@:"},
		{"s3://abc/\xc3\xa4/\xf0\x9f\x98\x80", true, "abc", "\xc3\xa4/\xf0\x9f\x98\x80"},
		{"s3://1ab/...", true, "1ab", "..."},
		{"file:///scratch/run", false, "", "/scratch/run"},
		{"file:/scratch/run", false, "", "/scratch/run"},
		{"FILE://LOCALHOST/a%20b%25", false, "", "/a b%"},
		{"/scratch/run", false, "", "/scratch/run"},
		{"relative/run", false, "", "relative/run"},
		{"host:path", false, "", "host:path"},
		{"./s3:/bucket", false, "", "./s3:/bucket"},
		{"a%20b", false, "", "a%20b"},
		{"s3", false, "", "s3"},
		{":", false, "", ":"},
		{"c:\\x", false, "", "c:\\x"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(good); i++) {
		struct ckpt_s3_uri place;
		struct ckpt_error err = {0};

		if (ckpt_s3_uri_parse(good[i].text, &err, &place) != 0)
			fail_msg("'%s': %s", good[i].text, err.message);
		assert_true(place.remote == good[i].remote);
		assert_string_equal(place.bucket, good[i].bucket);
		assert_string_equal(place.path, good[i].path);
	}
}

/* The sentence holds `word`, and what to do; nothing is written. */
static void refused(const char *text, int code, const char *word)
{
	struct ckpt_s3_uri place;
	struct ckpt_s3_uri before;
	struct ckpt_error err = {0};
	int r;

	memset(&place, 0x5a, sizeof(place));
	before = place;
	r = ckpt_s3_uri_parse(text, &err, &place);
	if (r != code || !strstr(err.message, word))
		fail_msg("'%s': %d, not %d: %s", text, r, code, err.message);
	assert_true(ckpt_utf8_is_line(err.message));
	assert_memory_equal(&place, &before, sizeof(place));
}

static void test_refused(void **state)
{
	(void)state;
	refused("", -EINVAL, "empty");
	refused("s3://", -EINVAL, "names no bucket");
	refused("s3:///prefix", -EINVAL, "names no bucket");
	refused("s3:/bucket/run", -EINVAL, "one slash of two");
	refused("s3:bucket", -EINVAL, "s3://");
	refused("s3://ab/run", -EINVAL, "not a bucket name");
	refused("s3://.abc", -EINVAL, "not a bucket name");
	refused("s3://_abc", -EINVAL, "not a bucket name");
	refused("s3://a b c/run", -EINVAL, "not a bucket name");
	refused("s3://bucket:9000/run", -EINVAL, "not a bucket name");
	refused("s3://b\xc3\xbc"
		"cket/run",
		-EINVAL, "not a bucket name");
	refused("s3://buck%65t/run", -EINVAL, "not a bucket name");
	refused("s3://../etc/passwd", -EINVAL, "not a bucket name");
	refused("s3://bucket?x=1", -EINVAL, "not a bucket name");
	refused("s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/x", CKPT_EUNSUPPORTED, "alias");
	refused("s3://bucket//", -EINVAL, "empty component");
	refused("s3://bucket//run", -EINVAL, "empty component");
	refused("s3://bucket/run//", -EINVAL, "empty component");
	refused("s3://bucket/a//b", -EINVAL, "empty component");
	refused("s3://bucket/.", -EINVAL, "'.'");
	refused("s3://bucket/../other", -EINVAL, "'..'");
	refused("s3://bucket/a/./b", -EINVAL, "'.'");
	refused("s3://bucket/a/..", -EINVAL, "'..'");
	refused("s3://bucket/a\nb", -EINVAL, "UTF-8");
	refused("s3://bucket/\xff", -EINVAL, "UTF-8");
	refused("s3://bucket/\xed\xa0\x80", -EINVAL, "UTF-8");
	refused("gs://bucket/run", CKPT_EUNSUPPORTED, "gs://");
	refused("http://host/run", CKPT_EUNSUPPORTED, "http://");
	refused("s3a://bucket/run", CKPT_EUNSUPPORTED, "s3a://");
	refused("file://other/run", -EINVAL, "local directory");
	refused("file:run", -EINVAL, "file:///");
	refused("file:////run", -EINVAL, "file:///");
	refused("file://", -EINVAL, "file:///");
	refused("file:///a%2", -EINVAL, "%25");
	refused("file:///a%00b", -EINVAL, "%25");
	refused("file:///a%zz", -EINVAL, "%25");
	refused("file:///a?b", -EINVAL, "%3F");
}

static void test_no_secret_is_shown(void **state)
{
	static const char *const texts[] = {"s3://AKIA:hunter2@bucket/run", "s3://hunter2@bucket",
		"ftp://me:hunter2@host/x", "https://me:hunter2@host/x"};

	(void)state;
	for (size_t i = 0; i < COUNT(texts); i++) {
		struct ckpt_s3_uri place;
		struct ckpt_error err = {0};

		assert_true(ckpt_s3_uri_parse(texts[i], &err, &place) < 0);
		assert_null(strstr(err.message, "hunter2"));
	}
}

/* One byte under the limit is taken, one over it is not. */
static void test_lengths(void **state)
{
	static const char scheme[] = "s3://";
	char text[8192];
	char name[CKPT_S3_NAME_MAX + 1];
	char key[CKPT_S3_KEY_MAX + 1];
	struct ckpt_s3_uri place;

	(void)state;
	memset(text, 'a', sizeof(text));
	memcpy(text, scheme, sizeof(scheme) - 1);
	text[5 + CKPT_S3_BUCKET_MAX] = 0;
	assert_int_equal(ckpt_s3_uri_parse(text, NULL, &place), 0);
	assert_int_equal(strlen(place.bucket), CKPT_S3_BUCKET_MAX);
	text[5 + CKPT_S3_BUCKET_MAX] = 'a';
	text[6 + CKPT_S3_BUCKET_MAX] = 0;
	refused(text, -ENAMETOOLONG, "256 bytes");

	memset(text, 'a', sizeof(text));
	memcpy(text, scheme, sizeof(scheme) - 1);
	text[8] = '/';
	text[9 + CKPT_S3_PREFIX_MAX] = 0;
	assert_int_equal(ckpt_s3_uri_parse(text, NULL, &place), 0);
	memset(name, 'n', sizeof(name) - 1);
	name[sizeof(name) - 1] = 0;
	ckpt_s3_uri_key(&place, name, key);
	assert_int_equal(strlen(key), CKPT_S3_KEY_MAX);
	assert_string_equal(ckpt_s3_uri_name(&place, key), name);
	text[9 + CKPT_S3_PREFIX_MAX] = 'a';
	text[10 + CKPT_S3_PREFIX_MAX] = 0;
	refused(text, -ENAMETOOLONG, "leaves it");
	text[10 + CKPT_S3_PREFIX_MAX] = 'a';
	text[sizeof(text) - 1] = 0;
	refused(text, -ENAMETOOLONG, "bytes");
	text[0] = '/';
	refused(text, -ENAMETOOLONG, "bytes");
}

static void test_credentials_json(void **state)
{
	struct ckpt_s3_uri place;
	char key[CKPT_S3_KEY_MAX + 1];

	(void)state;
	assert_int_equal(ckpt_s3_uri_parse("s3://bucket/a/b", NULL, &place), 0);
	ckpt_s3_uri_key(&place, "ckpt.json", key);
	assert_string_equal(key, "a/b/ckpt.json");
	assert_string_equal(ckpt_s3_uri_name(&place, key), "ckpt.json");
	assert_null(ckpt_s3_uri_name(&place, "a/b"));
	assert_null(ckpt_s3_uri_name(&place, "a/b/"));
	assert_null(ckpt_s3_uri_name(&place, "a/bc/d"));
	assert_null(ckpt_s3_uri_name(&place, "a"));
	assert_null(ckpt_s3_uri_name(&place, ""));
	assert_int_equal(ckpt_s3_uri_parse("s3://bucket", NULL, &place), 0);
	ckpt_s3_uri_key(&place, "gens/000001.json", key);
	assert_string_equal(key, "gens/000001.json");
	assert_string_equal(ckpt_s3_uri_name(&place, key), key);
	assert_null(ckpt_s3_uri_name(&place, ""));
}

/* Any text at all: what is taken can be made into keys that come back. */
static void test_any_text(void **state)
{
	static const char *const words[] = {"s3:", "//", "/", "file:", "bucket", ".", "..", "@",
		"%", "%41", "a", "\xc3\xa4", "\xff", "\n", ":", "-", "_", "?", "localhost",
		"S3://abc/"};
	struct prng prng = {20261123};

	(void)state;
	for (unsigned i = 0; i < 100000; i++) {
		struct ckpt_s3_uri place;
		struct ckpt_error err = {0};
		char text[256] = "";
		char key[CKPT_S3_KEY_MAX + 1];
		size_t length = 0;

		for (uint64_t n = prng_below(&prng, 9); n > 0; n--) {
			const char *word = words[prng_below(&prng, COUNT(words))];

			memcpy(text + length, word, strlen(word) + 1);
			length += strlen(word);
		}
		if (ckpt_s3_uri_parse(text, &err, &place) < 0) {
			assert_true(err.message[0] && ckpt_utf8_is_line(err.message));
			continue;
		}
		assert_true(place.remote == (place.bucket[0] != 0));
		if (!place.remote)
			continue;
		assert_true(place.path[0] != '/' && !strstr(place.path, "//"));
		ckpt_s3_uri_key(&place, "x", key);
		assert_string_equal(ckpt_s3_uri_name(&place, key), "x");
	}
}

static void check_escape(const char *text, const char *path, const char *value)
{
	struct ckpt_buf out = {0};

	ckpt_s3_escape_path(&out, text);
	ckpt_buf_put(&out, "", 1);
	assert_string_equal(out.data, path);
	out.len = 0;
	ckpt_s3_escape(&out, text, strlen(text));
	ckpt_buf_put(&out, "", 1);
	assert_string_equal(out.data, value);
	ckpt_buf_free(&out);
}

static void test_escape(void **state)
{
	struct ckpt_buf out = {0};
	char all[256];
	size_t length = 0;

	(void)state;
	check_escape("", "", "");
	check_escape("a/b c", "a/b%20c", "a%2Fb%20c");
	check_escape("-._~09AZaz", "-._~09AZaz", "-._~09AZaz");
	check_escape("step=100/a+b*c%20'()!", "step%3D100/a%2Bb%2Ac%2520%27%28%29%21",
		"step%3D100%2Fa%2Bb%2Ac%2520%27%28%29%21");
	check_escape("\xe1\x88\xb4\x7f", "%E1%88%B4%7F", "%E1%88%B4%7F");
	/* Every byte comes back, and unreserved ones alone are left. */
	for (unsigned i = 0; i < sizeof(all); i++)
		all[i] = (char)i;
	ckpt_s3_escape(&out, all, sizeof(all));
	assert_int_equal(out.len, 66 + (256 - 66) * 3);
	assert_true(ckpt_s3_unescape(out.data, out.len, false, &length));
	assert_int_equal(length, sizeof(all));
	assert_memory_equal(out.data, all, sizeof(all));
	ckpt_buf_free(&out);
}

static uint64_t number_of(const char *text)
{
	struct ckpt_s3_uri place;

	assert_int_equal(ckpt_s3_uri_parse(text, NULL, &place), 0);
	return ckpt_s3_uri_number(&place);
}

/* However it is written, a place has one number, and others have others; it fits what locks take. */
static void test_numbers(void **state)
{
	static const char *const others[] = {
		"s3://abc", "s3://abd/a", "s3://abc/a/b", "s3://abc/b", "s3://abca"};
	uint64_t number = number_of("s3://abc/a");

	(void)state;
	assert_true(number == number_of("S3://abc/a/"));
	for (size_t i = 0; i < COUNT(others); i++) {
		assert_true(number_of(others[i]) != number);
		assert_true(number_of(others[i]) < UINT64_C(1) << 62);
	}
}

static void test_unescape(void **state)
{
	static const char *const bad[] = {"%", "a%", "%4", "%4g", "%g4", "%41%", "%%41", "%-1"};
	char text[32];
	size_t length = 99;

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++) {
		memcpy(text, bad[i], strlen(bad[i]) + 1);
		assert_false(ckpt_s3_unescape(text, strlen(text), true, &length));
		assert_string_equal(text, bad[i]);
		assert_int_equal(length, 99);
	}
	memcpy(text, "a+%2b%2B%00", 12);
	assert_true(ckpt_s3_unescape(text, 11, true, &length));
	assert_int_equal(length, 5);
	assert_memory_equal(text, "a ++\0", 5);
	memcpy(text, "a+b", 4);
	assert_true(ckpt_s3_unescape(text, 3, false, &length));
	assert_memory_equal(text, "a+b", 3);
	/* The escape ends behind the text: it is none. */
	memcpy(text, "%41", 4);
	assert_false(ckpt_s3_unescape(text, 2, false, &length));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_taken_apart),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_no_secret_is_shown),
		cmocka_unit_test(test_lengths),
		cmocka_unit_test(test_credentials_json),
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_any_text),
		cmocka_unit_test(test_escape),
		cmocka_unit_test(test_unescape),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
