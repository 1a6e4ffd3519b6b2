/* SPDX-License-Identifier: Apache-2.0 */
/* remote-NNNNNNNNNN.json: the recorded state of a remote store. */
#include "format/remote_record.h"

#include <ckpt/types.h>
#include <errno.h>
#include <inttypes.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "format/json_put.h"
#include "format/sealed.h"

#define KIND "remote"

static void put_newest(struct ckpt_buf *out, const struct ckpt_remote_record *record)
{
	ckpt_buf_puts(out, ",\"known\":");
	if (record->known_generation == 0)
		ckpt_buf_puts(out, "null");
	else
		ckpt_buf_printf(out, "[%" PRIu64 ",%" PRIu64 "]", record->known_generation,
			record->known_step);
	ckpt_buf_puts(out, ",\"there\":");
	if (record->uploaded_generation == 0)
		ckpt_buf_puts(out, "null");
	else
		ckpt_buf_printf(out, "[%" PRIu64 ",%" PRIu64 ",%" PRIu64 "]",
			record->uploaded_generation, record->uploaded_step,
			ckpt_min_u64(record->uploaded_wall_ms, INT64_MAX));
}

static void put_waiting(struct ckpt_buf *out, const struct ckpt_remote_record *record)
{
	ckpt_buf_puts(out, ",\"waiting\":[");
	for (size_t i = 0; i < record->waiting_count; i++)
		ckpt_buf_printf(out, "%s[%" PRIu64 ",%" PRIu64 "]", i ? "," : "",
			record->waiting[i].generation, record->waiting[i].step);
	ckpt_buf_printf(out, "],\"waiting_more\":%" PRIu64, record->waiting_more);
}

static void put_absent(struct ckpt_buf *out, const struct ckpt_remote_record *record)
{
	ckpt_buf_puts(out, ",\"absent\":[");
	for (size_t i = 0; i < record->absent_count; i++)
		ckpt_buf_printf(out, "%s[%" PRIu64 ",%" PRIu64 ",%d]", i ? "," : "",
			record->absent[i].generation, record->absent[i].step,
			record->absent[i].code);
	ckpt_buf_printf(out, "],\"absent_more\":%" PRIu64, record->absent_more);
}

static void put_failure(struct ckpt_buf *out, const struct ckpt_remote_record *record)
{
	if (record->code == 0) {
		ckpt_buf_puts(out, ",\"failure\":null");
		return;
	}
	ckpt_buf_printf(out, ",\"failure\":[%d,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",", record->code,
		record->tries, ckpt_min_u64(record->since_ms, INT64_MAX),
		ckpt_min_u64(record->next_ms, INT64_MAX));
	ckpt_put_line(out, record->reason, sizeof(record->reason));
	ckpt_buf_puts(out, "]");
}

int ckpt_remote_record_encode(const struct ckpt_remote_record *record, struct ckpt_buf *out)
{
	CKPT_ASSERT(out->len == 0);
	CKPT_ASSERT(record->generation >= 1 && record->generation <= CKPT_GENERATION_MAX);
	CKPT_ASSERT(record->waiting_count <= CKPT_RECORD_WAITING_MAX);
	CKPT_ASSERT(record->absent_count <= CKPT_RECORD_ABSENT_MAX);
	CKPT_ASSERT(record->code <= 0 && ckpt_utf8_is_line(record->remote));
	ckpt_put_head(out, KIND);
	ckpt_buf_printf(out, ",\"run_id\":\"%s\",\"remote\":", record->run_id);
	ckpt_put_name(out, record->remote);
	ckpt_buf_printf(out, ",\"every\":%" PRIu64 ",\"generation\":%" PRIu64 ",\"node\":",
		ckpt_min_u64(record->every, INT64_MAX), record->generation);
	ckpt_put_line(out, record->node, sizeof(record->node));
	ckpt_buf_puts(out, ",\"wall_ms\":");
	ckpt_put_u64(out, ckpt_min_u64(record->wall_ms, INT64_MAX));
	put_newest(out, record);
	put_waiting(out, record);
	put_absent(out, record);
	put_failure(out, record);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

enum member {
	FORMAT,
	KIND_,
	DIGEST,
	RUN_ID,
	REMOTE,
	EVERY,
	GENERATION,
	NODE,
	WALL_MS,
	KNOWN,
	THERE,
	WAITING,
	WAITING_MORE,
	ABSENT,
	ABSENT_MORE,
	FAILURE
};

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[RUN_ID] = "run_id",
	[REMOTE] = "remote",
	[EVERY] = "every",
	[GENERATION] = "generation",
	[NODE] = "node",
	[WALL_MS] = "wall_ms",
	[KNOWN] = "known",
	[THERE] = "there",
	[WAITING] = "waiting",
	[WAITING_MORE] = "waiting_more",
	[ABSENT] = "absent",
	[ABSENT_MORE] = "absent_more",
	[FAILURE] = "failure",
	NULL,
};

