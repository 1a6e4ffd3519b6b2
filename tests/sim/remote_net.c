/* SPDX-License-Identifier: Apache-2.0 */
/* The network between the processes and the bucket, and what goes wrong there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "remote.h"

#define MILLISECOND UINT64_C(1000000)
/* No request is on its way for longer; whoever removes waits for more than that and a client's tries. */
#define HAUNTS_MS   60000
/* But a removal in the hands of somebody on the way: less than a grace. */
#define HUNG_MS     480000

static struct ckpt_s3_environ vars;
static struct ckpt_s3_settings settings;

void remote_net_open(void)
{
	static const char *const given[] = {"AWS_ACCESS_KEY_ID=AKIDEXAMPLE",
		"AWS_SECRET_ACCESS_KEY=a/secret+key", "HOME=/nonexistent", NULL};
	const struct ckpt_s3_options options = {.profile = NULL};
	int r = ckpt_s3_environ_take(given, NULL, &vars);

	CKPT_ASSERT(r == 0);
	r = ckpt_s3_settings_resolve(&options, &vars, NULL, &settings);
	CKPT_ASSERT(r == 0);
}

void remote_net_close(void)
{
	ckpt_s3_settings_clear(&settings);
	ckpt_s3_environ_clear(&vars);
}

/* What another run has in the same bucket. */
static void put_strangers(struct remote *world)
{
	static const char *const names[] = {
		"/" REMOTE_BUCKET "/other/ckpt.json", "/" REMOTE_BUCKET "/runner/gens/000001.json"};

	for (size_t i = 0; i < CKPT_COUNT(names); i++) {
		struct s3_request req = {0};
		struct s3_reply reply = {0};
		bool good = s3_request_set(&req, "PUT", names[i]);
		CKPT_ASSERT(good);
		pairs_add(&req.headers, "content-length", "1");
		req.body = bytes_copy("x", 1);
		buckets_do(world->front.buckets, 1, 0, &req, &reply);
		CKPT_ASSERT(reply.status == 200);
		s3_reply_clear(&reply);
		s3_request_clear(&req);
	}
	world->seen = world->front.journal.count;
}

/* Not all stores are Amazon's. */
static void be_another(struct remote *world)
{
	static const char *const names[] = {"radosgw", "swift", "old"};
	uint64_t drawn = sim_mix64(world->sim.seed + 11) % 10;

	if (drawn < CKPT_COUNT(names) &&
		!s3_capabilities_named(names[drawn], buckets_capabilities(world->front.buckets)))
		CKPT_ASSERT(false);
}

void remote_net_begin(struct remote *world)
{
	const struct buckets_config config = {
		.seed = world->sim.seed, .journal = &world->front.journal};

	world->front.buckets = buckets_new(&config);
	CKPT_ASSERT(world->front.buckets != NULL);
	be_another(world);
	/* Blocks are small here. */
	buckets_capabilities(world->front.buckets)->part_minimum = 1;
	buckets_make(world->front.buckets, REMOTE_BUCKET);
	put_strangers(world);
}

void remote_net_end(struct remote *world)
{
	front_free(&world->front);
	world->front = (struct front){0};
}

static struct fault_rule answer(struct sim *sim)
{
	struct fault_rule rule = {.kind = FAULT_ANSWER, .applied = sim_chance(sim, 5000)};
	bool slow = sim_chance(sim, 5000);

	rule.status = slow ? 503 : 500;
	(void)snprintf(rule.code, sizeof(rule.code), "%s", slow ? "SlowDown" : "InternalError");
	return rule;
}

/*
 * A file of a step is removed under a tombstone, which stays until nothing is under way. No other DELETE is done late: it
 * would hit what was put there since, which nobody can help.
 */
static bool hits_others(const struct s3_request *asked)
{
	const char *step = strstr(asked->key, "/step-");

	return strcmp(asked->method, "DELETE") == 0 && (!step || !strchr(step + 1, '/'));
}

static struct fault_rule judge(void *user, const struct s3_request *asked)
{
	struct remote_proc *proc = user;
	struct sim *sim = &proc->world->sim;
	struct fault_rule rule = {.kind = FAULT_NONE};
	bool hits = hits_others(asked);
	bool removes = strcmp(asked->method, "DELETE") == 0;
	uint32_t late_ms = (uint32_t)sim_between(sim, 1, sim_chance(sim, 5000) ? 300 : HAUNTS_MS);

