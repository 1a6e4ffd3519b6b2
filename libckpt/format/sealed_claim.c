/* SPDX-License-Identifier: Apache-2.0 */
/* gens/NNNNNN.json: one incarnation of the job has begun, and from where. */
#include "format/manifest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

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

static bool read_parent(const json_t *object, struct ckpt_claim *claim)
{
	const json_t *parent = json_object_get(object, "parent");

	if (json_is_null(parent))
		return true;
	/* Older than its child: the lineage has an end. */
	return ckpt_json_u64(parent, "generation", &claim->parent_generation) &&
	       claim->parent_generation >= 1 && claim->parent_generation < claim->generation &&
	       ckpt_json_u64(parent, "step", &claim->parent_step) &&
	       claim->parent_step <= CKPT_STEP_MAX;
}

/* A number of 64 bits, more than JSON's numbers carry everywhere, is written as an attempt is. */
static bool read_nonce(const json_t *object, uint64_t *ret_nonce)
{
	const char *nonce;

	if (!ckpt_json_text(object, "nonce", &nonce) || !ckpt_attempt_valid(nonce))
		return false;
	*ret_nonce = strtoull(nonce, NULL, 16);
	return true;
}

/* The member that is missing or wrong; NULL: none. */
static const char *read_claim(const json_t *object, struct ckpt_claim *claim)
{
	uint64_t world;

	if (!ckpt_json_copy(object, "run_id", claim->run_id, sizeof(claim->run_id)) ||
		!ckpt_run_id_valid(claim->run_id))
		return "run_id";
	if (!ckpt_json_u64(object, "generation", &claim->generation) || claim->generation < 1 ||
		claim->generation > CKPT_GENERATION_MAX)
		return "generation";
	if (!read_parent(object, claim))
		return "parent";
	if (!read_nonce(object, &claim->nonce))
		return "nonce";
	if (!ckpt_json_u64(object, "world", &world) || world < 1 || world > CKPT_WORLD_MAX)
		return "world";
	claim->world = (uint32_t)world;
	if (!ckpt_json_copy(object, "node", claim->node, sizeof(claim->node)))
		return "node";
	if (!ckpt_json_u64(object, "wall_ms", &claim->wall_ms))
		return "wall_ms";
	return NULL;
}

int ckpt_claim_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_claim *ret_claim)
{
	struct ckpt_claim claim = {0};
	const char *lacks;
	json_t *object;
	int r;

	r = ckpt_sealed_parse(data, length, file, err, &object);
	if (r < 0)
		return r;
	r = ckpt_sealed_check(object, KIND, file, err);
	if (r == 0) {
		lacks = read_claim(object, &claim);
		r = lacks ? ckpt_sealed_lacks(lacks, file, err) : 0;
	}
	json_decref(object);
	if (r == 0)
		*ret_claim = claim;
	return r;
}
