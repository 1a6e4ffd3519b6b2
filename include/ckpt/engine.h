/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An engine is one rank's hold on a store: its threads, its staging memory, its generation.
 *
 * Threads: every function may be called from any thread, except that nothing may run beside
 * ckpt_engine_close(). Library threads block all signals; the library installs no handlers.
 * After fork() the child's handle is inert: every call returns CKPT_EFORKED.
 *
 * Many ranks (`world`) save and claim together, each with an engine of its own on one store. Rank 0 keeps the
 * store for all: keep_last, keep_every and pins are those of its engine, and without effect on others. The
 * lock that tells whether the job lives is rank 0's, too.
 *
 * Calls without a timeout of their own that need the storage return -ETIMEDOUT when it has not answered
 * within save_timeout_ms, and not before ten seconds. What they began goes on; a claim that was given
 * up this way may be asked for again, and is refused with -EBUSY until the first has ended.
 */
#ifndef CKPT_ENGINE_H
#define CKPT_ENGINE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What to do with a save that comes while the last one still runs. One that has ended, and whose files the
 * storage still holds, is waited for ten seconds (WAIT; then -ETIMEDOUT) or one (SKIP).
 *
 * With many ranks rank 0 decides for all whether a step is skipped. Another one waits in ckpt_save_start()
 * until it hears that, or until its last save is over; it may also hear of it when the step has begun, and
 * that save has then failed with CKPT_ESKIPPED.
 */
enum ckpt_busy {
	CKPT_BUSY_WAIT = 0, /* ckpt_save_start() waits for the last one, up to its deadline */
	CKPT_BUSY_SKIP = 1  /* ckpt_save_start() returns CKPT_ESKIPPED */
};

/* How to reach the disk. */
enum ckpt_io_kind {
	CKPT_IO_AUTO = 0,   /* io_uring where the kernel allows it, else threads */
	CKPT_IO_URING = 1,  /* io_uring, or fail */
	CKPT_IO_THREADS = 2 /* pread and pwrite on a pool of threads */
};

/*
 * What to do when ranks differ in what they hold alike, see ckpt_save_add_replicas(); or when two ranks have written
 * different bytes of the same box of a tensor.
 */
enum ckpt_replica_policy {
	CKPT_REPLICAS_CHECK = 0, /* the step fails for all ranks: CKPT_EREPLICA */
	CKPT_REPLICAS_WARN = 1   /* it is committed, and its manifest says that they differ */
};

