/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks and their agent: what is sealed is served to the byte, what may be needed is kept, and older processes are fenced. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "agent_rig.h"
#include "base/error.h"
#include "lib/hang.h"

#define MEMORY   (64 * MIB)
#define CAPACITY (2 * MIB)
/* The last chunk is short, and no multiple of anything. */
#define LENGTH   (CAPACITY - 4099)

static int setup(void **state)
{
	struct agent_rig *rig = calloc(1, sizeof(*rig));

	assert_non_null(rig);
	agent_rig_open(rig, MEMORY, 1800, false);
	*state = rig;
	return 0;
}

static int teardown(void **state)
{
	agent_rig_close(*state);
	free(*state);
	return 0;
}

static int fill(struct ckpt_peer_client *client, uint64_t step, uint64_t keep_generation,
	uint64_t keep_step, struct ckpt_peer_fill *ret_fill)
{
	struct ckpt_error err;
	int r;

	ckpt_error_clear(&err);
	r = ckpt_peer_client_fill(client, step, keep_generation, keep_step, &err, ret_fill);
	assert_int_equal(r < 0, err.message[0] != 0);
	return r;
}

static void what_is_sealed_is_served(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 7, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_client *reader = agent_rig_connect(*state);
	struct ckpt_peer_message slot = {.slot = 0};

	assert_false(agent_rig_newest(reader, &rank, &slot));
	agent_rig_save(client, &rank, 10, 0, LENGTH);
	agent_rig_save(client, &rank, 11, 10, 0);
	agent_rig_save(client, &rank, 12, 11, CAPACITY);
	assert_true(agent_rig_newest(reader, &rank, &slot));
	assert_int_equal(slot.step, 12);
	assert_int_equal(slot.generation, 1);
	assert_int_equal(slot.attached, 1);
	assert_int_equal(agent_rig_check(reader, &slot), 0);
	/* The shorter one before it is whole as well. */
	slot.step = 11;
	for (slot.slot = 1; agent_rig_check(reader, &slot) == CKPT_ENOSTEP; slot.slot++)
		assert_true(slot.slot < 3);
	/* A process that is gone is no loss. */
	ckpt_peer_client_close(client);
	assert_true(agent_rig_newest(reader, &rank, &slot));
	assert_int_equal(agent_rig_check(reader, &slot), 0);
	ckpt_peer_client_close(reader);
}

static void what_is_not_sealed_is_not_served(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 3, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.generation = 3, .step = 5};
	struct ckpt_peer_fill open;

	assert_int_equal(fill(client, 5, 0, 0, &open), 0);
	agent_rig_write(&open, LENGTH, 0, 3, 5);
	slot.slot = open.slot;
	assert_int_equal(agent_rig_check(client, &slot), CKPT_ENOSTEP);
	/* Sealed as what it is not. */
	assert_int_equal(ckpt_peer_client_seal(client, &open, 6, LENGTH, NULL), -EINVAL);
	open.slot++;
	assert_int_equal(ckpt_peer_client_seal(client, &open, 5, LENGTH, NULL), -EINVAL);
	open.slot--;
	assert_int_equal(ckpt_peer_client_seal(client, &open, 5, LENGTH, NULL), 0);
	assert_int_equal(agent_rig_check(client, &slot), 0);
	/* Once; but the same again is no other. */
	assert_int_equal(ckpt_peer_client_seal(client, &open, 5, LENGTH, NULL), 0);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 5, LENGTH - 1, NULL), -EINVAL);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 6, LENGTH, NULL), -EINVAL);
	open.digests[0].bytes[0] ^= 1;
	assert_int_equal(ckpt_peer_client_seal(client, &open, 5, LENGTH, NULL), -EINVAL);
	open.digests[0].bytes[0] ^= 1;
	assert_int_equal(agent_rig_check(client, &slot), 0);
	ckpt_peer_client_close(client);
}

/* Whoever changes one bit of data, digests or header: that is found by who reads. */
static void damage_is_found(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.generation = 1, .step = 1};
	struct ckpt_peer_reading reading;
	struct ckpt_peer_fill open;
	char *chunk = malloc(CKPT_PEER_SLOT_CHUNK);
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_non_null(chunk);
	assert_int_equal(fill(client, 1, 0, 0, &open), 0);
	agent_rig_write(&open, LENGTH, 0, 1, 1);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 1, LENGTH, NULL), 0);
	slot.slot = open.slot;
	open.data[CKPT_PEER_SLOT_CHUNK + 17] ^= 4;
	assert_int_equal(ckpt_peer_client_fetch(client, slot.slot, 1, 1, &err, &reading), 0);
	assert_int_equal(ckpt_peer_reading_copy(&reading, 0, chunk, &err), CKPT_PEER_SLOT_CHUNK);
	assert_int_equal(ckpt_peer_reading_copy(&reading, 1, chunk, &err), CKPT_EINTEGRITY);
	assert_non_null(strstr(err.message, "chunk 1 of step 1"));
	assert_int_equal(ckpt_peer_client_release(client, &reading, NULL), 0);
	open.data[CKPT_PEER_SLOT_CHUNK + 17] ^= 4;
	assert_int_equal(agent_rig_check(client, &slot), 0);
	open.digests[1].bytes[3] ^= 1;
	assert_int_equal(agent_rig_check(client, &slot), CKPT_EINTEGRITY);
	open.digests[1].bytes[3] ^= 1;
	assert_int_equal(agent_rig_check(client, &slot), 0);
	/* The step's number in the header. */
	open.data[-4096 + 128 + 24] ^= 1;
	assert_int_equal(agent_rig_check(client, &slot), CKPT_EINTEGRITY);
	open.data[-4096 + 128 + 24] ^= 1;
	assert_int_equal(agent_rig_check(client, &slot), 0);
	free(chunk);
	ckpt_peer_client_close(client);
}

