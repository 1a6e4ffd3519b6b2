/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines of a segment are looked at, and their hash. */
#include "device/device.h"

#include "base/digest.h"

#define LINE 64

/* A line of the segment's bytes, and the hash so far as the seed of the next. */
static uint64_t add_line(const struct ckpt_segment *segment, uint64_t offset, uint64_t length,
	bool staged, uint64_t hash)
{
	char line[LINE];

	if (staged)
		return ckpt_hash64(segment->staged + offset, length, hash);
	ckpt_view_gather(&segment->view, segment->offset + offset, length, line);
	return ckpt_hash64(line, length, hash);
}

/* One of `count` places, at most 2^32, by 32 random bits. */
static uint64_t pick(uint64_t bits, uint64_t count)
{
	return ((bits & UINT32_MAX) * ckpt_min_u64(count, UINT32_MAX)) >> 32;
}

uint64_t ckpt_segment_sample(const struct ckpt_segment *segment, uint64_t seed, bool staged)
{
	const uint64_t key[2] = {segment->offset, segment->tensor};
	uint64_t lines = segment->length / LINE;
	uint64_t between = lines > 2 ? lines - 2 : 0;
	uint64_t low = between / 2;
	uint64_t hash = seed;
	uint64_t places;

	if (lines == 0)
		return add_line(segment, 0, segment->length, staged, hash);
	places = ckpt_hash64(key, sizeof(key), seed);
	hash = add_line(segment, 0, LINE, staged, hash);
	/* One in each half, so that they differ. */
	if (low > 0)
		hash = add_line(segment, LINE * (1 + pick(places >> 32, low)), LINE, staged, hash);
	if (between > 0)
		hash = add_line(segment, LINE * (1 + low + pick(places, between - low)), LINE,
			staged, hash);
	return add_line(segment, segment->length - LINE, LINE, staged, hash);
}
