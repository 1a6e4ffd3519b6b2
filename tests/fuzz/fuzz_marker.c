/* SPDX-License-Identifier: Apache-2.0 */
/* ckpt.json */
#include "fuzz.h"

#include <string.h>

#include "format/manifest.h"

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	return ckpt_marker_decode(data, length, FUZZ_FILE, err, ret_value);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	return ckpt_marker_encode(value, out);
}

static void check(const void *value)
{
	const struct ckpt_marker *m = value;

	FUZZ_CHECK(ckpt_run_id_valid(m->run_id));
	FUZZ_CHECK(m->wall_ms <= INT64_MAX);
}

static bool same(const void *value, const void *again)
{
	const struct ckpt_marker *a = value;
	const struct ckpt_marker *b = again;

	return strcmp(a->run_id, b->run_id) == 0 && a->shared == b->shared &&
	       a->wall_ms == b->wall_ms;
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct ckpt_marker),
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same};
