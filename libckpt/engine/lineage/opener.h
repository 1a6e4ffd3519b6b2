/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an opening of one store (open.h) and one of the stores of all nodes (open_sync.h) have in common: the state, the
 * first word in the session, and the lock on the newest claim, which tells whether its holder lives.
 */
#ifndef CKPT_ENGINE_LINEAGE_OPENER_H
#define CKPT_ENGINE_LINEAGE_OPENER_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"
#include "engine/ranks/exchange_call.h"

struct ckpt_open_sync;

struct ckpt_opener {
	struct ckpt_command command;
	struct ckpt_task work;
	struct ckpt_scanner scanner;
	struct ckpt_store_op op;
	struct ckpt_buf buf;
	char path[CKPT_PATH_MAX];
	uint64_t newest;    /* claim when the lock was asked for; 0: none */
	bool held;          /* somebody else has that lock */
	ckpt_task_fn *then; /* body after the one below; NULL: the opening ends */
	struct ckpt_exchange_call call;
	int never; /* 0: stops nothing */
	/*
	 * The session is another start's. A rank whose first word has failed otherwise does not know that, and says that it
	 * failed: the others of its start wait for it. If the session is another start's all the same, its outcome stays
	 * what it is once it is there.
	 */
	bool used;
	struct ckpt_open_sync *nodes; /* NULL: the ranks share one store */
};

/*
 * How long a rank has for the other ranks: save_timeout_ms, which counts as 10 s at least and 120 s at most. The caller
 * of the command waits for all of save_timeout_ms, and 10 s at least.
 */
uint64_t ckpt_open_patience_ns(const struct ckpt_core *core);
/* After some eighths of that from now. */
uint64_t ckpt_open_deadline_ns(const struct ckpt_core *core, unsigned eighths);

/* Bodies of opener->work, which go on with `then`: the first word of this rank in its session; the lock. */
int ckpt_open_hello_body(struct ckpt_task *task);
int ckpt_open_hold_body(struct ckpt_task *task);

/* What was scanned is what the core knows of its store. */
void ckpt_open_take_scan(struct ckpt_opener *opener);
void ckpt_open_draw_run(struct ckpt_core *core, char ret_run_id[CKPT_RUN_ID_CHARS]);
int ckpt_open_check_scope(
	struct ckpt_core *core, const struct ckpt_marker *marker, struct ckpt_error *err);
/* Words for failures. */
int ckpt_open_in_use(struct ckpt_opener *opener, uint64_t generation);
int ckpt_open_lost_marker(struct ckpt_opener *opener, uint64_t generation);

/* The greatest number of a claim in a listing of gens/; 0: none. */
uint64_t ckpt_newest_claim(const struct ckpt_listing *listing);
/* The same, of the list that `op` has brought, and lets go of it. A list that failed has none. */
uint64_t ckpt_take_newest_claim(struct ckpt_store_op *op);

#endif
