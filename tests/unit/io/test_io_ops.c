/* SPDX-License-Identifier: Apache-2.0 */
/* Every request does the same on every backend, on a disk and in memory. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "lib/io_rig.h"
#include "lib/scratch.h"
#include "lib/test.h"

#define PAGE 4096

static void every(void (*body)(struct io_rig *rig))
{
	static const enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};
	static const enum rig_place places[] = {RIG_DISK, RIG_SHM};
	struct io_rig rig;

	for (size_t k = 0; k < COUNT(kinds); k++) {
		if (kinds[k] == CKPT_IO_URING && !rig_has_uring())
			continue;
		for (size_t p = 0; p < COUNT(places); p++) {
			assert_int_equal(io_rig_open(&rig, kinds[k], places[p]), 0);
			print_message("%s in %s\n", rig.io->ops->name, rig.dir);
			body(&rig);
			io_rig_close(&rig);
		}
	}
}

static int64_t create(struct io_rig *rig, const char *path)
{
	int64_t fd = io_rig_open_file(rig, path, CKPT_OPEN_CREATE);

	assert_true(fd >= 0);
	return fd;
}

static void shut(struct io_rig *rig, int64_t fd)
{
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0), 0);
}

static void touch(struct io_rig *rig, const char *path)
{
	shut(rig, create(rig, path));
}

static const char *at(struct io_rig *rig, const char *path)
{
	return scratch_join(rig->dir, path);
}

static bool exists(struct io_rig *rig, const char *path)
{
	struct stat st;

	return lstat(at(rig, path), &st) == 0;
}

static void bytes(struct io_rig *rig)
{
	char text[100] = "";
	int64_t fd = create(rig, "f");

	assert_int_equal(io_rig_write(rig, fd, "hello", 5, 0), 5);
	assert_int_equal(io_rig_write(rig, fd, "world", 5, 10), 5);
	assert_int_equal(io_rig_read(rig, fd, text, sizeof(text), 0), 15);
	assert_memory_equal(text, "hello\0\0\0\0\0world", 15);
	assert_int_equal(io_rig_read(rig, fd, text, sizeof(text), 15), 0);
	assert_int_equal(io_rig_read(rig, fd, text, sizeof(text), 1 << 20), 0);
	assert_int_equal(io_rig_read(rig, fd, text, 3, 2), 3);
	assert_memory_equal(text, "llo", 3);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_FDATASYNC, fd, 0), 0);
	shut(rig, fd);
	/* Not open: an answer like any other. */
	assert_int_equal(io_rig_write(rig, fd, "x", 1, 0), -EBADF);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_FDATASYNC, fd, 0), -EBADF);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_CLOSE, fd, 0), -EBADF);
}

static void test_bytes(void **state)
{
	(void)state;
	every(bytes);
}

