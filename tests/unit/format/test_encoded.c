/* SPDX-License-Identifier: Apache-2.0 */
/* Table and trailer of an encoded shard: they come back, and nothing else is taken for one. */
#include "format_kit.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "format/encoded.h"
#include "lib/prng.h"

#define CHUNKS          6
#define TABLE           UINT64_C(9000)
#define FILE_BYTES(buf) (TABLE + (buf)->len)

/* Of six chunks of 4096 bytes. */
struct sample {
	struct ckpt_chunk cuts[CHUNKS];
	struct ckpt_layout layout;
	struct ckpt_encoded_chunk chunks[CHUNKS];
	uint32_t refs[80];
	struct ckpt_encoded encoded;
};

static void make(struct sample *s)
{
	memset(s, 0, sizeof(*s));
	s->layout = (struct ckpt_layout){
		.bytes = CHUNKS * 4096, .chunks = s->cuts, .chunk_count = CHUNKS};
	for (size_t i = 0; i < CHUNKS; i++) {
		s->cuts[i] = (struct ckpt_chunk){.offset = i * 4096, .length = 4096};
		s->chunks[i] = (struct ckpt_encoded_chunk){.offset = i * 800,
			.length = 700 + (uint32_t)i,
			.kind = CKPT_ENCODED_PARTS,
			.digest.bytes = {(uint8_t)i, 7}};
	}
	s->chunks[0].kind = CKPT_ENCODED_PLAIN;
	s->chunks[0].offset = 4800;
	s->chunks[0].length = 4096;
	s->chunks[1].ref_count = 2;
	s->refs[0] = 2;
	s->refs[1] = 5;
	s->chunks[3].ref_count = 1;
	s->refs[2] = 0;
	s->encoded = (struct ckpt_encoded){.bytes = s->layout.bytes,
		.table_offset = TABLE,
		.chunks = s->chunks,
		.chunk_count = CHUNKS,
		.refs = s->refs,
		.ref_count = 3};
}

/* Reads both back, from memory of exactly their size. */
static int read_back(const struct ckpt_buf *buf, uint64_t file_bytes,
	const struct ckpt_layout *layout, struct ckpt_error *err, struct ckpt_encoded **ret_encoded)
{
	struct ckpt_encoded_trailer trailer;
	char *copy = malloc(CKPT_ENCODED_TRAILER);
	int r;

	assert_non_null(copy);
	ckpt_error_clear(err);
	memcpy(copy, buf->data + buf->len - CKPT_ENCODED_TRAILER, CKPT_ENCODED_TRAILER);
	r = ckpt_encoded_read_trailer(copy, file_bytes, layout, "x.encoded", err, &trailer);
	free(copy);
	if (r < 0)
		return r;
	assert_int_equal(trailer.table_offset, TABLE);
	assert_int_equal(trailer.table_bytes, buf->len - CKPT_ENCODED_TRAILER);
	copy = malloc(trailer.table_bytes);
	assert_non_null(copy);
	memcpy(copy, buf->data, trailer.table_bytes);
	r = ckpt_encoded_decode(copy, &trailer, layout, "x.encoded", err, ret_encoded);
	free(copy);
	return r;
}

static int put_and_read(const struct sample *s, struct ckpt_error *err)
{
	struct ckpt_encoded *encoded = NULL;
	struct ckpt_buf buf = {0};

	ckpt_encoded_put(&s->encoded, &buf);
	assert_false(buf.failed);
	int r = read_back(&buf, FILE_BYTES(&buf), &s->layout, err, &encoded);
	ckpt_encoded_free(encoded);
	ckpt_buf_free(&buf);
	return r;
}

