/* SPDX-License-Identifier: Apache-2.0 */
/* Mutating an index: one part of it, and then what the other parts say about that part. */
#include "fuzz_shard.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "format/dtype.h"
#include "format/index_head.h"

#define TENSORS_MAX 512
#define RECORDS_MAX 2048
#define GROWTH      512 /* bytes that a part may grow by at once */

enum part { TENSORS, META, RECORDS, PARTS };

struct index_parts {
	uint8_t head[CKPT_INDEX_HEAD_BYTES];
	uint8_t *part[PARTS];
	size_t size[PARTS];
};

static void put_le(uint8_t *at, uint64_t value, unsigned bytes)
{
	for (unsigned i = 0; i < bytes; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

/* Copies of the parts, each with room to grow. False: the lengths are not those of an index. */
static bool split(const uint8_t *data, size_t size, struct index_parts *p)
{
	size_t left = size - CKPT_INDEX_HEAD_BYTES - CKPT_DIGEST_SIZE;
	const uint8_t *at = data + CKPT_INDEX_HEAD_BYTES;

	if (size < CKPT_INDEX_HEAD_BYTES + CKPT_DIGEST_SIZE || ckpt_le64(data + 48) > left ||
		ckpt_le64(data + 56) > left - ckpt_le64(data + 48))
		return false;
	memcpy(p->head, data, sizeof(p->head));
	p->size[TENSORS] = ckpt_le64(data + 48);
	p->size[META] = ckpt_le64(data + 56);
	p->size[RECORDS] = left - p->size[TENSORS] - p->size[META];
	for (int i = 0; i < PARTS; i++) {
		p->part[i] = malloc(p->size[i] + GROWTH);
		FUZZ_CHECK(p->part[i]);
		memcpy(p->part[i], at, p->size[i]);
		at += p->size[i];
	}
	return true;
}

static void free_parts(struct index_parts *p)
{
	for (int i = 0; i < PARTS; i++)
		free(p->part[i]);
}

/* Bytes of a tensor as its JSON tells them; 0 for what cannot be. */
static uint64_t tensor_bytes(const json_t *tensor)
{
	const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
	uint64_t bytes = dtype ? ckpt_dtype_bytes(ckpt_dtype_parse(dtype)) : 0;
	const json_t *size;
	size_t i;

	json_array_foreach(json_object_get(tensor, "shape"), i, size)
	{
		uint64_t by = (uint64_t)json_integer_value(size);

		if (by > 0 && bytes > CKPT_SHARD_BYTES_MAX / by)
			return 0;
		bytes *= by;
	}
	return bytes;
}

static int by_place(const void *a, const void *b)
{
	const json_t *one = *(const json_t *const *)a;
	const json_t *two = *(const json_t *const *)b;
	const char *names[] = {json_string_value(json_object_get(one, "name")),
		json_string_value(json_object_get(two, "name"))};
	const char *types[] = {json_string_value(json_object_get(one, "dtype")),
		json_string_value(json_object_get(two, "dtype"))};
	uint32_t sizes[2];

	for (int i = 0; i < 2; i++)
		sizes[i] = types[i] ? ckpt_dtype_bytes(ckpt_dtype_parse(types[i])) : 0;
	if (sizes[0] != sizes[1])
		return sizes[0] > sizes[1] ? -1 : 1;
	return strcmp(names[0] ? names[0] : "", names[1] ? names[1] : "");
}

static void sort_tensors(json_t *tensors)
{
	json_t *list[TENSORS_MAX];
	size_t count = json_array_size(tensors);

	if (count > TENSORS_MAX)
		return;
	for (size_t i = 0; i < count; i++)
		list[i] = json_incref(json_array_get(tensors, i));
	qsort(list, count, sizeof(json_t *), by_place);
	(void)json_array_clear(tensors);
	for (size_t i = 0; i < count; i++)
		(void)json_array_append_new(tensors, list[i]);
}

/* Puts tensors where they are due, and the shard's length. */
static void lay(struct index_parts *p, struct prng *prng)
{
	json_t *root =
		json_loadb((const char *)p->part[TENSORS], p->size[TENSORS], JSON_ALLOW_NUL, NULL);
	json_t *tensors = json_object_get(root, "tensors");
	uint64_t offset = ckpt_le64(p->head + 32);
	json_t *tensor;
	size_t length;
	char *text;
	size_t i;

	if (prng_below(prng, 2) == 0)
		sort_tensors(tensors);
	json_array_foreach(tensors, i, tensor)
	{
		if (!json_is_object(tensor))
			continue;
		(void)json_object_set_new(tensor, "offset", json_integer((json_int_t)offset));
		offset += tensor_bytes(tensor);
	}
	text = json_dumps(root, JSON_COMPACT);
	length = text ? strlen(text) : 0;
	if (text) {
		put_le(p->head + 24, offset, 8);
		free(p->part[TENSORS]);
		p->part[TENSORS] = malloc(length + 1);
		FUZZ_CHECK(p->part[TENSORS]);
		memcpy(p->part[TENSORS], text, length);
		p->size[TENSORS] = length;
	}
	free(text);
	json_decref(root);
}

/* The records that the rule gives; their digests stay. */
static void cut(struct index_parts *p)
{
	static uint64_t sizes[TENSORS_MAX];
	static uint64_t lengths[RECORDS_MAX];
	json_t *root =
		json_loadb((const char *)p->part[TENSORS], p->size[TENSORS], JSON_ALLOW_NUL, NULL);
	const json_t *tensors = json_object_get(root, "tensors");
	struct fuzz_cut c = {
		.chunk_bytes = ckpt_le64(p->head + 40), .lengths = lengths, .max = RECORDS_MAX};
	size_t count = json_array_size(tensors);
	uint64_t offset = 0;
	uint8_t *records;

	for (size_t i = 0; i < count && i < TENSORS_MAX; i++)
		sizes[i] = tensor_bytes(json_array_get(tensors, i));
	json_decref(root);
	if (count > TENSORS_MAX || c.chunk_bytes == 0)
		return;
	fuzz_cut_shard(&c, ckpt_le64(p->head + 32), sizes, count);
	if (c.count > RECORDS_MAX)
		return;
	records = calloc(c.count + 1, CKPT_INDEX_RECORD);
	FUZZ_CHECK(records);
	memcpy(records, p->part[RECORDS],
		ckpt_min_u64(c.count * CKPT_INDEX_RECORD, p->size[RECORDS]));
	for (size_t i = 0; i < c.count; i++) {
		put_le(records + i * CKPT_INDEX_RECORD, offset, 8);
		put_le(records + i * CKPT_INDEX_RECORD + 8, lengths[i], 4);
		offset += lengths[i];
	}
	free(p->part[RECORDS]);
	p->part[RECORDS] = records;
	p->size[RECORDS] = c.count * CKPT_INDEX_RECORD;
}

/* A number of the head: version, length of the head, rank, sizes, or a length of a part. */
static void change_head(struct index_parts *p, struct prng *prng)
{
	static const struct {
		uint8_t at;
		uint8_t bytes;
	} numbers[] = {{8, 4}, {12, 4}, {16, 4}, {20, 4}, {24, 8}, {32, 8}, {40, 8}, {40, 8},
		{40, 8}, {48, 8}, {56, 8}, {64, 8}};
	size_t which = prng_below(prng, sizeof(numbers) / sizeof(numbers[0]));
	uint8_t *at = p->head + numbers[which].at;
	uint64_t value = numbers[which].bytes == 4 ? ckpt_le32(at) : ckpt_le64(at);

	value = prng_below(prng, 2) ? fuzz_edge(prng) : value + prng_below(prng, 9) - 4;
	put_le(at, value, numbers[which].bytes);
}

static size_t join(uint8_t *data, size_t size, size_t max, const struct index_parts *p)
{
	size_t total = CKPT_INDEX_HEAD_BYTES + CKPT_DIGEST_SIZE;
	uint8_t *at = data + CKPT_INDEX_HEAD_BYTES;
	struct ckpt_digest digest;

	for (int i = 0; i < PARTS; i++)
		total += p->size[i];
	if (total > max)
		return size;
	memcpy(data, p->head, sizeof(p->head));
	for (int i = 0; i < PARTS; i++) {
		memcpy(at, p->part[i], p->size[i]);
		at += p->size[i];
	}
	digest = ckpt_digest_of(data, total - CKPT_DIGEST_SIZE);
	memcpy(at, digest.bytes, CKPT_DIGEST_SIZE);
	return total;
}

static size_t seal_plain(uint8_t *data, size_t size)
{
	struct ckpt_digest digest;

	if (size < CKPT_DIGEST_SIZE)
		return size;
	digest = ckpt_digest_of(data, size - CKPT_DIGEST_SIZE);
	memcpy(data + size - CKPT_DIGEST_SIZE, digest.bytes, CKPT_DIGEST_SIZE);
	return size;
}

size_t fuzz_mutate_index(uint8_t *data, size_t size, size_t max, struct prng *prng)
{
	struct index_parts p = {0};
	uint64_t what = prng_below(prng, 32);
	bool mend = prng_below(prng, 16) > 0;

	if (what == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (what == 1 || !split(data, size, &p))
		return seal_plain(data, LLVMFuzzerMutate(data, size, max));
	if (what < 22)
		p.size[TENSORS] = fuzz_mutate_json(
			p.part[TENSORS], p.size[TENSORS], p.size[TENSORS] + GROWTH, prng);
	else if (what < 27)
		p.size[META] =
			fuzz_mutate_json(p.part[META], p.size[META], p.size[META] + GROWTH, prng);
	else if (what == 27 && p.size[RECORDS] > 0)
		p.part[RECORDS][prng_below(prng, p.size[RECORDS])] ^=
			(uint8_t)(1U << prng_below(prng, 8));
	else
		change_head(&p, prng);
	if (mend) {
		if (prng_below(prng, 4) > 0)
			lay(&p, prng);
		/* Lengths of parts are mended unless they are what was changed. */
		if (what < 27) {
			put_le(p.head + 48, p.size[TENSORS], 8);
			put_le(p.head + 56, p.size[META], 8);
		}
		if (what != 27) {
			cut(&p);
			put_le(p.head + 64, p.size[RECORDS] / CKPT_INDEX_RECORD, 8);
			if (what > 27) {
				put_le(p.head + 48, p.size[TENSORS], 8);
				put_le(p.head + 56, p.size[META], 8);
			}
		}
	}
	size = join(data, size, max, &p);
	free_parts(&p);
	return size;
}