static void a_step_that_may_be_needed_is_kept(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_fill open;

	agent_rig_save(client, &rank, 1, 0, 100);
	agent_rig_save(client, &rank, 2, 0, 100);
	/* Nothing is committed, and either may be. */
	assert_int_equal(fill(client, 3, 0, 0, &open), -EAGAIN);
	/* Step 1 is, and step 2 may be. */
	assert_int_equal(fill(client, 3, 1, 1, &open), -EAGAIN);
	/* Step 2 is, so step 1 goes. */
	agent_rig_save(client, &rank, 3, 2, 100);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(slot.step, 3);
	/* A step comes once. */
	assert_int_equal(fill(client, 3, 1, 3, &open), CKPT_ESTEP);
	assert_int_equal(fill(client, 2, 1, 3, &open), CKPT_ESTEP);
	/* What is given up is given again, and step 3 stays whatever becomes of it. */
	assert_int_equal(fill(client, 4, 1, 3, &open), 0);
	assert_int_equal(fill(client, 5, 1, 3, &open), 0);
	assert_int_equal(agent_rig_check(client, &slot), 0);
	ckpt_peer_client_close(client);
}

static void what_is_read_is_not_filled(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_client *reader = agent_rig_connect(*state);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_reading reading;
	struct ckpt_peer_fill open;

	agent_rig_save(client, &rank, 1, 0, LENGTH);
	assert_true(agent_rig_newest(reader, &rank, &slot));
	assert_int_equal(ckpt_peer_client_fetch(reader, slot.slot, 1, 1, NULL, &reading), 0);
	agent_rig_save(client, &rank, 2, 1, 100);
	assert_int_equal(fill(client, 3, 1, 2, &open), -EAGAIN);
	/* A reader that dies lets go of it. */
	ckpt_peer_slot_file_unmap(&reading.map);
	free(reading.digests);
	ckpt_peer_client_close(reader);
	await(fill(client, 3, 1, 2, &open) == 0);
	assert_int_equal(open.slot, slot.slot);
	ckpt_peer_client_close(client);
}

