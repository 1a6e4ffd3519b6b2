/* SPDX-License-Identifier: Apache-2.0 */
/* Starts agents, and ranks that write what can be told again. */
#include "agent_rig.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "keeper.h"
#include "lib/hang.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "lib/test.h"
#include "peer/connection.h"

#define TIMEOUT_MS HANG_LIMIT_MS

static int serve(void *user, const char *manager, const struct agent_kept *kept, unsigned count)
{
	struct agent_rig *rig = user;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (agent_run(&rig->config, &rig->directory, manager, kept, count, &err) == 0)
		return 0;
	(void)fprintf(stderr, "the agent: %s\n", err.message);
	return 1;
}

static void run(struct agent_rig *rig, bool kept)
{
	struct ckpt_error err;
	sigset_t set;
	int code;

	ckpt_error_clear(&err);
	/* A test that fails leaves nothing behind. */
	(void)prctl(PR_SET_PDEATHSIG, SIGTERM);
	(void)sigemptyset(&set);
	(void)sigaddset(&set, SIGTERM);
	(void)sigaddset(&set, SIGINT);
	(void)sigaddset(&set, SIGCHLD);
	(void)sigprocmask(SIG_BLOCK, &set, NULL);
	code = kept ? agent_keeper_run(rig->dir, serve, rig, &err) : serve(rig, NULL, NULL, 0);
	if (code < 0)
		(void)fprintf(stderr, "the keeper: %s\n", err.message);
	/* AddressSanitizer looks for leaks then. */
	exit(code < 0 ? 1 : code);
}

void agent_rig_open(struct agent_rig *rig, uint64_t memory, uint64_t linger_s, bool kept)
{
	struct ckpt_error err;

	ckpt_error_clear(&err);
	*rig = (struct agent_rig){.dir = scratch_make_in_memory()};
	rig->config = (struct agent_config){.memory = memory, .linger_s = linger_s};
	assert_int_equal(agent_directory_open(rig->dir, &err, &rig->directory), 0);
	assert_int_equal(agent_directory_listen(&rig->directory, rig->dir, &err), 0);
	(void)fflush(NULL);
	rig->pid = fork();
	assert_true(rig->pid >= 0);
	if (rig->pid == 0)
		run(rig, kept);
}

void agent_rig_close(struct agent_rig *rig)
{
	int status = -1;

	assert_int_equal(kill(rig->pid, SIGTERM), 0);
	assert_int_equal(waitpid(rig->pid, &status, 0), rig->pid);
	assert_int_equal(status, 0);
	agent_directory_close(&rig->directory, rig->dir);
	scratch_remove(rig->dir);
}

struct ckpt_peer_client *agent_rig_connect(const struct agent_rig *rig)
{
	struct ckpt_peer_client *client = NULL;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_peer_client_open(rig->dir, TIMEOUT_MS, &err, &client) < 0)
		fail_msg("%s", err.message);
	return client;
}

struct ckpt_peer_rank agent_rig_rank(
	unsigned job, uint32_t rank, uint64_t generation, uint64_t capacity)
{
	struct ckpt_peer_rank made = {
		.rank = rank, .slots = 2, .generation = generation, .capacity = capacity};

	made.job.bytes[0] = (uint8_t)(job + 1);
	return made;
}

struct ckpt_peer_client *agent_rig_attach(
	const struct agent_rig *rig, const struct ckpt_peer_rank *rank)
{
	struct ckpt_peer_client *client = agent_rig_connect(rig);
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_peer_client_attach(client, rank, &err) < 0)
		fail_msg("%s", err.message);
	return client;
}

