/* SPDX-License-Identifier: Apache-2.0 */
/* Through libcurl alone: a multi handle a thread. */
#include "bench_put.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_tool.h"
#include "s3/crc32c.h"
#include "s3/hash.h"

#define THREADS_MAX 64

struct transfer {
	const struct bench_put *put;
	struct curl_slist *headers;
	uint64_t at;
};

struct sender {
	const struct bench_put *put;
	atomic_uint *next;
	unsigned connections;
};

static size_t give(char *buffer, size_t size, size_t count, void *user)
{
	struct transfer *t = user;
	uint64_t left = t->put->part_bytes - t->at;
	size_t length = size * count < left ? size * count : (size_t)left;

	memcpy(buffer, t->put->part + t->at, length);
	t->at += length;
	return length;
}

/* The hash is of what is sent, every time. */
static struct curl_slist *make_headers(const struct bench_put *put)
{
	struct curl_slist *headers = curl_slist_append(NULL, "Expect:");
	uint8_t hash[CKPT_S3_SHA256];
	char text[CKPT_S3_SHA256_HEX];
	char line[128];

	if (put->proof == BENCH_PROOF_NONE)
		return headers;
	if (put->proof == BENCH_PROOF_SHA256) {
		bench_must(ckpt_s3_sha256(put->part, put->part_bytes, hash), NULL, "SHA-256");
		ckpt_s3_hex(hash, sizeof(hash), text);
		(void)snprintf(line, sizeof(line), "x-amz-content-sha256: %s", text);
	} else {
		ckpt_s3_crc32c_text(ckpt_s3_crc32c(0, put->part, put->part_bytes), text);
		(void)snprintf(line, sizeof(line), "x-amz-checksum-crc32c: %s", text);
	}
	return curl_slist_append(headers, line);
}

static void start(CURLM *multi, CURL *easy, struct transfer *t, const struct bench_put *put)
{
	char url[128];

	(void)snprintf(url, sizeof(url), "%s/bench/part", put->endpoint);
	curl_slist_free_all(t->headers);
	*t = (struct transfer){.put = put, .headers = make_headers(put)};
	curl_easy_reset(easy);
	(void)curl_easy_setopt(easy, CURLOPT_URL, url);
	(void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	(void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
	(void)curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)put->part_bytes);
	(void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, give);
	(void)curl_easy_setopt(easy, CURLOPT_READDATA, t);
	(void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
	(void)curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
	(void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	(void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
	if (put->ca_file)
		(void)curl_easy_setopt(easy, CURLOPT_CAINFO, put->ca_file);
	bench_must_os(curl_multi_add_handle(multi, easy) == CURLM_OK, "curl_multi_add_handle");
}

static bool has_next(struct sender *s)
{
	return atomic_fetch_add(s->next, 1) < s->put->parts;
}

/* Those that are done; whether another one was started. */
static bool take_done(struct sender *s, CURLM *multi)
{
	CURLMsg *message;
	bool again = false;
	int left;

	while ((message = curl_multi_info_read(multi, &left))) {
		CURL *easy = message->easy_handle;
		struct transfer *t = NULL;
		long status = 0;
		if (message->data.result != CURLE_OK) {
			fprintf(stderr, "PUT: %s\n", curl_easy_strerror(message->data.result));
			exit(1);
		}
		(void)curl_easy_getinfo(easy, CURLINFO_RESPONSE_CODE, &status);
		bench_must_os(status == 200, "PUT");
		(void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &t);
		(void)curl_multi_remove_handle(multi, easy);
		if (has_next(s)) {
			start(multi, easy, t, s->put);
			again = true;
		} else {
			curl_easy_cleanup(easy);
		}
	}
	return again;
}

static void *send_all(void *argument)
{
	struct sender *s = argument;
	struct transfer *transfers = calloc(s->connections, sizeof(*transfers));
	CURLM *multi = curl_multi_init();
	int running = 0;

	bench_must_os(transfers && multi, "curl_multi_init");
	(void)curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)s->connections);
	for (unsigned i = 0; i < s->connections && has_next(s); i++)
		start(multi, curl_easy_init(), &transfers[i], s->put);
	do {
		(void)curl_multi_perform(multi, &running);
		bool again = take_done(s, multi);
		if (running && !again)
			(void)curl_multi_poll(multi, NULL, 0, 1000, NULL);
		running += again;
	} while (running);
	(void)curl_multi_cleanup(multi);
	for (unsigned i = 0; i < s->connections; i++)
		curl_slist_free_all(transfers[i].headers);
	free(transfers);
	return NULL;
}

void bench_put_plain(const struct bench_put *put)
{
	unsigned count = put->threads + (put->proof == BENCH_PROOF_NONE ? 0 : put->workers);
	pthread_t threads[THREADS_MAX];
	atomic_uint next = 0;
	struct sender sender = {
		.put = put, .next = &next, .connections = (put->connections + count - 1) / count};

	bench_must_os(count <= THREADS_MAX, "threads");
	for (unsigned i = 0; i < count; i++)
		bench_must_os(pthread_create(&threads[i], NULL, send_all, &sender) == 0, "thread");
	for (unsigned i = 0; i < count; i++)
		(void)pthread_join(threads[i], NULL);
}
