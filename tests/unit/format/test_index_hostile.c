/* SPDX-License-Identifier: Apache-2.0 */
/* Indexes by hand, digests and all, that lie: each is refused, in bounded memory, with its reason. */
#include "index_kit.h"

#include <errno.h>
#include <time.h>

#define TENSOR(name, dtype, shape, offset)                                                         \
	"{\"name\":" name ",\"dtype\":" dtype ",\"shape\":" shape ",\"offset\":" offset "}"
#define DIGESTED(shape, digest)                                                                    \
	"{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":" shape ",\"offset\":4096,\"digest\":" digest  \
	"}"
#define VARYING(shape, varies)                                                                     \
	"{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":" shape ",\"offset\":4096,\"varies\":" varies  \
	"}"
#define DIGEST        "\"0123456789abcdef0123456789abcdef\""
#define TENSORS(list) "{\"tensors\":[" list "],\"aliases\":[]}"
#define ALIASES(list)                                                                              \
	"{\"tensors\":[" TENSOR("\"a\"", "\"U8\"", "[10]", "4096") "],\"aliases\":[" list "]}"
#define A TENSOR("\"a\"", "\"U8\"", "[10]", "4096")

static void check_refused(const struct forgery *f, const char *says)
{
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes = kit_forge(f);
	int r = kit_decode(bytes.data, bytes.len, &err, &index);

	if (r != CKPT_EFORMAT || !strstr(err.message, says))
		fail_msg("%d '%s', not '%s'", r, err.message, says);
	assert_null(index);
	assert_string_equal(err.file, "x.index");
	ckpt_buf_free(&bytes);
}

static void test_good(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes = kit_forge(&f);

	(void)state;
	if (kit_decode(bytes.data, bytes.len, &err, &index) != 0)
		fail_msg("%s", err.message);
	assert_int_equal(index->layout->entry_count, 1);
	assert_int_equal(index->layout->bytes, 4106);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
}

static void test_head(void **state)
{
	static const uint64_t huge[] = {UINT64_MAX - 1, UINT64_MAX / 2, UINT64_C(1) << 63,
		UINT64_MAX / 28, UINT64_MAX / 28 + 1, UINT64_C(1) << 32, 1000};
	static const uint32_t heads[] = {0, 71, 73, 4096, 4097, UINT32_MAX};
	struct forgery f;

	(void)state;
	for (size_t i = 0; i < COUNT(heads); i++) {
		f = (struct forgery)FORGERY;
		f.head_bytes = heads[i];
		check_refused(&f, "a head of a wrong length");
		f.minor = CKPT_FORMAT_MINOR + 1;
		if (heads[i] < 72 || heads[i] > 4096)
			check_refused(&f, "a head of a wrong length");
	}
	/* A newer minor may have more behind its parts, not less. */
	for (size_t i = 0; i < 2 * COUNT(huge); i++) {
		uint64_t length = huge[i / 2];
		uint32_t minor = CKPT_FORMAT_MINOR + i % 2;

		f = (struct forgery)FORGERY;
		f.minor = minor;
		f.tensors_bytes = length;
		check_refused(&f, "do not add up");
		f = (struct forgery)FORGERY;
		f.minor = minor;
		f.meta_bytes = length;
		check_refused(&f, length > CKPT_META_MAX ? "too much meta" : "do not add up");
		f = (struct forgery)FORGERY;
		f.minor = minor;
		f.chunk_count = length;
		check_refused(&f, length > CKPT_CHUNKS_MAX ? "more chunks" : "do not add up");
	}
	/* Each length is too long by what the other is too short. */
	f = (struct forgery)FORGERY;
	f.tensors_bytes = strlen(f.tensors) + 28;
	f.chunk_count = 1;
	check_refused(&f, "something follows after the end");
	f = (struct forgery)FORGERY;
	f.meta_bytes = UINT64_MAX - 27;
	f.chunk_count = 3;
	check_refused(&f, "too much meta");
	f = (struct forgery)FORGERY;
	f.tail = "x";
	check_refused(&f, "do not add up");
}

