/* SPDX-License-Identifier: Apache-2.0 */
/* remote-NNNNNNNNNN.json */
#include "fuzz.h"

#include <string.h>

#include <ckpt/types.h>
#include "format/remote_record.h"

static int decode(const uint8_t *data, size_t length, struct ckpt_error *err, void *ret_value)
{
	return ckpt_remote_record_decode(data, length, FUZZ_FILE, err, ret_value);
}

static int encode(const void *value, struct ckpt_buf *out)
{
	return ckpt_remote_record_encode(value, out);
}

static void check_steps(const struct ckpt_record_step *steps, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(steps[i].generation >= 1 && steps[i].generation <= CKPT_GENERATION_MAX);
		FUZZ_CHECK(steps[i].step <= CKPT_STEP_MAX && steps[i].code <= 0);
		FUZZ_CHECK(i == 0 || steps[i - 1].generation < steps[i].generation ||
			   (steps[i - 1].generation == steps[i].generation &&
				   steps[i - 1].step < steps[i].step));
	}
}

/* What it says of a step is of the steps that it lists. */
static void check_says(const struct ckpt_remote_record *r)
{
	for (size_t i = 0; i < r->waiting_count; i++) {
		const struct ckpt_record_step *s = &r->waiting[i];
		enum ckpt_remote_state state = ckpt_remote_record_state(r, s->generation, s->step);
		FUZZ_CHECK(state != CKPT_REMOTE_UPLOADED && state != CKPT_REMOTE_FAILED);
	}
	FUZZ_CHECK(ckpt_remote_record_state(r, CKPT_GENERATION_MAX + 1, 0) != CKPT_REMOTE_UPLOADED);
}

static void check(const void *value)
{
	const struct ckpt_remote_record *r = value;

	FUZZ_CHECK(ckpt_run_id_valid(r->run_id));
	FUZZ_CHECK(*r->remote && fuzz_is_line(r->remote, strlen(r->remote)));
	FUZZ_CHECK(fuzz_is_line(r->node, strlen(r->node)));
	FUZZ_CHECK(fuzz_is_line(r->reason, strlen(r->reason)));
	FUZZ_CHECK(r->generation >= 1 && r->generation <= CKPT_GENERATION_MAX);
	FUZZ_CHECK(r->known_generation <= CKPT_GENERATION_MAX && r->known_step <= CKPT_STEP_MAX);
	FUZZ_CHECK(
		r->uploaded_generation <= CKPT_GENERATION_MAX && r->uploaded_step <= CKPT_STEP_MAX);
	FUZZ_CHECK(r->waiting_count <= CKPT_RECORD_WAITING_MAX);
	FUZZ_CHECK(r->absent_count <= CKPT_RECORD_ABSENT_MAX);
	FUZZ_CHECK(r->code <= 0);
	check_steps(r->waiting, r->waiting_count);
	check_steps(r->absent, r->absent_count);
	check_says(r);
}

static bool same(const void *value, const void *again)
{
	const struct ckpt_remote_record *a = value;
	const struct ckpt_remote_record *b = again;
	struct ckpt_remote_record one = *a;
	struct ckpt_remote_record other = *b;

	if (a->waiting_count != b->waiting_count ||
		memcmp(a->waiting, b->waiting, a->waiting_count * sizeof(a->waiting[0])) != 0)
		return false;
	one.waiting = NULL;
	other.waiting = NULL;
	return memcmp(&one, &other, sizeof(one)) == 0;
}

static void clear(void *value)
{
	ckpt_remote_record_clear(value);
}

const struct fuzz_sealed fuzz_kind = {.size = sizeof(struct ckpt_remote_record),
	.memory = 8,
	.decode = decode,
	.encode = encode,
	.check = check,
	.same = same,
	.clear = clear};
