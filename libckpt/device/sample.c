/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines of a segment are looked at, and their hash. */
#include "device/device.h"

#include "base/digest.h"

#define LINE 64

/* Lines of one segment: the first and the last, and one in each half of those between. */
#define PLACES 4

/* A line of the segment's bytes, and the hash so far as the seed of the next. */
static uint64_t add_line(const struct ckpt_segment *segment, uint64_t offset, uint64_t length,
	bool staged, uint64_t hash)
{
	char line[LINE];

	if (staged)
		return ckpt_hash64(segment->staged + offset, length, hash);
	/* Ten thousand segments are common, and this runs while the loop waits. */
	if (!segment->view.strides)
		return ckpt_hash64(segment->view.data + segment->offset + offset, length, hash);
	ckpt_view_gather(&segment->view, segment->offset + offset, length, line);
	return ckpt_hash64(line, length, hash);
}

/* One of `count` places, at most 2^32, by 32 random bits. */
static uint64_t pick(uint64_t bits, uint64_t count)
{
	return ((bits & UINT32_MAX) * ckpt_min_u64(count, UINT32_MAX)) >> 32;
}

/* Where the lines begin. Precondition: there is one. */
static unsigned lines_of(const struct ckpt_segment *segment, uint64_t seed, uint64_t at[PLACES])
{
	const uint64_t key[2] = {segment->offset, segment->tensor};
	uint64_t lines = segment->length / LINE;
	uint64_t between = lines > 2 ? lines - 2 : 0;
	uint64_t low = between / 2;
	uint64_t places = ckpt_hash64(key, sizeof(key), seed);
	unsigned count = 0;

	at[count++] = 0;
	/* One in each half, so that they differ. */
	if (low > 0)
		at[count++] = LINE * (1 + pick(places >> 32, low));
	if (between > 0)
		at[count++] = LINE * (1 + low + pick(places, between - low));
	at[count++] = segment->length - LINE;
	return count;
}

uint64_t ckpt_segment_sample(const struct ckpt_segment *segment, uint64_t seed, bool staged)
{
	uint64_t at[PLACES];
	uint64_t hash = seed;

	if (segment->length < LINE)
		return add_line(segment, 0, segment->length, staged, hash);
	unsigned count = lines_of(segment, seed, at);
	for (unsigned i = 0; i < count; i++)
		hash = add_line(segment, at[i], LINE, staged, hash);
	return hash;
}

void ckpt_segment_expect(const struct ckpt_segment *segment, uint64_t seed)
{
	uint64_t at[PLACES];

	if (segment->view.strides || segment->length < LINE)
		return;
	unsigned count = lines_of(segment, seed, at);
	for (unsigned i = 0; i < count; i++)
		__builtin_prefetch(segment->view.data + segment->offset + at[i]);
}
