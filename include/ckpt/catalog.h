/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a store holds, for programs. Works on an engine opened CKPT_ENGINE_READ_ONLY, except for
 * removal. Verification never changes anything.
 */
#ifndef CKPT_CATALOG_H
#define CKPT_CATALOG_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ckpt_step_state {
	CKPT_STEP_COMMITTED = 1,
	CKPT_STEP_ABORTED = 2, /* its register holds an abort record */
	CKPT_STEP_PENDING = 3, /* files without a manifest: under way, or left by a dead process */
	CKPT_STEP_QUARANTINED = 4, /* committed, but failed verification at a restore */
	CKPT_STEP_BROKEN = 5       /* its manifest does not verify */
};

/* Whether a step is in the remote store of the local one, as the record of it says; see ckpt_catalog_remote(). */
enum ckpt_remote_state {
	CKPT_REMOTE_UNKNOWN = 0, /* there is no record, or it does not say */
	CKPT_REMOTE_UPLOADED = 1,
	CKPT_REMOTE_PENDING = 2,  /* it goes there, and was not there yet */
	CKPT_REMOTE_EXCLUDED = 3, /* it does not go there, or was removed there */
	CKPT_REMOTE_FAILED = 4    /* it will not be there */
};

struct ckpt_step_info {
	uint32_t size;  /* sizeof(struct ckpt_step_info), set by the caller */
	uint32_t state; /* enum ckpt_step_state */
	uint64_t step;
	uint64_t generation;
	uint64_t wall_ms;    /* when the manifest was made, by the writer's clock; a label only */
	uint64_t bytes;      /* of all shards */
	uint32_t world;      /* number of ranks */
	uint32_t in_lineage; /* 1: a restore may choose it */
	char attempt[32];
	char note[256]; /* why it was aborted or quarantined, or what is broken */
	/*
	 * BROKEN: why, else 0. CKPT_EINTEGRITY, CKPT_EFORMAT; and where it may be good all the same,
	 * CKPT_EVERSION or the system error of reading its manifest.
	 */
	int32_t code;
	/* 1: quarantined or broken, a restore of the latest would have chosen it over what is older */
	uint32_t passed_over;
	uint32_t deleting; /* 1: its removal has begun; restored by its number while it is there */
	/* 1: it is to go, by ckpt_catalog_expire(); or it is going already, and what is left is no step any more */
	uint32_t expired;
	uint32_t remote;     /* enum ckpt_remote_state */
	int32_t remote_code; /* FAILED: why */
};

/*
 * Reads the store again and lists every step of every generation, newest first.
 * The list is a snapshot, owned by the caller.
 */
CKPT_API int ckpt_catalog_open(struct ckpt_engine *engine, struct ckpt_catalog **ret_catalog);
CKPT_API size_t ckpt_catalog_count(const struct ckpt_catalog *catalog);
CKPT_API int ckpt_catalog_step(
	const struct ckpt_catalog *catalog, size_t index, struct ckpt_step_info *ret_info);
/*
 * 0, or why the list does not know the whole lineage: CKPT_EINTEGRITY, a claim does not verify, and steps
 * that came before its generation are not marked. `ret_error` may be NULL.
 */
CKPT_API int ckpt_catalog_error(const struct ckpt_catalog *catalog, struct ckpt_error *ret_error);
CKPT_API const char *ckpt_catalog_run_id(const struct ckpt_catalog *catalog);

/*
 * Where the steps of a store go on to (ckpt_engine_opts.remote), and what the job knew of it when it last wrote that
 * down: every few seconds while something changes, and when it ends. Nobody is asked for it.
 */
struct ckpt_remote_info {
	uint32_t size;       /* sizeof(struct ckpt_remote_info), set by the caller */
	int32_t code;        /* of the failure since which nothing has succeeded; 0: none */
	uint64_t wall_ms;    /* when it was written, by the writer's clock, as all times here */
	uint64_t generation; /* whose job has written it */
	uint64_t every;      /* only steps divisible by it go there; 0: all */
	uint64_t uploaded_generation; /* of the newest step that was there; 0: none was */
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms; /* when that was first seen to be there */
	uint64_t waiting;          /* steps that were not there yet */
	uint64_t failures;         /* tries that have failed in a row */
	uint64_t failing_wall_ms;  /* since when */
	uint64_t next_wall_ms;     /* of the next try; 0: there is none, the job has given up */
	char node[72];             /* where it was written */
	char reason[512];          /* in words, of `code` */
	char remote[4608];         /* s3://BUCKET/PREFIX or file:///DIRECTORY */
};

/*
 * 0, or why there is none: CKPT_ENOSTORE, nothing goes anywhere, as far as it is known; CKPT_EINTEGRITY, CKPT_EFORMAT,
 * CKPT_EVERSION and system errors, there is a record, and it cannot be read. The same list as of
 * ckpt_catalog_open(): it goes with the `remote` of its steps.
 */
CKPT_API int ckpt_catalog_remote(
	const struct ckpt_catalog *catalog, struct ckpt_remote_info *ret_info);
CKPT_API void ckpt_catalog_free(struct ckpt_catalog *catalog);

/* One thing that verification found wrong, one shard that it has finished, or one rank that is elsewhere. */
struct ckpt_finding {
	uint32_t size; /* sizeof(struct ckpt_finding), set by the caller */
	uint32_t rank;
	uint64_t step;
	uint64_t generation;
	/*
	 * Code 0: this shard is good. CKPT_EOTHERNODE: every node of the job has a store of its own, and what
	 * this rank wrote is not here, but in that of another one; that is nothing wrong.
	 */
	struct ckpt_error error;
	char node[72]; /* CKPT_EOTHERNODE: the name of the node that has it; else "" */
};

