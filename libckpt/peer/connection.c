/* SPDX-License-Identifier: Apache-2.0 */
/* Sends questions to the agent and receives its answers, and descriptors with them. */
#include "peer/connection.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"

/* More descriptors than an answer has: CMSG_SPACE() is rounded up, and none may be left open. */
#define FDS_MAX 4

int ckpt_peer_socket_address(
	const char *dir, struct ckpt_error *err, struct sockaddr_un *ret_address)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/" CKPT_PEER_SOCKET, dir);

	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return ckpt_fail(err, -ENAMETOOLONG,
			"the path of the agent's directory, %s, is too long for a socket: at most "
			"%zu "
			"characters; choose another one with --dir",
			dir, sizeof(address.sun_path) - sizeof("/" CKPT_PEER_SOCKET));
	*ret_address = address;
	return 0;
}

static void drop(struct ckpt_peer_connection *c)
{
	if (c->fd < 0)
		return;
	ckpt_fork_forget(c->fd);
	(void)close(c->fd);
	c->fd = -1;
}

/* Somebody else may have made that directory, in /tmp. */
static int check_user(int fd, const char *path, struct ckpt_error *err)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid())
		return 0;
	return ckpt_fail(err, -EACCES,
		"the agent at %s is of another user, and nothing is told to it; start ckptd as "
		"this user",
		path);
}

/* connect() waits while the agent has too many connections to take. Without a limit for timeout_ms below 0. */
static int limit_connect(int fd, int timeout_ms)
{
	struct timeval limit = {
		.tv_sec = timeout_ms / 1000, .tv_usec = (suseconds_t)(timeout_ms % 1000) * 1000};

	if (timeout_ms < 0)
		return 0;
	/* 0 would be none. */
	if (timeout_ms == 0)
		limit.tv_usec = 1;
	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) < 0 ? -errno : 0;
}

int ckpt_peer_connection_again(struct ckpt_peer_connection *c, struct ckpt_error *err)
{
	const char *path = c->address.sun_path;
	int r = ckpt_fork_watch();
	int fd;

	drop(c);
	if (r < 0)
		return ckpt_fail(err, r, "cannot watch for forks: %s", ckpt_code_text(r));
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0) {
		r = -errno;
		return ckpt_fail(err, r, "cannot make a socket: %s", ckpt_code_text(r));
	}
	r = limit_connect(fd, c->timeout_ms);
	if (r == 0 && connect(fd, (const struct sockaddr *)&c->address, sizeof(c->address)) < 0)
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
	if (r < 0) {
		(void)close(fd);
		return ckpt_fail(
			err, r, "no agent answers at %s: %s; start ckptd", path, ckpt_code_text(r));
	}
	r = check_user(fd, path, err);
	if (r < 0) {
		(void)close(fd);
		return r;
	}
	ckpt_fork_close(fd);
	c->fd = fd;
	return 0;
}

int ckpt_peer_connection_open(
	struct ckpt_peer_connection *c, const char *dir, int timeout_ms, struct ckpt_error *err)
{
	int r;

	*c = (struct ckpt_peer_connection){.fd = -1, .timeout_ms = timeout_ms};
	r = ckpt_peer_socket_address(dir, err, &c->address);
	return r < 0 ? r : ckpt_peer_connection_again(c, err);
}

void ckpt_peer_connection_close(struct ckpt_peer_connection *c)
{
	drop(c);
}

/* Nothing can be asked any more: an answer that comes late would be taken for another question's. */
static int broken(struct ckpt_peer_connection *c, int code, struct ckpt_error *err)
{
	drop(c);
	if (code == -ETIMEDOUT)
		return ckpt_fail(err, code, "the agent at %s has not answered within %d ms",
			c->address.sun_path, c->timeout_ms);
	return ckpt_fail(err, -ENOTCONN, "the connection to the agent at %s has ended (%s)",
		c->address.sun_path, code == 0 ? "it was closed there" : ckpt_code_text(code));
}

int ckpt_peer_connection_unexpected(struct ckpt_peer_connection *c, struct ckpt_error *err)
{
	drop(c);
	return ckpt_fail(
		err, -EPROTO, "the agent at %s has answered another question", c->address.sun_path);
}

/* Of the descriptors that have come with a message the first; the others are closed. -1: none. */
static int take_fd(struct msghdr *header)
{
	int found = -1;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (found < 0)
				found = fd;
			else
				(void)close(fd);
		}
	}
	return found;
}

/* The length of the packet, 0 if the agent has closed, or -errno. */
/* NOLINTNEXTLINE(readability-non-const-parameter): the kernel writes */
static ssize_t receive(int fd, uint64_t deadline, uint8_t data[CKPT_PEER_MESSAGE_MAX], int *ret_fd)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec vector = {data, CKPT_PEER_MESSAGE_MAX};
	struct msghdr header = {.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	struct pollfd ready = {fd, POLLIN, 0};
	ssize_t got;
	int n;

	while ((n = poll(&ready, 1, ckpt_deadline_left_ms(deadline))) < 0)
		if (errno != EINTR)
			return -errno;
	if (n == 0)
		return -ETIMEDOUT;
	do
		got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
	while (got < 0 && errno == EINTR);
	if (got < 0)
		return -errno;
	*ret_fd = take_fd(&header);
	return header.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EMSGSIZE : got;
}

/* Takes the next message. Returns 0, whatever it says, or what broken() returns. */
static int take_answer(struct ckpt_peer_connection *c, uint64_t deadline, struct ckpt_error *err,
	struct ckpt_peer_message *ret_answer, int *ret_fd)
{
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	ssize_t got = receive(c->fd, deadline, data, ret_fd);
	int r;

	if (got <= 0)
		return broken(c, (int)got, err);
	r = ckpt_peer_message_get(data, (size_t)got, err, ret_answer);
	if (r < 0)
		drop(c);
	return r;
}

static int ask(struct ckpt_peer_connection *c, const struct ckpt_peer_message *question,
	struct ckpt_error *err, struct ckpt_peer_message *ret_answer, int *ret_fd)
{
	uint64_t deadline = ckpt_deadline(c->timeout_ms);
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t length = ckpt_peer_message_put(question, data);
	int r;

	/* One question is far less than what the socket holds. */
	if (send(c->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno != EPIPE)
		return broken(c, -errno, err);
	/* Also if the agent has closed: before that it says why. */
	r = take_answer(c, deadline, err, ret_answer, ret_fd);
	if (r < 0 || ret_answer->type != CKPT_PEER_ERROR)
		return r;
	return ckpt_fail(err, ret_answer->code, "%s", ret_answer->text);
}

void ckpt_peer_connection_tell(
	struct ckpt_peer_connection *c, const struct ckpt_peer_message *question)
{
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t length = ckpt_peer_message_put(question, data);

	if (c->fd >= 0)
		(void)send(c->fd, data, length, MSG_NOSIGNAL | MSG_DONTWAIT);
}

int ckpt_peer_connection_ask(struct ckpt_peer_connection *c,
	const struct ckpt_peer_message *question, struct ckpt_error *err,
	struct ckpt_peer_message *ret_answer, int *ret_fd)
{
	int fd = -1;
	int r;

	*ret_fd = -1;
	if (c->fd < 0)
		return ckpt_fail(err, -ENOTCONN, "there is no connection to the agent at %s",
			c->address.sun_path);
	r = ask(c, question, err, ret_answer, &fd);
	if (r == 0)
		*ret_fd = fd;
	else if (fd >= 0)
		(void)close(fd);
	return r;
}
