/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a restore; for the files of restore/ only. */
#ifndef CKPT_ENGINE_RESTORE_RESTORE_STATE_H
#define CKPT_ENGINE_RESTORE_RESTORE_STATE_H

#include <stdatomic.h>
#include "engine/copy/recode.h"
#include "engine/copy/repair.h"
#include "engine/copy/step_copy.h"
#include "engine/core/rankset.h"
#include "engine/lineage/quarantine.h"
#include "engine/lineage/select_step.h"
#include "engine/lineage/step_exists.h"
#include "engine/reshard/shard_location.h"
#include "engine/restore/restore.h"
#include "engine/restore/vote.h"
#include "engine/shard/findings.h"
#include "engine/shard/load.h"
#include "engine/shard/read.h"
#include "engine/shard/shard.h"

/* Posts of user threads; bits of `posted`. */
#define CKPT_POST_OPEN    1u
#define CKPT_POST_START   2u
#define CKPT_POST_CANCEL  4u
#define CKPT_POST_RELEASE 8u

struct ckpt_restorer {
	/* With other ranks, in this session. Counted by user threads: one that lacks memory counts, too. */
	_Atomic uint32_t begun;
	uint64_t repaired_generation; /* of the step that was last repaired; 0: none */
	uint64_t repaired_step;
	bool repairing; /* a restore repairs a step */
	bool recoding; /* a recode is under way: it takes files that are begun for those that a kill left */
};

/* What a restore of all ranks of a job has beside: restore/sync.c. */
struct ckpt_restore_sync {
	uint32_t number;                /* of the restore in this session */
	struct ckpt_exchange_call call; /* about what was chosen */
	struct ckpt_buf words;
	struct ckpt_restore_record chosen; /* generation 0: nothing yet */
	struct ckpt_restore_vote votes[3]; /* by part */
	enum ckpt_restore_part part;       /* the one that is under way */
	bool taken;                        /* the restore's result is the outcome for all */
	struct ckpt_error refused; /* guarded by the restore's lock: the last bind, if it failed */
};

struct ckpt_restore {
	/* Constant. */
	struct ckpt_core *core;
	struct ckpt_engine *owner;
	uint64_t wanted;
	enum ckpt_restore_sink sink;
	bool quick; /* a verification that does not read tensors */
	unsigned forks;
	/* The destination of an export; its label is `dest_label`, NULL: none yet. */
	struct ckpt_core_place dest;
	char *dest_label;
	struct ckpt_rankset dest_ranks; /* only their files are exported */
	bool dest_plain;                /* their shards are decoded */
	struct ckpt_rankset near;       /* ranks of the destination's node; all: unknown */
	uint32_t near_world;            /* of this many ranks */

	/* Shared. */
	atomic_uint owners; /* the user, and the core from the opening until GONE */
	struct ckpt_latch latch;
	struct ckpt_error error; /* written before END is answered, never after */
	atomic_uint_fast64_t chosen_step;
	atomic_uint_fast64_t chosen_generation;
	atomic_uint_fast64_t bytes_done;
	atomic_uint_fast64_t bytes_total;
	pthread_mutex_t lock;
	unsigned posted; /* guarded by lock */
	unsigned on_way; /* posts that the core has not handled yet; guarded by lock */
	bool gone;       /* no more posts are made; guarded by lock */
	/*
	 * For each rank: its index if a user has asked for it and the load has not read it; NULL: none. Guarded by
	 * lock.
	 */
	struct ckpt_index **looked;

	/* For a restore into memory. Its binder belongs to the user from OPENED until the start is posted. */
	struct ckpt_shard_load load;

	/* Owned by the core, from post to GONE. */
	struct ckpt_node open_node;
	struct ckpt_node start_node;
	struct ckpt_node cancel_node;
	struct ckpt_node release_node;
	struct ckpt_restore *next; /* in core->restores */
	struct ckpt_task task;     /* the whole restore: attempts, quarantine, END, release */
	/* One attempt: select, sink, and whether the step still exists. */
	struct ckpt_task trip;
	struct ckpt_task sink_task; /* the sink's work on the selected step */
	bool started;
	bool released;
	bool repaired; /* the step was damaged, and was repaired */
	bool unsure;   /* it was not repaired, but another process may be able to */
	bool ended;
	int stop;   /* not 0: end with this code */
	int result; /* result of the attempt, then of the whole */
	unsigned trips;
	int code; /* first error of the sink */
	uint32_t rank;
	bool rank_bad;         /* there is a finding that the read does not know of */
	struct ckpt_error why; /* errors are set here first */
	struct ckpt_store_op op;
	struct ckpt_select pick;
	struct ckpt_shard shard;
	struct ckpt_shard_read fetch;
	struct ckpt_step_copy step_copy;
	struct ckpt_recode *recode;              /* of sink RECODE; else NULL */
	struct ckpt_shard_location elsewhere;    /* of a verification, an export or a recode */
	struct ckpt_catalog_map_reader *catalog; /* the same; NULL: the manifest names no catalog */
	/* Of a verification: compares an index with the catalog. */
	struct ckpt_job compare_job;
	bool compared;
	struct ckpt_replica_check replicas; /* of a verification: of the ranks so far */
	char differ[256];                   /* written before OPENED or END is answered */
	struct ckpt_step_exists presence;
	struct ckpt_quarantiner quarantiner;
	struct ckpt_task repair;        /* repairs what is damaged here */
	bool mends;                     /* `repair` was started */
	bool for_all;                   /* by the node leaders of all stores; then all ranks vote */
	int repair_code;                /* its result here */
	struct ckpt_error repair_why;   /* error if the manifest could not be read */
	struct ckpt_repairer *repairer; /* NULL: there was nothing to repair */
	int repair_stop; /* not 0: end. -ETIMEDOUT: other ranks wait; else the user cancels */
	struct ckpt_timer repair_limit;
	bool passes_over;                /* nodes were lost, and no store has the step */
	struct ckpt_error elsewhere_why; /* error if the files here could not be listed */
	struct ckpt_findings findings;
	size_t findings_before; /* of a verification: how many there were before the rank's shard ... */
	size_t findings_first; /* ... and after the first file of it; not more: there was one file */
	uint64_t done_before;  /* bytes_done before the file of it that is read */
	bool bad_before;       /* a finding was made before its shard was read */
	struct ckpt_restore_sync *ranks; /* NULL: no other rank takes part */
};

