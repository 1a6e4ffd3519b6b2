/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/trial_nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lib/scratch.h"
#include "torture/jobs.h"
#include "torture/nodes.h"

#define DEADLINE_MS 3000 /* who waits for a rank in vain gives up soon */

static void run(struct workload *d, const char *session, uint32_t timeout_ms,
	void (*body)(struct job_rank *r))
{
	job_run(d, &(struct job_opts){.session = session, .served = true, .timeout_ms = timeout_ms},
		body);
}

/* Where stores come from. */

static void save_fourth(struct job_rank *r)
{
	if (!job_open(r) || job_restore(r, CKPT_STEP_LATEST, 3, 3) < 0 || !job_save(r, 4, 4))
		workload_die("step 4 is not there: %s", ckpt_last_error());
	job_close(r);
}

void trial_prepare_nodes(struct workload *d)
{
	run(d, "before", WORKLOAD_TIMEOUT_MS, job_save_three);
}

static void remove_at_b(const struct workload *d, const char *name)
{
	char *store = nodes_store(d, 1);

	if (unlink(scratch_join(store, name)) < 0)
		workload_die("no %s", name);
	free(store);
}

/* As if node b had died before it heard of the claim; and what went wrong with a step had passed. */
void trial_prepare_nodes_behind(struct workload *d)
{
	trial_prepare_nodes(d);
	run(d, "between", WORKLOAD_TIMEOUT_MS, save_fourth);
	remove_at_b(d, "g000002/step-0000000004/manifest.json");
	remove_at_b(d, "gens/000002.json");
	remove_at_b(d, "g000001/step-0000000002/manifest.json");
	workload_log(d, "1 back 4\n2 back 4\n1 back 2\n2 back 2\n");
}

/* Of the first step it has a manifest that is none. */
void trial_prepare_nodes_empty(struct workload *d)
{
	static const char *const names[] = {"", "g000001", "g000001/step-0000000001"};

	trial_prepare_nodes(d);
	scratch_remove(nodes_store(d, 1));
	char *store = nodes_store(d, 1);
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (mkdir(scratch_join(store, names[i]), 0755) < 0)
			workload_die("no %s", names[i]);
	FILE *f = fopen(scratch_join(store, "g000001/step-0000000001/manifest.json"), "we");
	if (!f || fputs("{", f) < 0 || fclose(f) != 0)
		workload_die("no manifest");
	free(store);
	workload_log(d, "1 away 1\n1 away 2\n1 away 3\n");
}

static void open_only(struct job_rank *r)
{
	if (!job_open(r))
		workload_die("open: %s", ckpt_last_error());
	job_close(r);
}

void trial_prepare_nodes_new(struct workload *d)
{
	run(d, "before", WORKLOAD_TIMEOUT_MS, open_only);
}

void trial_prepare_nodes_strange(struct workload *d)
{
	workload_open(d, 0);
	workload_close(d);
}

/* What is done with them. */

static void save_some(struct job_rank *r)
{
	if (!job_open(r))
		return;
	if (job_save(r, 1, 101) && job_spoil(r, 2, 102, true))
		(void)job_save(r, 3, 103);
	job_close(r);
}

void trial_nodes(struct workload *d)
{
	run(d, "now", errand_deadline_ms(), save_some);
}

static void resume(struct job_rank *r)
{
	if (!job_open(r))
		return;
	if (errand_outcome(job_restore(r, 4, 4, 4) == 0, "restore", 4))
		(void)job_save(r, 5, 105);
	job_close(r);
}

void trial_nodes_resume(struct workload *d)
{
	run(d, "now", errand_deadline_ms(), resume);
}

/* The steps are known on node b, and what they hold there is gone: nobody resumes, or takes it for a start. */
static void find_nothing(struct job_rank *r)
{
	if (!job_open(r))
		return;
	int code = job_restore(r, CKPT_STEP_LATEST, 3, 3);
	if (code == 0 || code == CKPT_ENOSTEP)
		torture_wrong("what is gone is restored with %d", code);
	(void)errand_outcome(code == CKPT_EOTHERNODE, "turn away from", 3);
	job_close(r);
}

void trial_nodes_empty(struct workload *d)
{
	run(d, "now", errand_deadline_ms(), find_nothing);
}

