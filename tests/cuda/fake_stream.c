/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of the fake: each a queue and a thread. Copies and kernels run under the lock. */
#include "cuda/fake_inside.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define DELAY 40 /* at most so many yields before a piece of work */

static bool may_run(const struct fake_op *op)
{
	switch (op->kind) {
	case FAKE_OP_COPY:
		return !(fake.stopped & FAKE_COPIES) || fake.allowed > 0;
	case FAKE_OP_FILL:
	case FAKE_OP_KERNEL:
		return !(fake.stopped & FAKE_KERNELS);
	case FAKE_OP_WAIT:
		return op->event->done >= op->record;
	default:
		return true;
	}
}

static void run_copy(const struct fake_op *op)
{
	bool out = op->copy_kind == CKPT_CUDA_DEVICE_TO_HOST;

	if (fake.stopped & FAKE_COPIES)
		fake.allowed--;
	for (size_t row = 0; row < op->height; row++) {
		char *host = op->host + row * op->host_pitch;
		char *device = fake_shadow(op->device + row * op->device_pitch, op->width);

		if (!device)
			fake_forbid("a copy ran on device memory that was freed");
		else if (out)
			memcpy(host, device, op->width);
		else
			memcpy(device, host, op->width);
	}
}

static void run_fill(const struct fake_op *op)
{
	char *device = fake_shadow(op->device, op->width);

	if (device)
		memset(device, op->byte, op->width);
	else
		fake_forbid("a kernel ran on device memory that was freed");
}

/* After it the device may be gone. */
static void count_work(void)
{
	if (fake.die_after != UINT64_MAX && fake.die_after > 0 && --fake.die_after == 0)
		fake.dead = true;
}

static void run(const struct fake_op *op)
{
	switch (op->kind) {
	case FAKE_OP_COPY:
		run_copy(op);
		count_work();
		break;
	case FAKE_OP_FILL:
		run_fill(op);
		count_work();
		break;
	case FAKE_OP_KERNEL:
		fake_run_kernel(op);
		count_work();
		break;
	case FAKE_OP_RECORD:
		if (op->event->done < op->record)
			op->event->done = op->record;
		break;
	case FAKE_OP_WAIT:
		break;
	case FAKE_OP_HOST:
		pthread_mutex_unlock(&fake.lock);
		op->function(op->user);
		pthread_mutex_lock(&fake.lock);
		break;
	}
}

static void delay(struct CUstream_st *s)
{
	uint64_t yields = prng_below(&s->prng, DELAY);

	pthread_mutex_unlock(&fake.lock);
	while (yields-- > 0)
		(void)sched_yield();
	pthread_mutex_lock(&fake.lock);
}

