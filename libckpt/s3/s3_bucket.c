/* SPDX-License-Identifier: Apache-2.0 */
#include "s3/s3_bucket.h"

#include <errno.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "s3/client.h"
#include "s3/environ.h"
#include "s3/settings.h"

/* Of a node; each process has at least one. One connection carries about 50 MB/s at AWS. Requests without one wait. */
#define CONNECTIONS     32
#define CONNECTIONS_MIN 4
#define THREADS         2

struct ckpt_bucket {
	struct ckpt_s3_client client;
	struct ckpt_s3_environ vars;
	struct ckpt_s3_settings settings;
};

static const char *variable(void *user, const char *name)
{
	return ckpt_s3_var(user, name);
}

static int open_endpoint(struct ckpt_bucket *bucket, struct ckpt_error *err)
{
	const struct ckpt_s3_settings *settings = &bucket->settings;
	struct ckpt_s3_client *client = &bucket->client;

	client->attempts = settings->attempts;
	client->asked = (struct ckpt_s3_endpoint_config){.url = settings->endpoint.value,
		.region = settings->region.value,
		.bucket = client->place.bucket,
		.addressing = settings->addressing,
		.dualstack = settings->dualstack,
		.fips = settings->fips};
	return ckpt_s3_endpoint_make(&client->asked, err, &client->endpoint);
}

static unsigned connections(unsigned sharers)
{
	unsigned share = sharers > 1 ? CONNECTIONS / sharers : CONNECTIONS;

	return share < CONNECTIONS_MIN ? CONNECTIONS_MIN : share;
}

static int open_http(
	struct ckpt_bucket *bucket, const struct ckpt_bucket_core *core, struct ckpt_error *err)
{
	struct ckpt_http_config config = {.inbox = bucket->client.env->inbox,
		.threads = THREADS,
		.connections = connections(core->sharers),
		.ca_file = bucket->settings.ca_file.value,
		.variable = variable,
		.user = &bucket->vars,
		.send_bytes_per_s = core->send_bytes_per_s,
		.gives_way = core->gives_way};

	return ckpt_http_curl_open(&config, err, &bucket->client.http);
}

static int open_credentials(struct ckpt_bucket *bucket, struct ckpt_error *err)
{
	struct ckpt_s3_client *client = &bucket->client;
	const struct ckpt_s3_credential_cache_config config = {.with = {.env = client->env,
								       .sched = client->sched,
								       .timers = client->timers,
								       .http = client->http},
		.vars = &bucket->vars,
		.settings = &bucket->settings,
		.log = client->log};
	int r = ckpt_s3_credential_cache_open(&config, &client->credentials);

	return r < 0 ? ckpt_fail(err, r, "out of memory") : 0;
}

int ckpt_bucket_open(const struct ckpt_s3_uri *place, const struct ckpt_bucket_core *core,
	struct ckpt_error *err, struct ckpt_bucket **ret_bucket)
{
	const struct ckpt_s3_options options = {.profile = NULL};
	struct ckpt_bucket *bucket = ckpt_alloc(sizeof(*bucket));

	CKPT_ASSERT(place->remote);
	if (!bucket)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	bucket->client = (struct ckpt_s3_client){.env = core->env,
		.sched = core->sched,
		.timers = core->timers,
		.log = core->log,
		.patient = core->patient,
		.behind = core->gives_way,
		.place = *place};
	int r = ckpt_s3_environ_take((const char *const *)environ, err, &bucket->vars);
	if (r == 0)
		r = ckpt_s3_settings_resolve(&options, &bucket->vars, err, &bucket->settings);
	if (r == 0)
		r = open_endpoint(bucket, err);
	if (r == 0)
		r = open_http(bucket, core, err);
	if (r == 0)
		r = open_credentials(bucket, err);
	if (r < 0) {
		ckpt_bucket_close(bucket);
		return r;
	}
	ckpt_s3_client_begin(&bucket->client);
	*ret_bucket = bucket;
	return 0;
}

struct ckpt_s3_client *ckpt_bucket_client(struct ckpt_bucket *bucket)
{
	return &bucket->client;
}

void ckpt_bucket_close(struct ckpt_bucket *bucket)
{
	if (!bucket)
		return;
	ckpt_s3_credential_cache_close(bucket->client.credentials);
	ckpt_http_close(bucket->client.http);
	ckpt_s3_signing_key_clear(&bucket->client.signing);
	ckpt_s3_settings_clear(&bucket->settings);
	ckpt_s3_environ_clear(&bucket->vars);
	ckpt_free(bucket);
}
