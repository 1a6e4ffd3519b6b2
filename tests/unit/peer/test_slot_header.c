/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a slot: no byte of it can be wrong, and a record that was half written is none. */
#include "lib/test.h"

#include <string.h>

#include "base/error.h"
#include "peer/slot_header.h"

#define CAPACITY (UINT64_C(3) << 20)

static const struct ckpt_peer_slot_fixed fixed = {
	.job = {{9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6}},
	.number = 12,
	.capacity = CAPACITY,
	.rank = 3,
};

static const struct ckpt_peer_slot_record older = {
	.state = CKPT_PEER_SEALED,
	.writer = 77,
	.generation = 4,
	.step = 1000,
	.length = CAPACITY - 5,
	.digest = {{1, 2, 3}},
};

static const struct ckpt_peer_slot_record newer = {
	.state = CKPT_PEER_FILLING,
	.writer = 78,
	.generation = 5,
	.step = 2000,
};

static int get(const uint8_t *header, struct ckpt_peer_slot_record *ret_record)
{
	struct ckpt_peer_slot_fixed got;
	struct ckpt_error err;
	int r;

	ckpt_error_clear(&err);
	r = ckpt_peer_slot_get(header, ckpt_peer_slot_bytes(CAPACITY), &err, &got, ret_record);
	assert_int_equal(r < 0, err.message[0] != 0);
	return r;
}

static void make(uint8_t header[CKPT_PEER_SLOT_HEADER_BYTES])
{
	memset(header, 0, CKPT_PEER_SLOT_HEADER_BYTES);
	ckpt_peer_slot_put_fixed(header, &fixed);
	ckpt_peer_slot_put_record(header, &older);
}

static bool is(const struct ckpt_peer_slot_record *a, const struct ckpt_peer_slot_record *b)
{
	return a->state == b->state && a->writer == b->writer && a->generation == b->generation &&
	       a->step == b->step && a->length == b->length &&
	       ckpt_digest_equal(&a->digest, &b->digest);
}

static void what_is_put_is_got(void **state)
{
	uint8_t header[CKPT_PEER_SLOT_HEADER_BYTES] = {0};
	struct ckpt_peer_slot_fixed got;
	struct ckpt_peer_slot_record record;

	(void)state;
	ckpt_peer_slot_put_fixed(header, &fixed);
	assert_int_equal(get(header, &record), 0);
	assert_int_equal(record.state, CKPT_PEER_EMPTY);
	assert_int_equal(record.writer, 0);
	ckpt_peer_slot_put_record(header, &older);
	assert_int_equal(
		ckpt_peer_slot_get(header, ckpt_peer_slot_bytes(CAPACITY), NULL, &got, &record), 0);
	assert_true(is(&record, &older));
	assert_memory_equal(&got.job, &fixed.job, sizeof(fixed.job));
	assert_int_equal(got.number, fixed.number);
	assert_int_equal(got.capacity, fixed.capacity);
	assert_int_equal(got.rank, fixed.rank);
	for (size_t i = CKPT_PEER_SLOT_HEADER_USED; i < sizeof(header); i++)
		assert_int_equal(header[i], 0);
}

/* A wrong bit in the fixed part: no slot; in the record: nothing that can be served. The gap between them means nothing. */
static void every_wrong_bit_is_found(void **state)
{
	uint8_t header[CKPT_PEER_SLOT_HEADER_BYTES];
	struct ckpt_peer_slot_record record;

	(void)state;
	make(header);
	for (size_t i = 0; i < 8 * CKPT_PEER_SLOT_HEADER_USED; i++) {
		size_t byte = i / 8;

		header[byte] ^= (uint8_t)(1 << i % 8);
		if (byte < 80) {
			assert_int_equal(get(header, &record), CKPT_EFORMAT);
		} else {
			assert_int_equal(get(header, &record), 0);
			if (byte < 128)
				assert_true(is(&record, &older));
			else
				assert_true(record.state == CKPT_PEER_EMPTY &&
					    record.writer == CKPT_PEER_WRITER_UNKNOWN);
		}
		header[byte] ^= (uint8_t)(1 << i % 8);
	}
}

