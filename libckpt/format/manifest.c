/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest.json, the register of a step: a commit, which names every rank's index, or an abort. It grows with the
 * number of ranks, so it is decoded without a tree.
 */
#include "format/manifest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "format/catalog.h"
#include "format/index.h"
#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "manifest"

/* Who does not know of bases would remove them. */
#define MAJOR_WITHOUT_BASES 1
#define MAJOR_WITH_BASES    2

/* Less than the JSON of any rank's record, to limit the number of ranks by the file's length. */
#define RANK_JSON_MIN 64

enum member {
	FORMAT,
	KIND_,
	RUN_ID,
	GENERATION,
	STEP,
	OUTCOME,
	ATTEMPT,
	WALL_MS,
	WORLD,
	REASON,
	CATALOG,
	REPLICAS,
	SCOPE,
	BASES,
	RANKS,
	DIGEST
};

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[RUN_ID] = "run_id",
	[GENERATION] = "generation",
	[STEP] = "step",
	[OUTCOME] = "outcome",
	[ATTEMPT] = "attempt",
	[WALL_MS] = "wall_ms",
	[WORLD] = "world",
	[REASON] = "reason",
	[CATALOG] = "catalog",
	[REPLICAS] = "replicas",
	[SCOPE] = "scope",
	[BASES] = "bases",
	[RANKS] = "ranks",
	[DIGEST] = CKPT_SEALED_DIGEST,
	NULL,
};

enum rank_member { RANK, NODE, RANK_ATTEMPT, INDEX_DIGEST, INDEX_BYTES, SHARD_BYTES };

static const char *const rank_members[] = {
	[RANK] = "rank",
	[NODE] = "node",
	[RANK_ATTEMPT] = "attempt",
	[INDEX_DIGEST] = "index_digest",
	[INDEX_BYTES] = "index_bytes",
	[SHARD_BYTES] = "shard_bytes",
	NULL,
};

enum catalog_member { CATALOG_DIGEST, CATALOG_BYTES };

static const char *const catalog_members[] = {
	[CATALOG_DIGEST] = "digest",
	[CATALOG_BYTES] = "bytes",
	NULL,
};

/* Encoding. */

static void put_catalog(struct ckpt_buf *out, const struct ckpt_manifest *m)
{
	char hex[CKPT_DIGEST_HEX];

	if (m->catalog_bytes == 0)
		return;
	CKPT_ASSERT(m->catalog_bytes <= CKPT_CATALOG_MAX);
	ckpt_digest_hex(&m->catalog, hex);
	ckpt_buf_printf(out, ",\"catalog\":{\"digest\":\"%s\",\"bytes\":%" PRIu64 "}", hex,
		m->catalog_bytes);
}

static bool is_before(const struct ckpt_base_step *base, uint64_t generation, uint64_t step)
{
	return base->step < step && base->generation <= generation;
}

/* The steps that a step needs ascend, in one lineage, up to the step itself. */
static bool bases_are_good(const struct ckpt_manifest *m)
{
	for (unsigned i = 0; i < m->base_count; i++) {
		bool last = i + 1 == m->base_count;

		if (!is_before(&m->bases[i], last ? m->generation : m->bases[i + 1].generation,
			    last ? m->step : m->bases[i + 1].step))
			return false;
	}
	return true;
}

static void put_bases(struct ckpt_buf *out, const struct ckpt_manifest *m)
{
	if (m->base_count == 0)
		return;
	CKPT_ASSERT(bases_are_good(m));
	ckpt_buf_puts(out, ",\"bases\":[");
	for (unsigned i = 0; i < m->base_count; i++)
		ckpt_buf_printf(out, "%s[%" PRIu64 ",%" PRIu64 "]", i > 0 ? "," : "",
			m->bases[i].generation, m->bases[i].step);
	ckpt_buf_puts(out, "]");
}

