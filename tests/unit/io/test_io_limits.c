/* SPDX-License-Identifier: Apache-2.0 */
/* Containers and limits: what is refused gets the next best thing, or an error, and never a hang. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lib/confine.h"
#include "lib/hang.h"
#include "lib/io_rig.h"
#include "lib/scratch.h"
#include "lib/test.h"

#define PAGE   4096
#define NOBODY 65534

/* Returns from the child with the line that was not true. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

static void run(int (*body)(void *), void *argument)
{
	int r = confine_run(body, argument);

	if (r == CONFINE_SKIP) {
		print_message("cannot be tried here\n");
		skip();
	}
	assert_int_equal(r, 0);
}

/* One block there and back. 0 if it came back. */
static int round_trip(struct io_rig *rig, int slot, char *memory)
{
	unsigned direct = rig->io->direct ? CKPT_OPEN_DIRECT : 0;
	int64_t fd = io_rig_open_file(rig, "f", CKPT_OPEN_CREATE | direct);
	struct ckpt_io_req req = {
		.op = CKPT_IO_OP_WRITE, .fd = (int)fd, .buf = memory, .len = PAGE, .slot = slot};

	CHECK(fd >= 0);
	rig_fill(memory, PAGE, 5);
	CHECK(io_rig_do(rig, &req) == PAGE);
	CHECK(io_rig_fd(rig, CKPT_IO_OP_FDATASYNC, fd, 0) == 0);
	memset(memory, 0, PAGE);
	req.op = CKPT_IO_OP_READ;
	CHECK(io_rig_do(rig, &req) == PAGE);
	CHECK(rig_filled(memory, PAGE, 5));
	CHECK(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0) == 0);
	CHECK(io_rig_path(rig, CKPT_IO_OP_UNLINK, "f") == 0);
	return 0;
}

static int without_rings(void *argument)
{
	static const long numbers[] = {
		SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register};
	int error = *(int *)argument;
	struct io_rig rig;

	if (confine_syscalls(numbers, COUNT(numbers), error) < 0)
		return CONFINE_SKIP;
	/* A sanitizer's own thread begins with the first of ours. */
	CHECK(io_rig_open(&rig, CKPT_IO_THREADS, RIG_DISK) == 0);
	io_rig_close(&rig);
	size_t descriptors = scratch_descriptors();
	size_t threads = scratch_threads();
	CHECK(io_rig_open(&rig, CKPT_IO_URING, RIG_DISK) == -error);
	scratch_threads_settle(threads);
	CHECK(scratch_descriptors() == descriptors);
	CHECK(io_rig_open(&rig, CKPT_IO_AUTO, RIG_DISK) == 0);
	CHECK(strcmp(rig.io->ops->name, "threads") == 0);
	CHECK(rig.io->probe_error == -error);
	char *memory = rig_pages(PAGE);
	CHECK(round_trip(&rig, -1, memory) == 0);
	free(memory);
	io_rig_close(&rig);
	scratch_threads_settle(threads);
	CHECK(scratch_descriptors() == descriptors);
	return 0;
}

static void test_rings_forbidden(void **state)
{
	int errors[] = {EPERM, ENOSYS, ENOMEM};

	(void)state;
	if (!rig_has_uring())
		skip();
	for (size_t i = 0; i < COUNT(errors); i++)
		run(without_rings, &errors[i]);
}

/* A program that locks itself in after it has opened its store. */
static int rings_taken_away(void *argument)
{
	static const long numbers[] = {
		SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register};
	struct io_rig rig;
	char *memory = rig_pages(PAGE);

	(void)argument;
	CHECK(io_rig_open(&rig, CKPT_IO_URING, RIG_DISK) == 0);
	CHECK(round_trip(&rig, -1, memory) == 0);
	if (confine_syscalls(numbers, COUNT(numbers), EPERM) < 0)
		return CONFINE_SKIP;
	CHECK(round_trip(&rig, -1, memory) == 0);
	CHECK(round_trip(&rig, -1, memory) == 0);
	io_rig_close(&rig);
	free(memory);
	return 0;
}

static void test_rings_taken_away(void **state)
{
	(void)state;
	if (!rig_has_uring())
		skip();
	run(rings_taken_away, NULL);
}

/* Locked memory is counted by user: one that nobody else is. */
static int confine_lock(size_t bytes)
{
	if (confine_memlock(bytes) < 0)
		return -1;
	return confine_user(1000000 + (unsigned)getpid());
}

