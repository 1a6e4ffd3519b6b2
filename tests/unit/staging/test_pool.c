/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: slots out and back, waiters, the toucher, budgets and limits, and what is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "lib/hang.h"
#include "lib/prng.h"
#include "staging/pool.h"
#include "staging/reader_quota.h"

#define KIB   UINT64_C(1024)
#define MIB   (UINT64_C(1) << 20)
#define BLOCK (UINT32_C(64) << 10)

static struct ckpt_pool *open_pool(uint64_t bytes, uint32_t block_bytes, bool touch)
{
	const struct ckpt_pool_config config = {
		.bytes = bytes, .block_bytes = block_bytes, .touch = touch};
	struct ckpt_pool *pool = NULL;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_pool_open(&config, &err, &pool) < 0)
		fail_msg("%s", err.message);
	assert_non_null(pool);
	return pool;
}

static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;

	assert_non_null(dir);
	while (readdir(dir))
		count++;
	assert_int_equal(closedir(dir), 0);
	return count;
}

static void slots_are_apart_aligned_and_usable(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(8) * BLOCK, BLOCK, false);
	struct ckpt_slot *slots[8];
	char *base = ckpt_pool_base(pool);

	(void)state;
	assert_int_equal(ckpt_pool_slots(pool), 8);
	assert_int_equal(ckpt_pool_bytes(pool), 8 * BLOCK);
	assert_string_equal(ckpt_pool_note(pool), "");
	assert_int_equal((uintptr_t)base % 4096, 0);
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(ckpt_pool_free(pool), 8 - i);
		slots[i] = ckpt_pool_get(pool);
		assert_non_null(slots[i]);
		assert_int_equal(slots[i]->number, i);
		assert_ptr_equal(slots[i]->data, base + (size_t)i * BLOCK);
		memset(slots[i]->data, (int)i + 1, BLOCK);
	}
	assert_int_equal(ckpt_pool_free(pool), 0);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 8; i++) {
		assert_int_equal(slots[i]->data[0], i + 1);
		assert_int_equal(slots[i]->data[BLOCK - 1], i + 1);
	}
	/* The one that came back last is given out first. */
	ckpt_pool_put(pool, slots[2]);
	ckpt_pool_put(pool, slots[5]);
	assert_ptr_equal(ckpt_pool_get(pool), slots[5]);
	assert_ptr_equal(ckpt_pool_get(pool), slots[2]);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 8; i++)
		ckpt_pool_put(pool, slots[i]);
	ckpt_pool_close(pool);
}

/* Whatever the order in which they came back, and whoever holds some of them. */
static void sorted_slots_come_in_the_order_in_which_they_lie(void **state)
{
	const unsigned back[] = {5, 0, 7, 2, 6, 3};
	const unsigned wanted[] = {0, 2, 3, 5, 6, 7};
	struct ckpt_pool *pool = open_pool(UINT64_C(8) * BLOCK, BLOCK, false);
	struct ckpt_slot *slots[8];

	(void)state;
	for (unsigned i = 0; i < 8; i++)
		slots[i] = ckpt_pool_get(pool);
	ckpt_pool_sort(pool);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 6; i++)
		ckpt_pool_put(pool, slots[back[i]]);
	ckpt_pool_sort(pool);
	assert_int_equal(ckpt_pool_free(pool), 6);
	for (unsigned i = 0; i < 6; i++)
		assert_ptr_equal(ckpt_pool_get(pool), slots[wanted[i]]);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 8; i++)
		ckpt_pool_put(pool, slots[i]);
	ckpt_pool_close(pool);
}

static void take_all(struct ckpt_pool *pool, struct ckpt_slot **slots, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		slots[i] = ckpt_pool_get(pool);
}

