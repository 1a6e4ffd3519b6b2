/* SPDX-License-Identifier: Apache-2.0 */
/* Servers are who they say they are, or nothing is sent to them; and what is wrong is said. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "lib/http_rig.h"
#include "lib/scratch.h"
#include "lib/test.h"
#include "lib/tls_kit.h"

#define BODY_BYTES (4u << 20)

static char body[BODY_BYTES];

struct kit {
	char *dir;
	struct tls_ca ca;
	struct tls_ca other;
	char ca_file[512];
};

static struct kit kit;

static int set_up(void **state)
{
	(void)state;
	kit.dir = scratch_make();
	kit.ca = tls_ca_make();
	kit.other = tls_ca_make();
	(void)snprintf(kit.ca_file, sizeof(kit.ca_file), "%s/ca.pem", kit.dir);
	tls_ca_write(&kit.ca, kit.ca_file);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	tls_ca_free(&kit.ca);
	tls_ca_free(&kit.other);
	scratch_remove(kit.dir);
	return 0;
}

static const char *variable(void *user, const char *name)
{
	(void)user;
	return strcmp(name, "AWS_CA_BUNDLE") == 0 ? kit.ca_file : NULL;
}

static void serve_sum(struct http_peer *peer, void *user)
{
	char text[200];

	(void)user;
	while (http_peer_request(peer)) {
		(void)snprintf(text, sizeof(text),
			"HTTP/1.1 200 OK\r\nX-Sum: %llu\r\nX-Again: %d\r\nContent-Length: 5\r\n"
			"Connection: close\r\n\r\nhello",
			(unsigned long long)peer->body_sum, SSL_session_reused(peer->tls));
		(void)http_peer_send(peer, text);
		return;
	}
}

/* A whole body there and an answer back; the second connection goes on with the session of the first. */
static void test_a_good_certificate(void **state)
{
	const struct ckpt_http_config config = {.variable = variable};
	SSL_CTX *tls = tls_server_make(&kit.ca, "DNS:localhost,IP:127.0.0.1", 1);
	struct http_rig rig;
	struct http_ask ask;
	char value[32];
	uint64_t sum = 0;

	(void)state;
	(void)SSL_CTX_set_session_id_context(tls, (const unsigned char *)"t", 1);
	for (size_t i = 0; i < sizeof(body); i++) {
		body[i] = (char)(i * 13 + (i >> 9));
		sum = sum * 31 + (unsigned char)body[i];
	}
	http_rig_open(&rig, &config, serve_sum, NULL, tls);
	for (int i = 0; i < 2; i++) {
		char expected[32];
		http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
		ask.req.body = body;
		ask.req.body_length = sizeof(body);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_string_equal(ask.req.reply, "hello");
		assert_true(ckpt_http_header(&ask.req, "x-sum", value, sizeof(value)));
		(void)snprintf(expected, sizeof(expected), "%llu", (unsigned long long)sum);
		assert_string_equal(value, expected);
		assert_true(ckpt_http_header(&ask.req, "x-again", value, sizeof(value)));
		assert_string_equal(value, i == 0 ? "0" : "1");
		http_ask_clear(&ask);
	}
	http_rig_close(&rig);
	SSL_CTX_free(tls);
}

static void expect_refused(SSL_CTX *tls, const char *ca_file, int code, const char *words)
{
	const struct ckpt_http_config config = {.ca_file = ca_file};
	struct http_rig rig;
	struct http_ask ask;

	http_rig_open(&rig, &config, serve_sum, NULL, tls);
	http_ask_init(&ask, &rig, CKPT_HTTP_PUT);
	ask.req.body = body;
	ask.req.body_length = 1000;
	assert_int_equal(http_ask_run(&ask), code);
	assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
	assert_non_null(strstr(ask.req.words, words));
	if (code == CKPT_EAUTH)
		assert_non_null(strstr(ask.req.words, "AWS_CA_BUNDLE"));
	assert_int_equal(atomic_load(&rig.server->requests), 0);
	http_rig_close(&rig);
	SSL_CTX_free(tls);
}

static void test_bad_certificates(void **state)
{
	char path[600];

	(void)state;
	expect_refused(tls_server_make(&kit.other, "IP:127.0.0.1", 1), kit.ca_file, CKPT_EAUTH,
		"unable to get local issuer certificate");
	expect_refused(
		tls_server_make(&kit.ca, "IP:127.0.0.1", -1), kit.ca_file, CKPT_EAUTH, "expired");
	expect_refused(tls_server_make(&kit.ca, "DNS:other.example", 1), kit.ca_file, CKPT_EAUTH,
		"127.0.0.1");
	/* The machine's own CAs are not asked beside the one that is named. */
	(void)snprintf(path, sizeof(path), "%s/empty.pem", kit.dir);
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	(void)close(fd);
	expect_refused(tls_server_make(&kit.ca, "IP:127.0.0.1", 1), path, CKPT_EAUTH, "empty.pem");
}

static void test_old_tls(void **state)
{
	SSL_CTX *tls = tls_server_make(&kit.ca, "IP:127.0.0.1", 1);

	(void)state;
	SSL_CTX_set_security_level(tls, 0);
	(void)SSL_CTX_set_min_proto_version(tls, TLS1_VERSION);
	(void)SSL_CTX_set_max_proto_version(tls, TLS1_1_VERSION);
	expect_refused(tls, kit.ca_file, CKPT_ENETWORK, "TLS with");
}

/* A proxy that refuses, and one that lets the server's bad certificate be seen. */
static void serve_refusal(struct http_peer *peer, void *user)
{
	if (http_peer_head(peer))
		(void)http_peer_send(peer, user);
}

static void test_proxy_refuses(void **state)
{
	static const struct {
		const char *text;
		int code;
		const char *words;
	} cases[] = {
		{"HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n", CKPT_EAUTH, "status 407"},
		{"HTTP/1.1 502 Bad\r\nContent-Length: 0\r\n\r\n", CKPT_ENETWORK, "status 502"},
		{"HTTP/1.1 200 OK\r\n\r\n", CKPT_ENETWORK, "store.example"},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		char proxy[64];
		struct http_server *server =
			http_server_start(serve_refusal, (void *)(uintptr_t)cases[i].text, NULL);
		(void)snprintf(proxy, sizeof(proxy), "http://me:secret@127.0.0.1:%u", server->port);
		const struct ckpt_http_config config = {.ca_file = kit.ca_file, .proxy = proxy};
		struct http_rig rig;
		struct http_ask ask;
		http_rig_open(&rig, &config, NULL, NULL, NULL);
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		http_ask_url(&ask, "https", "store.example", 443);
		assert_int_equal(http_ask_run(&ask), cases[i].code);
		assert_int_equal(ask.req.reach, CKPT_HTTP_UNSENT);
		assert_non_null(strstr(ask.req.words, cases[i].words));
		assert_int_equal(http_server_connections(server), 1);
		http_rig_close(&rig);
		http_server_stop(server);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_good_certificate),
		cmocka_unit_test(test_bad_certificates),
		cmocka_unit_test(test_old_tls),
		cmocka_unit_test(test_proxy_refuses),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
