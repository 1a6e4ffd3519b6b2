/* SPDX-License-Identifier: Apache-2.0 */
/* A connection of s3d: bytes over TCP, plain or by TLS, and HTTP/1.1's heads and bodies on it. */
#ifndef S3_WIRE_H
#define S3_WIRE_H

#include <openssl/ssl.h>

#include "s3/message.h"

#define WIRE_HEAD_MAX 65536

struct wire {
	int fd;
	SSL *ssl; /* NULL: plain */
	char head[WIRE_HEAD_MAX];
	size_t have; /* bytes in `head` that nobody has taken yet */
};

/* The head of a request as HTTP has it. */
struct wire_head {
	char method[16];
	char *target;
	struct pairs headers; /* lower-case names */
	uint64_t length;      /* of the body */
	bool sized;           /* it was said */
	bool chunked;
	bool expects; /* 100-continue */
	bool close;
};

enum wire_end { WIRE_GOOD = 0, WIRE_GONE, WIRE_IDLE, WIRE_BAD };

/* Zeroed but for `fd`. `ctx` is NULL for plain connections. False: no TLS came about. */
bool wire_open(struct wire *wire, SSL_CTX *ctx);
/* Says that it is over. `reset`: the peer will see ECONNRESET, also of what it still sends. */
void wire_end(struct wire *wire, bool reset);
void wire_close(struct wire *wire);

/* `idle_ms` is how long the first byte may take. */
enum wire_end wire_read_head(struct wire *wire, int idle_ms, struct wire_head *ret_head);
void wire_head_clear(struct wire_head *head);
/* `length` bytes of a body, into `data` if it is not NULL. False: it ended before. */
bool wire_read(struct wire *wire, void *data, uint64_t length);
bool wire_continue(struct wire *wire); /* 100 */
/* `bodiless`: only the head of it, as HEAD wants. False: it could not be sent. */
bool wire_answer(struct wire *wire, const struct s3_reply *reply, bool bodiless, bool close);

#endif
