/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks and the agent of a node say to each other, over a UNIX socket of type SOCK_SEQPACKET: a packet is a message,
 * and comes whole or not at all. A message is 16 bytes and a body whose size its type fixes. Names are numbers. A client
 * asks one question at a time; the agent answers each with one message.
 *
 *     bytes 0-3 magic, 4-7 version, 8-11 type, 12-15 length of the body; all little-endian
 */
#ifndef CKPT_PEER_MESSAGE_H
#define CKPT_PEER_MESSAGE_H

#include "peer/slot_header.h"

#define CKPT_PEER_MESSAGE_HEAD 16
#define CKPT_PEER_MESSAGE_MAX  2048
#define CKPT_PEER_TEXT_MAX     1024 /* with the NUL */
#define CKPT_PEER_SLOTS_MIN    2    /* of a rank */
#define CKPT_PEER_SLOTS_MAX    8
#define CKPT_PEER_NODE_RANKS   4096

enum ckpt_peer_type {
	/* Questions, and what answers them if all is well: */
	CKPT_PEER_ATTACH = 1,  /* ATTACHED: the connection is of a rank, which has memory */
	CKPT_PEER_FILL = 2,    /* FILLED: a slot to write to */
	CKPT_PEER_SEAL = 3,    /* OK: what was filled is whole */
	CKPT_PEER_DETACH = 4,  /* OK: the rank has ended well, and has nothing mapped */
	CKPT_PEER_NEXT = 5,    /* SLOT: the one with the next number; OK: there are no more */
	CKPT_PEER_FETCH = 6,   /* FETCHED: a sealed slot, to read */
	CKPT_PEER_RELEASE = 7, /* OK: it is not read any more */
	CKPT_PEER_STATUS = 8,  /* STATE: of the agent */
	/* OK: the process has nothing mapped any more of what it got on this connection; it may have ended badly */
	CKPT_PEER_UNMAPPED = 9,
	/* Answers: */
	CKPT_PEER_OK = 64,
	CKPT_PEER_ATTACHED = 65,
	CKPT_PEER_FILLED = 66, /* with the descriptor */
	CKPT_PEER_SLOT = 69,
	CKPT_PEER_FETCHED = 70, /* with the descriptor, which cannot be written to */
	CKPT_PEER_STATE = 72,
	CKPT_PEER_ERROR = 127,
};

/* All that any message has; message.c says which type has what. The others are 0. */
struct ckpt_peer_message {
	uint32_t type;
	uint32_t rank;
	uint32_t slots;      /* of a rank, that it wants; STATE: of all */
	uint32_t node_ranks; /* of the job on this node; 0: unknown */
	uint32_t state;      /* enum ckpt_peer_slot_state */
	uint32_t attached;   /* SLOT: 1 if its rank is; STATE: how many ranks are */
	uint32_t jobs;
	uint32_t pid;
	int32_t code; /* ERROR: negative */
	struct ckpt_peer_job job;
	uint64_t slot; /* its number; NEXT: the one before, or 0 */
	uint64_t writer;
	uint64_t generation;
	uint64_t step;
	/* FILL: the newest step that is committed in memory, or generation 0. */
	uint64_t keep_generation;
	uint64_t keep_step;
	uint64_t capacity;
	uint64_t length;
	uint64_t memory;   /* that slots may have together */
	uint64_t used;     /* that slots have, or ranks that are to come will have */
	uint64_t linger_s; /* how long slots stay that no rank has */
	struct ckpt_digest digest;
	char text[CKPT_PEER_TEXT_MAX]; /* ERROR */
};

/* Returns the length. */
size_t ckpt_peer_message_put(
	const struct ckpt_peer_message *message, uint8_t ret_data[CKPT_PEER_MESSAGE_MAX]);
/* Reads a packet. Numbers that have a range are in it. -EPROTO, CKPT_EVERSION; sets `err`. */
int ckpt_peer_message_get(const uint8_t *data, size_t length, struct ckpt_error *err,
	struct ckpt_peer_message *ret_message);

#endif
