/* SPDX-License-Identifier: Apache-2.0 */
/* What of the simulated file system is durable: syncs, late writes, power cuts, damage. */
#include "sim_inode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Applies a change to the durable state. `torn`: of data, each sector by chance. */
static void settle(
	struct sim_disk *disk, struct sim_inode *inode, const struct sim_change *change, bool torn)
{
	switch (change->kind) {
	case SIM_DATA:
		for (uint64_t at = 0; at < change->len; at += SIM_SECTOR) {
			uint64_t length = ckpt_min_u64(SIM_SECTOR, change->len - at);
			if (!change->lost && (!torn || sim_chance(disk->sim, 5000)))
				memcpy(inode->durable + change->off + at, change->data + at,
					length);
		}
		break;
	case SIM_SIZE:
		if (change->off < inode->durable_size)
			memset(inode->durable + change->off, 0, inode->durable_size - change->off);
		inode->durable_size = change->off;
		break;
	case SIM_ADD:
	case SIM_DROP:
	case SIM_MOVE:
		sim_names_apply(&inode->durable_names, change);
		break;
	}
}

/*
 * Bytes beyond the size are on no disk: a write past the durable end whose size was lost leaves
 * nothing. Called when all changes have been settled or dropped.
 */
static void trim(struct sim_inode *inode)
{
	if (inode->durable_size < inode->room)
		memset(inode->durable + inode->durable_size, 0, inode->room - inode->durable_size);
}

static void sync_inode(struct sim_disk *disk, struct sim_inode *inode, uint64_t mark, bool fail)
{
	struct sim_change **link = &inode->changes;

	while (*link) {
		struct sim_change *change = *link;
		if (change->seq > mark || change->doomed) {
			link = &change->next;
			continue;
		}
		if (fail) {
			change->doomed = true;
			link = &change->next;
			continue;
		}
		settle(disk, inode, change, false);
		*link = change->next;
		free(change);
	}
	inode->last = link;
}

int sim_disk_fdatasync(struct sim_disk *disk, struct sim_inode *inode, uint64_t mark, bool fail)
{
	if (disk->stopped)
		return -EIO;
	sync_inode(disk, inode, mark, fail);
	return fail ? -EIO : 0;
}

bool sim_disk_stopped(const struct sim_disk *disk)
{
	return disk->stopped;
}

int sim_disk_sync_dir(struct sim_disk *disk, const char *path, uint64_t mark, bool fail)
{
	struct sim_inode *dir = sim_disk_find(disk, path);

	if (!dir)
		return -ENOENT;
	if (!dir->dir)
		return -ENOTDIR;
	if (fail && sim_chance(disk->sim, 5000))
		disk->stopped = true;
	if (fail || disk->stopped)
		return -EIO;
	sync_inode(disk, dir, mark, false);
	return 0;
}

void sim_disk_put_late(struct sim_disk *disk, struct sim_late *late)
{
	late->next = disk->late;
	disk->late = late;
}

uint64_t sim_disk_land(struct sim_disk *disk)
{
	struct sim_late **link = &disk->late;
	uint64_t next_ns = UINT64_MAX;

	while (*link) {
		struct sim_late *late = *link;
		if (late->ready_ns > disk->sim->now_ns) {
			next_ns = ckpt_min_u64(next_ns, late->ready_ns);
			link = &late->next;
			continue;
		}
		int64_t r = sim_disk_write(disk, late->inode, late->data, late->len, late->off);
		sim_note(disk->sim, late->owner, "late write", late->inode->label,
			(int64_t)late->off, (int64_t)late->len, r);
		*link = late->next;
		free(late);
	}
	return next_ns;
}

struct sim_cut sim_cut_pick(struct sim *sim)
{
	static const struct sim_cut usual[] = {
		{0, 0, 0, 0},            /* only what was synced */
		{0, 0, 10000, 0},        /* names without contents */
		{0, 10000, 10000, 0},    /* names and sizes, and zeroes in them */
		{0, 10000, 10000, 8000}, /* torn contents */
		{10000, 10000, 0, 0},    /* contents without names */
		{10000, 10000, 10000, 0},
		{5000, 5000, 5000, 3000},
	};

	if (sim_chance(sim, 3000))
		return (struct sim_cut){(unsigned)sim_below(sim, 10001),
			(unsigned)sim_below(sim, 10001), (unsigned)sim_below(sim, 10001),
			(unsigned)sim_below(sim, 10001)};
	return usual[sim_below(sim, CKPT_COUNT(usual))];
}