static void opening(struct io_rig *rig)
{
	struct ckpt_io_req req = {.op = CKPT_IO_OP_OPEN, .path = "f", .slot = -1};
	struct stat st;
	mode_t mask = umask(027);

	int64_t fd = create(rig, "f");
	(void)umask(mask);
	assert_int_equal(fstat((int)fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0640);
	assert_int_equal(fcntl((int)fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(io_rig_write(rig, fd, "12345", 5, 0), 5);
	shut(rig, fd);
	assert_int_equal(io_rig_open_file(rig, "f", CKPT_OPEN_CREATE), -EEXIST);
	assert_int_equal(io_rig_open_file(rig, "g", 0), -ENOENT);
	assert_int_equal(io_rig_open_file(rig, "d/f", CKPT_OPEN_CREATE), -ENOENT);
	assert_int_equal(io_rig_open_file(rig, "f/g", 0), -ENOTDIR);

	fd = io_rig_do(rig, &req);
	assert_true(fd >= 0);
	assert_int_equal(req.size, 5);
	assert_int_equal(fcntl((int)fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK | O_DIRECT), O_RDONLY);
	assert_int_equal(fcntl((int)fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(io_rig_write(rig, fd, "x", 1, 0), -EBADF);
	shut(rig, fd);
	fd = io_rig_open_file(rig, "f", CKPT_OPEN_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(fcntl((int)fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR);
	shut(rig, fd);
}

static void test_opening(void **state)
{
	(void)state;
	every(opening);
}

static void only_files(struct io_rig *rig)
{
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "dir"), 0);
	assert_int_equal(mkfifo(at(rig, "fifo"), 0600), 0);
	assert_int_equal(symlink("/etc/passwd", at(rig, "link")), 0);
	assert_int_equal(symlink("nowhere", at(rig, "dangling")), 0);
	/* Only root may make one. */
	bool device = mknod(at(rig, "null"), S_IFCHR | 0600, 0x103) == 0;
	assert_true(device || errno == EPERM);
	static const unsigned ways[] = {0, CKPT_OPEN_RDWR};
	for (size_t i = 0; i < COUNT(ways); i++) {
		/* A FIFO without a writer would keep a plain open waiting for ever. */
		assert_int_equal(io_rig_open_file(rig, "fifo", ways[i]), -ENXIO);
		assert_int_equal(io_rig_open_file(rig, "dir", ways[i]), -EISDIR);
		assert_int_equal(io_rig_open_file(rig, "link", ways[i]), -ELOOP);
		if (device)
			assert_int_equal(io_rig_open_file(rig, "null", ways[i]), -ENXIO);
	}
	assert_int_equal(io_rig_open_file(rig, "dangling", CKPT_OPEN_CREATE), -EEXIST);
	assert_int_equal(io_rig_open_file(rig, "fifo", CKPT_OPEN_CREATE), -EEXIST);
	assert_false(exists(rig, "nowhere"));
}

static void test_only_files(void **state)
{
	(void)state;
	every(only_files);
}

static void direct(struct io_rig *rig)
{
	char *pages = rig_pages(3 * PAGE);
	char *back = rig_pages(3 * PAGE);

	if (!rig->io->direct) {
		print_message("no O_DIRECT there\n");
		goto out;
	}
	rig_fill(pages, 3 * PAGE, 1);
	int64_t fd = io_rig_open_file(rig, "f", CKPT_OPEN_CREATE | CKPT_OPEN_DIRECT);
	assert_true(fd >= 0);
	assert_true(fcntl((int)fd, F_GETFL) & O_DIRECT);
	assert_int_equal(io_rig_write(rig, fd, pages, 3 * PAGE, 0), 3 * PAGE);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_TRUNCATE, fd, 2 * PAGE + 100), 0);
	shut(rig, fd);
	fd = io_rig_open_file(rig, "f", CKPT_OPEN_DIRECT);
	assert_true(fd >= 0);
	assert_true(fcntl((int)fd, F_GETFL) & O_DIRECT);
	assert_int_equal(io_rig_read(rig, fd, back, 3 * PAGE, 0), 2 * PAGE + 100);
	assert_true(rig_filled(back, 2 * PAGE + 100, 1));
	shut(rig, fd);
out:
	free(pages);
	free(back);
}

static void test_direct(void **state)
{
	(void)state;
	every(direct);
}

static void sizes(struct io_rig *rig)
{
	struct stat st;
	char byte = 1;
	int64_t fd = create(rig, "f");

	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_ALLOCATE, fd, 1 << 20), 0);
	assert_int_equal(fstat((int)fd, &st), 0);
	assert_int_equal(st.st_size, 1 << 20);
	assert_true(st.st_blocks >= (1 << 20) / 512);
	assert_int_equal(io_rig_read(rig, fd, &byte, 1, 12345), 1);
	assert_int_equal(byte, 0);
	assert_int_equal(io_rig_fd(rig, CKPT_IO_OP_TRUNCATE, fd, 5000), 0);
	assert_int_equal(fstat((int)fd, &st), 0);
	assert_int_equal(st.st_size, 5000);
	assert_true(st.st_blocks <= 16);
	shut(rig, fd);
}

static void test_sizes(void **state)
{
	(void)state;
	every(sizes);
}

static void names(struct io_rig *rig)
{
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "a"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "a"), -EEXIST);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "a/b"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "x/y"), -ENOENT);
	touch(rig, "a/f");
	touch(rig, "a/b/g");
	assert_int_equal(io_rig_rename(rig, "a/f", "a/b/g"), -EEXIST);
	assert_true(exists(rig, "a/f"));
	assert_int_equal(io_rig_rename(rig, "a/f", "a/b/h"), 0);
	assert_false(exists(rig, "a/f"));
	assert_true(exists(rig, "a/b/h"));
	assert_int_equal(io_rig_rename(rig, "a/f", "a/i"), -ENOENT);
	assert_int_equal(io_rig_rename(rig, "a/b/h", "x/i"), -ENOENT);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_SYNC_DIR, "a/b"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_SYNC_DIR, "."), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_SYNC_DIR, "x"), -ENOENT);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_SYNC_DIR, "a/b/h"), -ENOTDIR);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_RMDIR, "a/b"), -ENOTEMPTY);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_RMDIR, "a/b/h"), -ENOTDIR);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_UNLINK, "a/b"), -EISDIR);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_UNLINK, "a/b/h"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_UNLINK, "a/b/h"), -ENOENT);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_UNLINK, "a/b/g"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_RMDIR, "a/b"), 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_RMDIR, "a/b"), -ENOENT);
}

