/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of samples: which lines of a segment are sampled, and how their bytes are hashed. Shared by the host
 * and the GPU's kernels, so that both compute the same; the order of the pairs does not matter.
 */
#ifndef CKPT_DEVICE_SAMPLE_MIX_H
#define CKPT_DEVICE_SAMPLE_MIX_H

#include <stdbool.h>
#include <stdint.h>

#define CKPT_SAMPLE_LINE 64

/* Lines per segment: the first and the last, and one in each half of the rest. */
#define CKPT_SAMPLE_LINES 4

/* Pairs of words (8 bytes, little-endian) of a line; a short line is padded with zeros. */
#define CKPT_SAMPLE_PAIRS 4

/* 2^64 divided by the golden ratio, the increment of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). */
#define CKPT_SAMPLE_STEP UINT64_C(0x9e3779b97f4a7c15)

/* SplitMix64's finaliser, Stafford's "Mix13"; the constants are those of Vigna's splitmix64.c. */
static inline uint64_t ckpt_sample_mix(uint64_t bits)
{
	bits = (bits ^ (bits >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	bits = (bits ^ (bits >> 27)) * UINT64_C(0x94d049bb133111eb);
	return bits ^ (bits >> 31);
}

/* The key that determines the places and the factors. */
static inline uint64_t ckpt_sample_key(
	uint64_t seed, uint64_t offset, uint32_t tensor, uint64_t length)
{
	uint64_t key = ckpt_sample_mix(seed + offset * CKPT_SAMPLE_STEP);

	return ckpt_sample_mix(key + tensor * CKPT_SAMPLE_STEP + length);
}

/* One of `count` places, at most 2^32, by 32 random bits. */
static inline uint64_t ckpt_sample_pick(uint64_t bits, uint64_t count)
{
	return ((bits & UINT32_MAX) * (count < UINT32_MAX ? count : UINT32_MAX)) >> 32;
}

/* Where a line of the segment begins; false: it has no such line. A segment shorter than a line is one line. */
static inline bool ckpt_sample_place(uint64_t key, uint64_t length, uint32_t line, uint64_t *ret_at)
{
	uint64_t lines = length / CKPT_SAMPLE_LINE;
	uint64_t between = lines > 2 ? lines - 2 : 0;
	uint64_t low = between / 2;

	switch (line) {
	case 0:
		*ret_at = 0;
		return length > 0;
	/* One in each half, so that they differ. */
	case 1:
		*ret_at = CKPT_SAMPLE_LINE * (1 + ckpt_sample_pick(key >> 32, low));
		return low > 0;
	case 2:
		*ret_at = CKPT_SAMPLE_LINE * (1 + low + ckpt_sample_pick(key, between - low));
		return between > 0;
	default:
		*ret_at = length - CKPT_SAMPLE_LINE;
		return lines > 0;
	}
}

/*
 * The hash of a pair of words: both halves of the product of two words, each combined with its own key, as in wyhash
 * and XXH3 for short inputs. A word has no effect only if the other factor is 0.
 */
static inline uint64_t ckpt_sample_pair(
	uint64_t key, uint32_t line, uint32_t pair, uint64_t low, uint64_t high)
{
	uint64_t place = 2 * (uint64_t)(line * CKPT_SAMPLE_PAIRS + pair);
	unsigned __int128 product = (unsigned __int128)(low ^ (key + place * CKPT_SAMPLE_STEP)) *
				    (high ^ (key + (place + 1) * CKPT_SAMPLE_STEP));

	return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t ckpt_sample_line(
	uint64_t key, uint32_t line, const uint64_t words[2 * CKPT_SAMPLE_PAIRS])
{
	uint64_t hash = 0;

	for (uint32_t pair = 0; pair < CKPT_SAMPLE_PAIRS; pair++, words += 2)
		hash += ckpt_sample_pair(key, line, pair, words[0], words[1]);
	return hash;
}

#endif
