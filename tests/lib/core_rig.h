/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A core on the thread of the test: jobs and requests are carried out at once, in order, and their
 * answers taken at the next step; the clock stands. Requests fail or wait as io_fault.h says, jobs wait
 * when they are told to. So a test can stop a protocol anywhere, and it runs the same every time.
 */
#ifndef CKPT_TESTS_CORE_RIG_H
#define CKPT_TESTS_CORE_RIG_H

#include "engine/core/core.h"
#include "engine/gc/two_phase_delete.h"
#include "engine/restore/restore.h"
#include "engine/save/save.h"
#include "lib/io_fault.h"

struct core_rig_config {
	const char *dir;
	struct ckpt_s3_client *bucket; /* the store is there, and not in `dir`; NULL: it is not */
	const char *remote;            /* a directory that steps go on to; NULL: none */
	uint64_t remote_bytes_per_s;
	const char *url;      /* by which it is remembered; NULL: it is not */
	uint32_t block_bytes; /* 0: 64 KiB */
	unsigned slots;       /* 0: as few as there may be */
	uint32_t sharers;     /* the pool grows, for so many ranks of this node; 0: it does not */
	unsigned slots_max;   /* to so many at most */
	const char *ledger;   /* a directory in which they agree; NULL: they do not */
	const struct ckpt_pool_ops *memory; /* NULL: the machine's */
	uint64_t chunk_bytes;               /* 0: 16 KiB */
	uint32_t align;                     /* of requests to the disk; 0: 1 */
	uint32_t encoders;                  /* shards are stored encoded; 0: plain */
	bool delta;                         /* with encoders: as the difference to the last step */
	uint64_t keep_last;
	uint64_t keep_every;
	uint64_t remote_every;
	uint64_t remote_keep_last; /* with a grace of a minute */
	uint64_t remote_keep_every;
	bool read_only;
	bool new_start;
	bool node_store;
	/* One of several ranks: each has a rig of its own, on one directory. */
	uint32_t rank;
	uint32_t world;      /* 0: 1 */
	uint32_t timeout_ms; /* of a save; 0: a second */
};

struct core_rig {
	char *dir;
	int root;
	int remote; /* -1: none */
	struct ckpt_inbox inbox;
	struct ckpt_env env;
	struct ckpt_io io; /* below the faults */
	struct io_fault fault;
	struct ckpt_pool *pool;
	struct ckpt_ledger *ledger; /* NULL: none */
	struct ckpt_device *host;   /* the devices' */
	struct ckpt_devices devices;
	struct ckpt_log *log;
	struct ckpt_core core;
	struct ckpt_plan *plan; /* of the last save */
	struct ckpt_error err;  /* of the last thing that failed */
	uint64_t now_ns;
	uint64_t suspended_ns; /* that the machine was, in which no time has gone by here */
	uint64_t random;
	bool hold_jobs;
	struct ckpt_job *held; /* oldest last */
	size_t allocations;    /* since core_rig_count_allocations() */
	size_t fail_at;        /* the allocation of this number fails; 0: none */
	uint64_t listed; /* newest claim by which core_rig_bury() goes; 0: that of the opening */
};

/* Opens everything but the store. */
void core_rig_make(struct core_rig *rig, const struct core_rig_config *config);
/* Opens the store, and says how that went; once for each make. */
int core_rig_open_store(struct core_rig *rig);
/* Both; the store must open. */
void core_rig_open(struct core_rig *rig, const struct core_rig_config *config);
/* `world` ranks, each with a rig: what they have in common is in `config`. No two draw the same numbers. */
void core_rig_open_ranks(
	struct core_rig *ranks, uint32_t world, const struct core_rig_config *config);
/* Lets everything go, ends it, and checks that all slots, files, locks and memory are back. */
void core_rig_close(struct core_rig *rig);

/* Goes on until nothing moves. */
void core_rig_run(struct core_rig *rig);
/* Jobs that were held are carried out; those that follow are held again. */
void core_rig_do_jobs(struct core_rig *rig);
/* No job is held any more, nor what is held of the disk; and everything goes on. */
void core_rig_let_go(struct core_rig *rig);
/* The clock goes on by as much, and what is due is done. */
void core_rig_sleep(struct core_rig *rig, uint64_t ms);
/* For all of them, in steps in which a word may go from one to the other and back. */
void core_rig_sleep_ranks(struct core_rig *ranks, uint32_t world, uint64_t ms);

/* Posts; runs; the code, or 1: it has not ended. Commands that have ended are gone. */
int core_rig_claim(struct core_rig *rig);
int core_rig_remove(struct core_rig *rig, uint64_t step);
int core_rig_adopt(struct core_rig *rig, uint64_t generation, uint64_t step);
int core_rig_bury(struct core_rig *rig, enum ckpt_two_phase_delete_act act, uint64_t generation,
	uint64_t step);

/* A step of `count` tensors of `floats` numbers each. Prepared, and not posted. */
struct ckpt_save *core_rig_prepare(
	struct core_rig *rig, uint64_t step, size_t count, size_t floats, uint32_t flags);
/* Posts and runs. 1: it has not ended. */
int core_rig_post(struct core_rig *rig, struct ckpt_save *save);
/* The code of one that was to end; lets go of it. */
int core_rig_end_save(struct core_rig *rig, struct ckpt_save *save);
/* All of it, of a small step. */
int core_rig_save(struct core_rig *rig, uint64_t step);

/* Made and posted, with everything in the step bound if it is to memory; runs. */
struct ckpt_restore *core_rig_begin(
	struct core_rig *rig, uint64_t step, enum ckpt_restore_sink sink, const char *dest);
/* Lets time pass until it is open or has ended, two seconds at most. */
void core_rig_await(struct core_rig *rig, struct ckpt_restore *restore);
/* The code that it ended with, 1: it has not. Releases and frees it. */
int core_rig_end(struct core_rig *rig, struct ckpt_restore *restore);
int core_rig_read(struct core_rig *rig, uint64_t step, enum ckpt_restore_sink sink);
int core_rig_export(struct core_rig *rig, uint64_t step, const char *dest);

/* The newest log line of at least this level that holds `text`; drops those before it. */
bool core_rig_logged(struct core_rig *rig, enum ckpt_log_level level, const char *text);

/* From now allocation number `fail_at` fails (0: none); locks and conditions count as such. Off again: how many there were. */
void core_rig_count_allocations(struct core_rig *rig, size_t fail_at);
size_t core_rig_allocations(struct core_rig *rig);

#endif