/*
 * Verifies one step: manifest, index, and every chunk of every shard against its digest. All findings
 * are kept, up to 1000. Returns 0 once it has started; ckpt_restore_wait() gives 0 when all is well,
 * CKPT_EINTEGRITY or CKPT_EINCOMPLETE for the first finding that something is wrong. Nothing is quarantined.
 * In the store of one node (CKPT_ENGINE_NODE_STORE) that is about the ranks that are here: each of the others is
 * a finding, CKPT_EOTHERNODE, and no failure. Only where no rank at all is here, that is the result.
 * The handle is a restore: wait, progress, cancel, error and free are those of restore.h.
 */
CKPT_API int ckpt_verify_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);
/*
 * The same of the structure alone: manifest, catalog and indexes against their digests, that every shard is there
 * with its exact length, and its header. No byte of a tensor is read, so none is known to be good; a shard that is
 * code 0 is whole, and progress counts the bytes of indexes.
 */
CKPT_API int ckpt_verify_quick_start(
	struct ckpt_engine *engine, uint64_t step, struct ckpt_restore **ret_restore);
CKPT_API size_t ckpt_verify_count(const struct ckpt_restore *restore);
CKPT_API int ckpt_verify_finding(
	const struct ckpt_restore *restore, size_t index, struct ckpt_finding *ret_finding);

/*
 * Copies one step, verified on the way, into directory `dest`, which becomes a store of its own that
 * holds this step (shards plain, index, claim and manifest as they are, durable in that order).
 * `dest` must not exist or be empty, or be a store of the same run. One that has this step already, with the same
 * manifest, is left as it is: that its files are there, with their sizes, is seen to, and that is all.
 * One that has another step of that number is -EEXIST.
 * A step of which some ranks are elsewhere is not copied: CKPT_EOTHERNODE.
 * One that is cancelled or killed, or fails because of the network, leaves what it has; the same again goes on with it,
 * and reads from the store only what is not there, or differs from its digest.
 * `dest` may be in a bucket. A step that is being sent from this store to that place already, by another process, or by an
 * export or the uploads of this one, is CKPT_EINUSE, in ckpt_restore_wait(): as far as locks on the files here tell.
 * The handle is a restore, as above.
 */
CKPT_API int ckpt_export_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	struct ckpt_restore **ret_restore);
/*
 * The same of the files of some ranks: `count` of them (0: all), in any order, copied from `ranks`. `dest` is a directory,
 * which becomes a store that holds just these: what others wrote is elsewhere, as in the store of one node, and readers
 * say so. More of them may be added to it, and to a step of it, later. A rank that the step has not is -EINVAL.
 * A store that was made otherwise is left alone: -EEXIST unless it has the step, and CKPT_EINCOMPLETE, say, if it has
 * the step and not all files of these ranks. So it is with the store that `engine` reads itself.
 */
CKPT_API int ckpt_export_ranks_start(struct ckpt_engine *engine, uint64_t step, const char *dest,
	const uint32_t *ranks, size_t count, struct ckpt_restore **ret_restore);
/* After it has ended well. 1: `dest` had the step already; 0: it was copied. */
CKPT_API int ckpt_export_existed(const struct ckpt_restore *restore);

/*
 * Removes a step: its manifest, then its shards. The engine must not be read only; the store must not
 * be held by another process. -EBUSY while it is open for restoring anywhere on this machine, and for
 * the only good step of the lineage. Where every node has a store of its own the newest step is to be removed
 * on all of them: a node that has it brings its manifest back to those that have not.
 */
CKPT_API int ckpt_catalog_remove(struct ckpt_engine *engine, uint64_t step);

/*
 * Removing steps from a store that others read and write without a lock that all of them see: a bucket, a directory
 * of several hosts. The engine is one of that store, and may be read only.
 *
 *   expire -> mark those that go -> some time -> a new list -> expire -> remove those that go and are marked;
 *   unmark those that are marked, and stay
 *
 * One that is marked (info.deleting) is not chosen as the latest any more, and no upload brings it back. Each step goes so
 * that an end at any moment leaves no step without a shard: whoever removes next goes on with it.
 *
 * Several may remove at a time. A mark is whose it is: mark those of the list that others have marked (info.deleting) as
 * well, whether they are to go or not, and this engine notes them. Whoever removes or unmarks takes over, after that time, one that has not changed
 * since, and no more: -EAGAIN. Wait as long again, take a new list, and do as it says. The same holds after a removal that
 * has failed: what was asked of the server may be under way still. A mark that was not noted, or has changed, is left
 * alone.
 */

/*
 * Says in the list which steps go: all of the lineage but the newest keep_last (1 at least) and those that keep_every
 * divides (0: none), those that were rolled back when keep_last newer ones are there, and what a removal has left that
 * was cut short. What is under way stays. CKPT_EINTEGRITY: the lineage is not known, and nothing goes. -EINVAL, -ENOMEM.
 */
CKPT_API int ckpt_catalog_expire(
	struct ckpt_catalog *catalog, uint64_t keep_last, uint64_t keep_every);
/*
 * One step of the list, by its index. -EINVAL: not what the list says of it (marked or removed only if it is to go,
 * removed only if it was marked, unmarked only if it is not to go, and its manifest could be read). CKPT_EINUSE: a live process holds the directory.
 * -EBUSY: it is read just now, or its mark is gone, or somebody else's. -EAGAIN: the mark was somebody else's, and is
 * this engine's now, or a removal has failed before. CKPT_EFENCED, which is looked for before each: a generation was claimed
 * since the list was made, and what is to go may be another: take a new list. System errors; the same again goes on.
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
