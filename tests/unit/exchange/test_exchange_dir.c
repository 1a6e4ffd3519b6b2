/* SPDX-License-Identifier: Apache-2.0 */
/* The exchange in a shared directory: what one rank has put, the others get; and what goes wrong there. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "exchange/exchange_dir.h"
#include "lib/hang_inbox.h"
#include "lib/io_fault.h"
#include "lib/scratch.h"
#include "lib/store_rig.h"
#include "lib/test.h"

struct scene {
	struct store_rig rig;
	struct io_fault fault;
	struct ckpt_exchange *ranks[2]; /* two ranks of one session */
	struct ckpt_exchange *other;    /* of another session */
	struct ckpt_exchange_op op;
	struct ckpt_error err;
};

static struct ckpt_io *wrap(void *user, struct ckpt_io *inner)
{
	struct scene *s = user;

	io_fault_init(&s->fault, inner);
	return &s->fault.tap.io;
}

static int set_up(void **state)
{
	struct scene *s = calloc(1, sizeof(*s));

	assert_int_equal(store_rig_open(&s->rig, CKPT_IO_THREADS, RIG_DISK, wrap, s), 0);
	for (size_t i = 0; i < COUNT(s->ranks); i++)
		assert_int_equal(
			ckpt_exchange_dir_open(&s->rig.sched, s->rig.store, "job-1", &s->ranks[i]),
			0);
	assert_int_equal(
		ckpt_exchange_dir_open(&s->rig.sched, s->rig.store, "job-2", &s->other), 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct scene *s = *state;

	for (size_t i = 0; i < COUNT(s->ranks); i++)
		ckpt_exchange_close(s->ranks[i]);
	ckpt_exchange_close(s->other);
	store_rig_close(&s->rig);
	free(s);
	return 0;
}

typedef void ask_fn(struct ckpt_exchange *x, struct ckpt_exchange_op *op,
	struct ckpt_exchange_item *items, size_t count);

static void wait_for(struct scene *s, const struct ckpt_exchange_op *op)
{
	store_rig_step(&s->rig);
	await_inbox(&s->rig.io_rig.inbox, op->done, store_rig_step(&s->rig));
}

static int ask(struct scene *s, ask_fn *verb, struct ckpt_exchange *x,
	struct ckpt_exchange_item *items, size_t count)
{
	ckpt_error_clear(&s->err);
	s->err.size = sizeof(s->err);
	ckpt_exchange_op_init(&s->op, NULL, &s->err);
	verb(x, &s->op, items, count);
	wait_for(s, &s->op);
	return s->op.result;
}

static void set_item(struct ckpt_exchange_item *item, const char *key, const char *value)
{
	*item = (struct ckpt_exchange_item){
		.data = (void *)(uintptr_t)value, .length = value ? strlen(value) : 0};
	(void)snprintf(item->key, sizeof(item->key), "%s", key);
}

static int put(struct scene *s, struct ckpt_exchange *x, const char *key, const char *value)
{
	struct ckpt_exchange_item item;

	set_item(&item, key, value);
	return ask(s, ckpt_exchange_put, x, &item, 1);
}

/* The value; "-": there is none. Freed by the next call. */
static const char *get(struct scene *s, struct ckpt_exchange *x, const char *key)
{
	static char text[64];
	struct ckpt_exchange_item item;

	set_item(&item, key, NULL);
	assert_int_equal(ask(s, ckpt_exchange_get, x, &item, 1), 0);
	(void)snprintf(text, sizeof(text), "%.*s", item.data ? (int)item.length : 1,
		item.data ? (const char *)item.data : "-");
	ckpt_exchange_items_clear(&item, 1);
	assert_null(item.data);
	return text;
}

static void test_put_and_get(void **state)
{
	struct scene *s = *state;

	assert_string_equal(get(s, s->ranks[1], "a-1"), "-");
	assert_int_equal(put(s, s->ranks[0], "a-1", "value"), 0);
	assert_string_equal(get(s, s->ranks[1], "a-1"), "value");
	/* Once: whoever puts it again, because he does not know, changes nothing. */
	assert_int_equal(put(s, s->ranks[0], "a-1", "value"), 0);
	assert_string_equal(get(s, s->ranks[0], "a-1"), "value");
	/* Whoever has another one learns that it is not his that counts. */
	assert_int_equal(put(s, s->ranks[1], "a-1", "valuf"), -EEXIST);
	assert_int_equal(put(s, s->ranks[1], "a-1", "valu"), -EEXIST);
	assert_int_equal(put(s, s->ranks[1], "a-1", "values"), -EEXIST);
	assert_string_equal(get(s, s->ranks[0], "a-1"), "value");
	/* Another session knows nothing of it. */
	assert_string_equal(get(s, s->other, "a-1"), "-");
	assert_int_equal(put(s, s->other, "a-1", "its own"), 0);
	assert_string_equal(get(s, s->other, "a-1"), "its own");
	assert_string_equal(get(s, s->ranks[1], "a-1"), "value");
	assert_int_equal(s->ranks[0]->bytes_put, 5);
	assert_int_equal(s->ranks[1]->bytes_got, 10);
}

static void test_many(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_item items[CKPT_EXCHANGE_BATCH];
	char names[CKPT_EXCHANGE_BATCH][16];
	char key[16];

	for (unsigned i = 0; i < CKPT_EXCHANGE_BATCH; i++) {
		(void)snprintf(names[i], sizeof(names[i]), "k-%u", i);
		set_item(&items[i], names[i], names[i]);
	}
	assert_int_equal(ask(s, ckpt_exchange_put, s->ranks[0], items, CKPT_EXCHANGE_BATCH), 0);
	for (unsigned i = 0; i < CKPT_EXCHANGE_BATCH; i++) {
		(void)snprintf(key, sizeof(key), "k-%u", i * 2);
		set_item(&items[i], key, NULL);
	}
	assert_int_equal(ask(s, ckpt_exchange_get, s->ranks[1], items, CKPT_EXCHANGE_BATCH), 0);
	for (unsigned i = 0; i < CKPT_EXCHANGE_BATCH; i++)
		assert_int_equal(items[i].data != NULL, i < CKPT_EXCHANGE_BATCH / 2);
	ckpt_exchange_items_clear(items, CKPT_EXCHANGE_BATCH);
	assert_int_equal(ask(s, ckpt_exchange_drop, s->ranks[1], items, CKPT_EXCHANGE_BATCH), 0);
	for (unsigned i = 0; i < CKPT_EXCHANGE_BATCH; i++) {
		(void)snprintf(key, sizeof(key), "k-%u", i);
		assert_string_equal(get(s, s->ranks[0], key), i % 2 ? key : "-");
	}
}

/* Two operations of one rank at once: each is answered. */
static void test_in_line(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_item first;
	struct ckpt_exchange_item second;
	struct ckpt_exchange_op later;

	set_item(&first, "first", "1");
	set_item(&second, "first", NULL);
	ckpt_exchange_op_init(&s->op, NULL, NULL);
	ckpt_exchange_op_init(&later, NULL, NULL);
	ckpt_exchange_put(s->ranks[0], &s->op, &first, 1);
	ckpt_exchange_get(s->ranks[0], &later, &second, 1);
	wait_for(s, &later);
	assert_true(s->op.done);
	assert_int_equal(s->op.result | later.result, 0);
	assert_int_equal(second.length, 1);
	ckpt_exchange_items_clear(&second, 1);
}

static void test_failures(void **state)
{
	struct scene *s = *state;

	io_fault_add(
		&s->fault, (struct io_fault_rule){
				   .op = CKPT_IO_OP_MKDIR, .path = "exchange", .error = -EROFS});
	assert_int_equal(put(s, s->ranks[0], "a", "1"), -EROFS);
	assert_non_null(strstr(s->err.message, "exchange"));
	io_fault_clear(&s->fault);
	assert_int_equal(put(s, s->ranks[0], "a", "1"), 0);
	io_fault_add(&s->fault,
		(struct io_fault_rule){.op = CKPT_IO_OP_OPEN, .path = "/a", .error = -EIO});
	struct ckpt_exchange_item item;
	set_item(&item, "a", NULL);
	assert_int_equal(ask(s, ckpt_exchange_get, s->ranks[1], &item, 1), -EIO);
	assert_null(item.data);
	io_fault_clear(&s->fault);
	/* Somebody has swept the session away: the next one that puts makes it again. */
	assert_int_equal(rename(scratch_join(s->rig.io_rig.dir, "exchange/job-1"),
				 scratch_join(s->rig.io_rig.dir, "away")),
		0);
	assert_string_equal(get(s, s->ranks[1], "a"), "-");
	assert_int_equal(put(s, s->ranks[0], "b", "2"), -ENOENT);
	assert_int_equal(put(s, s->ranks[0], "b", "2"), 0);
	assert_string_equal(get(s, s->ranks[1], "b"), "2");
}

/* A value that nobody can have put. */
static void test_too_large(void **state)
{
	struct scene *s = *state;
	struct ckpt_exchange_item item;

	assert_int_equal(put(s, s->ranks[0], "a", "1"), 0);
	assert_int_equal(truncate(scratch_join(s->rig.io_rig.dir, "exchange/job-1/a"),
				 (off_t)CKPT_EXCHANGE_VALUE_MAX + 1),
		0);
	set_item(&item, "a", NULL);
	assert_int_equal(ask(s, ckpt_exchange_get, s->ranks[1], &item, 1), -EFBIG);
	assert_null(item.data);
	/* Nor is it what is put now. */
	assert_int_equal(put(s, s->ranks[1], "a", "1"), -EFBIG);
}

/* What is there goes while it is looked at: nothing was put, and the next one that tries does. */
static void test_gone_meanwhile(void **state)
{
	struct scene *s = *state;

	assert_int_equal(put(s, s->ranks[0], "a", "1"), 0);
	io_fault_add(&s->fault,
		(struct io_fault_rule){
			.op = CKPT_IO_OP_OPEN, .path = "/a", .error = -ENOENT, .nth = 2});
	assert_int_equal(put(s, s->ranks[1], "a", "1"), -ENOENT);
	io_fault_clear(&s->fault);
	assert_int_equal(put(s, s->ranks[1], "a", "1"), 0);
	assert_string_equal(get(s, s->ranks[0], "a"), "1");
}

#define SCENE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		SCENE(test_put_and_get),
		SCENE(test_many),
		SCENE(test_in_line),
		SCENE(test_failures),
		SCENE(test_too_large),
		SCENE(test_gone_meanwhile),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
