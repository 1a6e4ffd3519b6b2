/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step that two ranks restore together, from a store that they share and that is damaged. Rank 0 mends it, after all have
 * heard that it is damaged and before it can be asked for again; and does not keep the others waiting for it. Where each
 * rank has a store, each mends its own, and both come to one outcome.
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/restore/restore_state.h"
#include "lib/core_rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"
#include "staging/reader_quota.h"

#define RANKS      2
#define FLOATS     10000
#define TIMEOUT_MS 60000

struct scene {
	char *dir;
	char local[512];
	char remote[512];
	struct fixture_step here; /* 20; there is also 10 */
	struct fixture_step there;
	char other[512]; /* of rank 1, where each has a store; empty: they share one */
	struct fixture_step beside;
	struct ckpt_store *shared;
	int root;
	struct core_rig rank[RANKS];
	struct ckpt_restore *restore[RANKS];
	float memory[RANKS][FLOATS];
	/* Rank 0's staging memory, which somebody else has. */
	struct ckpt_reader_quota others;
	struct ckpt_task nobody;
	struct ckpt_slot *slots[16];
	size_t taken;
};

static void fixture(struct fixture_step *step, const char *dir)
{
	*step = fixture_one(dir, fixture_floats(FLOATS));
	assert_int_equal(mkdir(dir, 0777), 0);
	fixture_begin(dir);
	fixture_commit(step);
	step->step = 20;
	fixture_commit(step);
}

static struct scene *make(void)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->dir = scratch_make_in_memory();
	(void)snprintf(s->local, sizeof(s->local), "%s/local", s->dir);
	(void)snprintf(s->remote, sizeof(s->remote), "%s/remote", s->dir);
	fixture(&s->here, s->local);
	fixture(&s->there, s->remote);
	return s;
}

static struct core_rig_config config_of(const struct scene *s)
{
	return (struct core_rig_config){.dir = s->local,
		.remote = s->remote,
		.slots = COUNT(s->slots),
		.timeout_ms = TIMEOUT_MS};
}

static int set_up(void **state)
{
	struct scene *s = make();
	struct core_rig_config config = config_of(s);

	core_rig_open_ranks(s->rank, RANKS, &config);
	*state = s;
	return 0;
}

/* Each rank has a store, with all files, and is the node leader of it. They talk in that of rank 0. */
static int set_up_nodes(void **state)
{
	struct scene *s;
	struct core_rig *rig;

	(void)set_up(state);
	s = *state;
	(void)snprintf(s->other, sizeof(s->other), "%s/other", s->dir);
	fixture(&s->beside, s->other);
	s->root = open(s->other, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(s->root >= 0);
	rig = &s->rank[1];
	s->shared = rig->core.store;
	assert_int_equal(ckpt_core_open_store(&rig->core,
				 &(struct ckpt_core_place){.root = s->root, .label = s->other},
				 &rig->core.store),
		0);
	for (unsigned i = 0; i < RANKS; i++) {
		s->rank[i].core.config.node_store = true;
		s->rank[i].core.config.node_leader = i;
	}
	return 0;
}

static int end(struct scene *s, unsigned rank);

static void give_slots(struct scene *s)
{
	while (s->taken > 0)
		ckpt_reader_quota_put(&s->others, s->slots[--s->taken]);
	if (s->others.pool)
		ckpt_reader_quota_leave(&s->others);
	s->others = (struct ckpt_reader_quota){0};
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	/* Of a test that has failed. */
	give_slots(s);
	for (unsigned i = 0; i < RANKS; i++)
		if (s->restore[i])
			(void)core_rig_end(&s->rank[i], s->restore[i]);
	for (unsigned i = 0; i < RANKS; i++)
		core_rig_close(&s->rank[i]);
	scratch_remove(s->dir);
	free(s);
	return 0;
}

static int tear_down_nodes(void **state)
{
	struct scene *s = *state;
	struct core_rig *rig = &s->rank[1];

	give_slots(s);
	for (unsigned i = 0; i < RANKS; i++)
		if (s->restore[i])
			(void)end(s, i);
	ckpt_store_close(rig->core.store);
	rig->core.store = s->shared;
	(void)close(s->root);
	return tear_down(state);
}

static void take_slots(struct scene *s)
{
	ckpt_reader_quota_join(&s->others, s->rank[0].pool, &s->nobody);
	while ((s->slots[s->taken] = ckpt_reader_quota_get(&s->others)) != NULL)
		s->taken++;
	assert_true(s->taken > 0);
}

static void sleep_both(struct scene *s, uint64_t ms)
{
	core_rig_sleep_ranks(s->rank, RANKS, ms);
}

static void begin(struct scene *s, unsigned rank)
{
	s->restore[rank] = core_rig_begin(&s->rank[rank], CKPT_STEP_LATEST, CKPT_SINK_MEMORY, NULL);
	assert_non_null(s->restore[rank]);
}

static bool has(const struct scene *s, unsigned rank, uint32_t bit)
{
	return ckpt_latch_get(ckpt_restore_latch(s->restore[rank])) & bit;
}

/* Ranks that `binds` has a bit of want all of it, and the others nothing. */
static void start_both(struct scene *s, unsigned binds)
{
	for (unsigned i = 0; i < RANKS; i++) {
		struct ckpt_target target = {
			.size = sizeof(target), .name = "w", .data = s->memory[i]};
		assert_true(has(s, i, CKPT_DONE_OPENED));
		assert_int_equal(
			ckpt_restore_add_targets(s->restore[i], &target, binds >> i & 1, NULL), 0);
		ckpt_restore_post_start(s->restore[i]);
	}
	sleep_both(s, 500);
}

static int end(struct scene *s, unsigned rank)
{
	int code = core_rig_end(&s->rank[rank], s->restore[rank]);

	s->restore[rank] = NULL;
	return code;
}

/* The latest is what both get. */
static void check_read(struct scene *s, uint64_t step)
{
	for (unsigned i = 0; i < RANKS; i++)
		if (!s->restore[i])
			begin(s, i);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(ckpt_restore_chosen_step(s->restore[i]), step);
	start_both(s, 3);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), 0);
		assert_memory_equal(s->memory[i], s->here.tensors[0].data, sizeof(s->memory[i]));
	}
}

