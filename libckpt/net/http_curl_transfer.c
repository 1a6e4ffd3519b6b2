/* SPDX-License-Identifier: Apache-2.0 */
/* One request: its libcurl options and callbacks. */
#include "net/http_curl.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"

#define BUFFER_HTTP    (64 << 10)
#define BUFFER_HTTPS   (256 << 10)
#define BUFFER_RECEIVE (128 << 10)

#define CONNECT_MS    5000
#define FIRST_BYTE_MS 30000
#define STALL_MS      30000
#define TOTAL_MS      600000

/* Sets an option. `bad` records failures. */
#define SET(option, value) (bad |= curl_easy_setopt(t->easy, (option), (value)) != CURLE_OK)

struct http_transfer *http_transfer_make(struct http_thread *thread)
{
	struct http_transfer *t = ckpt_alloc(sizeof(*t));

	if (!t)
		return NULL;
	t->thread = thread;
	t->easy = curl_easy_init();
	if (!t->easy) {
		ckpt_free(t);
		return NULL;
	}
	return t;
}

/* Headers may contain tokens, so they are cleared. */
static void free_headers(struct http_transfer *t)
{
	for (struct curl_slist *i = t->headers; i; i = i->next)
		explicit_bzero(i->data, strlen(i->data));
	curl_slist_free_all(t->headers);
	t->headers = NULL;
}

void http_transfer_forget(struct http_transfer *transfer)
{
	(void)curl_easy_setopt(transfer->easy, CURLOPT_HTTPHEADER, NULL);
	free_headers(transfer);
}

void http_transfer_free(struct http_transfer *transfer)
{
	curl_easy_cleanup(transfer->easy);
	free_headers(transfer);
	curl_slist_free_all(transfer->resolve);
	ckpt_buf_free(&transfer->reply);
	ckpt_buf_free(&transfer->head.text);
	ckpt_free(transfer);
}

static uint32_t limit_or(uint32_t limit, uint32_t instead)
{
	return limit ? limit : instead;
}

static void start_anew(struct http_transfer *t)
{
	const struct ckpt_http_limits *limits = &t->req->limits;

	curl_easy_reset(t->easy);
	free_headers(t);
	curl_slist_free_all(t->resolve);
	t->resolve = NULL;
	t->why[0] = 0;
	t->host[0] = 0;
	t->first_address[0] = 0;
	t->port = 0;
	t->https = false;
	t->proxied = false;
	t->resolving = false;
	t->header_bytes = 0;
	t->received = 0;
	t->head.status = 0;
	t->head.answered = false;
	t->failure = 0;
	t->failure_words = NULL;
	t->body_at = 0;
	t->sendings = 0;
	t->moved = 0;
	t->paid_ns = 0;
	t->limits = (struct ckpt_http_limits){
		.connect_ms = limit_or(limits->connect_ms, CONNECT_MS),
		.first_byte_ms = limit_or(limits->first_byte_ms, FIRST_BYTE_MS),
		.stall_ms = limit_or(limits->stall_ms, STALL_MS),
		.total_ms = limit_or(limits->total_ms, TOTAL_MS),
	};
}

static int refuse(struct http_transfer *t, const char *words)
{
	t->failure_words = words;
	return -EINVAL;
}

static bool is_literal(const char *host)
{
	struct in6_addr address;

	return inet_pton(AF_INET, host, &address) == 1 || inet_pton(AF_INET6, host, &address) == 1;
}

/* libcurl resolves it itself; the resolvers of some systems do not. */
static bool is_localhost(const char *host)
{
	static const char local[] = "localhost";
	size_t length = strlen(host);

	if (length < sizeof(local) - 1)
		return false;
	const char *tail = host + length - (sizeof(local) - 1);
	return strcasecmp(tail, local) == 0 && (tail == host || tail[-1] == '.');
}

static void copy_host(struct http_transfer *t, const char *host)
{
	size_t length = strlen(host);

	if (length >= 2 && host[0] == '[') {
		host++;
		length -= 2;
	}
	length = ckpt_min_u64(length, sizeof(t->host) - 1);
	memcpy(t->host, host, length);
	t->host[length] = 0;
}

