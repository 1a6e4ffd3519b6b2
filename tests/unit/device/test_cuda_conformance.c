/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libckpt takes for granted of a CUDA runtime. The fake one must do it, or tests on it prove nothing; with
 * CKPT_TEST_CUDA=real the same is asked of the machine's own.
 */
#include <stdlib.h>
#include <string.h>

#include "cuda/cuda_rig.h"
#include "device/cuda_driver.h"
#include "device/cuda_grids.h"
#include "device/kernels/span_bodies.h"
#include "lib/prng.h"

#define SIZE ((size_t)1 << 20)

/* Spans of the kernels' test; each has so many bytes of the device's memory for itself, and of staging. */
#define SPANS  2000
#define SPACE  520
#define STAGED 256

static struct cuda_rig *rig;
static const struct ckpt_cuda_api *cuda;

struct world {
	struct CUstream_st *a;
	struct CUstream_st *b;
	struct CUevent_st *event;
	char *host; /* two of SIZE, pinned */
	char *device;
};

static int setup(void **state)
{
	static struct world world;
	struct world *w = &world;

	*state = w;
	if (!rig)
		return 0;
	if (rig->fake)
		rig->fake->reset(1);
	cuda = &rig->api;
	assert_cuda(cuda->set_device(0));
	assert_cuda(cuda->stream_create_with_priority(&w->a, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(cuda->stream_create_with_priority(&w->b, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(cuda->event_create_with_flags(
		&w->event, CKPT_CUDA_EVENT_DISABLE_TIMING | CKPT_CUDA_EVENT_BLOCKING_SYNC));
	w->host = cuda_rig_pages(2 * SIZE);
	assert_cuda(cuda->host_register(w->host, 2 * SIZE,
		CKPT_CUDA_HOST_REGISTER_PORTABLE | CKPT_CUDA_HOST_REGISTER_MAPPED));
	w->device = cuda_rig_device_memory(rig, SIZE);
	for (size_t i = 0; i < SIZE; i++)
		w->host[i] = (char)(i * 7 + i / 251);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	if (!rig)
		return 0;
	assert_cuda(rig->api.free(w->device));
	assert_cuda(cuda->host_unregister(w->host));
	cuda_rig_pages_free(w->host, 2 * SIZE);
	assert_cuda(cuda->event_destroy(w->event));
	assert_cuda(cuda->stream_destroy(w->a));
	assert_cuda(cuda->stream_destroy(w->b));
	/* It may have kept that an event was not ready. */
	(void)cuda->get_last_error();
	return 0;
}

static int there(struct world *w, struct CUstream_st *stream)
{
	return cuda->memcpy_async(w->device, w->host, SIZE, CKPT_CUDA_HOST_TO_DEVICE, stream);
}

static int back(struct world *w, struct CUstream_st *stream)
{
	return cuda->memcpy_async(
		w->host + SIZE, w->device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, stream);
}

static void need_runtime(void)
{
	if (!rig)
		skip();
}

static void a_stream_keeps_its_order(void **state)
{
	struct world *w = *state;

	need_runtime();
	for (unsigned i = 0; i < 20; i++) {
		w->host[0] = (char)i;
		memset(w->host + SIZE, 0, SIZE);
		assert_cuda(there(w, w->a));
		assert_cuda(back(w, w->a));
		assert_cuda(cuda->stream_synchronize(w->a));
		assert_memory_equal(w->host, w->host + SIZE, SIZE);
	}
}

static void a_copy_of_pinned_memory_returns_before_it_is_made(void **state)
{
	struct world *w = *state;
	struct cuda_gate gate;

	need_runtime();
	cuda_gate_add(rig, &gate, w->a);
	/* It would not come back: the gate is opened by nobody else. */
	assert_cuda(there(w, w->a));
	assert_cuda(back(w, w->a));
	assert_int_equal(w->host[SIZE + 1], 0);
	cuda_gate_open(&gate);
	assert_cuda(cuda->stream_synchronize(w->a));
	assert_memory_equal(w->host, w->host + SIZE, SIZE);
}

/*
 * How deep a stream's queue is, CUDA does not say. That it takes so many while the device stands still is what a hold
 * reckons with (device/cuda_piece_size.h); where it does not, this waits for ever.
 */
static void a_stream_takes_some_hundred_entries_that_are_not_done(void **state)
{
	struct world *w = *state;
	struct CUevent_st *event = NULL;
	struct cuda_gate gate;

	need_runtime();
	assert_cuda(cuda->event_create_with_flags(&event, CKPT_CUDA_EVENT_DISABLE_TIMING));
	cuda_gate_add(rig, &gate, w->a);
	for (unsigned i = 0; i < 256; i++) {
		assert_cuda(cuda->memcpy_async(
			w->host + i, w->device + i, 1, CKPT_CUDA_DEVICE_TO_HOST, w->a));
		assert_cuda(cuda->event_record(event, w->a));
	}
	assert_int_equal(cuda->event_query(event), CKPT_CUDA_NOT_READY);
	(void)cuda->get_last_error();
	cuda_gate_open(&gate);
	assert_cuda(cuda->stream_synchronize(w->a));
	assert_cuda(cuda->event_destroy(event));
}

static void rows_are_copied_apart(void **state)
{
	struct world *w = *state;

	need_runtime();
	assert_cuda(there(w, w->a));
	/* 100 rows of 30 bytes, 1000 apart there and 40 here. */
	assert_cuda(cuda->memcpy_2d_async(
		w->host + SIZE, 40, w->device + 5, 1000, 30, 100, CKPT_CUDA_DEVICE_TO_HOST, w->a));
	assert_cuda(cuda->stream_synchronize(w->a));
	for (size_t row = 0; row < 100; row++) {
		assert_memory_equal(w->host + SIZE + row * 40, w->host + 5 + row * 1000, 30);
		assert_int_equal(w->host[SIZE + row * 40 + 30], 0);
	}
	/* Up to the allocation's last byte, though the pitch points beyond it. */
	assert_cuda(cuda->memcpy_2d_async(w->host + SIZE, 30, w->device + SIZE - 9 * 1000 - 30,
		1000, 30, 10, CKPT_CUDA_DEVICE_TO_HOST, w->a));
	assert_cuda(cuda->stream_synchronize(w->a));
	for (size_t row = 0; row < 10; row++)
		assert_memory_equal(
			w->host + SIZE + row * 30, w->host + SIZE - 30 - (9 - row) * 1000, 30);
	/* A pitch below the width. */
	assert_int_equal(cuda->memcpy_2d_async(w->host + SIZE, 29, w->device, 1000, 30, 100,
				 CKPT_CUDA_DEVICE_TO_HOST, w->a),
		CKPT_CUDA_INVALID_PITCH);
	(void)cuda->get_last_error();
}

static void an_event_is_done_when_what_was_before_it_is(void **state)
{
	struct world *w = *state;
	struct cuda_gate gate;

	need_runtime();
	cuda_gate_add(rig, &gate, w->a);
	assert_cuda(cuda->event_record(w->event, w->a));
	assert_int_equal(cuda->event_query(w->event), CKPT_CUDA_NOT_READY);
	cuda_gate_open(&gate);
	assert_cuda(cuda->event_synchronize(w->event));
	assert_cuda(cuda->event_query(w->event));
}

static void a_stream_waits_for_the_record_before_the_wait_and_for_no_later_one(void **state)
{
	struct world *w = *state;
	struct cuda_gate first;
	struct cuda_gate second;

	need_runtime();
	cuda_gate_add(rig, &first, w->a);
	assert_cuda(there(w, w->a));
	assert_cuda(cuda->event_record(w->event, w->a));
	assert_cuda(cuda->stream_wait_event(w->b, w->event, 0));
	assert_cuda(back(w, w->b));
	/* The event is used again: the wait is for what it was. */
	cuda_gate_add(rig, &second, w->a);
	assert_cuda(cuda->event_record(w->event, w->a));
	assert_int_equal(w->host[SIZE + 1], 0);
	cuda_gate_open(&first);
	assert_cuda(cuda->stream_synchronize(w->b));
	assert_memory_equal(w->host, w->host + SIZE, SIZE);
	assert_int_equal(cuda->event_query(w->event), CKPT_CUDA_NOT_READY);
	cuda_gate_open(&second);
	assert_cuda(cuda->stream_synchronize(w->a));
}

static void a_wait_for_an_event_that_was_not_recorded_is_none(void **state)
{
	struct world *w = *state;
	struct cuda_gate gate;

	need_runtime();
	assert_cuda(cuda->event_query(w->event));
	assert_cuda(cuda->event_synchronize(w->event));
	assert_cuda(cuda->stream_wait_event(w->b, w->event, 0));
	/* Recorded too late: the other stream ends before. */
	cuda_gate_add(rig, &gate, w->a);
	assert_cuda(cuda->event_record(w->event, w->a));
	assert_cuda(there(w, w->b));
	assert_cuda(cuda->stream_synchronize(w->b));
	assert_int_equal(cuda->event_query(w->event), CKPT_CUDA_NOT_READY);
	cuda_gate_open(&gate);
	assert_cuda(cuda->stream_synchronize(w->a));
}

static void what_was_destroyed_still_does_its_work(void **state)
{
	struct world *w = *state;
	struct CUstream_st *stream;
	struct CUevent_st *event;
	struct cuda_gate gate;

	need_runtime();
	assert_cuda(cuda->stream_create_with_priority(&stream, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(cuda->event_create_with_flags(&event, CKPT_CUDA_EVENT_DISABLE_TIMING));
	cuda_gate_add(rig, &gate, stream);
	assert_cuda(there(w, stream));
	assert_cuda(back(w, stream));
	assert_cuda(cuda->event_record(event, stream));
	assert_cuda(cuda->stream_wait_event(w->b, event, 0));
	assert_cuda(cuda->event_destroy(event));
	assert_cuda(cuda->stream_destroy(stream));
	cuda_gate_open(&gate);
	assert_cuda(cuda->stream_synchronize(w->b));
	assert_memory_equal(w->host, w->host + SIZE, SIZE);
}

static void memory_is_pinned_once(void **state)
{
	struct world *w = *state;
	char *other = cuda_rig_pages(SIZE);

	need_runtime();
	assert_int_equal(cuda->host_register(w->host, SIZE, CKPT_CUDA_HOST_REGISTER_PORTABLE),
		CKPT_CUDA_HOST_ALREADY_REGISTERED);
	assert_int_equal(cuda->get_last_error(), CKPT_CUDA_HOST_ALREADY_REGISTERED);
	/* Asked once, it is forgotten. */
	assert_cuda(cuda->get_last_error());
	assert_int_equal(cuda->host_unregister(other), CKPT_CUDA_HOST_NOT_REGISTERED);
	assert_cuda(cuda->host_register(other, SIZE, CKPT_CUDA_HOST_REGISTER_PORTABLE));
	assert_cuda(cuda->host_unregister(other));
	assert_int_equal(cuda->host_unregister(other), CKPT_CUDA_HOST_NOT_REGISTERED);
	(void)cuda->get_last_error();
	cuda_rig_pages_free(other, SIZE);
}

/* "0000:3B:00.0": what the kernel has it under, but for the capitals. */
static void a_gpu_has_an_address_on_the_bus(void **state)
{
	char id[32] = "";

	(void)state;
	need_runtime();
	assert_non_null((const void *)cuda->device_get_pci_bus_id);
	assert_cuda(cuda->device_get_pci_bus_id(id, sizeof(id), 0));
	assert_true(strlen(id) >= strlen("0000:00:00.0"));
	assert_int_equal(strspn(id, "0123456789abcdefABCDEF:."), strlen(id));
	assert_int_equal(id[strlen(id) - 2], '.');
	assert_int_equal(
		cuda->device_get_pci_bus_id(id, sizeof(id), 4000), CKPT_CUDA_INVALID_DEVICE);
	(void)cuda->get_last_error();
}

static void errors_have_names_and_texts(void **state)
{
	(void)state;
	need_runtime();
	assert_string_equal(
		cuda->get_error_name(CKPT_CUDA_ILLEGAL_ADDRESS), "cudaErrorIllegalAddress");
	assert_string_equal(cuda->get_error_string(CKPT_CUDA_ILLEGAL_ADDRESS),
		"an illegal memory access was encountered");
	assert_string_equal(cuda->get_error_name(CKPT_CUDA_HOST_ALREADY_REGISTERED),
		"cudaErrorHostMemoryAlreadyRegistered");
	assert_string_equal(cuda->get_error_string(CKPT_CUDA_SUCCESS), "no error");
	assert_non_null(cuda->get_error_name(123456));
	assert_non_null(cuda->get_error_string(123456));
}

static void a_device_that_is_not_there_is_refused(void **state)
{
	int count = 0;

	(void)state;
	need_runtime();
	assert_cuda(cuda->get_device_count(&count));
	assert_true(count > 0);
	assert_int_equal(cuda->set_device(count), CKPT_CUDA_INVALID_DEVICE);
	(void)cuda->get_last_error();
}

/* With one GPU there is none to take a stream for another's. */
static void events_and_streams_are_of_the_gpu_that_was_current(void **state)
{
	struct world *w = *state;
	struct CUevent_st *other;
	int current = -1;
	int count = 0;

	need_runtime();
	assert_cuda(cuda->get_device(&current));
	assert_int_equal(current, 0);
	assert_cuda(cuda->event_record(w->event, NULL));
	assert_cuda(cuda->get_device_count(&count));
	if (count == 1)
		return;
	assert_cuda(cuda->set_device(1));
	assert_cuda(cuda->get_device(&current));
	assert_int_equal(current, 1);
	assert_cuda(cuda->event_create_with_flags(&other, CKPT_CUDA_EVENT_DISABLE_TIMING));
	for (uintptr_t number = 0; number <= CKPT_CUDA_STREAM_PER_THREAD; number++) {
		assert_int_equal(cuda->event_record(w->event, (struct CUstream_st *)number),
			CKPT_CUDA_INVALID_RESOURCE_HANDLE);
		assert_cuda(cuda->event_record(other, (struct CUstream_st *)number));
	}
	assert_int_equal(cuda->event_record(other, w->a), CKPT_CUDA_INVALID_RESOURCE_HANDLE);
	assert_cuda(cuda->event_record(w->event, w->a));
	assert_cuda(cuda->stream_wait_event(w->a, other, 0));
	assert_cuda(cuda->stream_synchronize(w->a));
	assert_cuda(cuda->event_destroy(other));
	assert_cuda(cuda->set_device(0));
}

static int capture_end(struct CUstream_st *stream)
{
	void *graph = NULL;
	int e = rig->extra.end_capture(stream, &graph);

	if (graph)
		assert_cuda(rig->extra.graph_destroy(graph));
	return e;
}

static int status_of(struct CUstream_st *stream)
{
	int status = -1;

	assert_cuda(cuda->stream_is_capturing(stream, &status));
	return status;
}

/* What another thread does while this one captures a stream in the global mode. */
struct beside {
	int mode;
	struct CUevent_st *event;
	int malloced;
	int waited;
};

static void *work_beside(void *user)
{
	struct beside *b = user;
	int mode = b->mode;
	void *memory = NULL;

	assert_cuda(cuda->set_device(0));
	assert_cuda(cuda->thread_exchange_stream_capture_mode(&mode));
	assert_int_equal(mode, CKPT_CUDA_MODE_GLOBAL);
	b->malloced = rig->api.malloc(&memory, 4096);
	if (b->malloced == CKPT_CUDA_SUCCESS) {
		b->waited = cuda->event_synchronize(b->event);
		assert_cuda(rig->api.free(memory));
	}
	mode = CKPT_CUDA_MODE_GLOBAL;
	assert_cuda(cuda->thread_exchange_stream_capture_mode(&mode));
	assert_int_equal(mode, b->mode);
	(void)cuda->get_last_error();
	return NULL;
}

static int capture_beside(struct world *w, struct beside *b)
{
	pthread_t thread;

	b->event = w->event;
	assert_cuda(cuda->event_record(w->event, w->b));
	assert_cuda(rig->extra.begin_capture(w->a, CKPT_CUDA_MODE_GLOBAL));
	assert_int_equal(status_of(w->a), CKPT_CUDA_CAPTURE_ACTIVE);
	assert_int_equal(status_of(w->b), CKPT_CUDA_CAPTURE_NONE);
	assert_int_equal(pthread_create(&thread, NULL, work_beside, b), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	int e = capture_end(w->a);
	assert_int_equal(status_of(w->a), CKPT_CUDA_CAPTURE_NONE);
	(void)cuda->get_last_error();
	return e;
}

static void a_relaxed_thread_spoils_no_capture(void **state)
{
	struct beside b = {.mode = CKPT_CUDA_MODE_RELAXED};

	need_runtime();
	assert_cuda(capture_beside(*state, &b));
	assert_cuda(b.malloced);
	assert_cuda(b.waited);
}

static void a_thread_of_the_usual_mode_does(void **state)
{
	struct beside b = {.mode = CKPT_CUDA_MODE_GLOBAL};

	need_runtime();
	assert_int_equal(capture_beside(*state, &b), CKPT_CUDA_STREAM_CAPTURE_INVALIDATED);
	assert_int_equal(b.malloced, CKPT_CUDA_STREAM_CAPTURE_UNSUPPORTED);
}

/* What the kernels are given, and the same as the CPU has it; its staged bytes are elsewhere. */
struct spans {
	struct ckpt_cuda_span *there; /* pinned */
	uint64_t *samples;            /* pinned, behind them */
	struct ckpt_cuda_span here[SPANS];
	char staged[SPANS * STAGED];
};

static void draw_spans(struct world *w, struct spans *s, uint64_t seen)
{
	struct prng d = {8};

	s->there = (void *)(w->host + SIZE + SIZE / 2);
	s->samples = (void *)(w->host + SIZE + SIZE / 4 * 3);
	for (size_t i = 0; i < SPANS; i++) {
		struct ckpt_cuda_span span = {.run = 1 + prng_below(&d, 100), .key = prng_next(&d)};
		uint64_t data = i * SPACE + prng_below(&d, 8);
		uint64_t staged = i * STAGED + prng_below(&d, 32);

		span.pitch = span.run + prng_below(&d, 4);
		span.offset = prng_below(&d, span.run);
		span.length = 1 + prng_below(&d, 100);
		span.data = (uintptr_t)w->device + data;
		span.staged = seen + SIZE + staged;
		s->there[i] = span;
		span.data = (uintptr_t)w->host + data;
		span.staged = (uintptr_t)s->staged + staged;
		s->here[i] = span;
	}
}

static void copy_here(const struct spans *s, bool scatter)
{
	for (uint32_t i = 0; i < SPANS; i++)
		ckpt_span_copy(s->here, i, scatter, 0, 1);
}

/* The one thing that is tried of the PTX itself, and of the bus under it: on a real GPU. */
static void kernels_do_what_the_cpu_does(void **state)
{
	static struct spans spans;
	struct world *w = *state;
	struct spans *s = &spans;
	struct ckpt_cuda_kernels kernels;
	uint64_t table;
	void *seen = NULL;
	char *after;

	need_runtime();
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_string_equal(kernels.why_not, "");
	assert_cuda(cuda->host_get_device_pointer(&seen, w->host, 0));
	draw_spans(w, s, (uintptr_t)seen);
	table = (uintptr_t)seen + (uint64_t)((char *)s->there - w->host);
	assert_cuda(there(w, w->a));
	assert_cuda(ckpt_cuda_launch_samples(&kernels, table, SPANS, table + SIZE / 4, w->a));
	assert_cuda(ckpt_cuda_launch_copies(&kernels, false, table, SPANS, w->a));
	assert_cuda(cuda->stream_synchronize(w->a));
	copy_here(s, false);
	assert_memory_equal(w->host + SIZE, s->staged, sizeof(s->staged));
	for (uint32_t i = 0; i < SPANS; i++)
		assert_true(s->samples[i] == ckpt_span_sample(s->here, i));

	for (size_t i = 0; i < sizeof(s->staged); i++)
		w->host[SIZE + i] = s->staged[i] = (char)~s->staged[i];
	assert_cuda(ckpt_cuda_launch_copies(&kernels, true, table, SPANS, w->a));
	assert_cuda(cuda->stream_synchronize(w->a));
	copy_here(s, true);
	after = cuda_rig_pages(SIZE);
	assert_cuda(cuda->memcpy_async(after, w->device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, w->a));
	assert_cuda(cuda->stream_synchronize(w->a));
	assert_memory_equal(after, w->host, SIZE);
	cuda_rig_pages_free(after, SIZE);
	ckpt_cuda_kernels_unload(&kernels);
}

/* Of the greatest spans, at every alignment to each other. */
static void kernels_move_what_is_long(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_kernels kernels;
	void *seen = NULL;

	need_runtime();
	struct ckpt_cuda_span *table = (void *)(w->host + 2 * SIZE - 4096);
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_string_equal(kernels.why_not, "");
	assert_cuda(cuda->host_get_device_pointer(&seen, w->host, 0));
	assert_cuda(there(w, w->a));
	for (uint64_t shift = 0; shift < 16; shift += 5) {
		for (uint64_t i = 0; i < 8; i++)
			table[i] = (struct ckpt_cuda_span){
				.data = (uintptr_t)w->device + i * 100000 + shift,
				.run = CKPT_CUDA_SPAN_MAX - i,
				.length = CKPT_CUDA_SPAN_MAX - i,
				.staged = (uintptr_t)seen + SIZE + i * 70000 + i};
		memset(w->host + SIZE, 0, SIZE - 4096);
		assert_cuda(ckpt_cuda_launch_copies(
			&kernels, false, (uintptr_t)seen + 2 * SIZE - 4096, 8, w->a));
		assert_cuda(cuda->stream_synchronize(w->a));
		for (size_t i = 0; i < 8; i++) {
			const char *staged = w->host + SIZE + i * 70000 + i;
			size_t length = CKPT_CUDA_SPAN_MAX - i;

			assert_memory_equal(staged, w->host + i * 100000 + shift, length);
			assert_int_equal(staged[length], 0);
		}
	}
	ckpt_cuda_kernels_unload(&kernels);
}

/* Of the dims, elements, cuts and alignments that there are, one of each kind at least. */
struct grid_case {
	uint32_t item;
	uint32_t ndim;
	int64_t shape[4];
	int64_t strides[4];
	int64_t around[8]; /* 0: it is no box */
	uint64_t offset;
	uint64_t length; /* 0: to the end */
	uint64_t at;
};

static const struct grid_case grid_cases[] = {
	{4, 4, {32, 16, 3, 3}, {144, 1, 48, 16}, {0}, 0, 0, 0},
	{2, 4, {30, 17, 3, 3}, {153, 1, 51, 17}, {0}, 34, 6000, 6},
	{1, 2, {301, 203}, {1, 301}, {0}, 7, 0, 5},
	{8, 3, {10, 20, 30}, {1, 10, 200}, {0}, 0, 0, 8},
	{16, 2, {50, 60}, {1, 50}, {0}, 160, 40000, 32},
	{6, 2, {70, 80}, {1, 70}, {0}, 11, 30000, 2},
	{4, 2, {100, 50}, {-55, 1}, {0}, 0, 0, 22000},
	{4, 4, {8, 16, 3, 3}, {144, 1, 48, 16}, {9, 20, 4, 3, 1, 2, 1, 0}, 44, 8000, 0},
	{2, 2, {90, 3}, {1, 91}, {95, 9, 4, 5}, 0, 0, 0},
};

static struct ckpt_segment case_of(const struct grid_case *c, char *memory, char *staged)
{
	struct ckpt_segment s = {.view = {.data = memory + c->at,
					 .item = c->item,
					 .ndim = c->ndim,
					 .shape = c->shape,
					 .strides = c->strides},
		.offset = c->offset,
		.length = c->length,
		.staged = staged};
	uint64_t bytes = ckpt_view_bytes(&s.view);

	if (c->around[0] > 0) {
		s.around = c->around;
		bytes = c->item;
		for (uint32_t i = 0; i < c->ndim; i++)
			bytes *= (uint64_t)c->around[i];
	}
	if (s.length == 0)
		s.length = bytes - s.offset;
	return s;
}

/* A launch for each: the grid goes by value, and may be gone when the call returns. */
static void launch_grid(const struct ckpt_cuda_kernels *kernels, bool scatter,
	const struct ckpt_segment *s, uint64_t seen, struct CUstream_st *stream)
{
	struct ckpt_cuda_grid grid;
	uint64_t first;
	uint64_t items;

	ckpt_cuda_grid_of(s, seen, &grid);
	items = ckpt_cuda_grid_items(&grid, &first);
	assert_cuda(ckpt_cuda_launch_grid(kernels, scatter, &grid, first, (uint32_t)items, stream));
	memset(&grid, 0x5a, sizeof(grid));
}

/* The PTX of these, too. Staged at every other place of a window, so that both ends of one are cut. */
static void grids_are_moved_as_the_cpu_does(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_kernels kernels;
	char *memory = cuda_rig_pages(SIZE);
	char *wanted = cuda_rig_pages(SIZE);
	void *seen = NULL;

	need_runtime();
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_string_equal(kernels.why_not, "");
	assert_cuda(cuda->host_get_device_pointer(&seen, w->host, 0));
	memcpy(memory, w->host, SIZE);
	assert_cuda(there(w, w->a));
	for (size_t i = 0; i < COUNT(grid_cases); i++) {
		for (size_t shift = 0; shift < 32; shift += 1 + shift / 2) {
			struct ckpt_segment s =
				case_of(&grid_cases[i], w->device, w->host + SIZE + shift);
			struct ckpt_segment here = case_of(&grid_cases[i], memory, wanted + shift);

			for (size_t k = 0; k < SIZE; k++)
				w->host[SIZE + k] = wanted[k] = (char)(k * 31 + k / 241 + i);
			if (!s.around) {
				launch_grid(
					&kernels, false, &s, (uintptr_t)seen + SIZE + shift, w->a);
				assert_cuda(cuda->stream_synchronize(w->a));
				ckpt_view_gather(&here.view, s.offset, s.length, here.staged);
				assert_memory_equal(w->host + SIZE, wanted, SIZE);
				for (size_t k = 0; k < SIZE; k++)
					w->host[SIZE + k] = wanted[k] = (char)~wanted[k];
				ckpt_view_scatter(&here.view, s.offset, s.length, here.staged);
			} else {
				ckpt_view_scatter_box(
					&here.view, s.around, s.offset, s.length, here.staged);
			}
			launch_grid(&kernels, true, &s, (uintptr_t)seen + SIZE + shift, w->a);
			assert_cuda(cuda->memcpy_async(
				w->host + SIZE, w->device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, w->a));
			assert_cuda(cuda->stream_synchronize(w->a));
			assert_memory_equal(w->host + SIZE, memory, SIZE);
		}
	}
	ckpt_cuda_kernels_unload(&kernels);
	cuda_rig_pages_free(memory, SIZE);
	cuda_rig_pages_free(wanted, SIZE);
}

/* Named by the spans of a table, which are sampled and copied. */
static void a_table_names_grids(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_kernels kernels;
	void *seen = NULL;
	uint64_t table;
	uint32_t count = 0;

	need_runtime();
	struct ckpt_cuda_span *spans = (void *)(w->host + SIZE + SIZE / 2);
	struct ckpt_cuda_grid *grids = (void *)(w->host + SIZE + SIZE / 2 + 4096);
	uint64_t *samples = (void *)(w->host + SIZE + SIZE / 2 + 16384);
	char *wanted = cuda_rig_pages(SIZE / 2);
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_string_equal(kernels.why_not, "");
	assert_cuda(cuda->host_get_device_pointer(&seen, w->host, 0));
	table = (uintptr_t)seen + (uint64_t)((char *)spans - w->host);
	assert_cuda(there(w, w->a));
	for (int sample = 1; sample >= 0; sample--) {
		memset(w->host + SIZE, 0, SIZE / 2);
		count = 0;
		for (size_t i = 0; i < COUNT(grid_cases); i++) {
			struct ckpt_segment s = case_of(&grid_cases[i], w->device, NULL);
			uint64_t to = i * 40000 + i;

			if (s.around)
				continue;
			s.length = ckpt_min_u64(s.length, 40000 - 16);
			ckpt_cuda_grid_of(
				&s, sample ? 0 : (uintptr_t)seen + SIZE + to, &grids[count]);
			spans[count] = (struct ckpt_cuda_span){.run = 1,
				.offset = s.offset,
				.length = s.length,
				.key = 77 + i,
				.grid = table + 4096 + count * sizeof(*grids)};
			if (!sample)
				spans[count].length =
					ckpt_cuda_grid_items(&grids[count], &spans[count].offset);
			s.view.data = w->host + grid_cases[i].at;
			ckpt_view_gather(&s.view, s.offset, s.length, wanted + to);
			count++;
		}
		if (sample)
			assert_cuda(ckpt_cuda_launch_samples(
				&kernels, table, count, table + 16384, w->a));
		else
			assert_cuda(ckpt_cuda_launch_copies(&kernels, false, table, count, w->a));
		assert_cuda(cuda->stream_synchronize(w->a));
		for (uint32_t i = 0; i < count && sample; i++) {
			struct ckpt_cuda_span here = {.data = (uintptr_t)wanted + i * 40000 + i,
				.run = spans[i].length,
				.length = spans[i].length,
				.key = 77 + i};

			assert_true(samples[i] == ckpt_span_sample(&here, 0));
		}
	}
	assert_memory_equal(w->host + SIZE, wanted, SIZE / 2);
	ckpt_cuda_kernels_unload(&kernels);
	cuda_rig_pages_free(wanted, SIZE / 2);
}

/*
 * Memory of the host that is not pinned, by way of the GPU's: each copy is in its turn, before or behind the kernels that
 * it is enqueued between, though one relay serves them all.
 */
static void what_is_not_pinned_is_moved_in_its_turn(void **state)
{
	struct world *w = *state;
	struct ckpt_cuda_kernels kernels;
	char *memory = cuda_rig_pages(SIZE);
	char *staged = cuda_rig_pages(SIZE);
	char *wanted = cuda_rig_pages(SIZE);
	char *relay;

	need_runtime();
	relay = cuda_rig_device_memory(rig, SIZE);
	ckpt_cuda_kernels_load(NULL, &kernels);
	assert_string_equal(kernels.why_not, "");
	memcpy(memory, w->host, SIZE);
	assert_cuda(there(w, w->a));
	for (size_t i = 0; i < COUNT(grid_cases); i++) {
		struct ckpt_segment s = case_of(&grid_cases[i], w->device, staged);
		struct ckpt_segment here = case_of(&grid_cases[i], memory, wanted);
		size_t third = s.length / 3;

		for (size_t k = 0; k < SIZE; k++)
			staged[k] = wanted[k] = (char)(k * 29 + k / 239 + i);
		/* Three pieces, of which none waits for the one before. */
		for (size_t k = 0; k < 3; k++) {
			struct ckpt_segment piece = s;

			piece.offset += k * third;
			piece.staged += k * third;
			piece.length = k == 2 ? s.length - 2 * third : third;
			assert_cuda(cuda->memcpy_async(
				relay, piece.staged, piece.length, CKPT_CUDA_HOST_TO_DEVICE, w->a));
			launch_grid(&kernels, true, &piece, (uintptr_t)relay, w->a);
			if (s.around)
				ckpt_view_scatter_box(&here.view, s.around, piece.offset,
					piece.length, wanted + k * third);
			else
				ckpt_view_scatter(
					&here.view, piece.offset, piece.length, wanted + k * third);
		}
		for (size_t k = 0; k < 3 && !s.around; k++) {
			struct ckpt_segment piece = s;

			piece.offset += k * third;
			piece.length = third;
			launch_grid(&kernels, false, &piece, (uintptr_t)relay, w->a);
			assert_cuda(cuda->memcpy_async(staged + SIZE / 2 + k * third, relay, third,
				CKPT_CUDA_DEVICE_TO_HOST, w->a));
			ckpt_view_gather(
				&here.view, piece.offset, third, wanted + SIZE / 2 + k * third);
		}
		assert_cuda(cuda->memcpy_async(
			w->host + SIZE, w->device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, w->a));
		assert_cuda(cuda->stream_synchronize(w->a));
		assert_memory_equal(w->host + SIZE, memory, SIZE);
		assert_memory_equal(staged, wanted, SIZE);
	}
	ckpt_cuda_kernels_unload(&kernels);
	assert_cuda(cuda->free(relay));
	cuda_rig_pages_free(memory, SIZE);
	cuda_rig_pages_free(staged, SIZE);
	cuda_rig_pages_free(wanted, SIZE);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(a_stream_keeps_its_order),
		PROMISE(a_copy_of_pinned_memory_returns_before_it_is_made),
		PROMISE(a_stream_takes_some_hundred_entries_that_are_not_done),
		PROMISE(rows_are_copied_apart),
		PROMISE(an_event_is_done_when_what_was_before_it_is),
		PROMISE(a_stream_waits_for_the_record_before_the_wait_and_for_no_later_one),
		PROMISE(a_wait_for_an_event_that_was_not_recorded_is_none),
		PROMISE(what_was_destroyed_still_does_its_work),
		PROMISE(memory_is_pinned_once),
		PROMISE(a_gpu_has_an_address_on_the_bus),
		PROMISE(errors_have_names_and_texts),
		PROMISE(a_device_that_is_not_there_is_refused),
		PROMISE(events_and_streams_are_of_the_gpu_that_was_current),
		PROMISE(a_relaxed_thread_spoils_no_capture),
		PROMISE(a_thread_of_the_usual_mode_does),
		PROMISE(kernels_do_what_the_cpu_does),
		PROMISE(kernels_move_what_is_long),
		PROMISE(grids_are_moved_as_the_cpu_does),
		PROMISE(a_table_names_grids),
		PROMISE(what_is_not_pinned_is_moved_in_its_turn),
	};
	const char *wanted = getenv("CKPT_TEST_CUDA");

	rig = wanted && strcmp(wanted, "real") == 0 ? cuda_rig_real() : cuda_rig_fake();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
