/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files in a store. */
#include "format/naming.h"

#include <ckpt/types.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Digits after "step-", as many as CKPT_STEP_MAX has. */
#define STEP_DIGITS       10
#define GENERATION_DIGITS 6
#define CATALOG_SUFFIX    ".catalog"
#define TOMBSTONE_SUFFIX  ".tombstone"
#define RANK_PREFIX       "rank-"
#define RANK_DIGITS       5 /* at least; ranks from 100000 on have six */
#define RANK_DIGITS_MAX   6
#define SHARD_SUFFIX      ".safetensors"
#define ENCODED_SUFFIX    ".encoded"
#define INDEX_SUFFIX      ".index"

CKPT_PRINTF(2, 3) static void put(char *out, const char *fmt, ...)
{
	va_list args;
	int len;

	va_start(args, fmt);
	len = vsnprintf(out, CKPT_PATH_MAX, fmt, args);
	va_end(args);
	CKPT_ASSERT(len > 0 && len < CKPT_PATH_MAX);
}

static void check_numbers(uint64_t generation, uint64_t step)
{
	CKPT_ASSERT(generation >= 1 && generation <= CKPT_GENERATION_MAX);
	CKPT_ASSERT(step <= CKPT_STEP_MAX);
}

void ckpt_name_claim(char *out, uint64_t generation)
{
	check_numbers(generation, 0);
	put(out, CKPT_NAME_GENS "/%0*llu.json", GENERATION_DIGITS, (unsigned long long)generation);
}

void ckpt_name_generation(char *out, uint64_t generation)
{
	check_numbers(generation, 0);
	put(out, "g%0*llu", GENERATION_DIGITS, (unsigned long long)generation);
}

/* A path in a step's directory; `name` empty: the directory itself. */
CKPT_PRINTF(4, 5)
static void put_in_step(char *out, uint64_t generation, uint64_t step, const char *fmt, ...)
{
	char name[CKPT_PATH_MAX];
	va_list args;
	int len;

	check_numbers(generation, step);
	va_start(args, fmt);
	len = vsnprintf(name, sizeof(name), fmt, args);
	va_end(args);
	CKPT_ASSERT(len >= 0 && (size_t)len < sizeof(name));
	put(out, "g%0*llu/step-%0*llu%s", GENERATION_DIGITS, (unsigned long long)generation,
		STEP_DIGITS, (unsigned long long)step, name);
}

void ckpt_name_step(char *out, uint64_t generation, uint64_t step)
{
	put_in_step(out, generation, step, "%s", "");
}

void ckpt_name_manifest(char *out, uint64_t generation, uint64_t step)
{
	put_in_step(out, generation, step, "/manifest.json");
}

void ckpt_name_quarantine(char *out, uint64_t generation, uint64_t step)
{
	put_in_step(out, generation, step, "/quarantine.json");
}

void ckpt_name_tombstone(char *out, uint64_t generation, uint64_t step)
{
	put_in_step(out, generation, step, TOMBSTONE_SUFFIX);
}

static const char *const rank_suffixes[] = {
	[CKPT_RANK_SHARD] = SHARD_SUFFIX,
	[CKPT_RANK_INDEX] = INDEX_SUFFIX,
	[CKPT_RANK_ENCODED] = ENCODED_SUFFIX,
};

void ckpt_name_rank_file(char *out, uint64_t generation, uint64_t step, uint32_t rank,
	enum ckpt_rank_file file, const char *attempt)
{
	CKPT_ASSERT(file < CKPT_COUNT(rank_suffixes));
	CKPT_ASSERT(ckpt_attempt_valid(attempt));
	put_in_step(out, generation, step, "/" RANK_PREFIX "%0*u.%s%s", RANK_DIGITS, rank, attempt,
		rank_suffixes[file]);
}

void ckpt_name_shard(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt)
{
	ckpt_name_rank_file(out, generation, step, rank, CKPT_RANK_SHARD, attempt);
}

void ckpt_name_encoded(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt)
{
	ckpt_name_rank_file(out, generation, step, rank, CKPT_RANK_ENCODED, attempt);
}

void ckpt_name_index(
	char *out, uint64_t generation, uint64_t step, uint32_t rank, const char *attempt)
{
	ckpt_name_rank_file(out, generation, step, rank, CKPT_RANK_INDEX, attempt);
}

void ckpt_name_catalog(char *out, uint64_t generation, const struct ckpt_digest *digest)
{
	char hex[CKPT_DIGEST_HEX];

	check_numbers(generation, 0);
	ckpt_digest_hex(digest, hex);
	put(out, "g%0*llu/%s" CATALOG_SUFFIX, GENERATION_DIGITS, (unsigned long long)generation,
		hex);
}

