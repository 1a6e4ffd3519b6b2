/* SPDX-License-Identifier: Apache-2.0 */
/* What a store's table gets to see of each verb, whatever the operation was used for before. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/io_rig.h"
#include "lib/test.h"
#include "store/store.h"

#define PAGE 4096

struct table {
	struct ckpt_store store;
	struct ckpt_store_op *op; /* that was submitted */
	unsigned submits;
	unsigned closes;
};

static void table_submit(struct ckpt_store *store, struct ckpt_store_op *op)
{
	struct table *t = CKPT_CONTAINER(store, struct table, store);

	t->op = op;
	t->submits++;
}

static void table_close(struct ckpt_store *store)
{
	CKPT_CONTAINER(store, struct table, store)->closes++;
}

static const struct ckpt_store_ops table_ops = {
	.name = "table", .tier = "none", .submit = table_submit, .close = table_close};

struct scene {
	struct table table;
	struct ckpt_store_op op;
	struct ckpt_task waiter;
	struct ckpt_error err;
	struct ckpt_object object; /* open */
	struct ckpt_object given;
	char *data;
};

static void set_path(char *path, const char *text)
{
	(void)snprintf(path, CKPT_PATH_MAX, "%s", text);
}

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	s->table.store = (struct ckpt_store){.ops = &table_ops, .align = PAGE, .label = "label"};
	s->object.fd = 7;
	set_path(s->object.path, "g/object");
	s->given.fd = -1;
	s->data = rig_pages(2 * PAGE);
	ckpt_store_op_init(&s->op, &s->waiter, &s->err);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	assert_int_equal(s->table.closes, 0);
	ckpt_store_close(&s->table.store);
	assert_int_equal(s->table.closes, 1);
	free(s->data);
	free(s);
	return 0;
}

/* As another verb may have left it. */
static struct ckpt_store_op *used(struct scene *s)
{
	struct ckpt_store_op *op = &s->op;

	op->verb = CKPT_STORE_LOCK;
	op->store = NULL;
	set_path(op->path, "what/was/there/before");
	op->object = &s->given;
	op->data = s->data + PAGE;
	op->length = 11;
	op->offset = 12;
	op->size = 13;
	op->slot = 14;
	op->shared = true;
	op->cached = true;
	op->locked = true;
	op->fleeting = true;
	op->over = true;
	op->done = true;
	op->result = -EIO;
	op->listing = (struct ckpt_listing){.names = s->data, .bytes = 15, .count = 16};
	s->table.op = NULL;
	return op;
}

/* What is not named in `expected` is as in a new operation: no slot is -1. */
static void assert_seen(struct scene *s, struct ckpt_store_op expected)
{
	const struct ckpt_store_op *op = s->table.op;

	assert_ptr_equal(op, &s->op);
	assert_int_equal(op->verb, expected.verb);
	assert_ptr_equal(op->store, &s->table.store);
	assert_ptr_equal(op->waiter, &s->waiter);
	assert_ptr_equal(op->err, &s->err);
	assert_string_equal(op->path, expected.path);
	assert_ptr_equal(op->object, expected.object);
	assert_ptr_equal(op->data, expected.data);
	assert_int_equal(op->length, expected.length);
	assert_int_equal(op->offset, expected.offset);
	assert_int_equal(op->size, expected.size);
	assert_int_equal(op->slot, expected.slot ? expected.slot : -1);
	assert_int_equal(op->shared, expected.shared);
	assert_int_equal(op->cached, expected.cached);
	assert_int_equal(op->locked, expected.locked);
	assert_int_equal(op->fleeting, expected.fleeting);
	assert_int_equal(op->over, expected.over);
	assert_false(op->done);
	assert_int_equal(op->result, 0);
	assert_null(op->listing.names);
	assert_int_equal(op->listing.bytes, 0);
	assert_int_equal(op->listing.count, 0);
}

#define SEEN(s, ...) assert_seen(s, (struct ckpt_store_op){__VA_ARGS__})

static void test_paths(void **state)
{
	struct scene *s = *state;
	struct ckpt_store *store = &s->table.store;

	ckpt_store_mkdir(store, used(s), "g/d");
	SEEN(s, .verb = CKPT_STORE_MKDIR, .path = "g/d");
	ckpt_store_sync(store, used(s), "g");
	SEEN(s, .verb = CKPT_STORE_SYNC, .path = "g");
	ckpt_store_list(store, used(s), ".");
	SEEN(s, .verb = CKPT_STORE_LIST, .path = ".");
	ckpt_store_remove(store, used(s), "g/f");
	SEEN(s, .verb = CKPT_STORE_REMOVE, .path = "g/f");
	ckpt_store_rmdir(store, used(s), "g/d");
	SEEN(s, .verb = CKPT_STORE_RMDIR, .path = "g/d");
	ckpt_store_sweep(store, used(s), "g/d");
	SEEN(s, .verb = CKPT_STORE_SWEEP, .path = "g/d");
	/* The operation's own path is as good as any. */
	ckpt_store_remove(store, &s->op, s->op.path);
	SEEN(s, .verb = CKPT_STORE_REMOVE, .path = "g/d");
	assert_int_equal(s->table.submits, 7);
}

