/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Restoring one step.
 *
 *	ckpt_restore_open(engine, CKPT_STEP_LATEST, &restore);
 *	ckpt_restore_tensor(restore, i, &info);           list the tensors
 *	ckpt_restore_bind(restore, &target, 1);           set the memory
 *	ckpt_restore_start(restore);
 *	ckpt_restore_wait(restore, timeout_ms);           read, verify, copy
 *	ckpt_restore_free(restore);
 *
 * No byte is written to bound memory before its chunk has been compared with its digest. A restore that fails may
 * have filled some of the targets.
 *
 * Many ranks: with a world of more than 1 (ckpt_engine_opts) all ranks restore together, unless the engine is read
 * only. Every rank opens the step, binds what it wants (or nothing), starts, and waits. Rank 0 chooses the step for
 * all. Opening returns when the step is open on all ranks, and the restore ends when all ranks have restored it. If
 * a rank fails, cancels, frees the handle or closes the engine before that, the restore fails on all ranks with the
 * same code and reason, and `rank` in the error. If a rank does not take part, it fails with -ETIMEDOUT: opening
 * after save_timeout_ms, and reading when the others have waited that long after they have read.
 *
 * So the same calls on all ranks have the same result. A loop that restores the newest step again after
 * CKPT_EINTEGRITY, CKPT_EINCOMPLETE or -EBUSY (deleted meanwhile) goes back to older steps on all ranks together. To
 * read a step on one rank alone, open a second engine, read only.
 *
 * Stores on every node (CKPT_ENGINE_NODE_STORE): the step consists of what the ranks of this store have written, and
 * has their names. Binding anything else that may be in the store of another node is CKPT_EOTHERNODE, with the node
 * in the message. A rank is on another node if its index is not here, and no other file of the step from its node
 * (according to the manifest) is here. Otherwise the file is missing. Nothing is quarantined because of files of
 * other nodes.
 *
 * Threads: ckpt_restore_wait(), _error(), _progress() and _cancel() may be called from any thread. All other functions
 * of one restore must be called by one thread at a time. A job runs one restore at a time. Timeouts are in
 * milliseconds, see CKPT_FOREVER.
 */
#ifndef CKPT_RESTORE_H
#define CKPT_RESTORE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Opens a step of the lineage: a number, CKPT_STEP_LATEST or CKPT_STEP_BACK(k). The caller frees the handle with
 * ckpt_restore_free(). Retention does not delete the step while it is open.
 *
 * Reads and verifies the manifest, and the indexes of all ranks that wrote the step. For 32 ranks or more it reads their
 * catalog instead, if there is one, and ckpt_restore_start() reads the indexes that are needed. If ranks use one name for
 * tensors of different dtype or shape, the step is CKPT_EFORMAT. If they have different bytes of the same box, the log
 * names them.
 *
 * CKPT_STEP_LATEST and CKPT_STEP_BACK() skip steps that are quarantined or being deleted, and the log says so. A number
 * does not skip. With many ranks it returns when all ranks have opened the step. All must ask for the same one
 * (CKPT_EMISMATCH). Rank 0 decides for all whether there is a step (CKPT_ENOSTEP).
 *
 * Errors: CKPT_ENOSTEP; CKPT_EQUARANTINED (LATEST and BACK: all remaining steps are quarantined); -EBUSY (LATEST: all
 * remaining steps are being deleted, or steps are deleted faster than they can be opened; with many ranks, one of them
 * found the step deleted: try again); CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION; CKPT_EOTHERNODE (no
 * rank has files here); system errors.
 */
CKPT_API int ckpt_restore_open(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);

/* The number of the step, and its generation. */
CKPT_API uint64_t ckpt_restore_step(const struct ckpt_restore *restore);
CKPT_API uint64_t ckpt_restore_generation(const struct ckpt_restore *restore);

/*
 * With many ranks: the number of this restore in the session, from 1, the same on all ranks. No other restore of the
 * session has this number, even if one was interrupted. 0: this process restores alone.
 */
CKPT_API uint32_t ckpt_restore_number(const struct ckpt_restore *restore);

/* The number of ranks that wrote the step. */
CKPT_API uint32_t ckpt_restore_world(const struct ckpt_restore *restore);

/*
 * Describes in what the ranks differed, if the step was committed although they should have been equal; "" if nothing is
 * known. It is known from the manifest (CKPT_REPLICAS_WARN), and from the digests of boxes that several ranks have written:
 * ranks of one node, or all ranks if the nodes share the store; for a verification always all ranks. For a step that is
 * read by its catalog (32 ranks or more) it is known from the manifest only. Valid until the handle is freed.
 */
CKPT_API const char *ckpt_restore_replicas(const struct ckpt_restore *restore);

