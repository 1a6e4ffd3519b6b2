/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes messages of restores. */
#include "exchange/restore_messages.h"

#include <inttypes.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "exchange/exchange.h"
#include "format/json_put.h"
#include "format/sealed.h"

#define RESTORE_KIND "restore"
#define HELLO_KIND   "hello"
#define HEX_CHARS    17 /* 64 bits; plain numbers of this format have 63 */
#define NO_ATTEMPT   "0000000000000000"

enum member {
	FORMAT,
	KIND_,
	DIGEST,
	KEY,
	CODE,
	REASON,
	RANK,
	WORLD,
	WANTED,
	GENERATION,
	STEP,
	ATTEMPT,
	RUN_ID
};

static const char *const members[] = {
	[FORMAT] = CKPT_SEALED_FORMAT,
	[KIND_] = CKPT_SEALED_KIND,
	[DIGEST] = CKPT_SEALED_DIGEST,
	[KEY] = "key",
	[CODE] = "code",
	[REASON] = "reason",
	[RANK] = "rank",
	[WORLD] = "world",
	[WANTED] = "wanted",
	[GENERATION] = "generation",
	[STEP] = "step",
	[ATTEMPT] = "attempt",
	[RUN_ID] = "run_id",
	NULL,
};

struct reading {
	const char *key;
	struct ckpt_restore_record record;
};

int ckpt_restore_record_encode(
	const struct ckpt_restore_record *record, const char *key, struct ckpt_buf *out)
{
	const struct ckpt_verdict *verdict = &record->verdict;

	CKPT_ASSERT(verdict->code <= 0);
	CKPT_ASSERT((record->generation == 0) == (record->attempt[0] == '\0'));
	ckpt_put_head(out, RESTORE_KIND);
	ckpt_buf_printf(
		out, ",\"key\":\"%s\",\"code\":%lld,\"reason\":", key, -(long long)verdict->code);
	ckpt_put_line(out, verdict->reason, sizeof(verdict->reason));
	ckpt_buf_printf(out, ",\"rank\":%u,\"world\":%u,\"wanted\":\"%016" PRIx64 "\"",
		record->rank, record->world, record->wanted);
	ckpt_buf_printf(out,
		",\"generation\":%" PRIu64 ",\"step\":%" PRIu64
		",\"attempt\":\"%s\",\"run_id\":\"%s\"",
		record->generation, record->step, record->generation ? record->attempt : NO_ATTEMPT,
		record->run_id);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

static bool read_u32(struct ckpt_reader *r, uint64_t min, uint64_t max, uint32_t *ret)
{
	uint64_t number;

	if (!ckpt_sealed_number(r, min, max, &number))
		return false;
	*ret = (uint32_t)number;
	return true;
}

static bool read_wanted(struct ckpt_reader *r, uint64_t *ret)
{
	char hex[HEX_CHARS];
	char *end;

	/* Sixteen digits, like an attempt. */
	if (!ckpt_sealed_attempt(r, hex))
		return false;
	*ret = strtoull(hex, &end, 16);
	return true;
}

static bool read_member(struct ckpt_reader *r, int member, void *user)
{
	struct reading *reading = user;
	struct ckpt_restore_record *record = &reading->record;
	char key[CKPT_EXCHANGE_KEY_MAX];
	uint32_t amount;

	switch (member) {
	case KEY:
		return ckpt_reader_text(r, key, sizeof(key), NULL) &&
		       strcmp(key, reading->key) == 0;
	case CODE:
		if (!read_u32(r, 0, INT32_MAX, &amount))
			return false;
		record->verdict.code = -(int)amount;
		return true;
	case REASON:
		return ckpt_sealed_line(r, record->verdict.reason, sizeof(record->verdict.reason));
	case RANK:
		return read_u32(r, 0, CKPT_WORLD_MAX - 1, &record->rank);
	case WORLD:
		return read_u32(r, 1, CKPT_WORLD_MAX, &record->world);
	case WANTED:
		return read_wanted(r, &record->wanted);
	case GENERATION:
		return ckpt_sealed_number(r, 0, CKPT_GENERATION_MAX, &record->generation);
	case STEP:
		return ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &record->step);
	case ATTEMPT:
		return ckpt_sealed_attempt(r, record->attempt);
	case RUN_ID:
		return ckpt_sealed_run_id(r, record->run_id);
	default:
		return ckpt_reader_skip(r);
	}
}

int ckpt_restore_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_restore_record *ret_record)
{
	struct reading reading = {.key = key};
	int r = ckpt_sealed_check(data, length, RESTORE_KIND, key, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, members, read_member, &reading, key, err);
	if (r < 0)
		return r;
	/* The rank must be one of the job, and a success must name a step. */
	if (reading.record.rank >= reading.record.world)
		return ckpt_sealed_lacks(members[RANK], key, err);
	if (reading.record.verdict.code == 0 && reading.record.generation == 0)
		return ckpt_sealed_lacks(members[GENERATION], key, err);
	if (reading.record.generation == 0) {
		reading.record.step = 0;
		reading.record.attempt[0] = '\0';
	}
	*ret_record = reading.record;
	return 0;
}

void ckpt_key_restore(char *out, uint32_t number)
{
	ckpt_key_put(out, "restore-%u", number);
}

static const char *part_word(enum ckpt_restore_part part)
{
	static const char *const words[] = {[CKPT_RESTORE_OPENING] = "opened",
		[CKPT_RESTORE_READING] = "read",
		[CKPT_RESTORE_MENDING] = "mended"};

	return words[part];
}

void ckpt_key_restore_part(char *out, uint32_t number, enum ckpt_restore_part part)
{
	ckpt_key_put(out, "restore-%u-%s", number, part_word(part));
}

void ckpt_key_restore_rank(char *out, uint32_t number, enum ckpt_restore_part part, uint32_t rank)
{
	ckpt_key_put(out, "restore-%u-%s-r%u", number, part_word(part), rank);
}

int ckpt_hello_encode(uint64_t nonce, struct ckpt_buf *out)
{
	ckpt_put_head(out, HELLO_KIND);
	ckpt_buf_printf(out, ",\"nonce\":\"%016" PRIx64 "\"", nonce);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

void ckpt_key_hello(char *out, uint32_t rank)
{
	ckpt_key_put(out, "rank-%u", rank);
}
