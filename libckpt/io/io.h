/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Asynchronous files. Only io.c calls the members of the table. A backend owns a request from ckpt_io_submit() until it
 * pushes `node` into the inbox, and never touches it after that.
 *
 * All paths are relative to `root` (a directory descriptor of the request), and are resolved without leaving it and
 * without following symbolic links.
 */
#ifndef CKPT_IO_IO_H
#define CKPT_IO_IO_H

#include "base/inbox.h"
#include "io/listing.h"

enum ckpt_io_op {
	CKPT_IO_OP_WRITE = 1, /* fd, buf, len, off, slot -> bytes; may be short */
	CKPT_IO_OP_READ,      /* fd, buf, len, off, slot -> bytes; may be short; 0 at the end */
	CKPT_IO_OP_FDATASYNC, /* fd */
	CKPT_IO_OP_OPEN,  /* path, flags -> fd; also sets `size` of an existing file. Regular files
	                         only: -EISDIR, -ENXIO, and -ELOOP for a symbolic link */
	CKPT_IO_OP_CLOSE, /* fd */
	CKPT_IO_OP_ALLOCATE, /* fd, len: reserves space from 0 */
	CKPT_IO_OP_TRUNCATE, /* fd, len */
	/*
	 * Fd, flags, off, len: open file description lock on these bytes, which need not exist; len 0: on all from off
	 * on. -EAGAIN if it is held, -ENOENT if the file has no name any more.
	 */
	CKPT_IO_OP_LOCK,
	CKPT_IO_OP_MKDIR,    /* path; -EEXIST */
	CKPT_IO_OP_RENAME,   /* path -> new_path, flags; -EEXIST without CKPT_RENAME_REPLACE */
	CKPT_IO_OP_UNLINK,   /* path */
	CKPT_IO_OP_RMDIR,    /* path */
	CKPT_IO_OP_SYNC_DIR, /* path ("." is the root): opens, fsyncs and closes a directory */
	CKPT_IO_OP_LIST,     /* path -> names in `listing` */
	/*
	 * Slot, len: releases the kernel's hold on the memory of `len` slots from `slot` on, until they are used again.
	 * Nothing in them is in flight.
	 */
	CKPT_IO_OP_FORGET,
};

/* Flags of OPEN. */
#define CKPT_OPEN_CREATE    1u /* O_CREAT|O_EXCL|O_RDWR, mode 0666 under the umask; else O_RDONLY */
#define CKPT_OPEN_DIRECT    2u /* O_DIRECT */
#define CKPT_OPEN_RDWR      4u /* O_RDWR of an existing file (write locks need it) */
#define CKPT_OPEN_EXACT     16u /* through the page cache, without read-ahead */
/* LOCK: shared instead of exclusive. */
#define CKPT_LOCK_SHARED    8u
/* RENAME: replaces the file that has the new name, atomically. */
#define CKPT_RENAME_REPLACE 32u

struct ckpt_io_req {
	struct ckpt_node node; /* pushed into the inbox when `result` is set */
	enum ckpt_io_op op;
	unsigned flags;
	int root;
	int fd;
	int slot;             /* registered staging slot that contains buf, or -1 */
	const char *path;     /* borrowed until done */
	const char *new_path; /* borrowed until done */
	void *buf;
	uint64_t len;
	uint64_t off;
	int64_t result; /* >= 0, or -errno */
	uint64_t size;
	struct ckpt_listing listing;
	struct ckpt_io_req *next; /* private to the backend */
	unsigned tries;           /* private to the backend */
};

struct ckpt_io;

struct ckpt_io_ops {
	const char *name; /* "io_uring", "threads" */
	/* Any thread. Never blocks or fails: errors are returned in `result`. */
	void (*submit)(struct ckpt_io *io, struct ckpt_io_req *req);
	/*
	 * Registers staging memory, `count` slots of `size` bytes each. NULL: not supported. Call it before the first
	 * submit.
	 */
	int (*register_slots)(struct ckpt_io *io, void *base, size_t size, unsigned count);
	/*
	 * Waits at most timeout_ms for requests in flight, then ends the threads and frees. -ETIMEDOUT: a request does
	 * not return, and the backend stays allocated. The inbox and the memory of its requests must stay, too.
	 */
	int (*close)(struct ckpt_io *io, int timeout_ms);
};

struct ckpt_io {
	const struct ckpt_io_ops *ops;
	struct ckpt_inbox *inbox;
	bool direct;      /* data files may be opened with CKPT_OPEN_DIRECT */
	bool registered;  /* register_slots succeeded */
	uint32_t align;   /* of buffers, offsets and lengths with CKPT_OPEN_DIRECT */
	unsigned threads; /* number of its threads */
	int probe_error;  /* why a better backend was not used, -errno; 0: this is the best */
};

void ckpt_io_submit(struct ckpt_io *io, struct ckpt_io_req *req);
int ckpt_io_register_slots(struct ckpt_io *io, void *base, size_t size, unsigned count);
/* NULL is ignored; returns 0. */
int ckpt_io_close(struct ckpt_io *io, int timeout_ms);

#define CKPT_IO_DEPTH     16
#define CKPT_IO_DEPTH_MAX 1024

struct ckpt_io_config {
	uint32_t kind; /* enum ckpt_io_kind of ckpt/engine.h: AUTO, URING, THREADS */
	uint32_t
		depth; /* requests in flight at the disk; 0: CKPT_IO_DEPTH; CKPT_IO_DEPTH_MAX at most */
	int root;      /* directory in which to probe O_DIRECT; -1: no direct I/O */
	bool read_only; /* create nothing in root: O_DIRECT is probed on an existing file */
	struct ckpt_inbox *inbox;
};

/* Opens the best backend that works here: io_uring if it can be set up, else threads. Probes O_DIRECT. */
int ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

/* The backends. */
int ckpt_io_uring_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);
int ckpt_io_threads_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

/* Executes a request on this thread, blocking; sets `result`. Both backends use it. */
void ckpt_io_exec(struct ckpt_io_req *req);

#endif
