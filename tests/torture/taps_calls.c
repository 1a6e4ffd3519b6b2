/* SPDX-License-Identifier: Apache-2.0 */
/* System calls, by the functions of libc that make them. What fails is not carried out, but for close(). */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "torture/tap.h"

/* What a descriptor is, or what its thread is at. */
static const char *of_fd(int fd)
{
	return *torture_topic() ? torture_topic() : torture_fd_name(fd);
}

static const char *of_path(const char *path)
{
	return *torture_topic() ? torture_topic() : torture_path_class(path);
}

/* clang-format off */
TAP(int, close, (int fd), (fd), of_fd(fd), -1, true, -EIO, SOFT(EINTR))
TAP(int, fsync, (int fd), (fd), of_fd(fd), -1, false, -EIO, -ENOSPC)
TAP(int, fdatasync, (int fd), (fd), of_fd(fd), -1, false, -EIO, -ENOSPC)
TAP(int, fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size), of_fd(fd),
	-1, false, -ENOSPC, -EOPNOTSUPP, -EIO, SOFT(EINTR))
TAP(int, ftruncate64, (int fd, off64_t size), (fd, size), of_fd(fd), -1, false, -EIO, -ENOSPC,
	SOFT(EINTR))
TAP(int, fstat64, (int fd, struct stat64 *st), (fd, st), of_fd(fd), -1, false, -EIO, -ENOMEM)
TAP(int, statx, (int dir, const char *path, int flags, unsigned mask, struct statx *st),
	(dir, path, flags, mask, st), "", -1, false, -ENOSYS, -EIO)
TAP(int, mkdir, (const char *path, mode_t mode), (path, mode), "", -1, false, -EIO, -ENOSPC, -EACCES)
TAP(int, mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode), of_path(path), -1, false,
	-EIO, -ENOSPC, -EACCES)
TAP(int, unlinkat, (int dir, const char *path, int flags), (dir, path, flags), of_path(path), -1, false,
	-EIO, -EACCES)
TAP(int, linkat, (int from, const char *path, int to, const char *new_path, int flags),
	(from, path, to, new_path, flags), of_path(path), -1, false, -EIO, -EPERM)
TAP(int, eventfd, (unsigned count, int flags), (count, flags), "", -1, false, -EMFILE, -ENOMEM)
TAP(void *, mmap64, (void *at, size_t size, int prot, int flags, int fd, off64_t from),
	(at, size, prot, flags, fd, from), "", MAP_FAILED, false, -ENOMEM)
TAP(int, munmap, (void *at, size_t size), (at, size), "", -1, false, -ENOMEM)
TAP(int, mprotect, (void *at, size_t size, int prot), (at, size, prot), "", -1, false, -ENOMEM)
TAP(int, madvise, (void *at, size_t size, int advice), (at, size, advice), "", -1, false, -ENOMEM,
	-EINVAL)
TAP(int, posix_fadvise64, (int fd, off64_t at, off64_t size, int advice), (fd, at, size, advice), of_fd(fd),
	EINVAL, false, -EINVAL)
TAP(ssize_t, getrandom, (void *to, size_t size, unsigned flags), (to, size, flags), "", -1, false,
	SOFT(ENOSYS))
TAP(int, getrlimit64, (__rlimit_resource_t what, struct rlimit64 *limit), (what, limit), "", -1, false,
	-EPERM)
TAP(int, gethostname, (char *name, size_t size), (name, size), "", -1, false, -ENAMETOOLONG)
TAP(int, sched_getaffinity, (pid_t pid, size_t size, cpu_set_t *set), (pid, size, set), "", -1, false,
	-EINVAL, -ENOSYS)
