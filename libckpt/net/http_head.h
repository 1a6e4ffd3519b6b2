/* SPDX-License-Identifier: Apache-2.0 */
/* Status and headers of a response, line by line as they arrive. */
#ifndef CKPT_NET_HTTP_HEAD_H
#define CKPT_NET_HTTP_HEAD_H

#include "base/buf.h"

/* Zero: nothing has come. */
struct ckpt_http_head {
	struct ckpt_buf text; /* "name: value\n" each, names in lower case */
	int status;
	bool answered; /* `status` is that of the final response, not of an interim one */
};

/*
 * Adds a line, with its line end. A status line starts a new block: the previous one belonged to an interim response or
 * a proxy. Invalid headers, folded lines included, are ignored. text.failed: out of memory.
 */
void ckpt_http_head_line(struct ckpt_http_head *head, const char *line, size_t length);

#endif
