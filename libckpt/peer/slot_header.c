/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and checks the header of a slot. */
#include "peer/slot_header.h"

#include <string.h>

#include "base/error.h"
#include "peer/little_endian.h"

#define PAGE_BYTES 4096

#define MAJOR 1
#define MINOR 0

static const uint8_t magic[8] = {'C', 'K', 'P', 'T', 'S', 'L', 'O', 'T'};

/* The fixed part, and its digest behind it. */
#define AT_MAJOR        8
#define AT_MINOR        12
#define AT_CAPACITY     16
#define AT_NUMBER       24
#define AT_JOB          32
#define AT_RANK         48
#define AT_CHUNK        52
#define FIXED_BYTES     64
#define AT_FIXED_DIGEST 64

/* The record, and the digest of the fixed part and the record behind it. */
#define AT_RECORD        128
#define RECORD_BYTES     64
#define AT_RECORD_DIGEST 192
/* The fence, and the digest of the fixed part and the fence behind it. Not part of the record, which stays whole meanwhile. */
#define AT_FENCE         208
#define FENCE_BYTES      8
#define AT_FENCE_DIGEST  216
/* Offsets in the record: */
#define OF_STATE         0
#define OF_WRITER        8
#define OF_GENERATION    16
#define OF_STEP          24
#define OF_LENGTH        32
#define OF_DIGEST        48

_Static_assert(AT_RECORD_DIGEST + CKPT_DIGEST_SIZE == CKPT_PEER_SLOT_HEADER_USED, "the last field");

uint64_t ckpt_peer_slot_chunks(uint64_t length)
{
	return (length + CKPT_PEER_SLOT_CHUNK - 1) / CKPT_PEER_SLOT_CHUNK;
}

uint64_t ckpt_peer_slot_table(uint64_t capacity)
{
	CKPT_ASSERT(capacity <= CKPT_PEER_SLOT_CAPACITY);
	return CKPT_PEER_SLOT_HEADER_BYTES + capacity;
}

uint64_t ckpt_peer_slot_bytes(uint64_t capacity)
{
	uint64_t table = ckpt_peer_slot_chunks(capacity) * CKPT_DIGEST_SIZE;

	return ckpt_align_up(ckpt_peer_slot_table(capacity) + table, PAGE_BYTES);
}

void ckpt_peer_slot_put_fixed(uint8_t *header, const struct ckpt_peer_slot_fixed *fixed)
{
	const struct ckpt_peer_slot_record empty = {.state = CKPT_PEER_EMPTY};
	struct ckpt_digest digest;

	CKPT_ASSERT(fixed->capacity > 0 && fixed->capacity % PAGE_BYTES == 0);
	CKPT_ASSERT(fixed->capacity <= CKPT_PEER_SLOT_CAPACITY && fixed->number > 0);
	memcpy(header, magic, sizeof(magic));
	ckpt_peer_put32(header + AT_MAJOR, MAJOR);
	ckpt_peer_put32(header + AT_MINOR, MINOR);
	ckpt_peer_put64(header + AT_CAPACITY, fixed->capacity);
	ckpt_peer_put64(header + AT_NUMBER, fixed->number);
	memcpy(header + AT_JOB, fixed->job.bytes, CKPT_PEER_JOB_BYTES);
	ckpt_peer_put32(header + AT_RANK, fixed->rank);
	ckpt_peer_put32(header + AT_CHUNK, (uint32_t)CKPT_PEER_SLOT_CHUNK);
	digest = ckpt_digest_of(header, FIXED_BYTES);
	memcpy(header + AT_FIXED_DIGEST, digest.bytes, CKPT_DIGEST_SIZE);
	ckpt_peer_slot_put_record(header, &empty);
}