/*
 * The number of names, with aliases. They are the names of whole tensors, whichever ranks have written them, in the order
 * of a single shard. Aliases come last.
 */
CKPT_API size_t ckpt_restore_count(const struct ckpt_restore *restore);

/* Describes name number `index`, from 0. Errors: -ERANGE after the last one, -EINVAL. */
CKPT_API int ckpt_restore_tensor(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info);

/*
 * Finds the number of a name. Errors: CKPT_EMISMATCH (the step does not have it), CKPT_EOTHERNODE (it may be in the store
 * of another node).
 */
CKPT_API int ckpt_restore_find(
	const struct ckpt_restore *restore, const char *name, size_t *ret_index);

/*
 * Gives the node that a rank wrote on, according to the manifest, and whether its files are in the store of that other node
 * (1) or here (0). The name is valid until the handle is freed. Errors: -ERANGE after the last rank.
 */
CKPT_API int ckpt_restore_rank_node(const struct ckpt_restore *restore, uint32_t rank,
	const char **ret_node, uint32_t *ret_other_node);

/*
 * Give the JSON value of ckpt_save_set_meta(): that of rank 0, or of rank `rank`. The length is in bytes, 0 if there is
 * none. The text is valid until the handle is freed. If rank 0 is on another node, ckpt_restore_meta() gives the value of
 * the lowest rank that is here.
 * Errors: -ERANGE (after the last rank), CKPT_EOTHERNODE (the rank is on another node). With 32 ranks or more an index may
 * have to be read: CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, system errors, CKPT_ECLOSED (the engine is closed).
 */
CKPT_API int ckpt_restore_meta(
	const struct ckpt_restore *restore, const char **ret_json, size_t *ret_length);
CKPT_API int ckpt_restore_rank_meta(const struct ckpt_restore *restore, uint32_t rank,
	const char **ret_json, size_t *ret_length);

/* How some chunks of a shard are stored (docs/encoding.md). */
enum ckpt_stored_form {
	CKPT_STORED_FILE = 0,    /* the whole file, with all that is not in chunks */
	CKPT_STORED_ROUNDED = 1, /* 16-bit weights, some or all as the rounding of fp32 tensors */
	CKPT_STORED_COMPRESSED = 2, /* the others that became smaller */
	CKPT_STORED_PLAIN = 3,      /* what did not become smaller */
	CKPT_STORED_SAME = 4,       /* not at all: an earlier step has these bytes */
	CKPT_STORED_DIFFERENCE = 5  /* as what has changed since an earlier step */
};

struct ckpt_stored_info {
	uint32_t size;     /* sizeof(struct ckpt_stored_info), set by the caller */
	uint32_t form;     /* enum ckpt_stored_form */
	uint32_t dtype;    /* of all tensors in these chunks; 0: of several types, or the header */
	uint32_t reserved; /* 0 */
	uint64_t bytes;    /* of the shard */
	uint64_t bytes_stored; /* in the file */
};

/* More than the number of infos of any shard. */
#define CKPT_STORED_INFOS_MAX 128

/*
 * Describes how a rank's shard is stored, in *ret_count infos, of which the first `room` are set. The caller sets `size` in
 * each of these. Info number 0 is that of the file, and of a plain shard the only one. The others are of chunks of one form
 * and type each. Reads the rank's index, and of an encoded shard its table, and no tensor.
 * Errors: -EINVAL, -ERANGE (after the last rank), CKPT_EOTHERNODE, CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT,
 * CKPT_EUNSUPPORTED (encoded, and this library was built without zstd), system errors, CKPT_ECLOSED (the engine is closed).
 */
CKPT_API int ckpt_restore_rank_stored(const struct ckpt_restore *restore, uint32_t rank,
	struct ckpt_stored_info *ret_infos, size_t room, size_t *ret_count);

/*
 * Memory to copy a tensor, a box of it, or a range of its bytes to. The memory is borrowed: it must stay mapped, and must
 * not be used, from ckpt_restore_start() until the end of the restore. That includes GPU work that was enqueued before (use
 * cudaStreamSynchronize()). GPU work that is enqueued after the end sees the bytes. The tensor may have been written in
 * parts by any number of ranks. A range of bytes requires a tensor that one rank has written as a whole.
 */
struct ckpt_target {
	uint32_t size;   /* sizeof(struct ckpt_target) */
	uint32_t device; /* enum ckpt_device_kind */
	int32_t device_index;
	uint32_t dtype; /* must be that of the tensor; 0: any */
	const char *name;
	uint64_t offset; /* first byte to copy, row-major; 0 with strides */
	uint64_t length; /* bytes to copy; 0: all from `offset` */
	void *data;
	uint32_t ndim;  /* of shape; must be that of the tensor; 0, and shape NULL: not compared */
	uint32_t flags; /* CKPT_TARGET_* */
	const int64_t *shape;
	const int64_t *strides; /* of the memory, in elements; requires shape; NULL: contiguous */
	const int64_t *start;   /* of a box of that shape in the tensor; NULL: the whole tensor */
};

