/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 16 MiB of the worst that JSON and the index can be, for everything that is read back: at most 64 MiB
 * are asked for, it does not take long, and what is wrong is said in a sentence.
 */
#include "index_kit.h"
#include "sealed_kit.h"

#include <time.h>

#include "base/utf8.h"
#include "format/naming.h"
#include "format/safetensors.h"
#include "lib/slice.h"

/* With a sanitizer all takes several times as long, so a quarter must do there. */
#ifdef __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define MEBIBYTES 4
#endif
#endif
#ifndef MEBIBYTES
#define MEBIBYTES 16
#endif

#define SLICES  4 /* of the fills, but in what is sealed; others with each commit */
#define INPUT   ((uint64_t)MEBIBYTES << 20)
#define MEMORY  (4 * INPUT)
#define SECONDS 20 /* of CPU, with a sanitizer on a slow machine; a tenth of one is usual */

/* What fills the input: `unit` as often as it fits, ###### a number that counts. */
struct fill {
	const char *open;
	const char *unit;
	const char *close;
};

/* One JSON value each, or the start of one. */
static const struct fill fills[] = {
	{"[", "{},", "0]"},
	{"[", "[],", "0]"},
	{"[", "0,", "0]"},
	{"", "[", ""},
	{"", "{\"a\":", ""},
	{"[", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]],", "0]"},
	{"{", "\"######\":{},", "\"a\":0}"},
	{"{", "\"a\":0,", "\"a\":0}"},
	{"{\"", "k", "\":0}"},
	{"\"", "x", "\""},
	{"\"", "\\u00e4", "\""},
	{"\"", "\xf0\x9f\x98\x80", "\""},
	{"\"", "\\", ""},
	{"", "9", ""},
	{"1.", "0", "e1"},
	{"1e", "9", ""},
	{"-", "0", ""},
	{"", " ", "0"},
	{"", "\xff", ""},
	{"", ",", ""},
};

static void put_numbered(struct ckpt_buf *out, const char *unit, const char *number, unsigned count)
{
	ckpt_buf_put(out, unit, (size_t)(number - unit));
	for (int digit = 5; digit >= 0; digit--)
		ckpt_buf_put(out, &"0123456789abcdef"[count >> (4 * digit) & 15], 1);
	ckpt_buf_puts(out, number + 6);
}

/* Appends until `left` bytes of the input are left. */
static void put_fill(struct ckpt_buf *out, const struct fill *fill, size_t left)
{
	const char *number = strstr(fill->unit, "######");
	size_t length = strlen(fill->unit);
	size_t end = INPUT - left - strlen(fill->close) - length;
	size_t start;

	ckpt_buf_puts(out, fill->open);
	start = out->len;
	ckpt_buf_puts(out, number ? "" : fill->unit);
	/* Twice as many each time. */
	while (!number && out->len + (out->len - start) <= end) {
		size_t have = out->len - start;

		ckpt_buf_fill(out, ' ', have);
		assert_false(out->failed);
		memcpy(out->data + out->len - have, out->data + start, have);
	}
	if (!number && out->len <= end) {
		size_t more = (end - out->len) / length * length + length;

		ckpt_buf_fill(out, ' ', more);
		assert_false(out->failed);
		memcpy(out->data + out->len - more, out->data + start, more);
	}
	for (unsigned i = 0; number && out->len <= end; i++)
		put_numbered(out, fill->unit, number, i);
	ckpt_buf_puts(out, fill->close);
	assert_false(out->failed);
}

struct meter {
	struct kit_alloc alloc;
	struct timespec start;
};

static void meter_start(struct meter *m)
{
	*m = (struct meter){0};
	ckpt_alloc_set_hook(kit_alloc_hook, &m->alloc);
	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &m->start), 0);
}

