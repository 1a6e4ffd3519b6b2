/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.json, which makes a directory a store. */
#include "format/manifest.h"

#include <errno.h>
#include <string.h>

#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "store"

bool ckpt_run_id_valid(const char *run_id)
{
	return strspn(run_id, "0123456789abcdef") == CKPT_RUN_ID_CHARS - 1 &&
	       run_id[CKPT_RUN_ID_CHARS - 1] == 0;
}

static const char *scope_of(const struct ckpt_marker *marker)
{
	if (marker->shared)
		return "shared";
	return marker->partial ? "ranks" : "node";
}

int ckpt_marker_encode(const struct ckpt_marker *marker, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(ckpt_run_id_valid(marker->run_id));
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out, ",\"run_id\":\"%s\",\"scope\":\"%s\",\"wall_ms\":", marker->run_id,
		scope_of(marker));
	ckpt_put_u64(out, ckpt_min_u64(marker->wall_ms, INT64_MAX));
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

enum member { FORMAT, KIND_, DIGEST, RUN_ID, SCOPE, WALL_MS };

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[RUN_ID] = "run_id",
	[SCOPE] = "scope",
	[WALL_MS] = "wall_ms",
	NULL,
};

static bool read_scope(struct ckpt_reader *r, struct ckpt_marker *marker)
{
	char scope[16];

	if (!ckpt_reader_text(r, scope, sizeof(scope), NULL))
		return false;
	marker->shared = strcmp(scope, "shared") == 0;
	marker->partial = strcmp(scope, "ranks") == 0;
	return marker->shared || marker->partial || strcmp(scope, "node") == 0;
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_marker *marker = user;

	switch (member) {
	case RUN_ID:
		return ckpt_sealed_run_id(r, marker->run_id);
	case SCOPE:
		return read_scope(r, marker);
	case WALL_MS:
		return ckpt_reader_u64(r, &marker->wall_ms);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_marker_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_marker *ret_marker)
{
	struct ckpt_marker marker = {0};
	int r = ckpt_sealed_check(data, length, KIND, file, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &marker, file, err);
	if (r == 0)
		*ret_marker = marker;
	return r;
}
