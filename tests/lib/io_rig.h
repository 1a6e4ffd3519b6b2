/* SPDX-License-Identifier: Apache-2.0 */
/* A backend over a directory of its own, and requests that are waited for. */
#ifndef CKPT_TESTS_IO_RIG_H
#define CKPT_TESTS_IO_RIG_H

#include <ckpt/engine.h>
#include "io/io.h"

/* Where a test runs: a directory below the working directory (a disk), or one in /dev/shm (memory). */
enum rig_place {
	RIG_DISK = 0,
	RIG_SHM,
};

struct io_rig {
	struct ckpt_inbox inbox;
	struct ckpt_io *io;
	char *dir;
	int root;
};

struct rig_req {
	struct ckpt_io_req req;
	bool done;
};

/* Makes and opens a directory; removes it with all that is in it. */
char *rig_dir_make(enum rig_place place);
void rig_dir_remove(char *dir);

/* 0, or what ckpt_io_open() says; then nothing is left. */
int io_rig_open(struct io_rig *rig, enum ckpt_io_kind kind, enum rig_place place);
/* The same in a directory that is there, and stays. */
int io_rig_open_at(struct io_rig *rig, enum ckpt_io_kind kind, unsigned depth, const char *dir);
/* Closes; the directory goes if the rig has made it. Exits if something is still under way. */
void io_rig_close(struct io_rig *rig);

/* Submits, and waits until it is done, thirty seconds at most. Requests are for the rig's directory. */
void io_rig_submit(struct io_rig *rig, struct rig_req *req);
void io_rig_wait(struct io_rig *rig, struct rig_req *req);
int64_t io_rig_do(struct io_rig *rig, struct ckpt_io_req *req);

/* Short ways to say what most tests ask. */
int64_t io_rig_path(struct io_rig *rig, enum ckpt_io_op op, const char *path);
int64_t io_rig_open_file(struct io_rig *rig, const char *path, unsigned flags);
int64_t io_rig_fd(struct io_rig *rig, enum ckpt_io_op op, int64_t fd, uint64_t len);
int64_t io_rig_write(struct io_rig *rig, int64_t fd, const void *data, uint64_t len, uint64_t off);
int64_t io_rig_read(struct io_rig *rig, int64_t fd, void *data, uint64_t len, uint64_t off);
int64_t io_rig_rename(struct io_rig *rig, const char *path, const char *new_path);

/* Zeroed memory at a multiple of 4096; free() it. */
void *rig_pages(size_t size);
/* Bytes that `seed` decides, and whether they are still the same. */
void rig_fill(void *data, size_t size, unsigned seed);
bool rig_filled(const void *data, size_t size, unsigned seed);

/*
 * Waits until this process has `threads` threads, ten seconds at most: one that was joined may stay
 * visible for a moment.
 */

/* io_uring works here; else says on standard error that the test does without. */
bool rig_has_uring(void);

#endif
