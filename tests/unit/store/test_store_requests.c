/* SPDX-License-Identifier: Apache-2.0 */
/* Every request of every verb fails, or all do from one on: nothing leaks, nothing lies. */
#include "fault_scene.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"

/* One verb in a state in which it works, and what puts that state there again afterwards. */
struct act {
	const char *name;
	int (*run)(struct scene *s, struct ckpt_object *object);
	bool needs_object; /* open, before it runs */
	bool gives_object; /* that it opens */
	bool may_ignore;   /* some of its requests may fail without consequence */
};

static int act_mkdir(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_mkdir(&s->rig, "d/new");
}

static int act_create(struct scene *s, struct ckpt_object *object)
{
	return store_rig_create(&s->rig, "d/new", PAGE, object);
}

static int act_write(struct scene *s, struct ckpt_object *object)
{
	return store_rig_write(&s->rig, object, scene_page, PAGE, 0);
}

static int act_seal(struct scene *s, struct ckpt_object *object)
{
	return store_rig_seal(&s->rig, object, 10);
}

static int act_abandon(struct scene *s, struct ckpt_object *object)
{
	return store_rig_abandon(&s->rig, object);
}

static int act_put(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_put(&s->rig, "d/new", "text");
}

static int act_sync(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_sync(&s->rig, "d");
}

static int act_publish(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_publish(&s->rig, "d/new", "text", NULL);
}

static int act_publish_locked(struct scene *s, struct ckpt_object *object)
{
	return store_rig_publish(&s->rig, "d/new", "text", object);
}

static int act_get(struct scene *s, struct ckpt_object *object)
{
	char *text;

	(void)object;
	int r = store_rig_get(&s->rig, "d/old", 100, &text);
	if (r == 0)
		assert_string_equal(text, "old");
	else
		assert_int_equal(s->rig.op.length, 0);
	ckpt_free(text);
	return r;
}

static int act_open(struct scene *s, struct ckpt_object *object)
{
	return store_rig_open_file(&s->rig, "d/old", object, NULL);
}

static int act_read(struct scene *s, struct ckpt_object *object)
{
	return store_rig_read(&s->rig, object, scene_page, PAGE, 0);
}

static int act_shut(struct scene *s, struct ckpt_object *object)
{
	return store_rig_shut(&s->rig, object);
}

static int act_list(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	ckpt_store_list(s->rig.store, store_rig_op(&s->rig), "d");
	int r = store_rig_wait(&s->rig, &s->rig.op);
	ckpt_free(s->rig.op.listing.names);
	return r;
}

static int act_remove(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_remove(&s->rig, "d/other");
}

static int act_rmdir(struct scene *s, struct ckpt_object *object)
{
	(void)object;
	return store_rig_rmdir(&s->rig, "d/empty");
}

static int act_lock(struct scene *s, struct ckpt_object *object)
{
	return store_rig_lock(&s->rig, "d/old", true, object);
}

static const struct act acts[] = {
	{"mkdir", act_mkdir, false, false, false},
	{"create", act_create, false, true, false},
	{"write", act_write, true, false, false},
	{"seal", act_seal, true, false, false},
	{"abandon", act_abandon, true, false, true},
	{"put", act_put, false, false, false},
	{"sync", act_sync, false, false, false},
	{"publish", act_publish, false, false, false},
	{"publish, locked", act_publish_locked, false, true, false},
	{"get", act_get, false, false, true},
	{"open", act_open, false, true, false},
	{"read", act_read, true, false, false},
	{"shut", act_shut, true, false, false},
	{"list", act_list, false, false, false},
	{"remove", act_remove, false, false, false},
	{"rmdir", act_rmdir, false, false, false},
	{"lock", act_lock, false, true, false},
};

static void prepare(struct scene *s, const struct act *act, struct ckpt_object *object)
{
	io_fault_clear(&s->fault);
	object->fd = -1;
	assert_int_equal(store_rig_mkdir(&s->rig, "d"), 0);
	assert_int_equal(store_rig_mkdir(&s->rig, "d/empty"), 0);
	assert_int_equal(store_rig_put(&s->rig, "d/old", "old"), 0);
	assert_int_equal(store_rig_put(&s->rig, "d/other", "other"), 0);
	if (act->needs_object) {
		assert_int_equal(store_rig_create(&s->rig, "d/shard", PAGE, object), 0);
		assert_int_equal(store_rig_write(&s->rig, object, scene_page, PAGE, 0), 0);
	}
	io_fault_clear(&s->fault);
}

