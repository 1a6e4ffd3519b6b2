/* SPDX-License-Identifier: Apache-2.0 */
/* Makes slots on a thread of its own, one after the other. */
#include "maker.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "peer/slot_file.h"

struct agent_maker {
	struct ckpt_inbox orders;
	struct ckpt_inbox done;
	struct ckpt_node last; /* tells the thread to end */
	int eventfd;
	pthread_t thread;
};

static void make(struct agent_maker *maker, struct agent_order *order)
{
	const uint64_t one = 1;
	ssize_t written;

	order->fd = -1;
	ckpt_error_clear(&order->error);
	order->code = ckpt_peer_slot_file_make(
		&order->fixed, &order->given_up, &order->error, &order->fd);
	ckpt_inbox_push(&maker->done, &order->node);
	do
		written = write(maker->eventfd, &one, sizeof(one));
	while (written < 0 && errno == EINTR);
}

static void nothing(struct ckpt_node *node)
{
	(void)node;
}

static void *body(void *argument)
{
	struct agent_maker *maker = argument;

	for (;;) {
		struct ckpt_node *node;

		ckpt_inbox_wait(&maker->orders, UINT64_MAX);
		for (node = ckpt_inbox_take(&maker->orders); node;) {
			struct ckpt_node *next = node->next;

			if (node == &maker->last)
				return NULL;
			make(maker, CKPT_CONTAINER(node, struct agent_order, node));
			node = next;
		}
	}
}

int agent_maker_open(struct ckpt_error *err, struct agent_maker **ret_maker)
{
	struct agent_maker *maker = ckpt_alloc(sizeof(*maker));
	int r;

	if (!maker)
		return ckpt_fail(err, -ENOMEM, "no memory for the thread that makes slots");
	maker->last.run = nothing;
	maker->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = maker->eventfd < 0 ? -errno : ckpt_inbox_init(&maker->orders);
	if (r < 0)
		goto fail_eventfd;
	r = ckpt_inbox_init(&maker->done);
	if (r < 0)
		goto fail_orders;
	r = ckpt_thread_start(&maker->thread, "ckpt-maker", body, maker);
	if (r == 0) {
		*ret_maker = maker;
		return 0;
	}
	ckpt_inbox_destroy(&maker->done);
fail_orders:
	ckpt_inbox_destroy(&maker->orders);
fail_eventfd:
	if (maker->eventfd >= 0)
		(void)close(maker->eventfd);
	ckpt_free(maker);
	return ckpt_fail(err, r, "cannot start the thread that makes slots: %s", ckpt_code_text(r));
}

void agent_maker_close(struct agent_maker *maker)
{
	if (!maker)
		return;
	ckpt_inbox_push(&maker->orders, &maker->last);
	(void)pthread_join(maker->thread, NULL);
	/* What it has made for nobody. */
	for (struct ckpt_node *node = ckpt_inbox_take(&maker->done); node; node = node->next) {
		struct agent_order *order = CKPT_CONTAINER(node, struct agent_order, node);

		if (order->code == 0)
			(void)close(order->fd);
	}
	ckpt_inbox_destroy(&maker->done);
	ckpt_inbox_destroy(&maker->orders);
	(void)close(maker->eventfd);
	ckpt_free(maker);
}

void agent_maker_order(struct agent_maker *maker, struct agent_order *order)
{
	ckpt_inbox_push(&maker->orders, &order->node);
}

void agent_maker_give_up(struct agent_order *order)
{
	__atomic_store_n(&order->given_up, true, __ATOMIC_RELAXED);
}

int agent_maker_eventfd(const struct agent_maker *maker)
{
	return maker->eventfd;
}

struct ckpt_node *agent_maker_take(struct agent_maker *maker)
{
	uint64_t count;

	/* Emptied first: what is done after the look makes it readable again. */
	if (read(maker->eventfd, &count, sizeof(count)) < 0 && errno != EAGAIN)
		return NULL;
	return ckpt_inbox_take(&maker->done);
}
