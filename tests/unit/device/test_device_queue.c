/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's queue, on the fake runtime: a large save has room in it while the GPU stands still, early blocks come back
 * before the last is copied, and whatever shares an event or a piece keeps its own bytes and its own failures.
 */
#include <errno.h>
#include <string.h>

#include "cuda/cuda_rig.h"
#include "device/cuda_copy_plan.h"
#include "device/cuda_piece_size.h"
#include "lib/hang.h"
#include "lib/prng.h"

#define BLOCKS 1280
#define BLOCK  ((size_t)4096)
#define SIZE   (BLOCKS * BLOCK)

static struct cuda_rig *rig;
static const struct fake_cuda *fake;
static struct CUstream_st *compute;
static char *device;
static char *staged;
static char *bytes;
static struct ckpt_segment segments[BLOCKS];
static struct ckpt_copy copies[BLOCKS];
static struct ckpt_error errors[BLOCKS];

static const int64_t shape[] = {SIZE};

static int setup(void **state)
{
	struct prng d = {8};

	(void)state;
	rig = cuda_rig_fake();
	fake = rig->fake;
	fake->reset(8);
	cuda_rig_open(rig);
	assert_cuda(
		rig->api.stream_create_with_priority(&compute, CKPT_CUDA_STREAM_NON_BLOCKING, 0));
	device = cuda_rig_device_memory(rig, SIZE);
	staged = cuda_rig_pages(SIZE);
	bytes = cuda_rig_pages(SIZE);
	for (size_t i = 0; i < SIZE; i++)
		bytes[i] = (char)prng_next(&d);
	fake->poke(device, bytes, SIZE);
	assert_int_equal(ckpt_device_pin(rig->device, staged, SIZE, &rig->err), 0);
	memset(copies, 0, sizeof(copies));
	memset(errors, 0, sizeof(errors));
	for (size_t i = 0; i < BLOCKS; i++) {
		errors[i].size = sizeof(errors[i]);
		copies[i].error = &errors[i];
		segments[i] = (struct ckpt_segment){
			.view = {.data = device, .item = 1, .ndim = 1, .shape = shape},
			.offset = i * BLOCK,
			.length = BLOCK,
			.staged = staged + i * BLOCK};
	}
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	fake->stop(0);
	ckpt_device_unpin(rig->device, staged, SIZE);
	assert_cuda(rig->api.stream_destroy(compute));
	assert_int_equal(fake->notes(FAKE_UNPINNED), 0);
	assert_int_equal(fake->notes(FAKE_UNRECORDED), 0);
	cuda_rig_close(rig);
	fake->reset(1);
	cuda_rig_pages_free(staged, SIZE);
	cuda_rig_pages_free(bytes, SIZE);
	return 0;
}

static void copy_all(enum ckpt_copy_direction direction)
{
	for (size_t i = 0; i < BLOCKS; i++)
		cuda_rig_copy(rig, &copies[i], direction, &segments[i], 1);
}

static void hold(enum ckpt_hold which)
{
	assert_int_equal(
		ckpt_device_hold(rig->device, (uintptr_t)compute, which, 60000, &rig->err), 0);
}

/* All of it at once, as the feeder finds it when it was busy: how many share an event does not hang on who is quicker. */
static void copy_all_at_once(void)
{
	fake->block("cudaMemcpyAsync");
	copy_all(CKPT_COPY_TO_STAGING);
	fake->await_blocked();
	fake->stop(FAKE_COPIES);
	fake->block(NULL);
}

static void assert_all(void)
{
	cuda_rig_await(rig, BLOCKS);
	for (size_t i = 0; i < BLOCKS; i++)
		assert_int_equal(copies[i].result, 0);
	for (size_t i = 0; i < BLOCKS; i++)
		assert_memory_equal(segments[i].staged, bytes + i * BLOCK, BLOCK);
}

/* 10 GB in blocks of 8 MiB are as many; nothing of them has been copied when the hold returns. */
static void a_large_save_fits_the_queue_while_the_gpu_stands_still(void **state)
{
	(void)state;
	fake->limit_queue(512);
	fake->stop(FAKE_COPIES);
	copy_all(CKPT_COPY_TO_STAGING);
	hold(CKPT_HOLD_ALL);
	assert_int_equal(fake->notes(FAKE_FULL), 0);
	assert_int_equal(rig->done, 0);
	assert_cuda(fake->fill(device, 1, SIZE, compute));
	fake->stop(0);
	assert_all();
}

