/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping staging memory, with huge pages where there are some, and touching it. */
#include "staging/mapping.h"

#include <errno.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fail.h"
#include "base/kernel_file.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE_BYTES 4096 /* at most what a page has: touching each too often is harmless */

/* To clang "thread" means all but the atomics. */
#if __has_attribute(disable_sanitizer_instrumentation)
#define NOT_WATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define NOT_WATCHED __attribute__((no_sanitize("thread", "address")))
#endif

#define SYS_HUGE "/sys/kernel/mm/transparent_hugepage/"

/* A memfd of that size; -errno. */
static int open_memfd(size_t bytes, unsigned flags)
{
	int fd = memfd_create("ckpt-staging", MFD_CLOEXEC | flags);
	int r;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
}

/*
 * Maps `fd`, or private memory if that is -1, at a multiple of a huge page's size, so that huge pages
 * fit. The descriptor is not needed for it any more; kept, it would go to every child and hold the
 * memory for as long as that lives.
 */
static int map_and_close(int fd, size_t bytes, char **ret_base)
{
	int flags = MAP_FIXED | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
	size_t room = bytes + CKPT_HUGE_PAGE;
	char *start;
	char *base;
	size_t head;
	int r = 0;

	start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED) {
		r = -errno;
		goto close_fd;
	}
	head = (size_t)(-(uintptr_t)start % CKPT_HUGE_PAGE);
	base = start + head;
	if (mmap(base, bytes, PROT_READ | PROT_WRITE, flags, fd, 0) == MAP_FAILED)
		r = -errno;
	/* A child that wrote to what its parent still writes from would end up in a checkpoint. */
	if (r == 0 && madvise(base, bytes, MADV_DONTFORK) < 0)
		r = -errno;
	if (r < 0) {
		(void)munmap(start, room);
		goto close_fd;
	}
	/* Model weights do not belong into a core dump; if it cannot be said, so be it. */
	(void)madvise(base, bytes, MADV_DONTDUMP);
	if (head > 0)
		(void)munmap(start, head);
	if (head < CKPT_HUGE_PAGE)
		(void)munmap(base + bytes, CKPT_HUGE_PAGE - head);
	*ret_base = base;

close_fd:
	if (fd >= 0)
		(void)close(fd);
	return r;
}

bool ckpt_mapping_open_huge(size_t bytes, struct ckpt_mapping *ret_mapping)
{
	struct ckpt_mapping mapping = {.bytes = bytes, .huge = true, .resident = true};
	int fd;

	CKPT_ASSERT(bytes > 0 && bytes % CKPT_HUGE_PAGE == 0);
	fd = open_memfd(bytes, MFD_HUGETLB | MFD_HUGE_2MB);
	if (fd < 0)
		return false;
	/* Fails when there are too few of them. */
	if (map_and_close(fd, bytes, &mapping.base) < 0)
		return false;
	/* A control group may still refuse them, which would be SIGBUS later. */
	if (madvise(mapping.base, bytes, MADV_POPULATE_WRITE) < 0) {
		ckpt_mapping_close(&mapping);
		return false;
	}
	*ret_mapping = mapping;
	return true;
}

/* The word in brackets is the one in force. */
static bool in_force(const char *text, const char *word)
{
	const char *open = strchr(text, '[');
	size_t len = strlen(word);

	return open && strncmp(open + 1, word, len) == 0 && open[1 + len] == ']';
}

bool ckpt_mapping_advice_heeded(const char *general, const char *of_size)
{
	const char *text = of_size && !in_force(of_size, "inherit") ? of_size : general;

	return in_force(text, "always") || in_force(text, "within_size") ||
	       in_force(text, "advise") || in_force(text, "madvise") || in_force(text, "force");
}

/* By `file` and its namesake for huge pages of 2 MiB. */
static bool advice_heeded(const char *file)
{
	struct ckpt_buf general = {0};
	struct ckpt_buf of_size = {0};
	char path[128];
	bool heeded = false;

	(void)snprintf(path, sizeof(path), SYS_HUGE "%s", file);
	if (ckpt_kernel_file_read("", path, &general)) {
		(void)snprintf(path, sizeof(path), SYS_HUGE "hugepages-2048kB/%s", file);
		(void)ckpt_kernel_file_read("", path, &of_size);
		heeded = ckpt_mapping_advice_heeded(general.data, of_size.data);
	}
	ckpt_buf_free(&general);
	ckpt_buf_free(&of_size);
	return heeded;
}

int ckpt_mapping_open(size_t bytes, struct ckpt_error *err, struct ckpt_mapping *ret_mapping)
{
	struct ckpt_mapping mapping = {.bytes = bytes};
	bool file_huge = advice_heeded("shmem_enabled");
	bool private_huge = !file_huge && advice_heeded("enabled");
	int fd = -1;
	int r;

	CKPT_ASSERT(bytes > 0 && bytes % PAGE_BYTES == 0);
	if (!private_huge) {
		fd = open_memfd(bytes, 0);
		if (fd < 0)
			return ckpt_fail(err, fd, "cannot make a memfd of %zu KiB for staging: %s",
				bytes >> 10, ckpt_code_text(fd));
	}
	r = map_and_close(fd, bytes, &mapping.base);
	if (r < 0)
		return ckpt_fail(err, r,
			"cannot map %zu KiB of staging memory: %s; lower pool_bytes, or raise the "
			"limit of address space (ulimit -v)",
			bytes >> 10, ckpt_code_text(r));
	if (bytes >= CKPT_HUGE_PAGE && madvise(mapping.base, bytes, MADV_HUGEPAGE) == 0)
		mapping.huge = file_huge || private_huge;
	*ret_mapping = mapping;
	return 0;
}

void ckpt_mapping_close(struct ckpt_mapping *mapping)
{
	int r = munmap(mapping->base, mapping->bytes);

	/* Cut out of a mapping that has grown together with its neighbour it takes one more: it stays then. */
	CKPT_ASSERT(r == 0 || errno == ENOMEM);
	mapping->base = NULL;
}

/*
 * Writes to each page what it holds. Only a compare and swap does that beside other writers and is
 * not turned into a load by a compiler; tools that watch for races and poisoned memory look away.
 */
/* NOLINTNEXTLINE(readability-non-const-parameter): the swap writes */
NOT_WATCHED void ckpt_mapping_touch_pages(char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += PAGE_BYTES) {
		char held = __atomic_load_n(at + i, __ATOMIC_RELAXED);

		(void)__atomic_compare_exchange_n(
			at + i, &held, held, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

int ckpt_mapping_touch(char *at, size_t bytes)
{
	if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	ckpt_mapping_touch_pages(at, bytes);
	return 0;
}
