/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps that the last committed step needs, because it is stored as the difference to them, and whether the next one may add
 * itself. Rank 0 decides for all ranks: so all of them store a step by itself at the same time, and the chain ends. Pure.
 */
#ifndef CKPT_ENGINE_SAVE_DELTA_RUN_H
#define CKPT_ENGINE_SAVE_DELTA_RUN_H

#include "format/manifest.h"

/* Zero is one that no step may follow. */
struct ckpt_delta_run {
	struct ckpt_base_step last;                  /* the last committed step */
	struct ckpt_base_step steps[CKPT_BASES_MAX]; /* that it needs, ascending */
	unsigned count;
	uint64_t whole; /* stored bytes of the step that begins the chain, */
	uint64_t log;   /* and of those that follow it */
	bool open;      /* the next step may be the difference to `last` */
};

/*
 * The chain of a step that is stored in so many bytes, and that is the difference to run->last in some of its shards if it is
 * `based`. It is not open where that would be one step too many, or where the differences are as large as a step by itself.
 */
struct ckpt_delta_run ckpt_delta_run_add(const struct ckpt_delta_run *run, uint64_t generation,
	uint64_t step, bool based, uint64_t stored);
/* Whether it is the last step of the chain, or needed by it. */
bool ckpt_delta_run_has(const struct ckpt_delta_run *run, uint64_t generation, uint64_t step);

#endif
