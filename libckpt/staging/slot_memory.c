/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping staging memory, with huge pages where there are some, and touching it. */
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

/* Address space at a multiple of a huge page's size, so that huge pages fit. */
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

/* Address space without memory; `how` says whether it may replace what is there. */
static int empty(char *at, size_t bytes, int how)
{
	int flags = how | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	return mmap(at, bytes, PROT_NONE, flags, -1, 0) == MAP_FAILED ? -errno : 0;
}

/* Makes reserved address space memory: of `fd` from `offset` on, or private memory if it is -1. */
static int map_at(int fd, size_t offset, char *at, size_t bytes)
{
	int r;

	if (fd < 0)
		return mprotect(at, bytes, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_SHARED, fd, (off_t)offset) !=
		MAP_FAILED)
		return 0;
	r = -errno;
	/* The kernel may have taken the reservation away before it failed. */
	(void)empty(at, bytes, MAP_FIXED_NOREPLACE);
	return r;
}

/*
 * The same, and closes the descriptor. It is not needed any more; kept, it would go to every child and hold the memory
 * for as long as that lives.
 */
static int map_and_close(int fd, size_t offset, char *at, size_t bytes)
{
	int r = map_at(fd, offset, at, bytes);

	/* A child that wrote to what its parent still writes from would end up in a checkpoint. */
	if (r == 0 && madvise(at, bytes, MADV_DONTFORK) < 0) {
		r = -errno;
		(void)empty(at, bytes, MAP_FIXED);
	}
	/* Model weights do not belong into a core dump; if it cannot be said, so be it. */
	if (r == 0)
		(void)madvise(at, bytes, MADV_DONTDUMP);
	if (fd >= 0)
		(void)close(fd);
	return r;
}

/* The same at the beginning of address space of its own. */
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
 * A file of reserved huge pages; -1: there are too few of them. They are asked for elsewhere first, and belong to the
 * file then, mapped or not: a refusal in place may leave a hole there, which is anybody's.
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
	/* A control group may still refuse them, which would be SIGBUS later. */
	if (madvise(mapping.base, bytes, MADV_POPULATE_WRITE) < 0) {
		ckpt_slot_memory_close(&mapping);
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

bool ckpt_slot_memory_advice_heeded(const char *general, const char *of_size)
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
	if (ckpt_procfs_read("", path, &general)) {
		(void)snprintf(path, sizeof(path), SYS_HUGE "hugepages-2048kB/%s", file);
		(void)ckpt_procfs_read("", path, &of_size);
		heeded = ckpt_slot_memory_advice_heeded(general.data, of_size.data);
	}
	ckpt_buf_free(&general);
	ckpt_buf_free(&of_size);
	return heeded;
}

/* What ordinary pages are made of, so that they are huge where there is a choice. */
struct kind {
	int fd;    /* -1: private memory */
	bool huge; /* advice to use huge pages is heeded */
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

	/* Cut out of a mapping that has grown together with its neighbour it takes one more: it stays then. */
	CKPT_ASSERT(r == 0 || errno == ENOMEM);
	mapping->base = NULL;
}

/* Reserved huge pages, if there are enough. */
static bool add_huge(char *at, size_t bytes)
{
	int fd = open_huge_file(bytes);

	return fd >= 0 && map_and_close(fd, 0, at, bytes) == 0;
}

int ckpt_slot_memory_add(
	const struct ckpt_slot_memory *mapping, size_t at, size_t bytes, struct ckpt_error *err)
{
	/* A page lies in its huge page of the file as it does in that of the address space. */
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
		return ckpt_fail(err, r, "%zu MiB more cannot be mapped: %s", bytes >> 20,
			ckpt_code_text(r));
	if (bytes >= CKPT_HUGE_PAGE)
		(void)madvise(mapping->base + at, bytes, MADV_HUGEPAGE);
	return 0;
}

void ckpt_slot_memory_drop(char *at, size_t bytes)
{
	/* The pages of a file are the file's, also where it is mapped no more; private ones are not a file's. */
	if (madvise(at, bytes, MADV_REMOVE) == 0 || madvise(at, bytes, MADV_DONTNEED) == 0)
		return;
	/* Neither takes pages that the program has locked (mlockall). */
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
 * Writes to each page what it holds. Only a compare and swap does that beside other writers and is
 * not turned into a load by a compiler; tools that watch for races and poisoned memory look away.
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
