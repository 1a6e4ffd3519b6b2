/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of a client's thread: it takes requests, runs libcurl, enforces time limits, and returns requests. It waits
 * only in curl_multi_poll(), which ends when a socket is ready, a limit is due, or the thread is poked.
 */
#include "net/http_curl.h"

#include <errno.h>
#include <limits.h>

#include "base/alloc.h"
#include "base/thread.h"

#define NS_PER_MS UINT64_C(1000000)
/* Time limits are checked at most this often while bytes move. */
#define CHECK_NS  (20 * NS_PER_MS)
/* Used if no limit is near. */
#define WAIT_MS   60000

static void link_active(struct http_thread *thread, struct http_transfer *t)
{
	t->prev = NULL;
	t->next = thread->active;
	if (t->next)
		t->next->prev = t;
	thread->active = t;
}

static void unlink_active(struct http_thread *thread, struct http_transfer *t)
{
	if (t->prev)
		t->prev->next = t->next;
	else
		thread->active = t->next;
	if (t->next)
		t->next->prev = t->prev;
}

static void put_spare(struct http_thread *thread, struct http_transfer *t)
{
	t->next = thread->spare;
	thread->spare = t;
}

/* Its result is set. */
static void finish(struct http_thread *thread, struct http_transfer *t)
{
	struct ckpt_http_req *req = t->req;

	if (t->attached)
		(void)curl_multi_remove_handle(thread->multi, t->easy);
	t->attached = false;
	unlink_active(thread, t);
	http_transfer_forget(t);
	ckpt_buf_free(&t->reply);
	ckpt_buf_free(&t->head.text);
	t->req = NULL;
	http_give_back(thread, req);
	put_spare(thread, t);
	thread->has_room = true;
}

static void fail(struct http_thread *thread, struct http_transfer *t, int code)
{
	const char *words = t->failure_words ? t->failure_words : "there is not enough memory";

	http_end_by_us(t, code, "%s", words);
	finish(thread, t);
}

static void attach(struct http_thread *thread, struct http_transfer *t,
	const struct ckpt_http_addresses *addresses)
{
	int r = http_transfer_prepare(t, addresses);

	t->resolving = false;
	if (r == 0 && curl_multi_add_handle(thread->multi, t->easy) != CURLM_OK)
		r = -ENOMEM;
	if (r < 0) {
		fail(thread, t, r);
		return;
	}
	t->attached = true;
}

/* Resolves the host, except behind a proxy and names that libcurl resolves itself. */
static void resolve(struct http_thread *thread, struct http_transfer *t, uint64_t now_ns)
{
	struct ckpt_http_addresses addresses;
	const char *why = NULL;

	if (!t->resolving) {
		attach(thread, t, NULL);
		return;
	}
	switch (ckpt_resolver_ask(thread->client->resolver, t->host, now_ns, &addresses, &why)) {
	case CKPT_RESOLVED:
		attach(thread, t, &addresses);
		break;
	case CKPT_RESOLVE_PENDING:
		break;
	case CKPT_RESOLVE_FAILED:
		http_end_by_us(t, CKPT_ENETWORK, "cannot resolve the name %s: %s", t->host, why);
		finish(thread, t);
		break;
		CKPT_ASSERT_NO_OTHER;
	}
}

static void start(struct http_thread *thread, struct http_transfer *t, uint64_t now_ns)
{
	t->begun_ns = now_ns;
	t->moved_ns = now_ns;
	t->req->begun_ns = ckpt_max_u64(now_ns, t->req->submitted_ns) - t->req->submitted_ns;
	link_active(thread, t);
	int r = http_transfer_address(t);
	if (r < 0)
		fail(thread, t, r);
	else
		resolve(thread, t, now_ns);
	/* When its limits are due is computed later. */
	thread->due_ns = 0;
}

/* Two passes, because ending a request takes the lock. */
static void drop_cancelled(struct http_thread *thread)
{
	struct http_client *client = thread->client;
	struct http_transfer *next;

	pthread_mutex_lock(&client->lock);
	for (struct http_transfer *t = thread->active; t; t = t->next)
		t->dropped = t->cancelled || client->closing;
	pthread_mutex_unlock(&client->lock);
	for (struct http_transfer *t = thread->active; t; t = next) {
		next = t->next;
		if (!t->dropped)
			continue;
		http_end_by_us(t, -ECANCELED, "cancelled");
		finish(thread, t);
	}
}

/* False: there is no request for this thread. */
static bool take_one(struct http_thread *thread, uint64_t now_ns)
{
	/* There are as many spare ones as the thread may have requests. */
	struct http_transfer *t = thread->spare;
	struct ckpt_http_req *req = http_take(thread, t);

	if (!req)
		return false;
	CKPT_ASSERT(t);
	thread->spare = t->next;
	t->req = req;
	start(thread, t, now_ns);
	return true;
}

static void take_work(struct http_thread *thread)
{
	struct http_transfer *next;
	uint64_t now_ns = ckpt_clock_ns();

	while (take_one(thread, now_ns))
		;
	for (struct http_transfer *t = thread->active; t; t = next) {
		next = t->next;
		if (t->resolving && !t->attached)
			resolve(thread, t, now_ns);
	}
	drop_cancelled(thread);
}

static void reap(struct http_thread *thread)
{
	CURLMsg *message;
	int left;

	while ((message = curl_multi_info_read(thread->multi, &left))) {
		struct http_transfer *t = NULL;
		CURLcode code = message->data.result;

		if (message->msg != CURLMSG_DONE)
			continue;
		(void)curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
		http_end_by_curl(t, code);
		finish(thread, t);
	}
}

