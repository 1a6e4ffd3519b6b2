/* SPDX-License-Identifier: Apache-2.0 */
/* Which steps retention lets go. */
#include "engine/keeper.h"

static bool pinned(const uint64_t *pins, size_t pin_count, uint64_t step)
{
	for (size_t i = 0; i < pin_count; i++)
		if (pins[i] == step)
			return true;
	return false;
}

size_t ckpt_retention_choose(const struct ckpt_scan *scan, uint64_t keep_last, uint64_t keep_every,
	const uint64_t *pins, size_t pin_count, size_t *ret_indexes, size_t max)
{
	uint64_t kept = 0;
	size_t chosen = 0;

	if (keep_last == 0)
		return 0;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (!s->in_lineage)
			continue;
		if (kept < keep_last) {
			kept += s->state == CKPT_STEP_COMMITTED;
			continue;
		}
		if ((keep_every && s->step % keep_every == 0) || pinned(pins, pin_count, s->step))
			continue;
		/* Walked newest first, wanted oldest first: keep the last `max` of them. */
		if (chosen == max) {
			for (size_t k = 1; k < max; k++)
				ret_indexes[k - 1] = ret_indexes[k];
			chosen--;
		}
		ret_indexes[chosen++] = i;
	}
	for (size_t low = 0, high = chosen; low + 1 < high; low++) {
		size_t swap = ret_indexes[low];
		ret_indexes[low] = ret_indexes[--high];
		ret_indexes[high] = swap;
	}
	return chosen;
}