TAP(long, sysconf, (int name), (name), "", -1, false, -EINVAL)
TAP(DIR *, fdopendir, (int fd), (fd), of_fd(fd), NULL, false, -ENOMEM)
TAP(struct dirent64 *, readdir64, (DIR *dir), (dir), torture_topic(), NULL, false, -EIO)
TAP(int, closedir, (DIR *dir), (dir), torture_topic(), -1, true, -EIO)
TAP(char *, realpath, (const char *path, char *to), (path, to), of_path(path), NULL, false, -ENOMEM, -EACCES)
TAP(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), "", -1, false, -EIO, SOFT(EINTR))
/* What this library writes so are the counters of eventfds. */
TAP(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), "", -1, false,
	SOFT(EINTR))
TAP_REAL(int, memfd_create, (const char *name, unsigned flags))
TAP_REAL(int, renameat2, (int from, const char *path, int to, const char *new_path, unsigned flags))
TAP_REAL(int, open64, (const char *path, int flags, ...))
TAP_REAL(int, openat64, (int dir, const char *path, int flags, ...))
TAP_REAL(int, fcntl64, (int fd, int command, ...))
TAP_REAL(long, syscall, (long number, ...))
TAP_REAL(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at))
TAP_REAL(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at))
/* clang-format on */

static const struct torture_call call_open = {
	"open64", TORTURE_SYSCALL, {-EMFILE, -EIO, -EACCES, -ENOMEM}};
static const struct torture_call call_openat = {
	"openat64", TORTURE_SYSCALL, {-EMFILE, -EIO, -EACCES, SOFT(EINTR)}};
static const struct torture_call call_openat2 = {
	"syscall", TORTURE_SYSCALL, {-ENOSYS, -EIO, -EMFILE, -EACCES, -ENOMEM, SOFT(EINTR)}};
static const struct torture_call call_mbind = {"syscall", TORTURE_SYSCALL, {-EPERM, -ENOSYS}};
static const struct torture_call call_lock = {
	"fcntl64", TORTURE_SYSCALL, {-ENOLCK, -EIO, -EAGAIN, -EACCES}};
static const struct torture_call call_flags = {"fcntl64", TORTURE_SYSCALL, {-EINVAL}};
static const struct torture_call call_memfd = {
	"memfd_create", TORTURE_SYSCALL, {-EMFILE, -ENOMEM, -ENOSYS}};
static const struct torture_call call_rename = {
	"renameat2", TORTURE_SYSCALL, {-EIO, -EINVAL, -ENOSPC}};
static const struct torture_call call_pread = {
	"pread64", TORTURE_SYSCALL, {-EIO, SOFT(EINTR), TORTURE_SHORT}};
static const struct torture_call call_pwrite = {
	"pwrite64", TORTURE_SYSCALL, {-EIO, -ENOSPC, -EDQUOT, SOFT(EINTR), TORTURE_SHORT}};

static bool counted(void)
{
	return torture_armed() && !torture_inside();
}

/* True: it has failed, with errno set. */
static bool fails(const struct torture_call *call, const char *what, void *frame)
{
	int code = torture_event(call, what, frame);

	if (!code)
		return false;
	errno = tap_errno(code);
	return true;
}

/* Pages of another size look the same from here. */
int memfd_create(const char *name, unsigned flags)
{
	if (!counted())
		return get_memfd_create()(name, flags);
	if (fails(&call_memfd, flags & MFD_HUGETLB ? "huge" : "", __builtin_frame_address(0)))
		return -1;
	if (torture_odd(TORTURE_HUGE_PAGES))
		flags &= MFD_CLOEXEC;
	torture_enter(__builtin_frame_address(0));
	int fd = get_memfd_create()(name, flags);
	torture_leave();
	return fd;
}

int renameat2(int from, const char *path, int to, const char *new_path, unsigned flags)
{
	if (!counted())
		return get_renameat2()(from, path, to, new_path, flags);
	if (fails(&call_rename, of_path(path), __builtin_frame_address(0)))
		return -1;
	if (torture_odd(TORTURE_OLD_KERNEL)) {
		errno = EINVAL;
		return -1;
	}
	torture_enter(__builtin_frame_address(0));
	int r = get_renameat2()(from, path, to, new_path, flags);
	torture_leave();
	return r;
}

