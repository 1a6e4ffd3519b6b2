/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a shard: its bytes, and that only what the index says passes the comparison. */
#include "format_kit.h"

#include <errno.h>
#include <stdlib.h>

#include "base/buf.h"
#include "format/safetensors.h"

static void test_bytes(void **state)
{
	static const char json[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"c\":{\"dtype\":\"U8\",\"shape\":[2,16],\"data_offsets\":[0,32]},"
		"\"w\\\"\\n\xf0\x9f\x98\x80\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":"
		"[32,44]},"
		"\"../../x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[44,45]},"
		"\"e\":{\"dtype\":\"BOOL\",\"shape\":[5,0],\"data_offsets\":[45,45]},"
		"\"f\":{\"dtype\":\"F4\",\"shape\":[2,6],\"data_offsets\":[45,51]},"
		"\"g\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[51,52]},"
		"\"h\":{\"dtype\":\"F4\",\"shape\":[0,70368744177664],"
		"\"data_offsets\":[52,52]},"
		"\"s\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[52,53]}}";
	int64_t shape[] = {2, 3};
	int64_t empty[] = {5, 0};
	int64_t wide[] = {0, INT64_C(1) << 45};
	int64_t one = 1;
	struct ckpt_tensor tensors[] = {
		{.name = "s", .dtype = CKPT_I8},
		{.name = "f", .dtype = CKPT_F4_X2, .ndim = 2, .shape = shape},
		{.name = "g", .dtype = CKPT_F4_X2},
		{.name = "h", .dtype = CKPT_F4_X2, .ndim = 2, .shape = wide},
		{.name = "e", .dtype = CKPT_BOOL, .ndim = 2, .shape = empty},
		{.name = "w\"\n\xf0\x9f\x98\x80", .dtype = CKPT_BF16, .ndim = 2, .shape = shape},
		{.name = "../../x", .dtype = CKPT_F8_E4M3FNUZ, .ndim = 1, .shape = &one},
		{.name = "c", .dtype = CKPT_C128, .ndim = 1, .shape = shape},
	};
	struct ckpt_layout *layout;

	(void)state;
	assert_int_equal(
		ckpt_layout_build(tensors, COUNT(tensors), NULL, 0, 4096, NULL, &layout), 0);
	assert_int_equal(layout->header_bytes, 4096);
	assert_memory_equal(layout->header, "\xf8\x0f\0\0\0\0\0\0", 8);
	assert_memory_equal(layout->header + 8, json, sizeof(json) - 1);
	for (size_t i = 8 + sizeof(json) - 1; i < 4096; i++)
		assert_int_equal(layout->header[i], ' ');
	ckpt_layout_free(layout);
}

static void test_nothing(void **state)
{
	static const char json[] = "{\"__metadata__\":{\"format\":\"pt\"}} ";
	struct ckpt_layout *layout;

	(void)state;
	assert_int_equal(ckpt_layout_build(NULL, 0, NULL, 0, 4096, NULL, &layout), 0);
	assert_int_equal(layout->bytes, 4096);
	assert_int_equal(layout->chunk_count, 1);
	assert_memory_equal(layout->header + 8, json, sizeof(json) - 1);
	assert_int_equal(
		ckpt_safetensors_check(layout, layout->header, layout->header_bytes, "f", NULL), 0);
	ckpt_layout_free(layout);
}

static void test_own_headers_pass(void **state)
{
	struct kit kit = {.seed = 4};

	(void)state;
	for (int round = 0; round < 200; round++) {
		struct ckpt_error err = {0};
		struct ckpt_layout *layout;
		int r;

		kit_draw(&kit, KIT_TENSORS);
		layout = kit_build(&kit);
		r = ckpt_safetensors_check(layout, layout->header, layout->header_bytes, "f", &err);
		if (r != 0)
			fail_msg("%s", err.message);
		ckpt_layout_free(layout);
	}
}

/* One byte changed: what passes must still be the same header, which only white space can be. */
static void test_changed_byte(void **state)
{
	static const char bytes[] = "0123456789 \n\t\"\\{}[],:aU8e+-.\0\x80\xff";
	struct kit kit = {.seed = 5};
	size_t json_end = 0;
	size_t passed = 0;
	size_t length;
	struct ckpt_layout *layout;

	(void)state;
	do
		kit_draw(&kit, 6);
	while (kit.count < 5);
	layout = kit_build(&kit);
	length = layout->header_bytes;
	for (size_t at = length; layout->header[at - 1] == ' '; at--)
		json_end = at;
	for (size_t at = 0; at < length; at++) {
		char was;

		/* The spaces are all alike. */
		if (at == json_end)
			at = length - 4;
		was = layout->header[at];
		for (size_t i = 0; i < sizeof(bytes) - 1; i++) {
			bool space = was == ' ' && (bytes[i] == '\n' || bytes[i] == '\t');

			if (bytes[i] == was)
				continue;
			layout->header[at] = bytes[i];
			if (ckpt_safetensors_check(layout, layout->header, length, "f", NULL) ==
				0) {
				/* The members of __metadata__ are not ours to judge. */
				if (!space && (at < 8 + 15 || at > 8 + 32))
					fail_msg("byte %zu, '%c' for '%c'", at, bytes[i], was);
				passed++;
			}
		}
		layout->header[at] = was;
	}
	assert_true(passed > 0);
	ckpt_layout_free(layout);
}

static void test_every_length(void **state)
{
	struct kit kit = {.seed = 6};
	struct ckpt_layout *layout;

	(void)state;
	kit_draw(&kit, KIT_TENSORS);
	layout = kit_build(&kit);
	for (size_t length = 0; length < layout->header_bytes; length++) {
		char *copy = malloc(length ? length : 1);

		assert_non_null(copy);
		memcpy(copy, layout->header, length);
		assert_int_equal(
			ckpt_safetensors_check(layout, copy, length, "f", NULL), CKPT_EFORMAT);
		free(copy);
	}
	ckpt_layout_free(layout);
}

/* A header by hand, as another program may write it. */
static int check(const struct ckpt_layout *layout, const char *json, struct ckpt_error *err)
{
	char header[4096];

	memset(header, ' ', sizeof(header));
	memcpy(header, "\xf8\x0f\0\0\0\0\0\0", 8);
	memcpy(header + 8, json, strlen(json));
	return ckpt_safetensors_check(layout, header, sizeof(header), "f", err);
}

static void test_other_writers(void **state)
{
	static const struct {
		const char *json;
		const char *says; /* NULL: it passes */
	} cases[] = {
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}",
			NULL},
		/* Other white space, escapes, order of members, metadata elsewhere or more of it. */
		{"{ \"\\u0061\" : { \"data_offsets\" : [ 0 , 12 ] , "
		 "\"shape\":[3],\"dtype\":\"F32\"},"
		 "\"__metadata__\":{\"format\":\"np\",\"x\":\"y\"},"
		 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]} }",
			NULL},
		{"{\"__metadata__\":{},"
		 "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		 "\"__metadata__\":{\"format\":\"pt\"},"
		 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}",
			"\"__metadata__\" occurs twice"},
		{"{\"__metadata__\\u0000\":{}}", "expected tensor 'a'"},
		{"{\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]},"
		 "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
			"expected tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]}}",
			"it lacks tensor 'b'"},
		{"{}", "it lacks tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]},"
		 "\"c\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[13,14]}}",
			"a tensor too many"},
		{"{\"a\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[0,12]}}", "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[0,12]}}",
			"tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,12]}}", "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,13]}}", "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0]}}", "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3]}}", "tensor 'a'"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"shape\":[3],\"data_offsets\":[0,12]}}",
			"occurs twice"},
		{"{\"a\":[]}", "'{' is missing"},
		{"[]", "does not begin like a safetensors file"},
		{"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
		 "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[12,13]}}}",
			"something follows"},
	};
	int64_t three = 3;
	struct ckpt_tensor tensors[] = {
		{.name = "a", .dtype = CKPT_F32, .ndim = 1, .shape = &three},
		{.name = "b", .dtype = CKPT_U8}};
	struct ckpt_layout *layout;

	(void)state;
	assert_int_equal(ckpt_layout_build(tensors, 2, NULL, 0, 4096, NULL, &layout), 0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ckpt_error err = {0};
		int r = check(layout, cases[i].json, &err);

		if (r != (cases[i].says ? CKPT_EFORMAT : 0))
			fail_msg("%zu: %d %s", i, r, err.message);
		if (cases[i].says && !strstr(err.message, cases[i].says))
			fail_msg("%zu: %s", i, err.message);
	}
	ckpt_layout_free(layout);
}