/* Zero is the default of every field. Fields are only ever appended. */
struct ckpt_engine_opts {
	uint32_t size;  /* sizeof(struct ckpt_engine_opts) */
	uint32_t flags; /* CKPT_ENGINE_* */
	/*
	 * Staging budget; at least four blocks are kept. 0: the engine begins with an eighth of the memory that this rank
	 * may use, 1 GiB at most. If that does not hold the rank's shard, it grows behind the first save until it does.
	 * The ranks of a node have at most half of the memory that is available then; how many they are is `node_ranks`, or
	 * else LOCAL_WORLD_SIZE of the environment, or else `world`. Ranks of one session agree on it by a file in /dev/shm:
	 * who needs less than an even share leaves the rest to the others. Where they cannot, the shares are even. The log
	 * says how much it is, and warns where it is less than the shard: saves wait for the disk then, and later ones ask
	 * again for memory. Between saves it gives back what the last eight have not needed, and when the machine has little
	 * memory left. It does not grow where address space is limited (ulimit -v).
	 */
	uint64_t pool_bytes;
	uint32_t block_bytes;  /* what moves at once; 0: 8 MiB; a power of two, 64 KiB to 64 MiB */
	uint32_t copy_threads; /* 0: the CPUs this process may run on, 4 at most */
	uint32_t io;           /* enum ckpt_io_kind */
	uint32_t io_depth;     /* block requests in flight at once; 0: 16 */
	uint32_t busy;         /* enum ckpt_busy */
	uint32_t save_timeout_ms; /* an attempt that is not durable by then has failed, see
	                               ckpt_save_wait(); 0: 600000 */
	uint64_t keep_last;       /* keep the newest k committed steps; 0: keep all */
	uint64_t keep_every;      /* keep also every step divisible by n; 0: none */
	uint32_t log_level;       /* enum ckpt_log_level; 0: CKPT_LOG_INFO */
	uint32_t rank;            /* of this process, 0 to world - 1 */
	uint32_t world;           /* processes that save together, 50000 at most; 0: 1 */
	uint32_t node_ranks; /* of the job's processes, how many run on this node; 0: not known, and
	                               with a world of more than 1 taken to be several. What several
	                               of them restore is read through the page cache, once, see
	                               ckpt_target.flags; 1: nothing is */
	/*
	 * With a world of more than 1: a name that all its ranks give, and no other incarnation of the
	 * job ever has (a launcher's job id and restart count, or random digits that rank 0 has told the
	 * others). 1 to 64 of A-Z a-z 0-9 . _ -, not beginning with a dot. Borrowed until the return.
	 * Opening with one that was used before fails with -EINVAL, unless read only.
	 */
	const char *session;
	/*
	 * With a world of more than 1: who carries what the ranks tell each other, see ckpt/exchange.h.
	 * NULL: files in the store. The same kind on all ranks.
	 */
	struct ckpt_exchange_server *exchange;
	/* With CKPT_ENGINE_NODE_STORE: the lowest of the job's ranks on this node. It keeps the node's store. */
	uint32_t node_leader;
	/*
	 * The major version of the CUDA that the program's tensors are of, if it knows; 0: of whichever runtime it
	 * has loaded. Nothing of CUDA is loaded or called before the first tensor on a GPU.
	 */
	uint32_t cuda_major;
	/*
	 * What the manifests call this node, at most 64 bytes of UTF-8 without control characters; borrowed
	 * until the return. NULL: the host's name.
	 */
	const char *node;
	/*
	 * Where committed steps go on to by themselves, behind the training: "s3://bucket/prefix", or a directory,
	 * "file:///mnt/shared/run42", whose parent exists. It becomes a store of this run; one of another run is refused.
	 * What is found at the opening and is not there goes, too. All ranks give the same, each sends its own part, and
	 * rank 0 publishes. Until a step is there the local retention keeps it, unless the local disk is full.
	 * Borrowed until the return. NULL: nowhere.
	 */
	const char *remote;
	uint64_t remote_every;       /* only steps divisible by n go there; 0: all */
	uint64_t remote_bytes_per_s; /* of this node: its ranks share it; 0: no bound */
	uint32_t
		remote_tries; /* that fail in a row, and nothing is uploaded any more; 0: for ever */
	/*
	 * What rank 0 keeps there: the newest k steps of the lineage, and every step divisible by n, as keep_last and
	 * keep_every do here. What is to go is marked first, and removed after a grace, so that others may read there
	 * meanwhile; a job that ends sooner leaves that to the next. A start sends nothing that has k newer ones there.
	 */
	uint64_t remote_keep_last;  /* 0: nothing is removed there */
	uint64_t remote_keep_every; /* 0: none */
	uint32_t
		remote_grace_s; /* longer than a restore from there takes; 600 at least where others remove; 0: 1800 */
	uint32_t reserved; /* 0; where structs of before had padding */
	uint32_t replicas; /* enum ckpt_replica_policy; rank 0's */
};

/* Take back what the last process left, start a lineage of its own, and ignore the steps there. */
#define CKPT_ENGINE_NEW_START 1u
/* Read only: claims nothing, creates nothing, and may be opened beside a live writer. */
#define CKPT_ENGINE_READ_ONLY 2u

/* With `remote`: bring nothing from there, whatever it has; see ckpt_engine_import(). */
#define CKPT_ENGINE_NO_IMPORT 8u

/*
 * Every node of the job has a store of its own at `path` (its NVMe), and not all one that they share. Ranks
 * write into the store of their node, and read what lies there; a step is committed when all have written
 * theirs, and each store then holds its manifest. With a world of more than 1 it needs `exchange` and
 * `keeper`, and opening waits for all ranks: their stores must be of one run, and a manifest that one of
 * them lacks is brought from another. Rank 0 decides as ever; each node's keeper does for its store what rank
 * 0 does for one that is shared: keep_last, keep_every and pins are those of every keeper. What lies in the
 * store of another node is not had from there: CKPT_EOTHERNODE. A store is marked as of one node or as
 * shared when it is made, and opening it as the other is refused (-EINVAL), unless by a world of 1.
 */
#define CKPT_ENGINE_NODE_STORE 4u

/*
 * With CKPT_ENGINE_NODE_STORE, on all ranks: nodes were lost with their disks, and nobody will bring these back. A restore
 * of the latest step still fails with CKPT_EOTHERNODE if the store of some node has no file of that step, and whoever asks
 * for the latest again is given the next older one: so the job comes to the newest step that all its nodes have. The log
 * says which steps were passed over. A step is not passed over, and the same one is given again, if `remote` has it, or
 * what rank 0's store lacks of it, or cannot be asked for it, or if rank 0's store has the files of all its ranks; the
 * error of rank 0 says so. Nor is it if
 * ranks are only on other nodes than before. ckpt_engine_import() brings the newest step of `remote` also into a store that
 * has newer ones and lacks it, and fails if that is not possible: without it that step would be given up, too. Nothing is
 * noted in a store: without this flag the newer steps are asked for again, until this job has claimed a generation of its
 * own; then they are in no lineage any more, and are not uploaded.
 */
