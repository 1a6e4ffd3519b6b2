/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine has one store open for one rank. It owns threads, staging memory, and a generation.
 *
 * Threads: every function may be called from any thread, and from several at once. Nothing may run
 * together with ckpt_engine_close(). Threads of the library block all signals. The library installs no
 * signal handlers. After fork() the child cannot use the handle: calls return CKPT_EFORKED.
 *
 * Many ranks (`world`) save and claim together, each with its own engine on the same store. Rank 0 manages
 * the store for all: keep_last, keep_every and pins of its engine apply, those of other ranks have no
 * effect. Rank 0 also holds the lock on the store.
 *
 * Timeouts are in milliseconds, see CKPT_FOREVER. A call without a timeout that needs the storage returns
 * -ETIMEDOUT if the storage does not answer within save_timeout_ms, or ten seconds if that is longer. The
 * operation continues in the background. A claim that was given up in this way may be repeated; the call
 * returns -EBUSY until the first one has ended.
 */
#ifndef CKPT_ENGINE_H
#define CKPT_ENGINE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What ckpt_save_start() does while the previous save is still running. If that save has ended but the storage still
 * holds its files, it waits ten seconds (WAIT; then -ETIMEDOUT) or one second (SKIP).
 *
 * With many ranks rank 0 decides for all whether a step is skipped. Other ranks wait in ckpt_save_start() for that
 * decision, or until their previous save is over. If the decision comes after the save has started, the save fails with
 * CKPT_ESKIPPED.
 */
enum ckpt_busy {
	CKPT_BUSY_WAIT = 0, /* wait for the previous save, up to its deadline */
	CKPT_BUSY_SKIP = 1  /* return CKPT_ESKIPPED */
};

/* How files are read and written. */
enum ckpt_io_kind {
	CKPT_IO_AUTO = 0,   /* io_uring if the kernel allows it, otherwise threads */
	CKPT_IO_URING = 1,  /* io_uring; opening fails without it */
	CKPT_IO_THREADS = 2 /* pread and pwrite on a pool of threads */
};

/*
 * What to do if ranks differ in tensors that must be equal (see ckpt_save_add_replicas()), or if two ranks have written
 * different bytes of the same box of a tensor.
 */
enum ckpt_replica_policy {
	CKPT_REPLICAS_CHECK = 0, /* abort the step on all ranks: CKPT_EREPLICA */
	CKPT_REPLICAS_WARN = 1   /* commit it; its manifest says that they differ */
};

/* How the tensors of a step are stored. Every step can be restored, whatever is set here. */
enum ckpt_encoding {
	CKPT_ENCODING_PLAIN = 0, /* as they are: the file of a rank is a safetensors file */
	/*
	 * Losslessly compressed. The file is smaller, and a restore gives the same bytes. Workers encode in the background,
	 * so it takes processor time; they have up to 16 encoders of about 20 MiB (with blocks of 8 MiB), one for each
	 * worker and two more. The first save allocates them.
	 */
	CKPT_ENCODING_COMPACT = 1,
	/*
	 * As COMPACT, and what has changed little since the last step as the difference to it: such a step needs that one, and
	 * retention keeps it. It is not done where the staging memory does not hold two states of this rank, with
	 * CKPT_ENGINE_NODE_STORE, in the first step of a process, after a step that failed, in steps that keep_every
	 * keeps or that go to a remote store, and after 16 steps or when the differences have come to as much as a step
	 * by itself.
	 */
	CKPT_ENCODING_DELTA = 2
};

/* How the tensors of a step are stored in the remote store. */
enum ckpt_remote_encoding {
	CKPT_REMOTE_AS_STORED = 0, /* as in the local store */
	CKPT_REMOTE_PLAIN = 1,     /* as they are: files that are compressed here are decoded */
	/*
	 * Losslessly compressed: plain files are encoded when they are uploaded, by one worker, with a low priority. The
	 * file is read again from the disk. It takes about 75 MiB of memory with blocks of 8 MiB.
	 */
	CKPT_REMOTE_COMPACT = 2
};

