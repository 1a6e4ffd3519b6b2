/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store as version 1 of the format has it: every file is read back field by field, and written again
 * to the same bytes.
 *
 * usage: test_golden DIR
 *        test_golden --write DIR      once for each version, see tests/golden/README.md
 */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ckpt/types.h>
#include "base/buf.h"
#include "format/dtype.h"
#include "format/index.h"
#include "format/manifest.h"
#include "format/naming.h"

#define RUN_ID      "0123456789abcdef0123456789abcdef"
#define ATTEMPT     "00112233445566ff"
#define CHUNK_BYTES 4096
#define RANK        0
#define META                                                                                       \
	"{\"epoch\":3,\"lr\":0.001,\"note\":\"\xf0\x9f\x98\x80\",\"big\":{\"$int\":"               \
	"\"0xffffffffffffffffff\"}}"

static const char *root;

/* What the store holds. */

static const int64_t matrix[] = {3, 5};
static const int64_t large[] = {1500};
static const int64_t vector[] = {7};
static const int64_t empty[] = {4, 0, 2};
static const int64_t deep[16] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2};
static const int64_t whole[] = {INT64_C(9007199254740993), 5};
static const int64_t start[] = {INT64_C(9007199254740990), 0};

#define T(text, type, dims, sizes)                                                                 \
	{                                                                                          \
		.name = (text), .dtype = (type), .ndim = (dims), .shape = (sizes)                  \
	}

static const struct ckpt_tensor tensors[] = {
	T("bool", CKPT_BOOL, 1, vector),
	T("u8", CKPT_U8, 2, matrix),
	T("i8", CKPT_I8, 2, matrix),
	T("u16", CKPT_U16, 2, matrix),
	T("i16", CKPT_I16, 2, matrix),
	T("u32", CKPT_U32, 2, matrix),
	T("i32", CKPT_I32, 2, matrix),
	T("u64", CKPT_U64, 2, matrix),
	T("i64", CKPT_I64, 2, matrix),
	T("f16", CKPT_F16, 2, matrix),
	T("bf16", CKPT_BF16, 2, matrix),
	T("f32", CKPT_F32, 2, matrix),
	T("f64", CKPT_F64, 2, matrix),
	T("f8_e4m3", CKPT_F8_E4M3, 1, vector),
	T("f8_e5m2", CKPT_F8_E5M2, 1, vector),
	T("f8_e8m0", CKPT_F8_E8M0, 1, vector),
	T("c64", CKPT_C64, 1, vector),
	T("c128", CKPT_C128, 2, matrix),
	T("c32", CKPT_C32, 1, vector),
	T("f8_e4m3fnuz", CKPT_F8_E4M3FNUZ, 1, vector),
	T("f8_e5m2fnuz", CKPT_F8_E5M2FNUZ, 1, vector),
	T("scalar", CKPT_F32, 0, NULL),
	T("empty", CKPT_F32, 3, empty),
	T("empty.u8", CKPT_U8, 3, empty),
	T("deep", CKPT_BF16, 16, deep),
	T("large", CKPT_F32, 1, large),
	T("large.bf16", CKPT_BF16, 1, large),
	T("../../etc/passwd", CKPT_U8, 1, vector),
	T("line\nfeed \"quoted\" back\\slash\ttab", CKPT_U8, 1, vector),
	T("\xf0\x9f\x98\x80 \xc3\xa4\xe2\x82\xac", CKPT_U8, 1, vector),
	T("layers.0.weight", CKPT_F32, 2, matrix),
};

static const struct ckpt_alias aliases[] = {
	{.name = (char *)"tied.weight", .target = (char *)"layers.0.weight"},
	{.name = (char *)"../alias", .target = (char *)"../../etc/passwd"},
};

/* The box of a larger tensor, which a save of one rank does not make. */
#define BOXED "layers.0.weight"

static const struct ckpt_marker marker = {.run_id = RUN_ID, .wall_ms = 1700000000000};

static const struct ckpt_claim claims[] = {
	{.run_id = RUN_ID,
		.generation = 1,
		.nonce = UINT64_C(0xfedcba9876543210),
		.world = 1,
		.node = "node-a",
		.wall_ms = 1700000000001},
	{.run_id = RUN_ID,
		.generation = 2,
		.parent_generation = 1,
		.parent_step = 100,
		.nonce = 1,
		.world = 1,
		.node = "node-b",
		.wall_ms = 1700000100001},
};

