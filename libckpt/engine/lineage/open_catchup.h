/* SPDX-License-Identifier: Apache-2.0 */
/* What one node's store has and another lacks, on its way; and the opening's end. For open*.c only. */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_CATCHUP_H
#define CKPT_ENGINE_LINEAGE_OPEN_CATCHUP_H

#include "engine/lineage/open_sync.h"
#include "engine/ranks/blob.h"
#include "exchange/node_messages.h"

struct ckpt_open_node_leader {
	uint32_t rank;
	char node[CKPT_NODE_CHARS];
};

struct ckpt_open_sync {
	struct ckpt_node_record own; /* as it is told */
	struct ckpt_node_record all; /* as rank 0 has told it */
	bool told;
	uint64_t deadline_ns;
	struct ckpt_buf words;

	/* Rank 0. */
	bool *heard;
	struct ckpt_open_node_leader *node_leaders;
	uint32_t node_leader_count;
	uint32_t missing;
	uint32_t from;
	uint32_t run_rank; /* whose run it is */
	char run_node[CKPT_NODE_CHARS];
	bool drawn; /* the run: no store had one */
	bool any;   /* low_* are set */
	struct ckpt_node_item
		low_claim; /* the oldest of all node leaders' newest ones; generation 0: none */
	struct ckpt_node_item low_step;
	struct ckpt_node_item
		told_steps[CKPT_NODE_STEPS]; /* of all stores, lacking anywhere or not */
	size_t told_count;

	/* A node leader. */
	size_t at; /* item */
	bool sent; /* all that this store brings to others */
	struct ckpt_blob blob;
	struct ckpt_buf bytes;
	struct ckpt_object lock;
	struct ckpt_timer timer;
	struct ckpt_opener *opener;
};

/* lineage/open_sync.c: one item, and a deadline. */
void ckpt_open_prepare_talk(
	struct ckpt_opener *opener, struct ckpt_task *waiter, uint64_t deadline_ns);
/* The marker of this node's store into opener->buf, of the run that was told. -ENOMEM, worded. */
int ckpt_open_encode_run(struct ckpt_opener *opener);
/* A node leader: whether all that was to be brought is there. False: without memory. Await the talk. */
bool ckpt_open_catchup_tell(struct ckpt_opener *opener, int code, struct ckpt_task *waiter);
/* Body of opener->work: rank 0 has said what is to be brought. */
int ckpt_open_catchup_body(struct ckpt_task *task);

#endif
