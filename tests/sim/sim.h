/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every part of the simulated world shares: the random stream of the seed, the virtual clock,
 * the mix of faults, the history, and the verdict. Single-threaded; nothing here reads a real clock.
 */
#ifndef SIM_H
#define SIM_H

#include "base/attr.h"

/* How often each kind of trouble happens, in chances per 10,000 of what it could happen to. */
struct sim_mix {
	unsigned eio_write; /* a write fails */
	unsigned eio_read;  /* a read fails */
	unsigned
		eio_sync; /* fdatasync fails: what it should have saved is clean, and not durable */
	unsigned eio_dir; /* the same for a directory */
	unsigned eio_other;   /* open, rename, unlink and the like */
	unsigned short_io;    /* a read or write ends early */
	unsigned stuck;       /* a request takes longer than any deadline */
	unsigned slow;        /* a request takes milliseconds */
	unsigned job_slow;    /* a copy or digest takes milliseconds */
	unsigned device_fail; /* a copy fails */
	unsigned no_memory;   /* an allocation fails */
	unsigned kill;        /* a process dies, per event */
	unsigned cut;         /* the power goes, per event */
	unsigned jump;        /* the clock jumps ahead, per event */
	unsigned freeze;      /* a process stands still for a while, per event */
	unsigned early;       /* the user changes a tensor before it may */
	unsigned cancel;      /* the user gives a save or restore up */
	unsigned rot;         /* a power cut damages a file that was durable */
	uint64_t space;       /* bytes of the disk */
};

#define SIM_KEPT 512 /* events of the history that are kept to be shown */

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
	struct sim_mix mix;
	bool verbose;
	bool failed; /* something that must hold does not; `why` says what */
	char why[600];
	uint64_t hash; /* of every event so far */
	uint64_t events;
	struct sim_event kept[SIM_KEPT];
};

void sim_start(struct sim *sim, uint64_t seed, bool verbose);

uint64_t sim_random(struct sim *sim);
/* Less than n, which is not 0. */
uint64_t sim_below(struct sim *sim, uint64_t n);
/* Between the two, both included. */
uint64_t sim_between(struct sim *sim, uint64_t low, uint64_t high);
/* True so many times of 10,000. */
bool sim_chance(struct sim *sim, unsigned per_10000);
/* One step of the generator that everything here is made of. */
uint64_t sim_mix64(uint64_t x);

/* Adds to the history. The end of `text` is kept if it is too long. */
void sim_note(struct sim *sim, unsigned who, const char *what, const char *text, int64_t a,
	int64_t b, int64_t result);

/* What must hold does not. The first is kept; the run ends soon after. */
CKPT_PRINTF(2, 3) void sim_violation(struct sim *sim, const char *fmt, ...);

/* The last `count` events, to standard error. */
void sim_print_history(const struct sim *sim, unsigned count);

/* Memory of the simulator itself, which never fails. */
void *sim_alloc(size_t size);

#endif