/* What was fetched cannot be written to, whatever is tried. */
static void a_reader_cannot_write(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_reading reading;

	agent_rig_save(client, &rank, 1, 0, LENGTH);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(ckpt_peer_client_fetch(client, slot.slot, 1, 1, NULL, &reading), 0);
	assert_int_equal(mprotect(reading.map.base, reading.map.bytes, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(errno, EACCES);
	assert_int_equal(ckpt_peer_client_release(client, &reading, NULL), 0);
	assert_int_equal(ckpt_peer_client_release(client, &reading, NULL), -EINVAL);
	ckpt_peer_client_close(client);
}

/* The memory of a process that was taken for dead is never its successor's. */
static void two_processes_never_share_a_slot(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *older = agent_rig_attach(*state, &rank);
	struct ckpt_peer_client *newer;
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_fill zombie;
	struct ckpt_peer_fill open;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	agent_rig_save(older, &rank, 1, 0, LENGTH);
	assert_int_equal(fill(older, 2, 1, 1, &zombie), 0);
	/* One that is of the same generation is none that has died. */
	newer = agent_rig_connect(*state);
	assert_int_equal(ckpt_peer_client_attach(newer, &rank, &err), CKPT_EINUSE);
	assert_non_null(strstr(err.message, "end it, or begin a new generation"));
	rank.generation = 2;
	assert_int_equal(ckpt_peer_client_attach(newer, &rank, NULL), 0);
	/* The older one is told, and has its memory still. */
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_peer_client_seal(older, &zombie, 2, LENGTH, &err), CKPT_EFENCED);
	assert_non_null(strstr(err.message, "generation 2 of this job has begun"));
	assert_int_equal(ckpt_peer_client_reconnect(older, NULL), CKPT_EFENCED);
	/* Step 1 is what the job goes on from. */
	assert_int_equal(fill(newer, 2, 1, 1, &open), 0);
	agent_rig_write(&open, LENGTH, 0, 2, 2);
	memset(zombie.data, 0xee, CAPACITY);
	memset(zombie.digests, 0xee, 2 * sizeof(*zombie.digests));
	assert_int_equal(ckpt_peer_client_seal(newer, &open, 2, LENGTH, NULL), 0);
	assert_true(agent_rig_newest(newer, &rank, &slot));
	assert_int_equal(slot.generation, 2);
	assert_int_equal(agent_rig_check(newer, &slot), 0);
	slot.generation = 1;
	slot.step = 1;
	for (slot.slot = 1; agent_rig_check(newer, &slot) == CKPT_ENOSTEP; slot.slot++)
		assert_true(slot.slot < 4);
	/* So it is with the slot that step 1 was in. */
	agent_rig_save(newer, &rank, 3, 2, LENGTH);
	memset(zombie.data, 0xdd, CAPACITY);
	assert_true(agent_rig_newest(newer, &rank, &slot));
	assert_int_equal(slot.step, 3);
	assert_int_equal(agent_rig_check(newer, &slot), 0);
	ckpt_peer_client_close(older);
	ckpt_peer_client_close(newer);
}

static void an_older_generation_gets_nothing(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 5, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_client *other = agent_rig_connect(*state);
	struct ckpt_error err;

	ckpt_error_clear(&err);
	rank.generation = 4;
	rank.rank = 1;
	assert_int_equal(ckpt_peer_client_attach(other, &rank, &err), CKPT_EFENCED);
	assert_non_null(strstr(err.message, "generation 5"));
	/* Another job has other generations. */
	rank.job.bytes[3] = 9;
	assert_int_equal(ckpt_peer_client_attach(other, &rank, NULL), 0);
	ckpt_peer_client_close(client);
	ckpt_peer_client_close(other);
}

/* A connection that broke: the same process goes on with what it has mapped. */
static void a_process_connects_again(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_fill open;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_int_equal(fill(client, 1, 0, 0, &open), 0);
	agent_rig_write(&open, 100, 0, 1, 1);
	if (ckpt_peer_client_reconnect(client, &err) != 1)
		fail_msg("%s", err.message);
	agent_rig_write(&open, LENGTH, 0, 1, 1);
	assert_int_equal(ckpt_peer_client_seal(client, &open, 1, LENGTH, NULL), 0);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(agent_rig_check(client, &slot), 0);
	agent_rig_save(client, &rank, 2, 1, LENGTH);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(slot.step, 2);
	assert_int_equal(agent_rig_check(client, &slot), 0);
	ckpt_peer_client_close(client);
}

/* A model that has grown: the newest step stays until there is a newer one. */
static void a_rank_comes_back_with_another_size(void **state)
{
	struct ckpt_peer_rank rank = agent_rig_rank(0, 0, 1, CAPACITY);
	struct ckpt_peer_client *client = agent_rig_attach(*state, &rank);
	struct ckpt_peer_message slot = {.slot = 0};
	struct ckpt_peer_fill open;

	agent_rig_save(client, &rank, 1, 0, LENGTH);
	ckpt_peer_client_close(client);
	rank.generation = 2;
	rank.capacity = 3 * MIB;
	rank.slots = 3;
	client = agent_rig_attach(*state, &rank);
	assert_true(agent_rig_newest(client, &rank, &slot));
	assert_int_equal(agent_rig_check(client, &slot), 0);
	for (uint64_t step = 2; step < 6; step++) {
		assert_int_equal(fill(client, step, step == 2 ? 1 : 2, step - 1, &open), 0);
		assert_int_equal(open.capacity, 3 * MIB);
		agent_rig_write(&open, 3 * MIB, 0, 2, step);
		assert_int_equal(ckpt_peer_client_seal(client, &open, step, 3 * MIB, NULL), 0);
		assert_true(agent_rig_newest(client, &rank, &slot));
		assert_int_equal(slot.step, step);
		assert_int_equal(agent_rig_check(client, &slot), 0);
	}
	assert_int_equal(agent_rig_state(client).slots, 3);
	ckpt_peer_client_close(client);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_is_sealed_is_served, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_not_sealed_is_not_served, setup, teardown),
		cmocka_unit_test_setup_teardown(damage_is_found, setup, teardown),
		cmocka_unit_test_setup_teardown(a_step_that_may_be_needed_is_kept, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_read_is_not_filled, setup, teardown),
		cmocka_unit_test_setup_teardown(a_reader_cannot_write, setup, teardown),
		cmocka_unit_test_setup_teardown(two_processes_never_share_a_slot, setup, teardown),
		cmocka_unit_test_setup_teardown(an_older_generation_gets_nothing, setup, teardown),
		cmocka_unit_test_setup_teardown(a_process_connects_again, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_rank_comes_back_with_another_size, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