static void *stream_thread(void *argument)
{
	struct CUstream_st *s = argument;

	pthread_mutex_lock(&fake.lock);
	for (;;) {
		while (!s->head && !s->ending)
			pthread_cond_wait(&fake.changed, &fake.lock);
		if (!s->head)
			break;
		delay(s);
		struct fake_op *op = s->head;
		while (!fake.dead && !s->ending && !may_run(op))
			pthread_cond_wait(&fake.changed, &fake.lock);
		if (!fake.dead && !s->ending)
			run(op);
		s->head = op->next;
		s->finished++;
		free(op);
		pthread_cond_broadcast(&fake.changed);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

static struct CUstream_st *make_stream(uintptr_t number, unsigned flags)
{
	struct CUstream_st *s = calloc(1, sizeof(*s));

	if (!s)
		abort();
	s->device = *fake_current_device();
	s->flags = flags;
	s->number = number;
	s->creator = pthread_self();
	s->prng.state = prng_next(&fake.prng);
	s->next = fake.streams;
	fake.streams = s;
	if (pthread_create(&s->thread, NULL, stream_thread, s) != 0)
		abort();
	return s;
}

/* Those that nobody creates: one of each GPU, or of each thread and GPU. */
static struct CUstream_st *numbered_stream(uintptr_t number)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		if (s->number == number && s->device == *fake_current_device() &&
			(number == CKPT_CUDA_STREAM_LEGACY ||
				pthread_equal(s->creator, pthread_self())))
			return s;
	return make_stream(number, 0);
}

struct CUstream_st *fake_stream(struct CUstream_st *stream, const char *function)
{
	uintptr_t number = (uintptr_t)stream;

	if (number <= CKPT_CUDA_STREAM_PER_THREAD)
		return numbered_stream(number ? number : CKPT_CUDA_STREAM_LEGACY);
	for (struct CUstream_st *s = fake.streams; s; s = s->next) {
		if (s != stream)
			continue;
		if (s->destroyed)
			break;
		return s;
	}
	fake_forbid("%s() of a stream that was destroyed", function);
	return NULL;
}

struct CUevent_st *fake_event(struct CUevent_st *event, const char *function)
{
	for (struct CUevent_st *e = fake.events; e; e = e->next)
		if (e == event && !e->destroyed)
			return e;
	fake_forbid("%s() of an event that was destroyed", function);
	return NULL;
}

uint64_t fake_add(struct CUstream_st *s, const struct fake_op *op)
{
	struct fake_op *copy;

	/* It becomes a part of the graph, and nobody launches that. */
	if (s->capture)
		return s->added;
	fake.notes[FAKE_FULL] += s->added - s->finished >= fake.queue;
	while (s->added - s->finished >= fake.queue && !fake.dead && !s->ending)
		pthread_cond_wait(&fake.changed, &fake.lock);
	copy = malloc(sizeof(*copy));
	if (!copy)
		abort();
	*copy = *op;
	copy->next = NULL;
	if (s->head)
		s->tail->next = copy;
	else
		s->head = copy;
	s->tail = copy;
	pthread_cond_broadcast(&fake.changed);
	return ++s->added;
}

void fake_await(struct CUstream_st *s, uint64_t added)
{
	while (s->finished < added && !fake.dead)
		pthread_cond_wait(&fake.changed, &fake.lock);
}

void fake_await_all(void)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		fake_await(s, s->added);
}

bool fake_under_way(const char *base, size_t size)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		for (struct fake_op *op = s->head; op; op = op->next)
			if (!fake.dead && ((op->kind == FAKE_OP_COPY && op->host >= base &&
						   op->host < base + size) ||
						  (op->kind == FAKE_OP_KERNEL &&
							  fake_kernel_uses(op, base, size))))
				return true;
	return false;
}

bool fake_kernels_under_way(int device)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		for (struct fake_op *op = s->head; op && s->device == device; op = op->next)
			if (op->kind == FAKE_OP_KERNEL && !fake.dead)
				return true;
	return false;
}

bool fake_has_context(void)
{
	for (struct CUstream_st *s = fake.streams; s; s = s->next)
		if (s->device == *fake_current_device())
			return true;
	return false;
}

void fake_end_streams(void)
{
	while (fake.streams) {
		struct CUstream_st *s = fake.streams;

		s->ending = true;
		pthread_cond_broadcast(&fake.changed);
		pthread_mutex_unlock(&fake.lock);
		pthread_join(s->thread, NULL);
		pthread_mutex_lock(&fake.lock);
		fake.streams = s->next;
		free(s);
	}
	while (fake.events) {
		struct CUevent_st *e = fake.events;

		fake.events = e->next;
		free(e);
	}
}

EXPORT int cudaStreamCreateWithPriority(struct CUstream_st **stream, unsigned flags, int priority);
EXPORT int cudaStreamDestroy(struct CUstream_st *stream);
EXPORT int cudaStreamSynchronize(struct CUstream_st *stream);
EXPORT int cudaStreamWaitEvent(
	struct CUstream_st *stream, struct CUevent_st *event, unsigned flags);
EXPORT int cudaStreamIsCapturing(struct CUstream_st *stream, int *status);
EXPORT int cudaStreamBeginCapture(struct CUstream_st *stream, int mode);
EXPORT int cudaStreamEndCapture(struct CUstream_st *stream, void **graph);
EXPORT int cudaGraphDestroy(void *graph);
EXPORT int cudaThreadExchangeStreamCaptureMode(int *mode);
EXPORT int cudaLaunchHostFunc(struct CUstream_st *stream, void (*function)(void *), void *user);
EXPORT int cudaEventCreateWithFlags(struct CUevent_st **event, unsigned flags);
EXPORT int cudaEventDestroy(struct CUevent_st *event);
EXPORT int cudaEventRecord(struct CUevent_st *event, struct CUstream_st *stream);
EXPORT int cudaEventQuery(struct CUevent_st *event);
EXPORT int cudaEventSynchronize(struct CUevent_st *event);