/* Bytes moved in both directions. */
static uint64_t count_moved(const struct http_transfer *t)
{
	curl_off_t sent = 0;
	long head = 0;

	if (!t->attached)
		return 0;
	(void)curl_easy_getinfo(t->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
	(void)curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &head);
	return (uint64_t)sent + (uint64_t)head + t->header_bytes + t->received;
}

/* The limit that the request has reached; *ret_due_ns: when it will reach one. */
static int find_limit(const struct http_transfer *t, uint64_t now_ns, uint64_t *ret_due_ns)
{
	uint64_t total_ns = t->begun_ns + t->limits.total_ms * NS_PER_MS;
	enum http_limit limit = HTTP_LIMIT_STALL;
	uint64_t due_ns = t->moved_ns + t->limits.stall_ms * NS_PER_MS;

	if (!http_transfer_sent_any(t)) {
		limit = HTTP_LIMIT_CONNECT;
		due_ns = t->begun_ns + t->limits.connect_ms * NS_PER_MS;
	} else if (!t->head.answered && http_transfer_sent_all(t)) {
		limit = HTTP_LIMIT_FIRST_BYTE;
		due_ns = t->moved_ns + t->limits.first_byte_ms * NS_PER_MS;
	}
	if (total_ns <= due_ns) {
		limit = HTTP_LIMIT_TOTAL;
		due_ns = total_ns;
	}
	*ret_due_ns = due_ns;
	return now_ns >= due_ns ? (int)limit : 0;
}

static void look_at(struct http_thread *thread, struct http_transfer *t, uint64_t now_ns)
{
	uint64_t moved = count_moved(t);
	uint64_t due_ns;

	/* A pause by the rate limit is no stall. */
	if (moved != t->moved || t->paid_ns != 0) {
		t->moved = moved;
		t->moved_ns = now_ns;
	}
	if (t->req->sent_ns == 0 && http_transfer_sent_any(t) && http_transfer_sent_all(t))
		t->req->sent_ns = now_ns - t->req->submitted_ns;
	int limit = find_limit(t, now_ns, &due_ns);
	if (limit != 0) {
		http_end_by_limit(t, (enum http_limit)limit);
		finish(thread, t);
		return;
	}
	thread->due_ns = ckpt_min_u64(thread->due_ns, due_ns);
}

/* Continues requests whose pause has ended. */
static void go_on(struct http_thread *thread, uint64_t now_ns)
{
	const struct http_client *client = thread->client;
	struct http_transfer *next;

	if (client->send.bytes_per_s == 0 && client->receive.bytes_per_s == 0)
		return;
	for (struct http_transfer *t = thread->active; t; t = next) {
		next = t->next;
		if (t->paid_ns == 0 || t->paid_ns > now_ns)
			continue;
		t->paid_ns = 0;
		/* libcurl delivers what it has kept meanwhile, and a callback may refuse it. */
		CURLcode code = curl_easy_pause(t->easy, CURLPAUSE_CONT);
		if (code == CURLE_OK && t->failure == 0)
			continue;
		http_end_by_curl(t, code);
		finish(thread, t);
	}
	for (struct http_transfer *t = thread->active; t; t = t->next) {
		if (t->paid_ns != 0)
			thread->due_ns = ckpt_min_u64(thread->due_ns, t->paid_ns);
	}
}

static void check_limits(struct http_thread *thread)
{
	struct http_transfer *next;
	uint64_t now_ns = ckpt_clock_ns();

	if (now_ns < thread->checked_ns + CHECK_NS && now_ns < thread->due_ns) {
		/* Bytes that have moved are counted first. */
		if (thread->active)
			thread->due_ns =
				ckpt_min_u64(thread->due_ns, thread->checked_ns + CHECK_NS);
		go_on(thread, now_ns);
		return;
	}
	thread->checked_ns = now_ns;
	thread->due_ns = UINT64_MAX;
	for (struct http_transfer *t = thread->active; t; t = next) {
		next = t->next;
		look_at(thread, t, now_ns);
	}
	go_on(thread, now_ns);
}

static int wait_ms(const struct http_thread *thread)
{
	uint64_t now_ns = ckpt_clock_ns();

	if (!thread->active || thread->due_ns == UINT64_MAX)
		return WAIT_MS;
	if (thread->due_ns <= now_ns)
		return 0;
	return (int)ckpt_min_u64((thread->due_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS, WAIT_MS);
}

static bool is_closing(struct http_client *client)
{
	bool closing;

	pthread_mutex_lock(&client->lock);
	closing = client->closing;
	pthread_mutex_unlock(&client->lock);
	return closing;
}

void *http_loop(void *argument)
{
	struct http_thread *thread = argument;

	if (thread->client->gives_way)
		ckpt_thread_give_way();
	for (;;) {
		int running;

		if (atomic_exchange(&thread->poked, false) || thread->has_room) {
			thread->has_room = false;
			take_work(thread);
			if (!thread->active && is_closing(thread->client))
				break;
		}
		(void)curl_multi_perform(thread->multi, &running);
		reap(thread);
		check_limits(thread);
		/* Every request that ended has freed a place for another. */
		if (!thread->has_room && !atomic_load(&thread->poked))
			(void)curl_multi_poll(thread->multi, NULL, 0, wait_ms(thread), NULL);
	}
	return NULL;
}