/* The agent was killed in the middle: a part of the new record is there, from either end. */
static void a_mix_of_two_records_is_none(void **state)
{
	uint8_t before[CKPT_PEER_SLOT_HEADER_BYTES];
	uint8_t after[CKPT_PEER_SLOT_HEADER_BYTES];
	struct ckpt_peer_slot_record record;

	(void)state;
	make(before);
	make(after);
	ckpt_peer_slot_put_record(after, &newer);
	for (size_t cut = 0; cut <= CKPT_PEER_SLOT_HEADER_USED; cut++) {
		uint8_t mixed[CKPT_PEER_SLOT_HEADER_USED];

		for (int turned = 0; turned < 2; turned++) {
			const uint8_t *head = turned ? before : after;
			const uint8_t *tail = turned ? after : before;

			memcpy(mixed, head, cut);
			memcpy(mixed + cut, tail + cut, sizeof(mixed) - cut);
			assert_int_equal(get(mixed, &record), 0);
			assert_true(is(&record, &older) || is(&record, &newer) ||
				    record.state == CKPT_PEER_EMPTY);
		}
	}
}

/* The digest of a record covers the slot that it is of. */
static void a_record_is_of_one_slot(void **state)
{
	struct ckpt_peer_slot_fixed another = fixed;
	uint8_t one[CKPT_PEER_SLOT_HEADER_BYTES];
	uint8_t other[CKPT_PEER_SLOT_HEADER_BYTES] = {0};
	struct ckpt_peer_slot_record record;

	(void)state;
	make(one);
	another.rank = 4;
	ckpt_peer_slot_put_fixed(other, &another);
	memcpy(other + 128, one + 128, 80);
	assert_int_equal(get(other, &record), 0);
	assert_int_equal(record.state, CKPT_PEER_EMPTY);
}

static void a_file_that_is_too_short_is_none(void **state)
{
	uint8_t header[CKPT_PEER_SLOT_HEADER_BYTES];
	struct ckpt_peer_slot_fixed got;
	struct ckpt_peer_slot_record record;

	(void)state;
	make(header);
	assert_int_equal(
		ckpt_peer_slot_get(header, ckpt_peer_slot_bytes(CAPACITY) - 1, NULL, &got, &record),
		CKPT_EFORMAT);
}

static void sizes(void **state)
{
	(void)state;
	assert_int_equal(ckpt_peer_slot_chunks(0), 0);
	assert_int_equal(ckpt_peer_slot_chunks(1), 1);
	assert_int_equal(ckpt_peer_slot_chunks(CKPT_PEER_SLOT_CHUNK), 1);
	assert_int_equal(ckpt_peer_slot_chunks(CKPT_PEER_SLOT_CHUNK + 1), 2);
	/* A page of header, the data, and a page that has 3 digests. */
	assert_int_equal(ckpt_peer_slot_bytes(CAPACITY), 4096 + CAPACITY + 4096);
	assert_int_equal(ckpt_peer_slot_bytes(UINT64_C(1) << 40),
		4096 + (UINT64_C(1) << 40) + (UINT64_C(16) << 20));
}

/* Beside the record, and never half. */
static void a_fence_is_kept_whole(void **state)
{
	static uint8_t header[CKPT_PEER_SLOT_HEADER_BYTES];
	uint8_t before[CKPT_PEER_SLOT_HEADER_USED];

	(void)state;
	memset(header, 0, sizeof(header));
	ckpt_peer_slot_put_fixed(header, &fixed);
	memcpy(before, header, sizeof(before));
	assert_true(ckpt_peer_slot_fence(header) == 0);
	ckpt_peer_slot_put_fence(header, 300);
	assert_true(ckpt_peer_slot_fence(header) == 300);
	assert_memory_equal(header, before, sizeof(before));
	for (unsigned at = 208; at < 232; at++) {
		header[at] ^= 1;
		assert_true(ckpt_peer_slot_fence(header) == 0);
		header[at] ^= 1;
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_fence_is_kept_whole),
		cmocka_unit_test(what_is_put_is_got),
		cmocka_unit_test(every_wrong_bit_is_found),
		cmocka_unit_test(a_mix_of_two_records_is_none),
		cmocka_unit_test(a_record_is_of_one_slot),
		cmocka_unit_test(a_file_that_is_too_short_is_none),
		cmocka_unit_test(sizes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
