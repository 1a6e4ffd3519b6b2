/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/group.h"

/* Elements of a group: fewer are not worth the description of their codes. */
#define LEAST ((size_t)64)
/* More groups gain nothing. */
#define MOST  12u

/* Where the exponent stands. */
static unsigned shift_of(const struct ckpt_codec_chunk *chunk)
{
	return chunk->kind == CKPT_KIND_BF16 ? 7 : 10;
}

static unsigned bits_of(const struct ckpt_codec_chunk *chunk)
{
	return chunk->kind == CKPT_KIND_BF16 ? 8 : 5;
}

bool ckpt_group_possible(const struct ckpt_codec_chunk *chunk)
{
	return chunk->base && chunk->width == 2 &&
	       (chunk->kind == CKPT_KIND_BF16 || chunk->kind == CKPT_KIND_F16);
}

static unsigned exponent_of(const struct ckpt_codec_chunk *chunk, size_t i)
{
	const uint8_t *at = (const uint8_t *)chunk->base + 2 * i;
	unsigned x = (unsigned)at[0] | (unsigned)at[1] << 8;

	return x >> shift_of(chunk) & ((1u << bits_of(chunk)) - 1);
}

struct ckpt_grouping ckpt_group_fit(const struct ckpt_codec_chunk *sample, size_t count)
{
	size_t counts[256] = {0};
	size_t above = 0;
	size_t below = sample->count;
	unsigned last = 255;
	unsigned first;

	for (size_t i = 0; i < sample->count; i++)
		counts[exponent_of(sample, i)]++;
	/* The last group has at least one of 64 elements, and the first one enough of them for codes of their own. */
	while (last > 0 && 64 * (above + counts[last]) < sample->count)
		above += counts[last--];
	below -= above;
	for (first = last; first > 0 && last - first + 1 < MOST; first--) {
		below -= counts[first];
		if (below * count < LEAST * sample->count)
			break;
	}
	return (struct ckpt_grouping){.first = first, .groups = last - first + 1};
}

void ckpt_group_find(struct ckpt_codec *codec, const struct ckpt_grouping *grouping,
	const struct ckpt_codec_chunk *chunk, size_t ret_sizes[CKPT_GROUPS])
{
	size_t counts[4][CKPT_GROUPS] = {{0}};

	CKPT_ASSERT(grouping->groups > 0 && grouping->groups <= CKPT_GROUPS);
	codec->kernels->find_groups(shift_of(chunk), bits_of(chunk), grouping->first,
		grouping->groups - 1, chunk->base, chunk->count, codec->groups);
	for (size_t i = 0; i < chunk->count; i++)
		counts[i & 3][codec->groups[i]]++;
	for (unsigned k = 0; k < CKPT_GROUPS; k++)
		ret_sizes[k] = counts[0][k] + counts[1][k] + counts[2][k] + counts[3][k];
}

void ckpt_group_gather(struct ckpt_codec *codec, const uint8_t *plane,
	const size_t sizes[CKPT_GROUPS], size_t count)
{
	uint8_t *ends[CKPT_GROUPS];
	uint8_t *at = codec->grouped;

	for (unsigned k = 0; k < CKPT_GROUPS; at += sizes[k++])
		ends[k] = at;
	codec->kernels->gather_groups(codec->groups, plane, count, ends);
}

void ckpt_group_scatter(
	struct ckpt_codec *codec, const size_t sizes[CKPT_GROUPS], size_t count, uint8_t *plane)
{
	const uint8_t *begins[CKPT_GROUPS];
	const uint8_t *at = codec->grouped;

	for (unsigned k = 0; k < CKPT_GROUPS; at += sizes[k++])
		begins[k] = at;
	codec->kernels->scatter_groups(codec->groups, begins, count, plane);
}