static int little_memory_to_lock(void *argument)
{
	enum { SLOTS = 4 };
	size_t size = 1 << 20;
	struct io_rig rig;

	(void)argument;
	if (confine_lock(64 << 10) < 0)
		return CONFINE_SKIP;
	char *base = rig_pages(SLOTS * size);
	CHECK(io_rig_open(&rig, CKPT_IO_URING, RIG_SHM) == 0);
	CHECK(ckpt_io_register_slots(rig.io, base, size, SLOTS) == -ENOMEM);
	CHECK(!rig.io->registered);
	for (int slot = -1; slot < SLOTS; slot++)
		CHECK(round_trip(&rig, slot, base + (size_t)(slot < 0 ? 0 : slot) * size) == 0);
	io_rig_close(&rig);
	free(base);
	return 0;
}

/* Some slots fit, the others do not: all can be used. */
static int some_memory_to_lock(void *argument)
{
	enum { SLOTS = 8 };
	size_t size = 64 << 10;
	struct io_rig rig;

	(void)argument;
	if (confine_lock(4 * size) < 0)
		return CONFINE_SKIP;
	char *base =
		mmap(NULL, SLOTS * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(base != MAP_FAILED);
	CHECK(io_rig_open(&rig, CKPT_IO_URING, RIG_SHM) == 0);
	CHECK(ckpt_io_register_slots(rig.io, base, size, SLOTS) == 0);
	CHECK(rig.io->registered);
	for (int slot = 0; slot < SLOTS; slot++)
		CHECK(round_trip(&rig, slot, base + (size_t)slot * size) == 0);
	io_rig_close(&rig);
	CHECK(munmap(base, SLOTS * size) == 0);
	return 0;
}

/* Of this process, which the kernel holds for somebody. */
static long pinned_kib(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	char line[128];
	long kib = -1;

	while (file && fgets(line, sizeof(line), file))
		if (strncmp(line, "VmPin:", 6) == 0)
			kib = strtol(line + 6, NULL, 10);
	if (file)
		(void)fclose(file);
	return kib;
}

/* Its pages are held no more, and what lies there then is what is written and read. */
static int forgotten_slots(void *argument)
{
	enum { SLOTS = 8 };
	size_t size = 64 << 10;
	struct io_rig rig;
	struct ckpt_io_req forget = {
		.op = CKPT_IO_OP_FORGET, .root = -1, .fd = -1, .slot = 5, .len = 2};
	char *base =
		mmap(NULL, SLOTS * size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)argument;
	CHECK(base != MAP_FAILED);
	CHECK(io_rig_open(&rig, CKPT_IO_URING, RIG_SHM) == 0);
	if (ckpt_io_register_slots(rig.io, base, size, SLOTS) < 0)
		return CONFINE_SKIP;
	/* The last was never used. */
	for (int slot = 0; slot < 6; slot++)
		CHECK(round_trip(&rig, slot, base + (size_t)slot * size) == 0);
	long before = pinned_kib();
	CHECK(io_rig_do(&rig, &forget) == 0);
	/* Some kernels let the pages go a little later. */
	await(before - pinned_kib() == (long)size >> 10);
	CHECK(mmap(base + 5 * size, 2 * size, PROT_READ | PROT_WRITE,
		      MAP_FIXED | MAP_SHARED | MAP_ANONYMOUS, -1, 0) == base + 5 * size);
	for (int slot = 0; slot < SLOTS; slot++)
		CHECK(round_trip(&rig, slot, base + (size_t)slot * size) == 0);
	/* More than are registered. */
	forget.len = 1000;
	CHECK(io_rig_do(&rig, &forget) == 0);
	CHECK(round_trip(&rig, 5, base + 5 * size) == 0);
	io_rig_close(&rig);
	CHECK(munmap(base, SLOTS * size) == 0);
	return 0;
}

static void test_memlock(void **state)
{
	(void)state;
	if (!rig_has_uring())
		skip();
	run(forgotten_slots, NULL);
	run(little_memory_to_lock, NULL);
	run(some_memory_to_lock, NULL);
}

/* A write that reaches the limit is short; the next one says why. */
static int small_files(void *argument)
{
	enum ckpt_io_kind kind = *(enum ckpt_io_kind *)argument;
	struct io_rig rig;

	if (confine_file_size(8 * PAGE) < 0)
		return CONFINE_SKIP;
	char *memory = rig_pages(16 * PAGE);
	CHECK(io_rig_open(&rig, kind, RIG_DISK) == 0);
	unsigned direct = rig.io->direct ? CKPT_OPEN_DIRECT : 0;
	int64_t fd = io_rig_open_file(&rig, "f", CKPT_OPEN_CREATE | direct);
	CHECK(fd >= 0);
	CHECK(io_rig_write(&rig, fd, memory, 16 * PAGE, 0) == 8 * PAGE);
	CHECK(io_rig_write(&rig, fd, memory, 8 * PAGE, 8 * PAGE) == -EFBIG);
	CHECK(io_rig_fd(&rig, CKPT_IO_OP_ALLOCATE, fd, 16 * PAGE) == -EFBIG);
	CHECK(io_rig_fd(&rig, CKPT_IO_OP_CLOSE, fd, 0) == 0);
	io_rig_close(&rig);
	free(memory);
	return 0;
}

static void test_file_size(void **state)
{
	enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++)
		if (kinds[i] == CKPT_IO_THREADS || rig_has_uring())
			run(small_files, &kinds[i]);
}

