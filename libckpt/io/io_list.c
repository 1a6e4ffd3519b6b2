/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a directory, in an order that does not depend on the file system. */
#include "io/io_list.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

static int read_names(DIR *dir, struct ckpt_buf *names, size_t *ret_count)
{
	size_t count = 0;

	for (;;) {
		errno = 0;
		/* The stream belongs to this thread. */
		const struct dirent *entry = readdir(dir); /* NOLINT(concurrency-mt-unsafe) */
		if (!entry) {
			*ret_count = count;
			return -errno;
		}
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (count == CKPT_LISTING_MAX)
			return -EOVERFLOW;
		ckpt_buf_put(names, entry->d_name, strlen(entry->d_name) + 1);
		if (names->failed)
			return -ENOMEM;
		count++;
	}
}

/*
 * NFS may have cached the names, and has the server asked for the directory's time by this. A repair on another machine
 * is seen then. Where it fails the names are read all the same.
 */
static void refresh(int fd)
{
	struct statx st;

	(void)statx(fd, "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_MTIME | STATX_CTIME, &st);
}

int ckpt_io_list(int fd, struct ckpt_listing *ret_listing)
{
	struct ckpt_buf names = {0};

	refresh(fd);
	DIR *dir = fdopendir(fd);
	size_t count = 0;

	if (!dir) {
		int r = -errno;
		(void)close(fd);
		return r;
	}
	int r = read_names(dir, &names, &count);
	if (r == 0)
		r = ckpt_listing_sort(&names, count, ret_listing);
	ckpt_buf_free(&names);
	(void)closedir(dir);
	return r;
}
