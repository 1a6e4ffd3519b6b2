/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and compares the header of a safetensors file. */
#include "format/safetensors.h"

#include <errno.h>
#include <string.h>

#include "base/error.h"
#include "base/json_reader.h"
#include "format/dtype.h"
#include "format/json_put.h"

#define LENGTH_BYTES 8

/* In the last dimension safetensors counts the values packed into a byte. */
static uint32_t unpacked_shape(int64_t packed, int64_t *shape, uint32_t ndim)
{
	if (ndim == 0)
		shape[ndim++] = 1;
	/* Cannot overflow: no dimension is larger than a shard. */
	shape[ndim - 1] *= packed;
	return ndim;
}

/* The shape in the header. If a type is stored as U8, the bytes of an element are an additional last dimension. */
static uint32_t stored_shape(const struct ckpt_entry *e, int64_t shape[CKPT_NDIM_MAX + 1])
{
	uint32_t bytes = ckpt_dtype_bytes(e->dtype);
	uint32_t ndim = e->ndim;

	CKPT_ASSERT(ndim <= CKPT_NDIM_MAX);
	for (uint32_t i = 0; i < ndim; i++)
		shape[i] = e->shape[i];
	if (bytes > 1 && strcmp(ckpt_dtype_stored(e->dtype), "U8") == 0)
		shape[ndim++] = bytes;
	if (ckpt_dtype_packed(e->dtype) > 1)
		ndim = unpacked_shape(ckpt_dtype_packed(e->dtype), shape, ndim);
	return ndim;
}

static void put_entry(struct ckpt_buf *out, const struct ckpt_entry *e, uint64_t start)
{
	int64_t shape[CKPT_NDIM_MAX + 1];
	uint32_t ndim = stored_shape(e, shape);

	ckpt_buf_put(out, ",", 1);
	ckpt_put_name(out, e->name);
	ckpt_buf_puts(out, ":{\"dtype\":\"");
	ckpt_buf_puts(out, ckpt_dtype_stored(e->dtype));
	ckpt_buf_puts(out, "\",\"shape\":");
	ckpt_put_dims(out, shape, ndim);
	ckpt_buf_puts(out, ",\"data_offsets\":[");
	ckpt_put_u64(out, start);
	ckpt_buf_put(out, ",", 1);
	ckpt_put_u64(out, start + e->nbytes);
	ckpt_buf_puts(out, "]}");
}

int ckpt_safetensors_encode(
	const struct ckpt_layout *layout, struct ckpt_buf *out, struct ckpt_error *err)
{
	size_t begin = out->len;
	uint64_t start = 0;
	uint64_t length;
	uint64_t padded;

	ckpt_buf_put_le64(out, 0); /* the length, which is unknown yet */
	ckpt_buf_puts(out, "{\"__metadata__\":{\"format\":\"pt\"}");
	for (size_t i = 0; i < layout->entry_count; i++) {
		put_entry(out, &layout->entries[i], start);
		start += layout->entries[i].nbytes;
	}
	ckpt_buf_put(out, "}", 1);
	length = out->len - begin;
	padded = ckpt_align_up(length, CKPT_HEADER_ALIGN);
	if (!out->failed && padded - LENGTH_BYTES > CKPT_HEADER_MAX)
		return ckpt_fail(err, -E2BIG,
			"the names and shapes of %zu tensors need a header of %llu bytes, but "
			"readers of "
			"safetensors accept %llu: save fewer tensors, or give them shorter names",
			layout->entry_count, (unsigned long long)length,
			(unsigned long long)CKPT_HEADER_MAX);
	ckpt_buf_fill(out, ' ', padded - length);
	if (out->failed)
		return ckpt_fail(err, -ENOMEM, "out of memory for the header of %zu tensors",
			layout->entry_count);
	for (unsigned i = 0; i < LENGTH_BYTES; i++)
		out->data[begin + i] = (char)((padded - LENGTH_BYTES) >> (8 * i));
	return 0;
}

/* Comparing. */

enum member { DTYPE, SHAPE, DATA_OFFSETS };

static const char *const members[] = {
	[DTYPE] = "dtype", [SHAPE] = "shape", [DATA_OFFSETS] = "data_offsets", NULL};

static bool same_numbers(struct ckpt_reader *r, const uint64_t *numbers, size_t count)
{
	uint64_t number;
	size_t i = 0;

	if (!ckpt_reader_open(r, '['))
		return false;
	while (ckpt_reader_item(r)) {
		if (!ckpt_reader_u64(r, &number) || i == count || number != numbers[i])
			return false;
		i++;
	}
	return !r->failed && i == count;
}

