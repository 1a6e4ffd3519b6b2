/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/bucket_http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"

#define MS       UINT64_C(1000000)
#define STALL_NS (30000 * MS)
#define NEVER_NS (UINT64_MAX / 4)

/* A request on its way there, or its answer on the way back. */
struct bucket_event {
	struct bucket_event *next;
	uint64_t at_ns;
	struct ckpt_http_req *req; /* NULL: nobody waits for it any more */
	bool arrives;
	struct s3_request asked;
	int result;
	enum ckpt_http_reach reach;
	bool resent;
	struct s3_reply reply;
};

static struct bucket_http *http_of(struct ckpt_http *http)
{
	return CKPT_CONTAINER(http, struct bucket_http, http);
}

static uint64_t server_ns(const struct bucket_http *h)
{
	return h->unix_ns + h->now_ns;
}

static struct bucket_event *add_event(
	struct bucket_http *h, struct ckpt_http_req *req, uint64_t after_ns)
{
	struct bucket_event *event = need(sizeof(*event));
	struct bucket_event **at = &h->events;

	event->req = req;
	event->reach = CKPT_HTTP_SENT;
	event->at_ns = h->now_ns + after_ns;
	while (*at && (*at)->at_ns <= event->at_ns)
		at = &(*at)->next;
	event->next = *at;
	*at = event;
	return event;
}

static void event_free(struct bucket_event *event)
{
	s3_request_clear(&event->asked);
	s3_reply_clear(&event->reply);
	free(event);
}

static uint64_t some_latency(struct bucket_http *h)
{
	return prng_below(&h->prng, h->latency_ns + 1);
}

/* The way there. */

static bool take_request(const struct ckpt_http_req *req, struct s3_request *asked)
{
	static const char *const methods[] = {"", "GET", "HEAD", "PUT", "POST", "DELETE"};
	const char *host = strstr(req->url, "://");
	const char *target = host ? strchr(host + 3, '/') : NULL;
	char text[256];

	if (!target || !s3_request_set(asked, methods[req->method], target))
		return false;
	(void)snprintf(text, sizeof(text), "%.*s", (int)(target - host - 3), host + 3);
	pairs_add(&asked->headers, "host", text);
	for (size_t i = 0; i < req->header_count; i++)
		pairs_add(&asked->headers, req->headers[i].name, req->headers[i].value);
	if (req->method != CKPT_HTTP_PUT && req->method != CKPT_HTTP_POST)
		return true;
	(void)snprintf(text, sizeof(text), "%llu", (unsigned long long)req->body_length);
	pairs_add(&asked->headers, "content-length", text);
	asked->body = bytes_copy(req->body ? req->body : "", req->body_length);
	return true;
}

static void fail_later(struct bucket_http *h, struct ckpt_http_req *req, int result,
	enum ckpt_http_reach reach, uint64_t after_ns)
{
	struct bucket_event *event = add_event(h, req, after_ns);

	event->result = result;
	event->reach = reach;
}

static void arrive(struct bucket_http *h, struct bucket_event *event)
{
	struct ckpt_http_req *req = event->req;
	struct s3_reply reply = {0};

	if (faults_refuse(&h->front->faults)) {
		fail_later(h, req, CKPT_ENETWORK, CKPT_HTTP_UNSENT, some_latency(h));
		return;
	}
	struct fault_rule fault =
		h->judge ? h->judge(h->user, &event->asked) : front_judge(h->front, &event->asked);
	if (h->proxy)
		h->proxy(h->user, &event->asked);
	switch (front_do(h->front, server_ns(h), &fault, &event->asked, &reply)) {
	case FRONT_CLOSED:
		fail_later(h, req, CKPT_ENETWORK, CKPT_HTTP_SENT, some_latency(h));
		return;
	case FRONT_STALLED:
		fail_later(h, req, -ETIMEDOUT, CKPT_HTTP_SENT, STALL_NS);
		return;
	default:
		if (h->answered)
			h->answered(h->user, &event->asked, &reply);
		event = add_event(h, req, some_latency(h) + fault.reply_delay_ms * MS);
		event->reply = reply;
		/* By whom: the client over HTTP, say. */
		event->resent = fault.kind == FAULT_TWICE;
		if (h->whole)
			event->reply.missing = 0;
		event->result = event->reply.missing > 0 && req->method != CKPT_HTTP_HEAD
					? CKPT_ENETWORK
					: 0;
	}
}

/* The way back. */

static int put_headers(struct ckpt_http_req *req, const struct s3_reply *reply)
{
	struct ckpt_buf text = {0};

	for (size_t i = 0; i < reply->headers.count; i++)
		ckpt_buf_printf(
			&text, "%s: %s\n", reply->headers.at[i].name, reply->headers.at[i].value);
	ckpt_buf_printf(&text, "content-length: %llu\n",
		(unsigned long long)(reply->body.length + reply->missing));
	ckpt_buf_put(&text, "", 1);
	if (text.failed) {
		ckpt_buf_free(&text);
		return -ENOMEM;
	}
	req->header_text = text.data;
	return 0;
}