/* As they were, to whoever gets them next; and what was got again is lent no more. */
static void lent_slots_come_back_as_they_were(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(8) * BLOCK, BLOCK, false);
	struct ckpt_slot *slots[8];

	(void)state;
	take_all(pool, slots, 8);
	memset(slots[3]->data, 3, BLOCK);
	assert_false(ckpt_pool_lend(pool, 3, 1));
	for (unsigned i = 0; i < 8; i++)
		ckpt_pool_put(pool, slots[i]);
	assert_false(ckpt_pool_lend(pool, 3, 0));
	assert_false(ckpt_pool_lend(pool, 3, 2));
	/* From the end of the list, its middle and its beginning. */
	const unsigned numbers[] = {0, 3, 7};
	for (unsigned i = 0; i < 3; i++)
		assert_true(ckpt_pool_lend(pool, numbers[i], 1));
	assert_false(ckpt_pool_lend(pool, 3, 1));
	assert_int_equal(ckpt_pool_lent(pool), 3);
	assert_int_equal(ckpt_pool_free(pool), 5);
	assert_int_equal(ckpt_pool_slot(pool, 3)->data[BLOCK - 1], 3);
	ckpt_pool_sort(pool);
	take_all(pool, slots, 5);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 5; i++)
		assert_true(
			slots[i]->number != 0 && slots[i]->number != 3 && slots[i]->number != 7);
	for (unsigned i = 0; i < 3; i++)
		ckpt_pool_take_back(pool, numbers[i]);
	assert_int_equal(ckpt_pool_lent(pool), 0);
	assert_true(ckpt_pool_lend(pool, 3, 1));
	ckpt_pool_take_back(pool, 3);
	slots[5] = ckpt_pool_get(pool);
	assert_int_equal(slots[5]->number, 3);
	ckpt_pool_put(pool, slots[5]);
	assert_false(ckpt_pool_lend(pool, 3, 1));
	assert_true(ckpt_pool_lend(pool, 3, 2));
	ckpt_pool_take_back(pool, 3);
	for (unsigned i = 0; i < 5; i++)
		ckpt_pool_put(pool, slots[i]);
	ckpt_pool_close(pool);
}

/* A certain slot, with what it holds, as long as nobody has got it since. */
static void slots_are_taken_back(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(8) * BLOCK, BLOCK, false);
	struct ckpt_slot *slots[8];

	(void)state;
	take_all(pool, slots, 8);
	memset(ckpt_pool_slot(pool, 5)->data, 5, BLOCK);
	assert_null(ckpt_pool_retake(pool, 5, 1));
	for (unsigned i = 0; i < 8; i++)
		ckpt_pool_put(pool, slots[i]);
	assert_null(ckpt_pool_retake(pool, 5, 0));
	for (unsigned times = 0; times < 2; times++) {
		struct ckpt_slot *slot = ckpt_pool_retake(pool, 5, 1);

		assert_ptr_equal(slot, ckpt_pool_slot(pool, 5));
		assert_int_equal(slot->data[BLOCK - 1], 5);
		assert_int_equal(ckpt_pool_free(pool), 7);
		/* It is in use, and lent to nobody. */
		assert_int_equal(ckpt_pool_lent(pool), 0);
		assert_null(ckpt_pool_retake(pool, 5, 1));
		assert_false(ckpt_pool_lend(pool, 5, 1));
		ckpt_pool_put(pool, slot);
	}
	take_all(pool, slots, 8);
	for (unsigned i = 0; i < 8; i++)
		ckpt_pool_put(pool, slots[i]);
	assert_null(ckpt_pool_retake(pool, 5, 1));
	ckpt_pool_close(pool);
}

/* In whichever order: none is given out twice, and none is lost. */
static void any_order(void **state)
{
	enum { SLOTS = 8 };
	struct ckpt_pool *pool = open_pool((uint64_t)SLOTS * BLOCK, BLOCK, false);
	enum { FREE, GOT, LENT } is[SLOTS] = {FREE};
	struct prng prng = {5};
	unsigned free_count = SLOTS;

	(void)state;
	for (unsigned turn = 0; turn < 20000; turn++) {
		unsigned i = (unsigned)prng_below(&prng, SLOTS);
		struct ckpt_slot *slot = ckpt_pool_slot(pool, i);

		if (is[i] == GOT) {
			ckpt_pool_put(pool, slot);
		} else if (is[i] == LENT) {
			ckpt_pool_take_back(pool, i);
		} else if (prng_below(&prng, 2)) {
			assert_true(ckpt_pool_lend(pool, i, slot->uses));
		} else {
			slot = ckpt_pool_get(pool);
			i = slot->number;
			assert_int_equal(is[i], FREE);
			is[i] = GOT;
			free_count--;
			continue;
		}
		free_count = is[i] == FREE ? free_count - 1 : free_count + 1;
		is[i] = is[i] == FREE ? LENT : FREE;
		if (prng_below(&prng, 16) == 0)
			ckpt_pool_sort(pool);
		assert_int_equal(ckpt_pool_free(pool), free_count);
	}
	for (unsigned i = 0; i < SLOTS; i++) {
		if (is[i] == GOT)
			ckpt_pool_put(pool, ckpt_pool_slot(pool, i));
		else if (is[i] == LENT)
			ckpt_pool_take_back(pool, i);
	}
	ckpt_pool_close(pool);
}

