/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resolves names of servers. A storage service has many addresses, and one is not enough for its bandwidth: each
 * request begins with the next one. Lookups block, on threads of their own that nobody waits for.
 */
#ifndef CKPT_NET_RESOLVER_H
#define CKPT_NET_RESOLVER_H

#include "net/http.h"

#define CKPT_RESOLVER_TTL_NS UINT64_C(60000000000) /* age after which a name is resolved again */
#define CKPT_RESOLVER_NAMES  32

struct ckpt_resolver;

enum ckpt_resolved {
	CKPT_RESOLVED,
	CKPT_RESOLVE_PENDING, /* `told` will be called */
	CKPT_RESOLVE_FAILED,
};

struct ckpt_resolver_config {
	ckpt_http_lookup_fn *lookup; /* NULL: getaddrinfo() */
	void *lookup_user;
	/* A lookup has ended. Called on its thread, never after ckpt_resolver_close() has returned. */
	void (*told)(void *user);
	void *told_user;
};

int ckpt_resolver_open(
	const struct ckpt_resolver_config *config, struct ckpt_resolver **ret_resolver);
/* Never blocks. NULL is ignored. */
void ckpt_resolver_close(struct ckpt_resolver *resolver);

/*
 * The addresses of `host` in the order in which to try them: each call begins with another one, and those that failed
 * recently come last. *ret_why on failure: static text. Any thread.
 */
enum ckpt_resolved ckpt_resolver_ask(struct ckpt_resolver *resolver, const char *host,
	uint64_t now_ns, struct ckpt_http_addresses *ret_addresses, const char **ret_why);

/* The address did not answer: it comes last for one TTL. */
void ckpt_resolver_failed(
	struct ckpt_resolver *resolver, const char *host, const char *address, uint64_t now_ns);

#endif