static void be_refused(struct job_rank *r)
{
	/* The one that has no node's name. */
	if (r->number == 1)
		*strrchr(r->workload.store, '-') = 0;
	(void)job_open(r);
}

void trial_nodes_refused(struct workload *d)
{
	struct job_opts opts = {.session = "now",
		.served = true,
		.absent = CKPT_EXCHANGE_BATCH,
		.refused = true,
		.timeout_ms = DEADLINE_MS};

	job_run(d, &opts, be_refused);
}

static void save_late(struct job_rank *r)
{
	struct ckpt_save *save = NULL;
	int said = 0;

	if (!job_open(r))
		return;
	bool goes_on = job_save(r, 1, 101);
	if (r->number == 0)
		workload_log(&r->workload, "try 2 102\n");
	if (goes_on && r->number > 0) {
		said = job_begin(r, 2, 102, 0, &save);
		if (said == 0)
			said = errand_end(&r->workload, save, 2, 102);
		else if (save)
			DO(ckpt_save_free(save));
		save = NULL;
	}
	(void)job_all(r, true);
	if (goes_on && r->number == 0)
		said = job_begin(r, 2, 102, 0, &save);
	if (goes_on) {
		job_end(r, save, 2, 102, said);
	}
	job_close(r);
}

void trial_nodes_late(struct workload *d)
{
	run(d, "now", DEADLINE_MS, save_late);
}

/* What rank 1 has saved is here, with what all have; what rank 0 has is not. */

static int read_range(struct workload *d, int tensor, int64_t start, int64_t count)
{
	struct ckpt_restore *handle = NULL;
	struct ckpt_target target = {.size = sizeof(target),
		.name = errand_names[tensor],
		.data = d->live[tensor] + start,
		.ndim = 1,
		.shape = &count,
		.start = &start};
	int code = CALL(ckpt_restore_open(d->engine, 3, &handle));

	if (code < 0)
		return code;
	code = CALL(ckpt_restore_bind(handle, &target, 1));
	if (code == 0)
		code = CALL(ckpt_restore_start(handle));
	if (code == 0)
		code = errand_wait(handle);
	DO(ckpt_restore_free(handle));
	return code;
}

static void read_part(struct workload *d, int tensor, int64_t start, int64_t count)
{
	const size_t bytes = (size_t)count * sizeof(float);
	float *got = d->live[tensor] + start;
	float *copy = malloc(bytes);

	memset(got, 0xee, bytes);
	int code = read_range(d, tensor, start, count);
	if (code == CKPT_EOTHERNODE || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE)
		torture_wrong("what is here is called %d: %s", code, ckpt_last_error());
	if (!copy)
		workload_die("out of memory");
	memcpy(copy, got, bytes);
	workload_fill(d, 3);
	if (code == 0 && memcmp(copy, got, bytes) != 0)
		torture_wrong("what is here is not what was saved");
	free(copy);
	(void)errand_outcome(code == 0, "read a part of", 3);
}

static void copy_out(struct workload *d)
{
	struct ckpt_restore *handle = NULL;

	if (CALL(ckpt_export_start(d->engine, 3, d->dest, &handle)) < 0)
		return;
	int code = errand_wait(handle);
	if (code == 0 || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE)
		torture_wrong("half a step is copied with %d", code);
	(void)errand_outcome(code == CKPT_EOTHERNODE, "turn away from", 3);
	DO(ckpt_restore_free(handle));
}

void trial_nodes_one(struct workload *d)
{
	const int64_t half = errand_counts[0] / 2;
	struct workload own = *d;

	nodes_settle(&own, 1);
	own.opts.rank = own.opts.node_leader = 0;
	if (errand_open(&own, CKPT_ENGINE_READ_ONLY)) {
		errand_verify(&own, 3, false);
		read_part(&own, 0, half, half);
		read_part(&own, 2, 0, errand_counts[2]);
		int code = read_range(&own, 0, 0, half);
		if (code == 0 || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE)
			torture_wrong("what is elsewhere is read with %d", code);
		(void)errand_outcome(code == CKPT_EOTHERNODE, "turn away from", 3);
		copy_out(&own);
		errand_close(&own);
	}
	free(own.store);
}
