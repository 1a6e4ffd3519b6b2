/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/bucket_rig.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/test.h"

#define MS     UINT64_C(1000000)
#define BUCKET "bucket"

static struct bucket_rig *rig_of(struct ckpt_env *env)
{
	return CKPT_CONTAINER(env, struct bucket_rig, env);
}

static uint64_t now(struct ckpt_env *env)
{
	return rig_of(env)->now_ns;
}

static uint64_t age(struct ckpt_env *env)
{
	return rig_of(env)->now_ns + rig_of(env)->suspended_ns;
}

static uint64_t wall(struct ckpt_env *env)
{
	const struct bucket_rig *rig = rig_of(env);

	return (rig->http.unix_ns + rig->now_ns) / MS - (uint64_t)(rig->behind_s * 1000);
}

static uint64_t draw(struct ckpt_env *env)
{
	return prng_next(&rig_of(env)->prng);
}

static void run_job(struct ckpt_env *env, struct ckpt_job *job)
{
	job->work(job);
	ckpt_inbox_push(env->inbox, &job->node);
}

static const struct ckpt_env_ops env_ops = {.name = "rig",
	.now_ns = now,
	.age_ns = age,
	.wall_ms = wall,
	.random = draw,
	.run = run_job};

static void open_server(struct bucket_rig *rig, uint64_t seed)
{
	const struct buckets_config config = {
		.seed = seed, .guard = &rig->guard, .journal = &rig->front.journal};

	guard_add(&rig->guard, BUCKET_RIG_ACCESS, BUCKET_RIG_SECRET, NULL, 0);
	rig->guard.region = need_text("us-east-1");
	rig->front.buckets = buckets_new(&config);
	assert_non_null(rig->front.buckets);
	rig->front.faults.prng.state = seed + 1;
	/* Blocks of a test are small. */
	buckets_capabilities(rig->front.buckets)->part_minimum = 1;
	buckets_make(rig->front.buckets, BUCKET);
	bucket_http_init(&rig->http, &rig->inbox, &rig->front, seed + 2);
}

static void open_credentials(struct bucket_rig *rig)
{
	const char *const given[] = {"AWS_ACCESS_KEY_ID=" BUCKET_RIG_ACCESS,
		"AWS_SECRET_ACCESS_KEY=" BUCKET_RIG_SECRET, "HOME=/nonexistent", NULL};
	const char *const fetched[] = {
		"AWS_CONTAINER_CREDENTIALS_FULL_URI=" BUCKET_KEYS_URL, "HOME=/nonexistent", NULL};
	const struct ckpt_s3_options options = {.profile = NULL};
	const struct ckpt_s3_credential_cache_config config = {
		.with = {&rig->env, &rig->sched, &rig->timers, &rig->http.http},
		.vars = &rig->vars,
		.settings = &rig->settings,
		.log = rig->log};

	assert_int_equal(
		ckpt_s3_environ_take(rig->fetched_keys ? fetched : given, NULL, &rig->vars), 0);
	assert_int_equal(ckpt_s3_settings_resolve(&options, &rig->vars, NULL, &rig->settings), 0);
	assert_int_equal(ckpt_s3_credential_cache_open(&config, &rig->client.credentials), 0);
}

void bucket_rig_open(struct bucket_rig *rig, uint64_t seed)
{
	struct ckpt_s3_client *client = &rig->client;
	char place[256];

	rig->prng.state = seed;
	rig->now_ns = 1;
	rig->block_bytes = rig->block_bytes ? rig->block_bytes : BUCKET_RIG_BLOCK;
	ckpt_error_clear(&rig->err);
	assert_int_equal(ckpt_inbox_init(&rig->inbox), 0);
	assert_int_equal(ckpt_log_open(CKPT_LOG_DEBUG, &rig->log), 0);
	rig->env = (struct ckpt_env){.ops = &env_ops, .inbox = &rig->inbox};
	open_server(rig, seed);
	*client = (struct ckpt_s3_client){.env = &rig->env,
		.sched = &rig->sched,
		.timers = &rig->timers,
		.http = &rig->http.http,
		.log = rig->log,
		.attempts = rig->attempts};
	open_credentials(rig);
	(void)snprintf(
		place, sizeof(place), "s3://" BUCKET "/%s", rig->prefix ? rig->prefix : "run");
	assert_int_equal(ckpt_s3_uri_parse(place, NULL, &client->place), 0);
	client->asked = (struct ckpt_s3_endpoint_config){
		.url = rig->tls ? "https://s3.localhost" : "http://s3.localhost",
		.region = rig->region ? rig->region : "us-east-1",
		.bucket = client->place.bucket};
	assert_int_equal(ckpt_s3_endpoint_make(&client->asked, NULL, &client->endpoint), 0);
	ckpt_s3_client_begin(client);
	assert_int_equal(ckpt_store_s3_open(&rig->env, &rig->sched, client, rig->block_bytes,
				 "the bucket", &rig->store),
		0);
}