struct taker {
	struct ckpt_task task;
	struct ckpt_pool *pool;
	struct ckpt_slot *slot;
	unsigned looked;
};

static int take_one(struct ckpt_task *task)
{
	struct taker *t = CKPT_CONTAINER(task, struct taker, task);

	t->looked++;
	t->slot = ckpt_pool_get(t->pool);
	return t->slot ? 0 : CKPT_TASK_PENDING;
}

static void a_waiter_is_woken_when_a_slot_comes_back(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(4) * BLOCK, BLOCK, false);
	struct ckpt_sched sched = {0};
	struct taker taker = {.pool = pool};
	struct ckpt_slot *slots[4];

	(void)state;
	for (int i = 0; i < 4; i++)
		slots[i] = ckpt_pool_get(pool);
	ckpt_pool_set_waiter(pool, &taker.task);
	ckpt_task_start(&taker.task, &sched, take_one, NULL);
	ckpt_sched_run(&sched);
	assert_int_equal(taker.looked, 1);
	assert_false(taker.task.finished);
	ckpt_sched_run(&sched);
	assert_int_equal(taker.looked, 1);
	ckpt_pool_put(pool, slots[1]);
	ckpt_sched_run(&sched);
	assert_true(taker.task.finished);
	assert_ptr_equal(taker.slot, slots[1]);
	/* Finished, then nobody: puts go on. Nothing is lent while somebody may want it. */
	ckpt_pool_put(pool, slots[0]);
	assert_false(ckpt_pool_lend(pool, slots[0]->number, slots[0]->uses));
	ckpt_pool_set_waiter(pool, NULL);
	ckpt_pool_put(pool, slots[1]);
	ckpt_pool_put(pool, slots[2]);
	ckpt_pool_put(pool, slots[3]);
	ckpt_pool_close(pool);
}

static void budgets_are_rounded_down_to_blocks(void **state)
{
	static const struct {
		uint64_t bytes;
		uint32_t block_bytes;
		unsigned slots;
	} cases[] = {
		{0, BLOCK, 4},
		{1, BLOCK, 4},
		{4 * BLOCK - 1, BLOCK, 4},
		{5 * BLOCK - 1, BLOCK, 4},
		{5 * BLOCK, BLOCK, 5},
		{100 * MIB + 1, 8 * MIB, 12},
		{10 * KIB, 4096, 4},
		{17 * KIB, 4096, 4},
		{20 * KIB, 4096, 5},
	};

	(void)state;
	for (size_t i = 0; i < CKPT_COUNT(cases); i++) {
		struct ckpt_pool *pool = open_pool(cases[i].bytes, cases[i].block_bytes, false);

		assert_int_equal(ckpt_pool_slots(pool), cases[i].slots);
		assert_int_equal(
			ckpt_pool_bytes(pool), (uint64_t)cases[i].slots * cases[i].block_bytes);
		ckpt_pool_close(pool);
	}
}

static void the_default_budget_is_within_its_bounds(void **state)
{
	struct ckpt_pool_config alone = {0};
	struct ckpt_pool_config crowd = {0};
	struct ckpt_memlimit memory;

	(void)state;
	ckpt_memlimit_read("", &memory);
	assert_int_equal(unsetenv("LOCAL_WORLD_SIZE"), 0);
	ckpt_pool_default(0, &alone);
	assert_true(alone.bytes >= 32 * MIB && alone.bytes <= 1024 * MIB);
	assert_int_equal(alone.bytes_max, memory.limit / 2);
	assert_int_equal(ckpt_pool_sharers(0, 0), 1);
	/* Nobody has said how many of them are here: it may be all. */
	assert_int_equal(ckpt_pool_sharers(0, 300), 300);
	assert_int_equal(setenv("LOCAL_WORLD_SIZE", "4096", 1), 0);
	ckpt_pool_default(0, &crowd);
	assert_true(crowd.bytes <= alone.bytes && crowd.bytes >= 32 * MIB);
	assert_int_equal(crowd.bytes_max, memory.limit / 8192);
	assert_int_equal(ckpt_pool_sharers(0, 300), 4096);
	assert_int_equal(ckpt_pool_sharers(2, 300), 2);
	assert_int_equal(unsetenv("LOCAL_WORLD_SIZE"), 0);
}