int cudaStreamCreateWithPriority(struct CUstream_st **stream, unsigned flags, int priority)
{
	int e = fake_enter(__func__);

	if (e == 0 && (flags > CKPT_CUDA_STREAM_NON_BLOCKING || priority > 0))
		e = CKPT_CUDA_INVALID_VALUE;
	if (e == 0) {
		*stream = make_stream(0, flags);
		fake.live[FAKE_STREAMS]++;
	}
	return fake_leave(e);
}

/* As the real one: what it was given is still done. */
int cudaStreamDestroy(struct CUstream_st *stream)
{
	int e = fake_enter(__func__);
	struct CUstream_st *s = stream ? fake_stream(stream, __func__) : NULL;

	if (s) {
		s->destroyed = true;
		fake.live[FAKE_STREAMS]--;
	} else {
		e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	}
	return fake_leave(e);
}

/* The legacy stream waits for every blocking one of its GPU, and so for one that is captured. */
static struct CUstream_st *captured_before(const struct CUstream_st *s)
{
	for (struct CUstream_st *o = fake.streams; o; o = o->next)
		if (s->number == CKPT_CUDA_STREAM_LEGACY && o->capture && o->device == s->device &&
			!(o->flags & CKPT_CUDA_STREAM_NON_BLOCKING))
			return o;
	return NULL;
}

/* A call that must not be made of a stream that is captured. */
static struct CUstream_st *free_stream(struct CUstream_st *stream, const char *function, int *e)
{
	struct CUstream_st *s = fake_stream(stream, function);

	if (!s)
		*e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	else if (s->capture) {
		fake_forbid("%s() of a stream that is being captured", function);
		*e = CKPT_CUDA_STREAM_CAPTURE_UNSUPPORTED;
	} else if (captured_before(s)) {
		fake_forbid("%s() of the legacy stream while another is captured", function);
		captured_before(s)->capture = CKPT_CUDA_CAPTURE_INVALIDATED;
		*e = CKPT_CUDA_STREAM_CAPTURE_IMPLICIT;
	}
	return s;
}

int cudaStreamSynchronize(struct CUstream_st *stream)
{
	int e = fake_enter_waiting(__func__);

	if (e == 0)
		e = fake_unsafe();
	if (e == 0) {
		struct CUstream_st *s = free_stream(stream, __func__, &e);
		if (e == 0)
			fake_await(s, s->added);
	}
	return fake_leave(e == 0 ? fake_gone() : e);
}

int cudaStreamWaitEvent(struct CUstream_st *stream, struct CUevent_st *event, unsigned flags)
{
	int e = fake_enter(__func__);

	(void)flags;
	if (e == 0) {
		struct CUstream_st *s = free_stream(stream, __func__, &e);
		struct CUevent_st *ev = fake_event(event, __func__);

		if (!ev)
			e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
		else if (e == 0 && ev->recorded == 0)
			fake.notes[FAKE_UNRECORDED]++;
		else if (e == 0) {
			struct fake_op op = {
				.kind = FAKE_OP_WAIT, .event = ev, .record = ev->recorded};
			(void)fake_add(s, &op);
		}
	}
	return fake_leave(e);
}

int cudaStreamIsCapturing(struct CUstream_st *stream, int *status)
{
	int e = fake_enter(__func__);

	if (e == 0) {
		struct CUstream_st *s = fake_stream(stream, __func__);

		if (!s)
			e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
		else if (captured_before(s))
			e = CKPT_CUDA_STREAM_CAPTURE_IMPLICIT;
		else
			*status = s->capture;
	}
	return fake_leave(e);
}

