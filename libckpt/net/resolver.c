/* SPDX-License-Identifier: Apache-2.0 */
/* Resolving of names, and the threads that do it. */
#include "net/resolver.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/thread.h"

#define HOST_MAX 256
/* A failed lookup is not repeated earlier, because many requests may wait for the same name. */
#define AGAIN_NS UINT64_C(1000000000)

struct name {
	char host[HOST_MAX];
	struct ckpt_http_addresses addresses;
	uint64_t failed_ns[CKPT_HTTP_ADDRESSES_MAX]; /* 0: never */
	uint64_t used_ns;
	uint64_t known_ns; /* when the last result was first seen */
	int code;          /* result of the last lookup */
	unsigned turn;     /* the address that is tried first next time */
	bool pending;
	bool fresh; /* a lookup has ended and its result was not seen yet */
};

struct ckpt_resolver {
	struct ckpt_resolver_config config;
	pthread_mutex_t lock;
	/* The client and running lookups; guarded by lock. */
	unsigned users;
	bool closed;                            /* guarded by lock */
	struct name names[CKPT_RESOLVER_NAMES]; /* guarded by lock */
};

struct lookup {
	struct ckpt_resolver *resolver;
	char host[HOST_MAX];
	struct ckpt_http_addresses addresses;
};

static void add_address(const struct addrinfo *info, struct ckpt_http_addresses *to)
{
	char *text = to->text[to->count];
	const void *address;

	if (info->ai_family == AF_INET)
		address = &((const struct sockaddr_in *)(const void *)info->ai_addr)->sin_addr;
	else if (info->ai_family == AF_INET6)
		address = &((const struct sockaddr_in6 *)(const void *)info->ai_addr)->sin6_addr;
	else
		return;
	if (inet_ntop(info->ai_family, address, text, sizeof(to->text[0])))
		to->count++;
}

static int system_lookup(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *found = NULL;

	(void)user;
	int r = getaddrinfo(host, NULL, &hints, &found);
	if (r != 0)
		return r;
	ret_addresses->count = 0;
	for (const struct addrinfo *i = found; i; i = i->ai_next) {
		if (ret_addresses->count < CKPT_HTTP_ADDRESSES_MAX)
			add_address(i, ret_addresses);
	}
	freeaddrinfo(found);
	return ret_addresses->count > 0 ? 0 : EAI_NONAME;
}

int ckpt_resolver_open(
	const struct ckpt_resolver_config *config, struct ckpt_resolver **ret_resolver)
{
	struct ckpt_resolver *resolver = ckpt_alloc(sizeof(*resolver));

	if (!resolver)
		return -ENOMEM;
	resolver->config = *config;
	resolver->users = 1;
	if (!resolver->config.lookup)
		resolver->config.lookup = system_lookup;
	int r = -pthread_mutex_init(&resolver->lock, NULL);
	if (r < 0) {
		ckpt_free(resolver);
		return r;
	}
	*ret_resolver = resolver;
	return 0;
}

/* Called with the lock held, and releases it. */
static void let_go(struct ckpt_resolver *resolver)
{
	bool last = --resolver->users == 0;

	pthread_mutex_unlock(&resolver->lock);
	if (!last)
		return;
	(void)pthread_mutex_destroy(&resolver->lock);
	ckpt_free(resolver);
}

void ckpt_resolver_close(struct ckpt_resolver *resolver)
{
	if (!resolver)
		return;
	pthread_mutex_lock(&resolver->lock);
	resolver->closed = true;
	let_go(resolver);
}

static struct name *find(struct ckpt_resolver *resolver, const char *host)
{
	for (size_t i = 0; i < CKPT_RESOLVER_NAMES; i++) {
		if (strcmp(resolver->names[i].host, host) == 0)
			return &resolver->names[i];
	}
	return NULL;
}

/* Replaces the name that was not used for the longest time; NULL: lookups of all names are running. */
static struct name *make(struct ckpt_resolver *resolver, const char *host)
{
	struct name *oldest = NULL;
	size_t length = strlen(host);

	for (size_t i = 0; i < CKPT_RESOLVER_NAMES; i++) {
		struct name *name = &resolver->names[i];
		if (!name->pending && (!oldest || name->used_ns < oldest->used_ns))
			oldest = name;
	}
	if (!oldest || length >= HOST_MAX)
		return NULL;
	*oldest = (struct name){0};
	memcpy(oldest->host, host, length + 1);
	return oldest;
}

