/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of two ranks, and what one reader makes of their steps. */
#include "torture/trial_jobs.h"

#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <string.h>

#include "lib/scratch.h"
#include "torture/jobs.h"

#define DEADLINE_MS 3000 /* who waits for a rank in vain gives up soon */

/* Where stores come from. */

void trial_prepare_job(struct workload *d)
{
	job_run(d, &(struct job_opts){.session = "before", .timeout_ms = WORKLOAD_TIMEOUT_MS},
		job_save_three);
}

/* In the shard of one rank of the third step. */
static void damage(const struct workload *d, unsigned rank)
{
	char pattern[80];
	glob_t found;

	(void)snprintf(
		pattern, sizeof(pattern), "g000001/step-0000000003/rank-%05u.*.safetensors", rank);
	if (glob(scratch_join(d->store, pattern), 0, NULL, &found) != 0 || found.gl_pathc != 1)
		workload_die("no %s", pattern);
	scratch_flip(found.gl_pathv[0], 60000);
	globfree(&found);
}

void trial_prepare_job_bad(struct workload *d)
{
	trial_prepare_job(d);
	damage(d, 1);
	workload_log(d, "bad 3\n");
}

void trial_prepare_uncataloged(struct workload *d)
{
	trial_prepare_job(d);
	if (remove(scratch_find(d->store, ".catalog")) < 0)
		workload_die("no catalog");
}

void trial_prepare_emptied(struct workload *d)
{
	trial_prepare_job(d);
	for (unsigned step = 1; step <= 3; step++) {
		char name[40];
		(void)snprintf(name, sizeof(name), "g000001/step-%010u", step);
		scratch_remove(strdup(scratch_join(d->store, name)));
		workload_log(d, "let %u 0\ngone %u\n", step, step);
	}
	if (!scratch_find(d->store, ".catalog"))
		workload_die("no catalog");
}

void trial_prepare_copies(struct workload *d)
{
	job_run(d,
		&(struct job_opts){
			.session = "before", .copies = true, .timeout_ms = WORKLOAD_TIMEOUT_MS},
		job_save_three);
	damage(d, 0);
	workload_log(d, "worn 3\n");
}

/* What is done with them. */

/* The first step lacks an index when rank 0 looks, the second one is spoilt. */
static void save_some(struct job_rank *r)
{
	if (!job_open(r))
		return;
	bool gone = torture_odd(TORTURE_GONE);
	bool goes_on = gone ? job_spoil(r, 1, 101, false) : job_save(r, 1, 101);
	if (goes_on && job_spoil(r, 2, 102, true))
		(void)job_save(r, 3, 103);
	job_close(r);
}

void trial_job(struct workload *d)
{
	job_run(d, &(struct job_opts){.session = "now", .timeout_ms = errand_deadline_ms()},
		save_some);
}

void trial_job_served(struct workload *d)
{
	job_run(d,
		&(struct job_opts){
			.session = "now", .served = true, .timeout_ms = errand_deadline_ms()},
		save_some);
}

/* Rank 0 comes to the second step while the first one waits for rank 1. */
static void skip_one(struct job_rank *r)
{
	struct ckpt_save *first = NULL;
	struct ckpt_save *second = NULL;

	if (!job_open(r))
		return;
	int one = job_start(r, 1, 101, r->number > 0 ? CKPT_SAVE_FENCED : 0, &first);
	int two = job_start(r, 2, 101, 0, &second);
	if (one == 0 && r->number > 0 && CALL(ckpt_save_fence(first, TORTURE_WAIT_MS)) < 0)
		DO(ckpt_save_cancel(first));
	job_end(r, first, 1, 101, one);
	job_end(r, second, 2, 101, two);
	bool skipped = errand_outcome(two == CKPT_ESKIPPED, "skip", 2);
	if (job_goes_on(r, skipped))
		(void)job_save(r, 3, 103);
	job_close(r);
}

void trial_job_skip(struct workload *d)
{
	job_run(d,
		&(struct job_opts){
			.session = "now", .skips = true, .timeout_ms = errand_deadline_ms()},
		skip_one);
}

/* The latest is damaged: all turn back together, and get the one before it. */
static void resume(struct job_rank *r)
{
	if (!job_open(r))
		return;
	int bad = job_restore(r, CKPT_STEP_LATEST, 2, 2);
	(void)errand_outcome(bad == CKPT_EINTEGRITY, "turn back from", 3);
	bool goes_on = job_goes_on(r, bad == CKPT_EINTEGRITY);
	if (goes_on && errand_outcome(job_restore(r, CKPT_STEP_LATEST, 2, 2) == 0, "restore", 2))
		(void)job_save(r, 4, 104);
	job_close(r);
}

void trial_job_resume(struct workload *d)
{
	job_run(d, &(struct job_opts){.session = "now", .timeout_ms = errand_deadline_ms()},
		resume);
}

