/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Staging memory that finds its size: when a save has a larger shard than the pool has slots, the pool grows to hold it,
 * as far as the memory of the machine allows. That goes on behind the save, on workers, and the save takes the new slots
 * as they come. core/pool_allowance.h says how much a rank may have. Where that is too little for the shard, later saves ask
 * again, less and less often; it is said once for each size of the shard. The other ranks of the node are told what this
 * one needs also where it has it already: they may have what it leaves.
 */
#ifndef CKPT_ENGINE_CORE_POOL_GROWTH_H
#define CKPT_ENGINE_CORE_POOL_GROWTH_H

#include "base/task_job.h"
#include "base/timer.h"
#include "staging/pool.h"

struct ckpt_core;

/* Zero is none. */
struct ckpt_pool_growth {
	struct ckpt_core *core;
	struct ckpt_task task;
	struct ckpt_task_job job;
	struct ckpt_env *patient; /* of jobs that wait for GPUs */
	struct ckpt_timer
		timer; /* another rank has the ledger: how often, and whether to look again */
	unsigned tries;
	bool rested;
	bool shrinking; /* memory is given back (core/pool_shrink.h), and none is added */
	size_t wanted; /* blocks, by the save under way, while memory was being given back; 0: none */
	size_t shard;    /* most blocks that a save has asked for */
	unsigned pause;  /* saves from one attempt to the next, */
	unsigned passed; /* and those since the last */
	bool again;      /* this is not the first attempt */
	bool first;      /* this is the first save */
	bool told;       /* that there is too little */
	bool agreed;     /* with the other ranks of the node */
	struct ckpt_error error;

	/* The worker's while the job is under way. Slots: */
	unsigned target;  /* that there will be */
	unsigned touched; /* of them, whose pages are there, */
	unsigned ready;   /* and of these, that may be taken into the pool */
	unsigned part;    /* that are pinned as one */
	unsigned looked;  /* that were touched when the memory was looked at last */
	unsigned allowed; /* this rank's share of the memory */
};

/* Makes core->growth and core->allowance. -ENOMEM. */
int ckpt_pool_growth_open(struct ckpt_core *core);
/* When nothing is under way. What was not opened is not closed. */
void ckpt_pool_growth_close(struct ckpt_core *core);
/* The core's thread: a save has begun that needs so many blocks, for its shard and what that is predicted from. */
void ckpt_pool_growth_want(struct ckpt_core *core, size_t blocks);
/* Likewise: no memory is being given back any more. */
void ckpt_pool_growth_retry(struct ckpt_core *core);
/* Something of it is under way, or memory is given back. It stops when the core is closing, and wakes the closer. */
bool ckpt_pool_growth_active(const struct ckpt_core *core);

#endif
