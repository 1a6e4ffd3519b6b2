/* SPDX-License-Identifier: Apache-2.0 */
/* What a restore consists of; for the files of restore/ only. */
#ifndef CKPT_ENGINE_RESTORE_RESTORE_STATE_H
#define CKPT_ENGINE_RESTORE_RESTORE_STATE_H

#include <stdatomic.h>
#include "engine/copy/repair.h"
#include "engine/copy/step_copy.h"
#include "engine/core/rankset.h"
#include "engine/lineage/quarantine.h"
#include "engine/lineage/select_step.h"
#include "engine/lineage/step_exists.h"
#include "engine/reshard/shard_location.h"
#include "engine/restore/restore.h"
#include "engine/restore/sync.h"
#include "engine/shard/findings.h"
#include "engine/shard/load.h"
#include "engine/shard/read.h"
#include "engine/shard/shard.h"

/* What a user's thread may post; bits of `posted`. */
#define CKPT_POST_OPEN    1u
#define CKPT_POST_START   2u
#define CKPT_POST_CANCEL  4u
#define CKPT_POST_RELEASE 8u

struct ckpt_restore {
	/* Set when it is made. */
	struct ckpt_core *core;
	struct ckpt_engine *owner;
	uint64_t wanted;
	enum ckpt_restore_sink sink;
	bool quick; /* a verification that reads no chunk of a tensor */
	unsigned forks;
	/* Where an export goes; its label is `dest_label`, NULL: nowhere yet. */
	struct ckpt_core_place dest;
	char *dest_label;
	struct ckpt_rankset dest_ranks; /* the files of which go there */
	struct ckpt_rankset near;       /* ranks of the node whose store that is; all: not known */
	uint32_t near_world;            /* of how many */

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
	unsigned on_way; /* guarded by lock: posts that the core has not run yet */
	bool gone;       /* guarded by lock: nothing is posted any more */
	/* Guarded by lock: of each rank that was asked for, where the load has not read it; NULL: of none. */
	struct ckpt_index **looked;

	/* Of a restore into memory. Its binder is the user's from OPENED until the start is posted. */
	struct ckpt_shard_load load;

	/* The core's, from post to GONE. */
	struct ckpt_node open_node;
	struct ckpt_node start_node;
	struct ckpt_node cancel_node;
	struct ckpt_node release_node;
	struct ckpt_restore *next;  /* in core->restores */
	struct ckpt_task task;      /* the whole: attempts, quarantine, END, release */
	struct ckpt_task trip;      /* an attempt: select, sink, and whether it is still there */
	struct ckpt_task sink_task; /* what the sink asks for, with the step that was picked */
	bool started;
	bool released;
	bool repaired; /* the step, after it was found damaged */
	bool unsure;   /* it was not, and somebody else may be able to */
	bool ended;
	int stop;   /* not 0: give up, with this code */
	int result; /* of the attempt, and then of the whole */
	unsigned trips;
	int code; /* of the sink, so far */
	uint32_t rank;
	bool rank_bad;         /* a finding was made that the read does not know of */
	struct ckpt_error why; /* failures are worded here first */
	struct ckpt_store_op op;
	struct ckpt_select pick;
	struct ckpt_shard shard;
	struct ckpt_shard_read fetch;
	struct ckpt_step_copy step_copy;
	struct ckpt_shard_location elsewhere;    /* of a verification or an export */
	struct ckpt_catalog_map_reader *catalog; /* the same; NULL: the manifest names none */
	struct ckpt_job compare_job;             /* of a verification: an index with the catalog */
	bool compared;
	struct ckpt_replica_check replicas; /* of a verification: of the ranks so far */
	char differ[256];                   /* written before OPENED or END is answered */
	struct ckpt_step_exists presence;
	struct ckpt_quarantiner quarantiner;
	struct ckpt_task repair;        /* what is damaged here is repaired */
	bool mends;                     /* it was begun */
	bool for_all;                   /* by the node leaders of all stores; then all ranks vote */
	int repair_code;                /* how it has ended here */
	struct ckpt_error repair_why;   /* if the manifest was not to be had */
	struct ckpt_repairer *repairer; /* NULL: nothing was to be repaired */
	int repair_stop; /* not 0: it gives up. -ETIMEDOUT: other ranks wait; else whoever has the restore does */
	struct ckpt_timer repair_limit;
	bool passes_over;                /* nodes were lost, and nobody has the step */
	struct ckpt_error elsewhere_why; /* if what is here could not be listed for that */
	struct ckpt_findings findings;
	size_t findings_before; /* of a verification: how many there were before the rank's shard ... */
	size_t findings_first; /* ... and after the first file of it; not more: there was one file */
	uint64_t done_before;  /* bytes_done before the file of it that is read */
	bool bad_before;       /* a finding was made before its shard was read */
	struct ckpt_restore_sync *ranks; /* NULL: no other rank has to do with it */
};

/* restore/fsm.c: what the posts do on the core's thread. */
void ckpt_restore_fsm_open(struct ckpt_node *node);
void ckpt_restore_fsm_start(struct ckpt_node *node);
void ckpt_restore_fsm_cancel(struct ckpt_node *node);
void ckpt_restore_fsm_release(struct ckpt_node *node);
/* Why it was stopped, into a clear `err`. */
void ckpt_restore_word_stop(const struct ckpt_restore *restore, struct ckpt_error *err);

/* What is damaged for one rank is damaged for all, and the one that owns the store acts on it. */
bool ckpt_restore_is_damaged_here(const struct ckpt_restore *restore);
/* What is found of this step is this engine's to act on. */
bool ckpt_restore_is_mine(const struct ckpt_restore *restore);

/* restore/repair.c. Repairs the step, if it is damaged and can be repaired. Wakes the whole then: await `repair`. */
void ckpt_restore_repair_start(struct ckpt_restore *restore);
/* for_all: says how it has ended here. Await ckpt_restore_sync_repaired(). */
void ckpt_restore_repair_vote(struct ckpt_restore *restore);
/* After the end, and the vote. */
void ckpt_restore_repair_take(struct ckpt_restore *restore);
/* It is still being repaired, or that was given up: nothing is settled about the step. */
bool ckpt_restore_repair_is_open(const struct ckpt_restore *restore);

/* The other ranks begin the next restore meanwhile, and do not wait for ever: sets a limit to what `repair` does. */
void ckpt_restore_repair_limit(struct ckpt_restore *restore);

/* restore/lost_nodes.c. Some node has no file of the step, and the user has said that nodes were lost. */
bool ckpt_restore_is_lost(const struct ckpt_restore *restore);
/* Then: whether the step is to be had. Await `repair`; then `passes_over` says. */
void ckpt_restore_lost_start(struct ckpt_restore *restore);

/* restore/attempt.c. Ends with `result`; wakes the whole. */
void ckpt_restore_attempt_start(struct ckpt_restore *restore);
/* After it: the step is gone, and the next one may be tried. Shut the lock, and reset. */
bool ckpt_restore_attempt_again(const struct ckpt_restore *restore);
void ckpt_restore_attempt_reset(struct ckpt_restore *restore);
/* Whether the step that was picked is still there: await presence.task. */
void ckpt_restore_look(struct ckpt_restore *restore, struct ckpt_task *waiter);

/* restore/sink.c: the bodies of `sink_task`, one for each sink. */
ckpt_task_fn *ckpt_sink_of(enum ckpt_restore_sink sink);
/* Makes a finding of what `why` says, and empties it; not when it is to give up. -ENOMEM. */
int ckpt_sink_note(struct ckpt_restore *restore);

#endif
