/* SPDX-License-Identifier: Apache-2.0 */
/* A server that reads heads, throws bodies away, and is content. */
#include "bench_put.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_tool.h"

#define ROOM     ((size_t)1 << 20)
#define HEAD_MAX ((size_t)1 << 16)
#define OK_TEXT  "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
#define GO_TEXT  "HTTP/1.1 100 Continue\r\n\r\n"

struct peer {
	int fd;
	SSL *tls; /* NULL: none */
};

static SSL_CTX *certificate_of_all;

static ssize_t take(const struct peer *peer, char *data, size_t room)
{
	return peer->tls ? SSL_read(peer->tls, data, (int)room) : recv(peer->fd, data, room, 0);
}

static bool say(const struct peer *peer, const char *text)
{
	int length = (int)strlen(text);

	return peer->tls ? SSL_write(peer->tls, text, length) == length
			 : send(peer->fd, text, (size_t)length, MSG_NOSIGNAL) == length;
}

/* What of the body did not come with its head. */
static bool drop_body(const struct peer *peer, char *data, uint64_t left)
{
	while (left > 0) {
		ssize_t got = take(peer, data, left < ROOM ? (size_t)left : ROOM);
		if (got <= 0)
			return false;
		left -= (uint64_t)got;
	}
	return true;
}

static bool serve_one(const struct peer *peer, char *data)
{
	const char *end = NULL;
	size_t have = 0;

	while (!end) {
		ssize_t got = have < HEAD_MAX ? take(peer, data + have, HEAD_MAX - have) : -1;
		if (got <= 0)
			return false;
		have += (size_t)got;
		data[have] = 0;
		end = strstr(data, "\r\n\r\n");
	}
	const char *said = strcasestr(data, "\r\nContent-Length: ");
	uint64_t length = said ? strtoull(said + 18, NULL, 10) : 0;
	uint64_t left = length - (uint64_t)(data + have - (end + 4));
	if (left == length && strcasestr(data, "\r\nExpect: 100-continue") && !say(peer, GO_TEXT))
		return false;
	return drop_body(peer, data, left) && say(peer, OK_TEXT);
}

static void *serve(void *argument)
{
	struct peer peer = {.fd = (int)(intptr_t)argument};
	char *data = malloc(ROOM + 1);

	bench_must_os(data != NULL, "malloc");
	if (certificate_of_all) {
		peer.tls = SSL_new(certificate_of_all);
		bench_must_os(peer.tls && SSL_set_fd(peer.tls, peer.fd) == 1, "SSL_new");
	}
	if (!peer.tls || SSL_accept(peer.tls) == 1)
		while (serve_one(&peer, data))
			;
	SSL_free(peer.tls);
	free(data);
	(void)close(peer.fd);
	return NULL;
}

unsigned bench_sink_start(SSL_CTX *certificate, pid_t *ret_pid)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	bench_must_os(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
			      listen(fd, 1024) == 0 &&
			      getsockname(fd, (struct sockaddr *)&address, &size) == 0,
		"listen");
	*ret_pid = fork();
	bench_must_os(*ret_pid >= 0, "fork");
	if (*ret_pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		(void)signal(SIGPIPE, SIG_IGN);
		certificate_of_all = certificate;
		for (;;) {
			pthread_t thread;
			int peer = accept(fd, NULL, NULL);
			if (peer >= 0 &&
				pthread_create(&thread, NULL, serve, (void *)(intptr_t)peer) == 0)
				(void)pthread_detach(thread);
		}
	}
	(void)close(fd);
	return ntohs(address.sin_port);
}

void bench_sink_stop(pid_t pid)
{
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, NULL, 0);
}
