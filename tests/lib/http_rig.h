/* SPDX-License-Identifier: Apache-2.0 */
/* A client with an inbox, and a server for it. */
#ifndef CKPT_TESTS_HTTP_RIG_H
#define CKPT_TESTS_HTTP_RIG_H

#include <stdbool.h>
#include "lib/http_server.h"
#include "net/http.h"

struct http_rig {
	struct ckpt_inbox inbox;
	struct ckpt_http *http;
	struct http_server *server;
	unsigned came_back;
};

/* A request of a test, and how often it has come back. */
struct http_ask {
	struct ckpt_http_req req;
	struct http_rig *rig;
	char url[256];
	unsigned came_back;
};

/* `config` may be NULL; its inbox is set here. */
void http_rig_open(struct http_rig *rig, const struct ckpt_http_config *config,
	http_serve_fn *serve, void *user, struct ssl_ctx_st *tls);
void http_rig_close(struct http_rig *rig);
/* "http://127.0.0.1:PORT/path?query" */
void http_ask_init(struct http_ask *ask, struct http_rig *rig, enum ckpt_http_method method);
void http_ask_url(struct http_ask *ask, const char *scheme, const char *host, unsigned port);
void http_ask_submit(struct http_ask *ask);
/* Until `count` of all, or more, have come back in all. */
void http_rig_wait(struct http_rig *rig, unsigned count);
/* Submits and waits; the result. */
int http_ask_run(struct http_ask *ask);
/* What was received is freed. */
void http_ask_clear(struct http_ask *ask);

#endif
