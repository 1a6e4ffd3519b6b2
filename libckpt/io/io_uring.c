/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring backend. One thread owns the ring: it takes submitted requests, keeps up to `depth` transfers and syncs
 * in flight, and returns completed ones. Operations that the ring does not support, or that might block it, run in a
 * small pool. Requests are never linked: the caller submits the next one when the first has completed.
 */
#include <errno.h>
#include <liburing.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "io/io_direct.h"
#include "io/io_pool.h"
#include "io/io_queue.h"

#define FILE_THREADS 2
/* How often the kernel may return EAGAIN before a thread of the pool does the request instead. */
#define TRIES_MAX    64
/* Most registered buffers that a kernel accepts. */
#define SLOTS_MAX    (1U << 14)
#define TRANSFER_MAX (UINT64_C(1) << 30)
#define RETRY_NS     10000000

enum slot_state {
	/* Not used yet: its pages may not exist, and registering would allocate them. */
	SLOT_NEW = 0,
	SLOT_FIXED,
	SLOT_PLAIN, /* it could not be registered */
};

struct uring_io {
	struct ckpt_io io;
	struct ckpt_io_pool *files;
	pthread_t thread;
	int wake_fd; /* eventfd: state guarded by lock has changed */
	unsigned depth;

	/* Owned by the ring thread. */
	struct io_uring ring;
	struct ckpt_io_queue waiting;
	unsigned in_flight; /* requests in the ring, without the poll of wake_fd */
	bool wake_armed;
	int ring_error;

	/* Staging; owned by the ring thread once it is registered. */
	char *slots;
	size_t slot_size;
	unsigned slot_count;
	unsigned char *slot_states;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ckpt_io_queue incoming; /* guarded by lock */
	int answer;                    /* result of the last `asked`; guarded by lock */
	/* The ring thread is to set up the ring, or to register slots; guarded by lock. */
	bool asked;
	bool closing; /* guarded by lock */
	bool left;    /* close has given up waiting; guarded by lock */
	bool ended;   /* the ring thread takes no more requests; guarded by lock */
	/* Requests whose completion cannot be received; guarded by lock. */
	unsigned lost;
};

static void wake(struct uring_io *u)
{
	uint64_t one = 1;

	ssize_t written = TEMP_FAILURE_RETRY(write(u->wake_fd, &one, sizeof(one)));
	CKPT_ASSERT(written == (ssize_t)sizeof(one));
}

/* Setup. */

/*
 * A ring may be mapped at the addresses of one that another engine has closed. The kernel orders the two, but
 * ThreadSanitizer cannot see that. So this lock orders them, after the mapping and before the unmapping.
 */
static void order_rings(void)
{
	static atomic_uint turn;

	(void)atomic_fetch_add(&turn, 1);
}

static void drop_ring(struct uring_io *u)
{
	order_rings();
	io_uring_queue_exit(&u->ring);
}

/*
 * The waiting thread handles completions within its system call. On kernels that support this (6.1), no thread is
 * interrupted for a completion.
 */
static int init_ring(struct uring_io *u)
{
	static const unsigned flags[] = {
		IORING_SETUP_CLAMP | IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
		IORING_SETUP_CLAMP,
	};
	struct io_uring_params params;
	int r = -EINVAL;

	for (size_t i = 0; r == -EINVAL && i < CKPT_COUNT(flags); i++) {
		params = (struct io_uring_params){.flags = flags[i]};
		r = io_uring_queue_init_params(u->depth + 1, &u->ring, &params);
	}
	if (r < 0)
		return r;
	order_rings();
	/* Without these features a completion could be lost, or a wait could not time out. */
	unsigned needed = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG;
	r = (params.features & needed) == needed ? 0 : -ENOSYS;
	if (r == 0)
		r = io_uring_ring_dontfork(&u->ring);
	if (r < 0)
		drop_ring(u);
	return r;
}

static int register_slot(struct uring_io *u, unsigned slot)
{
	struct iovec iov = {.iov_base = u->slots + slot * u->slot_size, .iov_len = u->slot_size};

	int r = io_uring_register_buffers_update_tag(&u->ring, slot, &iov, NULL, 1);
	u->slot_states[slot] = r == 1 ? SLOT_FIXED : SLOT_PLAIN;
	return r == 1 ? 0 : r < 0 ? r : -EINVAL;
}