static void test_sizes(void **state)
{
	static const uint64_t headers[] = {
		0, 1, 8, 4095, 4097, UINT64_MAX, UINT64_MAX - 4095, UINT64_C(1) << 40};
	static const uint64_t shards[] = {0, 1, 4095, (UINT64_C(1) << 46) + 1, UINT64_MAX};
	static const uint64_t chunks[] = {
		0, (UINT64_C(1) << 30) + 1, UINT64_C(1) << 32, UINT64_MAX};
	struct forgery f;

	(void)state;
	for (size_t i = 0; i < COUNT(headers); i++) {
		f = (struct forgery)FORGERY;
		f.records = 0;
		f.header_bytes = headers[i];
		f.shard_bytes = UINT64_C(1) << 45;
		check_refused(&f, "has an impossible ");
	}
	f.header_bytes = 4096 + 100000000 / 4096 * 4096;
	check_refused(&f, "an impossible header size");
	for (size_t i = 0; i < COUNT(shards); i++) {
		f = (struct forgery)FORGERY;
		f.records = 0;
		f.shard_bytes = shards[i];
		check_refused(&f, "an impossible shard size");
	}
	for (size_t i = 0; i < COUNT(chunks); i++) {
		f = (struct forgery)FORGERY;
		f.records = 0;
		f.chunk_bytes = chunks[i];
		check_refused(&f, "an impossible chunk size");
	}
	f = (struct forgery)FORGERY;
	f.rank = 1000000;
	check_refused(&f, "an impossible rank");
	/* A shard longer or shorter than its tensors. */
	for (uint64_t bytes = 4096; bytes < 4116; bytes++) {
		if (bytes == 4106)
			continue;
		f = (struct forgery)FORGERY;
		f.shard_bytes = bytes;
		check_refused(&f, bytes < 4106 ? "exceeds the shard" : "its tensors end at");
	}
}

static void test_chunks(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index = NULL;
	struct ckpt_buf bytes;

	(void)state;
	f.records = 1;
	check_refused(&f, "another number of chunks than its shard");
	f.records = 3;
	check_refused(&f, "another number of chunks than its shard");
	/* As many chunks as bytes, said in a small file. */
	f = (struct forgery)FORGERY;
	f.chunk_bytes = 1;
	check_refused(&f, "another number of chunks than its shard");
	/* 2^45 bytes in one-byte chunks: counted, not made. */
	f.tensors = TENSORS(TENSOR("\"a\"", "\"U8\"", "[35184372088832]", "4096"));
	f.shard_bytes = 4096 + (UINT64_C(1) << 45);
	check_refused(&f, "another number of chunks than its shard");
	/* Every byte of a record but its digest. */
	f = (struct forgery)FORGERY;
	bytes = kit_forge(&f);
	for (size_t i = 0; i < 2 * 28; i++) {
		char *at = bytes.data + bytes.len - CKPT_DIGEST_SIZE - (2 * 28 - i);
		int r;

		*at ^= 1;
		bytes.len -= CKPT_DIGEST_SIZE;
		kit_seal_index(&bytes);
		r = kit_decode(bytes.data, bytes.len, NULL, &index);
		assert_int_equal(r, i % 28 < 12 ? CKPT_EFORMAT : 0);
		if (r == 0)
			ckpt_index_free(index);
		at = bytes.data + bytes.len - CKPT_DIGEST_SIZE - (2 * 28 - i);
		*at ^= 1;
	}
	ckpt_buf_free(&bytes);
}

/* A digest of a tensor that shares no chunk is passed over. */
static void test_digest(void **state)
{
	static const uint64_t chunk_bytes[] = {11, 10};
	struct forgery f = FORGERY;

	(void)state;
	f.tensors = TENSORS(DIGESTED("[10]", DIGEST));
	for (size_t i = 0; i < COUNT(chunk_bytes); i++) {
		struct ckpt_index *index = NULL;
		struct ckpt_error err = {0};

		f.chunk_bytes = chunk_bytes[i];
		f.records = (4096 + f.chunk_bytes - 1) / f.chunk_bytes + 1;
		struct ckpt_buf bytes = kit_forge(&f);
		if (kit_decode(bytes.data, bytes.len, &err, &index) != 0)
			fail_msg("%s", err.message);
		assert_int_equal(index->layout->digest_count, i == 0);
		assert_int_equal(index->layout->entries[0].own, i == 0);
		ckpt_index_free(index);
		ckpt_buf_free(&bytes);
	}
}

