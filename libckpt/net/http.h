/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP requests, asynchronously. One table; http.c holds the only calls of its members. A client owns a
 * request from ckpt_http_submit() until it pushes `node` into the inbox, and never touches it after that.
 * It sends what it is given, once: what is signed, what is tried again and what an answer means is the caller's
 * (s3/). One thing is sent again: a request on a kept connection that turns out to have been closed. It may have
 * been done all the same, of whatever method, or be done yet: who asks for what must not be done twice looks at what is
 * there, and at `resent`.
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

/* How far a request came that has no whole answer: whether the server may have done what it was asked. */
enum ckpt_http_reach {
	CKPT_HTTP_UNSENT = 0, /* no byte of it has left: surely not done */
	CKPT_HTTP_SENT,       /* it may have been done */
};

/* Bounds, from the moment when a request's turn comes; zero: these. Nothing is ever without one. */
struct ckpt_http_limits {
	uint32_t connect_ms;    /* name, TCP and TLS; 5,000 */
	uint32_t first_byte_ms; /* from the last byte sent to the first received; 30,000 */
	uint32_t stall_ms;      /* without a byte either way; 30,000 */
	uint32_t total_ms;      /* 600,000 */
};

#define CKPT_HTTP_WORDS_MAX   256
#define CKPT_HTTP_HEADERS_MAX 16384 /* of an answer, all together; more is CKPT_EFORMAT */

struct ckpt_http_req {
	struct ckpt_node node; /* back through the inbox when `result` is set */

	/* What is asked. Borrowed until then. */
	enum ckpt_http_method method;
	const char *url; /* absolute, encoded as it shall be sent */
	const struct ckpt_http_header
		*headers; /* host is the client's unless given, content-length always */
	size_t header_count;
	const void *body; /* of PUT and POST */
	uint64_t body_length;
	bool expect; /* ask the server (100-continue) before a body is sent; of PUT */
	bool direct; /* by no proxy, whatever is configured */
	/* `peer` of an earlier try: over a new connection now, and to another address if the name has one; NULL: any */
	const char *apart;
	struct ckpt_http_limits limits;
	/*
	 * By ckpt_age_clock_ns(): no byte of it leaves later, be it the first time or when it is sent again. -ETIMEDOUT then.
	 * 0: it may leave whenever its turn comes.
	 */
	uint64_t not_after_ns;

	/*
	 * Where the body of an answer goes. 2xx: `sink`, if there is one; more than `room` bytes are -EFBIG. Else, and
	 * with any other status: `reply`, allocated, ended by a NUL that is not counted. Of a 2xx more than `reply_limit`
	 * bytes are -EFBIG, of another status they are dropped; 0: it is dropped whatever it is.
	 */
	void *sink;
	uint64_t room;
	uint64_t reply_limit;

	/*
	 * The answer. `result` is 0 for a whole answer of whatever status, else CKPT_ENETWORK, -ETIMEDOUT, -ECANCELED,
	 * -EFBIG, -ENOMEM, CKPT_EAUTH (the server's certificate), CKPT_EFORMAT (not HTTP, or too large headers),
	 * -EINVAL (a URL or header that cannot be sent), CKPT_EFORKED.
	 */
	int result;
	int status;
	uint64_t received; /* bytes of its body */
	char *reply;       /* freed by the receiver with ckpt_free */
	uint64_t reply_length;
	char *header_text; /* "name: value\n" each, lower-case names; freed by the receiver; NULL: none */
	enum ckpt_http_reach reach;
	bool resent;       /* the client has sent it again, see above; whatever `result` is */
	uint64_t begun_ns; /* its turn came, from the submission */
	uint64_t
		sent_ns; /* its last byte was given to the connection, from the submission; 0: it was not */
	uint64_t first_byte_ns; /* of the answer, from the submission; 0: none came */
	uint64_t total_ns;
	char peer[64];                   /* address and port that were talked to; "" */
	char words[CKPT_HTTP_WORDS_MAX]; /* why there is none, for people */

	/* The client's. */
	struct ckpt_http_req *next;
	struct ckpt_http_req *prev;
	void *transfer;
	uint64_t submitted_ns;
	int state;
};

struct ckpt_http;

struct ckpt_http_ops {
	const char *name; /* "curl" */
	/* Any thread. Never blocks and never fails: errors come back in `result`. */
	void (*submit)(struct ckpt_http *http, struct ckpt_http_req *req);
	/*
	 * It comes back soon, with -ECANCELED unless it was done already. By whoever takes it from the inbox, before
	 * that; it may have been pushed.
	 */
	void (*cancel)(struct ckpt_http *http, struct ckpt_http_req *req);
	/* How many requests may be under way at once from now on (1 to the `connections` it was opened with). */
	void (*widen)(struct ckpt_http *http, unsigned connections);
	/* Cancels what is under way, ends the threads and frees. Nothing else may run beside it. */
	void (*close)(struct ckpt_http *http);
};

struct ckpt_http {
	const struct ckpt_http_ops *ops;
	struct ckpt_inbox *inbox;
	unsigned connections; /* the most that may be under way */
};

/* The addresses of a name, as text, IPv6 without brackets. */
#define CKPT_HTTP_ADDRESSES_MAX 16
struct ckpt_http_addresses {
	unsigned count;
	char text[CKPT_HTTP_ADDRESSES_MAX][48];
};

/* Blocks. 0, or a code of getaddrinfo(). */
typedef int ckpt_http_lookup_fn(
	void *user, const char *host, struct ckpt_http_addresses *ret_addresses);

struct ckpt_http_config {
	struct ckpt_inbox *inbox;
	unsigned threads;     /* each with a multi handle of its own; 0: 1 */
	unsigned connections; /* of all threads; 0: 10 */
	/* NULL: by AWS_CA_BUNDLE, CURL_CA_BUNDLE, SSL_CERT_FILE, SSL_CERT_DIR, else where distributions have it */
	const char *ca_file;
	const char *proxy; /* "": none; NULL: by http_proxy, HTTPS_PROXY, ALL_PROXY, NO_PROXY */
	/* The environment; what it returns is not kept. NULL: there is none. */
	const char *(*variable)(void *user, const char *name);
	/* How names are resolved; on threads that may outlive the client, with `user`. NULL: getaddrinfo() */
	ckpt_http_lookup_fn *lookup;
	void *user;
	uint64_t send_bytes_per_s; /* cap of all bodies together; 0: none */
	uint64_t recv_bytes_per_s;
	/* A connection idle longer is not used again, in whole seconds; 0: 4,000 (S3 closes after about 5 s) */
	uint32_t idle_ms;
	bool gives_way; /* its threads do to all others of the machine */
};

/* The answer's header of that name (lower case), copied and cut to `size`; false: it has none. */
bool ckpt_http_header(
	const struct ckpt_http_req *req, const char *name, char *ret_value, size_t size);

void ckpt_http_submit(struct ckpt_http *http, struct ckpt_http_req *req);
void ckpt_http_cancel(struct ckpt_http *http, struct ckpt_http_req *req);
void ckpt_http_widen(struct ckpt_http *http, unsigned connections);
void ckpt_http_close(struct ckpt_http *http); /* NULL is ignored */

int ckpt_http_curl_open(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_http **ret_http);

#endif