static const struct ckpt_manifest aborted = {.kind = CKPT_MANIFEST_ABORT,
	.run_id = RUN_ID,
	.generation = 2,
	.step = 110,
	.attempt = "fedcba9876543210",
	.wall_ms = 1700000100110,
	.world = 1,
	.reason = "No space left on device (ENOSPC) \"\xc3\xa4\""};

static const struct ckpt_quarantine note = {.generation = 1,
	.step = 100,
	.code = CKPT_EINTEGRITY,
	.wall_ms = 1700000100200,
	.reason = "chunk 2 of rank 0 differs from its digest"};

/* The shard: bytes that are a pattern of their place. */
static void fill_shard(const struct ckpt_layout *layout, char *shard)
{
	memcpy(shard, layout->header, layout->header_bytes);
	for (uint64_t at = layout->header_bytes; at < layout->bytes; at++)
		shard[at] = (char)(at * 31 + at / 256);
	/* A bool is 0 or 1. */
	const struct ckpt_entry *e = ckpt_layout_find(layout, "bool");
	for (uint64_t i = 0; i < e->nbytes; i++)
		shard[e->offset + i] = (char)(i & 1);
}

struct golden {
	struct ckpt_layout *layout;
	char *shard;
	struct ckpt_buf index;
	struct ckpt_manifest_rank rank;
	struct ckpt_manifest manifest;
};

static void make_golden(struct golden *g)
{
	memset(g, 0, sizeof(*g));
	assert_int_equal(ckpt_layout_build(tensors, COUNT(tensors), aliases, COUNT(aliases),
				 CHUNK_BYTES, NULL, &g->layout),
		0);
	for (size_t i = 0; i < g->layout->entry_count; i++) {
		struct ckpt_entry *e = &g->layout->entries[i];

		if (strcmp(e->name, BOXED) == 0) {
			e->global_shape = (int64_t *)(uintptr_t)whole;
			e->global_start = (int64_t *)(uintptr_t)start;
		}
	}
	g->shard = calloc(1, g->layout->bytes);
	assert_non_null(g->shard);
	fill_shard(g->layout, g->shard);
	for (size_t i = 0; i < g->layout->chunk_count; i++) {
		struct ckpt_chunk *c = &g->layout->chunks[i];

		c->digest = ckpt_digest_of(g->shard + c->offset, c->length);
	}
	assert_int_equal(
		ckpt_index_encode(g->layout, RANK, META, strlen(META), &g->index, NULL), 0);
	g->rank = (struct ckpt_manifest_rank){.node = "node-a",
		.attempt = ATTEMPT,
		.index_digest = ckpt_digest_of(g->index.data, g->index.len),
		.index_bytes = g->index.len,
		.shard_bytes = g->layout->bytes};
	g->manifest = (struct ckpt_manifest){.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN_ID,
		.generation = 1,
		.step = 100,
		.attempt = "8877665544332211",
		.wall_ms = 1700000000100,
		.world = 1,
		.ranks = &g->rank};
}

static void free_golden(struct golden *g)
{
	ckpt_layout_free(g->layout);
	ckpt_buf_free(&g->index);
	free(g->shard);
}

/* Files. */

static void join(char *out, size_t size, const char *name)
{
	assert_true((size_t)snprintf(out, size, "%s/%s", root, name) < size);
}

static struct ckpt_buf read_golden(const char *name)
{
	struct ckpt_buf out = {0};
	char path[4096];
	char block[4096];
	FILE *file;
	size_t got;

	join(path, sizeof(path), name);
	file = fopen(path, "rbe");
	if (!file)
		fail_msg("%s: %s", path, strerror(errno));
	while ((got = fread(block, 1, sizeof(block), file)) > 0)
		ckpt_buf_put(&out, block, got);
	assert_int_equal(ferror(file), 0);
	assert_int_equal(fclose(file), 0);
	assert_false(out.failed);
	return out;
}

static void check_same(const char *name, const void *data, size_t length)
{
	struct ckpt_buf golden = read_golden(name);

	if (golden.len != length || memcmp(golden.data, data, length) != 0)
		fail_msg("%s is no longer written as it was", name);
	ckpt_buf_free(&golden);
}

static void write_golden(const char *name, const void *data, size_t length)
{
	char path[4096];
	FILE *file;

	join(path, sizeof(path), name);
	for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = 0;
		if (mkdir(path, 0777) != 0 && errno != EEXIST)
			fail_msg("%s: %s", path, strerror(errno));
		*slash = '/';
	}
	/* What was released does not change. */
	file = fopen(path, "wbxe");
	if (!file)
		fail_msg("%s: %s", path, strerror(errno));
	assert_int_equal(fwrite(data, 1, length, file), length);
	assert_int_equal(fclose(file), 0);
}

