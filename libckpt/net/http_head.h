/* SPDX-License-Identifier: Apache-2.0 */
/* The status and the headers of an answer, line by line as they come. */
#ifndef CKPT_NET_HTTP_HEAD_H
#define CKPT_NET_HTTP_HEAD_H

#include "base/buf.h"

/* Zero: nothing has come. */
struct ckpt_http_head {
	struct ckpt_buf text; /* "name: value\n" each, names in lower case */
	int status;
	bool answered; /* `status` is there, and is not one of those that come before the answer */
};

/*
 * One more line, with its end. A status line begins another block: what stood before it was an interim answer's,
 * or a proxy's. What is no header, folded lines among it, is left out. text.failed: there is no memory.
 */
void ckpt_http_head_line(struct ckpt_http_head *head, const char *line, size_t length);

#endif
