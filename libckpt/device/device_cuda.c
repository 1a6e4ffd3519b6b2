/* SPDX-License-Identifier: Apache-2.0 */
/* The device functions of a GPU, its opening and closing. */
#include "device/device_cuda.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "device/cuda_load.h"
#include "device/cuda_state.h"

static struct ckpt_cuda_device *cuda_of(struct ckpt_device *device)
{
	return CKPT_CONTAINER(device, struct ckpt_cuda_device, device);
}

/* In a child the threads do not exist, and CUDA must not be called. */
static int check_fork(const struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	if (d->forks == ckpt_fork_count())
		return 0;
	return ckpt_fail(err, CKPT_EFORKED,
		"GPU %d was opened before this process was forked, and CUDA cannot be used in a "
		"fork's child; start it with spawn or forkserver",
		d->index);
}

static void cuda_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	struct ckpt_cuda_device *d = cuda_of(device);

	/* It could not be reported, because nobody reads the inbox, whose lock may be held forever. */
	CKPT_ASSERT(d->forks == ckpt_fork_count());
	copy->job.next = NULL;
	pthread_mutex_lock(&d->lock);
	CKPT_ASSERT(!d->closing && !d->fed_all);
	if (d->copies)
		d->copies_last->job.next = &copy->job;
	else
		d->copies = copy;
	d->copies_last = copy;
	d->submitted++;
	if (copy->eager)
		d->submitted_eager = d->submitted;
	(void)pthread_cond_signal(&d->to_feed);
	pthread_mutex_unlock(&d->lock);
}

/* Passes it to the feeder and waits. */
static int run_errand(struct ckpt_cuda_device *d, struct ckpt_cuda_errand *errand)
{
	struct ckpt_cuda_errand **last;

	pthread_mutex_lock(&d->lock);
	CKPT_ASSERT(!d->closing && !d->fed_all);
	CKPT_ASSERT(errand->pin || d->pins > 0);
	for (last = &d->errands; *last; last = &(*last)->next)
		;
	*last = errand;
	(void)pthread_cond_signal(&d->to_feed);
	while (!errand->done)
		(void)pthread_cond_wait(&d->went_on, &d->lock);
	if (!errand->pin)
		d->pins--;
	else if (errand->result == 0)
		d->pins++;
	pthread_mutex_unlock(&d->lock);
	return errand->result;
}

static int cuda_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err)
{
	struct ckpt_cuda_device *d = cuda_of(device);
	struct ckpt_cuda_errand errand = {.pin = true, .base = base, .size = size, .err = err};
	int r = check_fork(d, err);

	return r < 0 ? r : run_errand(d, &errand);
}

static int cuda_unpin(struct ckpt_device *device, void *base, size_t size)
{
	struct ckpt_cuda_device *d = cuda_of(device);
	struct ckpt_cuda_errand errand = {.base = base, .size = size};
	int r = check_fork(d, NULL);

	return r < 0 ? r : run_errand(d, &errand);
}

/*
 * A stream without a handle of its own belongs to the thread's current GPU: makes this one current, until leave_gpu().
 * Other streams know their GPU.
 */
static int enter_gpu(struct ckpt_cuda_device *d, struct CUstream_st *stream, struct ckpt_error *err,
	int *ret_was)
{
	int current = d->index;
	int r = check_fork(d, err);
	int e = CKPT_CUDA_SUCCESS;

	*ret_was = d->index;
	if (r < 0 || (uintptr_t)stream > CKPT_CUDA_STREAM_PER_THREAD)
		return r;
	e = d->api.get_device(&current);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaGetDevice");
	if (current == d->index)
		return 0;
	e = d->api.set_device(d->index);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaSetDevice");
	*ret_was = current;
	return 0;
}

/* Restores the GPU that was current. */
static void leave_gpu(struct ckpt_cuda_device *d, int was)
{
	if (was != d->index && d->api.set_device(was) != CKPT_CUDA_SUCCESS)
		(void)d->api.get_last_error();
}

/* 0: events may be recorded on the user's stream. */
static int check_stream(
	struct ckpt_cuda_device *d, struct CUstream_st *stream, struct ckpt_error *err)
{
	int status = CKPT_CUDA_CAPTURE_NONE;
	int e;
	int r = ckpt_cuda_fail_lost(d, err);

	if (r < 0)
		return r;
	e = d->api.stream_is_capturing(stream, &status);
	/* The legacy default stream, while another one is captured. */
	if (e == CKPT_CUDA_STREAM_CAPTURE_IMPLICIT) {
		(void)d->api.get_last_error();
		status = CKPT_CUDA_CAPTURE_ACTIVE;
	} else if (e != CKPT_CUDA_SUCCESS) {
		return ckpt_cuda_fail(d, err, e, "cudaStreamIsCapturing");
	}
	if (status == CKPT_CUDA_CAPTURE_NONE)
		return 0;
	return ckpt_fail(err, CKPT_EUNSUPPORTED,
		"the stream of GPU %d is being captured into a CUDA graph, and a checkpoint cannot "
		"be a part of that; save and step outside of the capture",
		d->index);
}

