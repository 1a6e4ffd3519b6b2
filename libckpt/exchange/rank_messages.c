/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes and decodes messages of the exchange. */
#include "exchange/rank_messages.h"

#include <inttypes.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ckpt/types.h>
#include "base/error.h"
#include "exchange/exchange.h"
#include "format/index.h"
#include "format/json_put.h"
#include "format/sealed.h"

#define VERDICT_KIND "verdict"
#define OUTCOME_KIND "outcome"
#define RANK_KIND    "rank"

/* Attempt of a failed rank, which has no files. */
#define NO_ATTEMPT "0000000000000000"

enum member {
	FORMAT,
	KIND_,
	DIGEST,
	CODE,
	REASON,
	GENERATION,
	STEP,
	NONCE,
	ATTEMPT,
	BYTES,
	OPEN,
	COMPARED,
	CLUE,
	DIFFER,
	FOLLOW,
	RANK = BYTES,
	NODE,
	INDEX_DIGEST,
	INDEX_BYTES,
	SHARD_BYTES,
	PLAN,
	ALIKE,
	DIGESTS,
	BALANCE,
	STORED,
	BASE
};

/* In no text: there its quotes are escaped. */
#define STORED_MEMBER ",\"stored\":"

#define COMMON                                                                                     \
	[FORMAT] = CKPT_SEALED_FORMAT, [KIND_] = CKPT_SEALED_KIND, [DIGEST] = CKPT_SEALED_DIGEST,  \
	[CODE] = "code", [REASON] = "reason", [GENERATION] = "generation", [STEP] = "step",        \
	[NONCE] = "nonce"

static const char *const verdict_members[] = {COMMON, NULL};
static const char *const outcome_members[] = {
	COMMON, [ATTEMPT] = "attempt", [BYTES] = "bytes", [OPEN] = "open", [COMPARED] = "alike",
	[CLUE] = "clue", [DIFFER] = "differ", [FOLLOW] = "follow", NULL};
#define RANK_MEMBERS                                                                               \
	COMMON, [ATTEMPT] = "attempt", [RANK] = "rank", [NODE] = "node",                           \
		[INDEX_DIGEST] = "index_digest", [INDEX_BYTES] = "index_bytes",                    \
		[SHARD_BYTES] = "shard_bytes", [PLAN] = "plan", [ALIKE] = "common",                \
		[DIGESTS] = "alike", [BALANCE] = "balance"

static const char *const rank_members[] = {RANK_MEMBERS, NULL};
/* Of a rank that stores differences; the others have 1 KiB for what they say. */
static const char *const delta_members[] = {
	RANK_MEMBERS, [STORED] = "stored", [BASE] = "base", NULL};

/* Codes are negative, but numbers of this format have no sign: writes the absolute value. */
static void put_verdict(const struct ckpt_verdict *verdict, struct ckpt_buf *out)
{
	CKPT_ASSERT(verdict->code <= 0);
	ckpt_buf_printf(out, ",\"code\":%lld,\"reason\":", -(long long)verdict->code);
	ckpt_put_line(out, verdict->reason, sizeof(verdict->reason));
	ckpt_buf_printf(out,
		",\"generation\":%" PRIu64 ",\"step\":%" PRIu64 ",\"nonce\":\"%016" PRIx64 "\"",
		verdict->generation, verdict->step, verdict->nonce);
}