static int read_url(struct http_transfer *t, CURLU *url)
{
	char *host = NULL;
	char *port = NULL;
	char *scheme = NULL;
	char *user = NULL;
	int r = 0;

	if (curl_url_set(url, CURLUPART_URL, t->req->url, CURLU_PATH_AS_IS) != CURLUE_OK ||
		curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) != CURLUE_OK ||
		curl_url_get(url, CURLUPART_HOST, &host, 0) != CURLUE_OK ||
		curl_url_get(url, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) != CURLUE_OK ||
		(strcmp(scheme, "http") != 0 && strcmp(scheme, "https") != 0))
		r = refuse(t, "the URL does not begin with http:// or https://");
	else if (strlen(host) >= HTTP_HOST_MAX)
		r = refuse(t, "the URL's host name is too long");
	else if (curl_url_get(url, CURLUPART_USER, &user, 0) == CURLUE_OK)
		r = refuse(t, "the URL contains a user name: remove it, and set credentials as the "
			      "documentation says");
	if (r == 0) {
		copy_host(t, host);
		t->port = (unsigned)strtoul(port, NULL, 10);
		t->https = strcmp(scheme, "https") == 0;
	}
	curl_free(user);
	curl_free(scheme);
	curl_free(port);
	curl_free(host);
	return r;
}

/* "": none. */
static const char *proxy_of(const struct http_transfer *t)
{
	return t->req->direct ? "" : ckpt_proxy_of(&t->thread->client->proxy, t->https, t->host);
}

int http_transfer_address(struct http_transfer *t)
{
	const struct http_client *client = t->thread->client;
	CURLU *url;

	start_anew(t);
	url = curl_url();
	if (!url)
		return -ENOMEM;
	int r = read_url(t, url);
	curl_url_cleanup(url);
	if (r < 0)
		return r;
	t->proxied = proxy_of(t)[0] != 0;
	t->resolving = !t->proxied && !is_literal(t->host) && !is_localhost(t->host);
	if (t->https && !client->trust.file && !client->trust.directory) {
		t->failure_words = "no CA certificates were found on this machine to check the "
				   "server's with; install the package ca-certificates, or "
				   "set AWS_CA_BUNDLE to a file of them";
		return CKPT_EAUTH;
	}
	return 0;
}

/* Callbacks. */

static int stop(struct http_transfer *t, int code, const char *words)
{
	if (t->failure == 0) {
		t->failure = code;
		t->failure_words = words;
	}
	return 0;
}

/* Whether it may still be sent, after it waited for its turn or for a connection, or the process was stopped. */
static bool may_leave(struct http_transfer *t)
{
	if (t->req->not_after_ns == 0 || ckpt_age_clock_ns() <= t->req->not_after_ns)
		return true;
	(void)stop(t, -ETIMEDOUT, "it was not sent within its time limit");
	return false;
}

static size_t on_read(char *buffer, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	struct ckpt_rate *rate = &t->thread->client->send;
	uint64_t length = ckpt_min_u64(size * count, t->req->body_length - t->body_at);

	length = ckpt_rate_piece(rate, length);
	if (length == 0)
		return 0;
	if (!may_leave(t))
		return CURL_READFUNC_ABORT;
	if (rate->bytes_per_s != 0) {
		t->paid_ns = ckpt_rate_take(rate, ckpt_clock_ns(), length);
		if (t->paid_ns != 0)
			return CURL_READFUNC_PAUSE;
	}
	memcpy(buffer, (const char *)t->req->body + t->body_at, length);
	t->body_at += length;
	return length;
}

/* A reused connection was closed while the body was being sent: libcurl sends it again over another one. */
static int on_seek(void *user, curl_off_t offset, int origin)
{
	struct http_transfer *t = user;

	if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->req->body_length)
		return CURL_SEEKFUNC_FAIL;
	t->body_at = (uint64_t)offset;
	return CURL_SEEKFUNC_OK;
}

static bool is_success(const struct http_transfer *t)
{
	return t->head.status >= 200 && t->head.status <= 299;
}

