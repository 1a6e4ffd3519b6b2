/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank tells of what it holds alike, as text: so short that its whole record takes a KiB. */
#include "engine/ranks/replica_digest.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

/* There was something to compare, and the rank has no digests of it. */
#define WITHOUT      "-"
/* A letter says how the digests were made, a digit how many pairs are told of each group. The groups follow. */
#define HEAD_CHARS   2
/* Of a group: its number, the upper half of the sum, `deep` with `own` in its low bits, `kind`, the samples. */
#define GROUP_BYTES  (8 + 4 + 4 + 4 + 8)
#define PAIR_BYTES   8
/* Of all groups, where these are few enough: the fewer they are, the more pairs of each are told. */
#define DETAIL_BYTES 384

/* The alphabet of base64 for names of files (RFC 4648, section 5). */
static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

struct bits {
	uint32_t value;
	unsigned count;
};

static void put(char **at, struct bits *held, uint64_t value, unsigned bytes)
{
	while (bytes-- > 0) {
		held->value = held->value << 8 | (uint8_t)(value >> 8 * bytes);
		for (held->count += 8; held->count >= 6; held->count -= 6)
			*(*at)++ = digits[held->value >> (held->count - 6) & 63];
	}
}

static void put_pair(char **at, struct bits *held, struct ckpt_replica_digest_pair pair)
{
	put(at, held, pair.sum, 4);
	put(at, held, pair.weighed, 4);
}

static uint32_t pairs_told(size_t groups)
{
	size_t pairs = ckpt_max_u64(DETAIL_BYTES / groups, GROUP_BYTES) - GROUP_BYTES;

	pairs /= PAIR_BYTES;
	if (pairs < CKPT_REPLICA_DIGEST_LEVELS)
		return (uint32_t)ckpt_max_u64(pairs, 1);
	pairs = ckpt_min_u64(pairs / CKPT_REPLICA_DIGEST_LEVELS, CKPT_REPLICA_DIGEST_TIMES);
	return (uint32_t)(pairs * CKPT_REPLICA_DIGEST_LEVELS);
}

void ckpt_replica_digest_encode(
	const struct ckpt_replica_digest *alike, char out[CKPT_REPLICA_DIGEST_TEXT])
{
	_Static_assert(
		HEAD_CHARS + (CKPT_REPLICA_DIGEST_GROUPS * (GROUP_BYTES + PAIR_BYTES) * 4 + 2) / 3 <
				CKPT_REPLICA_DIGEST_TEXT &&
			HEAD_CHARS + (DETAIL_BYTES * 4 + 2) / 3 < CKPT_REPLICA_DIGEST_TEXT &&
			CKPT_REPLICA_DIGEST_TIMES * CKPT_REPLICA_DIGEST_LEVELS < 64,
		"there is room for the most groups and pairs");
	struct bits held = {0};
	char *at = out;

	*at = 0;
	if (alike->without)
		(void)memcpy(out, WITHOUT, sizeof(WITHOUT));
	if (alike->mode == CKPT_REPLICA_DIGEST_NONE || alike->group_count == 0)
		return;
	CKPT_ASSERT(!alike->without);
	uint32_t told = pairs_told(alike->group_count);
	*at++ = (char)alike->mode;
	*at++ = digits[told];
	for (size_t i = 0; i < alike->group_count; i++) {
		const struct ckpt_replica_digest_sums *s = &alike->sums[i];

		CKPT_ASSERT((uint32_t)s->sum == s->pairs[0].sum);
		CKPT_ASSERT((s->deep & CKPT_REPLICA_DIGEST_OWN) == 0 && s->own <= CKPT_OWN_DIFFERS);
		put(&at, &held, s->group, 8);
		put(&at, &held, s->sum >> 32, 4);
		put(&at, &held, s->deep | s->own, 4);
		put(&at, &held, s->kind, 4);
		put_pair(&at, &held, s->samples);
		for (uint32_t k = 0; k < told; k++)
			put_pair(&at, &held, s->pairs[k]);
	}
	if (held.count > 0)
		*at++ = digits[held.value << (6 - held.count) & 63];
	*at = 0;
}

static bool take_digit(const char **at, uint32_t *ret_value)
{
	const char *found = **at ? strchr(digits, **at) : NULL;

	if (!found)
		return false;
	(*at)++;
	*ret_value = (uint32_t)(found - digits);
	return true;
}

/* At most 8 bytes. False: there are not as many. */
static bool take(const char **at, struct bits *held, unsigned bytes, uint64_t *ret_value)
{
	uint64_t value = 0;

	while (bytes-- > 0) {
		while (held->count < 8) {
			uint32_t digit;

			if (!take_digit(at, &digit))
				return false;
			held->value = held->value << 6 | digit;
			held->count += 6;
		}
		held->count -= 8;
		value = value << 8 | (held->value >> held->count & 255);
	}
	*ret_value = value;
	return true;
}

static bool take_32(const char **at, struct bits *held, uint32_t *ret_value)
{
	uint64_t value;

	if (!take(at, held, 4, &value))
		return false;
	*ret_value = (uint32_t)value;
	return true;
}

