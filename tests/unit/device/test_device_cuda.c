/* SPDX-License-Identifier: Apache-2.0 */
/* Copies from and to a GPU, on the fake runtime: every byte, in which order, and what waits for what. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/thread.h"
#include "cuda/cuda_rig.h"
#include "device/cuda_copy_plan.h"
#include "lib/child.h"
#include "lib/hang_inbox.h"
#include "lib/prng.h"

#define SIZE   ((size_t)1 << 18)
#define COPIES 16

static struct cuda_rig *rig;
static const struct fake_cuda *fake;

struct world {
	struct CUstream_st *compute;
	char *device;
	char *staged; /* pinned */
	char *bytes;  /* what the device's memory was filled with */
};

static struct world world;

static void start(uint64_t seed)
{
	struct world *w = &world;
	struct prng d = {seed};

	rig = cuda_rig_fake();
	fake = rig->fake;
	fake->reset(seed);
	cuda_rig_open(rig);
	assert_cuda(rig->api.stream_create_with_priority(
		&w->compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	w->device = cuda_rig_device_memory(rig, SIZE);
	w->staged = cuda_rig_pages(SIZE);
	w->bytes = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i++)
		w->bytes[i] = (char)prng_next(&d);
	fake->poke(w->device, w->bytes, SIZE);
	assert_int_equal(ckpt_device_pin(rig->device, w->staged, SIZE, &rig->err), 0);
}

static void end(void)
{
	struct world *w = &world;

	ckpt_device_unpin(rig->device, w->staged, SIZE);
	assert_cuda(rig->api.stream_destroy(w->compute));
	assert_int_equal(fake->notes(FAKE_UNPINNED), 0);
	assert_int_equal(fake->notes(FAKE_UNRECORDED), 0);
	cuda_rig_close(rig);
	fake->reset(1);
	cuda_rig_pages_free(w->staged, SIZE);
	cuda_rig_pages_free(w->bytes, SIZE);
}

static int setup(void **state)
{
	start(42);
	*state = &world;
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	end();
	return 0;
}

static uintptr_t number(const struct CUstream_st *stream)
{
	return (uintptr_t)stream;
}

static const int64_t whole_shape[] = {SIZE};

static struct ckpt_segment whole(struct world *w)
{
	return (struct ckpt_segment){
		.view = {.data = w->device, .item = 1, .ndim = 1, .shape = whole_shape},
		.length = SIZE,
		.staged = w->staged};
}

static void assert_staged(const struct world *w, int byte)
{
	for (size_t i = 0; i < SIZE; i++)
		assert_int_equal(w->staged[i], (char)byte);
}

/* Random pieces of the memory, to staging and from there to other memory. */
static void every_byte_goes_to_staging_and_back(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segments[COPIES * 8];
	struct ckpt_segment others[COPIES * 8];
	struct ckpt_copy there[COPIES] = {0};
	struct ckpt_copy back[COPIES] = {0};
	char *other = cuda_rig_device_memory(rig, SIZE);
	char *seen = cuda_rig_pages(SIZE);
	size_t step = SIZE / COUNT(segments);
	struct prng d = {5};

	for (size_t i = 0; i < COUNT(segments); i++) {
		segments[i] = whole(w);
		segments[i].offset = i * step + prng_below(&d, 64);
		segments[i].length = prng_below(&d, step - 64);
		segments[i].staged = w->staged + segments[i].offset;
		others[i] = segments[i];
		others[i].view.data = other;
	}
	fake->poke(other, w->staged, SIZE);
	for (size_t i = 0; i < COPIES; i++)
		cuda_rig_copy(rig, &there[i], CKPT_COPY_TO_STAGING, &segments[i * 8], 8);
	cuda_rig_await(rig, COPIES);
	for (size_t i = 0; i < COPIES; i++)
		cuda_rig_copy(rig, &back[i], CKPT_COPY_FROM_STAGING, &others[i * 8], 8);
	cuda_rig_await(rig, 2 * COPIES);
	fake->peek(other, seen, SIZE);
	for (size_t i = 0, at = 0; i <= COUNT(segments); i++) {
		size_t from = i < COUNT(segments) ? segments[i].offset : SIZE;

		/* Between them nothing was written. */
		for (; at < from; at++)
			assert_true(w->staged[at] == 0 && seen[at] == 0);
		if (i == COUNT(segments))
			break;
		at = from + segments[i].length;
		assert_memory_equal(w->staged + from, w->bytes + from, segments[i].length);
		assert_memory_equal(seen + from, w->bytes + from, segments[i].length);
	}
	for (size_t i = 0; i < COPIES; i++)
		assert_true(there[i].result == 0 && back[i].result == 0 && there[i].torn == -1);
	assert_cuda(rig->api.free(other));
	cuda_rig_pages_free(seen, SIZE);
}

static void rows_apart_go_both_ways(void **state)
{
	const int64_t shape[] = {50, 33};
	const int64_t strides[] = {77, 1};
	struct world *w = *state;
	struct ckpt_segment segment = {.view = {w->device + 12, 4, 2, shape, strides, 0},
		.offset = 41,
		.length = 50 * 33 * 4 - 60,
		.staged = w->staged};
	struct ckpt_copy there = {.error = &rig->err};
	struct ckpt_copy back = {.error = &rig->err};
	char *wanted = cuda_rig_pages(SIZE);
	char *seen = cuda_rig_pages(SIZE);

	cuda_rig_copy(rig, &there, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 1);
	assert_int_equal(there.result, 0);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), 1);
	struct ckpt_view host = segment.view;
	host.data = w->bytes + 12;
	ckpt_view_gather(&host, segment.offset, segment.length, wanted);
	assert_memory_equal(w->staged, wanted, segment.length);
	assert_int_equal(w->staged[segment.length], 0);
	for (size_t i = 0; i < segment.length; i++)
		w->staged[i] = (char)(i * 3);
	ckpt_view_scatter(&host, segment.offset, segment.length, w->staged);
	cuda_rig_copy(rig, &back, CKPT_COPY_FROM_STAGING, &segment, 1);
	cuda_rig_await(rig, 2);
	assert_int_equal(back.result, 0);
	fake->peek(w->device, seen, SIZE);
	assert_memory_equal(seen, w->bytes, SIZE);
	cuda_rig_pages_free(wanted, SIZE);
	cuda_rig_pages_free(seen, SIZE);
}

