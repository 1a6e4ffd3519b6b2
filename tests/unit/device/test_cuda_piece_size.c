/* SPDX-License-Identifier: Apache-2.0 */
/* How large pieces become on buses of all kinds, by a clock that the test moves. */
#include "lib/test.h"

#include "device/cuda_copy_plan.h"
#include "device/cuda_piece_size.h"
#include "lib/prng.h"

#define MIB  (UINT64_C(1) << 20)
#define GB_S 1000000000.0

struct bus {
	struct ckpt_cuda_piece_size pace;
	uint64_t now_ns;
	uint64_t bytes; /* of a group */
};

static struct bus new_bus(void)
{
	struct bus bus = {.now_ns = 1000, .bytes = 8 * MIB};

	ckpt_cuda_piece_size_init(&bus.pace);
	return bus;
}

/* A group that comes `ns` after the one before. */
static void done_after(struct bus *bus, uint64_t ns, bool waited, bool more)
{
	struct ckpt_cuda_done done = {.bytes = bus->bytes, .waited = waited, .more = more};

	bus->now_ns += ns;
	done.at_ns = bus->now_ns;
	ckpt_cuda_piece_size_measure(&bus->pace, &done);
}

static uint64_t time_of(const struct bus *bus, double rate)
{
	return (uint64_t)((double)bus->bytes / rate * 1e9);
}

static void run(struct bus *bus, double rate, unsigned groups)
{
	for (unsigned i = 0; i < groups; i++)
		done_after(bus, time_of(bus, rate), true, true);
}

static void a_piece_is_what_the_bus_takes_in_a_quarter_of_a_millisecond(void **state)
{
	static const struct {
		double rate;
		uint64_t piece;
	} buses[] = {{0.5 * GB_S, MIB}, {3.2 * GB_S, MIB}, {10 * GB_S, 2 * MIB},
		{25 * GB_S, 4 * MIB}, {55 * GB_S, 8 * MIB}, {110 * GB_S, 16 * MIB},
		{300 * GB_S, 32 * MIB}, {2000 * GB_S, 32 * MIB}};

	(void)state;
	for (size_t i = 0; i < COUNT(buses); i++) {
		struct bus bus = new_bus();

		assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), 8 * MIB);
		run(&bus, buses[i].rate, 100);
		assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), buses[i].piece);
	}
}

/* Never more than a step at once, and every step takes several groups. */
static void it_changes_slowly(void **state)
{
	struct bus bus = new_bus();
	uint64_t before = 8 * MIB;
	unsigned since = 0;

	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		uint64_t piece;

		run(&bus, i < 30 ? GB_S : 500 * GB_S, 1);
		since++;
		piece = ckpt_cuda_piece_size_piece(&bus.pace, 0);
		if (piece == before)
			continue;
		assert_true(piece == before / 2 || piece == before * 2);
		assert_true(since >= 8);
		since = 0;
		before = piece;
	}
}

/* One late completion, or one that comes early behind it, is not the bus. Nor are some of them. */
static void a_stall_does_not_collapse_it(void **state)
{
	struct bus bus = new_bus();

	(void)state;
	run(&bus, 55 * GB_S, 20);
	done_after(&bus, 3000000000, true, true);
	run(&bus, 55 * GB_S, 3);
	assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), 8 * MIB);
	for (unsigned i = 0; i < 50; i++) {
		done_after(&bus, 50000000, true, true);
		done_after(&bus, 1000, true, true);
		run(&bus, 55 * GB_S, 2);
	}
	assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), 8 * MIB);
}

/* Nor what is between two saves, what the waiter came too late for, and groups that say nothing of the bus. */
static void only_a_busy_stream_says_what_the_bus_takes(void **state)
{
	struct bus bus = new_bus();

	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		done_after(&bus, 1000000000, true, false);
		done_after(&bus, 10, false, true);
		done_after(&bus, 10, false, true);
	}
	bus.bytes = 0;
	run(&bus, GB_S, 100);
	for (unsigned i = 0; i < 100; i++)
		done_after(&bus, 1000000, true, true);
	bus.bytes = MIB - 1;
	run(&bus, GB_S / 100, 100);
	assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), 8 * MIB);
	/* A clock that stands. */
	bus.bytes = 8 * MIB;
	for (unsigned i = 0; i < 100; i++)
		done_after(&bus, 0, true, true);
	assert_int_equal(ckpt_cuda_piece_size_piece(&bus.pace, 0), 8 * MIB);
}

/* On the edge between two sizes it does not go to and fro. */
static void it_comes_to_rest(void **state)
{
	struct prng d = {5};

	(void)state;
	for (double rate = 1.5 * GB_S; rate < 400 * GB_S; rate *= 1.07) {
		struct bus bus = new_bus();
		unsigned changes = 0;
		uint64_t before;

		run(&bus, rate, 100);
		before = ckpt_cuda_piece_size_piece(&bus.pace, 0);
		for (unsigned i = 0; i < 1000; i++) {
			run(&bus, rate * (0.9 + (double)prng_below(&d, 21) / 100), 1);
			changes += ckpt_cuda_piece_size_piece(&bus.pace, 0) != before;
			before = ckpt_cuda_piece_size_piece(&bus.pace, 0);
		}
		assert_true(changes <= 1);
	}
}

/* Whatever is measured, and however deep the queue is. */
static void it_is_a_power_of_two_within_its_bounds(void **state)
{
	struct prng d = {6};
	struct bus bus = new_bus();

	(void)state;
	for (unsigned i = 0; i < 20000; i++) {
		uint64_t piece;
		uint64_t deep;

		if (i % 40 == 0)
			bus.bytes = prng_below(&d, 3) ? prng_below(&d, 300 * MIB) : 0;
		done_after(&bus, prng_below(&d, i / 1000 % 2 ? 1000 : 100000000),
			prng_below(&d, 9) > 0, prng_below(&d, 9) > 0);
		piece = ckpt_cuda_piece_size_piece(&bus.pace, 0);
		deep = ckpt_cuda_piece_size_piece(&bus.pace, prng_below(&d, 3000));
		assert_int_equal(piece & (piece - 1), 0);
		assert_true(piece >= CKPT_CUDA_PIECE_MIN && piece <= CKPT_CUDA_PIECE_MAX);
		assert_true(deep >= piece && deep <= 8 * piece && deep <= CKPT_CUDA_PIECE_MAX);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_piece_is_what_the_bus_takes_in_a_quarter_of_a_millisecond),
		cmocka_unit_test(it_changes_slowly),
		cmocka_unit_test(a_stall_does_not_collapse_it),
		cmocka_unit_test(only_a_busy_stream_says_what_the_bus_takes),
		cmocka_unit_test(it_comes_to_rest),
		cmocka_unit_test(it_is_a_power_of_two_within_its_bounds),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
