/* SPDX-License-Identifier: Apache-2.0 */
/* Raw sockets, a thread for each connection. */
#include "lib/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(bool good, const char *what)
{
	if (good)
		return;
	perror(what);
	_exit(1);
}

static ssize_t receive(struct http_peer *peer, void *to, size_t size)
{
	if (peer->tls)
		return SSL_read(peer->tls, to, (int)size);
	return TEMP_FAILURE_RETRY(recv(peer->fd, to, size, 0));
}

bool http_peer_head(struct http_peer *peer)
{
	size_t length = peer->ahead_length;
	char *end;

	memcpy(peer->head, peer->ahead, length);
	peer->head[length] = 0;
	while (!(end = strstr(peer->head, "\r\n\r\n"))) {
		if (length + sizeof(peer->ahead) >= sizeof(peer->head))
			return false;
		ssize_t got = receive(peer, peer->head + length, sizeof(peer->ahead) - 1);
		if (got <= 0)
			return false;
		length += (size_t)got;
		peer->head[length] = 0;
	}
	peer->head_length = (size_t)(end + 4 - peer->head);
	peer->ahead_length = length - peer->head_length;
	memcpy(peer->ahead, peer->head + peer->head_length, peer->ahead_length);
	peer->head[peer->head_length] = 0;
	const char *said = http_peer_header(peer, "content-length");
	peer->body_length = said ? strtoull(said, NULL, 10) : 0;
	peer->body_sum = 0;
	return true;
}

bool http_peer_body(struct http_peer *peer, uint64_t count)
{
	static _Thread_local unsigned char data[256 << 10];
	uint64_t left = count < peer->body_length ? count : peer->body_length;

	while (left > 0) {
		size_t want = left < sizeof(data) ? (size_t)left : sizeof(data);
		ssize_t got;
		if (peer->ahead_length > 0) {
			got = (ssize_t)(want < peer->ahead_length ? want : peer->ahead_length);
			memcpy(data, peer->ahead, (size_t)got);
			peer->ahead_length -= (size_t)got;
			memmove(peer->ahead, peer->ahead + got, peer->ahead_length);
		} else {
			got = receive(peer, data, want);
		}
		if (got <= 0)
			return false;
		if (peer->server->serve != http_serve_sink)
			for (ssize_t i = 0; i < got; i++)
				peer->body_sum = peer->body_sum * 31 + data[i];
		left -= (uint64_t)got;
		peer->body_length -= (uint64_t)got;
	}
	return true;
}

bool http_peer_request(struct http_peer *peer)
{
	if (!http_peer_head(peer) || !http_peer_body(peer, UINT64_MAX))
		return false;
	peer->requests++;
	atomic_fetch_add(&peer->server->requests, 1);
	return true;
}

bool http_peer_send_bytes(struct http_peer *peer, const void *data, size_t length)
{
	const char *from = data;

	while (length > 0) {
		ssize_t sent =
			peer->tls ? SSL_write(peer->tls, from, (int)length)
				  : TEMP_FAILURE_RETRY(send(peer->fd, from, length, MSG_NOSIGNAL));
		if (sent <= 0)
			return false;
		from += sent;
		length -= (size_t)sent;
	}
	return true;
}

bool http_peer_send(struct http_peer *peer, const char *text)
{
	return http_peer_send_bytes(peer, text, strlen(text));
}

void http_peer_hold(struct http_peer *peer)
{
	char byte[4096];

	while (receive(peer, byte, sizeof(byte)) > 0)
		;
}

