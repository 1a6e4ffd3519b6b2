/* SPDX-License-Identifier: Apache-2.0 */
/* Through the client of a bucket, on a core's thread that does nothing else. */
#include "bench_put.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "bench_tool.h"
#include "s3/client.h"
#include "s3/s3_bucket.h"

struct putter {
	struct ckpt_task task;
	struct ckpt_s3_call call;
	const struct bench_put *put;
	struct ckpt_s3_client *client;
	unsigned *next;
	unsigned *active;
	struct ckpt_error err;
};

static void ask(struct putter *p)
{
	ckpt_s3_call_clear(&p->call);
	p->call = (struct ckpt_s3_call){.method = CKPT_HTTP_PUT,
		.name = "part",
		.query = "",
		.body = p->put->part,
		.body_length = p->put->part_bytes,
		.proof = p->put->proof == BENCH_PROOF_CRC32C ? CKPT_S3_PROOF_CRC32C
							     : CKPT_S3_PROOF_SIGNED,
		.doing = "write",
		.err = &p->err,
		.waiter = &p->task,
		.part = true};
}

static int putter_body(struct ckpt_task *task)
{
	struct putter *p = CKPT_CONTAINER(task, struct putter, task);

	CKPT_TASK_BEGIN(task);
	while (*p->next < p->put->parts) {
		(*p->next)++;
		ask(p);
		ckpt_s3_call_start(p->client, &p->call);
		CKPT_AWAIT(task, p->call.done);
		bench_must(p->call.result, &p->err, "PUT");
	}
	ckpt_s3_call_clear(&p->call);
	(*p->active)--;
	CKPT_TASK_END(task);
}

/* What the environment of a user says. */
static void set_environment(const struct bench_put *put)
{
	const char *const settings[][2] = {{"AWS_ENDPOINT_URL_S3", put->endpoint},
		{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"}, {"AWS_SECRET_ACCESS_KEY", "secret"},
		{"AWS_REGION", "us-east-1"}, {"AWS_EC2_METADATA_DISABLED", "true"},
		{"NO_PROXY", "*"}};

	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		bench_must_os(setenv(settings[i][0], settings[i][1], 1) == 0, "setenv");
	if (put->ca_file)
		bench_must_os(setenv("AWS_CA_BUNDLE", put->ca_file, 1) == 0, "setenv");
	else
		(void)unsetenv("AWS_CA_BUNDLE");
}

/* Until nothing is left to do. */
static void run(struct ckpt_inbox *inbox, struct ckpt_sched *sched, struct ckpt_timers *timers,
	const unsigned *active)
{
	while (*active > 0) {
		struct ckpt_timer *due;
		struct ckpt_node *next;
		uint64_t at_ns;
		ckpt_sched_run(sched);
		while ((due = ckpt_timer_due(timers, bench_now_ns(), &at_ns))) {
			ckpt_timer_clear(timers, due);
			due->fire(due);
			ckpt_sched_run(sched);
		}
		if (*active == 0)
			break;
		ckpt_inbox_wait(inbox, at_ns);
		for (struct ckpt_node *node = ckpt_inbox_take(inbox); node; node = next) {
			next = node->next;
			node->run(node);
		}
	}
}

void bench_put_bucket(const struct bench_put *put)
{
	struct ckpt_sched sched = {0};
	struct ckpt_timers timers = {0};
	struct ckpt_inbox inbox;
	struct ckpt_env_os *env;
	struct ckpt_s3_uri place;
	struct ckpt_bucket *bucket;
	struct ckpt_error err = {0};
	struct putter *putters = calloc(put->connections, sizeof(*putters));
	unsigned active = put->connections;
	unsigned next = 0;

	bench_must_os(putters != NULL, "calloc");
	set_environment(put);
	bench_must(ckpt_inbox_init(&inbox), NULL, "inbox");
	bench_must(ckpt_env_os_open(put->workers, &inbox, &env), NULL, "workers");
	bench_must(ckpt_s3_uri_parse("s3://bench/run", &err, &place), &err, "place");
	const struct ckpt_bucket_core core = {
		.env = ckpt_env_os_env(env), .sched = &sched, .timers = &timers};
	bench_must(ckpt_bucket_open(&place, &core, &err, &bucket), &err, "bucket");
	for (unsigned i = 0; i < put->connections; i++) {
		putters[i] = (struct putter){.put = put,
			.client = ckpt_bucket_client(bucket),
			.next = &next,
			.active = &active};
		ckpt_task_start(&putters[i].task, &sched, putter_body, NULL);
	}
	run(&inbox, &sched, &timers, &active);
	ckpt_bucket_close(bucket);
	ckpt_env_os_close(env);
	ckpt_inbox_destroy(&inbox);
	free(putters);
}
