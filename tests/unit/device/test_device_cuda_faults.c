/* SPDX-License-Identifier: Apache-2.0 */
/* Every call of CUDA that fails, and a device that is lost: said, nothing left behind, and no wait without end. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "cuda/cuda_rig.h"
#include "lib/hang.h"

#define SIZE   ((size_t)32768)
#define PART   (SIZE / 4)
#define COPIES 5

static struct cuda_rig *rig;
static const struct fake_cuda *fake;
static struct CUstream_st *compute;
static char *device;
static char *staged;
static char bytes[SIZE];

static int setup(void **state)
{
	(void)state;
	rig = cuda_rig_fake();
	fake = rig->fake;
	fake->reset(6);
	assert_cuda(
		rig->api.stream_create_with_priority(&compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	device = cuda_rig_device_memory(rig, SIZE);
	staged = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (char)(i * 11 + i / 253);
	fake->poke(device, bytes, SIZE);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake->reset(6);
	cuda_rig_pages_free(staged, SIZE);
	return 0;
}

/* What one life of a device came to. */
struct life {
	int worst; /* CKPT_EDEVICE if anything was */
	struct ckpt_error first;
	bool opened;
	int results[COPIES];
};

static const int64_t part_shape[] = {PART};
static const int64_t row_shape[] = {16, 32};
static const int64_t row_strides[] = {40, 1};

static void take(struct life *life, int result, const struct ckpt_error *err)
{
	if (result == 0 || life->worst < 0)
		return;
	life->worst = result;
	life->first = *err;
}

static void note(struct life *life, int result)
{
	take(life, result, &rig->err);
	memset(&rig->err, 0, sizeof(rig->err));
}

/* Copies of four parts to staging, the last of them rows; then one back, to where it came from. */
static void copy_all(struct life *life)
{
	struct ckpt_segment segments[COPIES];
	struct ckpt_copy copies[COPIES] = {0};
	struct ckpt_error errors[COPIES] = {0};

	rig->done = 0;
	memset(staged, 0, SIZE);
	for (size_t i = 0; i < COPIES; i++) {
		size_t part = i == COPIES - 1 ? 0 : i;

		segments[i] = (struct ckpt_segment){
			.view = {device + part * PART, 1, 1, part_shape, NULL, 0},
			.length = PART,
			.staged = staged + part * PART};
		copies[i].error = &errors[i];
	}
	segments[3].view = (struct ckpt_view){.data = device + 3 * PART,
		.item = 1,
		.ndim = 2,
		.shape = row_shape,
		.strides = row_strides};
	segments[3].length = 16 * 32;
	note(life, ckpt_device_follow(rig->device, (uintptr_t)compute, &rig->err));
	for (size_t i = 0; i < COPIES - 1; i++)
		cuda_rig_copy(rig, &copies[i], CKPT_COPY_TO_STAGING, &segments[i], 1);
	note(life, ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, &rig->err));
	cuda_rig_await(rig, COPIES - 1);
	if (copies[0].result == 0)
		cuda_rig_copy(rig, &copies[4], CKPT_COPY_FROM_STAGING, &segments[4], 1);
	cuda_rig_await(rig, copies[0].result == 0 ? COPIES : COPIES - 1);
	for (size_t i = 0; i < COPIES; i++) {
		life->results[i] = copies[i].result;
		take(life, copies[i].result, &errors[i]);
		/* A code, and a sentence with it; and what is said to be there is there. */
		assert_int_equal(copies[i].result, errors[i].code);
		if (i < 3 && copies[i].result == 0)
			assert_memory_equal(staged + i * PART, bytes + i * PART, PART);
	}
	for (size_t row = 0; row < 16 && copies[3].result == 0; row++)
		assert_memory_equal(staged + 3 * PART + row * 32, bytes + 3 * PART + row * 40, 32);
}