static bool same_shape(struct ckpt_reader *r, const struct ckpt_entry *e)
{
	int64_t shape[CKPT_NDIM_MAX + 1];
	uint64_t numbers[CKPT_NDIM_MAX + 1];
	uint32_t ndim = stored_shape(e, shape);

	for (uint32_t i = 0; i < ndim; i++)
		numbers[i] = (uint64_t)shape[i];
	return same_numbers(r, numbers, ndim);
}

static bool same_member(
	struct ckpt_reader *r, int member, const struct ckpt_layout *l, const struct ckpt_entry *e)
{
	uint64_t start = e->offset - l->header_bytes;
	uint64_t range[] = {start, start + e->nbytes};
	char dtype[16];

	switch (member) {
	case DTYPE:
		return ckpt_reader_text(r, dtype, sizeof(dtype), NULL) &&
		       strcmp(dtype, ckpt_dtype_stored(e->dtype)) == 0;
	case SHAPE:
		return same_shape(r, e);
	case DATA_OFFSETS:
		return same_numbers(r, range, CKPT_COUNT(range));
	default:
		return ckpt_reader_skip(r);
	}
}

/* `key` was read; its value is next. */
static bool same_entry(struct ckpt_reader *r, const struct ckpt_layout *l,
	const struct ckpt_entry *e, const struct ckpt_reader_string *key)
{
	uint32_t seen = 0;
	int member;

	if (key->cut || key->nul || key->length != strlen(e->name) ||
		memcmp(key->out, e->name, key->length) != 0)
		return false;
	if (!ckpt_reader_open(r, '{'))
		return false;
	while ((member = ckpt_reader_member(r, members, &seen)) != CKPT_READER_END) {
		if (!same_member(r, member, l, e))
			return false;
	}
	return !r->failed && seen == 7;
}

static int differs(const struct ckpt_reader *r, const struct ckpt_entry *e, const char *why)
{
	struct ckpt_where where = {.file = r->file,
		.tensor = e ? e->name : NULL,
		.has_offset = true,
		.offset = r->base + (uint64_t)(r->at - r->text)};

	/* The error of malformed JSON is already set. */
	return ckpt_fail_at(r->err, CKPT_EFORMAT, &where,
		"the header of %s differs from its index: %s '%.200s'", r->file, why,
		e ? e->name : "");
}

static bool is_metadata(const struct ckpt_reader_string *key)
{
	static const char name[] = "__metadata__";

	return !key->cut && !key->nul && key->length == sizeof(name) - 1 &&
	       memcmp(key->out, name, sizeof(name) - 1) == 0;
}

static int compare(struct ckpt_reader *r, const struct ckpt_layout *layout)
{
	char name[CKPT_NAME_MAX];
	bool described = false;
	size_t next = 0;

	if (!ckpt_reader_open(r, '{'))
		return CKPT_EFORMAT;
	for (;;) {
		struct ckpt_reader_string key = {.out = name, .size = sizeof(name)};
		const struct ckpt_entry *e = NULL;

		if (!ckpt_reader_key(r, &key))
			break;
		if (is_metadata(&key)) {
			if (described)
				(void)ckpt_reader_fail(r, "\"__metadata__\" occurs twice");
			described = true;
			(void)ckpt_reader_skip(r);
			continue;
		}
		if (next < layout->entry_count)
			e = &layout->entries[next];
		if (!e || !same_entry(r, layout, e, &key))
			return differs(r, e, e ? "expected tensor" : "a tensor too many");
		next++;
	}
	if (!r->failed && next < layout->entry_count)
		return differs(r, &layout->entries[next], "it lacks tensor");
	return ckpt_reader_finish(r);
}

int ckpt_safetensors_check(const struct ckpt_layout *layout, const void *header, size_t length,
	const char *file, struct ckpt_error *err)
{
	const unsigned char *bytes = header;
	struct ckpt_reader r;
	uint64_t said = 0;

	if (length != layout->header_bytes || length < LENGTH_BYTES + 2)
		return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
			"the header of %s has %zu bytes, but %llu by its index", file, length,
			(unsigned long long)layout->header_bytes);
	for (unsigned i = 0; i < LENGTH_BYTES; i++)
		said |= (uint64_t)bytes[i] << (8 * i);
	if (said != length - LENGTH_BYTES || bytes[LENGTH_BYTES] != '{')
		return ckpt_fail_at(err, CKPT_EFORMAT, &(struct ckpt_where){.file = file},
			"%s does not begin like a safetensors file with the header of its index",
			file);
	ckpt_reader_init(&r, (const char *)header + LENGTH_BYTES, length - LENGTH_BYTES,
		LENGTH_BYTES, file, err);
	return compare(&r, layout);
}