/* Registers an empty table and one slot, to test whether memory may be locked. */
static int register_table(struct uring_io *u)
{
	int r = io_uring_register_buffers_sparse(&u->ring, u->slot_count);

	if (r < 0)
		return r;
	r = register_slot(u, 0);
	if (r < 0)
		(void)io_uring_unregister_buffers(&u->ring);
	return r;
}

static void give_answer(struct uring_io *u, int answer)
{
	pthread_mutex_lock(&u->lock);
	u->answer = answer;
	u->asked = false;
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
}

/* Waits for the ring thread's answer. Call it with the lock held. */
static int take_answer(struct uring_io *u)
{
	while (u->asked && !u->ended)
		(void)pthread_cond_wait(&u->changed, &u->lock);
	return u->asked ? -EIO : u->answer;
}

/* The ring thread. */

/* Takes submitted requests. False: the thread must end. */
static bool take_work(struct uring_io *u)
{
	bool asked;
	bool end;

	pthread_mutex_lock(&u->lock);
	if (u->left)
		u->waiting = (struct ckpt_io_queue){0};
	for (struct ckpt_io_req *req; (req = ckpt_io_queue_take(&u->incoming));)
		ckpt_io_queue_put(&u->waiting, req);
	asked = u->asked;
	end = u->closing && !u->waiting.head && u->in_flight == 0;
	pthread_mutex_unlock(&u->lock);
	if (asked)
		give_answer(u, register_table(u));
	return !end;
}

/* Whether the buffer of `req` is in a registered slot. Registers the slot on its first use. */
static bool is_fixed(struct uring_io *u, const struct ckpt_io_req *req)
{
	if (!u->slot_states || req->slot < 0 || (unsigned)req->slot >= u->slot_count)
		return false;
	uintptr_t begin = (uintptr_t)u->slots + (unsigned)req->slot * u->slot_size;
	uintptr_t at = (uintptr_t)req->buf;
	CKPT_ASSERT(at >= begin && at - begin <= u->slot_size &&
		    req->len <= u->slot_size - (at - begin));
	if (u->slot_states[req->slot] == SLOT_NEW)
		(void)register_slot(u, (unsigned)req->slot);
	return u->slot_states[req->slot] == SLOT_FIXED;
}

/* A registered slot's pages stay allocated. A slot that could not be registered may be tried again later. */
static int forget_slot(struct uring_io *u, unsigned slot)
{
	struct iovec none = {0};
	int r = 1;

	if (u->slot_states[slot] == SLOT_FIXED)
		r = io_uring_register_buffers_update_tag(&u->ring, slot, &none, NULL, 1);
	if (r == 1)
		u->slot_states[slot] = SLOT_NEW;
	return r == 1 ? 0 : r < 0 ? r : -EINVAL;
}

static void forget(struct uring_io *u, struct ckpt_io_req *req)
{
	uint64_t first = (unsigned)req->slot;
	uint64_t end = ckpt_min_u64(first + req->len, u->slot_count);

	for (uint64_t slot = first; u->slot_states && slot < end && req->result == 0; slot++)
		req->result = forget_slot(u, (unsigned)slot);
	ckpt_inbox_push(u->io.inbox, &req->node);
}

static void prepare(struct uring_io *u, struct ckpt_io_req *req)
{
	bool fixed = req->op != CKPT_IO_OP_FDATASYNC && is_fixed(u, req);
	unsigned len = (unsigned)ckpt_min_u64(req->len, TRANSFER_MAX);
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);

	CKPT_ASSERT(sqe);
	if (req->op == CKPT_IO_OP_FDATASYNC)
		io_uring_prep_fsync(sqe, req->fd, IORING_FSYNC_DATASYNC);
	else if (req->op == CKPT_IO_OP_WRITE && fixed)
		io_uring_prep_write_fixed(sqe, req->fd, req->buf, len, req->off, req->slot);
	else if (req->op == CKPT_IO_OP_WRITE)
		io_uring_prep_write(sqe, req->fd, req->buf, len, req->off);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, req->fd, req->buf, len, req->off, req->slot);
	else
		io_uring_prep_read(sqe, req->fd, req->buf, len, req->off);
	io_uring_sqe_set_data(sqe, req);
	u->in_flight++;
}

