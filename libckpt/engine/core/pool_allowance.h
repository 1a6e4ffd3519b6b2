/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much staging memory this rank may have. The ranks of a node agree on that (staging/ledger.h); where they cannot,
 * each has an even share. Asked by jobs of core/pool_growth.h and core/pool_shrink.h, one at a time.
 */
#ifndef CKPT_ENGINE_CORE_POOL_ALLOWANCE_H
#define CKPT_ENGINE_CORE_POOL_ALLOWANCE_H

#include "staging/ledger.h"
#include "staging/pool.h"

struct ckpt_core;

/* How often, and with what rests, another rank is waited for that has the ledger. */
#define CKPT_ALLOWANCE_TRIES   50
#define CKPT_ALLOWANCE_REST_NS UINT64_C(2000000)

/* Zero is none. */
struct ckpt_allowance {
	struct ckpt_memlimit memory;
	uint64_t held; /* by this rank, of the memory that others could have, */
	uint64_t
		all_held; /* and by all ranks of the node: what they have told, or as much as this one each */
	uint64_t bytes; /* that this rank may have, */
	uint64_t
		share; /* and that it need not give back, even if others have more than their shares */
	int failed;    /* why the ranks do not agree; 0: they do */
	bool open;
	bool alone; /* it was decided without the ledger, which another rank had */
	bool told;
	unsigned present;  /* ranks of the node that share the ledger; 0: it was not read yet */
	bool told_missing; /* that these are too few */
};

/*
 * A job, for a rank that needs so many bytes; 0: it only tells what it has. Then the end, with the bytes that it has, or
 * is about to. -EAGAIN: another rank has the ledger just now.
 */
int ckpt_allowance_begin(struct ckpt_core *core, uint64_t need);
void ckpt_allowance_end(struct ckpt_core *core, uint64_t have);
/* Instead, when another rank has had the ledger for too long: an even share. Others may have more than theirs. */
void ckpt_allowance_alone(struct ckpt_core *core);
/* The core's thread: whether the ranks agree. That they do not is said once. */
bool ckpt_allowance_agreed(struct ckpt_core *core);
/* Likewise, when all ranks should have come: that some share no ledger with this one is said once. */
void ckpt_allowance_say_missing(struct ckpt_core *core);

#endif
