/* SPDX-License-Identifier: Apache-2.0 */
/* What is left on the disk, and what an engine says of itself. */
#include "audit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gc/gc.h"
#include "engine/lineage/lineage.h"
#include "format/naming.h"
#include "store/store.h"
#include "sim_inode.h"
#include "world.h"

/* What is there of a step. */
enum remains { GONE, UNDECIDED, COMMITTED, ABORTED };

static bool holds(const struct sim_inode *file, const char *word)
{
	return memmem(file->cached, file->cached_size, word, strlen(word)) != NULL;
}

static enum remains look_at(struct sim_disk *disk, uint64_t generation, uint64_t step)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_step(path, generation, step);
	if (!sim_disk_exists(disk, path))
		return GONE;
	ckpt_name_manifest(path, generation, step);
	if (!sim_disk_exists(disk, path))
		return UNDECIDED;
	return holds(sim_disk_find(disk, path), "\"abort\"") ? ABORTED : COMMITTED;
}

static bool newer(const struct oracle_record *a, const struct oracle_record *b)
{
	return a->generation != b->generation ? a->generation > b->generation : a->step > b->step;
}

/* The manifest of another step says that it needs this one. */
static bool is_needed(
	struct sim_disk *disk, const struct oracle *oracle, const struct oracle_record *r)
{
	char path[CKPT_PATH_MAX];
	char word[64];

	(void)snprintf(word, sizeof(word), "[%llu,%llu]", (unsigned long long)r->generation,
		(unsigned long long)r->step);
	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *other = &oracle->records[i];

		ckpt_name_manifest(path, other->generation, other->step);
		if (newer(other, r) && look_at(disk, other->generation, other->step) == COMMITTED &&
			holds(sim_disk_find(disk, path), word))
			return true;
	}
	return false;
}

/* A record of a step that retention must have let go: enough of those after it are there. */
static bool must_go(struct sim_disk *disk, const struct oracle *oracle, uint64_t generation,
	const struct oracle_retention *retention, const struct oracle_record *r)
{
	uint64_t after = 0;
	bool stays = oracle_stays(retention, r->step, oracle_reaches(oracle, generation, r));

	if (stays || retention->keep_last == 0 || !oracle_same_run(oracle, generation, r) ||
		is_needed(disk, oracle, r))
		return false;
	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *other = &oracle->records[i];
		after += other->acked_at && newer(other, r) &&
			 oracle_reaches(oracle, generation, other) &&
			 look_at(disk, other->generation, other->step) == COMMITTED;
	}
	return after >= retention->keep_last;
}

/* Calls `see` for every step that has a directory. */
static void walk(struct sim_disk *disk, void (*see)(void *arg, uint64_t generation, uint64_t step),
	void *arg)
{
	char *names;
	char *inner;
	size_t bytes;
	size_t count;

	if (sim_disk_list(disk, ".", &names, &bytes, &count) < 0)
		return;
	for (char *name = names; name < names + bytes; name += strlen(name) + 1) {
		uint64_t generation;
		uint64_t step;
		size_t length;
		if (!ckpt_parse_generation(name, &generation) ||
			sim_disk_list(disk, name, &inner, &length, &count) < 0)
			continue;
		for (char *at = inner; at < inner + length; at += strlen(at) + 1)
			if (ckpt_parse_step(at, &step))
				see(arg, generation, step);
		free(inner);
	}
	free(names);
}

/* Files of a step, but for what a publication that failed has left. */
static size_t count_files(struct sim_disk *disk, uint64_t generation, uint64_t step)
{
	char path[CKPT_PATH_MAX];
	char *names;
	size_t bytes;
	size_t count = 0;
	size_t temporary = 0;

	ckpt_name_step(path, generation, step);
	if (sim_disk_list(disk, path, &names, &bytes, &count) < 0)
		return 0;
	for (char *name = names; name < names + bytes; name += strlen(name) + 1)
		temporary += disk->sim->trouble_at && strstr(name, CKPT_STORE_TEMP) != NULL;
	free(names);
	return count - temporary;
}

/* For whoever looks for what went wrong: where it was written, or why it was not. */
static bool is_told(struct sim_disk *disk, uint64_t generation, uint64_t step, enum remains remains)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_manifest(path, generation, step);
	const struct sim_inode *file = sim_disk_find(disk, path);
	if (remains == COMMITTED)
		return holds(file, "\"" WORLD_NODE "\"");
	return !holds(file, "\"reason\":\"\"");
}

struct visit {
	struct sim *sim;
	struct sim_disk *disk;
	const struct oracle *oracle;
	uint64_t generation;
	unsigned aborted;
	bool damage;
	bool strict; /* the disk kept nobody from cleaning up */
};

/*
 * A writer that was not dead when its step was settled stops when it looks at the claims; what it has written
 * until then stays beside the record.
 */
