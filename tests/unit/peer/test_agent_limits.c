/* SPDX-License-Identifier: Apache-2.0 */
/* What an agent refuses: memory that it has not, and messages that nobody sends. When it frees what it has. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent_rig.h"
#include "base/error.h"
#include "lib/hang.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "memory.h"
#include "peer/connection.h"

#define CAPACITY MIB
/* A slot: its data, and a page before and behind. */
#define SLOT     (CAPACITY + 8192)

static int refused(const struct agent_rig *rig, const struct ckpt_peer_rank *rank, char text[1024])
{
	struct ckpt_peer_client *client = agent_rig_connect(rig);
	struct ckpt_error err;
	int r;

	ckpt_error_clear(&err);
	r = ckpt_peer_client_attach(client, rank, &err);
	(void)snprintf(text, 1024, "%s", err.message);
	ckpt_peer_client_close(client);
	return r;
}

/* Before the first byte is taken, for all ranks that there will be, and with the sum that would do. */
static void too_little_memory_is_refused_at_once(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *clients[4];
	struct ckpt_peer_client *other;
	struct agent_rig rig;
	char text[1024];

	(void)state;
	agent_rig_open(&rig, 8 * SLOT, 1800, false);
	rank.node_ranks = 5;
	assert_int_equal(refused(&rig, &rank, text), -ENOMEM);
	assert_non_null(strstr(text, "(5 ranks, each 2 slots of 1.0 MiB)"));
	assert_non_null(strstr(text, "--memory for 10.1 MiB or more"));
	rank.node_ranks = 4;
	for (rank.rank = 0; rank.rank < 4; rank.rank++) {
		clients[rank.rank] = agent_rig_attach(&rig, &rank);
		/* All of it is taken from the first rank on. */
		assert_int_equal(agent_rig_state(clients[0]).used, 8 * SLOT);
	}
	assert_int_equal(agent_rig_state(clients[0]).slots, 8);
	rank = agent_rig_rank(1, 0, 1, CAPACITY);
	assert_int_equal(refused(&rig, &rank, text), -ENOMEM);
	assert_non_null(strstr(text, "--memory for 10.1 MiB or more"));
	/* What was refused has left nothing that stays, and what is freed can be had. */
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(ckpt_peer_client_detach(clients[i], NULL), 0);
		ckpt_peer_client_close(clients[i]);
	}
	await(refused(&rig, &rank, text) == 0);
	other = agent_rig_connect(&rig);
	assert_int_equal(agent_rig_state(other).jobs, 1);
	ckpt_peer_client_close(other);
	agent_rig_close(&rig);
}

/* Other ranks come to the node, which does not forget what the ranks before them have left. */
static void ranks_that_are_gone_count(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *clients[4];
	struct agent_rig rig;
	char text[1024];

	(void)state;
	agent_rig_open(&rig, 6 * SLOT, 1800, false);
	rank.node_ranks = 2;
	for (rank.rank = 0; rank.rank < 2; rank.rank++)
		clients[rank.rank] = agent_rig_attach(&rig, &rank);
	rank.generation = 2;
	/* The first one may have come for one of them. */
	clients[2] = agent_rig_attach(&rig, &rank);
	rank.rank = 3;
	assert_int_equal(refused(&rig, &rank, text), -ENOMEM);
	assert_non_null(strstr(text, "that are not there any more"));
	assert_non_null(strstr(text, "--memory for 8.1 MiB or more"));
	/* One of them can come: its slots are there. */
	rank.rank = 1;
	clients[3] = agent_rig_attach(&rig, &rank);
	assert_int_equal(agent_rig_state(clients[3]).used, 6 * SLOT);
	for (unsigned i = 0; i < 4; i++)
		ckpt_peer_client_close(clients[i]);
	agent_rig_close(&rig);
}

