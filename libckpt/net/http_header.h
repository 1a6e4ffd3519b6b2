/* SPDX-License-Identifier: Apache-2.0 */
/* A header of a request or response. */
#ifndef CKPT_NET_HTTP_HEADER_H
#define CKPT_NET_HTTP_HEADER_H

struct ckpt_http_header {
	const char *name; /* any case when sent, lower case when received */
	const char *value;
};

#endif