/* `behind` waits for all work that is on `ahead` now. */
static int make_wait(struct ckpt_cuda_device *d, struct CUstream_st *behind,
	struct CUstream_st *ahead, struct CUevent_st *event, struct ckpt_error *err)
{
	const char *what = "cudaEventRecord";
	int e;

	/* A stream waits for the last record, so nobody else may record between the two calls. */
	pthread_mutex_lock(&d->user);
	e = d->api.event_record(event, ahead);
	if (e == CKPT_CUDA_SUCCESS) {
		what = "cudaStreamWaitEvent";
		e = d->api.stream_wait_event(behind, event, 0);
	}
	pthread_mutex_unlock(&d->user);
	return e == CKPT_CUDA_SUCCESS ? 0 : ckpt_cuda_fail(d, err, e, what);
}

/* Copies that were submitted before but are not enqueued yet wait, too, which is only later than needed. */
static int cuda_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err)
{
	struct ckpt_cuda_device *d = cuda_of(device);
	struct CUstream_st *user = (struct CUstream_st *)stream;
	int was;
	int r = enter_gpu(d, user, err, &was);

	if (r < 0)
		return r;
	r = check_stream(d, user, err);
	if (r == 0)
		r = make_wait(d, d->stream, user, d->followed, err);
	leave_gpu(d, was);
	return r;
}

/* Waits until the feeder is done with all meant copies submitted so far; 0 in `ret_wanted`: there are none. */
static int wait_until_fed(struct ckpt_cuda_device *d, enum ckpt_hold which, int timeout_ms,
	struct ckpt_error *err, uint64_t *ret_wanted)
{
	uint64_t deadline = ckpt_deadline(timeout_ms);
	uint64_t wanted;
	bool fed;

	pthread_mutex_lock(&d->lock);
	wanted = which == CKPT_HOLD_EAGER ? d->submitted_eager : d->submitted;
	*ret_wanted = wanted;
	while (d->fed < wanted && ckpt_cond_wait_until(&d->went_on, &d->lock, deadline))
		;
	fed = d->fed >= wanted;
	pthread_mutex_unlock(&d->lock);
	if (fed)
		return 0;
	return ckpt_fail(err, -ETIMEDOUT,
		"the copies from GPU %d were not enqueued within %d ms: the driver does not take "
		"them",
		d->index, timeout_ms);
}

static int hold_stream(struct ckpt_cuda_device *d, struct CUstream_st *user, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err)
{
	uint64_t wanted = 0;
	int r = check_stream(d, user, err);

	if (r == 0)
		r = wait_until_fed(d, which, timeout_ms, err, &wanted);
	/* The device may have been lost meanwhile. */
	if (r == 0)
		r = ckpt_cuda_fail_lost(d, err);
	if (r < 0 || wanted == 0)
		return r;
	if (which == CKPT_HOLD_ALL)
		return make_wait(d, user, d->stream, d->held, err);
	/* Recorded by the feeder. A later record comes after more copies. */
	int e = d->api.stream_wait_event(user, d->eager, 0);
	return e == CKPT_CUDA_SUCCESS ? 0 : ckpt_cuda_fail(d, err, e, "cudaStreamWaitEvent");
}

static int cuda_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err)
{
	struct ckpt_cuda_device *d = cuda_of(device);
	struct CUstream_st *user = (struct CUstream_st *)stream;
	int was;
	int r = enter_gpu(d, user, err, &was);

	if (r < 0)
		return r;
	r = hold_stream(d, user, which, timeout_ms, err);
	leave_gpu(d, was);
	return r;
}

static void destroy(struct ckpt_cuda_device *d)
{
	(void)pthread_cond_destroy(&d->went_on);
	(void)pthread_cond_destroy(&d->to_wait);
	(void)pthread_cond_destroy(&d->to_feed);
	(void)pthread_mutex_destroy(&d->lock);
	(void)pthread_mutex_destroy(&d->user);
	ckpt_free(d);
}

/* The waiter ends first: the feeder destroys the events that it waits for. */
static void end_waiter(struct ckpt_cuda_device *d)
{
	pthread_mutex_lock(&d->lock);
	d->fed_all = true;
	(void)pthread_cond_signal(&d->to_wait);
	pthread_mutex_unlock(&d->lock);
	(void)pthread_join(d->waiter, NULL);
}

static void end_feeder(struct ckpt_cuda_device *d)
{
	pthread_mutex_lock(&d->lock);
	d->closing = true;
	(void)pthread_cond_signal(&d->to_feed);
	pthread_mutex_unlock(&d->lock);
	(void)pthread_join(d->feeder, NULL);
}