/* One that says nothing of others, and comes back larger. */
static void a_rank_that_has_grown_counts(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_rank other = agent_rig_rank(0, 1, 1, CAPACITY);
	struct ckpt_peer_client *clients[2];
	struct agent_rig rig;
	char text[1024];

	(void)state;
	agent_rig_open(&rig, 6 * SLOT, 1800, false);
	clients[0] = agent_rig_attach(&rig, &rank);
	clients[1] = agent_rig_attach(&rig, &other);
	ckpt_peer_client_close(clients[0]);
	await(agent_rig_state(clients[1]).attached == 1);
	rank.capacity = 2 * CAPACITY + 2 * 8192;
	assert_int_equal(refused(&rig, &rank, text), -ENOMEM);
	ckpt_peer_client_close(clients[1]);
	agent_rig_close(&rig);
}

/* Writes on beside the process that was taken for it: there is no room for more, and the step that is there stays. */
static void memory_that_is_taken_is_not_given_twice(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *older;
	struct ckpt_peer_client *newer;
	struct ckpt_peer_message slot;
	struct ckpt_peer_fill open;
	struct agent_rig rig;
	struct ckpt_error err;

	(void)state;
	if (!agent_rig_has_pidfds())
		skip();
	ckpt_error_clear(&err);
	agent_rig_open(&rig, 2 * SLOT, 1800, false);
	older = agent_rig_attach(&rig, &rank);
	agent_rig_save(older, &rank, 1, 0, 100);
	agent_rig_save(older, &rank, 2, 1, 100);
	rank.generation = 2;
	newer = agent_rig_attach(&rig, &rank);
	assert_int_equal(ckpt_peer_client_fill(newer, 3, 1, 2, &err, &open), -ENOMEM);
	assert_non_null(strstr(err.message, "end processes of older generations"));
	assert_int_equal(agent_rig_state(newer).slots, 2);
	assert_true(agent_rig_newest(newer, &rank, &slot));
	assert_int_equal(slot.step, 2);
	ckpt_peer_client_close(older);
	ckpt_peer_client_close(newer);
	agent_rig_close(&rig);
}

/* More than the machine has: the limit of the agent is no promise. */
static void the_machine_is_asked_as_well(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, UINT64_C(1) << 43);
	struct agent_rig rig;
	char text[1024];

	(void)state;
	agent_rig_open(&rig, UINT64_MAX / 4, 1800, false);
	assert_int_equal(refused(&rig, &rank, text), -ENOMEM);
	assert_non_null(strstr(text, "the slots need 16.0 TiB more memory"));
	agent_rig_close(&rig);
}

/* Fills two slots, tells so, and lives on until it is killed. */
static void hold(const struct agent_rig *rig, const struct ckpt_peer_rank *rank, int pipe)
{
	struct ckpt_peer_client *client;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	client = agent_rig_attach(rig, rank);
	agent_rig_save(client, rank, 1, 0, 100);
	agent_rig_save(client, rank, 2, 1, 100);
	if (write(pipe, "x", 1) != 1)
		_exit(1);
	for (;;)
		(void)pause();
}

/* What a process has mapped that was fenced is taken until that process is gone. */
static void memory_that_is_still_mapped_is_taken(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *newer;
	struct ckpt_peer_fill open;
	struct agent_rig rig;
	int pipes[2];
	pid_t pid;
	char told;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0)
		hold(&rig, &rank, pipes[1]);
	assert_int_equal(read(pipes[0], &told, 1), 1);
	rank.generation = 2;
	newer = agent_rig_attach(&rig, &rank);
	assert_int_equal(agent_rig_state(newer).used, 2 * SLOT);
	assert_int_equal(ckpt_peer_client_fill(newer, 3, 1, 2, NULL, &open), 0);
	assert_int_equal(agent_rig_state(newer).used, (agent_rig_has_pidfds() ? 3 : 2) * SLOT);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(agent_rig_state(newer).used, 2 * SLOT);
	(void)close(pipes[0]);
	(void)close(pipes[1]);
	ckpt_peer_client_close(newer);
	agent_rig_close(&rig);
}

