/* SPDX-License-Identifier: Apache-2.0 */
/* A connection: requests one after another, and what the rules make of them. */
#include "s3/s3d.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* How a request left the connection. */
enum next { NEXT_REQUEST, NEXT_CLOSE, NEXT_RESET };

void s3d_wait(const struct s3d *s3d, uint32_t ms)
{
	struct pollfd stop = {.fd = s3d->stop, .events = POLLIN};

	if (ms)
		(void)poll(&stop, 1, (int)ms);
}

/* Says nothing for so long, or as long as the client holds out. */
static void stall(const struct s3d_connection *c, uint32_t ms)
{
	struct pollfd ready[] = {
		{.fd = c->s3d->stop, .events = POLLIN},
		{.fd = c->wire.fd, .events = POLLRDHUP},
	};

	(void)poll(ready, 2, ms ? (int)ms : -1);
}

/* The bucket that the host names; NULL: it names none. Freed with free(). */
static char *hosted(const struct s3d *s3d, const struct wire_head *head)
{
	const char *host = pairs_get(&head->headers, "host");
	size_t length = host ? strcspn(host, ":") : 0, domain = strlen(s3d->options.domain);

	if (length <= domain + 1 || host[length - domain - 1] != '.' ||
		strncmp(host + length - domain, s3d->options.domain, domain) != 0)
		return NULL;
	return strndup(host, length - domain - 1);
}

static bool make_request(
	const struct s3d_connection *c, struct wire_head *head, struct s3_request *req)
{
	char *bucket = hosted(c->s3d, head);
	bool good = bucket ? s3_request_set_hosted(req, head->method, bucket, head->target)
			   : s3_request_set(req, head->method, head->target);

	free(bucket);
	req->headers = head->headers;
	head->headers = (struct pairs){0};
	req->secure = c->wire.ssl != NULL;
	return good;
}

static enum next refuse(struct s3d_connection *c, int status, const char *code, const char *why)
{
	struct s3_reply reply = {0};

	s3_reply_refuse(&reply, status, code, why, NULL);
	(void)wire_answer(&c->wire, &reply, false, true);
	s3_reply_clear(&reply);
	return NEXT_CLOSE;
}

/* Whether it is refused without its body: then that is said. */
static bool refused_early(struct s3d_connection *c, struct s3_request *req)
{
	struct s3d *s3d = c->s3d;
	struct s3_reply reply = {0};

	(void)pthread_mutex_lock(&s3d->lock);
	bool refused = buckets_refuse_early(s3d->front.buckets, s3d_now(s3d), req, &reply);
	if (refused)
		front_lost(&s3d->front, s3d_now(s3d), req, "early");
	(void)pthread_mutex_unlock(&s3d->lock);
	if (refused)
		(void)wire_answer(&c->wire, &reply, strcmp(req->method, "HEAD") == 0, true);
	s3_reply_clear(&reply);
	return refused;
}

static bool read_body(struct s3d_connection *c, const struct wire_head *head, uint64_t length,
	struct s3_request *req)
{
	if (!length)
		return true;
	bool null = c->s3d->options.null_sink && *req->key && strcmp(req->method, "PUT") == 0;
	req->body = null ? bytes_hollow((size_t)head->length) : bytes_new((size_t)length);
	return wire_read(&c->wire, null ? NULL : req->body->data, length);
}

/* Sums that will be asked for, outside of the lock. */
static void sum_up(struct s3_request *req)
{
	if (!req->body || req->body->hollow || strcmp(req->method, "PUT") != 0)
		return;
	(void)s3_request_hash(req, HASH_MD5);
	(void)s3_request_hash(req, HASH_SHA256);
	for (int hash = HASH_CRC32; hash < HASH_COUNT; hash++) {
		char name[64];
		(void)snprintf(name, sizeof(name), "x-amz-checksum-%s", hash_name((enum hash)hash));
		if (pairs_get(&req->headers, name))
			(void)s3_request_hash(req, (enum hash)hash);
	}
}

/* How much of the body is read before the rule strikes. */
static uint64_t body_read(const struct fault_rule *fault, const struct wire_head *head)
{
	bool cut = fault->kind == FAULT_DROP || fault->kind == FAULT_STALL_BODY;

	return cut && fault->bytes < head->length ? fault->bytes : head->length;
}