/* The tensors of a shard of ten bytes, told wrong. */
static const struct {
	const char *tensors;
	const char *says;
} lies[] = {
	{"", "'{' is missing"},
	{"[]", "'{' is missing"},
	{"null", "'{' is missing"},
	{"{}", "\"tensors\" is missing"},
	{"{\"tensors\":[]}", "its tensors end at"},
	{"{\"tensors\":{}}", "'[' is missing"},
	{"{\"tensors\":[" A "],\"tensors\":[]}", "occurs twice"},
	{"{\"tensors\":[" A "],\"aliases\":[],\"aliases\":[]}", "occurs twice"},
	{TENSORS(A) "x", "something follows"},
	{TENSORS(A) "\x01", "something follows"},
	{TENSORS(A ","), "'{' is missing"},
	{TENSORS("[]"), "'{' is missing"},
	{TENSORS("{}"), "lacks its name"},
	{TENSORS("{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[10]}"), "lacks its name"},
	{TENSORS("{\"name\":\"a\",\"name\":\"a\"}"), "occurs twice"},
	{TENSORS("{\"name\":\"a\",\"\\u006eame\":\"b\"}"), "occurs twice"},
	/* Names. */
	{TENSORS(TENSOR("\"\"", "\"U8\"", "[10]", "4096")), "is empty"},
	{TENSORS(TENSOR("\"__metadata__\"", "\"U8\"", "[10]", "4096")), "is reserved"},
	{TENSORS(TENSOR("\"a\\u0000b\"", "\"U8\"", "[10]", "4096")), "contains a NUL"},
	{TENSORS(TENSOR("\"\\u0000\"", "\"U8\"", "[10]", "4096")), "contains a NUL"},
	{TENSORS(TENSOR("\"\\ud800\"", "\"U8\"", "[10]", "4096")), "half a surrogate"},
	{TENSORS(TENSOR("\"\xff\"", "\"U8\"", "[10]", "4096")), "is not UTF-8"},
	{TENSORS(TENSOR("\"\xed\xa0\x80\"", "\"U8\"", "[10]", "4096")), "is not UTF-8"},
	{TENSORS(TENSOR("\"a\nb\"", "\"U8\"", "[10]", "4096")), "control byte"},
	{TENSORS(TENSOR("1", "\"U8\"", "[10]", "4096")), "'\"' is missing"},
	/* Types and shapes. */
	{TENSORS(TENSOR("\"a\"", "\"U9\"", "[10]", "4096")), "the unknown dtype 'U9'"},
	{TENSORS(TENSOR("\"a\"", "\"\"", "[10]", "4096")), "has the unknown dtype"},
	{TENSORS(TENSOR("\"a\"", "\"0123456789abcdef\"", "[10]", "4096")), "more than 15"},
	{TENSORS(TENSOR("\"a\"", "2", "[10]", "4096")), "'\"' is missing"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "10", "4096")), "'[' is missing"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[-10]", "4096")), "a whole number is missing"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10.0]", "4096")), "is not whole"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[1e1]", "4096")), "is not whole"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[010]", "4096")), "begins with 0"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[18446744073709551626]", "4096")), "2^63-1"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[9223372036854775807]", "4096")), "more bytes"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[4294967296,4294967296]", "4096")), "more bytes"},
	{TENSORS(TENSOR("\"a\"", "\"F64\"", "[2305843009213693952]", "4096")), "more bytes"},
	/* Would be 10 after the product wraps. */
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[5534023222112865486,10]", "4096")), "more bytes"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[0,9223372036854775807,3]", "4096")), "more bytes"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,10]", "4096")),
		"more than 16 dimensions"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[[10]]", "4096")), "a whole number is missing"},
	/* Places. */
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "0")), "where 4096 is expected"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "4095")), "where 4096 is expected"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "4097")), "where 4096 is expected"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "9223372036854775807")), "is expected"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "18446744073709551606")), "2^63-1"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[10]", "-1")), "a whole number is missing"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[11]", "4096")), "exceeds the shard"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[9]", "4096")), "its tensors end at"},
	/* Two that overlap, and two with a hole between them. */
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[5]", "4096") "," TENSOR(
		 "\"b\"", "\"U8\"", "[6]", "4100")),
		"where 4101 is expected"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[4]", "4096") "," TENSOR(
		 "\"b\"", "\"U8\"", "[5]", "4101")),
		"where 4100 is expected"},
	{TENSORS(A "," A), "where 4106 is expected"},
	/* Order, and with it most names that come twice. */
	{TENSORS(TENSOR("\"b\"", "\"U8\"", "[5]", "4096") "," TENSOR(
		 "\"a\"", "\"U8\"", "[5]", "4101")),
		"'a' is out of order"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[5]", "4096") "," TENSOR(
		 "\"a\"", "\"U8\"", "[5]", "4101")),
		"'a' is out of order"},
	{TENSORS(TENSOR("\"a\"", "\"U8\"", "[6]", "4096") "," TENSOR(
		 "\"b\"", "\"U16\"", "[2]", "4102")),
		"'b' is out of order"},
	{TENSORS(TENSOR("\"a\"", "\"U16\"", "[2]", "4096") "," TENSOR(
		 "\"a\"", "\"U8\"", "[6]", "4100")),
		"gives the name 'a' twice"},
	/* Digests of single tensors. */
	{TENSORS(DIGESTED("[10]", "\"0123456789abcdef0123456789abcde\"")), "is not 32 lower-case"},
	{TENSORS(DIGESTED("[10]", "\"0123456789abcdef0123456789abcdef0\"")), "more than 32"},
	{TENSORS(DIGESTED("[10]", "\"0123456789abcdef0123456789abcdeF\"")), "is not 32 lower-case"},
	{TENSORS(DIGESTED("[10]", "\"0123456789abcdef0123456789abcdeg\"")), "is not 32 lower-case"},
	{TENSORS(DIGESTED("[10]", "\"\"")), "is not 32 lower-case"},
	/* Also where no use is made of it. */
	{TENSORS(DIGESTED("[0]", "\"\"")), "is not 32 lower-case"},
	{TENSORS(DIGESTED("[10]", "7")), "'\"' is missing"},
	{TENSORS(DIGESTED("[10]", DIGEST ",\"digest\":" DIGEST)), "occurs twice"},
	{TENSORS(VARYING("[10]", "0")), "\"varies\" of tensor 'a' is not 1"},
	{TENSORS(VARYING("[10]", "2")), "\"varies\" of tensor 'a' is not 1"},
	{TENSORS(VARYING("[10]", "true")), "number"},
};