static void test_names(void **state)
{
	(void)state;
	every(names);
}

static void listing(struct io_rig *rig)
{
	struct ckpt_io_req req = {.op = CKPT_IO_OP_LIST, .path = ".", .slot = -1};

	assert_int_equal(io_rig_do(rig, &req), 0);
	assert_int_equal(req.listing.count, 0);
	assert_int_equal(req.listing.bytes, 0);
	ckpt_free(req.listing.names);
	touch(rig, "b");
	touch(rig, "a");
	touch(rig, "aa");
	touch(rig, "\xff\n");
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "B"), 0);
	assert_int_equal(io_rig_do(rig, &req), 0);
	assert_int_equal(req.listing.count, 5);
	assert_int_equal(req.listing.bytes, 12);
	assert_memory_equal(req.listing.names, "B\0a\0aa\0b\0\xff\n", 12);
	ckpt_free(req.listing.names);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_LIST, "c"), -ENOENT);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_LIST, "a"), -ENOTDIR);
}

static void test_listing(void **state)
{
	(void)state;
	every(listing);
}

static void many_names(struct io_rig *rig)
{
	struct ckpt_io_req req = {.op = CKPT_IO_OP_LIST, .path = "d", .slot = -1};
	char name[32];

	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_MKDIR, "d"), 0);
	for (int i = 0; i < 600; i++) {
		(void)snprintf(name, sizeof(name), "d/%05d", i * 7919 % 600);
		int fd = open(at(rig, name), O_CREAT | O_EXCL | O_WRONLY, 0600);
		assert_true(fd >= 0);
		(void)close(fd);
	}
	assert_int_equal(io_rig_do(rig, &req), 0);
	assert_int_equal(req.listing.count, 600);
	const char *found = req.listing.names;
	for (int i = 0; i < 600; i++, found += strlen(found) + 1) {
		(void)snprintf(name, sizeof(name), "%05d", i);
		assert_string_equal(found, name);
	}
	assert_ptr_equal(found, req.listing.names + req.listing.bytes);
	ckpt_free(req.listing.names);
}

static void test_many_names(void **state)
{
	(void)state;
	every(many_names);
}

static bool fail_all(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void no_memory(struct io_rig *rig)
{
	touch(rig, "a");
	ckpt_alloc_set_hook(fail_all, NULL);
	int64_t r = io_rig_path(rig, CKPT_IO_OP_LIST, ".");
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, -ENOMEM);
}

static void test_no_memory(void **state)
{
	(void)state;
	every(no_memory);
}

static int64_t lock(struct io_rig *rig, int64_t fd, bool shared)
{
	return io_rig_do(rig, &(struct ckpt_io_req){.op = CKPT_IO_OP_LOCK,
				      .fd = (int)fd,
				      .flags = shared ? CKPT_LOCK_SHARED : 0,
				      .slot = -1});
}

