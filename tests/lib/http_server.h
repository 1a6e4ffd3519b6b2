/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server of HTTP/1.1 that does what a test wants, wrong things first of all: each connection is served by a
 * function of the test, on a thread of its own, with the raw bytes in its hand.
 */
#ifndef CKPT_TESTS_HTTP_SERVER_H
#define CKPT_TESTS_HTTP_SERVER_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_server;
struct ssl_st;
struct ssl_ctx_st;

/* The server's end of a connection. */
struct http_peer {
	struct http_server *server;
	int fd;
	struct ssl_st *tls; /* NULL: none */
	unsigned number;    /* of the connection, from 0 */
	unsigned requests;  /* that were read whole */
	/* The last one. */
	char head[32768]; /* up to and with the empty line */
	size_t head_length;
	uint64_t body_length; /* that its head says */
	uint64_t body_sum;    /* of the bytes of its body */
	/* Read beyond that head. */
	char ahead[4096];
	size_t ahead_length;
};

typedef void http_serve_fn(struct http_peer *peer, void *user);

#define HTTP_SERVER_CONNECTIONS 4096

struct http_server {
	int fd;
	unsigned port;
	http_serve_fn *serve;
	void *user;
	struct ssl_ctx_st *tls;
	pthread_t thread;
	pthread_mutex_t lock;
	unsigned count;                   /* connections so far; guarded by lock */
	int fds[HTTP_SERVER_CONNECTIONS]; /* -1: closed; guarded by lock */
	pthread_t threads[HTTP_SERVER_CONNECTIONS];
	bool stopping; /* guarded by lock */
	atomic_uint requests;
	atomic_uint at_once; /* requests that are being served */
	atomic_uint most_at_once;
};

/* On 127.0.0.1. `tls` may be NULL. Ends the program if that cannot be. */
struct http_server *http_server_start(http_serve_fn *serve, void *user, struct ssl_ctx_st *tls);
/* At another address of this machine, IPv6 or not; port 0: any. NULL: it has no such, or the port is taken. */
struct http_server *http_server_start_at(
	const char *address, unsigned port, http_serve_fn *serve, void *user);
/* Ends every connection. NULL is ignored. */
void http_server_stop(struct http_server *server);
unsigned http_server_connections(struct http_server *server);

/* The next head; false: the client has closed. */
bool http_peer_head(struct http_peer *peer);
/* `count` bytes of its body, or as many as come; SIZE_MAX: all that are left. False: fewer came. */
bool http_peer_body(struct http_peer *peer, uint64_t count);
/* Both. */
bool http_peer_request(struct http_peer *peer);
/* False: the client has closed. */
bool http_peer_send(struct http_peer *peer, const char *text);
bool http_peer_send_bytes(struct http_peer *peer, const void *data, size_t length);
/* Until the client closes, or the server is stopped. */
void http_peer_hold(struct http_peer *peer);
/* The connection ends with a reset. */
void http_peer_reset(struct http_peer *peer);
/* The value of a header of the head, in memory that the next call uses again; NULL: there is none. */
const char *http_peer_header(struct http_peer *peer, const char *name);

/* Takes all, answers 200 to all: `user` is NULL. */
void http_serve_sink(struct http_peer *peer, void *user);

#endif
