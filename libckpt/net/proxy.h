/* SPDX-License-Identifier: Apache-2.0 */
/* Which requests go through a proxy. A name that a proxy resolves is not looked up here. */
#ifndef CKPT_NET_PROXY_H
#define CKPT_NET_PROXY_H

#include "net/http.h"

/* There may be passwords in it. */
struct ckpt_proxy {
	char *http; /* NULL: none */
	char *https;
	char *except; /* hosts that need none, as in NO_PROXY; NULL: there are no such */
};

int ckpt_proxy_find(const struct ckpt_http_config *config, struct ckpt_proxy *ret_proxy);
void ckpt_proxy_free(struct ckpt_proxy *proxy);
/* For that host, which has no brackets; "": none. */
const char *ckpt_proxy_of(const struct ckpt_proxy *proxy, bool https, const char *host);

#endif