int cudaStreamBeginCapture(struct CUstream_st *stream, int mode)
{
	int e = fake_enter(__func__);

	if (e == 0) {
		struct CUstream_st *s = free_stream(stream, __func__, &e);
		if (e == 0) {
			s->capture = CKPT_CUDA_CAPTURE_ACTIVE;
			s->capture_mode = mode;
			s->capturer = pthread_self();
		}
	}
	return fake_leave(e);
}

int cudaStreamEndCapture(struct CUstream_st *stream, void **graph)
{
	int e = fake_enter(__func__);
	struct CUstream_st *s = fake_stream(stream, __func__);

	if (e == 0 && s->capture == CKPT_CUDA_CAPTURE_INVALIDATED)
		e = CKPT_CUDA_STREAM_CAPTURE_INVALIDATED;
	*graph = NULL;
	s->capture = CKPT_CUDA_CAPTURE_NONE;
	return fake_leave(e);
}

int cudaGraphDestroy(void *graph)
{
	(void)graph;
	return fake_leave(fake_enter(__func__));
}

int cudaThreadExchangeStreamCaptureMode(int *mode)
{
	int e = fake_enter(__func__);
	int before = *fake_thread_mode();

	if (e == 0) {
		*fake_thread_mode() = *mode;
		*mode = before;
	}
	return fake_leave(e);
}

int cudaLaunchHostFunc(struct CUstream_st *stream, void (*function)(void *), void *user)
{
	int e = fake_enter(__func__);
	struct fake_op op = {.kind = FAKE_OP_HOST, .function = function, .user = user};

	if (e == 0)
		(void)fake_add(fake_stream(stream, __func__), &op);
	return fake_leave(e);
}

int cudaEventCreateWithFlags(struct CUevent_st **event, unsigned flags)
{
	int e = fake_enter(__func__);

	(void)flags;
	if (e == 0) {
		struct CUevent_st *ev = calloc(1, sizeof(*ev));
		if (!ev)
			abort();
		ev->device = *fake_current_device();
		ev->next = fake.events;
		fake.events = ev;
		fake.live[FAKE_EVENTS]++;
		*event = ev;
	}
	return fake_leave(e);
}

int cudaEventDestroy(struct CUevent_st *event)
{
	int e = fake_enter(__func__);
	struct CUevent_st *ev = fake_event(event, __func__);

	if (ev) {
		ev->destroyed = true;
		fake.live[FAKE_EVENTS]--;
	} else {
		e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	}
	return fake_leave(e);
}

int cudaEventRecord(struct CUevent_st *event, struct CUstream_st *stream)
{
	int e = fake_enter(__func__);

	if (e == 0) {
		struct CUstream_st *s = free_stream(stream, __func__, &e);
		struct CUevent_st *ev = fake_event(event, __func__);

		if (!ev || (e == 0 && ev->device != s->device))
			e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
		else if (e == 0) {
			struct fake_op op = {
				.kind = FAKE_OP_RECORD, .event = ev, .record = ++ev->recorded};
			(void)fake_add(s, &op);
		}
	}
	return fake_leave(e);
}

int cudaEventQuery(struct CUevent_st *event)
{
	int e = fake_enter(__func__);

	if (e == 0)
		e = fake_unsafe();
	if (e == 0) {
		struct CUevent_st *ev = fake_event(event, __func__);

		if (!ev)
			e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
		else if (ev->done < ev->recorded)
			/* Kept for cudaGetLastError(), though NVIDIA's is said not to: the harder case. */
			e = CKPT_CUDA_NOT_READY;
	}
	return fake_leave(e);
}

int cudaEventSynchronize(struct CUevent_st *event)
{
	int e = fake_enter_waiting(__func__);

	if (e == 0)
		e = fake_unsafe();
	if (e == 0) {
		struct CUevent_st *ev = fake_event(event, __func__);
		uint64_t record = ev ? ev->recorded : 0;

		if (!ev)
			e = CKPT_CUDA_INVALID_RESOURCE_HANDLE;
		else if (record == 0)
			fake.notes[FAKE_UNRECORDED]++;
		while (ev && ev->done < record && !fake.dead)
			pthread_cond_wait(&fake.changed, &fake.lock);
	}
	return fake_leave(e == 0 ? fake_gone() : e);
}