#define GROWS_TO 64

static struct ckpt_pool *open_growing(unsigned slots, const struct ckpt_pool_ops *ops)
{
	const struct ckpt_pool_config config = {.bytes = (uint64_t)slots * BLOCK,
		.bytes_max = (uint64_t)GROWS_TO * BLOCK,
		.block_bytes = BLOCK,
		.ops = ops};
	struct ckpt_pool *pool = NULL;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_int_equal(ckpt_pool_open(&config, &err, &pool), 0);
	assert_int_equal(ckpt_pool_slots(pool), slots);
	assert_int_equal(ckpt_pool_most(pool), GROWS_TO);
	return pool;
}

static void a_pool_grows_for_whoever_waits(void **state)
{
	struct ckpt_pool *pool = open_growing(4, NULL);
	struct ckpt_sched sched = {0};
	struct taker taker = {.pool = pool};
	struct ckpt_slot *slots[16];
	struct ckpt_error err;

	(void)state;
	ckpt_error_clear(&err);
	for (int i = 0; i < 4; i++)
		slots[i] = ckpt_pool_get(pool);
	ckpt_pool_set_waiter(pool, &taker.task);
	ckpt_task_start(&taker.task, &sched, take_one, NULL);
	ckpt_sched_run(&sched);
	assert_null(taker.slot);
	assert_int_equal(ckpt_pool_add(pool, 4, 12, &err), 0);
	assert_int_equal(ckpt_pool_touch(pool, 4, 8), 0);
	assert_int_equal(ckpt_pool_bytes(pool), 4 * BLOCK);
	ckpt_pool_grow(pool, 8);
	ckpt_sched_run(&sched);
	assert_true(taker.task.finished);
	assert_int_equal(taker.slot->number, 4);
	slots[4] = taker.slot;
	assert_int_equal(ckpt_pool_bytes(pool), 12 * BLOCK);
	assert_int_equal(ckpt_pool_touched(pool), 8 * BLOCK);
	for (unsigned i = 5; i < 12; i++) {
		slots[i] = ckpt_pool_get(pool);
		assert_ptr_equal(slots[i]->data, (char *)ckpt_pool_base(pool) + (size_t)i * BLOCK);
		memset(slots[i]->data, (int)i, BLOCK);
	}
	assert_null(ckpt_pool_get(pool));
	/* What was added and never became its own is given back. */
	ckpt_pool_remove(pool, 12, 4);
	ckpt_pool_set_waiter(pool, NULL);
	for (unsigned i = 0; i < 12; i++)
		ckpt_pool_put(pool, slots[i]);
	ckpt_pool_sort(pool);
	assert_int_equal(ckpt_pool_free(pool), 12);
	ckpt_pool_close(pool);
}

static void add_four(struct ckpt_pool *pool)
{
	unsigned first = ckpt_pool_slots(pool);
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_int_equal(ckpt_pool_add(pool, first, 4, &err), 0);
	assert_int_equal(ckpt_pool_touch(pool, first, 4), 0);
	ckpt_pool_grow(pool, 4);
}

static void wake_nobody(struct ckpt_task *task)
{
	(void)task;
}

static int never(struct ckpt_task *task)
{
	(void)task;
	return CKPT_TASK_PENDING;
}