typedef void visit_fn(const char *name, const void *data, size_t length);

static void visit_buf(visit_fn *visit, const char *name, int r, struct ckpt_buf *buf)
{
	assert_int_equal(r, 0);
	visit(name, buf->data, buf->len);
	ckpt_buf_free(buf);
}

/* Every file of the store, as it is written now. */
static void each_file(visit_fn *visit)
{
	struct ckpt_buf buf = {0};
	char name[CKPT_PATH_MAX];
	struct golden g;

	make_golden(&g);
	visit_buf(visit, CKPT_NAME_MARKER, ckpt_marker_encode(&marker, &buf), &buf);
	for (size_t i = 0; i < COUNT(claims); i++) {
		ckpt_name_claim(name, claims[i].generation);
		visit_buf(visit, name, ckpt_claim_encode(&claims[i], &buf), &buf);
	}
	ckpt_name_shard(name, 1, 100, RANK, ATTEMPT);
	visit(name, g.shard, g.layout->bytes);
	ckpt_name_index(name, 1, 100, RANK, ATTEMPT);
	visit(name, g.index.data, g.index.len);
	ckpt_name_manifest(name, 1, 100);
	visit_buf(visit, name, ckpt_manifest_encode(&g.manifest, &buf), &buf);
	ckpt_name_quarantine(name, 1, 100);
	visit_buf(visit, name, ckpt_quarantine_encode(&note, &buf), &buf);
	ckpt_name_manifest(name, 2, 110);
	visit_buf(visit, name, ckpt_manifest_encode(&aborted, &buf), &buf);
	free_golden(&g);
}

/* Tests. */

static void test_written_as_it_was(void **state)
{
	(void)state;
	each_file(check_same);
}

static void test_marker_and_claims(void **state)
{
	struct ckpt_buf file = read_golden("ckpt.json");
	struct ckpt_marker m;

	(void)state;
	assert_int_equal(ckpt_marker_decode(file.data, file.len, "f", NULL, &m), 0);
	assert_string_equal(m.run_id, "0123456789abcdef0123456789abcdef");
	assert_false(m.shared);
	assert_int_equal(m.wall_ms, 1700000000000);
	ckpt_buf_free(&file);
	for (size_t i = 0; i < COUNT(claims); i++) {
		struct ckpt_claim c;

		file = read_golden(i ? "gens/000002.json" : "gens/000001.json");
		assert_int_equal(ckpt_claim_decode(file.data, file.len, "f", NULL, &c), 0);
		assert_string_equal(c.run_id, m.run_id);
		assert_int_equal(c.generation, i + 1);
		assert_int_equal(c.parent_generation, i);
		assert_int_equal(c.parent_step, i ? 100 : 0);
		assert_true(c.nonce == (i ? 1 : UINT64_C(0xfedcba9876543210)));
		assert_int_equal(c.world, 1);
		assert_string_equal(c.node, i ? "node-b" : "node-a");
		assert_int_equal(c.wall_ms, i ? 1700000100001 : 1700000000001);
		ckpt_buf_free(&file);
	}
}

static void test_manifests_and_note(void **state)
{
	struct ckpt_buf file = read_golden("g000001/step-0000000100/manifest.json");
	struct ckpt_buf index = read_golden("g000001/step-0000000100/rank-00000." ATTEMPT ".index");
	struct ckpt_digest digest = ckpt_digest_of(index.data, index.len);
	struct ckpt_manifest m;
	struct ckpt_quarantine q;

	(void)state;
	assert_int_equal(ckpt_manifest_decode(file.data, file.len, "f", NULL, &m), 0);
	assert_int_equal(m.kind, CKPT_MANIFEST_COMMIT);
	assert_string_equal(m.run_id, "0123456789abcdef0123456789abcdef");
	assert_int_equal(m.generation, 1);
	assert_int_equal(m.step, 100);
	assert_string_equal(m.attempt, "8877665544332211");
	assert_int_equal(m.wall_ms, 1700000000100);
	assert_int_equal(m.world, 1);
	assert_int_equal(m.ranks[0].rank, 0);
	assert_string_equal(m.ranks[0].node, "node-a");
	assert_string_equal(m.ranks[0].attempt, ATTEMPT);
	assert_true(ckpt_digest_equal(&m.ranks[0].index_digest, &digest));
	assert_int_equal(m.ranks[0].index_bytes, index.len);
	ckpt_manifest_clear(&m);
	ckpt_buf_free(&file);
	ckpt_buf_free(&index);
	file = read_golden("g000002/step-0000000110/manifest.json");
	assert_int_equal(ckpt_manifest_decode(file.data, file.len, "f", NULL, &m), 0);
	assert_int_equal(m.kind, CKPT_MANIFEST_ABORT);
	assert_int_equal(m.generation, 2);
	assert_int_equal(m.step, 110);
	assert_string_equal(m.reason, "No space left on device (ENOSPC) \"\xc3\xa4\"");
	assert_null(m.ranks);
	ckpt_buf_free(&file);
	file = read_golden("g000001/step-0000000100/quarantine.json");
	assert_int_equal(ckpt_quarantine_decode(file.data, file.len, "f", NULL, &q), 0);
	assert_int_equal(q.generation, 1);
	assert_int_equal(q.step, 100);
	assert_int_equal(q.code, CKPT_EINTEGRITY);
	assert_int_equal(q.wall_ms, 1700000100200);
	assert_string_equal(q.reason, "chunk 2 of rank 0 differs from its digest");
	ckpt_buf_free(&file);
}

