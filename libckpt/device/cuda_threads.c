/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a CUDA device. */
#include "device/cuda_state.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "device/cuda_batch.h"

static void word(const struct ckpt_cuda_device *d, int error, const char *what, char text[256])
{
	(void)snprintf(text, 256, "%s: %s (%s)", what, d->api.get_error_string(error),
		d->api.get_error_name(error));
}

int ckpt_cuda_fail(struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what)
{
	char text[256];

	word(d, error, what, text);
	/* The runtime keeps the error per thread, where a framework checks whether its own work has failed. */
	(void)d->api.get_last_error();
	return ckpt_fail(err, CKPT_EDEVICE, "GPU %d: %s", d->index, text);
}

int ckpt_cuda_fail_lost(struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	int r = 0;

	pthread_mutex_lock(&d->lock);
	if (d->lost)
		r = ckpt_fail(err, CKPT_EDEVICE,
			"GPU %d has failed for good: %s; this process cannot use it any more, "
			"start it again",
			d->index, d->lost_text);
	pthread_mutex_unlock(&d->lock);
	return r;
}

static void lose(struct ckpt_cuda_device *d, int error, const char *what)
{
	char text[256];

	word(d, error, what, text);
	pthread_mutex_lock(&d->lock);
	if (!d->lost)
		(void)snprintf(d->lost_text, sizeof(d->lost_text), "%s", text);
	d->lost = true;
	pthread_mutex_unlock(&d->lock);
}

/*
 * After a failure on this thread. Some errors end the context: every later call returns them. There is no list of these
 * for newer versions, so a call is made that cannot fail otherwise.
 */
int ckpt_cuda_fail_asking(
	struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what)
{
	int again;

	(void)d->api.get_last_error();
	again = d->api.event_query(d->held);
	if (again != CKPT_CUDA_SUCCESS && again != CKPT_CUDA_NOT_READY)
		lose(d, error, what);
	return ckpt_cuda_fail(d, err, error, what);
}

/* Returns a copy. After that the device may be closed as soon as its threads have ended. */
static void give_back(struct ckpt_cuda_device *d, struct ckpt_copy *copy)
{
	pthread_mutex_lock(&d->lock);
	d->returned++;
	CKPT_ASSERT(d->returned <= d->submitted);
	pthread_mutex_unlock(&d->lock);
	CKPT_ASSERT(copy->result <= 0);
	ckpt_inbox_push(d->device.env->inbox, &copy->job.node);
}

/* First action of a thread. Current device and capture mode are per thread. */
static int adopt_device(struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	/* A capture in another thread may forbid the calls that are made here. */
	int mode = CKPT_CUDA_MODE_RELAXED;
	int e = d->api.set_device(d->index);

	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaSetDevice");
	e = d->api.thread_exchange_stream_capture_mode(&mode);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaThreadExchangeStreamCaptureMode");
	return 0;
}

static int check_index(struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	int count = 0;
	int e = d->api.get_device_count(&count);

	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaGetDeviceCount");
	if (d->index >= count)
		return ckpt_fail(err, CKPT_EDEVICE,
			"GPU %d is not there: this process sees %d (CUDA_VISIBLE_DEVICES)",
			d->index, count);
	return 0;
}

/* Used only for the placement of staging memory. */
static void ask_bus(struct ckpt_cuda_device *d)
{
	char *bus = d->device.bus;

	if (d->api.device_get_pci_bus_id && d->api.device_get_pci_bus_id(bus, sizeof(d->device.bus),
						    d->index) == CKPT_CUDA_SUCCESS)
		return;
	bus[0] = 0;
	(void)d->api.get_last_error();
}

/*
 * Priority 0 is both the lowest and the usual one, and copies ignore it. Non-blocking: otherwise the legacy default
 * stream, which many programs compute on, would wait for every copy, and every copy for it.
 */
static int make_handles(struct ckpt_cuda_device *d, struct ckpt_error *err)
{
	int e = d->api.stream_create_with_priority(&d->stream, CKPT_CUDA_STREAM_NON_BLOCKING, 0);

	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaStreamCreateWithPriority");
	e = d->api.event_create_with_flags(&d->followed, CKPT_CUDA_EVENT_DISABLE_TIMING);
	if (e == CKPT_CUDA_SUCCESS)
		e = d->api.event_create_with_flags(&d->held, CKPT_CUDA_EVENT_DISABLE_TIMING);
	if (e == CKPT_CUDA_SUCCESS)
		e = d->api.event_create_with_flags(&d->eager, CKPT_CUDA_EVENT_DISABLE_TIMING);
	if (e != CKPT_CUDA_SUCCESS)
		return ckpt_cuda_fail(d, err, e, "cudaEventCreateWithFlags");
	return 0;
}

