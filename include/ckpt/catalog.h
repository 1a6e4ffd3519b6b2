/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing, verifying, copying and deleting the steps of a store. An engine that is open
 * CKPT_ENGINE_READ_ONLY is enough, except for ckpt_catalog_remove(). Verification changes nothing.
 *
 * Threads: functions with an engine may be called from any thread. A catalog or a handle of a
 * verification or export may be used by one thread at a time, except for the functions that
 * restore.h allows on any thread.
 */
#ifndef CKPT_CATALOG_H
#define CKPT_CATALOG_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The state of a step. */
enum ckpt_step_state {
	CKPT_STEP_COMMITTED = 1,
	CKPT_STEP_ABORTED = 2, /* the save failed: an abort record is in place of the manifest */
	CKPT_STEP_PENDING = 3, /* no manifest: a running save, or one of a dead process */
	CKPT_STEP_QUARANTINED = 4, /* committed, but a restore found damage */
	CKPT_STEP_BROKEN = 5       /* its manifest cannot be read or does not verify */
};

/* Whether a step is in the remote store, as the job has recorded; see ckpt_catalog_remote(). */
enum ckpt_remote_state {
	CKPT_REMOTE_UNKNOWN = 0,  /* there is no record, or the step is not in it */
	CKPT_REMOTE_UPLOADED = 1, /* it is in the remote store */
	CKPT_REMOTE_PENDING = 2,  /* it is not there yet */
	CKPT_REMOTE_EXCLUDED = 3, /* it is not to be uploaded, or was deleted there */
	CKPT_REMOTE_FAILED = 4    /* it will not be there */
};

/* One step of a catalog. */
struct ckpt_step_info {
	uint32_t size;  /* sizeof(struct ckpt_step_info), set by the caller */
	uint32_t state; /* enum ckpt_step_state */
	uint64_t step;
	uint64_t generation;
	uint64_t wall_ms;    /* of the manifest, since the epoch, by the clock of the writer */
	uint64_t bytes;      /* of all shards together */
	uint32_t world;      /* number of ranks that saved it */
	uint32_t in_lineage; /* 1: a restore may choose it */
	char attempt[32];    /* identifies the save that wrote it */
	char note[256];      /* why it was aborted or quarantined, or is broken */
	/*
	 * BROKEN: why; otherwise 0. CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, or the system error of
	 * reading the manifest. With the last two the step itself may be good.
	 */
	int32_t code;
	/* 1: a restore of the newest step skips it, because it is quarantined or broken */
	uint32_t passed_over;
	uint32_t deleting; /* 1: it will be deleted soon; its number still restores it */
	/* 1: it is to be deleted, by ckpt_catalog_expire(), or an interrupted deletion has left a part of it */
	uint32_t expired;
	uint32_t remote;     /* enum ckpt_remote_state */
	int32_t remote_code; /* CKPT_REMOTE_FAILED: why; otherwise 0 */
};

/*
 * Reads the store and lists every step of every generation, newest first. The list is a snapshot. The
 * caller frees it with ckpt_catalog_free(); it may outlive the engine.
 * Errors: -EINVAL, -ENOMEM, CKPT_EFORKED, and those of reading the store.
 */
CKPT_API int ckpt_catalog_open(struct ckpt_engine *engine, struct ckpt_catalog **ret_catalog);

/* The number of steps. */
CKPT_API size_t ckpt_catalog_count(const struct ckpt_catalog *catalog);

/* Describes step number `index`, from 0. Errors: -ERANGE after the last one, -EINVAL. */
CKPT_API int ckpt_catalog_step(
	const struct ckpt_catalog *catalog, size_t index, struct ckpt_step_info *ret_info);

/*
 * Returns 0, or CKPT_EINTEGRITY or another error if the lineage is not fully known: a claim cannot be read
 * or does not verify, so `in_lineage` is 0 for steps before its generation. `ret_error` may be NULL.
 */
CKPT_API int ckpt_catalog_error(const struct ckpt_catalog *catalog, struct ckpt_error *ret_error);

/* The id of the run. Valid until the catalog is freed. */
CKPT_API const char *ckpt_catalog_run_id(const struct ckpt_catalog *catalog);