static int put_body(struct ckpt_http_req *req, const struct s3_reply *reply)
{
	bool good = reply->status >= 200 && reply->status < 300;
	uint64_t length = req->method == CKPT_HTTP_HEAD ? 0 : reply->body.length;

	req->received = length;
	if (good && req->sink) {
		/* What came is there, whatever follows. */
		(void)rope_read(&reply->body, 0, req->sink, ckpt_min_u64(length, req->room));
		return length > req->room ? -EFBIG : 0;
	}
	if (good && length > req->reply_limit)
		return -EFBIG;
	length = ckpt_min_u64(length, req->reply_limit);
	if (length == 0)
		return 0;
	req->reply = ckpt_alloc(length + 1);
	if (!req->reply)
		return -ENOMEM;
	req->reply_length = rope_read(&reply->body, 0, req->reply, length);
	return 0;
}

static void hand_back(struct bucket_http *h, const struct bucket_event *event)
{
	struct ckpt_http_req *req = event->req;
	int r = 0;

	req->reach = event->reach;
	req->resent = event->resent;
	if (event->reply.status) {
		req->status = event->reply.status;
		r = put_headers(req, &event->reply);
		if (r == 0)
			r = put_body(req, &event->reply);
	}
	req->result = event->result < 0 ? event->result : r;
	if (req->result < 0)
		(void)snprintf(req->words, sizeof(req->words), "a test wants it so");
	h->under_way--;
	ckpt_inbox_push(h->http.inbox, &req->node);
}

/* Not S3's: whoever gives keys. */
static void ask_keys(struct bucket_http *h, struct ckpt_http_req *req)
{
	struct bucket_event *event = add_event(h, req, h->keys ? some_latency(h) : NEVER_NS);

	h->asked_keys++;
	event->reply.status = 200;
	if (h->keys)
		rope_add_copy(&event->reply.body, h->keys, strlen(h->keys));
}

/* The table. */

static void bucket_submit(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct bucket_http *h = http_of(http);
	struct bucket_event *event;

	h->under_way++;
	if (strcmp(req->url, BUCKET_KEYS_URL) == 0) {
		ask_keys(h, req);
		return;
	}
	h->requests++;
	event = add_event(h, req, some_latency(h));
	event->arrives = take_request(req, &event->asked);
	if (!event->arrives) {
		event->result = -EINVAL;
		event->reach = CKPT_HTTP_UNSENT;
	}
}

/* Its asker has gone away: it arrives all the same, or never does. */
static void haunt(struct bucket_http *h, struct bucket_event *event)
{
	struct fault_rule late = {.kind = FAULT_LATE};
	struct s3_reply reply;

	if (event->arrives && h->haunts_ms > 0 && prng_below(&h->prng, 2) > 0) {
		late.delay_ms = 1 + (uint32_t)prng_below(&h->prng, h->haunts_ms);
		(void)front_do(h->front, server_ns(h), &late, &event->asked, &reply);
	}
	event->arrives = false;
	event->req = NULL;
}

static void bucket_cancel(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct bucket_http *h = http_of(http);

	for (struct bucket_event *e = h->events; e; e = e->next) {
		if (e->req != req)
			continue;
		haunt(h, e);
		fail_later(h, req, -ECANCELED, CKPT_HTTP_SENT, 0);
		return;
	}
}

static void bucket_widen(struct ckpt_http *http, unsigned connections)
{
	http_of(http)->limit = connections;
}

static void bucket_close(struct ckpt_http *http)
{
	(void)http;
}

static const struct ckpt_http_ops bucket_ops = {
	.name = "bucket",
	.submit = bucket_submit,
	.cancel = bucket_cancel,
	.widen = bucket_widen,
	.close = bucket_close,
};

void bucket_http_init(
	struct bucket_http *http, struct ckpt_inbox *inbox, struct front *front, uint64_t seed)
{
	*http = (struct bucket_http){.http = {.ops = &bucket_ops, .inbox = inbox, .connections = 8},
		.limit = 8,
		.front = front,
		.unix_ns = UINT64_C(1795000000) * 1000 * MS,
		.latency_ns = 40 * MS};
	http->prng.state = seed;
}

void bucket_http_clear(struct bucket_http *http)
{
	while (http->events) {
		struct bucket_event *event = http->events;

		http->events = event->next;
		event_free(event);
	}
}

void bucket_http_die(struct bucket_http *http)
{
	for (struct bucket_event *event = http->events; event; event = event->next)
		haunt(http, event);
	bucket_http_clear(http);
	http->under_way = 0;
}

uint64_t bucket_http_next(const struct bucket_http *http)
{
	uint64_t next_ns = UINT64_MAX;

	if (http->front->late && http->front->late->due_ns != UINT64_MAX)
		next_ns = http->front->late->due_ns - http->unix_ns;
	/* One that is never answered is nothing to wait for. */
	if (http->events && http->events->at_ns < NEVER_NS)
		next_ns = ckpt_min_u64(next_ns, http->events->at_ns);
	return next_ns;
}

void bucket_http_run(struct bucket_http *http, uint64_t now_ns)
{
	while (http->events && http->events->at_ns <= now_ns) {
		struct bucket_event *event = http->events;

		http->now_ns = event->at_ns;
		(void)front_land(http->front, server_ns(http));
		http->events = event->next;
		if (event->arrives)
			arrive(http, event);
		else if (event->req)
			hand_back(http, event);
		event_free(event);
	}
	http->now_ns = now_ns;
	(void)front_land(http->front, server_ns(http));
}
