/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a step: restores it into memory, verifies it, or exports it into another store. One state machine with three
 * sinks:
 *
 *
 */
#ifndef CKPT_ENGINE_RESTORE_RESTORE_H
#define CKPT_ENGINE_RESTORE_RESTORE_H

#include <ckpt/restore.h>
#include "engine/core/core.h"
#include "engine/reshard/blocks.h"
#include "format/index.h"

enum ckpt_restore_sink {
	CKPT_SINK_MEMORY = 1, /* bound targets */
	CKPT_SINK_NONE,       /* verification: all findings are kept */
	CKPT_SINK_STORE,      /* export */
	CKPT_SINK_RECODE,     /* the shards are stored in the other form, where they are */
};

struct ckpt_restore;

/* What the restores of an engine have in common: core->restorer. -ENOMEM. */
int ckpt_restorer_open(struct ckpt_core *core);
/* No restore is left. */
void ckpt_restorer_close(struct ckpt_core *core);

/*
 * Created by a user's thread, then posted. `owner` is stored for the caller. The latch answers OPENED when the step is
 * open and waits for targets; END when the outcome is known, also if opening failed; GONE when the core has released
 * it.
 */
int ckpt_restore_new(struct ckpt_core *core, struct ckpt_engine *owner, uint64_t step,
	enum ckpt_restore_sink sink, struct ckpt_restore **ret_restore);
/*
 * Sink STORE, before post_open: sets the destination. The restore takes over and closes the descriptor; on failure it
 * stays the caller's. The bucket belongs to the engine. The label is copied. -ENOMEM.
 */
int ckpt_restore_set_dest(struct ckpt_restore *restore, const struct ckpt_core_place *place);
/* Sink STORE, before post_open: exports only the files of these ranks, at least one. -ENOMEM. */
int ckpt_restore_set_dest_ranks(struct ckpt_restore *restore, const uint32_t *ranks, size_t count);
/* Sink STORE, before post_open: encoded shards are decoded, and stored plain. */
void ckpt_restore_set_dest_plain(struct ckpt_restore *restore);

/* Sink RECODE, before post_open: shards become encoded; without it they become plain. */
void ckpt_restore_set_encodes(struct ckpt_restore *restore);
/* The same, after END: what was done. */
struct ckpt_restore_recoded {
	uint32_t ranks;        /* that were stored again */
	uint64_t bytes_before; /* of the shard files of all ranks */
	uint64_t bytes_after;
};
struct ckpt_restore_recoded ckpt_restore_recoded(const struct ckpt_restore *restore);

/* The ranks on one node of a job of `world` ranks, which have their own store. */
struct ckpt_restore_near {
	const uint32_t *ranks; /* each less than world */
	size_t count;          /* 0: unknown */
	uint32_t world;
};

/*
 * Sink STORE, before post_open: the destination is the store of that node. Exports only the files of these ranks if the
 * step was saved by as many ranks into node stores, and these ranks shared their stores with no others. Otherwise
 * exports all files. -ENOMEM.
 */
int ckpt_restore_set_near(struct ckpt_restore *restore, const struct ckpt_restore_near *near);

/* Sink NONE, before post_open: does not read tensors. */
void ckpt_restore_set_quick(struct ckpt_restore *restore);

#define CKPT_DONE_OPENED 32u /* manifest and indexes are read, targets may be bound */

/*
 * Any thread; each has an effect once, and none after GONE, when the core may no longer exist. Verifications and
 * exports are started by opening them.
 */
void ckpt_restore_post_open(struct ckpt_restore *restore);
void ckpt_restore_post_start(struct ckpt_restore *restore);
void ckpt_restore_post_cancel(struct ckpt_restore *restore);
/* Cancels what still runs, and unlocks the step. Then wait for GONE and free it. */
void ckpt_restore_post_release(struct ckpt_restore *restore);
/*
 * For a restore that was never posted, or was released and, if there are targets, has answered END. It is freed when
 * the core has released it, too, so that nobody waits for storage that hangs. NULL is ignored.
 */
void ckpt_restore_unref(struct ckpt_restore *restore);

