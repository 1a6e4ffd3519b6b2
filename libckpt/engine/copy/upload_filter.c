/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/copy/upload_filter.h"

#include "base/error.h"
#include "engine/gc/gc.h"

static struct ckpt_upload_filter *upload_filter_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_upload_filter, task);
}

static int upload_filter_body(struct ckpt_task *task)
{
	struct ckpt_upload_filter *s = upload_filter_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	ckpt_scanner_start(&s->scanner, s->dest, &s->core->sched, task, NULL, s->err);
	CKPT_AWAIT(task, s->scanner.task.finished);
	r = s->scanner.task.result;
	/* Where a claim is damaged nobody knows what is of the lineage: all is sent. */
	if (r == 0 && ckpt_lineage_mark(&s->scanner.scan, NULL) < 0)
		ckpt_scan_clear(&s->scanner.scan);
	if (r == 0)
		return 0;
	if (s->err->code < 0)
		return r;
	return ckpt_fail_at(s->err, r, &(struct ckpt_where){.tier = "remote"}, "cannot read %s: %s",
		s->dest->label, ckpt_code_text(r));
	CKPT_TASK_END(task);
}

static void upload_filter_done(struct ckpt_task *task)
{
	ckpt_task_wake(upload_filter_of(task)->waiter);
}

void ckpt_upload_filter_start(struct ckpt_upload_filter *upload_filter)
{
	ckpt_task_start(&upload_filter->task, &upload_filter->core->sched, upload_filter_body,
		upload_filter_done);
}

bool ckpt_upload_filter_holds_back(
	struct ckpt_upload_filter *upload_filter, uint64_t generation, uint64_t step)
{
	struct ckpt_scan *scan = &upload_filter->scanner.scan;
	const struct ckpt_retention keep = {
		.keep_last = upload_filter->core->config.remote_keep_last,
		.keep_every = upload_filter->core->config.remote_keep_every};
	const struct ckpt_scan_step *there = ckpt_scan_find(scan, generation, step);

	return !(there && there->state == CKPT_STEP_COMMITTED) &&
	       ckpt_retention_outlived(scan, &keep, generation, step);
}

void ckpt_upload_filter_clear(struct ckpt_upload_filter *upload_filter)
{
	ckpt_scanner_clear(&upload_filter->scanner);
}
