/* SPDX-License-Identifier: Apache-2.0 */
#include "states.h"

#include <stdlib.h>
#include <string.h>

#include "base/digest.h"

#define ROOM_FIRST 65536

static bool put(uint64_t *seen, uint64_t room, uint64_t hash)
{
	uint64_t at = hash & (room - 1);

	while (seen[at]) {
		if (seen[at] == hash)
			return false;
		at = (at + 1) & (room - 1);
	}
	seen[at] = hash;
	return true;
}

static bool is_new(struct states *s, uint64_t hash)
{
	hash |= hash == 0;
	if (s->distinct * 2 >= s->seen_room) {
		uint64_t room = s->seen_room ? s->seen_room * 4 : ROOM_FIRST;
		uint64_t *seen = sim_alloc(room * sizeof(*seen));
		for (uint64_t i = 0; i < s->seen_room; i++)
			if (s->seen[i])
				(void)put(seen, room, s->seen[i]);
		free(s->seen);
		s->seen = seen;
		s->seen_room = room;
	}
	return put(s->seen, s->seen_room, hash);
}

void states_forget(struct states *states)
{
	free(states->seen);
	states->seen = NULL;
	states->seen_room = 0;
}

static uint64_t weight(const struct states_place *place, size_t pick)
{
	return sim_mix64(place->path ^ place->node->at[pick].hash * UINT64_C(0x9e3779b97f4a7c15));
}

static void try_one(struct states *s)
{
	s->tried++;
	if (!is_new(s, sim_mix64(s->hash + s->salt * UINT64_C(0xd6e8feb86659fd93))))
		return;
	s->distinct++;
	s->found(s);
}

/* Every choice of the files that there are, from the one of this number on. */
static void each_file(struct states *s, size_t at)
{
	while (at < s->file_count && s->files[at].node->count == 1)
		s->files[at++].node->pick = 0;
	if (at == s->file_count) {
		if (!s->sim->failed)
			try_one(s);
		return;
	}
	struct states_place *place = &s->files[at];
	for (size_t i = 0; i < place->node->count && !s->sim->failed; i++) {
		uint64_t mine = weight(place, i);
		place->node->pick = i;
		s->hash ^= mine;
		each_file(s, at + 1);
		s->hash ^= mine;
	}
}

/* One choice of the files, by chance; of each as it is now, and of each as it was, as often as any. */
static void any_file(struct states *s)
{
	uint64_t hash = s->hash;

	for (size_t i = 0; i < s->file_count; i++) {
		struct states_place *place = &s->files[i];
		place->node->pick = sim_below(s->sim, place->node->count);
		if (sim_chance(s->sim, 3000))
			place->node->pick = sim_chance(s->sim, 5000) ? 0 : place->node->count - 1;
		if (place->node->count > 1)
			s->hash ^= weight(place, place->node->pick);
	}
	try_one(s);
	s->hash = hash;
}

static void all_files(struct states *s)
{
	uint64_t product = 1;

	for (size_t i = 0; i < s->file_count && product <= s->limit; i++)
		product *= s->files[i].node->count;
	if (product <= s->limit) {
		each_file(s, 0);
		return;
	}
	s->chosen = true;
	for (uint64_t i = 0; i < s->limit && !s->sim->failed; i++)
		any_file(s);
}

/* What one directory names, with what it adds to the hash. */
static uint64_t enter(struct states *s, const struct states_place *dir)
{
	const struct sim_names *names = &dir->node->at[dir->node->pick].names;
	uint64_t hash = 0;

	for (size_t i = 0; i < names->count; i++) {
		struct states_place place = {.node = variants_of(&s->variants, names->at[i].inode),
			.path = ckpt_hash64(
				names->at[i].name, strlen(names->at[i].name), dir->path)};
		CKPT_ASSERT(s->dir_count < STATES_DEPTH && s->file_count < STATES_DEPTH);
		if (place.node->inode->dir) {
			s->dirs[s->dir_count++] = place;
			hash ^= sim_mix64(place.path);
		} else {
			s->files[s->file_count++] = place;
			if (place.node->count == 1)
				hash ^= weight(&place, 0);
		}
	}
	return hash;
}

/* Every choice of the directories that there are then. */
static void each_dir(struct states *s, size_t at)
{
	if (at == s->dir_count) {
		all_files(s);
		return;
	}
	struct states_place place = s->dirs[at];
	for (size_t i = 0; i < place.node->count && !s->sim->failed; i++) {
		size_t dirs = s->dir_count;
		size_t files = s->file_count;
		place.node->pick = i;
		uint64_t mine = enter(s, &place);
		s->hash ^= mine;
		each_dir(s, at + 1);
		s->hash ^= mine;
		s->dir_count = dirs;
		s->file_count = files;
	}
}

void states_try_all(struct states *states, struct sim_disk *disk)
{
	variants_take(&states->variants, states->sim, disk);
	states->root = disk->root;
	states->moments++;
	states->chosen = false;
	states->hash = 0;
	states->file_count = 0;
	states->dir_count = 1;
	states->dirs[0] = (struct states_place){
		.node = variants_of(&states->variants, disk->root), .path = 1};
	each_dir(states, 0);
	states->sampled += states->chosen || states->variants.sampled;
	variants_drop(&states->variants);
}
