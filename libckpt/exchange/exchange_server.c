/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the program, and its answers. */
#include "exchange/exchange_server.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "base/utf8.h"

_Static_assert(CKPT_SESSION_MAX + 1 + CKPT_EXCHANGE_KEY_MAX <= CKPT_EXCHANGE_NAME_MAX, "keys fit");

struct list {
	struct ckpt_request *first;
	struct ckpt_request **end;
};

struct ckpt_exchange_server {
	atomic_uint owners;
	unsigned forks; /* ckpt_fork_count() when it was made */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ckpt_inbox *inbox; /* guarded by lock; NULL: no engine is attached */
	bool quiet;               /* guarded by lock */
	uint64_t last_id;         /* guarded by lock */
	size_t open;              /* number of HANDED and ANSWERING requests; guarded by lock */
	struct list waiting;      /* guarded by lock */
	struct list handed;       /* guarded by lock */
};

static void append(struct list *list, struct ckpt_request *request)
{
	request->next = NULL;
	*list->end = request;
	list->end = &request->next;
}

static void unlink_request(struct list *list, const struct ckpt_request *request)
{
	struct ckpt_request **link = &list->first;

	while (*link && *link != request)
		link = &(*link)->next;
	CKPT_ASSERT(*link == request);
	*link = request->next;
	if (list->end == &request->next)
		list->end = link;
}

/* Keys and values are stored one after the other in `text`. */
static void copy_item(struct ckpt_request *request, const char *session,
	const struct ckpt_exchange_item *item, char **at)
{
	uint32_t i = request->count++;
	int n = snprintf(*at, CKPT_EXCHANGE_NAME_MAX, "%s/%s", session, item->key);

	CKPT_ASSERT(n > 0 && n < CKPT_EXCHANGE_NAME_MAX);
	request->keys[i] = *at;
	*at += n + 1;
	if (request->verb != CKPT_EXCHANGE_PUT)
		return;
	memcpy(*at, item->data, item->length);
	request->values[i] = *at;
	request->lengths[i] = item->length;
	*at += item->length;
}

struct ckpt_request *ckpt_request_new(const char *session, const struct ckpt_exchange_op *op)
{
	struct ckpt_request *request = ckpt_alloc(sizeof(*request));
	size_t bytes = 0;

	CKPT_ASSERT(op->count > 0 && op->count <= CKPT_EXCHANGE_BATCH);
	/* snprintf() may write a full-size key, so each gets that much space. */
	for (size_t i = 0; i < op->count; i++)
		bytes += CKPT_EXCHANGE_NAME_MAX + op->items[i].length;
	char *text = request ? ckpt_alloc(bytes) : NULL;
	if (!text) {
		ckpt_free(request);
		return NULL;
	}
	request->text = text;
	request->verb = op->verb;
	for (size_t i = 0; i < op->count; i++)
		copy_item(request, session, &op->items[i], &text);
	return request;
}

static void drop_values(struct ckpt_request *request)
{
	for (uint32_t i = 0; i < request->count; i++) {
		ckpt_free(request->got[i]);
		request->got[i] = NULL;
	}
}

void ckpt_request_free(struct ckpt_request *request)
{
	drop_values(request);
	ckpt_free(request->text);
	ckpt_free(request);
}

int ckpt_server_new(struct ckpt_exchange_server **ret_server)
{
	struct ckpt_exchange_server *server = ckpt_alloc(sizeof(*server));
	int r;

	if (!server)
		return -ENOMEM;
	r = -pthread_mutex_init(&server->lock, NULL);
	if (r < 0)
		goto free_server;
	r = ckpt_cond_init(&server->changed);
	if (r < 0)
		goto destroy_lock;
	r = ckpt_fork_watch();
	if (r < 0)
		goto destroy_changed;
	server->forks = ckpt_fork_count();
	atomic_store(&server->owners, 1);
	server->waiting.end = &server->waiting.first;
	server->handed.end = &server->handed.first;
	*ret_server = server;
	return 0;

destroy_changed:
	(void)pthread_cond_destroy(&server->changed);
destroy_lock:
	(void)pthread_mutex_destroy(&server->lock);
free_server:
	ckpt_free(server);
	return r;
}

