/* SPDX-License-Identifier: Apache-2.0 */
/* Names are looked up once a minute, addresses taken in turn, and nobody waits. The clock is the test's. */
#include "net/resolver.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>

#include "base/thread.h"
#include "lib/hang.h"
#include "lib/test.h"

#define SECOND UINT64_C(1000000000)

struct names {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned lookups; /* guarded by lock */
	unsigned told;    /* guarded by lock */
	bool held;        /* guarded by lock */
	int code;         /* guarded by lock */
	unsigned base;    /* guarded by lock */
};

static int look_up(void *user, const char *host, struct ckpt_http_addresses *ret_addresses)
{
	struct names *names = user;
	int code;

	(void)host;
	pthread_mutex_lock(&names->lock);
	names->lookups++;
	pthread_cond_broadcast(&names->changed);
	while (names->held)
		(void)pthread_cond_wait(&names->changed, &names->lock);
	code = names->code;
	for (unsigned i = 0; i < 3; i++) {
		(void)snprintf(ret_addresses->text[i], sizeof(ret_addresses->text[i]), "10.0.0.%u",
			names->base + i);
	}
	ret_addresses->count = 3;
	pthread_mutex_unlock(&names->lock);
	return code;
}

static void told(void *user)
{
	struct names *names = user;

	pthread_mutex_lock(&names->lock);
	names->told++;
	pthread_cond_broadcast(&names->changed);
	pthread_mutex_unlock(&names->lock);
}

static void wait_told(struct names *names, unsigned count)
{
	uint64_t limit_ns = ckpt_deadline(HANG_LIMIT_MS);

	pthread_mutex_lock(&names->lock);
	while (names->told < count)
		hang_unless(ckpt_cond_wait_until(&names->changed, &names->lock, limit_ns));
	pthread_mutex_unlock(&names->lock);
}

static void set(struct names *names, int code, unsigned base, bool held)
{
	pthread_mutex_lock(&names->lock);
	names->code = code;
	names->base = base;
	names->held = held;
	pthread_cond_broadcast(&names->changed);
	pthread_mutex_unlock(&names->lock);
}

static struct ckpt_resolver *open_names(struct names *names)
{
	struct ckpt_resolver_config config = {
		.lookup = look_up, .lookup_user = names, .told = told, .told_user = names};
	struct ckpt_resolver *resolver = NULL;

	*names = (struct names){.base = 1};
	assert_int_equal(pthread_mutex_init(&names->lock, NULL), 0);
	assert_int_equal(ckpt_cond_init(&names->changed), 0);
	assert_int_equal(ckpt_resolver_open(&config, &resolver), 0);
	return resolver;
}

/* The addresses' last numbers, in their order; 0: pending, -1: failed. */
static int ask(struct ckpt_resolver *resolver, const char *host, uint64_t now_ns)
{
	struct ckpt_http_addresses found;
	const char *why = NULL;
	int order = 0;

	switch (ckpt_resolver_ask(resolver, host, now_ns, &found, &why)) {
	case CKPT_RESOLVED:
		for (unsigned i = 0; i < found.count; i++)
			order = order * 10 + found.text[i][7] - '0';
		return order;
	case CKPT_RESOLVE_PENDING:
		return 0;
	default:
		assert_non_null(why);
		return -1;
	}
}

static void test_turns(void **state)
{
	struct names names;
	struct ckpt_resolver *resolver = open_names(&names);
	uint64_t now = SECOND;

	(void)state;
	assert_int_equal(ask(resolver, "a.example", now), 0);
	wait_told(&names, 1);
	assert_int_equal(ask(resolver, "a.example", now), 123);
	assert_int_equal(ask(resolver, "a.example", now), 231);
	assert_int_equal(ask(resolver, "a.example", now), 312);
	/* One that fails is last, for a while. */
	ckpt_resolver_failed(resolver, "a.example", "10.0.0.1", now);
	assert_int_equal(ask(resolver, "a.example", now), 231);
	assert_int_equal(ask(resolver, "a.example", now), 231);
	assert_int_equal(ask(resolver, "a.example", now), 321);
	/* All: they are tried all the same. */
	ckpt_resolver_failed(resolver, "a.example", "10.0.0.2", now);
	ckpt_resolver_failed(resolver, "a.example", "10.0.0.3", now);
	assert_int_equal(ask(resolver, "a.example", now), 123);
	assert_int_equal(names.lookups, 1);
	ckpt_resolver_failed(resolver, "unknown.example", "10.0.0.3", now);
	ckpt_resolver_close(resolver);
}

