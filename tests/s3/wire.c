/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/wire.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

bool wire_open(struct wire *wire, SSL_CTX *ctx)
{
	int one = 1;

	(void)setsockopt(wire->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!ctx)
		return true;
	wire->ssl = SSL_new(ctx);
	return wire->ssl && SSL_set_fd(wire->ssl, wire->fd) == 1 && SSL_accept(wire->ssl) == 1;
}

/* A peer that still sends would be reset, and lose what it was told: so it is heard out, within reason. */
static void hear_out(struct wire *wire)
{
	struct pollfd ready = {.fd = wire->fd, .events = POLLIN};
	char waste[65536];

	(void)shutdown(wire->fd, SHUT_WR);
	for (int i = 0; i < 256 && poll(&ready, 1, 1000) == 1; i++)
		if (recv(wire->fd, waste, sizeof(waste), 0) <= 0)
			return;
}

void wire_end(struct wire *wire, bool reset)
{
	const struct linger now = {1, 0};

	if (reset)
		(void)setsockopt(wire->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
	else if (wire->ssl && SSL_is_init_finished(wire->ssl))
		(void)SSL_shutdown(wire->ssl);
	if (!reset)
		hear_out(wire);
}

void wire_close(struct wire *wire)
{
	SSL_free(wire->ssl);
	(void)close(wire->fd);
}

static ssize_t take(struct wire *wire, void *data, size_t length)
{
	if (wire->ssl) {
		int n = SSL_read(wire->ssl, data, length > INT32_MAX ? INT32_MAX : (int)length);
		return n > 0 ? n : -1;
	}
	return recv(wire->fd, data, length, 0);
}

static bool put(struct wire *wire, const void *data, size_t length)
{
	const char *at = data;

	while (length) {
		ssize_t n;
		if (wire->ssl)
			n = SSL_write(wire->ssl, at, length > INT32_MAX ? INT32_MAX : (int)length);
		else
			n = send(wire->fd, at, length, MSG_NOSIGNAL);
		if (n <= 0)
			return false;
		at += n;
		length -= (size_t)n;
	}
	return true;
}

/* Where the head ends, behind its empty line; 0: not yet. */
static size_t head_end(const struct wire *wire)
{
	const char *end = memmem(wire->head, wire->have, "\r\n\r\n", 4);

	return end ? (size_t)(end - wire->head) + 4 : 0;
}

static void lower(char *name)
{
	for (; *name; name++)
		if (*name >= 'A' && *name <= 'Z')
			*name = (char)(*name + 'a' - 'A');
}

static bool read_header(char *line, struct wire_head *head)
{
	char *colon = strchr(line, ':');

	if (!colon || colon == line)
		return false;
	*colon = '\0';
	lower(line);
	char *value = colon + 1 + strspn(colon + 1, " \t");
	size_t length = strlen(value);
	while (length && (value[length - 1] == ' ' || value[length - 1] == '\t'))
		value[--length] = '\0';
	pairs_add(&head->headers, line, value);
	if (strcmp(line, "content-length") == 0) {
		char *end = NULL;
		head->length = strtoull(value, &end, 10);
		head->sized = true;
		return end != value && !*end && *value != '-';
	}
	if (strcmp(line, "transfer-encoding") == 0)
		head->chunked = strcasecmp(value, "identity") != 0;
	if (strcmp(line, "expect") == 0)
		head->expects = strcasecmp(value, "100-continue") == 0;
	if (strcmp(line, "connection") == 0)
		head->close = strcasecmp(value, "close") == 0;
	return true;
}

/* `text` ends in an empty line. */
static bool parse(char *text, struct wire_head *head)
{
	char *line = text, *end = strstr(line, "\r\n");

	*end = '\0';
	char *target = strchr(line, ' ');
	char *version = target ? strchr(target + 1, ' ') : NULL;
	if (!version || (size_t)(target - line) >= sizeof(head->method))
		return false;
	*target = *version = '\0';
	if (strncmp(version + 1, "HTTP/1.", 7) != 0)
		return false;
	head->close = version[8] == '0';
	memcpy(head->method, line, strlen(line) + 1);
	head->target = need_text(target + 1);
	for (line = end + 2; *line != '\r'; line = end + 2) {
		end = strstr(line, "\r\n");
		*end = '\0';
		if (!read_header(line, head))
			return false;
	}
	return true;
}

enum wire_end wire_read_head(struct wire *wire, int idle_ms, struct wire_head *ret_head)
{
	size_t length;

	*ret_head = (struct wire_head){0};
	if (!wire->have && !(wire->ssl && SSL_pending(wire->ssl))) {
		struct pollfd ready = {.fd = wire->fd, .events = POLLIN};
		int r = poll(&ready, 1, idle_ms);
		if (r <= 0)
			return r == 0 ? WIRE_IDLE : WIRE_GONE;
	}
	while (!(length = head_end(wire))) {
		if (wire->have == sizeof(wire->head))
			return WIRE_BAD;
		ssize_t n = take(wire, wire->head + wire->have, sizeof(wire->head) - wire->have);
		if (n <= 0)
			return WIRE_GONE;
		wire->have += (size_t)n;
	}
	char *text = strndup(wire->head, length);
	bool good = text && strlen(text) == length && parse(text, ret_head);
	free(text);
	wire->have -= length;
	memmove(wire->head, wire->head + length, wire->have);
	return good ? WIRE_GOOD : WIRE_BAD;
}

void wire_head_clear(struct wire_head *head)
{
	free(head->target);
	pairs_clear(&head->headers);
	*head = (struct wire_head){0};
}

bool wire_read(struct wire *wire, void *data, uint64_t length)
{
	char waste[65536];
	char *at = data;
	size_t first = wire->have < length ? wire->have : (size_t)length;

	if (first) {
		if (at)
			memcpy(at, wire->head, first);
		wire->have -= first;
		memmove(wire->head, wire->head + first, wire->have);
	}
	for (uint64_t done = first; done < length;) {
		uint64_t left = length - done;
		size_t most = at || left < sizeof(waste) ? (size_t)left : sizeof(waste);
		ssize_t n = take(wire, at ? at + done : waste, most);
		if (n <= 0)
			return false;
		done += (uint64_t)n;
	}
	return true;
}

bool wire_continue(struct wire *wire)
{
	static const char words[] = "HTTP/1.1 100 Continue\r\n\r\n";

	return put(wire, words, sizeof(words) - 1);
}

static const char *phrase(int status)
{
	switch (status) {
	case 200:
		return "OK";
	case 204:
		return "No Content";
	case 206:
		return "Partial Content";
	case 301:
		return "Moved Permanently";
	case 304:
		return "Not Modified";
	case 400:
		return "Bad Request";
	case 403:
		return "Forbidden";
	case 404:
		return "Not Found";
	case 409:
		return "Conflict";
	case 411:
		return "Length Required";
	case 412:
		return "Precondition Failed";
	case 416:
		return "Range Not Satisfiable";
	case 500:
		return "Internal Server Error";
	case 501:
		return "Not Implemented";
	case 503:
		return "Slow Down";
	default:
		return "Whatever";
	}
}

static bool put_body(struct wire *wire, const struct rope *body)
{
	static const char zeroes[65536];

	for (size_t i = 0; i < body->count; i++) {
		const struct rope_piece *piece = &body->pieces[i];
		if (!piece->bytes->hollow) {
			if (!put(wire, piece->bytes->data + piece->offset, piece->length))
				return false;
			continue;
		}
		for (size_t left = piece->length; left;) {
			size_t n = left < sizeof(zeroes) ? left : sizeof(zeroes);
			if (!put(wire, zeroes, n))
				return false;
			left -= n;
		}
	}
	return true;
}

bool wire_answer(struct wire *wire, const struct s3_reply *reply, bool bodiless, bool close)
{
	struct text head = {0};

	text_addf(&head, "HTTP/1.1 %d %s\r\n", reply->status, phrase(reply->status));
	for (size_t i = 0; i < reply->headers.count; i++) {
		text_add(&head, reply->headers.at[i].name);
		text_add(&head, ": ");
		text_add(&head, reply->headers.at[i].value);
		text_add(&head, "\r\n");
	}
	if (reply->status != 204 && reply->status != 304)
		text_addf(&head, "content-length: %" PRIu64 "\r\n",
			reply->body.length + reply->missing);
	if (close)
		text_add(&head, "connection: close\r\n");
	text_add(&head, "\r\n");
	bool small = !bodiless && reply->body.length <= 16384;
	if (small) { /* in one piece with the head */
		char room[16384];
		size_t n = rope_read(&reply->body, 0, room, sizeof(room));
		text_add_bytes(&head, room, n);
	}
	bool good = put(wire, head.at, head.length);
	text_clear(&head);
	return good && (small || bodiless || put_body(wire, &reply->body));
}
