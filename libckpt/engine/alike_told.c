/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks have told of what they hold alike: compared, and put into words. */
#include "engine/alike.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/fail.h"

/* With more groups than this only the first level of each has room. */
#define WHOLE_GROUPS 4
#define HEX_64       16
#define HEX_32       8

/* Text. */

static void put_hex(char **at, uint64_t value, int digits)
{
	(void)snprintf(*at, (size_t)digits + 1, "%0*" PRIx64, digits, value);
	*at += digits;
}

void ckpt_alike_encode(const struct ckpt_alike *alike, char out[CKPT_ALIKE_TEXT])
{
	uint32_t levels = alike->group_count > WHOLE_GROUPS ? 1 : CKPT_ALIKE_LEVELS;
	char *at = out;

	_Static_assert(
		1 + WHOLE_GROUPS * (1 + 2 * HEX_64 + 2 * HEX_32 * CKPT_ALIKE_LEVELS) <
				CKPT_ALIKE_TEXT &&
			1 + CKPT_ALIKE_GROUPS * (1 + 2 * HEX_64 + 2 * HEX_32) < CKPT_ALIKE_TEXT,
		"it has room");
	*at = 0;
	if (alike->mode == CKPT_ALIKE_NONE || alike->group_count == 0)
		return;
	*at++ = (char)alike->mode;
	for (size_t i = 0; i < alike->group_count; i++) {
		const struct ckpt_alike_sums *s = &alike->sums[i];

		*at++ = ',';
		put_hex(&at, s->group, HEX_64);
		put_hex(&at, s->sum, HEX_64);
		for (uint32_t k = 0; k < levels; k++) {
			put_hex(&at, s->sums[k], HEX_32);
			put_hex(&at, s->weighed[k], HEX_32);
		}
	}
}

/* False: not so many lower-case hexadecimal digits. */
static bool take_hex(const char **at, int digits, uint64_t *ret_value)
{
	uint64_t value = 0;

	for (int i = 0; i < digits; i++) {
		char c = (*at)[i];

		if (c >= '0' && c <= '9')
			value = value << 4 | (uint64_t)(c - '0');
		else if (c >= 'a' && c <= 'f')
			value = value << 4 | (uint64_t)(c - 'a' + 10);
		else
			return false;
	}
	*at += digits;
	*ret_value = value;
	return true;
}

static bool read_sums(const char **at, struct ckpt_alike_sums *s)
{
	uint64_t sum;
	uint64_t weighed;

	if (*(*at)++ != ',' || !take_hex(at, HEX_64, &s->group) || !take_hex(at, HEX_64, &s->sum))
		return false;
	while (**at && **at != ',') {
		if (s->levels == CKPT_ALIKE_LEVELS || !take_hex(at, HEX_32, &sum) ||
			!take_hex(at, HEX_32, &weighed))
			return false;
		s->sums[s->levels] = (uint32_t)sum;
		s->weighed[s->levels++] = (uint32_t)weighed;
	}
	return s->levels > 0;
}

