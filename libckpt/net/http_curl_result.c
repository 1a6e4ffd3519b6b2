/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The result of a request: its response, or a code with a message. No message contains more of a URL than host and
 * port.
 */
#include "net/http_curl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/errno_text.h"
#include "base/thread.h"
#include "base/utf8.h"

#define WHO_MAX 352

/* "host:port", and the address if it is different. */
static const char *who(const struct http_transfer *t, char text[WHO_MAX])
{
	bool brackets = strchr(t->host, ':') != NULL;
	const char *peer = t->req->peer;

	(void)snprintf(text, WHO_MAX, "%s%s%s:%u", brackets ? "[" : "", t->host,
		brackets ? "]" : "", t->port);
	if (peer[0] && strcmp(text, peer) != 0) {
		size_t length = strlen(text);
		(void)snprintf(text + length, WHO_MAX - length, " (%s%s)",
			t->proxied ? "by the proxy " : "", peer);
	}
	return text;
}

static void note_peer(struct http_transfer *t)
{
	char *address = NULL;
	long port = 0;

	t->req->peer[0] = 0;
	if (!t->attached)
		return;
	(void)curl_easy_getinfo(t->easy, CURLINFO_PRIMARY_IP, &address);
	(void)curl_easy_getinfo(t->easy, CURLINFO_PRIMARY_PORT, &port);
	if (!address || !address[0])
		return;
	bool brackets = strchr(address, ':') != NULL;
	(void)snprintf(t->req->peer, sizeof(t->req->peer), "%s%s%s:%ld", brackets ? "[" : "",
		address, brackets ? "]" : "", port);
}

/* The first address did not answer and another did: it comes last from now on. */
static void note_address(struct http_transfer *t, bool connected)
{
	char *address = NULL;
	long fresh = 0;

	if (!t->first_address[0])
		return;
	(void)curl_easy_getinfo(t->easy, CURLINFO_PRIMARY_IP, &address);
	(void)curl_easy_getinfo(t->easy, CURLINFO_NUM_CONNECTS, &fresh);
	if (connected && (fresh == 0 || !address || strcmp(address, t->first_address) == 0))
		return;
	ckpt_resolver_failed(
		t->thread->client->resolver, t->host, t->first_address, ckpt_clock_ns());
}

/* The message is already set. */
static void set_failure(struct http_transfer *t, int code)
{
	struct ckpt_http_req *req = t->req;

	CKPT_ASSERT(code < 0);
	req->result = code;
	req->reach = http_transfer_sent_any(t) ? CKPT_HTTP_SENT : CKPT_HTTP_UNSENT;
	req->status = t->head.status;
	req->received = t->received;
	ckpt_utf8_line(req->words);
}

#define WORD(t, ...)      ((void)snprintf((t)->req->words, sizeof((t)->req->words), __VA_ARGS__))
#define END(t, code, ...) (WORD(t, __VA_ARGS__), set_failure((t), (code)))

void http_end_by_us(struct http_transfer *transfer, int code, const char *fmt, ...)
{
	va_list args;

	note_peer(transfer);
	va_start(args, fmt);
	(void)vsnprintf(transfer->req->words, sizeof(transfer->req->words), fmt, args);
	va_end(args);
	set_failure(transfer, code);
}

static double seconds(uint32_t ms)
{
	return ms / 1000.0;
}

