/* SPDX-License-Identifier: Apache-2.0 */
/* quarantine.json: a committed step that could not be restored, and why. */
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

/* The member that is missing or wrong; NULL: none. */
static const char *read_note(const json_t *object, struct ckpt_quarantine *note)
{
	const json_t *code = json_object_get(object, "code");

	if (!ckpt_json_u64(object, "generation", &note->generation) || note->generation < 1 ||
		note->generation > CKPT_GENERATION_MAX)
		return "generation";
	if (!ckpt_json_u64(object, "step", &note->step) || note->step > CKPT_STEP_MAX)
		return "step";
	if (!json_is_integer(code) || json_integer_value(code) < INT32_MIN ||
		json_integer_value(code) > INT32_MAX)
		return "code";
	note->code = (int)json_integer_value(code);
	if (!ckpt_json_copy(object, "reason", note->reason, sizeof(note->reason)))
		return "reason";
	if (!ckpt_json_u64(object, "wall_ms", &note->wall_ms))
		return "wall_ms";
	return NULL;
}

int ckpt_quarantine_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_quarantine *ret_note)
{
	struct ckpt_quarantine note = {0};
	const char *lacks;
	json_t *object;
	int r;

	r = ckpt_sealed_parse(data, length, file, err, &object);
	if (r < 0)
		return r;
	r = ckpt_sealed_check(object, KIND, file, err);
	if (r == 0) {
		lacks = read_note(object, &note);
		r = lacks ? ckpt_sealed_lacks(lacks, file, err) : 0;
	}
	json_decref(object);
	if (r == 0)
		*ret_note = note;
	return r;
}
