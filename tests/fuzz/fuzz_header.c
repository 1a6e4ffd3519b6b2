/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a shard beside its index. The input: a byte of flags, the index's length in three, the
 * index, and the header's JSON, to which length and padding are added; or, by a flag, the whole header.
 */
#include "fuzz_shard.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "format/dtype.h"
#include "format/safetensors.h"

#define FRONT       4
#define WHOLE       1 /* flag: the header is there as it is */
#define LENGTH_SIZE 8

struct input {
	bool whole;
	const uint8_t *index;
	size_t index_size;
	const uint8_t *text;
	size_t text_size;
};

static bool split(const uint8_t *data, size_t size, struct input *in)
{
	if (size < FRONT)
		return false;
	in->index_size = data[1] | (size_t)data[2] << 8 | (size_t)data[3] << 16;
	if (in->index_size > size - FRONT)
		return false;
	in->whole = data[0] & WHOLE;
	in->index = data + FRONT;
	in->text = in->index + in->index_size;
	in->text_size = size - FRONT - in->index_size;
	return true;
}

/* The header as the file would have it. NULL: it does not fit. */
static char *make_header(const struct input *in, uint64_t header_bytes, size_t *ret_size)
{
	size_t size = in->whole ? in->text_size : header_bytes;
	size_t head = in->whole ? 0 : LENGTH_SIZE;
	char *header;

	if (size < head + in->text_size)
		return NULL;
	header = malloc(size + 1);
	FUZZ_CHECK(header);
	memset(header, ' ', size);
	for (size_t i = 0; i < head; i++)
		header[i] = (char)((header_bytes - LENGTH_SIZE) >> (8 * i));
	memcpy(header + head, in->text, in->text_size);
	/* Exactly so much memory. */
	header = realloc(header, size ? size : 1);
	FUZZ_CHECK(header);
	*ret_size = size;
	return header;
}

static void check_numbers(const json_t *array, const uint64_t *numbers, size_t count)
{
	FUZZ_CHECK(json_array_size(array) == count);
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(json_is_integer(json_array_get(array, i)));
		FUZZ_CHECK(json_integer_value(json_array_get(array, i)) == (json_int_t)numbers[i]);
	}
}

static void check_tensor(const struct ckpt_layout *l, const struct ckpt_entry *e, const char *name,
	const json_t *member)
{
	const char *dtype = json_string_value(json_object_get(member, "dtype"));
	uint64_t begin = e->offset - l->header_bytes;
	uint64_t range[2] = {begin, begin + e->nbytes};
	uint64_t shape[CKPT_NDIM_MAX + 1];
	size_t ndim = e->ndim;

	FUZZ_CHECK(strcmp(name, e->name) == 0);
	for (size_t i = 0; i < ndim; i++)
		shape[i] = (uint64_t)e->shape[i];
	if (e->dtype == CKPT_C128 || e->dtype == CKPT_C32)
		shape[ndim++] = e->dtype == CKPT_C128 ? 16 : 4;
	FUZZ_CHECK(dtype && strcmp(dtype, ckpt_dtype_stored(e->dtype)) == 0);
	check_numbers(json_object_get(member, "data_offsets"), range, 2);
	check_numbers(json_object_get(member, "shape"), shape, ndim);
}

/* How many members of that name the object has. */
static size_t count_members(const char *text, size_t size, const char *name)
{
	struct ckpt_reader r;
	char key[64];
	size_t count = 0;

	ckpt_reader_init(&r, text, size, 0, FUZZ_FILE, NULL);
	FUZZ_CHECK(ckpt_reader_open(&r, '{'));
	for (;;) {
		struct ckpt_reader_string s = {.out = key, .size = sizeof(key)};

		if (!ckpt_reader_key(&r, &s))
			break;
		count += !s.cut && s.length == strlen(name) && memcmp(key, name, s.length) == 0;
		FUZZ_CHECK(ckpt_reader_skip(&r));
	}
	FUZZ_CHECK(ckpt_reader_finish(&r) == 0);
	return count;
}