static bool wrote_on(
	const struct visit *v, uint64_t generation, uint64_t step, enum remains remains)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_manifest(path, generation, step);
	return remains == ABORTED && oracle_lives_on(v->oracle, generation) &&
	       holds(sim_disk_find(v->disk, path), "settled by generation");
}

static bool is_noted(struct sim_disk *disk, uint64_t generation, uint64_t step)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_quarantine(path, generation, step);
	return sim_disk_exists(disk, path);
}

static void see_step(void *arg, uint64_t generation, uint64_t step)
{
	struct visit *v = arg;
	enum remains remains = look_at(v->disk, generation, step);

	v->aborted += remains == ABORTED;
	if (is_noted(v->disk, generation, step) && oracle_whole(v->oracle, generation, step))
		sim_violation(v->sim,
			"step %llu of generation %llu is quarantined, and was not damaged",
			(unsigned long long)step, (unsigned long long)generation);
	if (remains == UNDECIDED && generation < v->generation)
		sim_violation(v->sim, "step %llu of generation %llu is left undecided",
			(unsigned long long)step, (unsigned long long)generation);
	if (remains >= COMMITTED && !v->damage && !is_told(v->disk, generation, step, remains))
		sim_violation(v->sim, "the manifest of step %llu of generation %llu tells nothing",
			(unsigned long long)step, (unsigned long long)generation);
	/* Manifest, index and shard; or the record of why there are none. */
	size_t files = count_files(v->disk, generation, step);
	if (v->strict && !oracle_left(v->oracle, generation) && remains >= COMMITTED &&
		files != (remains == COMMITTED ? 3 : 1) && !wrote_on(v, generation, step, remains))
		sim_violation(v->sim, "step %llu of generation %llu has %zu files",
			(unsigned long long)step, (unsigned long long)generation, files);
}

void audit_store(struct sim *sim, const struct sim_rank *rank, uint64_t generation,
	const struct oracle_retention *retention)
{
	struct sim_disk *disk = rank->disk;
	const struct oracle *oracle = &rank->oracle;
	struct visit visit = {.sim = sim,
		.disk = disk,
		.oracle = oracle,
		.generation = generation,
		.damage = oracle->any_damage,
		.strict = !sim->trouble_at && !oracle->any_damage};

	char path[CKPT_PATH_MAX];

	walk(disk, see_step, &visit);
	ckpt_name_claim(path, generation);
	if (!visit.damage && (!sim_disk_exists(disk, path) ||
				     !holds(sim_disk_find(disk, path), "\"" WORLD_NODE "\"")))
		sim_violation(sim, "the claim of generation %llu does not say where",
			(unsigned long long)generation);
	/* One that is damaged is no record any more. */
	if (visit.aborted > CKPT_ABORTED_KEPT && !oracle->any_damage)
		sim_violation(sim, "%u records of aborted steps are kept", visit.aborted);
	/* What is damaged nobody judges by itself. */
	for (size_t i = 0; i < oracle->record_count && !oracle->any_damage; i++) {
		const struct oracle_record *r = &oracle->records[i];
		if (r->acked_at && look_at(disk, r->generation, r->step) == COMMITTED &&
			must_go(disk, oracle, generation, retention, r))
			sim_violation(sim, "retention left step %llu of generation %llu",
				(unsigned long long)r->step, (unsigned long long)r->generation);
	}
}

