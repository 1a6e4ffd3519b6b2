/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One training and the bucket that its steps go on to: the real engine with its upload queue, its S3 client and its store
 * in a bucket, over simulated machines, disks and a network, and over a bucket in memory that is exact. Processes
 * die with requests under way, machines are lost with their disks, and whoever comes next goes on from the bucket;
 * others read there and remove steps. The bucket's journal says what has happened. In some worlds the training is a
 * job of several ranks, each of which sends its own shards; see remote_ranks.c.
 */
#ifndef REMOTE_H
#define REMOTE_H

#include "crowd_board.h"
#include "crowd_exchange.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/lineage.h"
#include "engine/lineage/open.h"
#include "engine/restore/restore.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "engine/save/save_state.h"
#include "lib/bucket_http.h"
#include "s3/client.h"
#include "sim_device.h"
#include "sim_disk.h"
#include "sim_io.h"
#include "sim_memory.h"
#include "sim_state.h"

#define REMOTE_RANKS   4
#define REMOTE_PROCS   16
#define REMOTE_HOMES   4 /* machines with a disk, or sets of them, one after the other */
#define REMOTE_LOST    2 /* nodes, each alone */
#define REMOTE_RECORDS 512
#define REMOTE_GENS    64
#define REMOTE_HELD    16
#define REMOTE_PARTS   4096
#define REMOTE_GRACE_S 600 /* longer than any request is on its way, and tried again */
#define REMOTE_BUCKET  "bucket"
#define REMOTE_PREFIX  "run/"

enum remote_kind {
	REMOTE_TRAIN, /* goes on from the store of its machine, saves, uploads */
	REMOTE_BRING, /* the newest step of the bucket into that store */
	REMOTE_READ,  /* restores from the bucket */
	REMOTE_PRUNE, /* removes a step there */
};

struct remote_record {
	uint64_t generation;
	uint64_t step;
	unsigned job;  /* whose it is */
	unsigned home; /* where it was saved */
	uint32_t ranks;
	uint32_t begun; /* ranks that have begun it ... */
	uint32_t told;  /* ... and were told that it is durable */
	uint64_t versions[REMOTE_RANKS];
	bool there;            /* its manifest is in the bucket */
	bool appeared;         /* ... or was once */
	bool marked;           /* it has had a tombstone there: it may go, and come back */
	uint64_t appeared_at;  /* time of the world */
	uint64_t tombstone_at; /* the same, of the tombstone that is there; 0: none is */
	uint64_t tombstone_ns; /* since when, by the clock */
	unsigned remover;      /* who has removed a file under it; 0: nobody */
	unsigned before;       /* who removed under the tombstone before this one */
	uint64_t stone;        /* hash of it; 0: there has been none */
	uint64_t seen_at;    /* time of the world when somebody last looked at its tombstone ... */
	unsigned seen_by;    /* ... and who did */
	unsigned maker;      /* who has last asked for one where none was; 0: nobody */
	uint64_t removed_at; /* time of the world when its manifest went from there; 0: never */
	uint64_t confirmed_at; /* time of the world, when it was told that it is there; 0: never */
};

struct remote_gen {
	uint64_t parent_generation; /* 0: none */
	uint64_t parent_step;
	bool claimed; /* somebody was told */
	unsigned job; /* whose it was at last */
	bool there;   /* its claim is in the bucket */
};

/* Where the training is: one store, or one for each of its nodes. */
struct remote_home {
	unsigned stores; /* 0: not there yet */
	struct sim_disk *disks[REMOTE_RANKS];
	bool ready[REMOTE_RANKS];         /* it has what the bucket had, or it was the first */
	uint64_t looked_at[REMOTE_RANKS]; /* time of the world when somebody began to bring that */
	bool tried;                       /* a job has started there since all stores were ready */
	bool claimed;                     /* a generation was, there */
};

/* One start of the training. */
struct remote_job {
	unsigned number;
	uint32_t ranks;
	unsigned saves;
	uint64_t generation; /* what it goes on from; 0: nothing */
	uint64_t step;
	bool chosen; /* somebody has restored that */
	bool broken; /* one of its ranks has ended before its time, or was given up by another */
	bool lost;   /* its machines are: no launcher sees to it */
	bool sends;  /* what it has of a step, and ends: then the bucket has all of it */
	uint64_t end_ns; /* when the launcher ends what is left of it; UINT64_MAX: not yet */
};

struct remote;

struct remote_proc {
	struct remote *world;
	enum remote_kind kind;
	unsigned id;
	unsigned home;
	unsigned store;         /* of that home */
	struct remote_job *job; /* of a training */
	uint32_t rank;
	struct ckpt_inbox inbox;
	struct sim_env env;
	struct sim_io *io;
	struct sim_device device;
	struct ckpt_pool *pool;
	struct bucket_http net;
	struct ckpt_s3_client client;
	struct ckpt_s3_limits limits; /* of it */
	struct ckpt_core core;
	uint64_t deadline_ns; /* the core's next */
	bool kicked;          /* something has come that is no message */
	bool frozen;
	uint64_t thaw_ns;