/* A place in memory for two elements can take only one of them back. */
static void what_cannot_be_copied_is_said_and_the_rest_goes_on(void **state)
{
	const int64_t shape[] = {8, 8};
	const int64_t strides[] = {1, 5};
	struct world *w = *state;
	struct ckpt_segment overlapping = {
		.view = {w->device, 4, 2, shape, strides, 0}, .length = 256, .staged = w->staged};
	struct ckpt_segment good = whole(w);
	struct ckpt_copy bad = {.error = &rig->err};
	struct ckpt_copy nothing = {0};
	struct ckpt_copy after = {0};

	cuda_rig_copy(rig, &bad, CKPT_COPY_FROM_STAGING, &overlapping, 1);
	cuda_rig_copy(rig, &nothing, CKPT_COPY_TO_STAGING, NULL, 0);
	cuda_rig_copy(rig, &after, CKPT_COPY_TO_STAGING, &good, 1);
	cuda_rig_await(rig, 3);
	assert_int_equal(bad.result, CKPT_EUNSUPPORTED);
	assert_non_null(strstr(rig->err.message, "its elements share memory"));
	assert_non_null(strstr(rig->err.message, "tensor.contiguous()"));
	assert_int_equal(nothing.result, 0);
	assert_int_equal(after.result, 0);
	assert_memory_equal(w->staged, w->bytes, SIZE);
}

