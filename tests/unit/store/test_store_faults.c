/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that fail, move too little or are refused: what each verb makes of it. */
#include "fault_scene.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

static void test_short_writes(void **state)
{
	(void)state;
	for (int direct = 0; direct < 2; direct++) {
		struct scene *s = scene_open(RIG_DISK, direct);
		struct ckpt_object object = {.fd = -1};
		char *pages = rig_pages(8 * PAGE);
		char *back = rig_pages(8 * PAGE);
		rig_fill(pages, 8 * PAGE, 3);
		assert_int_equal(store_rig_create(&s->rig, "f", 8 * PAGE, &object), 0);
		unsigned rule =
			io_fault_add(&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE,
							.shorten = direct ? PAGE : PAGE + 100,
							.count = 3});
		assert_int_equal(store_rig_write(&s->rig, &object, pages, 8 * PAGE, 0), 0);
		assert_int_equal(s->fault.hits[rule], 3);
		assert_int_equal(s->fault.seen[rule], 4);
		assert_int_equal(s->rig.store->bytes_written, 8 * PAGE);
		assert_int_equal(store_rig_seal(&s->rig, &object, 8 * PAGE), 0);

		assert_int_equal(store_rig_open_file(&s->rig, "f", &object, NULL), 0);
		rule = io_fault_add(&s->fault,
			(struct io_fault_rule){
				.op = CKPT_IO_OP_READ, .shorten = direct ? PAGE : 3, .count = 3});
		assert_int_equal(store_rig_read(&s->rig, &object, back, 8 * PAGE, 0), 0);
		assert_int_equal(s->fault.hits[rule], 3);
		assert_int_equal(s->rig.op.size, 8 * PAGE);
		assert_memory_equal(pages, back, 8 * PAGE);
		assert_int_equal(store_rig_shut(&s->rig, &object), 0);
		free(pages);
		free(back);
		scene_close(s);
	}
}

/* Bytes of small files come and go one at a time. */
static void test_short_small(void **state)
{
	struct scene *s = *state;
	char *text;

	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.shorten = 1, .count = IO_FAULT_ALWAYS});
	assert_int_equal(store_rig_publish(&s->rig, "f", "a short text", NULL), 0);
	assert_int_equal(store_rig_get(&s->rig, "f", 100, &text), 0);
	assert_int_equal(s->rig.op.length, 12);
	assert_string_equal(text, "a short text");
	ckpt_free(text);
}

/* A disk that takes nothing, or never as much as can be gone on from, is a failed one. */
static void test_no_progress(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	if (!s->fault.tap.io.direct)
		skip();
	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .nothing = true});
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), -EIO);
	io_fault_clear(&s->fault);
	unsigned rule = scene_always(s, CKPT_IO_OP_WRITE, 512);
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), -EIO);
	assert_true(s->fault.hits[rule] > 1 && s->fault.hits[rule] < 10);
	/* Once is no reason to give up; nor is now and then. */
	io_fault_clear(&s->fault);
	(void)io_fault_add(&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .error = 512});
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), 0);
	char *pages = rig_pages(8 * PAGE);
	io_fault_clear(&s->fault);
	for (unsigned n = 1; n < 16; n += 2)
		(void)io_fault_add(&s->fault,
			(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .nth = n, .error = 512});
	rule = io_fault_add(&s->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_WRITE, .shorten = PAGE, .count = IO_FAULT_ALWAYS});
	assert_int_equal(store_rig_write(&s->rig, &object, pages, 8 * PAGE, 0), 0);
	assert_int_equal(s->fault.seen[rule], 16);
	free(pages);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	io_fault_clear(&s->fault);
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .nothing = true});
	assert_int_equal(store_rig_put(&s->rig, "g", "text"), -EIO);
	assert_string_equal(store_rig_names(&s->rig, "."), "");
}

/* A file that was cut behind our back, or that grows shorter between two looks. */
static void test_vanishing_end(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};
	char *text;

	assert_int_equal(store_rig_put(&s->rig, "f", "text"), 0);
	(void)io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_READ, .nth = 1, .nothing = true});
	assert_int_equal(store_rig_get(&s->rig, "f", 100, &text), 0);
	assert_int_equal(s->rig.op.length, 0);
	ckpt_free(text);
	/* What came before an error is not given either. */
	io_fault_clear(&s->fault);
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ, .nth = 2, .error = -EIO});
	(void)io_fault_add(&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ, .shorten = 1});
	assert_int_equal(store_rig_get(&s->rig, "f", 100, &text), -EIO);
	assert_int_equal(s->rig.op.length, 0);
	assert_int_equal(store_rig_open_file(&s->rig, "f", &object, NULL), 0);
	io_fault_clear(&s->fault);
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_READ, .nothing = true});
	assert_int_equal(store_rig_read(&s->rig, &object, scene_page, PAGE, 0), CKPT_EINCOMPLETE);
	assert_int_equal(s->rig.err.code, CKPT_EINCOMPLETE);
	assert_int_equal(store_rig_shut(&s->rig, &object), 0);
}