void http_end_by_limit(struct http_transfer *t, enum http_limit limit)
{
	char text[WHO_MAX];

	note_peer(t);
	switch (limit) {
	case HTTP_LIMIT_CONNECT:
		if (t->resolving)
			END(t, -ETIMEDOUT, "the name %s was not resolved within %g s", t->host,
				seconds(t->limits.connect_ms));
		else
			END(t, -ETIMEDOUT, "no connection to %s within %g s", who(t, text),
				seconds(t->limits.connect_ms));
		note_address(t, false);
		break;
	case HTTP_LIMIT_FIRST_BYTE:
		END(t, -ETIMEDOUT, "no answer from %s within %g s of the whole request",
			who(t, text), seconds(t->limits.first_byte_ms));
		break;
	case HTTP_LIMIT_STALL:
		END(t, -ETIMEDOUT,
			"the connection to %s stalled: no byte for %g s, %" PRIu64
			" of the answer so far",
			who(t, text), seconds(t->limits.stall_ms), t->received);
		break;
	case HTTP_LIMIT_TOTAL:
		END(t, -ETIMEDOUT, "the request to %s was not completed within %g s", who(t, text),
			seconds(t->limits.total_ms));
		break;
		CKPT_ASSERT_NO_OTHER;
	}
}

/* The system's error that ended the connection, else libcurl's general text, which contains no names. */
static const char *reason(const struct http_transfer *t, CURLcode code)
{
	long number = 0;
	const struct ckpt_errno *known;

	(void)curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &number);
	known = ckpt_errno_find((int)number);
	return known ? known->text : curl_easy_strerror(code);
}

static void end_certificate(struct http_transfer *t, CURLcode code)
{
	const struct ckpt_ca_bundle *trust = &t->thread->client->trust;
	const char *from = trust->file ? trust->file : trust->directory;
	char text[WHO_MAX];

	/* libcurl's text is about the certificate only. */
	END(t, CKPT_EAUTH,
		"the certificate of %s cannot be verified: %s; CAs are from "
		"%s, " CKPT_CA_BUNDLE_ADVICE,
		who(t, text), t->why[0] ? t->why : curl_easy_strerror(code), from ? from : "-");
}

static void end_trust(struct http_transfer *t)
{
	const struct ckpt_ca_bundle *trust = &t->thread->client->trust;

	END(t, CKPT_EAUTH, "%s contains no usable CA certificates; " CKPT_CA_BUNDLE_ADVICE,
		trust->file ? trust->file : trust->directory);
}

