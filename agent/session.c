/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: answers, and what ends with a connection. */
#include "session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "budget.h"
#include "say.h"

bool agent_session_open(struct agent *agent, int socket)
{
	struct agent_session *session = ckpt_alloc(sizeof(*session));
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = session};

	if (session)
		session->process = agent_process_of(socket);
	if (!session || !session->process ||
		epoll_ctl(agent->epoll, EPOLL_CTL_ADD, socket, &event) < 0)
		goto fail;
	/* It ends with its process, be it that a child of that has the socket, too. */
	if (session->process->pidfd >= 0 &&
		epoll_ctl(agent->epoll, EPOLL_CTL_ADD, session->process->pidfd, &event) < 0)
		goto fail;
	session->agent = agent;
	session->socket = socket;
	session->next = agent->sessions;
	agent->sessions = session;
	return true;
fail:
	if (session)
		agent_process_let_go(session->process);
	ckpt_free(session);
	(void)close(socket);
	return false;
}

void agent_session_leave(struct agent_session *session)
{
	struct agent_rank *rank = session->rank;

	if (!rank)
		return;
	rank->session = NULL;
	rank->ordered = 0;
	session->rank = NULL;
	session->filling = NULL;
}

void agent_session_end(struct agent_session *session)
{
	struct epoll_event end = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = AGENT_WAKES};

	if (session->socket < 0)
		return;
	if (session->making)
		agent_maker_give_up(&session->order);
	agent_session_leave(session);
	while (session->readings > 0)
		session->reading[--session->readings]->readers--;
	/* Closing the socket takes it out of epoll. The pidfd may live on, with a slot, and tells once when that is free. */
	if (session->process->pidfd >= 0)
		(void)epoll_ctl(
			session->agent->epoll, EPOLL_CTL_MOD, session->process->pidfd, &end);
	(void)close(session->socket);
	session->socket = -1;
	agent_process_let_go(session->process);
	session->process = NULL;
}

void agent_sessions_sweep(struct agent *agent)
{
	struct agent_session **link = &agent->sessions;

	while (*link) {
		struct agent_session *session = *link;

		if (session->socket >= 0 || session->making) {
			link = &session->next;
			continue;
		}
		*link = session->next;
		ckpt_free(session);
	}
}

void agent_session_reply(
	struct agent_session *session, const struct ckpt_peer_message *answer, int fd)
{
	union {
		struct cmsghdr align;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.space = {0}};
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	struct iovec vector = {data, ckpt_peer_message_put(answer, data)};
	struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

	if (session->socket < 0)
		return;
	if (fd >= 0) {
		struct cmsghdr *c;

		header.msg_control = &control;
		header.msg_controllen = sizeof(control);
		c = CMSG_FIRSTHDR(&header);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	}
	/* A client has one question under way, so there is room for the answer, or it does not read. */
	if (sendmsg(session->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		agent_session_end(session);
}

void agent_session_ok(struct agent_session *session)
{
	const struct ckpt_peer_message answer = {.type = CKPT_PEER_OK};

	agent_session_reply(session, &answer, -1);
}

void agent_session_refuse(struct agent_session *session, const struct ckpt_error *err)
{
	struct ckpt_peer_message answer = {.type = CKPT_PEER_ERROR, .code = err->code};

	(void)snprintf(answer.text, sizeof(answer.text), "%s", err->message);
	agent_session_reply(session, &answer, -1);
}

void agent_session_refuse_text(struct agent_session *session, int code, const char *fmt, ...)
{
	struct ckpt_peer_message answer = {.type = CKPT_PEER_ERROR, .code = code};
	va_list args;

	va_start(args, fmt);
	(void)vsnprintf(answer.text, sizeof(answer.text), fmt, args);
	va_end(args);
	agent_session_reply(session, &answer, -1);
}

bool agent_session_order(
	struct agent_session *session, struct agent_slot *old, void (*made)(struct ckpt_node *node))
{
	struct agent_registry *registry = &session->agent->registry;
	struct ckpt_error err;

	CKPT_ASSERT(!session->making && session->rank);
	ckpt_error_clear(&err);
	if (agent_budget_slot_fits(session->agent, session->rank, old, &err) < 0) {
		agent_session_refuse(session, &err);
		return false;
	}
	if (old)
		agent_slot_drop(registry, old);
	session->making = true;
	session->order = (struct agent_order){
		.node = {.run = made},
		.fixed = {.job = session->rank->job->id,
			.number = registry->next_slot++,
			.capacity = session->rank->capacity,
			.rank = session->rank->number},
	};
	agent_maker_order(session->agent->maker, &session->order);
	return true;
}

struct agent_slot *agent_session_made(struct agent_session *session)
{
	struct agent_order *order = &session->order;
	struct agent_slot *slot = NULL;
	int r = order->code;

	CKPT_ASSERT(session->making);
	session->making = false;
	if (session->rank)
		session->rank->ordered = 0;
	if (!session->rank) {
		if (r == 0)
			(void)close(order->fd);
		return NULL;
	}
	if (r == 0) {
		r = agent_slot_add(
			&session->agent->registry, session->rank, order->fd, &order->error, &slot);
		if (r < 0)
			(void)close(order->fd);
	}
	if (r < 0) {
		agent_session_refuse(session, &order->error);
		return NULL;
	}
	agent_job_fence(session->rank->job);
	/* Before it is given away: a crash after that must not lose it. */
	if (session->agent->manager.fd >= 0 &&
		!agent_manager_keep(&session->agent->manager, order->fixed.number, order->fd))
		agent_say("nobody keeps the descriptors of slots any more: a crash of ckptd loses "
			  "them");
	return slot;
}
