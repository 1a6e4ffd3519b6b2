/* SPDX-License-Identifier: Apache-2.0 */
/* A directory store over a backend, with an environment and tasks, on the thread of the test. */
#ifndef CKPT_TESTS_STORE_RIG_H
#define CKPT_TESTS_STORE_RIG_H

#include "lib/io_rig.h"
#include "store/store.h"

struct store_rig {
	struct io_rig io_rig; /* its inbox carries everything */
	struct ckpt_env_os *env;
	struct ckpt_sched sched;
	struct ckpt_store *store;
	struct ckpt_store_op op;
	struct ckpt_error err;
};

/* What to put between the backend and the store: takes the one, returns the other. */
typedef struct ckpt_io *store_rig_wrap_fn(void *user, struct ckpt_io *inner);

/* 0, or what ckpt_io_open() says; then nothing is left. `wrap` may be NULL. */
int store_rig_open(struct store_rig *rig, enum ckpt_io_kind kind, enum rig_place place,
	store_rig_wrap_fn *wrap, void *user);
/* The same in a directory that is there, and stays. */
int store_rig_open_at(struct store_rig *rig, enum ckpt_io_kind kind, const char *dir,
	store_rig_wrap_fn *wrap, void *user);
void store_rig_close(struct store_rig *rig);

/* Runs what can run; then waits until `op` is done, thirty seconds at most. Returns its result. */
int store_rig_wait(struct store_rig *rig, struct ckpt_store_op *op);
/* Runs what can run without waiting. */
void store_rig_step(struct store_rig *rig);

/* rig->op with a fresh rig->err, and without an owner. */
struct ckpt_store_op *store_rig_op(struct store_rig *rig);

/* Verbs by rig->op, waited for. */
int store_rig_mkdir(struct store_rig *rig, const char *path);
int store_rig_create(
	struct store_rig *rig, const char *path, uint64_t size, struct ckpt_object *ret_object);
int store_rig_write(struct store_rig *rig, struct ckpt_object *object, const void *data,
	uint64_t length, uint64_t offset);
int store_rig_seal(struct store_rig *rig, struct ckpt_object *object, uint64_t size);
int store_rig_abandon(struct store_rig *rig, struct ckpt_object *object);
int store_rig_put(struct store_rig *rig, const char *path, const char *text);
int store_rig_sync(struct store_rig *rig, const char *path);
int store_rig_publish(
	struct store_rig *rig, const char *path, const char *text, struct ckpt_object *ret_lock);
/* `*ret_text` is the caller's to free with ckpt_free(). */
int store_rig_show(struct store_rig *rig, const char *path, const char *text);
int store_rig_get(struct store_rig *rig, const char *path, uint64_t limit, char **ret_text);
int store_rig_open_file(struct store_rig *rig, const char *path, struct ckpt_object *ret_object,
	uint64_t *ret_size);
int store_rig_read(struct store_rig *rig, struct ckpt_object *object, void *data, uint64_t length,
	uint64_t offset);
int store_rig_shut(struct store_rig *rig, struct ckpt_object *object);
int store_rig_remove(struct store_rig *rig, const char *path);
int store_rig_rmdir(struct store_rig *rig, const char *path);
int store_rig_lock(
	struct store_rig *rig, const char *path, bool shared, struct ckpt_object *ret_lock);

/* The names in a directory of the store, with spaces between them; "" if it is empty or not there. */
const char *store_rig_names(struct store_rig *rig, const char *path);

#endif