static size_t keep_reply(struct http_transfer *t, const char *data, size_t length)
{
	uint64_t limit = t->req->reply_limit;
	uint64_t left = limit - ckpt_min_u64(limit, t->received);

	if (limit != 0 && length > left && is_success(t))
		return (size_t)stop(t, -EFBIG, "the answer is longer than the limit");
	ckpt_buf_put(&t->reply, data, ckpt_min_u64(length, left));
	if (t->reply.failed)
		return (size_t)stop(t, -ENOMEM, "there is not enough memory for the answer");
	t->received += length;
	return length;
}

static size_t on_body(char *data, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	struct ckpt_rate *rate = &t->thread->client->receive;
	size_t length = size * count;

	if (length == 0)
		return 0;
	if (rate->bytes_per_s != 0) {
		t->paid_ns = ckpt_rate_take(rate, ckpt_clock_ns(), length);
		if (t->paid_ns != 0)
			return CURL_WRITEFUNC_PAUSE;
	}
	if (!is_success(t) || !t->req->sink)
		return keep_reply(t, data, length);
	if (length > t->req->room - t->received)
		return (size_t)stop(t, -EFBIG, "the answer is longer than the buffer");
	memcpy((char *)t->req->sink + t->received, data, length);
	t->received += length;
	return length;
}

static size_t on_header(char *line, size_t size, size_t count, void *user)
{
	struct http_transfer *t = user;
	size_t length = size * count;

	if (t->req->first_byte_ns == 0)
		t->req->first_byte_ns = ckpt_clock_ns() - t->req->submitted_ns;
	t->header_bytes += length;
	/* Trailers after a chunked body are ignored. */
	if (t->received > 0 && t->head.answered)
		return length;
	ckpt_http_head_line(&t->head, line, length);
	if (t->head.text.failed)
		return (size_t)stop(t, -ENOMEM, "there is not enough memory for the answer");
	if (t->head.text.len + length > CKPT_HTTP_HEADERS_MAX)
		return (size_t)stop(t, CKPT_EFORMAT, "the answer's headers are too large");
	return length;
}

/* Children of this process must not inherit the connection. */
static curl_socket_t on_open(void *user, curlsocktype purpose, struct curl_sockaddr *address)
{
	int fd = socket(address->family, address->socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
		address->protocol);

	(void)user;
	(void)purpose;
	if (fd < 0)
		return CURL_SOCKET_BAD;
	ckpt_fork_close(fd);
	return fd;
}

static int on_close(void *user, curl_socket_t fd)
{
	(void)user;
	ckpt_fork_forget(fd);
	return close(fd);
}

/*
 * Called when there is a connection and the request is about to be sent; again if a reused connection turned out to be
 * closed.
 */
/* NOLINTNEXTLINE(readability-non-const-parameter): libcurl's type has no const */
static int on_request(void *user, char *to, char *from, int to_port, int from_port)
{
	struct http_transfer *t = user;

	(void)to;
	(void)from;
	(void)to_port;
	(void)from_port;
	if (!may_leave(t))
		return CURL_PREREQFUNC_ABORT;
	t->sendings++;
	t->req->resent = t->sendings > 1;
	return CURL_PREREQFUNC_OK;
}

/* Options. */

static bool has_header(const struct ckpt_http_req *req, const char *name)
{
	for (size_t i = 0; i < req->header_count; i++) {
		if (strcasecmp(req->headers[i].name, name) == 0)
			return true;
	}
	return false;
}

/* A line break in a value would start another header or request. */
static bool is_one_line(const char *text)
{
	for (; *text; text++) {
		if ((unsigned char)*text < ' ' && *text != '\t')
			return false;
	}
	return true;
}

static int add_line(struct http_transfer *t, const char *line)
{
	struct curl_slist *longer = curl_slist_append(t->headers, line);

	if (!longer)
		return -ENOMEM;
	t->headers = longer;
	return 0;
}