static void fill_ring(struct uring_io *u)
{
	if (!u->wake_armed) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
		CKPT_ASSERT(sqe);
		io_uring_prep_poll_add(sqe, u->wake_fd, POLLIN);
		io_uring_sqe_set_data(sqe, NULL);
		u->wake_armed = true;
	}
	while (u->in_flight < u->depth && u->waiting.head) {
		struct ckpt_io_req *req = ckpt_io_queue_take(&u->waiting);

		if (req->op == CKPT_IO_OP_FORGET)
			forget(u, req);
		else
			prepare(u, req);
	}
}

/* Submits, and waits for a completion. Negative: the ring is unusable. */
static int enter_ring(struct uring_io *u)
{
	struct __kernel_timespec pause = {.tv_nsec = RETRY_NS};
	struct io_uring_cqe *cqe;

	int r = io_uring_submit_and_wait(&u->ring, 1);
	if (r >= 0 || r == -EINTR)
		return 0;
	if (r != -EAGAIN && r != -EBUSY && r != -ENOMEM)
		return r;
	/* The kernel is out of memory for requests: wait for completions, which free some. */
	(void)io_uring_wait_cqe_timeout(&u->ring, &cqe, &pause);
	return 0;
}

static void complete(struct uring_io *u, struct ckpt_io_req *req, int result)
{
	bool again = (result == -EAGAIN || result == -EINTR) && req->op != CKPT_IO_OP_FDATASYNC;

	u->in_flight--;
	if (again && ++req->tries < TRIES_MAX) {
		ckpt_io_queue_put(&u->waiting, req);
	} else if (again) {
		ckpt_io_pool_push(u->files, req);
	} else {
		req->result = result;
		ckpt_inbox_push(u->io.inbox, &req->node);
	}
}

static void take_wake(struct uring_io *u, int result)
{
	uint64_t count;

	u->wake_armed = false;
	if (result < 0 && result != -EAGAIN && result != -EINTR)
		u->ring_error = result;
	/* Nothing to read: the wakeup was consumed earlier. */
	ssize_t got = read(u->wake_fd, &count, sizeof(count));
	(void)got;
}

static void reap(struct uring_io *u)
{
	struct io_uring_cqe *cqe;
	unsigned head;
	unsigned count = 0;

	io_uring_for_each_cqe(&u->ring, head, cqe)
	{
		struct ckpt_io_req *req = io_uring_cqe_get_data(cqe);
		count++;
		if (req) {
			complete(u, req, cqe->res);
			continue;
		}
		take_wake(u, cqe->res);
	}
	io_uring_cq_advance(&u->ring, count);
}

/* Takes back requests that the kernel has not seen. */
static void unsubmit(struct uring_io *u)
{
	struct io_uring_sq *sq = &u->ring.sq;

	for (unsigned i = io_uring_smp_load_acquire(sq->khead); i != sq->sqe_tail; i++) {
		struct ckpt_io_req *req = (void *)(uintptr_t)sq->sqes[i & sq->ring_mask].user_data;
		if (!req)
			continue;
		u->in_flight--;
		ckpt_io_queue_put(&u->waiting, req);
	}
}

/*
 * The ring is unusable, for example because of a seccomp filter that was installed later. The pool takes the remaining
 * requests; those in the kernel are lost.
 */
static void end_broken(struct uring_io *u)
{
	struct ckpt_io_req *req;

	unsubmit(u);
	pthread_mutex_lock(&u->lock);
	while ((req = ckpt_io_queue_take(&u->incoming)))
		ckpt_io_queue_put(&u->waiting, req);
	while (!u->left && (req = ckpt_io_queue_take(&u->waiting)))
		ckpt_io_pool_push(u->files, req);
	u->lost = u->in_flight;
	u->ended = true;
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
	if (u->in_flight == 0)
		drop_ring(u);
}

static void *ring_thread(void *argument)
{
	struct uring_io *u = argument;
	int r = init_ring(u);

	give_answer(u, r);
	if (r < 0)
		return NULL;
	while (take_work(u)) {
		fill_ring(u);
		if (enter_ring(u) < 0 || u->ring_error) {
			end_broken(u);
			return NULL;
		}
		reap(u);
	}
	drop_ring(u);
	pthread_mutex_lock(&u->lock);
	u->ended = true;
	pthread_cond_broadcast(&u->changed);
	pthread_mutex_unlock(&u->lock);
	return NULL;
}

/* The table. */