/* Options. A field of 0 or NULL has its default. Strings are copied. Later versions only append fields. */
struct ckpt_engine_opts {
	uint32_t size;  /* sizeof(struct ckpt_engine_opts) */
	uint32_t flags; /* CKPT_ENGINE_* */
	/*
	 * Bytes of staging memory, at least four blocks. 0: it adapts itself. It begins with an eighth of the memory that
	 * this rank may use, at most 1 GiB. If that is less than the rank's shard, it grows behind the first save.
	 *
	 * The ranks of a node together use at most half of the memory that is available then. Their number is `node_ranks`,
	 * or LOCAL_WORLD_SIZE of the environment, or `world`. Ranks of one session divide the memory by a file in /dev/shm: a
	 * rank that needs less than an equal share leaves the rest to the others. Without that file the shares are equal.
	 *
	 * The log says how much it is, and warns if that is less than the shard. Then saves wait for the disk, and later
	 * saves try again to get memory. Between saves the engine returns memory that the last eight saves did not need, and
	 * memory that the machine needs. It does not grow if the address space is limited (ulimit -v).
	 */
	uint64_t pool_bytes;
	uint32_t block_bytes;  /* bytes of a block, a power of two, 64 KiB to 64 MiB; 0: 8 MiB */
	uint32_t copy_threads; /* at most 64; 0: as many as the CPUs of this process, at most 4 */
	uint32_t io;           /* enum ckpt_io_kind */
	uint32_t io_depth;     /* block requests in flight, at most 1024; 0: 16 */
	uint32_t busy;         /* enum ckpt_busy */
	uint32_t save_timeout_ms; /* a save that is not durable by then has failed, see
	                               ckpt_save_wait(); 0: 600000 */
	uint64_t keep_last;       /* keep the newest k committed steps; 0: all */
	uint64_t keep_every;      /* also keep every step that is a multiple of n; 0: none */
	uint32_t log_level;       /* enum ckpt_log_level; 0: CKPT_LOG_INFO */
	uint32_t rank;            /* number of this process, 0 to world - 1 */
	uint32_t world;           /* number of processes that save together, at most 50000; 0: 1 */
	/*
	 * The number of the job's processes on this node. 0: not known; several, if world is more than 1. What several of
	 * them restore is read once, through the page cache, see CKPT_TARGET_SHARED. With 1 nothing is.
	 */
	uint32_t node_ranks;
	/*
	 * With a world of more than 1: a name of this start of the job, the same on all ranks. No other start may have
	 * it: use the launcher's job id and restart count, or random digits that rank 0 has sent to the others. 1 to 64
	 * characters of A-Z a-z 0-9 . _ -, not beginning with a dot. A name that was used before is -EINVAL, unless the
	 * engine is read only.
	 */
	const char *session;
	/*
	 * With a world of more than 1: the service for messages between ranks, see ckpt/exchange.h. NULL: files in the
	 * store. All ranks must use the same kind. The program frees it after the engine.
	 */
	struct ckpt_exchange_server *exchange;
	/* With CKPT_ENGINE_NODE_STORE: the lowest rank on this node. It manages the store of the node. */
	uint32_t node_leader;
	/*
	 * The major version of the CUDA runtime of the program's tensors; 0: that of the runtime that the process has
	 * loaded. CUDA is not loaded or called before the first tensor on a GPU.
	 */
	uint32_t cuda_major;
	/*
	 * The name of this node in manifests: at most 64 bytes of UTF-8 without control characters. NULL: the name of
	 * the host.
	 */
	const char *node;
	/*
	 * The remote store: "s3://bucket/prefix", or a directory, "file:///mnt/shared/run42", whose parent exists. NULL:
	 * none. Committed steps are uploaded to it in the background, also those that exist when the engine is opened. It
	 * becomes a store of this run; the store of another run is refused. All ranks give the same. Each uploads its own
	 * part, and rank 0 publishes the manifest. Local retention keeps a step until it is uploaded, unless the local disk
	 * is full.
	 */
	const char *remote;
	uint64_t remote_every;       /* upload only multiples of n; 0: all steps */
	uint64_t remote_bytes_per_s; /* of this node: its ranks share it; 0: no limit */
	uint32_t remote_tries; /* stop uploading after as many failed tries in a row; 0: never */
	/*
	 * Retention in the remote store: rank 0 keeps the newest k steps of the lineage and the multiples of n, and deletes
	 * the others. It first writes a tombstone beside a step, and deletes the step after a grace period, so that others
	 * may read there meanwhile. A job that ends earlier leaves that to the next one. Steps that have k newer ones there
	 * are not uploaded at a start. The grace period must be longer than a restore takes, and at least 600 s if others
	 * delete there, too.
	 */
	uint64_t remote_keep_last;  /* k; 0: nothing is deleted there */
	uint64_t remote_keep_every; /* n; 0: none */
	uint32_t remote_grace_s;    /* the grace period in seconds; 0: 1800 */
	uint32_t reserved;          /* 0 */
	uint32_t replicas;          /* enum ckpt_replica_policy; that of rank 0 applies */
	uint32_t encoding;          /* enum ckpt_encoding, of what this rank saves */
	uint32_t remote_encoding;   /* enum ckpt_remote_encoding, of what this rank uploads */
};