static int add_request_header(struct http_transfer *t, const struct ckpt_http_header *header)
{
	struct ckpt_buf line = {0};
	int r;

	if (strcasecmp(header->name, "content-length") == 0)
		return 0;
	if (!is_one_line(header->name) || !is_one_line(header->value) ||
		strpbrk(header->name, ":; \t") || header->name[0] == 0)
		return refuse(t, "a header of the request has a line break or an invalid name");
	/* libcurl's syntax for a header without a value. */
	ckpt_buf_printf(&line, header->value[0] ? "%s: %s" : "%s;%s", header->name, header->value);
	r = line.failed ? -ENOMEM : add_line(t, line.data);
	if (line.data)
		explicit_bzero(line.data, line.cap);
	ckpt_buf_free(&line);
	return r;
}

static int set_headers(struct http_transfer *t)
{
	/* Headers that libcurl would add itself. */
	static const char *const unwanted[] = {"Accept", "Content-Type", "Expect"};
	const struct ckpt_http_req *req = t->req;
	bool expect = req->expect && req->method == CKPT_HTTP_PUT && req->body_length > 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < req->header_count; i++)
		r = add_request_header(t, &req->headers[i]);
	for (size_t i = 0; r == 0 && i < CKPT_COUNT(unwanted); i++) {
		char line[32];
		if (has_header(req, unwanted[i]) || (expect && strcmp(unwanted[i], "Expect") == 0))
			continue;
		(void)snprintf(line, sizeof(line), "%s:", unwanted[i]);
		r = add_line(t, line);
	}
	if (r == 0 && expect && !has_header(req, "Expect"))
		r = add_line(t, "Expect: 100-continue");
	return r;
}

/* Whether `peer` ("address:port") has that address. */
static bool is_peer(const char *peer, const char *address)
{
	size_t length = strlen(address);

	if (!peer)
		return false;
	peer += peer[0] == '[';
	return strncmp(peer, address, length) == 0 && (peer[length] == ':' || peer[length] == ']');
}

/* Puts the addresses into libcurl's cache, so that it does not resolve the name itself. */
static int set_addresses(struct http_transfer *t, const struct ckpt_http_addresses *addresses)
{
	struct ckpt_buf line = {0};

	if (!addresses)
		return 0;
	unsigned first = is_peer(t->req->apart, addresses->text[0]) ? 1 % addresses->count : 0;
	memcpy(t->first_address, addresses->text[first], sizeof(t->first_address));
	ckpt_buf_printf(&line, "%s:%u:", t->host, t->port);
	for (unsigned i = 0; i < addresses->count; i++) {
		const char *address = addresses->text[(first + i) % addresses->count];
		bool brackets = strchr(address, ':') != NULL;
		ckpt_buf_printf(&line, "%s%s%s%s", i ? "," : "", brackets ? "[" : "", address,
			brackets ? "]" : "");
	}
	if (!line.failed)
		t->resolve = curl_slist_append(NULL, line.data);
	ckpt_buf_free(&line);
	return t->resolve ? 0 : -ENOMEM;
}

static bool set_method(struct http_transfer *t)
{
	const struct ckpt_http_req *req = t->req;
	bool bad = false;

	switch (req->method) {
	case CKPT_HTTP_GET:
		SET(CURLOPT_HTTPGET, 1L);
		break;
	case CKPT_HTTP_HEAD:
		SET(CURLOPT_NOBODY, 1L);
		break;
	case CKPT_HTTP_PUT:
		SET(CURLOPT_UPLOAD, 1L);
		SET(CURLOPT_INFILESIZE_LARGE, (curl_off_t)req->body_length);
		SET(CURLOPT_READFUNCTION, on_read);
		SET(CURLOPT_READDATA, t);
		SET(CURLOPT_SEEKFUNCTION, on_seek);
		SET(CURLOPT_SEEKDATA, t);
		break;
	case CKPT_HTTP_POST:
		SET(CURLOPT_POST, 1L);
		SET(CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)req->body_length);
		SET(CURLOPT_POSTFIELDS, req->body ? req->body : "");
		break;
	case CKPT_HTTP_DELETE:
		SET(CURLOPT_CUSTOMREQUEST, "DELETE");
		break;
		CKPT_ASSERT_NO_OTHER;
	}
	return !bad;
}

