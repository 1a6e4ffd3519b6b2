/* SPDX-License-Identifier: Apache-2.0 */
/* What every verb of the directory store promises, on both backends, on a disk and in memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "lib/hang_inbox.h"
#include "lib/scratch.h"
#include "lib/store_rig.h"
#include "lib/test.h"

#define PAGE 4096

static void every(void (*body)(struct store_rig *rig))
{
	static const enum ckpt_io_kind kinds[] = {CKPT_IO_THREADS, CKPT_IO_URING};
	static const enum rig_place places[] = {RIG_DISK, RIG_SHM};
	struct store_rig rig;

	for (size_t k = 0; k < COUNT(kinds); k++) {
		if (kinds[k] == CKPT_IO_URING && !rig_has_uring())
			continue;
		for (size_t p = 0; p < COUNT(places); p++) {
			assert_int_equal(store_rig_open(&rig, kinds[k], places[p], NULL, NULL), 0);
			print_message("%s in %s\n", rig.io_rig.io->ops->name, rig.io_rig.dir);
			size_t descriptors = scratch_descriptors();
			body(&rig);
			assert_int_equal(scratch_descriptors(), descriptors);
			store_rig_close(&rig);
		}
	}
}

static const char *at(struct store_rig *rig, const char *path)
{
	return scratch_join(rig->io_rig.dir, path);
}

static void assert_text(struct store_rig *rig, const char *path, const char *expected)
{
	char *text;

	assert_int_equal(store_rig_get(rig, path, 1000, &text), 0);
	assert_int_equal(rig->op.length, strlen(expected));
	assert_string_equal(text, expected);
	ckpt_free(text);
}

/* A shard of `blocks` pages, of which `size` bytes are meant. */
static void write_shard(struct store_rig *rig, const char *path, unsigned blocks, uint64_t size)
{
	char *pages = rig_pages((size_t)blocks * PAGE);
	struct ckpt_object object = {.fd = -1};

	rig_fill(pages, (size_t)blocks * PAGE, 9);
	assert_int_equal(store_rig_create(rig, path, (uint64_t)blocks * PAGE, &object), 0);
	assert_true(object.fd >= 0);
	assert_string_equal(object.path, path);
	assert_int_equal(store_rig_write(rig, &object, pages, (uint64_t)blocks * PAGE, 0), 0);
	assert_int_equal(store_rig_seal(rig, &object, size), 0);
	assert_int_equal(object.fd, -1);
	assert_string_equal(object.path, path);
	free(pages);
}

static void shard(struct store_rig *rig)
{
	struct ckpt_object object = {.fd = -1};
	char *pages = rig_pages(8 * PAGE);
	struct stat st;
	uint64_t size;

	write_shard(rig, "shard", 5, 4 * PAGE + 77);
	assert_int_equal(stat(at(rig, "shard"), &st), 0);
	assert_int_equal(st.st_size, 4 * PAGE + 77);
	/* What was reserved and not used is given back. */
	assert_true(st.st_blocks <= 5 * PAGE / 512);
	assert_int_equal(rig->store->bytes_written, 5 * PAGE);
	assert_int_equal(rig->store->fsyncs, 1);

	assert_int_equal(store_rig_open_file(rig, "shard", &object, &size), 0);
	assert_int_equal(size, 4 * PAGE + 77);
	assert_int_equal(store_rig_read(rig, &object, pages, 5 * PAGE, 0), 0);
	assert_int_equal(rig->op.size, 4 * PAGE + 77);
	assert_true(rig_filled(pages, 4 * PAGE + 77, 9));
	char *whole = rig_pages(5 * PAGE);
	rig_fill(whole, 5 * PAGE, 9);
	memset(pages, 0, 8 * PAGE);
	assert_int_equal(store_rig_read(rig, &object, pages, 2 * PAGE, PAGE), 0);
	assert_int_equal(rig->op.size, 2 * PAGE);
	assert_memory_equal(pages, whole + PAGE, 2 * PAGE);
	assert_int_equal(store_rig_read(rig, &object, pages, PAGE, 4 * PAGE), 0);
	assert_int_equal(rig->op.size, 77);
	/* A file that ends a page or more before what is asked for is not whole. */
	assert_int_equal(store_rig_read(rig, &object, pages, 6 * PAGE, 0), CKPT_EINCOMPLETE);
	assert_int_equal(rig->err.code, CKPT_EINCOMPLETE);
	assert_int_equal(rig->err.offset, 4 * PAGE + 77);
	assert_int_equal(store_rig_read(rig, &object, pages, PAGE, 5 * PAGE), CKPT_EINCOMPLETE);
	assert_int_equal(store_rig_shut(rig, &object), 0);
	assert_int_equal(object.fd, -1);
	free(whole);
	free(pages);
}