/* The number after a word of a manifest; 0: there is none. */
static uint64_t number_after(const struct sim_inode *file, const char *word)
{
	const char *at = memmem(file->cached, file->cached_size, word, strlen(word));

	return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* A file of rank 0 of whatever attempt, as a repair leaves it; false: there is none. */
static bool find_repaired(struct sim_disk *disk, uint64_t generation, uint64_t step,
	enum ckpt_rank_file kind, char path[CKPT_PATH_MAX])
{
	char attempt[CKPT_ATTEMPT_CHARS];
	enum ckpt_rank_file found;
	bool there = false;
	uint32_t rank;
	char *names;
	size_t bytes;
	size_t count;

	ckpt_name_step(path, generation, step);
	if (sim_disk_list(disk, path, &names, &bytes, &count) < 0)
		return false;
	for (const char *name = names; name < names + bytes && !there; name += strlen(name) + 1) {
		there = ckpt_parse_rank_file(name, &rank, &found, attempt) && found == kind;
		if (there)
			ckpt_name_rank_file(path, generation, step, rank, kind, attempt);
	}
	free(names);
	return there;
}

/* The size of a file of rank 0; 0: there is none. */
static uint64_t size_of(struct sim_disk *disk, uint64_t generation, uint64_t step,
	const char *attempt, enum ckpt_rank_file kind)
{
	char path[CKPT_PATH_MAX];

	ckpt_name_rank_file(path, generation, step, 0, kind, attempt);
	if (!sim_disk_exists(disk, path) && !find_repaired(disk, generation, step, kind, path))
		return 0;
	return sim_disk_find(disk, path)->cached_size;
}

/* All steps that a manifest names are there as well. */
static void check_bases(
	const struct visit *v, const struct sim_inode *file, uint64_t generation, uint64_t step)
{
	static const char word[] = "\"bases\":[";
	const char *end = file->cached + file->cached_size;
	const char *at = memmem(file->cached, file->cached_size, word, strlen(word));
	char text[1024] = "";
	int read = 0;

	/* What a process has published that did not know of its successor is in no lineage, and its successor did not know of it. */
	if (!at || oracle_lives_on(v->oracle, generation))
		return;
	at += strlen(word);
	memcpy(text, at, ckpt_min_u64((uint64_t)(end - at), sizeof(text) - 1));
	at = text;
	/* NOLINTBEGIN(cert-err34-c): numbers that the product wrote */
	for (unsigned long long g, s; sscanf(at, "[%llu,%llu]%n", &g, &s, &read) == 2;) {
		if (look_at(v->disk, g, s) != COMMITTED)
			sim_violation(v->sim,
				"step %llu of generation %llu needs step %llu, which is not there",
				(unsigned long long)step, (unsigned long long)generation, s);
		at += read + (at[read] == ',');
	}
	/* NOLINTEND(cert-err34-c) */
}

static void see_whole(void *arg, uint64_t generation, uint64_t step)
{
	static const char word[] = "\"ranks\":[";
	static const char name[] = "\"attempt\":\"";
	const struct visit *v = arg;
	char attempt[CKPT_ATTEMPT_CHARS] = "";
	char path[CKPT_PATH_MAX];

	if (look_at(v->disk, generation, step) != COMMITTED)
		return;
	ckpt_name_manifest(path, generation, step);
	const struct sim_inode *file = sim_disk_find(v->disk, path);
	const char *end = file->cached + file->cached_size;
	const char *at = memmem(file->cached, file->cached_size, word, strlen(word));
	at = at ? memmem(at, (size_t)(end - at), name, strlen(name)) : NULL;
	if (at && (size_t)(end - at) > strlen(name) + sizeof(attempt))
		memcpy(attempt, at + strlen(name), sizeof(attempt) - 1);
	uint64_t index = size_of(v->disk, generation, step, attempt, CKPT_RANK_INDEX);
	uint64_t shard = size_of(v->disk, generation, step, attempt, CKPT_RANK_SHARD);
	uint64_t encoded = size_of(v->disk, generation, step, attempt, CKPT_RANK_ENCODED);
	bool good =
		shard ? !encoded && shard == number_after(file, "\"shard_bytes\":") : encoded > 0;
	if (index == 0 || index != number_after(file, "\"index_bytes\":") || !good)
		sim_violation(v->sim,
			"step %llu of generation %llu is half there: a manifest, %llu bytes of its "
			"index, %llu of its shard, %llu of its encoded shard",
			(unsigned long long)step, (unsigned long long)generation,
			(unsigned long long)index, (unsigned long long)shard,
			(unsigned long long)encoded);
	check_bases(v, file, generation, step);
}

void audit_visible(struct sim *sim, struct sim_disk *disk, const struct oracle *oracle)
{
	struct visit visit = {.sim = sim, .disk = disk, .oracle = oracle};

	if (!oracle->any_damage)
		walk(disk, see_whole, &visit);
}

void audit_failed(
	struct sim *sim, struct sim_disk *disk, uint64_t generation, uint64_t step, uint64_t since)
{
	enum remains remains = look_at(disk, generation, step);

	/* Where the disk did not work for a while, what has failed may have taken place all the same. */
	if (sim->trouble_at >= since || remains == GONE ||
		(sim->trouble_at && remains != ABORTED) ||
		(remains == ABORTED && count_files(disk, generation, step) == 1))
		return;
	sim_violation(sim, "the failed save of step %llu of generation %llu left %zu files%s",
		(unsigned long long)step, (unsigned long long)generation,
		count_files(disk, generation, step), remains == ABORTED ? "" : ", and no record");
}

void audit_removed(struct sim *sim, struct sim_disk *disk, uint64_t generation, uint64_t step)
{
	if (look_at(disk, generation, step) != GONE)
		sim_violation(sim, "step %llu of generation %llu was removed, and is there",
			(unsigned long long)step, (unsigned long long)generation);
}

static void check_count(struct sim_user *u, const char *what, uint64_t said, uint64_t real)
{
	if (said != real)
		sim_violation(&u->proc->world->sim, "p%u counts %s: %llu, and there were %llu",
			u->proc->id, what, (unsigned long long)said, (unsigned long long)real);
}

void audit_counts(struct sim_user *u)
{
	const struct ckpt_stats *stats = &u->proc->core.stats;

	check_count(u, "saves started", stats->saves_started, u->counts.posted);
	check_count(u, "saves committed", stats->saves_committed, u->counts.acked);
	check_count(u, "saves failed", stats->saves_failed, u->counts.posted - u->counts.acked);
	check_count(u, "its last step", stats->last_step, u->counts.last_acked);
	check_count(u, "its generation", stats->generation, u->proc->core.lineage->generation);
}
