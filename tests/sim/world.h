/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world: machines, ranks with a store each, and processes that live and die on them, each of them a
 * real engine core with simulated workers, device, disk and user. One seed decides what there is, what
 * goes wrong, and which of the things that could happen next does.
 */
#ifndef WORLD_H
#define WORLD_H

#include "oracle.h"
#include "sim_device.h"
#include "sim_disk.h"
#include "sim_gpu.h"
#include "sim_io.h"
#include "sim_state.h"
#include "user.h"

#define WORLD_RANKS 3
#define WORLD_SEATS 3 /* processes of a rank at once */
#define WORLD_PROCS (WORLD_RANKS * WORLD_SEATS)
#define WORLD_NODE  "sim"

/*
 * A rank of the training: its store, on the disk of one machine, and what must hold of it. Each is a
 * training of its own as long as the product knows no others.
 */
struct sim_rank {
	struct world *world;
	unsigned number;
	unsigned home; /* machine that has the disk; others reach it as well */
	struct sim_disk *disk;
	struct oracle oracle;
	struct sim_shape shapes[SIM_SHAPES];
	unsigned lives;    /* processes still to come */
	uint64_t spawn_ns; /* when the next one starts */
	bool anew; /* nothing of the lineage can be read: the next process starts one of its own */
	bool rivalled; /* two had claimed, or were about to, at the same time */
};

/* One incarnation of a rank, or a program that reads beside it. */
struct sim_proc {
	struct world *world;
	struct sim_rank *rank;
	unsigned id;   /* from 1, never used twice */
	unsigned node; /* machine: its power, clocks, locks */
	struct ckpt_inbox inbox;
	struct sim_env env;
	struct sim_io *io;
	struct sim_device device;
	struct sim_gpu gpu;
	struct ckpt_pool *pool;
	struct ckpt_core core;
	uint64_t deadline_ns; /* the core's next */
	bool frozen;
	uint64_t thaw_ns;
	uint32_t block_bytes;
	uint64_t chunk_bytes;
	uint32_t encoders; /* 0: it stores steps plain */
	bool delta;        /* as the difference to the last step */
	unsigned slots;
	unsigned awaits; /* frozen until that process has claimed or is dead; 0: by time alone */
	struct sim_user user;
};

/* What the run is about; picked once, by the seed. */
struct world_plan {
	uint32_t align;
	bool direct;
	bool refuse_direct; /* the file system says so only when a file is opened */
	bool refuse_allocate;
	uint64_t keep_last;
	uint64_t keep_every;
	uint32_t timeout_ms; /* of a save */
	unsigned lives;      /* processes of a rank before the last one */
	unsigned saves;      /* of a process, at most */
	bool zombies;        /* successors on other machines, which see no locks */
	bool rivals;         /* successors on the same machine, which see them */
	bool readers;
	bool repairs; /* of steps, while no process runs */
	bool encodes; /* processes store steps encoded, or plain */
	bool delta; /* and as the difference to the last step; most of a state stays from step to step */
	bool calm; /* at the end those who live go on undisturbed, before somebody looks */
	uint64_t space;
	unsigned events; /* then the run is brought to its end */
};

/* How a run goes: trouble, perhaps a while without, then one careful process after all others. */
enum world_phase {
	WORLD_WILD,
	WORLD_CALM,
	WORLD_HEALED,
};

struct world_counts {
	uint64_t acked;     /* saves */
	uint64_t gpu;       /* of these with tensors on a GPU */
	uint64_t based;     /* of these that need another step */
	uint64_t restored;  /* and compared */
	uint64_t refused;   /* restores, for what was damaged */
	uint64_t lies;      /* of disks */
	uint64_t repaired;  /* steps whose files were named anew */
	uint64_t abandoned; /* waits given up, and processes that left their storage behind */
	uint64_t races;     /* claims while another one of the same store was under way */
	uint64_t told;      /* that somebody else has the store */
};

struct world {
	struct sim sim;
	struct world_plan plan;
	struct sim_rank ranks[WORLD_RANKS];
	unsigned rank_count;
	struct sim_proc *procs[WORLD_PROCS]; /* those of a rank together */
	unsigned next_id;
	uint64_t next_version; /* of states that change little */
	unsigned turns;
	unsigned exciting; /* events during which trouble is more likely */
	enum world_phase phase;
	uint64_t calm_ns; /* when everybody must have come to an end */
	struct world_counts counts;
};

/* Runs a seed. False: something that must hold does not; see world->sim. */
bool world_run(struct world *world, uint64_t seed, const struct sim_options *options);
/* Two processes of one store had claimed, or were about to, at the same time. */
bool world_rivalled(const struct world *world);

/* For the users. */
struct sim_proc *world_other_writer(const struct sim_rank *rank, const struct sim_proc *proc);
/* A failure with this code can have come from what went wrong in this run. */
bool world_may_fail(const struct world *world, int code);
void world_excite(struct world *world);

/* world_plan.c */
void world_pick(struct world *world);

/* trouble.c */
/* What may go wrong between two events. */
void world_trouble(struct world *world);
/* The power of a machine goes: everybody on it dies, and all who use a disk of it. */
void world_cut(struct world *world, unsigned node);

/* repairing.c: in a world that has repairs, files of durable steps are named anew, if no process of the rank lives. */
void world_repair(struct sim_rank *rank);
void world_thaw(struct sim_proc *proc);

/* For trouble.c. */
struct sim_proc *world_spawn(struct sim_rank *rank, unsigned node, bool reader);
void world_schedule(struct sim_rank *rank);
unsigned world_crowd(const struct sim_rank *rank);

/* process.c */
/* What processes leave to the next ones; at the end of the program. */
void proc_end_all(void);
struct sim_proc *proc_start(
	struct sim_rank *rank, unsigned node, const struct sim_user_config *config);
/* As SIGKILL does it. Frees. */
void proc_kill(struct sim_proc *proc);
/* It has closed its engine: everything must have come back. Frees. */
void proc_reap(struct sim_proc *proc);
/* Things that could happen in it now, and the n-th of them. */
unsigned proc_ready(struct sim_proc *proc);
void proc_do(struct sim_proc *proc, unsigned n);
/* When something could happen next; UINT64_MAX: never. */
uint64_t proc_next_ns(const struct sim_proc *proc);

#endif
