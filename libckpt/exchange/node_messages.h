/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a job tell each other when they open the stores of their nodes: what each store holds at
 * its newest end, and what is to be brought from one to another. Pure.
 */
#ifndef CKPT_EXCHANGE_NODE_MESSAGES_H
#define CKPT_EXCHANGE_NODE_MESSAGES_H

#include "exchange/rank_messages.h"

/* The newest that are told of each store. What is older than these is missing nowhere, or for good. */
#define CKPT_NODE_CLAIMS 128
#define CKPT_NODE_STEPS  64

/* A claim (`step` is its mark) or a step. */
struct ckpt_node_item {
	uint64_t generation;
	uint64_t step;
	uint32_t from; /* a rank whose node has it */
};

/* Of one rank, and of all together: then `from` says who brings what another lacks. */
struct ckpt_node_record {
	struct ckpt_verdict verdict; /* code and reason: why it cannot be opened */
	uint32_t rank;               /* who tells it; of a failure, whose it is */
	char node[CKPT_NODE_CHARS];
	char run_id[CKPT_RUN_ID_CHARS]; /* zeros: there is no store yet */
	bool keeps;                     /* it keeps its node's store, and says what that holds */
	uint64_t newest;                /* generation that was claimed; 0: none */
	size_t claim_count;
	size_t step_count;
	size_t open_count;
	struct ckpt_node_item claims[CKPT_NODE_CLAIMS]; /* newest first */
	struct ckpt_node_item steps[CKPT_NODE_STEPS];   /* commits, newest first */
	struct ckpt_node_item
		open[CKPT_NODE_STEPS]; /* begun, and not known how they ended: likewise */
};

/* As a run id: there is no store yet. */
#define CKPT_NODE_NO_RUN "00000000000000000000000000000000"

/* Into an empty `out`. The key is part of it: no value passes for that of another key. -ENOMEM. */
int ckpt_node_record_encode(
	const struct ckpt_node_record *record, const char *key, struct ckpt_buf *out);
/* CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION. *ret stays as it was then. */
int ckpt_node_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_node_record *ret_record);

/* Tells two claims of one number apart, by their nonces. */
uint64_t ckpt_node_claim_mark(uint64_t nonce);
/* Below 0: a is older than b. */
int ckpt_node_item_order(const struct ckpt_node_item *a, const struct ckpt_node_item *b);
bool ckpt_node_item_among(
	const struct ckpt_node_item *item, const struct ckpt_node_item *items, size_t count);
/*
 * Adds what `other` has to `all`, newest first, as many as there is room for; of what both have it stays with
 * whom it is from.
 */
void ckpt_node_record_unite(struct ckpt_node_record *all, const struct ckpt_node_record *other);

/*
 * Keys, of CKPT_EXCHANGE_KEY_MAX bytes: of one rank, of all, of a node leader that has what was brought to it, of a
 * claim and of a commit that are brought.
 */
void ckpt_key_node(char *out, uint32_t rank);
void ckpt_key_nodes(char *out);
void ckpt_key_node_ready(char *out, uint32_t node_leader);
void ckpt_key_bring_claim(char *out, uint64_t generation);
void ckpt_key_bring_step(char *out, uint64_t generation, uint64_t step);

#endif
