/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The core: every state machine of an engine, on one thread. It sees completions only: it reads no
 * clock but the environment's, never blocks, and starts everything through the tables. The runtime
 * (runtime/runtime.c) drives it with a real thread; the simulator drives it by hand.
 *
 * A state machine ("operation") is posted by another thread, runs as a ckpt_task, and answers through
 * its own latch. The poster owns the memory; the core has it from the post until the answer.
 */
#ifndef CKPT_ENGINE_CORE_CORE_H
#define CKPT_ENGINE_CORE_CORE_H

#include <stdatomic.h>
#include "base/env.h"
#include "base/latch.h"
#include "base/log.h"
#include "base/task.h"
#include "base/timer.h"
#include "device/devices.h"
#include "exchange/exchange.h"
#include "format/catalog.h"
#include "format/manifest.h"
#include "staging/pool.h"
#include "store/store.h"

struct ckpt_allowance;
struct ckpt_core;
struct ckpt_decoders;
struct ckpt_deletion;
struct ckpt_exchange_call;
struct ckpt_lineage;
struct ckpt_pool_growth;
struct ckpt_remote_gc;
struct ckpt_seen_tombstones;
struct ckpt_upload_queue;
struct ckpt_save;
struct ckpt_saver;
struct ckpt_restore;
struct ckpt_restorer;
struct ckpt_shrink;

/* Bits that an operation's latch answers with. */
#define CKPT_DONE_EAGER  1u /* save: of the eager blocks what is below at FED */
#define CKPT_DONE_STAGED 2u /* save: all tensors are copied */
#define CKPT_DONE_LOCAL  4u /* save: committed */
#define CKPT_DONE_END    8u /* the outcome is known; on failure `error` says it */
#define CKPT_DONE_GONE   16u /* the core has let go of the operation and of all memory it was given */
/* 32: see restore.h */
#define CKPT_DONE_FED    64u  /* save: what is of the CPU is copied, the rest is with the GPUs */
#define CKPT_DONE_LOOKED 128u /* save: GPUs look again; where no stream waits for it, they have */

struct ckpt_core_config {
	uint32_t block_bytes;
	uint64_t chunk_bytes;
	uint64_t keep_last;
	uint64_t keep_every;
	uint32_t remote_tries;     /* that fail in a row, and the upload queue gives up; 0: never */
	uint64_t remote_every;     /* of the steps that go to the remote store; 0: all do */
	uint64_t remote_keep_last; /* of the steps there; 0: nothing is removed */
	uint64_t remote_keep_every;
	uint32_t remote_grace_s;     /* 0: CKPT_REMOTE_GC_GRACE_S */
	uint64_t remote_bytes_per_s; /* to one in a directory; 0: no bound. A bucket has its own */
	uint32_t
		sharers; /* ranks for whose staging the memory of this machine is; 0: the pool does not grow */
	uint32_t save_timeout_ms;
	bool read_only;
	bool new_start;
	uint32_t rank;
	uint32_t world;  /* 0 and 1: nobody else */
	bool sharing;    /* other ranks on this node restore what this one does, or parts of it */
	bool node_store; /* every node of the job has a store of its own */
	bool lost_nodes; /* with node_store: a step of which some files are elsewhere is passed over */
	uint32_t
		many; /* ranks of a step that are too many to read all indexes; 0: CKPT_SHARD_LOAD_MANY */
	uint64_t
		agree_bytes; /* of indexes that rank 0 holds at once; 0: CKPT_RANK_SCHEMA_BYTES_MAX */
	uint64_t
		agree_boxes; /* of tensors that are compared at once; 0: CKPT_REPLICA_CHECK_BOXES */
	struct ckpt_catalog_limits catalog_limits;
	uint32_t
		node_leader; /* with node_store: the lowest rank on this node, which keeps its store */
	bool tolerant;       /* rank 0: replicas that differ fail no step */
	uint32_t decoders;     /* that read encoded shards; 0: CKPT_DECODERS_MAX */
	uint64_t stored_bytes; /* of encoded shards that reads hold at once; 0: as much as usual */
	uint32_t encoders;     /* shards are stored encoded, with so many encoders; 0: plain */
	uint32_t remote_encoding; /* enum ckpt_remote_encoding */
	bool delta; /* with encoders: as the difference to the last step, where that is smaller */
	char session[CKPT_SESSION_MAX + 1]; /* of the ranks; empty with a world of 1 */
	char node[CKPT_NODE_CHARS];
};