static void put_rank(struct ckpt_buf *out, const struct ckpt_manifest_rank *rank, uint32_t number)
{
	char hex[CKPT_DIGEST_HEX];

	CKPT_ASSERT(rank->rank == number);
	CKPT_ASSERT(ckpt_attempt_valid(rank->attempt));
	CKPT_ASSERT(rank->index_bytes <= CKPT_INDEX_MAX);
	CKPT_ASSERT(rank->shard_bytes <= CKPT_SHARD_BYTES_MAX);
	ckpt_digest_hex(&rank->index_digest, hex);
	ckpt_buf_printf(out, "%s{\"rank\":%u,\"node\":", number > 0 ? "," : "", number);
	ckpt_put_line(out, rank->node, sizeof(rank->node));
	ckpt_buf_printf(out,
		",\"attempt\":\"%s\",\"index_digest\":\"%s\",\"index_bytes\":%" PRIu64
		",\"shard_bytes\":%" PRIu64 "}",
		rank->attempt, hex, rank->index_bytes, rank->shard_bytes);
}

int ckpt_manifest_encode(const struct ckpt_manifest *m, struct ckpt_buf *out)
{
	bool commit = m->kind == CKPT_MANIFEST_COMMIT;

	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(commit ? m->ranks != NULL : m->kind == CKPT_MANIFEST_ABORT);
	CKPT_ASSERT(ckpt_run_id_valid(m->run_id) && ckpt_attempt_valid(m->attempt));
	CKPT_ASSERT(m->generation >= 1 && m->generation <= CKPT_GENERATION_MAX);
	CKPT_ASSERT(m->step <= CKPT_STEP_MAX);
	CKPT_ASSERT(m->world >= 1 && m->world <= CKPT_WORLD_MAX);
	CKPT_ASSERT(m->base_count <= (commit ? CKPT_BASES_MAX : 0));
	ckpt_put_head_major(out, KIND, m->base_count > 0 ? MAJOR_WITH_BASES : MAJOR_WITHOUT_BASES);
	ckpt_buf_printf(out,
		",\"run_id\":\"%s\",\"generation\":%" PRIu64 ",\"step\":%" PRIu64
		",\"outcome\":\"%s\",\"attempt\":\"%s\",\"wall_ms\":%" PRIu64 ",\"world\":%u",
		m->run_id, m->generation, m->step, commit ? "commit" : "abort", m->attempt,
		ckpt_min_u64(m->wall_ms, INT64_MAX), m->world);
	if (commit) {
		put_catalog(out, m);
		if (m->replicas[0]) {
			ckpt_buf_puts(out, ",\"replicas\":");
			ckpt_put_line(out, m->replicas, sizeof(m->replicas));
		}
		if (m->node_stores)
			ckpt_buf_puts(out, ",\"scope\":\"node\"");
		put_bases(out, m);
		ckpt_buf_puts(out, ",\"ranks\":[");
		for (uint32_t i = 0; i < m->world; i++)
			put_rank(out, &m->ranks[i], i);
		ckpt_buf_puts(out, "]");
	} else {
		ckpt_buf_puts(out, ",\"reason\":");
		ckpt_put_line(out, m->reason, sizeof(m->reason));
	}
	ckpt_sealed_finish(out);
	if (out->failed)
		return -ENOMEM;
	return out->len > CKPT_SEALED_MAX ? -E2BIG : 0;
}

/* Decoding. */

static bool read_digest(struct ckpt_reader *r, struct ckpt_digest *digest)
{
	char hex[CKPT_DIGEST_HEX];

	return ckpt_reader_text(r, hex, sizeof(hex), NULL) &&
	       (ckpt_digest_parse(hex, digest) ||
		       ckpt_reader_fail(r, "a digest is not 32 lower-case hexadecimal digits"));
}

static void read_rank_member(struct ckpt_reader *r, int member, struct ckpt_manifest_rank *rank)
{
	uint64_t number = 0;

	switch (member) {
	case RANK:
		if (ckpt_sealed_number(r, 0, CKPT_WORLD_MAX - 1, &number))
			rank->rank = (uint32_t)number;
		break;
	case NODE:
		(void)ckpt_sealed_line(r, rank->node, sizeof(rank->node));
		break;
	case RANK_ATTEMPT:
		(void)ckpt_sealed_attempt(r, rank->attempt);
		break;
	case INDEX_DIGEST:
		(void)read_digest(r, &rank->index_digest);
		break;
	case INDEX_BYTES:
		(void)ckpt_sealed_number(r, 1, CKPT_INDEX_MAX, &rank->index_bytes);
		break;
	case SHARD_BYTES:
		(void)ckpt_sealed_number(r, 1, CKPT_SHARD_BYTES_MAX, &rank->shard_bytes);
		break;
	default:
		(void)ckpt_reader_skip(r);
	}
}