static void a_large_segment_goes_in_pieces(void **state)
{
	const int64_t shape[] = {2 * (int64_t)CKPT_CUDA_PIECE + 4321};
	size_t size = (size_t)shape[0];
	char *device = cuda_rig_device_memory(rig, size);
	char *staged = cuda_rig_pages(size);
	struct ckpt_segment segment = {
		.view = {device, 1, 1, shape, NULL, 0}, .length = size, .staged = staged};
	struct ckpt_copy copy = {0};

	(void)state;
	assert_int_equal(ckpt_device_pin(rig->device, staged, size, &rig->err), 0);
	assert_cuda(fake->fill(device, 0x31, size - 1, world.compute));
	assert_cuda(fake->fill(device + size - 1, 0x32, 1, world.compute));
	assert_int_equal(ckpt_device_follow(rig->device, number(world.compute), &rig->err), 0);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 1);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), 3);
	for (size_t i = 0; i < size; i++)
		assert_true(staged[i] == (i == size - 1 ? 0x32 : 0x31));
	ckpt_device_unpin(rig->device, staged, size);
	assert_cuda(rig->api.free(device));
	cuda_rig_pages_free(staged, size);
}

/* Every second byte up to the memory's last one. */
static void many_short_rows_go_by_a_kernel(void **state)
{
	const int64_t shape[] = {SIZE / 2};
	const int64_t strides[] = {2};
	struct world *w = *state;
	struct ckpt_segment segment = {.view = {w->device + 1, 1, 1, shape, strides, 0},
		.length = SIZE / 2,
		.staged = w->staged};
	struct ckpt_copy copy = {0};

	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, 0);
	assert_int_equal(fake->calls("cuLaunchKernel"), 1);
	assert_int_equal(fake->calls("cudaMemcpy2DAsync"), 0);
	for (size_t i = 0; i < SIZE / 2; i++)
		assert_int_equal(w->staged[i], w->bytes[2 * i + 1]);
	assert_int_equal(w->staged[SIZE / 2], 0);
}

static void staged_lines_are_compared_with_the_samples(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segments[3];
	struct ckpt_copy copy = {.sampled = true, .seed = 9};

	for (size_t i = 0; i < 3; i++) {
		segments[i] = whole(w);
		segments[i].offset = i * 5000;
		segments[i].length = 4900;
		segments[i].staged = w->staged + i * 5000;
		segments[i].tensor = (uint32_t)i;
		/* Whoever submits has the lines: these are the bytes that the device was given. */
		segments[i].view.data = w->bytes;
		segments[i].sample = ckpt_segment_sample(&segments[i], 9, false);
		segments[i].view.data = w->device;
	}
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, segments, 3);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.torn, -1);
	fake->poke(w->device + 5000 + 4899, &(char){(char)(w->bytes[9899] ^ 1)}, 1);
	fake->poke(w->device + 10000, &(char){(char)(w->bytes[10000] ^ 1)}, 1);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, segments, 3);
	cuda_rig_await(rig, 2);
	assert_int_equal(copy.torn, 1);
	assert_int_equal(copy.result, 0);
	copy.sampled = false;
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, segments, 3);
	cuda_rig_await(rig, 3);
	assert_int_equal(copy.torn, -1);
}

/* The host is far ahead: nothing of the copy is made when the next kernel is enqueued. */
static void overtake(struct world *w, bool hold)
{
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};

	assert_cuda(fake->fill(w->device, 1, SIZE, w->compute));
	assert_cuda(rig->api.stream_synchronize(w->compute));
	fake->stop(FAKE_COPIES);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	if (hold)
		assert_int_equal(ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL,
					 -1, &rig->err),
			0);
	assert_cuda(fake->fill(w->device, 2, SIZE, w->compute));
	if (!hold)
		assert_cuda(rig->api.stream_synchronize(w->compute));
	fake->stop(0);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, 0);
}

static void a_stream_that_is_held_does_not_overtake_the_copies(void **state)
{
	struct world *w = *state;

	overtake(w, true);
	assert_staged(w, 1);
}

static void without_a_hold_the_bytes_are_of_the_next_step(void **state)
{
	struct world *w = *state;

	overtake(w, false);
	assert_staged(w, 2);
}