/* Start a new lineage and ignore the steps of the store. */
#define CKPT_ENGINE_NEW_START 1u
/* Read only: claims and creates nothing. The store may have a live writer. */
#define CKPT_ENGINE_READ_ONLY 2u

/* With `remote`: import nothing from there, see ckpt_engine_import(). */
#define CKPT_ENGINE_NO_IMPORT 8u

/*
 * Every node of the job has its own store at `path` (on its NVMe, for example). Ranks write into the store of their
 * node and read from it. A step is committed when all ranks have written their files, and then each store has its
 * manifest. What is in the store of another node is not available: CKPT_EOTHERNODE.
 *
 * A world of more than 1 needs `exchange` and `node_leader`. Opening waits for all ranks: their stores must belong to one
 * run, and a manifest that one of them lacks is copied from another. Rank 0 decides what is committed. The leader of each
 * node manages its store as rank 0 manages a shared one: its keep_last, keep_every and pins apply.
 *
 * A store is marked as that of one node or as shared when it is created. Opening it as the other is refused (-EINVAL),
 * except with a world of 1.
 */
#define CKPT_ENGINE_NODE_STORE 4u

/*
 * With CKPT_ENGINE_NODE_STORE, on all ranks: nodes were lost with their disks for good.
 *
 * A restore of the newest step fails with CKPT_EOTHERNODE if the store of some node has no file of that step. With this
 * flag the next restore of the newest step then gets the next older one. So the job gets to the newest step that all its
 * nodes have. The log lists the steps that were passed over.
 *
 * A step is not passed over, and the same one is chosen again, if `remote` has it, or has what the store of rank 0 lacks of
 * it, or does not answer, or if the store of rank 0 has the files of all its ranks. The error of rank 0 says so. Nor is it
 * passed over if ranks were only started on other nodes than before.
 *
 * ckpt_engine_import() also imports the newest step of `remote` into a store that has newer steps and lacks it, and fails
 * if that is not possible, because otherwise that step would be given up, too.
 *
 * Nothing is recorded in a store. Without this flag the newer steps are chosen again, until the job has claimed a
 * generation. After that they are in no lineage, and are not uploaded.
 */
#define CKPT_ENGINE_LOST_NODES 16u

/*
 * Opens the store at `path`: a directory (or file:///DIRECTORY), which is created if it does not exist (its parent must
 * exist), or, read only, s3://BUCKET/PREFIX. `opts` may be NULL. Reads the store, and claims no generation yet. The caller
 * closes the engine with ckpt_engine_close().
 * Errors: CKPT_EINUSE (a live process on this machine holds the store), CKPT_EVERSION, CKPT_EFORMAT, CKPT_ENOSTORE (read
 * only), -EINVAL (an option), -ENOTDIR, -EACCES, -EROFS, -ENOSPC, -ENOMEM, -EAGAIN (no thread),
 * CKPT_EUNSUPPORTED (a bucket, without S3 or for writing), and those of ckpt_engine_import().
 */
CKPT_API int ckpt_engine_open(
	const char *path, const struct ckpt_engine_opts *opts, struct ckpt_engine **ret_engine);

/*
 * Imports the newest step of opts->remote that verifies, and all claims, into the directory `path`, if the remote store
 * is ahead of it. *ret_generation and *ret_step are those of the imported step. Returns 0 and a generation of 0 if there
 * is nothing to import, or if the remote store does not answer and the directory has a step to resume from.
 *
 * With a world of 1 ckpt_engine_open() does this itself, unless it is read only, a new start, or CKPT_ENGINE_NO_IMPORT.
 * With a larger world one process of each store calls it before any rank opens that store.
 *
 * Errors: CKPT_ELEVEL (no remote store), CKPT_EMISMATCH (the store of another run, or the two stores have diverged),
 * CKPT_EINUSE, -EINVAL; and CKPT_ENETWORK, CKPT_EAUTH and others of the remote store, if the directory has no step: it is
 * not known then whether there is a step to resume from.
 */
CKPT_API int ckpt_engine_import(const char *path, const struct ckpt_engine_opts *opts,
	uint64_t *ret_generation, uint64_t *ret_step);