#define CKPT_ENGINE_LOST_NODES 16u

/*
 * Opens the store at directory `path`, which is created if need be (its parent must exist).
 * `opts` may be NULL. Reads what is there; claims no generation yet.
 * Errors: CKPT_EINUSE when a live process on this machine holds it, CKPT_EVERSION, CKPT_EFORMAT,
 * CKPT_ENOSTORE (read only), -ENOTDIR, -EACCES, -EROFS, -ENOSPC, -ENOMEM, -EAGAIN (no thread).
 */
CKPT_API int ckpt_engine_open(
	const char *path, const struct ckpt_engine_opts *opts, struct ckpt_engine **ret_engine);

/*
 * Brings the run back from opts->remote into the directory `path`, if there is more than here: the newest step that
 * verifies, and all claims. 0, and a generation of 0, if there is nothing to bring, or if the remote store cannot be
 * asked and the local one has a step to go on from. With a world of 1 ckpt_engine_open() does it by itself,
 * unless it is read only or a new start. With more, one process of each store does, before any rank opens it.
 * Errors: CKPT_ELEVEL (no remote), CKPT_EMISMATCH (another run, or the two stores have gone apart), CKPT_EINUSE;
 * CKPT_ENETWORK, CKPT_EAUTH and others of the remote store, if there is nothing to go on from here:
 * then nobody knows whether there is something to resume.
 */
CKPT_API int ckpt_engine_import(const char *path, const struct ckpt_engine_opts *opts,
	uint64_t *ret_generation, uint64_t *ret_step);

/*
 * The same for the store of one node, with CKPT_ENGINE_NODE_STORE: `ranks` are the `count` ranks of the job that are on
 * this node, of `world` in all. If the step was saved by as many ranks with CKPT_ENGINE_NODE_STORE, and these shared
 * their stores with no other ranks, only their files are brought, as every node had them when it was saved. Else all of
 * the step is. Call it only if each rank wants what it saved: of a rank that wants what ranks of another node saved the
 * restore fails with CKPT_EOTHERNODE. Errors: also -EINVAL.
 */
CKPT_API int ckpt_engine_bring_ranks(const char *path, const struct ckpt_engine_opts *opts,
	const uint32_t *ranks, size_t count, uint32_t world, uint64_t *ret_generation,
	uint64_t *ret_step);

/*
 * Waits until every save under way is durable or has failed, at most timeout_ms.
 * -ETIMEDOUT if something is still under way.
 */
CKPT_API int ckpt_engine_drain(struct ckpt_engine *engine, int timeout_ms);

/*
 * Waits until every step that was committed is in the remote store, or will never be, at most timeout_ms. Returns
 * the failure of the first that will not; -ETIMEDOUT if something is still on its way; CKPT_ELEVEL without
 * `remote`.
 */
CKPT_API int ckpt_engine_drain_remote(struct ckpt_engine *engine, int timeout_ms);

/*
 * Ends the engine and frees it. What is under way is aborted, uploads as well: drain first. NULL is ignored. Save and
 * restore handles stay valid to ask and must still be freed. Storage that does not answer within ten
 * seconds is abandoned, its memory and thread with it, and the log says so.
 */
CKPT_API void ckpt_engine_close(struct ckpt_engine *engine);

/* The newest step of the lineage that may be restored. CKPT_ENOSTEP if there is none. */
CKPT_API int ckpt_engine_latest(struct ckpt_engine *engine, uint64_t *ret_step);

/*
 * Claims a new generation whose parent is the step last restored through this engine (see
 * ckpt_restore_adopt), or no step on a store without commits and with CKPT_ENGINE_NEW_START.
 * The first ckpt_save_start() does it by itself. Waits for the disk.
 * With a world of more than 1 rank 0 claims for all, and the others wait for its claim, or hear why there is
 * none; CKPT_EMISMATCH if they have not adopted what it has.
 * Errors: CKPT_EINUSE, CKPT_ENOTRESUMED, system errors. Claiming twice is not an error.
 */
CKPT_API int ckpt_engine_claim(struct ckpt_engine *engine, uint64_t *ret_generation);

/* Keeps `step` whatever the retention says, until unpinned. For the life of the engine; of rank 0's, if many. */
CKPT_API int ckpt_engine_pin(struct ckpt_engine *engine, uint64_t step);
CKPT_API int ckpt_engine_unpin(struct ckpt_engine *engine, uint64_t step);

/*
 * A descriptor that is readable when something has changed: a save or restore reached a level or
 * failed, or a log line waits. Owned by the engine; read eight bytes from it to clear it.
 */
CKPT_API int ckpt_engine_eventfd(const struct ckpt_engine *engine);