static void read_rank(struct ckpt_reader *r, uint32_t number, struct ckpt_manifest_rank *rank)
{
	const uint32_t all = (UINT32_C(1) << (SHARD_BYTES + 1)) - 1;
	uint32_t seen = 0;
	int member;

	(void)ckpt_reader_open(r, '{');
	while ((member = ckpt_reader_member(r, rank_members, &seen)) != CKPT_READER_END)
		read_rank_member(r, member, rank);
	if (seen != all)
		(void)ckpt_reader_fail(r, "the record of rank %u lacks a member", number);
	if (rank->rank != number)
		(void)ckpt_reader_fail(
			r, "rank %u instead of %u: ranks ascend from 0", rank->rank, number);
}

/* `at` is before the array of ranks; all other members have been read. */
static int read_ranks(struct ckpt_reader *at, size_t length, struct ckpt_manifest *m)
{
	struct ckpt_reader *r = at;
	uint32_t count = 0;

	if (m->world > length / RANK_JSON_MIN) {
		(void)ckpt_reader_fail(
			r, "a file of %zu bytes cannot name %u ranks", length, m->world);
		return CKPT_EFORMAT;
	}
	m->ranks = ckpt_alloc_array(m->world, sizeof(*m->ranks));
	if (!m->ranks)
		return ckpt_fail(
			r->err, -ENOMEM, "out of memory for the %u ranks of %s", m->world, r->file);
	(void)ckpt_reader_open(r, '[');
	while (ckpt_reader_item(r)) {
		if (count == m->world) {
			(void)ckpt_reader_fail(r, "more ranks than its world of %u", m->world);
			break;
		}
		read_rank(r, count, &m->ranks[count]);
		count++;
	}
	if (count < m->world)
		(void)ckpt_reader_fail(r, "%u ranks of a world of %u", count, m->world);
	return r->failed ? CKPT_EFORMAT : 0;
}

static void read_catalog(struct ckpt_reader *r, struct ckpt_manifest *m)
{
	const uint32_t all = (UINT32_C(1) << (CATALOG_BYTES + 1)) - 1;
	uint32_t seen = 0;
	int member;

	(void)ckpt_reader_open(r, '{');
	while ((member = ckpt_reader_member(r, catalog_members, &seen)) != CKPT_READER_END) {
		if (member == CATALOG_DIGEST)
			(void)read_digest(r, &m->catalog);
		else if (member == CATALOG_BYTES)
			(void)ckpt_sealed_number(r, 1, CKPT_CATALOG_MAX, &m->catalog_bytes);
		else
			(void)ckpt_reader_skip(r);
	}
	if (seen != all)
		(void)ckpt_reader_fail(r, "its \"catalog\" lacks a member");
}

static bool read_base_number(struct ckpt_reader *r, uint64_t min, uint64_t max, uint64_t *ret)
{
	return ckpt_reader_item(r) ? ckpt_sealed_number(r, min, max, ret)
				   : ckpt_reader_fail(r, "a base is not [generation,step]");
}

static void read_base(struct ckpt_reader *r, struct ckpt_base_step *base)
{
	if (ckpt_reader_open(r, '[') &&
		read_base_number(r, 1, CKPT_GENERATION_MAX, &base->generation) &&
		read_base_number(r, 0, CKPT_STEP_MAX, &base->step) && ckpt_reader_item(r))
		(void)ckpt_reader_fail(r, "a base is not [generation,step]");
}

static void read_bases(struct ckpt_reader *r, struct ckpt_manifest *m)
{
	(void)ckpt_reader_open(r, '[');
	while (ckpt_reader_item(r)) {
		if (m->base_count == CKPT_BASES_MAX) {
			(void)ckpt_reader_fail(r, "it has more than %d bases", CKPT_BASES_MAX);
			return;
		}
		read_base(r, &m->bases[m->base_count++]);
	}
}