static bool has_note(const struct scene *s)
{
	return access(fixture_quarantine(&s->here), F_OK) == 0;
}

/* The one of them that finds it does not matter: both hear it. */
static void find_damage(struct scene *s, unsigned binds)
{
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	start_both(s, binds);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
}

static void test_repaired(void **state)
{
	struct scene *s = *state;

	for (unsigned finder = 0; finder < RANKS; finder++) {
		scratch_flip(fixture_shard(&s->here, 0), 20000);
		for (unsigned i = 0; i < RANKS; i++)
			s->rank[i].core.restorer->repaired_generation = 0;
		find_damage(s, 1u << finder);
		assert_int_equal(s->rank[0].err.repaired, 1);
		assert_int_equal(s->rank[1].err.repaired, 0);
		assert_non_null(strstr(s->rank[0].err.message, "whole again, with 1 chunk"));
		assert_false(has_note(s));
		check_read(s, 20);
	}
}

/* Nobody has it, or it is damaged again: it is noted, as it is without a remote store. */
static void test_quarantined(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->here, 0), 20000);
	scratch_flip(fixture_shard(&s->there, 0), 20001);
	find_damage(s, 2);
	assert_int_equal(s->rank[0].err.repaired, 0);
	assert_true(has_note(s));
	check_read(s, 10);
}

static void test_damaged_again(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->here, 0), 20000);
	find_damage(s, 3);
	assert_int_equal(s->rank[0].err.repaired, 1);
	scratch_flip(fixture_shard(&s->here, 0), 20000);
	find_damage(s, 3);
	assert_int_equal(s->rank[0].err.repaired, 0);
	assert_true(has_note(s));
	check_read(s, 10);
}

/* In the stores of both nodes, or of none. */
static bool have_notes(const struct scene *s)
{
	bool notes = has_note(s);

	assert_int_equal(access(fixture_quarantine(&s->beside), F_OK) == 0, notes);
	return notes;
}

/* A node mends its own store, and the step is whole when all are. */
static void test_nodes_repaired(void **state)
{
	struct scene *s = *state;

	for (unsigned round = 0; round < 4; round++) {
		const struct fixture_step *bad = round % 2 == 0 ? &s->here : &s->beside;
		/* Of the index it is found before the other one has read the manifest, or after. */
		if (round < 2)
			scratch_flip(fixture_shard(bad, 0), 20000);
		else
			scratch_flip(fixture_index(bad, 0), 100);
		for (unsigned i = 0; i < RANKS; i++)
			s->rank[i].core.restorer->repaired_generation = 0;
		for (unsigned i = 0; i < RANKS; i++)
			begin(s, i);
		sleep_both(s, 500);
		if (round < 2)
			start_both(s, 3);
		for (unsigned i = 0; i < RANKS; i++) {
			assert_int_equal(end(s, i), CKPT_EINTEGRITY);
			assert_int_equal(s->rank[i].err.repaired, 1);
			assert_non_null(strstr(s->rank[i].err.message, "whole again"));
		}
		assert_false(have_notes(s));
		check_read(s, 20);
	}
}