static void test_comes_back(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};

	(void)state;
	make(&s);
	ckpt_encoded_put(&s.encoded, &buf);
	assert_int_equal(buf.len, CHUNKS * 32 + 3 * 4 + 80);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), 0);
	assert_int_equal(got->bytes, s.encoded.bytes);
	assert_int_equal(got->chunk_count, CHUNKS);
	assert_int_equal(got->ref_count, 3);
	assert_memory_equal(got->refs, s.refs, 3 * sizeof(*s.refs));
	for (size_t i = 0; i < CHUNKS; i++) {
		assert_int_equal(got->chunks[i].offset, s.chunks[i].offset);
		assert_int_equal(got->chunks[i].length, s.chunks[i].length);
		assert_int_equal(got->chunks[i].kind, s.chunks[i].kind);
		assert_int_equal(got->chunks[i].ref_count, s.chunks[i].ref_count);
		assert_int_equal(got->chunks[i].first_ref, i <= 1 ? 0 : i <= 3 ? 2 : 3);
		assert_true(ckpt_digest_equal(&got->chunks[i].digest, &s.chunks[i].digest));
	}
	ckpt_encoded_free(got);
	/* The bytes of the trailer, as FORMAT.md has them. */
	const unsigned char *trailer = (const unsigned char *)buf.data + buf.len - 80;
	assert_memory_equal(trailer,
		"CKPTENC\0\1\0\0\0\0\0\0\0\0\x60\0\0\0\0\0\0\6\0\0\0\0\0\0\0"
		"\x28\x23\0\0\0\0\0\0\xcc\0\0\0\0\0\0\0",
		48);
	ckpt_buf_free(&buf);
}

/* Every flip of a bit is noticed, and so is a file that is cut or longer. */
static void test_damage(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};

	(void)state;
	make(&s);
	ckpt_encoded_put(&s.encoded, &buf);
	for (size_t at = 0; at < buf.len; at++) {
		buf.data[at] ^= 0x10;
		int r = read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got);
		bool magic = at >= buf.len - 80 && at < buf.len - 72;
		assert_int_equal(r, magic ? CKPT_EINCOMPLETE : CKPT_EINTEGRITY);
		assert_non_null(strstr(err.message, "x.encoded"));
		buf.data[at] ^= 0x10;
	}
	assert_int_equal(
		read_back(&buf, FILE_BYTES(&buf) - 1, &s.layout, &err, &got), CKPT_EINCOMPLETE);
	assert_int_equal(
		read_back(&buf, FILE_BYTES(&buf) + 4, &s.layout, &err, &got), CKPT_EINCOMPLETE);
	assert_int_equal(read_back(&buf, 100, &s.layout, &err, &got), CKPT_EINCOMPLETE);
	ckpt_buf_free(&buf);
}

/* Seals the trailer anew. */
static void reseal(struct ckpt_buf *buf)
{
	char *trailer = buf->data + buf->len - 80;
	struct ckpt_digest digest = ckpt_digest_of(buf->data, buf->len - 80);

	memcpy(trailer + 48, digest.bytes, 16);
	digest = ckpt_digest_of(trailer, 64);
	memcpy(trailer + 64, digest.bytes, 16);
}

static void test_versions_and_others(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};

	(void)state;
	make(&s);
	ckpt_encoded_put(&s.encoded, &buf);
	buf.data[buf.len - 80 + 8] = 3;
	reseal(&buf);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), CKPT_EVERSION);
	buf.data[buf.len - 80 + 8] = 1;
	/* A later minor version is read. */
	buf.data[buf.len - 80 + 12] = 9;
	reseal(&buf);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), 0);
	ckpt_encoded_free(got);
	/* That of another shard. */
	s.layout.bytes++;
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), CKPT_EINTEGRITY);
	s.layout.bytes--;
	s.layout.chunk_count--;
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), CKPT_EINTEGRITY);
	ckpt_buf_free(&buf);
	/* As many bytes as a table never has. */
	make(&s);
	s.chunks[3].ref_count = 0;
	s.encoded.ref_count = 2;
	ckpt_encoded_put(&s.encoded, &buf);
	buf.data[buf.len - 80 + 40]++;
	reseal(&buf);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