static void slots_go_when_a_job_has_ended(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *clients[2];
	struct ckpt_peer_client *other;
	struct agent_rig rig;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	other = agent_rig_connect(&rig);
	clients[0] = agent_rig_attach(&rig, &rank);
	rank.rank = 1;
	clients[1] = agent_rig_attach(&rig, &rank);
	agent_rig_save(clients[1], &rank, 1, 0, 100);
	assert_int_equal(ckpt_peer_client_detach(clients[0], NULL), 0);
	/* The other one may fail yet, and then all are needed. */
	assert_int_equal(agent_rig_state(other).slots, 4);
	assert_int_equal(ckpt_peer_client_detach(clients[1], NULL), 0);
	await(agent_rig_state(other).slots == 0);
	assert_int_equal(agent_rig_state(other).used, 0);
	ckpt_peer_client_close(clients[0]);
	ckpt_peer_client_close(clients[1]);
	ckpt_peer_client_close(other);
	agent_rig_close(&rig);
}

/* A rank that does not say goodbye may come back; for as long as slots linger. */
static void slots_linger_when_a_rank_has_died(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client;
	struct agent_rig rig;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	client = agent_rig_attach(&rig, &rank);
	agent_rig_save(client, &rank, 1, 0, 100);
	ckpt_peer_client_close(client);
	client = agent_rig_connect(&rig);
	await(agent_rig_state(client).attached == 0);
	assert_int_equal(agent_rig_state(client).slots, 2);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);

	agent_rig_open(&rig, 64 * MIB, 0, false);
	client = agent_rig_attach(&rig, &rank);
	agent_rig_save(client, &rank, 1, 0, 100);
	ckpt_peer_client_close(client);
	client = agent_rig_connect(&rig);
	await(agent_rig_state(client).slots == 0);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* The agent answers with an error, and ends the connection. */
static void assert_ended(int fd)
{
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	struct ckpt_peer_message answer = {.type = 0};
	ssize_t got;

	while ((got = recv(fd, data, sizeof(data), 0)) > 0)
		assert_int_equal(ckpt_peer_message_get(data, (size_t)got, NULL, &answer), 0);
	assert_int_equal(answer.type, CKPT_PEER_ERROR);
	assert_true(answer.text[0]);
	(void)close(fd);
}