static void meter_stop(struct meter *m, const char *what, int r, const struct ckpt_error *err)
{
	struct timespec end;

	assert_int_equal(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end), 0);
	ckpt_alloc_set_hook(NULL, NULL);
	if (m->alloc.bytes > MEMORY)
		fail_msg("%s: %zu bytes were asked for", what, m->alloc.bytes);
	if (end.tv_sec - m->start.tv_sec > SECONDS)
		fail_msg("%s: it took %ld s", what, (long)(end.tv_sec - m->start.tv_sec));
	if (r != 0 && r != CKPT_EFORMAT)
		fail_msg("%s: %d %s", what, r, err->message);
	assert_int_equal(err->code, r);
	assert_int_equal(r == 0, err->message[0] == 0);
	assert_true(ckpt_utf8_is_line(err->message));
}

static int marker_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_marker marker;

	return ckpt_marker_decode(data, length, "f", err, &marker);
}

static int claim_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_claim claim;

	return ckpt_claim_decode(data, length, "f", err, &claim);
}

static int quarantine_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_quarantine note;

	return ckpt_quarantine_decode(data, length, "f", err, &note);
}

static int manifest_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_manifest manifest;
	int r = ckpt_manifest_decode(data, length, "f", err, &manifest);

	if (r == 0)
		ckpt_manifest_clear(&manifest);
	return r;
}

#define HEAD(kind) "{\"format\":[1,0],\"kind\":\"" kind "\""
#define RANK_REST                                                                                  \
	"\"attempt\":\"" ATTEMPT "\",\"index_digest\":\"000102030405060708090a0b0c0d0e0f\","       \
	"\"index_bytes\":1,\"shard_bytes\":1}"
#define REGISTER                                                                                   \
	HEAD("manifest")                                                                           \
	",\"run_id\":\"" RUN "\",\"generation\":1,\"step\":1,\"attempt\":\"" ATTEMPT               \
	"\",\"wall_ms\":1"

/* A good file of each kind, into which members are put. */
static const struct {
	const char *body;
	decode_fn *decode;
} kinds[] = {
	{HEAD("store") ",\"run_id\":\"" RUN "\",\"scope\":\"node\",\"wall_ms\":1", marker_decode},
	{HEAD("claim") ",\"run_id\":\"" RUN
		       "\",\"generation\":1,\"parent\":null,\"nonce\":\"" ATTEMPT
		       "\",\"world\":1,\"node\":\"\",\"wall_ms\":1",
		claim_decode},
	{HEAD("quarantine") ",\"generation\":1,\"step\":1,\"code\":-1,\"reason\":\"\","
			    "\"wall_ms\":1",
		quarantine_decode},
	{REGISTER ",\"outcome\":\"abort\",\"world\":1,\"reason\":\"\"", manifest_decode},
	{REGISTER ",\"outcome\":\"commit\",\"world\":1,\"ranks\":[{\"rank\":0,\"node\":"
		  "\"\"," RANK_REST "]",
		manifest_decode},
};

#define SEAL 46

static int decode_sealed(struct ckpt_buf *body, decode_fn *decode, const char *what)
{
	struct ckpt_error err = {0};
	struct meter meter;
	int r;

	ckpt_sealed_finish(body);
	assert_false(body->failed);
	assert_true(body->len > INPUT - 4096 && body->len <= INPUT);
	meter_start(&meter);
	r = decode(body->data, body->len, &err);
	meter_stop(&meter, what, r, &err);
	return r;
}

/* In a member that nobody knows, and in the place of one that somebody does. */
static bool fill_sealed(size_t kind, const struct fill *fill, bool known)
{
	const char *good = kinds[kind].body;
	struct ckpt_buf body = {0};
	int r;

	ckpt_buf_put(&body, good, known ? (size_t)(strrchr(good, ':') + 1 - good) : strlen(good));
	ckpt_buf_puts(&body, known ? "" : ",\"x\":");
	put_fill(&body, fill, SEAL);
	r = decode_sealed(&body, kinds[kind].decode, fill->unit);
	ckpt_buf_free(&body);
	return r == 0;
}

