/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mending a step that was found damaged here, from the remote store: every rank's files that are here are verified,
 * and those that are bad are written again, from there, verified on the way. What is there is read to the end first: if
 * it is damaged, too, or not to be had, nothing of that rank is changed.
 */
#ifndef CKPT_ENGINE_MENDER_H
#define CKPT_ENGINE_MENDER_H

#include "engine/elsewhere.h"
#include "engine/fetch.h"
#include "engine/pick.h"
#include "engine/shard.h"

struct ckpt_mender {
	struct ckpt_task task; /* await `finished`, look at `result`: 0, all that is here is good */
	struct ckpt_core *core;
	struct ckpt_store *source;    /* the remote store */
	const struct ckpt_pick *pick; /* the step, locked */
	const int *stop;              /* not 0: give up, with this code */
	struct ckpt_task *waiter;

	uint32_t mended;       /* ranks whose files were written again */
	struct ckpt_error err; /* why it failed */

	/* Its own. */
	struct ckpt_elsewhere elsewhere;
	struct ckpt_findings findings;
	struct ckpt_shard shard;
	struct ckpt_fetch fetch;
	struct ckpt_object file;
	struct ckpt_store_op op;
	atomic_uint_fast64_t bytes;
	uint32_t rank;
	bool bad;
	int code;
};

/* Zeroed, but for what comes before the first blank line. */
void ckpt_mender_start(struct ckpt_mender *mender);

#endif
