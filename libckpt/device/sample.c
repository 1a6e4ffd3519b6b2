/* SPDX-License-Identifier: Apache-2.0 */
/* Samples the lines of a segment. See sample_mix.h for the arithmetic. */
#include "device/sample_mix.h"
#include "device/device.h"

#include <string.h>

static uint64_t key_of(const struct ckpt_segment *segment, uint64_t seed)
{
	return ckpt_sample_key(seed, segment->offset, segment->tensor, segment->length);
}

/* The address of the bytes if they are contiguous; else NULL. */
static const char *bytes_of(const struct ckpt_segment *segment, bool staged)
{
	if (staged)
		return segment->staged;
	return segment->view.strides ? NULL : segment->view.data + segment->offset;
}

static inline __attribute__((always_inline)) uint64_t line_of(
	const char *bytes, uint64_t length, uint64_t key, uint32_t line)
{
	uint64_t words[2 * CKPT_SAMPLE_PAIRS];
	uint64_t at;

	if (!ckpt_sample_place(key, length, line, &at))
		return 0;
	memcpy(words, bytes + at, sizeof(words));
	return ckpt_sample_line(key, line, words);
}

/* Ten thousand segments are common, and the loop waits for this: the line numbers are constants for the compiler. */
static uint64_t sample_of_lines(const char *bytes, uint64_t length, uint64_t key)
{
	_Static_assert(CKPT_SAMPLE_LINES == 4, "every line is there");
	return line_of(bytes, length, key, 0) + line_of(bytes, length, key, 1) +
	       line_of(bytes, length, key, 2) + line_of(bytes, length, key, 3);
}

uint64_t ckpt_segment_sample(const struct ckpt_segment *segment, uint64_t seed, bool staged)
{
	const char *bytes = bytes_of(segment, staged);
	uint64_t length = ckpt_min_u64(segment->length, CKPT_SAMPLE_LINE);
	uint64_t key = key_of(segment, seed);
	uint64_t hash = 0;
	uint64_t at;

	if (bytes && length == CKPT_SAMPLE_LINE)
		return sample_of_lines(bytes, segment->length, key);
	for (uint32_t line = 0; line < CKPT_SAMPLE_LINES; line++) {
		uint64_t words[2 * CKPT_SAMPLE_PAIRS] = {0};

		if (!ckpt_sample_place(key, segment->length, line, &at))
			continue;
		if (bytes)
			memcpy(words, bytes + at, length);
		else
			ckpt_view_gather(
				&segment->view, segment->offset + at, length, (char *)words);
		hash += ckpt_sample_line(key, line, words);
	}
	return hash;
}

void ckpt_segment_expect(const struct ckpt_segment *segment, uint64_t seed)
{
	uint64_t key;
	uint64_t at;

	if (segment->view.strides || segment->length < CKPT_SAMPLE_LINE)
		return;
	key = key_of(segment, seed);
	for (uint32_t line = 0; line < CKPT_SAMPLE_LINES; line++)
		if (ckpt_sample_place(key, segment->length, line, &at))
			__builtin_prefetch(segment->view.data + segment->offset + at);
}
