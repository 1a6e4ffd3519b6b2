/* SPDX-License-Identifier: Apache-2.0 */
/* Full, read-only, foreign and vanished directories as the system makes them; several processes. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "lib/confine.h"
#include "lib/scratch.h"
#include "lib/store_rig.h"
#include "lib/test.h"

#define PAGE   4096
#define MIB    (1u << 20)
#define NOBODY 65534

/* Returns from the child with the line that was not true. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			(void)fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
			return 1;                                                                  \
		}                                                                                  \
	} while (0)

/* A file system of one MiB over `dir`, in this process's own view of the mounts. */
static int mount_small(const char *dir)
{
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return -1;
	return mount("none", dir, "tmpfs", 0, "size=1m,nr_inodes=64");
}

struct place {
	enum ckpt_io_kind kind;
	char *dir;
};

static int full_disk(void *argument)
{
	const struct place *place = argument;
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;
	static char text[2 * MIB];
	char *back;

	if (mount_small(place->dir) < 0)
		return CONFINE_SKIP;
	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	/* Before a byte is written. */
	CHECK(store_rig_create(&rig, "shard", 2 * MIB, &object) == -ENOSPC);
	CHECK(object.fd == -1);
	CHECK(strstr(rig.err.message, "cannot reserve 2.0 MiB for shard in ") != NULL);
	CHECK(strcmp(store_rig_names(&rig, "."), "") == 0);
	/* In the middle of a small file: what was there goes again. */
	memset(text, 'x', sizeof(text) - 1);
	CHECK(store_rig_put(&rig, "index", text) == -ENOSPC);
	CHECK(store_rig_publish(&rig, "manifest", text, NULL) == -ENOSPC);
	CHECK(strcmp(store_rig_names(&rig, "."), "") == 0);
	/* Where space could not be reserved: a write that is cut short, then the reason. */
	CHECK(store_rig_create(&rig, "shard", 0, &object) == 0);
	char *pages = rig_pages(2 * MIB);
	CHECK(store_rig_write(&rig, &object, pages, 2 * MIB, 0) == -ENOSPC);
	CHECK(rig.err.offset > 0);
	free(pages);
	CHECK(store_rig_abandon(&rig, &object) == 0);
	/* And all is well again. */
	CHECK(store_rig_put(&rig, "index", "text") == 0);
	CHECK(store_rig_get(&rig, "index", 10, &back) == 0);
	ckpt_free(back);
	store_rig_close(&rig);
	return 0;
}

static int read_only_disk(void *argument)
{
	const struct place *place = argument;
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;
	char *back;

	if (mount_small(place->dir) < 0)
		return CONFINE_SKIP;
	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	CHECK(store_rig_put(&rig, "index", "text") == 0);
	CHECK(store_rig_mkdir(&rig, "d") == 0);
	CHECK(mount("none", place->dir, NULL, MS_REMOUNT | MS_RDONLY, NULL) == 0);
	CHECK(store_rig_create(&rig, "shard", PAGE, &object) == -EROFS);
	CHECK(strstr(rig.err.message, "read-only") != NULL);
	CHECK(store_rig_publish(&rig, "manifest", "{}", NULL) == -EROFS);
	CHECK(store_rig_mkdir(&rig, "e") == -EROFS);
	CHECK(store_rig_remove(&rig, "index") == -EROFS);
	CHECK(store_rig_rmdir(&rig, "d") == -EROFS);
	CHECK(store_rig_lock(&rig, "index", false, &object) == -EROFS);
	CHECK(store_rig_lock(&rig, "index", true, &object) == 0);
	CHECK(store_rig_shut(&rig, &object) == 0);
	CHECK(store_rig_get(&rig, "index", 10, &back) == 0);
	ckpt_free(back);
	store_rig_close(&rig);
	/* Opened when it is so already. */
	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	CHECK(store_rig_open_file(&rig, "index", &object, NULL) == 0);
	char *page = rig_pages(PAGE);
	CHECK(store_rig_read(&rig, &object, page, PAGE, 0) == 0);
	CHECK(memcmp(page, "text", 5) == 0);
	free(page);
	CHECK(store_rig_shut(&rig, &object) == 0);
	store_rig_close(&rig);
	return 0;
}

static int no_inodes(void *argument)
{
	const struct place *place = argument;
	struct store_rig rig;
	char name[16];
	int r = 0;

	if (mount_small(place->dir) < 0)
		return CONFINE_SKIP;
	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	for (int i = 0; i < 100 && r == 0; i++) {
		(void)snprintf(name, sizeof(name), "f%d", i);
		r = store_rig_put(&rig, name, "");
	}
	CHECK(r == -ENOSPC);
	CHECK(store_rig_mkdir(&rig, "d") == -ENOSPC);
	store_rig_close(&rig);
	return 0;
}

