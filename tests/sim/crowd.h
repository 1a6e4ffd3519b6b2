/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs of several ranks on one store that they share, or on one for each of their nodes: real cores, one for
 * each rank, in the simulated world's parts. Starts of the job follow one another, and now and then the last
 * one is still there when the next begins. What must hold: one outcome of a step for all ranks, and what
 * anybody was told is durable is found by whoever comes after, whole.
 */
#ifndef CROWD_H
#define CROWD_H

#include "crowd_board.h"
#include "crowd_exchange.h"
#include "crowd_nodes.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/open.h"
#include "engine/restore/restore_state.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "engine/save/save_state.h"
#include "sim_device.h"
#include "sim_disk.h"
#include "sim_io.h"
#include "sim_memory.h"
#include "sim_state.h"

#define CROWD_RANKS   16
#define CROWD_STARTS  3 /* of the job at once: the newest, and what is left of those before */
#define CROWD_MEMBERS (CROWD_RANKS * CROWD_STARTS)
#define CROWD_RECORDS 1024
#define CROWD_ROUNDS  4 /* restores of a start, each of an older step */

/* What one rank was told of its save. */
enum crowd_told { CROWD_NOTHING, CROWD_DURABLE, CROWD_FAILED, CROWD_UNKNOWN };

struct crowd_record {
	uint64_t generation;
	uint64_t step;
	uint64_t begun_at; /* crowd time */
	unsigned ranks;    /* that have begun it */
	uint64_t acked_at; /* crowd time at which the first rank was told; 0: none was */
	uint64_t known_ns; /* when the first rank was told how it ended, for sure; 0: none was */
	uint64_t versions[CROWD_RANKS];
	enum crowd_told told[CROWD_RANKS];
	bool passed[CROWD_RANKS]; /* its gate, if it had one */
	bool blurred;             /* damaged in the eyes of somebody */
	bool odd;   /* a rank holds other bytes than the rest of what all should have alike */
	bool blind; /* somebody had no memory to digest that */
};

/* One restore of all ranks of a job. */
struct crowd_round {
	uint64_t view; /* crowd time at which rank 0 began to look */
	unsigned well; /* ranks that have restored, or heard that there is nothing */
	unsigned failed;
	uint64_t generation;
	uint64_t step;
};

/* One start of the job. */
struct crowd_job {
	bool used;
	unsigned number;
	bool careful;        /* nothing goes wrong any more: all must go well */
	uint64_t generation; /* what rank 0 has restored */
	uint64_t step;       /* generation 0: from the start */
	uint64_t view;       /* crowd time at which rank 0 began to look */
	struct crowd_round rounds[CROWD_ROUNDS];
	uint32_t blind_rank; /* who sees damage, in which round */
	unsigned blind_round;
	bool blind_index; /* of an index; else of a shard */
	bool blinded;
	bool turned;             /* somebody has given up a restore, or never begun it */
	bool absent;             /* ... never begun it */
	bool reused;             /* its session is an earlier start's */
	uint64_t bad_generation; /* all were told that this step is damaged */
	uint64_t bad_step;
	unsigned saves;
	bool ending; /* the launcher has seen one of them end */
};

struct crowd;

struct crowd_member {
	struct crowd *crowd;
	struct crowd_job *job;
	uint32_t rank;
	unsigned id;
	struct ckpt_inbox inbox;
	struct sim_env env;
	struct sim_io *io;
	struct sim_device device;
	struct ckpt_pool *pool;
	struct ckpt_core core;
	uint64_t deadline_ns; /* the core's next */
	bool kicked;          /* something has come that is no message */
	bool frozen;
	uint64_t thaw_ns;

	/* Its program. */
	struct ckpt_sched sched;
	struct ckpt_task life;
	uint64_t wake_ns;
	uint64_t late_ns; /* what it waits for must have come by then */
	const char *waits;
	bool poked;
	bool closed;
	bool left_behind;
	bool leaves; /* the training: nobody waits for it any more */
	int failure;
	unsigned saved;
	uint64_t step;
	struct sim_state live;
	struct ckpt_plan *cache;
	struct ckpt_command *command;
	struct ckpt_closer closer;
	struct ckpt_save *save;
	bool fenced;
	bool astray;                 /* it goes on from another step than the others */
	struct crowd_record *record; /* of the save */
	uint64_t begun_ns;           /* when it began */
	struct ckpt_restore *restore;
	unsigned round;
	uint32_t reads; /* whose tensors */
	bool refuses;   /* it asks for what is not there */
	bool again;
	uint64_t chosen_generation; /* what it has restored; 0: there is nothing */
	uint64_t chosen_step;
	struct sim_shape shape; /* of what it saves */
	struct sim_shape reads_shape;
	struct sim_state into;
};

