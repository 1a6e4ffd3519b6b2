/* SPDX-License-Identifier: Apache-2.0 */
/* The register of a step: commits and aborts, large worlds, and what is no manifest. */
#include "sealed_kit.h"

#include <errno.h>

#include "format/index.h"
#include "format/layout.h"

#define DIGEST "000102030405060708090a0b0c0d0e0f"

static int manifest_decode(const void *data, size_t length, struct ckpt_error *err)
{
	struct ckpt_manifest manifest;
	int r = ckpt_manifest_decode(data, length, "f.json", err, &manifest);

	if (r == 0)
		ckpt_manifest_clear(&manifest);
	return r;
}

static struct ckpt_manifest_rank rank_of(uint32_t number)
{
	struct ckpt_manifest_rank rank = {.rank = number,
		.node = "n1",
		.attempt = ATTEMPT,
		.index_bytes = number ? number : CKPT_INDEX_MAX,
		.shard_bytes = number ? 4096 + number : CKPT_SHARD_BYTES_MAX};

	for (unsigned i = 0; i < CKPT_DIGEST_SIZE; i++)
		rank.index_digest.bytes[i] = (uint8_t)(number * 16 + i);
	return rank;
}

static void test_commit(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"manifest\",\"run_id\":\"" RUN
		"\",\"generation\":7,\"step\":100,\"outcome\":\"commit\",\"attempt\":\"" ATTEMPT
		"\",\"wall_ms\":1700000000000,\"world\":2,\"ranks\":["
		"{\"rank\":0,\"node\":\"n1\",\"attempt\":\"" ATTEMPT "\",\"index_digest\":\"" DIGEST
		"\",\"index_bytes\":1073741824,\"shard_bytes\":70368744177664},"
		"{\"rank\":1,\"node\":\"n1\",\"attempt\":\"" ATTEMPT
		"\",\"index_digest\":\"101112131415161718191a1b1c1d1e1f\","
		"\"index_bytes\":1,\"shard_bytes\":4097}]";
	struct ckpt_manifest_rank ranks[] = {rank_of(0), rank_of(1)};
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN,
		.generation = 7,
		.step = 100,
		.attempt = ATTEMPT,
		.wall_ms = 1700000000000,
		.world = 2,
		.ranks = ranks};
	struct ckpt_manifest back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, manifest_decode);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.kind, m.kind);
	assert_string_equal(back.run_id, m.run_id);
	assert_int_equal(back.generation, m.generation);
	assert_int_equal(back.step, m.step);
	assert_string_equal(back.attempt, m.attempt);
	assert_int_equal(back.wall_ms, m.wall_ms);
	assert_int_equal(back.world, m.world);
	assert_string_equal(back.reason, "");
	/* Field by field: what pads a struct is nobody's. */
	for (uint32_t i = 0; i < back.world; i++) {
		const struct ckpt_manifest_rank *got = &back.ranks[i];
		assert_int_equal(got->rank, ranks[i].rank);
		assert_string_equal(got->node, ranks[i].node);
		assert_string_equal(got->attempt, ranks[i].attempt);
		assert_true(ckpt_digest_equal(&got->index_digest, &ranks[i].index_digest));
		assert_int_equal(got->index_bytes, ranks[i].index_bytes);
		assert_int_equal(got->shard_bytes, ranks[i].shard_bytes);
	}
	ckpt_manifest_clear(&back);
	assert_null(back.ranks);
	ckpt_manifest_clear(&back);
	ckpt_buf_free(&out);
}

