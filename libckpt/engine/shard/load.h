/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that was picked, on its way into memory: the indexes of all its ranks, and then the shards
 * that hold something of what is wanted, several ranks at a time. What a rank's shard cannot give is had
 * from another that holds the same, in a further round.
 *
 * Of very many ranks the indexes are too much to read: their catalog says which are needed, once it is known what
 * is wanted. Where there is none, or it is not good, or what it led to, all are read.
 */
#ifndef CKPT_ENGINE_SHARD_LOAD_H
#define CKPT_ENGINE_SHARD_LOAD_H

#include "base/task_job.h"
#include "engine/lineage/select_step.h"
#include "engine/reshard/catalog_map_reader.h"
#include "engine/reshard/fallback.h"
#include "engine/reshard/pending_targets.h"
#include "engine/reshard/replica_check.h"
#include "engine/reshard/shard_location.h"
#include "engine/reshard/target_binder.h"
#include "engine/shard/read.h"
#include "engine/shard/shard.h"

/*
 * Ranks under way at once. An index takes its time to be asked for; one shard keeps a disk busy, and
 * more hide what opening and ending takes.
 */
#define CKPT_SHARD_LOAD_INDEXES 16
#define CKPT_SHARD_LOAD_SHARDS  4
/*
 * So many ranks are very many. With fewer their indexes take a fraction of a second, and show at once what is
 * missing or damaged, and whether ranks hold different bytes of one thing.
 */
#define CKPT_SHARD_LOAD_MANY    32

struct ckpt_shard_load;

/* One rank under way. */
struct ckpt_shard_load_way {
	struct ckpt_shard_load *load;
	struct ckpt_task task;
	bool busy;
	uint32_t rank;
	int code;
	struct ckpt_shard shard;
	struct ckpt_shard_read fetch;
	struct ckpt_error err;
};

struct ckpt_shard_load {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	const struct ckpt_select *pick;
	struct ckpt_error *err;
	atomic_uint_fast64_t *counter; /* bytes verified and let out are added */
	atomic_uint_fast64_t *total;   /* set to the bytes that will be */
	struct ckpt_task *waiter;
	struct ckpt_task *idle; /* woken when no copy into targets is under way any more */
	bool commits; /* of a save: who holds what others hold, and what cannot be compared, is asked, too */

	/* When it has opened. */
	struct ckpt_shard_location elsewhere;
	const struct ckpt_layout *names;      /* of the tensors as wholes */
	struct ckpt_catalog_map *catalog_map; /* NULL: all indexes were read */
	struct ckpt_index *
		*indexes; /* of each rank; NULL: it is elsewhere, or was not needed so far */
	struct ckpt_tensor_map *tensor_map; /* of these; with holders NULL until it fills */
	struct ckpt_replica_check replicas; /* without holders: of all that were read */
	struct ckpt_target_binder binder;

	/* Its own. */
	int stop;    /* not 0: every way gives up, with this code */
	bool halted; /* by somebody else */
	struct ckpt_pending_targets
		asked; /* with holders: what was bound, until its place is known */
	bool wide;     /* with holders: all indexes are read after all */
	struct ckpt_catalog_map_reader *reader; /* NULL: no catalog was read */
	struct ckpt_shard_load_way *ways; /* as long as it goes over the ranks; NULL: it does not */
	unsigned way_count;
	ckpt_task_fn *way_body;
	uint32_t next;               /* rank */
	struct ckpt_targets *wanted; /* of each rank: the binder's, or what was left of them */
	struct ckpt_targets *again;  /* the next round's; NULL: there is none so far */
	bool recount;                /* some of a shard was read twice, of two files */
	bool *lost;                  /* of each rank: its copies are not good; NULL: of none */
	uint64_t sum; /* bytes of all rounds so far, and of files that were no good */
	int code;     /* of the failure that is told: of several the one of the lowest rank */
	uint32_t code_rank;
	struct ckpt_task_job job;
};

/* Zeroed, but for what comes before the first blank line. Each is awaited. */

/*
 * Reads all indexes, and puts the tensors together: of the ranks that are here, if there are any
 * (CKPT_EOTHERNODE).
 */
/* Who is on which node; NULL: the nodes share one store, and so what they save under one name is one thing. */
const struct ckpt_manifest_rank *ckpt_shard_load_nodes(
	const struct ckpt_core *core, const struct ckpt_select *pick);

void ckpt_shard_load_start_open(struct ckpt_shard_load *load);
/* A user's thread, when it has opened, and before it fills: see ckpt_target_binder_add(). */
int ckpt_shard_load_bind(struct ckpt_shard_load *load, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err);
/* Reads what was bound. Nothing is bound any more. */
void ckpt_shard_load_start_fill(struct ckpt_shard_load *load);

/* Gives up, with this code, whatever is under way. Any time. */
void ckpt_shard_load_stop(struct ckpt_shard_load *load, int code);
/* Copies into targets that are under way. */
unsigned ckpt_shard_load_copies(const struct ckpt_shard_load *load);

/* After the end, or never started. */
void ckpt_shard_load_clear(struct ckpt_shard_load *load);

/* shard/load.c and shard/load_by_catalog.c only. */

/* Goes over the ranks that are due with `body`; 0, or it is over. Then await ckpt_shard_load_pump(). */
int ckpt_shard_load_start_indexes(struct ckpt_shard_load *load);
bool ckpt_shard_load_pump(struct ckpt_shard_load *load);
/* What all have come to. */
int ckpt_shard_load_end_ways(struct ckpt_shard_load *load);
/* Forgets how far it has filled. */
void ckpt_shard_load_reset(struct ckpt_shard_load *load);
/* Bodies: all indexes, and what is opened is open; what is bound is read. */
int ckpt_shard_load_open_all_body(struct ckpt_task *task);
int ckpt_shard_load_read_body(struct ckpt_task *task);

/* Whether there is a catalog that is to be opened, and its body. */
bool ckpt_shard_load_is_narrow(const struct ckpt_shard_load *load);
int ckpt_shard_load_open_narrow_body(struct ckpt_task *task);
/* With holders: keeps targets that were checked, until their places are known. All or none. -ENOMEM. */
int ckpt_shard_load_ask(struct ckpt_shard_load *load, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err);
/* Body, with holders: the indexes that are needed, and then as read_body. */
int ckpt_shard_load_narrow_body(struct ckpt_task *task);
/* Whether there are holders, and all indexes may lead further than they have. */
bool ckpt_shard_load_may_widen(const struct ckpt_shard_load *load);
void ckpt_shard_load_widen(struct ckpt_shard_load *load);

#endif