/* The stream waits for the first of two copies alone: the second is stopped for good while it goes on. */
static void a_stream_can_be_held_for_the_eager_copies_alone(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segments[2] = {whole(w), whole(w)};
	struct ckpt_copy eager = {.eager = true};
	struct ckpt_copy later = {0};

	/* None has been submitted: nothing to wait for. */
	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_EAGER, 0, &rig->err),
		0);
	segments[0].length = SIZE / 2;
	segments[1].offset = SIZE / 2;
	segments[1].length = SIZE / 2;
	segments[1].staged += SIZE / 2;
	assert_cuda(fake->fill(w->device, 1, SIZE, w->compute));
	assert_cuda(rig->api.stream_synchronize(w->compute));
	fake->stop(FAKE_COPIES);
	cuda_rig_copy(rig, &eager, CKPT_COPY_TO_STAGING, &segments[0], 1);
	cuda_rig_copy(rig, &later, CKPT_COPY_TO_STAGING, &segments[1], 1);
	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_EAGER, -1, &rig->err),
		0);
	assert_cuda(fake->fill(w->device, 2, SIZE, w->compute));
	/* The first copy alone is let go: the stream, which is not held for the second, overtakes that. */
	fake->allow(1);
	assert_cuda(rig->api.stream_synchronize(w->compute));
	fake->stop(0);
	cuda_rig_await(rig, 2);
	for (size_t i = 0; i < SIZE; i++)
		assert_int_equal(w->staged[i], i < SIZE / 2 ? 1 : 2);
}

/* Segments of several devices in one batch: each copies its own. */
static void segments_of_other_devices_are_passed_over(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segments[2] = {whole(w), whole(w)};
	struct ckpt_copy copy = {.sampled = true};

	segments[0].length = SIZE / 2;
	segments[0].sample = 1; /* no device but its own compares it */
	segments[0].view.device = 3;
	segments[1].offset = SIZE / 2;
	segments[1].length = SIZE / 2;
	segments[1].staged += SIZE / 2;
	segments[1].view.data = w->bytes;
	segments[1].sample = ckpt_segment_sample(&segments[1], 0, false);
	segments[1].view.data = w->device;
	memset(w->staged, 7, SIZE);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, segments, 2);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, 0);
	assert_int_equal(copy.torn, -1);
	for (size_t i = 0; i < SIZE / 2; i++)
		assert_int_equal(w->staged[i], 7);
	assert_memory_equal(w->staged + SIZE / 2, w->bytes + SIZE / 2, SIZE / 2);
}

/* The copy is submitted while the kernel before it has not run. */
static void run_behind(struct world *w, bool follow)
{
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};
	struct cuda_gate gate;

	fake->poke(w->device, w->staged, SIZE);
	cuda_gate_add(rig, &gate, w->compute);
	assert_cuda(fake->fill(w->device, 3, SIZE, w->compute));
	if (follow)
		assert_int_equal(ckpt_device_follow(rig->device, number(w->compute), &rig->err), 0);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	if (!follow)
		cuda_rig_await(rig, 1);
	cuda_gate_open(&gate);
	cuda_rig_await(rig, 1);
	/* The gate is on this stack. */
	assert_cuda(rig->api.stream_synchronize(w->compute));
}

static void copies_follow_what_was_computed(void **state)
{
	struct world *w = *state;

	run_behind(w, true);
	assert_staged(w, 3);
}

static void without_a_follow_the_bytes_are_of_the_step_before(void **state)
{
	struct world *w = *state;

	run_behind(w, false);
	assert_staged(w, 0);
}

static void *hold_in_thread(void *user)
{
	struct world *w = user;

	return ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, -1, NULL) == 0
		       ? user
		       : NULL;
}

