/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: its functions fail as the system calls would that they make, and what the kernel says of a
 * request is turned into a failure before the ring's thread looks at it.
 */
#include <stdio.h>

#include "config.h"

#if CKPT_HAVE_IO_URING
#include <liburing.h>

#include "io/io.h"
#include "torture/tap.h"

/* clang-format off */
#define RING_TAP(name, params, args, ...)                                                          \
	TAP_REAL(int, name, params)                                                                \
	static const struct torture_call call_##name = {#name, TORTURE_SYSCALL, {__VA_ARGS__}};    \
	int name params                                                                            \
	{                                                                                          \
		if (!torture_armed())                                                              \
			return get_##name() args;                                                   \
		int code = torture_event(&call_##name, "", __builtin_frame_address(0));            \
		if (code)                                                                          \
			return -tap_errno(code);                                                   \
		torture_enter(__builtin_frame_address(0));                                         \
		int r = get_##name() args;                                                          \
		torture_leave();                                                                   \
		return r;                                                                          \
	}

RING_TAP(io_uring_ring_dontfork, (struct io_uring *ring), (ring), -ENOMEM)
RING_TAP(io_uring_register_buffers_sparse, (struct io_uring *ring, unsigned count), (ring, count),
	-ENOMEM, -EINVAL)
RING_TAP(io_uring_register_buffers_update_tag,
	(struct io_uring *ring, unsigned at, const struct iovec *buffers, const __u64 *tags,
		unsigned count),
	(ring, at, buffers, tags, count), -ENOMEM, -EFAULT)
RING_TAP(io_uring_unregister_buffers, (struct io_uring *ring), (ring), -ENXIO)
RING_TAP(io_uring_wait_cqe_timeout,
	(struct io_uring *ring, struct io_uring_cqe **cqe, struct __kernel_timespec *time),
	(ring, cqe, time), SOFT(EINTR), SOFT(ETIME))
/* clang-format on */

TAP_REAL(int, io_uring_queue_init_params,
	(unsigned entries, struct io_uring *ring, struct io_uring_params *params))
TAP_REAL(int, io_uring_submit_and_wait, (struct io_uring * ring, unsigned count))
TAP_REAL(void, io_uring_queue_exit, (struct io_uring * ring))

static const struct torture_call call_init = {"io_uring_queue_init_params", TORTURE_SYSCALL,
	{-EPERM, -ENOMEM, -ENOSYS, -EMFILE, SOFT(EINVAL)}};
static const struct torture_call call_enter = {"io_uring_submit_and_wait", TORTURE_SYSCALL,
	{-EPERM, -EIO, SOFT(EINTR), SOFT(EAGAIN), SOFT(EBUSY), SOFT(ENOMEM)}};
static const struct torture_call call_exit = {"io_uring_queue_exit", TORTURE_SYSCALL, {0}};
static const struct torture_call call_cqe = {
	"io_uring_cqe", TORTURE_SYSCALL, {-EIO, -ENOSPC, -EAGAIN, SOFT(EINTR)}};
static const struct torture_call call_wake = {
	"io_uring_poll", TORTURE_SYSCALL, {-EIO, SOFT(EAGAIN)}};

static void look_at_answers(struct io_uring *ring, void *frame)
{
	struct io_uring_cqe *cqe;
	unsigned head;

	io_uring_for_each_cqe(ring, head, cqe)
	{
		const struct ckpt_io_req *req = io_uring_cqe_get_data(cqe);
		char what[64] = "";
		if (req)
			(void)snprintf(
				what, sizeof(what), "%d %s", req->op, torture_fd_name(req->fd));
		int code = torture_event(req ? &call_cqe : &call_wake, what, frame);
		if (code && !req && code == -EIO)
			atomic_store(&torture->silent, true);
		if (code)
			cqe->res = -tap_errno(code);
	}
}

int io_uring_queue_init_params(
	unsigned entries, struct io_uring *ring, struct io_uring_params *params)
{
	if (!torture_armed())
		return get_io_uring_queue_init_params()(entries, ring, params);
	int code = torture_event(&call_init, "", __builtin_frame_address(0));
	if (code)
		return -tap_errno(code);
	if (torture_odd(TORTURE_OLD_KERNEL) && params->flags & IORING_SETUP_DEFER_TASKRUN)
		return -EINVAL;
	torture_enter(__builtin_frame_address(0));
	int r = get_io_uring_queue_init_params()(entries, ring, params);
	torture_leave();
	return r;
}

int io_uring_submit_and_wait(struct io_uring *ring, unsigned count)
{
	if (!torture_armed())
		return get_io_uring_submit_and_wait()(ring, count);
	int code = torture_event(&call_enter, "", __builtin_frame_address(0));
	if (code == -EPERM || code == -EIO)
		atomic_store(&torture->silent, true);
	if (code)
		return -tap_errno(code);
	torture_enter(__builtin_frame_address(0));
	int r = get_io_uring_submit_and_wait()(ring, count);
	torture_leave();
	if (r >= 0)
		look_at_answers(ring, __builtin_frame_address(0));
	return r;
}

void io_uring_queue_exit(struct io_uring *ring)
{
	if (torture_armed())
		(void)torture_event(&call_exit, "", __builtin_frame_address(0));
	torture_enter(__builtin_frame_address(0));
	get_io_uring_queue_exit()(ring);
	torture_leave();
}
#endif