static int64_t lock_byte(struct io_rig *rig, int64_t fd, uint64_t off)
{
	return io_rig_do(rig,
		&(struct ckpt_io_req){
			.op = CKPT_IO_OP_LOCK, .fd = (int)fd, .off = off, .len = 1, .slot = -1});
}

/* Open-file locks: two opens of one process are as strange to each other as two processes. */
static void locks(struct io_rig *rig)
{
	touch(rig, "f");
	int64_t a = io_rig_open_file(rig, "f", CKPT_OPEN_RDWR);
	int64_t b = io_rig_open_file(rig, "f", CKPT_OPEN_RDWR);
	int64_t c = io_rig_open_file(rig, "f", 0);
	assert_int_equal(lock(rig, a, false), 0);
	assert_int_equal(lock(rig, a, false), 0);
	assert_int_equal(lock(rig, b, false), -EAGAIN);
	assert_int_equal(lock(rig, c, true), -EAGAIN);
	assert_int_equal(lock(rig, a, true), 0);
	assert_int_equal(lock(rig, c, true), 0);
	assert_int_equal(lock(rig, a, false), -EAGAIN);
	shut(rig, a);
	assert_int_equal(lock(rig, b, false), -EAGAIN);
	shut(rig, c);
	assert_int_equal(lock(rig, b, false), 0);
	/* Who opened it before it was removed, and locks it after, holds nothing. */
	c = io_rig_open_file(rig, "f", 0);
	assert_int_equal(io_rig_path(rig, CKPT_IO_OP_UNLINK, "f"), 0);
	shut(rig, b);
	assert_int_equal(lock(rig, c, true), -ENOENT);
	shut(rig, c);
}

static void test_locks(void **state)
{
	(void)state;
	every(locks);
}

/* Each byte of a file has its own, also where the file has none; and close gives all of them back. */
static void locks_of_bytes(struct io_rig *rig)
{
	const uint64_t far = UINT64_C(1) << 62;

	touch(rig, "f");
	int64_t a = io_rig_open_file(rig, "f", CKPT_OPEN_RDWR);
	int64_t b = io_rig_open_file(rig, "f", CKPT_OPEN_RDWR);
	assert_int_equal(lock_byte(rig, a, far), 0);
	assert_int_equal(lock_byte(rig, b, far), -EAGAIN);
	assert_int_equal(lock(rig, b, true), -EAGAIN);
	assert_int_equal(lock_byte(rig, b, far + 1), 0);
	assert_int_equal(lock_byte(rig, b, 0), 0);
	shut(rig, a);
	assert_int_equal(lock_byte(rig, b, far), 0);
	shut(rig, b);
}

static void test_locks_of_bytes(void **state)
{
	(void)state;
	every(locks_of_bytes);
}

static void test_backends(void **state)
{
	struct io_rig rig;
	struct ckpt_io *io;
	struct ckpt_inbox inbox;

	(void)state;
	assert_int_equal(io_rig_open(&rig, CKPT_IO_THREADS, RIG_DISK), 0);
	assert_string_equal(rig.io->ops->name, "threads");
	assert_int_equal(rig.io->probe_error, 0);
	assert_int_equal(rig.io->align, PAGE);
	assert_true(rig.io->threads >= 2);
	char memory[64];
	assert_int_equal(ckpt_io_register_slots(rig.io, memory, sizeof(memory), 1), -EOPNOTSUPP);
	assert_false(rig.io->registered);
	size_t left = scratch_threads() - rig.io->threads;
	io_rig_close(&rig);
	scratch_threads_settle(left);
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	assert_int_equal(ckpt_io_close(NULL, 0), 0);
	struct ckpt_io_config config = {.kind = 3, .root = -1, .inbox = &inbox};
	assert_int_equal(ckpt_io_open(&config, &io), -EINVAL);
	config = (struct ckpt_io_config){
		.depth = CKPT_IO_DEPTH_MAX + 1, .root = -1, .inbox = &inbox};
	assert_int_equal(ckpt_io_open(&config, &io), -EINVAL);
	ckpt_inbox_destroy(&inbox);
}

static unsigned allocations_left;