/* One that names a catalog, which is of all its ranks. */
static void test_catalog(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"manifest\",\"run_id\":\"" RUN
		"\",\"generation\":7,\"step\":100,\"outcome\":\"commit\",\"attempt\":\"" ATTEMPT
		"\",\"wall_ms\":1,\"world\":1,\"catalog\":{\"digest\":\"" DIGEST
		"\",\"bytes\":1073741824},\"ranks\":["
		"{\"rank\":0,\"node\":\"n1\",\"attempt\":\"" ATTEMPT "\",\"index_digest\":\"" DIGEST
		"\",\"index_bytes\":1073741824,\"shard_bytes\":70368744177664}]";
	struct ckpt_manifest_rank rank = rank_of(0);
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN,
		.generation = 7,
		.step = 100,
		.attempt = ATTEMPT,
		.wall_ms = 1,
		.world = 1,
		.catalog = rank.index_digest,
		.catalog_bytes = UINT64_C(1) << 30,
		.ranks = &rank};
	struct ckpt_manifest back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, manifest_decode);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.catalog_bytes, m.catalog_bytes);
	assert_true(ckpt_digest_equal(&back.catalog, &m.catalog));
	assert_false(back.node_stores);
	ckpt_manifest_clear(&back);
	/* Of stores on nodes. */
	m.node_stores = true;
	out.len = 0;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	assert_non_null(
		memmem(out.data, out.len, "\"scope\":\"node\"", strlen("\"scope\":\"node\"")));
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_true(back.node_stores);
	ckpt_manifest_clear(&back);
	m.node_stores = false;
	/* One that names none has none. */
	m.catalog_bytes = 0;
	out.len = 0;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	assert_null(memmem(out.data, out.len, "catalog", strlen("catalog")));
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.catalog_bytes, 0);
	ckpt_manifest_clear(&back);
	ckpt_buf_free(&out);
}

static void test_abort(void **state)
{
	static const char body[] =
		"{\"format\":[1,0],\"kind\":\"manifest\",\"run_id\":\"" RUN
		"\",\"generation\":1,\"step\":0,\"outcome\":\"abort\",\"attempt\":\"" ATTEMPT
		"\",\"wall_ms\":0,\"world\":1,\"reason\":\"disk full\"";
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_ABORT,
		.run_id = RUN,
		.generation = 1,
		.attempt = ATTEMPT,
		.world = 1,
		.reason = "disk full"};
	struct ckpt_manifest back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	kit_check_bytes(&out, body);
	kit_check_damage(&out, manifest_decode);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.kind, CKPT_MANIFEST_ABORT);
	assert_string_equal(back.reason, "disk full");
	assert_null(back.ranks);
	/* As long as a reason can be, none of it UTF-8. */
	out.len = 0;
	memset(m.reason, 0x80, sizeof(m.reason));
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(strlen(back.reason), sizeof(back.reason) - 1);
	ckpt_buf_free(&out);
}

#define HEAD(version, generation, step, outcome, attempt, world)                                   \
	"{\"format\":" version ",\"kind\":\"manifest\",\"run_id\":\"" RUN                          \
	"\",\"generation\":" generation ",\"step\":" step ",\"outcome\":" outcome                  \
	",\"attempt\":" attempt ",\"wall_ms\":1,\"world\":" world
#define COMMIT(world) HEAD("[1,0]", "1", "1", "\"commit\"", "\"" ATTEMPT "\"", world)
#define ABORT         HEAD("[1,0]", "1", "1", "\"abort\"", "\"" ATTEMPT "\"", "1")
#define RANK(number, attempt, digest, index, shard)                                                \
	"{\"rank\":" number ",\"node\":\"n\",\"attempt\":" attempt ",\"index_digest\":" digest     \
	",\"index_bytes\":" index ",\"shard_bytes\":" shard "}"
#define GOOD(number)       RANK(number, "\"" ATTEMPT "\"", "\"" DIGEST "\"", "100", "4096")
#define ONE(list)          COMMIT("1") ",\"ranks\":[" list "]"
#define TWO(list)          COMMIT("2") ",\"ranks\":[" list "]"
#define CATALOGED(catalog) COMMIT("1") ",\"catalog\":" catalog ",\"ranks\":[" GOOD("0") "]"
#define REASON             ",\"reason\":\"\""
#define TOP(gen, step, outcome, attempt, world)                                                    \
	HEAD("[1,0]", gen, step, outcome, attempt, world) ",\"ranks\":[" GOOD("0") "]"

