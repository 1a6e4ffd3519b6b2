/* SPDX-License-Identifier: Apache-2.0 */
/* The only callers of the members of struct ckpt_store_ops: one wrapper for each verb. */
#include "store/store.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"

void ckpt_store_op_init(struct ckpt_store_op *op, struct ckpt_task *waiter, struct ckpt_error *err)
{
	*op = (struct ckpt_store_op){.waiter = waiter, .err = err, .slot = -1};
}

/* `path` may be op->path itself. */
static void set_path(struct ckpt_store_op *op, const char *path)
{
	size_t len = strnlen(path, sizeof(op->path));

	CKPT_ASSERT(len > 0 && len < sizeof(op->path));
	memmove(op->path, path, len + 1);
}

static void prepare(struct ckpt_store *s, struct ckpt_store_op *op, enum ckpt_store_verb verb)
{
	CKPT_ASSERT(!ckpt_task_active(&op->task));
	op->verb = verb;
	op->store = s;
	op->object = NULL;
	op->data = NULL;
	op->length = 0;
	op->offset = 0;
	op->size = 0;
	op->unit = 0;
	op->slot = -1;
	op->shared = false;
	op->locked = false;
	op->fleeting = false;
	op->over = false;
	op->cached = false;
	op->resume = false;
	op->varied = false;
	op->done = false;
	op->result = 0;
	op->uncertain = false;
	op->listing = (struct ckpt_listing){0};
}

static void submit(struct ckpt_store *s, struct ckpt_store_op *op)
{
	s->ops->submit(s, op);
	CKPT_ASSERT(!op->done);
}

static void by_path(
	struct ckpt_store *s, struct ckpt_store_op *op, enum ckpt_store_verb verb, const char *path)
{
	prepare(s, op, verb);
	set_path(op, path);
	submit(s, op);
}

static void prepare_object(struct ckpt_store *s, struct ckpt_store_op *op,
	enum ckpt_store_verb verb, struct ckpt_object *object)
{
	prepare(s, op, verb);
	set_path(op, object->path);
	op->object = object;
}

void ckpt_store_mkdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_MKDIR, path);
}

static void prepare_create(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object)
{
	CKPT_ASSERT(size <= INT64_MAX);
	prepare(s, op, CKPT_STORE_CREATE);
	set_path(op, path);
	op->size = size;
	op->object = ret_object;
}

void ckpt_store_create(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object)
{
	prepare_create(s, op, path, size, ret_object);
	submit(s, op);
}

void ckpt_store_resume(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object)
{
	prepare_create(s, op, path, size, ret_object);
	op->resume = true;
	submit(s, op);
}

void ckpt_store_resume_varied(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t size, struct ckpt_object *ret_object)
{
	prepare_create(s, op, path, size, ret_object);
	op->resume = true;
	op->varied = true;
	submit(s, op);
}

static void transfer(struct ckpt_store *s, struct ckpt_store_op *op, void *data, uint64_t length,
	uint64_t offset, int slot)
{
	/* A read through the page cache has no alignment. */
	bool exact = op->verb == CKPT_STORE_READ && !op->object->direct;
	uint64_t mask = exact ? 0 : s->align - 1;

	CKPT_ASSERT(op->object->fd >= 0 && length > 0);
	CKPT_ASSERT(((uintptr_t)data & mask) == 0 && (length & mask) == 0 && (offset & mask) == 0);
	CKPT_ASSERT(length <= INT64_MAX && offset <= INT64_MAX - length);
	op->data = data;
	op->length = length;
	op->offset = offset;
	op->slot = slot;
	submit(s, op);
}

void ckpt_store_write(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	const void *data, uint64_t length, uint64_t offset, int slot)
{
	prepare_object(s, op, CKPT_STORE_WRITE, object);
	transfer(s, op, (void *)(uintptr_t)data, length, offset, slot);
}

void ckpt_store_seal(
	struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object, uint64_t size)
{
	CKPT_ASSERT(object->fd >= 0 && size <= INT64_MAX);
	prepare_object(s, op, CKPT_STORE_SEAL, object);
	op->size = size;
	submit(s, op);
}

void ckpt_store_abandon(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object)
{
	prepare_object(s, op, CKPT_STORE_ABANDON, object);
	submit(s, op);
}

void ckpt_store_put(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length)
{
	CKPT_ASSERT((data || length == 0) && length <= INT64_MAX);
	prepare(s, op, CKPT_STORE_PUT);
	set_path(op, path);
	op->data = (void *)(uintptr_t)data;
	op->length = length;
	submit(s, op);
}

void ckpt_store_sync(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_SYNC, path);
}