int ckpt_verdict_encode(const struct ckpt_verdict *verdict, struct ckpt_buf *out)
{
	ckpt_put_head(out, VERDICT_KIND);
	put_verdict(verdict, out);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

int ckpt_outcome_encode(const struct ckpt_outcome *outcome, struct ckpt_buf *out)
{
	bool good = outcome->verdict.code == 0;

	CKPT_ASSERT(!good || ckpt_attempt_valid(outcome->attempt));
	ckpt_put_head(out, OUTCOME_KIND);
	put_verdict(&outcome->verdict, out);
	ckpt_buf_printf(out, ",\"attempt\":\"%s\",\"bytes\":%" PRIu64 ",\"open\":%d,\"alike\":%d",
		good ? outcome->attempt : NO_ATTEMPT, good ? outcome->bytes : 0,
		!good && outcome->open, good && outcome->alike);
	ckpt_buf_puts(out, ",\"clue\":");
	ckpt_put_name(out, outcome->clue);
	if (good && outcome->compared)
		ckpt_buf_printf(out, ",\"differ\":\"%016" PRIx64 "\"", outcome->differ);
	else
		ckpt_buf_puts(out, ",\"differ\":\"\"");
	ckpt_buf_printf(out, ",\"follow\":%d", good && outcome->follow);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

int ckpt_rank_record_encode(const struct ckpt_rank_record *record, struct ckpt_buf *out)
{
	const struct ckpt_manifest_rank *rank = &record->rank;
	char hex[CKPT_DIGEST_HEX];
	char plan[CKPT_DIGEST_HEX];
	char common[CKPT_DIGEST_HEX];

	CKPT_ASSERT(record->verdict.code < 0 || ckpt_attempt_valid(rank->attempt));
	ckpt_digest_hex(&rank->index_digest, hex);
	ckpt_digest_hex(&record->plan, plan);
	ckpt_digest_hex(&record->common, common);
	ckpt_put_head(out, RANK_KIND);
	put_verdict(&record->verdict, out);
	ckpt_buf_printf(out, ",\"attempt\":\"%s\",\"rank\":%u,\"node\":",
		record->verdict.code < 0 ? NO_ATTEMPT : rank->attempt, rank->rank);
	ckpt_put_line(out, rank->node, sizeof(rank->node));
	ckpt_buf_printf(out,
		",\"index_digest\":\"%s\",\"index_bytes\":%" PRIu64 ",\"shard_bytes\":%" PRIu64
		",\"plan\":\"%s\",\"common\":\"%s\"",
		hex, rank->index_bytes, rank->shard_bytes, plan, common);
	ckpt_buf_puts(out, ",\"alike\":");
	ckpt_put_name(out, record->alike);
	ckpt_buf_printf(out, ",\"balance\":\"%016" PRIx64 "\"", record->balance);
	if (record->stored > 0 || record->base > 0)
		ckpt_buf_printf(out, STORED_MEMBER "%" PRIu64 ",\"base\":%" PRIu64, record->stored,
			record->base);
	ckpt_sealed_finish(out);
	return out->failed ? -ENOMEM : 0;
}

static bool read_digest(struct ckpt_reader *r, struct ckpt_digest *digest)
{
	char hex[CKPT_DIGEST_HEX];

	return ckpt_reader_text(r, hex, sizeof(hex), NULL) && ckpt_digest_parse(hex, digest);
}

/* 16 hexadecimal digits, like an attempt. */
static bool read_hex(struct ckpt_reader *r, uint64_t *ret_number)
{
	char digits[CKPT_ATTEMPT_CHARS];

	if (!ckpt_sealed_attempt(r, digits))
		return false;
	*ret_number = strtoull(digits, NULL, 16);
	return true;
}

static bool read_verdict(struct ckpt_reader *r, int member, struct ckpt_verdict *verdict)
{
	uint64_t number;

	switch (member) {
	case REASON:
		return ckpt_sealed_line(r, verdict->reason, sizeof(verdict->reason));
	case CODE:
		if (!ckpt_sealed_number(r, 0, INT32_MAX, &number))
			return false;
		verdict->code = -(int)number;
		return true;
	case GENERATION:
		return ckpt_sealed_number(r, 0, CKPT_GENERATION_MAX, &verdict->generation);
	case STEP:
		return ckpt_sealed_number(r, 0, CKPT_STEP_MAX, &verdict->step);
	case NONCE:
		return read_hex(r, &verdict->nonce);
	default:
		return ckpt_reader_skip(r);
	}
}

static bool read_verdict_member(struct ckpt_reader *r, int member, void *user)
{
	return read_verdict(r, member, user);
}

/* 16 hexadecimal digits, or nothing if nothing was compared. */
static bool read_differ(struct ckpt_reader *r, struct ckpt_outcome *outcome)
{
	char digits[CKPT_ATTEMPT_CHARS];

	if (!ckpt_reader_text(r, digits, sizeof(digits), NULL))
		return false;
	outcome->compared = digits[0] != 0;
	if (outcome->compared && !ckpt_attempt_valid(digits))
		return ckpt_reader_fail(r, "%s is not 16 hexadecimal digits", digits);
	outcome->differ = strtoull(digits, NULL, 16);
	return true;
}

static bool read_outcome_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_outcome *outcome = user;
	uint64_t number;

	if (member == ATTEMPT)
		return ckpt_sealed_attempt(r, outcome->attempt);
	if (member == BYTES)
		return ckpt_sealed_number(r, 0, INT64_MAX, &outcome->bytes);
	if (member == OPEN) {
		if (!ckpt_sealed_number(r, 0, 1, &number))
			return false;
		outcome->open = number == 1;
		return true;
	}
	if (member == FOLLOW) {
		if (!ckpt_sealed_number(r, 0, 1, &number))
			return false;
		outcome->follow = number == 1;
		return true;
	}
	if (member == DIFFER)
		return read_differ(r, outcome);
	if (member == CLUE)
		return ckpt_reader_text(r, outcome->clue, sizeof(outcome->clue), NULL);
	if (member == COMPARED) {
		if (!ckpt_sealed_number(r, 0, 1, &number))
			return false;
		outcome->alike = number == 1;
		return true;
	}
	return read_verdict(r, member, &outcome->verdict);
}

static bool read_rank_member(struct ckpt_reader *r, int member, void *user)
{
	struct ckpt_rank_record *record = user;
	struct ckpt_manifest_rank *rank = &record->rank;
	uint64_t number;

	switch (member) {
	case RANK:
		if (!ckpt_sealed_number(r, 0, CKPT_WORLD_MAX - 1, &number))
			return false;
		rank->rank = (uint32_t)number;
		return true;
	case NODE:
		return ckpt_sealed_line(r, rank->node, sizeof(rank->node));
	case ATTEMPT:
		return ckpt_sealed_attempt(r, rank->attempt);
	case INDEX_DIGEST:
		return read_digest(r, &rank->index_digest);
	case PLAN:
		return read_digest(r, &record->plan);
	case ALIKE:
		return read_digest(r, &record->common);
	case DIGESTS:
		return ckpt_reader_text(r, record->alike, sizeof(record->alike), NULL);
	case BALANCE:
		return read_hex(r, &record->balance);
	case INDEX_BYTES:
		return ckpt_sealed_number(r, 0, CKPT_INDEX_MAX, &rank->index_bytes);
	case SHARD_BYTES:
		return ckpt_sealed_number(r, 0, CKPT_SHARD_BYTES_MAX, &rank->shard_bytes);
	case STORED:
		return ckpt_sealed_number(r, 0, INT64_MAX, &record->stored);
	case BASE:
		return ckpt_sealed_number(r, 0, CKPT_STEP_MAX + 1, &record->base);
	default:
		return read_verdict(r, member, &record->verdict);
	}
}

int ckpt_verdict_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_verdict *ret_verdict)
{
	struct ckpt_verdict verdict = {0};
	int r = ckpt_sealed_check(data, length, VERDICT_KIND, key, err);

	if (r == 0)
		r = ckpt_sealed_read(
			data, length, verdict_members, read_verdict_member, &verdict, key, err);
	if (r == 0)
		*ret_verdict = verdict;
	return r;
}

