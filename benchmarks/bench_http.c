/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PUT of parts from memory to a server that throws them away, through the library's client and through libcurl
 * alone with as many threads and connections: a multi handle a thread, the same options. In pairs, one after the
 * other; the server is another process on this machine, so wall time is shared with it, and CPU time is not.
 */
#include <arpa/inet.h>
#include <curl/curl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/inbox.h"
#include "bench_tool.h"
#include "net/http.h"

#define PAIRS_MAX 99
#define OK_TEXT   "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"

struct options {
	struct bench_common common;
	unsigned pairs;
	unsigned mib;
	unsigned part_mib;
	unsigned connections;
	unsigned threads;
};

struct cost {
	double wall_s;
	double cpu_s;
};

struct run {
	const struct options *o;
	char url[64];
	char *part;
	uint64_t part_bytes;
	unsigned parts;
};

static double cpu_s(void)
{
	struct rusage usage;

	bench_must_os(getrusage(RUSAGE_SELF, &usage) == 0, "getrusage");
	return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
	       (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* The server: reads heads, throws bodies away. */

static void *serve(void *argument)
{
	int fd = (int)(intptr_t)argument;
	size_t size = 1 << 20;
	char *data = malloc(size + 1);
	size_t have = 0;
	ssize_t got;

	bench_must_os(data != NULL, "malloc");
	while ((got = recv(fd, data + have, 65536, 0)) > 0) {
		have += (size_t)got;
		data[have] = 0;
		const char *end = strstr(data, "\r\n\r\n");
		if (!end)
			continue;
		const char *said = strstr(data, "Content-Length: ");
		uint64_t left = said ? strtoull(said + 16, NULL, 10) : 0;
		left -= (uint64_t)(data + have - (end + 4));
		while (left > 0 && (got = recv(fd, data, left < size ? left : size, 0)) > 0)
			left -= (uint64_t)got;
		have = 0;
		if (send(fd, OK_TEXT, strlen(OK_TEXT), MSG_NOSIGNAL) < 0)
			break;
	}
	free(data);
	(void)close(fd);
	return NULL;
}

static unsigned start_server(pid_t *ret_pid)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	bench_must_os(fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
			      listen(fd, 1024) == 0 &&
			      getsockname(fd, (struct sockaddr *)&address, &size) == 0,
		"listen");
	*ret_pid = fork();
	bench_must_os(*ret_pid >= 0, "fork");
	if (*ret_pid == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			pthread_t thread;
			int peer = accept(fd, NULL, NULL);
			if (peer >= 0 &&
				pthread_create(&thread, NULL, serve, (void *)(intptr_t)peer) == 0)
				(void)pthread_detach(thread);
		}
	}
	(void)close(fd);
	return ntohs(address.sin_port);
}

/* Through the library. */

static void came_back(struct ckpt_node *node)
{
	const struct ckpt_http_req *req = CKPT_CONTAINER(node, struct ckpt_http_req, node);

	if (req->result == 0 && req->status == 200)
		return;
	fprintf(stderr, "PUT: %s (status %d)\n", req->words, req->status);
	exit(1);
}

static void put_ours(const struct run *run)
{
	struct ckpt_inbox inbox;
	struct ckpt_http *http;
	struct ckpt_http_req *reqs = calloc(run->parts, sizeof(*reqs));
	unsigned left = run->parts;

	bench_must_os(reqs != NULL, "calloc");
	bench_must(ckpt_inbox_init(&inbox), NULL, "inbox");
	const struct ckpt_http_config config = {
		.inbox = &inbox, .threads = run->o->threads, .connections = run->o->connections};
	bench_must(ckpt_http_curl_open(&config, NULL, &http), NULL, "client");
	for (unsigned i = 0; i < run->parts; i++) {
		reqs[i] = (struct ckpt_http_req){.node = {.run = came_back},
			.method = CKPT_HTTP_PUT,
			.url = run->url,
			.body = run->part,
			.body_length = run->part_bytes};
		ckpt_http_submit(http, &reqs[i]);
	}
	while (left > 0) {
		struct ckpt_node *next;
		ckpt_inbox_wait(&inbox, UINT64_MAX);
		for (struct ckpt_node *node = ckpt_inbox_take(&inbox); node; node = next) {
			next = node->next;
			node->run(node);
			left--;
		}
	}
	ckpt_http_close(http);
	for (unsigned i = 0; i < run->parts; i++)
		ckpt_free(reqs[i].header_text);
	ckpt_inbox_destroy(&inbox);
	free(reqs);
}