static bool fail_one(void *user, size_t size)
{
	(void)user;
	(void)size;
	return allocations_left-- == 0;
}

/* Opening and registering with each allocation failing once: a clean error, or a lesser success. */
static void each_allocation(enum ckpt_io_kind kind)
{
	char *dir = rig_dir_make(RIG_SHM);
	char *memory = rig_pages(PAGE);
	struct ckpt_inbox inbox;
	int root = open(dir, O_RDONLY | O_DIRECTORY);
	bool open_failed = false;

	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	size_t descriptors = scratch_descriptors();
	for (unsigned n = 0;; n++) {
		struct ckpt_io_config config = {.kind = kind, .root = root, .inbox = &inbox};
		struct ckpt_io *io = NULL;
		allocations_left = n;
		ckpt_alloc_set_hook(fail_one, NULL);
		int r = ckpt_io_open(&config, &io);
		int registered = r == 0 ? ckpt_io_register_slots(io, memory, PAGE, 1) : 0;
		ckpt_alloc_set_hook(NULL, NULL);
		bool failed = allocations_left == UINT_MAX;
		assert_true(r == 0 || (r == -ENOMEM && failed));
		assert_true(registered == 0 || registered == -EOPNOTSUPP || registered == -ENOMEM);
		open_failed |= r < 0;
		assert_int_equal(ckpt_io_close(io, -1), 0);
		assert_int_equal(scratch_descriptors(), descriptors);
		if (!failed)
			break;
	}
	assert_true(open_failed);
	(void)close(root);
	free(memory);
	ckpt_inbox_destroy(&inbox);
	rig_dir_remove(dir);
}

static void test_each_allocation(void **state)
{
	(void)state;
	each_allocation(CKPT_IO_THREADS);
	if (rig_has_uring())
		each_allocation(CKPT_IO_URING);
}

/* Probing leaves nothing behind, and a reader of a store makes nothing. */
static void test_probe(void **state)
{
	char *dir = rig_dir_make(RIG_DISK);
	struct ckpt_inbox inbox;
	struct ckpt_io *io;
	struct stat before;
	struct stat after;

	(void)state;
	assert_int_equal(ckpt_inbox_init(&inbox), 0);
	int root = open(dir, O_RDONLY | O_DIRECTORY);
	assert_int_equal(fstat(root, &before), 0);
	struct ckpt_io_config config = {.root = root, .read_only = true, .inbox = &inbox};
	assert_int_equal(ckpt_io_open(&config, &io), 0);
	assert_false(io->direct); /* there is no file to try it with */
	assert_int_equal(ckpt_io_close(io, -1), 0);
	assert_int_equal(fstat(root, &after), 0);
	assert_memory_equal(&before.st_mtim, &after.st_mtim, sizeof(before.st_mtim));

	config.read_only = false;
	assert_int_equal(ckpt_io_open(&config, &io), 0);
	bool direct = io->direct;
	assert_int_equal(ckpt_io_close(io, -1), 0);
	assert_int_equal(scratch_count(dir), 0);

	/* A reader and a writer come to the same conclusion once there is a file. */
	int fd = openat(root, "ckpt.json", O_CREAT | O_WRONLY, 0600);
	assert_true(fd >= 0);
	(void)close(fd);
	config.read_only = true;
	assert_int_equal(ckpt_io_open(&config, &io), 0);
	assert_int_equal(io->direct, direct);
	assert_int_equal(ckpt_io_close(io, -1), 0);
	config.root = -1;
	assert_int_equal(ckpt_io_open(&config, &io), 0);
	assert_false(io->direct);
	assert_int_equal(ckpt_io_close(io, -1), 0);
	(void)close(root);
	ckpt_inbox_destroy(&inbox);
	rig_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_bytes),
		cmocka_unit_test(test_opening),
		cmocka_unit_test(test_only_files),
		cmocka_unit_test(test_direct),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_listing),
		cmocka_unit_test(test_many_names),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_locks),
		cmocka_unit_test(test_locks_of_bytes),
		cmocka_unit_test(test_backends),
		cmocka_unit_test(test_each_allocation),
		cmocka_unit_test(test_probe),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
