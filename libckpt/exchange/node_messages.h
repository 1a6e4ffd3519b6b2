/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of ranks that open the stores of their nodes: the newest items of each store, and what is copied from one
 * store to another. Pure.
 */
#ifndef CKPT_EXCHANGE_NODE_MESSAGES_H
#define CKPT_EXCHANGE_NODE_MESSAGES_H

#include "exchange/rank_messages.h"

/* Items reported for each store: the newest ones. Older ones are missing nowhere, or are lost. */
#define CKPT_NODE_CLAIMS 128
#define CKPT_NODE_STEPS  64

/* A claim (`step` is its mark) or a step. */
struct ckpt_node_item {
	uint64_t generation;
	uint64_t step;
	uint32_t from; /* a rank on the node that has it */
};

/* The record of one rank, or of all together. In the latter, `from` says which rank sends what others lack. */
struct ckpt_node_record {
	struct ckpt_verdict verdict; /* code and reason if the store cannot be opened */
	uint32_t rank;               /* the sender; of a failure, the rank that failed */
	char node[CKPT_NODE_CHARS];
	char run_id[CKPT_RUN_ID_CHARS]; /* zeros: no store exists yet */
	/* It is its node's leader, and reports what the store holds. */
	bool keeps;
	uint64_t newest; /* newest claimed generation; 0: none */
	size_t claim_count;
	size_t step_count;
	size_t open_count;
	struct ckpt_node_item claims[CKPT_NODE_CLAIMS]; /* newest first */
	struct ckpt_node_item steps[CKPT_NODE_STEPS];   /* commits, newest first */
	struct ckpt_node_item open[CKPT_NODE_STEPS];    /* undecided steps, newest first */
};

/* The run id if no store exists yet. */
#define CKPT_NODE_NO_RUN "00000000000000000000000000000000"

/* Appends to an empty `out`. The key is part of it, so that a value is not accepted under another key. -ENOMEM. */
int ckpt_node_record_encode(
	const struct ckpt_node_record *record, const char *key, struct ckpt_buf *out);
/* CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION; then *ret is unchanged. */
int ckpt_node_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_node_record *ret_record);

/* Distinguishes two claims of one number, by their nonces. */
uint64_t ckpt_node_claim_mark(uint64_t nonce);
/* Negative: a is older than b. */
int ckpt_node_item_order(const struct ckpt_node_item *a, const struct ckpt_node_item *b);
bool ckpt_node_item_among(
	const struct ckpt_node_item *item, const struct ckpt_node_item *items, size_t count);
/* Adds the items of `other` to `all`, newest first, as many as fit. Items in both keep their `from`. */
void ckpt_node_record_unite(struct ckpt_node_record *all, const struct ckpt_node_record *other);

/*
 * Keys, of CKPT_EXCHANGE_KEY_MAX bytes: of one rank, of all, of a node leader that has received copies, of a copied
 * claim, of a copied commit.
 */
void ckpt_key_node(char *out, uint32_t rank);
void ckpt_key_nodes(char *out);
void ckpt_key_node_ready(char *out, uint32_t node_leader);
void ckpt_key_bring_claim(char *out, uint64_t generation);
void ckpt_key_bring_step(char *out, uint64_t generation, uint64_t step);

#endif
