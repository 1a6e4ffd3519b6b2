/* SPDX-License-Identifier: Apache-2.0 */
#include "variants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/digest.h"
#include "io/io.h"

static struct variant *find_same(const struct variants_node *node, uint64_t hash)
{
	for (size_t i = 0; i < node->count; i++)
		if (node->at[i].hash == hash)
			return &node->at[i];
	return NULL;
}

static struct variant *add(struct variants_node *node, uint64_t hash)
{
	if (node->count == node->room) {
		size_t room = node->room ? node->room * 2 : 2;
		struct variant *at = sim_alloc(room * sizeof(*at));
		if (node->count)
			memcpy(at, node->at, node->count * sizeof(*at));
		free(node->at);
		node->at = at;
		node->room = room;
	}
	struct variant *v = &node->at[node->count++];
	*v = (struct variant){.hash = hash};
	return v;
}

/* The file with so many of its unsynced sizes, and of its sectors those whose bits are set. */
static void apply_file(
	const struct sim_inode *inode, size_t sizes, uint64_t mask, char *data, uint64_t *ret_size)
{
	uint64_t size = inode->durable_size;

	if (inode->room)
		memcpy(data, inode->durable, inode->room);
	for (const struct sim_change *c = inode->changes; c; c = c->next) {
		if (c->kind == SIM_SIZE) {
			if (sizes == 0)
				continue;
			sizes--;
			if (c->off < size)
				memset(data + c->off, 0, size - c->off);
			size = c->off;
			continue;
		}
		for (uint64_t at = 0; at < c->len; at += SIM_SECTOR, mask >>= 1)
			if (mask & 1)
				memcpy(data + c->off + at, c->data + at,
					ckpt_min_u64(SIM_SECTOR, c->len - at));
	}
	*ret_size = size;
}

static void add_file(struct variants_node *node, size_t sizes, uint64_t mask, char *data)
{
	uint64_t size;

	apply_file(node->inode, sizes, mask, data, &size);
	uint64_t hash = ckpt_hash64(data, size, size);
	if (find_same(node, hash))
		return;
	struct variant *v = add(node, hash);
	v->size = size;
	v->data = sim_alloc(size);
	memcpy(v->data, data, size);
}

static void take_file(struct variants *all, struct variants_node *node)
{
	const struct sim_inode *inode = node->inode;
	uint64_t bits = 0;
	size_t sizes = 0;

	for (const struct sim_change *c = inode->changes; c; c = c->next) {
		if (c->kind == SIM_DATA)
			bits += ckpt_align_up(c->len, SIM_SECTOR) / SIM_SECTOR;
		sizes += c->kind == SIM_SIZE;
	}
	char *data = sim_alloc(inode->room);
	bool some = bits > VARIANTS_BITS;
	uint64_t masks = some ? VARIANTS_CHANCE : UINT64_C(1) << bits;
	uint64_t full = bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
	all->sampled |= some;
	for (size_t s = 0; s <= sizes; s++)
		for (uint64_t m = 0; m < masks; m++)
			add_file(node, s,
				!some    ? m
				: m == 0 ? 0
				: m == 1 ? full
					 : sim_random(all->sim) & full,
				data);
	free(data);
}

static int by_entry(const void *a, const void *b)
{
	return strcmp(((const struct sim_entry *)a)->name, ((const struct sim_entry *)b)->name);
}

static void add_dir(struct variants_node *node, uint64_t mask)
{
	struct sim_names names = {0};
	const struct sim_inode *inode = node->inode;
	uint64_t hash = 1;

	for (size_t i = 0; i < inode->durable_names.count; i++)
		sim_names_set(
			&names, inode->durable_names.at[i].name, inode->durable_names.at[i].inode);
	for (const struct sim_change *c = inode->changes; c; c = c->next, mask >>= 1)
		if (mask & 1)
			sim_names_apply(&names, c);
	if (names.count)
		qsort(names.at, names.count, sizeof(*names.at), by_entry);
	for (size_t i = 0; i < names.count; i++) {
		hash = ckpt_hash64(names.at[i].name, strlen(names.at[i].name), hash);
		hash = ckpt_hash64(
			&names.at[i].inode->number, sizeof(names.at[i].inode->number), hash);
	}
	if (find_same(node, hash)) {
		free(names.at);
		return;
	}
	add(node, hash)->names = names;
}

