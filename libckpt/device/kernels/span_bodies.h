/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one thread of a kernel does, without anything of a GPU: segments.cl makes kernels of it, tests call it for
 * every thread of a grid.
 */
#ifndef CKPT_DEVICE_SPAN_BODIES_H
#define CKPT_DEVICE_SPAN_BODIES_H

#include "device/cuda_span.h"
#include "device/kernels/grid_bodies.h"
#include "device/sample_mix.h"

/* Where byte `at` of the span lies. How many bytes from there on lie together goes to `ret_left`. */
static inline uint64_t ckpt_span_find(
	const struct ckpt_cuda_span *span, uint64_t at, uint64_t *ret_left)
{
	uint64_t first = span->run - span->offset;
	uint64_t row;

	if (at < first) {
		*ret_left = first - at;
		return span->data + span->offset + at;
	}
	at -= first;
	/* Division of 64 bits takes a GPU several times as long. */
	row = (at | span->run) >> 32 ? at / span->run : (uint32_t)at / (uint32_t)span->run;
	at -= row * span->run;
	*ret_left = span->run - at;
	return span->data + (row + 1) * span->pitch + at;
}

/* The word at `at`, byte by byte; what is behind the span's end is 0. */
static inline uint64_t ckpt_span_word(const struct ckpt_cuda_span *span, uint64_t at)
{
	uint64_t word = 0;
	uint64_t left;

	if (span->grid)
		return ckpt_grid_word((const struct ckpt_cuda_grid *)(uintptr_t)span->grid,
			span->offset + at, span->offset + span->length);
	for (uint32_t i = 0; i < 8 && at + i < span->length; i++) {
		uint64_t address = ckpt_span_find(span, at + i, &left);
		word |= (uint64_t)(*(const ckpt_unit1 *)(uintptr_t)address) << (8 * i);
	}
	return word;
}

/* What the line at `at` adds. */
static inline uint64_t ckpt_span_sum(const struct ckpt_cuda_span *span, uint32_t line, uint64_t at)
{
	uint64_t words[2 * CKPT_SAMPLE_PAIRS];
	uint64_t hash = 0;
	uint64_t left = 0;
	uint64_t address = span->grid ? 0 : ckpt_span_find(span, at, &left);
	bool whole = left >= CKPT_SAMPLE_LINE && span->length >= CKPT_SAMPLE_LINE;

	/* The usual one, whose reads are all under way at once. */
	if (whole && address % 8 == 0) {
		for (uint32_t i = 0; i < 2 * CKPT_SAMPLE_PAIRS; i++)
			words[i] = ((const ckpt_unit8 *)(uintptr_t)address)[i];
		return ckpt_sample_line(span->key, line, words);
	}
	for (uint32_t pair = 0; pair < CKPT_SAMPLE_PAIRS; pair++, at += 16)
		hash += ckpt_sample_pair(span->key, line, pair, ckpt_span_word(span, at),
			ckpt_span_word(span, at + 8));
	return hash;
}

/* The sample of a span, as ckpt_segment_sample() has it. */
static inline uint64_t ckpt_span_sample(const struct ckpt_cuda_span *table, uint32_t i)
{
	struct ckpt_cuda_span span = table[i];
	uint64_t hash = 0;

	for (uint32_t line = 0; line < CKPT_SAMPLE_LINES; line++) {
		uint64_t at;

		if (ckpt_sample_place(span.key, span.length, line, &at))
			hash += ckpt_span_sum(&span, line, at);
	}
	return hash;
}

/*
 * A lane's part of `count` units that lie together on both sides. Four are under way at once: it is the time of a
 * read that a lane waits for, not the number.
 */
#define CKPT_SPAN_UNITS(size)                                                                      \
	static inline void ckpt_span_units##size(                                                  \
		uint64_t to, uint64_t from, uint32_t count, uint32_t lane, uint32_t lanes)         \
	{                                                                                          \
		ckpt_unit##size *out = (ckpt_unit##size *)(uintptr_t)to;                           \
		const ckpt_unit##size *in = (const ckpt_unit##size *)(uintptr_t)from;              \
		uint32_t i = lane;                                                                 \
                                                                                                   \
		for (; i + 3 * lanes < count; i += 4 * lanes) {                                    \
			ckpt_unit##size a = in[i];                                                 \
			ckpt_unit##size b = in[i + lanes];                                         \
			ckpt_unit##size c = in[i + 2 * lanes];                                     \
			ckpt_unit##size d = in[i + 3 * lanes];                                     \
                                                                                                   \
			out[i] = a;                                                                \
			out[i + lanes] = b;                                                        \
			out[i + 2 * lanes] = c;                                                    \
			out[i + 3 * lanes] = d;                                                    \
		}                                                                                  \
		for (; i < count; i += lanes)                                                      \
			out[i] = in[i];                                                            \
	}

CKPT_SPAN_UNITS(1)
CKPT_SPAN_UNITS(2)
CKPT_SPAN_UNITS(4)
CKPT_SPAN_UNITS(8)
CKPT_SPAN_UNITS(16)

/* A lane's part of `length` bytes that lie together on both sides. */
static inline void ckpt_span_line(
	uint64_t to, uint64_t from, uint32_t length, uint32_t lane, uint32_t lanes)
{
	uint32_t unit = ckpt_unit_of(to ^ from);
	uint32_t head = (uint32_t)(-to & (unit - 1));
	uint32_t count;

	if (head > length)
		head = length;
	count = (length - head) / unit;
	ckpt_span_units1(to, from, head, lane, lanes);
	to += head;
	from += head;
	switch (unit) {
	case 16:
		ckpt_span_units16(to, from, count, lane, lanes);
		break;
	case 8:
		ckpt_span_units8(to, from, count, lane, lanes);
		break;
	case 4:
		ckpt_span_units4(to, from, count, lane, lanes);
		break;
	case 2:
		ckpt_span_units2(to, from, count, lane, lanes);
		break;
	default:
		ckpt_span_units1(to, from, count, lane, lanes);
	}
	count *= unit;
	ckpt_span_units1(to + count, from + count, length - head - count, lane, lanes);
}

/* A lane's part of a span. `scatter`: from staging; else to it. */
static inline void ckpt_span_copy(
	const struct ckpt_cuda_span *table, uint32_t i, bool scatter, uint32_t lane, uint32_t lanes)
{
	struct ckpt_cuda_span span = table[i];
	uint64_t data = span.data + span.offset;
	uint32_t length = (uint32_t)span.length;
	uint32_t unit;

	if (span.grid) {
		const struct ckpt_cuda_grid *g =
			(const struct ckpt_cuda_grid *)(uintptr_t)span.grid;

		for (uint64_t item = span.offset + lane; item < span.offset + span.length;
			item += lanes)
			ckpt_grid_copy(g, scatter, item);
		return;
	}
	if (span.length <= span.run - span.offset) {
		ckpt_span_line(scatter ? data : span.staged, scatter ? span.staged : data, length,
			lane, lanes);
		return;
	}
	/* No unit of it crosses the end of a run, on either side. */
	unit = ckpt_unit_of(span.data | span.pitch | span.run | span.offset | span.staged | length);
	for (uint32_t at = lane * unit; at < length; at += lanes * unit) {
		uint64_t left;

		data = ckpt_span_find(&span, at, &left);
		ckpt_unit_copy(
			scatter ? data : span.staged + at, scatter ? span.staged + at : data, unit);
	}
}

#endif
