/* SPDX-License-Identifier: Apache-2.0 */
/* Messages over the agent's socket: what is put is got, and nothing else is. */
#include "lib/test.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "peer/message.h"

static const uint32_t types[] = {CKPT_PEER_ATTACH, CKPT_PEER_FILL, CKPT_PEER_SEAL, CKPT_PEER_DETACH,
	CKPT_PEER_NEXT, CKPT_PEER_FETCH, CKPT_PEER_RELEASE, CKPT_PEER_STATUS, CKPT_PEER_OK,
	CKPT_PEER_ATTACHED, CKPT_PEER_FILLED, CKPT_PEER_SLOT, CKPT_PEER_FETCHED, CKPT_PEER_STATE,
	CKPT_PEER_ERROR};

/* All numbers in their ranges, each another one. */
static struct ckpt_peer_message full(uint32_t type)
{
	struct ckpt_peer_message m = {
		.type = type,
		.rank = CKPT_PEER_RANKS - 1,
		.slots = CKPT_PEER_SLOTS_MAX,
		.node_ranks = CKPT_PEER_NODE_RANKS,
		.state = CKPT_PEER_SEALED,
		.attached = 1,
		.jobs = 77,
		.pid = 4711,
		.code = -12,
		.job = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
		.slot = UINT64_MAX,
		.writer = UINT64_C(0x0102030405060708),
		.generation = UINT64_C(0x1112131415161718),
		.step = UINT64_C(0x2122232425262728),
		.keep_generation = 31,
		.keep_step = 32,
		.capacity = CKPT_PEER_SLOT_CAPACITY,
		.length = CKPT_PEER_SLOT_CAPACITY - 1,
		.memory = UINT64_C(1) << 60,
		.used = 41,
		.linger_s = 42,
		.text = "no room: raise the limit",
	};

	memset(m.digest.bytes, 0xa5, sizeof(m.digest.bytes));
	return m;
}

static void what_is_put_is_got(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(types); i++) {
		struct ckpt_peer_message m = full(types[i]);
		struct ckpt_peer_message got;
		uint8_t data[CKPT_PEER_MESSAGE_MAX];
		uint8_t again[CKPT_PEER_MESSAGE_MAX];
		size_t length = ckpt_peer_message_put(&m, data);

		assert_int_equal(ckpt_peer_message_get(data, length, NULL, &got), 0);
		assert_int_equal(got.type, types[i]);
		assert_int_equal(ckpt_peer_message_put(&got, again), length);
		assert_memory_equal(again, data, length);
	}
}

/* A field that the table forgets would come back as 0. */
static void every_field_comes_back(void **state)
{
	struct ckpt_peer_message m = full(CKPT_PEER_ATTACH);
	struct ckpt_peer_message got;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];

	(void)state;
	assert_int_equal(
		ckpt_peer_message_get(data, ckpt_peer_message_put(&m, data), NULL, &got), 0);
	assert_memory_equal(&got.job, &m.job, sizeof(m.job));
	assert_int_equal(got.generation, m.generation);
	assert_int_equal(got.writer, m.writer);
	assert_int_equal(got.capacity, m.capacity);
	assert_int_equal(got.rank, m.rank);
	assert_int_equal(got.slots, m.slots);
	assert_int_equal(got.node_ranks, m.node_ranks);
	m = full(CKPT_PEER_SEAL);
	assert_int_equal(
		ckpt_peer_message_get(data, ckpt_peer_message_put(&m, data), NULL, &got), 0);
	assert_int_equal(got.slot, m.slot);
	assert_int_equal(got.step, m.step);
	assert_int_equal(got.length, m.length);
	assert_memory_equal(&got.digest, &m.digest, sizeof(m.digest));
	m = full(CKPT_PEER_ERROR);
	assert_int_equal(
		ckpt_peer_message_get(data, ckpt_peer_message_put(&m, data), NULL, &got), 0);
	assert_int_equal(got.code, -12);
	assert_string_equal(got.text, m.text);
}