void ckpt_peer_slot_put_record(uint8_t *header, const struct ckpt_peer_slot_record *record)
{
	uint8_t fields[RECORD_BYTES] = {0};
	struct ckpt_digest digest;

	ckpt_peer_put32(fields + OF_STATE, record->state);
	ckpt_peer_put64(fields + OF_WRITER, record->writer);
	ckpt_peer_put64(fields + OF_GENERATION, record->generation);
	ckpt_peer_put64(fields + OF_STEP, record->step);
	ckpt_peer_put64(fields + OF_LENGTH, record->length);
	memcpy(fields + OF_DIGEST, record->digest.bytes, CKPT_DIGEST_SIZE);
	digest = ckpt_digest_of_two(header, FIXED_BYTES, fields, RECORD_BYTES);
	/*
	 * No digest of 128 bits belongs to a mix of two records. So the order of these stores does not matter to who reads;
	 * it must only be kept that all of them are made before what the caller does next.
	 */
	memcpy(header + AT_RECORD, fields, RECORD_BYTES);
	memcpy(header + AT_RECORD_DIGEST, digest.bytes, CKPT_DIGEST_SIZE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void ckpt_peer_slot_put_fence(uint8_t *header, uint64_t generation)
{
	uint8_t field[FENCE_BYTES];
	struct ckpt_digest digest;

	ckpt_peer_put64(field, generation);
	digest = ckpt_digest_of_two(header, FIXED_BYTES, field, FENCE_BYTES);
	memcpy(header + AT_FENCE, field, FENCE_BYTES);
	memcpy(header + AT_FENCE_DIGEST, digest.bytes, CKPT_DIGEST_SIZE);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

uint64_t ckpt_peer_slot_fence(const uint8_t *header)
{
	uint8_t field[FENCE_BYTES];
	struct ckpt_digest digest;

	memcpy(field, header + AT_FENCE, FENCE_BYTES);
	digest = ckpt_digest_of_two(header, FIXED_BYTES, field, FENCE_BYTES);
	if (memcmp(header + AT_FENCE_DIGEST, digest.bytes, CKPT_DIGEST_SIZE) != 0)
		return 0;
	return ckpt_peer_get64(field);
}

static int bad(struct ckpt_error *err, int code, const char *why)
{
	return ckpt_fail(err, code, "this is not a slot of an agent that can be used: %s", why);
}

/* The record of a good fixed part; false: it is not valid. */
static bool get_record(const uint8_t *header, uint64_t capacity, struct ckpt_peer_slot_record *ret)
{
	const uint8_t *fields = header + AT_RECORD;
	struct ckpt_digest digest = ckpt_digest_of_two(header, FIXED_BYTES, fields, RECORD_BYTES);
	uint32_t state = ckpt_peer_get32(fields + OF_STATE);

	if (memcmp(header + AT_RECORD_DIGEST, digest.bytes, CKPT_DIGEST_SIZE) != 0)
		return false;
	*ret = (struct ckpt_peer_slot_record){
		.state = (enum ckpt_peer_slot_state)state,
		.writer = ckpt_peer_get64(fields + OF_WRITER),
		.generation = ckpt_peer_get64(fields + OF_GENERATION),
		.step = ckpt_peer_get64(fields + OF_STEP),
		.length = ckpt_peer_get64(fields + OF_LENGTH),
	};
	memcpy(ret->digest.bytes, fields + OF_DIGEST, CKPT_DIGEST_SIZE);
	return state <= CKPT_PEER_SEALED && ret->length <= capacity;
}

int ckpt_peer_slot_get(const uint8_t header[CKPT_PEER_SLOT_HEADER_USED], uint64_t file_bytes,
	struct ckpt_error *err, struct ckpt_peer_slot_fixed *ret_fixed,
	struct ckpt_peer_slot_record *ret_record)
{
	struct ckpt_digest digest = ckpt_digest_of(header, FIXED_BYTES);
	struct ckpt_peer_slot_fixed fixed = {
		.number = ckpt_peer_get64(header + AT_NUMBER),
		.capacity = ckpt_peer_get64(header + AT_CAPACITY),
		.rank = ckpt_peer_get32(header + AT_RANK),
	};

	if (memcmp(header, magic, sizeof(magic)) != 0)
		return bad(err, CKPT_EFORMAT, "it does not begin with CKPTSLOT");
	if (memcmp(header + AT_FIXED_DIGEST, digest.bytes, CKPT_DIGEST_SIZE) != 0)
		return bad(err, CKPT_EFORMAT, "its header differs from its digest");
	if (ckpt_peer_get32(header + AT_MAJOR) != MAJOR)
		return bad(err, CKPT_EVERSION,
			"its version is another one; restart the job with the agent of this "
			"version");
	if (fixed.capacity == 0 || fixed.capacity % PAGE_BYTES != 0 ||
		fixed.capacity > CKPT_PEER_SLOT_CAPACITY || fixed.number == 0 ||
		fixed.rank >= CKPT_PEER_RANKS ||
		ckpt_peer_get32(header + AT_CHUNK) != CKPT_PEER_SLOT_CHUNK)
		return bad(err, CKPT_EFORMAT, "a number in its header is out of range");
	if (file_bytes < ckpt_peer_slot_bytes(fixed.capacity))
		return bad(err, CKPT_EFORMAT, "it is shorter than its header says");
	memcpy(fixed.job.bytes, header + AT_JOB, CKPT_PEER_JOB_BYTES);
	*ret_fixed = fixed;
	if (!get_record(header, fixed.capacity, ret_record))
		*ret_record = (struct ckpt_peer_slot_record){
			.state = CKPT_PEER_EMPTY, .writer = CKPT_PEER_WRITER_UNKNOWN};
	return 0;
}