static enum next do_request(struct s3d_connection *c, const struct wire_head *head,
	const struct fault_rule *fault, struct s3_request *req)
{
	struct s3d *s3d = c->s3d;
	struct s3_reply reply = {0};
	enum next next = NEXT_RESET;
	bool later = fault->kind == FAULT_LATE || fault->kind == FAULT_TWICE;

	if (!later && fault->kind != FAULT_STALL && fault->kind != FAULT_STALL_BODY)
		s3d_wait(s3d, fault->delay_ms);
	(void)pthread_mutex_lock(&s3d->lock);
	enum front_end end = front_do(&s3d->front, s3d_now(s3d), fault, req, &reply);
	(void)pthread_mutex_unlock(&s3d->lock);
	if (later)
		(void)eventfd_write(s3d->again, 1);
	if (end == FRONT_STALLED)
		stall(c, fault->delay_ms);
	if (end == FRONT_ANSWERED) {
		bool close = head->close || reply.close;
		s3d_wait(s3d, fault->reply_delay_ms);
		next = wire_answer(&c->wire, &reply, strcmp(head->method, "HEAD") == 0, close) &&
				       !close
			       ? NEXT_REQUEST
			       : NEXT_CLOSE;
	}
	s3_reply_clear(&reply);
	return next;
}

static enum next serve(struct s3d_connection *c, struct wire_head *head, struct s3_request *req)
{
	struct s3d *s3d = c->s3d;
	bool bodied = strcmp(head->method, "PUT") == 0 || strcmp(head->method, "POST") == 0;

	if (!make_request(c, head, req))
		return refuse(c, 400, "InvalidURI", "Couldn't parse the specified URI.");
	if (head->chunked || (bodied && !head->sized))
		return refuse(c, 411, "MissingContentLength",
			"You must provide the Content-Length HTTP header.");
	if (head->length > s3d->options.body_most)
		return refuse(c, 400, "EntityTooLarge",
			"Your proposed upload exceeds the maximum allowed size");
	(void)pthread_mutex_lock(&s3d->lock);
	struct fault_rule fault = front_judge(&s3d->front, req);
	(void)pthread_mutex_unlock(&s3d->lock);
	uint64_t length = body_read(&fault, head);
	if (head->expects && head->length && length) {
		if (refused_early(c, req))
			return NEXT_CLOSE;
		if (!wire_continue(&c->wire))
			return NEXT_CLOSE;
	}
	if (!read_body(c, head, length, req)) {
		(void)pthread_mutex_lock(&s3d->lock);
		front_lost(&s3d->front, s3d_now(s3d), req, "cut off");
		(void)pthread_mutex_unlock(&s3d->lock);
		return NEXT_CLOSE;
	}
	sum_up(req);
	return do_request(c, head, &fault, req);
}

static enum next serve_admin(struct s3d_connection *c, const struct wire_head *head)
{
	struct s3_reply reply = {0};
	struct bytes *body = NULL;
	bool good = head->length <= (1u << 20);

	if (good && head->length) {
		body = bytes_new((size_t)head->length);
		good = wire_read(&c->wire, body->data, head->length);
	}
	if (good) {
		s3d_admin(c->s3d, head->method, head->target, body, &reply);
		good = wire_answer(&c->wire, &reply, false, head->close) && !head->close;
	}
	s3_reply_clear(&reply);
	bytes_let_go(body);
	return good ? NEXT_REQUEST : NEXT_CLOSE;
}

static enum next one(struct s3d_connection *c)
{
	struct wire_head head;
	struct s3_request req = {0};
	enum next next;

	switch (wire_read_head(&c->wire, c->s3d->options.idle_ms, &head)) {
	case WIRE_GOOD:
		next = strncmp(head.target, "/_ckpt/", 7) == 0 ? serve_admin(c, &head)
							       : serve(c, &head, &req);
		break;
	case WIRE_BAD:
		next = refuse(c, 400, "BadRequest", "That is no HTTP/1.1.");
		break;
	case WIRE_GONE:
	case WIRE_IDLE:
	default:
		next = NEXT_CLOSE;
		break;
	}
	wire_head_clear(&head);
	s3_request_clear(&req);
	return next;
}

static void unlist(struct s3d_connection *c)
{
	struct s3d *s3d = c->s3d;

	(void)pthread_mutex_lock(&s3d->lock);
	for (struct s3d_connection **at = &s3d->connections; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	(void)pthread_mutex_unlock(&s3d->lock);
}

void *s3d_connection_run(void *connection)
{
	struct s3d_connection *c = connection;
	enum next next = NEXT_RESET;

	(void)pthread_mutex_lock(&c->s3d->lock);
	bool refused = faults_refuse(&c->s3d->front.faults);
	(void)pthread_mutex_unlock(&c->s3d->lock);
	if (!refused && wire_open(&c->wire, c->s3d->tls)) {
		next = NEXT_REQUEST;
		while (next == NEXT_REQUEST)
			next = one(c);
	}
	wire_end(&c->wire, next == NEXT_RESET);
	/* Whoever stops the server shuts descriptors down: none may be closed while it is in the list. */
	unlist(c);
	wire_close(&c->wire);
	(void)pthread_mutex_lock(&c->s3d->lock);
	c->next = c->s3d->over;
	c->s3d->over = c;
	c->s3d->connection_count--;
	(void)pthread_cond_signal(&c->s3d->ended);
	(void)pthread_mutex_unlock(&c->s3d->lock);
	return NULL;
}