static void end_partial(struct http_transfer *t)
{
	curl_off_t length = -1;
	char text[WHO_MAX];

	(void)curl_easy_getinfo(t->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
	if (length >= 0)
		END(t, CKPT_ENETWORK,
			"%s closed the connection after %" PRIu64 " of %" PRIu64
			" bytes of the answer",
			who(t, text), t->received, (uint64_t)length);
	else
		END(t, CKPT_ENETWORK,
			"%s closed the connection during the answer, after %" PRIu64 " bytes",
			who(t, text), t->received);
}

/* Fails before any byte of the request was sent. */
static void end_unconnected(struct http_transfer *t, CURLcode code)
{
	char text[WHO_MAX];

	note_address(t, false);
	if (code == CURLE_COULDNT_RESOLVE_PROXY)
		END(t, CKPT_ENETWORK, "cannot resolve the name of the proxy for %s", who(t, text));
	else if (code == CURLE_COULDNT_RESOLVE_HOST)
		END(t, CKPT_ENETWORK, "cannot resolve the name %s", t->host);
	else if (t->proxied)
		END(t, CKPT_ENETWORK, "cannot connect to %s by the proxy: %s", who(t, text),
			reason(t, code));
	else
		END(t, CKPT_ENETWORK, "cannot connect to %s: %s", who(t, text), reason(t, code));
}

static void end_proxied(struct http_transfer *t, CURLcode code)
{
	long status = 0;
	char text[WHO_MAX];

	(void)curl_easy_getinfo(t->easy, CURLINFO_HTTP_CONNECTCODE, &status);
	if (status != 0 && status != 200)
		END(t, status == 407 ? CKPT_EAUTH : CKPT_ENETWORK,
			"the proxy refuses a connection to %s: status %ld", who(t, text), status);
	else
		END(t, CKPT_ENETWORK, "the connection to %s broke: %s", who(t, text),
			reason(t, code));
}

static void end_failed(struct http_transfer *t, CURLcode code)
{
	char text[WHO_MAX];

	switch (code) {
	case CURLE_COULDNT_RESOLVE_PROXY:
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_CONNECT:
		end_unconnected(t, code);
		break;
	case CURLE_OPERATION_TIMEDOUT:
		/* The only time limit that libcurl enforces itself. */
		http_end_by_limit(t, HTTP_LIMIT_CONNECT);
		break;
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_ISSUER_ERROR:
		end_certificate(t, code);
		break;
	case CURLE_SSL_CACERT_BADFILE:
		end_trust(t);
		break;
	case CURLE_SSL_CONNECT_ERROR:
		END(t, CKPT_ENETWORK, "TLS with %s failed: %s", who(t, text),
			t->why[0] ? t->why : curl_easy_strerror(code));
		break;
	case CURLE_PARTIAL_FILE:
		end_partial(t);
		break;
	case CURLE_GOT_NOTHING:
		END(t, CKPT_ENETWORK, "%s closed the connection without an answer", who(t, text));
		break;
	case CURLE_OUT_OF_MEMORY:
		/* libcurl reports an endless line of 100 KB like this, too. */
		if (http_transfer_sent_any(t) && t->received == 0)
			END(t, CKPT_EFORMAT,
				"the headers of the answer of %s are too large, or there is not "
				"enough memory",
				who(t, text));
		else
			END(t, -ENOMEM, "out of memory for a request to %s", who(t, text));
		break;
	case CURLE_UNSUPPORTED_PROTOCOL:
	case CURLE_WEIRD_SERVER_REPLY:
	case CURLE_BAD_CONTENT_ENCODING:
		END(t, CKPT_EFORMAT, "the answer of %s is not HTTP/1.1: %s", who(t, text),
			curl_easy_strerror(code));
		break;
	case CURLE_URL_MALFORMAT:
		END(t, -EINVAL, "the URL of a request to %s is invalid", who(t, text));
		break;
	case CURLE_RECV_ERROR:
	case CURLE_SEND_ERROR:
		if (t->proxied)
			end_proxied(t, code);
		else
			END(t, CKPT_ENETWORK, "the connection to %s broke: %s", who(t, text),
				reason(t, code));
		break;
	default:
		END(t, CKPT_ENETWORK, "the request to %s failed: %s", who(t, text),
			curl_easy_strerror(code));
		break;
	}
}

/* Appends a NUL, and passes the text to the receiver. */
static bool give(struct ckpt_buf *buf, char **ret_text)
{
	if (!buf->data)
		return true;
	ckpt_buf_fill(buf, 0, 1);
	if (buf->failed)
		return false;
	*ret_text = buf->data;
	*buf = (struct ckpt_buf){0};
	return true;
}

static void end_well(struct http_transfer *t)
{
	struct ckpt_http_req *req = t->req;
	uint64_t reply_length = t->reply.len;

	if (!give(&t->reply, &req->reply) || !give(&t->head.text, &req->header_text)) {
		ckpt_free(req->reply);
		req->reply = NULL;
		END(t, -ENOMEM, "there is not enough memory for the answer");
		return;
	}
	req->result = 0;
	req->reach = CKPT_HTTP_SENT;
	req->status = t->head.status;
	req->received = t->received;
	req->reply_length = reply_length;
	if (req->sent_ns == 0)
		req->sent_ns = req->first_byte_ns;
}

void http_end_by_curl(struct http_transfer *t, CURLcode code)
{
	char text[WHO_MAX];

	note_peer(t);
	if (http_transfer_sent_any(t))
		note_address(t, true);
	if (t->failure != 0)
		END(t, t->failure, "%s: %s", who(t, text), t->failure_words);
	else if (code != CURLE_OK)
		end_failed(t, code);
	else if (t->head.status < 100)
		END(t, CKPT_EFORMAT, "the answer of %s is not HTTP/1.1", who(t, text));
	else
		end_well(t);
}
