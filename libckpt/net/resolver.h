/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names of servers. A storage service has many addresses and one of them is too few for it: every request begins
 * with the next one. Lookups block, for as long as they like, on threads of their own that nobody waits for.
 */
#ifndef CKPT_NET_RESOLVER_H
#define CKPT_NET_RESOLVER_H

#include "net/http.h"

#define CKPT_RESOLVER_TTL_NS                                                                       \
	UINT64_C(60000000000) /* then a name is looked up again; until then it is kept */
#define CKPT_RESOLVER_NAMES 32

struct ckpt_resolver;

enum ckpt_resolved {
	CKPT_RESOLVED,
	CKPT_RESOLVE_PENDING, /* `told` will be called */
	CKPT_RESOLVE_FAILED,
};

struct ckpt_resolver_config {
	ckpt_http_lookup_fn *lookup; /* NULL: getaddrinfo() */
	void *lookup_user;
	/* Some lookup has ended. On its thread; not after ckpt_resolver_close() has returned. */
	void (*told)(void *user);
	void *told_user;
};

int ckpt_resolver_open(
	const struct ckpt_resolver_config *config, struct ckpt_resolver **ret_resolver);
/* Never waits. NULL is ignored. */
void ckpt_resolver_close(struct ckpt_resolver *resolver);

/*
 * The addresses of `host` in the order in which to try them: another one first each time, those that have failed
 * last. *ret_why of a failure: static words. Any thread.
 */
enum ckpt_resolved ckpt_resolver_ask(struct ckpt_resolver *resolver, const char *host,
	uint64_t now_ns, struct ckpt_http_addresses *ret_addresses, const char **ret_why);

/* Nothing answers at that address: for one TTL it comes last. */
void ckpt_resolver_failed(
	struct ckpt_resolver *resolver, const char *host, const char *address, uint64_t now_ns);

#endif