/* Only what nobody has goes, and never is it lent for bytes that it does not hold any more. */
static void a_pool_shrinks_to_what_it_was_opened_with(void **state)
{
	struct ckpt_pool *pool = open_growing(4, NULL);
	struct ckpt_slot *slots[12];
	struct ckpt_sched sched = {0};
	struct ckpt_task reader = {0};
	struct ckpt_reader_quota shares[3] = {{0}};

	(void)state;
	add_four(pool);
	add_four(pool);
	assert_int_equal(ckpt_pool_least(pool), 4);
	take_all(pool, slots, 12);
	for (unsigned i = 0; i < 12; i++)
		ckpt_pool_put(pool, ckpt_pool_slot(pool, i));
	/* One at its end is in use, and then lent. */
	for (unsigned i = 0; i < 11; i++)
		slots[i] = ckpt_pool_get(pool);
	assert_int_equal(slots[0]->number, 11);
	assert_false(ckpt_pool_shrink(pool, 4));
	assert_int_equal(ckpt_pool_slots(pool), 12);
	for (unsigned i = 0; i < 11; i++)
		ckpt_pool_put(pool, slots[i]);
	assert_true(ckpt_pool_lend(pool, 8, 2));
	assert_false(ckpt_pool_shrink(pool, 4));
	ckpt_pool_take_back(pool, 8);
	/* Three who read need two each, beside the two of whoever writes. */
	ckpt_task_start(&reader, &sched, never, wake_nobody);
	for (unsigned i = 0; i < 3; i++)
		ckpt_reader_quota_join(&shares[i], pool, &reader);
	assert_false(ckpt_pool_shrink(pool, 8));
	assert_true(ckpt_pool_shrink(pool, 4));
	assert_false(ckpt_pool_shrink(pool, 4));
	for (unsigned i = 0; i < 3; i++)
		ckpt_reader_quota_leave(&shares[i]);
	assert_int_equal(ckpt_pool_free(pool), 8);
	assert_int_equal(ckpt_pool_touched(pool), 4 * BLOCK);
	assert_false(ckpt_pool_lend(pool, 8, 2));
	ckpt_pool_drop(pool, 8, 4);
	ckpt_pool_remove(pool, 8, 4);
	/* There again, and with other bytes. */
	add_four(pool);
	assert_false(ckpt_pool_lend(pool, 8, 2));
	assert_int_equal(ckpt_pool_free(pool), 12);
	/* Taken out, and in again as it was. */
	assert_true(ckpt_pool_shrink(pool, 8));
	ckpt_pool_grow(pool, 8);
	assert_false(ckpt_pool_shrink(pool, 9));
	take_all(pool, slots, 12);
	for (unsigned i = 0; i < 12; i++)
		memset(slots[i]->data, 1, BLOCK);
	assert_null(ckpt_pool_get(pool));
	for (unsigned i = 0; i < 12; i++)
		ckpt_pool_put(pool, slots[i]);
	ckpt_pool_close(pool);
}

struct grower {
	struct ckpt_pool *pool;
	atomic_uint ready;
};

static void *grow_behind(void *argument)
{
	struct grower *g = argument;
	struct ckpt_error err;

	ckpt_error_clear(&err);
	if (ckpt_pool_add(g->pool, 4, GROWS_TO - 4, &err) < 0)
		abort();
	for (unsigned slots = 4; slots < GROWS_TO; slots += 4) {
		if (ckpt_pool_touch(g->pool, slots, 4) < 0)
			abort();
		atomic_store(&g->ready, slots + 4);
	}
	return NULL;
}

/* The core goes on with what it has, whatever is done for the slots to come. */
static void slots_come_and_go_while_a_pool_grows(void **state)
{
	struct grower grower = {.pool = open_growing(4, NULL), .ready = 4};
	struct ckpt_pool *pool = grower.pool;
	struct ckpt_slot *slots[GROWS_TO];
	unsigned held = 0;
	struct prng prng = {7};
	pthread_t thread;

	(void)state;
	assert_int_equal(ckpt_thread_start(&thread, "grower", grow_behind, &grower), 0);
	while (ckpt_pool_slots(pool) < GROWS_TO || held < GROWS_TO) {
		struct ckpt_slot *slot = prng_below(&prng, 8) ? ckpt_pool_get(pool) : NULL;

		ckpt_pool_grow(pool, atomic_load(&grower.ready) - ckpt_pool_slots(pool));
		if (slot) {
			memset(slot->data, (int)slot->number, BLOCK);
			slots[held++] = slot;
		} else if (held > 0 && ckpt_pool_slots(pool) < GROWS_TO) {
			slot = slots[--held];
			assert_int_equal((unsigned char)slot->data[BLOCK - 1], slot->number);
			ckpt_pool_put(pool, slot);
		}
	}
	(void)pthread_join(thread, NULL);
	assert_int_equal(ckpt_pool_free(pool), 0);
	while (held > 0) {
		assert_int_equal((unsigned char)slots[held - 1]->data[0], slots[held - 1]->number);
		ckpt_pool_put(pool, slots[--held]);
	}
	ckpt_pool_close(pool);
}

