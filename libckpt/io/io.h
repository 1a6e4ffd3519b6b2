/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files, asynchronously. One table; io.c holds the only calls of its members. A backend owns a request
 * from ckpt_io_submit() until it pushes `node` into the inbox, and never touches it after that.
 *
 * All paths are relative to `root` (a directory descriptor of the request), have several components
 * at most, and are resolved without leaving it and without following symbolic links.
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
	CKPT_IO_OP_LOCK, /* fd, flags, off, len: open-file lock on these bytes, which need not be there; len 0:
	                         on all from off on. -EAGAIN when held, -ENOENT when the file has no name any more */
	CKPT_IO_OP_MKDIR,    /* path; -EEXIST */
	CKPT_IO_OP_RENAME,   /* path -> new_path, flags; -EEXIST unless it may replace */
	CKPT_IO_OP_UNLINK,   /* path */
	CKPT_IO_OP_RMDIR,    /* path */
	CKPT_IO_OP_SYNC_DIR, /* path ("." is the root): opens, fsyncs and closes a directory */
	CKPT_IO_OP_LIST,     /* path -> names in `listing` */
	CKPT_IO_OP_FORGET, /* slot, len: so many slots from this one on hold no memory of the kernel's any more, until
	                      they are used again. Nothing in them is under way */
};

/* OPEN: what for. */
#define CKPT_OPEN_CREATE    1u /* O_CREAT|O_EXCL|O_RDWR, mode 0666 under the umask; else O_RDONLY */
#define CKPT_OPEN_DIRECT    2u /* O_DIRECT */
#define CKPT_OPEN_RDWR      4u /* O_RDWR of an existing file (open-file write locks need it) */
#define CKPT_OPEN_EXACT     16u /* the page cache is given what is read, and nothing ahead of it */
/* LOCK: shared instead of exclusive. */
#define CKPT_LOCK_SHARED    8u
/* RENAME: what has the new name loses it, at once. */
#define CKPT_RENAME_REPLACE 32u

struct ckpt_io_req {
	struct ckpt_node node; /* back through the inbox when `result` is set */
	enum ckpt_io_op op;
	unsigned flags;
	int root;
	int fd;
	int slot;             /* registered staging slot that buf lies in, or -1 */
	const char *path;     /* borrowed until done */
	const char *new_path; /* borrowed until done */
	void *buf;
	uint64_t len;
	uint64_t off;
	int64_t result; /* >= 0, or -errno */
	uint64_t size;
	struct ckpt_listing listing;
	struct ckpt_io_req *next; /* the backend's */
	unsigned tries;           /* the backend's */
};

struct ckpt_io;

struct ckpt_io_ops {
	const char *name; /* "io_uring", "threads" */
	/* Any thread. Never blocks and never fails: errors come back in `result`. */
	void (*submit)(struct ckpt_io *io, struct ckpt_io_req *req);
	/* Staging memory, `count` slots of `size` bytes each; NULL: not supported. Before the first submit. */
	int (*register_slots)(struct ckpt_io *io, void *base, size_t size, unsigned count);
	/*
	 * Waits at most timeout_ms for what is under way, then ends the threads and frees. -ETIMEDOUT:
	 * something does not answer, and the backend has left itself behind: what it may still touch,
	 * the inbox and the memory of its requests, must stay.
	 */
	int (*close)(struct ckpt_io *io, int timeout_ms);
};

struct ckpt_io {
	const struct ckpt_io_ops *ops;
	struct ckpt_inbox *inbox;
	bool direct;      /* data files can be opened with CKPT_OPEN_DIRECT */
	bool registered;  /* register_slots succeeded */
	uint32_t align;   /* of buffers, offsets and lengths with CKPT_OPEN_DIRECT */
	unsigned threads; /* that it runs */
	int probe_error;  /* why a better backend was not taken, -errno; 0: it is the best */
};

void ckpt_io_submit(struct ckpt_io *io, struct ckpt_io_req *req);
int ckpt_io_register_slots(struct ckpt_io *io, void *base, size_t size, unsigned count);
/* NULL is ignored and gives 0. */
int ckpt_io_close(struct ckpt_io *io, int timeout_ms);

#define CKPT_IO_DEPTH     16
#define CKPT_IO_DEPTH_MAX 1024

struct ckpt_io_config {
	uint32_t kind; /* enum ckpt_io_kind of ckpt/engine.h: AUTO, URING, THREADS */
	uint32_t
		depth; /* requests in flight at the disk; 0: CKPT_IO_DEPTH; CKPT_IO_DEPTH_MAX at most */
	int root;      /* directory in which to probe O_DIRECT; -1: no direct I/O */
	bool read_only; /* nothing may be made in root: O_DIRECT is probed on a file that is there */
	struct ckpt_inbox *inbox;
};

/* The best backend that works here: io_uring if it can be set up, else threads. O_DIRECT is probed. */
int ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

/* One backend. */
int ckpt_io_uring_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);
int ckpt_io_threads_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io);

/* Executes any request on this thread, blocking; sets `result`. What both backends fall back on. */
void ckpt_io_exec(struct ckpt_io_req *req);

#endif
