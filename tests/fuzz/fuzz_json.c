/* SPDX-License-Identifier: Apache-2.0 */
/* The scan and the reader of JSON, beside jansson: they take the same, and read the same in it. */
#include "fuzz.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"

#define VALUES 5000
#define DEPTH  32

static char *spare; /* room for any string of the text */
static size_t spare_size;

/* The reader leaves out NUL, and says so. */
static void check_text(const struct ckpt_reader_string *read, const char *text, size_t length)
{
	size_t at = 0;

	FUZZ_CHECK(!read->cut);
	FUZZ_CHECK(read->nul == (memchr(text, 0, length) != NULL));
	for (size_t i = 0; i < length; i++) {
		if (text[i] == 0)
			continue;
		FUZZ_CHECK(at < read->length && spare[at] == text[i]);
		at++;
	}
	FUZZ_CHECK(at == read->length);
}

static void check_string(struct ckpt_reader *r, const json_t *value)
{
	struct ckpt_reader_string s = {.out = spare, .size = spare_size};

	FUZZ_CHECK(ckpt_reader_string(r, &s));
	check_text(&s, json_string_value(value), json_string_length(value));
}

static void check_number(struct ckpt_reader *r, const json_t *value)
{
	struct ckpt_reader copy = *r;
	uint64_t number = 0;
	bool whole;

	copy.err = NULL;
	whole = ckpt_reader_u64(&copy, &number);
	FUZZ_CHECK(whole == (json_is_integer(value) && json_integer_value(value) >= 0 &&
				    ckpt_reader_peek(r) != '-'));
	FUZZ_CHECK(!whole || number == (uint64_t)json_integer_value(value));
	FUZZ_CHECK(ckpt_reader_scalar(r));
	FUZZ_CHECK(!whole || copy.at == r->at);
}

static void check_value(struct ckpt_reader *r, const json_t *value)
{
	struct ckpt_reader skipped = *r;
	size_t count = 0;

	FUZZ_CHECK(ckpt_reader_skip(&skipped));
	if (json_is_object(value)) {
		struct ckpt_reader_string key = {.out = spare, .size = spare_size};

		FUZZ_CHECK(ckpt_reader_open(r, '{'));
		while (ckpt_reader_key(r, &key)) {
			const json_t *member = json_object_getn(value, spare, key.length);

			FUZZ_CHECK(member && !key.nul);
			check_value(r, member);
			key = (struct ckpt_reader_string){.out = spare, .size = spare_size};
			count++;
		}
		FUZZ_CHECK(count == json_object_size(value));
	} else if (json_is_array(value)) {
		FUZZ_CHECK(ckpt_reader_open(r, '['));
		while (ckpt_reader_item(r)) {
			FUZZ_CHECK(count < json_array_size(value));
			check_value(r, json_array_get(value, count++));
		}
		FUZZ_CHECK(count == json_array_size(value));
	} else if (json_is_string(value)) {
		check_string(r, value);
	} else if (json_is_number(value)) {
		check_number(r, value);
	} else {
		FUZZ_CHECK(ckpt_reader_scalar(r));
	}
	FUZZ_CHECK(!r->failed && r->at == skipped.at);
}

/* jansson refuses what is JSON but does not fit what it keeps. */
static bool only_jansson_minds(const json_error_t *why)
{
	enum json_error_code code = json_error_code(why);

	return code == json_error_duplicate_key || code == json_error_numeric_overflow ||
	       code == json_error_null_byte_in_key;
}

/* Values and levels of a tree, keys not counted. */
static size_t measure(const json_t *value, unsigned depth, unsigned *ret_depth)
{
	size_t count = 1;
	const char *key;
	const json_t *item;
	json_t *member;
	size_t i;

	depth += json_is_object(value) || json_is_array(value);
	if (depth > *ret_depth)
		*ret_depth = depth;
	json_array_foreach(value, i, item) count += measure(item, depth, ret_depth);
	json_object_foreach((json_t *)value, key, member) count +=
		measure(member, depth, ret_depth);
	return count;
}

/* With other limits than FORMAT.md's: they hold exactly. */
static void check_limits(const char *text, size_t length, unsigned depth, size_t values)
{
	struct ckpt_error err = {0};
	int r = ckpt_json_scan(text, length, values, depth, FUZZ_FILE, &err);
	json_t *value =
		memchr(text, 0, length)
			? NULL
			: json_loadb(text, length,
				  JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
	unsigned deepest = 0;
	size_t count;

	fuzz_check_error(&err, r, length);
	if (value) {
		count = measure(value, 0, &deepest);
		FUZZ_CHECK((r == 0) == (count <= values && deepest <= depth));
		json_decref(value);
	}
	/* What passes with less passes with more. */
	FUZZ_CHECK(
		r < 0 || ckpt_json_scan(text, length, values + 1, depth + 1, FUZZ_FILE, NULL) == 0);
}

/* A whole number that stands first: jansson has none above 2^63-1 either, but for that it refuses all. */
static void check_first_number(const char *text, size_t length)
{
	struct ckpt_reader r;
	uint64_t number = 77;
	unsigned __int128 value = 0;
	size_t digits = 0;
	bool good;

	ckpt_reader_init(&r, text, length, 0, FUZZ_FILE, NULL);
	good = ckpt_reader_u64(&r, &number);
	while (length > 0 && strchr(" \n\t\r", *text) && *text)
		text++, length--;
	for (; digits < length && text[digits] >= '0' && text[digits] <= '9'; digits++) {
		if (value <= INT64_MAX)
			value = value * 10 + (unsigned)(text[digits] - '0');
	}
	FUZZ_CHECK(
		good == (digits > 0 && value <= INT64_MAX && (digits == 1 || *text != '0') &&
				!(digits < length && text[digits] && strchr(".eE", text[digits]))));
	FUZZ_CHECK(number == (good ? (uint64_t)value : 77));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_error err = {0};
	json_error_t why;
	json_t *value;
	const char *text = (const char *)data + 2;
	size_t length;
	int r;

	if (size < 2)
		return 0;
	length = size - 2;
	check_limits(text, length, data[0] % 63, data[1]);
	check_first_number(text, length);
	fuzz_memory_begin(0);
	r = ckpt_json_scan(text, length, VALUES, DEPTH, FUZZ_FILE, &err);
	FUZZ_CHECK(fuzz_memory_end(0) == 0);
	fuzz_check_error(&err, r, length);
	value = json_loadb(
		text, length, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &why);
	/* It passes over a NUL behind a word. */
	if (value && r < 0 && !memchr(text, 0, length))
		FUZZ_CHECK(strstr(err.message, "nested deeper") || strstr(err.message, "values"));
	if (!value && r == 0)
		FUZZ_CHECK(only_jansson_minds(&why));
	if (value && r == 0) {
		struct ckpt_reader reader;

		spare_size = length;
		spare = malloc(length + 1);
		FUZZ_CHECK(spare);
		ckpt_reader_init(&reader, text, length, 0, FUZZ_FILE, NULL);
		check_value(&reader, value);
		FUZZ_CHECK(ckpt_reader_finish(&reader) == 0);
		free(spare);
	}
	json_decref(value);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	struct prng prng = {seed};

	if (size < 2 || max < 4 || prng_below(&prng, 8) == 0)
		return LLVMFuzzerMutate(data, size, max);
	if (prng_below(&prng, 4) == 0) {
		data[0] = (uint8_t)prng_next(&prng);
		data[1] = (uint8_t)prng_next(&prng);
	}
	return 2 + fuzz_mutate_json(data + 2, size - 2, max - 2, &prng);
}
