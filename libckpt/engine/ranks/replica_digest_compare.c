/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks have told of what they hold alike: compared. */
#include "engine/ranks/replica_digest.h"

#include <stdlib.h>
#include <string.h>

static int by_number(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* By group, then by kind, then those that are alike together, then by rank. */
static int order(const void *left, const void *right)
{
	const struct ckpt_replica_digest_entry *a = left;
	const struct ckpt_replica_digest_entry *b = right;
	int r = by_number(a->sums.group, b->sums.group);

	if (r == 0)
		r = by_number(a->sums.kind, b->sums.kind);
	if (r == 0)
		r = by_number(a->sums.sum, b->sums.sum);
	return r ? r : by_number(a->rank, b->rank);
}

/* Those of one group that are alike together, whatever their kind. */
static int by_sum(const void *left, const void *right)
{
	const struct ckpt_replica_digest_entry *a = left;
	const struct ckpt_replica_digest_entry *b = right;
	int r = by_number(a->sums.sum, b->sums.sum);

	return r ? r : by_number(a->rank, b->rank);
}

static int by_rank(const void *left, const void *right)
{
	return by_number(((const struct ckpt_replica_digest_entry *)left)->rank,
		((const struct ckpt_replica_digest_entry *)right)->rank);
}

/* The end of the run of entries that are alike. */
static size_t end_of(const struct ckpt_replica_digest_entry *e, size_t from, size_t end)
{
	size_t at = from + 1;

	while (at < end && e[at].sums.sum == e[from].sums.sum)
		at++;
	return at;
}

static struct ckpt_replica_digest_pair minus(
	struct ckpt_replica_digest_pair a, struct ckpt_replica_digest_pair b)
{
	return (struct ckpt_replica_digest_pair){
		.sum = a.sum - b.sum, .weighed = a.weighed - b.weighed};
}

static bool is_zero(struct ckpt_replica_digest_pair pair)
{
	return pair.sum == 0 && pair.weighed == 0;
}

/* A tensor that alone explains what differs on a level; NULL: there is none, or more than one could be it. */
static const struct ckpt_replica_digest_name *explain(const struct ckpt_replica_digest *own,
	uint64_t group, uint32_t time, uint32_t level, struct ckpt_replica_digest_pair left)
{
	const struct ckpt_replica_digest_name *found = NULL;

	for (size_t i = 0; i < own->name_count; i++) {
		const struct ckpt_replica_digest_name *n = &own->names[i];

		if (n->group != group || left.sum * (uint32_t)n->hash != left.weighed ||
			ckpt_replica_digest_level(n->hash, time) < level)
			continue;
		if (found)
			return NULL;
		found = n;
	}
	return found;
}

static void put_name(
	struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest_name *found)
{
	f->fresh = f->fresh || !found->known;
	for (size_t i = 0; i < f->name_count; i++)
		if (f->names[i] == found->name)
			return;
	if (f->name_count < CKPT_REPLICA_DIGEST_NAMED)
		f->names[f->name_count++] = found->name;
}

static bool has_group(const struct ckpt_replica_digest *own, uint64_t group)
{
	for (size_t i = 0; i < own->name_count; i++)
		if (own->names[i].group == group)
			return true;
	return false;
}

static struct ckpt_replica_digest_clue clue_of(
	const struct ckpt_replica_digest_sums *a, const struct ckpt_replica_digest_sums *b)
{
	struct ckpt_replica_digest_clue clue = {
		.group = a->group, .told = a->told < b->told ? a->told : b->told};

	if (a->kind != b->kind)
		clue.samples = minus(a->samples, b->samples);
	for (uint32_t i = 0; i < clue.told; i++)
		clue.left[i] = minus(a->pairs[i], b->pairs[i]);
	return clue;
}

/*
 * From the last level on: one tensor that explains what differs there is known on all levels before it. Returns
 * how many differ; about, if not *exact.
 */
static size_t name_some(struct ckpt_replica_digest_finding *f,
	const struct ckpt_replica_digest *own, uint32_t time,
	const struct ckpt_replica_digest_clue *clue, bool *exact)
{
	const struct ckpt_replica_digest_pair *all =
		&clue->left[(size_t)time * CKPT_REPLICA_DIGEST_LEVELS];
	uint32_t levels =
		clue->told < CKPT_REPLICA_DIGEST_LEVELS ? clue->told : CKPT_REPLICA_DIGEST_LEVELS;
	struct ckpt_replica_digest_pair known = {0};
	size_t count = 0;

	for (uint32_t level = levels; level-- > 0;) {
		struct ckpt_replica_digest_pair left = minus(all[level], known);

		if (is_zero(left))
			continue;
		const struct ckpt_replica_digest_name *found =
			explain(own, clue->group, time, level, left);
		if (!found) {
			/* Of a group that is not this rank's nothing has a name: it may be one. */
			if (!has_group(own, clue->group) && memcmp(all, &left, sizeof(left)) == 0)
				return 1;
			return (count + 2) << level;
		}
		count++;
		known.sum += left.sum;
		known.weighed += left.weighed;
		put_name(f, found);
	}
	*exact = count > 0;
	return count;
}

/* Of digests of one kind, or of two kinds if that is because one rank lacks tensors. */
static void name_by_pairs(
	struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest *own)
{
	uint32_t told = f->clue.told;
	uint32_t times = told < CKPT_REPLICA_DIGEST_LEVELS ? 1 : told / CKPT_REPLICA_DIGEST_LEVELS;
	size_t sum = 0;

	for (uint32_t time = 0; time < times && !f->exact; time++) {
		f->tensors = name_some(f, own, time, &f->clue, &f->exact);
		sum += f->tensors;
	}
	if (!f->exact)
		f->tensors = sum / ckpt_max_u64(times, 1);
	if (f->tensors < f->name_count)
		f->tensors = f->name_count;
}

static void name_tensors(
	struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest *own)
{
	const struct ckpt_replica_digest_clue samples = {
		.group = f->clue.group, .told = 1, .left = {f->clue.samples}};

	if (!is_zero(f->clue.samples))
		f->tensors = name_some(f, own, 0, &samples, &f->exact);
	if (f->exact)
		return;
	name_by_pairs(f, own);
	/* Where the digests of all tensors are of other kinds, the pairs say nothing. */
	if (f->name_count == 0 && !is_zero(f->clue.samples))
		f->tensors = 0;
}

struct ckpt_replica_digest_finding ckpt_replica_digest_explain(
	const struct ckpt_replica_digest_clue *clue, const struct ckpt_replica_digest *own)
{
	struct ckpt_replica_digest_finding found = {.clue = *clue};

	name_tensors(&found, own);
	return found;
}

/* Entries of one group and kind, which are not all alike. */
static void look_at(struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest *own,
	struct ckpt_replica_digest_entry *e, size_t count)
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
	struct ckpt_replica_digest_sums usual = e[best].sums;
	f->other = e[best].rank;
	f->ranks = (uint32_t)count;
	qsort(e, count, sizeof(*e), by_rank);
	for (size_t i = 0; i < count; i++) {
		if (e[i].sums.sum == sum)
			continue;
		if (f->count == 0) {
			f->clue = clue_of(&usual, &e[i].sums);
			name_tensors(f, own);
		}
		if (f->count < CKPT_REPLICA_DIGEST_RANKS)
			f->odd[f->count] = e[i].rank;
		f->count++;
	}
}

