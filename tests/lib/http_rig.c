/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/http_rig.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/hang_inbox.h"
#include "lib/test.h"

static void came_back(struct ckpt_node *node)
{
	struct ckpt_http_req *req = CKPT_CONTAINER(node, struct ckpt_http_req, node);
	struct http_ask *ask = CKPT_CONTAINER(req, struct http_ask, req);

	ask->came_back++;
	ask->rig->came_back++;
}

void http_rig_open(struct http_rig *rig, const struct ckpt_http_config *config,
	http_serve_fn *serve, void *user, struct ssl_ctx_st *tls)
{
	struct ckpt_http_config used = config ? *config : (struct ckpt_http_config){0};

	*rig = (struct http_rig){0};
	assert_int_equal(ckpt_inbox_init(&rig->inbox), 0);
	used.inbox = &rig->inbox;
	if (serve)
		rig->server = http_server_start(serve, user, tls);
	assert_int_equal(ckpt_http_curl_open(&used, NULL, &rig->http), 0);
}

void http_rig_close(struct http_rig *rig)
{
	ckpt_http_close(rig->http);
	inbox_run(&rig->inbox);
	http_server_stop(rig->server);
	ckpt_inbox_destroy(&rig->inbox);
}

void http_ask_url(struct http_ask *ask, const char *scheme, const char *host, unsigned port)
{
	(void)snprintf(ask->url, sizeof(ask->url), "%s://%s:%u/path?X-Amz-Signature=secret", scheme,
		host, port);
}

void http_ask_init(struct http_ask *ask, struct http_rig *rig, enum ckpt_http_method method)
{
	*ask = (struct http_ask){.rig = rig};
	ask->req.node.run = came_back;
	ask->req.method = method;
	ask->req.url = ask->url;
	ask->req.reply_limit = 65536;
	http_ask_url(ask, rig->server && rig->server->tls ? "https" : "http", "127.0.0.1",
		rig->server ? rig->server->port : 1);
}

void http_ask_submit(struct http_ask *ask)
{
	ckpt_http_submit(ask->rig->http, &ask->req);
}

void http_rig_wait(struct http_rig *rig, unsigned count)
{
	await_inbox(&rig->inbox, rig->came_back >= count, inbox_run(&rig->inbox));
}

int http_ask_run(struct http_ask *ask)
{
	unsigned before = ask->rig->came_back;

	http_ask_submit(ask);
	http_rig_wait(ask->rig, before + 1);
	assert_int_equal(ask->came_back, 1);
	/* No secret is ever in words. */
	assert_null(strstr(ask->req.words, "secret"));
	assert_true((ask->req.result < 0) == (ask->req.words[0] != 0));
	if (ask->req.words[0])
		print_message("%s\n", ask->req.words);
	return ask->req.result;
}

void http_ask_clear(struct http_ask *ask)
{
	ckpt_free(ask->req.reply);
	ckpt_free(ask->req.header_text);
	ask->req.reply = NULL;
	ask->req.header_text = NULL;
}