static bool take_pair(const char **at, struct bits *held, struct ckpt_replica_digest_pair *ret_pair)
{
	return take_32(at, held, &ret_pair->sum) && take_32(at, held, &ret_pair->weighed);
}

static bool take_sums(const char **at, struct bits *held, struct ckpt_replica_digest_sums *s)
{
	uint32_t upper;
	uint32_t own;

	if (!take(at, held, 8, &s->group) || !take_32(at, held, &upper) ||
		!take_32(at, held, &s->deep) || !take_32(at, held, &s->kind) ||
		!take_pair(at, held, &s->samples))
		return false;
	for (uint32_t k = 0; k < s->told; k++)
		if (!take_pair(at, held, &s->pairs[k]))
			return false;
	own = s->deep & CKPT_REPLICA_DIGEST_OWN;
	if (own > CKPT_OWN_DIFFERS)
		return false;
	s->own = own;
	s->deep &= ~CKPT_REPLICA_DIGEST_OWN;
	s->sum = (uint64_t)upper << 32 | s->pairs[0].sum;
	return true;
}

/* The end of the text, without bits that mean nothing. */
static bool is_end(const char *at, struct bits held)
{
	return !*at && (held.value & ((1U << held.count) - 1)) == 0;
}

static bool is_told(uint32_t told)
{
	return told > 0 &&
	       (told < CKPT_REPLICA_DIGEST_LEVELS ||
		       (told % CKPT_REPLICA_DIGEST_LEVELS == 0 &&
			       told <= CKPT_REPLICA_DIGEST_TIMES * CKPT_REPLICA_DIGEST_LEVELS));
}

static int put_entry(
	struct ckpt_replica_digest_received *told, const struct ckpt_replica_digest_entry *entry)
{
	if (told->count == told->room) {
		size_t room = ckpt_max_u64(16, told->room * 2);
		struct ckpt_replica_digest_entry *grown =
			ckpt_realloc_array(told->entries, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		told->entries = grown;
		told->room = room;
	}
	told->entries[told->count++] = *entry;
	return 0;
}

static int malformed(const char *key, struct ckpt_error *err)
{
	return ckpt_fail(err, CKPT_EFORMAT,
		"%s of the exchange: its digests of replicas are malformed", key);
}

void ckpt_replica_digest_clue_encode(
	const struct ckpt_replica_digest_clue *clue, char out[CKPT_REPLICA_DIGEST_CLUE])
{
	_Static_assert(1 + ((8 + sizeof(clue->samples) + sizeof(clue->left)) * 4 + 2) / 3 <
			       CKPT_REPLICA_DIGEST_CLUE,
		"there is room for all pairs");
	struct bits held = {0};
	char *at = out;

	*at = 0;
	if (clue->told == 0)
		return;
	*at++ = digits[clue->told];
	put(&at, &held, clue->group, 8);
	put_pair(&at, &held, clue->samples);
	for (uint32_t i = 0; i < clue->told; i++)
		put_pair(&at, &held, clue->left[i]);
	if (held.count > 0)
		*at++ = digits[held.value << (6 - held.count) & 63];
	*at = 0;
}

bool ckpt_replica_digest_clue_decode(const char *text, struct ckpt_replica_digest_clue *ret_clue)
{
	struct ckpt_replica_digest_clue clue = {0};
	struct bits held = {0};
	const char *at = text;

	if (!take_digit(&at, &clue.told) || !is_told(clue.told) ||
		!take(&at, &held, 8, &clue.group) || !take_pair(&at, &held, &clue.samples))
		return false;
	for (uint32_t i = 0; i < clue.told; i++)
		if (!take_pair(&at, &held, &clue.left[i]))
			return false;
	if (!is_end(at, held))
		return false;
	*ret_clue = clue;
	return true;
}

int ckpt_replica_digest_receive(struct ckpt_replica_digest_received *told, uint32_t rank,
	const char *text, const char *key, struct ckpt_error *err)
{
	struct bits held = {0};
	const char *at = text;
	uint32_t pairs;

	/* The others compare what they have. */
	if (!*at)
		return 0;
	if (strcmp(text, WITHOUT) == 0) {
		told->without = true;
		return 0;
	}
	char mode = *at++;
	if (mode != CKPT_REPLICA_DIGEST_FULL && mode != CKPT_REPLICA_DIGEST_SAMPLES)
		return ckpt_fail(err, CKPT_EFORMAT,
			"%s of the exchange: digests of a kind that is not known", key);
	if (!take_digit(&at, &pairs) || !is_told(pairs))
		return malformed(key, err);
	do {
		struct ckpt_replica_digest_entry entry = {.rank = rank, .sums.told = pairs};

		if (!take_sums(&at, &held, &entry.sums))
			return malformed(key, err);
		if (put_entry(told, &entry) < 0)
			return ckpt_fail(err, -ENOMEM, "out of memory");
	} while (!is_end(at, held));
	return 0;
}

void ckpt_replica_digest_forget(struct ckpt_replica_digest_received *told)
{
	ckpt_free(told->entries);
	*told = (struct ckpt_replica_digest_received){0};
}