static int few_descriptors(void *argument)
{
	struct ckpt_inbox inbox;
	struct ckpt_io *io;

	(void)argument;
	CHECK(ckpt_inbox_init(&inbox) == 0);
	int next = dup(STDERR_FILENO);
	CHECK(next >= 0 && close(next) == 0);
	if (confine_files((size_t)next) < 0)
		return CONFINE_SKIP;
	struct ckpt_io_config config = {.kind = CKPT_IO_URING, .root = -1, .inbox = &inbox};
	CHECK(ckpt_io_open(&config, &io) == -EMFILE);
	config.kind = CKPT_IO_AUTO;
	CHECK(ckpt_io_open(&config, &io) == 0);
	CHECK(strcmp(io->ops->name, "threads") == 0);
	CHECK(io->probe_error == -EMFILE);
	CHECK(ckpt_io_close(io, -1) == 0);
	ckpt_inbox_destroy(&inbox);
	return 0;
}

static void test_descriptors(void **state)
{
	(void)state;
	if (!rig_has_uring())
		skip();
	run(few_descriptors, NULL);
}

static int no_threads(void *argument)
{
	struct rlimit none = {0};
	struct ckpt_inbox inbox;
	struct ckpt_io *io;

	CHECK(ckpt_inbox_init(&inbox) == 0);
	if (setrlimit(RLIMIT_NPROC, &none) < 0 || confine_user(NOBODY) < 0)
		return CONFINE_SKIP;
	struct ckpt_io_config config = {
		.kind = *(enum ckpt_io_kind *)argument, .root = -1, .inbox = &inbox};
	size_t descriptors = scratch_descriptors();
	CHECK(ckpt_io_open(&config, &io) == -EAGAIN);
	CHECK(scratch_descriptors() == descriptors);
	ckpt_inbox_destroy(&inbox);
	return 0;
}

static void test_no_threads(void **state)
{
	enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING, CKPT_IO_AUTO};

	(void)state;
	for (size_t i = 0; i < COUNT(kinds); i++)
		if (kinds[i] != CKPT_IO_URING || rig_has_uring())
			run(no_threads, &kinds[i]);
}

/* What a store's reader may not write to, or what is mounted read only, is probed by reading. */
static int foreign_directory(void *argument)
{
	const char *dir = argument;
	struct io_rig rig;

	if (confine_user(NOBODY) < 0)
		return CONFINE_SKIP;
	CHECK(io_rig_open_at(&rig, CKPT_IO_AUTO, 0, dir) == 0);
	CHECK(io_rig_open_file(&rig, "f", CKPT_OPEN_CREATE) == -EACCES);
	CHECK(io_rig_path(&rig, CKPT_IO_OP_MKDIR, "d") == -EACCES);
	CHECK(io_rig_path(&rig, CKPT_IO_OP_UNLINK, "open") == -EACCES);
	CHECK(io_rig_rename(&rig, "open", "renamed") == -EACCES);
	CHECK(io_rig_open_file(&rig, "closed", 0) == -EACCES);
	int64_t fd = io_rig_open_file(&rig, "open", rig.io->direct ? CKPT_OPEN_DIRECT : 0);
	CHECK(fd >= 0);
	CHECK(io_rig_fd(&rig, CKPT_IO_OP_CLOSE, fd, 0) == 0);
	io_rig_close(&rig);
	return 0;
}

static void test_foreign_directory(void **state)
{
	char *dir = rig_dir_make(RIG_SHM);

	(void)state;
	assert_int_equal(chmod(dir, 0755), 0);
	int fd = open(scratch_join(dir, "open"), O_CREAT | O_WRONLY, 0644);
	assert_true(fd >= 0);
	assert_int_equal(fchmod(fd, 0644), 0);
	(void)close(fd);
	fd = open(scratch_join(dir, "closed"), O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	(void)close(fd);
	int r = confine_run(foreign_directory, dir);
	rig_dir_remove(dir);
	if (r == CONFINE_SKIP)
		skip();
	assert_int_equal(r, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rings_forbidden),
		cmocka_unit_test(test_rings_taken_away),
		cmocka_unit_test(test_memlock),
		cmocka_unit_test(test_file_size),
		cmocka_unit_test(test_descriptors),
		cmocka_unit_test(test_no_threads),
		cmocka_unit_test(test_foreign_directory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