static void uring_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	struct uring_io *u = CKPT_CONTAINER(io, struct uring_io, io);
	bool in_ring = req->op == CKPT_IO_OP_WRITE || req->op == CKPT_IO_OP_READ ||
		       req->op == CKPT_IO_OP_FDATASYNC || req->op == CKPT_IO_OP_FORGET;
	bool was_empty = false;

	if (in_ring) {
		pthread_mutex_lock(&u->lock);
		CKPT_ASSERT(!u->closing);
		in_ring = !u->ended;
		was_empty = in_ring && !u->incoming.head;
		if (in_ring)
			ckpt_io_queue_put(&u->incoming, req);
		pthread_mutex_unlock(&u->lock);
	}
	if (!in_ring)
		ckpt_io_pool_push(u->files, req);
	else if (was_empty)
		wake(u);
}

static int uring_register(struct ckpt_io *io, void *base, size_t size, unsigned count)
{
	struct uring_io *u = CKPT_CONTAINER(io, struct uring_io, io);
	unsigned char *states;

	count = (unsigned)ckpt_min_u64(count, SLOTS_MAX);
	states = ckpt_alloc_array(count, sizeof(*states));
	if (!states)
		return -ENOMEM;
	pthread_mutex_lock(&u->lock);
	u->slots = base;
	u->slot_size = size;
	u->slot_count = count;
	u->slot_states = states;
	u->asked = true;
	wake(u);
	int r = take_answer(u);
	if (r < 0) {
		u->slot_states = NULL;
		ckpt_free(states);
	}
	pthread_mutex_unlock(&u->lock);
	u->io.registered = r == 0;
	return r;
}

static void destroy(struct uring_io *u)
{
	if (u->wake_fd >= 0)
		(void)close(u->wake_fd);
	(void)pthread_cond_destroy(&u->changed);
	(void)pthread_mutex_destroy(&u->lock);
	ckpt_free(u->slot_states);
	ckpt_free(u);
}

static int uring_close(struct ckpt_io *io, int timeout_ms)
{
	struct uring_io *u = CKPT_CONTAINER(io, struct uring_io, io);
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	bool stays;

	pthread_mutex_lock(&u->lock);
	u->closing = true;
	wake(u);
	while (!u->ended && ckpt_cond_wait_until(&u->changed, &u->lock, deadline_ns))
		;
	u->left = !u->ended;
	if (u->left)
		u->incoming = (struct ckpt_io_queue){0};
	stays = u->left || u->lost > 0;
	pthread_mutex_unlock(&u->lock);
	if (stays)
		return -ETIMEDOUT;
	(void)pthread_join(u->thread, NULL);
	int r = ckpt_io_pool_close(u->files, deadline_ns);
	destroy(u);
	return r;
}

static const struct ckpt_io_ops uring_ops = {
	.name = "io_uring",
	.submit = uring_submit,
	.register_slots = uring_register,
	.close = uring_close,
};

/* Starts the ring thread and waits until it has set up its ring. */
static int start_ring(struct uring_io *u)
{
	u->asked = true;
	int r = ckpt_thread_start(&u->thread, "ckpt-ring", ring_thread, u);
	if (r < 0)
		return r;
	pthread_mutex_lock(&u->lock);
	r = take_answer(u);
	pthread_mutex_unlock(&u->lock);
	if (r < 0)
		(void)pthread_join(u->thread, NULL);
	return r;
}

static int start(struct uring_io *u)
{
	u->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (u->wake_fd < 0)
		return -errno;
	int r = ckpt_io_pool_open(FILE_THREADS, "ckpt-file", u->io.inbox, &u->files);
	if (r < 0)
		return r;
	r = start_ring(u);
	if (r < 0)
		(void)ckpt_io_pool_close(u->files, UINT64_MAX);
	return r;
}

int ckpt_io_uring_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	struct uring_io *u = ckpt_alloc(sizeof(*u));

	if (!u)
		return -ENOMEM;
	u->io = (struct ckpt_io){.ops = &uring_ops, .inbox = config->inbox, .align = CKPT_IO_ALIGN};
	u->depth = config->depth ? config->depth : CKPT_IO_DEPTH;
	u->wake_fd = -1;
	int r = -pthread_mutex_init(&u->lock, NULL);
	if (r < 0) {
		ckpt_free(u);
		return r;
	}
	r = ckpt_cond_init(&u->changed);
	if (r < 0) {
		(void)pthread_mutex_destroy(&u->lock);
		ckpt_free(u);
		return r;
	}
	r = start(u);
	if (r < 0) {
		destroy(u);
		return r;
	}
	u->io.threads = 1 + ckpt_io_pool_threads(u->files);
	*ret_io = &u->io;
	return 0;
}
