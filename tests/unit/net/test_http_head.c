/* SPDX-License-Identifier: Apache-2.0 */
/* The head of an answer: what is no header is left out, and no line of a server's makes another one. */
#include "lib/test.h"

#include <string.h>

#include "net/http_head.h"

static struct ckpt_http_head head;

static void take(const char *text)
{
	while (*text) {
		const char *end = strchr(text, '\n');
		size_t length = end ? (size_t)(end - text) + 1 : strlen(text);

		ckpt_http_head_line(&head, text, length);
		text += length;
	}
}

static void check(int status, bool answered, const char *text)
{
	assert_int_equal(head.status, status);
	assert_int_equal(head.answered, answered);
	assert_false(head.text.failed);
	assert_int_equal(head.text.len, strlen(text));
	assert_true(head.text.len == 0 || memcmp(head.text.data, text, head.text.len) == 0);
	ckpt_buf_free(&head.text);
	head = (struct ckpt_http_head){.status = 0};
}

static void test_headers(void **state)
{
	(void)state;
	check(0, false, "");
	take("HTTP/1.1 200 OK\r\nETag: \"E\"\r\nX-Empty:\r\nB: \t c d \r\n\r\n");
	check(200, true, "etag: \"E\"\nx-empty: \nb: c d\n");
	take("HTTP/2 206\r\nA:b\n");
	check(206, true, "a: b\n");
	take("HTTP/1.1 100 Continue\r\nA: 1\r\n\r\n");
	check(100, false, "a: 1\n");
	take("HTTP/1.1 100 Continue\r\nA: 1\r\n\r\nHTTP/1.1 503 no\r\nB: 2\r\n");
	check(503, true, "b: 2\n");
}

static void test_what_is_none(void **state)
{
	(void)state;
	take("HTTP/1.1 200 OK\r\nA: b\r\n folded: c\r\n\tfolded: d\r\n: e\r\nF\r\n");
	check(200, true, "a: b\n");
	take("HTTP/1.1 200 OK\r\nA: b\rETag: c\r\n");
	check(200, true, "a: b ETag: c\n");
	ckpt_http_head_line(&head, "A: b\0c\r\n", 8);
	ckpt_http_head_line(&head, "A\0: b\r\n", 7);
	ckpt_http_head_line(&head, "A: b", 0);
	check(0, false, "");
}

/* Three digits, or nothing. */
static void test_a_status_that_is_none(void **state)
{
	static const char *const lines[] = {"HTTP/1.1\r\n", "HTTP/1.1 \r\n", "HTTP/1.1 2\r\n",
		"HTTP/1.1 -99\r\n", "HTTP/1.1 +20 OK\r\n", "HTTP/1.1  200 OK\r\n", "HTTP/1.1 20",
		"HTTP/1.1 0x2\r\n", "HTTP/1.1 20x\r\n"};

	(void)state;
	for (size_t i = 0; i < COUNT(lines); i++) {
		take(lines[i]);
		check(0, false, "");
	}
	take("HTTP/1.1 200");
	check(200, true, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_headers),
		cmocka_unit_test(test_what_is_none),
		cmocka_unit_test(test_a_status_that_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