static void live(struct life *life)
{
	int r;

	memset(life, 0, sizeof(*life));
	memset(&rig->err, 0, sizeof(rig->err));
	r = ckpt_device_cuda_open_on(&rig->env, 0, &rig->api, &rig->err, &rig->device);
	note(life, r);
	life->opened = r == 0;
	if (r == 0) {
		int pinned = ckpt_device_pin(rig->device, staged, SIZE, &rig->err);

		note(life, pinned);
		copy_all(life);
		if (pinned == 0)
			ckpt_device_unpin(rig->device, staged, SIZE);
		ckpt_device_close(rig->device);
	}
	assert_int_equal(fake->live(FAKE_STREAMS), 1); /* the test's own */
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
	assert_int_equal(fake->live(FAKE_PINNED), 0);
	assert_int_equal(fake->notes(FAKE_UNRECORDED), 0);
}

static void assert_said(const struct life *life, const char *function, const char *error)
{
	assert_int_equal(life->worst, CKPT_EDEVICE);
	assert_int_equal(life->first.code, CKPT_EDEVICE);
	assert_non_null(strstr(life->first.message, "GPU 0"));
	assert_non_null(strstr(life->first.message, function));
	assert_non_null(strstr(life->first.message, error));
}

/* The function's first call fails, then its second, until there is none. How many there were. */
static unsigned fail_each(const char *function, bool said)
{
	for (unsigned n = 1;; n++) {
		struct life life;

		fake->fail_call(function, n, CKPT_CUDA_MEMORY_ALLOCATION);
		live(&life);
		if (!fake->failed()) {
			fake->fail_call(NULL, 0, 0);
			assert_int_equal(life.worst, 0);
			return n - 1;
		}
		if (said)
			assert_said(&life, function, "cudaErrorMemoryAllocation");
		else
			assert_int_equal(life.worst, 0);
		/* An error that CUDA keeps would be taken for the framework's. */
		assert_cuda(rig->api.get_last_error());
	}
}

static void each_call_that_fails_is_said_and_leaves_nothing(void **state)
{
	static const struct {
		const char *function;
		unsigned calls;
		bool said;
	} all[] = {
		{"cudaGetDeviceCount", 1, true},
		{"cudaSetDevice", 2, true},
		{"cudaThreadExchangeStreamCaptureMode", 2, true},
		{"cudaStreamCreateWithPriority", 1, true},
		{"cudaEventCreateWithFlags", 3, true},
		{"cudaHostRegister", 1, true},
		{"cudaStreamIsCapturing", 2, true},
		/* Asked of streams without a handle alone. */
		{"cudaGetDevice", 0, true},
		{"cudaEventRecord", 7, true},
		{"cudaStreamWaitEvent", 2, true},
		{"cudaMemcpyAsync", 4, true},
		{"cudaMemcpy2DAsync", 1, true},
		{"cudaEventSynchronize", 5, true},
		/* What only destroys can tell nobody, and has done it. */
		{"cudaHostUnregister", 1, false},
		{"cudaEventDestroy", 3, false},
		{"cudaStreamDestroy", 1, false},
		/* Called after a failure alone. */
		{"cudaEventQuery", 0, false},
		{"cudaStreamSynchronize", 0, false},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(all); i++) {
		unsigned calls = fail_each(all[i].function, all[i].said);

		/* An event for each copy that was under way at once: that varies. */
		if (strncmp(all[i].function, "cudaEvent", 9) == 0)
			assert_true(calls >= all[i].calls);
		else
			assert_int_equal(calls, all[i].calls);
	}
}

/* One failed, and the next ones are copied all the same. */
static void a_failure_concerns_its_copy_alone(void **state)
{
	struct life life;

	(void)state;
	fake->fail_call("cudaMemcpyAsync", 2, CKPT_CUDA_INVALID_VALUE);
	live(&life);
	assert_int_equal(life.results[0], 0);
	assert_int_equal(life.results[1], CKPT_EDEVICE);
	assert_int_equal(life.results[2], 0);
	assert_int_equal(life.results[3], 0);
	assert_int_equal(life.results[4], 0);
	assert_said(&life, "cudaMemcpyAsync", "cudaErrorInvalidValue");
}

