/* SPDX-License-Identifier: Apache-2.0 */
/* What a save consists of; for save*.c and save/pipeline.c only. */
#ifndef CKPT_ENGINE_SAVE_SAVE_STATE_H
#define CKPT_ENGINE_SAVE_SAVE_STATE_H

#include <stdatomic.h>
#include "engine/copy/upload_queue.h"
#include "engine/core/copy_batch.h"
#include "engine/ranks/replica_digest.h"
#include "engine/save/commit.h"
#include "engine/save/delta_run.h"
#include "engine/save/save.h"
#include "engine/save/staged_base.h"

/* Eager tensors of at most this many bytes together are copied by ckpt_save_start() itself. */
#define CKPT_SAVE_INLINE_BYTES (UINT64_C(16) << 20)

#define CKPT_PLAN_TAKEN (1u << 31)

#define CKPT_SAVE_FENCED_TEXT                                                                      \
	"another start of the job runs, and nothing that this process saves counts any more: end " \
	"it, or end the other and start this one again"

/* One block on its way: a slot, its copy, its write, and the digests of the chunks that end in it. */
struct ckpt_lane {
	struct ckpt_save *save;
	struct ckpt_slot *slot;
	size_t block;
	struct ckpt_task task; /* copy, then write */
	struct ckpt_copy_batch batch;
	struct ckpt_job digest;
	struct ckpt_store_op op;
	struct ckpt_lane *before; /* of the straddling chunk; set when the digest starts */
	bool fed;
	bool copied;
	bool staged;
	bool written;
	bool digesting;
	bool digested;
	/* save/encoding.c, of a shard that is stored encoded. */
	struct ckpt_job encode;
	struct ckpt_encoder *encoder; /* from the start of the job until its bytes are written */
	struct ckpt_lane *next_ready;
	uint64_t stored;    /* bytes that it comes to, padded */
	uint64_t stored_at; /* their place in the file */
	bool ready;         /* in the queue for an encoder, or out of it again */
	bool encoding;
	bool encoded;
};

struct ckpt_encoder;
struct ckpt_estimate;
struct ckpt_save_encoding;

struct ckpt_save {
	/* The user's, until post. */
	struct ckpt_core *core;
	struct ckpt_engine *owner;
	unsigned forks; /* ckpt_fork_count() when it was made */
	uint64_t step;
	bool fenced;
	struct ckpt_tensor *tensors; /* names, shapes and strides lie in `words` */
	size_t tensor_count;
	size_t tensor_room;
	struct ckpt_arena_page *words;
	struct ckpt_alias *aliases;
	size_t alias_count;
	char *meta;
	size_t meta_bytes;
	struct ckpt_digest common;        /* of what all ranks must give alike */
	uint64_t balance;                 /* adds up to 0 with those of the other ranks */
	struct ckpt_replica_digest alike; /* digests of it; of GPUs the core's from post on */
	uint64_t alike_seed;
	char *inlined; /* copies of small eager tensors */
	struct ckpt_plan *plan;
	uint64_t seed;
	uint64_t timeout_ns;
	uint64_t start_ns;
	bool refused;
	struct ckpt_stream *streams; /* of GPUs, whose work the copies go between */
	size_t stream_count;
	uint64_t devices; /* a mask of those that the tensors are on; set by prepare */

	/* Shared. */
	atomic_uint refs;
	struct ckpt_latch latch;
	atomic_bool started; /* set after the post: what others post comes behind it */
	atomic_bool gate_posted;
	atomic_bool cancel_posted;
	atomic_bool verdict_posted;
	atomic_bool look_posted;
	atomic_uint
		plan_users; /* user threads that read the plan; CKPT_PLAN_TAKEN: it is another save's */
	struct ckpt_error error; /* written before END is answered, never after */
	struct ckpt_upload_entry
		*upload; /* on its way once LOCAL is answered; NULL: it is not to go */
	atomic_uint_fast64_t generation;
	atomic_uint_fast64_t bytes;
	atomic_uint_fast64_t bytes_staged;
	atomic_uint_fast64_t bytes_written;
	atomic_uint_fast64_t bytes_stored; /* size of the file; 0: not known yet */
	atomic_uint_fast64_t eager_ns;
	atomic_uint_fast64_t stage_ns;
	atomic_uint_fast64_t local_ns;
	atomic_uint_fast64_t starved_ns;
	atomic_uint_fast64_t durable_ns;

