/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Getting one step back.
 *
 *	ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore);
 *	ckpt_restore_tensor(restore, i, &info);           what is there
 *	ckpt_restore_bind(restore, &target, 1);           where it goes
 *	ckpt_restore_start(restore);
 *	ckpt_restore_wait(restore, timeout_ms);           read, verified, copied
 *	ckpt_restore_free(restore);
 *
 * No byte reaches bound memory before its chunk has been compared with its digest. A restore that
 * fails may have filled some targets and not others.
 *
 * With a world of more than 1 (ckpt_engine_opts) a restore is of all ranks together, unless the engine is
 * read only: every rank opens, binds what it wants (or nothing), starts, and waits. Rank 0 picks the step, and
 * all get that one. It is open when it is open on all of them, and has been restored when all have restored
 * it; a rank that fails, cancels, frees or closes before ends it for all, with one code and the reason, and
 * with `rank` in the error. A rank that does not come, or is dead, ends it with -ETIMEDOUT: after
 * save_timeout_ms for the opening, and for the reading as long after the others have read. So the same calls
 * on all ranks come to the same end, and a loop that asks for the latest again after CKPT_EINTEGRITY or
 * CKPT_EINCOMPLETE, or after -EBUSY (removed meanwhile), goes back with all of them. Who wants to look at a
 * step by himself opens a second engine that is read only.
 *
 * Where every node has a store of its own (CKPT_ENGINE_NODE_STORE), what other nodes' ranks wrote is elsewhere.
 * The step is what the ranks hold that are here, and the names are theirs; what is bound besides, and may be in
 * the store of another node, is CKPT_EOTHERNODE, with the node in the message. A rank is elsewhere if its index
 * is not here, and no other file of the step of its node, as the manifest has it, is here, either:
 * else the file is missing. Nothing is quarantined because of what is elsewhere.
 *
 * Threads: as for a save; wait and error from any thread. One restore of a job after the other.
 */
#ifndef CKPT_RESTORE_H
#define CKPT_RESTORE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a step of the lineage: CKPT_STEP_LATEST, CKPT_STEP_BACK(k), or a number. Reads and verifies
 * its manifest and the indexes of all ranks that wrote it; of 32 ranks or more their catalog instead, where there
 * is one, and then the indexes that are needed, when it starts. Ranks that give one name to different things
 * (dtype or shape) make a step that is CKPT_EFORMAT; those that hold different bytes of one thing are
 * named in the log: what is each rank's own needs a name of its own. LATEST passes over quarantined
 * steps, and over those that are just being removed, and says so in the log; a number does not. The
 * step cannot be removed by retention while it is open.
 * With other ranks it returns when they have opened it, too; all must ask for the same (CKPT_EMISMATCH).
 * That there is no latest step (CKPT_ENOSTEP) is rank 0's word then: nobody concludes it by himself.
 * Errors: CKPT_ENOSTEP, CKPT_EQUARANTINED (of LATEST and BACK: nothing else is left), -EBUSY
 * (of LATEST: all that is left is being removed, or steps vanish faster than they can be opened; with other
 * ranks, one of them has found it removed: ask again),
 * CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, CKPT_EOTHERNODE (of no rank there are
 * files here), system errors.
 */
CKPT_API int ckpt_restore_open(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);

CKPT_API uint64_t ckpt_restore_step(const struct ckpt_restore *restore);
CKPT_API uint64_t ckpt_restore_generation(const struct ckpt_restore *restore);

/*
 * With other ranks: the number of this restore in the session, from 1 on, which is the same on all of them. No
 * restore of the session has it again, also if one was interrupted. 0: this process restores alone.
 */
CKPT_API uint32_t ckpt_restore_number(const struct ckpt_restore *restore);

/* How many ranks wrote the step. */
CKPT_API uint32_t ckpt_restore_world(const struct ckpt_restore *restore);

/*
 * What its ranks differed in when they should have been alike, if the step was committed all the same: its manifest
 * says so (CKPT_REPLICAS_WARN), or the digests of boxes that several ranks have written (of ranks of one node, or of all
 * ranks if the store is a directory that the nodes share; of a verification, of all ranks). Of a step that is read by its
 * catalog (32 ranks and more) only the manifest is asked. "" if nothing is known. Valid as long as the handle.
 */
CKPT_API const char *ckpt_restore_replicas(const struct ckpt_restore *restore);

/*
 * Number of names, aliases included. They are those of the tensors as wholes, whichever ranks hold
 * them; in the order in which one shard would hold them; aliases come last.
 */
CKPT_API size_t ckpt_restore_count(const struct ckpt_restore *restore);

/* Describes name number `index`. -ERANGE past the last. */
CKPT_API int ckpt_restore_tensor(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info);

/* Finds a name. CKPT_EMISMATCH if the step does not hold it; CKPT_EOTHERNODE if it may, elsewhere. */
CKPT_API int ckpt_restore_find(
	const struct ckpt_restore *restore, const char *name, size_t *ret_index);

/*
 * Which node a rank wrote on, as the manifest has it; and whether what it wrote is elsewhere (1) or here (0). Valid
 * as long as the handle. -ERANGE past the last rank.
 */
CKPT_API int ckpt_restore_rank_node(const struct ckpt_restore *restore, uint32_t rank,
	const char **ret_node, uint32_t *ret_other_node);