static void prepare_publish(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length)
{
	CKPT_ASSERT(data && length > 0 && length <= INT64_MAX);
	prepare(s, op, CKPT_STORE_PUBLISH);
	set_path(op, path);
	op->data = (void *)(uintptr_t)data;
	op->length = length;
}

void ckpt_store_publish(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length, struct ckpt_object *ret_lock)
{
	prepare_publish(s, op, path, data, length);
	op->locked = ret_lock != NULL;
	op->object = ret_lock;
	submit(s, op);
}

void ckpt_store_show(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length)
{
	prepare_publish(s, op, path, data, length);
	op->fleeting = true;
	submit(s, op);
}

void ckpt_store_supersede(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	const void *data, uint64_t length)
{
	prepare_publish(s, op, path, data, length);
	op->over = true;
	submit(s, op);
}

void ckpt_store_get(
	struct ckpt_store *s, struct ckpt_store_op *op, const char *path, uint64_t limit)
{
	CKPT_ASSERT(limit < INT64_MAX);
	prepare(s, op, CKPT_STORE_GET);
	set_path(op, path);
	op->size = limit;
	submit(s, op);
}

void ckpt_store_open(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object)
{
	prepare(s, op, CKPT_STORE_OPEN);
	set_path(op, path);
	op->object = ret_object;
	submit(s, op);
}

void ckpt_store_open_cached(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	struct ckpt_object *ret_object)
{
	prepare(s, op, CKPT_STORE_OPEN);
	set_path(op, path);
	op->object = ret_object;
	op->cached = true;
	submit(s, op);
}

void ckpt_store_read(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object,
	void *data, uint64_t length, uint64_t offset, int slot)
{
	prepare_object(s, op, CKPT_STORE_READ, object);
	transfer(s, op, data, length, offset, slot);
}

void ckpt_store_shut(struct ckpt_store *s, struct ckpt_store_op *op, struct ckpt_object *object)
{
	CKPT_ASSERT(object->fd >= 0);
	prepare_object(s, op, CKPT_STORE_CLOSE, object);
	submit(s, op);
}

void ckpt_store_list(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_LIST, path);
}

void ckpt_store_remove(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_REMOVE, path);
}

void ckpt_store_rmdir(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_RMDIR, path);
}

void ckpt_store_sweep(struct ckpt_store *s, struct ckpt_store_op *op, const char *path)
{
	by_path(s, op, CKPT_STORE_SWEEP, path);
}

void ckpt_store_lock(struct ckpt_store *s, struct ckpt_store_op *op, const char *path, bool shared,
	struct ckpt_object *ret_lock)
{
	prepare(s, op, CKPT_STORE_LOCK);
	set_path(op, path);
	op->shared = shared;
	op->object = ret_lock;
	submit(s, op);
}

void ckpt_store_lock_byte(struct ckpt_store *s, struct ckpt_store_op *op, const char *path,
	uint64_t offset, struct ckpt_object *ret_lock)
{
	CKPT_ASSERT(offset < INT64_MAX);
	prepare(s, op, CKPT_STORE_LOCK);
	set_path(op, path);
	op->offset = offset;
	op->length = 1;
	op->object = ret_lock;
	submit(s, op);
}

const char *ckpt_store_tier(const struct ckpt_store *store)
{
	return store->tier ? store->tier : store->ops->tier;
}

int ckpt_store_fail(const struct ckpt_store_op *op, const char *doing,
	const struct ckpt_error *said, struct ckpt_error *err)
{
	const struct ckpt_where where = {.tier = ckpt_store_tier(op->store), .file = op->path};

	if (said && ckpt_fail_said(err, op->result, &where, said))
		return op->result;
	return ckpt_fail_at(err, op->result, &where, "cannot %s %s in %s: %s", doing, op->path,
		op->store->label, ckpt_code_text(op->result));
}

void ckpt_store_drop_data(struct ckpt_store_op *op)
{
	ckpt_free(op->data);
	op->data = NULL;
}

struct ckpt_listing ckpt_store_take_listing(struct ckpt_store_op *op)
{
	struct ckpt_listing names = op->listing;

	op->listing = (struct ckpt_listing){0};
	return names;
}

void ckpt_store_close(struct ckpt_store *store)
{
	store->ops->close(store);
}

bool ckpt_store_is_no_file(int code)
{
	return code == -EISDIR || code == -ELOOP || code == -ENXIO || code == -ENOTDIR ||
	       code == -EFBIG;
}

/*
 * With O_DIRECT, Linux reports a medium error as ENODATA and a wrong checksum as EILSEQ. Some file systems report
 * EBADMSG or EUCLEAN instead.
 */
bool ckpt_store_is_unreadable(int code)
{
	return code == -EIO || code == -ENODATA || code == -EILSEQ || code == -EBADMSG ||
	       code == -EUCLEAN;
}
