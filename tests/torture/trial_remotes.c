/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/trial_remotes.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "lib/scratch.h"
#include "torture/errands.h"
#include "torture/remotes.h"

/* Where stores come from. */

void trial_prepare_remote(struct workload *d)
{
	remotes_settle(d);
	workload_open(d, 0);
	for (unsigned step = 1; step <= 3; step++)
		workload_save(d, step, step);
	workload_must(ckpt_engine_drain_remote(d->engine, WORKLOAD_TIMEOUT_MS));
	for (unsigned step = 1; step <= 3; step++)
		remotes_log(d, "there", step);
	workload_close(d);
}

void trial_prepare_remote_only(struct workload *d)
{
	trial_prepare_remote(d);
	scratch_remove(strdup(d->store));
	for (unsigned step = 1; step <= 3; step++)
		workload_log(d, "let %u 0\n", step);
}

void trial_prepare_remote_bad(struct workload *d)
{
	trial_prepare_remote(d);
	scratch_flip(
		scratch_find(scratch_join(d->store, "g000001/step-0000000003"), ".safetensors"),
		50000);
	workload_log(d, "bad 3\n");
}

/* What is done with them. */

/* Whether all steps up to `last` are there. */
static bool drain(struct workload *d, unsigned last)
{
	int r = CALL(ckpt_engine_drain_remote(d->engine, TORTURE_WAIT_MS));

	if (errand_endless(r))
		torture_wrong("the uploads have no end");
	for (unsigned step = 1; r == 0 && step <= last; step++)
		remotes_log(d, "there", step);
	return errand_outcome(r == 0, "drain", last);
}

void trial_remote(struct workload *d)
{
	remotes_settle(d);
	if (!errand_open(d, 0))
		return;
	struct ckpt_save *save = errand_start(d, 1, 101, 0);
	if (save && errand_reach(save, CKPT_LEVEL_REMOTE) == 0) {
		workload_log(d, "ack 1 101\n");
		remotes_log(d, "there", 1);
	}
	if (errand_finish(d, save, 1, 101) && errand_save(d, 2, 102))
		(void)drain(d, 2);
	errand_close(d);
}

void trial_remote_resume(struct workload *d)
{
	remotes_settle(d);
	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 3) && errand_save(d, 4, 104))
		(void)drain(d, 4);
	errand_close(d);
}

void trial_remote_repair(struct workload *d)
{
	struct ckpt_error error = {.size = sizeof(error)};
	struct ckpt_restore *handle = NULL;

	remotes_settle(d);
	if (!errand_open(d, 0))
		return;
	if (CALL(ckpt_restore_open(d->engine, 3, &handle)) == 0) {
		int r = -1;
		if (errand_bind(d, handle) && CALL(ckpt_restore_start(handle)) == 0)
			r = errand_wait(handle);
		if (r == 0)
			torture_wrong("the damaged step was restored");
		(void)ckpt_restore_error(handle, &error);
		(void)errand_outcome(error.repaired, "mend", 3);
		DO(ckpt_restore_free(handle));
	}
	if (error.repaired)
		(void)errand_restore(d, 3, 3, 3, false);
	errand_close(d);
}

/* Whether so many have been removed. With a fault they may never be, which is not waited for. */
static bool removed(struct workload *d, uint64_t expected)
{
	struct ckpt_stats stats = {.size = sizeof(stats)};

	for (uint32_t ms = 0; ms < errand_deadline_ms() && stats.remote_steps_removed < expected;
		ms += 10) {
		(void)poll(NULL, 0, 10);
		(void)CALL(ckpt_engine_stats(d->engine, &stats));
	}
	return stats.remote_steps_removed >= expected;
}

void trial_remote_retention(struct workload *d)
{
	remotes_settle(d);
	d->opts.remote_keep_last = 1;
	d->opts.remote_grace_s = 1;
	for (unsigned step = 1; step <= 3; step++)
		remotes_log(d, "free", step);
	if (!errand_open(d, 0))
		return;
	if (errand_resume(d, 3) && errand_save(d, 4, 104) && drain(d, 4))
		(void)errand_outcome(removed(d, 3), "see go what is older than", 4);
	errand_close(d);
}
