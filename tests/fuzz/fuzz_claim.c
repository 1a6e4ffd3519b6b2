/* SPDX-License-Identifier: Apache-2.0 */
/* gens/NNNNNN.json */
#include "fuzz.h"

#include <string.h>

#include <ckpt/types.h>
#include "format/manifest.h"

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	return ckpt_claim_decode(data, length, FUZZ_FILE, err, ret_value);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	return ckpt_claim_encode(value, out);
}

static void check(const void *value)
{
	const struct ckpt_claim *c = value;

	FUZZ_CHECK(ckpt_run_id_valid(c->run_id));
	FUZZ_CHECK(c->generation >= 1 && c->generation <= CKPT_GENERATION_MAX);
	FUZZ_CHECK(c->parent_generation < c->generation);
	FUZZ_CHECK(c->parent_step <= (c->parent_generation > 0 ? CKPT_STEP_MAX : 0));
	FUZZ_CHECK(c->world >= 1 && c->world <= CKPT_WORLD_MAX);
	FUZZ_CHECK(fuzz_is_line(c->node, strlen(c->node)));
	FUZZ_CHECK(c->wall_ms <= INT64_MAX);
}

static bool same(const void *value, const void *again)
{
	const struct ckpt_claim *a = value;
	const struct ckpt_claim *b = again;

	return strcmp(a->run_id, b->run_id) == 0 && a->generation == b->generation &&
	       a->parent_generation == b->parent_generation && a->parent_step == b->parent_step &&
	       a->nonce == b->nonce && a->world == b->world && strcmp(a->node, b->node) == 0 &&
	       a->wall_ms == b->wall_ms;
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct ckpt_claim),
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same};
