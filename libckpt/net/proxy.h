/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests go through a proxy. The proxy resolves their names. */
#ifndef CKPT_NET_PROXY_H
#define CKPT_NET_PROXY_H

#include "net/http.h"

/* May contain passwords. */
struct ckpt_proxy {
	char *http; /* NULL: none */
	char *https;
	char *except; /* hosts without a proxy, as in NO_PROXY; NULL: none */
};

int ckpt_proxy_find(const struct ckpt_http_config *config, struct ckpt_proxy *ret_proxy);
void ckpt_proxy_free(struct ckpt_proxy *proxy);
/* The proxy for that host (without brackets); "": none. */
const char *ckpt_proxy_of(const struct ckpt_proxy *proxy, bool https, const char *host);

#endif
