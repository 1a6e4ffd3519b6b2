/* SPDX-License-Identifier: Apache-2.0 */
/* When keys are fetched, and who waits for them. */
#include "s3/credential_cache.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/secret.h"
#include "s3/credential_fetch.h"

#define MINUTE_S    UINT64_C(60)
#define SOON_S      (15 * MINUTE_S)       /* time left: fetched in the background */
#define SOON_SPREAD (4 * MINUTE_S)        /* minus a random time up to this */
#define NOW_S       (10 * MINUTE_S)       /* time left: requests wait for new ones */
#define LAST_S      MINUTE_S              /* with less than this left they sign nothing */
#define AGAIN_NS    UINT64_C(20000000000) /* pause after a failed fetch, up to twice */

struct ckpt_s3_credential_cache {
	struct ckpt_env *env;
	struct ckpt_log *log;
	bool anonymous;
	struct ckpt_s3_credential_fetch fetch;
	struct ckpt_s3_want *first; /* waiting requests */
	struct ckpt_task *idle_task;
	struct ckpt_s3_credentials keys;
	char from[CKPT_S3_FROM_MAX];
	struct ckpt_error error; /* of the last failed fetch */
	uint64_t serial;         /* number of the keys; 0: there are none yet */
	uint64_t lasted_s;       /* their lifetime when they were fetched */
	uint64_t spread_s;
	uint64_t again_ns; /* no fetch before this time, unless keys are needed */
	bool refused;      /* a server has rejected them as expired */
	bool stopped;
};

/* By the server's clock, once it is known. */
static uint64_t wall_s(const struct ckpt_s3_credential_cache *c)
{
	return ckpt_env_wall_ms(c->env) / 1000 + (uint64_t)c->fetch.clock_offset_s;
}

/* Remaining lifetime; UINT64_MAX: they never expire. */
static uint64_t left_s(const struct ckpt_s3_credential_cache *c)
{
	uint64_t now = wall_s(c);

	if (c->keys.expires_s == 0)
		return UINT64_MAX;
	return c->keys.expires_s > now ? c->keys.expires_s - now : 0;
}

/* Whether they may sign a request. */
static bool usable(const struct ckpt_s3_credential_cache *c)
{
	return c->serial > 0 && !c->refused && left_s(c) >= LAST_S;
}

static bool due(const struct ckpt_s3_credential_cache *c)
{
	uint64_t soon = ckpt_min_u64(SOON_S - c->spread_s, c->lasted_s / 3);

	return left_s(c) < soon;
}

/* Whether requests wait for new keys. */
static bool overdue(const struct ckpt_s3_credential_cache *c)
{
	return left_s(c) < ckpt_min_u64(NOW_S, c->lasted_s / 5);
}

static void tell(struct ckpt_s3_credential_cache *c, struct ckpt_s3_want *want, int result)
{
	want->result = result;
	want->serial = c->serial;
	want->done = true;
	ckpt_task_wake(want->task);
}

static void tell_all(struct ckpt_s3_credential_cache *c, int result)
{
	struct ckpt_s3_want *want = c->first;

	c->first = NULL;
	while (want) {
		struct ckpt_s3_want *next = want->next;

		tell(c, want, result);
		want = next;
	}
}

/* Takes over fetched keys. If a server has called the current ones expired and they are the same, they do not count. */
static int take(struct ckpt_s3_credential_cache *c)
{
	bool same = c->serial > 0 && ckpt_s3_credentials_same(&c->keys, &c->fetch.keys);
	uint64_t left;

	if (c->refused && same)
		return ckpt_fail(&c->error, CKPT_EAUTH,
			"the server says that the keys of %s have expired, and there are no new "
			"ones yet: renew them",
			c->fetch.source.from);
	ckpt_s3_credentials_clear(&c->keys);
	c->keys = c->fetch.keys;
	explicit_bzero(&c->fetch.keys, sizeof(c->fetch.keys));
	memcpy(c->from, c->fetch.source.from, sizeof(c->from));
	c->refused = false;
	if (!same)
		c->serial++;
	left = left_s(c);
	c->lasted_s = left;
	c->spread_s = ckpt_env_random(c->env) % (SOON_SPREAD + 1);
	if (left < LAST_S)
		return ckpt_fail(&c->error, CKPT_EAUTH,
			"the keys of %s have expired or expire within a minute, by the clock of "
			"this machine: renew them, or set the clock",
			c->from);
	if (left == UINT64_MAX)
		ckpt_log(c->log, CKPT_LOG_INFO, "keys for S3 are from %s", c->from);
	else
		ckpt_log(c->log, CKPT_LOG_INFO,
			"keys for S3 are from %s, and expire in %llu minutes", c->from,
			(unsigned long long)(left / MINUTE_S));
	return 0;
}

static void warn(const struct ckpt_s3_credential_cache *c)
{
	ckpt_log(c->log, CKPT_LOG_WARN,
		"cannot get new keys for S3; those of %s expire in %llu minutes: %s", c->from,
		(unsigned long long)(left_s(c) / MINUTE_S), c->error.message);
}