static void test_reserving(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};
	static const int none[] = {-EOPNOTSUPP, -ENOSYS};

	for (size_t i = 0; i < COUNT(none); i++) {
		io_fault_clear(&s->fault);
		(void)scene_always(s, CKPT_IO_OP_ALLOCATE, none[i]);
		assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
		assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	}
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_ALLOCATE, -ENOSPC);
	assert_int_equal(store_rig_create(&s->rig, "f", 3 << 20, &object), -ENOSPC);
	assert_int_equal(object.fd, -1);
	assert_string_equal(store_rig_names(&s->rig, "."), "");
	assert_non_null(strstr(s->rig.err.message, "reserve 3.0 MiB for f"));
	assert_non_null(strstr(s->rig.err.message, "free space there"));
	/* A shard without bytes needs no space. */
	assert_int_equal(store_rig_create(&s->rig, "f", 0, &object), 0);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
}

/* The io found that O_DIRECT works, and this file system does not take it: another store's, perhaps. */
static void test_direct_refused(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	if (!s->fault.tap.io.direct)
		skip();
	assert_int_equal(store_rig_put(&s->rig, "f", "text"), 0);
	unsigned rule = io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .error = -EINVAL, .late = true});
	assert_int_equal(store_rig_create(&s->rig, "g", PAGE, &object), 0);
	assert_int_equal(s->fault.seen[rule], 2);
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), 0);
	assert_int_equal(store_rig_seal(&s->rig, &object, 1), 0);
	/* It has learned. */
	assert_int_equal(store_rig_create(&s->rig, "h", PAGE, &object), 0);
	assert_false(object.direct);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	assert_int_equal(s->fault.seen[rule], 3);
	assert_string_equal(store_rig_names(&s->rig, "."), "f g");
}

/* A file that was made all the same, and does not go again: its name would look like another's. */
static void test_direct_refused_and_left(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	if (!s->fault.tap.io.direct)
		skip();
	(void)io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .error = -EINVAL, .late = true});
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_UNLINK, .error = -EIO});
	assert_int_equal(store_rig_create(&s->rig, "g", PAGE, &object), -EIO);
	assert_int_equal(object.fd, -1);
}

static void test_direct_refused_to_a_reader(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	if (!s->fault.tap.io.direct)
		skip();
	assert_int_equal(store_rig_put(&s->rig, "f", "text"), 0);
	unsigned rule = io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .error = -EINVAL});
	assert_int_equal(store_rig_open_file(&s->rig, "f", &object, NULL), 0);
	assert_int_equal(s->fault.seen[rule], 2);
	assert_int_equal(store_rig_shut(&s->rig, &object), 0);
	/* Without O_DIRECT in it the refusal means what it says. */
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_OPEN, -EINVAL);
	assert_int_equal(store_rig_open_file(&s->rig, "f", &object, NULL), -EINVAL);
	assert_int_equal(store_rig_create(&s->rig, "g", PAGE, &object), -EINVAL);
	assert_int_equal(s->fault.requests, 2);
}

/* Files that were open before stay direct: what is left of a short transfer must suit them. */
static void test_direct_refused_midway(void **state)
{
	static const enum ckpt_io_op ops[] = {CKPT_IO_OP_WRITE, CKPT_IO_OP_READ};
	struct scene *s = *state;
	struct ckpt_object old = {.fd = -1};
	struct ckpt_object new = {.fd = -1};

	if (!s->fault.tap.io.direct)
		skip();
	assert_int_equal(store_rig_create(&s->rig, "old", PAGE, &old), 0);
	(void)io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .error = -EINVAL});
	assert_int_equal(store_rig_create(&s->rig, "new", PAGE, &new), 0);
	for (size_t i = 0; i < COUNT(ops); i++) {
		io_fault_clear(&s->fault);
		unsigned rule =
			io_fault_add(&s->fault, (struct io_fault_rule){.op = ops[i], .error = 100});
		assert_int_equal(i == 0 ? store_rig_write(&s->rig, &old, scene_page, PAGE, 0)
					: store_rig_read(&s->rig, &old, scene_page, PAGE, 0),
			0);
		assert_int_equal(s->fault.seen[rule], 2);
	}
	/* The other one goes on at any byte. */
	io_fault_clear(&s->fault);
	(void)io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .shorten = 100, .count = 40});
	assert_int_equal(store_rig_write(&s->rig, &new, scene_page, PAGE, 0), 0);
	assert_int_equal(store_rig_shut(&s->rig, &old), 0);
	assert_int_equal(store_rig_shut(&s->rig, &new), 0);
}