/* Tables that no writer makes, each with digests that fit. */
static void test_malformed(void **state)
{
	struct sample s;
	struct ckpt_error err;

	(void)state;
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		make(&s);                                                                          \
		change;                                                                            \
		assert_int_equal(put_and_read(&s, &err), CKPT_EFORMAT);                            \
	} while (0)
	REFUSED(s.chunks[2].kind = CKPT_ENCODED_KIND_END);
	REFUSED(s.chunks[2].kind = CKPT_ENCODED_SAME); /* of no base */
	REFUSED(s.chunks[2].base = 1);
	REFUSED(s.chunks[2].length = 0);
	REFUSED(s.chunks[2].length = 4096);
	REFUSED(s.chunks[0].length = 4095);
	REFUSED(s.chunks[2].offset = TABLE - 701);
	REFUSED(s.chunks[2].offset = UINT64_MAX - 100);
	REFUSED(s.chunks[2].offset = TABLE + 1);
	REFUSED(s.refs[1] = 2);      /* twice */
	REFUSED(s.refs[0] = 1);      /* itself */
	REFUSED(s.refs[1] = 3);      /* which has one itself */
	REFUSED(s.refs[1] = CHUNKS); /* none */
	REFUSED(s.refs[0] = 5; s.refs[1] = 2);
	/* A plain chunk needs no other. */
	REFUSED(s.chunks[0].ref_count = 1; s.chunks[3].ref_count = 0; s.refs[0] = 4; s.refs[1] = 2;
		s.refs[2] = 5);
	/* Too many. */
	REFUSED(s.chunks[1].ref_count = 65; s.encoded.ref_count = 66);
#undef REFUSED
	make(&s);
	assert_int_equal(put_and_read(&s, &err), 0);
}

/* The same, with two bases: chunk 4 is that of the first, and chunk 5 is decoded with the second. */
static void make_based(struct sample *s)
{
	make(s);
	for (unsigned i = 0; i < 2; i++)
		s->encoded.bases[i] = (struct ckpt_encoded_base){.generation = 3 + i,
			.step = 70 + i,
			.attempt = UINT64_C(0x0123456789abcdef) + i,
			.index_bytes = 500 + i,
			.index_digest.bytes = {(uint8_t)i, 9}};
	s->encoded.base_count = 2;
	s->chunks[4] = (struct ckpt_encoded_chunk){.kind = CKPT_ENCODED_SAME, .base = 1};
	s->chunks[5].base = 2;
}

static void test_bases_come_back(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};

	(void)state;
	make_based(&s);
	ckpt_encoded_put(&s.encoded, &buf);
	assert_int_equal(buf.len, CHUNKS * 32 + 3 * 4 + 2 * 48 + 80);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), 0);
	assert_int_equal(got->base_count, 2);
	for (unsigned i = 0; i < 2; i++) {
		const struct ckpt_encoded_base *a = &got->bases[i];
		const struct ckpt_encoded_base *b = &s.encoded.bases[i];

		assert_int_equal(a->generation, b->generation);
		assert_int_equal(a->step, b->step);
		assert_int_equal(a->attempt, b->attempt);
		assert_int_equal(a->index_bytes, b->index_bytes);
		assert_true(ckpt_digest_equal(&a->index_digest, &b->index_digest));
	}
	assert_int_equal(got->chunks[4].kind, CKPT_ENCODED_SAME);
	assert_int_equal(got->chunks[4].base, 1);
	assert_int_equal(got->chunks[5].base, 2);
	ckpt_encoded_free(got);
	/* The bytes, as FORMAT.md has them. */
	const unsigned char *bytes = (const unsigned char *)buf.data;
	assert_memory_equal(bytes + 4 * 32 + 8, "\0\0\0\0\2\1\0\0", 8);
	assert_memory_equal(bytes + 5 * 32 + 12, "\1\2\0\0", 4);
	assert_memory_equal(bytes + CHUNKS * 32 + 3 * 4,
		"\3\0\0\0\0\0\0\0\x46\0\0\0\0\0\0\0\xef\xcd\xab\x89\x67\x45\x23\1"
		"\xf4\1\0\0\0\0\0\0\0\x09\0",
		35);
	assert_memory_equal(bytes + buf.len - 80, "CKPTENC\0\2\0\0\0\0\0\0\0", 16);
	/* A reader of version 1 alone is told so; a table of another length is none. */
	buf.data[buf.len - 80 + 8] = 1;
	reseal(&buf);
	assert_int_equal(read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got), CKPT_EFORMAT);
	ckpt_buf_free(&buf);
}

