/* SPDX-License-Identifier: Apache-2.0 */
/* Servers that lie, close, reset and stall: a code, how far it came, and words of what happened. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "lib/hang_inbox.h"
#include "lib/http_rig.h"
#include "lib/test.h"

#define BIG (8u << 20)

static char big[BIG];

static void serve_text_and_close(struct http_peer *peer, void *user)
{
	if (http_peer_request(peer))
		(void)http_peer_send(peer, user);
}

static void serve_text_and_reset(struct http_peer *peer, void *user)
{
	serve_text_and_close(peer, user);
	http_peer_reset(peer);
}

/* The request is made of a server that gives that text; `words` are in what is said. */
static void expect_failure(http_serve_fn *serve, const char *text, int code, const char *words)
{
	struct http_rig rig;
	struct http_ask ask;

	http_rig_open(&rig, NULL, serve, (void *)(uintptr_t)text, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	assert_int_equal(http_ask_run(&ask), code);
	assert_int_equal(ask.req.reach, CKPT_HTTP_SENT);
	assert_non_null(strstr(ask.req.words, words));
	assert_null(ask.req.reply);
	assert_null(ask.req.header_text);
	assert_true(ask.req.peer[0] != 0);
	http_rig_close(&rig);
}

static void test_answers_that_end_early(void **state)
{
	(void)state;
	expect_failure(serve_text_and_close, "", CKPT_ENETWORK, "without an answer");
	expect_failure(serve_text_and_close, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		CKPT_ENETWORK, "after 5 of 10 bytes");
	expect_failure(serve_text_and_close,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		CKPT_ENETWORK, "the answer");
	expect_failure(serve_text_and_close, "HTTP/1.1 100 Continue\r\n\r\n", CKPT_ENETWORK, "");
	expect_failure(serve_text_and_reset, "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		CKPT_ENETWORK, "127.0.0.1");
}

static void test_answers_that_are_not_http(void **state)
{
	(void)state;
	expect_failure(serve_text_and_close, "220 mail.example ESMTP\r\n\r\n", CKPT_EFORMAT,
		"not HTTP/1.1");
	expect_failure(serve_text_and_close,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n",
		CKPT_ENETWORK, "127.0.0.1");
}

/* Many short headers, or one without an end. */
static void serve_headers(struct http_peer *peer, void *user)
{
	const char *line = user;

	if (!http_peer_request(peer) || !http_peer_send(peer, "HTTP/1.1 200 OK\r\n"))
		return;
	for (int i = 0; i < 4000000 && http_peer_send(peer, line); i++)
		;
}

static void test_headers_are_bounded(void **state)
{
	(void)state;
	expect_failure(serve_headers, "X-Filler: 0123456789012345678901234567890123456789\r\n",
		CKPT_EFORMAT, "headers");
	expect_failure(serve_headers, "X-Endless-0123456789012345678901234567890123456789",
		CKPT_EFORMAT, "headers");
}

/* Takes so much of the body, and no more. */
static void serve_part(struct http_peer *peer, void *user)
{
	const uint64_t *take = user;

	if (http_peer_head(peer) && http_peer_body(peer, *take))
		http_peer_reset(peer);
}

static void test_uploads_that_are_cut(void **state)
{
	static const uint64_t takes[] = {0, 1, 65536, 1 << 20};

	(void)state;
	for (size_t i = 0; i < COUNT(takes); i++) {
		uint64_t take = takes[i];
		struct http_rig rig;
		struct http_ask ask;
		http_rig_open(&rig, NULL, serve_part, &take, NULL);
		http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
		ask.req.body = big;
		ask.req.body_length = sizeof(big);
		assert_int_equal(http_ask_run(&ask), CKPT_ENETWORK);
		assert_int_equal(ask.req.reach, CKPT_HTTP_SENT);
		assert_non_null(strstr(ask.req.words, "127.0.0.1"));
		http_rig_close(&rig);
	}
}

static void test_nobody_listens(void **state)
{
	struct http_rig rig;
	struct http_ask ask;
	char words[64];
	unsigned port;

	(void)state;
	/* A port that was just let go. */
	struct http_server *gone = http_server_start(http_serve_sink, NULL, NULL);
	port = gone->port;
	http_server_stop(gone);
	http_rig_open(&rig, NULL, NULL, NULL, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "127.0.0.1", port);
	assert_int_equal(http_ask_run(&ask), CKPT_ENETWORK);
	assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	(void)snprintf(words, sizeof(words), "cannot connect to 127.0.0.1:%u", port);
	assert_non_null(strstr(ask.req.words, words));
	assert_non_null(strstr(ask.req.words, "Connection refused"));
	http_rig_close(&rig);
}

/* Names. */

static int look_up(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	(void)user;
	if (strcmp(host, "nowhere.example") == 0)
		return EAI_NONAME;
	if (strcmp(host, "store.example") != 0)
		return EAI_FAIL;
	/* Nobody listens at the first. */
	(void)snprintf(ret_addresses->text[0], sizeof(ret_addresses->text[0]), "127.0.0.2");
	(void)snprintf(ret_addresses->text[1], sizeof(ret_addresses->text[1]), "127.0.0.1");
	ret_addresses->count = 2;
	return 0;
}

static void serve_host(struct http_peer *peer, void *user)
{
	char text[256];

	(void)user;
	while (http_peer_request(peer)) {
		const char *host = http_peer_header(peer, "host");
		(void)snprintf(text, sizeof(text),
			"HTTP/1.1 200 OK\r\nX-Host: %s\r\nContent-Length: 0\r\n\r\n",
			host ? host : "-");
		if (!http_peer_send(peer, text))
			return;
	}
}

static void test_names(void **state)
{
	const struct ckpt_http_config config = {.lookup = look_up};
	struct http_rig rig;
	struct http_ask ask;
	char host[64];
	char value[64];

	(void)state;
	http_rig_open(&rig, &config, serve_host, NULL, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "nowhere.example", rig.server->port);
	assert_int_equal(http_ask_run(&ask), CKPT_ENETWORK);
	assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	assert_non_null(strstr(ask.req.words, "nowhere.example"));
	/* Another address stands in for the one where nobody is, and the server hears the name. */
	for (int i = 0; i < 4; i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		http_ask_url(&ask, "http", "store.example", rig.server->port);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_memory_equal(ask.req.peer, "127.0.0.1:", 10);
		(void)snprintf(host, sizeof(host), "store.example:%u", rig.server->port);
		assert_true(ckpt_http_header(&ask.req, "x-host", value, sizeof(value)));
		assert_string_equal(value, host);
		http_ask_clear(&ask);
	}
	/* libcurl knows these by itself. */
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "s3.localhost", rig.server->port);
	assert_int_equal(http_ask_run(&ask), 0);
	http_ask_clear(&ask);
	http_rig_close(&rig);
}

/* Limits. */

enum stall {
	STALL_HEAD,   /* nothing is answered */
	STALL_ANSWER, /* half of an answer */
	STALL_BODY,   /* half of the body is taken */
	STALL_DRIPS,  /* a byte now and then, for ever */
};

struct stalling {
	enum stall stall;
	struct ckpt_latch over; /* bit 0: the client has been told */
};

static void serve_stalling(struct http_peer *peer, void *user)
{
	struct stalling *s = user;

	if (!http_peer_head(peer) ||
		!http_peer_body(peer, s->stall == STALL_BODY ? 1000 : UINT64_MAX))
		return;
	if (s->stall == STALL_BODY) {
		/* Without a look at what the client sends. */
		await_latch(&s->over, 1);
		return;
	}
	if (s->stall == STALL_ANSWER)
		(void)http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf");
	if (s->stall == STALL_DRIPS &&
		http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n")) {
		while (http_peer_send(peer, "."))
			(void)ckpt_latch_wait(&s->over, 1, 20);
	}
	http_peer_hold(peer);
}

static void run_stall(enum stall stall, struct ckpt_http_limits limits, const char *words)
{
	struct stalling s = {.stall = stall};
	struct http_rig rig;
	struct http_ask ask;

	assert_int_equal(ckpt_latch_init(&s.over), 0);
	http_rig_open(&rig, NULL, serve_stalling, &s, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
	ask.req.body = big;
	ask.req.body_length = stall == STALL_BODY ? sizeof(big) : 10000;
	ask.req.limits = limits;
	assert_int_equal(http_ask_run(&ask), -ETIMEDOUT);
	assert_int_equal(ask.req.reach, CKPT_HTTP_SENT);
	assert_non_null(strstr(ask.req.words, words));
	assert_non_null(strstr(ask.req.words, "127.0.0.1"));
	/* Not before its time; how much later is the machine's. */
	assert_true(ask.req.total_ns >= UINT64_C(300000000));
	ckpt_latch_set(&s.over, 1);
	http_rig_close(&rig);
	ckpt_latch_destroy(&s.over);
}

static void test_limits(void **state)
{
	(void)state;
	run_stall(STALL_HEAD, (struct ckpt_http_limits){.first_byte_ms = 300}, "no answer from");
	run_stall(STALL_ANSWER, (struct ckpt_http_limits){.stall_ms = 300}, "stalled");
	run_stall(STALL_BODY, (struct ckpt_http_limits){.stall_ms = 300}, "stalled");
	/* What drips does not stall, and ends all the same. */
	run_stall(STALL_DRIPS, (struct ckpt_http_limits){.stall_ms = 30000, .total_ms = 1000},
		"not completed within 1 s");
}

static int never(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	struct stalling *s = user;

	(void)host;
	(void)ret_addresses;
	await_latch(&s->over, 1);
	return EAI_AGAIN;
}

/* A name that nobody answers for holds up neither the request nor the close. */
static void test_a_name_that_hangs(void **state)
{
	static struct stalling s;
	const struct ckpt_http_config config = {.lookup = never, .user = &s};
	struct http_rig rig;
	struct http_ask ask;

	(void)state;
	assert_int_equal(ckpt_latch_init(&s.over), 0);
	http_rig_open(&rig, &config, NULL, NULL, NULL);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "hangs.example", 80);
	ask.req.limits.connect_ms = 300;
	assert_int_equal(http_ask_run(&ask), -ETIMEDOUT);
	assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	assert_non_null(strstr(ask.req.words, "not resolved within 0.3 s"));
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "hangs.example", 80);
	http_ask_submit(&ask);
	http_rig_close(&rig);
	assert_int_equal(ask.came_back, 1);
	assert_int_equal(ask.req.result, -ECANCELED);
	/* Its thread may look at this when the test has ended. */
	ckpt_latch_set(&s.over, 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_answers_that_end_early),
		cmocka_unit_test(test_answers_that_are_not_http),
		cmocka_unit_test(test_headers_are_bounded),
		cmocka_unit_test(test_uploads_that_are_cut),
		cmocka_unit_test(test_nobody_listens),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_a_name_that_hangs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
