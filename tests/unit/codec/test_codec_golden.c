/* SPDX-License-Identifier: Apache-2.0 */
/* usage: test_codec_golden DIR: chunks that an earlier encoder wrote (write_chunks.c has their form) are decoded. */
#include "lib/test.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"

static const char *folder;
static struct ckpt_codec *codecs[3];
static unsigned seen[CKPT_MODE_END];

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

static struct ckpt_chunk read_chunk(const char *name, struct array arrays[ARRAYS])
{
	static const char *const names[] = {
		"chunk", "raw", "base", "master", "m", "m_base", "v", "v_base"};
	static const char *const kinds[] = {"int", "float", "bf16", "f16"};
	static const char *const roles[] = {"none", "m", "v", "w"};
	struct ckpt_chunk chunk = {0};
	char path[4096], kind[16], role[16], word[16];
	size_t size;
	FILE *f;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	f = fopen(path, "rb");
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%zu %u %15s %15s", &chunk.count, &chunk.width, kind, role), 4);
	assert_int_equal(fgetc(f), '\n');
	while (fscanf(f, "%15s %zu", word, &size) == 2) {
		struct array *array = &arrays[index_of(names, ARRAYS, word)];

		assert_int_equal(fgetc(f), '\n');
		array->data = malloc(size);
		array->size = size;
		assert_non_null(array->data);
		assert_int_equal(fread(array->data, 1, size, f), size);
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
	struct ckpt_chunk chunk = read_chunk(name, arrays);
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
	free(out);
	for (size_t i = 0; i < ARRAYS; i++)
		free(arrays[i].data);
}

static void test_golden_chunks(void **state)
{
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
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden_chunks)};
	int failed;

	if (argc != 2)
		return 2;
	folder = argv[1];
	for (unsigned i = 0; i < COUNT(codecs); i++)
		codecs[i] = ckpt_codec_open((enum ckpt_simd)i);
	failed = cmocka_run_group_tests(tests, NULL, NULL);
	for (unsigned i = 0; i < COUNT(codecs); i++)
		ckpt_codec_close(codecs[i]);
	return failed;
}
