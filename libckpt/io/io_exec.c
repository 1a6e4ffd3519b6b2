/* SPDX-License-Identifier: Apache-2.0 */
/* Every request as system calls, on the calling thread. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/thread.h"
#include "io/io.h"
#include "io/io_list.h"
#include "io/io_path.h"

/* Most bytes of one call: below the kernel's own limit, and a multiple of every alignment. */
#define TRANSFER_MAX (UINT64_C(1) << 30)

static int64_t done(int64_t r)
{
	return r < 0 ? -errno : r;
}

static int64_t do_write(const struct ckpt_io_req *req)
{
	return done(TEMP_FAILURE_RETRY(
		pwrite(req->fd, req->buf, ckpt_min_u64(req->len, TRANSFER_MAX), (off_t)req->off)));
}

static int64_t do_read(const struct ckpt_io_req *req)
{
	return done(TEMP_FAILURE_RETRY(
		pread(req->fd, req->buf, ckpt_min_u64(req->len, TRANSFER_MAX), (off_t)req->off)));
}

/*
 * Opens regular files only. O_NONBLOCK keeps the open from blocking on a FIFO, and is cleared afterwards, because
 * io_uring would not wait for the disk with it.
 */
static int64_t do_open(struct ckpt_io_req *req)
{
	bool create = req->flags & CKPT_OPEN_CREATE;
	int direct = req->flags & CKPT_OPEN_DIRECT ? O_DIRECT : 0;
	int access = create || req->flags & CKPT_OPEN_RDWR ? O_RDWR : O_RDONLY;
	struct stat st;

	int fd = ckpt_io_path_open(req->root, req->path,
		access | direct | (create ? O_CREAT | O_EXCL : O_NONBLOCK), 0666);
	if (fd < 0)
		return fd;
	int r = fstat(fd, &st) < 0 ? -errno : 0;
	if (r == 0 && !S_ISREG(st.st_mode))
		r = S_ISDIR(st.st_mode) ? -EISDIR : -ENXIO;
	if (r == 0 && !create && fcntl(fd, F_SETFL, direct) < 0)
		r = -errno;
	if (r < 0) {
		(void)close(fd);
		return r;
	}
	/* If the kernel ignores the advice, more bytes than requested are read. */
	if (req->flags & CKPT_OPEN_EXACT)
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	req->size = (uint64_t)st.st_size;
	return fd;
}

/*
 * The descriptor is closed whatever close() returns, EINTR included. The lock is released explicitly, because a child
 * may hold a copy of the descriptor, which would keep it.
 */
static int64_t do_close(const struct ckpt_io_req *req)
{
	struct flock none = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

	(void)fcntl(req->fd, F_OFD_SETLK, &none);
	ckpt_fork_forget(req->fd);
	return close(req->fd) < 0 && errno != EINTR ? -errno : 0;
}

/* Lustre without -o flock, file systems in buckets and kernels before 3.15 return different errors. */
static int64_t lock_error(int error)
{
	switch (error) {
	case EACCES:
		return -EAGAIN;
	case EINVAL:
	case ENOSYS:
	case EOPNOTSUPP:
		return -ENOLCK;
	default:
		return -error;
	}
}

static int64_t do_lock(const struct ckpt_io_req *req)
{
	struct flock lock = {
		.l_type = req->flags & CKPT_LOCK_SHARED ? F_RDLCK : F_WRLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)req->off,
		.l_len = (off_t)req->len,
	};
	struct stat st;

	if (fcntl(req->fd, F_OFD_SETLK, &lock) < 0)
		return lock_error(errno);
	/* The previous holder may have removed the file: a lock on it protects nothing. */
	if (fstat(req->fd, &st) < 0)
		return -errno;
	if (st.st_nlink == 0)
		return -ENOENT;
	ckpt_fork_close(req->fd);
	return 0;
}

static int64_t do_mkdir(const struct ckpt_io_req *req)
{
	const char *name;
	int parent = ckpt_io_path_parent(req->root, req->path, &name);

	if (parent < 0)
		return parent;
	int64_t r = done(mkdirat(parent, name, 0777));
	(void)close(parent);
	return r;
}

static int64_t do_unlink(const struct ckpt_io_req *req, int flags)
{
	const char *name;
	int parent = ckpt_io_path_parent(req->root, req->path, &name);

	if (parent < 0)
		return parent;
	int64_t r = done(unlinkat(parent, name, flags));
	(void)close(parent);
	return r;
}