	/* Its program. */
	struct ckpt_sched sched;
	struct ckpt_task life;
	uint64_t wake_ns;
	uint64_t late_ns; /* what it waits for must have come by then */
	const char *waits;
	bool poked;
	bool careful; /* nothing goes wrong any more */
	bool closed;
	bool left_behind;
	int failure;
	uint64_t born_at;   /* time of the world */
	uint64_t began_at;  /* ... at which it began to look for a step */
	bool removes;       /* at this moment */
	size_t listed;      /* entry of the journal when it last looked for uploads ... */
	uint64_t listed_of; /* ... of that key */
	uint64_t looked;    /* newest claim that was there when it last looked at the claims */
	uint64_t looked_at; /* time of the world when it did ... */
	uint64_t stone_at;  /* ... and at a tombstone */
	struct ckpt_command *command;
	struct ckpt_closer closer;
	struct ckpt_restore *restore;
	uint64_t asked;
	struct sim_state into[REMOTE_RANKS]; /* of those ranks that it reads */
	uint64_t generation;                 /* what was restored, or is removed; 0: nothing */
	uint64_t step;
	uint64_t judged;            /* newest claim when it was chosen to be removed */
	uint64_t passed_generation; /* of the step that was passed over last */
	uint64_t passed_step;
	bool again;         /* the latest is asked for again, without that */
	size_t next_record; /* careful reader */

	struct sim_state live;
	struct ckpt_plan *cache;
	struct ckpt_save *save;
	struct remote_record *record; /* of that save */
	unsigned saves;
	unsigned saved;
	unsigned arrived; /* saves for which it was ready */
	bool leaves;      /* nobody waits for it any more */
	struct {
		struct ckpt_upload_entry *entry; /* NULL: none */
		struct remote_record *record;
	} held[REMOTE_HELD];
};

/* A part that the server has. */
struct remote_part {
	uint64_t upload; /* hash of its id */
	unsigned number;
	size_t at;   /* in the journal */
	unsigned by; /* of a list: the process that has asked for it last */
};

/* An upload that was begun. */
struct remote_upload {
	uint64_t id;
	uint64_t key; /* hashes */
	size_t at;    /* in the journal */
	bool ended;
};

struct remote {
	struct sim sim;
	struct front front;
	struct remote_home homes[REMOTE_HOMES];
	unsigned home; /* the training's */
	unsigned home_count;
	/* Of several ranks. */
	bool many;
	bool nodes;     /* each of which has a store of its own */
	bool apart;     /* every rank is on a machine of its own */
	bool catalogs;  /* readers go by the catalog, however few ranks have written a step */
	uint32_t ranks; /* of the next start */
	struct crowd_weather weather;             /* of what lies between them */
	struct crowd_board *boards;               /* of nodes: where they talk */
	struct sim_disk *lost_disks[REMOTE_LOST]; /* of nodes that were lost */
	unsigned lost_count;
	uint64_t passed_over;                 /* steps, because of that */
	struct remote_job jobs[REMOTE_HOMES]; /* the newest of each home */
	unsigned job_count;
	unsigned room; /* for processes at once */
	bool moved;
	struct remote_proc *procs[REMOTE_PROCS];
	unsigned next_id;
	unsigned lives;
	uint64_t spawn_ns;
	bool healed;
	bool read_last; /* the last reader has been */
	bool saved_last;
	bool down;
	uint64_t down_until_ns;
	uint64_t keep_last;
	uint64_t keep_every;
	uint64_t remote_keep_last; /* 0: the training removes nothing in the bucket */
	uint64_t remote_keep_every;
	uint64_t latency_ns;
	bool encodes; /* processes differ in how they store steps, here and in the bucket */
	unsigned turns;
	uint64_t time;
	struct sim_shape shapes[SIM_SHAPES];
	struct sim_shape rank_shapes[REMOTE_RANKS];
	struct remote_record records[REMOTE_RECORDS];
	size_t record_count;
	struct remote_gen gens[REMOTE_GENS];
	size_t seen; /* entries of the journal */
	struct remote_part parts[REMOTE_PARTS];
	struct remote_part lists[REMOTE_PARTS]; /* of an upload's parts: when they were last told */
	struct remote_upload uploads[REMOTE_PARTS];
	size_t upload_count;
	uint64_t committed;
	uint64_t confirmed;
	uint64_t restored;
	uint64_t imported;
	uint64_t pruned;
	uint64_t resumed;
};

/* remote_net.c: what lies between a process and the bucket. */
void remote_net_begin(struct remote *world);
void remote_net_end(struct remote *world);
/* Once, for all runs; and at the end of the program. */
void remote_net_open(void);
void remote_net_close(void);
/* The client of a process, whose core is not there yet. False: no memory. */
bool remote_net_join(struct remote_proc *proc);
void remote_net_leave(struct remote_proc *proc);
void remote_net_run(struct remote *world);
uint64_t remote_net_next(const struct remote *world);
const struct rope *remote_object(struct remote *world, const char *path);