/* The kernel forgets a failed sync; we do not. */
static void test_sync_is_final(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), 0);
	unsigned rule = io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .error = -EIO});
	assert_int_equal(store_rig_seal(&s->rig, &object, 10), -EIO);
	assert_int_equal(s->fault.seen[rule], 1);
	assert_int_equal(object.fd, -1);
	assert_string_equal(object.path, "f");
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	assert_string_equal(store_rig_names(&s->rig, "."), "");
	/* EINTR is no exception. */
	io_fault_clear(&s->fault);
	rule = io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .error = -EINTR});
	assert_int_equal(store_rig_publish(&s->rig, "f", "text", NULL), -EINTR);
	assert_int_equal(s->fault.seen[rule], 1);
	assert_string_equal(store_rig_names(&s->rig, "."), "");
	/* What could not be cut is not synced, and what is told is what came first. */
	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_TRUNCATE, -EIO);
	(void)scene_always(s, CKPT_IO_OP_CLOSE, -ENOSPC);
	rule = io_fault_add(
		&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .nth = 99});
	assert_int_equal(store_rig_seal(&s->rig, &object, 10), -EIO);
	assert_int_equal(s->fault.seen[rule], 0);
	assert_int_equal(s->rig.err.code, -EIO);
	assert_int_equal(object.fd, -1);
}

/* The name is there, and nobody may rely on it: an error, and the file stays. */
static void test_publish_unsynced(void **state)
{
	struct scene *s = *state;
	struct ckpt_object lock = {.fd = -1};

	(void)scene_always(s, CKPT_IO_OP_SYNC_DIR, -EIO);
	assert_int_equal(store_rig_publish(&s->rig, "a", "text", NULL), -EIO);
	assert_non_null(strstr(s->rig.err.message, "may not survive"));
	assert_int_equal(store_rig_publish(&s->rig, "b", "text", &lock), -EIO);
	assert_int_equal(lock.fd, -1);
	/* Of one that is there nobody is told either, before it is durable. */
	assert_int_equal(store_rig_publish(&s->rig, "a", "text", NULL), -EIO);
	assert_non_null(strstr(s->rig.err.message, "exists but may not survive"));
	io_fault_clear(&s->fault);
	assert_string_equal(store_rig_names(&s->rig, "."), "a b");
	assert_int_equal(store_rig_lock(&s->rig, "b", false, &lock), 0);
	assert_int_equal(store_rig_shut(&s->rig, &lock), 0);
	/* A rename that worked, and says that it did not. */
	(void)io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_RENAME, .error = -EIO, .late = true});
	assert_int_equal(store_rig_publish(&s->rig, "c", "text", NULL), -EIO);
	assert_string_equal(store_rig_names(&s->rig, "."), "a b c");
	/* Whoever cleared our temporary away has won. */
	io_fault_clear(&s->fault);
	s->rig.op.quiet = true;
	(void)scene_always(s, CKPT_IO_OP_RENAME, -ENOENT);
	assert_int_equal(store_rig_publish(&s->rig, "d", "text", NULL), -ENOENT);
	assert_int_equal(s->rig.err.code, 0);
	/* A temporary name that is taken is not the name. */
	io_fault_clear(&s->fault);
	(void)io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .error = -EEXIST, .count = 3});
	assert_int_equal(store_rig_publish(&s->rig, "d", "text", NULL), 0);
	assert_string_equal(store_rig_names(&s->rig, "."), "a b c d");
	io_fault_clear(&s->fault);
	unsigned rule = scene_always(s, CKPT_IO_OP_OPEN, -EEXIST);
	assert_int_equal(store_rig_publish(&s->rig, "e", "text", NULL), -EIO);
	assert_int_equal(s->fault.seen[rule], 8);
}

