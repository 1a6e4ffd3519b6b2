/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The libcurl client: the queue, and the threads that take requests from it. Each thread handles its share of the
 * requests in flight. A thread that leaves a request for another one wakes it.
 */
#include "net/http_curl.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "config.h"

#define THREADS_MAX     64
#define CONNECTIONS     10
#define CONNECTIONS_MAX 4096
#define IDLE_MS         4000

static const char unsent[] = "cancelled before it was sent";

void http_poke(struct http_thread *thread)
{
	atomic_store(&thread->poked, true);
	(void)curl_multi_wakeup(thread->multi);
}

static void poke_all(struct http_client *client)
{
	for (unsigned i = 0; i < client->thread_count; i++)
		http_poke(&client->threads[i]);
}

/* The functions below are called with the lock held. */

static void put_last(struct http_client *client, struct ckpt_http_req *req)
{
	req->state = HTTP_QUEUED;
	req->next = NULL;
	req->prev = client->tail;
	if (client->tail)
		client->tail->next = req;
	else
		client->head = req;
	client->tail = req;
}

static void take_out(struct http_client *client, struct ckpt_http_req *req)
{
	if (req->prev)
		req->prev->next = req->next;
	else
		client->head = req->next;
	if (req->next)
		req->next->prev = req->prev;
	else
		client->tail = req->prev;
	req->next = NULL;
	req->prev = NULL;
}

static bool has_room(const struct http_thread *thread)
{
	const struct http_client *client = thread->client;
	unsigned share = (client->limit + client->thread_count - 1) / client->thread_count;

	return client->active < client->limit && thread->count < share;
}

/* An idle thread that may take the first request; NULL: there is none. */
static struct http_thread *find_idle(struct http_client *client)
{
	if (!client->head || client->active >= client->limit)
		return NULL;
	for (unsigned i = 0; i < client->thread_count; i++) {
		client->turn = (client->turn + 1) % client->thread_count;
		if (has_room(&client->threads[client->turn]))
			return &client->threads[client->turn];
	}
	return NULL;
}

struct ckpt_http_req *http_take(struct http_thread *thread, struct http_transfer *transfer)
{
	struct http_client *client = thread->client;
	struct http_thread *other = NULL;
	struct ckpt_http_req *req = NULL;

	pthread_mutex_lock(&client->lock);
	if (client->head && has_room(thread)) {
		req = client->head;
		take_out(client, req);
		req->state = HTTP_ACTIVE;
		req->transfer = transfer;
		transfer->cancelled = false;
		client->active++;
		thread->count++;
	}
	/* The next request may be for another thread. */
	other = find_idle(client);
	pthread_mutex_unlock(&client->lock);
	if (other && other != thread && !atomic_load(&other->poked))
		http_poke(other);
	return req;
}

void http_give_back(struct http_thread *thread, struct ckpt_http_req *req)
{
	struct http_client *client = thread->client;

	req->total_ns = ckpt_clock_ns() - req->submitted_ns;
	pthread_mutex_lock(&client->lock);
	CKPT_ASSERT(req->state == HTTP_ACTIVE);
	req->state = HTTP_DONE;
	req->transfer = NULL;
	client->active--;
	thread->count--;
	pthread_mutex_unlock(&client->lock);
	ckpt_inbox_push(client->http.inbox, &req->node);
}

static void refuse(
	struct http_client *client, struct ckpt_http_req *req, int code, const char *words)
{
	req->result = code;
	if (req->submitted_ns != 0)
		req->total_ns = ckpt_clock_ns() - req->submitted_ns;
	(void)snprintf(req->words, sizeof(req->words), "%s", words);
	ckpt_inbox_push(client->http.inbox, &req->node);
}

/* In a forked child the threads do not exist, and a lock may be held forever. */
static bool is_foreign(const struct http_client *client)
{
	return client->forks != ckpt_fork_count();
}

static void curl_submit(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct http_client *client = CKPT_CONTAINER(http, struct http_client, http);
	struct http_thread *thread;

	if (is_foreign(client)) {
		refuse(client, req, CKPT_EFORKED,
			"this process is a child of the one that opened the connection to the "
			"store");
		return;
	}
	req->submitted_ns = ckpt_clock_ns();
	pthread_mutex_lock(&client->lock);
	CKPT_ASSERT(!client->closing);
	put_last(client, req);
	thread = find_idle(client);
	pthread_mutex_unlock(&client->lock);
	if (thread)
		http_poke(thread);
}

