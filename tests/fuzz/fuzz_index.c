/* SPDX-License-Identifier: Apache-2.0 */
/* rank-RRRRR.ATTEMPT.index */
#include "fuzz_shard.h"

#include <errno.h>
#include <jansson.h>
#include <string.h>

#include "format/dtype.h"
#include "format/index_head.h"

/* What is taken and kept is less than four times the file, and a little. */
#define SLACK 4096

static void check_dims(const json_t *array, const int64_t *dims, uint32_t count)
{
	FUZZ_CHECK((array != NULL) == (dims != NULL));
	FUZZ_CHECK(!dims || json_array_size(array) == count);
	for (uint32_t i = 0; dims && i < count; i++)
		FUZZ_CHECK(json_integer_value(json_array_get(array, i)) == dims[i]);
}

static void check_text(const json_t *object, const char *key, const char *text)
{
	const char *found = json_string_value(json_object_get(object, key));

	FUZZ_CHECK(found && strcmp(found, text) == 0);
}

/* A tensor has a digest of its own where the file has one. */
static void check_digest(
	const json_t *text, const struct ckpt_layout *l, const struct ckpt_entry *e)
{
	char hex[CKPT_DIGEST_HEX];

	bool shares = e->nbytes > 0 && e->nbytes < l->chunk_bytes;

	FUZZ_CHECK((text && shares) == (e->own > 0) && e->own <= l->digest_count);
	if (e->own == 0)
		return;
	ckpt_digest_hex(&l->digests[e->own - 1], hex);
	FUZZ_CHECK(strcmp(json_string_value(text), hex) == 0);
}

/* What was read of the JSON is what jansson reads in it, if it does: it refuses more numbers. */
static void check_json(const struct ckpt_layout *l, const char *text, size_t size)
{
	json_t *root = json_loadb(text, size, JSON_ALLOW_NUL, NULL);
	const json_t *tensors = json_object_get(root, "tensors");
	const json_t *aliases = json_object_get(root, "aliases");

	if (!root)
		return;
	FUZZ_CHECK(json_array_size(tensors) == l->entry_count);
	FUZZ_CHECK(json_array_size(aliases) == l->alias_count);
	for (size_t i = 0; i < l->entry_count; i++) {
		const json_t *tensor = json_array_get(tensors, i);
		const struct ckpt_entry *e = &l->entries[i];

		check_text(tensor, "name", e->name);
		check_text(tensor, "dtype", ckpt_dtype_name(e->dtype));
		check_dims(json_object_get(tensor, "shape"), e->shape, e->ndim);
		check_dims(json_object_get(tensor, "global_shape"), e->global_shape, e->ndim);
		check_dims(json_object_get(tensor, "global_start"), e->global_start, e->ndim);
		FUZZ_CHECK(json_integer_value(json_object_get(tensor, "offset")) ==
			   (json_int_t)e->offset);
		check_digest(json_object_get(tensor, "digest"), l, e);
		FUZZ_CHECK((json_object_get(tensor, "varies") != NULL) == e->varies);
	}
	for (size_t i = 0; i < l->alias_count; i++) {
		check_text(json_array_get(aliases, i), "name", l->aliases[i].name);
		check_text(json_array_get(aliases, i), "target", l->aliases[i].target);
	}
	json_decref(root);
}

/* What was read is what stands in the file, where the table of FORMAT.md says. */
static void check_file(const struct ckpt_index *index, const uint8_t *data, size_t size)
{
	const struct ckpt_layout *l = index->layout;
	const uint8_t *text = data + ckpt_le32(data + 16);
	const uint8_t *meta = text + ckpt_le64(data + 48);
	const uint8_t *record = meta + ckpt_le64(data + 56);

	FUZZ_CHECK(index->rank == ckpt_le32(data + 20));
	FUZZ_CHECK(l->bytes == ckpt_le64(data + 24) && l->header_bytes == ckpt_le64(data + 32));
	FUZZ_CHECK(l->chunk_bytes == ckpt_le64(data + 40));
	FUZZ_CHECK(index->meta_bytes == ckpt_le64(data + 56));
	FUZZ_CHECK(l->chunk_count == ckpt_le64(data + 64));
	FUZZ_CHECK(record + l->chunk_count * 28 + 16 <= data + size);
	FUZZ_CHECK(!index->meta || memcmp(index->meta, meta, index->meta_bytes) == 0);
	for (size_t i = 0; i < l->chunk_count; i++, record += 28) {
		FUZZ_CHECK(ckpt_le64(record) == l->chunks[i].offset);
		FUZZ_CHECK(ckpt_le32(record + 8) == l->chunks[i].length);
		FUZZ_CHECK(memcmp(record + 12, l->chunks[i].digest.bytes, 16) == 0);
	}
	check_json(l, (const char *)text, ckpt_le64(data + 48));
}

/* Meta is checked and otherwise left alone: it is given back byte for byte. */
static void check_again(const struct ckpt_index *index)
{
	struct ckpt_error err = {0};
	struct ckpt_buf first = {0};
	struct ckpt_buf second = {0};
	struct ckpt_index *again = NULL;
	int r;

	r = ckpt_index_encode(
		index->layout, index->rank, index->meta, index->meta_bytes, &first, &err);
	FUZZ_CHECK(r == 0);
	r = ckpt_index_decode(first.data, first.len, FUZZ_FILE, &err, &again);
	fuzz_check_error(&err, r, first.len);
	FUZZ_CHECK(r == 0);
	FUZZ_CHECK(fuzz_same_index(index, again));
	r = ckpt_index_encode(
		again->layout, again->rank, again->meta, again->meta_bytes, &second, &err);
	FUZZ_CHECK(r == 0);
	FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
	ckpt_index_free(again);
	ckpt_buf_free(&first);
	ckpt_buf_free(&second);
}

static void check_without_memory(
	const uint8_t *data, size_t size, size_t count, int code, const struct ckpt_index *index)
{
	struct ckpt_error err = {0};
	struct ckpt_index *again = NULL;
	int r;

	if (count == 0)
		return;
	fuzz_memory_begin(1 + size * 31 % count);
	r = ckpt_index_decode(data, size, FUZZ_FILE, &err, &again);
	(void)fuzz_memory_end(UINT64_MAX);
	FUZZ_CHECK(r == code || r == -ENOMEM);
	fuzz_check_error(&err, r, size);
	FUZZ_CHECK(r < 0 ? !again : fuzz_same_index(index, again));
	ckpt_index_free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_error err = {0};
	struct ckpt_index *index = NULL;
	size_t count;
	int r;

	fuzz_memory_begin(0);
	r = ckpt_index_decode(data, size, FUZZ_FILE, &err, &index);
	fuzz_check_error(&err, r, size);
	count = fuzz_memory_end(4 * (uint64_t)size + SLACK);
	FUZZ_CHECK((r == 0) == (index != NULL));
	if (index) {
		fuzz_check_index(index);
		check_file(index, data, size);
		check_again(index);
	}
	check_without_memory(data, size, count, r, index);
	ckpt_index_free(index);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};

	return fuzz_mutate_index(data, size, max, &prng);
}
