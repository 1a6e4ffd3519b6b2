/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to a store while calls fail. Unlike the deeds of tests/kill, every call may fail here, and
 * the work goes on as a program would go on. What may not happen: an answer that is not true.
 */
#include <errno.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/scratch.h"
#include "torture/errands.h"
#include "torture/gpus.h"
#include "torture/trial_jobs.h"
#include "torture/trial_nodes.h"
#include "torture/trial_remotes.h"
#include "torture/trial_tools.h"

/* Where stores come from. */

static void prepare_none(struct workload *d)
{
	(void)d;
}

static void prepare_three(struct workload *d)
{
	workload_open(d, 0);
	for (unsigned step = 1; step <= 3; step++)
		if (!errand_save(d, step, step))
			workload_die("step %u: %s", step, ckpt_last_error());
	workload_close(d);
}

/* With chunks that are larger than the blocks of those who read them. */
static void prepare_large(struct workload *d)
{
	d->opts.block_bytes = 1 << 20;
	prepare_three(d);
}

static void prepare_bad(struct workload *d)
{
	prepare_three(d);
	scratch_flip(
		scratch_find(scratch_join(d->store, "g000001/step-0000000003"), ".safetensors"),
		50000);
	workload_log(d, "bad 3\n");
}

/* The middle of a save, and the middle of an index that was damaged later. */
static void prepare_left(struct workload *d)
{
	prepare_three(d);
	if (remove(scratch_find(
		    scratch_join(d->store, "g000001/step-0000000003"), "manifest.json")) < 0)
		workload_die("no manifest");
	workload_log(d, "let 3 0\n");
}

/* What is done with them. */

static void run_first(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	(void)errand_save(d, 1, 101);
	(void)errand_save(d, 2, 102);
	errand_close(d);
}

static void run_boxes(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	if (errand_save(d, 1, 101))
		errand_box(d);
	errand_close(d);
}

static void run_overlapping(struct workload *d)
{
	struct ckpt_save *saves[3] = {NULL};

	if (!errand_open(d, 0))
		return;
	for (unsigned i = 0; i < 3; i++) {
		if (i > 0 && saves[i - 1])
			(void)CALL(
				ckpt_save_wait(saves[i - 1], CKPT_LEVEL_STAGED, TORTURE_WAIT_MS));
		saves[i] = errand_start(d, i + 1, 101 + i, 0);
		if (i > 0)
			(void)errand_finish(d, saves[i - 1], i, 100 + i);
	}
	(void)errand_finish(d, saves[2], 3, 103);
	errand_close(d);
}

static void run_fenced(struct workload *d)
{
	uint64_t generation = 0;

	if (!errand_open(d, 0))
		return;
	(void)CALL(ckpt_engine_claim(d->engine, &generation));
	struct ckpt_save *handle = errand_start(d, 1, 101, CKPT_SAVE_FENCED);
	if (handle) {
		int r = CALL(ckpt_save_wait_eager(handle, TORTURE_WAIT_MS));
		if (r == 0)
			r = CALL(ckpt_save_fence(handle, TORTURE_WAIT_MS));
		if (r == CKPT_ETORN)
			torture_wrong("nobody has changed a tensor");
		if (r < 0)
			DO(ckpt_save_cancel(handle));
		(void)errand_finish(d, handle, 1, 101);
	}
	handle = errand_start(d, 2, 102, 0);
	if (handle) {
		(void)CALL(ckpt_save_fail(handle, -EIO, "head", "the caller saw a change"));
		(void)errand_finish(d, handle, 2, 102);
	}
	errand_close(d);
}

static void run_retention(struct workload *d)
{
	d->opts.keep_last = 2;
	if (!errand_open(d, 0))
		return;
	bool resumed = errand_resume(d, 3);
	for (unsigned step = 4; resumed && step <= 6; step++) {
		workload_log(d, "let %u %u\n", step - 3, step - 1);
		workload_log(d, "let %u %u\n", step - 2, step);
		(void)errand_save(d, step, 100 + step);
	}
	(void)CALL(ckpt_engine_drain(d->engine, TORTURE_WAIT_MS));
	errand_close(d);
}

static void run_pinned(struct workload *d)
{
	d->opts.keep_last = 1;
	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 3) && CALL(ckpt_engine_pin(d->engine, 2)) == 0) {
		workload_log(d, "let 1 0\nlet 3 4\n");
		if (errand_save(d, 4, 104)) {
			workload_log(d, "let 4 5\n");
			(void)errand_save(d, 5, 105);
		}
		(void)CALL(ckpt_engine_pin(d->engine, 4));
		(void)CALL(ckpt_engine_unpin(d->engine, 4));
	}
	errand_close(d);
}

static void run_restore(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	(void)errand_resume(d, 3);
	(void)errand_restore(d, 1, 1, 1, false);
	errand_close(d);
}

