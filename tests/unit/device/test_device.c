/* SPDX-License-Identifier: Apache-2.0 */
/* Copies through the table, the host device on real workers, and what a changed tensor looks like. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "device/device.h"
#include "lib/child.h"
#include "lib/hang_inbox.h"

#define TENSORS 300

struct world {
	struct ckpt_inbox inbox;
	struct ckpt_env_os *os;
	struct ckpt_device *device;
	char *tensors;
	char *staged;
	size_t bytes;
	struct ckpt_segment segments[TENSORS];
	int64_t shapes[TENSORS];
};

static unsigned copies_done;

static void count_done(struct ckpt_node *node)
{
	(void)node;
	copies_done++;
}

/* Tensors of 1 to 4,000 bytes one after the other in memory, and as many segments. */
static int setup(void **state)
{
	struct world *w = calloc(1, sizeof(*w));

	assert_non_null(w);
	assert_int_equal(ckpt_inbox_init(&w->inbox), 0);
	assert_int_equal(ckpt_env_os_open(2, &w->inbox, &w->os), 0);
	assert_int_equal(ckpt_device_host_open(ckpt_env_os_env(w->os), &w->device), 0);
	for (size_t i = 0; i < TENSORS; i++) {
		w->shapes[i] = (int64_t)(1 + i * 4000 / TENSORS);
		w->bytes += (size_t)w->shapes[i];
	}
	w->tensors = malloc(w->bytes);
	w->staged = calloc(1, w->bytes);
	assert_non_null(w->tensors);
	assert_non_null(w->staged);
	for (size_t i = 0; i < w->bytes; i++)
		w->tensors[i] = (char)(i * 13 + i / 251);
	for (size_t i = 0, at = 0; i < TENSORS; at += (size_t)w->shapes[i], i++)
		w->segments[i] = (struct ckpt_segment){
			.view = {.data = w->tensors + at,
				.item = 1,
				.ndim = 1,
				.shape = &w->shapes[i]},
			.length = (uint64_t)w->shapes[i],
			.staged = w->staged + at,
			.tensor = (uint32_t)i,
		};
	copies_done = 0;
	*state = w;
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	ckpt_device_close(w->device);
	ckpt_env_os_close(w->os);
	ckpt_inbox_destroy(&w->inbox);
	free(w->tensors);
	free(w->staged);
	free(w);
	return 0;
}

/* Lets the inbox's nodes run, as the core does, until so many copies have come back. */
static void run_until_done(struct world *w, unsigned count)
{
	await_inbox(&w->inbox, copies_done >= count, inbox_run(&w->inbox));
	assert_int_equal(copies_done, count);
}

static struct ckpt_copy make_copy(struct world *w, enum ckpt_copy_direction direction)
{
	struct ckpt_copy copy = {.direction = direction, .segments = w->segments, .count = TENSORS};

	copy.job.node.run = count_done;
	return copy;
}

static void take_samples(struct world *w, uint64_t seed)
{
	for (size_t i = 0; i < TENSORS; i++)
		w->segments[i].sample = ckpt_segment_sample(&w->segments[i], seed, false);
}

static void many_tensors_go_to_staging_and_back(void **state)
{
	struct world *w = *state;
	struct ckpt_copy there = make_copy(w, CKPT_COPY_TO_STAGING);
	struct ckpt_copy back = make_copy(w, CKPT_COPY_FROM_STAGING);

	there.sampled = true;
	there.seed = 5;
	there.torn = 99;
	there.result = 99;
	take_samples(w, 5);
	ckpt_device_copy(w->device, &there);
	run_until_done(w, 1);
	assert_int_equal(there.torn, -1);
	assert_int_equal(there.result, 0);
	assert_memory_equal(w->staged, w->tensors, w->bytes);
	memset(w->tensors, 0, w->bytes);
	ckpt_device_copy(w->device, &back);
	run_until_done(w, 2);
	assert_int_equal(back.result, 0);
	assert_memory_equal(w->staged, w->tensors, w->bytes);
}

static void copies_run_beside_each_other(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copies[TENSORS];

	for (size_t i = 0; i < TENSORS; i++) {
		copies[i] = make_copy(w, CKPT_COPY_TO_STAGING);
		copies[i].segments = &w->segments[i];
		copies[i].count = 1;
		copies[i].job.urgent = i % 7 == 0;
		ckpt_device_copy(w->device, &copies[i]);
	}
	run_until_done(w, TENSORS);
	assert_memory_equal(w->staged, w->tensors, w->bytes);
}

static void a_copy_of_nothing_comes_back(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_TO_STAGING);

	copy.segments = NULL;
	copy.count = 0;
	copy.sampled = true;
	ckpt_device_copy(w->device, &copy);
	run_until_done(w, 1);
	assert_int_equal(copy.torn, -1);
}