/* The kinds take turns: how they are read is the same. */
static void test_sealed(void **state)
{
	size_t passed = 0;
	size_t count = COUNT(kinds);

	(void)state;
	for (size_t i = 0; i < COUNT(fills); i++) {
		passed += fill_sealed(i % count, &fills[i], false);
		passed += fill_sealed((i + 2) % count, &fills[i], true);
	}
	/* The test has seen both: what is JSON is passed over. */
	assert_in_range(passed, 10, 15);
}

/* Members that are known, again and again. */
static void test_members_twice(void **state)
{
	static const struct fill again = {"", ",\"kind\":\"store\"", ""};
	struct ckpt_buf body = {0};

	(void)state;
	for (size_t k = 0; k < COUNT(kinds); k++) {
		body.len = 0;
		ckpt_buf_puts(&body, kinds[k].body);
		put_fill(&body, &again, SEAL);
		assert_int_equal(decode_sealed(&body, kinds[k].decode, again.unit), CKPT_EFORMAT);
	}
	ckpt_buf_free(&body);
}

static void test_ranks(void **state)
{
	static const struct fill ranks[] = {
		{",\"world\":1000000,\"ranks\":[", "{},", "{}]"},
		{",\"world\":262144,\"ranks\":[", "{\"rank\":0},", "{}]"},
		/* As much memory as a number of ranks may ask for. */
		{",\"world\":262143,\"ranks\":[", "[],", "[]]"},
		{",\"world\":262143,\"ranks\":[", "{\"rank\":0,\"node\":\"\"," RANK_REST ",", "0]"},
	};
	struct ckpt_buf body = {0};

	(void)state;
	for (size_t i = 0; i < COUNT(ranks); i++) {
		body.len = 0;
		ckpt_buf_puts(&body, REGISTER ",\"outcome\":\"commit\"");
		put_fill(&body, &ranks[i], SEAL);
		assert_int_equal(
			decode_sealed(&body, manifest_decode, ranks[i].unit), CKPT_EFORMAT);
	}
	ckpt_buf_free(&body);
}

/* Index. */

static int decode_index(const struct forgery *f, const char *what)
{
	struct ckpt_buf bytes = kit_forge(f);
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct meter meter;
	int r;

	assert_true(bytes.len > INPUT - 8192 && bytes.len <= INPUT);
	meter_start(&meter);
	r = ckpt_index_decode(bytes.data, bytes.len, "f", &err, &index);
	meter_stop(&meter, what, r, &err);
	ckpt_index_free(index);
	ckpt_buf_free(&bytes);
	return r;
}

/* Bytes of an index beside the JSON: head, digest, two records, and what is left of a unit. */
#define BESIDE 256

static void test_tensors(void **state)
{
	static const struct {
		struct fill fill;
		int code;
	} cases[] = {
		{{"{\"tensors\":[",
			 "{\"name\":\"######\",\"dtype\":\"U8\",\"shape\":[0],\"offset\":4096},",
			 "{\"name\":\"x\",\"dtype\":\"U8\",\"shape\":[0],\"offset\":4096}]}"},
			0},
		{{"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[0],\"offset\":4096}],"
		  "\"aliases\":[",
			 "{\"name\":\"######\",\"target\":\"a\"},",
			 "{\"name\":\"x\",\"target\":\"a\"}]}"},
			0},
		{{"{\"tensors\":[],\"aliases\":[", "{\"name\":\"a\",\"target\":\"\"},", "0]}"},
			CKPT_EFORMAT},
		{{"{\"tensors\":[",
			 "{\"name\":\"######\",\"dtype\":\"U8\",\"shape\":[0,0,0,0,0,0,0,0,0,0,0,0,"
			 "0,0,0,0],\"offset\":4096,"
			 "\"global_shape\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],"
			 "\"global_start\":[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]},",
			 "0]}"},
			CKPT_EFORMAT},
		{{"{\"tensors\":[", "{},", "{}]}"}, CKPT_EFORMAT},
		{{"{\"tensors\":[{\"name\":\"", "n", "\"}]}"}, CKPT_EFORMAT},
		{{"{\"tensors\":[{\"shape\":[", "9223372036854775807,", "0]}]}"}, CKPT_EFORMAT},
		{{"{\"tensors\":[{\"name\":\"a\"", ",\"name\":\"a\"", "}]}"}, CKPT_EFORMAT},
		{{"{\"tensors\":[]", ",\"tensors\":[]", "}"}, CKPT_EFORMAT},
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases) + COUNT(fills); i++) {
		bool own = i < COUNT(cases);
		const struct fill *fill = own ? &cases[i].fill : &fills[i - COUNT(cases)];
		struct forgery f = FORGERY;
		struct ckpt_buf text = {0};
		int r;

		if (!own && !slice_turn(i, SLICES))
			continue;
		ckpt_buf_puts(&text, own ? "" : "{\"tensors\":[],\"x\":");
		put_fill(&text, fill, BESIDE);
		ckpt_buf_put(&text, own ? "" : "}", own ? 1 : 2);
		f.tensors = text.data;
		f.shard_bytes = 4096;
		f.records = 1;
		r = decode_index(&f, fill->unit);
		if (own && r != cases[i].code)
			fail_msg("%s: %d", fill->unit, r);
		ckpt_buf_free(&text);
	}
}

