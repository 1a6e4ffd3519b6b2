/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libc's memcpy goes past the caches only for sizes near that of the last one, above a block; below,
 * every line that is written is first read, a third of the traffic in vain.
 */
#include "device/stream_copy.h"

#include <string.h>

#if defined(__x86_64__)

#include <immintrin.h>

#define LINE  ((size_t)64)
#define PAGE  ((size_t)4096)
#define GROUP (4 * PAGE) /* walked side by side, for more streams of prefetching */

/* Below it memcpy is as fast, and what it leaves in the cache may even be of use. */
#define STREAM_MIN ((size_t)256 << 10)

/* One group, two lines of a page at a time. `to` begins a line. */
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

/* Whole groups. Returns the bytes copied. */
static size_t stream_groups(char *restrict to, const char *restrict from, size_t bytes)
{
	size_t done = 0;

	for (; bytes - done >= GROUP; done += GROUP)
		stream_group(to + done, from + done);
	/* Such stores are not ordered with what follows, not even with a mutex's release. */
	_mm_sfence();
	return done;
}

/* Its whole lines past the caches. */
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

void ckpt_stream_copy(void *restrict to, const void *restrict from, size_t bytes)
{
	char *out = to;
	const char *in = from;

	if (bytes >= STREAM_MIN && __builtin_cpu_supports("avx")) {
		size_t head = (size_t) - (uintptr_t)out % LINE;
		size_t done;

		memcpy(out, in, head);
		done = head + stream_groups(out + head, in + head, bytes - head);
		out += done;
		in += done;
		bytes -= done;
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
			ckpt_stream_copy(to + i * to_step, from + i * from_step, run);
	}
	if (stream)
		_mm_sfence();
}

#else

void ckpt_stream_copy(void *restrict to, const void *restrict from, size_t bytes)
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
