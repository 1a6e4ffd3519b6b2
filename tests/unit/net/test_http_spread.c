/* SPDX-License-Identifier: Apache-2.0 */
/* A service has many addresses, and connections that are not for ever: who is asked, and over what. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "lib/hang.h"
#include "lib/http_rig.h"
#include "lib/test.h"

#define SERVERS 3
#define ASKS    48 /* at once, each over a connection of its own */

/* The same port at several addresses of this machine. */
struct spread {
	struct http_server *servers[SERVERS];
	struct http_rig rig;
	bool narrow; /* the name has the first alone */
};

static const char *const addresses[SERVERS] = {"127.0.0.1", "127.0.0.2", "127.0.0.3"};

static int look_up(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	const struct spread *s = user;
	unsigned count = s && s->narrow ? 1 : SERVERS;

	(void)host;
	for (unsigned i = 0; i < count; i++)
		(void)snprintf(
			ret_addresses->text[i], sizeof(ret_addresses->text[i]), "%s", addresses[i]);
	ret_addresses->count = count;
	return 0;
}

/* Answers nothing before every request is there, so that none lends its connection to another. */
static void serve_together(struct http_peer *peer, void *user)
{
	atomic_uint *here = user;

	while (http_peer_request(peer)) {
		atomic_fetch_add(here, 1);
		await(atomic_load(here) >= ASKS);
		if (!http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
			return;
	}
}

static void open_spread(struct spread *s, uint32_t idle_ms, http_serve_fn *serve, void *user)
{
	const struct ckpt_http_config config = {
		.lookup = look_up, .user = s, .connections = 64, .idle_ms = idle_ms};

	for (unsigned i = 0; i < SERVERS; i++) {
		unsigned port = i > 0 ? s->servers[0]->port : 0;
		s->servers[i] = http_server_start_at(addresses[i], port, serve, user);
		assert_non_null(s->servers[i]);
	}
	http_rig_open(&s->rig, &config, NULL, NULL, NULL);
}

static void close_spread(struct spread *s)
{
	http_rig_close(&s->rig);
	for (unsigned i = 0; i < SERVERS; i++)
		http_server_stop(s->servers[i]);
}

static void ask_spread(struct http_ask *ask, struct spread *s, const char *apart)
{
	http_ask_init(ask, &s->rig, CKPT_HTTP_GET);
	http_ask_url(ask, "http", "store.example", s->servers[0]->port);
	ask->req.apart = apart;
}

static unsigned connections(const struct spread *s)
{
	unsigned count = 0;

	for (unsigned i = 0; i < SERVERS; i++)
		count += http_server_connections(s->servers[i]);
	return count;
}

static void test_all_addresses(void **state)
{
	static struct http_ask asks[ASKS];
	atomic_uint here = 0;
	struct spread s = {.narrow = false};

	(void)state;
	open_spread(&s, 0, serve_together, &here);
	for (unsigned i = 0; i < COUNT(asks); i++) {
		ask_spread(&asks[i], &s, NULL);
		http_ask_submit(&asks[i]);
	}
	http_rig_wait(&s.rig, COUNT(asks));
	for (unsigned i = 0; i < COUNT(asks); i++) {
		assert_int_equal(asks[i].req.result, 0);
		http_ask_clear(&asks[i]);
	}
	for (unsigned i = 0; i < SERVERS; i++)
		assert_int_equal(http_server_connections(s.servers[i]), ASKS / SERVERS);
	close_spread(&s);
}

/* What was slow is asked again over a new connection, and of another address if there is one. */
static void test_apart(void **state)
{
	struct spread s = {.narrow = false};
	char peer[64];
	struct http_ask ask;

	(void)state;
	open_spread(&s, 0, http_serve_sink, NULL);
	ask_spread(&ask, &s, NULL);
	assert_int_equal(http_ask_run(&ask), 0);
	assert_int_equal(connections(&s), 1);
	for (unsigned i = 0; i < 20; i++) {
		memcpy(peer, ask.req.peer, sizeof(peer));
		http_ask_clear(&ask);
		ask_spread(&ask, &s, peer);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_string_not_equal(ask.req.peer, peer);
		assert_int_equal(connections(&s), 2 + i);
	}
	http_ask_clear(&ask);
	/* Others go on with what is there. */
	ask_spread(&ask, &s, NULL);
	assert_int_equal(http_ask_run(&ask), 0);
	http_ask_clear(&ask);
	assert_int_equal(connections(&s), 21);
	close_spread(&s);
	/* With one address: over a new connection at least. */
	s = (struct spread){.narrow = true};
	open_spread(&s, 0, http_serve_sink, NULL);
	for (unsigned i = 0; i < 4; i++) {
		ask_spread(&ask, &s, i > 0 ? peer : NULL);
		assert_int_equal(http_ask_run(&ask), 0);
		memcpy(peer, ask.req.peer, sizeof(peer));
		http_ask_clear(&ask);
		assert_int_equal(connections(&s), i + 1);
	}
	close_spread(&s);
}

/* A name that has both: over whichever answers. And an address in the URL itself. */
static int look_up_both(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	bool first = strcmp(host, "six.example") == 0;

	(void)user;
	(void)snprintf(ret_addresses->text[first ? 0 : 1], sizeof(ret_addresses->text[0]), "::1");
	(void)snprintf(
		ret_addresses->text[first ? 1 : 0], sizeof(ret_addresses->text[0]), "127.0.0.2");
	ret_addresses->count = 2;
	return 0;
}

static void test_ipv6(void **state)
{
	static const char *const hosts[] = {"six.example", "four.example", "[::1]"};
	const struct ckpt_http_config config = {.lookup = look_up_both};
	struct http_server *server = http_server_start_at("::1", 0, http_serve_sink, NULL);
	struct http_rig rig;
	struct http_ask ask;
	unsigned port;
	char peer[64];
	char words[80];

	(void)state;
	/* This machine has none. */
	if (!server)
		skip();
	http_rig_open(&rig, &config, NULL, NULL, NULL);
	(void)snprintf(peer, sizeof(peer), "[::1]:%u", server->port);
	for (size_t i = 0; i < COUNT(hosts); i++) {
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		http_ask_url(&ask, "http", hosts[i], server->port);
		assert_int_equal(http_ask_run(&ask), 0);
		assert_string_equal(ask.req.peer, peer);
		http_ask_clear(&ask);
		/* What was slow at that address is asked there again, if there is no other that answers. */
		http_ask_init(&ask, &rig, CKPT_HTTP_GET);
		http_ask_url(&ask, "http", hosts[i], server->port);
		ask.req.apart = peer;
		assert_int_equal(http_ask_run(&ask), 0);
		assert_string_equal(ask.req.peer, peer);
		http_ask_clear(&ask);
	}
	port = server->port;
	http_server_stop(server);
	http_ask_init(&ask, &rig, CKPT_HTTP_GET);
	http_ask_url(&ask, "http", "[::1]", port);
	assert_int_equal(http_ask_run(&ask), CKPT_ENETWORK);
	(void)snprintf(words, sizeof(words), "cannot connect to %s", peer);
	assert_non_null(strstr(ask.req.words, words));
	http_ask_clear(&ask);
	http_rig_close(&rig);
}

/* A server closes what is idle; before that it is not used any more, so that no request is lost with it. */
static void test_idle_connections(void **state)
{
	struct spread s = {.narrow = true};
	struct http_ask ask;

	(void)state;
	open_spread(&s, 1, http_serve_sink, NULL);
	for (unsigned i = 0; i < 2; i++) {
		ask_spread(&ask, &s, NULL);
		assert_int_equal(http_ask_run(&ask), 0);
		http_ask_clear(&ask);
		assert_int_equal(connections(&s), i + 1);
		/* By libcurl's clock, in whole seconds: more than one, however long it takes. */
		if (i == 0)
			(void)ckpt_inbox_wait(&s.rig.inbox, ckpt_deadline(2100));
	}
	close_spread(&s);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_addresses),
		cmocka_unit_test(test_apart),
		cmocka_unit_test(test_ipv6),
		cmocka_unit_test(test_idle_connections),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
