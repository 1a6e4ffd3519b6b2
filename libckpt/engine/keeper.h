/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper removes: steps that retention lets go, and what dead generations left unfinished. It
 * runs behind saves, one thing at a time, and never fails one. What it cannot do it logs.
 *
 * Removing a step: exclusive lock on its manifest (somebody reads it: not now) -> no later generation
 * -> unlink the manifest -> sync its directory -> unlink the rest -> rmdir.
 * Settling a step without a manifest: publish an abort record, so that a writer that is not as dead
 * as it seems can no longer commit -> unlink the rest.
 */
#ifndef CKPT_ENGINE_KEEPER_H
#define CKPT_ENGINE_KEEPER_H

#include "engine/core.h"

#define CKPT_KEEPER_SETTLE 1u
#define CKPT_KEEPER_RETAIN 2u

/* Has the keeper do so, now or after what it is doing. Needs a generation. */
void ckpt_keeper_ask(struct ckpt_core *core, unsigned what);
/* Stops after the file at hand. */
void ckpt_keeper_stop(struct ckpt_core *core);

/* Removing one step by its number, as a command of its own: see ckpt_catalog_remove(). */
struct ckpt_remover;
int ckpt_remover_new(struct ckpt_core *core, uint64_t step, struct ckpt_remover **ret_remover);
struct ckpt_command *ckpt_remover_command(struct ckpt_remover *remover);
int ckpt_remover_body(struct ckpt_task *task);
void ckpt_remover_free(struct ckpt_remover *remover);

/*
 * Which steps of the lineage retention lets go: not the newest keep_last, not every keep_every-th, not
 * a pinned one, never the newest. Writes at most `max` indexes into scan->steps, oldest first.
 * Quarantined steps do not count as kept, but stay while they are newer than the oldest that is.
 */
size_t ckpt_retention_choose(const struct ckpt_scan *scan, uint64_t keep_last, uint64_t keep_every,
	const uint64_t *pins, size_t pin_count, size_t *ret_indexes, size_t max);

#endif
