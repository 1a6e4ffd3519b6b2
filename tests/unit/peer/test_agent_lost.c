/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that are lost, and calls that a process gives up: the rank saves on. */
#include "lib/test.h"

#include <sys/socket.h>
#include <unistd.h>

#include "agent_rig.h"

#define MEMORY   (64 * MIB)
#define CAPACITY MIB

static const struct ckpt_peer_message question_attach = {.type = CKPT_PEER_ATTACH,
	.slots = 2,
	.generation = 1,
	.capacity = CAPACITY,
	.job.bytes = {1}};

/* Attaches as `writer`, and returns as which one. */
static uint64_t attach(int socket, uint64_t writer)
{
	struct ckpt_peer_message question = question_attach;
	struct ckpt_peer_message answer;

	question.writer = writer;
	assert_int_equal(agent_rig_ask(socket, &question, &answer), -1);
	assert_int_equal(answer.type, CKPT_PEER_ATTACHED);
	return answer.writer;
}

/* Returns the slot. The descriptor must come every time: nobody knows whether the rank could map it the last time. */
static uint64_t fill(int socket, uint64_t step, uint64_t keep_step)
{
	const struct ckpt_peer_message question = {.type = CKPT_PEER_FILL,
		.step = step,
		.keep_generation = keep_step > 0,
		.keep_step = keep_step};
	struct ckpt_peer_message answer;
	int fd = agent_rig_ask(socket, &question, &answer);

	if (answer.type == CKPT_PEER_ERROR)
		fail_msg("%s", answer.text);
	assert_int_equal(answer.type, CKPT_PEER_FILLED);
	assert_true(fd >= 0);
	(void)close(fd);
	return answer.slot;
}

static void seal(int socket, uint64_t slot, uint64_t step)
{
	const struct ckpt_peer_message question = {
		.type = CKPT_PEER_SEAL, .slot = slot, .step = step, .length = 100};
	struct ckpt_peer_message answer;

	assert_int_equal(agent_rig_ask(socket, &question, &answer), -1);
	if (answer.type == CKPT_PEER_ERROR)
		fail_msg("%s", answer.text);
	assert_int_equal(answer.type, CKPT_PEER_OK);
}

static void a_descriptor_comes_with_every_slot(void **state)
{
	struct agent_rig rig;
	uint64_t slot;
	int socket;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, false);
	socket = agent_rig_raw(&rig);
	(void)attach(socket, 0);
	slot = fill(socket, 1, 0);
	/* It could not map it. */
	assert_int_equal(fill(socket, 1, 0), slot);
	seal(socket, slot, 1);
	(void)close(socket);
	agent_rig_close(&rig);
}

/* The rank does not know whether its step is sealed. It asks once more, and goes on from there. */
static void an_answer_to_a_seal_is_lost(void **state)
{
	struct ckpt_peer_message question = {.type = CKPT_PEER_SEAL, .step = 2, .length = 100};
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	struct agent_rig rig;
	uint64_t writer;
	int socket;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, false);
	socket = agent_rig_raw(&rig);
	writer = attach(socket, 0);
	seal(socket, fill(socket, 1, 0), 1);
	question.slot = fill(socket, 2, 1);
	assert_true(send(socket, data, ckpt_peer_message_put(&question, data), 0) > 0);
	/* The agent reads it before it finds the end. */
	(void)close(socket);
	socket = agent_rig_raw(&rig);
	assert_true(attach(socket, writer) == writer);
	seal(socket, question.slot, 2);
	seal(socket, fill(socket, 3, 2), 3);
	(void)close(socket);
	agent_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_comes_with_every_slot),
		cmocka_unit_test(an_answer_to_a_seal_is_lost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