/* Where a store is: in a directory, or in a bucket. */
struct ckpt_core_place {
	int root;                      /* a descriptor of the directory; -1 */
	struct ckpt_s3_client *bucket; /* NULL: a directory */
	uint64_t number;               /* of one in a bucket: ckpt_s3_uri_number() */
	const char *label;             /* for messages */
	/* Of the remote store, to be remembered: whole, one line; NULL: it is not. */
	const char *url;
	/* Whether it takes O_DIRECT has been tried, and what came of it; not tried: as the store of the engine does. */
	bool tried;
	bool direct;
	/* Of what is written there. */
	bool claims; /* every claim of the run goes along, also to where the step is already */
	bool node;   /* it becomes the store of one node */
	bool self; /* it is the store of the engine itself: nothing that is there is written again */
};

/* Everything that the core is given; all outlive it, and belong to whoever made it. */
struct ckpt_core_parts {
	struct ckpt_env *env;
	struct ckpt_io *io;
	int root; /* directory of the store; -1: it is in a bucket */
	struct ckpt_s3_client
		*bucket;   /* NULL: it is a directory. Asked by the core's thread alone */
	const char *label; /* its path, for messages */
	struct ckpt_devices *devices;
	struct ckpt_pool *pool;
	struct ckpt_ledger
		*ledger;      /* of the ranks of this node; NULL: they do not agree on staging */
	struct ckpt_log *log; /* may be NULL */
	struct ckpt_exchange_server *server; /* attached; NULL: the ranks talk through the store */
	struct ckpt_core_place remote; /* where committed steps go on to; label NULL: nowhere */
	/* What was copied into that bucket is over. On the core's thread; NULL: it is there as long as the core. */
	void (*leave)(void *user, struct ckpt_s3_client *bucket);
	void *user;
};

/*
 * An operation that is no save and no restore: open, claim, list, remove, quiesce. The poster waits
 * for CKPT_DONE_END.
 */
struct ckpt_command {
	struct ckpt_node node;
	struct ckpt_task task;
	struct ckpt_core *core;
	struct ckpt_latch latch;
	struct ckpt_error error;
	int result;
	atomic_uint owners; /* 0: of ckpt_command_init() */
	void (*clear)(struct ckpt_command *command);
};

/* What modules do when another one below them has done something; all on the core's thread. See runtime/modules.h. */
struct ckpt_core_hooks {
	/* The store has been read. */
	void (*opened)(struct ckpt_core *core);
	/* A claim was made: core->lineage->generation is new. */
	void (*claimed)(struct ckpt_core *core);
	/* A claim is no longer under way, whether it was made or not. */
	void (*claim_ended)(struct ckpt_core *core);
	/* Whether retention is to keep a step that it would let go. */
	bool (*keeps)(const struct ckpt_core *core, uint64_t generation, uint64_t step);
	/* Whether what is being saved may need a step, which must not be removed meanwhile. */
	bool (*needs)(const struct ckpt_core *core, uint64_t generation, uint64_t step);
};

struct ckpt_core {
	/* Services. */
	struct ckpt_core_parts parts;
	struct ckpt_core_config config;
	const struct ckpt_core_hooks *hooks;
	struct ckpt_s3_client *clients; /* of its stores that are in buckets */
	struct ckpt_store *store;
	struct ckpt_exchange *exchange; /* NULL: this rank is alone */
	struct ckpt_sched sched;
	struct ckpt_timers timers;
	struct ckpt_stats stats;   /* what the core counts itself; see ckpt/engine.h */
	int eventfd;               /* -1: none; written at every change of a latch */
	atomic_uint unchecked;     /* enum ckpt_unchecked: that it is so was said */
	char unchecked_boxes[160]; /* written once, before CKPT_UNCHECKED_BOXES is set */
	unsigned commands;         /* under way, and tasks of modules that the closer waits for */
	bool closing;
	struct ckpt_task *closer; /* woken when something that was under way has ended */