static void keep_result(struct name *name, int code, const struct ckpt_http_addresses *addresses)
{
	name->pending = false;
	name->fresh = true;
	name->code = code;
	/* Old addresses are better than none. */
	if (code != 0)
		return;
	name->addresses = *addresses;
	memset(name->failed_ns, 0, sizeof(name->failed_ns));
}

static void *look_up(void *argument)
{
	struct lookup *lookup = argument;
	struct ckpt_resolver *resolver = lookup->resolver;

	int code = resolver->config.lookup(
		resolver->config.lookup_user, lookup->host, &lookup->addresses);
	pthread_mutex_lock(&resolver->lock);
	struct name *name = find(resolver, lookup->host);
	if (name && !resolver->closed) {
		keep_result(name, code, &lookup->addresses);
		resolver->config.told(resolver->config.told_user);
	}
	let_go(resolver);
	ckpt_free(lookup);
	return NULL;
}

static void begin(struct ckpt_resolver *resolver, struct name *name)
{
	struct lookup *lookup = ckpt_alloc(sizeof(*lookup));
	pthread_t thread;
	int r = lookup ? 0 : -ENOMEM;

	if (lookup) {
		lookup->resolver = resolver;
		memcpy(lookup->host, name->host, sizeof(lookup->host));
		r = ckpt_thread_start(&thread, "ckpt-name", look_up, lookup);
	}
	if (r < 0) {
		ckpt_free(lookup);
		name->code = EAI_MEMORY;
		name->fresh = true;
		return;
	}
	(void)pthread_detach(thread);
	resolver->users++;
	name->pending = true;
}

static bool is_bad(const struct name *name, unsigned at, uint64_t now_ns)
{
	return name->failed_ns[at] != 0 && now_ns < name->failed_ns[at] + CKPT_RESOLVER_TTL_NS;
}

static void put_in_order(struct name *name, uint64_t now_ns, struct ckpt_http_addresses *to)
{
	unsigned count = name->addresses.count;

	to->count = 0;
	for (int bad = 0; bad <= 1; bad++) {
		for (unsigned i = 0; i < count; i++) {
			unsigned at = (name->turn + i) % count;
			if (is_bad(name, at, now_ns) == (bad == 1)) {
				memcpy(to->text[to->count++], name->addresses.text[at],
					sizeof(to->text[0]));
			}
		}
	}
	name->turn = (name->turn + 1) % count;
}

static enum ckpt_resolved answer(
	struct name *name, uint64_t now_ns, struct ckpt_http_addresses *to, const char **ret_why)
{
	if (name->addresses.count > 0) {
		put_in_order(name, now_ns, to);
		return CKPT_RESOLVED;
	}
	if (name->pending)
		return CKPT_RESOLVE_PENDING;
	*ret_why = gai_strerror(name->code);
	return CKPT_RESOLVE_FAILED;
}

enum ckpt_resolved ckpt_resolver_ask(struct ckpt_resolver *resolver, const char *host,
	uint64_t now_ns, struct ckpt_http_addresses *ret_addresses, const char **ret_why)
{
	enum ckpt_resolved result = CKPT_RESOLVE_FAILED;
	struct name *name;

	pthread_mutex_lock(&resolver->lock);
	name = find(resolver, host);
	bool is_new = !name;
	if (!name)
		name = make(resolver, host);
	if (name) {
		if (name->fresh) {
			name->fresh = false;
			name->known_ns = now_ns;
		}
		uint64_t kept_ns = name->code == 0 ? CKPT_RESOLVER_TTL_NS : AGAIN_NS;
		name->used_ns = now_ns;
		if (!name->pending && (is_new || now_ns >= name->known_ns + kept_ns))
			begin(resolver, name);
		result = answer(name, now_ns, ret_addresses, ret_why);
	} else {
		*ret_why = "too many lookups are running, or the name is too long";
	}
	pthread_mutex_unlock(&resolver->lock);
	return result;
}

void ckpt_resolver_failed(
	struct ckpt_resolver *resolver, const char *host, const char *address, uint64_t now_ns)
{
	pthread_mutex_lock(&resolver->lock);
	struct name *name = find(resolver, host);
	for (unsigned i = 0; name && i < name->addresses.count; i++) {
		if (strcmp(name->addresses.text[i], address) == 0)
			name->failed_ns[i] = ckpt_max_u64(now_ns, 1);
	}
	pthread_mutex_unlock(&resolver->lock);
}