/*
 * The remote store of a store (ckpt_engine_opts.remote), and the state of the uploads as the job has last recorded it in
 * the local store. The job writes this record every few seconds while something changes, and when it ends. The remote
 * store is not contacted. All times are in ms since the epoch, by the clock of the writer.
 */
struct ckpt_remote_info {
	uint32_t size;                /* sizeof(struct ckpt_remote_info), set by the caller */
	int32_t code;                 /* why uploads fail; 0: they do not */
	uint64_t wall_ms;             /* when the record was written */
	uint64_t generation;          /* of the job that has written it */
	uint64_t every;               /* only multiples of it are uploaded; 0: all steps */
	uint64_t uploaded_generation; /* of the newest step in the remote store; 0: there is none */
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms; /* when it was first known to be there */
	uint64_t waiting;          /* number of steps that are pending */
	uint64_t failures;         /* number of failed tries in a row */
	uint64_t failing_wall_ms;  /* since when uploads fail */
	uint64_t next_wall_ms;     /* when the next try is due; 0: the job has given up */
	char node[72];             /* the node of the writer */
	char reason[512];          /* the message of `code` */
	char remote[4608];         /* s3://BUCKET/PREFIX or file:///DIRECTORY */
};

/*
 * Copies the record to `ret_info`. It was read by ckpt_catalog_open(), together with `remote` of the steps.
 * Errors: CKPT_ENOSTORE (there is no record); CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION and system errors (there is
 * one, and it cannot be used); -EINVAL.
 */
CKPT_API int ckpt_catalog_remote(
	const struct ckpt_catalog *catalog, struct ckpt_remote_info *ret_info);

/* Frees the catalog. NULL is ignored. */
CKPT_API void ckpt_catalog_free(struct ckpt_catalog *catalog);

/* A finding of a verification: damage, a good shard, or a rank of another node. */
struct ckpt_finding {
	uint32_t size; /* sizeof(struct ckpt_finding), set by the caller */
	uint32_t rank;
	uint64_t step;
	uint64_t generation;
	/*
	 * Code 0: the shard of `rank` is good. CKPT_EOTHERNODE: every node of the job has its own store, and the
	 * files of `rank` are in the store of another node, which is no damage. Other codes: what is damaged.
	 */
	struct ckpt_error error;
	char node[72]; /* CKPT_EOTHERNODE: the name of that node; otherwise "" */
};

/*
 * Starts to verify one step (a number, CKPT_STEP_LATEST or CKPT_STEP_BACK()): compares the manifest, the indexes and
 * every chunk of every shard with their digests. Nothing is quarantined. Up to 1000 findings are kept.
 *
 * ckpt_restore_wait() returns 0 if all is good, otherwise the code of the first damage (CKPT_EINTEGRITY,
 * CKPT_EINCOMPLETE and others). In the store of one node (CKPT_ENGINE_NODE_STORE) it verifies the ranks that are here. Each
 * other rank is a finding with CKPT_EOTHERNODE, which is no failure. If no rank is here, CKPT_EOTHERNODE is the result.
 *
 * The handle is a restore: use wait, progress, cancel, error and free of restore.h.
 */
CKPT_API int ckpt_verify_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);

/*
 * The same for the structure only: compares the manifest, the catalog, the indexes and the headers of the shards with
 * their digests, and checks that every shard exists with its exact length. Tensors are not read, so nothing is known of
 * their bytes. A finding of code 0 is a shard with a good structure. Progress counts the bytes of the indexes.
 */
CKPT_API int ckpt_verify_quick_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);

/* The number of findings. Call it when ckpt_restore_wait() has returned the result. */
CKPT_API size_t ckpt_verify_count(const struct ckpt_restore *restore);

/* Describes finding number `index`, from 0. Errors: -ERANGE after the last one, -EINVAL. */
CKPT_API int ckpt_verify_finding(
	const struct ckpt_restore *restore, size_t index, struct ckpt_finding *ret_finding);

