/* SPDX-License-Identifier: Apache-2.0 */
/* Maps staging memory, with huge pages where possible, and touches it. */
#include "staging/slot_memory.h"

#include <errno.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/procfs.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE_BYTES 4096 /* at most the real page size; touching a page twice is harmless */

/* To clang, "thread" excludes atomics. */
#if __has_attribute(disable_sanitizer_instrumentation)
#define NOT_WATCHED __attribute__((disable_sanitizer_instrumentation))
#else
#define NOT_WATCHED __attribute__((no_sanitize("thread", "address")))
#endif

#define SYS_HUGE "/sys/kernel/mm/transparent_hugepage/"

/* Creates a memfd of that size; -errno. */
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

/* Reserves address space aligned to huge pages. */
static int reserve_space(size_t bytes, char **ret_base)
{
	size_t room;
	size_t head;
	char *start;

	if (__builtin_add_overflow(bytes, (size_t)CKPT_HUGE_PAGE, &room))
		return -ENOMEM;
	start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (start == MAP_FAILED)
		return -errno;
	head = (size_t)(-(uintptr_t)start % CKPT_HUGE_PAGE);
	if (head > 0)
		(void)munmap(start, head);
	if (head < CKPT_HUGE_PAGE)
		(void)munmap(start + head + bytes, CKPT_HUGE_PAGE - head);
	*ret_base = start + head;
	return 0;
}

/* Reserves address space without memory; `how`: whether it may replace a mapping. */
static int empty(char *at, size_t bytes, int how)
{
	int flags = how | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	return mmap(at, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? -errno : 0;
}

/* Maps memory over reserved address space: `fd` from `offset` on, or private memory if it is -1. */
static int map_at(int fd, size_t offset, char *at, size_t bytes)
{
	int r;

	if (fd < 0)
		return mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, fd, (off_t)offset) !=
		MAP_FAILED)
		return 0;
	r = -errno;
	/* The kernel may have removed the reservation before it failed. */
	(void)empty(at, bytes, MAP_FIXED_NOREPLACE);
	return r;
}

/* The same, then closes the descriptor, which every child would inherit, and hold the memory with it. */
static int map_and_close(int fd, size_t offset, char *at, size_t bytes)
{
	int r = map_at(fd, offset, at, bytes);

	/* A child's writes to this memory would end up in a checkpoint. */
	if (r == 0 && madvise(at, bytes, MADV_DONTFORK) < 0) {
		r = -errno;
		(void)empty(at, bytes, MAP_FIXED);
	}
	/* Core dumps should not contain model weights; a failure is ignored. */
	if (r == 0)
		(void)madvise(at, bytes, MADV_DONTDUMP);
	if (fd >= 0)
		(void)close(fd);
	return r;
}

/* The same, in newly reserved address space. */
static int open_and_close(int fd, size_t reserve, struct ckpt_slot_memory *mapping)
{
	int r;

	mapping->reserved = ckpt_max_u64(reserve, mapping->bytes);
	r = reserve_space(mapping->reserved, &mapping->base);
	if (r < 0 && mapping->reserved > mapping->bytes) {
		mapping->reserved = mapping->bytes;
		r = reserve_space(mapping->reserved, &mapping->base);
	}
	if (r < 0) {
		if (fd >= 0)
			(void)close(fd);
		return r;
	}
	r = map_and_close(fd, 0, mapping->base, mapping->bytes);
	if (r < 0)
		(void)munmap(mapping->base, mapping->reserved);
	return r;
}

/*
 * A file of reserved huge pages; -1: too few. They are mapped elsewhere first, after which they belong to the file. A
 * failure in place could leave a hole that another mapping takes.
 */
static int open_huge_file(size_t bytes)
{
	int fd = open_memfd(bytes, MFD_HUGETLB | MFD_HUGE_2MB);
	char *probe;

	if (fd < 0)
		return -1;
	probe = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (probe == MAP_FAILED) {
		(void)close(fd);
		return -1;
	}
	(void)munmap(probe, bytes);
	return fd;
}

bool ckpt_slot_memory_open_huge(size_t bytes, size_t reserve, struct ckpt_slot_memory *ret_mapping)
{
	struct ckpt_slot_memory mapping = {.bytes = bytes, .huge = true, .resident = true};
	int fd;

	CKPT_ASSERT(bytes > 0 && bytes % CKPT_HUGE_PAGE == 0);
	fd = open_huge_file(bytes);
	if (fd < 0)
		return false;
	if (open_and_close(fd, reserve, &mapping) < 0)
		return false;
	/* A control group may refuse the pages, which would be SIGBUS later. */
	if (madvise(mapping.base, bytes, MADV_POPULATE_WRITE) < 0) {
		ckpt_slot_memory_close(&mapping);
		return false;
	}
	*ret_mapping = mapping;
	return true;
}

/* The active word is in brackets. */
static bool in_force(const char *text, const char *word)
{
	const char *open = strchr(text, '[');
	size_t len = strlen(word);

	return open && strncmp(open + 1, word, len) == 0 && open[1 + len] == ']';
}

bool ckpt_slot_memory_advice_heeded(const char *general, const char *of_size)
{
	const char *text = of_size && !in_force(of_size, "inherit") ? of_size : general;

	return in_force(text, "always") || in_force(text, "within_size") ||
	       in_force(text, "advise") || in_force(text, "madvise") || in_force(text, "force");
}

/* By `file` and its variant for huge pages of 2 MiB. */
static bool advice_heeded(const char *file)
{
	struct ckpt_buf general = {0};
	struct ckpt_buf of_size = {0};
	char path[128];
	bool heeded = false;

	(void)snprintf(path, sizeof(path), SYS_HUGE "%s", file);
	if (ckpt_procfs_read("", path, &general)) {
		(void)snprintf(path, sizeof(path), SYS_HUGE "hugepages-2048kB/%s", file);
		(void)ckpt_procfs_read("", path, &of_size);
		heeded = ckpt_slot_memory_advice_heeded(general.data, of_size.data);
	}
	ckpt_buf_free(&general);
	ckpt_buf_free(&of_size);
	return heeded;
}

