/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/bucket_core.h"

#include <stdio.h>

#include "engine/lineage/open.h"
#include "lib/test.h"

#define S_NS UINT64_C(1000000000)

void bucket_core_begin(struct bucket_core *b)
{
	const struct buckets_config config = {.seed = 1, .journal = &b->front.journal};
	struct ckpt_s3_client *client = &b->client;

	b->front.buckets = buckets_new(&config);
	assert_non_null(b->front.buckets);
	buckets_capabilities(b->front.buckets)->part_minimum = 1;
	buckets_make(b->front.buckets, BUCKET_CORE_BUCKET);
	bucket_http_init(&b->http, &b->rig.inbox, &b->front, 2);
	b->settings.anonymous = true;
	assert_int_equal(
		ckpt_s3_uri_parse("s3://" BUCKET_CORE_BUCKET "/run", NULL, &client->place), 0);
	client->asked = (struct ckpt_s3_endpoint_config){.url = "http://s3.localhost",
		.region = "us-east-1",
		.bucket = client->place.bucket};
	assert_int_equal(ckpt_s3_endpoint_make(&client->asked, NULL, &client->endpoint), 0);
}

void bucket_core_end(struct bucket_core *b)
{
	bucket_http_clear(&b->http);
	front_free(&b->front);
}

/* The rig's environment and core do not move: a client may name them before they are there. */
static void open_client(struct bucket_core *b)
{
	struct ckpt_s3_client *client = &b->client;
	const struct ckpt_s3_credential_cache_config config = {
		.with = {&b->rig.env, &b->rig.core.sched, &b->rig.core.timers, &b->http.http},
		.settings = &b->settings};
	struct ckpt_s3_client opened = {.env = config.with.env,
		.sched = config.with.sched,
		.timers = config.with.timers,
		.http = config.with.http,
		.place = client->place,
		.asked = client->asked,
		.endpoint = client->endpoint};

	*client = opened;
	client->asked.bucket = client->place.bucket;
	assert_int_equal(ckpt_s3_credential_cache_open(&config, &client->credentials), 0);
}

void bucket_core_open(struct bucket_core *b, const char *dir, uint32_t block_bytes, bool of_bucket)
{
	open_client(b);
	core_rig_make(&b->rig, &(struct core_rig_config){.dir = dir,
				       .bucket = of_bucket ? &b->client : NULL,
				       .block_bytes = block_bytes,
				       .read_only = true});
	b->rig.now_ns = ckpt_max_u64(b->rig.now_ns, b->http.now_ns);
	b->client.log = b->rig.log;
	ckpt_s3_client_begin(&b->client);
	struct ckpt_command *opener =
		ckpt_command_new(&b->rig.core, sizeof(struct ckpt_opener), ckpt_opener_clear);
	ckpt_command_post(opener, ckpt_open_body);
	bucket_core_run(b);
	assert_true(ckpt_latch_get(&opener->latch) & CKPT_DONE_END);
	assert_int_equal(opener->result, 0);
	ckpt_command_unref(opener);
}

void bucket_core_close(struct bucket_core *b)
{
	core_rig_close(&b->rig);
	assert_int_equal(b->http.under_way, 0);
	ckpt_s3_credential_cache_close(b->client.credentials);
	ckpt_s3_signing_key_clear(&b->client.signing);
}

void bucket_core_now(struct bucket_core *b)
{
	core_rig_run(&b->rig);
	while (bucket_http_next(&b->http) <= b->rig.now_ns) {
		bucket_http_run(&b->http, b->rig.now_ns);
		core_rig_run(&b->rig);
	}
}

void bucket_core_run(struct bucket_core *b)
{
	bucket_core_now(b);
	while (bucket_http_next(&b->http) < b->rig.now_ns + S_NS) {
		b->rig.now_ns = bucket_http_next(&b->http);
		bucket_core_now(b);
	}
}

const struct rope *bucket_core_there(struct bucket_core *b, const char *path)
{
	char key[CKPT_S3_KEY_MAX + 1];

	(void)snprintf(key, sizeof(key), BUCKET_CORE_PREFIX "%s", path);
	return buckets_content(b->front.buckets, BUCKET_CORE_BUCKET, key);
}