static void cuda_close(struct ckpt_device *device)
{
	struct ckpt_cuda_device *d = cuda_of(device);

	/* Threads of the parent may hold every lock; the memory stays with the child until it ends. */
	if (check_fork(d, NULL) < 0)
		return;
	pthread_mutex_lock(&d->lock);
	CKPT_ASSERT(d->submitted == d->returned);
	CKPT_ASSERT(d->pins == 0);
	pthread_mutex_unlock(&d->lock);
	end_waiter(d);
	end_feeder(d);
	destroy(d);
}

/* It reads only what was constant since the device was opened. */
static int cuda_takes(
	struct ckpt_device *device, const struct ckpt_segment *segment, struct ckpt_error *err)
{
	return ckpt_cuda_takes(cuda_of(device), segment, err);
}

static const struct ckpt_device_ops cuda_ops = {
	.name = "cuda",
	.copy = cuda_copy,
	.pin = cuda_pin,
	.unpin = cuda_unpin,
	.takes = cuda_takes,
	.follow = cuda_follow,
	.hold = cuda_hold,
	.close = cuda_close,
};

static int init_cuda_locks(struct ckpt_cuda_device *d)
{
	pthread_cond_t *conds[] = {&d->to_feed, &d->to_wait, &d->went_on};
	size_t done = 0;
	int r = -pthread_mutex_init(&d->user, NULL);

	if (r < 0)
		return r;
	r = -pthread_mutex_init(&d->lock, NULL);
	if (r < 0)
		goto destroy_user;
	for (; done < CKPT_COUNT(conds); done++) {
		r = ckpt_cond_init(conds[done]);
		if (r < 0)
			goto destroy_all;
	}
	return 0;

destroy_all:
	while (done > 0)
		(void)pthread_cond_destroy(conds[--done]);
	(void)pthread_mutex_destroy(&d->lock);
destroy_user:
	(void)pthread_mutex_destroy(&d->user);
	return r;
}

/* Waits until that many threads are set up; returns the first error. */
static int wait_until_ready(struct ckpt_cuda_device *d, unsigned threads, struct ckpt_error *err)
{
	int r;

	pthread_mutex_lock(&d->lock);
	while (d->ready < threads)
		(void)pthread_cond_wait(&d->went_on, &d->lock);
	r = d->start_result;
	pthread_mutex_unlock(&d->lock);
	return r < 0 ? ckpt_fail(err, r, "%s", d->start_error.message) : 0;
}

static int start_cuda_thread(struct ckpt_cuda_device *d, pthread_t *ret_thread, const char *prefix,
	void *(*body)(void *), struct ckpt_error *err)
{
	char name[16];
	int r;

	(void)snprintf(name, sizeof(name), "%s-%d", prefix, d->index);
	r = ckpt_thread_start(ret_thread, name, body, d);
	return r < 0 ? ckpt_fail(err, r, "cannot start a thread for GPU %d: %s", d->index,
			       ckpt_code_text(r))
		     : 0;
}

static int start(struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	int r = start_cuda_thread(d, &d->feeder, "ckpt-cuda", ckpt_cuda_submit, err);

	if (r < 0)
		return r;
	r = wait_until_ready(d, 1, err);
	if (r < 0)
		goto end_feeder;
	r = start_cuda_thread(d, &d->waiter, "ckpt-event", ckpt_cuda_wait, err);
	if (r < 0)
		goto end_feeder;
	r = wait_until_ready(d, 2, err);
	if (r < 0)
		goto end_waiter;
	return 0;

end_waiter:
	end_waiter(d);
end_feeder:
	end_feeder(d);
	return r;
}

int ckpt_device_cuda_open_on(struct ckpt_env *env, int index, const struct ckpt_cuda_api *api,
	struct ckpt_error *err, struct ckpt_device **ret_device)
{
	struct ckpt_cuda_device *d;
	int r;

	CKPT_ASSERT(env && api);
	if (index < 0 || index > 9999)
		return ckpt_fail(err, -EINVAL, "%d is not a GPU number", index);
	r = ckpt_fork_watch();
	d = r == 0 ? ckpt_alloc(sizeof(*d)) : NULL;
	if (!d)
		return ckpt_fail(err, -ENOMEM, "no memory for GPU %d", index);
	d->device = (struct ckpt_device){.ops = &cuda_ops, .env = env};
	d->api = *api;
	d->index = index;
	d->forks = ckpt_fork_count();
	ckpt_cuda_piece_size_init(&d->pace);
	r = init_cuda_locks(d);
	if (r < 0) {
		ckpt_free(d);
		return ckpt_fail(err, r, "no locks for GPU %d: %s", index, ckpt_code_text(r));
	}
	r = start(d, err);
	if (r < 0) {
		destroy(d);
		return r;
	}
	*ret_device = &d->device;
	return 0;
}

int ckpt_device_cuda_open(struct ckpt_env *env, int index, int major, struct ckpt_error *err,
	struct ckpt_device **ret_device)
{
	struct ckpt_cuda_api api;
	int r = ckpt_cuda_load(NULL, major, err, &api);

	return r < 0 ? r : ckpt_device_cuda_open_on(env, index, &api, err, ret_device);
}
