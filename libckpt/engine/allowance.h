/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much staging memory this rank may have. The ranks of a node agree on that (staging/ledger.h); where they cannot,
 * each has an even share. Asked by jobs of growth.h and shrink.h, one at a time.
 */
#ifndef CKPT_ENGINE_ALLOWANCE_H
#define CKPT_ENGINE_ALLOWANCE_H

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
	uint64_t bytes; /* that this rank may have */
	int failed;     /* why the ranks do not agree; 0: they do */
	bool open;
	bool told;
};

/*
 * A job, for a rank that needs so many bytes; 0: it only tells what it has. Then the end, with the bytes that it has, or
 * is about to. -EAGAIN: another rank has the ledger just now.
 */
int ckpt_allowance_begin(struct ckpt_core *core, uint64_t need);
void ckpt_allowance_end(struct ckpt_core *core, uint64_t have);
/* The core's thread: whether the ranks agree. That they do not is said once. */
bool ckpt_allowance_agreed(struct ckpt_core *core);

#endif
