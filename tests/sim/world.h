/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world: one disk, and processes that live and die on it, each of them a real engine core with
 * simulated workers, device, disk and user. One seed decides what there is, what goes wrong, and which
 * of the things that could happen next does.
 */
#ifndef WORLD_H
#define WORLD_H

#include "oracle.h"
#include "sim_device.h"
#include "sim_disk.h"
#include "sim_io.h"
#include "sim_state.h"
#include "user.h"

#define WORLD_PROCS 3

/* One incarnation of the job, or a program that reads beside it. */
struct sim_proc {
	struct world *world;
	unsigned id;     /* from 1, never used twice */
	unsigned domain; /* machine */
	struct ckpt_inbox inbox;
	struct sim_env env;
	struct sim_io *io;
	struct sim_device device;
	struct ckpt_pool *pool;
	struct ckpt_core core;
	uint64_t deadline_ns; /* the core's next */
	bool frozen;
	uint64_t thaw_ns;
	uint32_t block_bytes;
	uint64_t chunk_bytes;
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
	unsigned lives;      /* processes before the last one */
	unsigned saves;      /* of a process, at most */
	bool zombies;        /* successors on other machines, which see no locks */
	bool rivals;         /* successors on the same machine, which see them */
	bool readers;
	unsigned events; /* then the run is brought to its end */
};

struct world {
	struct sim sim;
	struct sim_disk *disk;
	struct oracle oracle;
	struct sim_shape shapes[SIM_SHAPES];
	struct world_plan plan;
	struct sim_proc *procs[WORLD_PROCS];
	unsigned next_id;
	unsigned lives;
	unsigned turns;
	unsigned exciting; /* events during which trouble is more likely */
	uint64_t spawn_ns; /* when the next process starts */
	uint64_t saves_acked;
	uint64_t restores_checked;
	bool healed; /* the end: nothing goes wrong any more */
	bool anew; /* nothing of the lineage can be read: the next process starts one of its own */
};

/* Runs a seed. False: something that must hold does not; see world->sim. */
bool world_run(struct world *world, uint64_t seed, bool verbose);

/* For the users. */
struct sim_proc *world_other_writer(struct world *world, const struct sim_proc *proc);
/* A failure with this code can have come from what goes wrong in this run. */
bool world_may_fail(const struct world *world, int code);
void world_excite(struct world *world);

/* process.c */
/* What processes leave to the next ones; at the end of the program. */
void proc_end_all(void);
struct sim_proc *proc_start(
	struct world *world, unsigned domain, const struct sim_user_config *config);
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