/* The kind of ordinary pages, chosen so that they can be huge. */
struct kind {
	int fd;    /* -1: private memory */
	bool huge; /* the kernel follows advice to use huge pages */
};

static int open_kind(size_t bytes, struct ckpt_error *err, struct kind *ret_kind)
{
	bool file_huge = advice_heeded("shmem_enabled");
	bool private_huge = !file_huge && advice_heeded("enabled");

	*ret_kind = (struct kind){.fd = -1, .huge = file_huge || private_huge};
	if (private_huge)
		return 0;
	ret_kind->fd = open_memfd(bytes, 0);
	if (ret_kind->fd < 0)
		return ckpt_fail(err, ret_kind->fd,
			"cannot make a memfd of %zu KiB for staging: %s", bytes >> 10,
			ckpt_code_text(ret_kind->fd));
	return 0;
}

static int cannot_map(struct ckpt_error *err, int code, size_t bytes)
{
	return ckpt_fail(err, code,
		"cannot map %zu KiB of staging memory: %s; lower pool_bytes, or raise the "
		"limit of address space (ulimit -v)",
		bytes >> 10, ckpt_code_text(code));
}

int ckpt_slot_memory_open(
	size_t bytes, size_t reserve, struct ckpt_error *err, struct ckpt_slot_memory *ret_mapping)
{
	struct ckpt_slot_memory mapping = {.bytes = bytes};
	struct kind kind;
	int r;

	CKPT_ASSERT(bytes > 0 && (bytes | reserve) % PAGE_BYTES == 0);
	r = open_kind(bytes, err, &kind);
	if (r < 0)
		return r;
	r = open_and_close(kind.fd, reserve, &mapping);
	if (r < 0)
		return cannot_map(err, r, bytes);
	if (bytes >= CKPT_HUGE_PAGE && madvise(mapping.base, bytes, MADV_HUGEPAGE) == 0)
		mapping.huge = kind.huge;
	*ret_mapping = mapping;
	return 0;
}

void ckpt_slot_memory_close(struct ckpt_slot_memory *mapping)
{
	int r = munmap(mapping->base, mapping->reserved);

	/* Unmapping a part of a merged mapping needs one more mapping, and may fail: then it stays. */
	CKPT_ASSERT(r == 0 || errno == ENOMEM);
	mapping->base = NULL;
}

/* Maps reserved huge pages, if there are enough. */
static bool add_huge(char *at, size_t bytes)
{
	int fd = open_huge_file(bytes);

	return fd >= 0 && map_and_close(fd, 0, at, bytes) == 0;
}

int ckpt_slot_memory_add(
	const struct ckpt_slot_memory *mapping, size_t at, size_t bytes, struct ckpt_error *err)
{
	/* The offset within the huge page is the same in the file and in memory. */
	size_t offset = at % CKPT_HUGE_PAGE;
	struct kind kind;
	int r;

	CKPT_ASSERT(at >= mapping->bytes && at <= mapping->reserved);
	CKPT_ASSERT(bytes > 0 && bytes <= mapping->reserved - at && (at | bytes) % PAGE_BYTES == 0);
	if (mapping->resident && (at | bytes) % CKPT_HUGE_PAGE == 0 &&
		add_huge(mapping->base + at, bytes))
		return 0;
	r = open_kind(offset + bytes, err, &kind);
	if (r < 0)
		return r;
	r = map_and_close(kind.fd, offset, mapping->base + at, bytes);
	if (r < 0)
		return ckpt_fail(err, r, "cannot map %zu MiB more of staging memory: %s",
			bytes >> 20, ckpt_code_text(r));
	if (bytes >= CKPT_HUGE_PAGE)
		(void)madvise(mapping->base + at, bytes, MADV_HUGEPAGE);
	return 0;
}

void ckpt_slot_memory_drop(char *at, size_t bytes)
{
	/*
	 * A file keeps its pages even if they are not mapped, so they are removed from it; private pages are dropped.
	 */
	if (madvise(at, bytes, MADV_REMOVE) == 0 || madvise(at, bytes, MADV_DONTNEED) == 0)
		return;
	/* Both fail for pages that the program has locked (mlockall). */
	(void)munlock(at, bytes);
	if (madvise(at, bytes, MADV_REMOVE) < 0)
		(void)madvise(at, bytes, MADV_DONTNEED);
}

void ckpt_slot_memory_remove(const struct ckpt_slot_memory *mapping, size_t at, size_t bytes)
{
	CKPT_ASSERT(at >= mapping->bytes && at <= mapping->reserved);
	CKPT_ASSERT(bytes <= mapping->reserved - at);
	if (bytes > 0)
		(void)empty(mapping->base + at, bytes, MAP_FIXED);
}

/*
 * Writes the same value to each page. Only a compare-and-swap does that safely beside other writers and is not
 * optimised to a load. Race and poison detectors must ignore it.
 */
/* NOLINTNEXTLINE(readability-non-const-parameter): the swap writes */
NOT_WATCHED void ckpt_slot_memory_touch_pages(char *at, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += PAGE_BYTES) {
		char held = __atomic_load_n(at + i, __ATOMIC_RELAXED);

		(void)__atomic_compare_exchange_n(
			at + i, &held, held, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	}
}

int ckpt_slot_memory_touch(char *at, size_t bytes)
{
	if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	ckpt_slot_memory_touch_pages(at, bytes);
	return 0;
}