static void test_shard(void **state)
{
	(void)state;
	every(shard);
}

/* Files that end exactly at a block, are empty, or are one byte long. */
static void shard_ends(struct store_rig *rig)
{
	static const uint64_t sizes[] = {0, 1, PAGE - 1, PAGE, 2 * PAGE};
	struct ckpt_object object = {.fd = -1};
	char *pages = rig_pages(2 * PAGE);
	char name[16];

	for (size_t i = 0; i < COUNT(sizes); i++) {
		uint64_t size;
		(void)snprintf(name, sizeof(name), "s%zu", i);
		write_shard(rig, name, 2, sizes[i]);
		assert_int_equal(store_rig_open_file(rig, name, &object, &size), 0);
		assert_int_equal(size, sizes[i]);
		uint64_t length = ckpt_align_up(size, PAGE);
		if (length > 0) {
			assert_int_equal(store_rig_read(rig, &object, pages, length, 0), 0);
			assert_int_equal(rig->op.size, size);
			assert_true(rig_filled(pages, size, 9));
		}
		assert_int_equal(store_rig_shut(rig, &object), 0);
	}
	free(pages);
}

static void test_shard_ends(void **state)
{
	(void)state;
	every(shard_ends);
}

static void names_are_new(struct store_rig *rig)
{
	struct ckpt_object object = {.fd = -1};

	write_shard(rig, "shard", 1, 10);
	assert_int_equal(store_rig_create(rig, "shard", PAGE, &object), -EEXIST);
	assert_int_equal(object.fd, -1);
	assert_non_null(strstr(rig->err.message, "shard"));
	assert_int_equal(store_rig_put(rig, "shard", "text"), -EEXIST);
	assert_int_equal(store_rig_publish(rig, "shard", "text", NULL), -EEXIST);
	assert_string_equal(store_rig_names(rig, "."), "shard");
	struct stat st;
	assert_int_equal(stat(at(rig, "shard"), &st), 0);
	assert_int_equal(st.st_size, 10);
	assert_int_equal(store_rig_put(rig, "text", ""), 0);
	assert_text(rig, "text", "");
	assert_int_equal(store_rig_put(rig, "text", "other"), -EEXIST);
	assert_text(rig, "text", "");
}

static void test_names_are_new(void **state)
{
	(void)state;
	every(names_are_new);
}

static void abandon(struct store_rig *rig)
{
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_create(rig, "shard", PAGE, &object), 0);
	assert_string_equal(store_rig_names(rig, "."), "shard");
	assert_int_equal(store_rig_abandon(rig, &object), 0);
	assert_int_equal(object.fd, -1);
	assert_string_equal(store_rig_names(rig, "."), "");
	/* Closed already, removed already: fine. */
	assert_int_equal(store_rig_abandon(rig, &object), 0);
}

static void test_abandon(void **state)
{
	(void)state;
	every(abandon);
}

