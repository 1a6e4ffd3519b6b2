/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/core/pool_allowance.h"

#include <errno.h>

#include "base/error.h"
#include "engine/core/core.h"

static struct ckpt_ledger *ledger_of(const struct ckpt_core *core)
{
	return core->allowance->failed ? NULL : core->parts.ledger;
}

static void divide(struct ckpt_allowance *a, uint32_t ranks)
{
	a->bytes = ckpt_memlimit_share(&a->memory, a->held, ranks);
	a->share = a->bytes;
	if (__builtin_mul_overflow(a->held, (uint64_t)ranks, &a->all_held))
		a->all_held = UINT64_MAX;
}

int ckpt_allowance_begin(struct ckpt_core *core, uint64_t need)
{
	struct ckpt_allowance *a = core->allowance;
	struct ckpt_ledger *ledger = ledger_of(core);
	int r;

	CKPT_ASSERT(!a->open);
	a->held = ckpt_pool_held(core->parts.pool);
	if (ledger) {
		r = ckpt_ledger_begin(ledger, a->held);
		if (r == -EAGAIN)
			return r;
		a->failed = r;
		a->open = r == 0;
		a->present = a->open ? ckpt_ledger_ranks(ledger) : 0;
	}
	if (need == 0)
		return 0;
	a->alone = false;
	/* After the others have been read: see ckpt_ledger_allow(). */
	ckpt_pool_look(core->parts.pool, &a->memory);
	if (!a->open || a->memory.bounds_lost) {
		divide(a, core->config.sharers);
		return 0;
	}
	a->bytes = ckpt_ledger_allow(ledger, &a->memory, need);
	a->share = ckpt_ledger_share(ledger, &a->memory);
	a->all_held = ckpt_ledger_held(ledger);
	return 0;
}

void ckpt_allowance_end(struct ckpt_core *core, uint64_t have)
{
	struct ckpt_allowance *a = core->allowance;

	if (a->open)
		a->failed = ckpt_ledger_end(core->parts.ledger, have);
	a->open = false;
}

void ckpt_allowance_alone(struct ckpt_core *core)
{
	struct ckpt_allowance *a = core->allowance;

	CKPT_ASSERT(!a->open);
	a->alone = true;
	ckpt_pool_look(core->parts.pool, &a->memory);
	divide(a, core->config.sharers);
}

bool ckpt_allowance_agreed(struct ckpt_core *core)
{
	struct ckpt_allowance *a = core->allowance;

	if (a->failed && !a->told)
		ckpt_log(core->parts.log, CKPT_LOG_INFO,
			"%s: the ranks of this node cannot agree on staging memory any more (%s): "
			"each takes an even share",
			core->parts.label, ckpt_code_text(a->failed));
	a->told = a->failed != 0;
	return core->parts.ledger && !a->failed;
}

void ckpt_allowance_say_missing(struct ckpt_core *core)
{
	struct ckpt_allowance *a = core->allowance;

	if (a->told_missing || a->present == 0 || a->present >= core->config.sharers)
		return;
	a->told_missing = true;
	ckpt_log(core->parts.log, CKPT_LOG_INFO,
		"%s: of %u ranks that are taken to be on this node %u agree on staging memory in "
		"/dev/shm: an even share is kept for each of the others. Containers have to share "
		"/dev/shm; LOCAL_WORLD_SIZE says how many ranks there are",
		core->parts.label, core->config.sharers, a->present);
}