/* Whoever digests and writes need not wait for the last byte. */
static void early_blocks_come_back_one_by_one(void **state)
{
	(void)state;
	copy_all_at_once();
	hold(CKPT_HOLD_ALL);
	for (unsigned copied = 1; copied <= 20; copied++) {
		fake->allow(1);
		cuda_rig_await(rig, copied);
	}
	fake->stop(0);
	assert_all();
	/* Blocks of one tensor that lie side by side are one piece from then on. */
	assert_true(fake->calls("cudaEventRecord") < 200);
	assert_true(fake->calls("cudaMemcpyAsync") < 200);
}

/* Slots in any order: no piece is joined over their ends, and the events still are few. */
static void slots_that_lie_apart_are_not_joined(void **state)
{
	(void)state;
	for (size_t i = 0; i < BLOCKS; i++)
		segments[i].staged = staged + (BLOCKS - 1 - i) * BLOCK;
	fake->limit_queue(2 * BLOCKS);
	copy_all_at_once();
	hold(CKPT_HOLD_ALL);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), BLOCKS);
	assert_true(fake->calls("cudaEventRecord") < 150);
	fake->stop(0);
	assert_all();
}

static void copy_to_parts(bool shown)
{
	const size_t part = 4 * (size_t)BLOCK;

	ckpt_device_unpin(rig->device, staged, SIZE);
	for (size_t at = 0; at < SIZE; at += part) {
		if (!shown)
			fake->fail_call("cudaHostGetDevicePointer", 1, CKPT_CUDA_INVALID_VALUE);
		assert_int_equal(ckpt_device_pin(rig->device, staged + at,
					 ckpt_min_u64(part, SIZE - at), &rig->err),
			0);
		assert_int_equal(fake->failed(), !shown);
	}
	fake->fail_call(NULL, 0, 0);
	copy_all_at_once();
	hold(CKPT_HOLD_ALL);
	assert_true(fake->calls("cudaMemcpyAsync") < BLOCKS / 2);
	fake->stop(0);
	assert_all();
	assert_int_equal(fake->notes(FAKE_UNPINNED), 0);
	for (size_t at = part; at < SIZE; at += part)
		ckpt_device_unpin(rig->device, staged + at, part);
}

/* Staging that has grown is pinned in parts. What lies in one is joined, and CUDA is given no copy that lies in two. */
static void pieces_end_where_a_part_that_is_pinned_ends(void **state)
{
	(void)state;
	copy_to_parts(true);
}

/* The copies do not need the GPU's address of it, and CUDA refuses those that lie in two parts all the same. */
static void so_they_do_where_no_part_can_be_shown_to_the_gpu(void **state)
{
	(void)state;
	copy_to_parts(false);
}

/* Two allocations may lie side by side, and no copy goes over the end of one. */
static void tensors_that_lie_side_by_side_are_not_joined(void **state)
{
	static const int64_t one[] = {BLOCK};

	(void)state;
	for (size_t i = 0; i < BLOCKS; i++) {
		segments[i].view.data = device + i * BLOCK;
		segments[i].view.shape = one;
		segments[i].offset = 0;
	}
	fake->limit_queue(2 * BLOCKS);
	copy_all_at_once();
	hold(CKPT_HOLD_ALL);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), BLOCKS);
	fake->stop(0);
	assert_all();
}

static void what_is_joined_goes_back_as_well(void **state)
{
	char *seen = cuda_rig_pages(SIZE);

	(void)state;
	memcpy(staged, bytes, SIZE);
	assert_cuda(fake->fill(device, 0, SIZE, compute));
	assert_cuda(rig->api.stream_synchronize(compute));
	fake->stop(FAKE_COPIES);
	copy_all(CKPT_COPY_FROM_STAGING);
	hold(CKPT_HOLD_ALL);
	fake->stop(0);
	assert_all();
	fake->peek(device, seen, SIZE);
	assert_memory_equal(seen, bytes, SIZE);
	cuda_rig_pages_free(seen, SIZE);
}

