/* SPDX-License-Identifier: Apache-2.0 */
/* Frames are zstd's: the stock library reads what was written, and every instruction set writes the same. */
#include "lib/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "codec/frame.h"
#include "lib/prng.h"

#define LARGEST 300000

static uint8_t symbols[LARGEST], again[LARGEST];

static double uniform(struct prng *prng)
{
	return (double)(prng_below(prng, 1u << 30) + 1) / (1u << 30);
}

/* Flat, exponential, bell-shaped, mostly zero, or few large ones: what planes look like. */
static void draw(struct prng *prng, size_t count)
{
	unsigned kind = (unsigned)prng_below(prng, 5), span = 1 + (unsigned)prng_below(prng, 256);
	unsigned first = (unsigned)prng_below(prng, 256);
	double scale = 1 + (double)prng_below(prng, 40);

	for (size_t i = 0; i < count; i++) {
		double u = uniform(prng);
		int value =
			kind == 0   ? (int)prng_below(prng, span)
			: kind == 1 ? (int)(-log(u) * scale)
			: kind == 2
				? (int)(scale * sqrt(-2 * log(u)) * cos(6.28318 * uniform(prng)))
			: kind == 3 ? (prng_below(prng, 1000) ? 0 : (int)prng_next(prng) & 255)
				    : (int)pow(u, -0.7);

		symbols[i] = (uint8_t)(first + (unsigned)value);
	}
}

static size_t count_symbols(const uint32_t counts[256])
{
	size_t used = 0;

	for (unsigned s = 0; s < 256; s++)
		used += counts[s] > 0;
	return used;
}

static void check_frame(size_t count)
{
	const struct ckpt_kernels *kernels[] = {
		&ckpt_kernels_plain, ckpt_kernels_avx2(), ckpt_kernels_avx512()};
	uint8_t *first = malloc(ckpt_frame_room(count)), *other = malloc(ckpt_frame_room(count));
	uint8_t *whole = malloc(CKPT_FRAME_MAGIC_SIZE + ckpt_frame_room(count));
	uint32_t counts[256], counts_again[256];
	size_t size;

	assert_true(first && other && whole);
	kernels[0]->histogram(symbols, count, count > 65536 ? 8 : 1, counts);
	size = ckpt_frame_write(kernels[0], counts, symbols, count, first);
	assert_true(size <= ckpt_frame_room(count));
	for (size_t k = 1; k < COUNT(kernels); k++) {
		if (!kernels[k])
			continue;
		kernels[k]->histogram(symbols, count, count > 65536 ? 8 : 1, counts_again);
		assert_memory_equal(counts, counts_again, sizeof(counts));
		assert_int_equal(ckpt_frame_write(kernels[k], counts, symbols, count, other), size);
		assert_memory_equal(first, other, size);
	}
	if (size > 0) {
		memcpy(whole, CKPT_FRAME_MAGIC, CKPT_FRAME_MAGIC_SIZE);
		memcpy(whole + CKPT_FRAME_MAGIC_SIZE, first, size);
		assert_int_equal(
			ZSTD_decompress(again, count, whole, size + CKPT_FRAME_MAGIC_SIZE), count);
		assert_memory_equal(again, symbols, count);
	} else {
		/* Refused are one symbol, and many whose codes are all alike. */
		assert_true(count_symbols(counts) < 2 || count_symbols(counts) > 128);
	}
	free(first);
	free(other);
	free(whole);
}

static void test_stock_zstd_reads_frames(void **state)
{
	struct prng prng = {1};

	(void)state;
	for (unsigned i = 0; i < 600; i++) {
		size_t count = 1 + prng_below(&prng, i % 50 == 0 ? LARGEST : 3000);

		draw(&prng, count);
		check_frame(count);
	}
}

/* Counts like the Fibonacci numbers make the longest codes: they have to be cut to 11 bits. */
static void test_long_codes_are_cut(void **state)
{
	struct prng prng = {2};
	size_t count = 0;
	uint32_t share[2] = {1, 1};

	(void)state;
	for (unsigned s = 0; s < 24 && count + share[1] < LARGEST; s++) {
		uint32_t sum = share[0] + share[1];

		for (uint32_t i = 0; i < share[1]; i++)
			symbols[count++] = (uint8_t)(s * 9);
		share[0] = share[1];
		share[1] = sum;
	}
	for (size_t i = count - 1; i > 0; i--) {
		size_t j = prng_below(&prng, i + 1);
		uint8_t swap = symbols[i];

		symbols[i] = symbols[j];
		symbols[j] = swap;
	}
	check_frame(count);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_stock_zstd_reads_frames),
		cmocka_unit_test(test_long_codes_are_cut),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