static void curl_cancel(struct ckpt_http *http, struct ckpt_http_req *req)
{
	struct http_client *client = CKPT_CONTAINER(http, struct http_client, http);
	struct http_thread *thread = NULL;
	bool queued;

	if (is_foreign(client))
		return;
	pthread_mutex_lock(&client->lock);
	queued = req->state == HTTP_QUEUED;
	if (queued) {
		take_out(client, req);
		req->state = HTTP_DONE;
	} else if (req->state == HTTP_ACTIVE) {
		struct http_transfer *transfer = req->transfer;
		transfer->cancelled = true;
		thread = transfer->thread;
	}
	pthread_mutex_unlock(&client->lock);
	if (thread)
		http_poke(thread);
	if (!queued)
		return;
	refuse(client, req, -ECANCELED, unsent);
}

static void curl_widen(struct ckpt_http *http, unsigned connections)
{
	struct http_client *client = CKPT_CONTAINER(http, struct http_client, http);

	if (is_foreign(client))
		return;
	pthread_mutex_lock(&client->lock);
	client->limit = connections;
	pthread_mutex_unlock(&client->lock);
	poke_all(client);
}

static void free_client(struct http_client *client)
{
	for (unsigned i = 0; i < client->thread_count; i++) {
		struct http_thread *thread = &client->threads[i];
		for (struct http_transfer *t; (t = thread->spare);) {
			thread->spare = t->next;
			http_transfer_free(t);
		}
		(void)curl_multi_cleanup(thread->multi);
		(void)curl_share_cleanup(thread->share);
	}
	ckpt_ca_bundle_free(&client->trust);
	ckpt_proxy_free(&client->proxy);
	(void)pthread_mutex_destroy(&client->lock);
	ckpt_free(client);
}

static void curl_close(struct ckpt_http *http)
{
	struct http_client *client = CKPT_CONTAINER(http, struct http_client, http);
	struct ckpt_http_req *line;

	if (is_foreign(client))
		return;
	pthread_mutex_lock(&client->lock);
	client->closing = true;
	line = client->head;
	client->head = NULL;
	client->tail = NULL;
	pthread_mutex_unlock(&client->lock);
	while (line) {
		struct ckpt_http_req *req = line;
		line = req->next;
		req->state = HTTP_DONE;
		refuse(client, req, -ECANCELED, unsent);
	}
	for (unsigned i = 0; i < client->thread_count; i++) {
		if (client->threads[i].started)
			http_poke(&client->threads[i]);
	}
	for (unsigned i = 0; i < client->thread_count; i++) {
		if (client->threads[i].started)
			(void)pthread_join(client->threads[i].thread, NULL);
	}
	/* The threads have used it until their end. No lookup wakes a thread after this. */
	ckpt_resolver_close(client->resolver);
	CKPT_ASSERT(!client->head && client->active == 0);
	free_client(client);
}

static const struct ckpt_http_ops curl_ops = {
	.name = "curl",
	.submit = curl_submit,
	.cancel = curl_cancel,
	.widen = curl_widen,
	.close = curl_close,
};

static pthread_once_t initialised = PTHREAD_ONCE_INIT;
static CURLcode init_result;

/*
 * Called before any other use of OpenSSL, whose first user decides its options: threads may still use it at exit. Never
 * undone, because others in this process may use libcurl.
 */
static void initialise(void)
{
	uint64_t options = OPENSSL_INIT_NO_ATEXIT;

	if (CKPT_STATIC_OPENSSL)
		options |= OPENSSL_INIT_NO_LOAD_CONFIG;
	init_result = OPENSSL_init_crypto(options, NULL) == 1
			      ? curl_global_init(CURL_GLOBAL_DEFAULT)
			      : CURLE_FAILED_INIT;
}

static int check_curl(struct ckpt_error *err)
{
	const curl_version_info_data *version;

	(void)pthread_once(&initialised, initialise);
	if (init_result != CURLE_OK)
		return ckpt_fail(err, CKPT_EUNSUPPORTED, "cannot initialise libcurl: %s",
			curl_easy_strerror(init_result));
	version = curl_version_info(CURLVERSION_NOW);
	if (!(version->features & CURL_VERSION_ASYNCHDNS))
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"libcurl %s blocks while it resolves names (it lacks AsynchDNS): install "
			"one with AsynchDNS",
			version->version);
	if (!(version->features & CURL_VERSION_SSL))
		return ckpt_fail(err, CKPT_EUNSUPPORTED,
			"libcurl %s was built without TLS: install one with it", version->version);
	return 0;
}

