/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that was picked, on its way into memory: the indexes of all its ranks, and then the shards
 * that hold something of what is wanted, several ranks at a time. What a rank's shard cannot give is had
 * from another that holds the same, in a further round.
 */
#ifndef CKPT_ENGINE_GATHER_H
#define CKPT_ENGINE_GATHER_H

#include "engine/binder.h"
#include "engine/elsewhere.h"
#include "engine/fetch.h"
#include "engine/pick.h"
#include "engine/replicas.h"
#include "engine/shard.h"
#include "engine/spare.h"

/*
 * Ranks under way at once. An index takes its time to be asked for; one shard keeps a disk busy, and
 * more hide what opening and ending takes.
 */
#define CKPT_GATHER_INDEXES 16
#define CKPT_GATHER_SHARDS  4

struct ckpt_gather;

/* One rank under way. */
struct ckpt_gather_way {
	struct ckpt_gather *gather;
	struct ckpt_task task;
	bool busy;
	uint32_t rank;
	int code;
	struct ckpt_shard shard;
	struct ckpt_fetch fetch;
	struct ckpt_error err;
};

struct ckpt_gather {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_pick *pick;
	struct ckpt_error *err;
	atomic_uint_fast64_t *counter; /* bytes verified and let out are added */
	atomic_uint_fast64_t *total;   /* set to the bytes that will be */
	struct ckpt_task *waiter;
	struct ckpt_task *idle; /* woken when no copy into targets is under way any more */

	/* When it has opened. */
	struct ckpt_elsewhere elsewhere;
	struct ckpt_index **indexes; /* of each rank; NULL: it is elsewhere */
	struct ckpt_wholes *wholes;
	struct ckpt_replicas replicas;
	struct ckpt_binder binder;

	/* Its own. */
	int stop;                     /* not 0: every way gives up, with this code */
	struct ckpt_gather_way *ways; /* as long as it goes over the ranks; NULL: it does not */
	unsigned way_count;
	ckpt_task_fn *way_body;
	uint32_t next;               /* rank */
	struct ckpt_targets *wanted; /* of each rank: the binder's, or what was left of them */
	struct ckpt_targets *again;  /* the next round's; NULL: there is none so far */
	bool *lost;                  /* of each rank: its copies are not good; NULL: of none */
	uint64_t sum;                /* bytes of all rounds so far */
	int code; /* of the failure that is told: of several the one of the lowest rank */
	uint32_t code_rank;
	struct ckpt_job job;
	int job_result;
	bool job_done;
};

/* Zeroed, but for what comes before the first blank line. Each is awaited. */

/*
 * Reads all indexes, and puts the tensors together: of the ranks that are here, if there are any
 * (CKPT_EELSEWHERE).
 */
void ckpt_gather_start_open(struct ckpt_gather *gather);
/* Reads what the binder was given. Nothing is bound any more. */
void ckpt_gather_start_fill(struct ckpt_gather *gather);

/* Gives up, with this code, whatever is under way. Any time. */
void ckpt_gather_stop(struct ckpt_gather *gather, int code);
/* Copies into targets that are under way. */
unsigned ckpt_gather_copies(const struct ckpt_gather *gather);

/* After the end, or never started. */
void ckpt_gather_clear(struct ckpt_gather *gather);

#endif
