/* SPDX-License-Identifier: Apache-2.0 */
/* No path leads out of the store, with openat2() and without it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/io_path.h"
#include "lib/confine.h"
#include "lib/io_rig.h"
#include "lib/scratch.h"
#include "lib/test.h"

#define STORE "store"

static const enum ckpt_io_op path_ops[] = {
	CKPT_IO_OP_OPEN,
	CKPT_IO_OP_MKDIR,
	CKPT_IO_OP_UNLINK,
	CKPT_IO_OP_RMDIR,
	CKPT_IO_OP_SYNC_DIR,
	CKPT_IO_OP_LIST,
};

/* A directory with something to protect beside and behind the store in it. */
struct yard {
	char *dir;
	struct io_rig rig;
};

static void make_file(const char *dir, const char *name)
{
	int fd = open(scratch_join(dir, name), O_CREAT | O_EXCL | O_WRONLY, 0600);

	if (fd < 0)
		abort();
	(void)close(fd);
}

static void yard_open(struct yard *y)
{
	y->dir = rig_dir_make(RIG_DISK);
	make_file(y->dir, "secret");
	if (mkdir(scratch_join(y->dir, "outside"), 0700) < 0 ||
		mkdir(scratch_join(y->dir, STORE), 0700) < 0 ||
		mkdir(scratch_join(y->dir, STORE "/d"), 0700) < 0 ||
		symlink("../outside", scratch_join(y->dir, STORE "/out")) < 0 ||
		symlink("d", scratch_join(y->dir, STORE "/in")) < 0 ||
		symlink(y->dir, scratch_join(y->dir, STORE "/d/up")) < 0)
		abort();
	make_file(y->dir, "outside/victim");
	make_file(y->dir, STORE "/f");
	if (io_rig_open_at(&y->rig, CKPT_IO_THREADS, 0, scratch_join(y->dir, STORE)) < 0)
		abort();
}

static void yard_close(struct yard *y)
{
	io_rig_close(&y->rig);
	rig_dir_remove(y->dir);
}

static bool fails(struct io_rig *rig, const char *path, int64_t a, int64_t b)
{
	for (size_t i = 0; i < COUNT(path_ops); i++) {
		struct ckpt_io_req req = {.op = path_ops[i], .path = path, .slot = -1};
		int64_t r = io_rig_do(rig, &req);
		if (r != a && r != b) {
			(void)fprintf(stderr, "op %d of %s: %lld\n", (int)path_ops[i], path,
				(long long)r);
			return false;
		}
	}
	int64_t create = io_rig_open_file(rig, path, CKPT_OPEN_CREATE);
	int64_t from = io_rig_rename(rig, path, "new");
	int64_t to = io_rig_rename(rig, "f", path);
	return (create == a || create == b) && (from == a || from == b) && (to == a || to == b);
}

/* 0 if nothing gets out and what may be reached is reached. */
static int try_all(void *argument)
{
	static const char *const invalid[] = {"", "..", "../secret", "d/..", "d/../f",
		"d/../../secret", "/etc/passwd", "/", "d//f", "d/", "./f", "d/./f"};
	static const char *const through_links[] = {
		"out/victim", "in/new", "d/up/secret", "d/up/outside/victim"};
	struct yard y;
	int bad = 0;

	(void)argument;
	yard_open(&y);
	size_t before = scratch_count(y.dir);
	for (size_t i = 0; i < COUNT(invalid); i++)
		bad |= !fails(&y.rig, invalid[i], -EINVAL, -EINVAL);
	for (size_t i = 0; i < COUNT(through_links); i++)
		bad |= !fails(&y.rig, through_links[i], -ELOOP, -ENOTDIR);
	bad |= scratch_count(y.dir) != before;
	/* A link itself is a name: it can go, and is not followed on the way. */
	bad |= io_rig_path(&y.rig, CKPT_IO_OP_UNLINK, "out") != 0;
	bad |= access(scratch_join(y.dir, "outside/victim"), F_OK) != 0;
	/* What is no link works. */
	bad |= io_rig_path(&y.rig, CKPT_IO_OP_MKDIR, "d/e") != 0;
	int64_t fd = io_rig_open_file(&y.rig, "d/e/new", CKPT_OPEN_CREATE);
	bad |= fd < 0;
	bad |= io_rig_fd(&y.rig, CKPT_IO_OP_CLOSE, fd, 0) != 0;
	bad |= io_rig_rename(&y.rig, "d/e/new", "moved") != 0;
	bad |= io_rig_path(&y.rig, CKPT_IO_OP_SYNC_DIR, "d/e") != 0;
	bad |= io_rig_path(&y.rig, CKPT_IO_OP_LIST, "d/e") != 0;
	bad |= io_rig_path(&y.rig, CKPT_IO_OP_RMDIR, "d/e") != 0;
	bad |= io_rig_open_file(&y.rig, "d/e/none", 0) != -ENOENT;
	yard_close(&y);
	return bad;
}

static void test_with_openat2(void **state)
{
	(void)state;
	assert_int_equal(try_all(NULL), 0);
}

static int without_openat2(void *argument)
{
	static const long numbers[] = {SYS_openat2};

	if (confine_syscalls(numbers, 1, *(int *)argument) < 0)
		return CONFINE_SKIP;
	return try_all(NULL);
}

static void run_without(int error)
{
	int r = confine_run(without_openat2, &error);

	if (r == CONFINE_SKIP) {
		print_message("system calls cannot be filtered here\n");
		skip();
	}
	assert_int_equal(r, 0);
}