void http_peer_reset(struct http_peer *peer)
{
	struct linger now = {.l_onoff = 1, .l_linger = 0};

	(void)setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

const char *http_peer_header(struct http_peer *peer, const char *name)
{
	static _Thread_local char value[1024];
	size_t length = strlen(name);

	for (const char *line = strstr(peer->head, "\r\n"); line; line = strstr(line, "\r\n")) {
		line += 2;
		if (strncasecmp(line, name, length) != 0 || line[length] != ':')
			continue;
		const char *from = line + length + 1;
		from += strspn(from, " ");
		(void)snprintf(value, sizeof(value), "%.*s", (int)strcspn(from, "\r"), from);
		return value;
	}
	return NULL;
}

void http_serve_sink(struct http_peer *peer, void *user)
{
	(void)user;
	while (http_peer_request(peer) &&
		http_peer_send(peer, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
		;
}

static void forget(struct http_peer *peer)
{
	struct http_server *server = peer->server;

	pthread_mutex_lock(&server->lock);
	server->fds[peer->number] = -1;
	pthread_mutex_unlock(&server->lock);
	(void)close(peer->fd);
}

static void *serve_peer(void *argument)
{
	struct http_peer *peer = argument;
	struct http_server *server = peer->server;
	bool good = true;

	if (server->tls) {
		peer->tls = SSL_new(server->tls);
		must(peer->tls && SSL_set_fd(peer->tls, peer->fd) == 1, "SSL_new");
		good = SSL_accept(peer->tls) == 1;
	}
	if (good)
		server->serve(peer, server->user);
	if (peer->tls) {
		if (good)
			(void)SSL_shutdown(peer->tls);
		SSL_free(peer->tls);
	}
	forget(peer);
	free(peer);
	return NULL;
}

static void add_peer(struct http_server *server, int fd)
{
	struct http_peer *peer = calloc(1, sizeof(*peer));
	int on = 1;

	must(peer != NULL, "calloc");
	(void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	peer->server = server;
	peer->fd = fd;
	pthread_mutex_lock(&server->lock);
	must(server->count < HTTP_SERVER_CONNECTIONS, "too many connections");
	peer->number = server->count;
	server->fds[peer->number] = fd;
	must(pthread_create(&server->threads[peer->number], NULL, serve_peer, peer) == 0,
		"pthread_create");
	server->count++;
	if (server->stopping)
		(void)shutdown(fd, SHUT_RDWR);
	pthread_mutex_unlock(&server->lock);
}

static void *listen_on(void *argument)
{
	struct http_server *server = argument;
	int fd;

	while ((fd = accept4(server->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0 || errno == ECONNABORTED) {
		if (fd >= 0)
			add_peer(server, fd);
	}
	return NULL;
}

/* A listening socket, or -1. */
static int listen_at(const char *text, unsigned *port)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
	} address = {.v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)*port)}};
	socklen_t size = sizeof(address.v4);

	if (inet_pton(AF_INET, text, &address.v4.sin_addr) != 1) {
		address.v6 = (struct sockaddr_in6){
			.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)*port)};
		size = sizeof(address.v6);
		must(inet_pton(AF_INET6, text, &address.v6.sin6_addr) == 1, "inet_pton");
	}
	int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -1;
	if (bind(fd, &address.any, size) != 0 || listen(fd, 1024) != 0 ||
		getsockname(fd, &address.any, &size) != 0) {
		(void)close(fd);
		return -1;
	}
	/* At the same place in both. */
	*port = ntohs(address.v4.sin_port);
	return fd;
}

static struct http_server *start(
	int fd, unsigned port, http_serve_fn *serve, void *user, struct ssl_ctx_st *tls)
{
	struct http_server *server = calloc(1, sizeof(*server));

	must(server != NULL, "calloc");
	/* OpenSSL writes without MSG_NOSIGNAL. */
	(void)signal(SIGPIPE, SIG_IGN);
	server->serve = serve;
	server->user = user;
	server->tls = tls;
	server->fd = fd;
	server->port = port;
	must(pthread_mutex_init(&server->lock, NULL) == 0, "pthread_mutex_init");
	must(pthread_create(&server->thread, NULL, listen_on, server) == 0, "pthread_create");
	return server;
}

struct http_server *http_server_start(http_serve_fn *serve, void *user, struct ssl_ctx_st *tls)
{
	unsigned port = 0;
	int fd = listen_at("127.0.0.1", &port);

	must(fd >= 0, "listen");
	return start(fd, port, serve, user, tls);
}

struct http_server *http_server_start_at(
	const char *address, unsigned port, http_serve_fn *serve, void *user)
{
	int fd = listen_at(address, &port);

	return fd < 0 ? NULL : start(fd, port, serve, user, NULL);
}

unsigned http_server_connections(struct http_server *server)
{
	unsigned count;

	pthread_mutex_lock(&server->lock);
	count = server->count;
	pthread_mutex_unlock(&server->lock);
	return count;
}

void http_server_stop(struct http_server *server)
{
	if (!server)
		return;
	pthread_mutex_lock(&server->lock);
	server->stopping = true;
	for (unsigned i = 0; i < server->count; i++) {
		if (server->fds[i] >= 0)
			(void)shutdown(server->fds[i], SHUT_RDWR);
	}
	pthread_mutex_unlock(&server->lock);
	(void)shutdown(server->fd, SHUT_RDWR);
	(void)pthread_join(server->thread, NULL);
	(void)close(server->fd);
	for (unsigned i = 0; i < server->count; i++)
		(void)pthread_join(server->threads[i], NULL);
	(void)pthread_mutex_destroy(&server->lock);
	free(server);
}