/* Errors are ignored here. */
static void destroy_handles(struct ckpt_cuda_device *d)
{
	while (d->spare) {
		struct ckpt_cuda_flight *flight = d->spare;

		d->spare = flight->next;
		ckpt_cuda_launch_args_free(&d->api, &flight->table);
		(void)d->api.event_destroy(flight->event);
		ckpt_free(flight);
	}
	/* Memory that could not be unpinned. */
	ckpt_cuda_host_register_free(&d->api, &d->pinned);
	ckpt_cuda_relay_free(&d->api, &d->relay);
	ckpt_cuda_kernels_unload(&d->kernels);
	if (d->eager)
		(void)d->api.event_destroy(d->eager);
	if (d->held)
		(void)d->api.event_destroy(d->held);
	if (d->followed)
		(void)d->api.event_destroy(d->followed);
	if (d->stream)
		(void)d->api.stream_destroy(d->stream);
}

static void say_ready(struct ckpt_cuda_device *d, int result, const struct ckpt_error *error)
{
	pthread_mutex_lock(&d->lock);
	if (result < 0 && d->start_result == 0) {
		d->start_result = result;
		d->start_error = *error;
	}
	d->ready++;
	(void)pthread_cond_broadcast(&d->went_on);
	pthread_mutex_unlock(&d->lock);
}

/* A flight with an event that is not in use; NULL: the copy has failed. */
static struct ckpt_cuda_flight *take_flight(struct ckpt_cuda_device *d, struct ckpt_copy *copy)
{
	struct ckpt_cuda_flight *flight;
	int e;

	pthread_mutex_lock(&d->lock);
	flight = d->spare;
	if (flight)
		d->spare = flight->next;
	pthread_mutex_unlock(&d->lock);
	if (!flight) {
		flight = ckpt_alloc(sizeof(*flight));
		if (!flight) {
			copy->result = ckpt_fail(
				copy->error, -ENOMEM, "no memory to copy from or to a GPU");
			return NULL;
		}
		e = d->api.event_create_with_flags(&flight->event,
			CKPT_CUDA_EVENT_DISABLE_TIMING | CKPT_CUDA_EVENT_BLOCKING_SYNC);
		if (e != CKPT_CUDA_SUCCESS) {
			ckpt_free(flight);
			copy->result = ckpt_cuda_fail_asking(
				d, copy->error, e, "cudaEventCreateWithFlags");
			return NULL;
		}
	}
	flight->next = NULL;
	flight->copy = copy;
	flight->ends = false;
	return flight;
}

static struct ckpt_copy *next_of(const struct ckpt_copy *copy)
{
	return copy->job.next ? CKPT_CONTAINER(copy->job.next, struct ckpt_copy, job) : NULL;
}

static void hand_to_waiter(struct ckpt_cuda_device *d, unsigned copies)
{
	const struct ckpt_cuda_batch *g = &d->group;

	pthread_mutex_lock(&d->lock);
	if (g->first) {
		if (d->flights)
			d->flights_last->next = g->first;
		else
			d->flights = g->first;
		d->flights_last = g->last;
		d->queued += g->entries;
		(void)pthread_cond_signal(&d->to_wait);
	}
	d->fed += copies;
	(void)pthread_cond_broadcast(&d->went_on);
	pthread_mutex_unlock(&d->lock);
}

/* The enqueued part of a failed copy still moves, so it also returns through the waiter. */
static void feed_copies(struct ckpt_cuda_device *d, struct ckpt_copy *copies, uint64_t piece_max)
{
	unsigned count = 0;

	ckpt_cuda_batch_begin(d, piece_max);
	while (copies) {
		struct ckpt_copy *copy = copies;
		struct ckpt_cuda_flight *flight;

		copies = next_of(copy);
		copy->job.next = NULL;
		count++;
		copy->result = ckpt_cuda_fail_lost(d, copy->error);
		if (copy->result == 0)
			copy->result = ckpt_cuda_fail_stopped(copy, copy->error);
		flight = copy->result == 0 && copy->direction != CKPT_COPY_NOTHING
				 ? take_flight(d, copy)
				 : NULL;
		if (!flight) {
			give_back(d, copy);
			continue;
		}
		ckpt_cuda_batch_add(d, flight);
		int r = ckpt_cuda_submit_segments(d, copy, &flight->table);
		if (copy->result == 0)
			copy->result = r;
	}
	if (d->group.first)
		ckpt_cuda_batch_end(d);
	hand_to_waiter(d, count);
}

