/* SPDX-License-Identifier: Apache-2.0 */
/* Probing O_DIRECT. */
#include "io/io_direct.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"

#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x2000U
#endif

#define NAME_TRIES 8
#define FILE_TRIES 64

/* The alignment of the file system, if the kernel reports it; kernels that do not are satisfied with a page. */
static bool alignment_fits(int fd)
{
	struct statx stx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) < 0 ||
		!(stx.stx_mask & STATX_DIOALIGN))
		return true;
	return stx.stx_dio_mem_align > 0 && CKPT_IO_ALIGN % stx.stx_dio_mem_align == 0 &&
	       stx.stx_dio_offset_align > 0 && CKPT_IO_ALIGN % stx.stx_dio_offset_align == 0;
}

/* Opens a file without a name, or one whose name is removed at once. */
static int open_scratch(int root)
{
	int flags = O_RDWR | O_DIRECT | O_CLOEXEC;
	int fd = openat(root, ".", O_TMPFILE | flags, 0600);

	/*
	 * After another error no file with a name is tried: it might not be removable, and a new store's directory
	 * would not be empty.
	 */
	bool nameless = fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != ENOSYS &&
					   errno != EINVAL);
	for (int i = 0; !nameless && fd < 0 && i < NAME_TRIES; i++) {
		char name[64];
		(void)snprintf(name, sizeof(name), CKPT_IO_PROBE "%ld-%llx", (long)getpid(),
			(unsigned long long)ckpt_clock_ns());
		fd = openat(root, name, O_CREAT | O_EXCL | O_NOFOLLOW | flags, 0600);
		bool foreign = fd < 0 && errno == EEXIST;
		/* A file system may refuse O_DIRECT after it has created the file. */
		if (!foreign)
			(void)unlinkat(root, name, 0);
		if (fd < 0 && !foreign)
			break;
	}
	return fd;
}

static bool write_works(int root, char *page)
{
	int fd = open_scratch(root);

	if (fd < 0)
		return false;
	memset(page, 0x5a, CKPT_IO_ALIGN);
	bool works = alignment_fits(fd) && pwrite(fd, page, CKPT_IO_ALIGN, 0) == CKPT_IO_ALIGN;
	memset(page, 0, CKPT_IO_ALIGN);
	works = works && pread(fd, page, CKPT_IO_ALIGN, 0) == CKPT_IO_ALIGN;
	for (size_t i = 0; works && i < CKPT_IO_ALIGN; i++)
		works = page[i] == 0x5a;
	(void)close(fd);
	return works;
}

static bool file_reads(int root, const char *name, char *page)
{
	struct stat st;
	int fd = openat(root, name, O_RDONLY | O_DIRECT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		return false;
	bool works = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && alignment_fits(fd) &&
		     pread(fd, page, CKPT_IO_ALIGN, 0) >= 0;
	(void)close(fd);
	return works;
}

static bool read_works(int root, char *page)
{
	int fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	bool works = false;

	if (!dir) {
		if (fd >= 0)
			(void)close(fd);
		return false;
	}
	for (int i = 0; i < FILE_TRIES && !works; i++) {
		/* The stream belongs to this thread. */
		const struct dirent *entry = readdir(dir); /* NOLINT(concurrency-mt-unsafe) */
		if (!entry)
			break;
		if (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN)
			works = file_reads(root, entry->d_name, page);
	}
	(void)closedir(dir);
	return works;
}

bool ckpt_io_direct_works(int root, bool read_only)
{
	char *memory = ckpt_alloc((size_t)2 * CKPT_IO_ALIGN);

	if (!memory)
		return false;
	char *page = memory + (0 - (uintptr_t)memory) % CKPT_IO_ALIGN;
	bool works = (!read_only && write_works(root, page)) || read_works(root, page);
	ckpt_free(memory);
	return works;
}
