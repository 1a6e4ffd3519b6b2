/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a directory, in an order that does not depend on the file system. */
#include "io/io_list.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"

static int read_names(DIR *dir, struct ckpt_buf *names, size_t *ret_count)
{
	size_t count = 0;

	for (;;) {
		errno = 0;
		/* The stream is this thread's alone. */
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

static int compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int sort_names(const struct ckpt_buf *names, size_t count, struct ckpt_listing *ret_listing)
{
	const char **sorted = ckpt_alloc_array(count, sizeof(*sorted));
	char *text = ckpt_alloc(names->len);
	const char *name = names->data;
	char *end = text;

	if (!sorted || !text) {
		ckpt_free(sorted);
		ckpt_free(text);
		return -ENOMEM;
	}
	for (size_t i = 0; i < count; i++) {
		sorted[i] = name;
		name += strlen(name) + 1;
	}
	if (count > 1)
		qsort(sorted, count, sizeof(*sorted), compare);
	for (size_t i = 0; i < count; i++) {
		size_t size = strlen(sorted[i]) + 1;
		memcpy(end, sorted[i], size);
		end += size;
	}
	ckpt_free(sorted);
	*ret_listing = (struct ckpt_listing){.names = text, .bytes = names->len, .count = count};
	return 0;
}

int ckpt_io_list(int fd, struct ckpt_listing *ret_listing)
{
	struct ckpt_buf names = {0};
	DIR *dir = fdopendir(fd);
	size_t count = 0;

	if (!dir) {
		int r = -errno;
		(void)close(fd);
		return r;
	}
	int r = read_names(dir, &names, &count);
	if (r == 0)
		r = sort_names(&names, count, ret_listing);
	ckpt_buf_free(&names);
	(void)closedir(dir);
	return r;
}
