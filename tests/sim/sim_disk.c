/* SPDX-License-Identifier: Apache-2.0 */
/* The cached state of the simulated file system: what running programs see. */
#include "sim_inode.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "io/io.h"

static void copy_name(char to[SIM_NAME_CHARS], const char *from)
{
	size_t length = strlen(from);

	CKPT_ASSERT(length < SIM_NAME_CHARS);
	memcpy(to, from, length + 1);
}

struct sim_entry *sim_names_find(struct sim_names *names, const char *name)
{
	for (size_t i = 0; i < names->count; i++)
		if (strcmp(names->at[i].name, name) == 0)
			return &names->at[i];
	return NULL;
}

void sim_names_set(struct sim_names *names, const char *name, struct sim_inode *inode)
{
	struct sim_entry *old = sim_names_find(names, name);

	if (!old) {
		if (names->count == names->room) {
			size_t room = names->room ? names->room * 2 : 4;
			struct sim_entry *at = sim_alloc(room * sizeof(*at));
			if (names->count)
				memcpy(at, names->at, names->count * sizeof(*at));
			free(names->at);
			names->at = at;
			names->room = room;
		}
		old = &names->at[names->count++];
		copy_name(old->name, name);
	}
	old->inode = inode;
}

void sim_names_drop(struct sim_names *names, const char *name)
{
	struct sim_entry *old = sim_names_find(names, name);

	if (old)
		*old = names->at[--names->count];
}

void sim_names_apply(struct sim_names *names, const struct sim_change *change)
{
	if (change->kind != SIM_ADD)
		sim_names_drop(names, change->name);
	if (change->kind == SIM_ADD)
		sim_names_set(names, change->name, change->inode);
	else if (change->kind == SIM_MOVE)
		sim_names_set(names, change->new_name, change->inode);
}

static struct sim_inode *inode_new(struct sim_disk *disk, bool dir, const char *label)
{
	struct sim_inode *inode = sim_alloc(sizeof(*inode));

	inode->dir = dir;
	inode->last = &inode->changes;
	inode->next = disk->inodes;
	disk->inodes = inode;
	copy_name(inode->label, label);
	return inode;
}

void sim_inode_free(struct sim_inode *inode)
{
	while (inode->changes) {
		struct sim_change *change = inode->changes;
		inode->changes = change->next;
		free(change);
	}
	free(inode->cached);
	free(inode->durable);
	free(inode->cached_names.at);
	free(inode->durable_names.at);
	free(inode);
}

struct sim_disk *sim_disk_new(struct sim *sim)
{
	struct sim_disk *disk = sim_alloc(sizeof(*disk));

	disk->sim = sim;
	disk->space = UINT64_MAX;
	disk->next_fd = 100;
	disk->root = inode_new(disk, true, ".");
	disk->root->linked = true;
	return disk;
}

void sim_disk_free(struct sim_disk *disk)
{
	while (disk->files)
		sim_disk_close(disk, disk->files);
	while (disk->late) {
		struct sim_late *late = disk->late;
		disk->late = late->next;
		free(late);
	}
	while (disk->inodes) {
		struct sim_inode *inode = disk->inodes;
		disk->inodes = inode->next;
		sim_inode_free(inode);
	}
	free(disk);
}

uint64_t sim_disk_mark(const struct sim_disk *disk)
{
	return disk->seq;
}

void sim_disk_set_space(struct sim_disk *disk, uint64_t bytes)
{
	disk->space = bytes;
}

uint64_t sim_disk_used(const struct sim_disk *disk)
{
	uint64_t used = 0;

	for (const struct sim_inode *i = disk->inodes; i; i = i->next)
		if (i->linked || i->opens)
			used += i->reserved + SIM_INODE_COST;
	return used;
}

static bool fits(const struct sim_disk *disk, uint64_t more)
{
	return disk->space == UINT64_MAX || sim_disk_used(disk) + more <= disk->space;
}

static struct sim_change *add_change(struct sim_disk *disk, struct sim_inode *inode,
	enum sim_change_kind kind, uint64_t off, uint64_t len)
{
	struct sim_change *change = sim_alloc(sizeof(*change) + (kind == SIM_DATA ? len : 0));

	change->seq = ++disk->seq;
	change->kind = kind;
	change->off = off;
	change->len = len;
	*inode->last = change;
	inode->last = &change->next;
	return change;
}

