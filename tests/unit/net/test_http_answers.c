/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked arrives as it was given, and every form of answer comes back whole or not at all. */
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "lib/http_rig.h"
#include "lib/test.h"
#include "net/http_curl.h"

#define BODY_BYTES (3u << 20)

static char body[BODY_BYTES];

static uint64_t sum_of(const char *data, size_t length)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < length; i++)
		sum = sum * 31 + (unsigned char)data[i];
	return sum;
}

static void fill_body(void)
{
	for (size_t i = 0; i < sizeof(body); i++)
		body[i] = (char)(i * 7 + (i >> 11));
}

/* Says back what it was asked. */
static void serve_echo(struct http_peer *peer, void *user)
{
	char text[40000];

	(void)user;
	while (http_peer_request(peer)) {
		char line[128];
		bool head = strncmp(peer->head, "HEAD ", 5) == 0;
		int n = snprintf(line, sizeof(line), "%llu\n", (unsigned long long)peer->body_sum);
		(void)snprintf(text, sizeof(text),
			"HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nX-Upper:  Value \r\n"
			"X-Number: %u\r\n\r\n%s%s",
			(size_t)n + peer->head_length, peer->number, head ? "" : line,
			head ? "" : peer->head);
		if (!http_peer_send(peer, text))
			return;
	}
}

static void test_what_is_sent(void **state)
{
	static const struct ckpt_http_header headers[] = {
		{"X-Amz-Date", "20260101T000000Z"}, {"x-empty", ""}, {"Content-Length", "7"}};
	static const char *const names[] = {"", "GET", "HEAD", "PUT", "POST", "DELETE"};
	struct http_rig rig;

	(void)state;
	fill_body();
	http_rig_open(&rig, NULL, serve_echo, NULL, NULL);
	for (int method = CKPT_HTTP_GET; method <= CKPT_HTTP_DELETE; method++) {
		struct http_ask ask;
		char line[64];
		char value[32];
		http_ask_init(&ask, &rig, (enum ckpt_http_method)method);
		ask.req.headers = headers;
		ask.req.header_count = COUNT(headers);
		if (method == CKPT_HTTP_PUT || method == CKPT_HTTP_POST) {
			ask.req.body = body;
			ask.req.body_length = BODY_BYTES;
		}
		assert_int_equal(http_ask_run(&ask), 0);
		assert_int_equal(ask.req.status, 200);
		assert_int_equal(ask.req.reach, CKPT_HTTP_SENT);
		assert_true(ask.req.first_byte_ns > 0 && ask.req.first_byte_ns <= ask.req.total_ns);
		assert_true(ckpt_http_header(&ask.req, "x-upper", value, sizeof(value)));
		assert_string_equal(value, "Value");
		assert_true(ckpt_http_header(&ask.req, "x-upper", value, 3));
		assert_string_equal(value, "Va");
		assert_false(ckpt_http_header(&ask.req, "x-upp", value, sizeof(value)));
		/* One connection serves them all. */
		assert_true(ckpt_http_header(&ask.req, "x-number", value, sizeof(value)));
		assert_string_equal(value, "0");
		if (method == CKPT_HTTP_HEAD) {
			assert_int_equal(ask.req.received, 0);
			http_ask_clear(&ask);
			continue;
		}
		const char *reply = ask.req.reply;
		assert_non_null(reply);
		assert_int_equal(strlen(reply), ask.req.reply_length);
		uint64_t sum = ask.req.body ? sum_of(body, BODY_BYTES) : 0;
		assert_true(strtoull(reply, NULL, 10) == sum);
		(void)snprintf(line, sizeof(line), "\n%s /path?X-Amz-Signature=secret HTTP/1.1\r\n",
			names[method]);
		assert_non_null(strstr(reply, line));
		assert_non_null(strstr(reply, "X-Amz-Date: 20260101T000000Z\r\n"));
		assert_non_null(strstr(reply, "x-empty:\r\n"));
		/* Nothing that the caller has not signed. */
		assert_null(strstr(reply, "Expect"));
		assert_null(strstr(reply, "Accept"));
		assert_null(strstr(reply, "Content-Type"));
		assert_null(strstr(reply, "User-Agent"));
		assert_null(strstr(reply, "Content-Length: 7"));
		http_ask_clear(&ask);
	}
	http_rig_close(&rig);
}

