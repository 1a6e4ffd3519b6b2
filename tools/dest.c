/* SPDX-License-Identifier: Apache-2.0 */
/* Plain files in a directory of the user. */
#include "dest.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

int dest_fail_text(const struct dest *dest, int code, const char *text)
{
	struct ckpt_error record = {.size = sizeof(record), .code = code};

	record.step = record.offset = record.rank = -1;
	(void)snprintf(
		record.message, sizeof(record.message), "cannot write %s: %s", dest->path, text);
	return cli_fail_record(dest->cli, cli_exit_of(code), &record);
}

int dest_fail(const struct dest *dest, int error, const char *doing, const char *name)
{
	struct ckpt_error record = {.size = sizeof(record), .code = -error, .sys_errno = error};

	record.step = record.offset = record.rank = -1;
	(void)snprintf(record.message, sizeof(record.message), "cannot %s %s%s%s: %s", doing,
		dest->path, *name ? "/" : "", name, ckpt_strerror(-error));
	return cli_fail_record(dest->cli, cli_exit_of(-error), &record);
}

int dest_open(struct dest *dest)
{
	dest->made = mkdir(dest->path, 0777) == 0;
	if (!dest->made && errno != EEXIST)
		return dest_fail(dest, errno, "create", "");
	dest->dir = open(dest->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dest->dir < 0 ? dest_fail(dest, errno, "open", "") : CLI_OK;
}

int dest_file_init(const struct dest *dest, struct dest_file *file, const char *name)
{
	struct statx st;

	*file = (struct dest_file){.fd = -1};
	(void)snprintf(file->name, sizeof(file->name), "%s", name);
	(void)snprintf(file->temp, sizeof(file->temp), "%s.tmp-%ld", name, (long)getpid());
	if (statx(dest->dir, name, AT_SYMLINK_NOFOLLOW, STATX_TYPE, &st) == 0)
		return dest_fail(dest, EEXIST, "write", name);
	return CLI_OK;
}

int dest_file_make(const struct dest *dest, struct dest_file *file, uint64_t bytes)
{
	file->fd = openat(
		dest->dir, file->temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
	if (file->fd < 0)
		return dest_fail(dest, errno, "create", file->temp);
	file->made = true;
	if (bytes > INT64_MAX)
		return dest_fail(dest, EFBIG, "reserve space for", file->name);
	int r = fallocate(file->fd, 0, 0, (off_t)bytes) < 0 ? errno : 0;
	/* If the file system cannot, the C library writes to every block. */
	if (r == EOPNOTSUPP)
		r = posix_fallocate(file->fd, 0, (off_t)bytes);
	if (r != 0)
		return dest_fail(dest, r, "reserve space for", file->name);
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
	if (map == MAP_FAILED)
		return dest_fail(dest, errno, "map", file->name);
	file->map = map;
	file->bytes = bytes;
	return CLI_OK;
}

int dest_file_sync(const struct dest *dest, struct dest_file *file)
{
	void *map = file->map;

	file->map = NULL;
	if (munmap(map, file->bytes) < 0 || fsync(file->fd) < 0)
		return dest_fail(dest, errno, "sync", file->name);
	return CLI_OK;
}

/* Renames without replacing. Some file systems support only one of the two calls. */
int dest_file_name(const struct dest *dest, const struct dest_file *file)
{
	int r = renameat2(dest->dir, file->temp, dest->dir, file->name, RENAME_NOREPLACE);

	if (r < 0 &&
		(errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP || errno == EPERM)) {
		r = linkat(dest->dir, file->temp, dest->dir, file->name, 0);
		if (r == 0)
			(void)unlinkat(dest->dir, file->temp, 0);
	}
	return r < 0 ? dest_fail(dest, errno, "write", file->name) : CLI_OK;
}

/* Makes the name of the directory durable. */
static int sync_parent(const struct dest *dest)
{
	int parent = openat(dest->dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (parent < 0)
		return -1;
	int r = fsync(parent);
	int error = errno;
	(void)close(parent);
	errno = error;
	return r;
}

int dest_sync(const struct dest *dest)
{
	if (fsync(dest->dir) < 0 || (dest->made && sync_parent(dest) < 0))
		return dest_fail(dest, errno, "sync", "");
	return CLI_OK;
}

/* Deletes the file under both names: a call that failed may have renamed it. */
static void take_back(const struct dest *dest, const struct dest_file *file)
{
	struct stat own;
	struct stat found;

	(void)unlinkat(dest->dir, file->temp, 0);
	if (fstat(file->fd, &own) == 0 &&
		fstatat(dest->dir, file->name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
		own.st_ino == found.st_ino && own.st_dev == found.st_dev)
		(void)unlinkat(dest->dir, file->name, 0);
}

void dest_file_end(const struct dest *dest, struct dest_file *file, bool keep)
{
	if (file->map)
		(void)munmap(file->map, file->bytes);
	if (file->made && !keep)
		take_back(dest, file);
	if (file->made)
		(void)close(file->fd);
	*file = (struct dest_file){.fd = -1};
}

void dest_end(struct dest *dest, bool keep)
{
	if (dest->dir >= 0)
		(void)close(dest->dir);
	if (dest->made && !keep)
		(void)rmdir(dest->path);
	dest->dir = -1;
}