	if (proc->world->down)
		rule.kind = FAULT_REFUSE;
	else if (sim_fault(sim, SIM_NET_DROP))
		rule.kind = FAULT_DROP;
	else if (sim_fault(sim, SIM_NET_REPLY))
		rule.kind = FAULT_DROP_REPLY;
	else if (sim_fault(sim, SIM_NET_LATE))
		rule.kind = hits ? FAULT_DROP : FAULT_LATE;
	else if (sim_fault(sim, SIM_NET_TWICE))
		rule.kind = hits ? FAULT_NONE : FAULT_TWICE;
	else if (sim_fault(sim, SIM_NET_ERROR))
		rule = answer(sim);
	else if (sim_fault(sim, SIM_NET_STALL))
		rule.kind = FAULT_STALL;
	rule.delay_ms = removes ? late_ms * (HUNG_MS / HAUNTS_MS) : late_ms;
	remote_asked(proc, asked);
	sim_note(sim, proc->id, s3_operation(asked), asked->key, s3_part_number(asked), 0,
		rule.kind);
	return rule;
}

/* In half of the worlds so few parts are taken that they are of several blocks, and of others for whoever comes next. */
static void limit_parts(struct remote_proc *proc)
{
	struct sim *sim = &proc->world->sim;

	proc->limits = (struct ckpt_s3_limits){.part_max = UINT64_C(1) << 30,
		.object_max = UINT64_C(1) << 30,
		.parts_max = sim_mix64(sim->seed + 13) % 2
				     ? 2 + (uint32_t)(sim_mix64(sim->seed + proc->id) % 4)
				     : CKPT_S3_PARTS_MAX};
}

bool remote_net_join(struct remote_proc *proc)
{
	struct remote *world = proc->world;
	struct ckpt_s3_client *client = &proc->client;

	limit_parts(proc);
	bucket_http_init(&proc->net, &proc->inbox, &world->front, sim_random(&world->sim));
	proc->net.now_ns = world->sim.now_ns;
	proc->net.latency_ns = world->latency_ns;
	proc->net.haunts_ms = HAUNTS_MS;
	proc->net.judge = judge;
	proc->net.user = proc;
	*client = (struct ckpt_s3_client){.env = &proc->env.env,
		.sched = &proc->core.sched,
		.timers = &proc->core.timers,
		.http = &proc->net.http,
		.limits = &proc->limits};
	const struct ckpt_s3_credential_cache_config config = {
		.with = {client->env, client->sched, client->timers, client->http},
		.vars = &vars,
		.settings = &settings};
	int r = ckpt_s3_uri_parse("s3://" REMOTE_BUCKET "/run", NULL, &client->place);
	CKPT_ASSERT(r == 0);
	/* Over TLS, where the server heeds them, shards are proved by sums and not signed. */
	client->asked = (struct ckpt_s3_endpoint_config){.url = sim_mix64(world->sim.seed + 12) % 2
									? "https://s3.localhost"
									: "http://s3.localhost",
		.region = "us-east-1",
		.bucket = client->place.bucket};
	r = ckpt_s3_endpoint_make(&client->asked, NULL, &client->endpoint);
	CKPT_ASSERT(r == 0);
	if (ckpt_s3_credential_cache_open(&config, &client->credentials) < 0)
		return false;
	ckpt_s3_client_begin(client);
	return true;
}

void remote_net_leave(struct remote_proc *proc)
{
	ckpt_s3_credential_cache_close(proc->client.credentials);
	ckpt_s3_signing_key_clear(&proc->client.signing);
}

uint64_t remote_net_next(const struct remote *world)
{
	uint64_t next_ns = UINT64_MAX;

	for (unsigned i = 0; i < REMOTE_PROCS; i++)
		if (world->procs[i])
			next_ns = ckpt_min_u64(next_ns, bucket_http_next(&world->procs[i]->net));
	return next_ns;
}

static struct remote_proc *first_due(const struct remote *world)
{
	struct remote_proc *first = NULL;

	for (unsigned i = 0; i < REMOTE_PROCS; i++) {
		struct remote_proc *p = world->procs[i];
		if (p && bucket_http_next(&p->net) <= world->sim.now_ns &&
			(!first || bucket_http_next(&p->net) < bucket_http_next(&first->net)))
			first = p;
	}
	return first;
}

/* In the order in which all of it happens; the server's clock does not go back. */
void remote_net_run(struct remote *world)
{
	struct remote_proc *p;

	while (!world->sim.failed && (p = first_due(world))) {
		sim_memory_enter(p->id);
		bucket_http_run(&p->net, ckpt_max_u64(bucket_http_next(&p->net), p->net.now_ns));
		sim_memory_enter(0);
		remote_look(world);
	}
}

const struct rope *remote_object(struct remote *world, const char *path)
{
	char key[CKPT_S3_KEY_MAX + 1];

	(void)snprintf(key, sizeof(key), REMOTE_PREFIX "%s", path);
	return buckets_content(world->front.buckets, REMOTE_BUCKET, key);
}