	/* The core's, from post to GONE. */
	struct ckpt_node post_node;
	struct ckpt_node gate_node;
	struct ckpt_node cancel_node;
	struct ckpt_node verdict_node;
	struct ckpt_node look_node;
	bool look_waited; /* no stream can be held back for it: LOOKED when it is done; written before the post */
	struct ckpt_error verdict; /* of somebody else; written before it is posted */
	struct ckpt_task task;
	struct ckpt_task pump; /* starts lanes as slots come free */
	struct ckpt_timer timer;
	struct ckpt_store_op op;
	struct ckpt_error work; /* failures are worded here first */
	int code;               /* first failure */
	bool gate;
	bool ended;
	bool file_open;
	bool file_failed; /* of this file: a write or the seal */
	bool rewritten;   /* the one second try was used */
	bool encodes;     /* the shard is stored encoded; decided when the pipeline starts */
	bool hold;        /* slots stay until the file is sealed, so that it can be written again */
	bool dirs_made;
	bool index_tried;
	bool publishing; /* the outcome is what becomes of it: neither deadline, cancel nor verdict */
	bool publish_tried;
	bool committed;
	char attempt[CKPT_ATTEMPT_CHARS];       /* of the step */
	char shard_attempt[CKPT_ATTEMPT_CHARS]; /* of the shard's file */
	struct ckpt_object object;
	struct ckpt_buf index;
	struct ckpt_buf manifest;
	char path[CKPT_PATH_MAX];
	struct ckpt_save_commit *ranks;      /* NULL: this rank is alone */
	struct ckpt_save_encoding *encoding; /* NULL: it is stored plain, or is past that */
	struct ckpt_staged_base
		*base; /* that the shard is predicted from; NULL: it is not, or is past that */
	struct ckpt_staged_base *next_base; /* what was staged, for the next step; NULL: nothing */
	bool based;                         /* the shard's file names bases */
	struct ckpt_delta_run run;          /* of the saver, once it is committed */
	struct ckpt_estimate *estimate;     /* chosen, of a plain one; NULL: nothing is estimated */
	struct ckpt_lane **lanes;           /* by block; NULL: not begun, or done and released */
	struct ckpt_staged_shard
		*staged_shard; /* once they are released, for the upload queue; NULL: none */
	size_t *order;         /* blocks in the order in which they are copied; NULL: ascending */
	size_t next;           /* in that order */
	unsigned remade;       /* directories of the step */
	size_t copying;        /* lanes of which the CPU copies something */
	size_t working;        /* lanes whose task or digest is under way */
	size_t eager_left;     /* eager blocks not yet fed */
	size_t fed_count;
	size_t staged_count;
	size_t written_count;
	size_t digested_count;
	uint64_t starved_since;
	struct ckpt_copy_batch sampling; /* of what is on GPUs */
	struct ckpt_copy_batch replicas; /* samples of `alike` */
	struct ckpt_copy_batch look;     /* the same at the fence */
	bool looking;                    /* that is under way */
	atomic_bool stopped;             /* GPUs are given nothing more of this save */
	struct ckpt_copy_batch halt;     /* back when they will not be */
	bool halting;                    /* that is under way */
};