static void on_each_backend(int (*body)(void *))
{
	static const enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};

	for (size_t i = 0; i < COUNT(kinds); i++) {
		if (kinds[i] == CKPT_IO_URING && !rig_has_uring())
			continue;
		struct place place = {.kind = kinds[i], .dir = rig_dir_make(RIG_DISK)};
		int r = confine_run(body, &place);
		rig_dir_remove(place.dir);
		if (r == CONFINE_SKIP) {
			print_message("nothing can be mounted here\n");
			skip();
		}
		assert_int_equal(r, 0);
	}
}

static void test_full_disk(void **state)
{
	(void)state;
	on_each_backend(full_disk);
}

static void test_read_only_disk(void **state)
{
	(void)state;
	on_each_backend(read_only_disk);
}

static void test_no_inodes(void **state)
{
	(void)state;
	on_each_backend(no_inodes);
}

static int file_limit(void *argument)
{
	const struct place *place = argument;
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;

	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	CHECK(store_rig_create(&rig, "shard", 0, &object) == 0);
	if (confine_file_size(4 * PAGE) < 0)
		return CONFINE_SKIP;
	char *pages = rig_pages(8 * PAGE);
	CHECK(store_rig_write(&rig, &object, pages, 8 * PAGE, 0) == -EFBIG);
	CHECK(rig.err.offset == 4 * PAGE);
	CHECK(strstr(rig.err.message, "ulimit -f") != NULL);
	CHECK(store_rig_abandon(&rig, &object) == 0);
	CHECK(store_rig_create(&rig, "shard", 8 * PAGE, &object) == -EFBIG);
	CHECK(strcmp(store_rig_names(&rig, "."), "") == 0);
	free(pages);
	store_rig_close(&rig);
	return 0;
}

static void test_file_limit(void **state)
{
	(void)state;
	on_each_backend(file_limit);
}

static int descriptor_limit(void *argument)
{
	const struct place *place = argument;
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;

	CHECK(store_rig_open_at(&rig, place->kind, place->dir, NULL, NULL) == 0);
	int next = dup(STDERR_FILENO);
	CHECK(next >= 0 && close(next) == 0);
	if (confine_files((size_t)next) < 0)
		return CONFINE_SKIP;
	CHECK(store_rig_create(&rig, "shard", PAGE, &object) == -EMFILE);
	CHECK(strstr(rig.err.message, "ulimit -n") != NULL);
	CHECK(store_rig_mkdir(&rig, "d") == -EMFILE);
	store_rig_close(&rig);
	return 0;
}

static void test_descriptor_limit(void **state)
{
	(void)state;
	on_each_backend(descriptor_limit);
}

static int foreign_store(void *argument)
{
	const char *dir = argument;
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;

	if (confine_user(NOBODY) < 0)
		return CONFINE_SKIP;
	CHECK(store_rig_open_at(&rig, CKPT_IO_AUTO, dir, NULL, NULL) == 0);
	CHECK(store_rig_create(&rig, "shard", PAGE, &object) == -EACCES);
	CHECK(strstr(rig.err.message, "owner and mode") != NULL);
	CHECK(store_rig_publish(&rig, "manifest", "{}", NULL) == -EACCES);
	store_rig_close(&rig);
	return 0;
}

static void test_foreign_store(void **state)
{
	char *dir = rig_dir_make(RIG_SHM);

	(void)state;
	assert_int_equal(chmod(dir, 0755), 0);
	int r = confine_run(foreign_store, dir);
	rig_dir_remove(dir);
	if (r == CONFINE_SKIP)
		skip();
	assert_int_equal(r, 0);
}

/* Somebody cleans up while the job runs. */
static void test_vanished_directory(void **state)
{
	char *dir = rig_dir_make(RIG_DISK);
	struct ckpt_object object = {.fd = -1};
	struct store_rig rig;

	(void)state;
	assert_int_equal(store_rig_open_at(&rig, CKPT_IO_AUTO, dir, NULL, NULL), 0);
	assert_int_equal(store_rig_mkdir(&rig, "g"), 0);
	assert_int_equal(store_rig_create(&rig, "g/shard", PAGE, &object), 0);
	assert_int_equal(unlink(scratch_join(dir, "g/shard")), 0);
	assert_int_equal(rmdir(scratch_join(dir, "g")), 0);
	/* What is open can still be written: only the name is gone. */
	assert_int_equal(store_rig_seal(&rig, &object, PAGE), 0);
	assert_int_equal(store_rig_put(&rig, "g/index", "x"), -ENOENT);
	assert_non_null(strstr(rig.err.message, "disk is mounted"));
	assert_int_equal(store_rig_sync(&rig, "g"), -ENOENT);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(store_rig_mkdir(&rig, "g"), -ENOENT);
	assert_int_equal(store_rig_create(&rig, "shard", PAGE, &object), -ENOENT);
	store_rig_close(&rig);
	free(dir);
}

