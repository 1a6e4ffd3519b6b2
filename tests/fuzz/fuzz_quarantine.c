/* SPDX-License-Identifier: Apache-2.0 */
/* quarantine.json */
#include "fuzz.h"

#include <string.h>

#include <ckpt/types.h>
#include "format/manifest.h"

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	return ckpt_quarantine_decode(data, length, FUZZ_FILE, err, ret_value);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	return ckpt_quarantine_encode(value, out);
}

static void check(const void *value)
{
	const struct ckpt_quarantine *q = value;

	FUZZ_CHECK(q->generation >= 1 && q->generation <= CKPT_GENERATION_MAX);
	FUZZ_CHECK(q->step <= CKPT_STEP_MAX);
	FUZZ_CHECK(q->code < 0);
	FUZZ_CHECK(fuzz_is_line(q->reason, strlen(q->reason)));
	FUZZ_CHECK(q->wall_ms <= INT64_MAX);
}

static bool same(const void *value, const void *again)
{
	const struct ckpt_quarantine *a = value;
	const struct ckpt_quarantine *b = again;

	return a->generation == b->generation && a->step == b->step && a->code == b->code &&
	       strcmp(a->reason, b->reason) == 0 && a->wall_ms == b->wall_ms;
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct ckpt_quarantine),
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same};