/* Copies of both directions one after the other, as of a save beside a restore: each has its own bytes. */
static void directions_are_not_mixed(void **state)
{
	char *seen = cuda_rig_pages(SIZE);

	(void)state;
	memcpy(staged, bytes, SIZE);
	for (size_t i = 0; i < BLOCKS; i += 2)
		memset(staged + i * BLOCK, 0, BLOCK);
	for (size_t i = 1; i < BLOCKS; i += 2)
		fake->poke(device + i * BLOCK, (char[BLOCK]){0}, BLOCK);
	fake->limit_queue(2 * BLOCKS + 100);
	fake->stop(FAKE_COPIES);
	for (size_t i = 0; i < BLOCKS; i++)
		cuda_rig_copy(rig, &copies[i],
			i % 2 ? CKPT_COPY_FROM_STAGING : CKPT_COPY_TO_STAGING, &segments[i], 1);
	fake->stop(0);
	assert_all();
	fake->peek(device, seen, SIZE);
	assert_memory_equal(seen, bytes, SIZE);
	cuda_rig_pages_free(seen, SIZE);
}

/* A stream that is held for an eager copy among many goes on behind that, whatever shares an event behind it. */
static void eager_copies_share_no_event_with_later_ones(void **state)
{
	(void)state;
	for (size_t i = 0; i < 100; i++)
		copies[i].eager = true;
	fake->stop(FAKE_COPIES);
	copy_all(CKPT_COPY_TO_STAGING);
	hold(CKPT_HOLD_EAGER);
	assert_cuda(fake->fill(device, 7, 100 * BLOCK, compute));
	/* At most a piece for each of them. */
	fake->allow(100);
	assert_cuda(rig->api.stream_synchronize(compute));
	fake->stop(0);
	assert_all();
}

/*
 * A piece that fails takes along the copies that it has bytes of, and no other: those that are told that they are good
 * are. Wherever in the queue it is.
 */
static void a_piece_that_fails_fails_its_copies(void **state)
{
	const unsigned nths[] = {1, 5, 34, 40, 60, 90};
	char *empty = cuda_rig_pages(BLOCK);

	(void)state;
	for (size_t n = 0; n < COUNT(nths); n++) {
		unsigned failed = 0;

		memset(staged, 0, SIZE);
		memset(errors, 0, sizeof(errors));
		for (size_t i = 0; i < BLOCKS; i++)
			errors[i].size = sizeof(errors[i]);
		rig->done = 0;
		fake->fail_call("cudaMemcpyAsync", nths[n], CKPT_CUDA_INVALID_VALUE);
		copy_all_at_once();
		hold(CKPT_HOLD_ALL);
		fake->stop(0);
		cuda_rig_await(rig, BLOCKS);
		assert_true(fake->failed());
		fake->fail_call(NULL, 0, 0);
		for (size_t i = 0; i < BLOCKS; i++) {
			bool bad = copies[i].result < 0;

			failed += bad;
			if (bad) {
				assert_int_equal(copies[i].result, CKPT_EDEVICE);
				assert_non_null(strstr(errors[i].message, "cudaMemcpyAsync"));
			}
			assert_memory_equal(
				staged + i * BLOCK, bad ? empty : bytes + i * BLOCK, BLOCK);
		}
		assert_true(failed >= 1 && failed <= 32);
		assert_true(nths[n] > 32 || failed == 1);
	}
	cuda_rig_pages_free(empty, BLOCK);
}

/* Nor the one that comes next in the group: slots that lie apart are a piece each. */
static void a_piece_of_one_copy_fails_that_one_alone(void **state)
{
	const unsigned nths[] = {70, 71, 90, 100, 200};

	(void)state;
	for (size_t i = 0; i < BLOCKS; i++)
		segments[i].staged = staged + (BLOCKS - 1 - i) * BLOCK;
	fake->limit_queue(2 * BLOCKS);
	for (size_t n = 0; n < COUNT(nths); n++) {
		rig->done = 0;
		fake->fail_call("cudaMemcpyAsync", nths[n], CKPT_CUDA_INVALID_VALUE);
		copy_all_at_once();
		hold(CKPT_HOLD_ALL);
		fake->stop(0);
		cuda_rig_await(rig, BLOCKS);
		assert_true(fake->failed());
		fake->fail_call(NULL, 0, 0);
		for (size_t i = 0; i < BLOCKS; i++)
			assert_int_equal(copies[i].result, i + 1 == nths[n] ? CKPT_EDEVICE : 0);
	}
}