static void test_tolerated(void **state)
{
	static const struct sealed_case cases[] = {
		{ONE(GOOD("0")), 0, ""},
		/* What a later minor version says of a catalog is passed over. */
		{CATALOGED("{\"digest\":\"" DIGEST "\",\"bytes\":1,\"more\":[{}]}"), 0, ""},
		{TWO(GOOD("0") "," GOOD("1")), 0, ""},
		{ABORT REASON, 0, ""},
		/* Room for what comes later. */
		{HEAD("[1,9]", "1", "1", "\"commit\"", "\"" ATTEMPT "\"",
			 "1") ",\"layouts\":{\"x\":[1]},\"ranks\":[{\"encodings\":[],\"rank\":0,"
			      "\"node\":\"n\","
			      "\"attempt\":\"" ATTEMPT "\",\"index_digest\":\"" DIGEST
			      "\",\"index_bytes\":1,\"shard_bytes\":1}]",
			0, ""},
		/* Any order, the ranks first. */
		{"{\"ranks\":[" GOOD("0") "],\"world\":1,\"wall_ms\":1,\"attempt\":\"" ATTEMPT
					  "\",\"outcome\":\"commit\",\"step\":1,\"generation\":1,"
					  "\"run_id\":\"" RUN
					  "\",\"kind\":\"manifest\",\"format\":[1,0]",
			0, ""},
		/* An abort may name ranks, a commit a reason: nobody asks for them. */
		{ABORT REASON ",\"ranks\":[]", 0, ""},
		{COMMIT("1") REASON ",\"ranks\":[" GOOD("0") "]", 0, ""},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), manifest_decode);
}