/* Lines changed between the sample and the copy: the first segment in the copy's order is named. */
static void a_changed_line_is_noticed_and_the_first_segment_named(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_TO_STAGING);
	struct ckpt_segment *last = &w->segments[TENSORS - 1];

	copy.sampled = true;
	copy.seed = 5;
	take_samples(w, 5);
	last->view.data[last->length - 1] ^= 1;
	ckpt_device_copy(w->device, &copy);
	run_until_done(w, 1);
	assert_int_equal(copy.torn, TENSORS - 1);
	w->segments[250].view.data[0] ^= 1;
	w->segments[17].view.data[3] ^= 1;
	ckpt_device_copy(w->device, &copy);
	run_until_done(w, 2);
	assert_int_equal(copy.torn, 17);
	/* The copy is made all the same. */
	assert_int_equal(copy.result, 0);
	assert_memory_equal(w->staged, w->tensors, w->bytes);
}

static void without_sampling_nothing_is_compared(void **state)
{
	struct world *w = *state;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_TO_STAGING);

	w->segments[3].sample = 1234;
	ckpt_device_copy(w->device, &copy);
	run_until_done(w, 1);
	assert_int_equal(copy.torn, -1);
}

static bool refuse(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void no_memory_for_a_device(void **state)
{
	struct world *w = *state;
	struct ckpt_device *device = NULL;

	ckpt_alloc_set_hook(refuse, NULL);
	assert_int_equal(ckpt_device_host_open(ckpt_env_os_env(w->os), &device), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_null(device);
	ckpt_device_close(NULL);
}

static void past_the_end(void *user)
{
	struct world *w = user;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_TO_STAGING);

	w->segments[5].length++;
	ckpt_host_copy_work(&copy.job);
}

static void within(void *user)
{
	struct world *w = user;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_TO_STAGING);

	ckpt_host_copy_work(&copy.job);
}

static void sampled_from_staging(void *user)
{
	struct world *w = user;
	struct ckpt_copy copy = make_copy(w, CKPT_COPY_FROM_STAGING);

	copy.sampled = true;
	ckpt_device_copy(w->device, &copy);
}

static void what_must_not_be_stops_the_process(void **state)
{
	struct world *w = *state;

	assert_int_equal(child_signal(within, w), 0);
	assert_int_equal(child_signal(past_the_end, w), SIGABRT);
	assert_int_equal(child_signal(sampled_from_staging, w), SIGABRT);
}

/* A device that pins: the wrapper passes on what it is given and what it gets. */
static void *pinned;

static int fake_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err)
{
	(void)device;
	pinned = base;
	return size == 64 ? ckpt_fail(err, -ENOMEM, "too small") : 0;
}

static int fake_unpin(struct ckpt_device *device, void *base, size_t size)
{
	(void)device;
	(void)size;
	assert_ptr_equal(base, pinned);
	pinned = NULL;
	return -EIO;
}

static void pinning_is_passed_on(void **state)
{
	static const struct ckpt_device_ops ops = {
		.name = "fake", .pin = fake_pin, .unpin = fake_unpin};
	struct ckpt_device fake = {.ops = &ops};
	struct ckpt_error err = {.size = 0};
	struct world *w = *state;

	assert_int_equal(ckpt_device_pin(&fake, w->staged, w->bytes, &err), 0);
	assert_ptr_equal(pinned, w->staged);
	assert_int_equal(ckpt_device_unpin(&fake, w->staged, w->bytes), -EIO);
	assert_null(pinned);
	assert_int_equal(ckpt_device_pin(&fake, w->staged, 64, &err), -ENOMEM);
	assert_string_equal(err.message, "too small");
	/* The host has nothing to do for it. */
	assert_int_equal(ckpt_device_pin(w->device, w->staged, w->bytes, NULL), 0);
	assert_int_equal(ckpt_device_unpin(w->device, w->staged, w->bytes), 0);
	assert_int_equal(ckpt_device_follow(w->device, 0, NULL), 0);
	assert_int_equal(ckpt_device_hold(w->device, 0, CKPT_HOLD_ALL, 0, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			many_tensors_go_to_staging_and_back, setup, teardown),
		cmocka_unit_test_setup_teardown(copies_run_beside_each_other, setup, teardown),
		cmocka_unit_test_setup_teardown(a_copy_of_nothing_comes_back, setup, teardown),
		cmocka_unit_test_setup_teardown(
			a_changed_line_is_noticed_and_the_first_segment_named, setup, teardown),
		cmocka_unit_test_setup_teardown(
			without_sampling_nothing_is_compared, setup, teardown),
		cmocka_unit_test_setup_teardown(no_memory_for_a_device, setup, teardown),
		cmocka_unit_test_setup_teardown(
			what_must_not_be_stops_the_process, setup, teardown),
		cmocka_unit_test_setup_teardown(pinning_is_passed_on, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