static void read_outcome(struct ckpt_reader *r, struct ckpt_manifest *m)
{
	char outcome[16];

	if (!ckpt_reader_text(r, outcome, sizeof(outcome), NULL))
		return;
	if (strcmp(outcome, "commit") == 0)
		m->kind = CKPT_MANIFEST_COMMIT;
	else if (strcmp(outcome, "abort") == 0)
		m->kind = CKPT_MANIFEST_ABORT;
	else
		(void)ckpt_reader_fail(r, "its outcome is neither \"commit\" nor \"abort\"");
}

/* An unknown scope counts as missing; then a reader assumes nothing. */
static void read_scope(struct ckpt_reader *r, struct ckpt_manifest *m)
{
	char scope[256];

	if (ckpt_reader_text(r, scope, sizeof(scope), NULL))
		m->node_stores = strcmp(scope, "node") == 0;
}

static void read_member(struct ckpt_reader *r, int member, struct ckpt_manifest *m)
{
	uint64_t number = 0;

	switch (member) {
	case RUN_ID:
		(void)ckpt_sealed_run_id(r, m->run_id);
		break;
	case GENERATION:
		(void)ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &m->generation);
		break;
	case STEP:
		(void)ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &m->step);
		break;
	case OUTCOME:
		read_outcome(r, m);
		break;
	case ATTEMPT:
		(void)ckpt_sealed_attempt(r, m->attempt);
		break;
	case WALL_MS:
		(void)ckpt_reader_u64(r, &m->wall_ms);
		break;
	case WORLD:
		if (ckpt_sealed_number(r, 1, CKPT_WORLD_MAX, &number))
			m->world = (uint32_t)number;
		break;
	case CATALOG:
		read_catalog(r, m);
		break;
	case REASON:
		(void)ckpt_sealed_line(r, m->reason, sizeof(m->reason));
		break;
	case REPLICAS:
		(void)ckpt_sealed_line(r, m->replicas, sizeof(m->replicas));
		break;
	case SCOPE:
		read_scope(r, m);
		break;
	case BASES:
		read_bases(r, m);
		break;
	default:
		(void)ckpt_reader_skip(r);
	}
}

static int read_manifest(const char *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_manifest *m)
{
	struct ckpt_reader ranks = {0};
	struct ckpt_reader r;
	uint32_t seen = 0;
	int member;

	ckpt_reader_init(&r, data, length, 0, file, err);
	(void)ckpt_reader_open(&r, '{');
	while ((member = ckpt_reader_member(&r, members, &seen)) != CKPT_READER_END) {
		/* Members may be in any order. The ranks are read last, because they need the world. */
		if (member == RANKS)
			ranks = r;
		read_member(&r, member, m);
	}
	if (ckpt_reader_finish(&r) < 0)
		return CKPT_EFORMAT;
	for (int i = 0; i <= WORLD; i++) {
		if (!(seen & UINT32_C(1) << i))
			return ckpt_sealed_lacks(members[i], file, err);
	}
	if (m->kind == CKPT_MANIFEST_ABORT) {
		m->base_count = 0; /* it has no shards */
		return seen & UINT32_C(1) << REASON ? 0 : ckpt_sealed_lacks("reason", file, err);
	}
	if (!bases_are_good(m))
		return ckpt_sealed_lacks("bases", file, err);
	if (!(seen & UINT32_C(1) << RANKS))
		return ckpt_sealed_lacks("ranks", file, err);
	return read_ranks(&ranks, length, m);
}

int ckpt_manifest_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_manifest *ret_manifest)
{
	struct ckpt_manifest m = {0};
	int r;

	r = ckpt_sealed_check_major(data, length, KIND, MAJOR_WITH_BASES, file, err);
	if (r == 0)
		r = read_manifest(data, length, file, err, &m);
	if (r < 0) {
		ckpt_manifest_clear(&m);
		return r;
	}
	*ret_manifest = m;
	return 0;
}

void ckpt_manifest_clear(struct ckpt_manifest *manifest)
{
	ckpt_free(manifest->ranks);
	manifest->ranks = NULL;
}