static const char *why_not_pinned(int error)
{
	switch (error) {
	case CKPT_CUDA_HOST_ALREADY_REGISTERED:
		return "; a part of it was pinned by something else in this process, or could not "
		       "be unpinned before";
	case CKPT_CUDA_MEMORY_ALLOCATION:
		return "; there is less memory that may be pinned (ulimit -l, the container's "
		       "limit)";
	default:
		return "";
	}
}

static void run_errand(struct ckpt_cuda_device *d, struct ckpt_cuda_errand *errand)
{
	char what[160];
	int e;

	if (errand->pin)
		e = ckpt_cuda_host_register_add(&d->api, &d->pinned, errand->base, errand->size);
	else
		e = ckpt_cuda_host_register_remove(&d->api, &d->pinned, errand->base);
	if (e != CKPT_CUDA_SUCCESS) {
		(void)snprintf(what, sizeof(what), "%zu bytes of staging memory cannot be %s%s: %s",
			errand->size, errand->pin ? "pinned" : "unpinned",
			errand->pin ? why_not_pinned(e) : "",
			errand->pin ? "cudaHostRegister" : "cudaHostUnregister");
		errand->result = ckpt_cuda_fail_asking(d, errand->err, e, what);
	}
	pthread_mutex_lock(&d->lock);
	errand->done = true;
	(void)pthread_cond_broadcast(&d->went_on);
	pthread_mutex_unlock(&d->lock);
}

/* Whether they may share an event, and so return together. A copy that looks comes after all that was copied before. */
static bool go_together(const struct ckpt_copy *a, const struct ckpt_copy *b)
{
	return a->direction == b->direction && a->eager == b->eager && !ckpt_cuda_looks(a);
}

/* Takes the oldest copies: as many as may share an event. */
static struct ckpt_copy *take_copies(struct ckpt_cuda_device *d)
{
	struct ckpt_copy *first = d->copies;
	struct ckpt_copy *last = first;
	unsigned max = ckpt_cuda_piece_size_copies(d->queued);

	for (unsigned n = 1; n < max && next_of(last) && go_together(first, next_of(last)); n++)
		last = next_of(last);
	d->copies = next_of(last);
	last->job.next = NULL;
	return first;
}

/* Takes an errand or copies; neither: the device closes. */
static void next_for_feeder(struct ckpt_cuda_device *d, struct ckpt_cuda_errand **ret_errand,
	struct ckpt_copy **ret_copies, uint64_t *ret_piece_max)
{
	*ret_errand = NULL;
	*ret_copies = NULL;
	pthread_mutex_lock(&d->lock);
	while (!d->errands && !d->copies && !d->closing)
		(void)pthread_cond_wait(&d->to_feed, &d->lock);
	*ret_piece_max = ckpt_cuda_piece_size_piece(&d->pace, d->queued);
	if (d->errands) {
		*ret_errand = d->errands;
		d->errands = d->errands->next;
	} else if (d->copies) {
		*ret_copies = take_copies(d);
	}
	pthread_mutex_unlock(&d->lock);
}

static void feed_all(struct ckpt_cuda_device *d)
{
	struct ckpt_cuda_errand *errand;
	struct ckpt_copy *copies;
	uint64_t piece_max;

	for (;;) {
		next_for_feeder(d, &errand, &copies, &piece_max);
		if (errand)
			run_errand(d, errand);
		else if (copies)
			feed_copies(d, copies, piece_max);
		else
			break;
	}
}

void *ckpt_cuda_submit(void *argument)
{
	struct ckpt_cuda_device *d = argument;
	struct ckpt_error error = {.size = 0};
	int r = check_index(d, &error);

	if (r == 0)
		r = adopt_device(d, &error);
	if (r == 0)
		r = make_handles(d, &error);
	if (r == 0) {
		ask_bus(d);
		ckpt_cuda_kernels_load(NULL, &d->kernels);
		d->device.samples = d->kernels.module != NULL;
		d->device.no_samples = d->kernels.module ? NULL : d->kernels.why_not;
	}
	say_ready(d, r, &error);
	if (r == 0)
		feed_all(d);
	/* The waiter was joined before `closing` was set for this thread. */
	destroy_handles(d);
	return NULL;
}

/* A group's first and last copy; NULL: there are no more. */
static struct ckpt_cuda_flight *next_group(
	struct ckpt_cuda_device *d, struct ckpt_cuda_flight **ret_last)
{
	struct ckpt_cuda_flight *first;
	struct ckpt_cuda_flight *last;

	pthread_mutex_lock(&d->lock);
	while (!d->flights && !d->fed_all)
		(void)pthread_cond_wait(&d->to_wait, &d->lock);
	first = d->flights;
	if (first) {
		for (last = first; !last->ends; last = last->next)
			;
		d->flights = last->next;
		last->next = NULL;
		*ret_last = last;
	}
	pthread_mutex_unlock(&d->lock);
	return first;
}