/* What is to go, and does not, is told; what has gone already is no failure. */
static void test_not_removed(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	(void)scene_always(s, CKPT_IO_OP_UNLINK, -EROFS);
	assert_int_equal(store_rig_abandon(&s->rig, &object), -EROFS);
	assert_non_null(strstr(s->rig.err.message, "cannot remove f in "));
	assert_int_equal(object.fd, -1);
	io_fault_clear(&s->fault);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	/* File systems have two words for a directory that is not empty. */
	assert_int_equal(store_rig_mkdir(&s->rig, "d"), 0);
	(void)scene_always(s, CKPT_IO_OP_RMDIR, -EEXIST);
	assert_int_equal(store_rig_rmdir(&s->rig, "d"), 0);
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_RMDIR, -ENOTEMPTY);
	assert_int_equal(store_rig_rmdir(&s->rig, "d"), 0);
}

/* The same operation, used for one verb after the other, is each time as new. */
static void test_used_again(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};
	struct ckpt_object lock = {.fd = -1};
	struct ckpt_store_op op;

	if (!s->fault.tap.io.direct)
		skip();
	ckpt_store_op_init(&op, NULL, NULL);
	ckpt_store_create(s->rig.store, &op, "f", PAGE, &object);
	assert_int_equal(store_rig_wait(&s->rig, &op), 0);
	assert_true(object.direct);
	ckpt_store_lock(s->rig.store, &op, "f", false, &lock);
	assert_int_equal(store_rig_wait(&s->rig, &op), 0);
	assert_false(lock.direct);
	assert_int_equal(store_rig_shut(&s->rig, &lock), 0);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
}

/* Whoever has a lease on a file has it open, and no lock on it: an open that does not wait says -EAGAIN, too. */
static void test_a_lease_is_no_lock(void **state)
{
	struct scene *s = *state;
	struct ckpt_object lock = {.fd = -1};

	char *text = NULL;

	assert_int_equal(store_rig_put(&s->rig, "f", "x"), 0);
	(void)scene_always(s, CKPT_IO_OP_OPEN, -EAGAIN);
	assert_int_equal(store_rig_get(&s->rig, "f", 10, &text), -EBUSY);
	assert_int_equal(store_rig_open_file(&s->rig, "f", &lock, NULL), -EBUSY);
	for (int shared = 0; shared < 2; shared++) {
		io_fault_clear(&s->fault);
		(void)scene_always(s, CKPT_IO_OP_OPEN, -EAGAIN);
		assert_int_equal(store_rig_lock(&s->rig, "f", shared, &lock), -EBUSY);
		assert_non_null(strstr(s->rig.err.message, "to lock it"));
		io_fault_clear(&s->fault);
		(void)scene_always(s, CKPT_IO_OP_LOCK, -EAGAIN);
		assert_int_equal(store_rig_lock(&s->rig, "f", shared, &lock), -EAGAIN);
	}
}