static void test_refused(void **state)
{
	static const struct sealed_case cases[] = {
		{HEAD("[3,0]", "1", "1", "\"new\"", "1", "0"), CKPT_EVERSION,
			"install libckpt 3.0 or newer"},
		{HEAD("[0,0]", "1", "1", "\"new\"", "1", "0"), CKPT_EFORMAT, "format 0"},
		{HEAD("[1]", "1", "1", "\"new\"", "1", "0"), CKPT_EFORMAT, "has no \"format\""},
		{HEAD("[1,0,0]", "1", "1", "\"new\"", "1", "0"), CKPT_EFORMAT, "has no \"format\""},
		{HEAD("1", "1", "1", "\"new\"", "1", "0"), CKPT_EFORMAT, "has no \"format\""},
		{"{\"kind\":\"manifest\"", CKPT_EFORMAT, "has no \"format\""},
		{"{\"format\":[1,0]", CKPT_EFORMAT, "is not of kind \"manifest\""},
		{"{\"format\":[1,0],\"kind\":\"claim\"", CKPT_EFORMAT, "is not of kind"},
		/* The version comes before the kind. */
		{"{\"format\":[3,0],\"kind\":\"a kind of more than thirty-two bytes\"",
			CKPT_EVERSION, "install libckpt 3.0"},
		{"{\"format\":[3,0]", CKPT_EVERSION, "install libckpt 3.0"},
		{"{\"format\":[1,0],\"kind\":\"manifest\"", CKPT_EFORMAT, "\"run_id\" is missing"},
		{"{\"format\":[1,0],\"format\":[1,0],\"kind\":\"manifest\"", CKPT_EFORMAT,
			"occurs twice"},
		{"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
			CKPT_EFORMAT, "nested deeper"},
		{COMMIT("1") ",\"ranks\":[" GOOD(
			 "0") "],\"a\":"
			      "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
			CKPT_EFORMAT, "nested deeper than 32"},
		{ABORT ",\"reason\":\"\\u001b[2J\"", CKPT_EFORMAT, "a control character"},
		{TOP("0", "1", "\"commit\"", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT,
			"0 is not between"},
		{TOP("1000000", "1", "\"commit\"", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT,
			"not between 1 and 999999"},
		{TOP("1", "10000000000", "\"commit\"", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT,
			"not between 0 and 9999999999"},
		{TOP("1", "-1", "\"commit\"", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT,
			"whole number"},
		{TOP("1", "1", "\"committed\"", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT,
			"neither \"commit\" nor \"abort\""},
		{TOP("1", "1", "1", "\"" ATTEMPT "\"", "1"), CKPT_EFORMAT, "'\"' is missing"},
		{TOP("1", "1", "\"commit\"", "\"../../../../../..\"", "1"), CKPT_EFORMAT,
			"more than 16 bytes"},
		{TOP("1", "1", "\"commit\"", "\"../../../../../.\"", "1"), CKPT_EFORMAT,
			"an attempt is not 16"},
		{TOP("1", "1", "\"commit\"", "\"" ATTEMPT "\"", "0"), CKPT_EFORMAT,
			"not between 1 and"},
		{TOP("1", "1", "\"commit\"", "\"" ATTEMPT "\"", "1000001"), CKPT_EFORMAT,
			"not between 1 and 1000000"},
		{COMMIT("1"), CKPT_EFORMAT, "\"ranks\" is missing"},
		{ABORT, CKPT_EFORMAT, "\"reason\" is missing"},
		{ABORT ",\"reason\":1", CKPT_EFORMAT, "'\"' is missing"},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), manifest_decode);
}

static void test_refused_ranks(void **state)
{
	static const struct sealed_case cases[] = {
		{ONE(""), CKPT_EFORMAT, "0 ranks of a world of 1"},
		{TWO(GOOD("0")), CKPT_EFORMAT, "1 ranks of a world of 2"},
		{ONE(GOOD("0") "," GOOD("1")), CKPT_EFORMAT, "more ranks than its world of 1"},
		{COMMIT("1000000") ",\"ranks\":[" GOOD("0") "]", CKPT_EFORMAT,
			"cannot name 1000000"},
		{COMMIT("1") ",\"ranks\":{}", CKPT_EFORMAT, "'[' is missing"},
		{COMMIT("1") ",\"ranks\":[],\"ranks\":[" GOOD("0") "]", CKPT_EFORMAT,
			"occurs twice"},
		{CATALOGED("{}"), CKPT_EFORMAT, "its \"catalog\" lacks a member"},
		{CATALOGED("{\"digest\":\"" DIGEST "\"}"), CKPT_EFORMAT, "its \"catalog\" lacks"},
		{CATALOGED("{\"bytes\":1}"), CKPT_EFORMAT, "its \"catalog\" lacks"},
		{CATALOGED("7"), CKPT_EFORMAT, ""},
		{CATALOGED("{\"digest\":\"x\",\"bytes\":1}"), CKPT_EFORMAT, "a digest is not"},
		{CATALOGED("{\"digest\":\"" DIGEST "\",\"bytes\":0}"), CKPT_EFORMAT,
			"not between 1"},
		{CATALOGED("{\"digest\":\"" DIGEST "\",\"bytes\":1073741825}"), CKPT_EFORMAT,
			"not between 1 and 1073741824"},
		{CATALOGED("{\"digest\":\"" DIGEST "\",\"bytes\":1,\"bytes\":1}"), CKPT_EFORMAT,
			""},
		{ONE(GOOD("1")), CKPT_EFORMAT, "rank 1 instead of 0"},
		{TWO(GOOD("0") "," GOOD("0")), CKPT_EFORMAT, "rank 0 instead of 1"},
		{TWO(GOOD("1") "," GOOD("0")), CKPT_EFORMAT, "rank 1 instead of 0"},
		{ONE(GOOD("4294967296")), CKPT_EFORMAT, "not between 0 and 999999"},
		{ONE("{}"), CKPT_EFORMAT, "the record of rank 0 lacks a member"},
		{ONE("{\"rank\":0,\"rank\":0}"), CKPT_EFORMAT, "occurs twice"},
		{ONE("[]"), CKPT_EFORMAT, "'{' is missing"},
		{ONE("{\"rank\":0,\"node\":\"a\\nb\"}"), CKPT_EFORMAT, "a control character"},
		{ONE(RANK("0", "\"x\"", "\"" DIGEST "\"", "1", "1")), CKPT_EFORMAT,
			"an attempt is not"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" ATTEMPT "\"", "1", "1")), CKPT_EFORMAT,
			"a digest is not"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" DIGEST "0\"", "1", "1")), CKPT_EFORMAT,
			"more than 32 bytes"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" DIGEST "\"", "0", "1")), CKPT_EFORMAT,
			"0 is not between 1 and 1073741824"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" DIGEST "\"", "1073741825", "1")),
			CKPT_EFORMAT, "not between"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" DIGEST "\"", "1", "70368744177665")),
			CKPT_EFORMAT, "not between"},
		{ONE(RANK("0", "\"" ATTEMPT "\"", "\"" DIGEST "\"", "1", "18446744073709551615")),
			CKPT_EFORMAT, "2^63-1"},
	};

	(void)state;
	kit_check_cases(cases, COUNT(cases), manifest_decode);
}