/* save/save.c: records the first failure, stops what can be stopped, answers END when no tensor is read any more but by a GPU, of what it was given. */
void ckpt_save_stop(struct ckpt_save *save, int code);
/* After every operation: what stopped the save meanwhile, or what the operation failed with. */
int ckpt_save_check_op(struct ckpt_save *save);
/* Stops the save, and goes on with ckpt_save_end_body(). */
int ckpt_save_fail_body(struct ckpt_task *task, int code);
/* Body: waits for the gate. */
int ckpt_save_gate_body(struct ckpt_task *task);
/* Body: makes the step's directory, then the files in it. */
int ckpt_save_directory_body(struct ckpt_task *task);

/* save/publish.c: what the manifest says of this rank. */
void ckpt_save_own_rank(const struct ckpt_save *save, struct ckpt_manifest_rank *ret_rank);
/* Of a fresh listing of the claims in save->op: CKPT_EFENCED, worded, if a later generation has taken over. */
int ckpt_save_check_fence(struct ckpt_save *save);
/* Body: looks at the fence, then publishes the manifest. */
int ckpt_save_publish_body(struct ckpt_task *task);

/* save/cleanup.c: the body that the save's task goes on with, for good or ill. */
int ckpt_save_end_body(struct ckpt_task *task);
/* Into save->manifest. -ENOMEM. */
int ckpt_save_encode_abort(struct ckpt_save *save, const char *reason);
void ckpt_save_answer_end(struct ckpt_save *save);

/*
 * save/tear_check.c. Of what the CPU can read the user's thread takes them, in prepare, and again at the fence: 0, or
 * CKPT_ETORN worded into `err`. Of the rest the devices, if they can: before the first copy, and again when the
 * user's thread has asked for that. LOOKED is answered then, or if no stream can be held back for it when it is done.
 * The gate stays closed until it is done.
 */
void ckpt_save_take_samples(struct ckpt_save *save);
/* Of a save whose plan has been taken, which is over: 0. */
int ckpt_save_check_samples(struct ckpt_save *save, struct ckpt_error *err);
int ckpt_samples_start(struct ckpt_save *save);
void ckpt_save_post_look(struct ckpt_save *save);
/* Whether any device of the save's can. */
bool ckpt_save_looks(const struct ckpt_save *save);

/*
 * save/replicas.c. User's thread: looks at what was given of replicas, and digests it, once `devices` is known. A save
 * without digests is better than none: where they cannot be taken that is logged, once, and the save goes on.
 */
void ckpt_save_look_replicas(struct ckpt_save *save);
void ckpt_save_take_replicas(struct ckpt_save *save);
/* Which of its devices take samples. */
uint64_t ckpt_save_lookers(const struct ckpt_save *save);
/* Before the first copy: GPUs take the samples of what is on them; streams are held back for that as well. */
void ckpt_replica_digest_start(struct ckpt_save *save);
/* What this rank tells of it. */
void ckpt_save_report_replicas(const struct ckpt_save *save, char out[CKPT_REPLICA_DIGEST_TEXT]);
/* Rank 0, all have told: 0, or CKPT_EREPLICA worded into `work`. */
int ckpt_save_judge_replicas(struct ckpt_save *save);
/* Another rank, of the clue of an outcome: what this rank holds that explains it. False: nothing does, or there is no clue. */
bool ckpt_save_explain_replicas(const struct ckpt_save *save, const char *text,
	struct ckpt_replica_digest_finding *ret_finding);
/*
 * The step is of no rank. If the ranks differed (CKPT_EREPLICA, CKPT_EMISMATCH), this one proves everything anew. All
 * ranks do: digests of a rank that has a proof and of one that has none are compared by samples only.
 */
void ckpt_save_doubt_alike(struct ckpt_save *save, int code);
/* It is committed. */
void ckpt_save_note_replicas(struct ckpt_save *save);

/* save/stream_fence.c: user's thread, once `devices` is set: the copies come after what the streams have been given. */
int ckpt_save_follow(struct ckpt_save *save, struct ckpt_error *err);