static bool set_protocol(struct http_transfer *t)
{
	const struct http_client *client = t->thread->client;
	bool bad = false;

#if LIBCURL_VERSION_NUM >= 0x075500
	SET(CURLOPT_PROTOCOLS_STR, "http,https");
#else
	SET(CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
	SET(CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	SET(CURLOPT_FOLLOWLOCATION, 0L);
	SET(CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
	SET(CURLOPT_SSL_VERIFYPEER, 1L);
	SET(CURLOPT_SSL_VERIFYHOST, 2L);
	SET(CURLOPT_CAINFO, client->trust.file);
	SET(CURLOPT_CAPATH, client->trust.directory);
	/* The environment has been read already: an empty text means no proxy. */
	SET(CURLOPT_PROXY, proxy_of(t));
	SET(CURLOPT_NOPROXY, "");
	SET(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
	SET(CURLOPT_PATH_AS_IS, 1L);
	return !bad;
}

static bool set_connection(struct http_transfer *t)
{
	struct http_client *client = t->thread->client;
	bool bad = false;

	SET(CURLOPT_NOSIGNAL, 1L);
	SET(CURLOPT_SHARE, t->thread->share);
	SET(CURLOPT_OPENSOCKETFUNCTION, on_open);
	SET(CURLOPT_CLOSESOCKETFUNCTION, on_close);
	SET(CURLOPT_PREREQFUNCTION, on_request);
	SET(CURLOPT_PREREQDATA, t);
	SET(CURLOPT_TCP_KEEPALIVE, 1L);
	SET(CURLOPT_FRESH_CONNECT, t->req->apart ? 1L : 0L);
	SET(CURLOPT_MAXAGE_CONN, (long)((client->idle_ms + 999) / 1000));
	/* The loop enforces the limits. This one makes libcurl divide the time among the addresses. */
	SET(CURLOPT_CONNECTTIMEOUT_MS, (long)t->limits.connect_ms);
	SET(CURLOPT_UPLOAD_BUFFERSIZE, (long)(t->https ? BUFFER_HTTPS : BUFFER_HTTP));
	SET(CURLOPT_BUFFERSIZE,
		(long)ckpt_max_u64(ckpt_rate_piece(&client->receive, BUFFER_RECEIVE), 16384));
#if LIBCURL_VERSION_NUM >= 0x075700
	/* libcurl resolves a proxy's name on a thread, which must not delay the end. */
	SET(CURLOPT_QUICK_EXIT, 1L);
#endif
	return !bad;
}

int http_transfer_prepare(struct http_transfer *t, const struct ckpt_http_addresses *addresses)
{
	bool bad = false;
	int r = set_headers(t);

	if (r == 0)
		r = set_addresses(t, addresses);
	if (r < 0)
		return r;
	SET(CURLOPT_PRIVATE, t);
	SET(CURLOPT_ERRORBUFFER, t->why);
	SET(CURLOPT_URL, t->req->url);
	SET(CURLOPT_HTTPHEADER, t->headers);
	SET(CURLOPT_RESOLVE, t->resolve);
	SET(CURLOPT_WRITEFUNCTION, on_body);
	SET(CURLOPT_WRITEDATA, t);
	SET(CURLOPT_HEADERFUNCTION, on_header);
	SET(CURLOPT_HEADERDATA, t);
	if (bad || !set_method(t) || !set_protocol(t) || !set_connection(t))
		return -ENOMEM;
	return 0;
}

bool http_transfer_sent_any(const struct http_transfer *t)
{
	long head = 0;
	curl_off_t secured_us = 0;
	long fresh = 0;

	if (!t->attached)
		return false;
	(void)curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &head);
	if (head == 0 || !t->proxied || !t->https)
		return head > 0;
	/* Bytes of the request to the proxy count, too: only bytes over TLS were the request itself. */
	(void)curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &fresh);
	(void)curl_easy_getinfo(t->easy, CURLINFO_APPCONNECT_TIME_T, &secured_us);
	return fresh == 0 || secured_us > 0;
}

bool http_transfer_sent_all(const struct http_transfer *t)
{
	curl_off_t sent = 0;

	(void)curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	return (uint64_t)sent >= t->req->body_length;
}
