/* SPDX-License-Identifier: Apache-2.0 */
/* Describes which ranks have written different bytes of one box. */
#include "engine/reshard/replica_check.h"

#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "engine/ranks/replica_digest.h"

/* Length of a list of names, except that the first name may exceed it. */
#define NAMES_MAX 90

const char *ckpt_replica_check_name(const struct ckpt_replica_check *replicas)
{
	return replicas->first_tensors == 1 ? replicas->first[0] : NULL;
}

/* "'a', 'b' and 4 more" */
static void put_some(const char names[][CKPT_REPLICA_CHECK_NAME], size_t named, size_t all,
	char *out, size_t size)
{
	char shown[CKPT_REPLICA_DIGEST_NAME];
	size_t at = 0;
	size_t i = 0;

	for (; i < named; i++) {
		ckpt_replica_digest_word_name(names[i], CKPT_REPLICA_DIGEST_NAME - 1, shown);
		if (i > 0 && at + strlen(shown) + 6 >= NAMES_MAX)
			break;
		at += (size_t)snprintf(out + at, size - at, "%s'%s'",
			i == 0         ? ""
			: i + 1 == all ? " and "
				       : ", ",
			shown);
	}
	if (all > i)
		(void)snprintf(out + at, size - at, " and %zu more", all - i);
}

/* The other tensors, in which other ranks may differ. */
static void put_later(const struct ckpt_replica_check *r, char *out, size_t size)
{
	size_t all = r->differing - 1;
	char list[NAMES_MAX + CKPT_REPLICA_DIGEST_NAME];

	put_some(r->later, r->later_count, all, list, sizeof(list));
	int length = snprintf(out, size, ", and ranks differ in %s", list);
	if (r->later_count == 0 || length < 0 || (size_t)length >= size)
		(void)snprintf(out, size, ", and ranks differ in %zu more", all);
}

/* How many of the ranks with other bytes have these. */
static uint32_t count_alike(const struct ckpt_replica_check *r, uint32_t kept, uint64_t value)
{
	uint32_t count = 0;

	for (uint32_t i = 0; i < kept; i++)
		count += r->odd[i].value == value;
	return count;
}

static void put_odd(struct ckpt_replica_digest_finding *f, uint32_t rank)
{
	if (f->count < CKPT_REPLICA_DIGEST_RANKS)
		f->odd[f->count] = rank;
	f->count++;
}

/* Which ranks differ from the others: the smaller group, if there is one. */
static struct ckpt_replica_digest_finding judge(const struct ckpt_replica_check *r)
{
	const struct ckpt_replica_check_box *box = &r->odd_box;
	uint32_t kept =
		r->odd_count < CKPT_REPLICA_CHECK_ODD ? r->odd_count : CKPT_REPLICA_CHECK_ODD;
	struct ckpt_replica_digest_finding f = {.ranks = box->count + r->odd_count};
	uint32_t most = 0;
	uint32_t best = 0;
	bool tie = false;

	for (uint32_t i = 0; i < kept; i++) {
		uint32_t alike = count_alike(r, kept, r->odd[i].value);

		best = alike > most ? i : best;
		most = alike > most ? alike : most;
	}
	for (uint32_t i = 0; i < kept; i++)
		tie = tie || (r->odd[i].value != r->odd[best].value &&
				     count_alike(r, kept, r->odd[i].value) == most);
	/* The first rank is the only one known by number among those with its bytes. */
	bool first = box->count == 1 && most > 1 && r->odd_count == kept;

	f.other = first ? r->odd[best].rank : box->rank;
	f.minority = first ? !tie : box->count > most && r->odd_count == kept;
	if (first)
		put_odd(&f, box->rank);
	for (uint32_t i = 0; i < kept; i++)
		if (!first || r->odd[i].value != r->odd[best].value)
			put_odd(&f, r->odd[i].rank);
	f.count += r->odd_count - kept;
	return f;
}

void ckpt_replica_check_word(const struct ckpt_replica_check *replicas, char *out, size_t size)
{
	char names[256];
	char text[CKPT_REPLICA_CHECK_WORDS];
	size_t at = 0;

	CKPT_ASSERT(replicas->differing > 0);
	const struct ckpt_replica_digest_finding found = judge(replicas);
	if (replicas->first_tensors > 1)
		at = (size_t)snprintf(names, sizeof(names), "one or more of ");
	put_some(replicas->first, replicas->first_count, replicas->first_tensors, names + at,
		sizeof(names) - at);
	ckpt_replica_digest_word_ranks(&found, names, text, sizeof(text));
	at = strlen(text);
	if (replicas->differing > 1)
		put_later(replicas, text + at, sizeof(text) - at);
	(void)snprintf(out, size, "%s", text);
	ckpt_utf8_line(out);
}

void ckpt_replica_check_word_unknown(
	const struct ckpt_replica_check *replicas, char *out, size_t size)
{
	char shown[CKPT_REPLICA_DIGEST_NAME];

	CKPT_ASSERT(replicas->unknown > 0);
	ckpt_replica_digest_word_name(replicas->unknown_name, CKPT_REPLICA_DIGEST_NAME - 1, shown);
	int at = snprintf(out, size, "'%s' of ranks %u and %u", shown, replicas->unknown_ranks[0],
		replicas->unknown_ranks[1]);
	if (replicas->unknown > 1 && at > 0 && (size_t)at < size)
		(void)snprintf(out + at, size - (size_t)at, ", and %zu more tensor%s",
			replicas->unknown - 1, replicas->unknown > 2 ? "s" : "");
	ckpt_utf8_line(out);
}