static void test_tensors(void **state)
{
	struct forgery f = FORGERY;

	(void)state;
	for (size_t i = 0; i < COUNT(lies); i++) {
		f.tensors = lies[i].tensors;
		check_refused(&f, lies[i].says);
	}
}

static void test_aliases(void **state)
{
	static const struct {
		const char *tensors;
		const char *says;
	} cases[] = {
		{ALIASES("{}"), "lacks its name or its target"},
		{ALIASES("{\"name\":\"b\"}"), "lacks its name or its target"},
		{ALIASES("{\"name\":\"\",\"target\":\"a\"}"), "lacks its name or its target"},
		{ALIASES("{\"name\":\"b\",\"target\":\"\"}"), "which it does not have"},
		{ALIASES("{\"name\":\"b\",\"target\":\"c\"}"),
			"'b' of 'c', which it does not have"},
		{ALIASES("{\"name\":\"b\",\"target\":\"b\"}"),
			"'b' of 'b', which it does not have"},
		{ALIASES("{\"name\":\"a\",\"target\":\"a\"}"), "gives the name 'a' twice"},
		{ALIASES("{\"name\":\"b\",\"target\":\"a\"},{\"name\":\"b\",\"target\":\"a\"}"),
			"'b' is out of order"},
		{ALIASES("{\"name\":\"c\",\"target\":\"a\"},{\"name\":\"b\",\"target\":\"a\"}"),
			"'b' is out of order"},
		{ALIASES("{\"name\":\"b\",\"target\":\"a\"},{\"name\":\"c\",\"target\":\"b\"}"),
			"'c' of 'b', which it does not have"},
		{ALIASES("{\"name\":\"b\",\"target\":\"a\",\"name\":\"c\"}"), "occurs twice"},
		{ALIASES("{\"name\":\"b\\u0000\",\"target\":\"a\"}"), "contains a NUL"},
		{ALIASES("1"), "'{' is missing"},
	};
	struct forgery f = FORGERY;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		f.tensors = cases[i].tensors;
		check_refused(&f, cases[i].says);
	}
}

