/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of each store of a crowd, and between the stores of its nodes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crowd.h"
#include "format/naming.h"
#include "sim_inode.h"

static bool holds(const struct sim_inode *file, const char *word)
{
	return memmem(file->cached, file->cached_size, word, strlen(word)) != NULL;
}

static bool same(const struct sim_inode *a, const struct sim_inode *b)
{
	return a->cached_size == b->cached_size &&
	       memcmp(a->cached, b->cached, a->cached_size) == 0;
}

const struct sim_inode *crowd_manifest(
	struct crowd *crowd, unsigned store, const struct crowd_record *r)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_manifest(path, r->generation, r->step);
	return sim_disk_find(crowd->places[store].disk, path);
}

bool crowd_is_abort(const struct sim_inode *manifest)
{
	return holds(manifest, "\"abort\"");
}

/* What a rank's file is called; false: its store has no commit that says so. */
static bool find_attempt(struct crowd *crowd, const struct crowd_record *r, uint32_t rank,
	char ret_attempt[CKPT_ATTEMPT_CHARS])
{
	static const char before[] = "\"attempt\":\"";
	const struct sim_inode *manifest =
		crowd_manifest(crowd, crowd_place_number(crowd, rank), r);
	char word[32];

	if (!manifest)
		return false;
	const char *end = manifest->cached + manifest->cached_size;
	int length = snprintf(word, sizeof(word), "{\"rank\":%u,", rank);
	const char *at = memmem(manifest->cached, manifest->cached_size, word, (size_t)length);
	at = at ? memmem(at, (size_t)(end - at), before, strlen(before)) : NULL;
	if (!at || (size_t)(end - at) < strlen(before) + CKPT_ATTEMPT_CHARS)
		return false;
	memcpy(ret_attempt, at + strlen(before), CKPT_ATTEMPT_CHARS - 1);
	ret_attempt[CKPT_ATTEMPT_CHARS - 1] = '\0';
	return true;
}

const struct sim_inode *crowd_index(
	struct crowd *crowd, const struct crowd_record *r, uint32_t rank)
{
	char path[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS];

	if (!find_attempt(crowd, r, rank, attempt))
		return NULL;
	ckpt_name_index(path, r->generation, r->step, rank, attempt);
	return sim_disk_find(crowd_disk(crowd, rank), path);
}

static const struct sim_inode *find_shard(
	struct crowd *crowd, const struct crowd_record *r, uint32_t rank)
{
	char path[CKPT_PATH_MAX];
	char attempt[CKPT_ATTEMPT_CHARS];

	if (!find_attempt(crowd, r, rank, attempt))
		return NULL;
	ckpt_name_shard(path, r->generation, r->step, rank, attempt);
	return sim_disk_find(crowd_disk(crowd, rank), path);
}

static bool is_newer(const struct crowd_record *a, const struct crowd_record *b)
{
	return a->generation != b->generation ? a->generation > b->generation : a->step > b->step;
}

static bool is_committed(struct crowd *crowd, unsigned store, const struct crowd_record *r)
{
	const struct sim_inode *manifest = crowd_manifest(crowd, store, r);

	return manifest && !crowd_is_abort(manifest);
}

/* Retention of that store may have let it go: there are enough newer ones. */
static bool is_expired(struct crowd *crowd, unsigned store, const struct crowd_record *r)
{
	uint64_t newer = 0;

	for (size_t i = 0; i < crowd->record_count; i++)
		newer += is_newer(&crowd->records[i], r) &&
			 is_committed(crowd, store, &crowd->records[i]);
	return crowd->keep_last > 0 && newer >= crowd->keep_last;
}

bool crowd_is_let_go(struct crowd *crowd, const struct crowd_record *r)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		if (!is_committed(crowd, i, r) && is_expired(crowd, i, r))
			return true;
	return false;
}

static void check_part(
	struct crowd *crowd, const struct crowd_record *r, uint32_t rank, const char *when)
{
	unsigned store = crowd_place_number(crowd, rank);
	const struct sim_inode *manifest = crowd_manifest(crowd, store, r);

	if (!manifest || crowd_is_abort(manifest))
		sim_violation(&crowd->sim,
			"rank %u was told that step %llu of generation %llu is durable, and %s its "
			"manifest in store %u is %s",
			rank, (unsigned long long)r->step, (unsigned long long)r->generation, when,
			store, manifest ? "an abort" : "not there");
	else if (!crowd_index(crowd, r, rank) || !find_shard(crowd, r, rank))
		sim_violation(&crowd->sim,
			"rank %u was told that step %llu of generation %llu is durable, and %s its "
			"files in store %u are not there",
			rank, (unsigned long long)r->step, (unsigned long long)r->generation, when,
			store);
}