struct crowd {
	struct sim sim;
	unsigned world;  /* ranks */
	unsigned starts; /* of the job that are still to come */
	unsigned jobs;   /* so far */
	uint64_t spawn_ns;
	uint32_t timeout_ms;
	uint64_t keep_last;
	/*
	 * Steps that a rank may be ahead of the slowest one. Gradients are reduced at every step, so no
	 * device ends a step that another has not begun; but a host goes ahead of its device by as many steps
	 * as it may enqueue, and it is hosts that save.
	 */
	unsigned lead;
	bool apart;   /* every rank on a machine of its own */
	bool many;    /* readers go by the catalog, however few ranks have written a step */
	bool large;   /* indexes are more than rank 0 holds at once, however short they are */
	bool sharing; /* ranks of one node read through its page cache what several of them want */
	bool overlap; /* a start may come before the last one is gone */
	bool skips;   /* policy CKPT_BUSY_SKIP */
	bool deadly;  /* rank 0 dies while it publishes, and the launcher is long about it */
	bool healed;
	bool brittle;   /* nodes go down while a step is being decided */
	unsigned nodes; /* with a store each; 0: one that all share */
	unsigned stores;
	struct crowd_place places[CROWD_NODES]; /* as many as there are stores */
	struct crowd_board *boards;             /* of nodes: where their ranks talk */
	struct sim_shape shapes[SIM_SHAPES];
	struct crowd_job job[CROWD_STARTS];
	struct crowd_member *members[CROWD_MEMBERS];
	unsigned next_id;
	unsigned turns;
	struct crowd_record records[CROWD_RECORDS];
	size_t record_count;
	uint64_t time;
	uint64_t claimed_at[64]; /* by generation: when somebody was told of it first; 0: nobody */
	uint64_t parents[64];    /* by generation: what it goes on from; 0: nothing */
	uint64_t parent_steps[64];
	uint64_t durable;   /* saves that some rank was told of, counted once for a step */
	uint64_t not_saved; /* answers to ranks */
	uint64_t restored;  /* by a rank each */
	uint64_t went_back;
	struct crowd_weather weather; /* of the exchange */
	unsigned storms;              /* how often that changes, in chances per 10,000 and event */
	bool stormed;                 /* it was dead or silent for a while */
	uint64_t strays;
};

/* crowd_life.c: what a rank's program does. */
void crowd_life_start(struct crowd_member *member);
/* Whoever waits for others of its job looks again. */
void crowd_stir(struct crowd_job *job, struct crowd *crowd);
/* A rank that holds something else at its step than the others do of what all should have alike. */
bool crowd_is_odd(const struct crowd_member *member);
/* After every step of the core: what it was told, at the moment at which it was. */
void crowd_observe(struct crowd_member *member);

/* Bodies of a program: from where it goes on, and the end. */
ckpt_task_fn crowd_chosen_body;
ckpt_task_fn crowd_close_body;

/* crowd_resume.c: getting back what was saved; goes on with one of those. */
ckpt_task_fn crowd_resume_body;
/* The tensors of a rank: each has names of its own. */
void crowd_shape(struct crowd_member *member, uint32_t rank, struct sim_shape *ret_shape);
/* After every step of the core: the damage that it alone sees. */
void crowd_blind(struct crowd_member *member);

/* crowd_stores.c: what must hold of each store, and between them. */

/* The manifest of a step in a store; NULL: there is none. */
const struct sim_inode *crowd_manifest(
	struct crowd *crowd, unsigned store, const struct crowd_record *r);
bool crowd_is_abort(const struct sim_inode *manifest);
/* The index of a rank, as the manifest in its store names it; NULL: there is none. */
const struct sim_inode *crowd_index(
	struct crowd *crowd, const struct crowd_record *r, uint32_t rank);
/* It has just been told that its save is durable. */
void crowd_check_own(const struct crowd_member *member);
/* The power of the node was cut: what its ranks were told is durable is there. */
void crowd_check_left(struct crowd *crowd, unsigned store);
/* There is one claim of a number, and one outcome of a step, whatever store is asked. */
void crowd_check_alike(struct crowd *crowd);
/* All stores have been opened since somebody was told that it is durable. */
void crowd_check_imported(struct crowd *crowd, const struct crowd_record *r);
/* A store has removed it, as it may. */
bool crowd_is_let_go(struct crowd *crowd, const struct crowd_record *r);
/* Its node leader has nothing left to do. */
void crowd_check_kept(const struct crowd_member *member);

/* crowd_truth.c: what must hold. */
struct crowd_record *crowd_record(struct crowd *crowd, uint64_t generation, uint64_t step);
void crowd_began(struct crowd_member *member, uint64_t version);
/* It will not even begin `step`. */
void crowd_refused(struct crowd_member *member, uint64_t step, int code, const char *text);
/* Is it told soon what another one knows? */
void crowd_hurry(const struct crowd_member *member);
void crowd_told(struct crowd_member *member, enum crowd_told told, int code, const char *text);
void crowd_claimed(struct crowd_member *member);
/* Rank 0 has chosen job->step, and `scan` is what it finds in the store. */
void crowd_chose(struct crowd_member *member, struct ckpt_scan *scan);
/* It has restored that step; generation 0: it has heard that there is none. */
void crowd_restored(struct crowd_member *member, uint64_t generation, uint64_t step);
void crowd_not_restored(struct crowd_member *member, int code, const char *message);
/* Something took its time: storage, a worker, the exchange, a whole process. */
bool crowd_hung(const struct crowd *crowd);
/* The gate of its save is open. */
void crowd_passed(struct crowd_member *member);
/* Did it have a reason to fail so? If not, that is a violation. */
void crowd_judge(struct crowd_member *member, const char *what, int code, const char *message);

#endif
