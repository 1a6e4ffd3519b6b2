/* SPDX-License-Identifier: Apache-2.0 */
/* quarantine.json: why a committed step could not be restored. */
#include "format/manifest.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>

#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "quarantine"

int ckpt_quarantine_encode(const struct ckpt_quarantine *note, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(note->generation >= 1 && note->generation <= CKPT_GENERATION_MAX);
	CKPT_ASSERT(note->step <= CKPT_STEP_MAX);
	CKPT_ASSERT(note->code < 0);
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out,
		",\"generation\":%" PRIu64 ",\"step\":%" PRIu64 ",\"code\":%d,\"reason\":",
		note->generation, note->step, note->code);
	ckpt_put_line(out, note->reason, sizeof(note->reason));
	ckpt_buf_puts(out, ",\"wall_ms\":");
	ckpt_put_u64(out, ckpt_min_u64(note->wall_ms, INT64_MAX));
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

enum member { FORMAT, KIND_, DIGEST, GENERATION, STEP, CODE, REASON, WALL_MS };

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[GENERATION] = "generation",
	[STEP] = "step",
	[CODE] = "code",
	[REASON] = "reason",
	[WALL_MS] = "wall_ms",
	NULL,
};

/* A negative number of 32 bits. */
static bool read_code(struct ckpt_reader *r, int *ret_code)
{
	uint64_t number;

	if (!ckpt_reader_take(r, '-') ||
		!ckpt_sealed_number(r, 1, (uint64_t)INT32_MAX + 1, &number))
		return false;
	*ret_code = (int)-(int64_t)number;
	return true;
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_quarantine *note = user;

	switch (member) {
	case GENERATION:
		return ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &note->generation);
	case STEP:
		return ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &note->step);
	case CODE:
		return read_code(r, &note->code);
	case REASON:
		return ckpt_sealed_line(r, note->reason, sizeof(note->reason));
	case WALL_MS:
		return ckpt_reader_u64(r, &note->wall_ms);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_quarantine_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_quarantine *ret_note)
{
	struct ckpt_quarantine note = {0};
	int r = ckpt_sealed_check(data, length, KIND, file, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &note, file, err);
	if (r == 0)
		*ret_note = note;
	return r;
}
