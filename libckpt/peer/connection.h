/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to the agent: one question, one answer, with a deadline. */
#ifndef CKPT_PEER_CONNECTION_H
#define CKPT_PEER_CONNECTION_H

#include <sys/un.h>

#include "peer/message.h"

/* The name of the agent's socket in its directory. */
#define CKPT_PEER_SOCKET "socket"

struct ckpt_peer_connection {
	int fd; /* -1: broken */
	int timeout_ms;
	struct sockaddr_un address;
};

/* The address of the socket in `dir`. -ENAMETOOLONG; sets `err`. */
int ckpt_peer_socket_address(
	const char *dir, struct ckpt_error *err, struct sockaddr_un *ret_address);

/* Connects; the agent must be of the same user. Forked children close it. Sets `err`. */
int ckpt_peer_connection_open(struct ckpt_peer_connection *connection, const char *dir,
	int timeout_ms, struct ckpt_error *err);
/* The same once more, after a failure. */
int ckpt_peer_connection_again(struct ckpt_peer_connection *connection, struct ckpt_error *err);
void ckpt_peer_connection_close(struct ckpt_peer_connection *connection);

/*
 * Asks, and waits for the answer. An answer that is an ERROR is returned as its code. `ret_fd` is a descriptor that has come
 * with the answer, or -1. Sets `err`.
 */
int ckpt_peer_connection_ask(struct ckpt_peer_connection *connection,
	const struct ckpt_peer_message *question, struct ckpt_error *err,
	struct ckpt_peer_message *ret_answer, int *ret_fd);
/* Sends what needs no answer. It may be lost. */
void ckpt_peer_connection_tell(
	struct ckpt_peer_connection *connection, const struct ckpt_peer_message *question);
/* The answer was of a type that does not answer the question: nothing can be asked any more. Returns -EPROTO. */
int ckpt_peer_connection_unexpected(
	struct ckpt_peer_connection *connection, struct ckpt_error *err);

#endif