/*
 * The same for the store of one node, with CKPT_ENGINE_NODE_STORE. `ranks` are the numbers of the `count` ranks on this
 * node, out of `world`. If as many ranks saved the step with CKPT_ENGINE_NODE_STORE, and these ranks shared their store
 * with no others, only their files are imported; otherwise the whole step. Call it only if each rank restores what it
 * saved. The restore of a rank that needs what ranks of another node saved fails with CKPT_EOTHERNODE.
 * Errors: those of ckpt_engine_import(), and -EINVAL for `ranks`.
 */
CKPT_API int ckpt_engine_import_ranks(const char *path, const struct ckpt_engine_opts *opts,
	const uint32_t *ranks, size_t count, uint32_t world, uint64_t *ret_generation,
	uint64_t *ret_step);

/*
 * Waits up to timeout_ms until every running save is durable or has failed. Returns 0, or -ETIMEDOUT if one is still
 * running.
 */
CKPT_API int ckpt_engine_drain(struct ckpt_engine *engine, int timeout_ms);

/*
 * Waits up to timeout_ms until every committed step is in the remote store or has failed for good. Returns 0, the error
 * of the first step that has failed, -ETIMEDOUT if steps are still pending, or CKPT_ELEVEL without `remote`.
 */
CKPT_API int ckpt_engine_drain_remote(struct ckpt_engine *engine, int timeout_ms);

/*
 * Closes the engine and frees it. Running saves, restores and uploads are aborted: call ckpt_engine_drain() first. NULL
 * is ignored. Handles of saves and restores may still be queried, and must still be freed. If the storage does not answer
 * within ten seconds, its requests, with their memory and thread, are abandoned, and the log says so.
 */
CKPT_API void ckpt_engine_close(struct ckpt_engine *engine);

/* The number of the newest good step of the lineage. Errors: CKPT_ENOSTEP (there is none). */
CKPT_API int ckpt_engine_latest(struct ckpt_engine *engine, uint64_t *ret_step);

/*
 * Claims a new generation. Its parent is the step of the last ckpt_restore_adopt(); it has no parent if the store has no
 * commits, or with CKPT_ENGINE_NEW_START. The first ckpt_save_start() does this itself. Waits for the storage. Claiming
 * again returns the same generation. `ret_generation` may be NULL.
 *
 * With a world of more than 1 rank 0 claims for all. The others wait for its claim, or for the error of rank 0.
 * Errors: CKPT_EINUSE, CKPT_ENOTRESUMED, CKPT_EMISMATCH (this rank has not adopted the same step as rank 0), system
 * errors.
 */
CKPT_API int ckpt_engine_claim(struct ckpt_engine *engine, uint64_t *ret_generation);

/*
 * Protects `step` from retention until it is unpinned or the engine is closed. With many ranks only pins of rank 0 (of each
 * node leader, with CKPT_ENGINE_NODE_STORE) have an effect.
 */
CKPT_API int ckpt_engine_pin(struct ckpt_engine *engine, uint64_t step);
CKPT_API int ckpt_engine_unpin(struct ckpt_engine *engine, uint64_t step);

/*
 * An eventfd that is readable when a save or restore has reached a level or failed, or when there is a log
 * line. The engine owns it. Read eight bytes from it to clear it.
 */
CKPT_API int ckpt_engine_eventfd(const struct ckpt_engine *engine);

/* Why equality of ranks was not checked: bits of ckpt_stats.unchecked. The log has details. */
enum ckpt_unchecked {
	CKPT_UNCHECKED_GPU = 1,    /* a GPU of this rank cannot sample its memory */
	CKPT_UNCHECKED_MEMORY = 2, /* a save had no memory for digests, or a GPU failed */
	CKPT_UNCHECKED_BOXES = 4,  /* rank 0: boxes of several ranks that cannot be compared */
	/* rank 0: there are more boxes than are compared, or no memory; some may be of several ranks */
	CKPT_UNCHECKED_MANY = 8
};

/*
 * Returns the same bits, without waiting for the engine's thread. `ret_boxes` may be NULL. With CKPT_UNCHECKED_BOXES it
 * gets the name and the ranks of the first such tensor, and the number of further ones; otherwise "". The string is valid
 * until the engine is closed.
 */
CKPT_API uint64_t ckpt_engine_unchecked(const struct ckpt_engine *engine, const char **ret_boxes);

/*
 * Returns what the commits of this engine have found about a group of ckpt_save_set_own(): CKPT_OWN_NONE (all ranks hold
 * the same, so one of them may write it for all), CKPT_OWN_DIFFERS, or CKPT_OWN_UNKNOWN. A result does not change later.
 * Errors: CKPT_EFORKED.
 */
CKPT_API int ckpt_engine_own(struct ckpt_engine *engine, uint64_t group);

