/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.json */
#include "fuzz.h"

#include <string.h>

#include <ckpt/types.h>
#include "format/index.h"
#include "format/manifest.h"

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	return ckpt_manifest_decode(data, length, FUZZ_FILE, err, ret_value);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	return ckpt_manifest_encode(value, out);
}

/* The paths that it leads to stay within the step. */
static void check_path(const struct ckpt_manifest *m, const struct ckpt_manifest_rank *rank)
{
	char step[CKPT_PATH_MAX];
	char path[CKPT_PATH_MAX];
	size_t length;

	ckpt_name_step(step, m->generation, m->step);
	length = strlen(step);
	ckpt_name_index(path, m->generation, m->step, rank->rank, rank->attempt);
	FUZZ_CHECK(strncmp(path, step, length) == 0 && path[length] == '/');
	FUZZ_CHECK(!strchr(path + length + 1, '/') && !strstr(path, ".."));
}

static void check(const void *value)
{
	const struct ckpt_manifest *m = value;

	FUZZ_CHECK(ckpt_run_id_valid(m->run_id) && ckpt_attempt_valid(m->attempt));
	FUZZ_CHECK(m->generation >= 1 && m->generation <= CKPT_GENERATION_MAX);
	FUZZ_CHECK(m->step <= CKPT_STEP_MAX);
	FUZZ_CHECK(m->wall_ms <= INT64_MAX);
	FUZZ_CHECK(m->world >= 1 && m->world <= CKPT_WORLD_MAX);
	FUZZ_CHECK(fuzz_is_line(m->reason, strlen(m->reason)));
	if (m->kind == CKPT_MANIFEST_ABORT) {
		FUZZ_CHECK(!m->ranks && m->base_count == 0);
		return;
	}
	FUZZ_CHECK(m->kind == CKPT_MANIFEST_COMMIT && m->ranks);
	FUZZ_CHECK(m->base_count <= CKPT_BASES_MAX);
	for (unsigned i = 0; i < m->base_count; i++)
		FUZZ_CHECK(m->bases[i].step <
			   (i + 1 < m->base_count ? m->bases[i + 1].step : m->step));
	for (uint32_t i = 0; i < m->world; i++) {
		const struct ckpt_manifest_rank *rank = &m->ranks[i];

		FUZZ_CHECK(rank->rank == i);
		FUZZ_CHECK(ckpt_attempt_valid(rank->attempt));
		FUZZ_CHECK(fuzz_is_line(rank->node, strlen(rank->node)));
		FUZZ_CHECK(rank->index_bytes >= 1 && rank->index_bytes <= CKPT_INDEX_MAX);
		FUZZ_CHECK(rank->shard_bytes >= 1 && rank->shard_bytes <= CKPT_SHARD_BYTES_MAX);
		check_path(m, rank);
	}
}

static bool same_rank(const struct ckpt_manifest_rank *a, const struct ckpt_manifest_rank *b)
{
	return a->rank == b->rank && strcmp(a->node, b->node) == 0 &&
	       strcmp(a->attempt, b->attempt) == 0 &&
	       ckpt_digest_equal(&a->index_digest, &b->index_digest) &&
	       a->index_bytes == b->index_bytes && a->shard_bytes == b->shard_bytes;
}

static bool same(const void *value, const void *again)
{
	const struct ckpt_manifest *a = value;
	const struct ckpt_manifest *b = again;

	if (a->kind != b->kind || strcmp(a->run_id, b->run_id) != 0 ||
		a->generation != b->generation || a->step != b->step ||
		strcmp(a->attempt, b->attempt) != 0 || a->wall_ms != b->wall_ms ||
		a->world != b->world)
		return false;
	/* A commit may have a reason: nobody asks for it. */
	if (a->kind == CKPT_MANIFEST_ABORT)
		return strcmp(a->reason, b->reason) == 0;
	if (a->base_count != b->base_count ||
		memcmp(a->bases, b->bases, a->base_count * sizeof(*a->bases)) != 0)
		return false;
	for (uint32_t i = 0; i < a->world; i++) {
		if (!same_rank(&a->ranks[i], &b->ranks[i]))
			return false;
	}
	return true;
}

static void clear(void *value)
{
	ckpt_manifest_clear(value);
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct ckpt_manifest),
	.memory = 4,
	.major = 2,
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same,
	.clear = clear};