/* An event that is not recorded yet would hold nothing: so the caller waits until it is. */
static void a_hold_waits_until_the_copies_are_enqueued(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};
	pthread_t thread;
	void *held;

	fake->block("cudaMemcpyAsync");
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	fake->await_blocked();
	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, 1, &rig->err),
		-ETIMEDOUT);
	assert_non_null(strstr(rig->err.message, "were not enqueued within 1 ms"));
	assert_int_equal(fake->calls("cudaStreamWaitEvent"), 0);
	assert_int_equal(pthread_create(&thread, NULL, hold_in_thread, w), 0);
	fake->stop(FAKE_COPIES);
	fake->block(NULL);
	/* It comes back though the device has copied nothing. */
	assert_int_equal(pthread_join(thread, &held), 0);
	assert_ptr_equal(held, w);
	assert_int_equal(rig->done, 0);
	assert_cuda(fake->fill(w->device, 2, SIZE, w->compute));
	fake->stop(0);
	cuda_rig_await(rig, 1);
	assert_memory_equal(w->staged, w->bytes, SIZE);
}

/* As of a model of small tensors without kernels: more pieces than the queue takes. A launch is not worth so few. */
static void a_hold_of_more_than_the_queue_takes_waits_for_the_rest(void **state)
{
	static struct ckpt_segment segments[3000];
	static struct ckpt_copy copies[1000];
	struct world *w = *state;
	size_t each = COUNT(segments) / COUNT(copies);

	for (size_t i = 0; i < COUNT(segments); i++) {
		segments[i] = whole(w);
		segments[i].offset = i * 80;
		segments[i].length = 75;
		segments[i].staged = w->staged + i * 80;
	}
	fake->stop(FAKE_COPIES);
	for (size_t i = 0; i < COUNT(copies); i++)
		cuda_rig_copy(rig, &copies[i], CKPT_COPY_TO_STAGING, &segments[i * each], each);
	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, 1, &rig->err),
		-ETIMEDOUT);
	assert_int_equal(fake->calls("cudaStreamWaitEvent"), 0);
	fake->stop(0);
	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, -1, NULL), 0);
	assert_cuda(fake->fill(w->device, 2, SIZE, w->compute));
	cuda_rig_await(rig, COUNT(copies));
	for (size_t i = 0; i < COUNT(segments); i++)
		assert_memory_equal(w->staged + i * 80, w->bytes + i * 80, 75);
}

/* With nothing submitted a hold and a follow are no work for anybody. */
static void a_hold_of_nothing_holds_nothing(void **state)
{
	struct world *w = *state;

	assert_int_equal(
		ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, 0, &rig->err), 0);
	assert_int_equal(ckpt_device_follow(rig->device, number(w->compute), &rig->err), 0);
	assert_int_equal(ckpt_device_hold(rig->device, 0, CKPT_HOLD_ALL, 0, &rig->err), 0);
	assert_int_equal(ckpt_device_follow(rig->device, 0, &rig->err), 0);
	assert_cuda(rig->api.stream_synchronize(w->compute));
}

/* The stream of that number on GPU 0, which is not current in this thread. */
static void order_from_elsewhere(struct world *w, uintptr_t stream)
{
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};
	struct CUstream_st *user = (struct CUstream_st *)stream;
	int current = -1;

	assert_cuda(rig->api.set_device(0));
	fake->stop(FAKE_KERNELS);
	assert_cuda(fake->fill(w->device, 5, SIZE, user));
	assert_cuda(rig->api.set_device(1));
	assert_int_equal(ckpt_device_follow(rig->device, stream, &rig->err), 0);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	assert_int_equal(ckpt_device_hold(rig->device, stream, CKPT_HOLD_ALL, -1, &rig->err), 0);
	assert_cuda(rig->api.get_device(&current));
	assert_int_equal(current, 1);
	assert_cuda(rig->api.set_device(0));
	assert_cuda(fake->fill(w->device, 6, SIZE, user));
	fake->stop(0);
	cuda_rig_await(rig, rig->done + 1);
	assert_staged(w, 5);
	assert_cuda(rig->api.stream_synchronize(user));
}

