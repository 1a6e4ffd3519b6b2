/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, checks and maps memfds of slots. */
#include "peer/slot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "staging/slot_memory.h"

#define SMALL_PAGE  UINT64_C(4096)
/* So much is touched before `stop` is looked at. */
#define TOUCH_BYTES (UINT64_C(64) << 20)

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* A memfd of that size, which stays so; -errno. */
static int open_sealed(uint64_t bytes, unsigned flags)
{
	int fd = memfd_create("ckpt-slot", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	int r;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, (off_t)bytes) == 0 && fcntl(fd, F_ADD_SEALS, SEALS | F_SEAL_SEAL) == 0)
		return fd;
	r = -errno;
	(void)close(fd);
	return r;
}

static int touch(char *base, uint64_t bytes, const bool *stop)
{
	for (uint64_t at = 0; at < bytes; at += TOUCH_BYTES) {
		int r;

		if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
			return -ECANCELED;
		r = ckpt_slot_memory_touch(base + at, ckpt_min_u64(TOUCH_BYTES, bytes - at));
		if (r < 0)
			return r;
	}
	return 0;
}

/* Touches all of a new memfd and writes its header. Takes the descriptor. */
static int fill_in(int fd, uint64_t bytes, const struct ckpt_peer_slot_fixed *fixed,
	const bool *stop, int *ret_fd)
{
	char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int r;

	if (base == MAP_FAILED) {
		r = -errno;
		(void)close(fd);
		return r;
	}
	r = touch(base, bytes, stop);
	if (r == 0)
		ckpt_peer_slot_put_fixed((uint8_t *)base, fixed);
	(void)munmap(base, bytes);
	if (r < 0)
		(void)close(fd);
	else
		*ret_fd = fd;
	return r;
}

int ckpt_peer_slot_file_make(const struct ckpt_peer_slot_fixed *fixed, const bool *stop,
	struct ckpt_error *err, int *ret_fd)
{
	uint64_t bytes = ckpt_peer_slot_bytes(fixed->capacity);
	uint64_t huge = ckpt_align_up(bytes, CKPT_HUGE_PAGE);
	int r = -ENOMEM;
	int fd;

	/* Not where the last huge page would be mostly empty. */
	fd = bytes >= CKPT_HUGE_PAGE ? open_sealed(huge, MFD_HUGETLB | MFD_HUGE_2MB) : -ENOMEM;
	if (fd >= 0)
		r = fill_in(fd, huge, fixed, stop, ret_fd);
	if (r == 0 || r == -ECANCELED)
		return r == 0 ? 0 : ckpt_fail(err, r, "the slot was given up");
	fd = open_sealed(bytes, 0);
	r = fd < 0 ? fd : fill_in(fd, bytes, fixed, stop, ret_fd);
	if (r == 0)
		return 0;
	return ckpt_fail(err, r, "cannot make a slot of %zu MiB in memory for rank %u: %s",
		(size_t)(bytes >> 20), fixed->rank, ckpt_code_text(r));
}

int ckpt_peer_slot_file_check(int fd, struct ckpt_error *err, struct ckpt_peer_slot_file *ret_file)
{
	struct ckpt_peer_slot_file file = {.bytes = 0};
	uint8_t header[CKPT_PEER_SLOT_HEADER_USED];
	struct stat status;
	int seals = fcntl(fd, F_GET_SEALS);
	int r;

	if (seals < 0 || (seals & SEALS) != SEALS || fstat(fd, &status) < 0)
		return ckpt_fail(err, CKPT_EFORMAT,
			"the descriptor is not a memfd whose size is sealed, so it is no slot");
	file.bytes = (uint64_t)status.st_size;
	file.page = ckpt_max_u64((uint64_t)status.st_blksize, SMALL_PAGE);
	if (file.bytes < CKPT_PEER_SLOT_HEADER_BYTES ||
		pread(fd, header, sizeof(header), 0) != (ssize_t)sizeof(header))
		return ckpt_fail(err, CKPT_EFORMAT, "the memfd is too short to be a slot");
	r = ckpt_peer_slot_get(header, file.bytes, err, &file.fixed, &file.record);
	if (r == 0)
		*ret_file = file;
	return r;
}

int ckpt_peer_slot_file_map(int fd, const struct ckpt_peer_slot_file *file, bool whole, bool write,
	struct ckpt_error *err, struct ckpt_peer_slot_map *ret_map)
{
	size_t bytes = whole ? file->bytes : file->page;
	char *base =
		mmap(NULL, bytes, write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	int r;

	if (base == MAP_FAILED) {
		r = -errno;
		return ckpt_fail(err, r,
			"cannot map a slot of %zu MiB: %s; see the limit of address space (ulimit "
			"-v)",
			bytes >> 20, ckpt_code_text(r));
	}
	if (madvise(base, bytes, MADV_DONTFORK) < 0) {
		r = -errno;
		(void)munmap(base, bytes);
		return ckpt_fail(
			err, r, "cannot keep a slot from forked children: %s", ckpt_code_text(r));
	}
	/* A failure only makes core dumps larger. */
	(void)madvise(base, bytes, MADV_DONTDUMP);
	*ret_map = (struct ckpt_peer_slot_map){.base = base, .bytes = bytes};
	return 0;
}

void ckpt_peer_slot_file_unmap(struct ckpt_peer_slot_map *map)
{
	if (map->base)
		(void)munmap(map->base, map->bytes);
	*map = (struct ckpt_peer_slot_map){.base = NULL};
}