static void check_tensor(const struct ckpt_layout *layout, const struct ckpt_tensor *t)
{
	const struct ckpt_entry *e = ckpt_layout_find(layout, t->name);

	assert_non_null(e);
	assert_string_equal(e->name, t->name);
	assert_int_equal(e->dtype, t->dtype);
	assert_int_equal(e->ndim, t->ndim);
	if (t->ndim)
		assert_memory_equal(e->shape, t->shape, t->ndim * sizeof(*t->shape));
	assert_int_equal(e->global_shape != NULL, strcmp(t->name, BOXED) == 0);
	if (e->global_shape) {
		assert_memory_equal(e->global_shape, whole, sizeof(whole));
		assert_memory_equal(e->global_start, start, sizeof(start));
	}
}

static void test_index_and_shard(void **state)
{
	struct ckpt_buf file = read_golden("g000001/step-0000000100/rank-00000." ATTEMPT ".index");
	struct ckpt_buf shard =
		read_golden("g000001/step-0000000100/rank-00000." ATTEMPT ".safetensors");
	const struct ckpt_layout *layout;
	struct ckpt_index *index;

	(void)state;
	assert_int_equal(ckpt_index_decode(file.data, file.len, "f", NULL, &index), 0);
	layout = index->layout;
	assert_int_equal(index->rank, 0);
	assert_string_equal(index->meta, META);
	assert_int_equal(layout->bytes, shard.len);
	assert_int_equal(layout->chunk_bytes, 4096);
	assert_int_equal(layout->entry_count, COUNT(tensors));
	for (size_t i = 0; i < COUNT(tensors); i++)
		check_tensor(layout, &tensors[i]);
	assert_int_equal(layout->alias_count, 2);
	assert_string_equal(layout->aliases[0].name, "../alias");
	assert_string_equal(layout->aliases[0].target, "../../etc/passwd");
	assert_string_equal(layout->aliases[1].name, "tied.weight");
	assert_string_equal(layout->aliases[1].target, "layers.0.weight");
	for (size_t i = 0; i < layout->chunk_count; i++) {
		const struct ckpt_chunk *c = &layout->chunks[i];
		struct ckpt_digest digest = ckpt_digest_of(shard.data + c->offset, c->length);

		assert_true(ckpt_digest_equal(&digest, &c->digest));
	}
	assert_int_equal(
		ckpt_index_check_header(index, shard.data, layout->header_bytes, "f", NULL), 0);
	ckpt_index_free(index);
	ckpt_buf_free(&file);
	ckpt_buf_free(&shard);
}

static void test_write(void **state)
{
	(void)state;
	each_file(write_golden);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_written_as_it_was),
		cmocka_unit_test(test_marker_and_claims),
		cmocka_unit_test(test_manifests_and_note),
		cmocka_unit_test(test_index_and_shard),
	};
	const struct CMUnitTest writing[] = {cmocka_unit_test(test_write)};
	bool write = argc == 3 && strcmp(argv[1], "--write") == 0;

	if (argc != 2 && !write) {
		(void)fprintf(stderr, "usage: test_golden [--write] DIR\n");
		return 2;
	}
	root = argv[argc - 1];
	return write ? cmocka_run_group_tests(writing, NULL, NULL)
		     : cmocka_run_group_tests(tests, NULL, NULL);
}