static void change_name(struct sim_disk *disk, struct sim_inode *dir, enum sim_change_kind kind,
	const char *name, const char *new_name, struct sim_inode *inode)
{
	struct sim_change *change = add_change(disk, dir, kind, 0, 0);

	copy_name(change->name, name);
	if (new_name)
		copy_name(change->new_name, new_name);
	change->inode = inode;
	sim_names_apply(&dir->cached_names, change);
}

bool sim_path_valid(const char *path)
{
	const char *at = path;

	if (strcmp(path, ".") == 0)
		return true;
	for (;;) {
		size_t length = strcspn(at, "/");
		if (length == 0 || length >= SIM_NAME_CHARS)
			return false;
		if (at[0] == '.' && (length == 1 || (length == 2 && at[1] == '.')))
			return false;
		if (!at[length])
			return true;
		at += length + 1;
	}
}

/* The directory that `path` is in, and its name there. */
static int find_parent(struct sim_disk *disk, const char *path, struct sim_inode **ret_dir,
	char name[SIM_NAME_CHARS])
{
	struct sim_inode *dir = disk->root;

	CKPT_ASSERT(sim_path_valid(path));
	for (;;) {
		size_t length = strcspn(path, "/");
		memcpy(name, path, length);
		name[length] = 0;
		if (!path[length])
			break;
		struct sim_entry *entry = sim_names_find(&dir->cached_names, name);
		if (!entry)
			return -ENOENT;
		if (!entry->inode->dir)
			return -ENOTDIR;
		dir = entry->inode;
		path += length + 1;
	}
	*ret_dir = dir;
	return 0;
}

struct sim_inode *sim_disk_find(struct sim_disk *disk, const char *path)
{
	struct sim_inode *dir;
	char name[SIM_NAME_CHARS];

	if (strcmp(path, ".") == 0)
		return disk->root;
	if (find_parent(disk, path, &dir, name) < 0)
		return NULL;
	struct sim_entry *entry = sim_names_find(&dir->cached_names, name);
	return entry ? entry->inode : NULL;
}

bool sim_disk_exists(struct sim_disk *disk, const char *path)
{
	return sim_disk_find(disk, path) != NULL;
}

static void set_path(struct sim_inode *inode, const char *path)
{
	size_t length = strlen(path);

	CKPT_ASSERT(length < SIM_PATH_CHARS);
	memcpy(inode->path, path, length + 1);
}

/* A new name in the cached tree. */
static int create(struct sim_disk *disk, const char *path, bool is_dir, struct sim_inode **ret)
{
	struct sim_inode *dir;
	char name[SIM_NAME_CHARS];

	int r = find_parent(disk, path, &dir, name);
	if (r < 0)
		return r;
	if (sim_names_find(&dir->cached_names, name))
		return -EEXIST;
	if (disk->stopped)
		return -EROFS;
	if (!fits(disk, SIM_INODE_COST))
		return -ENOSPC;
	*ret = inode_new(disk, is_dir, name);
	(*ret)->linked = true;
	set_path(*ret, path);
	change_name(disk, dir, SIM_ADD, name, NULL, *ret);
	return 0;
}

/* Now and then 0, which is a file as any other where standard input is closed. */
static int pick_fd(struct sim_disk *disk, unsigned owner)
{
	int fd = disk->next_fd++;

	return fd % 3 == 0 && !sim_disk_file(disk, owner, 0) ? 0 : fd;
}

int sim_disk_open(struct sim_disk *disk, unsigned owner, unsigned node, const char *path,
	unsigned flags, uint64_t *ret_size)
{
	struct sim_inode *inode;

	if (flags & CKPT_OPEN_CREATE) {
		int r = create(disk, path, false, &inode);
		if (r < 0)
			return r;
	} else {
		inode = sim_disk_find(disk, path);
		if (!inode)
			return -ENOENT;
		if (inode->dir)
			return -EISDIR;
	}
	struct sim_file *file = sim_alloc(sizeof(*file));
	*file = (struct sim_file){.next = disk->files,
		.inode = inode,
		.fd = pick_fd(disk, owner),
		.owner = owner,
		.node = node,
		.flags = flags};
	disk->files = file;
	inode->opens++;
	*ret_size = inode->cached_size;
	return file->fd;
}

int sim_disk_mkdir(struct sim_disk *disk, const char *path)
{
	struct sim_inode *inode;

	return create(disk, path, true, &inode);
}

