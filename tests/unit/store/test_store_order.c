/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which each verb becomes durable, request by request. A power cut at any point leaves
 * what FORMAT.md promises only if this order holds, and no file system in a test would show that it
 * does not.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lib/io_trace.h"
#include "lib/store_rig.h"
#include "lib/test.h"

#define PAGE 4096

struct scene {
	struct store_rig rig;
	struct io_trace trace;
};

static struct ckpt_io *wrap(void *user, struct ckpt_io *inner)
{
	struct io_trace *trace = user;

	io_trace_init(trace, inner);
	return &trace->tap.io;
}

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	*state = s;
	return store_rig_open(&s->rig, CKPT_IO_AUTO, RIG_DISK, wrap, &s->trace);
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	/* One operation never has two requests under way. */
	assert_true(s->trace.most_in_flight <= 1);
	assert_int_equal(s->trace.tap.open_files, 0);
	store_rig_close(&s->rig);
	free(s);
	return 0;
}

static void assert_order(struct scene *s, const char *expected)
{
	assert_string_equal(s->trace.text, expected);
	io_trace_clear(&s->trace);
}

static void test_mkdir(void **state)
{
	struct scene *s = *state;

	assert_int_equal(store_rig_mkdir(&s->rig, "g"), 0);
	assert_order(s, "mkdir g\n"
			"sync_dir .\n");
	assert_int_equal(store_rig_mkdir(&s->rig, "g/step"), 0);
	assert_order(s, "mkdir g/step\n"
			"sync_dir g\n");
	/* Whoever made it may not have lived to sync it. */
	assert_int_equal(store_rig_mkdir(&s->rig, "g/step"), 0);
	assert_order(s, "mkdir g/step = -17\n"
			"sync_dir g\n");
}

static void test_shard(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	if (!s->trace.tap.io.direct) {
		print_message("no O_DIRECT here\n");
		skip();
	}
	char *pages = rig_pages(2 * PAGE);
	assert_int_equal(store_rig_create(&s->rig, "shard", 2 * PAGE, &object), 0);
	assert_order(s, "open shard create direct\n"
			"allocate shard 8192\n");
	assert_int_equal(store_rig_write(&s->rig, &object, pages, PAGE, PAGE), 0);
	assert_int_equal(store_rig_write(&s->rig, &object, pages, PAGE, 0), 0);
	assert_order(s, "write shard 4096+4096\n"
			"write shard 0+4096\n");
	/* Cut first: a size that was not synced is lost as easily as bytes are. One sync. */
	assert_int_equal(store_rig_seal(&s->rig, &object, PAGE + 1), 0);
	assert_order(s, "truncate shard 4097\n"
			"fdatasync shard\n"
			"close shard\n");
	assert_int_equal(store_rig_open_file(&s->rig, "shard", &object, NULL), 0);
	assert_int_equal(store_rig_read(&s->rig, &object, pages, 2 * PAGE, 0), 0);
	assert_int_equal(store_rig_shut(&s->rig, &object), 0);
	assert_order(s, "open shard direct\n"
			"read shard 0+8192\n"
			"read shard 4096+4096\n"
			"close shard\n");
	free(pages);
}

/* What others on the node read as well does not go past the page cache. */
static void test_shard_that_others_read(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_put(&s->rig, "shard", "12345"), 0);
	io_trace_clear(&s->trace);
	struct ckpt_store_op *op = store_rig_op(&s->rig);
	ckpt_store_open_cached(s->rig.store, op, "shard", &object);
	assert_int_equal(store_rig_wait(&s->rig, op), 0);
	assert_false(object.direct);
	assert_int_equal(store_rig_shut(&s->rig, &object), 0);
	assert_order(s, "open shard exact\n"
			"close shard\n");
}

static void test_abandon(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	assert_int_equal(store_rig_create(&s->rig, "shard", PAGE, &object), 0);
	io_trace_clear(&s->trace);
	assert_int_equal(store_rig_abandon(&s->rig, &object), 0);
	assert_order(s, "close shard\n"
			"unlink shard\n");
}

static void test_put(void **state)
{
	struct scene *s = *state;

	assert_int_equal(store_rig_put(&s->rig, "index", "12345"), 0);
	assert_order(s, "open index create\n"
			"write index 0+5\n"
			"fdatasync index\n"
			"close index\n");
	assert_int_equal(store_rig_put(&s->rig, "index", "12345"), -EEXIST);
	assert_order(s, "open index create = -17\n");
	assert_int_equal(store_rig_sync(&s->rig, "."), 0);
	assert_order(s, "sync_dir .\n");
}

