/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libcurl client: http_curl.c has the queue and the threads, http_curl_loop.c the loop of a thread,
 * http_curl_transfer.c a request and libcurl's callbacks, http_curl_result.c its result.
 */
#ifndef CKPT_NET_HTTP_CURL_H
#define CKPT_NET_HTTP_CURL_H

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/buf.h"
#include "net/ca_bundle.h"
#include "net/http.h"
#include "net/http_head.h"
#include "net/proxy.h"
#include "net/rate.h"
#include "net/resolver.h"

#define HTTP_HOST_MAX 256

enum http_state {
	HTTP_QUEUED = 1,
	HTTP_ACTIVE,
	HTTP_DONE, /* returned by the client */
};

struct http_thread;

/* A request in flight. Owned by its thread, except what is guarded by the lock. */
struct http_transfer {
	struct http_transfer *next; /* in the list of its thread, or of spare ones */
	struct http_transfer *prev;
	struct http_thread *thread;
	struct ckpt_http_req *req;
	CURL *easy;
	struct curl_slist *headers;
	struct curl_slist *resolve;
	char why[CURL_ERROR_SIZE]; /* libcurl's error text */
	bool cancelled;            /* guarded by the client's lock */
	bool dropped;              /* the cancellation was seen */
	bool attached;             /* added to the multi handle */
	bool resolving;

	/* The server. */
	char host[HTTP_HOST_MAX];
	char first_address[48]; /* the one tried first; "": not resolved by this client */
	unsigned port;
	bool https;
	bool proxied;

	/* The response so far. */
	struct ckpt_http_head head;
	struct ckpt_buf reply;
	uint64_t header_bytes;
	uint64_t received;
	int failure;               /* code of a callback that ended it; 0: none */
	const char *failure_words; /* static */
	uint64_t body_at;
	unsigned sendings; /* how often it was sent or about to be */

	/* Time. */
	struct ckpt_http_limits limits;
	uint64_t begun_ns;
	uint64_t moved_ns; /* when bytes last moved */
	uint64_t moved;    /* count of moved bytes at that time */
	uint64_t paid_ns;  /* paused until then by the rate limit; 0: not paused */
};

/* A thread with a multi handle of its own. */
struct http_thread {
	struct http_client *client;
	pthread_t thread;
	CURLM *multi;
	CURLSH *share; /* TLS sessions */
	struct http_transfer *active;
	struct http_transfer *spare; /* enough for its share */
	uint64_t checked_ns;
	uint64_t due_ns; /* when the next time limit or pause ends */
	bool started;
	bool has_room; /* a request has ended since it last took any */

	atomic_bool poked; /* there may be a request to take */
	unsigned count;    /* its requests in flight; guarded by the client's lock */
};

struct http_client {
	struct ckpt_http http;
	struct ckpt_ca_bundle trust;
	struct ckpt_proxy proxy;
	struct ckpt_resolver *resolver;
	struct ckpt_rate send;
	struct ckpt_rate receive;
	uint32_t idle_ms;
	bool gives_way;
	unsigned forks; /* ckpt_fork_count() when it was opened */

	pthread_mutex_t lock;
	struct ckpt_http_req *head; /* guarded by lock */
	struct ckpt_http_req *tail; /* guarded by lock */
	unsigned limit;             /* most requests in flight; guarded by lock */
	unsigned active;            /* guarded by lock */
	/* The thread that is woken for the next request; guarded by lock. */
	unsigned turn;
	bool closing; /* guarded by lock */

	unsigned thread_count;
	struct http_thread threads[];
};

/* http_curl.c */
void http_poke(struct http_thread *thread);
/* The next request for this thread; NULL: there is none, or others must end first. */
struct ckpt_http_req *http_take(struct http_thread *thread, struct http_transfer *transfer);
/* Returns the request to its owner and resets `transfer`. */
void http_give_back(struct http_thread *thread, struct ckpt_http_req *req);

/* http_curl_loop.c */
void *http_loop(void *argument);

/* http_curl_transfer.c */
struct http_transfer *http_transfer_make(struct http_thread *thread);
void http_transfer_free(struct http_transfer *transfer);
/* It has ended and was removed from the multi handle: clears what it was to send. */
void http_transfer_forget(struct http_transfer *transfer);
/* Sets host and port from the URL; -EINVAL with failure_words. */
int http_transfer_address(struct http_transfer *transfer);
/* Sets all options; `addresses` may be NULL. 0, -ENOMEM, or -EINVAL with failure_words. */
int http_transfer_prepare(
	struct http_transfer *transfer, const struct ckpt_http_addresses *addresses);
/* Whether the connection has taken any byte of the request. */
bool http_transfer_sent_any(const struct http_transfer *transfer);
bool http_transfer_sent_all(const struct http_transfer *transfer);

/* http_curl_result.c */
/* Sets the request's result from libcurl's. */
void http_end_by_curl(struct http_transfer *transfer, CURLcode code);
enum http_limit {
	HTTP_LIMIT_CONNECT = 1,
	HTTP_LIMIT_FIRST_BYTE,
	HTTP_LIMIT_STALL,
	HTTP_LIMIT_TOTAL
};
void http_end_by_limit(struct http_transfer *transfer, enum http_limit limit);
CKPT_PRINTF(3, 4)
void http_end_by_us(struct http_transfer *transfer, int code, const char *fmt, ...);

#endif
