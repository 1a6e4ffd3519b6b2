/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: what goes in comes out; strings become JSON that a JSON library reads back. */
#include "lib/test.h"

#include <jansson.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"

static void test_appends(void **state)
{
	struct ckpt_buf buf = {0};

	(void)state;
	ckpt_buf_puts(&buf, "");
	ckpt_buf_put(&buf, NULL, 0);
	ckpt_buf_fill(&buf, 'x', 0);
	assert_int_equal(buf.len, 0);
	ckpt_buf_puts(&buf, "ab");
	ckpt_buf_printf(&buf, "%d-%s", 12, "c");
	ckpt_buf_fill(&buf, ' ', 3);
	ckpt_buf_put_le32(&buf, 0x04030201);
	ckpt_buf_put_le64(&buf, UINT64_C(0x0807060504030201));
	assert_false(buf.failed);
	assert_int_equal(buf.len, 21);
	assert_memory_equal(buf.data, "ab12-c   \1\2\3\4\1\2\3\4\5\6\7\10", 21);
	ckpt_buf_free(&buf);
	assert_null(buf.data);
	assert_int_equal(buf.len, 0);
}

static void test_grows(void **state)
{
	struct ckpt_buf buf = {0};

	(void)state;
	for (unsigned i = 0; i < 10000; i++)
		ckpt_buf_printf(&buf, "%05u", i);
	assert_false(buf.failed);
	assert_int_equal(buf.len, 50000);
	for (unsigned i = 0; i < 10000; i += 77) {
		unsigned value = 0;

		for (unsigned k = 0; k < 5; k++)
			value = value * 10 + (unsigned)(buf.data[(size_t)i * 5 + k] - '0');
		assert_int_equal(value, i);
	}
	ckpt_buf_free(&buf);
}

static bool fail_above(void *user, size_t size)
{
	return size > *(size_t *)user;
}

/* What there is room for is appended without memory. */
static void test_reserved(void **state)
{
	struct ckpt_buf buf = {0};
	size_t limit = 0;

	(void)state;
	ckpt_buf_reserve(&buf, 5000);
	ckpt_alloc_set_hook(fail_above, &limit);
	ckpt_buf_fill(&buf, 'x', 5000);
	assert_false(buf.failed);
	assert_int_equal(buf.len, 5000);
	ckpt_buf_reserve(&buf, 5000);
	assert_true(buf.failed);
	ckpt_alloc_set_hook(NULL, NULL);
	ckpt_buf_free(&buf);
}

static void test_failure_sticks(void **state)
{
	struct ckpt_buf buf = {0};
	size_t limit = 1000;

	(void)state;
	ckpt_alloc_set_hook(fail_above, &limit);
	ckpt_buf_puts(&buf, "kept");
	ckpt_buf_fill(&buf, 'x', 5000);
	assert_true(buf.failed);
	ckpt_buf_puts(&buf, "not appended");
	ckpt_buf_put_json(&buf, "\"");
	ckpt_buf_printf(&buf, "%d", 1);
	assert_true(buf.failed);
	assert_int_equal(buf.len, 4);
	ckpt_alloc_set_hook(NULL, NULL);
	ckpt_buf_free(&buf);

	ckpt_buf_puts(&buf, "x");
	ckpt_buf_fill(&buf, 'x', SIZE_MAX);
	assert_true(buf.failed);
	ckpt_buf_free(&buf);
}

/* The string that a JSON library reads back from what was written for `text`. */
static json_t *round_trip(const char *text)
{
	struct ckpt_buf buf = {0};
	json_t *value;

	ckpt_buf_put_json(&buf, text);
	assert_false(buf.failed);
	value = json_loadb(buf.data, buf.len, JSON_DECODE_ANY, NULL);
	assert_non_null(value);
	assert_true(json_is_string(value));
	ckpt_buf_free(&buf);
	return value;
}

static void assert_json(const char *text, const char *expected)
{
	json_t *value = round_trip(text);

	assert_string_equal(json_string_value(value), expected);
	json_decref(value);
}

static void test_json_keeps_valid_text(void **state)
{
	static const char *const texts[] = {
		"",
		"layers.0.weight",
		"\"},\"evil\":{\"",
		"back\\slash\\",
		"\\u0041",
		"tab\tnewline\nreturn\rbell\abs\bff\fvt\vesc\x1b del\x7f",
		"größe 漢字 😀",
		"\xef\xbf\xbf \xf4\x8f\xbf\xbf \xed\x9f\xbf \xee\x80\x80",
		"</script>",
		"../../x",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(texts); i++)
		assert_json(texts[i], texts[i]);
	for (unsigned c = 1; c < 128; c++) {
		char text[] = {'a', (char)c, 'b', 0};

		assert_json(text, text);
	}
}

#define FFFD "\xef\xbf\xbd"

static void test_json_replaces_invalid_text(void **state)
{
	(void)state;
	assert_json("a\xff"
		    "b",
		"a" FFFD "b");
	assert_json("\xc0\xaf", FFFD FFFD);
	assert_json("\xed\xa0\x80", FFFD FFFD FFFD);
	assert_json("\xf4\x90\x80\x80", FFFD FFFD FFFD FFFD);
	assert_json("\xe2\x82", FFFD FFFD);
	assert_json("\xe2\x82\"", FFFD FFFD "\"");
	assert_json("\xf0\x9f\x98", FFFD FFFD FFFD);
}

/* Any bytes become one valid JSON string; what was valid by itself survives. */
static void test_json_random_bytes(void **state)
{
	static const char alphabet[] =
		"a\"\\\n\x01\xc3\xa9\xe2\x82\xac\xed\xa0\xf0\x9f\xff\xc0\x80";
	uint64_t x = 88172645463325252u;

	(void)state;
	for (unsigned round = 0; round < 20000; round++) {
		char text[24];
		size_t len;
		json_t *value;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		len = x % (sizeof(text) - 1);
		for (size_t i = 0; i < len; i++)
			text[i] = alphabet[(x >> (i * 2)) % (sizeof(alphabet) - 1)];
		text[len] = 0;
		value = round_trip(text);
		if (!strstr(json_string_value(value), FFFD))
			assert_string_equal(json_string_value(value), text);
		json_decref(value);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_appends),
		cmocka_unit_test(test_grows),
		cmocka_unit_test(test_reserved),
		cmocka_unit_test(test_failure_sticks),
		cmocka_unit_test(test_json_keeps_valid_text),
		cmocka_unit_test(test_json_replaces_invalid_text),
		cmocka_unit_test(test_json_random_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