/*
 * Waits until nothing of the group moves any more, even if the device is lost: their memory is reused as soon as the
 * copies are returned. `ret_waited`: it was still moving at the begin.
 */
static int wait_for(struct ckpt_cuda_device *d, const struct ckpt_cuda_flight *last,
	struct ckpt_error *err, bool *ret_waited)
{
	int r = ckpt_cuda_fail_lost(d, err);
	int e = CKPT_CUDA_SUCCESS;

	*ret_waited = false;
	if (last->recorded) {
		*ret_waited = d->api.event_query(last->event) == CKPT_CUDA_NOT_READY;
		(void)d->api.get_last_error();
		e = d->api.event_synchronize(last->event);
		if (e == CKPT_CUDA_SUCCESS)
			return r;
		r = r < 0 ? r : ckpt_cuda_fail_asking(d, err, e, "cudaEventSynchronize");
	}
	/* Includes later copies. Tried twice, because the call itself may have failed. */
	for (unsigned tries = 0; tries < 2; tries++) {
		e = d->api.stream_synchronize(d->stream);
		if (e == CKPT_CUDA_SUCCESS)
			return r;
	}
	/* Nothing is left to try. No more is enqueued, and a context that has ended moves nothing. */
	lose(d, e, "cudaStreamSynchronize");
	return r < 0 ? r : ckpt_cuda_fail(d, err, e, "cudaStreamSynchronize");
}

static void count_done(struct ckpt_cuda_device *d, const struct ckpt_cuda_flight *last, bool waited)
{
	struct ckpt_cuda_done done = {
		.at_ns = ckpt_env_now(d->device.env), .bytes = last->bytes, .waited = waited};

	pthread_mutex_lock(&d->lock);
	d->queued -= last->entries;
	done.more = d->flights != NULL;
	ckpt_cuda_piece_size_measure(&d->pace, &done);
	pthread_mutex_unlock(&d->lock);
}

static void compare_samples(struct ckpt_copy *copy)
{
	for (size_t i = 0; i < copy->count && copy->torn < 0; i++) {
		const struct ckpt_segment *segment = &copy->segments[i];

		if (segment->view.device == copy->device &&
			ckpt_segment_sample(segment, copy->seed, true) != segment->sample)
			copy->torn = (int64_t)i;
	}
}

/* Takes the samples that the kernel has written, in the order of segments. */
static void deliver_samples(struct ckpt_copy *copy, const struct ckpt_cuda_launch_args *table)
{
	const uint64_t *sample = table->samples;

	for (size_t i = 0; i < copy->count; i++) {
		struct ckpt_segment *segment = &copy->segments[i];

		if (!ckpt_cuda_looks_at(copy, segment))
			continue;
		if (copy->direction == CKPT_COPY_SAMPLE)
			segment->sample = *sample;
		else if (copy->torn < 0 && segment->sample != *sample)
			copy->torn = (int64_t)i;
		sample++;
	}
}

/* Nothing of it moves; `code` and `error` are the result of waiting. */
static void end_flight(struct ckpt_cuda_device *d, struct ckpt_cuda_flight *flight, int code,
	const struct ckpt_error *error)
{
	struct ckpt_copy *copy = flight->copy;

	if (copy->result == 0 && code < 0)
		copy->result = ckpt_fail(copy->error, code, "%s", error->message);
	if (copy->sampled && copy->result == 0)
		compare_samples(copy);
	if (ckpt_cuda_looks(copy) && copy->result == 0)
		deliver_samples(copy, &flight->table);
	flight->copy = NULL;
	pthread_mutex_lock(&d->lock);
	flight->next = d->spare;
	d->spare = flight;
	pthread_mutex_unlock(&d->lock);
	give_back(d, copy);
}

void *ckpt_cuda_wait(void *argument)
{
	struct ckpt_cuda_device *d = argument;
	struct ckpt_error error = {.size = sizeof(error)};
	struct ckpt_cuda_flight *flight;
	struct ckpt_cuda_flight *last;
	bool waited;
	int r = adopt_device(d, &error);

	say_ready(d, r, &error);
	while ((flight = next_group(d, &last))) {
		error = (struct ckpt_error){.size = sizeof(error)};
		r = wait_for(d, last, &error, &waited);
		count_done(d, last, waited);
		while (flight) {
			struct ckpt_cuda_flight *next = flight->next;

			end_flight(d, flight, r, &error);
			flight = next;
		}
	}
	return NULL;
}
