/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a slot (FORMAT.md, section 24). The agent alone writes it. Its fixed part is written once, when the slot is
 * made. The record says what the slot holds; the agent may be killed while it writes it, so it has a digest.
 */
#ifndef CKPT_PEER_SLOT_HEADER_H
#define CKPT_PEER_SLOT_HEADER_H

#include <ckpt/error.h>
#include "base/digest.h"

#define CKPT_PEER_SLOT_HEADER_BYTES ((uint64_t)4096)
/* How much of it is used. */
#define CKPT_PEER_SLOT_HEADER_USED  ((size_t)208)
/* Each piece of so many bytes of the data has a digest; the last one may be shorter. */
#define CKPT_PEER_SLOT_CHUNK        (UINT64_C(1) << 20)
#define CKPT_PEER_SLOT_CAPACITY     (UINT64_C(1) << 44) /* most bytes of data */
#define CKPT_PEER_RANKS             1000000u
#define CKPT_PEER_JOB_BYTES         16
#define CKPT_PEER_WRITER_UNKNOWN    UINT64_MAX

/* The name of a job: the run id of its store. All zeros: none, or any. */
struct ckpt_peer_job {
	uint8_t bytes[CKPT_PEER_JOB_BYTES];
};

enum ckpt_peer_slot_state {
	CKPT_PEER_EMPTY = 0,
	CKPT_PEER_FILLING = 1, /* a rank writes, or wrote and is gone */
	CKPT_PEER_SEALED = 2,
};

struct ckpt_peer_slot_fixed {
	struct ckpt_peer_job job;
	uint64_t number;   /* unique for the agent; 1 or more */
	uint64_t capacity; /* bytes of data; a multiple of 4096 */
	uint32_t rank;
};

struct ckpt_peer_slot_record {
	enum ckpt_peer_slot_state state;
	/* The one process that was ever given it for writing; 0: none yet; UNKNOWN: the record is not valid. */
	uint64_t writer;
	uint64_t generation;
	uint64_t step;
	uint64_t length;           /* SEALED: bytes of data that count */
	struct ckpt_digest digest; /* SEALED: of the digests of its chunks */
};

/* Numbers of chunks in `length` bytes. */
uint64_t ckpt_peer_slot_chunks(uint64_t length);
/* Where the digests of the chunks are, and the size of the whole slot, a multiple of 4096. */
uint64_t ckpt_peer_slot_table(uint64_t capacity);
uint64_t ckpt_peer_slot_bytes(uint64_t capacity);

/* Writes the fixed part of a new header, and an EMPTY record. `header` is zeroed. */
void ckpt_peer_slot_put_fixed(uint8_t *header, const struct ckpt_peer_slot_fixed *fixed);
/*
 * Replaces the record. Whoever reads beside it, or after the writer was killed in it, finds the old record, the new one, or
 * one that is not valid.
 */
void ckpt_peer_slot_put_record(uint8_t *header, const struct ckpt_peer_slot_record *record);

/*
 * The latest generation of the job that has begun, as far as the agent knows: it must outlive the agent. `header` has
 * CKPT_PEER_SLOT_HEADER_BYTES. 0: it was never written, or not wholly.
 */
void ckpt_peer_slot_put_fence(uint8_t *header, uint64_t generation);
uint64_t ckpt_peer_slot_fence(const uint8_t *header);

/*
 * Reads a copy of a header, from a file of `file_bytes`. A record that is not valid is EMPTY, and its writer unknown.
 * CKPT_EFORMAT, CKPT_EVERSION; sets `err`.
 */
int ckpt_peer_slot_get(const uint8_t header[CKPT_PEER_SLOT_HEADER_USED], uint64_t file_bytes,
	struct ckpt_error *err, struct ckpt_peer_slot_fixed *ret_fixed,
	struct ckpt_peer_slot_record *ret_record);

#endif
