/* SPDX-License-Identifier: Apache-2.0 */
/* Answers that are lost, and calls that a process gives up: the rank saves on. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent_rig.h"
#include "base/error.h"
#include "lib/hang.h"
#include "lib/scratch.h"
#include "maker.h"
#include "peer/connection.h"

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

/* Fills a slot, and loses its connection; it does not end. */
static void lose(const struct agent_rig *rig, int pipe)
{
	int socket;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	socket = agent_rig_raw(rig);
	(void)attach(socket, 0);
	(void)fill(socket, 1, 0);
	(void)close(socket);
	if (write(pipe, "x", 1) != 1)
		_exit(1);
	for (;;)
		(void)pause();
}

/* Its slots are not free as long as it may come back, be it that none linger. */
static void a_process_without_a_connection_has_its_slots(void **state)
{
	struct ckpt_peer_client *client;
	struct agent_rig rig;
	int pipes[2];
	pid_t pid;
	char told;

	(void)state;
	if (!agent_rig_has_pidfds())
		skip();
	agent_rig_open(&rig, MEMORY, 0, false);
	client = agent_rig_connect(&rig);
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		lose(&rig, pipes[1]);
	assert_int_equal(read(pipes[0], &told, 1), 1);
	await(agent_rig_state(client).attached == 0);
	/* The agent has looked at its jobs between two answers. */
	assert_int_equal(agent_rig_state(client).slots, 2);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	await(agent_rig_state(client).slots == 0);
	(void)close(pipes[0]);
	(void)close(pipes[1]);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* It closes its clients, and works on: what it had mapped is no more. */
static void a_process_that_has_unmapped_takes_nothing(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client;
	struct ckpt_peer_fill open;
	struct agent_rig rig;
	uint64_t used;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, false);
	client = agent_rig_attach(&rig, &rank);
	agent_rig_save(client, &rank, 1, 0, 100);
	agent_rig_save(client, &rank, 2, 1, 100);
	assert_int_equal(ckpt_peer_client_reconnect(client, NULL), 1);
	used = agent_rig_state(client).used;
	ckpt_peer_client_close(client);
	rank.generation = 2;
	client = agent_rig_attach(&rig, &rank);
	assert_int_equal(ckpt_peer_client_fill(client, 3, 1, 2, NULL, &open), 0);
	assert_int_equal(agent_rig_state(client).used, used);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* What it has at the numbers of its parent is its own, and its parent goes on. */
static void a_forked_child_closes(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client;
	struct agent_rig rig;
	int status = -1;
	pid_t pid;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, false);
	client = agent_rig_attach(&rig, &rank);
	agent_rig_save(client, &rank, 1, 0, 100);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

		ckpt_peer_client_close(client);
		_exit(fcntl(fd, F_GETFD) < 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	agent_rig_save(client, &rank, 2, 1, 100);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* One that takes no connections: it is stopped, say. */
static void who_does_not_take_connections_is_not_waited_for(void **state)
{
	struct ckpt_peer_client *clients[2] = {NULL, NULL};
	struct sockaddr_un address;
	struct ckpt_error err;
	char *dir = scratch_make_in_memory();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	(void)state;
	hang_watch();
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_peer_socket_address(dir, NULL, &address), 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 0), 0);
	assert_int_equal(ckpt_peer_client_open(dir, 50, &err, &clients[0]), 0);
	assert_int_equal(ckpt_peer_client_open(dir, 50, &err, &clients[1]), -ETIMEDOUT);
	ckpt_peer_client_close(clients[0]);
	(void)close(fd);
	scratch_remove(dir);
	(void)alarm(0);
}

static void nothing(struct ckpt_node *node)
{
	(void)node;
}

/* Memory that nobody waits for any more is not made, and who has asked after that does not wait for it. */
static void what_is_given_up_is_not_made(void **state)
{
	struct agent_order orders[2] = {
		{.node = {.run = nothing}, .fixed = {.number = 1, .capacity = CAPACITY}},
		{.node = {.run = nothing}, .fixed = {.number = 2, .capacity = CAPACITY}},
	};
	struct agent_maker *maker;
	unsigned done = 0;

	(void)state;
	assert_int_equal(agent_maker_open(NULL, &maker), 0);
	agent_maker_give_up(&orders[0]);
	agent_maker_order(maker, &orders[0]);
	agent_maker_order(maker, &orders[1]);
	while (done < 2) {
		struct pollfd ready = {agent_maker_eventfd(maker), POLLIN, 0};

		assert_int_equal(poll(&ready, 1, HANG_LIMIT_MS), 1);
		for (struct ckpt_node *node = agent_maker_take(maker); node; node = node->next)
			done++;
	}
	assert_int_equal(orders[0].code, -ECANCELED);
	assert_int_equal(orders[1].code, 0);
	(void)close(orders[1].fd);
	agent_maker_close(maker);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_descriptor_comes_with_every_slot),
		cmocka_unit_test(an_answer_to_a_seal_is_lost),
		cmocka_unit_test(a_process_without_a_connection_has_its_slots),
		cmocka_unit_test(a_process_that_has_unmapped_takes_nothing),
		cmocka_unit_test(a_forked_child_closes),
		cmocka_unit_test(what_is_given_up_is_not_made),
		cmocka_unit_test(who_does_not_take_connections_is_not_waited_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
