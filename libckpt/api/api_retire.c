/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of removing the steps of a list. */
#include <errno.h>
#include <ckpt/ckpt.h>

#include "api/api_catalog.h"
#include "api/copyin.h"
#include "base/alloc.h"
#include "base/error.h"
#include "engine/gc/gc.h"
#include "engine/gc/two_phase_delete.h"
#include "engine/runtime/runtime.h"

int ckpt_catalog_expire(struct ckpt_catalog *catalog, uint64_t keep_last, uint64_t keep_every)
{
	struct ckpt_error *err = ckpt_error_here();
	const struct ckpt_retention keep = {.keep_last = keep_last, .keep_every = keep_every};
	const struct ckpt_scan_step *s = NULL;

	if (!catalog)
		return ckpt_fail(err, -EINVAL, "catalog is NULL");
	if (keep_last == 0)
		return ckpt_fail(err, -EINVAL, "keep_last is 0: the newest step always stays");
	if (catalog->error.code < 0)
		return ckpt_error_copy(&catalog->error, err);
	struct ckpt_scan *scan = &catalog->scan;
	bool *expired = ckpt_alloc_array(scan->step_count + 1, sizeof(*expired));
	if (!expired)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	ckpt_lineage_mark_rolled_back(scan);
	ckpt_scan_mark_needed(scan);
	while ((s = ckpt_retention_next(scan, &keep, s ? s->generation : 0, s ? s->step : 0)))
		expired[s - scan->steps] = true;
	for (size_t i = 0; i < scan->step_count; i++)
		if (scan->steps[i].deleting && scan->steps[i].state == CKPT_STEP_PENDING)
			expired[i] = true;
	ckpt_free(catalog->expired);
	catalog->expired = expired;
	return 0;
}

/* Carries out one act, if the list says that it may be. */
static int act(struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index,
	enum ckpt_two_phase_delete_act what)
{
	struct ckpt_error *err = ckpt_error_here();

	if (!engine || !catalog || index >= catalog->scan.step_count || !catalog->expired)
		return ckpt_fail(err, -EINVAL,
			"engine or catalog is NULL, there is no such step, or "
			"ckpt_catalog_expire() was not called");
	int r = ckpt_check_fork(engine);
	if (r < 0)
		return r;
	const struct ckpt_scan_step *s = &catalog->scan.steps[index];
	/* What somebody else has marked is noted, whatever this list says of it. */
	bool watch = what == CKPT_TWO_PHASE_DELETE_MARK && s->deleting;
	if (!watch && (catalog->expired[index] != (what != CKPT_TWO_PHASE_DELETE_UNMARK) ||
			      (what != CKPT_TWO_PHASE_DELETE_MARK && !s->deleting)))
		return ckpt_fail(err, -EINVAL, "step %llu is %s, and %s: that may not be done",
			(unsigned long long)s->step, catalog->expired[index] ? "to go" : "to stay",
			s->deleting ? "marked" : "not marked");
	if (what == CKPT_TWO_PHASE_DELETE_UNMARK && s->state == CKPT_STEP_BROKEN)
		return ckpt_fail(err, -EINVAL,
			"step %llu cannot be read, so its mark stays: that may not be done",
			(unsigned long long)s->step);
	struct ckpt_command *command = ckpt_two_phase_command_new(ckpt_runtime_core(engine));
	if (!command)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	struct ckpt_two_phase_delete *two_phase =
		&CKPT_CONTAINER(command, struct ckpt_two_phase_command, command)->two_phase;
	two_phase->act = watch ? CKPT_TWO_PHASE_DELETE_WATCH : what;
	two_phase->newest = ckpt_scan_newest_claim(&catalog->scan);
	two_phase->generation = s->generation;
	two_phase->step = s->step;
	r = ckpt_runtime_run(engine, command, ckpt_two_phase_command_body, err);
	ckpt_command_unref(command);
	return r;
}

int ckpt_catalog_mark(struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index)
{
	return act(engine, catalog, index, CKPT_TWO_PHASE_DELETE_MARK);
}

int ckpt_catalog_unmark(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index)
{
	return act(engine, catalog, index, CKPT_TWO_PHASE_DELETE_UNMARK);
}

int ckpt_catalog_remove_marked(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index)
{
	return act(engine, catalog, index, CKPT_TWO_PHASE_DELETE_REMOVE);
}
