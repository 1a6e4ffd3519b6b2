/* SPDX-License-Identifier: Apache-2.0 */
/* One header of a request or an answer. */
#ifndef CKPT_NET_HTTP_HEADER_H
#define CKPT_NET_HTTP_HEADER_H

struct ckpt_http_header {
	const char *name; /* any case when sent, lower case when received */
	const char *value;
};

#endif