/* Many ranks: read with less memory than the file is long. One too many is refused. */
static void test_large_world(void **state)
{
	enum { WORLD = 20000, TOO_MANY = 120000 };
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN,
		.generation = 1,
		.attempt = ATTEMPT,
		.world = WORLD};
	struct ckpt_manifest back;
	struct kit_alloc alloc = {0};
	struct ckpt_buf out = {0};

	(void)state;
	m.ranks = calloc(TOO_MANY, sizeof(*m.ranks));
	assert_non_null(m.ranks);
	for (uint32_t i = 0; i < TOO_MANY; i++)
		m.ranks[i] = rank_of(i);
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_true(alloc.bytes < out.len);
	assert_memory_equal(back.ranks, m.ranks, WORLD * sizeof(*m.ranks));
	ckpt_manifest_clear(&back);
	/* As many as an engine takes, the names of their nodes as long as they may be. */
	out.len = 0;
	m.world = CKPT_WORLD_SAVING;
	for (uint32_t i = 0; i < CKPT_WORLD_SAVING; i++)
		memset(m.ranks[i].node, '"', sizeof(m.ranks[i].node) - 1);
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	out.len = 0;
	m.world = TOO_MANY;
	assert_int_equal(ckpt_manifest_encode(&m, &out), -E2BIG);
	ckpt_buf_free(&out);
	free(m.ranks);
}

static void test_without_memory(void **state)
{
	struct ckpt_manifest_rank rank = rank_of(0);
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN,
		.generation = 1,
		.attempt = ATTEMPT,
		.world = 1,
		.ranks = &rank};
	struct ckpt_manifest back = {.generation = 77};
	struct kit_alloc alloc = {.fail_at = 1};
	struct ckpt_error err = {0};
	struct ckpt_buf out = {0};

	(void)state;
	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	assert_int_equal(ckpt_manifest_encode(&m, &out), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	ckpt_buf_free(&out);
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	alloc = (struct kit_alloc){.fail_at = 1};
	ckpt_alloc_set_hook(kit_alloc_hook, &alloc);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", &err, &back), -ENOMEM);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(err.code, -ENOMEM);
	assert_int_equal(back.generation, 77);
	ckpt_buf_free(&out);
}

#define BASED                                                                                      \
	"{\"format\":[2,0],\"kind\":\"manifest\",\"run_id\":\"" RUN                                \
	"\",\"generation\":7,\"step\":100,\"outcome\":\"commit\",\"attempt\":\"" ATTEMPT           \
	"\",\"wall_ms\":1,\"world\":1,\"bases\":"
#define OF_BASED                                                                                   \
	",\"ranks\":[{\"rank\":0,\"node\":\"n1\",\"attempt\":\"" ATTEMPT                           \
	"\",\"index_digest\":\"" DIGEST                                                            \
	"\",\"index_bytes\":1073741824,\"shard_bytes\":70368744177664}]"

