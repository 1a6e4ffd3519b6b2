/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/store_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "lib/hang_inbox.h"

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	(void)fprintf(stderr, "store rig: %s\n", what);
	exit(99);
}

static void finish_open(struct store_rig *rig, store_rig_wrap_fn *wrap, void *user)
{
	struct io_rig *io = &rig->io_rig;

	if (wrap)
		io->io = wrap(user, io->io);
	must(ckpt_env_os_open(1, &io->inbox, &rig->env) == 0, "no environment");
	must(ckpt_store_file_open(ckpt_env_os_env(rig->env), &rig->sched, io->io, io->root,
		     io->dir ? io->dir : "the store", &rig->store) == 0,
		"no store");
}

int store_rig_open(struct store_rig *rig, enum ckpt_io_kind kind, enum rig_place place,
	store_rig_wrap_fn *wrap, void *user)
{
	memset(rig, 0, sizeof(*rig));
	int r = io_rig_open(&rig->io_rig, kind, place);
	if (r == 0)
		finish_open(rig, wrap, user);
	return r;
}

int store_rig_open_at(struct store_rig *rig, enum ckpt_io_kind kind, const char *dir,
	store_rig_wrap_fn *wrap, void *user)
{
	memset(rig, 0, sizeof(*rig));
	int r = io_rig_open_at(&rig->io_rig, kind, 0, dir);
	if (r == 0)
		finish_open(rig, wrap, user);
	return r;
}

void store_rig_close(struct store_rig *rig)
{
	ckpt_store_close(rig->store);
	ckpt_env_os_close(rig->env);
	io_rig_close(&rig->io_rig);
}

void store_rig_step(struct store_rig *rig)
{
	struct ckpt_node *node = ckpt_inbox_take(&rig->io_rig.inbox);

	ckpt_sched_run(&rig->sched);
	while (node) {
		struct ckpt_node *next = node->next;
		node->run(node);
		ckpt_sched_run(&rig->sched);
		node = next;
	}
}

int store_rig_wait(struct store_rig *rig, struct ckpt_store_op *op)
{
	store_rig_step(rig);
	await_inbox(&rig->io_rig.inbox, op->done, store_rig_step(rig));
	return op->result;
}

struct ckpt_store_op *store_rig_op(struct store_rig *rig)
{
	rig->err.size = sizeof(rig->err);
	ckpt_error_clear(&rig->err);
	bool quiet = rig->op.quiet;
	ckpt_store_op_init(&rig->op, NULL, &rig->err);
	rig->op.quiet = quiet;
	return &rig->op;
}

int store_rig_mkdir(struct store_rig *rig, const char *path)
{
	ckpt_store_mkdir(rig->store, store_rig_op(rig), path);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_create(
	struct store_rig *rig, const char *path, uint64_t size, struct ckpt_object *ret_object)
{
	ckpt_store_create(rig->store, store_rig_op(rig), path, size, ret_object);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_write(struct store_rig *rig, struct ckpt_object *object, const void *data,
	uint64_t length, uint64_t offset)
{
	ckpt_store_write(rig->store, store_rig_op(rig), object, data, length, offset, -1);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_seal(struct store_rig *rig, struct ckpt_object *object, uint64_t size)
{
	ckpt_store_seal(rig->store, store_rig_op(rig), object, size);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_abandon(struct store_rig *rig, struct ckpt_object *object)
{
	ckpt_store_abandon(rig->store, store_rig_op(rig), object);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_put(struct store_rig *rig, const char *path, const char *text)
{
	ckpt_store_put(rig->store, store_rig_op(rig), path, text, strlen(text));
	return store_rig_wait(rig, &rig->op);
}

int store_rig_sync(struct store_rig *rig, const char *path)
{
	ckpt_store_sync(rig->store, store_rig_op(rig), path);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_publish(
	struct store_rig *rig, const char *path, const char *text, struct ckpt_object *ret_lock)
{
	ckpt_store_publish(rig->store, store_rig_op(rig), path, text, strlen(text), ret_lock);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_show(struct store_rig *rig, const char *path, const char *text)
{
	ckpt_store_show(rig->store, store_rig_op(rig), path, text, strlen(text));
	return store_rig_wait(rig, &rig->op);
}

int store_rig_get(struct store_rig *rig, const char *path, uint64_t limit, char **ret_text)
{
	ckpt_store_get(rig->store, store_rig_op(rig), path, limit);
	int r = store_rig_wait(rig, &rig->op);
	must((r < 0) == (rig->op.data == NULL), "data of a get that failed");
	*ret_text = rig->op.data;
	return r;
}

int store_rig_open_file(
	struct store_rig *rig, const char *path, struct ckpt_object *ret_object, uint64_t *ret_size)
{
	ckpt_store_open(rig->store, store_rig_op(rig), path, ret_object);
	int r = store_rig_wait(rig, &rig->op);
	if (r == 0 && ret_size)
		*ret_size = rig->op.size;
	return r;
}

int store_rig_read(struct store_rig *rig, struct ckpt_object *object, void *data, uint64_t length,
	uint64_t offset)
{
	ckpt_store_read(rig->store, store_rig_op(rig), object, data, length, offset, -1);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_shut(struct store_rig *rig, struct ckpt_object *object)
{
	ckpt_store_shut(rig->store, store_rig_op(rig), object);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_remove(struct store_rig *rig, const char *path)
{
	ckpt_store_remove(rig->store, store_rig_op(rig), path);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_rmdir(struct store_rig *rig, const char *path)
{
	ckpt_store_rmdir(rig->store, store_rig_op(rig), path);
	return store_rig_wait(rig, &rig->op);
}

int store_rig_lock(
	struct store_rig *rig, const char *path, bool shared, struct ckpt_object *ret_lock)
{
	ckpt_store_lock(rig->store, store_rig_op(rig), path, shared, ret_lock);
	return store_rig_wait(rig, &rig->op);
}

const char *store_rig_names(struct store_rig *rig, const char *path)
{
	static char text[4096];
	size_t length = 0;
	struct ckpt_store_op op;

	ckpt_store_op_init(&op, NULL, NULL);
	ckpt_store_list(rig->store, &op, path);
	text[0] = 0;
	if (store_rig_wait(rig, &op) < 0)
		return text;
	const char *name = op.listing.names;
	for (size_t i = 0; i < op.listing.count; i++, name += strlen(name) + 1) {
		int n = snprintf(text + length, sizeof(text) - length, "%s%s", i ? " " : "", name);
		must(n > 0 && (size_t)n < sizeof(text) - length, "too many names");
		length += (size_t)n;
	}
	ckpt_free(op.listing.names);
	return text;
}