static void test_boxes(void **state)
{
#define BOX(rest)                                                                                  \
	TENSORS("{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[2,5],\"offset\":4096," rest "}")
	static const struct {
		const char *tensors;
		const char *says;
	} cases[] = {
		{BOX("\"global_start\":[0,0]"), "without a global_shape"},
		{BOX("\"global_shape\":[2]"), "other dimensions than its global_shape"},
		{BOX("\"global_shape\":[2,5,1]"), "other dimensions than its global_shape"},
		{BOX("\"global_shape\":[2,5],\"global_start\":[0]"),
			"other dimensions than its global_shape"},
		{BOX("\"global_shape\":[1,5]"), "exceeds its global_shape"},
		{BOX("\"global_shape\":[2,4]"), "exceeds its global_shape"},
		{BOX("\"global_shape\":[0,5]"), "exceeds its global_shape"},
		{BOX("\"global_shape\":[4,5],\"global_start\":[3,0]"), "exceeds its global_shape"},
		{BOX("\"global_shape\":[4,5],\"global_start\":[5,0]"), "exceeds its global_shape"},
		{BOX("\"global_shape\":[4,5],\"global_start\":[9223372036854775807,0]"),
			"exceeds its global_shape"},
		{BOX("\"global_shape\":[4,5],\"global_start\":[-1,0]"), "number is missing"},
		{BOX("\"global_shape\":[4294967296,4294967296]"), "more than 2^63-1 bytes"},
		{BOX("\"global_shape\":[9223372036854775807,5]"), "more than 2^63-1 bytes"},
		{BOX("\"global_shape\":[4294967296,2147483648]"), "more than 2^63-1 bytes"},
	};
	struct forgery f = FORGERY;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		f.tensors = cases[i].tensors;
		check_refused(&f, cases[i].says);
	}
}

static void test_meta(void **state)
{
	static const char *const bad[] = {"{", "{} x", "nul", "\"\xff\"", "[1,]", "\x01", " ",
		"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"};
	struct forgery f = FORGERY;

	(void)state;
	for (size_t i = 0; i < COUNT(bad); i++) {
		f.meta = bad[i];
		check_refused(&f, "x.index is malformed at byte");
	}
}

/* Names are data: what would be a path, or a line of a log, comes back as it was, and is no path. */
static void test_names_are_data(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes;

	(void)state;
	f.tensors = TENSORS(TENSOR(
		"\"../../etc/\\u0070asswd\\n\\u001b[2J\\ud83d\\ude00\"", "\"U8\"", "[10]", "4096"));
	bytes = kit_forge(&f);
	assert_int_equal(kit_decode(bytes.data, bytes.len, NULL, &index), 0);
	assert_string_equal(
		index->layout->entries[0].name, "../../etc/passwd\n\x1b[2J\xf0\x9f\x98\x80");
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
	/* In a message it can neither forge a line nor steer a terminal. */
	f.tensors = TENSORS(TENSOR("\"x\\n\\u001b[2Jy\"", "\"U8\"", "[9]", "4000"));
	bytes = kit_forge(&f);
	assert_int_equal(kit_decode(bytes.data, bytes.len, &err, &index), CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "'x??[2Jy'"));
	ckpt_buf_free(&bytes);
}

/*
 * Whatever costs most: less than four times the length is asked for in all (64 MiB for 16), and it
 * does not take long.
 */
#define HUGE_BYTES (UINT64_C(2) << 20)

static void check_bounded(
	struct forgery *f, const struct ckpt_buf *tensors, int code, const char *what)
{
	struct kit_alloc alloc = {0};
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct ckpt_buf bytes;
	struct timespec start;
	struct timespec end;
	int r;

	f->tensors = tensors->data;
	bytes = kit_forge(f);
	assert_true(bytes.len > HUGE_BYTES / 2);
	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start), 0);
	r = ckpt_index_decode(bytes.data, bytes.len, "x.index", &err, &index);
	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end), 0);
	ckpt_alloc_set_hook(NULL, NULL);
	if (r != code)
		fail_msg("%s: %d %s", what, r, err.message);
	if (alloc.bytes > 4 * bytes.len)
		fail_msg("%s: %zu bytes asked for, of %zu", what, alloc.bytes, bytes.len);
	if (end.tv_sec - start.tv_sec > 5)
		fail_msg("%s: too slow", what);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
}

/* Fills a list with `item`, in which ###### is a number that makes it one of its kind. */
static void fill_list(struct ckpt_buf *out, const char *open, const char *item, const char *close)
{
	const char *number = strstr(item, "######");
	size_t head = number ? (size_t)(number - item) : strlen(item);

	ckpt_buf_puts(out, open);
	for (unsigned i = 0; out->len + 2 * strlen(item) < HUGE_BYTES - 256; i++) {
		if (i > 0)
			ckpt_buf_put(out, ",", 1);
		ckpt_buf_put(out, item, head);
		for (int digit = 5; number && digit >= 0; digit--)
			ckpt_buf_put(out, &"0123456789abcdef"[i >> (4 * digit) & 15], 1);
		if (number)
			ckpt_buf_puts(out, number + 6);
	}
	ckpt_buf_puts(out, close);
	ckpt_buf_put(out, "", 1);
	assert_false(out->failed);
}

