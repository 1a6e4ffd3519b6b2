/* SPDX-License-Identifier: Apache-2.0 */
/* gens/NNNNNN.json: one start of the job, and the step that it resumed from. */
#include "format/manifest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>

#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "claim"

int ckpt_claim_encode(const struct ckpt_claim *claim, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(ckpt_run_id_valid(claim->run_id));
	CKPT_ASSERT(claim->generation > claim->parent_generation);
	CKPT_ASSERT(claim->parent_step <= CKPT_STEP_MAX);
	CKPT_ASSERT(claim->world >= 1 && claim->world <= CKPT_WORLD_MAX);
	if (claim->generation > CKPT_GENERATION_MAX)
		return -ERANGE;
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out,
		",\"run_id\":\"%s\",\"generation\":%" PRIu64 ",\"parent\":", claim->run_id,
		claim->generation);
	if (claim->parent_generation > 0)
		ckpt_buf_printf(out, "{\"generation\":%" PRIu64 ",\"step\":%" PRIu64 "}",
			claim->parent_generation, claim->parent_step);
	else
		ckpt_buf_puts(out, "null");
	ckpt_buf_printf(out, ",\"nonce\":\"%016" PRIx64 "\",\"world\":%u,\"node\":", claim->nonce,
		claim->world);
	ckpt_put_line(out, claim->node, sizeof(claim->node));
	ckpt_buf_puts(out, ",\"wall_ms\":");
	ckpt_put_u64(out, ckpt_min_u64(claim->wall_ms, INT64_MAX));
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

enum member { FORMAT, KIND_, DIGEST, RUN_ID, GENERATION, PARENT, NONCE, WORLD, NODE, WALL_MS };

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[RUN_ID] = "run_id",
	[GENERATION] = "generation",
	[PARENT] = "parent",
	[NONCE] = "nonce",
	[WORLD] = "world",
	[NODE] = "node",
	[WALL_MS] = "wall_ms",
	NULL,
};

static bool read_parent(struct ckpt_reader *r, struct ckpt_claim *claim)
{
	static const char *const names[] = {"generation", "step", NULL};
	uint32_t seen = 0;
	int member;

	/* Null: it did not resume. */
	if (ckpt_reader_peek(r) == 'n')
		return ckpt_reader_scalar(r);
	(void)ckpt_reader_open(r, '{');
	while ((member = ckpt_reader_member(r, names, &seen)) != CKPT_READER_END) {
		if (member == 0)
			(void)ckpt_sealed_number(
				r, 1, CKPT_GENERATION_MAX, &claim->parent_generation);
		else if (member == 1)
			(void)ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &claim->parent_step);
		else
			(void)ckpt_reader_skip(r);
	}
	return !r->failed && seen == 3;
}

static bool read_world(struct ckpt_reader *r, uint32_t *ret_world)
{
	uint64_t world;

	if (!ckpt_sealed_number(r, 1, CKPT_WORLD_MAX, &world))
		return false;
	*ret_world = (uint32_t)world;
	return true;
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_claim *claim = user;

	switch (member) {
	case RUN_ID:
		return ckpt_sealed_run_id(r, claim->run_id);
	case GENERATION:
		return ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &claim->generation);
	case PARENT:
		return read_parent(r, claim);
	case NONCE:
		return ckpt_sealed_nonce(r, &claim->nonce);
	case WORLD:
		return read_world(r, &claim->world);
	case NODE:
		return ckpt_sealed_line(r, claim->node, sizeof(claim->node));
	case WALL_MS:
		return ckpt_reader_u64(r, &claim->wall_ms);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_claim_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_claim *ret_claim)
{
	struct ckpt_claim claim = {0};
	int r = ckpt_sealed_check(data, length, KIND, file, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &claim, file, err);
	/* A parent must be older, so that the lineage ends. */
	if (r == 0 && claim.parent_generation >= claim.generation)
		r = ckpt_sealed_lacks(members[PARENT], file, err);
	if (r == 0)
		*ret_claim = claim;
	return r;
}