/* Through libcurl alone. */

struct plain {
	const struct run *run;
	uint64_t at;
};

struct plain_thread {
	const struct run *run;
	struct curl_slist *headers;
	atomic_uint *next;
	unsigned connections;
};

static size_t plain_read(char *buffer, size_t size, size_t count, void *user)
{
	struct plain *plain = user;
	uint64_t left = plain->run->part_bytes - plain->at;
	size_t length = size * count < left ? size * count : (size_t)left;

	memcpy(buffer, plain->run->part + plain->at, length);
	plain->at += length;
	return length;
}

static void plain_start(CURLM *multi, CURL *easy, struct plain *plain, const struct plain_thread *t)
{
	const struct run *run = t->run;

	plain->run = run;
	plain->at = 0;
	curl_easy_reset(easy);
	(void)curl_easy_setopt(easy, CURLOPT_URL, run->url);
	(void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	(void)curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
	(void)curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)run->part_bytes);
	(void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, plain_read);
	(void)curl_easy_setopt(easy, CURLOPT_READDATA, plain);
	(void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
	(void)curl_easy_setopt(easy, CURLOPT_PRIVATE, plain);
	(void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	(void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
	bench_must_os(curl_multi_add_handle(multi, easy) == CURLM_OK, "curl_multi_add_handle");
}

static bool plain_next(struct plain_thread *t)
{
	return atomic_fetch_add(t->next, 1) < t->run->parts;
}

static void *plain_loop(void *argument)
{
	struct plain_thread *t = argument;
	struct plain *plains = calloc(t->connections, sizeof(*plains));
	CURLM *multi = curl_multi_init();
	int running = 0;
	int left;
	CURLMsg *message;

	bench_must_os(plains && multi, "curl_multi_init");
	(void)curl_multi_setopt(multi, CURLMOPT_MAXCONNECTS, (long)t->connections);
	for (unsigned i = 0; i < t->connections && plain_next(t); i++)
		plain_start(multi, curl_easy_init(), &plains[i], t);
	do {
		bool again = false;
		(void)curl_multi_perform(multi, &running);
		while ((message = curl_multi_info_read(multi, &left))) {
			CURL *easy = message->easy_handle;
			struct plain *plain = NULL;
			bench_must_os(message->data.result == CURLE_OK, "PUT");
			(void)curl_easy_getinfo(easy, CURLINFO_PRIVATE, &plain);
			(void)curl_multi_remove_handle(multi, easy);
			if (plain_next(t)) {
				plain_start(multi, easy, plain, t);
				again = true;
			} else {
				curl_easy_cleanup(easy);
			}
		}
		running += again;
		if (running && !again)
			(void)curl_multi_poll(multi, NULL, 0, 1000, NULL);
	} while (running);
	(void)curl_multi_cleanup(multi);
	free(plains);
	return NULL;
}

static void put_plain(const struct run *run)
{
	pthread_t threads[64];
	atomic_uint next = 0;
	struct plain_thread t = {.run = run,
		.next = &next,
		/* At its best: it does not wait for a 100 that does not come. */
		.headers = curl_slist_append(NULL, "Expect:"),
		.connections = (run->o->connections + run->o->threads - 1) / run->o->threads};

	for (unsigned i = 0; i < run->o->threads; i++)
		bench_must_os(pthread_create(&threads[i], NULL, plain_loop, &t) == 0, "thread");
	for (unsigned i = 0; i < run->o->threads; i++)
		(void)pthread_join(threads[i], NULL);
	curl_slist_free_all(t.headers);
}

static struct cost measure(void (*put)(const struct run *run), const struct run *run)
{
	uint64_t begun_ns = bench_now_ns();
	double cpu = cpu_s();

	put(run);
	return (struct cost){.wall_s = bench_ms_since(begun_ns) / 1000, .cpu_s = cpu_s() - cpu};
}

static double median(double *values, unsigned count)
{
	bench_sort(values, count);
	return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void report(const struct options *o, const struct cost *ours, const struct cost *plain)
{
	double values[6][PAIRS_MAX];
	double gib = o->mib / 1024.0;
	double m[6];

	for (unsigned i = 0; i < o->pairs; i++) {
		values[0][i] = o->mib / ours[i].wall_s;
		values[1][i] = o->mib / plain[i].wall_s;
		values[2][i] = ours[i].cpu_s / gib;
		values[3][i] = plain[i].cpu_s / gib;
		values[4][i] = plain[i].wall_s / ours[i].wall_s;
		values[5][i] = plain[i].cpu_s / ours[i].cpu_s;
	}
	for (unsigned i = 0; i < 6; i++)
		m[i] = median(values[i], o->pairs);
	printf("PUT of %u MiB in parts of %u MiB, %u connections, %u threads, %u pairs; %s\n",
		o->mib, o->part_mib, o->connections, o->threads, o->pairs, curl_version());
	printf("%-14s %10s %14s\n", "", "MiB/s", "CPU s/GiB");
	printf("%-14s %10.0f %14.3f\n", "libckpt", m[0], m[2]);
	printf("%-14s %10.0f %14.3f\n", "libcurl alone", m[1], m[3]);
	printf("%-14s %10.2f %14.2f   (of libcurl alone; 1 is equal, more is better)\n", "ratio",
		m[4], m[5]);
	FILE *out = bench_json_open(o->common.json);
	if (!out)
		return;
	fprintf(out,
		"{\"benchmark\": \"http\", \"mib\": %u, \"part_mib\": %u, \"connections\": %u, "
		"\"threads\": %u, \"pairs\": "
		"%u, "
		"\"curl\": \"%s\", \"ours\": {\"mib_s\": %.1f, \"cpu_s_gib\": %.4f}, "
		"\"plain\": {\"mib_s\": %.1f, \"cpu_s_gib\": %.4f}, "
		"\"ratio_wall\": %.4f, \"ratio_cpu\": %.4f}\n",
		o->mib, o->part_mib, o->connections, o->threads, o->pairs, curl_version(), m[0],
		m[2], m[1], m[3], m[4], m[5]);
	bench_json_close(out);
}

int main(int argc, char **argv)
{
	struct options o = {.common = {.dir = "."},
		.pairs = 9,
		.mib = 4096,
		.part_mib = 16,
		.connections = 8,
		.threads = 1};
	const struct bench_option known[] = {{.name = "pairs",
						     .word = "N",
						     .number = &o.pairs,
						     .least = 1,
						     .most = PAIRS_MAX,
						     .quick = 1},
		{.name = "mib",
			.word = "N",
			.number = &o.mib,
			.least = 1,
			.most = 1 << 20,
			.quick = 64},
		{.name = "part-mib", .word = "N", .number = &o.part_mib, .least = 1, .most = 1024},
		{.name = "connections",
			.word = "N",
			.number = &o.connections,
			.least = 1,
			.most = 1000},
		{.name = "threads", .word = "N", .number = &o.threads, .least = 1, .most = 64},
		{0}};
	struct cost ours[PAIRS_MAX];
	struct cost plain[PAIRS_MAX];
	pid_t server;

	bench_parse(argc, argv, known, &o.common);
	struct run run = {.o = &o,
		.part_bytes = (uint64_t)o.part_mib << 20,
		.parts = (o.mib + o.part_mib - 1) / o.part_mib};
	(void)snprintf(run.url, sizeof(run.url), "http://127.0.0.1:%u/part", start_server(&server));
	bench_must_os(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl");
	run.part = malloc(run.part_bytes);
	bench_must_os(run.part != NULL, "malloc");
	memset(run.part, 'x', run.part_bytes);
	put_plain(&run);
	for (unsigned i = 0; i < o.pairs; i++) {
		/* Each comes first half of the time. */
		if (i % 2)
			plain[i] = measure(put_plain, &run);
		ours[i] = measure(put_ours, &run);
		if (i % 2 == 0)
			plain[i] = measure(put_plain, &run);
	}
	(void)kill(server, SIGKILL);
	(void)waitpid(server, NULL, 0);
	report(&o, ours, plain);
	free(run.part);
	return 0;
}