static void test_malformed_bases(void **state)
{
	struct sample s;
	struct ckpt_error err;

	(void)state;
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		make_based(&s);                                                                    \
		change;                                                                            \
		assert_int_equal(put_and_read(&s, &err), CKPT_EFORMAT);                            \
	} while (0)
	REFUSED(s.chunks[5].base = 3); /* there are two */
	REFUSED(s.chunks[5].base = 255);
	REFUSED(s.chunks[0].base = 1); /* it is plain */
	REFUSED(s.chunks[1].base = 1); /* it refers to others */
	REFUSED(s.chunks[4].base = 0);
	REFUSED(s.chunks[4].length = 1);
	REFUSED(s.chunks[4].offset = 1);
	REFUSED(s.chunks[4].digest.bytes[0] = 1);
	REFUSED(s.encoded.bases[0].step = 71);      /* not before the next */
	REFUSED(s.encoded.bases[0].generation = 5); /* nor is this */
	REFUSED(s.encoded.bases[0].generation = 0);
	REFUSED(s.encoded.bases[1].generation = 1000000);
	REFUSED(s.encoded.bases[1].step = UINT64_C(10000000000));
	REFUSED(s.encoded.bases[1].index_bytes = 0);
	REFUSED(s.encoded.bases[1].index_bytes = (UINT64_C(1) << 30) + 1);
#undef REFUSED
	make_based(&s);
	assert_int_equal(put_and_read(&s, &err), 0);
	/* As many as there may be, and one more. */
	for (unsigned i = 0; i < CKPT_ENCODED_BASES_MAX; i++)
		s.encoded.bases[i] =
			(struct ckpt_encoded_base){.generation = 1, .step = i, .index_bytes = 1};
	s.encoded.base_count = CKPT_ENCODED_BASES_MAX;
	assert_int_equal(put_and_read(&s, &err), 0);
	struct ckpt_buf buf = {0};
	struct ckpt_encoded *got = NULL;
	ckpt_encoded_put(&s.encoded, &buf);
	size_t table = buf.len - CKPT_ENCODED_TRAILER;
	struct ckpt_buf longer = {0};
	ckpt_buf_put(&longer, buf.data, table);
	ckpt_buf_put(&longer, buf.data + table - CKPT_ENCODED_BASE, CKPT_ENCODED_BASE);
	longer.data[longer.len - CKPT_ENCODED_BASE + 8]++;
	ckpt_buf_put(&longer, buf.data + table, CKPT_ENCODED_TRAILER);
	table += CKPT_ENCODED_BASE;
	memcpy(longer.data + longer.len - 80 + 40, &table, 8);
	reseal(&longer);
	assert_int_equal(
		read_back(&longer, FILE_BYTES(&longer), &s.layout, &err, &got), CKPT_EFORMAT);
	ckpt_buf_free(&longer);
	ckpt_buf_free(&buf);
}

/* Any table that is taken is within its bounds, whatever is in it. */
static void test_any_table(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct prng d = {5};
	unsigned taken = 0;

	(void)state;
	for (int round = 0; round < 20000; round++) {
		struct ckpt_encoded *got = NULL;
		struct ckpt_buf buf = {0};

		make_based(&s);
		ckpt_encoded_put(&s.encoded, &buf);
		for (unsigned i = 0; i <= prng_below(&d, 3); i++)
			buf.data[prng_below(&d, buf.len - 80)] = (char)prng_next(&d);
		reseal(&buf);
		if (read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got) == 0) {
			taken++;
			for (size_t i = 0; i < CHUNKS; i++) {
				const struct ckpt_encoded_chunk *c = &got->chunks[i];

				assert_true(c->base <= got->base_count);
				assert_true(c->base == 0 || c->ref_count == 0);
				assert_true(c->offset + c->length <= TABLE);
				assert_true(c->length <= 4096);
				assert_true(c->first_ref + c->ref_count <= got->ref_count);
			}
		}
		ckpt_encoded_free(got);
		ckpt_buf_free(&buf);
	}
	assert_true(taken > 1000);
}

static void test_no_memory(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};
	int r = -ENOMEM;

	(void)state;
	make_based(&s);
	ckpt_encoded_put(&s.encoded, &buf);
	for (size_t i = 1; r == -ENOMEM; i++) {
		struct kit_alloc alloc = {.fail_at = i};

		ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
		r = read_back(&buf, FILE_BYTES(&buf), &s.layout, &err, &got);
		ckpt_alloc_set_hook(NULL, NULL);
	}
	assert_int_equal(r, 0);
	ckpt_encoded_free(got);
	ckpt_buf_free(&buf);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_comes_back),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_versions_and_others),
		cmocka_unit_test(test_malformed),
		cmocka_unit_test(test_bases_come_back),
		cmocka_unit_test(test_malformed_bases),
		cmocka_unit_test(test_any_table),
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