static void streams_without_a_handle_are_of_the_tensors_gpu(void **state)
{
	struct world *w = *state;

	for (uintptr_t stream = 0; stream <= CKPT_CUDA_STREAM_PER_THREAD; stream++)
		order_from_elsewhere(w, stream);
	fake->fail_call("cudaGetDevice", 1, CKPT_CUDA_INVALID_VALUE);
	assert_int_equal(ckpt_device_follow(rig->device, 0, &rig->err), CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "GPU 0: cudaGetDevice"));
	assert_cuda(rig->api.set_device(1));
	fake->fail_call("cudaSetDevice", 1, CKPT_CUDA_INVALID_VALUE);
	assert_int_equal(
		ckpt_device_hold(rig->device, 0, CKPT_HOLD_ALL, -1, &rig->err), CKPT_EDEVICE);
	assert_cuda(rig->api.set_device(0));
	assert_cuda(rig->api.get_last_error());
}

/* A stream of another GPU can wait for this one's copies; to follow it is what CUDA refuses. */
static void a_stream_of_another_gpu_can_be_held_but_not_followed(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};
	struct CUstream_st *other;
	void *seen;

	assert_cuda(rig->api.set_device(1));
	assert_cuda(rig->api.stream_create_with_priority(&other, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(rig->api.set_device(0));
	assert_int_equal(ckpt_device_follow(rig->device, number(other), &rig->err), CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "cudaEventRecord"));
	fake->stop(FAKE_COPIES);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	assert_int_equal(
		ckpt_device_hold(rig->device, number(other), CKPT_HOLD_ALL, -1, &rig->err), 0);
	assert_cuda(fake->fill(w->device, 2, SIZE, other));
	fake->stop(0);
	cuda_rig_await(rig, 1);
	assert_memory_equal(w->staged, w->bytes, SIZE);
	assert_cuda(rig->api.stream_synchronize(other));
	assert_cuda(rig->api.stream_destroy(other));
	seen = cuda_rig_pages(SIZE);
	fake->peek(w->device, seen, SIZE);
	assert_int_equal(((char *)seen)[SIZE - 1], 2);
	cuda_rig_pages_free(seen, SIZE);
}

/* Copies of a training loop; what comes back is looked at there and then, and its slot written over. */
#define STEPS 30

static struct ckpt_copy loop_copies[STEPS][4];
static struct ckpt_segment loop_segments[STEPS][4];
static unsigned loop_next;
static unsigned loop_wrong;

static void look_and_reuse(struct ckpt_node *node)
{
	const struct ckpt_copy *wanted = &loop_copies[loop_next / 4][loop_next % 4];
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	const struct ckpt_copy *copy = CKPT_CONTAINER(job, struct ckpt_copy, job);
	const struct ckpt_segment *s = copy->segments;

	/* In the order in which they were submitted. */
	loop_wrong += copy != wanted || copy->result != 0;
	for (size_t i = 0; i < s->length; i++)
		loop_wrong += s->staged[i] != (char)(loop_next / 4 + 1);
	memset(s->staged, 0x7f, s->length);
	loop_next++;
}

static void run_loop(struct world *w, uint64_t seed)
{
	struct prng d = {seed};

	loop_next = 0;
	loop_wrong = 0;
	memset(loop_copies, 0, sizeof(loop_copies));
	for (unsigned step = 0; step < STEPS; step++) {
		assert_cuda(fake->fill(w->device, (int)step + 1, SIZE, w->compute));
		assert_int_equal(ckpt_device_follow(rig->device, number(w->compute), &rig->err), 0);
		for (unsigned k = 0; k < 4; k++) {
			struct ckpt_copy *copy = &loop_copies[step][k];

			/* Four slots: the one of the last step must be back. */
			await_inbox(&rig->inbox, step == 0 || loop_next + 4 > step * 4 + k,
				inbox_run(&rig->inbox));
			loop_segments[step][k] = whole(w);
			loop_segments[step][k].offset = k * 64;
			loop_segments[step][k].length = 64;
			loop_segments[step][k].staged = w->staged + k * 64;
			*copy = (struct ckpt_copy){.direction = CKPT_COPY_TO_STAGING,
				.segments = &loop_segments[step][k],
				.count = 1};
			copy->job.node.run = look_and_reuse;
			ckpt_device_copy(rig->device, copy);
		}
		if (prng_below(&d, 3) == 0)
			inbox_run(&rig->inbox);
		assert_int_equal(ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL,
					 -1, &rig->err),
			0);
	}
	await_inbox(&rig->inbox, loop_next >= STEPS * 4, inbox_run(&rig->inbox));
	assert_int_equal(loop_wrong, 0);
}