/* Waits, by looking, until all is touched; the toucher ends by itself then. */
static void wait_touched(struct ckpt_pool *pool)
{
	await(ckpt_pool_threads(pool) == 0);
}

static void all_is_touched_and_what_is_written_meanwhile_stays(void **state)
{
	const uint64_t bytes = 64 * MIB;
	struct ckpt_pool *pool = open_pool(bytes, MIB, true);
	struct ckpt_slot *slots[64];
	uint64_t before = 0;

	(void)state;
	for (int i = 0; i < 64; i++) {
		uint64_t touched = ckpt_pool_touched(pool);

		assert_true(touched >= before && touched <= bytes);
		before = touched;
		slots[i] = ckpt_pool_get(pool);
		assert_non_null(slots[i]);
		memset(slots[i]->data, i + 1, MIB);
	}
	wait_touched(pool);
	assert_int_equal(ckpt_pool_touched(pool), bytes);
	for (int i = 0; i < 64; i++) {
		for (size_t k = 0; k < MIB; k += 512)
			assert_int_equal(slots[i]->data[k], i + 1);
		ckpt_pool_put(pool, slots[i]);
	}
	ckpt_pool_close(pool);
}

static void without_touching_there_is_no_thread(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(4) * BLOCK, BLOCK, false);

	(void)state;
	assert_int_equal(ckpt_pool_threads(pool), 0);
	ckpt_pool_close(pool);
}

/* How often a thread of this process has made room for others; -1: there is none of that name. */
static long rests_of(const char *name)
{
	DIR *tasks = opendir("/proc/self/task");
	long rests = -1;

	assert_non_null(tasks);
	for (struct dirent *entry; rests < 0 && (entry = readdir(tasks));) {
		char path[300];
		char line[200];
		bool found = false;
		(void)snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
		FILE *file = fopen(path, "r");
		while (file && fgets(line, sizeof(line), file)) {
			if (strncmp(line, "Name:\t", 6) == 0)
				found = strncmp(line + 6, name, strlen(name)) == 0;
			/* Made to, it need not sleep any more. */
			if (found && strstr(line, "voluntary_ctxt_switches:"))
				rests = (rests < 0 ? 0 : rests) +
					strtol(strchr(line, ':') + 1, NULL, 10);
		}
		if (file)
			(void)fclose(file);
	}
	(void)closedir(tasks);
	return rests;
}

/*
 * Whoever maps memory waits while the toucher has the address space, and gets it only when that sleeps: 10,000
 * tensors were first saved in one second for a third of one.
 */
static void the_toucher_lets_others_have_the_address_space(void **state)
{
	const uint64_t bytes = 512 * MIB;
	struct ckpt_pool *pool = open_pool(bytes, 8 * MIB, true);
	bool at_once = ckpt_pool_threads(pool) == 0;
	uint64_t touched = 0;
	long rests = 0;

	(void)state;
	while (touched < 128 * MIB && ckpt_pool_threads(pool) > 0) {
		uint64_t before = ckpt_pool_touched(pool);
		long found = rests_of("ckpt-touch");
		/* It may have ended meanwhile. */
		if (found < 0)
			continue;
		touched = before;
		rests = found;
	}
	ckpt_pool_close(pool);
	if (at_once) {
		print_message("reserved huge pages: there is nothing to touch\n");
		skip();
	}
	/* After each huge page; but a machine that stood still meanwhile counts no rest. */
	assert_true(rests >= (long)(touched / (4 * MIB)));
}

/* NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */
int __real_ckpt_slot_memory_touch(char *at, size_t bytes);
int __wrap_ckpt_slot_memory_touch(char *at, size_t bytes);
int __real_pthread_join(pthread_t thread, void **ret_value);
int __wrap_pthread_join(pthread_t thread, void **ret_value);