static void test_meta(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(fills); i++) {
		struct forgery f = FORGERY;
		struct ckpt_buf text = {0};

		if (!slice_turn(i, SLICES))
			continue;
		put_fill(&text, &fills[i], 2 * BESIDE);
		ckpt_buf_put(&text, "", 1);
		f.meta = text.data;
		(void)decode_index(&f, fills[i].unit);
		ckpt_buf_free(&text);
	}
}

/* As many chunks as the file has room for, and numbers that say there are more. */
static void test_chunks(void **state)
{
	enum { RECORDS = (MEBIBYTES << 20) / 28 - 16 };
	struct forgery f = FORGERY;
	struct ckpt_buf text = {0};

	(void)state;
	ckpt_buf_printf(&text,
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[%d],\"offset\":4096}]}",
		RECORDS - 4096);
	ckpt_buf_put(&text, "", 1);
	f.tensors = text.data;
	f.chunk_bytes = 1;
	f.shard_bytes = RECORDS;
	f.records = RECORDS;
	assert_int_equal(decode_index(&f, "chunks of a byte"), 0);
	f.chunk_count = CKPT_CHUNKS_MAX;
	assert_int_equal(decode_index(&f, "more chunks than records"), CKPT_EFORMAT);
	f.chunk_count = KIT_AUTO;
	f.shard_bytes = CKPT_SHARD_BYTES_MAX;
	text.len = 0;
	ckpt_buf_printf(&text,
		"{\"tensors\":[{\"name\":\"a\",\"dtype\":\"U8\",\"shape\":[%llu],\"offset\":4096}]"
		"}",
		(unsigned long long)CKPT_SHARD_BYTES_MAX - 4096);
	ckpt_buf_put(&text, "", 1);
	f.tensors = text.data;
	assert_int_equal(decode_index(&f, "2^46 chunks of a byte"), CKPT_EFORMAT);
	ckpt_buf_free(&text);
}