static void directories(struct store_rig *rig)
{
	assert_int_equal(store_rig_mkdir(rig, "a"), 0);
	assert_int_equal(store_rig_mkdir(rig, "a"), 0);
	assert_int_equal(rig->store->fsyncs, 2);
	assert_int_equal(store_rig_mkdir(rig, "a/b"), 0);
	assert_int_equal(store_rig_mkdir(rig, "x/b"), -ENOENT);
	assert_int_equal(store_rig_put(rig, "a/f", "f"), 0);
	assert_int_equal(store_rig_sync(rig, "a"), 0);
	assert_int_equal(store_rig_sync(rig, "."), 0);
	assert_int_equal(store_rig_sync(rig, "x"), -ENOENT);
	assert_string_equal(store_rig_names(rig, "a"), "b f");
	assert_int_equal(store_rig_rmdir(rig, "a"), 0);
	assert_string_equal(store_rig_names(rig, "a"), "b f");
	assert_int_equal(store_rig_remove(rig, "a/f"), 0);
	assert_int_equal(store_rig_remove(rig, "a/f"), 0);
	assert_int_equal(store_rig_remove(rig, "x/f"), 0);
	assert_int_equal(store_rig_remove(rig, "a/b"), -EISDIR);
	assert_int_equal(store_rig_rmdir(rig, "a/b"), 0);
	assert_int_equal(store_rig_rmdir(rig, "a/b"), 0);
	assert_int_equal(store_rig_rmdir(rig, "a"), 0);
	assert_string_equal(store_rig_names(rig, "."), "");
	ckpt_store_list(rig->store, store_rig_op(rig), "a");
	assert_int_equal(store_rig_wait(rig, &rig->op), -ENOENT);
	assert_null(rig->op.listing.names);
}

static void test_directories(void **state)
{
	(void)state;
	every(directories);
}

static void small_files(struct store_rig *rig)
{
	char *text;

	assert_int_equal(store_rig_put(rig, "f", "hello"), 0);
	assert_text(rig, "f", "hello");
	assert_int_equal(store_rig_get(rig, "f", 5, &text), 0);
	ckpt_free(text);
	assert_int_equal(store_rig_get(rig, "f", 4, &text), -EFBIG);
	assert_null(text);
	assert_int_equal(store_rig_get(rig, "g", 4, &text), -ENOENT);
	assert_int_equal(store_rig_mkdir(rig, "d"), 0);
	assert_int_equal(store_rig_get(rig, "d", 4, &text), -EISDIR);
	assert_int_equal(symlink("f", at(rig, "link")), 0);
	assert_int_equal(store_rig_get(rig, "link", 100, &text), -ELOOP);
	assert_int_equal(mkfifo(at(rig, "fifo"), 0600), 0);
	assert_int_equal(store_rig_get(rig, "fifo", 100, &text), -ENXIO);
	assert_non_null(strstr(rig->err.message, "not a regular file"));
}

static void test_small_files(void **state)
{
	(void)state;
	every(small_files);
}

static void publishing(struct store_rig *rig)
{
	struct ckpt_object lock = {.fd = -1};
	struct ckpt_object other = {.fd = -1};

	assert_int_equal(store_rig_mkdir(rig, "gens"), 0);
	assert_int_equal(store_rig_publish(rig, "gens/1.json", "one", NULL), 0);
	assert_text(rig, "gens/1.json", "one");
	assert_int_equal(store_rig_publish(rig, "gens/1.json", "two", NULL), -EEXIST);
	assert_int_equal(store_rig_publish(rig, "gens/1.json", "two", &lock), -EEXIST);
	assert_int_equal(lock.fd, -1);
	assert_text(rig, "gens/1.json", "one");
	/* No temporary stays, whoever wins. */
	assert_string_equal(store_rig_names(rig, "gens"), "1.json");
	assert_int_equal(store_rig_publish(rig, "gens/2.json", "two", &lock), 0);
	assert_true(lock.fd >= 0);
	assert_string_equal(lock.path, "gens/2.json");
	assert_int_equal(store_rig_lock(rig, "gens/2.json", true, &other), -EAGAIN);
	assert_int_equal(store_rig_lock(rig, "gens/2.json", false, &other), -EAGAIN);
	assert_int_equal(other.fd, -1);
	assert_text(rig, "gens/2.json", "two");
	assert_int_equal(store_rig_shut(rig, &lock), 0);
	assert_int_equal(store_rig_lock(rig, "gens/2.json", false, &other), 0);
	assert_int_equal(store_rig_shut(rig, &other), 0);
	assert_int_equal(store_rig_publish(rig, "none/1.json", "x", NULL), -ENOENT);
	assert_int_equal(store_rig_publish(rig, "top.json", "x", NULL), 0);
	assert_string_equal(store_rig_names(rig, "."), "gens top.json");
}

