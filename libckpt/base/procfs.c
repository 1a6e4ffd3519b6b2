/* SPDX-License-Identifier: Apache-2.0 */
/* These files have no size: they are read until the end. */
#include "base/procfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#define TEXT_MAX (4u << 20) /* more than the mount table of thousands of containers */

static bool read_all(int fd, struct ckpt_buf *text)
{
	char piece[4096];

	while (text->len < TEXT_MAX) {
		ssize_t got = read(fd, piece, sizeof(piece));

		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0)
			return false;
		if (got == 0)
			return true;
		ckpt_buf_put(text, piece, (size_t)got);
	}
	return false;
}

bool ckpt_procfs_read(const char *root, const char *path, struct ckpt_buf *text)
{
	char full[PATH_MAX];
	bool good;
	int fd;
	int n;

	CKPT_ASSERT(text->len == 0 && !text->failed);
	n = snprintf(full, sizeof(full), "%s%s", root, path);
	if (n < 0 || (size_t)n >= sizeof(full))
		return false;
	fd = open(full, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	good = read_all(fd, text);
	(void)close(fd);
	ckpt_buf_put(text, "", 1);
	if (good && !text->failed)
		return true;
	ckpt_buf_free(text);
	return false;
}
