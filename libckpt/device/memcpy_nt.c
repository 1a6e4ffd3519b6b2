/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc's memcpy bypasses the caches only above about the size of the last-level cache, more than a block. Below, it
 * reads every line before writing it, a third of the traffic. On some processors it is still the fastest: the first
 * large copies of a process are timed, and the fastest way is used from then on.
 */
#include "device/memcpy_nt.h"

#include <string.h>

#include "base/thread.h"
#include "device/copy_choice.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define LINE  ((size_t)64)
#define PAGE  ((size_t)4096)
#define GROUP (4 * PAGE) /* copied side by side, for more prefetch streams */

/* Below it memcpy is as fast, and the cached data may be useful. */
#define STREAM_MIN ((size_t)256 << 10)
/* Shorter copies do not show a way's speed. */
#define SAMPLE_MIN ((size_t)1 << 20)

/* Copies one group, two lines of a page at a time. `to` is line-aligned. */
__attribute__((target("avx"))) static void stream_group(
	char *restrict to, const char *restrict from)
{
	for (size_t lines = 0; lines < PAGE; lines += 2 * LINE) {
		for (size_t page = lines; page < GROUP; page += PAGE) {
			for (size_t at = page; at < page + 2 * LINE; at += LINE) {
				const char *in = from + at;
				char *out = to + at;
				__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)in);
				__m256i b = _mm256_loadu_si256(
					(const __m256i *)(const void *)(in + 32));

				_mm256_stream_si256((__m256i *)(void *)out, a);
				_mm256_stream_si256((__m256i *)(void *)(out + 32), b);
			}
		}
	}
}

/* Copies whole groups. Returns the bytes copied. */
static size_t stream_groups(char *restrict to, const char *restrict from, size_t bytes)
{
	size_t done = 0;

	for (; bytes - done >= GROUP; done += GROUP)
		stream_group(to + done, from + done);
	/* Non-temporal stores are not ordered by anything that follows, not even by releasing a mutex. */
	_mm_sfence();
	return done;
}

/* Copies its whole lines past the caches. */
__attribute__((target("avx"))) static void stream_run(
	char *restrict to, const char *restrict from, size_t run)
{
	size_t head = (size_t) - (uintptr_t)to % LINE;

	head = head < run ? head : run;
	memcpy(to, from, head);
	for (run -= head, to += head, from += head; run >= LINE;
		run -= LINE, to += LINE, from += LINE) {
		__m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
		__m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));

		_mm256_stream_si256((__m256i *)(void *)to, a);
		_mm256_stream_si256((__m256i *)(void *)(to + 32), b);
	}
	memcpy(to, from, run);
}

/* Copies line by line, for processors that follow few streams at a time. */
static size_t stream_lines(char *restrict to, const char *restrict from, size_t bytes)
{
	size_t done = bytes - bytes % LINE;

	stream_run(to, from, done);
	_mm_sfence();
	return done;
}

static size_t by_memcpy(char *restrict to, const char *restrict from, size_t bytes)
{
	memcpy(to, from, bytes);
	return bytes;
}

/* Each copies at most `bytes` to line-aligned `to`, and returns how many. */
static const struct {
	const char *name;
	size_t (*copy)(char *restrict to, const char *restrict from, size_t bytes);
} ways[] = {
	{"past the caches, four pages at a time", stream_groups},
	{"past the caches, line by line", stream_lines},
	{"memcpy", by_memcpy},
};

static struct ckpt_copy_choice choice = CKPT_COPY_CHOICE_INIT;
_Static_assert(CKPT_COUNT(ways) == CKPT_COPY_WAYS, "one for each");

/* Returns the bytes copied. */
static size_t choose_and_copy(char *restrict to, const char *restrict from, size_t bytes)
{
	bool sample = false;

	if (bytes < SAMPLE_MIN)
		return ways[ckpt_copy_choice_now(&choice)].copy(to, from, bytes);
	unsigned way = ckpt_copy_choice_next(&choice, &sample);
	uint64_t begin = sample ? ckpt_clock_ns() : 0;
	size_t done = ways[way].copy(to, from, bytes);

	if (sample)
		ckpt_copy_choice_note(&choice, way, done, ckpt_clock_ns() - begin);
	return done;
}

void ckpt_memcpy_nt(void *restrict to, const void *restrict from, size_t bytes)
{
	char *out = to;
	const char *in = from;

	if (bytes >= STREAM_MIN && __builtin_cpu_supports("avx")) {
		size_t head = (size_t) - (uintptr_t)out % LINE;

		memcpy(out, in, head);
		head += choose_and_copy(out + head, in + head, bytes - head);
		out += head;
		in += head;
		bytes -= head;
	}
	memcpy(out, in, bytes);
}

void ckpt_stream_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run)
{
	bool stream = run < STREAM_MIN && __builtin_cpu_supports("avx");

	for (int64_t i = 0; i < (int64_t)count; i++) {
		if (stream)
			stream_run(to + i * to_step, from + i * from_step, run);
		else
			ckpt_memcpy_nt(to + i * to_step, from + i * from_step, run);
	}
	if (stream)
		_mm_sfence();
}

const char *ckpt_stream_way(unsigned i, double *ret_gb_per_s, bool *ret_chosen)
{
	if (i >= CKPT_COPY_WAYS || atomic_load(&choice.chosen) < 0)
		return NULL;
	*ret_gb_per_s = (double)((uint64_t)1 << 30) / (double)atomic_load(&choice.fastest[i]);
	*ret_chosen = i == ckpt_copy_choice_now(&choice);
	return ways[i].name;
}

#else

const char *ckpt_stream_way(unsigned i, double *ret_gb_per_s, bool *ret_chosen)
{
	(void)i;
	(void)ret_gb_per_s;
	(void)ret_chosen;
	return NULL;
}

void ckpt_memcpy_nt(void *restrict to, const void *restrict from, size_t bytes)
{
	memcpy(to, from, bytes);
}

void ckpt_stream_runs(char *restrict to, int64_t to_step, const char *restrict from,
	int64_t from_step, uint64_t count, size_t run)
{
	for (int64_t i = 0; i < (int64_t)count; i++)
		memcpy(to + i * to_step, from + i * from_step, run);
}

#endif