int sim_disk_rename(struct sim_disk *disk, const char *path, const char *new_path, bool replace)
{
	struct sim_inode *dir;
	struct sim_inode *new_dir;
	char name[SIM_NAME_CHARS];
	char new_name[SIM_NAME_CHARS];

	int r = find_parent(disk, path, &dir, name);
	if (r == 0)
		r = find_parent(disk, new_path, &new_dir, new_name);
	if (r < 0)
		return r;
	struct sim_entry *entry = sim_names_find(&dir->cached_names, name);
	if (!entry)
		return -ENOENT;
	if (dir != new_dir)
		return -EXDEV; /* two directories cannot change at once in this model */
	struct sim_entry *other = sim_names_find(&dir->cached_names, new_name);
	if (other && !replace)
		return -EEXIST;
	if (other && other->inode->dir)
		return -EISDIR;
	if (disk->stopped)
		return -EROFS;
	if (other)
		other->inode->linked = false;
	struct sim_inode *inode = entry->inode;
	copy_name(inode->label, new_name);
	set_path(inode, new_path);
	change_name(disk, dir, SIM_MOVE, name, new_name, inode);
	return 0;
}

static int drop_name(struct sim_disk *disk, const char *path, bool is_dir)
{
	struct sim_inode *dir;
	char name[SIM_NAME_CHARS];

	int r = find_parent(disk, path, &dir, name);
	if (r < 0)
		return r;
	struct sim_entry *entry = sim_names_find(&dir->cached_names, name);
	if (!entry)
		return -ENOENT;
	if (entry->inode->dir != is_dir)
		return is_dir ? -ENOTDIR : -EISDIR;
	if (entry->inode->cached_names.count)
		return -ENOTEMPTY;
	if (disk->stopped)
		return -EROFS;
	entry->inode->linked = false;
	change_name(disk, dir, SIM_DROP, name, NULL, NULL);
	return 0;
}

int sim_disk_unlink(struct sim_disk *disk, const char *path)
{
	return drop_name(disk, path, false);
}

