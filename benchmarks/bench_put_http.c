/* SPDX-License-Identifier: Apache-2.0 */
/* Through the HTTP client, from the thread of whoever asks. */
#include "bench_put.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/inbox.h"
#include "bench_tool.h"
#include "net/http.h"

static void came_back(struct ckpt_node *node)
{
	const struct ckpt_http_req *req = CKPT_CONTAINER(node, struct ckpt_http_req, node);

	if (req->result == 0 && req->status == 200)
		return;
	fprintf(stderr, "PUT: %s (status %d)\n", req->words, req->status);
	exit(1);
}

void bench_put_http(const struct bench_put *put)
{
	struct ckpt_inbox inbox;
	struct ckpt_http *http;
	struct ckpt_http_req *reqs = calloc(put->parts, sizeof(*reqs));
	unsigned left = put->parts;
	char url[128];

	bench_must_os(reqs != NULL, "calloc");
	(void)snprintf(url, sizeof(url), "%s/bench/part", put->endpoint);
	bench_must(ckpt_inbox_init(&inbox), NULL, "inbox");
	const struct ckpt_http_config config = {.inbox = &inbox,
		.ca_file = put->ca_file,
		.proxy = "",
		.threads = put->threads,
		.connections = put->connections};
	bench_must(ckpt_http_curl_open(&config, NULL, &http), NULL, "client");
	for (unsigned i = 0; i < put->parts; i++) {
		reqs[i] = (struct ckpt_http_req){.node = {.run = came_back},
			.method = CKPT_HTTP_PUT,
			.url = url,
			.body = put->part,
			.body_length = put->part_bytes};
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
	for (unsigned i = 0; i < put->parts; i++)
		ckpt_free(reqs[i].header_text);
	ckpt_inbox_destroy(&inbox);
	free(reqs);
}