/* Why it was not found out whether ranks hold the same: bits of ckpt_stats.unproved. The log has more. */
enum ckpt_unchecked {
	CKPT_UNCHECKED_GPU = 1,    /* a GPU of this rank takes no samples of its memory */
	CKPT_UNCHECKED_MEMORY = 2, /* at a save there was no memory for digests, or a GPU failed */
	CKPT_UNCHECKED_BOXES = 4,  /* rank 0: boxes of several ranks that cannot be compared */
	/* Rank 0: there are more boxes than are compared, or there was no memory. That any is of several ranks is not said. */
	CKPT_UNCHECKED_MANY = 8
};

/*
 * The same bits, without asking the engine's thread. *ret_boxes, unless `ret_boxes` is NULL: with CKPT_UNCHECKED_BOXES
 * the first tensor of which it is so, its ranks, and how many more there are; else "". Valid as long as the engine.
 */
CKPT_API uint64_t ckpt_engine_unchecked(const struct ckpt_engine *engine, const char **ret_boxes);

/*
 * What the commits of this engine have found of a group of ckpt_save_set_own(): CKPT_OWN_NONE if all ranks hold the same,
 * so that one of them may write it for all; CKPT_OWN_DIFFERS; or CKPT_OWN_UNKNOWN. What was found once stays. CKPT_EFORKED.
 */
CKPT_API int ckpt_engine_own(struct ckpt_engine *engine, uint64_t group);

/* Counters since the engine was opened. Times in nanoseconds, sizes in bytes. */
struct ckpt_stats {
	uint32_t size;          /* sizeof(struct ckpt_stats), set by the caller */
	uint32_t io;            /* enum ckpt_io_kind in use: URING or THREADS */
	uint32_t io_direct;     /* 1: O_DIRECT; 0: through the page cache */
	uint32_t io_registered; /* 1: staging is registered with the ring */
	uint64_t generation;    /* 0: none claimed yet */
	uint64_t saves_started;
	uint64_t saves_committed;
	uint64_t saves_failed;
	uint64_t saves_skipped; /* by CKPT_BUSY_SKIP */
	uint64_t saves_waited;  /* by CKPT_BUSY_WAIT */
	uint64_t saves_waited_ns;
	uint64_t bytes_staged;
	uint64_t bytes_written;
	uint64_t bytes_read;
	uint64_t fsyncs;
	uint64_t steps_removed; /* by retention */
	uint64_t pool_bytes;    /* staging memory; it may grow, and shrink */
	uint64_t pool_touched;  /* of it, backed by pages already */
	uint64_t pool_starved;  /* blocks that had to wait for a free slot */
	uint64_t pool_huge;     /* 1: huge pages asked for and granted or advised */
	uint64_t last_step;     /* newest step committed by this engine */
	uint64_t last_stage_ns; /* of the last save: start to STAGED */
	uint64_t last_local_ns; /* of the last save: start to LOCAL */
	uint64_t last_eager_ns; /* of the last save: start until its eager tensors were copied */
	uint64_t threads;       /* threads that the engine runs */
	/* Of the remote store; 0 without. */
	uint64_t bytes_uploaded;        /* verified and sent by this rank */
	uint64_t uploads_done;          /* steps */
	uint64_t uploads_failed;        /* steps that will not be there; see the log */
	uint64_t uploads_retried;       /* tries that failed */
	uint64_t uploads_waiting;       /* steps that are committed here, and not there yet */
	uint64_t uploads_waiting_bytes; /* of this rank, as far as it is known */
	uint64_t remote_generation;     /* of the newest step that this engine knows to be there */
	uint64_t remote_step;
	uint64_t remote_wall_ms;        /* when it was there, since the epoch; 0: none is known */
	uint64_t remote_steps_deleting; /* marked there, by whomever */
	uint64_t remote_steps_removed;  /* by remote_keep_last */
	uint64_t
		remote_failing_ms; /* since when tries to send fail, since the epoch; 0: they do not */
	int64_t remote_code;       /* why (CKPT_EINUSE: another one sends it); 0: they do not */
	uint64_t bytes_uploaded_staged; /* of bytes_uploaded: out of staging, and not read again */
	uint64_t unchecked;             /* enum ckpt_unchecked */
};

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
	uint64_t dropped; /* lines lost since the last record because nobody read them */
	char message[1024];
};

/*
 * The oldest log line that has not been read; waits up to timeout_ms for one. The last 256 are kept.
 * -ETIMEDOUT if there is none, CKPT_ECLOSED once ckpt_engine_stop_log() was called and none is left.
 */
CKPT_API int ckpt_engine_log(
	struct ckpt_engine *engine, int timeout_ms, struct ckpt_log_record *ret_record);

/* Makes a thread that waits in ckpt_engine_log() return CKPT_ECLOSED. Call it before closing. */
CKPT_API void ckpt_engine_stop_log(struct ckpt_engine *engine);

#ifdef __cplusplus
}
#endif

#endif