static void test_old_kernel(void **state)
{
	(void)state;
	run_without(ENOSYS);
}

static void test_filtered(void **state)
{
	(void)state;
	run_without(EPERM);
}

static int64_t rename_over(struct io_rig *rig, const char *path, const char *new_path)
{
	return io_rig_do(rig, &(struct ckpt_io_req){.op = CKPT_IO_OP_RENAME,
				      .path = path,
				      .new_path = new_path,
				      .flags = CKPT_RENAME_REPLACE,
				      .slot = -1});
}

/* File systems that cannot rename without replacing: a link and an unlink do the same. */
static int without_noreplace(void *argument)
{
	static const long numbers[] = {SYS_renameat2};
	struct yard y;
	int bad = 0;

	if (confine_syscalls(numbers, 1, *(int *)argument) < 0)
		return CONFINE_SKIP;
	yard_open(&y);
	make_file(y.dir, STORE "/g");
	bad |= io_rig_rename(&y.rig, "f", "g") != -EEXIST;
	bad |= access(scratch_join(y.dir, STORE "/f"), F_OK) != 0;
	bad |= io_rig_rename(&y.rig, "f", "d/h") != 0;
	bad |= access(scratch_join(y.dir, STORE "/f"), F_OK) == 0;
	bad |= access(scratch_join(y.dir, STORE "/d/h"), F_OK) != 0;
	bad |= io_rig_rename(&y.rig, "f", "i") != -ENOENT;
	bad |= rename_over(&y.rig, "g", "d/h") != 0;
	bad |= access(scratch_join(y.dir, STORE "/g"), F_OK) == 0;
	yard_close(&y);
	return bad;
}

/* Without links either: a name that may be taken is not given, and what is lacking is told from what is forbidden. */
static int without_links(void *argument)
{
	static const long renames[] = {SYS_renameat2};
	static const long links[] = {SYS_linkat};
	int error = *(int *)argument;
	struct yard y;
	int bad = 0;

	if (confine_syscalls(renames, 1, error) < 0 || confine_syscalls(links, 1, EPERM) < 0)
		return CONFINE_SKIP;
	yard_open(&y);
	bad |= io_rig_rename(&y.rig, "f", "d/h") != (error == EPERM ? -EPERM : -EOPNOTSUPP);
	bad |= access(scratch_join(y.dir, STORE "/f"), F_OK) != 0;
	bad |= access(scratch_join(y.dir, STORE "/d/h"), F_OK) == 0;
	yard_close(&y);
	return bad;
}

/* Each file system and filter has its own word for locks that it does not have. */
static int without_locks(void *argument)
{
	static const long numbers[] = {SYS_fcntl};
	struct yard y;
	int bad = 0;

	yard_open(&y);
	int64_t fd = io_rig_open_file(&y.rig, "f", CKPT_OPEN_RDWR);
	bad |= fd < 0;
	if (confine_syscalls(numbers, 1, *(int *)argument) < 0)
		return CONFINE_SKIP;
	bad |= io_rig_do(&y.rig,
		       &(struct ckpt_io_req){.op = CKPT_IO_OP_LOCK, .fd = (int)fd, .slot = -1}) !=
	       -ENOLCK;
	bad |= io_rig_fd(&y.rig, CKPT_IO_OP_CLOSE, fd, 0) != 0;
	yard_close(&y);
	return bad;
}

static void each_error(int (*body)(void *))
{
	int errors[] = {EINVAL, ENOSYS, EOPNOTSUPP, EPERM};
	/* Of a lock EPERM is what it says. */
	size_t count = body == without_locks ? COUNT(errors) - 1 : COUNT(errors);

	for (size_t i = 0; i < count; i++) {
		int r = confine_run(body, &errors[i]);
		if (r == CONFINE_SKIP)
			skip();
		assert_int_equal(r, 0);
	}
}

static void test_rename_by_link(void **state)
{
	(void)state;
	each_error(without_noreplace);
}

static void test_no_links(void **state)
{
	(void)state;
	each_error(without_links);
}

static void test_no_locks(void **state)
{
	(void)state;
	each_error(without_locks);
}

static void test_long_paths(void **state)
{
	char path[6000];
	struct io_rig rig;

	(void)state;
	assert_int_equal(io_rig_open(&rig, CKPT_IO_THREADS, RIG_DISK), 0);
	memset(path, 'a', 300);
	path[300] = 0;
	assert_int_equal(io_rig_open_file(&rig, path, CKPT_OPEN_CREATE), -ENAMETOOLONG);
	assert_int_equal(io_rig_path(&rig, CKPT_IO_OP_MKDIR, path), -ENAMETOOLONG);
	for (size_t i = 0; i < sizeof(path) - 2; i += 2)
		memcpy(path + i, "a/", 3);
	path[sizeof(path) - 3] = 0;
	assert_true(ckpt_io_path_valid(path));
	assert_int_equal(io_rig_open_file(&rig, path, CKPT_OPEN_CREATE), -ENAMETOOLONG);
	assert_int_equal(io_rig_path(&rig, CKPT_IO_OP_MKDIR, path), -ENAMETOOLONG);
	io_rig_close(&rig);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_with_openat2),
		cmocka_unit_test(test_old_kernel),
		cmocka_unit_test(test_filtered),
		cmocka_unit_test(test_rename_by_link),
		cmocka_unit_test(test_no_links),
		cmocka_unit_test(test_no_locks),
		cmocka_unit_test(test_long_paths),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