static void test_an_empty_body(void **state)
{
	struct http_rig rig;
	struct http_ask ask;

	(void)state;
	http_rig_open(&rig, NULL, serve_echo, NULL, NULL);
	for (int method = CKPT_HTTP_PUT; method <= CKPT_HTTP_POST; method++) {
		http_ask_init(&ask, &rig, (enum ckpt_http_method)method);
		ask.req.expect = true;
		assert_int_equal(http_ask_run(&ask), 0);
		assert_non_null(strstr(ask.req.reply, "Content-Length: 0\r\n"));
		assert_null(strstr(ask.req.reply, "Expect"));
		http_ask_clear(&ask);
	}
	http_rig_close(&rig);
}

/* What cannot be sent is refused, and no connection made. */
static void test_what_is_refused(void **state)
{
	static const struct ckpt_http_header bad[] = {{"x-token", "secret\r\nx-other: 1"},
		{"x-token", "secret\n"}, {"x token", "1"}, {"", "1"}, {"x-a:b", "1"}};
	static const char *const urls[] = {"file:///etc/passwd", "http://me:secret@127.0.0.1/",
		"secret", "http://", "gopher://127.0.0.1/"};
	struct http_rig rig;
	struct http_ask ask;

	(void)state;
	http_rig_open(&rig, NULL, serve_echo, NULL, NULL);
	for (size_t i = 0; i < COUNT(bad); i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.headers = &bad[i];
		ask.req.header_count = 1;
		assert_int_equal(http_ask_run(&ask), -EINVAL);
		assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	}
	for (size_t i = 0; i < COUNT(urls); i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.url = urls[i];
		assert_int_equal(http_ask_run(&ask), -EINVAL);
	}
	assert_int_equal(http_server_connections(rig.server), 0);
	http_rig_close(&rig);
}

/* The answer is a text of the test. */
static void serve_text(struct http_peer *peer, void *user)
{
	while (http_peer_request(peer) && http_peer_send(peer, user))
		;
}

static void run_text(struct http_rig *rig, struct http_ask *ask, const char *text)
{
	http_rig_open(rig, NULL, serve_text, (void *)(uintptr_t)text, NULL);
	http_ask_init(ask, rig, CKPT_HTTP_GET);
}

static void test_forms_of_answers(void **state)
{
	static const char *const texts[] = {
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
		"2\r\nhe\r\n3\r\nllo\r\n0\r\nX-After: 1\r\n\r\n",
		"HTTP/1.1 100 Continue\r\nX-Early: 1\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n"
		"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"HTTP/1.1 200\r\ncontent-length:5\r\n\r\nhello",
	};
	char value[8];

	(void)state;
	for (size_t i = 0; i < COUNT(texts); i++) {
		struct http_rig rig;
		struct http_ask ask;
		char sink[5];
		run_text(&rig, &ask, texts[i]);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_int_equal(ask.req.status, 200);
		assert_string_equal(ask.req.reply, "hello");
		assert_false(ckpt_http_header(&ask.req, "x-early", value, sizeof(value)));
		http_ask_clear(&ask);
		/* The same, to where there is just so much room. */
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.sink = sink;
		ask.req.room = sizeof(sink);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_null(ask.req.reply);
		assert_int_equal(ask.req.received, 5);
		assert_memory_equal(sink, "hello", 5);
		http_ask_clear(&ask);
		/* Less. */
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.sink = sink;
		ask.req.room = sizeof(sink) - 1;
		assert_int_equal(http_ask_run(&ask), -EFBIG);
		http_ask_clear(&ask);
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.reply_limit = 4;
		assert_int_equal(http_ask_run(&ask), -EFBIG);
		assert_null(ask.req.reply);
		http_ask_clear(&ask);
		http_rig_close(&rig);
	}
}

/* An error's body is for people: it goes to the reply, whatever the sink, and may be cut. */
static void test_answers_of_errors(void **state)
{
	struct http_rig rig;
	struct http_ask ask;
	char sink[64] = "as it was";

	(void)state;
	run_text(&rig, &ask,
		"HTTP/1.1 503 Slow Down\r\nRetry-After: 7\r\nContent-Length: 10\r\n\r\n0123456789");
	ask.req.sink = sink;
	ask.req.room = sizeof(sink);
	ask.req.reply_limit = 4;
	assert_int_equal(http_ask_run(&ask), 0);
	assert_int_equal(ask.req.status, 503);
	assert_string_equal(ask.req.reply, "0123");
	assert_int_equal(ask.req.reply_length, 4);
	assert_int_equal(ask.req.received, 10);
	assert_string_equal(sink, "as it was");
	http_ask_clear(&ask);
	http_rig_close(&rig);
	/* Nobody is followed: what was signed was signed for one server. */
	run_text(&rig, &ask,
		"HTTP/1.1 307 Elsewhere\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: "
		"0\r\n\r\n");
	assert_int_equal(http_ask_run(&ask), 0);
	assert_int_equal(ask.req.status, 307);
	http_ask_clear(&ask);
	http_rig_close(&rig);
}

