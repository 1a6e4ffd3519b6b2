/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the stores of a job's nodes together, in one round (ranks/round.h). Each rank puts what its node's store holds
 * at its newest end, or why it cannot be opened. Rank 0 decides for all: which run it is, the newest claim, and what a
 * store lacks that another one has. A commit that some nodes have and others do not is one whose end the others did not
 * live to see: they have their parts of it, so its manifest is brought to them, and claims likewise. Whatever is older
 * than the newest that a store has was removed there, and is not brought.
 */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_SYNC_H
#define CKPT_ENGINE_LINEAGE_OPEN_SYNC_H

#include "engine/lineage/opener.h"

/* Begins; the result of a body of opener->work. */
int ckpt_open_sync_start(struct ckpt_opener *opener);
/* After opener->work: tells the others of its failure, if there is one that they wait for. Wakes the command's task. */
void ckpt_open_sync_end(struct ckpt_opener *opener);
/* After that: nothing is under way any more. */
bool ckpt_open_sync_over(const struct ckpt_opener *opener);
/* NULL is ignored. */
void ckpt_open_sync_free(struct ckpt_open_sync *nodes);

#endif
