/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client over libcurl, in parts: http_curl.c has the line and the threads, http_curl_loop.c what a thread
 * does, http_curl_transfer.c one request and what libcurl calls for it, http_curl_result.c what became of it.
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
	HTTP_DONE, /* the client has let go of it */
};

struct http_thread;

/* A request that is under way. Its thread's, but for what is guarded. */
struct http_transfer {
	struct http_transfer *next; /* of its thread, or of those to be used again */
	struct http_transfer *prev;
	struct http_thread *thread;
	struct ckpt_http_req *req;
	CURL *easy;
	struct curl_slist *headers;
	struct curl_slist *resolve;
	char why[CURL_ERROR_SIZE]; /* libcurl's words */
	bool cancelled;            /* guarded by the client's lock */
	bool dropped;              /* that was seen */
	bool attached;             /* to the multi handle */
	bool resolving;

	/* Who is asked. */
	char host[HTTP_HOST_MAX];
	char first_address[48]; /* the one tried first; "": not resolved here */
	unsigned port;
	bool https;
	bool proxied;

	/* The answer so far. */
	struct ckpt_http_head head;
	struct ckpt_buf reply;
	uint64_t header_bytes;
	uint64_t received;
	int failure;               /* why a callback has ended it; 0: it has not */
	const char *failure_words; /* static */
	uint64_t body_at;
	unsigned sendings; /* how often it was about to be sent */

	/* Time. */
	struct ckpt_http_limits limits;
	uint64_t begun_ns;
	uint64_t moved_ns; /* when bytes were last seen to move */
	uint64_t moved;    /* how many had, then */
	uint64_t paid_ns;  /* paused until then, by the cap; 0: it is not */
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
	uint64_t due_ns; /* when the next limit is reached, or a pause ends */
	bool started;
	bool has_room; /* one has ended since it has last taken any */

	atomic_bool poked; /* something is there to be taken */
	unsigned count;    /* requests that it has; guarded by the client's lock */
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
	unsigned limit;             /* requests under way at once; guarded by lock */
	unsigned active;            /* guarded by lock */
	unsigned turn;              /* the thread that is told of the next; guarded by lock */
	bool closing;               /* guarded by lock */

	unsigned thread_count;
	struct http_thread threads[];
};

/* http_curl.c */
void http_poke(struct http_thread *thread);
/* The next in line that this thread may take; NULL: there is none, or others have to end first. */
struct ckpt_http_req *http_take(struct http_thread *thread, struct http_transfer *transfer);
/* Hands it back, and forgets it. `transfer` as it was taken. */
void http_give_back(struct http_thread *thread, struct ckpt_http_req *req);

/* http_curl_loop.c */
void *http_loop(void *argument);

/* http_curl_transfer.c */
struct http_transfer *http_transfer_make(struct http_thread *thread);
void http_transfer_free(struct http_transfer *transfer);
/* It has ended, and is attached no more: what it was given to send is cleared. */
void http_transfer_forget(struct http_transfer *transfer);
/* Who is asked, and whether that can be said at all; -EINVAL with failure_words. */
int http_transfer_address(struct http_transfer *transfer);
/* Everything is set; `addresses` may be NULL. 0, -ENOMEM, or -EINVAL with failure_words. */
int http_transfer_prepare(
	struct http_transfer *transfer, const struct ckpt_http_addresses *addresses);
/* Bytes of the request, with its body, that the connection has taken. */
bool http_transfer_sent_any(const struct http_transfer *transfer);
bool http_transfer_sent_all(const struct http_transfer *transfer);

/* http_curl_result.c */
/* Fills in the request's answer from what libcurl says. */
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
