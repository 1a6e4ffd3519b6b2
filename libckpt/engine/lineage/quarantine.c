/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the note beside a manifest. */
#include "engine/lineage/quarantine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"
#include "engine/lineage/lineage.h"

static int encode(struct ckpt_quarantiner *q)
{
	struct ckpt_quarantine note = {.generation = q->step.generation,
		.step = q->step.step,
		.code = q->why->code,
		.wall_ms = ckpt_env_wall_ms(q->core->parts.env)};
	size_t length = strlen(q->why->message);

	length = ckpt_utf8_cut(q->why->message, length, sizeof(note.reason) - 1);
	memcpy(note.reason, q->why->message, length);
	return ckpt_quarantine_encode(&note, &q->buf);
}

/* This engine skips the step from now on, even if the note cannot be written. */
static void remember(struct ckpt_quarantiner *q)
{
	size_t length = strlen(q->why->message);
	const struct ckpt_scan_gen *gen =
		ckpt_scan_gen(&q->core->lineage->scan, q->step.generation);

	q->step.state = CKPT_STEP_QUARANTINED;
	q->step.later = !gen || !gen->claimed;
	length = ckpt_utf8_cut(q->why->message, length, sizeof(q->step.note) - 1);
	memcpy(q->step.note, q->why->message, length);
	q->step.note[length] = 0;
	/* Out of memory: only the note has an effect. */
	(void)ckpt_scan_put(&q->core->lineage->scan, &q->step);
}

static void tell(const struct ckpt_quarantiner *q, int r)
{
	struct ckpt_log *log = q->core->parts.log;
	unsigned long long step = q->step.step;

	ckpt_log(log, CKPT_LOG_ERROR, "step %llu of %s is quarantined: %s", step,
		q->core->parts.label, q->why->message);
	if (r < 0 && r != -EEXIST)
		ckpt_log(log, CKPT_LOG_WARN,
			"cannot write the quarantine note of step %llu of %s (%s): "
			"only this process skips the step",
			step, q->core->parts.label, ckpt_code_text(r));
}

static int quarantine_body(struct ckpt_task *task)
{
	struct ckpt_quarantiner *q = CKPT_CONTAINER(task, struct ckpt_quarantiner, task);
	char path[CKPT_PATH_MAX];
	int r;

	CKPT_TASK_BEGIN(task);
	remember(q);
	if (q->here) {
		ckpt_log(q->core->parts.log, CKPT_LOG_WARN,
			"this process skips step %llu of %s, which is not quarantined: %s",
			(unsigned long long)q->step.step, q->core->parts.label, q->why->message);
		return 0;
	}
	r = encode(q);
	if (r < 0) {
		tell(q, r);
		return 0;
	}
	ckpt_name_quarantine(path, q->step.generation, q->step.step);
	ckpt_store_publish(q->core->store, &q->op, path, q->buf.data, q->buf.len, NULL);
	CKPT_AWAIT(task, q->op.done);
	tell(q, q->op.result);
	CKPT_TASK_END(task);
}

static void quarantine_done(struct ckpt_task *task)
{
	struct ckpt_quarantiner *q = CKPT_CONTAINER(task, struct ckpt_quarantiner, task);

	ckpt_buf_free(&q->buf);
	ckpt_task_wake(q->waiter);
}

void ckpt_quarantine_start(struct ckpt_quarantiner *quarantiner)
{
	CKPT_ASSERT(!quarantiner->core->config.read_only);
	ckpt_store_op_init(&quarantiner->op, &quarantiner->task, NULL);
	ckpt_task_start(
		&quarantiner->task, &quarantiner->core->sched, quarantine_body, quarantine_done);
}