/* The staging of a copy that has failed is still written to, so it must not come back before. */
static void a_copy_without_an_event_comes_back_when_it_has_ended(void **state)
{
	struct ckpt_segment segment = {
		.view = {device, 1, 1, part_shape, NULL, 0}, .length = PART, .staged = staged};
	struct ckpt_copy copy = {.error = &rig->err};

	(void)state;
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, staged, SIZE, &rig->err), 0);
	fake->stop(FAKE_COPIES);
	fake->fail_call("cudaEventRecord", 1, CKPT_CUDA_INVALID_RESOURCE_HANDLE);
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	await(fake->calls("cudaStreamSynchronize") > 0);
	assert_null(ckpt_inbox_take(&rig->inbox));
	fake->stop(0);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, CKPT_EDEVICE);
	assert_memory_equal(staged, bytes, PART);
	ckpt_device_unpin(rig->device, staged, SIZE);
	ckpt_device_close(rig->device);
}

/* After 0, 1, 2 ... of its copies. */
static void a_lost_device_fails_what_is_under_way_and_all_that_comes(void **state)
{
	struct life life;

	for (unsigned work = 0; work < 8; work++) {
		if (work > 0) {
			assert_int_equal(teardown(state), 0);
			assert_int_equal(setup(state), 0);
		}
		if (work == 0)
			continue;
		fake->die(work, CKPT_CUDA_ILLEGAL_ADDRESS);
		live(&life);
		if (life.worst == 0)
			assert_true(work >= COPIES);
		else
			assert_said(&life, "", "an illegal memory access was encountered");
	}
	/* A device that is lost stays so. */
	assert_int_equal(teardown(state), 0);
	assert_int_equal(setup(state), 0);
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, staged, SIZE, &rig->err), 0);
	fake->stop(FAKE_COPIES);
	struct life first = {0};
	struct ckpt_segment segment = {
		.view = {device, 1, 1, part_shape, NULL, 0}, .length = PART, .staged = staged};
	struct ckpt_copy under_way = {.error = &first.first};

	cuda_rig_copy(rig, &under_way, CKPT_COPY_TO_STAGING, &segment, 1);
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, &rig->err), 0);
	fake->die(0, CKPT_CUDA_ILLEGAL_ADDRESS);
	cuda_rig_await(rig, 1);
	assert_int_equal(under_way.result, CKPT_EDEVICE);
	assert_non_null(strstr(first.first.message, "cudaEventSynchronize"));
	uint64_t calls = fake->calls(NULL);
	struct ckpt_copy later = {.error = &rig->err};
	cuda_rig_copy(rig, &later, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 2);
	assert_int_equal(later.result, CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "GPU 0 has failed for good"));
	assert_non_null(strstr(rig->err.message, "cudaErrorIllegalAddress"));
	assert_int_equal(ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, NULL),
		CKPT_EDEVICE);
	assert_int_equal(ckpt_device_follow(rig->device, (uintptr_t)compute, NULL), CKPT_EDEVICE);
	assert_int_equal(fake->calls(NULL), calls);
	ckpt_device_unpin(rig->device, staged, SIZE);
	ckpt_device_close(rig->device);
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
	assert_int_equal(fake->live(FAKE_STREAMS), 1);
}

/*
 * Three copies to staging: the first is back, the second stands before one gate and the third before another, all
 * of them enqueued.
 */
struct gated {
	struct CUstream_st *stream[2];
	struct cuda_gate gate[2];
	struct ckpt_segment segments[4];
	struct ckpt_copy copies[4];
	struct ckpt_error errors[4];
};

static void submit_gated(struct gated *g, size_t i)
{
	g->segments[i] =
		(struct ckpt_segment){.view = {device + i * PART, 1, 1, part_shape, NULL, 0},
			.length = PART,
			.staged = staged + i * PART};
	g->copies[i].error = &g->errors[i];
	cuda_rig_copy(rig, &g->copies[i], CKPT_COPY_TO_STAGING, &g->segments[i], 1);
}

static void await_fed(void)
{
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, &rig->err), 0);
}

static void start_gated(struct gated *g)
{
	memset(g, 0, sizeof(*g));
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, staged, SIZE, &rig->err), 0);
	submit_gated(g, 0);
	cuda_rig_await(rig, 1);
	for (size_t i = 0; i < 2; i++) {
		assert_cuda(rig->api.stream_create_with_priority(
			&g->stream[i], CKPT_CUDA_STREAM_NON_BLOCKING, 0));
		cuda_gate_add(rig, &g->gate[i], g->stream[i]);
		assert_int_equal(
			ckpt_device_follow(rig->device, (uintptr_t)g->stream[i], &rig->err), 0);
		submit_gated(g, i + 1);
		await_fed();
	}
}