/* The event of many is not recorded, or waiting for it fails: all of them have failed, and none comes back too early. */
static void an_event_that_fails_fails_all_that_share_it(void **state)
{
	static const char *const functions[] = {"cudaEventRecord", "cudaEventSynchronize"};

	(void)state;
	for (size_t f = 0; f < COUNT(functions); f++) {
		unsigned failed = 0;

		memset(errors, 0, sizeof(errors));
		for (size_t i = 0; i < BLOCKS; i++)
			errors[i].size = sizeof(errors[i]);
		rig->done = 0;
		fake->fail_call(functions[f], 60, CKPT_CUDA_INVALID_VALUE);
		copy_all_at_once();
		hold(CKPT_HOLD_ALL);
		fake->stop(0);
		cuda_rig_await(rig, BLOCKS);
		assert_true(fake->failed());
		fake->fail_call(NULL, 0, 0);
		for (size_t i = 0; i < BLOCKS; i++) {
			assert_memory_equal(staged + i * BLOCK, bytes + i * BLOCK, BLOCK);
			if (copies[i].result == 0)
				continue;
			failed++;
			assert_int_equal(copies[i].result, CKPT_EDEVICE);
			assert_non_null(strstr(errors[i].message, functions[f]));
		}
		assert_true(failed > 1 && failed <= 32);
	}
}

static bool asked;

static void answer(struct ckpt_node *node)
{
	(void)node;
	asked = true;
}

/*
 * What is stopped while the queue is full is given to the device no more, but for the call that stands there; whoever
 * asks is answered then, though the GPU stands still.
 */
static void what_is_stopped_is_not_enqueued(void **state)
{
	struct ckpt_copy ask = {.direction = CKPT_COPY_NOTHING, .job.node.run = answer};
	atomic_bool stop = false;
	uint64_t given;

	(void)state;
	asked = false;
	for (size_t i = 0; i < BLOCKS; i++)
		copies[i].stop = &stop;
	fake->limit_queue(64);
	fake->stop(FAKE_COPIES);
	copy_all(CKPT_COPY_TO_STAGING);
	await(fake->notes(FAKE_FULL) > 0);
	given = fake->calls("cudaMemcpyAsync");
	atomic_store(&stop, true);
	ckpt_device_copy(rig->device, &ask);
	fake->limit_queue(80);
	hold(CKPT_HOLD_ALL);
	for (struct ckpt_node *n = ckpt_inbox_take(&rig->inbox), *next; n; n = next) {
		next = n->next;
		n->run(n);
	}
	assert_true(asked);
	assert_true(rig->done < BLOCKS);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), given);
	fake->stop(0);
	cuda_rig_await(rig, BLOCKS);
	assert_int_equal(fake->calls("cudaMemcpyAsync"), given);
	for (size_t i = 0; i < BLOCKS; i++) {
		assert_true(copies[i].result == 0 || copies[i].result == -ECANCELED);
		if (copies[i].result == 0)
			assert_memory_equal(segments[i].staged, bytes + i * BLOCK, BLOCK);
	}
	assert_int_equal(copies[0].result, 0);
	assert_int_equal(copies[BLOCKS - 1].result, -ECANCELED);
}

#define MIB ((size_t)1 << 20)

/* So many copies of 1 MiB, of which the clock says that each takes so long. */
static void copy_at(char *from, char *to, unsigned count, uint64_t each_ns)
{
	static const int64_t one[] = {MIB};
	uint64_t waits = fake->calls("cudaEventSynchronize");

	fake->stop(FAKE_COPIES);
	rig->done = 0;
	for (unsigned i = 0; i < count; i++) {
		segments[i] = (struct ckpt_segment){
			.view = {.data = from, .item = 1, .ndim = 1, .shape = one},
			.length = MIB,
			.staged = to};
		copies[i] = (struct ckpt_copy){.error = &errors[i]};
		cuda_rig_copy(rig, &copies[i], CKPT_COPY_TO_STAGING, &segments[i], 1);
	}
	hold(CKPT_HOLD_ALL);
	for (unsigned i = 0; i < count; i++) {
		await(fake->calls("cudaEventSynchronize") >= waits + i + 1);
		rig->now_ns += each_ns;
		fake->allow(1);
		cuda_rig_await(rig, i + 1);
	}
	fake->stop(0);
}

/* How many pieces 32 MiB are. */
static uint64_t pieces_of_a_large_copy(char *from, char *to)
{
	static const int64_t large[] = {32 * MIB};
	struct ckpt_segment segment = {.view = {.data = from, .item = 1, .ndim = 1, .shape = large},
		.length = 32 * MIB,
		.staged = to};
	struct ckpt_copy copy = {.error = &errors[0]};
	uint64_t before = fake->calls("cudaMemcpyAsync");

	rig->done = 0;
	cuda_rig_copy(rig, &copy, CKPT_COPY_TO_STAGING, &segment, 1);
	cuda_rig_await(rig, 1);
	assert_int_equal(copy.result, 0);
	return fake->calls("cudaMemcpyAsync") - before;
}