static void a_loop_with_few_slots_sees_each_step_as_it_was(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 30; seed++) {
		if (seed > 1) {
			end();
			start(seed);
		}
		run_loop(&world, seed);
	}
}

static void a_capture_is_left_alone_and_copies_go_on_beside_it(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};
	char *more = cuda_rig_pages(4096);
	struct CUstream_st *captured;
	void *graph;

	/* The legacy stream waits for one that blocks, so it is none to be used either. */
	assert_cuda(rig->api.stream_create_with_priority(&captured, 0, 0));
	uintptr_t streams[] = {number(captured), 0, CKPT_CUDA_STREAM_LEGACY};
	assert_cuda(rig->extra.begin_capture(captured, CKPT_CUDA_MODE_GLOBAL));
	for (size_t i = 0; i < COUNT(streams); i++) {
		memset(&rig->err, 0, sizeof(rig->err));
		assert_int_equal(
			ckpt_device_follow(rig->device, streams[i], &rig->err), CKPT_EUNSUPPORTED);
		assert_non_null(strstr(rig->err.message, "captured into a CUDA graph"));
		memset(&rig->err, 0, sizeof(rig->err));
		assert_int_equal(
			ckpt_device_hold(rig->device, streams[i], CKPT_HOLD_ALL, -1, &rig->err),
			CKPT_EUNSUPPORTED);
		assert_non_null(strstr(rig->err.message, "captured into a CUDA graph"));
	}
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	assert_int_equal(ckpt_device_pin(rig->device, more, 4096, &rig->err), 0);
	cuda_rig_await(rig, 1);
	ckpt_device_unpin(rig->device, more, 4096);
	assert_int_equal(copy.result, 0);
	assert_memory_equal(w->staged, w->bytes, SIZE);
	/* Not spoilt, and no error is left for the framework. */
	assert_cuda(rig->extra.end_capture(captured, &graph));
	assert_cuda(rig->api.get_last_error());
	/* Beside the capture of one that does not block it is. */
	assert_cuda(rig->extra.begin_capture(w->compute, CKPT_CUDA_MODE_GLOBAL));
	assert_int_equal(ckpt_device_follow(rig->device, 0, &rig->err), 0);
	assert_int_equal(ckpt_device_hold(rig->device, 0, CKPT_HOLD_ALL, -1, &rig->err), 0);
	assert_cuda(rig->extra.end_capture(w->compute, &graph));
	assert_cuda(rig->api.stream_destroy(captured));
	cuda_rig_pages_free(more, 4096);
}

static void memory_that_cannot_be_pinned_is_said(void **state)
{
	struct world *w = *state;
	char *more = cuda_rig_pages(SIZE);

	assert_int_equal(
		ckpt_device_pin(rig->device, w->staged + 4096, 4096, &rig->err), CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "4096 bytes of staging memory cannot be pinned"));
	assert_non_null(strstr(rig->err.message, "something else in this process"));
	assert_non_null(strstr(rig->err.message, "cudaErrorHostMemoryAlreadyRegistered"));
	memset(&rig->err, 0, sizeof(rig->err));
	fake->limit_pinned(SIZE + 4096);
	assert_int_equal(ckpt_device_pin(rig->device, more, SIZE, &rig->err), CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "ulimit -l"));
	assert_non_null(strstr(rig->err.message, "cudaErrorMemoryAllocation"));
	assert_int_equal(ckpt_device_pin(rig->device, more, 4096, &rig->err), 0);
	ckpt_device_unpin(rig->device, more, 4096);
	cuda_rig_pages_free(more, SIZE);
}

