/* SPDX-License-Identifier: Apache-2.0 */
/* Completions that no kernel here can be made to give: the ring's own file, from inside. */
#include "io/io_uring.c"

#include <string.h>

#include "lib/test.h"

struct world {
	struct uring_io u;
	struct ckpt_inbox inbox;
	struct ckpt_io_req req;
};

static void nothing(struct ckpt_node *node)
{
	(void)node;
}

static int set_up(void **state)
{
	static struct world w;

	memset(&w, 0, sizeof(w));
	*state = &w;
	w.u.io.inbox = &w.inbox;
	w.u.in_flight = 1;
	w.req.node.run = nothing;
	w.req.fd = -1;
	return ckpt_inbox_init(&w.inbox) < 0 ||
	       ckpt_io_pool_open(1, "again", &w.inbox, &w.u.files) < 0;
}

static int tear_down(void **state)
{
	struct world *w = *state;

	assert_int_equal(ckpt_io_pool_close(w->u.files, UINT64_MAX), 0);
	ckpt_inbox_destroy(&w->inbox);
	return 0;
}

/* "Again" and an interruption are tried again, by a thread in the end, which waits as long as it takes. */
static void test_again(void **state)
{
	struct world *w = *state;

	w->req.op = CKPT_IO_OP_READ;
	for (unsigned i = 1; i < TRIES_MAX; i++) {
		complete(&w->u, &w->req, i % 2 ? -EAGAIN : -EINTR);
		assert_int_equal(w->u.in_flight, 0);
		assert_ptr_equal(ckpt_io_queue_take(&w->u.waiting), &w->req);
		assert_null(ckpt_inbox_take(&w->inbox));
		w->u.in_flight = 1;
	}
	complete(&w->u, &w->req, -EAGAIN);
	assert_null(w->u.waiting.head);
	ckpt_inbox_wait(&w->inbox, UINT64_MAX);
	assert_ptr_equal(ckpt_inbox_take(&w->inbox), &w->req.node);
	assert_int_equal(w->req.result, -EBADF);
}

/* A sync is never tried again, whatever it says. */
static void test_sync(void **state)
{
	struct world *w = *state;

	w->req.op = CKPT_IO_OP_FDATASYNC;
	complete(&w->u, &w->req, -EINTR);
	assert_null(w->u.waiting.head);
	assert_ptr_equal(ckpt_inbox_take(&w->inbox), &w->req.node);
	assert_int_equal(w->req.result, -EINTR);
}

static void test_answers(void **state)
{
	static const int results[] = {0, 1, 4096, -EIO, -ECANCELED, -EINVAL};
	struct world *w = *state;

	w->req.op = CKPT_IO_OP_WRITE;
	for (size_t i = 0; i < COUNT(results); i++) {
		w->u.in_flight = 1;
		complete(&w->u, &w->req, results[i]);
		assert_int_equal(w->u.in_flight, 0);
		assert_ptr_equal(ckpt_inbox_take(&w->inbox), &w->req.node);
		assert_int_equal(w->req.result, results[i]);
	}
}

/* A poll that fails for good ends the ring: nobody could wake its thread any more. */
static void test_wake(void **state)
{
	struct world *w = *state;

	w->u.wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	assert_true(w->u.wake_fd >= 0);
	wake(&w->u);
	w->u.wake_armed = true;
	take_wake(&w->u, POLLIN);
	assert_false(w->u.wake_armed);
	assert_int_equal(w->u.ring_error, 0);
	take_wake(&w->u, -EINTR);
	assert_int_equal(w->u.ring_error, 0);
	take_wake(&w->u, -ECANCELED);
	assert_int_equal(w->u.ring_error, -ECANCELED);
	(void)close(w->u.wake_fd);
}

#define WORLD(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WORLD(test_again),
		WORLD(test_sync),
		WORLD(test_answers),
		WORLD(test_wake),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