static void fetched(struct ckpt_task *task)
{
	struct ckpt_s3_credential_fetch *fetch =
		CKPT_CONTAINER(task, struct ckpt_s3_credential_fetch, task);
	struct ckpt_s3_credential_cache *c =
		CKPT_CONTAINER(fetch, struct ckpt_s3_credential_cache, fetch);
	int result = task->result;

	ckpt_error_clear(&c->error);
	if (c->stopped)
		result = ckpt_fail(&c->error, -ECANCELED, "waiting for keys for S3 was cancelled");
	else if (result < 0)
		c->error = fetch->error;
	else
		result = take(c);
	ckpt_s3_credential_fetch_clear(fetch);
	if (result < 0 && !c->stopped && usable(c)) {
		c->again_ns = ckpt_env_now(c->env) + AGAIN_NS + ckpt_env_random(c->env) % AGAIN_NS;
		warn(c);
		result = 0;
	}
	tell_all(c, result);
	ckpt_task_wake(c->idle_task);
}

static int begin(struct ckpt_s3_credential_cache *c)
{
	int r;

	if (ckpt_task_active(&c->fetch.task))
		return 0;
	r = ckpt_s3_credential_fetch_start(&c->fetch, fetched);
	if (r == 0)
		return 0;
	ckpt_error_clear(&c->error);
	return ckpt_fail(&c->error, r, "cannot get keys for S3: %s", ckpt_code_text(r));
}

int ckpt_s3_credential_cache_open(const struct ckpt_s3_credential_cache_config *config,
	struct ckpt_s3_credential_cache **ret_credentials)
{
	/* It contains keys. */
	struct ckpt_s3_credential_cache *c = ckpt_secret_alloc(sizeof(*c));

	if (!c)
		return -ENOMEM;
	c->env = config->with.env;
	c->log = config->log;
	c->anonymous = config->settings->anonymous;
	c->fetch.with = config->with;
	c->fetch.vars = config->vars;
	c->fetch.settings = config->settings;
	c->fetch.process_ms = config->process_ms;
	c->fetch.stop_fd = -1;
	ckpt_error_clear(&c->error);
	*ret_credentials = c;
	return 0;
}

void ckpt_s3_credential_cache_want(struct ckpt_s3_credential_cache *credentials,
	struct ckpt_s3_want *want, struct ckpt_task *task)
{
	struct ckpt_s3_credential_cache *c = credentials;
	bool held = usable(c);
	bool quiet = ckpt_env_now(c->env) < c->again_ns;
	int r = 0;

	*want = (struct ckpt_s3_want){.task = task};
	if (c->stopped) {
		ckpt_error_clear(&c->error);
		tell(c, want, ckpt_fail(&c->error, -ECANCELED, "this engine is closing"));
		return;
	}
	if (c->anonymous || (held && (!due(c) || quiet))) {
		tell(c, want, 0);
		return;
	}
	r = begin(c);
	if (r < 0 || (held && !overdue(c))) {
		tell(c, want, held ? 0 : r);
		return;
	}
	want->next = c->first;
	c->first = want;
}

void ckpt_s3_credential_cache_unwant(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_s3_want *want)
{
	struct ckpt_s3_want **link = &credentials->first;

	while (*link && *link != want)
		link = &(*link)->next;
	if (*link)
		*link = want->next;
}

const struct ckpt_s3_credentials *ckpt_s3_credential_cache_keys(
	const struct ckpt_s3_credential_cache *credentials)
{
	return credentials->anonymous ? NULL : &credentials->keys;
}

const struct ckpt_error *ckpt_s3_credential_cache_error(
	const struct ckpt_s3_credential_cache *credentials)
{
	return &credentials->error;
}

const char *ckpt_s3_credential_cache_from(const struct ckpt_s3_credential_cache *credentials)
{
	return credentials->from;
}

void ckpt_s3_credential_cache_expired(struct ckpt_s3_credential_cache *credentials, uint64_t serial)
{
	if (serial == credentials->serial && serial > 0)
		credentials->refused = true;
}

void ckpt_s3_credential_cache_clock(struct ckpt_s3_credential_cache *credentials, int64_t offset_s)
{
	credentials->fetch.clock_offset_s = offset_s;
}

void ckpt_s3_credential_cache_stop(struct ckpt_s3_credential_cache *credentials)
{
	credentials->stopped = true;
	ckpt_s3_credential_fetch_stop(&credentials->fetch);
}

bool ckpt_s3_credential_cache_idle(
	struct ckpt_s3_credential_cache *credentials, struct ckpt_task *task)
{
	credentials->idle_task = task;
	return !ckpt_task_active(&credentials->fetch.task);
}

void ckpt_s3_credential_cache_close(struct ckpt_s3_credential_cache *credentials)
{
	if (!credentials)
		return;
	CKPT_ASSERT(!ckpt_task_active(&credentials->fetch.task) && !credentials->first);
	ckpt_s3_credential_fetch_clear(&credentials->fetch);
	ckpt_s3_credentials_clear(&credentials->keys);
	ckpt_secret_free(credentials);
}
