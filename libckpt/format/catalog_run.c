/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes a record of a catalog's list, from untrusted bytes. */
#include "format/catalog_run.h"

#include <string.h>

#include "format/manifest.h"

#define VARINT_BYTES 10

void ckpt_put_varint(struct ckpt_buf *out, uint64_t value)
{
	unsigned char bytes[VARINT_BYTES];
	size_t n = 0;

	for (; value >= 0x80; value >>= 7)
		bytes[n++] = (unsigned char)(value | 0x80);
	bytes[n++] = (unsigned char)value;
	ckpt_buf_put(out, bytes, n);
}

void ckpt_put_zigzag(struct ckpt_buf *out, int64_t value)
{
	ckpt_put_varint(out, (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0));
}

static bool get_long(const unsigned char **at, const unsigned char *end, uint64_t *ret_value)
{
	uint64_t value = 0;

	for (unsigned shift = 0; *at < end; shift += 7) {
		unsigned char byte = *(*at)++;

		/* The tenth byte may have one bit; a last byte of 0 is not canonical. */
		if ((shift == 63 && byte > 1) || (shift > 0 && byte == 0))
			return false;
		value |= (uint64_t)(byte & 0x7f) << shift;
		if (byte < 0x80) {
			*ret_value = value;
			return true;
		}
	}
	return false;
}

/* Inline, because there may be a record for every box of every rank, and most numbers are short. */
static inline bool get(const unsigned char **at, const unsigned char *end, uint64_t *ret_value)
{
	if (*at < end && **at < 0x80) {
		*ret_value = *(*at)++;
		return true;
	}
	return get_long(at, end, ret_value);
}

static bool get_dims(
	const unsigned char **at, const unsigned char *end, int64_t *dims, uint32_t ndim)
{
	for (uint32_t i = 0; i < ndim; i++) {
		uint64_t value;

		if (!get(at, end, &value) || value > INT64_MAX)
			return false;
		dims[i] = (int64_t)value;
	}
	return true;
}

static bool get_deltas(
	const unsigned char **at, const unsigned char *end, int64_t *dims, uint32_t ndim)
{
	for (uint32_t i = 0; i < ndim; i++) {
		uint64_t value;

		if (!get(at, end, &value))
			return false;
		dims[i] = (int64_t)(value >> 1 ^ (value & 1 ? UINT64_MAX : 0));
	}
	return true;
}

/* Extends the range of starts by a loop, in one dimension. False: overflow. */
static bool widen(int64_t *low, int64_t *high, int64_t delta, uint32_t count)
{
	int64_t move;

	if (__builtin_mul_overflow(delta, (int64_t)count - 1, &move))
		return false;
	return move < 0 ? !__builtin_add_overflow(*low, move, low)
			: !__builtin_add_overflow(*high, move, high);
}

/* Whether all its boxes are within the tensor. */
static bool fits(const struct ckpt_catalog_run *run, const struct ckpt_catalog_tensor *tensor)
{
	for (uint32_t d = 0; d < tensor->ndim; d++) {
		int64_t low = 0;
		int64_t high = 0;
		int64_t end;

		for (uint32_t k = 0; k < run->loops; k++)
			if (!widen(&low, &high, run->loop[k].delta[d], run->loop[k].count))
				return false;
		/* Only `low` can be negative. */
		if (low < -run->start[d] ||
			__builtin_add_overflow(run->start[d], run->shape[d], &end) ||
			__builtin_add_overflow(end, high, &end) || end > tensor->shape[d])
			return false;
	}
	return true;
}

static const char *read_loops(const unsigned char **at, const unsigned char *end, uint32_t ndim,
	uint32_t world, struct ckpt_catalog_run *run)
{
	for (uint32_t k = 0; k < run->loops; k++) {
		uint64_t count;
		uint64_t stride;

		if (!get(at, end, &count) || !get(at, end, &stride) ||
			!get_deltas(at, end, run->loop[k].delta, ndim))
			return "a truncated loop";
		if (count < 2 || count > world || stride <= run->span || stride >= world)
			return "a loop whose ranks do not ascend";
		/* Both are less than a million. */
		run->span += (count - 1) * stride;
		if (run->span >= world)
			return "a rank outside its world";
		run->loop[k].count = (uint32_t)count;
		run->loop[k].stride = (uint32_t)stride;
	}
	return NULL;
}

const char *ckpt_catalog_read_run(const unsigned char **at, const unsigned char *end,
	uint64_t least, const struct ckpt_catalog_tensor *tensor, uint32_t world,
	struct ckpt_catalog_run *ret_run)
{
	struct ckpt_catalog_run *run = ret_run;
	uint64_t first;

	if (!get(at, end, &first))
		return "a truncated record";
	run->loops = first & ((1U << CKPT_CATALOG_LOOP_BITS) - 1);
	run->span = 0;
	first >>= CKPT_CATALOG_LOOP_BITS;
	if (first >= world || least + first >= world)
		return "a rank outside its world";
	run->rank = (uint32_t)(least + first);
	if (!get_dims(at, end, run->start, tensor->ndim) ||
		!get_dims(at, end, run->shape, tensor->ndim))
		return "a truncated box";
	const char *bad = read_loops(at, end, tensor->ndim, world, run);
	if (bad)
		return bad;
	if (run->rank + run->span >= world)
		return "a rank outside its world";
	return fits(run, tensor) ? NULL : "a box that exceeds its tensor";
}

void ckpt_catalog_set_hulls(struct ckpt_catalog_run *run, uint32_t ndim)
{
	for (uint32_t d = 0; run->loops > 0 && d < ndim; d++) {
		int64_t low = 0;
		int64_t high = 0;

		for (uint32_t k = 0; k < run->loops; k++) {
			run->loop[k].low[d] = low;
			run->loop[k].high[d] = high;
			(void)widen(&low, &high, run->loop[k].delta[d], run->loop[k].count);
		}
	}
}