/* A lookup has ended. */
static void name_told(void *user)
{
	poke_all(user);
}

static int make_handles(struct http_client *client, unsigned threads)
{
	for (unsigned i = 0; i < threads; i++) {
		struct http_thread *thread = &client->threads[i];
		thread->client = client;
		thread->multi = curl_multi_init();
		thread->share = curl_share_init();
		client->thread_count++;
		if (!thread->multi || !thread->share)
			return -ENOMEM;
		unsigned share = (client->http.connections + threads - 1) / threads;
		if (curl_multi_setopt(thread->multi, CURLMOPT_MAXCONNECTS, (long)share) !=
				CURLM_OK ||
			curl_multi_setopt(thread->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING) !=
				CURLM_OK ||
			curl_share_setopt(thread->share, CURLSHOPT_SHARE,
				CURL_LOCK_DATA_SSL_SESSION) != CURLSHE_OK)
			return -ENOMEM;
		while (share-- > 0) {
			struct http_transfer *t = http_transfer_make(thread);
			if (!t)
				return -ENOMEM;
			t->next = thread->spare;
			thread->spare = t;
		}
	}
	return 0;
}

static int start_threads(struct http_client *client)
{
	for (unsigned i = 0; i < client->thread_count; i++) {
		struct http_thread *thread = &client->threads[i];
		char name[16];
		(void)snprintf(name, sizeof(name), "ckpt-http-%u", i % 100);
		int r = ckpt_thread_start(&thread->thread, name, http_loop, thread);
		if (r < 0)
			return r;
		thread->started = true;
	}
	return 0;
}

static int make_client(const struct ckpt_http_config *config, struct ckpt_error *err,
	unsigned threads, struct http_client **ret_client)
{
	size_t size = sizeof(struct http_client) + threads * sizeof(struct http_thread);
	struct http_client *client = ckpt_alloc(size);

	if (!client)
		return -ENOMEM;
	client->http = (struct ckpt_http){.ops = &curl_ops,
		.inbox = config->inbox,
		.connections = config->connections ? config->connections : CONNECTIONS};
	client->limit = client->http.connections;
	client->send.bytes_per_s = config->send_bytes_per_s;
	client->receive.bytes_per_s = config->recv_bytes_per_s;
	client->idle_ms = config->idle_ms ? config->idle_ms : IDLE_MS;
	client->gives_way = config->gives_way;
	client->forks = ckpt_fork_count();
	int r = -pthread_mutex_init(&client->lock, NULL);
	if (r != 0) {
		ckpt_free(client);
		return r;
	}
	r = ckpt_ca_bundle_find(config, err, &client->trust);
	if (r == 0)
		r = ckpt_proxy_find(config, &client->proxy);
	if (r == 0)
		r = make_handles(client, threads);
	if (r < 0) {
		free_client(client);
		return r;
	}
	*ret_client = client;
	return 0;
}

int ckpt_http_curl_open(
	const struct ckpt_http_config *config, struct ckpt_error *err, struct ckpt_http **ret_http)
{
	unsigned threads = config->threads ? config->threads : 1;
	struct http_client *client = NULL;

	CKPT_ASSERT(config->inbox);
	if (threads > THREADS_MAX || config->connections > CONNECTIONS_MAX)
		return ckpt_fail(err, -EINVAL,
			"at most %d threads and %d connections to a store, not %u and %u",
			THREADS_MAX, CONNECTIONS_MAX, threads, config->connections);
	int r = check_curl(err);
	if (r == 0)
		r = ckpt_fork_watch();
	if (r == 0)
		r = make_client(config, err, threads, &client);
	if (r < 0 || !client)
		return ckpt_fail(
			err, r, "cannot set up connections to a store: %s", ckpt_code_text(r));
	struct ckpt_resolver_config names = {.lookup = config->lookup,
		.lookup_user = config->user,
		.told = name_told,
		.told_user = client};
	r = ckpt_resolver_open(&names, &client->resolver);
	if (r == 0)
		r = start_threads(client);
	if (r < 0) {
		curl_close(&client->http);
		return ckpt_fail(err, r, "cannot start a thread for connections to a store: %s",
			ckpt_code_text(r));
	}
	*ret_http = &client->http;
	return 0;
}