/* Sizes are kept in order, up to some point: a file has had every size that it can have. */
static void cut_inode(struct sim_disk *disk, struct sim_inode *inode, const struct sim_cut *cut)
{
	bool sizes_lost = false;

	while (inode->changes) {
		struct sim_change *change = inode->changes;
		unsigned chance = change->kind == SIM_DATA ? cut->data : cut->names;
		if (change->kind == SIM_SIZE)
			chance = sizes_lost ? 0 : cut->sizes;
		bool kept = sim_chance(disk->sim, chance);
		bool torn = !kept && change->kind == SIM_DATA && sim_chance(disk->sim, cut->torn);
		if (kept || torn)
			settle(disk, inode, change, torn);
		sizes_lost |= change->kind == SIM_SIZE && !kept;
		inode->changes = change->next;
		free(change);
	}
	inode->last = &inode->changes;
	if (inode->dir)
		return;
	trim(inode);
	if (inode->room)
		memcpy(inode->cached, inode->durable, inode->room);
	inode->cached_size = inode->durable_size;
	inode->reserved = ckpt_align_up(inode->cached_size, SIM_SECTOR);
}

static void mark_tree(struct sim_inode *inode)
{
	inode->marked = true;
	inode->linked = true;
	if (!inode->dir)
		return;
	inode->cached_names.count = 0;
	for (size_t i = 0; i < inode->durable_names.count; i++) {
		struct sim_entry *entry = &inode->durable_names.at[i];
		sim_names_set(&inode->cached_names, entry->name, entry->inode);
		mark_tree(entry->inode);
	}
}

/* What a write of a dead process has reached of the disk when the power goes. */
static void cut_late(struct sim_disk *disk)
{
	while (disk->late) {
		struct sim_late *late = disk->late;
		if (sim_chance(disk->sim, 5000))
			(void)sim_disk_write(disk, late->inode, late->data, late->len, late->off);
		disk->late = late->next;
		free(late);
	}
}

void sim_disk_cut(struct sim_disk *disk, const struct sim_cut *cut)
{
	CKPT_ASSERT(!disk->files);
	disk->stopped = false;
	disk->hung_until_ns = 0;
	cut_late(disk);
	for (struct sim_inode *i = disk->inodes; i; i = i->next) {
		cut_inode(disk, i, cut);
		i->marked = false;
		i->linked = false;
	}
	mark_tree(disk->root);
	for (struct sim_inode **link = &disk->inodes; *link;) {
		struct sim_inode *inode = *link;
		if (inode->marked) {
			link = &inode->next;
			continue;
		}
		*link = inode->next;
		sim_inode_free(inode);
	}
}

/* Every file below `dir` with something in it; `at` counts down to the one that is wanted. */
static struct sim_inode *pick_file(struct sim_inode *dir, size_t *at)
{
	for (size_t i = 0; i < dir->durable_names.count; i++) {
		struct sim_inode *inode = dir->durable_names.at[i].inode;
		struct sim_inode *found = inode->dir ? pick_file(inode, at) : NULL;
		if (found)
			return found;
		if (!inode->dir && inode->durable_size > 0 && (*at)-- == 0)
			return inode;
	}
	return NULL;
}

static void damage(struct sim_disk *disk, struct sim_inode *inode)
{
	struct sim *sim = disk->sim;
	uint64_t at = sim_below(sim, inode->durable_size);
	uint64_t sector = at / SIM_SECTOR * SIM_SECTOR;
	uint64_t length = ckpt_min_u64(SIM_SECTOR, inode->durable_size - sector);
	uint64_t other = sim_below(sim, inode->durable_size) / SIM_SECTOR * SIM_SECTOR;
	char *bytes = inode->durable;

	switch (sim_below(sim, 4)) {
	case 0:
		memset(bytes + sector, 0, length);
		break;
	case 1:
		memmove(bytes + sector, bytes + other, length);
		break;
	case 2: /* a short file */
		inode->durable_size = at;
		trim(inode);
		break;
	default:
		bytes[at] = (char)(bytes[at] ^ (1 << sim_below(sim, 8)));
		break;
	}
	memcpy(inode->cached, inode->durable, inode->room);
	inode->cached_size = inode->durable_size;
}

void sim_disk_rot(struct sim_disk *disk, const char *path)
{
	struct sim_inode *dir = sim_disk_find(disk, path);
	size_t count = SIZE_MAX;

	if (!dir || !dir->dir)
		return;
	CKPT_ASSERT(!dir->changes);
	(void)pick_file(dir, &count);
	count = SIZE_MAX - count;
	if (count == 0)
		return;
	size_t at = (size_t)sim_below(disk->sim, count);
	struct sim_inode *inode = pick_file(dir, &at);
	CKPT_ASSERT(inode != NULL);
	damage(disk, inode);
	sim_disk_hit(disk, inode, "rot", false);
}
