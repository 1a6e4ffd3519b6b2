/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every part of the simulated world shares: the random stream of the seed, the virtual clock,
 * the mix of faults, the history, and the verdict. Single-threaded; nothing here reads a real clock.
 */
#ifndef SIM_H
#define SIM_H

#include "base/compiler.h"

/* What can go wrong. Every run has a few kinds only, see world_plan.c; sim_kit.c has their names. */
enum sim_fault {
	SIM_EIO_WRITE,   /* a write fails */
	SIM_EIO_READ,    /* a read fails */
	SIM_EIO_SYNC,    /* fdatasync fails: what it should have saved is clean, and not durable */
	SIM_EIO_DIR,     /* the same for a directory */
	SIM_EIO_OTHER,   /* open, rename, unlink and the like fail */
	SIM_EIO_FILE,    /* reserving, cutting, locking and closing a file fail */
	SIM_SHORT_IO,    /* a read or write ends early */
	SIM_STUCK,       /* a request takes longer than any deadline */
	SIM_SLOW,        /* a request takes milliseconds */
	SIM_HANG,        /* a disk answers nothing for a while, per event */
	SIM_JOB_SLOW,    /* a copy or digest takes milliseconds */
	SIM_DEVICE_FAIL, /* a copy fails */
	SIM_NO_MEMORY,   /* an allocation fails */
	SIM_KILL,        /* a process dies, per event */
	SIM_CUT,         /* the power of a machine goes, per event */
	SIM_JUMP,        /* the clock jumps ahead, per event */
	SIM_FREEZE,      /* a process stands still for a while, per event */
	SIM_EARLY,       /* the user changes a tensor before it may */
	SIM_CANCEL,      /* the user gives a save or restore up */
	SIM_FULL,        /* the disk gets fuller or emptier, per event */
	SIM_ROT,         /* a power cut damages a file that was durable */
	SIM_LOST_WRITE,  /* a write is acknowledged, and the old bytes stay */
	SIM_ASTRAY,      /* a write lands elsewhere: in this file, or in another one */
	SIM_STALE_READ,  /* a read finds what was there before, or what is elsewhere */
	SIM_READERS,     /* programs that read beside the training */
	SIM_RIVALS,      /* successors on the same machine, which see the locks */
	SIM_ZOMBIES,     /* successors on other machines, which do not */
	SIM_RACES,       /* two that start at once, on two machines */
	SIM_SISTERS,     /* other ranks, each with a store of its own, in the same world */
	SIM_GPU_STILL,   /* a GPU does nothing for seconds */
	SIM_NET_DROP,    /* a request to the bucket is lost on its way there */
	SIM_NET_REPLY,   /* the answer is lost */
	SIM_NET_LATE,    /* it is done when its client has given it up */
	SIM_NET_TWICE,   /* it is done once more, later */
	SIM_NET_ERROR,   /* the server says that it failed, and perhaps it has done it */
	SIM_NET_STALL,   /* it is done, and nothing is answered */
	SIM_NET_DOWN,    /* the server is not to be reached for a while, per event */
	SIM_HOME_LOST,   /* a machine is lost with its disk, per event */
	SIM_PRUNE,       /* somebody removes steps from the bucket, per event */
	SIM_FAULTS,
};

#define SIM_KEPT  512 /* events of the history that are kept to be shown */
#define SIM_STORY 256

struct sim_event {
	uint64_t number;
	uint64_t now_ns;
	const char *what; /* static */
	int64_t a;
	int64_t b;
	int64_t result;
	unsigned who; /* process; 0: the world */
	char text[100];
};

struct sim {
	uint64_t seed;
	uint64_t random;
	uint64_t now_ns;
	unsigned mix[SIM_FAULTS];   /* chances per 10,000 of what it could happen to */
	uint64_t fired[SIM_FAULTS]; /* how often it did */
	uint64_t without;           /* kinds that do not happen although their number comes up */
	bool verbose;
	bool failed; /* something that must hold does not; `why` says what */
	char why[600];
	uint64_t trouble_at; /* the last event that failed for want of a disk that works; 0: none */
	uint64_t hash;       /* of every event so far */
	uint64_t events;
	struct sim_event kept[SIM_KEPT];
	struct sim_event story[SIM_STORY]; /* what matters of it: see sim_tell() */
	uint64_t story_count;
};

/* What differs between two runs of one seed. */
struct sim_options {
	uint64_t without; /* kinds of trouble, as bits */
	bool verbose;
};

void sim_start(struct sim *sim, uint64_t seed, const struct sim_options *options);

uint64_t sim_random(struct sim *sim);
/* Less than n, which is not 0. */
uint64_t sim_below(struct sim *sim, uint64_t n);
/* Between the two, both included. */
uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high);
/* True so many times of 10,000. */
bool sim_chance(struct sim *sim, unsigned per_10000);
/* Whether it goes wrong this time. The number is drawn all the same if it may not. */
bool sim_fault(struct sim *sim, enum sim_fault kind);
/* ... with the chance of its kind so many times over. */
bool sim_fault_times(struct sim *sim, enum sim_fault kind, unsigned times);
const char *sim_fault_name(enum sim_fault kind);
/* One step of the generator that everything here is made of. */
uint64_t sim_mix64(uint64_t x);

/* Adds to the history. The end of `text` is kept if it is too long. */
void sim_note(struct sim *sim, unsigned who, const char *what, const char *text, int64_t a,
	int64_t b, int64_t result);

/* The same, of those few that tell what the run was about: deaths, claims, saves, lies. */
void sim_tell(struct sim *sim, unsigned who, const char *what, const char *text, int64_t a,
	int64_t b, int64_t result);

/* What must hold does not. The first is kept; the run ends soon after. */
CKPT_PRINTF(2, 3) void sim_violation(struct sim *sim, const char *fmt, ...);

/* What went wrong how often, what mattered, and the last `count` events: to standard error. */
void sim_print_history(const struct sim *sim, unsigned count);

/* Memory of the simulator itself, which never fails. */
void *sim_alloc(size_t size);

#endif
