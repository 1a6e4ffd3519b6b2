/* SPDX-License-Identifier: Apache-2.0 */
/* What sim_disk.c (the tree) and sim_cut.c (what is durable of it) share. */
#ifndef SIM_INODE_H
#define SIM_INODE_H

#include "sim_disk.h"

#define SIM_SECTOR     512
#define SIM_NAME_CHARS 80
#define SIM_PATH_CHARS 192
#define SIM_INODE_COST 512 /* bytes of disk that a name takes */

struct sim_entry {
	char name[SIM_NAME_CHARS];
	struct sim_inode *inode;
};

struct sim_names {
	struct sim_entry *at;
	size_t count;
	size_t room;
};

enum sim_change_kind {
	SIM_DATA = 1, /* len bytes at off */
	SIM_SIZE,     /* off is the new size */
	SIM_ADD,      /* name -> inode */
	SIM_DROP,     /* name */
	SIM_MOVE,     /* name -> new_name, which is inode */
};

/* Something that is cached and not durable. */
struct sim_change {
	struct sim_change *next;
	uint64_t seq;
	enum sim_change_kind kind;
	bool doomed; /* its sync has failed: clean, so no later sync saves it */
	bool lost;   /* its sync succeeds, and does not save it */
	uint64_t off;
	uint64_t len;
	struct sim_inode *inode;
	char name[SIM_NAME_CHARS];
	char new_name[SIM_NAME_CHARS];
	char data[];
};

struct sim_inode {
	struct sim_inode *next; /* all of the disk */
	bool dir;
	bool linked; /* has a name in the cached tree */
	bool marked;
	size_t number; /* of whoever walks all of them */
	bool sealed;   /* may not be written any more */
	unsigned opens;
	char label[SIM_NAME_CHARS]; /* its last name, for the history */
	char path[SIM_PATH_CHARS];
	struct sim_change *changes; /* oldest first */
	struct sim_change **last;

	/* File. Bytes from size to room are zero. */
	char *cached;
	char *durable;
	uint64_t room;
	uint64_t cached_size;
	uint64_t durable_size;
	uint64_t reserved;

	/* Directory. */
	struct sim_names cached_names;
	struct sim_names durable_names;
};

struct sim_disk {
	struct sim *sim;
	struct sim_inode *root;
	struct sim_inode *inodes;
	struct sim_file *files;
	struct sim_late *late;
	uint64_t seq;
	uint64_t space;
	int next_fd;
	bool stopped;
	uint64_t hung_until_ns;
	sim_hit_fn *hit;
	void *hit_user;
};

struct sim_entry *sim_names_find(struct sim_names *names, const char *name);
void sim_names_set(struct sim_names *names, const char *name, struct sim_inode *inode);
void sim_names_drop(struct sim_names *names, const char *name);
void sim_names_apply(struct sim_names *names, const struct sim_change *change);
struct sim_inode *sim_disk_find(struct sim_disk *disk, const char *path);
/* Tells the lie or damage. */
void sim_disk_hit(
	struct sim_disk *disk, const struct sim_inode *inode, const char *how, bool passing);
void sim_inode_free(struct sim_inode *inode);

#endif