void bucket_rig_close(struct bucket_rig *rig)
{
	ckpt_s3_client_stop(&rig->client);
	bucket_rig_settle(rig);
	assert_true(ckpt_s3_client_idle(&rig->client, NULL));
	assert_int_equal(rig->http.under_way, 0);
	assert_null(rig->timers.first);
	ckpt_store_close(rig->store);
	ckpt_s3_credential_cache_close(rig->client.credentials);
	ckpt_s3_signing_key_clear(&rig->client.signing);
	ckpt_s3_settings_clear(&rig->settings);
	ckpt_s3_environ_clear(&rig->vars);
	bucket_http_clear(&rig->http);
	front_free(&rig->front);
	guard_clear(&rig->guard);
	ckpt_log_close(rig->log);
	ckpt_inbox_destroy(&rig->inbox);
}

struct bucket_rig *bucket_rig_new(struct bucket_rig like, uint64_t seed)
{
	struct bucket_rig *rig = need(sizeof(*rig));

	*rig = like;
	bucket_rig_open(rig, seed);
	return rig;
}

void bucket_rig_free(struct bucket_rig *rig)
{
	bucket_rig_close(rig);
	free(rig);
}

char *bucket_rig_bytes(size_t size)
{
	char *data = need(size);

	for (size_t i = 0; i < size; i++)
		data[i] = (char)(i * 7 + i / 251);
	return data;
}

/* Time. */

void bucket_rig_now(struct bucket_rig *rig)
{
	struct ckpt_node *node, *next;

	ckpt_sched_run(&rig->sched);
	while ((node = ckpt_inbox_take(&rig->inbox)))
		for (; node; node = next) {
			next = node->next;
			node->run(node);
			ckpt_sched_run(&rig->sched);
		}
}

bool bucket_rig_step(struct bucket_rig *rig)
{
	uint64_t next_ns;
	struct ckpt_timer *timer = ckpt_timer_due(&rig->timers, rig->now_ns, &next_ns);

	if (timer) {
		ckpt_timer_clear(&rig->timers, timer);
		timer->fire(timer);
	} else {
		next_ns = ckpt_min_u64(next_ns, bucket_http_next(&rig->http));
		if (next_ns == UINT64_MAX)
			return false;
		rig->now_ns = ckpt_max_u64(rig->now_ns, next_ns);
		bucket_http_run(&rig->http, rig->now_ns);
	}
	bucket_rig_now(rig);
	return true;
}

void bucket_rig_until(struct bucket_rig *rig, const bool *done)
{
	bucket_rig_now(rig);
	while (!*done)
		if (!bucket_rig_step(rig))
			fail_msg("it hangs, with %u requests under way", rig->http.under_way);
}

void bucket_rig_settle(struct bucket_rig *rig)
{
	bucket_rig_now(rig);
	while (bucket_rig_step(rig))
		;
}

/* The verbs. */

struct ckpt_store_op *bucket_rig_op(struct bucket_rig *rig)
{
	bool quiet = rig->op.quiet;

	ckpt_error_clear(&rig->err);
	ckpt_store_op_init(&rig->op, NULL, &rig->err);
	rig->op.quiet = quiet;
	return &rig->op;
}

int bucket_rig_wait(struct bucket_rig *rig)
{
	const struct ckpt_store_op *op = &rig->op;
	int r;

	bucket_rig_until(rig, &op->done);
	r = op->result;
	if (r == 0 || (op->quiet && (r == -ENOENT || r == -EEXIST))) {
		if (rig->err.code)
			fail_msg("worded: %s", rig->err.message);
		return r;
	}
	if (rig->err.code != r)
		fail_msg("%d is worded as %d: %s", r, rig->err.code, rig->err.message);
	if (!rig->err.message[0] || strcmp(rig->err.tier, "remote") != 0)
		fail_msg("of tier '%s': %s", rig->err.tier, rig->err.message);
	return r;
}

int bucket_rig_publish(struct bucket_rig *rig, const char *path, const char *text)
{
	ckpt_store_publish(rig->store, bucket_rig_op(rig), path, text, strlen(text), NULL);
	return bucket_rig_wait(rig);
}

int bucket_rig_get(struct bucket_rig *rig, const char *path)
{
	ckpt_store_get(rig->store, bucket_rig_op(rig), path, 1 << 20);
	return bucket_rig_wait(rig);
}

