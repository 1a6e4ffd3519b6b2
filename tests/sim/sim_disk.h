/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file system that forgets. What a program reads is the cached state; what a power cut leaves is
 * the durable state plus any part of what was not synced: bytes of files by sectors of 512, sizes and
 * names each on their own. Held to what POSIX promises, not to what one file system happens to do:
 * syncing a file says nothing of its name, syncing a directory nothing of its parent or its files.
 *
 * Everything happens at once here; sim_io.h puts requests in flight around it.
 */
#ifndef SIM_DISK_H
#define SIM_DISK_H

#include "sim.h"

struct sim_inode;
struct sim_disk;

enum sim_lock {
	SIM_UNLOCKED = 0,
	SIM_SHARED,
	SIM_EXCLUSIVE,
};

/* An open file description. */
struct sim_file {
	struct sim_file *next;
	struct sim_inode *inode;
	int fd; /* never used twice */
	unsigned owner;
	unsigned flags; /* CKPT_OPEN_* */
	enum sim_lock lock;
	uint64_t lock_off; /* which bytes */
	uint64_t lock_len; /* 0: all from there on */
	unsigned node;     /* machine: locks do not reach beyond it */
};

/* A write of a dead process that has not reached the disk. */
struct sim_late {
	struct sim_late *next;
	struct sim_inode *inode;
	uint64_t ready_ns;
	uint64_t off;
	uint64_t len;
	unsigned owner;
	char data[];
};

struct sim_disk *sim_disk_new(struct sim *sim);
void sim_disk_free(struct sim_disk *disk);

/* Number of changes so far. A sync that is asked for now must save all of them. */
uint64_t sim_disk_mark(const struct sim_disk *disk);

/* Relative, without empty components, "." or "..". "." alone is the root. */
bool sim_path_valid(const char *path);

/* Names. 0 or -errno. */
int sim_disk_open(struct sim_disk *disk, unsigned owner, unsigned node, const char *path,
	unsigned flags, uint64_t *ret_size);
int sim_disk_mkdir(struct sim_disk *disk, const char *path);
int sim_disk_rename(struct sim_disk *disk, const char *path, const char *new_path, bool replace);
int sim_disk_unlink(struct sim_disk *disk, const char *path);
int sim_disk_rmdir(struct sim_disk *disk, const char *path);
/* `*ret_names` as ckpt_listing has them, from sim_alloc. */
int sim_disk_list(struct sim_disk *disk, const char *path, char **ret_names, size_t *ret_bytes,
	size_t *ret_count);
/*
 * `fail`: as journals do it, either the next one saves it all the same, or the file system has stopped:
 * it can be read, and nothing can be changed before the machine is started again.
 */
int sim_disk_sync_dir(struct sim_disk *disk, const char *path, uint64_t mark, bool fail);
bool sim_disk_stopped(const struct sim_disk *disk);

/* Files. */
struct sim_file *sim_disk_file(struct sim_disk *disk, unsigned owner, int fd);
const char *sim_file_name(const struct sim_file *file);
void sim_disk_close(struct sim_disk *disk, struct sim_file *file);
int64_t sim_disk_write(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off);
int64_t sim_disk_read(struct sim_inode *inode, void *data, uint64_t len, uint64_t off);
int sim_disk_allocate(struct sim_disk *disk, struct sim_inode *inode, uint64_t len);
int sim_disk_truncate(struct sim_disk *disk, struct sim_inode *inode, uint64_t len);
/* Makes durable what was changed up to `mark`. `fail`: does not, and no later sync will. */
int sim_disk_fdatasync(struct sim_disk *disk, struct sim_inode *inode, uint64_t mark, bool fail);
/* Until then it answers nothing. */
void sim_disk_hang(struct sim_disk *disk, uint64_t until_ns);
uint64_t sim_disk_hung_until(const struct sim_disk *disk);
int sim_disk_lock(
	struct sim_disk *disk, struct sim_file *file, uint64_t off, uint64_t len, bool shared);

/* A process is dead: its files are closed, its locks let go. */
void sim_disk_drop(struct sim_disk *disk, unsigned owner);
unsigned sim_disk_open_count(const struct sim_disk *disk, unsigned owner);

/* What a dead process had under way. */
void sim_disk_put_late(struct sim_disk *disk, struct sim_late *late);
/* Lands those that are due. Returns when the next one is; UINT64_MAX: none. */
uint64_t sim_disk_land(struct sim_disk *disk);

/* How much of what was not synced a power cut leaves, in chances per 10,000. */
struct sim_cut {
	unsigned data;
	unsigned sizes;
	unsigned names;
	unsigned torn; /* of the data that is lost: by sectors instead */
};
/* The power goes. No file may be open. */
void sim_disk_cut(struct sim_disk *disk, const struct sim_cut *cut);
/* One of the cuts that find most, or any. */
struct sim_cut sim_cut_pick(struct sim *sim);

/*
 * Who is told what a lie of the disk has hit, or damage, by the path of the file. `passing`: only a
 * read found it so.
 */
typedef void sim_hit_fn(void *user, const char *path, bool passing);
void sim_disk_tell(struct sim_disk *disk, sim_hit_fn *hit, void *user);

/* Damages one durable file below `path` (a directory) for good: a bit, zeroes, a piece of its own. */
void sim_disk_rot(struct sim_disk *disk, const char *path);

/*
 * Whether a lie that is due is told of this file: mostly of those of steps. Without its marker and claims
 * a store has nothing to fall back to, and the rest of the run nothing to find.
 */
bool sim_disk_may_lie(struct sim_disk *disk, const struct sim_inode *inode);
/* A write that is acknowledged, and after every sync the old bytes are still there. */
int64_t sim_disk_lose(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off);
/* The same, and the bytes overwrite others: of this file, or of another one. */
int64_t sim_disk_misplace(struct sim_disk *disk, struct sim_inode *inode, const void *data,
	uint64_t len, uint64_t off);
/* What was read is in part what was there before, or what is elsewhere. */
void sim_disk_confuse(
	struct sim_disk *disk, struct sim_inode *inode, void *data, uint64_t len, uint64_t off);

/* The files of a directory are written: whoever changes one of them from now on, overwrites it. */
void sim_disk_seal(struct sim_disk *disk, const char *path);

/* Bytes in use, and what there is. */
uint64_t sim_disk_used(const struct sim_disk *disk);
void sim_disk_set_space(struct sim_disk *disk, uint64_t bytes);
bool sim_disk_exists(struct sim_disk *disk, const char *path);

#endif
