/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_http_ops, and parsing of response headers. */
#include "net/http.h"

#include <string.h>

static void check(const struct ckpt_http_req *req)
{
	bool has_body = req->method == CKPT_HTTP_PUT || req->method == CKPT_HTTP_POST;

	CKPT_ASSERT(req->method >= CKPT_HTTP_GET && req->method <= CKPT_HTTP_DELETE);
	CKPT_ASSERT(req->node.run && req->url);
	CKPT_ASSERT(req->headers || req->header_count == 0);
	CKPT_ASSERT(req->body_length <= INT64_MAX && (req->body || req->body_length == 0));
	CKPT_ASSERT(has_body || req->body_length == 0);
	CKPT_ASSERT(req->sink || req->room == 0);
	CKPT_ASSERT(req->reply_limit < SIZE_MAX);
}

void ckpt_http_submit(struct ckpt_http *http, struct ckpt_http_req *req)
{
	check(req);
	req->result = 0;
	req->status = 0;
	req->received = 0;
	req->reply = NULL;
	req->reply_length = 0;
	req->header_text = NULL;
	req->reach = CKPT_HTTP_UNSENT;
	req->resent = false;
	req->begun_ns = 0;
	req->sent_ns = 0;
	req->first_byte_ns = 0;
	req->total_ns = 0;
	req->peer[0] = 0;
	req->words[0] = 0;
	req->next = NULL;
	req->prev = NULL;
	req->transfer = NULL;
	req->submitted_ns = 0;
	req->state = 0;
	http->ops->submit(http, req);
}

void ckpt_http_cancel(struct ckpt_http *http, struct ckpt_http_req *req)
{
	CKPT_ASSERT(req->node.run);
	http->ops->cancel(http, req);
}

void ckpt_http_widen(struct ckpt_http *http, unsigned connections)
{
	CKPT_ASSERT(connections > 0 && connections <= http->connections);
	http->ops->widen(http, connections);
}

void ckpt_http_close(struct ckpt_http *http)
{
	if (http)
		http->ops->close(http);
}

bool ckpt_http_header(
	const struct ckpt_http_req *req, const char *name, char *ret_value, size_t size)
{
	size_t length = strlen(name);

	CKPT_ASSERT(size > 0);
	for (const char *line = req->header_text; line && *line; line = strchr(line, '\n') + 1) {
		if (strncmp(line, name, length) != 0 || line[length] != ':')
			continue;
		const char *value = line + length + 2;
		size_t count = ckpt_min_u64((size_t)(strchr(value, '\n') - value), size - 1);
		memcpy(ret_value, value, count);
		ret_value[count] = 0;
		return true;
	}
	return false;
}