static void test_a_name_is_looked_up_again(void **state)
{
	struct names names;
	struct ckpt_resolver *resolver = open_names(&names);
	uint64_t now = SECOND;

	(void)state;
	assert_int_equal(ask(resolver, "a.example", now), 0);
	wait_told(&names, 1);
	assert_int_equal(ask(resolver, "a.example", now), 123);
	now += CKPT_RESOLVER_TTL_NS - 1;
	assert_int_equal(ask(resolver, "a.example", now), 231);
	assert_int_equal(names.lookups, 1);
	/* Meanwhile the old ones serve; also when there are no new ones. */
	set(&names, EAI_AGAIN, 4, false);
	assert_int_equal(ask(resolver, "a.example", now + 1), 312);
	wait_told(&names, 2);
	assert_int_equal(ask(resolver, "a.example", now + 2), 123);
	set(&names, 0, 4, false);
	assert_int_equal(ask(resolver, "a.example", now + 2 * SECOND), 231);
	wait_told(&names, 3);
	assert_int_equal(ask(resolver, "a.example", now + 2 * SECOND), 645);
	ckpt_resolver_close(resolver);
}

static void test_a_name_that_is_not(void **state)
{
	struct names names;
	struct ckpt_resolver *resolver = open_names(&names);
	uint64_t now = SECOND;

	(void)state;
	set(&names, EAI_NONAME, 1, false);
	assert_int_equal(ask(resolver, "a.example", now), 0);
	wait_told(&names, 1);
	/* For a second that is the answer to all who ask. */
	assert_int_equal(ask(resolver, "a.example", now), -1);
	assert_int_equal(ask(resolver, "a.example", now + SECOND - 1), -1);
	assert_int_equal(names.lookups, 1);
	set(&names, 0, 1, false);
	assert_int_equal(ask(resolver, "a.example", now + SECOND), 0);
	wait_told(&names, 2);
	assert_int_equal(ask(resolver, "a.example", now + SECOND), 123);
	ckpt_resolver_close(resolver);
}

/* More names than there is room for: the oldest go, and nothing grows. */
static void test_many_names(void **state)
{
	struct names names;
	struct ckpt_resolver *resolver = open_names(&names);
	char host[300];

	(void)state;
	for (unsigned i = 0; i < 3 * CKPT_RESOLVER_NAMES; i++) {
		(void)snprintf(host, sizeof(host), "h%u.example", i);
		assert_int_equal(ask(resolver, host, SECOND + i), 0);
		wait_told(&names, i + 1);
		assert_int_equal(ask(resolver, host, SECOND + i), 123);
	}
	memset(host, 'a', sizeof(host) - 1);
	host[sizeof(host) - 1] = 0;
	assert_int_equal(ask(resolver, host, SECOND), -1);
	/* Those that are being looked up stay. */
	set(&names, 0, 1, true);
	for (unsigned i = 0; i < CKPT_RESOLVER_NAMES; i++) {
		(void)snprintf(host, sizeof(host), "held%u.example", i);
		assert_int_equal(ask(resolver, host, 2 * SECOND), 0);
	}
	assert_int_equal(ask(resolver, "one-more.example", 2 * SECOND), -1);
	set(&names, 0, 1, false);
	wait_told(&names, 4 * CKPT_RESOLVER_NAMES);
	ckpt_resolver_close(resolver);
}

/* Closing waits for no lookup, and hears of none. */
static void test_close_beside_a_lookup(void **state)
{
	static struct names names;
	struct ckpt_resolver *resolver = open_names(&names);

	(void)state;
	set(&names, 0, 1, true);
	assert_int_equal(ask(resolver, "a.example", SECOND), 0);
	pthread_mutex_lock(&names.lock);
	while (names.lookups == 0)
		(void)pthread_cond_wait(&names.changed, &names.lock);
	pthread_mutex_unlock(&names.lock);
	ckpt_resolver_close(resolver);
	set(&names, 0, 1, false);
	assert_int_equal(names.told, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_turns),
		cmocka_unit_test(test_a_name_is_looked_up_again),
		cmocka_unit_test(test_a_name_that_is_not),
		cmocka_unit_test(test_many_names),
		cmocka_unit_test(test_close_beside_a_lookup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