/* Errors of file systems, old kernels and seccomp filters for a call that they do not support. */
static bool is_lacking(int error)
{
	return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EPERM;
}

/*
 * Where the file system cannot rename without replacing: link and unlink. -EOPNOTSUPP: it supports neither. -EPERM may
 * mean that, too, or that the directory is immutable.
 */
static int64_t rename_new(int from, const char *name, int to, const char *new_name)
{
	if (renameat2(from, name, to, new_name, RENAME_NOREPLACE) == 0)
		return 0;
	int error = errno;
	if (!is_lacking(error))
		return -error;
	if (linkat(from, name, to, new_name, 0) < 0) {
		if (!is_lacking(errno) && errno != EMLINK)
			return -errno;
		return error == EPERM ? -EPERM : -EOPNOTSUPP;
	}
	/* The file has the new name. If the old one stays, it is harmless. */
	(void)unlinkat(from, name, 0);
	return 0;
}

/* A seccomp filter may allow only the older call. */
static int64_t rename_over(int from, const char *name, int to, const char *new_name)
{
	if (renameat2(from, name, to, new_name, 0) == 0)
		return 0;
	return is_lacking(errno) ? done(renameat(from, name, to, new_name)) : -errno;
}

static int64_t do_rename(const struct ckpt_io_req *req)
{
	const char *name;
	const char *new_name;
	int from = ckpt_io_path_parent(req->root, req->path, &name);

	if (from < 0)
		return from;
	int to = ckpt_io_path_parent(req->root, req->new_path, &new_name);
	int64_t r = to;
	if (to >= 0)
		r = req->flags & CKPT_RENAME_REPLACE ? rename_over(from, name, to, new_name)
						     : rename_new(from, name, to, new_name);
	if (to >= 0)
		(void)close(to);
	(void)close(from);
	return r;
}

/*
 * After a disk error XFS shuts down: fsync of a directory whose changes it has dropped returns 0, but stat returns EIO.
 */
static int64_t still_runs(int dir)
{
	struct stat st;

	return fstat(dir, &st) < 0 ? -errno : 0;
}

static int64_t do_sync_dir(const struct ckpt_io_req *req)
{
	int fd = ckpt_io_path_open(req->root, req->path, O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return fd;
	/* Called once: the kernel reports a failed write-back to one fsync only. */
	int64_t r = done(fsync(fd));
	if (r == 0)
		r = still_runs(fd);
	(void)close(fd);
	return r;
}

static int64_t do_list(struct ckpt_io_req *req)
{
	int fd = ckpt_io_path_open(req->root, req->path, O_RDONLY | O_DIRECTORY, 0);

	return fd < 0 ? fd : ckpt_io_list(fd, &req->listing);
}

static int64_t execute(struct ckpt_io_req *req)
{
	switch (req->op) {
	case CKPT_IO_OP_WRITE:
		return do_write(req);
	case CKPT_IO_OP_READ:
		return do_read(req);
	case CKPT_IO_OP_FDATASYNC:
		return done(fdatasync(req->fd)); /* called once, as above */
	case CKPT_IO_OP_OPEN:
		return do_open(req);
	case CKPT_IO_OP_CLOSE:
		return do_close(req);
	case CKPT_IO_OP_ALLOCATE:
		return done(TEMP_FAILURE_RETRY(fallocate(req->fd, 0, 0, (off_t)req->len)));
	case CKPT_IO_OP_TRUNCATE:
		return done(TEMP_FAILURE_RETRY(ftruncate(req->fd, (off_t)req->len)));
	case CKPT_IO_OP_LOCK:
		return do_lock(req);
	case CKPT_IO_OP_MKDIR:
		return do_mkdir(req);
	case CKPT_IO_OP_RENAME:
		return do_rename(req);
	case CKPT_IO_OP_UNLINK:
		return do_unlink(req, 0);
	case CKPT_IO_OP_RMDIR:
		return do_unlink(req, AT_REMOVEDIR);
	case CKPT_IO_OP_SYNC_DIR:
		return do_sync_dir(req);
	case CKPT_IO_OP_LIST:
		return do_list(req);
	case CKPT_IO_OP_FORGET:
		return 0; /* this backend registers nothing */
	}
	return -EINVAL;
}

void ckpt_io_exec(struct ckpt_io_req *req)
{
	req->result = execute(req);
}