/* Whether they are: digests of one kind, but for `samples`. */
static bool is_found(struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest *own,
	struct ckpt_replica_digest_entry *e, size_t count)
{
	if (end_of(e, 0, count) == count)
		return false;
	if (f->groups++ == 0)
		look_at(f, own, e, count);
	return true;
}

/* Not all have a proof of the same tensors. */
static bool is_mixed(const struct ckpt_replica_digest_entry *e, size_t count)
{
	for (size_t i = 1; i < count; i++)
		if (e[i].sums.deep != e[0].sums.deep)
			return true;
	return false;
}

/* Of one group: those of one kind by their digests, and all by their samples, which are of one kind whoever has them. */
static void judge(struct ckpt_replica_digest_finding *f, const struct ckpt_replica_digest *own,
	struct ckpt_replica_digest_entry *e, size_t count)
{
	bool found = false;
	bool kinds = e[0].sums.kind != e[count - 1].sums.kind;

	for (size_t from = 0, at = 1; at <= count && !found; at++) {
		if (at < count && e[at].sums.kind == e[from].sums.kind)
			continue;
		found = is_found(f, own, e + from, at - from);
		from = at;
	}
	if (found || !kinds)
		return;
	for (size_t i = 0; i < count; i++) {
		struct ckpt_replica_digest_sums *s = &e[i].sums;

		s->sum = (uint64_t)s->samples.sum << 32 | s->samples.weighed;
	}
	qsort(e, count, sizeof(*e), by_sum);
	(void)is_found(f, own, e, count);
}

/*
 * A group is judged as one that must be alike if any of its ranks writes no copy of its own: that rank relies on what
 * another one writes. Ranks need not know the same. One that has not heard of a commit writes its own copies, which is
 * more than it need do, and tells so. One that knows that they differ tells that, so that nobody takes them for alike
 * when they happen to be equal.
 */
static void judge_group(struct ckpt_replica_digest_finding *f,
	struct ckpt_replica_digest_received *told, const struct ckpt_replica_digest *own,
	struct ckpt_replica_digest_entry *e, size_t count)
{
	struct ckpt_replica_digest_finding split = {0};
	bool relies = false;
	bool differs = false;

	for (size_t i = 0; i < count; i++) {
		relies = relies || e[i].sums.own == CKPT_OWN_NONE;
		differs = differs || e[i].sums.own == CKPT_OWN_DIFFERS;
	}
	judge(relies ? f : &split, own, e, count);
	/* A group has two ranks at least: one that was heard alone was compared with nobody. */
	if (split.groups > 0 || differs || (count == 1 && !relies))
		told->split.differ |= ckpt_replica_digest_bit(e->sums.group);
}

struct ckpt_replica_digest_finding ckpt_replica_digest_compare(
	struct ckpt_replica_digest_received *told, const struct ckpt_replica_digest *own)
{
	struct ckpt_replica_digest_finding found = {0};
	size_t from = 0;

	told->split =
		(struct ckpt_replica_digest_split){.compared = told->count > 0 && !told->without};
	if (told->count == 0)
		return found;
	qsort(told->entries, told->count, sizeof(*told->entries), order);
	for (size_t at = 1; at <= told->count; at++) {
		if (at < told->count &&
			told->entries[at].sums.group == told->entries[from].sums.group)
			continue;
		struct ckpt_replica_digest_entry *e = told->entries + from;
		told->mixed = told->mixed || is_mixed(e, at - from);
		judge_group(&found, told, own, e, at - from);
		from = at;
	}
	return found;
}
