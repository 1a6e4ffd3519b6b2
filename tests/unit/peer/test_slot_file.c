/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of a slot: it is there, keeps its size, and nothing else is taken for one. */
#include "lib/test.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "lib/child.h"
#include "lib/scratch.h"
#include "peer/slot_file.h"

#define CAPACITY (UINT64_C(2) << 20)

static const struct ckpt_peer_slot_fixed fixed = {
	.job = {{1}}, .number = 5, .capacity = CAPACITY, .rank = 2};

static int made(void)
{
	struct ckpt_error err;
	int fd = -1;

	ckpt_error_clear(&err);
	if (ckpt_peer_slot_file_make(&fixed, NULL, &err, &fd) < 0)
		fail_msg("%s", err.message);
	return fd;
}

static struct ckpt_peer_slot_map mapped(int fd, bool whole, bool write)
{
	struct ckpt_peer_slot_file file;
	struct ckpt_peer_slot_map map = {.base = NULL};
	struct ckpt_error err;

	ckpt_error_clear(&err);
	assert_int_equal(ckpt_peer_slot_file_check(fd, &err, &file), 0);
	assert_int_equal(file.fixed.number, 5);
	assert_int_equal(file.record.state, CKPT_PEER_EMPTY);
	assert_int_equal(ckpt_peer_slot_file_map(fd, &file, whole, write, &err, &map), 0);
	return map;
}

static void all_of_it_is_there_and_stays(void **state)
{
	int fd = made();
	struct stat status;

	(void)state;
	assert_int_equal(fstat(fd, &status), 0);
	assert_true((uint64_t)status.st_size >= ckpt_peer_slot_bytes(CAPACITY));
	assert_true((uint64_t)status.st_blocks * 512 >= ckpt_peer_slot_bytes(CAPACITY));
	assert_int_equal(ftruncate(fd, 0), -1);
	assert_int_equal(errno, EPERM);
	assert_int_equal(ftruncate(fd, status.st_size * 2), -1);
	assert_int_equal(errno, EPERM);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	(void)close(fd);
}

static void touch_last(void *user)
{
	const struct ckpt_peer_slot_map *map = user;

	*(volatile char *)(map->base + map->bytes - 1) = 'c';
}

static void children_do_not_have_it(void **state)
{
	int fd = made();
	struct ckpt_peer_slot_map map = mapped(fd, true, true);

	(void)state;
	map.base[map.bytes - 1] = 'p';
	/* ThreadSanitizer may have mapped something there for itself. */
	(void)child_signal(touch_last, &map);
	assert_int_equal(map.base[map.bytes - 1], 'p');
	ckpt_peer_slot_file_unmap(&map);
	(void)close(fd);
}

static void what_is_mapped_to_read_cannot_be_written(void **state)
{
	int fd = made();
	struct ckpt_peer_slot_map map = mapped(fd, true, false);

	(void)state;
	assert_int_equal(mprotect(map.base, map.bytes, PROT_READ), 0);
	assert_int_equal(madvise(map.base, map.bytes, MADV_DOFORK), 0);
	assert_int_equal(child_signal(touch_last, &map), SIGSEGV);
	ckpt_peer_slot_file_unmap(&map);
	(void)close(fd);
}

static void nothing_else_is_a_slot(void **state)
{
	struct ckpt_peer_slot_file file;
	char *dir = scratch_make();
	char header[4096] = "CKPTSLOT";
	int slot;
	int fd = open(scratch_join(dir, "file"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	(void)state;
	/* A file, which could be cut while it is mapped. */
	assert_true(fd >= 0);
	assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	(void)close(fd);
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	/* A memfd with the header of a slot, which could be cut; one that could grow; one that cannot do either. */
	slot = made();
	assert_int_equal(pread(slot, header, sizeof(header), 0), sizeof(header));
	(void)close(slot);
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(ftruncate(fd, (off_t)ckpt_peer_slot_bytes(CAPACITY)), 0);
	assert_int_equal(pwrite(fd, header, sizeof(header), 0), sizeof(header));
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW), 0);
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), 0);
	/* And of zeros. */
	memset(header, 0, sizeof(header));
	assert_int_equal(pwrite(fd, header, sizeof(header), 0), sizeof(header));
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	(void)close(fd);
	/* A short one. */
	fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
	assert_int_equal(ckpt_peer_slot_file_check(fd, NULL, &file), CKPT_EFORMAT);
	(void)close(fd);
	scratch_remove(dir);
}

static void making_can_be_given_up(void **state)
{
	const bool stop = true;
	size_t before = scratch_descriptors();
	int fd = -1;

	(void)state;
	assert_int_equal(ckpt_peer_slot_file_make(&fixed, &stop, NULL, &fd), -ECANCELED);
	assert_int_equal(fd, -1);
	assert_int_equal(scratch_descriptors(), before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_of_it_is_there_and_stays),
		cmocka_unit_test(children_do_not_have_it),
		cmocka_unit_test(what_is_mapped_to_read_cannot_be_written),
		cmocka_unit_test(nothing_else_is_a_slot),
		cmocka_unit_test(making_can_be_given_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