/* Refuses before the body, if it is asked first. */
static void serve_expect(struct http_peer *peer, void *user)
{
	const bool *refuse = user;

	while (http_peer_head(peer)) {
		if (!http_peer_header(peer, "expect"))
			return;
		if (*refuse) {
			(void)http_peer_send(peer,
				"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: "
				"close\r\n\r\n");
			return;
		}
		if (!http_peer_send(peer, "HTTP/1.1 100 Continue\r\n\r\n") ||
			!http_peer_body(peer, UINT64_MAX))
			return;
		char text[128];
		(void)snprintf(text, sizeof(text),
			"HTTP/1.1 200 OK\r\nX-Sum: %llu\r\nContent-Length: 0\r\n\r\n",
			(unsigned long long)peer->body_sum);
		(void)http_peer_send(peer, text);
	}
}

static void test_expect(void **state)
{
	struct http_rig rig;
	struct http_ask ask;
	bool refuse = false;
	char value[32];

	(void)state;
	fill_body();
	http_rig_open(&rig, NULL, serve_expect, &refuse, NULL);
	for (int i = 0; i < 2; i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
		ask.req.body = body;
		ask.req.body_length = BODY_BYTES;
		ask.req.expect = true;
		assert_int_equal(http_ask_run(&ask), 0);
		assert_int_equal(ask.req.status, refuse ? 403 : 200);
		if (!refuse) {
			assert_true(ckpt_http_header(&ask.req, "x-sum", value, sizeof(value)));
			assert_true(strtoull(value, NULL, 10) == sum_of(body, BODY_BYTES));
		}
		http_ask_clear(&ask);
		refuse = true;
	}
	http_rig_close(&rig);
}

/* The second request of a kept connection finds it closed, when some of its body has come. */
static void serve_dying(struct http_peer *peer, void *user)
{
	const uint64_t *take = user;
	char text[128];

	if (!http_peer_request(peer))
		return;
	for (;;) {
		(void)snprintf(text, sizeof(text),
			"HTTP/1.1 200 OK\r\nX-Sum: %llu\r\nContent-Length: 0\r\n\r\n",
			(unsigned long long)peer->body_sum);
		if (!http_peer_send(peer, text))
			return;
		if (peer->number == 0) {
			if (http_peer_head(peer) && *take > 0)
				(void)http_peer_body(peer, *take);
			http_peer_reset(peer);
			return;
		}
		if (!http_peer_request(peer))
			return;
	}
}

static void test_the_body_is_sent_again(void **state)
{
	static const uint64_t takes[] = {0, 1, 100000, 1 << 20};

	(void)state;
	fill_body();
	for (size_t i = 0; i < COUNT(takes); i++) {
		uint64_t take = takes[i];
		struct http_rig rig;
		struct http_ask ask;
		char value[32];
		http_rig_open(&rig, NULL, serve_dying, &take, NULL);
		for (int turn = 0; turn < 2; turn++) {
			http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
			ask.req.body = body;
			ask.req.body_length = BODY_BYTES;
			int r = http_ask_run(&ask);
			/* A reset under a body may be told as what it is, but never as done. */
			if (turn == 1 && r == CKPT_ENETWORK) {
				assert_int_equal(ask.req.reach, CKPT_HTTP_SENT);
				continue;
			}
			assert_int_equal(r, 0);
			assert_true(ckpt_http_header(&ask.req, "x-sum", value, sizeof(value)));
			assert_true(strtoull(value, NULL, 10) == sum_of(body, BODY_BYTES));
			http_ask_clear(&ask);
		}
		http_rig_close(&rig);
	}
}

/* Answers once, and closes when the next head is there. */
static void serve_once_kept(struct http_peer *peer, void *user)
{
	char text[128];

	(void)user;
	if (!http_peer_request(peer))
		return;
	(void)snprintf(text, sizeof(text),
		"HTTP/1.1 200 OK\r\nX-Sum: %llu\r\nContent-Length: 0\r\n\r\n",
		(unsigned long long)peer->body_sum);
	(void)http_peer_send(peer, text);
	(void)http_peer_head(peer);
}