static int put_entry(struct ckpt_alike_told *told, const struct ckpt_alike_entry *entry)
{
	if (told->count == told->room) {
		size_t room = ckpt_max_u64(16, told->room * 2);
		struct ckpt_alike_entry *grown =
			ckpt_realloc_array(told->entries, room, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		told->entries = grown;
		told->room = room;
	}
	told->entries[told->count++] = *entry;
	return 0;
}

int ckpt_alike_hear(struct ckpt_alike_told *told, uint32_t rank, const char *text, const char *key,
	struct ckpt_error *err)
{
	const char *at = text;

	/* A rank that has nothing to compare leaves the others to compare what they have. */
	if (!*at)
		return 0;
	char mode = *at++;
	if (mode != CKPT_ALIKE_FULL && mode != CKPT_ALIKE_SAMPLES)
		return ckpt_fail(err, CKPT_EFORMAT,
			"%s of the exchange: digests of a kind that is not known", key);
	told->mixed = told->mixed || (told->mode && told->mode != (enum ckpt_alike_mode)mode);
	told->mode = (enum ckpt_alike_mode)mode;
	while (*at) {
		struct ckpt_alike_entry entry = {.rank = rank};

		if (!read_sums(&at, &entry.sums))
			return ckpt_fail(err, CKPT_EFORMAT,
				"%s of the exchange: its digests of replicas are malformed", key);
		if (put_entry(told, &entry) < 0)
			return ckpt_fail(err, -ENOMEM, "out of memory");
	}
	return 0;
}

void ckpt_alike_forget(struct ckpt_alike_told *told)
{
	ckpt_free(told->entries);
	*told = (struct ckpt_alike_told){0};
}

/* Comparing. */

static int by_number(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* By group, then those that are alike together, then by rank. */
static int order(const void *left, const void *right)
{
	const struct ckpt_alike_entry *a = left;
	const struct ckpt_alike_entry *b = right;
	int r = by_number(a->sums.group, b->sums.group);

	if (r == 0)
		r = by_number(a->sums.sum, b->sums.sum);
	return r ? r : by_number(a->rank, b->rank);
}

static int by_rank(const void *left, const void *right)
{
	return by_number(((const struct ckpt_alike_entry *)left)->rank,
		((const struct ckpt_alike_entry *)right)->rank);
}

/* The end of the run of entries that are alike. */
static size_t end_of(const struct ckpt_alike_entry *e, size_t from, size_t end)
{
	size_t at = from + 1;

	while (at < end && e[at].sums.sum == e[from].sums.sum)
		at++;
	return at;
}

/*
 * A tensor of level `level` whose digest alone explains the difference; NULL: there is none, or more than one could
 * be it.
 */
static const struct ckpt_alike_name *explain(const struct ckpt_alike *own, uint64_t group,
	uint32_t level, uint32_t sum, uint32_t weighed)
{
	const uint64_t mask = ((UINT64_C(1) << level) - 1) << 32;
	const struct ckpt_alike_name *found = NULL;

	for (size_t i = 0; i < own->name_count; i++) {
		const struct ckpt_alike_name *n = &own->names[i];

		if (n->group != group || (n->hash & mask) != 0 ||
			sum * (uint32_t)n->hash != weighed)
			continue;
		if (found)
			return NULL;
		found = n;
	}
	return found;
}

static bool has_group(const struct ckpt_alike *own, uint64_t group)
{
	for (size_t i = 0; i < own->group_count; i++)
		if (own->sums[i].group == group)
			return own->names != NULL;
	return false;
}

/* Of a group that is not this rank's: the first level that differs has one of them, and it may be all there is. */
static size_t guess(
	const struct ckpt_alike_sums *a, const struct ckpt_alike_sums *b, uint32_t level)
{
	if (a->sums[0] - b->sums[0] == a->sums[level] - b->sums[level] &&
		a->weighed[0] - b->weighed[0] == a->weighed[level] - b->weighed[level])
		return 1;
	return (size_t)2 << level;
}

/* Which tensors differ: few ones of a level explain what differs there, and are known on the levels before it. */
static void name_tensors(struct ckpt_alike_finding *f, const struct ckpt_alike *own,
	const struct ckpt_alike_sums *a, const struct ckpt_alike_sums *b)
{
	uint32_t known_sum = 0;
	uint32_t known_weighed = 0;
	uint32_t level = a->levels < b->levels ? a->levels : b->levels;
	size_t known = 0;

	while (level-- > 0) {
		uint32_t sum = a->sums[level] - b->sums[level] - known_sum;
		uint32_t weighed = a->weighed[level] - b->weighed[level] - known_weighed;

		if (sum == 0 && weighed == 0)
			continue;
		const struct ckpt_alike_name *found = explain(own, a->group, level, sum, weighed);
		if (!found) {
			f->tensors = has_group(own, a->group) ? (known + 2) << level
							      : guess(a, b, level);
			return;
		}
		known++;
		known_sum += sum;
		known_weighed += weighed;
		if (f->name_count < CKPT_ALIKE_NAMED)
			f->names[f->name_count++] = found->name;
	}
	f->tensors = known;
	f->exact = known > 0;
}

/* Entries of one group, which are not all alike. */
static void look_at(struct ckpt_alike_finding *f, const struct ckpt_alike *own,
	struct ckpt_alike_entry *e, size_t count)
{
	size_t most = 0;
	size_t best = 0;

	f->minority = false;
	for (size_t from = 0; from < count; from = end_of(e, from, count)) {
		size_t length = end_of(e, from, count) - from;

		if (length == most)
			f->minority = false;
		if (length > most || (length == most && e[from].rank < e[best].rank)) {
			f->minority = length > most;
			most = length;
			best = from;
		}
	}
	uint64_t sum = e[best].sums.sum;
	struct ckpt_alike_sums usual = e[best].sums;
	f->other = e[best].rank;
	f->ranks = (uint32_t)count;
	qsort(e, count, sizeof(*e), by_rank);
	for (size_t i = 0; i < count; i++) {
		if (e[i].sums.sum == sum)
			continue;
		if (f->count == 0)
			name_tensors(f, own, &usual, &e[i].sums);
		if (f->count < CKPT_ALIKE_RANKS)
			f->odd[f->count] = e[i].rank;
		f->count++;
	}
}

struct ckpt_alike_finding ckpt_alike_compare(
	struct ckpt_alike_told *told, const struct ckpt_alike *own)
{
	struct ckpt_alike_finding found = {0};
	size_t from = 0;

	if (told->mixed || told->count == 0)
		return found;
	qsort(told->entries, told->count, sizeof(*told->entries), order);
	for (size_t at = 1; at <= told->count; at++) {
		if (at < told->count &&
			told->entries[at].sums.group == told->entries[from].sums.group)
			continue;
		if (end_of(told->entries, from, at) < at && found.groups++ == 0)
			look_at(&found, own, told->entries + from, at - from);
		from = at;
	}
	return found;
}

/* Words. */

static size_t put_ranks(const struct ckpt_alike_finding *f, char *out, size_t size)
{
	uint32_t named = f->count < CKPT_ALIKE_RANKS ? f->count : CKPT_ALIKE_RANKS;
	size_t at = 0;

	at += (size_t)snprintf(out, size, "rank%s ", f->count > 1 ? "s" : "");
	for (uint32_t i = 0; i < named; i++)
		at += (size_t)snprintf(out + at, size - at, "%s%u",
			i == 0              ? ""
			: i + 1 == f->count ? " and "
					    : ", ",
			f->odd[i]);
	if (f->count > named)
		at += (size_t)snprintf(out + at, size - at, " and %u more", f->count - named);
	return at;
}

static void put_tensors(const struct ckpt_alike_finding *f, char *out, size_t size)
{
	const char *about = f->exact ? "" : "about ";
	size_t more = f->tensors - ckpt_min_u64(f->tensors, f->name_count);
	size_t at = 0;

	if (f->tensors == 0) {
		(void)snprintf(out, size, "tensors");
		return;
	}
	if (f->name_count == 0) {
		(void)snprintf(
			out, size, "%s%zu tensor%s", about, f->tensors, f->tensors > 1 ? "s" : "");
		return;
	}
	for (size_t i = 0; i < f->name_count; i++)
		at += (size_t)snprintf(
			out + at, size - at, "%s'%.80s'", i > 0 ? ", " : "", f->names[i]);
	if (more > 0)
		(void)snprintf(out + at, size - at, " and %s%zu more", about, more);
}

void ckpt_alike_word(const struct ckpt_alike_finding *finding, char *out, size_t size)
{
	char ranks[160];
	char tensors[320];

	(void)put_ranks(finding, ranks, sizeof(ranks));
	put_tensors(finding, tensors, sizeof(tensors));
	if (finding->minority)
		(void)snprintf(out, size,
			"%s of the %u ranks that hold it hold%s other bytes of %s than the rest",
			ranks, finding->ranks, finding->count > 1 ? "" : "s", tensors);
	else
		(void)snprintf(out, size, "%s and rank %u hold different bytes of %s", ranks,
			finding->other, tensors);
}