int ckpt_server_attach(struct ckpt_exchange_server *server, struct ckpt_inbox *inbox)
{
	pthread_mutex_lock(&server->lock);
	bool taken = server->inbox || server->quiet;
	if (!taken)
		server->inbox = inbox;
	pthread_mutex_unlock(&server->lock);
	if (taken)
		return -EBUSY;
	atomic_fetch_add(&server->owners, 1);
	return 0;
}

void ckpt_server_unref(struct ckpt_exchange_server *server)
{
	if (!server || atomic_fetch_sub(&server->owners, 1) > 1)
		return;
	/* The engine has detached, and waiting requests were never answered. */
	CKPT_ASSERT(!server->waiting.first);
	while (server->handed.first) {
		struct ckpt_request *request = server->handed.first;
		server->handed.first = request->next;
		CKPT_ASSERT(request->given_up);
		ckpt_request_free(request);
	}
	(void)pthread_cond_destroy(&server->changed);
	(void)pthread_mutex_destroy(&server->lock);
	ckpt_free(server);
}

bool ckpt_server_forked(const struct ckpt_exchange_server *server)
{
	return ckpt_fork_count() != server->forks;
}

bool ckpt_server_post(struct ckpt_exchange_server *server, struct ckpt_request *request)
{
	pthread_mutex_lock(&server->lock);
	bool quiet = server->quiet;
	if (!quiet) {
		request->id = ++server->last_id;
		request->state = CKPT_REQUEST_WAITING;
		append(&server->waiting, request);
		pthread_cond_signal(&server->changed);
	}
	pthread_mutex_unlock(&server->lock);
	return !quiet;
}

enum ckpt_request_state ckpt_server_give_up(
	struct ckpt_exchange_server *server, struct ckpt_request *request)
{
	pthread_mutex_lock(&server->lock);
	enum ckpt_request_state state = request->state;
	if (state == CKPT_REQUEST_WAITING)
		unlink_request(&server->waiting, request);
	else if (state != CKPT_REQUEST_ANSWERED)
		request->given_up = true;
	pthread_mutex_unlock(&server->lock);
	return state == CKPT_REQUEST_ANSWERING ? CKPT_REQUEST_HANDED : state;
}

/* Called with the lock held. */
static void hand_back(struct ckpt_exchange_server *server, struct ckpt_request *request)
{
	request->state = CKPT_REQUEST_ANSWERED;
	ckpt_inbox_push(server->inbox, &request->node);
}

void ckpt_server_quiet(struct ckpt_exchange_server *server)
{
	pthread_mutex_lock(&server->lock);
	server->quiet = true;
	while (server->waiting.first) {
		struct ckpt_request *request = server->waiting.first;
		unlink_request(&server->waiting, request);
		request->result = CKPT_ECLOSED;
		hand_back(server, request);
	}
	pthread_cond_broadcast(&server->changed);
	pthread_mutex_unlock(&server->lock);
}

static uint32_t left_ms(uint64_t deadline_ns)
{
	uint64_t now_ns = ckpt_clock_ns();

	return deadline_ns > now_ns ? (uint32_t)((deadline_ns - now_ns) / 1000000) : 0;
}

static void describe(const struct ckpt_request *request, struct ckpt_exchange_request *ret_request)
{
	bool put = request->verb == CKPT_EXCHANGE_PUT;

	*ret_request = (struct ckpt_exchange_request){.size = sizeof(*ret_request),
		.verb = request->verb,
		.id = request->id,
		.count = request->count,
		.timeout_ms = left_ms(request->deadline_ns),
		.keys = request->keys,
		.values = put ? request->values : NULL,
		.lengths = put ? request->lengths : NULL};
}

int ckpt_server_next(struct ckpt_exchange_server *server, int timeout_ms,
	struct ckpt_exchange_request *ret_request)
{
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	int r = -ETIMEDOUT;