static void run_resume(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 3))
		(void)errand_save(d, 4, 104);
	errand_close(d);
}

static void run_older(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	if (errand_restore(d, 1, 1, 1, true)) {
		workload_log(d, "let 2 0\nlet 3 0\n");
		(void)errand_save(d, 2, 102);
		(void)errand_save(d, 3, 103);
	}
	errand_close(d);
}

static void run_anew(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_NEW_START))
		return;
	workload_log(d, "let 1 0\nlet 2 0\nlet 3 0\n");
	(void)errand_save(d, 1, 101);
	errand_close(d);
}

static void run_verify(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_READ_ONLY))
		return;
	errand_verify(d, 3, false);
	errand_verify(d, 1, false);
	errand_close(d);
}

static void run_verify_bad(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_READ_ONLY))
		return;
	errand_verify(d, 3, true);
	errand_close(d);
}

static void run_export(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_READ_ONLY))
		return;
	errand_export(d, 2);
	errand_close(d);
}

/* Restoring the damaged step puts it aside. */
static void run_quarantine(struct workload *d)
{
	struct ckpt_restore *handle = NULL;

	if (!errand_open(d, 0))
		return;
	int r = CALL(ckpt_restore_open(d->engine, CKPT_STEP_LATEST, &handle));
	if (r == 0) {
		/* One whose lock is not to be had is being removed, and passed over. */
		uint64_t step = ckpt_restore_step(handle);
		if (errand_bind(d, handle) && CALL(ckpt_restore_start(handle)) == 0 &&
			errand_wait(handle) == 0 && step == 3)
			torture_wrong("the damaged step was restored");
		DO(ckpt_restore_free(handle));
	}
	(void)errand_restore(d, 2, 2, 2, true);
	(void)errand_save(d, 4, 104);
	errand_close(d);
}

static void run_list(struct workload *d)
{
	if (!errand_open(d, CKPT_ENGINE_READ_ONLY))
		return;
	errand_list(d, 3);
	errand_inspect(d);
	errand_close(d);
}

static void run_remove(struct workload *d)
{
	uint64_t generation = 0;

	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 3) && CALL(ckpt_engine_claim(d->engine, &generation)) == 0) {
		for (unsigned step = 1; step <= 2; step++) {
			workload_log(d, "let %u 0\n", step);
			if (errand_outcome(CALL(ckpt_catalog_remove(d->engine, step)) == 0,
				    "remove", step))
				workload_log(d, "gone %u\n", step);
		}
	}
	errand_close(d);
}

static void run_closing(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	(void)errand_save(d, 1, 101);
	struct ckpt_save *handle = errand_start(d, 2, 102, 0);
	errand_close(d);
	if (!handle)
		return;
	if (CALL(ckpt_save_wait(handle, CKPT_LEVEL_LOCAL, 0)) == 0)
		workload_log(d, "ack 2 102\n");
	DO(ckpt_save_free(handle));
}

/* Settles what the dead one has left. */
static void run_settle(struct workload *d)
{
	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 2))
		(void)errand_save(d, 4, 104);
	errand_close(d);
}