int open64(const char *path, int flags, ...)
{
	va_list args;

	va_start(args, flags);
	mode_t mode =
		flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!counted())
		return get_open64()(path, flags, mode);
	/* Of those in /proc and /sys, only which one matters. */
	if (fails(&call_open, *path == '/' && strncmp(path, "/dev", 4) != 0 ? path : "",
		    __builtin_frame_address(0)))
		return -1;
	torture_enter(__builtin_frame_address(0));
	int fd = get_open64()(path, flags, mode);
	torture_leave();
	return fd;
}

int openat64(int dir, const char *path, int flags, ...)
{
	va_list args;

	va_start(args, flags);
	mode_t mode =
		flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(args, mode_t) : 0;
	va_end(args);
	if (!counted())
		return get_openat64()(dir, path, flags, mode);
	if (fails(&call_openat, of_path(path), __builtin_frame_address(0)))
		return -1;
	if (torture_odd(TORTURE_OLD_KERNEL) && (flags & O_TMPFILE) == O_TMPFILE) {
		errno = EOPNOTSUPP;
		return -1;
	}
	torture_enter(__builtin_frame_address(0));
	int fd = get_openat64()(dir, path, flags, mode);
	torture_leave();
	return fd;
}

int fcntl64(int fd, int command, ...)
{
	va_list args;

	va_start(args, command);
	void *argument = va_arg(args, void *);
	va_end(args);
	if (!counted())
		return get_fcntl64()(fd, command, argument);
	const struct torture_call *call = command == F_OFD_SETLK ? &call_lock : &call_flags;
	if (fails(call, of_fd(fd), __builtin_frame_address(0)))
		return -1;
	torture_enter(__builtin_frame_address(0));
	int r = get_fcntl64()(fd, command, argument);
	torture_leave();
	return r;
}

long syscall(long number, ...)
{
	long a[6];
	va_list args;

	va_start(args, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (!counted())
		return get_syscall()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number == SYS_mbind) {
		if (fails(&call_mbind, "", __builtin_frame_address(0)))
			return -1;
		torture_enter(__builtin_frame_address(0));
		long r = get_syscall()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
		torture_leave();
		return r;
	}
	/* openat2() is the only other one that is called by number. */
	if (fails(&call_openat2, of_path((const char *)a[1]), __builtin_frame_address(0)))
		return -1;
	if (torture_odd(TORTURE_OLD_KERNEL)) {
		errno = ENOSYS;
		return -1;
	}
	torture_enter(__builtin_frame_address(0));
	long r = get_syscall()(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	torture_leave();
	return r;
}

/* Half of it, in blocks that direct I/O can do. */
static size_t cut(size_t size, int code)
{
	return code == TORTURE_SHORT && size > 4096 ? (size / 2 + 4095) / 4096 * 4096 : size;
}

ssize_t pread64(int fd, void *to, size_t size, off64_t at)
{
	if (!counted())
		return get_pread64()(fd, to, size, at);
	int code = torture_event(&call_pread, of_fd(fd), __builtin_frame_address(0));
	if (code && code != TORTURE_SHORT) {
		errno = tap_errno(code);
		return -1;
	}
	torture_enter(__builtin_frame_address(0));
	ssize_t n = get_pread64()(fd, to, cut(size, code), at);
	torture_leave();
	return n;
}

ssize_t pwrite64(int fd, const void *from, size_t size, off64_t at)
{
	if (!counted())
		return get_pwrite64()(fd, from, size, at);
	int code = torture_event(&call_pwrite, of_fd(fd), __builtin_frame_address(0));
	if (code && code != TORTURE_SHORT) {
		errno = tap_errno(code);
		return -1;
	}
	torture_enter(__builtin_frame_address(0));
	ssize_t n = get_pwrite64()(fd, from, cut(size, code), at);
	torture_leave();
	return n;
}
