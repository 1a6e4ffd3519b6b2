/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting a step back: restoring it into memory, verifying it, exporting it into another store. One
 * machine with three sinks:
 *
 *	scan -> choose -> manifest -> shared lock on it -> indexes -> (bind) -> read -> digest -> sink
 */
#ifndef CKPT_ENGINE_RESTORE_RESTORE_H
#define CKPT_ENGINE_RESTORE_RESTORE_H

#include <ckpt/restore.h>
#include "engine/core/core.h"
#include "engine/reshard/blocks.h"
#include "format/index.h"

enum ckpt_restore_sink {
	CKPT_SINK_MEMORY = 1, /* bound targets */
	CKPT_SINK_NONE,       /* verify: all findings are kept */
	CKPT_SINK_STORE,      /* export */
};

struct ckpt_restore;

/*
 * Made by a user's thread, then posted. `owner` is kept for whoever asks. The latch answers OPENED when the
 * step is open and waits for its targets; END once the outcome is known, be it that the opening failed; GONE
 * when the core has let go, after the release.
 */
int ckpt_restore_new(struct ckpt_core *core, struct ckpt_engine *owner, uint64_t step,
	enum ckpt_restore_sink sink, struct ckpt_restore **ret_restore);
/*
 * Sink STORE, before post_open: where to. The descriptor becomes the restore's, which closes it; on failure it stays
 * the caller's. The bucket is the engine's. The label is copied. -ENOMEM.
 */
int ckpt_restore_set_dest(struct ckpt_restore *restore, const struct ckpt_core_place *place);
/* Sink STORE, before post_open: the files of these ranks only, of which there is one at least. -ENOMEM. */
int ckpt_restore_set_dest_ranks(struct ckpt_restore *restore, const uint32_t *ranks, size_t count);

/* Of a job of `world` ranks those on one node, which have a store of their own. */
struct ckpt_restore_near {
	const uint32_t *ranks; /* each less than world */
	size_t count;          /* 0: not known */
	uint32_t world;
};

/*
 * Sink STORE, before post_open: it goes into the store of that node. Only the files of these ranks do, if the step was
 * saved by as many ranks into stores of nodes, and these had stores that no other ranks had. Else all files do. -ENOMEM.
 */
int ckpt_restore_set_near(struct ckpt_restore *restore, const struct ckpt_restore_near *near);

/* Sink NONE, before post_open: without what is in the tensors. */
void ckpt_restore_set_quick(struct ckpt_restore *restore);

#define CKPT_DONE_OPENED 32u /* restore: manifest and index are there, targets may be bound */

/*
 * Any thread; each works once, and does nothing after GONE: the core may be gone, too. Verify and
 * export are started together with their opening.
 */
void ckpt_restore_post_open(struct ckpt_restore *restore);
void ckpt_restore_post_start(struct ckpt_restore *restore);
void ckpt_restore_post_cancel(struct ckpt_restore *restore);
/* Cancels what still runs and lets go: closes the lock on the step. After it, wait for GONE and free. */
void ckpt_restore_post_release(struct ckpt_restore *restore);
/*
 * Never posted, or after the release was posted and, if there are targets, END: it goes when the core
 * has let go of it, too, so that storage that hangs holds nobody for ever. NULL is ignored.
 */
void ckpt_restore_unref(struct ckpt_restore *restore);

/*
 * The core's thread, when the engine closes: every restore ends with CKPT_ECLOSED, unless it has ended,
 * and is released. core->restores is empty once all are gone.
 */
void ckpt_restore_stop_all(struct ckpt_core *core);

struct ckpt_engine *ckpt_restore_owner(const struct ckpt_restore *restore);
/* This process is a child of the one that made it. */
bool ckpt_restore_forked(const struct ckpt_restore *restore);
struct ckpt_latch *ckpt_restore_latch(struct ckpt_restore *restore);
const struct ckpt_error *ckpt_restore_failure(const struct ckpt_restore *restore); /* after END */
/* How many ranks wrote the step. After OPENED; 0 without, and of a verification or an export. */
uint32_t ckpt_restore_rank_count(const struct ckpt_restore *restore);
/*
 * What the step's ranks differed in though it was committed, by its manifest or by the digests in its indexes; "":
 * nothing that is known, or it is not open yet.
 */
const char *ckpt_restore_differ(const struct ckpt_restore *restore);
/* The lowest of them that is not elsewhere. */
uint32_t ckpt_restore_first_rank(const struct ckpt_restore *restore);
/* The index of one of them; NULL: it is elsewhere, or was not read so far. */
const struct ckpt_index *ckpt_restore_rank_index(const struct ckpt_restore *restore, uint32_t rank);
/* That of the lowest that is not elsewhere; NULL before OPENED, and of a verification or an export. */
const struct ckpt_index *ckpt_restore_index(const struct ckpt_restore *restore);
/* A user's thread, whose index it was: it has been read for one that was asked for. -ENOMEM. */
int ckpt_restore_put_index(struct ckpt_restore *restore, uint32_t rank, struct ckpt_index *index);
/* Whoever goes on using it without being its user; it goes with ckpt_restore_unref(). */
struct ckpt_restore *ckpt_restore_ref(struct ckpt_restore *restore);
/* CKPT_EOTHERNODE, worded into `err`, if the files of one of them are in the store of another node; else 0. */
int ckpt_restore_rank_other_node(
	const struct ckpt_restore *restore, uint32_t rank, struct ckpt_error *err);
/* The node that one of them has written on. */
const char *ckpt_restore_rank_node_name(const struct ckpt_restore *restore, uint32_t rank);
/* What was chosen; 0 as long as nothing is. Any thread. */
uint64_t ckpt_restore_chosen_step(const struct ckpt_restore *restore);
uint64_t ckpt_restore_chosen_generation(const struct ckpt_restore *restore);
/* The number that it has on all ranks; 0: of this one alone. */
uint32_t ckpt_restore_shared_number(const struct ckpt_restore *restore);
/* Bytes verified and let out so far, and in all. Any thread; either pointer may be NULL. */
void ckpt_restore_counters(
	const struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total);

/* The tensors of the step, as wholes: in the order of a shard, then the aliases. After OPENED. */
size_t ckpt_restore_name_count(const struct ckpt_restore *restore);
/* Fills everything but `size`. -ERANGE past the last. */
int ckpt_restore_name(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info);
/*
 * The number of a name. CKPT_EMISMATCH, worded into `err`, if the step does not hold it; CKPT_EOTHERNODE if none
 * of the ranks that are here does, and others are elsewhere.
 */
int ckpt_restore_name_find(const struct ckpt_restore *restore, const char *name,
	struct ckpt_error *err, size_t *ret_index);

/* Checks and adds targets; user's thread, between OPENED and post_start. Words into `err`. */
int ckpt_restore_add_targets(struct ckpt_restore *restore, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err);

/* Whether it may have targets: it restores into memory. */
bool ckpt_restore_has_targets(const struct ckpt_restore *restore);

/* No other rank has a say in it, or all have said that they have restored it. */
bool ckpt_restore_agreed(const struct ckpt_restore *restore);

/* An export that is over: the destination had the step already. */
bool ckpt_restore_existed(const struct ckpt_restore *restore);

/* Findings of a verification: by rank, then by file and offset. None before END. */
size_t ckpt_restore_finding_count(const struct ckpt_restore *restore);
const struct ckpt_finding *ckpt_restore_finding(const struct ckpt_restore *restore, size_t index);

#endif