/* remote_ranks.c: jobs of several ranks. */

/* What there is in a world of this seed. Last of all that is drawn. */
void remote_ranks_pick(struct remote *world);
/* Stores of the home that was just made. */
void remote_ranks_spread(struct remote *world);
/* Whether the core of `proc` is of a job of several. */
bool remote_is_rank(const struct remote_proc *proc);
/* One node may be lost alone: there are others, and the bucket has a step to go on from. */
bool remote_may_lose_node(const struct remote *world);
/* Such a loss is why this step cannot be opened: the latest is asked for again. */
bool remote_passes_over(const struct remote_proc *proc);
/* Its part of what the core is told, and what lies between it and the others. */
void remote_ranks_config(const struct remote_proc *proc, struct ckpt_core_config *config);
void remote_ranks_meet(struct remote_proc *proc);
unsigned remote_machine(const struct remote *world, unsigned home, unsigned store, uint32_t rank);
/* The next start at the home where the training is. */
struct remote_job *remote_job_begin(struct remote *world);
/* It ends before its time: the launcher will see to the others. */
void remote_job_break(struct remote_proc *proc);
/* Whoever waits for others of its job looks again. */
void remote_job_stir(const struct remote_proc *proc);
/* All others are ready for the save that it is ready for, or gone. */
bool remote_all_arrived(const struct remote_proc *proc);
/* The same step on every rank. */
uint64_t remote_next_step(const struct remote_proc *proc);
/* Whether it reads what that rank has saved in `record`; NULL: there is no such step. */
bool remote_reads(
	const struct remote_proc *proc, const struct remote_record *record, uint32_t rank);
/* Lost, late and twice; when the next thing comes. */
uint64_t remote_ranks_land(struct remote_proc *proc);
/* When a launcher has something to do; UINT64_MAX: never. */
uint64_t remote_launcher_ns(const struct remote *world);
/* Of the job that the launcher ends now; NULL: none. */
struct remote_proc *remote_left_over(const struct remote *world);
/* Whether a rank may fail so because of others. */
bool remote_may_blame(const struct remote_proc *proc, int code);

/* remote_life.c, remote_read.c: programs. */
void remote_life_start(struct remote_proc *proc);
void remote_observe(struct remote_proc *proc);
ckpt_task_fn remote_close_body;
ckpt_task_fn remote_train_body;
/* What follows a restore. */
ckpt_task_fn *remote_after(const struct remote_proc *proc);
/* Behind the opening, by kind. */
ckpt_task_fn remote_bring_body;
ckpt_task_fn remote_read_body;
ckpt_task_fn remote_prune_body;

struct remote_proc *remote_proc_of(struct ckpt_task *task);
void remote_sleep(struct remote_proc *proc, uint64_t ns);
bool remote_slept(struct remote_proc *proc);
bool remote_prepare(
	struct remote_proc *proc, size_t size, void (*clear)(struct ckpt_command *command));
void remote_post(struct remote_proc *proc, ckpt_task_fn *body, const char *what, uint64_t ns);
bool remote_answered(struct remote_proc *proc);
int remote_take(struct remote_proc *proc);
void remote_let_go(struct remote_proc *proc);
void remote_expect(struct remote_proc *proc, const char *what, uint64_t ns);
void remote_came(struct remote_proc *proc);
/* Did it have a reason to fail so? If not, that is a violation. */
void remote_judge(struct remote_proc *proc, const char *what, int code, const char *message);

/* remote_truth.c: what must hold. */
struct remote_record *remote_record(const struct remote *world, uint64_t generation, uint64_t step);
void remote_began(struct remote_proc *proc, uint64_t version);
void remote_claimed(struct remote_proc *proc);
/* It was told that the step is in the bucket. */
void remote_confirmed(struct remote_proc *proc, struct remote_record *record);
/* It has restored `generation`, `step`; generation 0: nothing. */
void remote_restored(struct remote_proc *proc);
/* Whether it must be found in the bucket. */
bool remote_owes(const struct remote *world, const struct remote_record *record);
/* A request has arrived. */
void remote_asked(struct remote_proc *proc, const struct s3_request *asked);
/* Reads on in the journal. */
void remote_look(struct remote *world);
/* The last training is about to close: nothing of its store waits for the bucket. */
void remote_check_drained(struct remote_proc *proc);
/* It has had time enough: what its retention lets go is not there any more. */
void remote_check_kept(struct remote_proc *proc);
/* When nobody had looked into the bucket yet for what that home has. */
uint64_t remote_looked_at(const struct remote *world, unsigned home);
/* Once nothing happens any more. */
void remote_check_all(struct remote *world);

#endif
