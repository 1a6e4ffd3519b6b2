/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements in groups by the exponent of their base: of two weights in bf16, the smaller one changes more often. Each
 * group's bytes are coded by themselves.
 */
#ifndef CKPT_CODEC_GROUP_H
#define CKPT_CODEC_GROUP_H

#include "codec/codec_memory.h"

/* Two bytes: the exponent of group 0, the number of groups. */
#define CKPT_GROUP_HEAD 2

/* Group 0 has exponents up to `first`, the last group those of first + groups - 1 and more. */
struct ckpt_grouping {
	unsigned first;
	unsigned groups;
};

/* Elements of this kind and width have an exponent that is known. */
bool ckpt_group_possible(const struct ckpt_codec_chunk *chunk);
/* Groups for the exponents of `chunk->base`, which is a sample of a chunk of `count` elements. */
struct ckpt_grouping ckpt_group_fit(const struct ckpt_codec_chunk *sample, size_t count);

/* Finds the group of each element of the base, for what follows; `ret_sizes` gets the elements of each group. */
void ckpt_group_find(struct ckpt_codec *codec, const struct ckpt_grouping *grouping,
	const struct ckpt_codec_chunk *chunk, size_t ret_sizes[CKPT_GROUPS]);
/* The bytes of a plane, one group after another, in codec->grouped. */
void ckpt_group_gather(struct ckpt_codec *codec, const uint8_t *plane,
	const size_t sizes[CKPT_GROUPS], size_t count);
/* The way back. */
void ckpt_group_scatter(
	struct ckpt_codec *codec, const size_t sizes[CKPT_GROUPS], size_t count, uint8_t *plane);

#endif
