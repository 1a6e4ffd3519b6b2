/* SPDX-License-Identifier: Apache-2.0 */
/* Readers and a writer on one pool: nobody is left with less than it needs to go on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/error.h"
#include "staging/reader_quota.h"

#define BLOCK   4096
#define READERS 6

/* Takes up to `want` slots, holding what it has while it waits, as a fetch does. */
struct reader {
	struct ckpt_task task;
	struct ckpt_reader_quota share;
	struct ckpt_slot *slots[64];
	unsigned want;
	unsigned looked;
	unsigned looked_as; /* its place among those that looked */
};

static unsigned looks;

static int read_body(struct ckpt_task *task)
{
	struct reader *r = CKPT_CONTAINER(task, struct reader, task);

	r->looked++;
	r->looked_as = ++looks;
	while (r->share.held < r->want) {
		struct ckpt_slot *slot = ckpt_reader_quota_get(&r->share);

		if (!slot)
			return CKPT_TASK_PENDING;
		r->slots[r->share.held - 1] = slot;
	}
	return 0;
}

struct world {
	struct ckpt_pool *pool;
	struct ckpt_sched sched;
	struct reader readers[READERS];
};

static void open_world(struct world *w, unsigned slots)
{
	const struct ckpt_pool_config config = {
		.bytes = (uint64_t)slots * BLOCK, .bytes_max = 64 * BLOCK, .block_bytes = BLOCK};
	struct ckpt_error err;

	memset(w, 0, sizeof(*w));
	looks = 0;
	ckpt_error_clear(&err);
	assert_int_equal(ckpt_pool_open(&config, &err, &w->pool), 0);
}

static void join(struct world *w, unsigned reader, unsigned want)
{
	struct reader *r = &w->readers[reader];

	r->want = want;
	ckpt_reader_quota_join(&r->share, w->pool, &r->task);
	ckpt_task_start(&r->task, &w->sched, read_body, NULL);
	ckpt_sched_run(&w->sched);
}

static void give_back(struct world *w, unsigned reader)
{
	struct reader *r = &w->readers[reader];

	ckpt_reader_quota_put(&r->share, r->slots[r->share.held - 1]);
}

static void leave(struct world *w, unsigned reader)
{
	struct reader *r = &w->readers[reader];

	while (r->share.held > 0)
		give_back(w, reader);
	r->want = 0;
	ckpt_sched_run(&w->sched);
	ckpt_reader_quota_leave(&r->share);
	ckpt_sched_run(&w->sched);
}

static void what_is_owed_is_the_writers(void **state)
{
	struct world w;
	struct ckpt_slot *written[8];

	(void)state;
	open_world(&w, 8);
	for (unsigned i = 0; i < 8; i++)
		written[i] = ckpt_pool_get(w.pool);
	join(&w, 0, 4);
	ckpt_pool_owe(w.pool, 2);
	ckpt_pool_put(w.pool, written[0]);
	ckpt_pool_put(w.pool, written[1]);
	ckpt_sched_run(&w.sched);
	assert_int_equal(w.readers[0].share.held, 0);
	ckpt_pool_put(w.pool, written[2]);
	ckpt_sched_run(&w.sched);
	assert_int_equal(w.readers[0].share.held, 1);
	written[0] = ckpt_pool_get(w.pool);
	ckpt_pool_owe(w.pool, 1);
	ckpt_reader_quotas_wake(ckpt_pool_shares(w.pool));
	ckpt_sched_run(&w.sched);
	assert_int_equal(w.readers[0].share.held, 1);
	written[1] = ckpt_pool_get(w.pool);
	ckpt_pool_owe(w.pool, 0);
	for (unsigned i = 0; i < 8; i++)
		if (i != 2)
			ckpt_pool_put(w.pool, written[i]);
	ckpt_sched_run(&w.sched);
	assert_int_equal(w.readers[0].share.held, 4);
	leave(&w, 0);
	ckpt_pool_close(w.pool);
}

static void readers_leave_two_slots_to_the_writer(void **state)
{
	struct world w;
	struct ckpt_slot *written[2];

	(void)state;
	open_world(&w, 10);
	join(&w, 0, 64);
	assert_int_equal(w.readers[0].share.held, 8);
	written[0] = ckpt_pool_get(w.pool);
	written[1] = ckpt_pool_get(w.pool);
	assert_non_null(written[0]);
	assert_non_null(written[1]);
	assert_null(ckpt_pool_get(w.pool));
	/* What the writer gives back it may have again. */
	ckpt_pool_put(w.pool, written[0]);
	ckpt_sched_run(&w.sched);
	assert_int_equal(w.readers[0].share.held, 8);
	ckpt_pool_put(w.pool, written[1]);
	leave(&w, 0);
	assert_int_equal(ckpt_pool_free(w.pool), 10);
	ckpt_pool_close(w.pool);
}