/* restore/fsm.c: handles the posts on the core's thread. */
void ckpt_restore_fsm_open(struct ckpt_node *node);
void ckpt_restore_fsm_start(struct ckpt_node *node);
void ckpt_restore_fsm_cancel(struct ckpt_node *node);
void ckpt_restore_fsm_release(struct ckpt_node *node);
/* Sets a cleared `err` to the reason why it was stopped. */
void ckpt_restore_word_stop(const struct ckpt_restore *restore, struct ckpt_error *err);

/* What is damaged for one rank is damaged for all, and the rank that owns the store acts on it. */
bool ckpt_restore_is_damaged_here(const struct ckpt_restore *restore);
/* Whether this engine acts on damage of this step. */
bool ckpt_restore_is_mine(const struct ckpt_restore *restore);

/* restore/repair.c. Repairs the step if it is damaged and can be repaired, then wakes the whole: await `repair`. */
void ckpt_restore_repair_start(struct ckpt_restore *restore);
/* for_all: reports the result here. Await ckpt_restore_sync_repaired(). */
void ckpt_restore_repair_vote(struct ckpt_restore *restore);
/* Call it after the end and the vote. */
void ckpt_restore_repair_take(struct ckpt_restore *restore);
/* It is still being repaired, or that was cancelled: nothing is decided about the step. */
bool ckpt_restore_repair_is_open(const struct ckpt_restore *restore);

/* The other ranks begin the next restore meanwhile, and do not wait forever: limits the time of `repair`. */
void ckpt_restore_repair_limit(struct ckpt_restore *restore);

/*
 * restore/sync.c. A restore of all ranks of a job: rank 0 picks the step and tells which; the others open that one; it is
 * open when it is on all of them, and has been read when all have read it. All but the first two are of a restore that
 * has `ranks`, on the core's thread.
 */

/* -ENOMEM. NULL is ignored by the other. */
int ckpt_restore_sync_new(struct ckpt_core *core, struct ckpt_restore_sync **ret_ranks);
void ckpt_restore_sync_free(struct ckpt_restore_sync *ranks);

/* The opening begins; on another rank than 0 await the talk then. */
void ckpt_restore_sync_begin(struct ckpt_restore *restore);
/* After that: what is to be picked. 0, or why not. */
int ckpt_restore_sync_heard(struct ckpt_restore *restore);
/* Rank 0: tells what was picked. Await the talk, and take its result with the other one. */
void ckpt_restore_sync_tell(struct ckpt_restore *restore);
int ckpt_restore_sync_told(struct ckpt_restore *restore);
/* The reading begins: it is open on all ranks. */
void ckpt_restore_sync_read(struct ckpt_restore *restore);

/* Says how the part that is under way has ended here: restore->result. */
void ckpt_restore_sync_vote(struct ckpt_restore *restore);
/* The outcome of that part for all ranks; NULL: not known yet. */
const struct ckpt_restore_record *ckpt_restore_sync_outcome(const struct ckpt_restore *restore);
/* It is known, and that part has gone well. */
bool ckpt_restore_sync_passed(const struct ckpt_restore *restore);
/* Makes it the restore's. */
void ckpt_restore_sync_take(struct ckpt_restore *restore);
/*
 * All have restored from nodes with a store each, and one was damaged: mending begins, which all know at about the same
 * time. That is when the deadline of the vote is counted from, however long it takes until this rank votes.
 */
void ckpt_restore_sync_repair(struct ckpt_restore *restore);
/* How mending it has ended here. Once. */
void ckpt_restore_sync_vote_repaired(
	struct ckpt_restore *restore, const struct ckpt_verdict *verdict);
/* After that: how it has ended for all; NULL: not known yet. */
const struct ckpt_restore_record *ckpt_restore_sync_repaired(const struct ckpt_restore *restore);
/* Nothing of it is under way any more. */
bool ckpt_restore_sync_over(const struct ckpt_restore *restore);

/* restore/lost_nodes.c. Some node has no file of the step, and the user has declared that nodes were lost. */
bool ckpt_restore_is_lost(const struct ckpt_restore *restore);
/* Then checks whether the step can be had. Await `repair`; the result is `passes_over`. */
void ckpt_restore_lost_start(struct ckpt_restore *restore);

/* restore/attempt.c. Ends with `result`; wakes the whole. */
void ckpt_restore_attempt_start(struct ckpt_restore *restore);
/* After an attempt: whether the step is gone and another one may be tried. Shut the lock, and reset. */
bool ckpt_restore_attempt_again(const struct ckpt_restore *restore);
void ckpt_restore_attempt_reset(struct ckpt_restore *restore);
/* Checks whether the selected step still exists: await presence.task. */
void ckpt_restore_look(struct ckpt_restore *restore, struct ckpt_task *waiter);

/* restore/sink.c: the bodies of `sink_task`, one for each sink. */
ckpt_task_fn *ckpt_sink_of(enum ckpt_restore_sink sink);
/* Adds `why` to the findings and clears it, unless the restore must end. -ENOMEM. */
int ckpt_sink_note(struct ckpt_restore *restore);

#endif
