/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one node's store has and another lacks, on its way; and the end of the opening. For open_sync.c and
 * open_catchup.c only, which share the state.
 */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_CATCHUP_H
#define CKPT_ENGINE_LINEAGE_OPEN_CATCHUP_H

#include "engine/lineage/node_union.h"
#include "engine/lineage/opener.h"
#include "engine/ranks/blob.h"
#include "engine/ranks/round.h"

struct ckpt_open_sync {
	struct ckpt_opener *opener;
	/* The values are records of the stores. Rank 0's is that of all stores. */
	struct ckpt_round round;
	struct ckpt_node_record own; /* of this rank; its verdict is set if the rank fails */
	struct ckpt_node_record all; /* the outcome, if it went well */
	bool agreed;                 /* it went well */
	struct ckpt_error failure;   /* else: why */
	uint64_t deadline_ns;        /* of all that comes after the round */

	/* Rank 0. */
	struct ckpt_node_union found; /* what the records of all ranks say */
	bool drawn;                   /* the run: no store had one */

	/* A node leader. */
	size_t at; /* item */
	bool sent; /* all that this store brings to others */
	struct ckpt_blob blob;
	struct ckpt_buf bytes;
	struct ckpt_object lock;
	struct ckpt_timer timer;
	struct ckpt_buf words;
};

/* The marker of this node's store into opener->buf, of the run that was agreed on. -ENOMEM, worded. */
int ckpt_open_encode_run(struct ckpt_opener *opener);
/*
 * A node leader, to the other ranks of its node: whether all that was to be brought is there. False: without memory.
 * Await the call.
 */
bool ckpt_open_catchup_tell(struct ckpt_opener *opener, int code, struct ckpt_task *waiter);
/* Body of opener->work, after the round: brings what is lacking, and ends the opening. */
int ckpt_open_catchup_body(struct ckpt_task *task);

#endif