/* 0, or a negative number of 32 bits. */
static bool read_code(struct ckpt_reader *r, int *ret_code)
{
	uint64_t number;

	*ret_code = 0;
	if (ckpt_reader_peek(r) != '-')
		return ckpt_sealed_number(r, 0, 0, &number);
	if (!ckpt_reader_take(r, '-') ||
		!ckpt_sealed_number(r, 1, (uint64_t)INT32_MAX + 1, &number))
		return false;
	*ret_code = (int)-(int64_t)number;
	return true;
}

/* [GENERATION,STEP without the closing bracket. */
static bool read_numbers(struct ckpt_reader *r, uint64_t *ret_generation, uint64_t *ret_step)
{
	return ckpt_reader_open(r, '[') && ckpt_reader_item(r) &&
	       ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, ret_generation) &&
	       ckpt_reader_item(r) && ckpt_sealed_number(r, 0, CKPT_STEP_MAX, ret_step);
}

static bool read_null(struct ckpt_reader *r)
{
	return ckpt_reader_peek(r) == 'n' && ckpt_reader_scalar(r);
}

/* null, or [GENERATION,STEP]. */
static bool read_known(struct ckpt_reader *r, struct ckpt_remote_record *record)
{
	if (ckpt_reader_peek(r) != '[')
		return read_null(r);
	return read_numbers(r, &record->known_generation, &record->known_step) &&
	       ckpt_reader_take(r, ']');
}

/* null, or [GENERATION,STEP,WALL_MS]. */
static bool read_there(struct ckpt_reader *r, struct ckpt_remote_record *record)
{
	if (ckpt_reader_peek(r) != '[')
		return read_null(r);
	return read_numbers(r, &record->uploaded_generation, &record->uploaded_step) &&
	       ckpt_reader_item(r) && ckpt_reader_u64(r, &record->uploaded_wall_ms) &&
	       ckpt_reader_take(r, ']');
}

static bool before(const struct ckpt_record_step *s, uint64_t generation, uint64_t step)
{
	return s->generation < generation || (s->generation == generation && s->step < step);
}

static bool ascends(const struct ckpt_record_step *steps, size_t count)
{
	return count == 0 || before(&steps[count - 1], steps[count].generation, steps[count].step);
}

static bool read_waiting(struct ckpt_reader *r, struct ckpt_remote_record *record)
{
	struct ckpt_record_step *steps = record->waiting;
	size_t count = 0;

	if (!ckpt_reader_open(r, '['))
		return false;
	while (ckpt_reader_item(r)) {
		struct ckpt_record_step one = {0};
		if (count == CKPT_RECORD_WAITING_MAX ||
			!read_numbers(r, &one.generation, &one.step) || !ckpt_reader_take(r, ']'))
			return false;
		steps[count] = one;
		if (!ascends(steps, count++))
			return false;
	}
	record->waiting_count = count;
	return !r->failed;
}

static bool read_absent(struct ckpt_reader *r, struct ckpt_remote_record *record)
{
	struct ckpt_record_step *steps = record->absent;
	size_t count = 0;

	if (!ckpt_reader_open(r, '['))
		return false;
	while (ckpt_reader_item(r)) {
		struct ckpt_record_step one = {0};
		if (count == CKPT_RECORD_ABSENT_MAX ||
			!read_numbers(r, &one.generation, &one.step) || !ckpt_reader_item(r) ||
			!read_code(r, &one.code) || !ckpt_reader_take(r, ']'))
			return false;
		steps[count] = one;
		if (!ascends(steps, count++))
			return false;
	}
	record->absent_count = count;
	return !r->failed;
}

