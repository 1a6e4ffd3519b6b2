/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/huffman.h"

#include <string.h>

#include "codec/weights.h"

/* A symbol or an inner node. Symbols that occur come first, the rarest before the others. */
struct node {
	uint32_t count;
	uint16_t parent;
	uint8_t symbol;
	uint8_t depth;
};

/* By count, then by symbol: three passes of a radix sort, for counts below 2^24. */
static size_t sort_symbols(const uint32_t counts[256], struct node *ret_nodes)
{
	struct node other[256];
	struct node *from = ret_nodes;
	struct node *to = other;
	size_t used = 0;

	for (unsigned s = 0; s < 256; s++) {
		if (counts[s] > 0)
			ret_nodes[used++] = (struct node){.count = counts[s], .symbol = (uint8_t)s};
	}
	for (unsigned shift = 0; shift < 24; shift += 8) {
		size_t first[257] = {0};
		struct node *swap = from;

		for (size_t i = 0; i < used; i++)
			first[(from[i].count >> shift & 255) + 1]++;
		for (size_t digit = 0; digit < 256; digit++)
			first[digit + 1] += first[digit];
		for (size_t i = 0; i < used; i++)
			to[first[from[i].count >> shift & 255]++] = from[i];
		from = to;
		to = swap;
	}
	memcpy(ret_nodes, other, used * sizeof(*other));
	return used;
}

/* The depth of each symbol in the tree, without a limit. Two queues: the symbols, and what they were joined to. */
static void find_depths(struct node *nodes, size_t used)
{
	size_t symbol = 0;
	size_t joined = used;
	size_t end = used;

	for (; end < 2 * used - 1; end++) {
		nodes[end].count = 0;
		for (int two = 0; two < 2; two++) {
			bool leaf = symbol < used &&
				    (joined == end || nodes[symbol].count <= nodes[joined].count);
			struct node *child = &nodes[leaf ? symbol++ : joined++];

			nodes[end].count += child->count;
			child->parent = (uint16_t)end;
		}
	}
	nodes[end - 1].depth = 0;
	for (size_t i = end - 1; i-- > 0;)
		nodes[i].depth = (uint8_t)(nodes[nodes[i].parent].depth + 1);
}

/*
 * No code longer than the limit, and all of them together fill the tree: the lengths of rare symbols grow until they
 * fit, then those of frequent ones shrink into what is left.
 */
static void limit_depths(struct node *nodes, size_t used)
{
	const uint32_t whole = 1u << CKPT_HUFFMAN_BITS;
	uint32_t sum = 0;

	for (size_t i = 0; i < used; i++) {
		if (nodes[i].depth > CKPT_HUFFMAN_BITS)
			nodes[i].depth = CKPT_HUFFMAN_BITS;
		sum += whole >> nodes[i].depth;
	}
	/* The longest of those that can grow costs least; symbols come in the order of their lengths. */
	for (size_t i = 0; sum > whole;) {
		if (nodes[i].depth == CKPT_HUFFMAN_BITS) {
			i++;
			continue;
		}
		sum -= whole >> (nodes[i].depth + 1);
		nodes[i].depth++;
	}
	for (size_t i = used; sum < whole && i-- > 0;) {
		while (nodes[i].depth > 1 && sum + (whole >> nodes[i].depth) <= whole) {
			sum += whole >> nodes[i].depth;
			nodes[i].depth--;
		}
	}
	CKPT_ASSERT(sum == whole);
}

/* Codes of one length are in the order of the symbols, and shorter codes are above longer ones. */
static void assign_codes(struct ckpt_huffman *table, unsigned longest)
{
	uint16_t next[CKPT_HUFFMAN_BITS + 2] = {0};
	unsigned of_length[CKPT_HUFFMAN_BITS + 2] = {0};
	unsigned code = 0;

	for (unsigned s = 0; s < 256; s++)
		of_length[table->bits[s]]++;
	for (unsigned length = longest; length > 0; length--) {
		next[length] = (uint16_t)code;
		code = (code + of_length[length]) >> 1;
	}
	for (unsigned s = 0; s < 256; s++) {
		unsigned length = table->bits[s];

		table->code[s] = length ? next[length]++ : 0;
		table->entry[s] = (uint32_t)table->code[s] << 8 | length;
		table->low[s] = (uint8_t)table->code[s];
		table->high[s] = (uint8_t)(table->code[s] >> 8 << 4 | length);
	}
}

size_t ckpt_huffman_build(
	struct ckpt_huffman *table, const uint32_t counts[256], uint8_t header[CKPT_HUFFMAN_HEADER])
{
	struct node nodes[511];
	uint8_t weights[256] = {0};
	unsigned longest = 0;
	unsigned last = 0;
	size_t used = sort_symbols(counts, nodes);

	if (used < 2)
		return 0;
	find_depths(nodes, used);
	limit_depths(nodes, used);
	memset(table, 0, sizeof(*table));
	for (size_t i = 0; i < used; i++) {
		table->bits[nodes[i].symbol] = nodes[i].depth;
		longest = nodes[i].depth > longest ? nodes[i].depth : longest;
		last = nodes[i].symbol > last ? nodes[i].symbol : last;
	}
	assign_codes(table, longest);
	for (unsigned s = 0; s < last; s++)
		weights[s] = (uint8_t)(table->bits[s] ? longest + 1 - table->bits[s] : 0);
	return ckpt_weights_write(weights, last, header);
}
