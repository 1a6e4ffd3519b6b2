/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that was picked, on its way into memory: the indexes of all its ranks, and then the shards
 * that hold something of what is wanted, several ranks at a time. What a rank's shard cannot give is had
 * from another that holds the same, in a further round.
 *
 * Of very many ranks the indexes are too much to read: their catalog says which are needed, once it is known what
 * is wanted. Where there is none, or it is not good, or what it led to, all are read.
 */
#ifndef CKPT_ENGINE_GATHER_H
#define CKPT_ENGINE_GATHER_H

#include "base/task_job.h"
#include "engine/asked.h"
#include "engine/binder.h"
#include "engine/elsewhere.h"
#include "engine/fetch.h"
#include "engine/holders_read.h"
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
/*
 * So many ranks are very many. With fewer their indexes take a fraction of a second, and show at once what is
 * missing or damaged, and whether ranks hold different bytes of one thing.
 */
#define CKPT_GATHER_MANY    32

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
	bool commits; /* of a save: who holds what others hold, and what cannot be compared, is asked, too */

	/* When it has opened. */
	struct ckpt_elsewhere elsewhere;
	const struct ckpt_layout *names; /* of the tensors as wholes */
	struct ckpt_holders *holders;    /* NULL: all indexes were read */
	struct ckpt_index *
		*indexes; /* of each rank; NULL: it is elsewhere, or was not needed so far */
	struct ckpt_wholes *wholes;    /* of these; with holders NULL until it fills */
	struct ckpt_replicas replicas; /* without holders: of all that were read */
	struct ckpt_binder binder;

	/* Its own. */
	int stop;                /* not 0: every way gives up, with this code */
	bool halted;             /* by somebody else */
	struct ckpt_asked asked; /* with holders: what was bound, until its place is known */
	bool wide;               /* with holders: all indexes are read after all */
	struct ckpt_holders_reader *reader; /* NULL: no catalog was read */
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
	struct ckpt_task_job job;
};

/* Zeroed, but for what comes before the first blank line. Each is awaited. */

/*
 * Reads all indexes, and puts the tensors together: of the ranks that are here, if there are any
 * (CKPT_EOTHERNODE).
 */
/* Who is on which node; NULL: the nodes share one store, and so what they save under one name is one thing. */
const struct ckpt_manifest_rank *ckpt_gather_nodes(
	const struct ckpt_core *core, const struct ckpt_pick *pick);

void ckpt_gather_start_open(struct ckpt_gather *gather);
/* A user's thread, when it has opened, and before it fills: see ckpt_binder_add(). */
int ckpt_gather_bind(struct ckpt_gather *gather, const struct ckpt_target *targets, size_t count,
	struct ckpt_error *err);
/* Reads what was bound. Nothing is bound any more. */
void ckpt_gather_start_fill(struct ckpt_gather *gather);

/* Gives up, with this code, whatever is under way. Any time. */
void ckpt_gather_stop(struct ckpt_gather *gather, int code);
/* Copies into targets that are under way. */
unsigned ckpt_gather_copies(const struct ckpt_gather *gather);

/* After the end, or never started. */
void ckpt_gather_clear(struct ckpt_gather *gather);

/* gather.c and gather_narrow.c only. */

/* Goes over the ranks that are due with `body`; 0, or it is over. Then await ckpt_gather_pump(). */
int ckpt_gather_start_indexes(struct ckpt_gather *gather);
bool ckpt_gather_pump(struct ckpt_gather *gather);
/* What all have come to. */
int ckpt_gather_end_ways(struct ckpt_gather *gather);
/* That of a shard which another rank may have the same of. */
bool ckpt_gather_is_bad_copy(int code);
/* Forgets how far it has filled. */
void ckpt_gather_reset(struct ckpt_gather *gather);
/* Bodies: all indexes, and what is opened is open; what is bound is read. */
int ckpt_gather_open_all_body(struct ckpt_task *task);
int ckpt_gather_read_body(struct ckpt_task *task);

/* Whether there is a catalog that is to be opened, and its body. */
bool ckpt_gather_is_narrow(const struct ckpt_gather *gather);
int ckpt_gather_open_narrow_body(struct ckpt_task *task);
/* With holders: keeps targets that were checked, until their places are known. All or none. -ENOMEM. */
int ckpt_gather_ask(struct ckpt_gather *gather, const struct ckpt_target *targets, size_t count,
	struct ckpt_error *err);
/* Body, with holders: the indexes that are needed, and then as read_body. */
int ckpt_gather_narrow_body(struct ckpt_task *task);
/* Whether there are holders, and all indexes may lead further than they have. */
bool ckpt_gather_may_widen(const struct ckpt_gather *gather);
void ckpt_gather_widen(struct ckpt_gather *gather);

#endif
