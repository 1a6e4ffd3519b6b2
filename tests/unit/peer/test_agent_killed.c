/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kill -9 of a rank while it saves, and of the agent while a rank saves: every step that was sealed is there to the byte,
 * and nothing that was not is served.
 */
#include "lib/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent_rig.h"
#include "base/error.h"
#include "lib/prng.h"

#define CAPACITY (2 * MIB)
#define PIECE    (64 * 1024)
#define MEMORY   (64 * MIB)

/* What a rank tells its parent: a piece is written; a step is sealed. */
#define WROTE  'w'
#define SEALED 's'

static void tell(int pipe, char what)
{
	if (write(pipe, &what, 1) != 1)
		_exit(2);
}

/* Saves step after step, until it is killed. It goes on from `keep`. */
static void train(const struct agent_rig *rig, const struct ckpt_peer_rank *rank,
	const struct ckpt_peer_message *keep, int pipe)
{
	struct ckpt_peer_client *client;
	uint64_t keep_generation = keep->generation;
	uint64_t keep_step = keep->step;
	char *made = malloc(CAPACITY);

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!made)
		_exit(2);
	client = agent_rig_attach(rig, rank);
	for (uint64_t step = keep_step + 1;; step++) {
		uint64_t length = CAPACITY - step % 5000;
		struct ckpt_peer_fill open;

		if (ckpt_peer_client_fill(client, step, keep_generation, keep_step, NULL, &open) <
			0)
			_exit(3);
		agent_rig_pattern(made, length, rank->rank, rank->generation, step);
		for (uint64_t at = 0; at < length; at += PIECE) {
			memcpy(open.data + at, made + at, ckpt_min_u64(PIECE, length - at));
			tell(pipe, WROTE);
		}
		for (uint64_t i = 0; i < ckpt_peer_slot_chunks(length); i++) {
			uint64_t at = i * CKPT_PEER_SLOT_CHUNK;

			open.digests[i] = ckpt_digest_of(
				open.data + at, ckpt_min_u64(CKPT_PEER_SLOT_CHUNK, length - at));
		}
		if (ckpt_peer_client_seal(client, &open, step, length, NULL) < 0)
			_exit(4);
		keep_generation = rank->generation;
		keep_step = step;
		tell(pipe, SEALED);
	}
}

/* Kills it when it has told so much. Returns how many steps it has said to be sealed. */
static unsigned kill_after(pid_t pid, int pipe, uint64_t tells)
{
	unsigned sealed = 0;
	int status = 0;
	char what;

	for (uint64_t i = 0; i < tells; i++) {
		assert_int_equal(read(pipe, &what, 1), 1);
		sealed += what == SEALED;
	}
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	/* And what it has told before the signal came. */
	while (read(pipe, &what, 1) == 1)
		sealed += what == SEALED;
	return sealed;
}

/* Every slot of the job: what is sealed is right, what is not is refused. */
static void check_all(struct ckpt_peer_client *client, const struct ckpt_peer_rank *rank)
{
	struct ckpt_peer_message slot = {.slot = 0};
	int r;

	while ((r = ckpt_peer_client_next(client, &rank->job, slot.slot, NULL, &slot)) > 0)
		assert_int_equal(agent_rig_check(client, &slot),
			slot.state == CKPT_PEER_SEALED ? 0 : CKPT_ENOSTEP);
	assert_int_equal(r, 0);
}

static void a_rank_is_killed(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 3, 0, CAPACITY);
	struct ckpt_peer_message newest = {.generation = 0};
	struct prng prng = {42};
	struct agent_rig rig;
	struct ckpt_peer_client *client;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, false);
	client = agent_rig_connect(&rig);
	for (unsigned life = 0; life < 12; life++) {
		struct ckpt_peer_message before = newest;
		int pipes[2];
		unsigned sealed;
		pid_t pid;

		rank.generation++;
		assert_int_equal(pipe(pipes), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0)
			train(&rig, &rank, &before, pipes[1]);
		(void)close(pipes[1]);
		/* A step is 33 tells, so this is anywhere in the first to fourth one. */
		sealed = kill_after(pid, pipes[0], 1 + prng_below(&prng, 120));
		(void)close(pipes[0]);
		check_all(client, &rank);
		if (!agent_rig_newest(client, &rank, &newest)) {
			assert_int_equal(sealed, 0);
			continue;
		}
		/* All that it has heard of, and at most the one under way besides. */
		assert_true(newest.step == before.step + sealed ||
			    newest.step == before.step + sealed + 1);
	}
	assert_true(newest.step > 0);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* As often as it takes until another agent answers. */
static int reconnect(struct ckpt_peer_client *client)
{
	struct ckpt_error err;
	int r = -ENOTCONN;

	for (unsigned i = 0; r == -ENOTCONN && i < 1000; i++) {
		ckpt_error_clear(&err);
		r = ckpt_peer_client_reconnect(client, &err);
	}
	if (r < 0)
		fail_msg("%s", err.message);
	return r;
}

static void kill_agent(struct ckpt_peer_client *client)
{
	uint32_t pid = agent_rig_state(client).pid;

	assert_int_equal(kill((pid_t)pid, SIGKILL), 0);
}