/*
 * Starts to copy one step to `dest` (a directory or a URL), and verifies it on the way. `dest` becomes a store with this
 * step: the shards in the form in which they are stored, plain or encoded, and the index, claim and manifest unchanged.
 * They are made durable in that order.
 *
 * - `dest` must not exist, or be empty, or be a store of the same run.
 * - If `dest` has this step with the same manifest, nothing is copied: only the existence and sizes of its files are
 *   checked. If it has another step of that number, the error is -EEXIST.
 * - A step with ranks in the store of another node is not copied: CKPT_EOTHERNODE.
 * - A copy that is cancelled or killed, or fails because of the network, keeps what it has. The same call resumes it, and
 *   reads only what is missing or differs from its digest.
 * - If another process, or an export or upload of this one, is sending the same step from this store to the same bucket,
 *   ckpt_restore_wait() returns CKPT_EINUSE. Locks on the files of this store show that, where locks work.
 *
 * The handle is a restore, as above. Errors of the call itself: -EINVAL, -ENOMEM, and those of `dest`.
 */
CKPT_API int ckpt_export_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	struct ckpt_restore **ret_restore);

/*
 * The same for the files of some ranks: the `count` numbers in `ranks`, in any order (a count of 0: all ranks). The array
 * is copied. `dest` must be a directory. It becomes a store like that of one node: readers report other ranks as ranks of
 * other nodes. More ranks may be added later, to the same step or to others.
 *
 * A `dest` that was not made this way is not changed: -EEXIST if it does not have the step; CKPT_EINCOMPLETE or another
 * error if it has the step but not all files of these ranks. The same holds for the store of `engine` itself. A rank that
 * the step does not have is -EINVAL.
 */
CKPT_API int ckpt_export_ranks_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const uint32_t *ranks, size_t count, struct ckpt_restore **ret_restore);

/* Options of ckpt_export_opts_start(). Set `size` to sizeof; zero means the default. */
struct ckpt_export_opts {
	uint32_t size;
	/* Not 0: decodes encoded shards. `dest` gets the file that a plain save would have written. */
	int plain;
	const uint32_t *ranks; /* as for ckpt_export_ranks_start() */
	size_t ranks_count;
};

/*
 * The same with options; NULL: the defaults. With `plain`, a `dest` that has the step with an encoded shard of these
 * ranks is refused: -EEXIST. An interrupted copy may be resumed with another value of `plain`: in a directory, shards that
 * are complete and encoded are copied again as plain ones, and plain ones stay. A bucket refuses such a change of a shard
 * that is there: -EEXIST.
 */
CKPT_API int ckpt_export_opts_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const struct ckpt_export_opts *opts, struct ckpt_restore **ret_restore);

/* After an export has succeeded: 1 if `dest` had the step already, 0 if it was copied. */
CKPT_API int ckpt_export_existed(const struct ckpt_restore *restore);

/*
 * Starts to store the shards of one step in the other form, where they are: encoded (CKPT_ENCODING_COMPACT) or plain
 * (CKPT_ENCODING_PLAIN). A shard that has the form already stays. Manifest and indexes keep their contents. Of each rank the
 * new file is written beside the old one, synced, read back, decoded and compared with the digests, and only then the old
 * one is removed. So the disk needs room for the largest shard of the step, and the step is whole at every moment. After
 * an interruption the same call goes on with the ranks that are left. Ranks in the store of another node are left out.
 *
 * The engine must not be read only, nor have other ranks: so it holds the lock on the store, and no other process writes.
 * After a cancel, ckpt_restore_wait() returns when nothing is changed any more.
 *
 * The handle is a restore, as above. Errors of the call itself: -EINVAL, -ENOMEM, CKPT_EUNSUPPORTED (built without zstd). ckpt_restore_wait()
 * returns -EROFS (the engine is read only), -EINVAL (it has other ranks), CKPT_EINTEGRITY and others (a rank is damaged: its
 * files and those of later ranks stay as they are), -ENOSPC, CKPT_EFENCED.
 */
CKPT_API int ckpt_recode_step_start(struct ckpt_engine *engine, uint64_t step, uint32_t encoding,
	struct ckpt_restore **ret_restore);