static void everyone_let_in_gets_two_and_the_others_wait_without(void **state)
{
	struct world w;

	(void)state;
	/* 8 slots: 6 for readers, three of them at most. */
	open_world(&w, 8);
	for (unsigned i = 0; i < READERS; i++)
		join(&w, i, 2);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(w.readers[i].share.held, i < 3 ? 2 : 0);
	leave(&w, 1);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(w.readers[i].share.held, i < 4 && i != 1 ? 2 : 0);
	for (unsigned i = 0; i < READERS; i++) {
		if (i != 1)
			leave(&w, i);
	}
	assert_int_equal(ckpt_pool_free(w.pool), 8);
	ckpt_pool_close(w.pool);
}

/* Those who were let in have more, and more are let in. */
static void a_pool_that_grows_serves_more_readers(void **state)
{
	struct ckpt_error err;
	struct world w;

	(void)state;
	ckpt_error_clear(&err);
	open_world(&w, 6);
	for (unsigned i = 0; i < READERS; i++)
		join(&w, i, 3);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(w.readers[i].share.held > 0, i < 2);
	assert_int_equal(ckpt_pool_add(w.pool, 6, 14, &err), 0);
	ckpt_pool_grow(w.pool, 14);
	ckpt_sched_run(&w.sched);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(w.readers[i].share.held, 3);
	for (unsigned i = 0; i < READERS; i++)
		leave(&w, i);
	assert_int_equal(ckpt_pool_free(w.pool), 20);
	ckpt_pool_close(w.pool);
}

/* One that came alone has more than its part; it goes back to it as its slots come back. */
static void parts_become_even(void **state)
{
	struct world w;

	(void)state;
	open_world(&w, 10);
	join(&w, 0, 64);
	assert_int_equal(w.readers[0].share.held, 8);
	join(&w, 1, 64);
	assert_int_equal(w.readers[1].share.held, 0);
	for (int i = 0; i < 8; i++) {
		give_back(&w, 0);
		ckpt_sched_run(&w.sched);
	}
	assert_int_equal(w.readers[0].share.held, 4);
	assert_int_equal(w.readers[1].share.held, 4);
	/* And takes more again when the other has left. */
	leave(&w, 1);
	assert_int_equal(w.readers[0].share.held, 8);
	leave(&w, 0);
	ckpt_pool_close(w.pool);
}

static void the_smallest_pool_serves_one_reader_and_the_writer(void **state)
{
	struct world w;
	struct ckpt_slot *written;

	(void)state;
	open_world(&w, CKPT_POOL_SLOTS_MIN);
	join(&w, 0, 2);
	join(&w, 1, 2);
	assert_int_equal(w.readers[0].share.held, 2);
	assert_int_equal(w.readers[1].share.held, 0);
	written = ckpt_pool_get(w.pool);
	assert_non_null(written);
	ckpt_pool_put(w.pool, written);
	leave(&w, 0);
	assert_int_equal(w.readers[1].share.held, 2);
	leave(&w, 1);
	ckpt_pool_close(w.pool);
}

/* Nobody is first every time. */
static void readers_take_turns(void **state)
{
	struct world w;
	unsigned first[3] = {0};

	(void)state;
	open_world(&w, 14);
	for (unsigned i = 0; i < 3; i++)
		join(&w, i, 64);
	for (unsigned round = 0; round < 9; round++) {
		struct ckpt_slot *written = ckpt_pool_get(w.pool);
		unsigned before = looks;

		assert_non_null(written);
		ckpt_pool_put(w.pool, written);
		ckpt_sched_run(&w.sched);
		for (unsigned i = 0; i < 3; i++)
			first[i] += w.readers[i].looked_as == before + 1;
	}
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(first[i], 3);
	for (unsigned i = 0; i < 3; i++)
		leave(&w, i);
	ckpt_pool_close(w.pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(readers_leave_two_slots_to_the_writer),
		cmocka_unit_test(what_is_owed_is_the_writers),
		cmocka_unit_test(everyone_let_in_gets_two_and_the_others_wait_without),
		cmocka_unit_test(a_pool_that_grows_serves_more_readers),
		cmocka_unit_test(parts_become_even),
		cmocka_unit_test(the_smallest_pool_serves_one_reader_and_the_writer),
		cmocka_unit_test(readers_take_turns),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