/* The agent dies at each place of a save, and the save goes on. */
static void the_agent_is_killed(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 3, 1, CAPACITY);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_client *client;
	struct ckpt_peer_fill open;
	struct ckpt_peer_client *newer;
	struct agent_rig rig;
	uint64_t used;
	bool said;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, true);
	client = agent_rig_attach(&rig, &rank);
	/* Between saves. */
	agent_rig_save(client, &rank, 1, 0, CAPACITY - 1);
	kill_agent(client);
	assert_int_equal(reconnect(client), 1);
	check_all(client, &rank);
	agent_rig_save(client, &rank, 2, 1, CAPACITY - 2);
	/* While a slot is filled. */
	assert_int_equal(ckpt_peer_client_fill(client, 3, 1, 2, NULL, &open), 0);
	agent_rig_write(&open, CAPACITY / 2, 3, 1, 3);
	kill_agent(client);
	assert_int_equal(reconnect(client), 1);
	check_all(client, &rank);
	agent_rig_write(&open, CAPACITY - 3, 3, 1, 3);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 3, CAPACITY - 3, NULL), 0);
	/* While it is sealed: whatever the agent has come to, it is said rightly. */
	assert_int_equal(ckpt_peer_client_fill(client, 4, 1, 3, NULL, &open), 0);
	agent_rig_write(&open, CAPACITY - 4, 3, 1, 4);
	kill_agent(client);
	said = ckpt_peer_client_seal(client, &open, 4, CAPACITY - 4, NULL) == 0;
	assert_int_equal(reconnect(client), 1);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_true(slot.step == 4 || (slot.step == 3 && !said));
	check_all(client, &rank);
	if (slot.step == 3)
		assert_int_equal(ckpt_peer_client_seal(client, &open, 4, CAPACITY - 4, NULL), 0);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(slot.step, 4);
	check_all(client, &rank);
	/* It knows who has them mapped, and counts what its successor cannot have. */
	used = agent_rig_state(client).used;
	rank.generation = 2;
	newer = agent_rig_attach(&rig, &rank);
	assert_int_equal(ckpt_peer_client_fill(newer, 5, 1, 4, NULL, &open), 0);
	assert_true(!agent_rig_has_pidfds() || agent_rig_state(newer).used > used);
	ckpt_peer_client_close(newer);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* Both: the next process of the rank finds the newest step, and gets memory that the last one never had. */
static void a_rank_and_the_agent_are_killed(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 3, 1, CAPACITY);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_client *older;
	struct ckpt_peer_client *client;
	struct ckpt_peer_fill zombie;
	struct ckpt_peer_fill open;
	struct agent_rig rig;

	(void)state;
	agent_rig_open(&rig, MEMORY, 1800, true);
	older = agent_rig_attach(&rig, &rank);
	agent_rig_save(older, &rank, 1, 0, CAPACITY);
	agent_rig_save(older, &rank, 2, 1, CAPACITY);
	assert_int_equal(ckpt_peer_client_fill(older, 3, 1, 2, NULL, &zombie), 0);
	agent_rig_write(&zombie, CAPACITY, 3, 1, 3);
	kill_agent(older);
	client = agent_rig_connect(&rig);
	rank.generation = 2;
	while (ckpt_peer_client_attach(client, &rank, NULL) < 0)
		assert_true(ckpt_peer_client_reconnect(client, NULL) >= 0);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(slot.step, 2);
	check_all(client, &rank);
	/* The agent does not know who has them mapped. It is a process that lives, and writes. */
	assert_int_equal(ckpt_peer_client_fill(client, 3, 1, 2, NULL, &open), 0);
	agent_rig_write(&open, CAPACITY, 3, 2, 3);
	memset(zombie.data, 0xee, CAPACITY);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 3, CAPACITY, NULL), 0);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(slot.generation, 2);
	check_all(client, &rank);
	ckpt_peer_client_close(older);
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

/* A generation that has begun, be it that it has saved nothing yet, is not forgotten with the agent. */
static void the_generation_outlives_the_agent(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 3, 1, CAPACITY);
	struct ckpt_peer_client *client;
	struct agent_rig rig;
	struct ckpt_error err;

	(void)state;
	ckpt_error_clear(&err);
	agent_rig_open(&rig, MEMORY, 1800, true);
	client = agent_rig_attach(&rig, &rank);
	agent_rig_save(client, &rank, 1, 0, 100);
	ckpt_peer_client_close(client);
	rank.generation = 2;
	client = agent_rig_attach(&rig, &rank);
	kill_agent(client);
	ckpt_peer_client_close(client);
	client = agent_rig_connect(&rig);
	rank.generation = 1;
	/* Until one answers. */
	for (;;) {
		int r = ckpt_peer_client_attach(client, &rank, &err);

		if (r != -ENOTCONN) {
			assert_int_equal(r, CKPT_EFENCED);
			break;
		}
		ckpt_error_clear(&err);
		(void)reconnect(client);
	}
	assert_non_null(strstr(err.message, "generation 2 of this job has begun"));
	ckpt_peer_client_close(client);
	agent_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_rank_is_killed),
		cmocka_unit_test(the_agent_is_killed),
		cmocka_unit_test(a_rank_and_the_agent_are_killed),
		cmocka_unit_test(the_generation_outlives_the_agent),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