/* Each finds the damage by itself, and tells it; what rank 1 has told is there when rank 0 does. */
static void fail_both(struct job_rank *r)
{
	if (!job_open(r))
		return;
	int bad = job_restore(r, 3, 3, 3);
	(void)errand_outcome(bad == CKPT_EINTEGRITY, "fail to restore", 3);
	job_close(r);
}

void trial_job_both(struct workload *d)
{
	job_run(d,
		&(struct job_opts){.session = "now",
			.served = true,
			.deaf = true,
			.in_turn = true,
			.timeout_ms = DEADLINE_MS},
		fail_both);
}

static void go_back(struct job_rank *r)
{
	if (!job_open(r))
		return;
	if (errand_outcome(job_restore(r, 1, 1, 1) == 0, "restore", 1)) {
		if (r->number == 0)
			workload_log(&r->workload, "let 2 0\nlet 3 0\n");
		(void)job_save(r, 2, 102);
	}
	job_close(r);
}

void trial_job_named(struct workload *d)
{
	job_run(d,
		&(struct job_opts){
			.session = "now", .served = true, .timeout_ms = errand_deadline_ms()},
		go_back);
}

void trial_job_absent(struct workload *d)
{
	d->opts.world = CKPT_EXCHANGE_BATCH + 2;
	d->opts.session = "now";
	d->opts.save_timeout_ms = 500;
	if (!errand_open(d, 0))
		return;
	struct ckpt_save *save = errand_start(d, 1, 101, 0);
	int said = save ? errand_end(d, save, 1, 101) : -ENOMEM;
	if (said == 0)
		torture_wrong("the step of one rank is durable");
	(void)errand_outcome(said == -ETIMEDOUT, "fail", 1);
	errand_close(d);
}

/* The middle of a tensor. */
static void read_middle(struct workload *d, uint64_t step, unsigned seed)
{
	const int64_t start = 15000;
	const int64_t count = 10000;
	static float middle[10000];
	struct ckpt_restore *handle = NULL;
	struct ckpt_target target = {.size = sizeof(target),
		.name = errand_names[0],
		.data = middle,
		.ndim = 1,
		.shape = &count,
		.start = &start};

	if (CALL(ckpt_restore_open(d->engine, step, &handle)) < 0)
		return;
	if (CALL(ckpt_restore_bind(handle, &target, 1)) == 0 &&
		CALL(ckpt_restore_start(handle)) == 0 && errand_wait(handle) == 0) {
		workload_fill(d, seed);
		if (memcmp(middle, d->live[0] + start, sizeof(middle)) != 0)
			torture_wrong("the middle is not what was saved");
	}
	DO(ckpt_restore_free(handle));
}

/* What rank 0 has of the third step is damaged, and rank 1 has the same. */
void trial_spare(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	read_middle(d, 2, 2);
	if (errand_resume(d, 3))
		(void)errand_save(d, 4, 104);
	errand_close(d);
}

/* What stands beside the tensors of each rank. */
static void read_metas(struct workload *d, uint64_t step)
{
	struct ckpt_restore *handle = NULL;

	if (CALL(ckpt_restore_open(d->engine, step, &handle)) < 0)
		return;
	for (uint32_t rank = 0; rank < ckpt_restore_world(handle); rank++) {
		const char *meta = NULL;
		size_t length = 0;
		int r = CALL(ckpt_restore_rank_meta(handle, rank, &meta, &length));

		(void)errand_outcome(r == 0, "ask for the meta of", (unsigned)step);
	}
	DO(ckpt_restore_free(handle));
}

void trial_many(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	read_middle(d, 2, 2);
	read_metas(d, 2);
	errand_verify(d, 3, false);
	if (errand_resume(d, 3))
		(void)errand_save(d, 4, 104);
	errand_close(d);
}

/* Of step 2, which is good. Whether it has come to be. */
static bool copied(struct ckpt_restore *handle)
{
	int r = errand_wait(handle);

	if (r == CKPT_EINTEGRITY || r == CKPT_EINCOMPLETE || errand_endless(r))
		torture_wrong("step 2 is good, and the export says %d", r);
	DO(ckpt_restore_free(handle));
	return errand_outcome(r == 0, "export", 2);
}

/* A copy of a step, with the catalog. */
void trial_many_copied(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_READ_ONLY))
		return;
	errand_export(d, 2);
	errand_close(d);
}

/* And one by one. What is left is added by whoever looks afterwards. */
void trial_ranks_copied(struct workload *d)
{
	static const uint32_t ranks[] = {1, 0};
	bool goes_on = errand_open(d, CKPT_ENGINE_READ_ONLY);

	if (!goes_on)
		return;
	for (unsigned i = 0; i < 2 && goes_on; i++) {
		struct ckpt_restore *handle = NULL;
		int r = CALL(ckpt_export_ranks_start(d->engine, 2, d->dest, &ranks[i], 1, &handle));
		goes_on = r == 0 && copied(handle);
	}
	if (goes_on)
		workload_log(d, "export 2\n");
	errand_close(d);
}
