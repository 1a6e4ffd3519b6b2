/* SPDX-License-Identifier: Apache-2.0 */
/* The fake CUDA runtime objects to what it is there to object to. */
#include <string.h>

#include "cuda/cuda_rig.h"
#include "lib/child.h"

#define SIZE 8192

static struct cuda_rig *rig;
static const struct ckpt_cuda_api *cuda;
static struct CUstream_st *stream;
static struct CUevent_st *event;
static char *device;
static char host[SIZE] __attribute__((aligned(4096)));

static int setup(void **state)
{
	(void)state;
	rig = cuda_rig_fake();
	cuda = &rig->api;
	rig->fake->reset(3);
	assert_cuda(cuda->stream_create_with_priority(&stream, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	assert_cuda(cuda->event_create_with_flags(&event, CKPT_CUDA_EVENT_DISABLE_TIMING));
	device = cuda_rig_device_memory(rig, SIZE);
	rig->fake->forgive(true);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	rig->fake->forgive(true);
	rig->fake->reset(3);
	return 0;
}

static void assert_forbidden(const char *words)
{
	assert_non_null(strstr(rig->fake->forbidden(), words));
	rig->fake->forgive(true);
}

static void what_was_destroyed_is_not_used(void **state)
{
	(void)state;
	assert_cuda(cuda->event_destroy(event));
	assert_int_equal(rig->fake->live(FAKE_EVENTS), 0);
	(void)cuda->event_record(event, stream);
	assert_forbidden("cudaEventRecord() of an event that was destroyed");
	(void)cuda->event_destroy(event);
	assert_forbidden("cudaEventDestroy() of an event that was destroyed");
	assert_cuda(cuda->stream_destroy(stream));
	(void)cuda->memcpy_async(host, device, 1, CKPT_CUDA_DEVICE_TO_HOST, stream);
	assert_forbidden("cudaMemcpyAsync() of a stream that was destroyed");
	assert_int_equal(rig->fake->live(FAKE_STREAMS), 0);
}

static void a_captured_stream_is_left_alone(void **state)
{
	void *graph;

	(void)state;
	assert_cuda(rig->extra.begin_capture(stream, CKPT_CUDA_MODE_GLOBAL));
	(void)cuda->event_record(event, stream);
	assert_forbidden("cudaEventRecord() of a stream that is being captured");
	(void)cuda->stream_wait_event(stream, event, 0);
	assert_forbidden("cudaStreamWaitEvent() of a stream that is being captured");
	(void)cuda->memcpy_async(host, device, 1, CKPT_CUDA_DEVICE_TO_HOST, stream);
	assert_forbidden("cudaMemcpyAsync() to a stream that is being captured");
	assert_cuda(rig->extra.end_capture(stream, &graph));
}

static void assert_status(struct CUstream_st *of, int error, int wanted)
{
	int status = -1;

	assert_int_equal(cuda->stream_is_capturing(of, &status), error);
	assert_int_equal(error ? wanted : status, wanted);
}

/* Only of blocking streams, and of the same GPU. */
static void the_legacy_stream_minds_the_captures_of_those_it_waits_for(void **state)
{
	struct CUstream_st *blocking;
	void *graph;

	(void)state;
	assert_cuda(rig->extra.begin_capture(stream, CKPT_CUDA_MODE_RELAXED));
	assert_status(NULL, 0, CKPT_CUDA_CAPTURE_NONE);
	assert_cuda(cuda->event_record(event, NULL));
	assert_cuda(rig->extra.end_capture(stream, &graph));
	assert_cuda(cuda->stream_create_with_priority(&blocking, 0, 0));
	assert_cuda(rig->extra.begin_capture(blocking, CKPT_CUDA_MODE_RELAXED));
	assert_status(blocking, 0, CKPT_CUDA_CAPTURE_ACTIVE);
	assert_status(NULL, CKPT_CUDA_STREAM_CAPTURE_IMPLICIT, 0);
	assert_status((struct CUstream_st *)CKPT_CUDA_STREAM_LEGACY,
		CKPT_CUDA_STREAM_CAPTURE_IMPLICIT, 0);
	assert_status((struct CUstream_st *)CKPT_CUDA_STREAM_PER_THREAD, 0, CKPT_CUDA_CAPTURE_NONE);
	assert_cuda(cuda->set_device(1));
	assert_status(NULL, 0, CKPT_CUDA_CAPTURE_NONE);
	assert_cuda(cuda->set_device(0));
	assert_string_equal(rig->fake->forbidden(), "");
	assert_int_equal(cuda->event_record(event, NULL), CKPT_CUDA_STREAM_CAPTURE_IMPLICIT);
	assert_forbidden("cudaEventRecord() of the legacy stream while another is captured");
	assert_int_equal(
		rig->extra.end_capture(blocking, &graph), CKPT_CUDA_STREAM_CAPTURE_INVALIDATED);
}

static void streams_and_events_are_of_the_gpu_that_was_current(void **state)
{
	struct CUstream_st *const per_thread = (struct CUstream_st *)CKPT_CUDA_STREAM_PER_THREAD;
	struct CUstream_st *other_stream;
	struct CUevent_st *other_event;

	(void)state;
	assert_cuda(cuda->set_device(1));
	assert_cuda(cuda->stream_create_with_priority(&other_stream, 0, 0));
	assert_cuda(cuda->event_create_with_flags(&other_event, CKPT_CUDA_EVENT_DISABLE_TIMING));
	assert_cuda(cuda->event_record(other_event, other_stream));
	assert_int_equal(
		cuda->event_record(event, other_stream), CKPT_CUDA_INVALID_RESOURCE_HANDLE);
	assert_int_equal(
		cuda->event_record(other_event, stream), CKPT_CUDA_INVALID_RESOURCE_HANDLE);
	/* To wait for one of another is allowed. */
	assert_cuda(cuda->stream_wait_event(stream, other_event, 0));
	for (uintptr_t number = 0; number <= CKPT_CUDA_STREAM_PER_THREAD; number++) {
		struct CUstream_st *numbered = (struct CUstream_st *)number;

		assert_cuda(cuda->set_device(1));
		assert_cuda(cuda->event_record(other_event, numbered));
		assert_int_equal(
			cuda->event_record(event, numbered), CKPT_CUDA_INVALID_RESOURCE_HANDLE);
		assert_cuda(cuda->set_device(0));
		assert_cuda(cuda->event_record(event, numbered));
		assert_int_equal(cuda->event_record(other_event, numbered),
			CKPT_CUDA_INVALID_RESOURCE_HANDLE);
	}
	assert_cuda(cuda->stream_synchronize(per_thread));
	assert_string_equal(rig->fake->forbidden(), "");
}

static void copies_are_between_the_device_and_the_host(void **state)
{
	(void)state;
	assert_int_equal(cuda->memcpy_async(host, host + 64, 64, CKPT_CUDA_DEVICE_TO_HOST, stream),
		CKPT_CUDA_INVALID_VALUE);
	assert_forbidden("no device memory");
	assert_int_equal(
		cuda->memcpy_async(host, device + SIZE - 63, 64, CKPT_CUDA_DEVICE_TO_HOST, stream),
		CKPT_CUDA_INVALID_VALUE);
	assert_forbidden("no device memory");
	/* Rows up to the last byte, and to the one behind it. */
	assert_cuda(cuda->memcpy_2d_async(host, 64, device + SIZE - 3 * 100 - 64, 100, 64, 4,
		CKPT_CUDA_DEVICE_TO_HOST, stream));
	assert_string_equal(rig->fake->forbidden(), "");
	assert_int_equal(cuda->memcpy_2d_async(host, 64, device + SIZE - 3 * 100 - 63, 100, 64, 4,
				 CKPT_CUDA_DEVICE_TO_HOST, stream),
		CKPT_CUDA_INVALID_VALUE);
	assert_forbidden("no device memory");
}

static void what_is_hardly_meant_is_counted(void **state)
{
	(void)state;
	assert_cuda(cuda->memcpy_async(host, device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, stream));
	assert_int_equal(rig->fake->notes(FAKE_UNPINNED), 1);
	assert_cuda(cuda->stream_wait_event(stream, event, 0));
	assert_cuda(cuda->event_synchronize(event));
	assert_int_equal(rig->fake->notes(FAKE_UNRECORDED), 2);
	assert_string_equal(rig->fake->forbidden(), "");
}

static void memory_is_not_unpinned_under_a_copy(void **state)
{
	(void)state;
	assert_cuda(cuda->host_register(host, SIZE, CKPT_CUDA_HOST_REGISTER_PORTABLE));
	rig->fake->stop(FAKE_COPIES);
	assert_cuda(cuda->memcpy_async(host, device, SIZE, CKPT_CUDA_DEVICE_TO_HOST, stream));
	assert_cuda(cuda->host_unregister(host));
	assert_forbidden("unpinned under a copy");
	rig->fake->stop(0);
	assert_cuda(cuda->stream_synchronize(stream));
}

static void call(void *user)
{
	(void)user;
	(void)cuda->event_query(event);
}

static void touch(void *user)
{
	(void)user;
	*(volatile char *)device = 1;
}

static void look(void *user)
{
	(void)user;
	(void)*(volatile char *)(device + SIZE - 1);
}

static void nothing(void *user)
{
	(void)user;
}

static void the_host_does_not_touch_the_device_nor_a_child_call_it(void **state)
{
	(void)state;
	assert_int_equal(child_signal(nothing, NULL), 0);
	assert_int_equal(child_signal(call, NULL), SIGABRT);
	assert_int_equal(child_signal(touch, NULL), SIGSEGV);
	assert_int_equal(child_signal(look, NULL), SIGSEGV);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(what_was_destroyed_is_not_used, setup, teardown),
		cmocka_unit_test_setup_teardown(a_captured_stream_is_left_alone, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_legacy_stream_minds_the_captures_of_those_it_waits_for, setup,
			teardown),
		cmocka_unit_test_setup_teardown(
			streams_and_events_are_of_the_gpu_that_was_current, setup, teardown),
		cmocka_unit_test_setup_teardown(
			copies_are_between_the_device_and_the_host, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_hardly_meant_is_counted, setup, teardown),
		cmocka_unit_test_setup_teardown(
			memory_is_not_unpinned_under_a_copy, setup, teardown),
		cmocka_unit_test_setup_teardown(
			the_host_does_not_touch_the_device_nor_a_child_call_it, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