/* null, or [CODE,TRIES,SINCE_MS,NEXT_MS,REASON]. */
static bool read_failure(struct ckpt_reader *r, struct ckpt_remote_record *record)
{
	if (ckpt_reader_peek(r) != '[')
		return read_null(r);
	return ckpt_reader_open(r, '[') && ckpt_reader_item(r) && read_code(r, &record->code) &&
	       record->code < 0 && ckpt_reader_item(r) && ckpt_reader_u64(r, &record->tries) &&
	       ckpt_reader_item(r) && ckpt_reader_u64(r, &record->since_ms) &&
	       ckpt_reader_item(r) && ckpt_reader_u64(r, &record->next_ms) && ckpt_reader_item(r) &&
	       ckpt_sealed_line(r, record->reason, sizeof(record->reason)) &&
	       ckpt_reader_take(r, ']');
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_remote_record *record = user;

	switch (member) {
	case RUN_ID:
		return ckpt_sealed_run_id(r, record->run_id);
	case REMOTE:
		return ckpt_sealed_line(r, record->remote, sizeof(record->remote)) &&
		       *record->remote;
	case EVERY:
		return ckpt_reader_u64(r, &record->every);
	case GENERATION:
		return ckpt_sealed_number(r, 1, CKPT_GENERATION_MAX, &record->generation);
	case NODE:
		return ckpt_sealed_line(r, record->node, sizeof(record->node));
	case WALL_MS:
		return ckpt_reader_u64(r, &record->wall_ms);
	case KNOWN:
		return read_known(r, record);
	case THERE:
		return read_there(r, record);
	case WAITING:
		return read_waiting(r, record);
	case WAITING_MORE:
		return ckpt_reader_u64(r, &record->waiting_more);
	case ABSENT:
		return read_absent(r, record);
	case ABSENT_MORE:
		return ckpt_reader_u64(r, &record->absent_more);
	case FAILURE:
		return read_failure(r, record);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_remote_record_decode(const void *data, size_t length, const char *file,
	struct ckpt_error *err, struct ckpt_remote_record *ret_record)
{
	struct ckpt_remote_record record = {0};
	int r = ckpt_sealed_check(data, length, KIND, file, err);

	if (r < 0)
		return r;
	/* A waiting step has at least "[1,0],". */
	record.waiting = ckpt_alloc_array(
		ckpt_min_u64(length / 6 + 1, CKPT_RECORD_WAITING_MAX + 1), sizeof(*record.waiting));
	if (!record.waiting)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	r = ckpt_sealed_read(data, length, members, read_member, &record, file, err);
	if (r < 0) {
		ckpt_remote_record_clear(&record);
		return r;
	}
	*ret_record = record;
	return 0;
}

void ckpt_remote_record_clear(struct ckpt_remote_record *record)
{
	ckpt_free(record->waiting);
	record->waiting = NULL;
	record->waiting_count = 0;
}

static const struct ckpt_record_step *find(
	const struct ckpt_record_step *steps, size_t count, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < count; i++)
		if (steps[i].generation == generation && steps[i].step == step)
			return &steps[i];
	return NULL;
}

int ckpt_remote_record_why(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step)
{
	const struct ckpt_record_step *absent =
		find(record->absent, record->absent_count, generation, step);

	return absent ? absent->code : 0;
}

/* Whether the step may be one that did not fit into the list. */
static bool may_be_left_out(const struct ckpt_remote_record *r, uint64_t generation, uint64_t step)
{
	if (r->waiting_more > 0 &&
		(r->waiting_count == 0 ||
			before(&r->waiting[r->waiting_count - 1], generation, step)))
		return true;
	return r->absent_more > 0 &&
	       (r->absent_count == 0 || !before(&r->absent[0], generation, step));
}

enum ckpt_remote_state ckpt_remote_record_state(
	const struct ckpt_remote_record *record, uint64_t generation, uint64_t step)
{
	const struct ckpt_record_step known = {
		.generation = record->known_generation, .step = record->known_step};
	const struct ckpt_record_step *absent;

	if (record->every > 0 && step % record->every > 0)
		return CKPT_REMOTE_EXCLUDED;
	if (find(record->waiting, record->waiting_count, generation, step))
		return CKPT_REMOTE_PENDING;
	absent = find(record->absent, record->absent_count, generation, step);
	if (absent)
		return absent->code ? CKPT_REMOTE_FAILED : CKPT_REMOTE_EXCLUDED;
	if (before(&known, generation, step) || may_be_left_out(record, generation, step))
		return CKPT_REMOTE_UNKNOWN;
	return CKPT_REMOTE_UPLOADED;
}