	pthread_mutex_lock(&server->lock);
	while (!server->quiet && (!server->waiting.first || server->open == CKPT_SERVER_OPEN_MAX)) {
		if (timeout_ms == 0 ||
			!ckpt_cond_wait_until(&server->changed, &server->lock, deadline_ns))
			break;
	}
	if (server->quiet) {
		r = CKPT_ECLOSED;
	} else if (server->waiting.first && server->open < CKPT_SERVER_OPEN_MAX) {
		struct ckpt_request *request = server->waiting.first;
		unlink_request(&server->waiting, request);
		append(&server->handed, request);
		request->state = CKPT_REQUEST_HANDED;
		server->open++;
		describe(request, ret_request);
		r = 0;
	}
	pthread_mutex_unlock(&server->lock);
	return r;
}

static struct ckpt_request *find_handed(struct ckpt_exchange_server *server, uint64_t id)
{
	struct ckpt_request *request = NULL;

	pthread_mutex_lock(&server->lock);
	for (request = server->handed.first; request && request->id != id;)
		request = request->next;
	if (request && request->state == CKPT_REQUEST_ANSWERING)
		request = NULL;
	if (request)
		request->state = CKPT_REQUEST_ANSWERING;
	pthread_mutex_unlock(&server->lock);
	return request;
}

static int take_value(struct ckpt_request *request, uint32_t i,
	const struct ckpt_exchange_answer *answer, struct ckpt_error *err)
{
	if (!answer->values[i])
		return 0;
	if (answer->lengths[i] > CKPT_EXCHANGE_VALUE_MAX)
		return ckpt_fail(err, -E2BIG,
			"ckpt_exchange_reply: the value of %s has %llu bytes, but at most %llu are "
			"allowed",
			request->keys[i], (unsigned long long)answer->lengths[i],
			(unsigned long long)CKPT_EXCHANGE_VALUE_MAX);
	request->got[i] = ckpt_memdup(answer->values[i], answer->lengths[i]);
	request->got_lengths[i] = answer->lengths[i];
	return request->got[i] ? 0 : ckpt_fail(err, -ENOMEM, "out of memory");
}

/* Copies the answer, or nothing on failure. */
static int take_answer(struct ckpt_request *request, const struct ckpt_exchange_answer *answer,
	struct ckpt_error *err)
{
	bool values = request->verb == CKPT_EXCHANGE_GET && answer->result == 0;
	int r = 0;

	if (answer->result > 0)
		return ckpt_fail(err, -EINVAL,
			"ckpt_exchange_reply: the result is %d, but must be 0 or a negative code",
			answer->result);
	if (values && (!answer->values || !answer->lengths))
		return ckpt_fail(err, -EINVAL,
			"ckpt_exchange_reply: the answer to a GET has no values or lengths");
	for (uint32_t i = 0; values && r == 0 && i < request->count; i++)
		r = take_value(request, i, answer, err);
	if (r < 0) {
		drop_values(request);
		return r;
	}
	request->result = answer->result;
	if (answer->reason) {
		size_t length = strnlen(answer->reason, sizeof(request->reason));
		length = ckpt_utf8_cut(answer->reason, length, sizeof(request->reason) - 1);
		memcpy(request->reason, answer->reason, length);
		ckpt_utf8_line(request->reason);
	}
	return 0;
}

int ckpt_server_reply(struct ckpt_exchange_server *server,
	const struct ckpt_exchange_answer *answer, struct ckpt_error *err)
{
	struct ckpt_request *request = find_handed(server, answer->id);

	if (!request)
		return ckpt_fail(err, -ENOENT,
			"ckpt_exchange_reply: no request %llu waits for an answer",
			(unsigned long long)answer->id);
	/* Without the lock, which the core takes, because the answer may be large. */
	int r = take_answer(request, answer, err);
	pthread_mutex_lock(&server->lock);
	bool late = request->given_up;
	if (r < 0) {
		request->state = CKPT_REQUEST_HANDED;
	} else {
		unlink_request(&server->handed, request);
		server->open--;
		pthread_cond_signal(&server->changed);
		if (!late)
			hand_back(server, request);
	}
	pthread_mutex_unlock(&server->lock);
	if (r < 0 || !late)
		return r;
	ckpt_request_free(request);
	return ckpt_fail(err, -ETIMEDOUT,
		"ckpt_exchange_reply: the answer to request %llu is too late: the engine has given "
		"it up",
		(unsigned long long)answer->id);
}
