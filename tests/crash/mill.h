/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process around a real core, whose calls return when they are done: what is under way is moved on by
 * `advance` until then. It may die in any of them.
 */
#ifndef CRASH_MILL_H
#define CRASH_MILL_H

#include "engine/gc/gc.h"
#include "engine/lineage/claim.h"
#include "engine/lineage/open.h"
#include "engine/restore/restore.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/modules.h"
#include "engine/save/save.h"
#include "sim/sim_device.h"
#include "sim/sim_env.h"
#include "sim/sim_io.h"
#include "sim/sim_state.h"

#define MILL_DEAD (-10099)
#define MILL_ROOT 9

struct mill {
	struct sim *sim;
	struct ckpt_inbox inbox;
	struct sim_env env;
	struct sim_device device;
	struct ckpt_core core;
	struct ckpt_pool *pool;
	struct ckpt_plan *cache;
	struct sim_io *io; /* of mill_advance() */
	void *user;
	unsigned owner;
	bool dead;
	/* Finishes one thing that is under way, or lets time pass. */
	void (*advance)(struct mill *mill);
	/* The core has run. */
	void (*stepped)(struct mill *mill);
};

struct mill_setup {
	struct sim *sim;
	unsigned owner;
	uint64_t keep_last;
	bool read_only;
	bool anew;
	uint32_t block_bytes;
	uint64_t chunk_bytes;
	void (*advance)(struct mill *mill);
	void (*stepped)(struct mill *mill);
};

/* Before mill_open(), so that an io may be made around the inbox. */
void mill_init(struct mill *mill, const struct mill_setup *setup);
/* 0, an error, or MILL_DEAD; as the others. */
int mill_open(struct mill *mill, const struct mill_setup *setup, struct ckpt_io *io);
/* The step, restored into a state whose shape fits; `ret_generation` may be NULL. */
int64_t mill_restore(
	struct mill *mill, uint64_t step, struct sim_state *into, uint64_t *ret_generation);
int mill_adopt(struct mill *mill, uint64_t generation, uint64_t step);
int mill_claim(struct mill *mill);
int mill_remove(struct mill *mill, uint64_t step);
/* `acked` is called once it is, in the middle of mill_save(). */
int mill_save(struct mill *mill, uint64_t step, const struct sim_state *state,
	void (*acked)(struct mill *mill, uint64_t step));
/* After it nothing is left but what the caller made. */
int mill_close(struct mill *mill);
/* An advance() over the simulated disk: one of what is under way, in any order. */
void mill_advance(struct mill *mill);
/* Until nothing is under way any more. False: it has died. */
bool mill_drain(struct mill *mill);
/* What a dead process leaves behind in memory. Its io must be gone. */
void mill_sweep(struct mill *mill);

#endif