void ckpt_name_remote(char *out, uint64_t number)
{
	CKPT_ASSERT(number <= CKPT_STEP_MAX);
	put(out, "remote-%0*llu.json", STEP_DIGITS, (unsigned long long)number);
}

void ckpt_name_attempt(char out[CKPT_ATTEMPT_CHARS], uint64_t nonce)
{
	int len = snprintf(out, CKPT_ATTEMPT_CHARS, "%016llx", (unsigned long long)nonce);

	CKPT_ASSERT(len == CKPT_ATTEMPT_CHARS - 1);
}

bool ckpt_attempt_valid(const char *attempt)
{
	return strspn(attempt, "0123456789abcdef") == CKPT_ATTEMPT_CHARS - 1 &&
	       attempt[CKPT_ATTEMPT_CHARS - 1] == 0;
}

/* Parses `prefix`, exactly `digits` decimal digits, and `suffix`. */
static bool parse(const char *name, const char *prefix, unsigned digits, const char *suffix,
	uint64_t *ret_number)
{
	size_t skip = strlen(prefix);
	uint64_t number = 0;

	if (strncmp(name, prefix, skip) != 0)
		return false;
	name += skip;
	/* A NUL is no digit, so nothing after the end is read. */
	for (unsigned i = 0; i < digits; i++) {
		if (name[i] < '0' || name[i] > '9')
			return false;
		number = number * 10 + (uint64_t)(name[i] - '0');
	}
	if (strcmp(name + digits, suffix) != 0)
		return false;
	*ret_number = number;
	return true;
}

bool ckpt_parse_claim(const char *name, uint64_t *ret_generation)
{
	uint64_t generation;

	if (!parse(name, "", GENERATION_DIGITS, ".json", &generation) || generation == 0)
		return false;
	*ret_generation = generation;
	return true;
}

bool ckpt_parse_generation(const char *name, uint64_t *ret_generation)
{
	uint64_t generation;

	if (!parse(name, "g", GENERATION_DIGITS, "", &generation) || generation == 0)
		return false;
	*ret_generation = generation;
	return true;
}

bool ckpt_parse_step(const char *name, uint64_t *ret_step)
{
	return parse(name, "step-", STEP_DIGITS, "", ret_step);
}

bool ckpt_parse_tombstone(const char *name, uint64_t *ret_step)
{
	return parse(name, "step-", STEP_DIGITS, TOMBSTONE_SUFFIX, ret_step);
}

bool ckpt_parse_remote(const char *name, uint64_t *ret_number)
{
	return parse(name, "remote-", STEP_DIGITS, ".json", ret_number);
}

bool ckpt_parse_catalog(const char *name, struct ckpt_digest *ret_digest)
{
	char hex[CKPT_DIGEST_HEX];
	size_t digits = sizeof(hex) - 1;

	if (strlen(name) != digits + strlen(CATALOG_SUFFIX) ||
		strcmp(name + digits, CATALOG_SUFFIX) != 0)
		return false;
	memcpy(hex, name, digits);
	hex[digits] = 0;
	return ckpt_digest_parse(hex, ret_digest);
}

/* The decimal number of a rank and a dot. Returns what follows; NULL: it is not one, or not as a writer puts it. */
static const char *parse_rank(const char *name, uint32_t *ret_rank)
{
	uint32_t rank = 0;
	unsigned digits = 0;

	while (digits < RANK_DIGITS_MAX && name[digits] >= '0' && name[digits] <= '9')
		rank = rank * 10 + (uint32_t)(name[digits++] - '0');
	if (digits < RANK_DIGITS || name[digits] != '.')
		return NULL;
	if (digits > RANK_DIGITS && name[0] == '0')
		return NULL;
	*ret_rank = rank;
	return name + digits + 1;
}

bool ckpt_parse_rank_file(
	const char *name, uint32_t *ret_rank, enum ckpt_rank_file *ret_file, char *ret_attempt)
{
	char attempt[CKPT_ATTEMPT_CHARS] = "";
	uint32_t rank = 0;

	if (strncmp(name, RANK_PREFIX, strlen(RANK_PREFIX)) != 0)
		return false;
	name = parse_rank(name + strlen(RANK_PREFIX), &rank);
	if (!name || strlen(name) < CKPT_ATTEMPT_CHARS)
		return false;
	memcpy(attempt, name, CKPT_ATTEMPT_CHARS - 1);
	name += CKPT_ATTEMPT_CHARS - 1;
	if (!ckpt_attempt_valid(attempt))
		return false;
	for (size_t file = 0; file < CKPT_COUNT(rank_suffixes); file++) {
		if (strcmp(name, rank_suffixes[file]) != 0)
			continue;
		*ret_rank = rank;
		*ret_file = (enum ckpt_rank_file)file;
		memcpy(ret_attempt, attempt, sizeof(attempt));
		return true;
	}
	return false;
}
