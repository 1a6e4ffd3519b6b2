/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a store: marker, scan, and the lock on the newest claim that tells whether its holder lives.
 */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_H
#define CKPT_ENGINE_LINEAGE_OPEN_H

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
	uint64_t newest; /* claim when the lock was asked for; 0: none */
	bool held;       /* somebody else has that lock */
	struct ckpt_exchange_call call;
	int never;                    /* 0: stops nothing */
	bool used;                    /* the session is another start's */
	struct ckpt_open_sync *nodes; /* NULL: the ranks share one store */
};

/* Post it first, and once. Zeroed but for command_init. */
int ckpt_open_body(struct ckpt_task *task);
/* After END. */
void ckpt_opener_clear(struct ckpt_command *command);

/*
 * When a rank gives up on the other ranks: after some eighths of save_timeout_ms, which counts as 10 s at
 * least and 120 s at most. The caller of the command waits for all of save_timeout_ms, and 10 s at least.
 */
uint64_t ckpt_open_deadline_ns(const struct ckpt_core *core, unsigned eighths);

/* The greatest number of a claim in a listing of gens/; 0: none. */
uint64_t ckpt_newest_claim(const struct ckpt_listing *listing);
/* The same, of the list that `op` has brought, and lets go of it. A list that failed has none. */
uint64_t ckpt_take_newest_claim(struct ckpt_store_op *op);

#endif