static atomic_bool held;   /* a piece ends when somebody waits for the toucher's end */
static atomic_uint pieces; /* that were touched, or are */
static atomic_bool joining;

int __wrap_ckpt_slot_memory_touch(char *at, size_t bytes)
{
	atomic_fetch_add(&pieces, 1);
	if (atomic_load(&held))
		await(atomic_load(&joining));
	return __real_ckpt_slot_memory_touch(at, bytes);
}

int __wrap_pthread_join(pthread_t thread, void **ret_value)
{
	atomic_store(&joining, true);
	return __real_pthread_join(thread, ret_value);
}
/* NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp) */

/* Closing stops the toucher after the piece that it is at, whatever is left. */
static void closing_at_once_does_not_wait_for_the_toucher(void **state)
{
	const uint64_t bytes = 256 * MIB;

	(void)state;
	atomic_store(&pieces, 0);
	atomic_store(&joining, false);
	atomic_store(&held, true);
	struct ckpt_pool *pool = open_pool(bytes, 8 * MIB, true);
	bool at_once = ckpt_pool_touched(pool) == bytes;
	if (!at_once)
		await(atomic_load(&pieces) == 1);
	ckpt_pool_close(pool);
	atomic_store(&held, false);
	if (at_once) {
		print_message("reserved huge pages: there is nothing to touch\n");
		skip();
	}
	assert_int_equal(atomic_load(&pieces), 1);
}

static void descriptors_and_memory_are_given_back(void **state)
{
	unsigned before = count_fds();

	(void)state;
	for (int i = 0; i < 50; i++) {
		struct ckpt_pool *pool = open_pool(UINT64_C(16) * BLOCK, BLOCK, i % 2);

		ckpt_pool_close(pool);
	}
	assert_int_equal(count_fds(), before);
}

static void more_than_there_is_is_lowered_with_a_note(void **state)
{
	struct ckpt_pool *pool = open_pool(UINT64_C(1) << 50, (uint32_t)(64 * MIB), false);
	uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	(void)state;
	assert_true(ckpt_pool_bytes(pool) < ram);
	assert_true(ckpt_pool_slots(pool) >= CKPT_POOL_SLOTS_MIN);
	assert_non_null(strstr(ckpt_pool_note(pool), "lowered"));
	ckpt_pool_close(pool);
}

/* A soft limit for one call; the test's own files are not affected. */
static int open_limited(int resource, rlim_t most, uint64_t bytes, struct ckpt_error *err,
	struct ckpt_pool **ret_pool)
{
	const struct ckpt_pool_config config = {
		.bytes_max = UINT64_C(128) * MIB, .bytes = bytes, .block_bytes = (uint32_t)MIB};
	struct rlimit before;
	struct rlimit limit;
	int r;

	ckpt_error_clear(err);
	assert_int_equal(getrlimit(resource, &before), 0);
	limit = before;
	limit.rlim_cur = most;
	assert_int_equal(setrlimit(resource, &limit), 0);
	r = ckpt_pool_open(&config, err, ret_pool);
	assert_int_equal(setrlimit(resource, &before), 0);
	return r;
}

/* Past this limit a file does not just fail to grow: the process gets a signal. */
static void the_limit_of_file_sizes_is_kept(void **state)
{
	struct ckpt_pool *pool = NULL;
	struct ckpt_error err;

	(void)state;
	assert_int_equal(open_limited(RLIMIT_FSIZE, 10 * MIB + 1, 64 * MIB, &err, &pool), 0);
	assert_int_equal(ckpt_pool_slots(pool), 10);
	assert_non_null(strstr(ckpt_pool_note(pool), "ulimit -f"));
	assert_non_null(strstr(ckpt_pool_note(pool), "from 64 MiB to 10 MiB"));
	ckpt_pool_close(pool);
	pool = NULL;
	assert_int_equal(open_limited(RLIMIT_FSIZE, 3 * MIB, 64 * MIB, &err, &pool), -EFBIG);
	assert_null(pool);
	assert_int_equal(err.code, -EFBIG);
	assert_non_null(strstr(err.message, "4 blocks of 1 MiB"));
	assert_non_null(strstr(err.message, "ulimit -f"));
}

