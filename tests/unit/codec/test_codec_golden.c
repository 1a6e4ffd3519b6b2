/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: test_codec_golden DIR REFUSED: chunks that an earlier encoder wrote (write_chunks.c has their form) are decoded;
 * those of the file REFUSED, which reader.py refuses by the text of FORMAT.md, are refused.
 */
#include "lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/error.h>
#include "codec/codec.h"

static const char *const kinds[] = {"int", "float", "bf16", "f16"};
static const char *folder;
static const char *refused;
static struct ckpt_codec *codecs[3];
static unsigned seen[CKPT_MODE_END];
static unsigned seen_flags[256]; /* of the modes of ADAM */

struct array {
	uint8_t *data;
	size_t size;
};

static unsigned index_of(const char *const *names, unsigned count, const char *name)
{
	for (unsigned i = 0; i < count; i++) {
		if (strcmp(names[i], name) == 0)
			return i;
	}
	fail_msg("nothing is called %s", name);
	return 0;
}

enum { CHUNK, RAW, BASE, MASTER, M, M_BASE, V, V_BASE, ARRAYS };

static struct ckpt_codec_chunk read_chunk(const char *name, struct array arrays[ARRAYS])
{
	static const char *const names[] = {
		"chunk", "raw", "base", "master", "m", "m_base", "v", "v_base"};
	static const char *const roles[] = {"none", "m", "v", "w"};
	struct ckpt_codec_chunk chunk = {0};
	char path[4096], kind[16], role[16], word[16];
	char line[64];
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "rb");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%zu %u %15s %15s", &chunk.count, &chunk.width, kind, role), 4);
	assert_int_equal(fgetc(f), '\n');
	while (fgets(line, sizeof(line), f)) {
		size_t size, copies = 1;
		struct array *array;

		assert_true(sscanf(line, "%15s %zu %zu", word, &size, &copies) >= 2);
		array = &arrays[index_of(names, ARRAYS, word)];
		array->data = malloc(size * copies);
		array->size = size * copies;
		assert_non_null(array->data);
		assert_int_equal(fread(array->data, 1, size, f), size);
		for (size_t i = 1; i < copies; i++)
			memcpy(array->data + i * size, array->data, size);
	}
	fclose(f);
	chunk.kind = (enum ckpt_chunk_kind)index_of(kinds, COUNT(kinds), kind);
	chunk.role = (enum ckpt_adam_role)index_of(roles, COUNT(roles), role);
	chunk.base = arrays[BASE].data;
	chunk.master = arrays[MASTER].data;
	chunk.m = arrays[M].data;
	chunk.m_base = arrays[M_BASE].data;
	chunk.v = arrays[V].data;
	chunk.v_base = arrays[V_BASE].data;
	return chunk;
}

static void check_chunk(const char *name)
{
	struct array arrays[ARRAYS] = {{0}};
	struct ckpt_codec_chunk chunk = read_chunk(name, arrays);
	const struct array *in = &arrays[CHUNK], *raw = &arrays[RAW];
	uint8_t *out = malloc(raw->size);

	assert_non_null(out);
	assert_int_equal(raw->size, chunk.count * chunk.width);
	for (size_t i = 0; i < COUNT(codecs); i++) {
		if (!codecs[i])
			continue;
		memset(out, 0x5a, raw->size);
		if (ckpt_decode(codecs[i], &chunk, in->data, in->size, out) != 0 ||
			memcmp(out, raw->data, raw->size) != 0)
			fail_msg("%s is not decoded to what it was", name);
	}
	seen[in->data[0]]++;
	if (chunk.role != CKPT_ADAM_NONE && in->data[0] >= CKPT_MODE_ADAM_M &&
		in->data[0] <= CKPT_MODE_ADAM_W)
		seen_flags[in->data[1]]++;
	free(out);
	for (size_t i = 0; i < ARRAYS; i++)
		free(arrays[i].data);
}

/* Every order of operations, with either gradient and either coding of it, as far as the encoder joins them. */
static void test_golden_chunks(void **state)
{
	static const uint8_t flags[] = {0, 1, 2, 3, 6, 10, 11, 14};
	DIR *dir = opendir(folder);
	struct dirent *entry;

	(void)state;
	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] != '.')
			check_chunk(entry->d_name);
	}
	closedir(dir);
	for (unsigned mode = 0; mode < CKPT_MODE_END; mode++)
		assert_true(seen[mode] > 0);
	for (size_t i = 0; i < COUNT(flags); i++) {
		if (seen_flags[flags[i]] == 0)
			fail_msg("no golden chunk has the flags %u", flags[i]);
	}
}

/* Whatever the role of the elements is, and with all that a chunk may be predicted from. */
static void check_refused(
	const char *line, const struct ckpt_codec_chunk *chunk, const uint8_t *in, size_t length)
{
	static uint8_t out[1024];
	uint8_t *exact = malloc(length); /* a sanitizer sees what is read behind it */

	assert_non_null(exact);
	assert_true(chunk->count * chunk->width <= sizeof(out));
	memcpy(exact, in, length);
	for (size_t i = 0; i < COUNT(codecs) * 4; i++) {
		struct ckpt_codec_chunk with_role = *chunk;

		with_role.role = (enum ckpt_adam_role)(i % 4);
		if (codecs[i / 4] && ckpt_decode(codecs[i / 4], &with_role, exact, length, out) !=
					     CKPT_EINTEGRITY)
			fail_msg("%s is decoded", line);
	}
	free(exact);
}

static void test_refused_chunks(void **state)
{
	static const unsigned widths[] = {1, 4, 2, 2};
	static const float zeros[256];
	char line[512], kind[16];
	FILE *f = fopen(refused, "r");
	unsigned lines = 0;

	(void)state;
	assert_non_null(f);
	while (fgets(line, sizeof(line), f)) {
		struct ckpt_codec_chunk chunk = {.base = zeros,
			.master = zeros,
			.m = zeros,
			.m_base = zeros,
			.v = zeros,
			.v_base = zeros};
		uint8_t in[128];
		size_t length = 0;
		unsigned byte;
		int at, more;

		if (line[0] == '#')
			continue;
		assert_int_equal(sscanf(line, "%15s %zu:%n", kind, &chunk.count, &at), 2);
		for (; sscanf(line + at, " %2x%n", &byte, &more) == 1; at += more) {
			assert_true(length < sizeof(in));
			in[length++] = (uint8_t)byte;
		}
		assert_int_equal(line[at], ':');
		chunk.kind = (enum ckpt_chunk_kind)index_of(kinds, COUNT(kinds), kind);
		chunk.width = widths[chunk.kind];
		check_refused(line, &chunk, in, length);
		lines++;
	}
	fclose(f);
	assert_true(lines > 30);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden_chunks),
		cmocka_unit_test(test_refused_chunks),
	};
	int failed;

	if (argc != 3)
		return 2;
	folder = argv[1];
	refused = argv[2];
	for (unsigned i = 0; i < COUNT(codecs); i++)
		codecs[i] = ckpt_codec_open((enum ckpt_simd)i);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	for (unsigned i = 0; i < COUNT(codecs); i++)
		ckpt_codec_close(codecs[i]);
	return failed;
}