/* Until the function has been called so often. Nothing may come back before. */
static void await_calls(const char *function, uint64_t calls)
{
	await(ckpt_inbox_take(&rig->inbox) || fake->calls(function) >= calls);
	assert_int_equal(fake->calls(function), calls);
	assert_null(ckpt_inbox_take(&rig->inbox));
}

static void end_gated(struct gated *g, unsigned done)
{
	cuda_gate_open(&g->gate[0]);
	cuda_gate_open(&g->gate[1]);
	cuda_rig_await(rig, done);
	/* All of it was copied before it came back, whatever is said of it. */
	for (size_t i = 0; i < 3; i++)
		assert_memory_equal(staged + i * PART, bytes + i * PART, PART);
	ckpt_device_unpin(rig->device, staged, SIZE);
	ckpt_device_close(rig->device);
	for (size_t i = 0; i < 2; i++) {
		(void)rig->api.stream_synchronize(g->stream[i]);
		(void)rig->api.stream_destroy(g->stream[i]);
	}
	assert_string_equal(fake->forbidden(), "");
}

/* Every call fails, but the copies are still made: their staging is nobody else's until then. */
static void a_lost_device_keeps_what_it_may_still_write_to(void **state)
{
	struct gated g;

	(void)state;
	start_gated(&g);
	fake->lose(CKPT_CUDA_ILLEGAL_ADDRESS);
	submit_gated(&g, 3);
	cuda_rig_await(rig, 2);
	assert_int_equal(g.copies[3].result, CKPT_EDEVICE);
	assert_int_equal(ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, NULL),
		CKPT_EDEVICE);
	/* The second: its event says nothing that can be relied on, so the whole stream is waited for. */
	cuda_gate_open(&g.gate[0]);
	await_calls("cudaStreamSynchronize", 1);
	end_gated(&g, 4);
	assert_int_equal(g.copies[1].result, CKPT_EDEVICE);
	assert_int_equal(g.copies[2].result, CKPT_EDEVICE);
	assert_non_null(strstr(g.errors[2].message, "GPU 0 has failed for good"));
}

/* That a device is lost is found by a call that fails after one that has failed; what was enqueued goes on. */
static void a_query_that_fails_after_a_failure_means_lost(void **state)
{
	struct gated g;

	(void)state;
	start_gated(&g);
	fake->fail_call("cudaMemcpyAsync", 1, CKPT_CUDA_INVALID_VALUE);
	fake->fail_call("cudaEventQuery", 1, CKPT_CUDA_ILLEGAL_ADDRESS);
	submit_gated(&g, 3);
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL, -1, &rig->err),
		CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "GPU 0 has failed for good: cudaMemcpyAsync"));
	assert_true(fake->failed());
	/* The second was waited for when that was found, or not yet; the third was not. */
	cuda_gate_open(&g.gate[0]);
	cuda_rig_await(rig, 2);
	await_calls("cudaEventSynchronize", 3);
	end_gated(&g, 4);
	assert_int_equal(g.copies[2].result, CKPT_EDEVICE);
	assert_int_equal(g.copies[3].result, CKPT_EDEVICE);
	assert_non_null(strstr(g.errors[3].message, "cudaMemcpyAsync"));
}