/* The node leader of one hears of the damage before it has read the manifest: it has to look at its store all the same. */
static void test_nodes_heard_early(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_index(&s->here, 0), 100);
	scratch_flip(fixture_shard(&s->beside, 0), 20000);
	(void)io_fault_add(&s->rank[1].fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "manifest.json", .hold = true});
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	assert_int_equal(s->rank[1].fault.hits[0], 1);
	assert_false(has(s, 0, CKPT_DONE_END));
	io_fault_clear(&s->rank[1].fault);
	core_rig_let_go(&s->rank[1]);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_int_equal(s->rank[i].err.repaired, 1);
	}
	assert_non_null(strstr(s->rank[0].err.message, "and 1 index from"));
	assert_non_null(strstr(s->rank[1].err.message, "whole again, with 1 chunk"));
	check_read(s, 20);
}

/* What one node lacks, and nobody has, is lost for both. */
static void test_nodes_quarantined(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->beside, 0), 20000);
	scratch_flip(fixture_shard(&s->there, 0), 20001);
	find_damage(s, 3);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(s->rank[i].err.repaired, 0);
	assert_true(have_notes(s));
	check_read(s, 10);
}

static void test_nodes_damaged_again(void **state)
{
	struct scene *s = *state;

	for (unsigned round = 0; round < 2; round++) {
		scratch_flip(fixture_shard(&s->beside, 0), 20000);
		find_damage(s, 3);
		assert_int_equal(s->rank[0].err.repaired, round == 0);
	}
	assert_true(have_notes(s));
	check_read(s, 10);
}

/* One of them cannot do it this time: both take an older step, and note nothing. */
static void test_nodes_hindered(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->beside, 0), 20000);
	(void)io_fault_add(&s->rank[1].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC});
	find_damage(s, 3);
	for (unsigned i = 0; i < RANKS; i++)
		assert_int_equal(s->rank[i].err.repaired, 0);
	assert_int_equal(s->rank[1].fault.hits[0], 1);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_ERROR, "this time: rank 1: "));
	assert_false(have_notes(s));
	check_read(s, 10);
	/* By its number, too. */
	for (unsigned i = 0; i < RANKS; i++)
		s->restore[i] = core_rig_begin(&s->rank[i], 20, CKPT_SINK_MEMORY, NULL);
	sleep_both(s, 500);
	start_both(s, 3);
	for (unsigned i = 0; i < RANKS; i++)
		assert_true(end(s, i) < 0);
	assert_false(have_notes(s));
}

/* All ranks give it up while one mends, and ask again before that one has come to an end. */
static void test_nodes_asked_meanwhile(void **state)
{
	struct scene *s = *state;
	struct ckpt_restore *first[RANKS];

	scratch_flip(fixture_shard(&s->beside, 0), 20000);
	(void)io_fault_add(
		&s->rank[1].fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .hold = true});
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	start_both(s, 3);
	assert_int_equal(s->rank[1].fault.hits[0], 1);
	for (unsigned i = 0; i < RANKS; i++) {
		ckpt_restore_post_release(s->restore[i]);
		first[i] = s->restore[i];
	}
	sleep_both(s, 100);
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	start_both(s, 3);
	assert_false(have_notes(s));
	io_fault_clear(&s->rank[1].fault);
	core_rig_let_go(&s->rank[1]);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_true(ckpt_latch_get(ckpt_restore_latch(first[i])) & CKPT_DONE_GONE);
		ckpt_restore_unref(first[i]);
	}
	assert_false(have_notes(s));
}

/* A node mends slowly, and the disk of another one hangs: the first does not wait for longer than the others do. */
static void test_nodes_one_hangs(void **state)
{
	struct scene *s = *state;

	take_slots(s);
	scratch_flip(fixture_index(&s->here, 0), 100);
	scratch_flip(fixture_shard(&s->beside, 0), 20000);
	(void)io_fault_add(
		&s->rank[1].fault, (struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .hold = true});
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, TIMEOUT_MS / 2 - 2000);
	assert_true(s->rank[0].core.restorer->repairing);
	assert_int_equal(s->rank[1].fault.hits[0], 1);
	give_slots(s);
	sleep_both(s, 500);
	assert_false(s->rank[0].core.restorer->repairing);
	assert_false(has(s, 0, CKPT_DONE_END));
	sleep_both(s, TIMEOUT_MS / 4);
	assert_true(has(s, 0, CKPT_DONE_END));
	io_fault_clear(&s->rank[1].fault);
	core_rig_let_go(&s->rank[1]);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_int_equal(s->rank[i].err.repaired, 0);
	}
	assert_false(have_notes(s));
}