/* The fake ends a child that calls it. */
static void use_in_child(void *user)
{
	struct world *w = user;
	struct ckpt_error err = {.size = 0};

	if (ckpt_device_pin(rig->device, w->bytes, SIZE, &err) != CKPT_EFORKED)
		_exit(2);
	if (!strstr(err.message, "spawn or forkserver"))
		_exit(3);
	if (ckpt_device_follow(rig->device, number(w->compute), NULL) != CKPT_EFORKED)
		_exit(4);
	if (ckpt_device_hold(rig->device, number(w->compute), CKPT_HOLD_ALL, -1, NULL) !=
		CKPT_EFORKED)
		_exit(5);
	ckpt_device_unpin(rig->device, w->staged, SIZE);
	ckpt_device_close(rig->device);
}

/* At once, though the parent's threads may have held every lock when it was made. */
static void copy_in_child(void *user)
{
	struct ckpt_segment segment = whole(user);
	struct ckpt_copy copy = {0};

	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
}

static void a_forks_child_calls_nothing(void **state)
{
	struct world *w = *state;
	struct ckpt_segment segment = whole(w);
	struct ckpt_copy copy = {0};

	assert_int_equal(child_signal(use_in_child, w), 0);
	assert_int_equal(child_signal(copy_in_child, w), SIGABRT);
	/* And the parent goes on. */
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 1);
	assert_memory_equal(w->staged, w->bytes, SIZE);
}

/* Processes in which the runtime has not been called before; the signals that ended them. */
enum careless { CAREFUL, COPY_UNDER_WAY, STILL_PINNED, CARELESS_WAYS };

static int endings[CARELESS_WAYS];

static void close_carelessly(void *user)
{
	enum careless way = *(enum careless *)user;
	struct ckpt_copy copy = {0};
	struct ckpt_segment segment;

	start(1);
	segment = whole(&world);
	if (way == COPY_UNDER_WAY)
		fake->stop(FAKE_COPIES);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	if (way != COPY_UNDER_WAY)
		cuda_rig_await(rig, 1);
	if (way != STILL_PINNED)
		ckpt_device_unpin(rig->device, world.staged, SIZE);
	ckpt_device_close(rig->device);
}

static void a_close_too_early_stops_the_process(void **state)
{
	(void)state;
	assert_int_equal(endings[CAREFUL], 0);
	for (enum careless way = COPY_UNDER_WAY; way < CARELESS_WAYS; way++)
		assert_int_equal(endings[way], SIGABRT);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(every_byte_goes_to_staging_and_back),
		PROMISE(rows_apart_go_both_ways),
		PROMISE(what_cannot_be_copied_is_said_and_the_rest_goes_on),
		PROMISE(a_large_segment_goes_in_pieces),
		PROMISE(many_short_rows_go_by_a_kernel),
		PROMISE(staged_lines_are_compared_with_the_samples),
		PROMISE(a_stream_that_is_held_does_not_overtake_the_copies),
		PROMISE(without_a_hold_the_bytes_are_of_the_next_step),
		PROMISE(a_stream_can_be_held_for_the_eager_copies_alone),
		PROMISE(segments_of_other_devices_are_passed_over),
		PROMISE(copies_follow_what_was_computed),
		PROMISE(without_a_follow_the_bytes_are_of_the_step_before),
		PROMISE(a_hold_waits_until_the_copies_are_enqueued),
		PROMISE(a_hold_of_more_than_the_queue_takes_waits_for_the_rest),
		PROMISE(a_hold_of_nothing_holds_nothing),
		PROMISE(streams_without_a_handle_are_of_the_tensors_gpu),
		PROMISE(a_stream_of_another_gpu_can_be_held_but_not_followed),
		PROMISE(a_loop_with_few_slots_sees_each_step_as_it_was),
		PROMISE(a_capture_is_left_alone_and_copies_go_on_beside_it),
		PROMISE(memory_that_cannot_be_pinned_is_said),
		PROMISE(a_forks_child_calls_nothing),
		cmocka_unit_test(a_close_too_early_stops_the_process),
	};

	for (enum careless way = CAREFUL; way < CARELESS_WAYS; way++)
		endings[way] = child_signal(close_carelessly, &way);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