/* The last one has the name, whether another one had it or not. */
static void superseding(struct store_rig *rig)
{
	assert_int_equal(store_rig_mkdir(rig, "gens"), 0);
	ckpt_store_supersede(rig->store, store_rig_op(rig), "gens/1", "one", 3);
	assert_int_equal(store_rig_wait(rig, &rig->op), 0);
	assert_text(rig, "gens/1", "one");
	ckpt_store_supersede(rig->store, store_rig_op(rig), "gens/1", "two", 3);
	assert_int_equal(store_rig_wait(rig, &rig->op), 0);
	assert_text(rig, "gens/1", "two");
	assert_string_equal(store_rig_names(rig, "gens"), "1");
	ckpt_store_supersede(rig->store, store_rig_op(rig), "none/1", "x", 1);
	assert_int_equal(store_rig_wait(rig, &rig->op), -ENOENT);
}

static void test_superseding(void **state)
{
	(void)state;
	every(superseding);
}

/* Any bytes, of what was opened through the page cache. */
static void exact(struct store_rig *rig)
{
	struct ckpt_object object = {.fd = -1};
	char *pages = rig_pages(3 * PAGE);
	char *got = rig_pages(PAGE);

	rig_fill(pages, 3 * PAGE, 9);
	write_shard(rig, "shard", 3, 2 * PAGE + 77);
	ckpt_store_open_cached(rig->store, store_rig_op(rig), "shard", &object);
	assert_int_equal(store_rig_wait(rig, &rig->op), 0);
	memset(got, 1, PAGE);
	assert_int_equal(store_rig_read(rig, &object, got + 3, 1001, PAGE + 5), 0);
	assert_memory_equal(got + 3, pages + PAGE + 5, 1001);
	assert_int_equal(got[2], 1);
	assert_int_equal(got[1004], 1);
	assert_int_equal(store_rig_read(rig, &object, got, 77, 2 * PAGE), 0);
	assert_memory_equal(got, pages + 2 * PAGE, 77);
	assert_int_equal(store_rig_shut(rig, &object), 0);
	free(got);
	free(pages);
}

static void test_exact(void **state)
{
	(void)state;
	every(exact);
}

static void test_publishing(void **state)
{
	(void)state;
	every(publishing);
}

static void locking(struct store_rig *rig)
{
	struct ckpt_object a = {.fd = -1};
	struct ckpt_object b = {.fd = -1};

	assert_int_equal(store_rig_lock(rig, "m", true, &a), -ENOENT);
	assert_int_equal(store_rig_put(rig, "m", "m"), 0);
	assert_int_equal(store_rig_lock(rig, "m", true, &a), 0);
	assert_int_equal(store_rig_lock(rig, "m", true, &b), 0);
	assert_int_equal(store_rig_shut(rig, &b), 0);
	assert_int_equal(store_rig_lock(rig, "m", false, &b), -EAGAIN);
	assert_non_null(strstr(rig->err.message, "another process"));
	assert_int_equal(store_rig_shut(rig, &a), 0);
	assert_int_equal(store_rig_lock(rig, "m", false, &b), 0);
	assert_int_equal(store_rig_shut(rig, &b), 0);
}

static void test_locking(void **state)
{
	(void)state;
	every(locking);
}

/* Answers that the caller counts with are not worded; everything else is, quiet or not. */
static void quietness(struct store_rig *rig)
{
	struct ckpt_object lock = {.fd = -1};
	struct ckpt_object other = {.fd = -1};
	char *text;

	rig->op.quiet = true;
	assert_int_equal(store_rig_publish(rig, "a", "a", &lock), 0);
	assert_int_equal(store_rig_publish(rig, "a", "a", NULL), -EEXIST);
	assert_int_equal(rig->err.code, 0);
	assert_int_equal(store_rig_lock(rig, "a", false, &other), -EAGAIN);
	assert_int_equal(rig->err.code, 0);
	assert_int_equal(store_rig_get(rig, "b", 10, &text), -ENOENT);
	assert_int_equal(rig->err.code, 0);
	assert_int_equal(store_rig_get(rig, "a", 0, &text), -EFBIG);
	assert_int_equal(rig->err.code, -EFBIG);
	rig->op.quiet = false;
	assert_int_equal(store_rig_get(rig, "b", 10, &text), -ENOENT);
	assert_int_equal(rig->err.code, -ENOENT);
	assert_int_equal(rig->err.sys_errno, ENOENT);
	assert_string_equal(rig->err.tier, "local");
	assert_string_equal(rig->err.file, "b");
	assert_non_null(strstr(rig->err.message, rig->io_rig.dir));
	assert_int_equal(store_rig_shut(rig, &lock), 0);
}