/* The child of a fork has a handle that does nothing, and does not keep the store from anybody. */
static void run_forked(struct workload *d)
{
	uint64_t latest = 0;
	int status = 0;

	if (!errand_open(d, 0))
		return;
	(void)errand_save(d, 1, 101);
	torture_arm(__builtin_frame_address(0));
	pid_t child = fork();
	torture_disarm();
	if (child == 0) {
		int r = CALL(ckpt_engine_latest(d->engine, &latest));
		DO(ckpt_engine_close(d->engine));
		_exit(r == CKPT_EFORKED ? 0 : 4);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		continue;
	if (status != 0)
		torture_wrong("a child ended with %#x", status);
	(void)errand_save(d, 2, 102);
	errand_close(d);
}

static void run_verify_tool(struct workload *d)
{
	trial_verify_tool(d);
}

static void run_restore_tool(struct workload *d)
{
	trial_restore_tool(d);
}

static void run_consolidate_tool(struct workload *d)
{
	trial_consolidate_tool(d);
}

#define RING    .threads = false
#define THREADS .threads = true
/* clang-format off */
const struct trial torture_trials[] = {
	{"first", prepare_none, run_first, RING},
	{"first-threads", prepare_none, run_first, THREADS},
	{"first-old-kernel", prepare_none, run_first, RING, .odd = TORTURE_OLD_KERNEL},
	{"overlapping", prepare_none, run_overlapping, RING},
	{"streaming", prepare_none, run_overlapping, THREADS, .extra = 400000},
	{"eager", prepare_none, run_fenced, THREADS, .odd = TORTURE_HUGE_PAGES, .extra = (32 << 20) + 64,
		.block = 8 << 20, .pool = 48 << 20},
	{"fenced", prepare_none, run_fenced, THREADS},
	{"boxes", prepare_none, run_boxes, THREADS, .boxed = true},
	{"retention", prepare_three, run_retention, THREADS},
	{"pinned", prepare_three, run_pinned, THREADS},
	{"restore", prepare_three, run_restore, RING},
	{"restore-threads", prepare_three, run_restore, THREADS},
	{"restore-large", prepare_large, run_restore, THREADS},
	{"restore-vanished", prepare_three, run_restore, THREADS, .odd = TORTURE_VANISHED},
	{"restore-removed", prepare_three, run_restore, THREADS, .odd = TORTURE_REMOVED},
	{"restore-going", prepare_three, run_restore, THREADS, .odd = TORTURE_GOING},
	{"resume", prepare_three, run_resume, THREADS},
	{"older", prepare_three, run_older, THREADS},
	{"anew", prepare_three, run_anew, THREADS},
	{"verify", prepare_three, run_verify, THREADS},
	{"verify-bad", prepare_bad, run_verify_bad, THREADS},
	{"export", prepare_three, run_export, THREADS},
	{"quarantine", prepare_bad, run_quarantine, THREADS},
	{"list", prepare_three, run_list, THREADS},
	{"remove", prepare_three, run_remove, THREADS},
	{"closing", prepare_none, run_closing, THREADS},
	{"settle", prepare_left, run_settle, THREADS},
	{"forked", prepare_none, run_forked, THREADS},
	{"gpu", prepare_none, trial_gpus, THREADS, .pool = 16 << 20},
	{"gpu-streaming", prepare_none, trial_gpus, THREADS},
	{"gpu-resume", prepare_three, trial_gpus_resume, RING, .boxed = true},
	{"gpu-large", prepare_large, trial_gpus_resume, THREADS, .boxed = true},
	{"verify-tool", prepare_three, run_verify_tool, THREADS, .tool = true},
	{"restore-tool", prepare_three, run_restore_tool, THREADS, .tool = true},
	{"consolidate-tool", prepare_three, run_consolidate_tool, THREADS, .tool = true},
	{"job", prepare_none, trial_job, THREADS, .odd = TORTURE_GONE},
	{"job-served", prepare_none, trial_job_served, THREADS, .odd = TORTURE_LATE_CLAIM},
	{"job-large", prepare_none, trial_job, THREADS, .odd = TORTURE_LARGE},
	{"job-large-gone", prepare_none, trial_job, THREADS, .odd = TORTURE_LARGE | TORTURE_GONE},
	{"job-skip", prepare_none, trial_job_skip, THREADS},
	{"job-resume", trial_prepare_job_bad, trial_job_resume, THREADS, .odd = TORTURE_LATE_STEP},
	{"job-both", trial_prepare_job_bad, trial_job_both, THREADS},
	{"job-named", trial_prepare_job, trial_job_named, THREADS},
	{"job-absent", prepare_none, trial_job_absent, THREADS},
	{"spare", trial_prepare_copies, trial_spare, THREADS},
	{"job-swept", trial_prepare_emptied, trial_job, THREADS, .odd = TORTURE_TWICE},
	{"many", trial_prepare_job, trial_many, THREADS, .odd = TORTURE_MANY},
	{"many-spare", trial_prepare_copies, trial_spare, THREADS, .odd = TORTURE_MANY},
	{"many-uncataloged", trial_prepare_uncataloged, trial_many, THREADS, .odd = TORTURE_MANY},
	{"many-copied", trial_prepare_job, trial_many_copied, THREADS},
	{"ranks-copied", trial_prepare_job, trial_ranks_copied, THREADS},
	{"job-nodes", prepare_none, trial_nodes, THREADS, .nodes = 3},
	{"job-nodes-bring", trial_prepare_nodes_behind, trial_nodes_resume, THREADS, .nodes = 3},
	{"job-nodes-empty", trial_prepare_nodes_empty, trial_nodes_empty, THREADS, .nodes = 2},
	{"job-nodes-refused", trial_prepare_nodes_strange, trial_nodes_refused, THREADS, .nodes = 2},
	{"job-nodes-late", trial_prepare_nodes_new, trial_nodes_late, THREADS, .odd = TORTURE_LATE_STORE,
		.nodes = 2},
	{"job-nodes-one", trial_prepare_nodes, trial_nodes_one, THREADS, .nodes = 2},
	{"remote", prepare_none, trial_remote, THREADS, .remote = true},
	{"remote-behind", prepare_three, trial_remote_resume, THREADS, .remote = true},
	{"remote-bring", trial_prepare_remote_only, trial_remote_resume, THREADS, .remote = true},
	{"remote-mend", trial_prepare_remote_bad, trial_remote_repair, THREADS, .remote = true},
	{"remote-retention", trial_prepare_remote, trial_remote_retention, THREADS, .remote = true},
};
/* clang-format on */
const unsigned torture_trial_count = sizeof(torture_trials) / sizeof(torture_trials[0]);