void crowd_check_own(const struct crowd_member *member)
{
	check_part(member->crowd, member->record, member->rank, "then");
}

void crowd_check_left(struct crowd *crowd, unsigned store)
{
	const struct crowd_place *place = &crowd->places[store];

	for (size_t i = 0; i < crowd->record_count; i++) {
		const struct crowd_record *r = &crowd->records[i];
		for (uint32_t k = 0; k < place->count; k++)
			if (r->told[place->first + k] == CROWD_DURABLE &&
				!is_expired(crowd, store, r))
				check_part(crowd, r, place->first + k, "after a power cut");
	}
}

/* Whatever is removed, its manifest goes first; and none is brought to where its files are gone. */
static void check_files(struct crowd *crowd, unsigned store, const struct crowd_record *r)
{
	const struct crowd_place *place = &crowd->places[store];

	if (!is_committed(crowd, store, r))
		return;
	for (uint32_t rank = place->first; rank < place->first + place->count; rank++)
		if (!crowd_index(crowd, r, rank) || !find_shard(crowd, r, rank))
			sim_violation(&crowd->sim,
				"store %u holds the manifest of step %llu of generation %llu, and "
				"not "
				"the files of rank %u",
				store, (unsigned long long)r->step,
				(unsigned long long)r->generation, rank);
}

/* A store that was removing it when its power was cut has settled the rest as an abort. */
static void check_outcome(struct crowd *crowd, const struct crowd_record *r)
{
	const struct sim_inode *commit = NULL;
	bool aborted = false;

	for (unsigned i = 0; i < crowd->stores; i++) {
		const struct sim_inode *manifest = crowd_manifest(crowd, i, r);
		if (!manifest)
			continue;
		if (crowd_is_abort(manifest)) {
			aborted = aborted || !is_expired(crowd, i, r);
			continue;
		}
		if (commit && !same(commit, manifest))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was committed twice, and not alike",
				(unsigned long long)r->step, (unsigned long long)r->generation);
		commit = manifest;
	}
	if (aborted && r->acked_at)
		sim_violation(&crowd->sim,
			"step %llu of generation %llu was durable, and is aborted%s",
			(unsigned long long)r->step, (unsigned long long)r->generation,
			commit ? " in one of the stores" : "");
}

void crowd_check_imported(struct crowd *crowd, const struct crowd_record *r)
{
	for (unsigned i = 0; i < crowd->stores; i++)
		if (!is_committed(crowd, i, r) && !is_expired(crowd, i, r))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was acknowledged, all stores were "
				"opened, and it is not in store %u",
				(unsigned long long)r->step, (unsigned long long)r->generation, i);
}

static void check_claim(struct crowd *crowd, uint64_t generation)
{
	const struct sim_inode *claim = NULL;
	char path[CKPT_PATH_MAX];

	ckpt_name_claim(path, generation);
	for (unsigned i = 0; i < crowd->stores; i++) {
		const struct sim_inode *file = sim_disk_find(crowd->places[i].disk, path);
		if (file && claim && !same(file, claim))
			sim_violation(&crowd->sim, "generation %llu has two claims",
				(unsigned long long)generation);
		claim = file ? file : claim;
	}
}

void crowd_check_alike(struct crowd *crowd)
{
	for (size_t i = 0; i < crowd->record_count; i++) {
		check_outcome(crowd, &crowd->records[i]);
		for (unsigned store = 0; store < crowd->stores; store++)
			check_files(crowd, store, &crowd->records[i]);
	}
	for (uint64_t g = 1; g < CKPT_COUNT(crowd->claimed_at); g++)
		check_claim(crowd, g);
}

/* What was rolled back, or left behind by a run that began anew, may stay. */
static bool is_in_lineage(const struct crowd *crowd, const struct crowd_record *r, uint64_t newest)
{
	uint64_t generation = newest;
	uint64_t limit = UINT64_MAX;

	while (generation > r->generation) {
		limit = crowd->parent_steps[generation];
		generation = crowd->parents[generation];
	}
	return generation == r->generation && r->step <= limit;
}

void crowd_check_kept(const struct crowd_member *member)
{
	struct crowd *crowd = member->crowd;
	unsigned store = crowd_place_number(crowd, member->rank);
	uint64_t count = 0;

	if (crowd->keep_last == 0 || member->rank != crowd->places[store].first)
		return;
	for (size_t i = 0; i < crowd->record_count; i++) {
		const struct crowd_record *r = &crowd->records[i];
		count += is_committed(crowd, store, r) && !r->blurred &&
			 is_in_lineage(crowd, r, member->core.lineage->generation);
	}
	if (count > crowd->keep_last)
		sim_violation(&crowd->sim, "store %u holds %llu steps, and %llu are to be kept",
			store, (unsigned long long)count, (unsigned long long)crowd->keep_last);
}
