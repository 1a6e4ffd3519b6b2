/* SPDX-License-Identifier: Apache-2.0 */
/* Paths below a directory. */
#include "io/io_path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool ckpt_io_path_valid(const char *path)
{
	for (;;) {
		size_t len = strcspn(path, "/");

		if (len == 0 || (len == 1 && path[0] == '.') ||
			(len == 2 && path[0] == '.' && path[1] == '.'))
			return false;
		if (path[len] == 0)
			return true;
		path += len + 1;
	}
}

static int open_beneath(int root, const char *path, int flags, mode_t mode)
{
	struct open_how how = {.flags = (unsigned)flags,
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS};

	int fd = (int)TEMP_FAILURE_RETRY(syscall(SYS_openat2, root, path, &how, sizeof(how)));
	return fd < 0 ? -errno : fd;
}

/*
 * For kernels without openat2(), or with a filter. Opens each directory of the path without following links, and none
 * of them is "..", so it cannot leave `root`.
 */
static int open_by_steps(int root, const char *path, int flags, mode_t mode)
{
	int dir = root;

	for (;;) {
		size_t len = strcspn(path, "/");
		bool last = path[len] == 0;
		int step = O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW;
		char name[NAME_MAX + 1];

		int r = len > NAME_MAX ? -ENAMETOOLONG : 0;
		if (r == 0) {
			memcpy(name, path, len);
			name[len] = 0;
			int fd = TEMP_FAILURE_RETRY(openat(dir, name, last ? flags : step, mode));
			r = fd < 0 ? -errno : fd;
		}
		if (dir != root)
			(void)close(dir);
		if (r < 0 || last)
			return r;
		dir = r;
		path += len + 1;
	}
}

int ckpt_io_path_open(int root, const char *path, int flags, mode_t mode)
{
	flags |= O_CLOEXEC | O_NOFOLLOW;
	if (strcmp(path, ".") != 0 && !ckpt_io_path_valid(path))
		return -EINVAL;
	int fd = open_beneath(root, path, flags, mode);
	/* EPERM comes from a seccomp filter, or from the file system itself. */
	if (fd == -ENOSYS || fd == -EPERM)
		fd = open_by_steps(root, path, flags, mode);
	return fd;
}

int ckpt_io_path_parent(int root, const char *path, const char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX] = ".";

	if (!ckpt_io_path_valid(path))
		return -EINVAL;
	if (slash) {
		size_t len = (size_t)(slash - path);
		if (len >= sizeof(parent))
			return -ENAMETOOLONG;
		memcpy(parent, path, len);
		parent[len] = 0;
	}
	int fd = ckpt_io_path_open(root, parent, O_PATH | O_DIRECTORY, 0);
	if (fd >= 0)
		*ret_name = slash ? slash + 1 : path;
	return fd;
}
