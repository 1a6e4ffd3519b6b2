/* SPDX-License-Identifier: Apache-2.0 */
/* Table and trailer of an encoded shard: they come back, and nothing else is taken for one. */
#include "format_kit.h"

#include <errno.h>
#include <stdlib.h>

#include "base/error.h"
#include "format/encoded.h"

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
	buf.data[buf.len - 80 + 8] = 2;
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
	REFUSED(s.chunks[2].kind = 2);
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

static void test_no_memory(void **state)
{
	struct sample s;
	struct ckpt_error err;
	struct ckpt_encoded *got = NULL;
	struct ckpt_buf buf = {0};
	int r = -ENOMEM;

	(void)state;
	make(&s);
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
		cmocka_unit_test(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
