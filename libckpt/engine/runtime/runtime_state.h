/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine consists of; for runtime*.c only. */
#ifndef CKPT_ENGINE_RUNTIME_RUNTIME_STATE_H
#define CKPT_ENGINE_RUNTIME_RUNTIME_STATE_H

#include <stdatomic.h>
#include "engine/runtime/commands.h"
#include "engine/runtime/runtime.h"

struct ckpt_bucket;
struct ckpt_dest;

struct ckpt_engine {
	struct ckpt_core core; /* its thread's, but for what posts */
	char *label;
	int root;                          /* -1: the store is in a bucket */
	struct ckpt_bucket *bucket;        /* NULL: it is a directory */
	struct ckpt_dest *dests;           /* buckets that exports go to; guarded by lock */
	struct ckpt_core_place remote;     /* its label is the engine's; NULL: none */
	struct ckpt_bucket *remote_bucket; /* NULL: it is a directory, or there is none */
	int eventfd;
	unsigned forks; /* ckpt_fork_count() when it was opened */
	struct ckpt_log *log;
	struct ckpt_inbox inbox;
	struct ckpt_env_os *env;
	struct ckpt_pool *pool;
	struct ckpt_ledger *ledger; /* NULL: there is none */
	struct ckpt_devices devices;
	struct ckpt_io *io;
	struct ckpt_exchange_server *server; /* a hold on it; NULL: none */
	bool inbox_open;
	bool core_open;
	bool closer_open;
	bool running;
	pthread_t thread;
	atomic_bool quit;
	struct ckpt_closer closer;
	enum ckpt_busy busy;

	/*
	 * Of the threads that save. Whoever has the turn starts a save, claims or adopts; it may wait
	 * for the disk meanwhile, and does so without the lock.
	 */
	pthread_mutex_t lock;
	pthread_cond_t turn_over;
	bool turn;              /* somebody has it */
	struct ckpt_save *last; /* the newest that was posted; a reference */
	/* Waited for by nobody just now, or ended and not looked at yet; a reference. NULL: none. */
	struct ckpt_command *claim;
	struct ckpt_save
		*claim_for; /* whose failure it would be; a reference. NULL: nobody's who waits */
	/* To be begun when that one fails: all ranks try for every step, and count. */
	unsigned claims_owed;
	uint64_t generation; /* 0: to be claimed */
	/* What user threads have begun or refused. core->lineage has what the core has heard of, which may be less. */
	bool any_step;
	uint64_t last_step;
	atomic_uint_fast64_t saves_skipped;
	atomic_uint_fast64_t saves_waited;
	atomic_uint_fast64_t saves_waited_ns;
};

/* runtime/open_store.c. Once the environment and the log are there. */
int ckpt_runtime_open_place(struct ckpt_engine *engine, bool read_only, struct ckpt_error *err);
/* The remote store, after the place. */
int ckpt_runtime_open_remote(
	struct ckpt_engine *engine, const struct ckpt_engine_opts *opts, struct ckpt_error *err);
/* NULL: the store is a directory. */
struct ckpt_s3_client *ckpt_runtime_client(const struct ckpt_engine *engine);
/* What was not opened is not closed. */
void ckpt_runtime_close_place(struct ckpt_engine *engine);

/* runtime/export_buckets.c. Keeps a bucket until it is left, or the engine closed. -ENOMEM: it is the caller's. */
int ckpt_runtime_keep_dest(struct ckpt_engine *engine, struct ckpt_bucket *bucket);
/* `user` is the engine; on the core's thread. */
void ckpt_runtime_leave_dest(void *user, struct ckpt_s3_client *client);
/* Nothing runs any more. */
void ckpt_runtime_close_dests(struct ckpt_engine *engine);

/* runtime/turn.c. Whether a command has ended within a while; and then its result, worded into `err`. */
bool ckpt_runtime_has_ended(struct ckpt_command *command, int timeout_ms);
int ckpt_runtime_result(
	struct ckpt_engine *engine, struct ckpt_command *command, struct ckpt_error *err);
/* One thread at a time goes on from here to the end of its turn. */
bool ckpt_runtime_take_turn_within(struct ckpt_engine *engine, int timeout_ms);
int ckpt_runtime_take_turn(struct ckpt_engine *engine, struct ckpt_error *err);
void ckpt_runtime_end_turn(struct ckpt_engine *engine);

/*
 * runtime/claim.c, for whoever has the turn: a generation for a save, unless there is one. What has failed
 * for another save is not told to this one. The second waits no longer than `timeout_ms`: -ETIMEDOUT and
 * `*ret_over` false.
 */
int ckpt_runtime_claim_in_turn(
	struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err);
int ckpt_runtime_claim_ready(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over);
/* A save has failed that claims nothing itself. Nobody has the turn, and the lock is held. */
void ckpt_runtime_claim_refused(struct ckpt_engine *engine, struct ckpt_save *save);

#endif