/* What was done. */
struct ckpt_recode_info {
	uint32_t size;         /* sizeof(struct ckpt_recode_info), set by the caller */
	uint32_t ranks;        /* whose shards were stored again */
	uint64_t bytes_before; /* of the shard files of all ranks that are here */
	uint64_t bytes_after;  /* the same, of those that were reached */
};

/* Copies it to `ret_info`, after the end of the above; before, and of other handles, all is 0. Errors: -EINVAL. */
CKPT_API int ckpt_recode_step_info(
	const struct ckpt_restore *restore, struct ckpt_recode_info *ret_info);

/*
 * Deletes a step: its manifest, then its shards. Returns when it is deleted. If every node has its own store, delete the
 * newest step on all of them: otherwise a node that has it copies its manifest back to the others.
 * Errors: -EBUSY (the step is open for reading on this machine, or is the only good step of the lineage, or this process
 * has resumed from it and committed nothing since), -EROFS (the engine is read only), CKPT_EFENCED, CKPT_ENOSTEP, -EINVAL
 * (also: with CKPT_ENCODING_DELTA only rank 0 deletes), CKPT_EFORKED.
 */
CKPT_API int ckpt_catalog_remove(struct ckpt_engine *engine, uint64_t step);

/*
 * Deleting steps from a store that others read and write without a common lock: a bucket, or a directory of several
 * hosts. The engine has opened that store, and may be read only.
 *
 *   1. ckpt_catalog_open(), ckpt_catalog_expire()
 *   2. ckpt_catalog_mark() of each step that is `expired` or `deleting`: this writes a tombstone beside it
 *   3. wait for a grace period, longer than a restore takes
 *   4. ckpt_catalog_open(), ckpt_catalog_expire()
 *   5. of the steps that are `deleting`: ckpt_catalog_remove_marked() if `expired`, otherwise ckpt_catalog_unmark()
 *
 * A step with a tombstone (`deleting`) is not restored as the newest one, and is not uploaded again. A deletion may be
 * interrupted at any moment: no step remains without its shards, and the next one who deletes continues.
 *
 * Several processes may do this at a time. A tombstone belongs to its writer. Marking a step with a tombstone of somebody
 * else only notes that tombstone. If it has not changed in step 5, it is taken over, and the call returns -EAGAIN: wait for
 * another grace period, and repeat steps 4 and 5. The same holds after a deletion that has failed, because its requests may
 * still be executed by the server. A tombstone that was not noted, or has changed, is left alone.
 */

/*
 * Decides which steps of the list are to be deleted, and sets their `expired`: steps of the lineage other than the newest
 * `keep_last` (1 or more) and the multiples of `keep_every` (0: none); steps that were rolled back, if `keep_last` newer
 * ones exist; and parts that an interrupted deletion has left. Pending steps stay.
 * Errors: CKPT_EINTEGRITY or that of ckpt_catalog_error() (the lineage is not known, nothing is to be deleted), -EINVAL,
 * -ENOMEM.
 */
CKPT_API int ckpt_catalog_expire(
	struct ckpt_catalog *catalog, uint64_t keep_last, uint64_t keep_every);

/*
 * Write the tombstone of step number `index` of the list; delete the tombstone; delete the step. Each returns when it is
 * done. After a system error the same call continues. Errors:
 * -EINVAL       The list does not allow it. A step is marked or deleted only if it is `expired` (see above for tombstones
 *               of others), deleted only if it is `deleting`, and unmarked only if it is not `expired` and its manifest
 *               can be read. Or ckpt_catalog_expire() was not called.
 * -EBUSY        The step is being read or is pinned, or its tombstone is gone or belongs to somebody else.
 * -EAGAIN       The tombstone was taken over, or a deletion has failed before: wait for another grace period.
 * CKPT_EINUSE   A live process holds the directory.
 * CKPT_EFENCED  A generation was claimed since the list was made, so that other steps may have to be deleted: list again.
 *               This is checked before each call.
 */
CKPT_API int ckpt_catalog_mark(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);
CKPT_API int ckpt_catalog_unmark(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);
CKPT_API int ckpt_catalog_remove_marked(
	struct ckpt_engine *engine, const struct ckpt_catalog *catalog, size_t index);

#ifdef __cplusplus
}
#endif

#endif