/* The steps that a step needs: who does not know of them refuses the manifest. */
static void test_bases(void **state)
{
	struct ckpt_manifest_rank rank = rank_of(0);
	struct ckpt_manifest m = {.kind = CKPT_MANIFEST_COMMIT,
		.run_id = RUN,
		.generation = 7,
		.step = 100,
		.attempt = ATTEMPT,
		.wall_ms = 1,
		.world = 1,
		.bases = {{5, 60}, {7, 99}},
		.base_count = 2,
		.ranks = &rank};
	static const struct sealed_case cases[] = {
		{BASED "[]" OF_BASED, 0, ""},
		{BASED "[[7,99]]" OF_BASED, 0, ""},
		{BASED "[[1,0],[1,1],[1,2],[1,3],[1,4],[1,5],[1,6],[1,7],[1,8],[1,9],[1,10],[1,11],"
		       "[1,12],[1,13],[1,14],[7,15]]" OF_BASED,
			0, ""},
		{BASED "[[1,0],[1,1],[1,2],[1,3],[1,4],[1,5],[1,6],[1,7],[1,8],[1,9],[1,10],[1,11],"
		       "[1,12],[1,13],[1,14],[7,15],[7,16]]" OF_BASED,
			CKPT_EFORMAT, "more than 16 bases"},
		{BASED "[[7,100]]" OF_BASED, CKPT_EFORMAT, "bases"},
		{BASED "[[8,99]]" OF_BASED, CKPT_EFORMAT, "bases"},
		{BASED "[[0,99]]" OF_BASED, CKPT_EFORMAT, "between"},
		{BASED "[[7,98],[7,98]]" OF_BASED, CKPT_EFORMAT, "bases"},
		{BASED "[[7,98],[6,99]]" OF_BASED, CKPT_EFORMAT, "bases"},
		{BASED "[[7,98,1]]" OF_BASED, CKPT_EFORMAT, "[generation,step]"},
		{BASED "[[7]]" OF_BASED, CKPT_EFORMAT, ""},
		{BASED "[7]" OF_BASED, CKPT_EFORMAT, ""},
		{BASED "{}" OF_BASED, CKPT_EFORMAT, ""},
	};
	struct ckpt_manifest back;
	struct ckpt_buf out = {0};

	(void)state;
	assert_int_equal(ckpt_manifest_encode(&m, &out), 0);
	kit_check_bytes(&out, BASED "[[5,60],[7,99]]" OF_BASED);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.base_count, 2);
	assert_int_equal(back.bases[0].generation, 5);
	assert_int_equal(back.bases[0].step, 60);
	assert_int_equal(back.bases[1].generation, 7);
	assert_int_equal(back.bases[1].step, 99);
	ckpt_manifest_clear(&back);
	ckpt_buf_free(&out);
	kit_check_cases(cases, sizeof(cases) / sizeof(*cases), manifest_decode);
	/* What was aborted needs nothing. */
	ckpt_buf_puts(&out,
		"{\"format\":[2,0],\"kind\":\"manifest\",\"run_id\":\"" RUN
		"\",\"generation\":7,\"step\":100,\"outcome\":\"abort\",\"attempt\":\"" ATTEMPT
		"\",\"wall_ms\":1,\"world\":1,\"reason\":\"late\",\"bases\":[[7,99]]");
	ckpt_sealed_finish(&out);
	assert_int_equal(ckpt_manifest_decode(out.data, out.len, "f", NULL, &back), 0);
	assert_int_equal(back.base_count, 0);
	ckpt_manifest_clear(&back);
	ckpt_buf_free(&out);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_commit),
		cmocka_unit_test(test_bases),
		cmocka_unit_test(test_catalog),
		cmocka_unit_test(test_abort),
		cmocka_unit_test(test_tolerated),
		cmocka_unit_test(test_refused),
		cmocka_unit_test(test_refused_ranks),
		cmocka_unit_test(test_large_world),
		cmocka_unit_test(test_without_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
