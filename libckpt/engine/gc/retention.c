/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps expire. */
#include "engine/gc/gc.h"

static bool is_kept(const struct ckpt_retention *keep, const struct ckpt_scan_step *s)
{
	if (s->in_lineage && keep->keep_every && s->step % keep->keep_every == 0)
		return true;
	/* Those that need it go first. */
	if (s->needed)
		return true;
	if (keep->core && keep->core->hooks->keeps(keep->core, s->generation, s->step))
		return true;
	/* No manifest says so yet. */
	if (keep->core && keep->core->hooks->needs(keep->core, s->generation, s->step))
		return true;
	for (size_t i = 0; i < keep->pin_count; i++)
		if (keep->pins[i] == s->step)
			return true;
	return false;
}

/* A step that is being deleted is not kept, though it still exists. */
static bool stays(const struct ckpt_scan_step *s)
{
	return s->in_lineage && !s->deleting && s->state == CKPT_STEP_COMMITTED;
}

/* Uploads go in order: an incomplete step with newer complete ones stays incomplete if no upload is under way. */
static bool is_left(const struct ckpt_retention *keep, const struct ckpt_scan_step *s)
{
	return keep->remote && keep->settled && s->state == CKPT_STEP_PENDING;
}

const struct ckpt_scan_step *ckpt_retention_next(const struct ckpt_scan *scan,
	const struct ckpt_retention *keep, uint64_t generation, uint64_t step)
{
	const struct ckpt_scan_step *oldest = NULL;
	uint64_t kept = 0;
	unsigned aborted = 0;

	if (scan->lacks)
		return NULL;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation < generation || (s->generation == generation && s->step <= step))
			break; /* newest first: all that follow are older */
		if (s->state == CKPT_STEP_ABORTED) {
			if (++aborted > CKPT_ABORTED_KEPT)
				oldest = s;
		} else if (keep->keep_last == 0) {
			continue;
		} else if (kept < keep->keep_last) {
			kept += stays(s);
		} else if ((s->in_lineage || s->rolled_back || is_left(keep, s)) &&
			   !is_kept(keep, s)) {
			oldest = s;
		}
	}
	return oldest;
}

bool ckpt_retention_outlived(const struct ckpt_scan *scan, const struct ckpt_retention *keep,
	uint64_t generation, uint64_t step)
{
	uint64_t newer = 0;

	if (keep->keep_last == 0 || (keep->keep_every && step % keep->keep_every == 0))
		return false;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation < generation || (s->generation == generation && s->step <= step))
			break;
		newer += stays(s);
	}
	return newer >= keep->keep_last;
}
