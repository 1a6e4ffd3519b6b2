/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the stores of a job's nodes together. Each rank tells rank 0 what its node's store holds at its
 * newest end, or why it cannot be opened; rank 0 answers for all: which run it is, the newest claim, and what
 * a store lacks that another one has. A commit that some nodes have and others do not is one whose end the
 * others did not live to see: they have their parts of it, so its manifest is brought to them, and claims
 * likewise. Whatever is older than the newest that a store has was removed there, and is not brought.
 */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_SYNC_H
#define CKPT_ENGINE_LINEAGE_OPEN_SYNC_H

#include "engine/lineage/open.h"

/* Begins; the result of a body of opener->work. */
int ckpt_open_sync_start(struct ckpt_opener *opener);
/* Bodies of opener->work: the session is this start's; the lock is held, or somebody else's. */
int ckpt_open_sync_body(struct ckpt_task *task);
int ckpt_open_sync_held_body(struct ckpt_task *task);
/* After opener->work: tells the others of its failure, if there is one that they wait for. True: await the talk. */
bool ckpt_open_sync_refuse(struct ckpt_opener *opener);
/* NULL is ignored. */
void ckpt_open_sync_free(struct ckpt_open_sync *nodes);

/* What lineage/open.c shares with it. */
int ckpt_open_hello_body(struct ckpt_task *task);
int ckpt_open_hold_body(struct ckpt_task *task);
int ckpt_open_in_use(struct ckpt_opener *opener, uint64_t generation);
int ckpt_open_lost_marker(struct ckpt_opener *opener, uint64_t generation);
int ckpt_open_check_scope(
	struct ckpt_core *core, const struct ckpt_marker *marker, struct ckpt_error *err);
void ckpt_open_draw_run(struct ckpt_core *core, char ret_run_id[CKPT_RUN_ID_CHARS]);
void ckpt_open_take_scan(struct ckpt_opener *opener);

#endif
