/* SPDX-License-Identifier: Apache-2.0 */
/* A disk that lies: lost and misplaced writes, reads of something else. */
#include <stdlib.h>
#include <string.h>

#include "sim_inode.h"

void sim_disk_tell(struct sim_disk *disk, sim_hit_fn *hit, void *user)
{
	disk->hit = hit;
	disk->hit_user = user;
}

void sim_disk_hit(
	struct sim_disk *disk, const struct sim_inode *inode, const char *how, bool passing)
{
	sim_tell(disk->sim, 0, how, inode->path, 0, 0, 0);
	if (disk->hit)
		disk->hit(disk->hit_user, inode->path, passing);
}

bool sim_disk_may_lie(struct sim_disk *disk, const struct sim_inode *inode)
{
	return strstr(inode->path, "/step-") != NULL || sim_chance(disk->sim, 1500);
}

/* `early`: whoever reads it before a power cut finds it gone as well. */
static int64_t lose(struct sim_disk *disk, struct sim_inode *inode, const void *data, uint64_t len,
	uint64_t off, bool early)
{
	char *old = sim_alloc(len);

	(void)sim_disk_read(inode, old, len, off);
	int64_t r = sim_disk_write(disk, inode, data, len, off);
	if (r >= 0) {
		struct sim_change *change = inode->changes;
		/* The size may have changed behind it. */
		for (struct sim_change *c = change; c; c = c->next)
			change = c->kind == SIM_DATA ? c : change;
		change->lost = true;
		if (early)
			memcpy(inode->cached + off, old, len);
	}
	free(old);
	return r;
}

int64_t sim_disk_lose(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off)
{
	int64_t r = lose(disk, inode, data, len, off, sim_chance(disk->sim, 5000));

	if (r >= 0)
		sim_disk_hit(disk, inode, "lost write", false);
	return r;
}

/* Any file of a step that has something in it; perhaps this one. */
static struct sim_inode *pick_victim(struct sim_disk *disk, struct sim_inode *inode)
{
	struct sim_inode *found = NULL;
	uint64_t count = 0;

	if (sim_chance(disk->sim, 3000))
		return inode->cached_size ? inode : NULL;
	for (struct sim_inode *i = disk->inodes; i; i = i->next)
		if (!i->dir && i->linked && i->cached_size > 0 && sim_disk_may_lie(disk, i) &&
			sim_below(disk->sim, ++count) == 0)
			found = i;
	return found;
}

/* Overwrites what is there, without anybody's knowledge; sizes stay. */
static void lay(struct sim_disk *disk, struct sim_inode *inode, const char *data, uint64_t len)
{
	uint64_t off = sim_below(disk->sim, inode->cached_size) / SIM_SECTOR * SIM_SECTOR;
	uint64_t cached = ckpt_min_u64(len, inode->cached_size - off);
	uint64_t durable =
		off < inode->durable_size ? ckpt_min_u64(len, inode->durable_size - off) : 0;

	if (memcmp(inode->cached + off, data, cached) == 0)
		return;
	memcpy(inode->durable + off, data, durable);
	/* What the page cache has of it hides the damage for a while. */
	if (sim_chance(disk->sim, 5000))
		memcpy(inode->cached + off, data, cached);
	sim_disk_hit(disk, inode, "overwritten", false);
}

int64_t sim_disk_misplace(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off)
{
	struct sim_inode *victim = pick_victim(disk, inode);
	int64_t r = lose(disk, inode, data, len, off, sim_chance(disk->sim, 5000));

	if (r < 0)
		return r;
	sim_disk_hit(disk, inode, "write astray", false);
	if (victim)
		lay(disk, victim, data, len);
	return r;
}

void sim_disk_confuse(
	struct sim_disk *disk, struct sim_inode *inode, void *data, uint64_t len, uint64_t off)
{
	uint64_t at = sim_below(disk->sim, len) / SIM_SECTOR * SIM_SECTOR;
	uint64_t length = ckpt_min_u64(len - at, SIM_SECTOR * sim_between(disk->sim, 1, 8));
	char *piece = sim_alloc(length);
	char *to = data;
	struct sim_inode *other = pick_victim(disk, inode);

	/* What the disk holds may be older than what was written; or else zeroes, or another file. */
	if (sim_chance(disk->sim, 5000) && off + at < inode->durable_size)
		memcpy(piece, inode->durable + off + at,
			ckpt_min_u64(length, inode->durable_size - off - at));
	else if (other)
		(void)sim_disk_read(other, piece, length,
			sim_below(disk->sim, other->cached_size) / SIM_SECTOR * SIM_SECTOR);
	if (memcmp(to + at, piece, length) != 0) {
		memcpy(to + at, piece, length);
		sim_disk_hit(disk, inode, "stale read", true);
	}
	free(piece);
}