int sim_disk_rmdir(struct sim_disk *disk, const char *path)
{
	return drop_name(disk, path, true);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int sim_disk_list(struct sim_disk *disk, const char *path, char **ret_names, size_t *ret_bytes,
	size_t *ret_count)
{
	struct sim_inode *dir = sim_disk_find(disk, path);

	if (!dir)
		return -ENOENT;
	if (!dir->dir)
		return -ENOTDIR;
	size_t count = dir->cached_names.count;
	const char **sorted = sim_alloc(count * sizeof(*sorted));
	size_t bytes = 0;
	for (size_t i = 0; i < count; i++) {
		sorted[i] = dir->cached_names.at[i].name;
		bytes += strlen(sorted[i]) + 1;
	}
	qsort(sorted, count, sizeof(*sorted), by_name);
	char *names = sim_alloc(bytes);
	char *at = names;
	for (size_t i = 0; i < count; i++) {
		size_t length = strlen(sorted[i]) + 1;
		memcpy(at, sorted[i], length);
		at += length;
	}
	free(sorted);
	*ret_names = names;
	*ret_bytes = bytes;
	*ret_count = count;
	return 0;
}

struct sim_file *sim_disk_file(struct sim_disk *disk, unsigned owner, int fd)
{
	for (struct sim_file *f = disk->files; f; f = f->next)
		if (f->fd == fd && f->owner == owner)
			return f;
	return NULL;
}

const char *sim_file_name(const struct sim_file *file)
{
	return file->inode->label;
}

void sim_disk_close(struct sim_disk *disk, struct sim_file *file)
{
	struct sim_file **link = &disk->files;

	while (*link != file)
		link = &(*link)->next;
	*link = file->next;
	file->inode->opens--;
	free(file);
}

void sim_disk_drop(struct sim_disk *disk, unsigned owner)
{
	for (struct sim_file *f = disk->files, *next; f; f = next) {
		next = f->next;
		if (f->owner == owner)
			sim_disk_close(disk, f);
	}
}

unsigned sim_disk_open_count(const struct sim_disk *disk, unsigned owner)
{
	unsigned count = 0;

	for (const struct sim_file *f = disk->files; f; f = f->next)
		count += f->owner == owner;
	return count;
}

void sim_disk_seal(struct sim_disk *disk, const char *path)
{
	struct sim_inode *dir = sim_disk_find(disk, path);

	for (size_t i = 0; dir && i < dir->cached_names.count; i++) {
		const struct sim_entry *entry = &dir->cached_names.at[i];
		/* A temporary name is of somebody who tries to publish something else. */
		entry->inode->sealed |= strstr(entry->name, ".tmp-") == NULL;
	}
}

static void check_sealed(struct sim_disk *disk, const struct sim_inode *inode)
{
	if (inode->sealed)
		sim_violation(disk->sim, "%s belongs to a step that is durable, and is overwritten",
			inode->path);
}

static void grow(struct sim_inode *inode, uint64_t size)
{
	uint64_t room = inode->room ? inode->room : 4096;

	if (size <= inode->room)
		return;
	while (room < size)
		room *= 2;
	char *cached = sim_alloc(room);
	char *durable = sim_alloc(room);
	if (inode->room) {
		memcpy(cached, inode->cached, inode->room);
		memcpy(durable, inode->durable, inode->room);
	}
	free(inode->cached);
	free(inode->durable);
	inode->cached = cached;
	inode->durable = durable;
	inode->room = room;
}

static void set_size(struct sim_disk *disk, struct sim_inode *inode, uint64_t size)
{
	grow(inode, size);
	if (size < inode->cached_size)
		memset(inode->cached + size, 0, inode->cached_size - size);
	inode->cached_size = size;
	add_change(disk, inode, SIM_SIZE, size, 0);
}

/* Space up to `end`; false if there is too little. */
static bool reserve(struct sim_disk *disk, struct sim_inode *inode, uint64_t end)
{
	end = ckpt_align_up(end, SIM_SECTOR);
	if (end <= inode->reserved)
		return true;
	if (!fits(disk, end - inode->reserved))
		return false;
	inode->reserved = end;
	return true;
}

int64_t sim_disk_write(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off)
{
	if (disk->stopped)
		return -EROFS;
	check_sealed(disk, inode);
	if (!reserve(disk, inode, off + len))
		return -ENOSPC;
	grow(inode, off + len);
	struct sim_change *change = add_change(disk, inode, SIM_DATA, off, len);
	memcpy(change->data, data, len);
	memcpy(inode->cached + off, data, len);
	if (off + len > inode->cached_size)
		set_size(disk, inode, off + len);
	return (int64_t)len;
}

int64_t sim_disk_read(struct sim_inode *inode, void *data, uint64_t len, uint64_t off)
{
	if (off >= inode->cached_size)
		return 0;
	len = ckpt_min_u64(len, inode->cached_size - off);
	memcpy(data, inode->cached + off, len);
	return (int64_t)len;
}

int sim_disk_allocate(struct sim_disk *disk, struct sim_inode *inode, uint64_t len)
{
	if (disk->stopped)
		return -EROFS;
	check_sealed(disk, inode);
	if (!reserve(disk, inode, len))
		return -ENOSPC;
	if (len > inode->cached_size)
		set_size(disk, inode, len);
	return 0;
}

int sim_disk_truncate(struct sim_disk *disk, struct sim_inode *inode, uint64_t len)
{
	uint64_t end = ckpt_align_up(len, SIM_SECTOR);

	if (disk->stopped)
		return -EROFS;
	check_sealed(disk, inode);
	if (!reserve(disk, inode, len))
		return -ENOSPC;
	set_size(disk, inode, len);
	inode->reserved = ckpt_min_u64(inode->reserved, end);
	return 0;
}

void sim_disk_hang(struct sim_disk *disk, uint64_t until_ns)
{
	disk->hung_until_ns = until_ns;
}

uint64_t sim_disk_hung_until(const struct sim_disk *disk)
{
	return disk->hung_until_ns;
}

static uint64_t end_of(uint64_t off, uint64_t len)
{
	return len ? off + len : UINT64_MAX;
}

int sim_disk_lock(
	struct sim_disk *disk, struct sim_file *file, uint64_t off, uint64_t len, bool shared)
{
	/* As io.h has it: whoever unlinked the file did so under the lock. */
	if (!file->inode->linked)
		return -ENOENT;
	for (const struct sim_file *f = disk->files; f; f = f->next) {
		if (f == file || f->inode != file->inode || f->node != file->node)
			continue;
		if (off >= end_of(f->lock_off, f->lock_len) || f->lock_off >= end_of(off, len))
			continue;
		if (f->lock == SIM_EXCLUSIVE || (f->lock == SIM_SHARED && !shared))
			return -EAGAIN;
	}
	file->lock = shared ? SIM_SHARED : SIM_EXCLUSIVE;
	file->lock_off = off;
	file->lock_len = len;
	return 0;
}