/*
 * Other ranks on this node restore the same bytes. If this node has several ranks (ckpt_engine_opts.node_ranks), they are
 * read through the page cache, so that the disk reads them once. Chunks of which this rank needs only a part are read in
 * that way in any case.
 */
#define CKPT_TARGET_SHARED 1u

/*
 * Binds `count` targets, all or none. All but the memory itself is copied. Several targets may name one tensor. The time of a call
 * grows with the number of ranks that wrote the step, so bind in one call or a few.
 * Errors: CKPT_EMISMATCH (name, dtype or shape), CKPT_EOTHERNODE, -EINVAL (strides that make elements overlap, for example),
 * -EBUSY (the restore has started), -ENOMEM. Strides that a GPU does not support (docs/gpus.md) make the restore fail with CKPT_EUNSUPPORTED before any target
 * is written.
 */
CKPT_API int ckpt_restore_bind(
	struct ckpt_restore *restore, const struct ckpt_target *targets, size_t count);

/* Starts to read the chunks that the targets need, and no others. Errors: -EINVAL, CKPT_EFORKED. */
CKPT_API int ckpt_restore_start(struct ckpt_restore *restore);

/*
 * Waits up to timeout_ms for the end of the restore. Returns 0, the error of the restore, or -ETIMEDOUT. A restore may also
 * fail with -ETIMEDOUT, if a server does not answer: it has failed if ckpt_restore_error() is not 0.
 *
 * Damage: after CKPT_EINTEGRITY, CKPT_EINCOMPLETE and CKPT_EFORMAT the step is quarantined, unless the engine is read only,
 * and CKPT_STEP_LATEST is the next older step. The same holds if ckpt_restore_open() has failed with one of them and the
 * manifest was good.
 *
 * Repair: with a remote store the step is repaired first. That includes a step that the disk cannot read (-EIO, -ENODATA,
 * -EILSEQ), which is not quarantined. `repaired` in the error is then 1, and CKPT_STEP_LATEST is still this step: restore
 * it again. If the repair fails for a reason that may pass (the remote store does not answer, the disk is full), only this
 * engine skips the step, and nothing is recorded.
 *
 * Repair with many ranks: rank 0 repairs a shared store, for at most half of save_timeout_ms, and `repaired` is set on rank
 * 0 only. Errors of reading the disk are not repaired then. The code is the same on all ranks, so decide by the code; a
 * restore of the newest step waits for rank 0. If every node has its own store, the leader of each node repairs it within
 * that time. `repaired` is set on the leaders if the step is then complete on all nodes; other ranks may get the error
 * before that.
 *
 * Deletion: if locks do not work between machines, another machine may delete the step while it is read. That is no damage:
 * the error is CKPT_ENOSTEP, or -EBUSY with CKPT_STEP_LATEST, which is then another step.
 */
CKPT_API int ckpt_restore_wait(struct ckpt_restore *restore, int timeout_ms);

/* Gives the bytes of shards that have been read and verified, and their total. Errors: -EINVAL, CKPT_EFORKED. */
CKPT_API int ckpt_restore_progress(
	struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total);

/*
 * Requests cancellation, and returns at once. ckpt_restore_wait() then returns -ECANCELED, or the result if the restore
 * ended first. If the manifest of a copy was being sent to a bucket, `file` of the error is its name, and the step may
 * exist there.
 */
CKPT_API void ckpt_restore_cancel(struct ckpt_restore *restore);

/*
 * Makes the restored step the parent of the generation that this engine will claim. With many ranks call it on every rank,
 * after the restore has succeeded on all (-EINVAL before).
 */
CKPT_API int ckpt_restore_adopt(struct ckpt_restore *restore);

/*
 * Returns the code of the error that the restore failed with, and copies the error to `ret_error`, which may be NULL.
 * Returns 0 if the restore has not failed. The call itself fails with -EINVAL (`restore` is NULL) or CKPT_EFORKED. In these
 * three cases `ret_error` is not changed.
 */
CKPT_API int ckpt_restore_error(struct ckpt_restore *restore, struct ckpt_error *ret_error);

/*
 * Frees the handle. Cancels a running restore first, and waits until it no longer uses the targets. NULL is ignored.
 */
CKPT_API void ckpt_restore_free(struct ckpt_restore *restore);

#ifdef __cplusplus
}
#endif

#endif
