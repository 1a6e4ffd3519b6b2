/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous HTTP requests. Only http.c calls the members of the table. A client owns a request from
 * ckpt_http_submit() until it pushes `node` into the inbox, and never touches it after that. It sends each request
 * once; signing, retries and the meaning of responses belong to the caller (s3/). One exception: a request on a reused
 * connection that turns out to be closed is sent again, whatever its method. It may have been carried out, or be
 * carried out later. A caller whose request must not be carried out twice checks the result, and `resent`.
 */
#ifndef CKPT_NET_HTTP_H
#define CKPT_NET_HTTP_H

#include <ckpt/error.h>
#include "base/inbox.h"
#include "net/http_header.h"

enum ckpt_http_method {
	CKPT_HTTP_GET = 1,
	CKPT_HTTP_HEAD,
	CKPT_HTTP_PUT,
	CKPT_HTTP_POST,
	CKPT_HTTP_DELETE,
};

/* How far a request without a complete response came: whether the server may have carried it out. */
enum ckpt_http_reach {
	CKPT_HTTP_UNSENT = 0, /* no byte was sent: certainly not carried out */
	CKPT_HTTP_SENT,       /* it may have been carried out */
};

/* Time limits, from the start of the request; 0: the defaults given here. No request is without limits. */
struct ckpt_http_limits {
	uint32_t connect_ms;    /* name, TCP and TLS; 5,000 */
	uint32_t first_byte_ms; /* from the last byte sent to the first byte received; 30,000 */
	uint32_t stall_ms;      /* without a byte in either direction; 30,000 */
	uint32_t total_ms;      /* 600,000 */
};

#define CKPT_HTTP_WORDS_MAX   256
#define CKPT_HTTP_HEADERS_MAX 16384 /* of all response headers; more is CKPT_EFORMAT */

struct ckpt_http_req {
	struct ckpt_node node; /* pushed into the inbox when `result` is set */

	/* The request. Borrowed until it is done. */
	enum ckpt_http_method method;
	const char *url; /* absolute, and already encoded */
	const struct ckpt_http_header
		*headers; /* Host is added unless given; Content-Length always */
	size_t header_count;
	const void *body; /* of PUT and POST */
	uint64_t body_length;
	bool expect; /* PUT: send the body only after 100-continue */
	bool direct; /* bypass a configured proxy */
	/* `peer` of an earlier try: use a new connection, and another address if the name has one. NULL: any. */
	const char *apart;
	struct ckpt_http_limits limits;
	/*
	 * By ckpt_age_clock_ns(): no byte is sent after this time, not even when the request is repeated; then
	 * -ETIMEDOUT. 0: no limit.
	 */
	uint64_t not_after_ns;

	/*
	 * Where the response body goes. Status 2xx: into `sink`, if it is set; more than `room` bytes are -EFBIG.
	 * Otherwise into `reply`, which is allocated and followed by an uncounted NUL. More than `reply_limit` bytes
	 * are -EFBIG for 2xx, and are dropped for other statuses; 0: the body is dropped.
	 */
	void *sink;
	uint64_t room;
	uint64_t reply_limit;

	/*
	 * The response. `result` is 0 for a complete response of any status, else CKPT_ENETWORK, -ETIMEDOUT,
	 * -ECANCELED, -EFBIG, -ENOMEM, CKPT_EAUTH (the server's certificate), CKPT_EFORMAT (not HTTP, or headers too
	 * large), -EINVAL (a URL or header that cannot be sent), CKPT_EFORKED.
	 */
	int result;
	int status;
	uint64_t received; /* bytes of the body */
	char *reply;       /* freed by the receiver with ckpt_free() */
	uint64_t reply_length;
	char *header_text; /* "name: value\n" each, lower-case names; freed by the receiver; NULL: none */
	enum ckpt_http_reach reach;
	bool resent;       /* the client has sent it again, see above; set for every `result` */
	uint64_t begun_ns; /* from the submission to its start */
	uint64_t sent_ns;  /* from the submission to the last byte sent; 0: not sent completely */
	uint64_t first_byte_ns; /* from the submission to the first byte received; 0: none */
	uint64_t total_ns;
	char peer[64];                   /* address and port of the server; "" */
	char words[CKPT_HTTP_WORDS_MAX]; /* why it failed, as text */

	/* Private to the client. */
	struct ckpt_http_req *next;
	struct ckpt_http_req *prev;
	void *transfer;
	uint64_t submitted_ns;
	int state;
};

struct ckpt_http;

struct ckpt_http_ops {
	const char *name; /* "curl" */
	/* Any thread. Never blocks or fails: errors are returned in `result`. */
	void (*submit)(struct ckpt_http *http, struct ckpt_http_req *req);
	/*
	 * The request returns soon, with -ECANCELED unless it was done. Called by the thread that takes it from the
	 * inbox, before that; it may have been pushed already.
	 */
	void (*cancel)(struct ckpt_http *http, struct ckpt_http_req *req);
	/* Sets the most requests in flight, from 1 to the `connections` of ckpt_http_curl_open(). */
	void (*widen)(struct ckpt_http *http, unsigned connections);
	/* Cancels all requests, ends the threads and frees. No other call may run at the same time. */
	void (*close)(struct ckpt_http *http);
};

struct ckpt_http {
	const struct ckpt_http_ops *ops;
	struct ckpt_inbox *inbox;
	unsigned connections; /* most requests in flight */
};

/* The addresses of a name, as text; IPv6 without brackets. */
#define CKPT_HTTP_ADDRESSES_MAX 16
struct ckpt_http_addresses {
	unsigned count;
	char text[CKPT_HTTP_ADDRESSES_MAX][48];
};

/* Blocks. Returns 0, or a code of getaddrinfo(). */
typedef int ckpt_http_lookup_fn(
	void *user, const char *host, struct ckpt_http_addresses *ret_addresses);

struct ckpt_http_config {
	struct ckpt_inbox *inbox;
	unsigned threads;     /* each with a multi handle of its own; 0: 1 */
	unsigned connections; /* of all threads; 0: 10 */
	/* NULL: AWS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR, else the places of distributions. */
	const char *ca_file;
	const char *proxy; /* "": none; NULL: http_proxy, HTTPS_PROXY, ALL_PROXY, NO_PROXY */
	/* Reads the environment; its result is not kept. NULL: there is none. */
	const char *(*variable)(void *user, const char *name);
	/* Resolves names, on threads that may outlive the client, with `user`. NULL: getaddrinfo(). */
	ckpt_http_lookup_fn *lookup;
	void *user;
	uint64_t send_bytes_per_s; /* limit for all request bodies together; 0: none */
	uint64_t recv_bytes_per_s;
	/* An idle connection is closed after this time, in whole seconds; 0: 4,000 (S3 closes after about 5 s). */
	uint32_t idle_ms;
	bool gives_way; /* its threads have a lower priority than others */
};

/* Copies the response header of that name (lower case), cut to `size`. False: there is none. */
bool ckpt_http_header(
	const struct ckpt_http_req *req, const char *name, char *ret_value, size_t size);

void ckpt_http_submit(struct ckpt_http *http, struct ckpt_http_req *req);
void ckpt_http_cancel(struct ckpt_http *http, struct ckpt_http_req *req);
void ckpt_http_widen(struct ckpt_http *http, unsigned connections);
void ckpt_http_close(struct ckpt_http *http); /* NULL is ignored */

int ckpt_http_curl_open(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_http **ret_http);

#endif
