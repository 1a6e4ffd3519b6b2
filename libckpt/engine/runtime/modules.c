/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/runtime/modules.h"

#include "base/error.h"
#include "engine/copy/upload_queue.h"
#include "engine/core/pool_growth.h"
#include "engine/core/pool_shrink.h"
#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "engine/restore/restore.h"
#include "engine/save/commit.h"
#include "engine/save/saver.h"

static void claimed(struct ckpt_core *core)
{
	ckpt_gc_ask(core, CKPT_GC_SETTLE | CKPT_GC_SWEEP);
	ckpt_upload_queue_note_claim(core);
}

static const struct ckpt_core_hooks hooks = {.opened = ckpt_upload_queue_begin,
	.claimed = claimed,
	.claim_ended = ckpt_save_wake_early,
	.keeps = ckpt_upload_queue_keeps,
	.needs = ckpt_save_needs};

int ckpt_modules_open(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err)
{
	int r = ckpt_core_init(core, parts, config, err);

	if (r < 0)
		return r;
	core->hooks = &hooks;
	r = ckpt_pool_growth_open(core);
	if (r == 0)
		r = ckpt_shrink_open(core);
	if (r == 0)
		r = ckpt_lineage_open(core);
	if (r == 0)
		r = ckpt_gc_open(core);
	if (r == 0)
		r = ckpt_saver_open(core);
	if (r == 0)
		r = ckpt_restorer_open(core);
	if (r == 0)
		r = ckpt_upload_queue_open(core, config->remote_every);
	if (r < 0) {
		ckpt_modules_close(core);
		return ckpt_fail(err, r, "out of memory");
	}
	return 0;
}

void ckpt_modules_close(struct ckpt_core *core)
{
	CKPT_ASSERT(ckpt_core_idle(core));
	ckpt_upload_queue_close(core);
	ckpt_restorer_close(core);
	ckpt_saver_close(core);
	ckpt_gc_close(core);
	ckpt_lineage_close(core);
	ckpt_shrink_close(core);
	ckpt_pool_growth_close(core);
	ckpt_core_destroy(core);
}
