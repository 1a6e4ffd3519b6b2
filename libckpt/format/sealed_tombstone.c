/* SPDX-License-Identifier: Apache-2.0 */
/* step-SSSSSSSSSS.tombstone: a step that will be deleted. */
#include "format/manifest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>

#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "tombstone"

int ckpt_tombstone_encode(const struct ckpt_tombstone *tombstone, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(tombstone->generation >= 1 && tombstone->generation <= CKPT_GENERATION_MAX);
	CKPT_ASSERT(tombstone->step <= CKPT_STEP_MAX);
	CKPT_ASSERT(tombstone->by >= 1 && tombstone->by <= CKPT_GENERATION_MAX);
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out,
		",\"generation\":%" PRIu64 ",\"step\":%" PRIu64 ",\"by\":%" PRIu64
		",\"nonce\":\"%016" PRIx64 "\",\"wall_ms\":",
		tombstone->generation, tombstone->step, tombstone->by, tombstone->nonce);
	ckpt_put_u64(out, ckpt_min_u64(tombstone->wall_ms, INT64_MAX));
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

enum member { FORMAT, KIND_, DIGEST, GENERATION, STEP, BY, NONCE, WALL_MS };

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[GENERATION] = "generation",
	[STEP] = "step",
	[BY] = "by",
	[NONCE] = "nonce",
	[WALL_MS] = "wall_ms",
	NULL,
};

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_tombstone *tombstone = user;

	switch (member) {
	case GENERATION:
		return ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &tombstone->generation);
	case STEP:
		return ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &tombstone->step);
	case BY:
		return ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &tombstone->by);
	case NONCE:
		return ckpt_sealed_nonce(r, &tombstone->nonce);
	case WALL_MS:
		return ckpt_reader_u64(r, &tombstone->wall_ms);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_tombstone_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_tombstone *ret_tombstone)
{
	struct ckpt_tombstone tombstone = {0};
	int r = ckpt_sealed_check(data, length, KIND, file, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &tombstone, file, err);
	if (r == 0)
		*ret_tombstone = tombstone;
	return r;
}
