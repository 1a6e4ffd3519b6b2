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

int ckpt_marker_encode(const struct ckpt_marker *marker, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(ckpt_run_id_valid(marker->run_id));
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out, ",\"run_id\":\"%s\",\"scope\":\"%s\",\"wall_ms\":", marker->run_id,
		marker->shared ? "shared" : "node");
	ckpt_put_u64(out, ckpt_min_u64(marker->wall_ms, INT64_MAX));
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

/* The member that is missing or wrong; NULL: none. */
static const char *read_marker(const json_t *object, struct ckpt_marker *marker)
{
	const char *scope;

	if (!ckpt_json_copy(object, "run_id", marker->run_id, sizeof(marker->run_id)) ||
		!ckpt_run_id_valid(marker->run_id))
		return "run_id";
	if (!ckpt_json_text(object, "scope", &scope))
		return "scope";
	marker->shared = strcmp(scope, "shared") == 0;
	if (!marker->shared && strcmp(scope, "node") != 0)
		return "scope";
	if (!ckpt_json_u64(object, "wall_ms", &marker->wall_ms))
		return "wall_ms";
	return NULL;
}

int ckpt_marker_decode(const void *data, size_t length, const char *file, struct ckpt_error *err,
	struct ckpt_marker *ret_marker)
{
	struct ckpt_marker marker = {0};
	const char *lacks;
	json_t *object;
	int r;

	r = ckpt_sealed_parse(data, length, file, err, &object);
	if (r < 0)
		return r;
	r = ckpt_sealed_check(object, KIND, file, err);
	if (r == 0) {
		lacks = read_marker(object, &marker);
		r = lacks ? ckpt_sealed_lacks(lacks, file, err) : 0;
	}
	json_decref(object);
	if (r == 0)
		*ret_marker = marker;
	return r;
}