int agent_rig_raw(const struct agent_rig *rig)
{
	struct sockaddr_un address;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	assert_true(fd >= 0);
	assert_int_equal(ckpt_peer_socket_address(rig->dir, NULL, &address), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	return fd;
}

int agent_rig_ask(
	int socket, const struct ckpt_peer_message *question, struct ckpt_peer_message *ret_answer)
{
	uint8_t data[CKPT_PEER_MESSAGE_MAX];
	char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec vector = {data, sizeof(data)};
	struct msghdr header = {.msg_iov = &vector,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *c;
	ssize_t got;
	int fd = -1;

	assert_true(send(socket, data, ckpt_peer_message_put(question, data), 0) > 0);
	got = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
	assert_true(got > 0);
	assert_int_equal(ckpt_peer_message_get(data, (size_t)got, NULL, ret_answer), 0);
	c = CMSG_FIRSTHDR(&header);
	if (c)
		memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	return fd;
}

void agent_rig_pattern(void *to, uint64_t length, uint32_t rank, uint64_t generation, uint64_t step)
{
	struct prng prng = {rank * UINT64_C(1000003) + generation * UINT64_C(10007) + step};
	char *at = to;

	for (uint64_t i = 0; i < length; i += sizeof(uint64_t)) {
		uint64_t word = prng_next(&prng);

		memcpy(at + i, &word, ckpt_min_u64(sizeof(word), length - i));
	}
}

void agent_rig_write(const struct ckpt_peer_fill *fill, uint64_t length, uint32_t rank,
	uint64_t generation, uint64_t step)
{
	agent_rig_pattern(fill->data, length, rank, generation, step);
	for (uint64_t i = 0; i < ckpt_peer_slot_chunks(length); i++) {
		uint64_t at = i * CKPT_PEER_SLOT_CHUNK;

		fill->digests[i] = ckpt_digest_of(
			fill->data + at, ckpt_min_u64(CKPT_PEER_SLOT_CHUNK, length - at));
	}
}

void agent_rig_save(struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank,
	uint64_t step, uint64_t keep_step, uint64_t length)
{
	struct ckpt_peer_fill fill;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_peer_client_fill(client, step, rank->generation, keep_step, &err, &fill) < 0)
		fail_msg("%s", err.message);
	agent_rig_write(&fill, length, rank->rank, rank->generation, step);
	if (ckpt_peer_client_seal(client, &fill, step, length, &err) < 0)
		fail_msg("%s", err.message);
}

/* `whole` and `chunk` are memory to work with. */
static void compare(const struct ckpt_peer_reading *reading, char *whole, char *chunk)
{
	const struct ckpt_peer_slot_record *record = &reading->file.record;
	struct ckpt_error err;
	uint64_t at = 0;

	ckpt_error_clear(&err);
	agent_rig_pattern(
		whole, record->length, reading->file.fixed.rank, record->generation, record->step);
	for (uint64_t i = 0; i < ckpt_peer_slot_chunks(record->length); i++) {
		int64_t got = ckpt_peer_reading_copy(reading, i, chunk, &err);

		if (got < 0)
			fail_msg("%s", err.message);
		assert_memory_equal(chunk, whole + at, (size_t)got);
		at += (uint64_t)got;
	}
	assert_int_equal(at, record->length);
}

int agent_rig_check(struct ckpt_peer_client *client, const struct ckpt_peer_message *slot)
{
	struct ckpt_peer_reading reading;
	struct ckpt_error err;
	char *memory;
	int r;

	ckpt_error_clear(&err);
	r = ckpt_peer_client_fetch(
		client, slot->slot, slot->generation, slot->step, &err, &reading);
	if (r < 0)
		return r;
	memory = malloc(reading.file.record.length + CKPT_PEER_SLOT_CHUNK);
	assert_non_null(memory);
	compare(&reading, memory + CKPT_PEER_SLOT_CHUNK, memory);
	free(memory);
	assert_int_equal(ckpt_peer_client_release(client, &reading, &err), 0);
	return 0;
}

bool agent_rig_newest(struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank,
	struct ckpt_peer_message *ret_slot)
{
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_error err;
	bool found = false;
	int r;

	ckpt_error_clear(&err);
	while ((r = ckpt_peer_client_next(client, &rank->job, slot.slot, &err, &slot)) > 0) {
		if (slot.rank != rank->rank || slot.state != CKPT_PEER_SEALED)
			continue;
		if (!found || slot.generation > ret_slot->generation ||
			(slot.generation == ret_slot->generation && slot.step > ret_slot->step))
			*ret_slot = slot;
		found = true;
	}
	assert_int_equal(r, 0);
	return found;
}

struct ckpt_peer_message agent_rig_state(struct ckpt_peer_client *client)
{
	struct ckpt_peer_message state;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_peer_client_status(client, &err, &state) < 0)
		fail_msg("%s", err.message);
	return state;
}

bool agent_rig_has_pidfds(void)
{
	int pair[2];
	int pidfd = -1;
	socklen_t size = sizeof(pidfd);
	bool has;

	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair), 0);
	has = getsockopt(pair[0], SOL_SOCKET, 77, &pidfd, &size) == 0;
	(void)close(pidfd);
	(void)close(pair[0]);
	(void)close(pair[1]);
	return has;
}