/* It is not spent on what the pool may need later, however large it is. */
static void no_address_space_is_reserved_where_that_is_limited(void **state)
{
	struct ckpt_pool *pool = NULL;
	struct ckpt_error err;

	struct rlimit limit;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
	if (limit.rlim_max != RLIM_INFINITY)
		skip();
	assert_int_equal(open_limited(RLIMIT_AS, UINT64_C(1) << 50, 8 * MIB, &err, &pool), 0);
	assert_int_equal(ckpt_pool_slots(pool), 8);
	assert_int_equal(ckpt_pool_most(pool), 8);
	ckpt_pool_close(pool);
	assert_int_equal(open_limited(RLIMIT_AS, RLIM_INFINITY, 8 * MIB, &err, &pool), 0);
	assert_int_equal(ckpt_pool_most(pool), 128);
	ckpt_pool_close(pool);
}

static void no_descriptor_is_an_error_with_a_reason(void **state)
{
	struct ckpt_pool *pool = NULL;
	struct ckpt_error err;

	(void)state;
	assert_int_equal(open_limited(RLIMIT_NOFILE, 0, 8 * MIB, &err, &pool), -EMFILE);
	assert_null(pool);
	assert_non_null(strstr(err.message, "memfd"));
	assert_non_null(strstr(err.message, "EMFILE"));
}

static unsigned allocations_left;

static bool refuse_one(void *user, size_t size)
{
	(void)user;
	(void)size;
	return allocations_left-- == 0;
}

static void no_memory_at_any_moment_leaves_nothing_behind(void **state)
{
	const struct ckpt_pool_config config = {.bytes = UINT64_C(4) * BLOCK, .block_bytes = BLOCK};
	unsigned before = count_fds();
	unsigned refused = 0;

	(void)state;
	for (unsigned i = 0; i < 30; i++) {
		struct ckpt_pool *pool = NULL;
		struct ckpt_error err;
		int r;

		ckpt_error_clear(&err);
		allocations_left = i;
		ckpt_alloc_set_hook(refuse_one, NULL);
		r = ckpt_pool_open(&config, &err, &pool);
		ckpt_alloc_set_hook(NULL, NULL);
		if (r < 0) {
			assert_int_equal(r, -ENOMEM);
			assert_int_equal(err.code, -ENOMEM);
			assert_null(pool);
			refused++;
		} else {
			ckpt_pool_close(pool);
		}
	}
	/* The pool itself and its slots; what only reads limits goes on without. */
	assert_int_equal(refused, 2);
	assert_int_equal(count_fds(), before);
}

static void nothing_is_closed_without_harm(void **state)
{
	(void)state;
	ckpt_pool_close(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(slots_are_apart_aligned_and_usable),
		cmocka_unit_test(sorted_slots_come_in_the_order_in_which_they_lie),
		cmocka_unit_test(lent_slots_come_back_as_they_were),
		cmocka_unit_test(slots_are_taken_back),
		cmocka_unit_test(any_order),
		cmocka_unit_test(a_waiter_is_woken_when_a_slot_comes_back),
		cmocka_unit_test(budgets_are_rounded_down_to_blocks),
		cmocka_unit_test(the_default_budget_is_within_its_bounds),
		cmocka_unit_test(a_pool_grows_for_whoever_waits),
		cmocka_unit_test(a_pool_shrinks_to_what_it_was_opened_with),
		cmocka_unit_test(slots_come_and_go_while_a_pool_grows),
		cmocka_unit_test(all_is_touched_and_what_is_written_meanwhile_stays),
		cmocka_unit_test(without_touching_there_is_no_thread),
		cmocka_unit_test(the_toucher_lets_others_have_the_address_space),
		cmocka_unit_test(closing_at_once_does_not_wait_for_the_toucher),
		cmocka_unit_test(descriptors_and_memory_are_given_back),
		cmocka_unit_test(more_than_there_is_is_lowered_with_a_note),
		cmocka_unit_test(the_limit_of_file_sizes_is_kept),
		cmocka_unit_test(no_address_space_is_reserved_where_that_is_limited),
		cmocka_unit_test(no_descriptor_is_an_error_with_a_reason),
		cmocka_unit_test(no_memory_at_any_moment_leaves_nothing_behind),
		cmocka_unit_test(nothing_is_closed_without_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