int ckpt_outcome_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_outcome *ret_outcome)
{
	struct ckpt_outcome outcome = {0};
	int r = ckpt_sealed_check(data, length, OUTCOME_KIND, key, err);

	if (r == 0)
		r = ckpt_sealed_read(
			data, length, outcome_members, read_outcome_member, &outcome, key, err);
	if (r == 0)
		*ret_outcome = outcome;
	return r;
}

int ckpt_rank_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_rank_record *ret_record)
{
	struct ckpt_rank_record record = {0};
	bool delta = memmem(data, length, STORED_MEMBER, sizeof(STORED_MEMBER) - 1);
	int r = ckpt_sealed_check(data, length, RANK_KIND, key, err);

	if (r == 0)
		r = ckpt_sealed_read(data, length, delta ? delta_members : rank_members,
			read_rank_member, &record, key, err);
	/* Values that a manifest could not contain. */
	if (r == 0 && record.verdict.code == 0 && record.rank.index_bytes == 0)
		r = ckpt_sealed_lacks(rank_members[INDEX_BYTES], key, err);
	if (r == 0 && record.verdict.code == 0 && record.rank.shard_bytes == 0)
		r = ckpt_sealed_lacks(rank_members[SHARD_BYTES], key, err);
	if (r == 0)
		*ret_record = record;
	return r;
}

int ckpt_verdict_check(const struct ckpt_verdict *verdict, const struct ckpt_verdict *asked,
	const char *key, struct ckpt_error *err)
{
	if (verdict->generation == asked->generation && verdict->step == asked->step &&
		verdict->nonce == asked->nonce)
		return 0;
	return ckpt_fail(err, CKPT_EFORMAT,
		"the value %s of the exchange is about step %" PRIu64 " of generation %" PRIu64
		", claim %016" PRIx64 ", and step %" PRIu64 " of generation %" PRIu64
		", claim %016" PRIx64
		" was expected: another start of the job uses the same session",
		key, verdict->step, verdict->generation, verdict->nonce, asked->step,
		asked->generation, asked->nonce);
}

void ckpt_key_put(char *out, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	int n = vsnprintf(out, CKPT_EXCHANGE_KEY_MAX, fmt, args);
	va_end(args);
	CKPT_ASSERT(n > 0 && n < CKPT_EXCHANGE_KEY_MAX);
}

void ckpt_key_claim(char *out, uint32_t number)
{
	ckpt_key_put(out, "claim-%u", number);
}

void ckpt_key_claim_failed(char *out, uint32_t number, uint32_t attempt)
{
	ckpt_key_put(out, "claim-%u-failed-%u", number, attempt);
}

void ckpt_key_rank(char *out, uint64_t generation, uint64_t step, uint32_t rank)
{
	ckpt_key_put(out, "g%" PRIu64 "-s%" PRIu64 "-r%u", generation, step, rank);
}

void ckpt_key_outcome(char *out, uint64_t generation, uint64_t step)
{
	ckpt_key_put(out, "g%" PRIu64 "-s%" PRIu64, generation, step);
}

void ckpt_key_manifest(char *out, uint64_t generation, uint64_t step)
{
	ckpt_key_put(out, "g%" PRIu64 "-s%" PRIu64 "-m", generation, step);
}