/* The restore of a rank is given up while it mends. */
static void test_nodes_given_up(void **state)
{
	struct scene *s = *state;

	take_slots(s);
	scratch_flip(fixture_index(&s->here, 0), 100);
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	assert_true(s->rank[0].core.restorer->repairing);
	for (unsigned i = 0; i < RANKS; i++)
		assert_false(has(s, i, CKPT_DONE_END));
	ckpt_restore_post_cancel(s->restore[0]);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_int_equal(s->rank[i].err.repaired, 0);
	}
	give_slots(s);
	assert_false(have_notes(s));
	/* The next one may mend it. */
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	for (unsigned i = 0; i < RANKS; i++) {
		assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_int_equal(s->rank[i].err.repaired, 1);
	}
	check_read(s, 20);
}

static void test_hindered(void **state)
{
	struct scene *s = *state;

	scratch_flip(fixture_shard(&s->here, 0), 20000);
	(void)io_fault_add(&s->rank[0].fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_ALLOCATE, .error = -ENOSPC});
	find_damage(s, 3);
	assert_int_equal(s->rank[0].err.repaired, 0);
	assert_int_equal(s->rank[0].fault.hits[0], 1);
	assert_false(has_note(s));
	check_read(s, 10);
	assert_false(has_note(s));
}

/* The index is damaged, which is found before anything is bound; and what is to be mended waits for memory. */
static void begin_slowly(struct scene *s)
{
	take_slots(s);
	scratch_flip(fixture_index(&s->here, 0), 100);
	for (unsigned i = 0; i < RANKS; i++)
		begin(s, i);
	sleep_both(s, 500);
	assert_int_equal(end(s, 1), CKPT_EINTEGRITY);
	assert_true(s->rank[0].core.restorer->repairing);
	assert_false(has(s, 0, CKPT_DONE_END));
}

/* The other one asks again meanwhile, and does not wait in vain. */
static void test_takes_too_long(void **state)
{
	struct scene *s = *state;

	begin_slowly(s);
	begin(s, 1);
	sleep_both(s, TIMEOUT_MS / 2 - 1000);
	assert_false(has(s, 0, CKPT_DONE_END));
	sleep_both(s, 1000);
	assert_true(has(s, 0, CKPT_DONE_END));
	assert_false(has(s, 1, CKPT_DONE_END));
	assert_int_equal(end(s, 0), CKPT_EINTEGRITY);
	assert_int_equal(s->rank[0].err.repaired, 0);
	assert_true(core_rig_logged(&s->rank[0], CKPT_LOG_ERROR, "than the other ranks wait"));
	assert_false(has_note(s));
	give_slots(s);
	check_read(s, 10);
}

/* Slow, and in time. */
static void test_waited_for(void **state)
{
	struct scene *s = *state;

	begin_slowly(s);
	begin(s, 1);
	sleep_both(s, TIMEOUT_MS / 2 - 1000);
	give_slots(s);
	sleep_both(s, 100);
	assert_int_equal(end(s, 0), CKPT_EINTEGRITY);
	assert_int_equal(s->rank[0].err.repaired, 1);
	check_read(s, 20);
	assert_false(has_note(s));
}

/* Whoever gives it up says nothing about the step. */
static void test_given_up(void **state)
{
	struct scene *s = *state;

	for (unsigned way = 0; way < 2; way++) {
		begin_slowly(s);
		if (way == 0)
			ckpt_restore_post_cancel(s->restore[0]);
		else
			ckpt_restore_post_release(s->restore[0]);
		core_rig_run(&s->rank[0]);
		assert_false(s->rank[0].core.restorer->repairing);
		assert_true(has(s, 0, CKPT_DONE_END));
		assert_int_equal(end(s, 0), CKPT_EINTEGRITY);
		assert_false(has_note(s));
		give_slots(s);
		for (unsigned i = 0; i < RANKS; i++)
			begin(s, i);
		sleep_both(s, 500);
		for (unsigned i = 0; i < RANKS; i++)
			assert_int_equal(end(s, i), CKPT_EINTEGRITY);
		assert_int_equal(s->rank[0].err.repaired, 1);
		check_read(s, 20);
		s->rank[0].core.restorer->repaired_generation = 0;
	}
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define NODES(test) cmocka_unit_test_setup_teardown(test, set_up_nodes, tear_down_nodes)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_repaired),
		SCENE(test_quarantined),
		SCENE(test_damaged_again),
		NODES(test_nodes_repaired),
		NODES(test_nodes_heard_early),
		NODES(test_nodes_quarantined),
		NODES(test_nodes_damaged_again),
		NODES(test_nodes_hindered),
		NODES(test_nodes_given_up),
		NODES(test_nodes_asked_meanwhile),
		NODES(test_nodes_one_hangs),
		SCENE(test_hindered),
		SCENE(test_takes_too_long),
		SCENE(test_waited_for),
		SCENE(test_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