static void malformed_messages_end_a_connection(void **state)
{
	struct ckpt_peer_message answer_type = {.type = CKPT_PEER_OK};
	struct ckpt_peer_client *client;
	struct prng prng = {20261129};
	uint8_t data[8192];
	struct agent_rig rig;
	int fd;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	client = agent_rig_connect(&rig);
	/* Longer than any message is. */
	memset(data, 0, sizeof(data));
	fd = agent_rig_raw(&rig);
	assert_int_equal(send(fd, data, sizeof(data), 0), sizeof(data));
	assert_ended(fd);
	/* What only the agent says. */
	fd = agent_rig_raw(&rig);
	assert_true(send(fd, data, ckpt_peer_message_put(&answer_type, data), 0) > 0);
	assert_ended(fd);
	for (unsigned i = 0; i < 500; i++) {
		struct ckpt_peer_message m = {.type = 1 + (uint32_t)prng_below(&prng, 8),
			.slots = 2,
			.generation = 1,
			.capacity = 4096,
			.job.bytes = {0xee}};
		size_t length = ckpt_peer_message_put(&m, data);

		/* A few bytes of it, and a cut. */
		for (uint64_t n = prng_below(&prng, 4); n > 0; n--)
			data[prng_below(&prng, length)] ^= (uint8_t)prng_next(&prng);
		length -= prng_below(&prng, 3) == 0 ? prng_below(&prng, length) : 0;
		fd = agent_rig_raw(&rig);
		assert_true(send(fd, data, length, 0) > 0);
		assert_true(recv(fd, data, sizeof(data), 0) > 0);
		(void)close(fd);
	}
	/* Others are served all the while. */
	assert_true(agent_rig_state(client).pid > 0);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* Of the agent. */
static size_t descriptors(const struct agent_rig *rig)
{
	char path[64];

	(void)snprintf(path, sizeof(path), "/proc/%d/fd", (int)rig->pid);
	return scratch_count(path);
}

/* Two questions at once, the first of which needs memory. */
static void who_does_not_wait_for_an_answer_is_ended(void **state)
{
	struct ckpt_peer_message m = {.type = CKPT_PEER_ATTACH,
		.slots = 2,
		.generation = 1,
		.capacity = MIB,
		.job.bytes = {1}};
	struct ckpt_peer_rank rank = agent_rig_rank(1, 0, 1, CAPACITY);
	struct ckpt_peer_client *client;
	struct ckpt_peer_client *other;
	struct agent_rig rig;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t before;
	int fd;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	client = agent_rig_connect(&rig);
	(void)agent_rig_state(client);
	before = descriptors(&rig);
	fd = agent_rig_raw(&rig);
	/* It finds both when it goes on. */
	assert_int_equal(kill(rig.pid, SIGSTOP), 0);
	assert_true(send(fd, data, ckpt_peer_message_put(&m, data), 0) > 0);
	m.type = CKPT_PEER_STATUS;
	assert_true(send(fd, data, ckpt_peer_message_put(&m, data), 0) > 0);
	assert_int_equal(kill(rig.pid, SIGCONT), 0);
	assert_ended(fd);
	/* What was made for it is nobody's, and is gone when the next one has got its memory. */
	other = agent_rig_attach(&rig, &rank);
	assert_int_equal(ckpt_peer_client_detach(other, NULL), 0);
	ckpt_peer_client_close(other);
	await(agent_rig_state(client).jobs == 0);
	assert_int_equal(agent_rig_state(client).used, 0);
	assert_int_equal(descriptors(&rig), before);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* A client that sends descriptors along fills nobody's table. */
static void descriptors_of_clients_are_dropped(void **state)
{
	struct ckpt_peer_message m = {.type = CKPT_PEER_STATUS};
	struct ckpt_peer_client *client;
	struct agent_rig rig;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	size_t before;
	int fd;

	(void)state;
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	client = agent_rig_connect(&rig);
	fd = agent_rig_raw(&rig);
	assert_true(send(fd, data, ckpt_peer_message_put(&m, data), 0) > 0);
	assert_true(recv(fd, data, sizeof(data), 0) > 0);
	before = descriptors(&rig);
	assert_true(before > 0);
	for (unsigned i = 0; i < 50; i++) {
		char control[CMSG_SPACE(sizeof(int))] = {0};
		struct iovec vector = {data, ckpt_peer_message_put(&m, data)};
		struct msghdr header = {.msg_iov = &vector,
			.msg_iovlen = 1,
			.msg_control = control,
			.msg_controllen = sizeof(control)};
		struct cmsghdr *c = CMSG_FIRSTHDR(&header);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fd));
		memcpy(CMSG_DATA(c), &fd, sizeof(fd));
		assert_true(sendmsg(fd, &header, 0) > 0);
		assert_true(recv(fd, data, sizeof(data), 0) > 0);
	}
	assert_int_equal(descriptors(&rig), before);
	(void)close(fd);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* Variables of the environment, which anybody may have set. */
static void what_systemd_gives_is_looked_at(void **state)
{
	struct agent_kept *kept = calloc(AGENT_KEPT_MAX, sizeof(*kept));
	char pid[32];

	(void)state;
	assert_non_null(kept);
	(void)snprintf(pid, sizeof(pid), "%d", (int)getpid());
	assert_int_equal(agent_manager_kept(pid, "2", "slot-7:slot-12", kept), 2);
	assert_int_equal(kept[0].fd, 3);
	assert_string_equal(kept[0].name, "slot-7");
	assert_int_equal(kept[1].fd, 4);
	assert_string_equal(kept[1].name, "slot-12");
	assert_int_equal(agent_manager_kept(pid, "3",
				 "a-name-that-is-longer-than-any-that-was-given::x:y", kept),
		3);
	assert_string_equal(kept[0].name, "");
	assert_string_equal(kept[1].name, "");
	assert_string_equal(kept[2].name, "x");
	assert_int_equal(agent_manager_kept(pid, "2", NULL, kept), 2);
	assert_string_equal(kept[1].name, "");
	/* Of another process, or of none. */
	assert_int_equal(agent_manager_kept("1", "2", "a:b", kept), 0);
	assert_int_equal(agent_manager_kept(NULL, "2", "a:b", kept), 0);
	assert_int_equal(agent_manager_kept(pid, NULL, NULL, kept), 0);
	assert_int_equal(agent_manager_kept(pid, "-1", NULL, kept), 0);
	assert_int_equal(agent_manager_kept(pid, "4097", NULL, kept), 0);
	assert_int_equal(agent_manager_kept(pid, "2 ", NULL, kept), 0);
	/* What slots have is not taken off what they may have. */
	kept[0].fd = memfd_create("slot", MFD_CLOEXEC);
	kept[1].fd = -1;
	assert_int_equal(ftruncate(kept[0].fd, MIB), 0);
	assert_int_equal(agent_manager_kept_bytes(kept, 2), MIB);
	assert_int_equal(agent_memory_default(5 * MIB, MIB), 3 * MIB);
	(void)close(kept[0].fd);
	free(kept);
}

/* A child of it (a loader of data) lives on, and has the connection. */
static void a_process_that_has_ended_is_no_rank(void **state)
{
	const struct ckpt_peer_message m = {.type = CKPT_PEER_ATTACH,
		.slots = 2,
		.generation = 1,
		.capacity = MIB,
		.job.bytes = {1}};
	struct ckpt_peer_client *client;
	struct agent_rig rig;
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	int pipes[2];
	pid_t child;
	pid_t pid;

	(void)state;
	if (!agent_rig_has_pidfds())
		skip();
	agent_rig_open(&rig, 64 * MIB, 1800, false);
	client = agent_rig_connect(&rig);
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		int fd = agent_rig_raw(&rig);

		if (send(fd, data, ckpt_peer_message_put(&m, data), 0) < 0 ||
			recv(fd, data, sizeof(data), 0) < 0)
			_exit(1);
		child = fork();
		if (child > 0 && write(pipes[1], &child, sizeof(child)) < 0)
			_exit(1);
		hang_watch();
		for (;;)
			(void)pause();
	}
	assert_int_equal(read(pipes[0], &child, sizeof(child)), sizeof(child));
	assert_int_equal(agent_rig_state(client).attached, 1);
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	await(agent_rig_state(client).attached == 0);
	assert_int_equal(kill(child, SIGKILL), 0);
	(void)close(pipes[0]);
	(void)close(pipes[1]);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

static void a_directory_of_others_is_refused(void **state)
{
	struct agent_directory directory;
	struct agent_directory second;
	struct ckpt_error err;
	char *dir = scratch_make();

	(void)state;
	ckpt_error_clear(&err);
	assert_int_equal(chmod(dir, 0750), 0);
	assert_int_equal(agent_directory_open(dir, &err, &directory), -EACCES);
	assert_non_null(strstr(err.message, "mode 750"));
	assert_int_equal(chmod(dir, 0700), 0);
	assert_int_equal(agent_directory_open(dir, &err, &directory), 0);
	ckpt_error_clear(&err);
	assert_int_equal(agent_directory_open(dir, &err, &second), CKPT_EINUSE);
	assert_int_equal(symlink(dir, scratch_join(dir, "link")), 0);
	assert_int_equal(agent_directory_open(scratch_join(dir, "link"), &err, &second) < 0, true);
	agent_directory_close(&directory, dir);
	scratch_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(too_little_memory_is_refused_at_once),
		cmocka_unit_test(ranks_that_are_gone_count),
		cmocka_unit_test(a_rank_that_has_grown_counts),
		cmocka_unit_test(memory_that_is_taken_is_not_given_twice),
		cmocka_unit_test(the_machine_is_asked_as_well),
		cmocka_unit_test(memory_that_is_still_mapped_is_taken),
		cmocka_unit_test(slots_go_when_a_job_has_ended),
		cmocka_unit_test(slots_linger_when_a_rank_has_died),
		cmocka_unit_test(malformed_messages_end_a_connection),
		cmocka_unit_test(who_does_not_wait_for_an_answer_is_ended),
		cmocka_unit_test(descriptors_of_clients_are_dropped),
		cmocka_unit_test(what_systemd_gives_is_looked_at),
		cmocka_unit_test(a_process_that_has_ended_is_no_rank),
		cmocka_unit_test(a_directory_of_others_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
