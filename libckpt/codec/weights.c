/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/weights.h"

#include <string.h>

#define WEIGHTS      12
#define TABLE_LOG    6 /* the most that a decoder of weights takes */
#define TABLE_SIZE   (1u << TABLE_LOG)
#define LONGEST      127
#define PLAIN_MOST   128 /* weights that can be told in four bits each */
#define PLAIN_HEADER 127
#define CODED_LEAST  16 /* fewer are not shorter coded */

/* Bits in the order of the stream, the lowest first. */
struct bits {
	uint8_t out[256];
	size_t count;
};

static void put(struct bits *b, unsigned value, unsigned count)
{
	for (unsigned i = 0; i < count; i++, b->count++)
		b->out[b->count / 8] |= (uint8_t)((value >> i & 1) << (b->count % 8));
}

/* A finite state entropy coder (RFC 8878, 4.1) of weights. */
struct coder {
	int shares[WEIGHTS];         /* of the table; together TABLE_SIZE */
	uint16_t states[TABLE_SIZE]; /* by weight, then by state */
	uint32_t bits_above
		[WEIGHTS];  /* what a state is added to, to have its bits in the upper half */
	int first[WEIGHTS]; /* where the weight's states begin, less its share */
};

static unsigned log2_of(unsigned n)
{
	return 31 - (unsigned)__builtin_clz(n);
}

/* In proportion, each that occurs at least 1; the largest takes what is over. False: there is only one weight. */
static bool share_out(struct coder *c, const uint8_t *weights, size_t count)
{
	unsigned counts[WEIGHTS] = {0};
	int left = TABLE_SIZE;
	unsigned largest = 0;

	for (size_t i = 0; i < count; i++)
		counts[weights[i]]++;
	for (unsigned w = 0; w < WEIGHTS; w++) {
		c->shares[w] = (int)((size_t)counts[w] * TABLE_SIZE / count);
		if (counts[w] > 0 && c->shares[w] == 0)
			c->shares[w] = 1;
		left -= c->shares[w];
		largest = counts[w] > counts[largest] ? w : largest;
	}
	/* Rounded up are at most 11, and the largest has at least a twelfth: it can be short of it by little. */
	for (; left < 0 && c->shares[largest] > 1; left++)
		c->shares[largest]--;
	for (unsigned w = 0; left < 0 && w < WEIGHTS; w++) {
		for (; left < 0 && c->shares[w] > 1; left++)
			c->shares[w]--;
	}
	c->shares[largest] += left;
	return counts[largest] < count;
}

/* Which weight each state stands for, and how the encoder comes to it. */
static void build_states(struct coder *c)
{
	const unsigned step = (TABLE_SIZE >> 1) + (TABLE_SIZE >> 3) + 3;
	uint8_t weight_of[TABLE_SIZE];
	unsigned at = 0;
	unsigned next[WEIGHTS];
	unsigned total = 0;

	for (unsigned w = 0; w < WEIGHTS; w++) {
		unsigned share = (unsigned)c->shares[w];

		next[w] = total;
		for (unsigned i = 0; i < share; i++) {
			weight_of[at] = (uint8_t)w;
			at = (at + step) & (TABLE_SIZE - 1);
		}
		if (share == 1) {
			c->bits_above[w] = (TABLE_LOG << 16) - TABLE_SIZE;
			c->first[w] = (int)total - 1;
		} else if (share > 1) {
			unsigned most = TABLE_LOG - log2_of(share - 1);

			c->bits_above[w] = (most << 16) - (share << most);
			c->first[w] = (int)total - (int)share;
		}
		total += share;
	}
	for (unsigned state = 0; state < TABLE_SIZE; state++)
		c->states[next[weight_of[state]]++] = (uint16_t)(TABLE_SIZE + state);
}

/* RFC 8878, 4.1.1: each share plus one, in as many bits as what is left needs; runs of 0 are counted. */
static void put_shares(struct bits *b, const struct coder *c)
{
	int left = TABLE_SIZE + 1;
	int threshold = TABLE_SIZE;
	unsigned length = TABLE_LOG + 1;

	put(b, TABLE_LOG - 5, 4);
	for (unsigned w = 0; w < WEIGHTS && left > 1;) {
		int share = c->shares[w++];
		int most = 2 * threshold - 1 - left;
		int value = share + 1;

		left -= share;
		if (value >= threshold)
			value += most;
		put(b, (unsigned)value, length - (value < most));
		while (left < threshold) {
			length--;
			threshold >>= 1;
		}
		if (share == 0) {
			unsigned zeros = 0;

			while (w < WEIGHTS && c->shares[w] == 0)
				w++, zeros++;
			for (; zeros >= 3; zeros -= 3)
				put(b, 3, 2);
			put(b, zeros, 2);
		}
	}
	b->count = (b->count + 7) & ~(size_t)7;
}

static unsigned begin_state(const struct coder *c, uint8_t weight)
{
	unsigned length = (c->bits_above[weight] + (1u << 15)) >> 16;
	unsigned value = (length << 16) - c->bits_above[weight];

	return c->states[(int)(value >> length) + c->first[weight]];
}

static unsigned put_weight(struct bits *b, const struct coder *c, unsigned state, uint8_t weight)
{
	unsigned length = (state + c->bits_above[weight]) >> 16;

	put(b, state, length);
	return c->states[(int)(state >> length) + c->first[weight]];
}

/* Two states take turns, from the last weight to the first: the decoder begins with the other end. */
static void put_weights(struct bits *b, const struct coder *c, const uint8_t *weights, size_t count)
{
	unsigned state[2];

	state[(count - 1) % 2] = begin_state(c, weights[count - 1]);
	state[(count - 2) % 2] = begin_state(c, weights[count - 2]);
	for (size_t i = count - 2; i-- > 0;)
		state[i % 2] = put_weight(b, c, state[i % 2], weights[i]);
	put(b, state[1], TABLE_LOG);
	put(b, state[0], TABLE_LOG);
	put(b, 1, 1);
}

static size_t write_plain(const uint8_t *weights, size_t count, uint8_t *header)
{
	header[0] = (uint8_t)(PLAIN_HEADER + count);
	for (size_t i = 0; i < count; i += 2)
		header[1 + i / 2] =
			(uint8_t)(weights[i] << 4 | (i + 1 < count ? weights[i + 1] : 0));
	return 1 + (count + 1) / 2;
}

/* 0: it cannot be told so. */
static size_t write_coded(const uint8_t *weights, size_t count, uint8_t *header)
{
	struct coder coder = {0};
	struct bits bits = {0};

	if (count < 2 || !share_out(&coder, weights, count))
		return 0;
	build_states(&coder);
	put_shares(&bits, &coder);
	put_weights(&bits, &coder, weights, count);
	if ((bits.count + 7) / 8 > LONGEST)
		return 0;
	header[0] = (uint8_t)((bits.count + 7) / 8);
	memcpy(header + 1, bits.out, header[0]);
	return 1 + (size_t)header[0];
}

size_t ckpt_weights_write(const uint8_t *weights, size_t count, uint8_t *header)
{
	uint8_t coded[1 + LONGEST];
	size_t size = count < CODED_LEAST ? 0 : write_coded(weights, count, coded);

	if (count <= PLAIN_MOST && (size == 0 || size >= 1 + (count + 1) / 2))
		return write_plain(weights, count, header);
	memcpy(header, coded, size);
	return size;
}