/*
 * The core's thread, when the engine closes: every restore that has not ended ends with CKPT_ECLOSED, and is released.
 * core->restores is empty when all are gone.
 */
void ckpt_restore_stop_all(struct ckpt_core *core);

struct ckpt_engine *ckpt_restore_owner(const struct ckpt_restore *restore);
/* Whether this process is a child of the one that created it. */
bool ckpt_restore_forked(const struct ckpt_restore *restore);
struct ckpt_latch *ckpt_restore_latch(struct ckpt_restore *restore);
const struct ckpt_error *ckpt_restore_failure(const struct ckpt_restore *restore); /* after END */
/* Number of ranks that wrote the step. After OPENED; otherwise 0, and for a verification or an export. */
uint32_t ckpt_restore_rank_count(const struct ckpt_restore *restore);
/*
 * How the step's ranks differed though it was committed, by its manifest or by the digests in its indexes; "": no
 * difference is known, or it is not open yet.
 */
const char *ckpt_restore_differ(const struct ckpt_restore *restore);
/* The lowest rank that is not elsewhere. */
uint32_t ckpt_restore_first_rank(const struct ckpt_restore *restore);
/* The index of a rank; NULL: it is elsewhere, or was not read yet. */
const struct ckpt_index *ckpt_restore_rank_index(const struct ckpt_restore *restore, uint32_t rank);
/* The index of the lowest rank that is not elsewhere; NULL before OPENED, and for a verification or an export. */
const struct ckpt_index *ckpt_restore_index(const struct ckpt_restore *restore);
/* A user's thread that has read an index adds it. -ENOMEM. */
int ckpt_restore_put_index(struct ckpt_restore *restore, uint32_t rank, struct ckpt_index *index);
/* Takes a reference; release it with ckpt_restore_unref(). */
struct ckpt_restore *ckpt_restore_ref(struct ckpt_restore *restore);
/* Sets `err` to CKPT_EOTHERNODE if the files of the rank are in the store of another node; else 0. */
int ckpt_restore_rank_other_node(
	const struct ckpt_restore *restore, uint32_t rank, struct ckpt_error *err);
/* The node that the rank has written on. */
const char *ckpt_restore_rank_node_name(const struct ckpt_restore *restore, uint32_t rank);
/* The chosen step; 0 until there is one. Any thread. */
uint64_t ckpt_restore_chosen_step(const struct ckpt_restore *restore);
uint64_t ckpt_restore_chosen_generation(const struct ckpt_restore *restore);
/* The number of the restore, the same on all ranks; 0: of this rank alone. */
uint32_t ckpt_restore_shared_number(const struct ckpt_restore *restore);
/* Bytes verified and delivered so far, and in total. Any thread; either pointer may be NULL. */
void ckpt_restore_counters(
	const struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total);

/* The complete tensors of the step, in the order of a shard, then the aliases. After OPENED. */
size_t ckpt_restore_name_count(const struct ckpt_restore *restore);
/* Sets all fields but `size`. -ERANGE after the last. */
int ckpt_restore_name(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info);
/*
 * The number of a name. CKPT_EMISMATCH if the step does not have it; CKPT_EOTHERNODE if no rank here has it, and others
 * are elsewhere. Sets `err`.
 */
int ckpt_restore_name_find(const struct ckpt_restore *restore, const char *name,
	struct ckpt_error *err, size_t *ret_index);

/* Checks and adds targets; user's thread, between OPENED and post_start. Sets `err`. */
int ckpt_restore_add_targets(struct ckpt_restore *restore, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err);

/* Whether it can have targets: it restores into memory. */
bool ckpt_restore_has_targets(const struct ckpt_restore *restore);

/* No other rank takes part, or all have reported that they have restored it. */
bool ckpt_restore_agreed(const struct ckpt_restore *restore);

/* After an export: whether the destination had the step already. */
bool ckpt_restore_existed(const struct ckpt_restore *restore);

/* Findings of a verification, sorted by rank, file and offset. None before END. */
size_t ckpt_restore_finding_count(const struct ckpt_restore *restore);
const struct ckpt_finding *ckpt_restore_finding(const struct ckpt_restore *restore, size_t index);

#endif
