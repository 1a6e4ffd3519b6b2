/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a whole file. */
#include "s3/file_read.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/secret.h"

/* Reads at most `max` bytes. */
static ssize_t read_all(int fd, char *out, size_t max)
{
	size_t length = 0;

	while (length < max) {
		ssize_t n = read(fd, out + length, max - length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		length += (size_t)n;
	}
	return (ssize_t)length;
}

int ckpt_s3_textfile_read(const char *path, size_t max, char **ret_text, size_t *ret_length)
{
	/* O_NONBLOCK: a pipe without a writer must not block a worker forever. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	char *text;
	ssize_t n;

	if (fd < 0)
		return -errno;
	text = ckpt_secret_alloc(max + 2);
	n = text ? read_all(fd, text, max + 1) : -ENOMEM;
	(void)close(fd);
	if (n >= 0 && (size_t)n <= max) {
		*ret_text = text;
		*ret_length = (size_t)n;
		return 0;
	}
	ckpt_secret_free(text);
	return n < 0 ? (int)n : -EFBIG;
}