/* What passed says, read by jansson, what the index says. */
static void check_passed(const struct ckpt_layout *l, const char *header, size_t size)
{
	const char *text = header + LENGTH_SIZE;
	json_t *root = json_loadb(text, size - LENGTH_SIZE, JSON_ALLOW_NUL, NULL);
	const char *name;
	size_t next = 0;
	json_t *member;

	FUZZ_CHECK(count_members(text, size - LENGTH_SIZE, "__metadata__") <= 1);
	/* What it does not know may hold what jansson does not read: such as 1e999. */
	json_object_foreach(root, name, member)
	{
		if (strcmp(name, "__metadata__") == 0)
			continue;
		FUZZ_CHECK(next < l->entry_count);
		check_tensor(l, &l->entries[next++], name, member);
	}
	FUZZ_CHECK(!root || next == l->entry_count);
	json_decref(root);
}

/* The header that the library writes for this index, if it has room. */
static void check_own(const struct ckpt_index *index)
{
	struct ckpt_error err = {0};
	struct ckpt_buf own = {0};

	FUZZ_CHECK(ckpt_safetensors_encode(index->layout, &own, &err) == 0);
	if (own.len == index->layout->header_bytes) {
		FUZZ_CHECK(ckpt_index_check_header(index, own.data, own.len, FUZZ_FILE, &err) == 0);
		check_passed(index->layout, own.data, own.len);
	}
	ckpt_buf_free(&own);
}

static void check_header(const struct ckpt_index *index, const char *header, size_t size)
{
	struct ckpt_error err = {0};
	int r;

	fuzz_memory_begin(0);
	r = ckpt_index_check_header(index, header, size, FUZZ_FILE, &err);
	FUZZ_CHECK(fuzz_memory_end(0) == 0);
	fuzz_check_error(&err, r, size);
	FUZZ_CHECK(r == 0 || r == CKPT_EFORMAT);
	if (r == 0)
		check_passed(index->layout, header, size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_index *index = NULL;
	struct input in;
	char *header;
	size_t length;

	if (!split(data, size, &in) ||
		ckpt_index_decode(in.index, in.index_size, FUZZ_FILE, NULL, &index) < 0)
		return 0;
	check_own(index);
	/* More would cost time and show nothing. */
	header = index->layout->header_bytes <= 1 << 20
			 ? make_header(&in, index->layout->header_bytes, &length)
			 : NULL;
	if (header)
		check_header(index, header, length);
	free(header);
	ckpt_index_free(index);
	return 0;
}

static void put_index_size(uint8_t *data, size_t size)
{
	for (unsigned i = 0; i < 3; i++)
		data[1 + i] = (uint8_t)(size >> (8 * i));
}

/* The JSON that the library writes for the index, in the place of what is there. */
static size_t renew(uint8_t *data, size_t size, size_t max, const struct input *in)
{
	struct ckpt_index *index = NULL;
	struct ckpt_buf own = {0};
	size_t length;

	if (ckpt_index_decode(in->index, in->index_size, FUZZ_FILE, NULL, &index) < 0)
		return size;
	if (ckpt_safetensors_encode(index->layout, &own, NULL) == 0) {
		length = own.len - LENGTH_SIZE;
		while (length > 0 && own.data[LENGTH_SIZE + length - 1] == ' ')
			length--;
		if (FRONT + in->index_size + length <= max) {
			memcpy(data + FRONT + in->index_size, own.data + LENGTH_SIZE, length);
			size = FRONT + in->index_size + length;
			data[0] &= (uint8_t)~WHOLE;
		}
	}
	ckpt_buf_free(&own);
	ckpt_index_free(index);
	return size;
}

/* Another index, with or without the header that belongs to it. */
static size_t mutate_index(
	uint8_t *data, size_t size, size_t max, const struct input *in, struct prng *prng)
{
	size_t room = max - size + in->index_size;
	uint8_t *index = malloc(room + 1);
	struct input now;
	size_t length;

	FUZZ_CHECK(index);
	memcpy(index, in->index, in->index_size);
	length = fuzz_mutate_index(index, in->index_size, room, prng);
	memmove(data + FRONT + length, in->text, in->text_size);
	memcpy(data + FRONT, index, length);
	free(index);
	put_index_size(data, length);
	size = FRONT + length + in->text_size;
	if (prng_below(prng, 4) > 0 && split(data, size, &now))
		size = renew(data, size, max, &now);
	return size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};
	struct input in;
	size_t front;

	if (!split(data, size, &in) || prng_below(&prng, 32) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 3) == 0)
		return mutate_index(data, size, max, &in, &prng);
	front = FRONT + in.index_size;
	return front + fuzz_mutate_json(data + front, in.text_size, max - front, &prng);
}