/*
 * The JSON that ckpt_save_set_meta() was given by rank 0, or by another one; length 0 if none. Valid as
 * long as the handle. -ERANGE past the last rank; CKPT_EOTHERNODE of one that is elsewhere. If rank 0 is,
 * ckpt_restore_meta() gives that of the lowest rank that is here. Of a step of 32 ranks or more its index may be
 * read for that: CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, system errors, and CKPT_ECLOSED once the
 * engine is closed.
 */
CKPT_API int ckpt_restore_meta(
	const struct ckpt_restore *restore, const char **ret_json, size_t *ret_length);
CKPT_API int ckpt_restore_rank_meta(const struct ckpt_restore *restore, uint32_t rank,
	const char **ret_json, size_t *ret_length);

/*
 * Memory that a tensor, a box of it, or a range of its bytes, is to be copied to. It must stay mapped
 * and be left alone from start until the end of the restore; memory of a GPU by the work that was enqueued there
 * as well (cudaStreamSynchronize()). What is enqueued after the end finds the bytes there. How many ranks wrote
 * the tensor, and who of them which part, does not matter; a range of bytes can be had of one that a rank holds
 * whole.
 */
struct ckpt_target {
	uint32_t size;   /* sizeof(struct ckpt_target) */
	uint32_t device; /* enum ckpt_device_kind */
	int32_t device_index;
	uint32_t dtype; /* 0: any; otherwise it must be the tensor's */
	const char *name;
	uint64_t offset; /* first byte wanted of the tensor, row-major; 0 with strides */
	uint64_t length; /* bytes wanted; 0: all from `offset` */
	void *data;
	uint32_t ndim;  /* with shape: must be the tensor's; 0 and NULL: not compared */
	uint32_t flags; /* CKPT_TARGET_* */
	const int64_t *shape;
	const int64_t *strides; /* of the memory, in elements; needs shape. NULL: contiguous */
	const int64_t
		*start; /* where the box of that shape begins in the tensor; NULL: all of it */
};

/*
 * Other ranks on this node restore the same bytes: with more than one node_ranks (ckpt_engine_opts) they are
 * read through the page cache, so that the disk is asked for them once. Chunks of which this rank wants a
 * part only are read so in any case.
 */
#define CKPT_TARGET_SHARED 1u

/*
 * Binds `count` targets, all or none. Several targets may name one tensor. Each call takes a time that grows
 * with the number of ranks that wrote the step: bind in one call, or in few. Errors: CKPT_EMISMATCH,
 * CKPT_EOTHERNODE, -EINVAL (strides by which elements would share memory, among others). Strides that a GPU cannot
 * take, see docs/gpus.md, fail the restore with CKPT_EUNSUPPORTED before any target is written to.
 */
CKPT_API int ckpt_restore_bind(
	struct ckpt_restore *restore, const struct ckpt_target *targets, size_t count);

/* Starts to read the chunks that the targets need, and only those. */
CKPT_API int ckpt_restore_start(struct ckpt_restore *restore);

/*
 * Waits for the end: 0, the error, or -ETIMEDOUT, which a restore may fail with, too, if a server does not answer:
 * after that, if ckpt_restore_error() does not give 0 it has failed, and waiting once more, with 0, says with what. On
 * CKPT_EINTEGRITY, CKPT_EINCOMPLETE and CKPT_EFORMAT
 * the step has been quarantined, unless the engine is read only, and LATEST is now the next older one. So
 * it is when ckpt_restore_open() has failed with one of them and the manifest was good. With a remote store the
 * step is mended first, also where the disk cannot read some of it, which is no quarantine (-EIO, -ENODATA, -EILSEQ):
 * `mended` of the error says that it is whole again, and LATEST is still this one. If it could not
 * be mended now, and might be another time (the remote store cannot be asked, the disk is full), this engine alone
 * passes over it, and nothing is written. Of several ranks that share a store rank 0 mends it, for half of
 * save_timeout_ms at most, and `mended` is set there alone: what they do next depends on the code, which all have, and
 * whoever asks for the latest again waits for rank 0. What the disk cannot read is no reason for it then. Where every
 * node has a store of its own, each keeper mends that of its node in that time, and `mended` is set on keepers if
 * the step is whole on all nodes then: others may have been told of the damage before that. Where locks do not
 * reach, another machine may remove the step while it is read. That is no damage: it is CKPT_ENOSTEP, or -EBUSY
 * if LATEST was asked for, which is now another step.
 */
CKPT_API int ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms);

/* Bytes of the shards read and verified so far, and in all. Any thread. */
CKPT_API int ckpt_restore_progress(
	struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total);

/*
 * Asks to give up; the outcome is -ECANCELED or the end that came first. Any thread. If the manifest of a copy was on
 * its way to a bucket then, the record's `file` is its name: the step may be there.
 */
CKPT_API void ckpt_restore_cancel(struct ckpt_restore *restore);

/*
 * Makes the step restored the parent of the generation that this engine will claim. With other ranks: once all
 * have restored it (-EINVAL before), and on every rank.
 */
CKPT_API int ckpt_restore_adopt(struct ckpt_restore *restore);

/*
 * Why the restore failed. Returns its code, 0 if it has not failed; `ret_error` may be NULL. The call
 * itself fails with -EINVAL (`restore` is NULL) or CKPT_EFORKED, and leaves `ret_error` alone then,
 * as it does when there is no failure.
 */
CKPT_API int ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error);

/* Cancels what still runs, waits until it has let go of the targets, and frees. NULL is ignored. */
CKPT_API void ckpt_restore_free(struct ckpt_restore *restore);

#ifdef __cplusplus
}
#endif

#endif