static void take_dir(struct variants_node *node)
{
	size_t bits = 0;

	for (const struct sim_change *c = node->inode->changes; c; c = c->next)
		bits++;
	CKPT_ASSERT(bits <= VARIANTS_NAMES);
	for (uint64_t mask = 0; mask < UINT64_C(1) << bits; mask++)
		add_dir(node, mask);
}

void variants_take(struct variants *variants, struct sim *sim, struct sim_disk *disk)
{
	size_t count = 0;

	for (struct sim_inode *i = disk->inodes; i; i = i->next)
		i->number = count++;
	*variants = (struct variants){.sim = sim, .count = count};
	variants->nodes = sim_alloc(count * sizeof(*variants->nodes));
	for (struct sim_inode *i = disk->inodes; i; i = i->next) {
		struct variants_node *node = &variants->nodes[i->number];
		node->inode = i;
		if (i->dir)
			take_dir(node);
		else
			take_file(variants, node);
	}
}

void variants_drop(struct variants *variants)
{
	for (size_t i = 0; i < variants->count; i++) {
		struct variants_node *node = &variants->nodes[i];
		for (size_t k = 0; k < node->count; k++) {
			free(node->at[k].data);
			free(node->at[k].names.at);
		}
		free(node->at);
	}
	free(variants->nodes);
}

struct variants_node *variants_of(const struct variants *variants, const struct sim_inode *inode)
{
	return &variants->nodes[inode->number];
}

struct variants_node *variants_find(
	const struct variants *variants, const struct sim_inode *root, const char *path)
{
	struct variants_node *node = variants_of(variants, root);

	if (strcmp(path, ".") == 0)
		return node;
	for (;;) {
		size_t length = strcspn(path, "/");
		const struct sim_names *names = &node->at[node->pick].names;
		struct variants_node *found = NULL;
		for (size_t i = 0; i < names->count && !found; i++)
			if (strncmp(names->at[i].name, path, length) == 0 &&
				!names->at[i].name[length])
				found = variants_of(variants, names->at[i].inode);
		if (!found || !path[length])
			return found;
		if (!found->inode->dir)
			return NULL;
		node = found;
		path += length + 1;
	}
}

static void copy_dir(const struct variants *variants, const struct variants_node *dir,
	const char *path, struct sim_disk *disk)
{
	const struct sim_names *names = &dir->at[dir->pick].names;

	for (size_t i = 0; i < names->count; i++) {
		const struct variants_node *node = variants_of(variants, names->at[i].inode);
		const struct variant *v = &node->at[node->pick];
		char inner[256];
		uint64_t size;
		(void)snprintf(inner, sizeof(inner), "%s%s%s", path, path[0] ? "/" : "",
			names->at[i].name);
		if (node->inode->dir) {
			(void)sim_disk_mkdir(disk, inner);
			copy_dir(variants, node, inner, disk);
			continue;
		}
		int fd = sim_disk_open(disk, 1, 0, inner, CKPT_OPEN_CREATE, &size);
		struct sim_file *file = sim_disk_file(disk, 1, fd);
		if (v->size)
			(void)sim_disk_write(disk, file->inode, v->data, v->size, 0);
		sim_disk_close(disk, file);
	}
}

struct sim_disk *variants_copy(
	const struct variants *variants, const struct sim_inode *root, struct sim *sim)
{
	static const struct sim_cut all = {10000, 10000, 10000, 0};
	struct sim_disk *disk = sim_disk_new(sim);

	copy_dir(variants, variants_of(variants, root), "", disk);
	sim_disk_cut(disk, &all);
	return disk;
}