static void test_a_closed_connection_costs_nothing(void **state)
{
	struct http_rig rig;
	struct http_ask ask;
	char value[32];

	(void)state;
	fill_body();
	http_rig_open(&rig, NULL, serve_once_kept, NULL, NULL);
	for (int i = 0; i < 8; i++) {
		http_ask_init(&ask, &rig, i % 2 ? CKPT_HTTP_POST : CKPT_HTTP_PUT);
		ask.req.body = body;
		ask.req.body_length = 1000;
		assert_int_equal(http_ask_run(&ask), 0);
		assert_true(ckpt_http_header(&ask.req, "x-sum", value, sizeof(value)));
		assert_true(strtoull(value, NULL, 10) == sum_of(body, 1000));
		/* The first time there is no connection that was kept. */
		assert_int_equal(ask.req.resent, i > 0);
		http_ask_clear(&ask);
	}
	assert_true(http_server_connections(rig.server) >= 8);
	http_rig_close(&rig);
}

struct late {
	uint64_t not_after_ns;
	atomic_bool whole; /* a request has come with all of its body */
};

/* Lets the body come when it is too late. */
static void serve_late(struct http_peer *peer, void *user)
{
	struct late *late = user;

	if (!http_peer_head(peer))
		return;
	while (ckpt_age_clock_ns() <= late->not_after_ns)
		(void)sched_yield();
	if (!http_peer_send(peer, "HTTP/1.1 100 Continue\r\n\r\n"))
		return;
	if (http_peer_body(peer, SIZE_MAX))
		atomic_store(&late->whole, true);
	(void)http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
}

/* Neither a request, nor what is left of one. */
static void test_nothing_leaves_too_late(void **state)
{
	struct late late = {0};
	struct http_rig rig;
	struct http_ask ask;

	(void)state;
	http_rig_open(&rig, NULL, serve_late, &late, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_DELETE);
	ask.req.not_after_ns = 1;
	assert_int_equal(http_ask_run(&ask), -ETIMEDOUT);
	assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	assert_non_null(strstr(ask.req.words, "it was not sent within its time limit"));
	http_ask_clear(&ask);
	assert_int_equal(atomic_load(&rig.server->requests), 0);
	fill_body();
	http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
	ask.req.body = body;
	ask.req.body_length = 1000;
	ask.req.expect = true;
	late.not_after_ns = ckpt_age_clock_ns() + 200000000;
	ask.req.not_after_ns = late.not_after_ns;
	assert_int_equal(http_ask_run(&ask), -ETIMEDOUT);
	http_ask_clear(&ask);
	http_rig_close(&rig);
	assert_false(atomic_load(&late.whole));
}

/* A token does not outlast its request, in transfers that wait to be used again. */
static void test_nothing_sent_is_kept(void **state)
{
	static const struct ckpt_http_header secret = {"x-amz-security-token", "canary-7f3a"};
	const struct http_transfer *transfers[16];
	const struct http_client *client;
	struct http_rig rig;
	struct http_ask ask;
	size_t count = 0;

	(void)state;
	http_rig_open(&rig, NULL, http_serve_sink, NULL, NULL);
	client = CKPT_CONTAINER(rig.http, struct http_client, http);
	for (const struct http_transfer *t = client->threads[0].spare; t; t = t->next) {
		assert_true(count < COUNT(transfers));
		transfers[count++] = t;
	}
	for (int i = 0; i < 3; i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		ask.req.headers = &secret;
		ask.req.header_count = 1;
		/* The last one is refused before it is sent. */
		if (i == 2)
			ask.req.url = "ftp://127.0.0.1/";
		assert_int_equal(http_ask_run(&ask), i == 2 ? -EINVAL : 0);
		http_ask_clear(&ask);
		for (size_t k = 0; k < count; k++)
			assert_null(transfers[k]->headers);
	}
	http_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_sent),
		cmocka_unit_test(test_nothing_leaves_too_late),
		cmocka_unit_test(test_nothing_sent_is_kept),
		cmocka_unit_test(test_an_empty_body),
		cmocka_unit_test(test_what_is_refused),
		cmocka_unit_test(test_forms_of_answers),
		cmocka_unit_test(test_answers_of_errors),
		cmocka_unit_test(test_expect),
		cmocka_unit_test(test_the_body_is_sent_again),
		cmocka_unit_test(test_a_closed_connection_costs_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