static void test_quietness(void **state)
{
	(void)state;
	every(quietness);
}

/* A hundred operations at once, each with its own bytes, on a file each or on one. */
static void crowd(struct store_rig *rig)
{
	enum { OPS = 100, BLOCK = 4 * PAGE };
	struct ckpt_store_op *ops = calloc(OPS, sizeof(*ops));
	char *memory = rig_pages((size_t)OPS * BLOCK);
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_create(rig, "shard", (uint64_t)OPS * BLOCK, &object), 0);
	for (int pass = 0; pass < 2; pass++) {
		if (pass == 1) {
			assert_int_equal(store_rig_seal(rig, &object, (uint64_t)OPS * BLOCK), 0);
			assert_int_equal(store_rig_open_file(rig, "shard", &object, NULL), 0);
			memset(memory, 0xee, (size_t)OPS * BLOCK);
		}
		for (unsigned i = 0; i < OPS; i++) {
			unsigned n = i * 37 % OPS;
			char *data = memory + (size_t)n * BLOCK;
			ckpt_store_op_init(&ops[n], NULL, &rig->err);
			if (pass == 0) {
				rig_fill(data, BLOCK, n);
				ckpt_store_write(rig->store, &ops[n], &object, data, BLOCK,
					(uint64_t)n * BLOCK, -1);
			} else {
				ckpt_store_read(rig->store, &ops[n], &object, data, BLOCK,
					(uint64_t)n * BLOCK, -1);
			}
			assert_false(ops[n].done);
		}
		for (unsigned n = 0; n < OPS; n++) {
			assert_int_equal(store_rig_wait(rig, &ops[n]), 0);
			assert_true(rig_filled(memory + (size_t)n * BLOCK, BLOCK, n));
		}
	}
	assert_int_equal(store_rig_shut(rig, &object), 0);
	free(memory);
	free(ops);
}

static void test_crowd(void **state)
{
	(void)state;
	every(crowd);
}

/* A task that uses one operation again and again is woken for each. */
struct user {
	struct ckpt_task task;
	struct ckpt_store_op op;
	struct store_rig *rig;
	unsigned round;
};

static int user_body(struct ckpt_task *task)
{
	struct user *u = CKPT_CONTAINER(task, struct user, task);

	CKPT_TASK_BEGIN(task);
	ckpt_store_op_init(&u->op, task, NULL);
	for (u->round = 0; u->round < 5; u->round++) {
		ckpt_store_put(u->rig->store, &u->op, "f", "x", 1);
		CKPT_AWAIT(task, u->op.done);
		if (u->op.result < 0)
			return u->op.result;
		/* Its own path is as good as any. */
		ckpt_store_remove(u->rig->store, &u->op, u->op.path);
		CKPT_AWAIT(task, u->op.done);
		if (u->op.result < 0)
			return u->op.result;
	}
	CKPT_TASK_END(task);
}

static void waiters(struct store_rig *rig)
{
	struct user u = {.rig = rig};

	ckpt_task_start(&u.task, &rig->sched, user_body, NULL);
	ckpt_sched_run(&rig->sched);
	await_inbox(&rig->io_rig.inbox, u.task.finished, store_rig_step(rig));
	assert_int_equal(u.task.result, 0);
	assert_int_equal(u.round, 5);
	assert_string_equal(store_rig_names(rig, "."), "");
}

static void test_waiters(void **state)
{
	(void)state;
	every(waiters);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_shard),
		cmocka_unit_test(test_shard_ends),
		cmocka_unit_test(test_names_are_new),
		cmocka_unit_test(test_abandon),
		cmocka_unit_test(test_directories),
		cmocka_unit_test(test_small_files),
		cmocka_unit_test(test_exact),
		cmocka_unit_test(test_publishing),
		cmocka_unit_test(test_superseding),
		cmocka_unit_test(test_locking),
		cmocka_unit_test(test_quietness),
		cmocka_unit_test(test_crowd),
		cmocka_unit_test(test_waiters),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