/* What each code tells its reader to do. */
static void test_advice(void **state)
{
	static const struct {
		int code;
		const char *text;
	} cases[] = {
		{-ENOSPC, "free space"},
		{-EDQUOT, "quota"},
		{-EROFS, "mount the file system writable"},
		{-EACCES, "owner and mode"},
		{-EPERM, "owner, mode and attributes"},
		{-EIO, "kernel's log"},
		{-ESTALE, "mount it again"},
		{-ENOENT, "disk is mounted"},
		{-ENOTDIR, "move it away"},
		{-ELOOP, "symbolic link"},
		{-EXDEV, "leads out of the store"},
		{-EMFILE, "ulimit -n"},
		{-ENFILE, "fs.file-max"},
		{-EFBIG, "ulimit -f"},
		{-EBUSY, "stop that first"},
		{-EEXIST, "another process"},
		{-ENOLCK, "-o flock"},
	};
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};
	char *text;

	for (size_t i = 0; i < COUNT(cases); i++) {
		io_fault_clear(&s->fault);
		(void)scene_always(s, CKPT_IO_OP_OPEN, cases[i].code);
		assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), cases[i].code);
		assert_non_null(strstr(s->rig.err.message, cases[i].text));
		assert_non_null(strstr(s->rig.err.message, "cannot create f in "));
		assert_int_equal(s->rig.err.sys_errno, -cases[i].code);
		assert_int_equal(s->rig.err.offset, -1);
	}
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_RENAME, -EOPNOTSUPP);
	assert_int_equal(store_rig_publish(&s->rig, "p", "text", NULL), -EOPNOTSUPP);
	assert_non_null(strstr(s->rig.err.message, "neither RENAME_NOREPLACE"));
	io_fault_clear(&s->fault);
	(void)scene_always(s, CKPT_IO_OP_RENAME, -EPERM);
	assert_int_equal(store_rig_publish(&s->rig, "p", "text", NULL), -EPERM);
	assert_non_null(strstr(s->rig.err.message, "seccomp"));
	io_fault_clear(&s->fault);
	/* Every verb that makes something says the same of a directory that has gone. */
	assert_int_equal(store_rig_mkdir(&s->rig, "none/d"), -ENOENT);
	assert_non_null(strstr(s->rig.err.message, "disk is mounted"));
	assert_int_equal(store_rig_put(&s->rig, "none/f", "text"), -ENOENT);
	assert_non_null(strstr(s->rig.err.message, "disk is mounted"));
	assert_int_equal(store_rig_publish(&s->rig, "none/f", "text", NULL), -ENOENT);
	assert_non_null(strstr(s->rig.err.message, "disk is mounted"));
	/* Of a file that is not there to be read, or too large to be, there is nothing to advise. */
	io_fault_clear(&s->fault);
	assert_int_equal(store_rig_put(&s->rig, "large", "text"), 0);
	assert_int_equal(store_rig_get(&s->rig, "large", 3, &text), -EFBIG);
	assert_null(strstr(s->rig.err.message, "ulimit"));
	assert_int_equal(store_rig_open_file(&s->rig, "f", &object, NULL), -ENOENT);
	assert_null(strstr(s->rig.err.message, "mounted"));
	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	(void)scene_always(s, CKPT_IO_OP_WRITE, -EIO);
	assert_int_equal(store_rig_write(&s->rig, &object, scene_page, PAGE, 0), -EIO);
	assert_int_equal(s->rig.err.offset, 0);
	assert_non_null(strstr(s->rig.err.message, "at offset 0 of f"));
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
}

/* One that takes its time holds up nobody else. */
static void test_slow_one(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};
	struct ckpt_store_op slow;

	assert_int_equal(store_rig_create(&s->rig, "f", PAGE, &object), 0);
	(void)io_fault_add(&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_WRITE, .hold = true});
	ckpt_store_op_init(&slow, NULL, NULL);
	ckpt_store_write(s->rig.store, &slow, &object, scene_page, PAGE, 0, -1);
	assert_int_equal(store_rig_put(&s->rig, "g", "text"), 0);
	assert_false(slow.done);
	assert_int_equal(io_tap_release(&s->fault.tap), 1);
	assert_int_equal(store_rig_wait(&s->rig, &slow), 0);
	assert_int_equal(store_rig_seal(&s->rig, &object, PAGE), 0);
}

static bool refuse(void *user, size_t size)
{
	(void)user;
	return size > 1000;
}

static bool refuse_all(void *user, size_t size)
{
	(void)user;
	(void)size;
	return true;
}

static void test_no_memory(void **state)
{
	struct scene *s = *state;
	struct ckpt_store *store = NULL;
	char text[2000];
	char *back;

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	assert_int_equal(store_rig_put(&s->rig, "f", text), 0);
	ckpt_alloc_set_hook(refuse, NULL);
	int r = store_rig_get(&s->rig, "f", 5000, &back);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, -ENOMEM);
	assert_null(back);
	ckpt_alloc_set_hook(refuse_all, NULL);
	r = ckpt_store_file_open(s->rig.store->env, &s->rig.sched, &s->fault.tap.io,
		s->rig.io_rig.root, "label", &store);
	ckpt_alloc_set_hook(NULL, NULL);
	assert_int_equal(r, -ENOMEM);
	assert_null(store);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_short_writes),
		SCENE(test_short_small),
		SCENE(test_no_progress),
		SCENE(test_vanishing_end),
		SCENE(test_reserving),
		SCENE(test_direct_refused),
		SCENE(test_direct_refused_and_left),
		SCENE(test_direct_refused_to_a_reader),
		SCENE(test_direct_refused_midway),
		SCENE(test_sync_is_final),
		SCENE(test_publish_unsynced),
		SCENE(test_not_removed),
		SCENE(test_used_again),
		SCENE(test_a_lease_is_no_lock),
		SCENE(test_advice),
		SCENE(test_slow_one),
		SCENE(test_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