static void clean(struct scene *s, struct ckpt_object *object)
{
	static const char *const names[] = {"d/new", "d/old", "d/other", "d/shard"};

	io_fault_clear(&s->fault);
	if (object->fd >= 0)
		assert_int_equal(store_rig_shut(&s->rig, object), 0);
	assert_int_equal(s->fault.tap.open_files, 0);
	for (size_t i = 0; i < COUNT(names); i++)
		if (store_rig_remove(&s->rig, names[i]) < 0)
			assert_int_equal(store_rig_rmdir(&s->rig, names[i]), 0);
	assert_int_equal(store_rig_rmdir(&s->rig, "d/empty"), 0);
	/* Whatever failed, no temporary file is left: the only error hit one request, not its clean-up. */
	assert_string_equal(store_rig_names(&s->rig, "d"), "");
	assert_int_equal(store_rig_rmdir(&s->rig, "d"), 0);
}

/* What holds after any failure. */
static void check_failure(struct scene *s, const struct act *act, const struct ckpt_object *object,
	int result, int error)
{
	const struct ckpt_error *err = &s->rig.err;

	assert_int_equal(result, error);
	assert_int_equal(err->code, error);
	assert_string_equal(err->tier, "local");
	assert_true(err->file[0] == 'd');
	assert_non_null(strstr(err->message, "cannot "));
	assert_non_null(strstr(err->message, s->rig.io_rig.dir));
	if (act->gives_object)
		assert_int_equal(object->fd, -1);
}

static void fail_each(struct scene *s, const struct act *act, int error)
{
	struct ckpt_object object = {.fd = -1};

	for (unsigned n = 1;; n++) {
		prepare(s, act, &object);
		/* Not a rule that changes anything: it counts. */
		unsigned syncs = io_fault_add(
			&s->fault, (struct io_fault_rule){.op = CKPT_IO_OP_FDATASYNC, .nth = 99});
		s->fault.fail_at = n;
		s->fault.fail_error = error;
		int r = act->run(s, &object);
		bool tried = s->fault.requests >= n;
		assert_true(s->fault.seen[syncs] <= 1);
		if (tried && !(act->may_ignore && r == 0))
			check_failure(s, act, &object, r, error);
		else
			assert_int_equal(r, 0);
		clean(s, &object);
		if (!tried)
			break;
	}
}

static void test_each_request(void **state)
{
	static const int errors[] = {-EIO, -ENOSPC, -ESTALE};

	for (size_t e = 0; e < COUNT(errors); e++)
		for (size_t i = 0; i < COUNT(acts); i++)
			fail_each(*state, &acts[i], errors[e]);
}

/* From some request on, nothing works any more: every verb still ends, and says so. */
static void test_from_then_on(void **state)
{
	struct scene *s = *state;
	struct ckpt_object object = {.fd = -1};

	for (size_t i = 0; i < COUNT(acts); i++) {
		for (unsigned n = 1; n <= 8; n++) {
			prepare(s, &acts[i], &object);
			unsigned rule = io_fault_add(&s->fault,
				(struct io_fault_rule){
					.nth = n, .count = IO_FAULT_ALWAYS, .error = -EIO});
			int r = acts[i].run(s, &object);
			if (s->fault.hits[rule] > 0 && !acts[i].may_ignore)
				assert_int_equal(r, -EIO);
			io_fault_clear(&s->fault);
			if (object.fd >= 0)
				assert_int_equal(store_rig_shut(&s->rig, &object), 0);
			assert_int_equal(s->fault.tap.open_files, 0);
			/* The temporary of a publish, too, if it could not be removed. */
			const char *names = store_rig_names(&s->rig, "d");
			char copy[512];
			(void)snprintf(copy, sizeof(copy), "%s", names);
			char *rest = NULL;
			for (char *name = strtok_r(copy, " ", &rest); name;
				name = strtok_r(NULL, " ", &rest)) {
				char path[128];
				(void)snprintf(path, sizeof(path), "d/%s", name);
				(void)store_rig_remove(&s->rig, path);
				(void)store_rig_rmdir(&s->rig, path);
			}
			assert_int_equal(store_rig_rmdir(&s->rig, "d"), 0);
		}
	}
}

/* A program without standard input opens its files from 0 on. */
static void test_descriptor_zero(void **state)
{
	int input = dup(STDIN_FILENO);

	(void)close(STDIN_FILENO);
	for (size_t i = 0; i < COUNT(acts); i++)
		fail_each(*state, &acts[i], -EIO);
	if (input >= 0) {
		assert_int_equal(dup2(input, STDIN_FILENO), STDIN_FILENO);
		assert_int_equal(close(input), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		QUICK(test_each_request),
		QUICK(test_from_then_on),
		QUICK(test_descriptor_zero),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
