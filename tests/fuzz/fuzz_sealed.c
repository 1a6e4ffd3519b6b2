/* SPDX-License-Identifier: Apache-2.0 */
/* What holds for every kind of sealed file. */
#include "fuzz.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "format/sealed.h"

/* The greatest struct that a kind decodes to. */
#define VALUE_MAX 16384

union value {
	uint64_t align;
	char bytes[VALUE_MAX];
};

static void clear(const struct fuzz_sealed *kind, union value *value)
{
	if (kind->clear)
		kind->clear(value->bytes);
}

/* A good seal around a greater major is a newer version, whatever else is in there. */
static void check_version(int r, const uint8_t *data, size_t size)
{
	const char *text = (const char *)data;
	const json_t *format;
	json_t *object;
	bool newer;

	/* jansson takes -0 for a whole number; the format has none with a sign. */
	if (memmem(text, size, "-0", 2) || ckpt_sealed_open(data, size, FUZZ_FILE, NULL) < 0 ||
		ckpt_json_scan(text, size, SIZE_MAX, 32, FUZZ_FILE, NULL) < 0)
		return;
	object = json_loadb(text, size, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
	if (!object)
		return;
	format = json_object_get(object, "format");
	newer = json_array_size(format) == 2 && json_is_integer(json_array_get(format, 0)) &&
		json_is_integer(json_array_get(format, 1)) &&
		json_integer_value(json_array_get(format, 0)) >
			(fuzz_kind.major ? fuzz_kind.major : 1) &&
		json_integer_value(json_array_get(format, 1)) >= 0;
	json_decref(object);
	FUZZ_CHECK((r == CKPT_EVERSION) == newer);
}

/* Written again it reads the same, and written once more it is the same to the byte. */
static void check_again(const struct fuzz_sealed *kind, const union value *value)
{
	struct ckpt_error err = {0};
	struct ckpt_buf first = {0};
	struct ckpt_buf second = {0};
	union value again = {0};
	int r;

	FUZZ_CHECK(kind->encode(value->bytes, &first) == 0);
	r = kind->decode((const uint8_t *)first.data, first.len, &err, again.bytes);
	fuzz_check_error(&err, r, first.len);
	FUZZ_CHECK(r == 0);
	FUZZ_CHECK(kind->same(value->bytes, again.bytes));
	FUZZ_CHECK(kind->encode(again.bytes, &second) == 0);
	FUZZ_CHECK(first.len == second.len && memcmp(first.data, second.data, first.len) == 0);
	clear(kind, &again);
	ckpt_buf_free(&first);
	ckpt_buf_free(&second);
}

/* One allocation fails: that is said, or it did not matter. */
static void check_without_memory(const struct fuzz_sealed *kind, const uint8_t *data, size_t size,
	size_t count, int code, const union value *value)
{
	struct ckpt_error err = {0};
	union value again = {0};
	int r;

	if (count == 0)
		return;
	fuzz_memory_begin(1 + size * 31 % count);
	r = kind->decode(data, size, &err, again.bytes);
	(void)fuzz_memory_end(UINT64_MAX);
	FUZZ_CHECK(r == code || r == -ENOMEM);
	fuzz_check_error(&err, r, size);
	FUZZ_CHECK(r < 0 || kind->same(value->bytes, again.bytes));
	if (r == 0)
		clear(kind, &again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct fuzz_sealed *kind = &fuzz_kind;
	union value value = {0};
	struct ckpt_error err = {0};
	size_t count;
	int r;

	FUZZ_CHECK(kind->size <= VALUE_MAX);
	fuzz_memory_begin(0);
	r = kind->decode(data, size, &err, value.bytes);
	fuzz_check_error(&err, r, size);
	count = fuzz_memory_end((uint64_t)kind->memory * size);
	check_version(r, data, size);
	if (r == 0) {
		kind->check(value.bytes);
		check_again(kind, &value);
	} else {
		static const union value none;

		/* What could not be read has not touched what was there. */
		FUZZ_CHECK(memcmp(value.bytes, none.bytes, VALUE_MAX) == 0);
	}
	check_without_memory(kind, data, size, count, r, &value);
	if (r == 0)
		clear(kind, &value);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_sealed(data, size, max, seed);
}
