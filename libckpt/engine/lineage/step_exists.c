/* SPDX-License-Identifier: Apache-2.0 */
/* Looks for a manifest that existed before. */
#include "engine/lineage/step_exists.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "format/sealed.h"

bool ckpt_step_exists_is_doubtful(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT ||
	       code == CKPT_EOTHERNODE || code == -ENOENT || code == -ESTALE ||
	       ckpt_store_is_unreadable(code);
}

/* A manifest that does not verify is damaged, not gone. An abort record is not the commit. */
static bool is_another(const struct ckpt_step_exists *p, const char *path)
{
	struct ckpt_manifest manifest;

	if (ckpt_manifest_decode(p->op.data, p->op.length, path, NULL, &manifest) < 0)
		return false;
	bool same = manifest.kind == CKPT_MANIFEST_COMMIT &&
		    strcmp(manifest.attempt, p->pick->manifest.attempt) == 0;
	ckpt_manifest_clear(&manifest);
	return !same;
}

static int presence_body(struct ckpt_task *task)
{
	struct ckpt_step_exists *p = CKPT_CONTAINER(task, struct ckpt_step_exists, task);
	char path[CKPT_PATH_MAX];

	CKPT_TASK_BEGIN(task);
	ckpt_name_manifest(path, p->pick->chosen.generation, p->pick->chosen.step);
	ckpt_store_get(p->core->store, &p->op, path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, p->op.done);
	p->gone = p->op.result == -ENOENT || p->op.result == -ESTALE;
	if (p->op.result == 0)
		p->gone = is_another(p, p->op.path);
	ckpt_free(p->op.data);
	p->op.data = NULL;
	CKPT_TASK_END(task);
}

static void presence_done(struct ckpt_task *task)
{
	ckpt_task_wake(CKPT_CONTAINER(task, struct ckpt_step_exists, task)->waiter);
}

void ckpt_step_exists_start(struct ckpt_step_exists *presence)
{
	CKPT_ASSERT(presence->pick->manifest.ranks != NULL);
	ckpt_store_op_init(&presence->op, &presence->task, NULL);
	presence->op.quiet = true;
	presence->op.stop = presence->pick->stop;
	ckpt_task_start(&presence->task, &presence->core->sched, presence_body, presence_done);
}