int bucket_rig_create(
	struct bucket_rig *rig, const char *path, uint64_t size, struct ckpt_object *object)
{
	ckpt_store_create(rig->store, bucket_rig_op(rig), path, size, object);
	return bucket_rig_wait(rig);
}

int bucket_rig_resume(
	struct bucket_rig *rig, const char *path, uint64_t size, struct ckpt_object *object)
{
	ckpt_store_resume(rig->store, bucket_rig_op(rig), path, size, object);
	return bucket_rig_wait(rig);
}

int bucket_rig_write(struct bucket_rig *rig, struct ckpt_object *object, const void *data,
	uint64_t length, uint64_t offset)
{
	ckpt_store_write(rig->store, bucket_rig_op(rig), object, data, length, offset, -1);
	return bucket_rig_wait(rig);
}

int bucket_rig_seal(struct bucket_rig *rig, struct ckpt_object *object, uint64_t size)
{
	ckpt_store_seal(rig->store, bucket_rig_op(rig), object, size);
	return bucket_rig_wait(rig);
}

int bucket_rig_abandon(struct bucket_rig *rig, struct ckpt_object *object)
{
	ckpt_store_abandon(rig->store, bucket_rig_op(rig), object);
	return bucket_rig_wait(rig);
}

int bucket_rig_open_file(struct bucket_rig *rig, const char *path, struct ckpt_object *object)
{
	ckpt_store_open(rig->store, bucket_rig_op(rig), path, object);
	return bucket_rig_wait(rig);
}

int bucket_rig_read(struct bucket_rig *rig, struct ckpt_object *object, void *data, uint64_t length,
	uint64_t offset)
{
	ckpt_store_read(rig->store, bucket_rig_op(rig), object, data, length, offset, -1);
	return bucket_rig_wait(rig);
}

int bucket_rig_shut(struct bucket_rig *rig, struct ckpt_object *object)
{
	ckpt_store_shut(rig->store, bucket_rig_op(rig), object);
	return bucket_rig_wait(rig);
}

int bucket_rig_list(struct bucket_rig *rig, const char *path)
{
	ckpt_store_list(rig->store, bucket_rig_op(rig), path);
	return bucket_rig_wait(rig);
}

int bucket_rig_remove(struct bucket_rig *rig, const char *path)
{
	ckpt_store_remove(rig->store, bucket_rig_op(rig), path);
	return bucket_rig_wait(rig);
}

int bucket_rig_shard(struct bucket_rig *rig, const char *path, const void *data, uint64_t size)
{
	struct ckpt_object object = {.fd = -1};
	int r = bucket_rig_create(rig, path, size, &object);

	for (uint64_t at = 0; at < size && r == 0; at += rig->block_bytes)
		r = bucket_rig_write(rig, &object, (const char *)data + at,
			ckpt_min_u64(rig->block_bytes, size - at), at);
	if (r == 0)
		r = bucket_rig_seal(rig, &object, size);
	if (r < 0 && object.path[0])
		(void)bucket_rig_abandon(rig, &object);
	assert_int_equal(object.fd, -1);
	return r;
}

/* The server. */

void bucket_rig_faults(struct bucket_rig *rig, const char *rules)
{
	char text[1024];
	char why[160];

	(void)snprintf(text, sizeof(text), "{\"seed\":%llu,\"rules\":[%s]}",
		(unsigned long long)(prng_next(&rig->prng) >> 20), rules);
	for (char *c = text; *c; c++)
		if (*c == '\'')
			*c = '"';
	if (!faults_read(&rig->front.faults, text, strlen(text), why))
		fail_msg("%s: %s", rules, why);
}

const struct rope *bucket_rig_there(struct bucket_rig *rig, const char *path)
{
	char key[CKPT_S3_KEY_MAX + 1];

	ckpt_s3_uri_key(&rig->client.place, path, key);
	return buckets_content(rig->front.buckets, BUCKET, key);
}

bool bucket_rig_holds(struct bucket_rig *rig, const char *path, const void *data, uint64_t size)
{
	const struct rope *there = bucket_rig_there(rig, path);
	char *copy = need((size_t)size + 1);
	bool same = there && there->length == size &&
		    rope_read(there, 0, copy, (size_t)size) == size &&
		    memcmp(copy, data, (size_t)size) == 0;

	free(copy);
	return same;
}

size_t bucket_rig_uploads(const struct bucket_rig *rig)
{
	return buckets_uploads(rig->front.buckets, BUCKET);
}

bool bucket_rig_logged(struct bucket_rig *rig, const char *words)
{
	struct ckpt_log_record record = {.size = sizeof(record)};
	bool found = false;

	while (ckpt_log_next(rig->log, 0, &record) == 0)
		found = found || strstr(record.message, words);
	return found;
}