static void test_whole_files(void **state)
{
	struct scene *s = *state;
	struct ckpt_store *store = &s->table.store;

	ckpt_store_put(store, used(s), "f", s->data, 5);
	SEEN(s, .verb = CKPT_STORE_PUT, .path = "f", .data = s->data, .length = 5);
	ckpt_store_put(store, used(s), "f", NULL, 0);
	SEEN(s, .verb = CKPT_STORE_PUT, .path = "f");
	ckpt_store_publish(store, used(s), "f", s->data, 5, NULL);
	SEEN(s, .verb = CKPT_STORE_PUBLISH, .path = "f", .data = s->data, .length = 5);
	ckpt_store_publish(store, used(s), "f", s->data, 5, &s->given);
	SEEN(s, .verb = CKPT_STORE_PUBLISH, .path = "f", .data = s->data, .length = 5,
		.locked = true, .object = &s->given);
	ckpt_store_show(store, used(s), "f", s->data, 5);
	SEEN(s, .verb = CKPT_STORE_PUBLISH, .path = "f", .data = s->data, .length = 5,
		.fleeting = true);
	ckpt_store_supersede(store, used(s), "f", s->data, 5);
	SEEN(s, .verb = CKPT_STORE_PUBLISH, .path = "f", .data = s->data, .length = 5,
		.over = true);
	ckpt_store_get(store, used(s), "f", 100);
	SEEN(s, .verb = CKPT_STORE_GET, .path = "f", .size = 100);
	ckpt_store_lock(store, used(s), "f", true, &s->given);
	SEEN(s, .verb = CKPT_STORE_LOCK, .path = "f", .shared = true, .object = &s->given);
	ckpt_store_lock(store, used(s), "f", false, &s->given);
	SEEN(s, .verb = CKPT_STORE_LOCK, .path = "f", .object = &s->given);
	ckpt_store_lock_byte(store, used(s), "f", 7, &s->given);
	SEEN(s, .verb = CKPT_STORE_LOCK, .path = "f", .offset = 7, .length = 1,
		.object = &s->given);
}

static void test_objects(void **state)
{
	struct scene *s = *state;
	struct ckpt_store *store = &s->table.store;
	struct ckpt_object *object = &s->object;

	ckpt_store_create(store, used(s), "shard", 10000, &s->given);
	SEEN(s, .verb = CKPT_STORE_CREATE, .path = "shard", .size = 10000, .object = &s->given);
	ckpt_store_open(store, used(s), "shard", &s->given);
	SEEN(s, .verb = CKPT_STORE_OPEN, .path = "shard", .object = &s->given);
	ckpt_store_open_cached(store, used(s), "shard", &s->given);
	SEEN(s, .verb = CKPT_STORE_OPEN, .path = "shard", .object = &s->given, .cached = true);
	ckpt_store_write(store, used(s), object, s->data, 2 * PAGE, 3 * PAGE, 4);
	SEEN(s, .verb = CKPT_STORE_WRITE, .path = "g/object", .object = object, .data = s->data,
		.length = 2 * PAGE, .offset = 3 * PAGE, .slot = 4);
	ckpt_store_read(store, used(s), object, s->data, PAGE, 0, -1);
	SEEN(s, .verb = CKPT_STORE_READ, .path = "g/object", .object = object, .data = s->data,
		.length = PAGE);
	ckpt_store_seal(store, used(s), object, 9999);
	SEEN(s, .verb = CKPT_STORE_SEAL, .path = "g/object", .object = object, .size = 9999);
	ckpt_store_shut(store, used(s), object);
	SEEN(s, .verb = CKPT_STORE_CLOSE, .path = "g/object", .object = object);
	ckpt_store_abandon(store, used(s), object);
	SEEN(s, .verb = CKPT_STORE_ABANDON, .path = "g/object", .object = object);
	/* Any bytes, through the page cache. */
	object->fd = 7;
	object->direct = false;
	ckpt_store_read(store, used(s), object, s->data + 1, 5, 3, -1);
	SEEN(s, .verb = CKPT_STORE_READ, .path = "g/object", .object = object, .data = s->data + 1,
		.length = 5, .offset = 3);
}

/* Something else is where a file should be: damage. All other codes say that the disk did not answer. */
static void test_no_file(void **state)
{
	static const int no_file[] = {-EISDIR, -ELOOP, -ENXIO, -ENOTDIR, -EFBIG};
	static const int other[] = {0, EISDIR, -ENOENT, -EEXIST, -EIO, -ENOMEM, -EACCES, -EAGAIN,
		-EXDEV, -ENOSPC, -EROFS, -ESTALE, -ETIMEDOUT, CKPT_EINCOMPLETE};

	(void)state;
	for (size_t i = 0; i < COUNT(no_file); i++)
		assert_true(ckpt_store_is_no_file(no_file[i]));
	for (size_t i = 0; i < COUNT(other); i++)
		assert_false(ckpt_store_is_no_file(other[i]));
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_paths),
		SCENE(test_whole_files),
		SCENE(test_objects),
		cmocka_unit_test(test_no_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