/* save/pipeline.c */
int ckpt_pipeline_start(struct ckpt_save *save);
/* Answers STAGED, if all is copied and sampled. */
void ckpt_pipeline_say_staged(struct ckpt_save *save);
/* Of a lane whose write has failed: what its body returns. */
int ckpt_pipeline_write_failed(struct ckpt_lane *lane);
void ckpt_pipeline_note_written(struct ckpt_lane *lane);
/* Frees the lane of a block if neither its own work nor its successor's straddling chunk needs it. */
void ckpt_pipeline_try_release(struct ckpt_save *save, size_t block);
/* Writes every staged block again, into a new file. */
void ckpt_pipeline_rewrite(struct ckpt_save *save);
/* The save has failed: GPUs are told to enqueue nothing more of it, and `halting` is true until they do not. */
void ckpt_pipeline_halt(struct ckpt_save *save);
/* Returns the slots that are not needed any more; all: after the seal, which leaves `staged_shard`, or at the end. */
void ckpt_pipeline_release_all(struct ckpt_save *save);
/* What is in its slots, while it holds all of them. NULL: no memory. */
struct ckpt_staged_shard *ckpt_pipeline_staged_shard(const struct ckpt_save *save);
/* Copied, written, digested: all of it; and what GPUs sample before is sampled. */
bool ckpt_pipeline_finished(const struct ckpt_save *save);
/* Nothing of the save is with a worker, the device or the disk. */
bool ckpt_pipeline_quiet(const struct ckpt_save *save);

/* save/delta.c */
/* How many blocks of staging memory the save is best with. */
size_t ckpt_save_staging_blocks(const struct ckpt_save *save);
/* Before the first lane: `base`, if there is one. */
void ckpt_save_take_base(struct ckpt_save *save);
/* It is not predicted any more. */
void ckpt_save_drop_base(struct ckpt_save *save);
/* All is written, and still staged: `next_base`, of a shard with this table. */
void ckpt_save_note_next_base(struct ckpt_save *save, const struct ckpt_encoded *table);
/* 1 and the step that the shard is the difference to; 0: it is not. */
uint64_t ckpt_save_base_step(const struct ckpt_save *save);
/* Rank 0, all have told: decides `run`. CKPT_EABORTED, worded. */
int ckpt_save_judge_run(struct ckpt_save *save);
/* Another rank: the manifest of the step has been read. */
void ckpt_save_take_run(struct ckpt_save *save, const struct ckpt_manifest *manifest);
/* It is committed, and there was no memory to know it by: no step follows it, and what it needs is not removed. */
void ckpt_save_note_unknown(struct ckpt_save *save);
/* The end, for good or ill: what the next save goes by. */
void ckpt_save_end_run(struct ckpt_save *save);

/* save/encoding.c */
/* Into save->path: the shard's file. */
void ckpt_save_name_shard(struct ckpt_save *save);
/* The most that the file of the shard may have, a multiple of what the store aligns to. */
uint64_t ckpt_save_file_room(const struct ckpt_save *save);
/* The size of the file, once all of it is written. */
uint64_t ckpt_save_file_bytes(const struct ckpt_save *save);

/* Before the first lane: decides whether the shard is stored encoded. Without the memory for that it is stored plain. */
void ckpt_encoding_start(struct ckpt_save *save);
/* All is written, and still staged. */
void ckpt_encoding_note_next_base(struct ckpt_save *save);
/* Nothing is under way. What was not started does not end. */
void ckpt_encoding_end(struct ckpt_save *save);
/* A block is staged: it, or the one behind it, may be ready. */
void ckpt_encoding_note_staged(struct ckpt_save *save, size_t block);
/* Body: waits until the block is encoded, and writes that. */
int ckpt_encoding_lane_body(struct ckpt_task *task);
/* The lane's task has ended. */
void ckpt_encoding_lane_done(struct ckpt_lane *lane);
/* All blocks are encoded anew, for another file. */
void ckpt_encoding_restart(struct ckpt_save *save);
/* Begins to write table and trailer with save->op. */
void ckpt_encoding_write_table(struct ckpt_save *save);

#endif