static void test_publish(void **state)
{
	struct scene *s = *state;

	assert_int_equal(store_rig_mkdir(&s->rig, "g"), 0);
	io_trace_clear(&s->trace);
	/* The bytes are durable before the name is, and the name is before anybody hears of it. */
	assert_int_equal(store_rig_publish(&s->rig, "g/manifest.json", "{}", NULL), 0);
	assert_order(s, "open g/manifest.json.tmp-* create\n"
			"write g/manifest.json.tmp-* 0+2\n"
			"fdatasync g/manifest.json.tmp-*\n"
			"close g/manifest.json.tmp-*\n"
			"rename g/manifest.json.tmp-* g/manifest.json\n"
			"sync_dir g\n");
	/* That it is there is a fact as well, though whoever gave the name may have died at once. */
	assert_int_equal(store_rig_publish(&s->rig, "g/manifest.json", "{}", NULL), -EEXIST);
	assert_order(s, "open g/manifest.json.tmp-* create\n"
			"write g/manifest.json.tmp-* 0+2\n"
			"fdatasync g/manifest.json.tmp-*\n"
			"close g/manifest.json.tmp-*\n"
			"rename g/manifest.json.tmp-* g/manifest.json = -17\n"
			"sync_dir g\n"
			"unlink g/manifest.json.tmp-*\n");
}

/* Nothing waits for the disk; but the name is never seen without its bytes, nor is it taken from another. */
static void test_show(void **state)
{
	struct scene *s = *state;

	assert_int_equal(store_rig_show(&s->rig, "value", "{}"), 0);
	assert_order(s, "open value.tmp-* create\n"
			"write value.tmp-* 0+2\n"
			"close value.tmp-*\n"
			"rename value.tmp-* value\n");
	assert_int_equal(store_rig_show(&s->rig, "value", "[]"), -EEXIST);
	assert_order(s, "open value.tmp-* create\n"
			"write value.tmp-* 0+2\n"
			"close value.tmp-*\n"
			"rename value.tmp-* value = -17\n"
			"unlink value.tmp-*\n");
	/* What is published next is durable again. */
	assert_int_equal(store_rig_publish(&s->rig, "manifest", "{}", NULL), 0);
	assert_order(s, "open manifest.tmp-* create\n"
			"write manifest.tmp-* 0+2\n"
			"fdatasync manifest.tmp-*\n"
			"close manifest.tmp-*\n"
			"rename manifest.tmp-* manifest\n"
			"sync_dir .\n");
}

static void test_publish_locked(void **state)
{
	struct scene *s = *state;
	struct ckpt_object lock = {.fd = -1};

	/* The lock is held before the name can be seen. */
	assert_int_equal(store_rig_publish(&s->rig, "claim", "{}", &lock), 0);
	assert_order(s, "open claim.tmp-* create\n"
			"write claim.tmp-* 0+2\n"
			"fdatasync claim.tmp-*\n"
			"lock claim.tmp-* exclusive\n"
			"rename claim.tmp-* claim\n"
			"sync_dir .\n");
	assert_int_equal(store_rig_shut(&s->rig, &lock), 0);
	io_trace_clear(&s->trace);
	assert_int_equal(store_rig_publish(&s->rig, "claim", "{}", &lock), -EEXIST);
	assert_order(s, "open claim.tmp-* create\n"
			"write claim.tmp-* 0+2\n"
			"fdatasync claim.tmp-*\n"
			"lock claim.tmp-* exclusive\n"
			"rename claim.tmp-* claim = -17\n"
			"sync_dir .\n"
			"close claim.tmp-*\n"
			"unlink claim.tmp-*\n");
}

static void test_reading(void **state)
{
	struct scene *s = *state;
	struct ckpt_object lock = {.fd = -1};
	char *text;

	assert_int_equal(store_rig_put(&s->rig, "f", "text"), 0);
	io_trace_clear(&s->trace);
	assert_int_equal(store_rig_get(&s->rig, "f", 10, &text), 0);
	ckpt_free(text);
	assert_order(s, "open f\n"
			"read f 0+4\n"
			"close f\n");
	assert_int_equal(store_rig_get(&s->rig, "f", 3, &text), -EFBIG);
	assert_order(s, "open f\n"
			"close f\n");
	assert_int_equal(store_rig_lock(&s->rig, "f", true, &lock), 0);
	assert_int_equal(store_rig_shut(&s->rig, &lock), 0);
	assert_order(s, "open f\n"
			"lock f shared\n"
			"close f\n");
	assert_int_equal(store_rig_lock(&s->rig, "f", false, &lock), 0);
	assert_int_equal(store_rig_shut(&s->rig, &lock), 0);
	assert_order(s, "open f rdwr\n"
			"lock f exclusive\n"
			"close f\n");
}

static void test_removing(void **state)
{
	struct scene *s = *state;

	assert_int_equal(store_rig_remove(&s->rig, "f"), 0);
	assert_int_equal(store_rig_rmdir(&s->rig, "d"), 0);
	assert_order(s, "unlink f = -2\n"
			"rmdir d = -2\n");
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_mkdir),
		SCENE(test_shard),
		SCENE(test_shard_that_others_read),
		SCENE(test_abandon),
		SCENE(test_put),
		SCENE(test_publish),
		SCENE(test_show),
		SCENE(test_publish_locked),
		SCENE(test_reading),
		SCENE(test_removing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