/* Readers of safetensors refuse a header of more than 100,000,000 bytes; so does the layout. */
static void test_too_long(void **state)
{
	enum { MANY = 98000, LONG = CKPT_NAME_MAX - 1 };
	struct ckpt_tensor *tensors = calloc(MANY, sizeof(*tensors));
	char *names = malloc((size_t)MANY * (LONG + 1));
	struct ckpt_layout *layout = NULL;
	struct ckpt_error err = {0};

	(void)state;
	assert_non_null(tensors);
	assert_non_null(names);
	for (size_t i = 0; i < MANY; i++) {
		char *name = names + i * (LONG + 1);

		memset(name, 'n', LONG);
		(void)snprintf(name, 16, "%010zu", i);
		name[10] = '_';
		name[LONG] = 0;
		tensors[i] = (struct ckpt_tensor){.name = name, .dtype = CKPT_U8};
	}
	assert_int_equal(
		ckpt_layout_build(tensors, MANY, NULL, 0, CKPT_CHUNK_BYTES, &err, &layout), -E2BIG);
	assert_non_null(strstr(err.message, "100000000"));
	free(names);
	free(tensors);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_nothing),
		cmocka_unit_test(test_own_headers_pass),
		cmocka_unit_test(test_changed_byte),
		cmocka_unit_test(test_every_length),
		cmocka_unit_test(test_other_writers),
		cmocka_unit_test(test_too_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
