/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox: everything that is pushed is taken once, each pusher's in its order. */
#include "lib/test.h"

#include <errno.h>
#include <stdbool.h>

#include "base/inbox.h"
#include "base/thread.h"
#include "lib/hang_inbox.h"

#define PUSHERS 4
#define PUSHES  5000

struct item {
	struct ckpt_node node;
	unsigned pusher;
	unsigned number;
};

struct pusher {
	struct ckpt_inbox *inbox;
	struct item *items;
};

static unsigned seen[PUSHERS];
static bool out_of_order;

static void count(struct ckpt_node *node)
{
	struct item *item = CKPT_CONTAINER(node, struct item, node);

	if (item->number != seen[item->pusher])
		out_of_order = true;
	seen[item->pusher]++;
}

static void *push_all(void *argument)
{
	struct pusher *pusher = argument;

	for (unsigned i = 0; i < PUSHES; i++)
		ckpt_inbox_push(pusher->inbox, &pusher->items[i].node);
	return NULL;
}

static unsigned run_all(struct ckpt_inbox *inbox)
{
	struct ckpt_node *node = ckpt_inbox_take(inbox);
	unsigned n = 0;

	while (node) {
		struct ckpt_node *next = node->next;

		node->run(node);
		node = next;
		n++;
	}
	return n;
}

static void test_many_pushers(void **state)
{
	static struct item items[PUSHERS][PUSHES];
	struct pusher pushers[PUSHERS];
	pthread_t threads[PUSHERS];
	struct ckpt_inbox inbox;
	unsigned taken = 0;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	for (unsigned p = 0; p < PUSHERS; p++) {
		for (unsigned i = 0; i < PUSHES; i++)
			items[p][i] = (struct item){{.run = count}, p, i};
		pushers[p] = (struct pusher){&inbox, items[p]};
		assert_int_equal(
			ckpt_thread_start(&threads[p], "pusher", push_all, &pushers[p]), 0);
	}
	await_inbox(&inbox, taken >= PUSHERS * PUSHES, taken += run_all(&inbox));
	for (unsigned p = 0; p < PUSHERS; p++) {
		assert_int_equal(pthread_join(threads[p], NULL), 0);
		assert_int_equal(seen[p], PUSHES);
	}
	assert_false(out_of_order);
	assert_null(ckpt_inbox_take(&inbox));
	ckpt_inbox_destroy(&inbox);
}

static void test_wait_ends_at_its_deadline(void **state)
{
	struct item item = {{.run = count}, 0, 0};
	struct ckpt_inbox inbox;
	uint64_t deadline;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	ckpt_inbox_wait(&inbox, 0);
	deadline = ckpt_clock_ns() + 20 * 1000 * 1000;
	ckpt_inbox_wait(&inbox, deadline);
	assert_true(ckpt_clock_ns() >= deadline);

	/* With something there it does not wait at all. */
	ckpt_inbox_push(&inbox, &item.node);
	ckpt_inbox_wait(&inbox, UINT64_MAX);
	assert_ptr_equal(ckpt_inbox_take(&inbox), &item.node);
	ckpt_inbox_destroy(&inbox);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_many_pushers),
		cmocka_unit_test(test_wait_ends_at_its_deadline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