static void no_other_length_is_taken(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(types); i++) {
		struct ckpt_peer_message m = full(types[i]);
		struct ckpt_peer_message got;
		uint8_t data[CKPT_PEER_MESSAGE_MAX + 1] = {0};
		size_t length;

		m.text[0] = 0;
		length = ckpt_peer_message_put(&m, data);
		for (size_t cut = 0; cut <= length + 1; cut++) {
			struct ckpt_error err;

			ckpt_error_clear(&err);
			if (cut == length)
				continue;
			assert_int_equal(ckpt_peer_message_get(data, cut, &err, &got), -EPROTO);
			assert_true(err.message[0]);
			/* Also if it says so itself; the text of an error may be of any length. */
			if (cut < CKPT_PEER_MESSAGE_HEAD ||
				(types[i] == CKPT_PEER_ERROR && cut > length))
				continue;
			data[12] = (uint8_t)(cut - CKPT_PEER_MESSAGE_HEAD);
			assert_int_equal(ckpt_peer_message_get(data, cut, NULL, &got), -EPROTO);
			data[12] = (uint8_t)(length - CKPT_PEER_MESSAGE_HEAD);
		}
	}
}

static int got_of(struct ckpt_peer_message m)
{
	struct ckpt_peer_message got;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];

	return ckpt_peer_message_get(data, ckpt_peer_message_put(&m, data), NULL, &got);
}

static void what_is_out_of_range_is_refused(void **state)
{
	struct ckpt_peer_message m = full(CKPT_PEER_ATTACH);

	(void)state;
	m.rank = CKPT_PEER_RANKS;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ATTACH);
	m.slots = 1;
	assert_int_equal(got_of(m), -EPROTO);
	m.slots = CKPT_PEER_SLOTS_MAX + 1;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ATTACH);
	m.node_ranks = CKPT_PEER_NODE_RANKS + 1;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ATTACH);
	m.capacity = CKPT_PEER_SLOT_CAPACITY + 1;
	assert_int_equal(got_of(m), -EPROTO);
	m.capacity = 0;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ATTACH);
	m.generation = 0;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ATTACH);
	memset(&m.job, 0, sizeof(m.job));
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_SLOT);
	m.state = CKPT_PEER_SEALED + 1;
	assert_int_equal(got_of(m), -EPROTO);
	m = full(CKPT_PEER_ERROR);
	m.code = 0;
	assert_int_equal(got_of(m), -EPROTO);
}

static void another_version_is_said(void **state)
{
	struct ckpt_peer_message m = full(CKPT_PEER_STATUS);
	struct ckpt_peer_message got;
	struct ckpt_error err;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t length = ckpt_peer_message_put(&m, data);

	(void)state;
	ckpt_error_clear(&err);
	data[4] = 2;
	assert_int_equal(ckpt_peer_message_get(data, length, &err, &got), CKPT_EVERSION);
	assert_non_null(strstr(err.message, "2 and 1"));
}

/* An error's text is shown on terminals. */
static void a_text_has_no_control_bytes(void **state)
{
	struct ckpt_peer_message m = full(CKPT_PEER_ERROR);
	struct ckpt_peer_message got;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t length;

	(void)state;
	memset(m.text, 'x', sizeof(m.text));
	m.text[3] = '\x1b';
	m.text[4] = '\n';
	length = ckpt_peer_message_put(&m, data);
	assert_int_equal(ckpt_peer_message_get(data, length, NULL, &got), 0);
	assert_int_equal(strlen(got.text), sizeof(got.text) - 1);
	assert_memory_equal(got.text, "xxx??x", 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_put_is_got),
		cmocka_unit_test(every_field_comes_back),
		cmocka_unit_test(no_other_length_is_taken),
		cmocka_unit_test(what_is_out_of_range_is_refused),
		cmocka_unit_test(another_version_is_said),
		cmocka_unit_test(a_text_has_no_control_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