/* Tensors and aliases are a million together, not each. Longer than 16 MiB, and refused all the same. */
static void test_a_million_names(void **state)
{
	struct forgery f = FORGERY;
	struct ckpt_index *index = NULL;
	struct ckpt_error err = {0};
	struct ckpt_buf text = {0};
	struct ckpt_buf bytes;
	struct meter meter;
	int r;

	(void)state;
	ckpt_buf_puts(&text, "{\"tensors\":[");
	for (int i = 0; i <= CKPT_TENSORS_MAX / 2; i++)
		ckpt_buf_printf(&text,
			"%s{\"name\":\"%06x\",\"dtype\":\"U8\",\"shape\":[0],\"offset\":4096}",
			i > 0 ? "," : "", (unsigned)i);
	ckpt_buf_puts(&text, "],\"aliases\":[");
	for (int i = 0; i < CKPT_TENSORS_MAX / 2; i++)
		ckpt_buf_printf(&text, "%s{\"name\":\"b%06x\",\"target\":\"000000\"}",
			i > 0 ? "," : "", (unsigned)i);
	ckpt_buf_put(&text, "]}", 3);
	assert_false(text.failed);
	f.tensors = text.data;
	f.shard_bytes = 4096;
	f.records = 1;
	bytes = kit_forge(&f);
	meter_start(&meter);
	r = ckpt_index_decode(bytes.data, bytes.len, "f", &err, &index);
	meter_stop(&meter, "a million names and one", r, &err);
	assert_int_equal(r, CKPT_EFORMAT);
	assert_non_null(strstr(err.message, "more than 1000000 tensors and aliases"));
	ckpt_buf_free(&bytes);
	ckpt_buf_free(&text);
}

/* The header of a shard: what nobody knows of it is passed over. */
static void test_header(void **state)
{
	static const char *const heads[] = {"{\"__metadata__\":",
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[10],\"data_offsets\":[0,10],\"x\":",
		"{\"a\":{\"dtype\":"};
	struct ckpt_entry entry = {.name = (char *)"a", .dtype = CKPT_U8, .ndim = 1};
	struct ckpt_layout layout = {.entries = &entry, .entry_count = 1, .header_bytes = INPUT};
	int64_t ten = 10;

	(void)state;
	entry.shape = &ten;
	entry.nbytes = 10;
	entry.offset = INPUT;
	for (size_t i = 0; i < COUNT(heads) * COUNT(fills); i++) {
		const struct fill *fill = &fills[i % COUNT(fills)];
		struct ckpt_error err = {0};
		struct ckpt_buf text = {0};
		struct meter meter;
		int r;

		if (!slice_turn(i + i / COUNT(fills), SLICES))
			continue;
		ckpt_buf_put_le64(&text, INPUT - 8);
		ckpt_buf_puts(&text, heads[i / COUNT(fills)]);
		put_fill(&text, fill, 8);
		ckpt_buf_fill(&text, '}', i / COUNT(fills) == 0 ? 1 : 2);
		ckpt_buf_fill(&text, ' ', INPUT - text.len);
		assert_false(text.failed);
		meter_start(&meter);
		r = ckpt_safetensors_check(&layout, text.data, text.len, "f", &err);
		meter_stop(&meter, fill->unit, r, &err);
		assert_int_equal(meter.alloc.count, 0);
		ckpt_buf_free(&text);
	}
}

static void test_scan_and_names(void **state)
{
	uint64_t number = 77;

	(void)state;
	for (size_t i = 0; i < COUNT(fills); i++) {
		struct ckpt_error err = {0};
		struct ckpt_buf text = {0};
		struct meter meter;
		int r;

		if (!slice_turn(i, SLICES))
			continue;
		put_fill(&text, &fills[i], 1);
		meter_start(&meter);
		r = ckpt_json_scan(text.data, text.len, SIZE_MAX, 64, "f", &err);
		meter_stop(&meter, fills[i].unit, r, &err);
		assert_int_equal(meter.alloc.count, 0);
		ckpt_buf_put(&text, "", 1);
		assert_false(ckpt_parse_claim(text.data, &number));
		assert_false(ckpt_parse_generation(text.data, &number));
		assert_false(ckpt_parse_step(text.data, &number));
		assert_false(ckpt_attempt_valid(text.data));
		assert_int_equal(number, 77);
		ckpt_buf_free(&text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_sealed),
		cmocka_unit_test(test_members_twice),
		cmocka_unit_test(test_ranks),
		cmocka_unit_test(test_tensors),
		cmocka_unit_test(test_meta),
		cmocka_unit_test(test_chunks),
		cmocka_unit_test(test_a_million_names),
		cmocka_unit_test(test_header),
		cmocka_unit_test(test_scan_and_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