/* Of a copy without an event. The call that fails once is made again; when it fails again nothing more can be asked. */
static void a_wait_that_fails_is_tried_again(void **state)
{
	struct gated g;

	for (unsigned failures = 1; failures <= 2; failures++) {
		if (failures > 1) {
			assert_int_equal(teardown(state), 0);
			assert_int_equal(setup(state), 0);
		}
		start_gated(&g);
		/* So that the copy without an event is the one that is waited for next. */
		cuda_gate_open(&g.gate[0]);
		cuda_gate_open(&g.gate[1]);
		cuda_rig_await(rig, 3);
		fake->stop(FAKE_COPIES);
		fake->fail_call("cudaEventRecord", 1, CKPT_CUDA_INVALID_RESOURCE_HANDLE);
		for (unsigned i = 1; i <= failures; i++)
			fake->fail_call("cudaStreamSynchronize", i, CKPT_CUDA_ILLEGAL_ADDRESS);
		submit_gated(&g, 3);
		if (failures == 1)
			await_calls("cudaStreamSynchronize", 2);
		else
			cuda_rig_await(rig, 4);
		/* Of a context that has ended nothing is copied any more. */
		if (failures > 1)
			fake->die(0, CKPT_CUDA_ILLEGAL_ADDRESS);
		fake->stop(0);
		cuda_rig_await(rig, 4);
		assert_true(fake->failed());
		assert_int_equal(g.copies[3].result, CKPT_EDEVICE);
		assert_non_null(strstr(g.errors[3].message, "cudaEventRecord"));
		memset(&rig->err, 0, sizeof(rig->err));
		assert_int_equal(ckpt_device_hold(rig->device, (uintptr_t)compute, CKPT_HOLD_ALL,
					 -1, &rig->err),
			failures == 1 ? 0 : CKPT_EDEVICE);
		if (failures > 1)
			assert_non_null(strstr(rig->err.message, "cudaStreamSynchronize"));
		end_gated(&g, 4);
	}
}

static void a_gpu_that_is_not_there_is_said(void **state)
{
	struct ckpt_device *none = NULL;

	(void)state;
	memset(&rig->err, 0, sizeof(rig->err));
	assert_int_equal(
		ckpt_device_cuda_open_on(&rig->env, 2, &rig->api, &rig->err, &none), CKPT_EDEVICE);
	assert_non_null(strstr(rig->err.message, "GPU 2 is not there: this process sees 2"));
	assert_int_equal(ckpt_device_cuda_open_on(&rig->env, -1, &rig->api, NULL, &none), -EINVAL);
	assert_int_equal(ckpt_device_cuda_open(&rig->env, 0, 11, NULL, &none), CKPT_EUNSUPPORTED);
	assert_null(none);
	/* By its version, as Python asks for it. */
	assert_int_equal(ckpt_device_cuda_open(&rig->env, 1, 12, &rig->err, &none), 0);
	ckpt_device_close(none);
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
}

/* A hook that refuses the nth allocation from now; 0: none. */
static unsigned refuse_in;

static bool refuse_nth(void *user, size_t size)
{
	(void)user;
	(void)size;
	return refuse_in > 0 && --refuse_in == 0;
}

static void no_memory_is_said(void **state)
{
	struct ckpt_device *none = NULL;
	struct ckpt_segment segment = {
		.view = {device, 1, 1, part_shape, NULL, 0}, .length = PART, .staged = staged};
	struct ckpt_copy copies[2] = {{.error = &rig->err}, {.result = 0}};

	(void)state;
	ckpt_alloc_set_hook(refuse_nth, NULL);
	refuse_in = 1;
	assert_int_equal(
		ckpt_device_cuda_open_on(&rig->env, 0, &rig->api, &rig->err, &none), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	cuda_rig_open(rig);
	assert_int_equal(ckpt_device_pin(rig->device, staged, SIZE, &rig->err), 0);
	ckpt_alloc_set_hook(refuse_nth, NULL);
	refuse_in = 1;
	for (unsigned i = 0; i < 2; i++) {
		cuda_rig_copy(rig, &copies[i], CKPT_COPY_TO_STAGING, &segment, 1);
		cuda_rig_await(rig, i + 1);
	}
	assert_int_equal(copies[0].result, -ENOMEM);
	assert_int_equal(rig->err.code, -ENOMEM);
	assert_int_equal(copies[1].result, 0);
	assert_memory_equal(staged, bytes, PART);
	ckpt_device_unpin(rig->device, staged, SIZE);
	ckpt_device_close(rig->device);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(fake->live(FAKE_EVENTS), 0);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(each_call_that_fails_is_said_and_leaves_nothing),
		PROMISE(a_failure_concerns_its_copy_alone),
		PROMISE(a_copy_without_an_event_comes_back_when_it_has_ended),
		PROMISE(a_lost_device_fails_what_is_under_way_and_all_that_comes),
		PROMISE(a_lost_device_keeps_what_it_may_still_write_to),
		PROMISE(a_query_that_fails_after_a_failure_means_lost),
		PROMISE(a_wait_that_fails_is_tried_again),
		PROMISE(a_gpu_that_is_not_there_is_said),
		PROMISE(no_memory_is_said),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