static void test_bounded(void **state)
{
	static const struct {
		const char *open;
		const char *item;
		const char *close;
		int code;
	} cases[] = {
		{"{\"tensors\":[", TENSOR("\"######\"", "\"U8\"", "[0]", "4096"), "]}", 0},
		{"{\"tensors\":[",
			"{\"name\":\"######\",\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0,0,0,0,"
			"0,0,0,0],"
			"\"offset\":4096,\"global_shape\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"
			"\"global_start\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]}",
			"]}", 0},
		/* The memory is taken by the time that the target is looked for. */
		{"{\"tensors\":[],\"aliases\":[", "{\"name\":\"######\",\"target\":\"a\"}", "]}",
			CKPT_EFORMAT},
		{"{\"tensors\":[", "[", "]}", CKPT_EFORMAT},
		{"{\"x\":[", "{}", "],\"tensors\":[]}", 0},
		{"{\"x\":{\"a\":[", "{\"######\":{}}", "]},\"tensors\":[]}", 0},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct forgery f = FORGERY;
		struct ckpt_buf tensors = {0};

		fill_list(&tensors, cases[i].open, cases[i].item, cases[i].close);
		f.shard_bytes = 4096;
		f.records = 1;
		check_bounded(&f, &tensors, cases[i].code, cases[i].item);
		ckpt_buf_free(&tensors);
	}
}

static void test_bounded_chunks_and_meta(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_buf tensors = {0};
	struct ckpt_buf meta = {0};

	(void)state;
	/* A chunk for each byte, all of them true. */
	f.records = HUGE_BYTES / 28 - 100;
	f.chunk_bytes = 1;
	f.shard_bytes = f.records;
	ckpt_buf_printf(&tensors, "{\"tensors\":[" TENSOR("\"a\"", "\"U8\"", "[%zu]", "4096") "]}",
		f.records - 4096);
	ckpt_buf_put(&tensors, "", 1);
	check_bounded(&f, &tensors, 0, "chunks");
	f = (struct forgery)FORGERY;
	fill_list(&meta, "[", "{}", "]");
	f.meta = meta.data;
	tensors.len = 0;
	ckpt_buf_puts(&tensors, f.tensors);
	ckpt_buf_put(&tensors, "", 1);
	check_bounded(&f, &tensors, 0, "meta");
	ckpt_buf_free(&tensors);
	ckpt_buf_free(&meta);
}

/* Random bytes behind a true head and before a true digest. */
static void test_noise(void **state)
{
	static const char *const pieces[] = {"{\"tensors\":[", "{\"name\":\"", "\",",
		"\"dtype\":", "\"U8\"", "\"shape\":[", "0", "1", "10", "4096", "]", "}",
		"\"offset\":", ",", "\"", "{", "[", "\"aliases\":[", "\"target\":", "-", "\\u0000",
		"\xff", A, "a"};
	struct kit kit = {.seed = 12};

	(void)state;
	for (int round = 0; round < 5000; round++) {
		struct forgery f = FORGERY;
		struct ckpt_index *index = NULL;
		struct ckpt_buf bytes;
		char text[512] = "";
		size_t count = kit_next(&kit) % 24;
		size_t length = 0;

		for (size_t i = 0; i < count; i++) {
			const char *piece = pieces[kit_next(&kit) % COUNT(pieces)];

			if (length + strlen(piece) < sizeof(text)) {
				memcpy(text + length, piece, strlen(piece) + 1);
				length += strlen(piece);
			}
		}
		f.tensors = text;
		bytes = kit_forge(&f);
		(void)kit_decode(bytes.data, bytes.len, NULL, &index);
		ckpt_index_free(index);
		ckpt_buf_free(&bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good),
		cmocka_unit_test(test_head),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_digest),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_aliases),
		cmocka_unit_test(test_boxes),
		cmocka_unit_test(test_meta),
		cmocka_unit_test(test_names_are_data),
		cmocka_unit_test(test_bounded),
		cmocka_unit_test(test_bounded_chunks_and_meta),
		cmocka_unit_test(test_noise),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