/* Counters since the engine was opened. Sizes are in bytes, fields _ns in nanoseconds, fields _ms in milliseconds. */
struct ckpt_stats {
	uint32_t size;          /* sizeof(struct ckpt_stats), set by the caller */
	uint32_t io;            /* enum ckpt_io_kind in use: CKPT_IO_URING or CKPT_IO_THREADS */
	uint32_t io_direct;     /* 1: O_DIRECT; 0: through the page cache */
	uint32_t io_registered; /* 1: staging memory is registered with io_uring */
	uint64_t generation;    /* 0: none claimed yet */
	uint64_t saves_started;
	uint64_t saves_committed;
	uint64_t saves_failed;
	uint64_t saves_skipped; /* because of CKPT_BUSY_SKIP */
	uint64_t saves_waited;  /* because of CKPT_BUSY_WAIT */
	uint64_t saves_waited_ns;
	uint64_t bytes_staged;
	uint64_t bytes_written;
	uint64_t bytes_read;
	uint64_t fsyncs;
	uint64_t steps_removed; /* deleted by retention */
	uint64_t pool_bytes;    /* staging memory; it may grow and shrink */
	uint64_t pool_touched;  /* the part of it that is backed by pages */
	uint64_t pool_starved;  /* blocks that had to wait for a free slot */
	uint64_t pool_huge;     /* 1: huge pages are in use or advised */
	uint64_t last_step;     /* the newest step that this engine has committed */
	uint64_t last_stage_ns; /* of the last save: start to STAGED */
	uint64_t last_local_ns; /* of the last save: start to LOCAL */
	uint64_t last_eager_ns; /* of the last save: start to the copies of its eager tensors */
	uint64_t threads;       /* number of threads of the engine */
	/* The remote store; all 0 without one. */
	/*
	 * Bytes of shards that this rank has verified and sent. An encoded shard counts as the bytes that it holds,
	 * however few were sent for them. What is sent again counts again.
	 */
	uint64_t bytes_uploaded;
	uint64_t uploads_done;    /* steps */
	uint64_t uploads_failed;  /* steps that failed for good; see the log */
	uint64_t uploads_retried; /* failed tries */
	uint64_t uploads_waiting; /* pending steps: committed, and not in the remote store yet */
	uint64_t
		uploads_waiting_bytes; /* of them, of this rank, as far as known; as bytes_uploaded */
	uint64_t remote_generation;    /* of the newest step that is known to be there */
	uint64_t remote_step;
	uint64_t remote_wall_ms;        /* when it was there, since the epoch; 0: none is known */
	uint64_t remote_steps_deleting; /* with a tombstone there, of any writer */
	uint64_t remote_steps_removed;  /* deleted there because of remote_keep_last */
	uint64_t remote_failing_ms; /* since when uploads fail, since the epoch; 0: they do not */
	int64_t remote_code; /* why uploads fail (CKPT_EINUSE: another process sends); 0: they do not */
	uint64_t bytes_uploaded_staged; /* part of bytes_uploaded: from staging memory */
	uint64_t unchecked;             /* enum ckpt_unchecked */
};

/* Copies the counters. Errors: -EINVAL (`size` is not set), CKPT_EFORKED. */
CKPT_API int ckpt_engine_stats(struct ckpt_engine *engine, struct ckpt_stats *ret_stats);

enum ckpt_log_level {
	CKPT_LOG_ERROR = 1,
	CKPT_LOG_WARN = 2,
	CKPT_LOG_INFO = 3,
	CKPT_LOG_DEBUG = 4
};

struct ckpt_log_record {
	uint32_t size;    /* sizeof(struct ckpt_log_record), set by the caller */
	uint32_t level;   /* enum ckpt_log_level */
	uint64_t wall_ms; /* since the epoch */
	uint64_t dropped; /* lines lost before this one, because they were not read in time */
	char message[1024];
};

/*
 * Returns the oldest log line that was not read yet; waits up to timeout_ms for one. The last 256 lines are kept.
 * Errors: -ETIMEDOUT (there is none), CKPT_ECLOSED (there is none and ckpt_engine_stop_log() was called), -EINVAL.
 */
CKPT_API int ckpt_engine_log(
	struct ckpt_engine *engine, int timeout_ms, struct ckpt_log_record *ret_record);

/*
 * Ends the wait of a thread in ckpt_engine_log(), which returns CKPT_ECLOSED when no line is left. Call it before
 * ckpt_engine_close().
 */
CKPT_API void ckpt_engine_stop_log(struct ckpt_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