	/* What modules own; opened and closed by runtime/modules.c. */
	struct ckpt_pool_growth *growth;  /* core/: more staging memory */
	struct ckpt_shrink *shrink;       /* core/: less of it */
	struct ckpt_allowance *allowance; /* core/: how much this rank may have */
	struct ckpt_exchange_call *calls; /* ranks/: under way */
	struct ckpt_lineage *lineage;     /* lineage/: what the store holds, and the generation */
	struct ckpt_decoders *decoders; /* shard/: of encoded shards that are read; NULL: none is */
	bool encoded_seen;  /* shard/: the shard that was opened last was stored encoded */
	bool unlocked;      /* shard/: that a shard which is sent could not be locked was said */
	struct ckpt_gc *gc; /* gc/: retention and settling, under way */
	struct ckpt_deletion *deletions; /* gc/: under way */
	struct ckpt_seen_tombstones
		*seen_tombstones; /* gc/: in its own store, of ckpt_two_phase_command_body() */
	uint64_t *pins;           /* gc/: steps that stay */
	size_t pin_count;
	struct ckpt_upload_queue *upload_queue; /* copy/; NULL: there is no remote store */
	struct ckpt_remote_gc *remote_gc;       /* copy/; NULL: nothing is removed there */
	struct ckpt_saver *saver;               /* save/: what saves have in common */
	struct ckpt_save *save;                 /* save/: the one under way; NULL: none */
	struct ckpt_restorer *restorer;         /* restore/: what restores have in common */
	struct ckpt_restore *restores;          /* restore/: under way */
};

/* Without the modules on it: see runtime/modules.h, which sets `hooks` as well. */
int ckpt_core_init(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err);
/* A store beside the core's own, or that. What `place` names is borrowed. -ENOMEM. */
int ckpt_core_open_store(
	struct ckpt_core *core, const struct ckpt_core_place *place, struct ckpt_store **ret_store);
/* What buckets were asked for somebody who has given up (`stop` of an operation) ends soon. */
void ckpt_core_give_up(struct ckpt_core *core);
/* Buckets are asked no more, and what they were asked ends soon. True: it has; else `task` is woken then. */
bool ckpt_core_stop_clients(struct ckpt_core *core, struct ckpt_task *task);
/* Nothing may be under way. */
void ckpt_core_destroy(struct ckpt_core *core);

/*
 * Takes what has come in, fires what is due, and lets every ready task go on until none can.
 * Returns the next deadline on the environment's clock; UINT64_MAX: none.
 */
uint64_t ckpt_core_step(struct ckpt_core *core);

/* Nothing under way, and nothing to come. */
bool ckpt_core_idle(const struct ckpt_core *core);

void ckpt_core_timer_set(struct ckpt_core *core, struct ckpt_timer *timer, uint64_t at_ns);
void ckpt_core_timer_clear(struct ckpt_core *core, struct ckpt_timer *timer);

/* Whether this rank keeps the store: holds its lock, and removes what goes. One rank of a store does. */
bool ckpt_core_owns_store(const struct ckpt_core *core);

/* Why it is not found out whether ranks hold the same, an enum ckpt_unchecked. True: it was not said so far. Any thread. */
bool ckpt_core_note_unchecked(struct ckpt_core *core, unsigned why);
/* CKPT_UNCHECKED_BOXES, and which. On the core's thread. */
bool ckpt_core_note_boxes(struct ckpt_core *core, const char *which);

/* Sets the bits and pokes the eventfd. */
void ckpt_core_answer(struct ckpt_core *core, struct ckpt_latch *latch, uint32_t bits);

/*
 * Commands of a poster that sees each to its end. Init; set what `body` needs around it; post; wait
 * for END, the last thing that the core does with it; read `result`, `error`; fini.
 */
int ckpt_command_init(struct ckpt_command *command, struct ckpt_core *core);
void ckpt_command_fini(struct ckpt_command *command);
/*
 * Commands of a poster that may give up waiting: the core owns it too from the post on, and it goes
 * when both have let go. `size` is that of the struct that begins with it; `clear` (or NULL) frees
 * what that struct holds. NULL: out of memory.
 */
struct ckpt_command *ckpt_command_new(
	struct ckpt_core *core, size_t size, void (*clear)(struct ckpt_command *command));
void ckpt_command_unref(struct ckpt_command *command);
/* Any thread. `body` runs as a task and its result is the command's. */
void ckpt_command_post(struct ckpt_command *command, ckpt_task_fn *body);
/* From a body: the command around its task. */
struct ckpt_command *ckpt_command_of(struct ckpt_task *task);

#endif