/* By the clock of the environment, on the device's own threads. */
static void pieces_are_as_large_as_the_bus_is_fast(void **state)
{
	char *from = cuda_rig_device_memory(rig, 32 * MIB);
	char *to = cuda_rig_pages(32 * MIB);

	(void)state;
	assert_int_equal(ckpt_device_pin(rig->device, to, 32 * MIB, &rig->err), 0);
	assert_int_equal(pieces_of_a_large_copy(from, to), 4);
	/* 1 GB/s; what is measured is between two, so it is one more. */
	copy_at(from, to, 9, 1000000);
	assert_int_equal(pieces_of_a_large_copy(from, to), 8);
	copy_at(from, to, 25, 1000000);
	assert_int_equal(pieces_of_a_large_copy(from, to), 32);
	/* A stall of a second changes nothing, and 300 GB/s everything. */
	copy_at(from, to, 20, 3500);
	copy_at(from, to, 2, 1000000000);
	copy_at(from, to, 30, 3500);
	assert_int_equal(pieces_of_a_large_copy(from, to), 1);
	ckpt_device_unpin(rig->device, to, 32 * MIB);
	assert_cuda(rig->api.free(from));
	cuda_rig_pages_free(to, 32 * MIB);
}

/* 1,280 blocks of 8 MiB that lie together, or that lie apart in the GPU's memory, by the rules alone. */
static unsigned entries_of(unsigned blocks, uint64_t block, uint64_t joined_max)
{
	struct ckpt_cuda_piece_size pace;
	uint64_t queued = 0;

	ckpt_cuda_piece_size_init(&pace);
	while (blocks > 0) {
		unsigned n = ckpt_cuda_piece_size_copies(queued);
		uint64_t piece =
			ckpt_min_u64(ckpt_cuda_piece_size_piece(&pace, queued), joined_max);

		n = n < blocks ? n : blocks;
		queued += (n * block + piece - 1) / piece + 1;
		blocks -= n;
	}
	return (unsigned)queued;
}

static void the_rules_keep_ten_gigabytes_within_a_queue(void **state)
{
	const uint64_t block = UINT64_C(8) << 20;
	struct ckpt_cuda_piece_size pace;

	(void)state;
	ckpt_cuda_piece_size_init(&pace);
	assert_true(entries_of(1280, block, UINT64_MAX) <= 500);
	/* Nothing can be joined, as of slots that lie apart: an entry each is what there is, and few events. */
	assert_true(entries_of(1280, block, block) <= 1280 + 100);
	for (uint64_t queued = 0; queued < 5000; queued++) {
		assert_true(ckpt_cuda_piece_size_copies(queued) >= 1);
		assert_true(ckpt_cuda_piece_size_copies(queued) <= 32);
		assert_true(ckpt_cuda_piece_size_piece(&pace, queued) <= CKPT_CUDA_PIECE_MAX);
		assert_true(ckpt_cuda_piece_size_piece(&pace, queued) >= CKPT_CUDA_PIECE);
	}
	assert_int_equal(ckpt_cuda_piece_size_copies(60), 1);
}

#define PROMISE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PROMISE(a_large_save_fits_the_queue_while_the_gpu_stands_still),
		PROMISE(early_blocks_come_back_one_by_one),
		PROMISE(slots_that_lie_apart_are_not_joined),
		PROMISE(pieces_end_where_a_part_that_is_pinned_ends),
		PROMISE(so_they_do_where_no_part_can_be_shown_to_the_gpu),
		PROMISE(tensors_that_lie_side_by_side_are_not_joined),
		PROMISE(what_is_joined_goes_back_as_well),
		PROMISE(directions_are_not_mixed),
		PROMISE(eager_copies_share_no_event_with_later_ones),
		PROMISE(a_piece_that_fails_fails_its_copies),
		PROMISE(a_piece_of_one_copy_fails_that_one_alone),
		PROMISE(an_event_that_fails_fails_all_that_share_it),
		PROMISE(what_is_stopped_is_not_enqueued),
		PROMISE(pieces_are_as_large_as_the_bus_is_fast),
		cmocka_unit_test(the_rules_keep_ten_gigabytes_within_a_queue),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