/* Publishers of one name in as many processes, let go together. */
#define PUBLISHERS 4
#define ROUNDS     25
#define WINS       100 /* and the wins: what a child returns that saw nothing wrong */

struct race {
	const char *dir;
	int gate; /* read end of a pipe: end of file starts them */
	int number;
};

static int publish_all(void *argument)
{
	const struct race *race = argument;
	struct store_rig rig;
	char byte;
	int wins = 0;

	CHECK(store_rig_open_at(&rig, race->number % 2 ? CKPT_IO_THREADS : CKPT_IO_AUTO, race->dir,
		      NULL, NULL) == 0);
	rig.op.quiet = true;
	CHECK(read(race->gate, &byte, 1) == 0);
	for (int i = 0; i < ROUNDS; i++) {
		char name[32];
		char text[32];
		struct ckpt_object lock = {.fd = -1};
		(void)snprintf(name, sizeof(name), "claim-%d", i);
		(void)snprintf(text, sizeof(text), "publisher %d", race->number);
		int r = store_rig_publish(&rig, name, text, &lock);
		CHECK(r == 0 || r == -EEXIST);
		CHECK((r == 0) == (lock.fd >= 0));
		if (r == 0) {
			char *found;
			CHECK(store_rig_get(&rig, name, 100, &found) == 0);
			CHECK(strcmp(found, text) == 0);
			ckpt_free(found);
			CHECK(store_rig_shut(&rig, &lock) == 0);
			wins++;
		}
	}
	store_rig_close(&rig);
	return WINS + wins;
}

static void test_one_winner(void **state)
{
	char *dir = rig_dir_make(RIG_DISK);
	pid_t children[PUBLISHERS];
	int gate[2];
	int wins = 0;

	(void)state;
	assert_int_equal(pipe(gate), 0);
	for (int i = 0; i < PUBLISHERS; i++) {
		struct race race = {.dir = dir, .gate = gate[0], .number = i};
		(void)fflush(NULL);
		children[i] = fork();
		assert_true(children[i] >= 0);
		if (children[i] == 0) {
			(void)close(gate[1]);
			_exit(publish_all(&race));
		}
	}
	(void)close(gate[0]);
	(void)close(gate[1]);
	for (int i = 0; i < PUBLISHERS; i++) {
		int status;
		assert_int_equal(waitpid(children[i], &status, 0), children[i]);
		assert_true(WIFEXITED(status));
		assert_true(WEXITSTATUS(status) >= WINS);
		wins += WEXITSTATUS(status) - WINS;
	}
	assert_int_equal(wins, ROUNDS);
	assert_int_equal(scratch_count(dir), ROUNDS);
	rig_dir_remove(dir);
}

static int claim_and_wait(const char *dir, int said)
{
	struct ckpt_object lock = {.fd = -1};
	struct store_rig rig;

	CHECK(store_rig_open_at(&rig, CKPT_IO_AUTO, dir, NULL, NULL) == 0);
	CHECK(store_rig_publish(&rig, "claim", "mine", &lock) == 0);
	CHECK(write(said, "x", 1) == 1);
	for (;;)
		(void)pause();
}

/* A claim is held as long as its process lives, and not a moment longer. */
static void test_lock_of_a_process(void **state)
{
	char *dir = rig_dir_make(RIG_DISK);
	struct ckpt_object lock = {.fd = -1};
	struct store_rig rig;
	int said[2];
	char byte;
	int status;

	(void)state;
	assert_int_equal(pipe(said), 0);
	(void)fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0)
		_exit(claim_and_wait(dir, said[1]));
	(void)close(said[1]);
	assert_int_equal(read(said[0], &byte, 1), 1);
	(void)close(said[0]);
	assert_int_equal(store_rig_open_at(&rig, CKPT_IO_AUTO, dir, NULL, NULL), 0);
	assert_int_equal(store_rig_lock(&rig, "claim", false, &lock), -EAGAIN);
	assert_int_equal(store_rig_lock(&rig, "claim", true, &lock), -EAGAIN);
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(store_rig_lock(&rig, "claim", false, &lock), 0);
	assert_int_equal(store_rig_shut(&rig, &lock), 0);
	store_rig_close(&rig);
	rig_dir_remove(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full_disk),
		cmocka_unit_test(test_read_only_disk),
		cmocka_unit_test(test_no_inodes),
		cmocka_unit_test(test_file_limit),
		cmocka_unit_test(test_descriptor_limit),
		cmocka_unit_test(test_foreign_store),
		cmocka_unit_test(test_vanished_directory),
		cmocka_unit_test(test_one_winner),
		cmocka_unit_test(test_lock_of_a_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
