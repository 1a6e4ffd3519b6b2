/* SPDX-License-Identifier: Apache-2.0 */
/* The tables, each with one of its own in front of it, which fails instead or passes on. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "device/device.h"
#include "engine/core/core.h"
#include "io/io.h"
#include "lib/io_tap.h"
#include "store/store.h"
#include "torture/tap.h"

/* clang-format off */
TAP_REAL(int, ckpt_io_open, (const struct ckpt_io_config *config, struct ckpt_io **ret_io))
TAP_REAL(void, ckpt_io_exec, (struct ckpt_io_req *req))
TAP_REAL(int, ckpt_store_file_open, (struct ckpt_env *env, struct ckpt_sched *sched, struct ckpt_io *io,
	int root, const char *label, struct ckpt_store **ret_store))
TAP_REAL(int, ckpt_device_host_open, (struct ckpt_env *env, struct ckpt_device **ret_device))
TAP_REAL(void, ckpt_inbox_wait, (struct ckpt_inbox *inbox, uint64_t deadline_ns))
TAP_REAL(int, ckpt_core_init, (struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err))
TAP_REAL(int, ckpt_env_os_open, (unsigned threads, struct ckpt_inbox *inbox, struct ckpt_env_os **ret_env))
/* clang-format on */

/* Files. */

static const struct torture_call io_calls[] = {
	[CKPT_IO_OP_WRITE] = {"io.write", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_IO_OP_READ] = {"io.read", TORTURE_TABLE, {-EIO}},
	[CKPT_IO_OP_FDATASYNC] = {"io.fdatasync", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_IO_OP_OPEN] = {"io.open", TORTURE_TABLE, {-EIO, -EMFILE, -EACCES, -ENOMEM}},
	[CKPT_IO_OP_CLOSE] = {"io.close", TORTURE_TABLE, {-EIO}},
	[CKPT_IO_OP_ALLOCATE] = {"io.allocate", TORTURE_TABLE, {-ENOSPC, -EOPNOTSUPP, -EIO}},
	[CKPT_IO_OP_TRUNCATE] = {"io.truncate", TORTURE_TABLE, {-EIO}},
	[CKPT_IO_OP_LOCK] = {"io.lock", TORTURE_TABLE, {-ENOLCK, -EAGAIN, -EIO}},
	[CKPT_IO_OP_MKDIR] = {"io.mkdir", TORTURE_TABLE, {-EIO, -ENOSPC, -EACCES}},
	[CKPT_IO_OP_RENAME] = {"io.rename", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_IO_OP_UNLINK] = {"io.unlink", TORTURE_TABLE, {-EIO, -EACCES}},
	[CKPT_IO_OP_RMDIR] = {"io.rmdir", TORTURE_TABLE, {-EIO}},
	[CKPT_IO_OP_SYNC_DIR] = {"io.sync_dir", TORTURE_TABLE, {-EIO}},
	[CKPT_IO_OP_LIST] = {"io.list", TORTURE_TABLE, {-EIO, -EMFILE, -ENOMEM}},
	[CKPT_IO_OP_FORGET] = {"io.forget", TORTURE_TABLE, {-EIO}},
};
static const struct torture_call io_register = {
	"io.register_slots", TORTURE_TABLE, {-ENOMEM, -EINVAL}};
static const struct torture_call io_close = {"io.close_backend", TORTURE_TABLE, {-ETIMEDOUT}};

static const struct ckpt_io_ops *real_io[2]; /* threads, the ring */
static struct ckpt_io_ops tapped_io[2];

static const struct ckpt_io_ops *below(const struct ckpt_io *io)
{
	return real_io[io->ops == &tapped_io[1]];
}

static void io_submit(struct ckpt_io *io, struct ckpt_io_req *req)
{
	const char *what = req->path ? torture_path_class(req->path) : torture_fd_name(req->fd);
	int code = torture_event(&io_calls[req->op], what, __builtin_frame_address(0));

	if (!code) {
		below(io)->submit(io, req);
		return;
	}
	if (req->op == CKPT_IO_OP_CLOSE)
		get_ckpt_io_exec()(req);
	req->result = code;
	ckpt_inbox_push(io->inbox, &req->node);
}

static int io_register_slots(struct ckpt_io *io, void *base, size_t size, unsigned count)
{
	int code = torture_event(&io_register, "", __builtin_frame_address(0));

	return code ? code : below(io)->register_slots(io, base, size, count);
}

static int io_close_backend(struct ckpt_io *io, int timeout_ms)
{
	int r = torture_event(&io_close, "", __builtin_frame_address(0));

	if (!r)
		r = below(io)->close(io, timeout_ms);
	if (r < 0)
		atomic_store(&torture->abandoned, true);
	return r;
}

int ckpt_io_open(const struct ckpt_io_config *config, struct ckpt_io **ret_io)
{
	int r = get_ckpt_io_open()(config, ret_io);

	if (r < 0 || !torture_armed())
		return r;
	const struct ckpt_io_ops *ops = (*ret_io)->ops;
	bool ring = strcmp(ops->name, "io_uring") == 0;
	real_io[ring] = ops;
	tapped_io[ring] = (struct ckpt_io_ops){.name = ops->name,
		.submit = io_submit,
		.register_slots = ops->register_slots ? io_register_slots : NULL,
		.close = io_close_backend};
	(*ret_io)->ops = &tapped_io[ring];
	return 0;
}

/* By the name of what it is at, the thread's system calls are told apart. */
void ckpt_io_exec(struct ckpt_io_req *req)
{
	char class[48];
	char text[64];

	(void)snprintf(class, sizeof(class), "%s",
		req->path ? torture_path_class(req->path) : torture_fd_name(req->fd));
	(void)snprintf(text, sizeof(text), "%s %s", io_op_name(req->op), class);
	torture_set_topic(text);
	get_ckpt_io_exec()(req);
	torture_set_topic("");
	if (req->op == CKPT_IO_OP_OPEN && req->result >= 0)
		torture_name_fd((int)req->result, class);
}

/* The store. */

static const struct torture_call store_calls[] = {
	[CKPT_STORE_MKDIR] = {"store.mkdir", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_STORE_CREATE] = {"store.create", TORTURE_TABLE, {-EIO, -ENOSPC, -EMFILE}},
	[CKPT_STORE_WRITE] = {"store.write", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_STORE_SEAL] = {"store.seal", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_STORE_ABANDON] = {"store.abandon", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_PUT] = {"store.put", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_STORE_SYNC] = {"store.sync", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_PUBLISH] = {"store.publish", TORTURE_TABLE, {-EIO, -ENOSPC}},
	[CKPT_STORE_GET] = {"store.get", TORTURE_TABLE, {-EIO, -ENOMEM}},
	[CKPT_STORE_OPEN] = {"store.open", TORTURE_TABLE, {-EIO, -EMFILE}},
	[CKPT_STORE_READ] = {"store.read", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_CLOSE] = {"store.close", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_LIST] = {"store.list", TORTURE_TABLE, {-EIO, -ENOMEM}},
	[CKPT_STORE_REMOVE] = {"store.remove", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_RMDIR] = {"store.rmdir", TORTURE_TABLE, {-EIO}},
	[CKPT_STORE_LOCK] = {"store.lock", TORTURE_TABLE, {-EIO, -ENOLCK}},
	[CKPT_STORE_SWEEP] = {"store.sweep", TORTURE_TABLE, {-EIO}},
};

static const struct ckpt_store_ops *real_store;
static struct ckpt_store_ops tapped_store;

static int say(struct ckpt_store_op *op)
{
	const struct ckpt_where where = {.tier = "local", .file = op->path};

	bool answer = op->quiet && (op->saved == -ENOENT || op->saved == -EAGAIN);

	if (!op->err || answer)
		return op->saved;
	return ckpt_fail_at(op->err, op->saved, &where, "%s: made to fail: %s", op->path,
		ckpt_strerror(op->saved));
}

static void store_answer(struct ckpt_task *task)
{
	struct ckpt_store_op *op = CKPT_CONTAINER(task, struct ckpt_store_op, task);

	op->result = task->result;
	op->done = true;
	ckpt_task_wake(op->waiter);
}

static int fail_body(struct ckpt_task *task)
{
	return say(CKPT_CONTAINER(task, struct ckpt_store_op, task));
}

/* It was done, and is said not to have been. */
static void deny(struct ckpt_task *task)
{
	struct ckpt_store_op *op = CKPT_CONTAINER(task, struct ckpt_store_op, task);

	if (task->result == 0) {
		op->saved = -EIO;
		task->result = say(op);
	}
	store_answer(task);
}

/* The step that was chosen is removed before it is locked, and then is there: another one of that name. */
static bool vanishes(const struct ckpt_store_op *op)
{
	static char locked[sizeof(op->path)];
	static bool gone;

	if (op->verb == CKPT_STORE_LOCK)
		memcpy(locked, op->path, sizeof(locked));
	if (gone || op->verb != CKPT_STORE_GET || strcmp(op->path, locked) != 0 ||
		!strstr(locked, "manifest") || !torture_odd(TORTURE_VANISHED))
		return false;
	gone = true;
	return true;
}

/* Its index is not found, and then its manifest is not; the next look finds both. */
static bool is_removed(const struct ckpt_store_op *op)
{
	static const char *const files[] = {".index", "manifest"};
	static unsigned missed;

	if (missed == sizeof(files) / sizeof(files[0]) || op->verb != CKPT_STORE_GET ||
		!strstr(op->path, files[missed]) || !torture_odd(TORTURE_REMOVED))
		return false;
	missed++;
	return true;
}

/* A removal that will be refused has its lock, and has let go of it at the next try. */
static bool is_going(const struct ckpt_store_op *op)
{
	static bool locked;

	if (locked || op->verb != CKPT_STORE_LOCK || !strstr(op->path, "manifest") ||
		!torture_odd(TORTURE_GOING))
		return false;
	locked = true;
	return true;
}

/* The first that rank 0 has claimed, and the first manifest that this one locks, are seen at another look. */
static bool is_late(const struct ckpt_store_op *op)
{
	static _Thread_local char locked[sizeof(op->path)];
	static _Thread_local bool claim_seen;
	static _Thread_local bool step_seen;

	if (op->verb == CKPT_STORE_LOCK)
		memcpy(locked, op->path, sizeof(locked));
	if (torture_rank() == 0 || op->verb != CKPT_STORE_GET)
		return false;
	bool claim = torture_odd(TORTURE_LATE_CLAIM) && !claim_seen &&
		     strncmp(op->path, "gens/", 5) == 0;
	bool step = torture_odd(TORTURE_LATE_STEP) && !step_seen && strstr(locked, "manifest") &&
		    strcmp(op->path, locked) == 0;
	claim_seen = claim_seen || claim;
	step_seen = step_seen || step;
	return claim || step;
}

/* Somebody makes the store just after rank 0 has looked for it. */
static bool is_unseen(const struct ckpt_store_op *op)
{
	static bool looked;

	if (looked || op->verb != CKPT_STORE_GET || torture_rank() > 0 ||
		strcmp(op->path, "ckpt.json") != 0 || !torture_odd(TORTURE_LATE_STORE))
		return false;
	looked = true;
	return true;
}

/* Of what the ranks have written one index is gone when rank 0 looks. */
static bool is_gone(const struct ckpt_store_op *op)
{
	static bool gone;

	if (gone || op->verb != CKPT_STORE_GET || torture_rank() > 0 ||
		!strstr(op->path, "rank-00001") || !torture_odd(TORTURE_GONE))
		return false;
	gone = true;
	return true;
}

/* It was done, and is said to have been there. */
static void say_there(struct ckpt_task *task)
{
	struct ckpt_store_op *op = CKPT_CONTAINER(task, struct ckpt_store_op, task);

	if (task->result == 0) {
		op->saved = -EEXIST;
		task->result = say(op);
	}
	store_answer(task);
}

/* An earlier layout was the same, and has its catalog. */
static bool is_there(const struct ckpt_store_op *op)
{
	static bool seen;

	if (seen || op->verb != CKPT_STORE_PUBLISH || !strstr(op->path, ".catalog") ||
		!torture_odd(TORTURE_TWICE))
		return false;
	seen = true;
	return true;
}

static void store_submit(struct ckpt_store *store, struct ckpt_store_op *op)
{
	bool closes = op->verb == CKPT_STORE_SEAL || op->verb == CKPT_STORE_ABANDON ||
		      op->verb == CKPT_STORE_CLOSE;
	int code = torture_event(
		&store_calls[op->verb], torture_path_class(op->path), __builtin_frame_address(0));

	if (vanishes(op) || is_removed(op) || is_late(op) || is_unseen(op) || is_gone(op))
		code = -ENOENT;
	if (is_going(op))
		code = -EAGAIN;
	if (code && !closes) {
		op->saved = code;
		ckpt_task_start(&op->task, store->sched, fail_body, store_answer);
		return;
	}
	real_store->submit(store, op);
	if (code)
		op->task.done = deny;
	else if (is_there(op))
		op->task.done = say_there;
}

int ckpt_store_file_open(struct ckpt_env *env, struct ckpt_sched *sched, struct ckpt_io *io,
	int root, const char *label, struct ckpt_store **ret_store)
{
	int r = get_ckpt_store_file_open()(env, sched, io, root, label, ret_store);

	if (r < 0 || !torture_armed())
		return r;
	real_store = (*ret_store)->ops;
	tapped_store = *real_store;
	tapped_store.submit = store_submit;
	(*ret_store)->ops = &tapped_store;
	return 0;
}

/* Memory of devices. */

static const struct torture_call device_call = {
	"device.copy", TORTURE_TABLE, {CKPT_EDEVICE, -ENOMEM}};
static const struct ckpt_device_ops *real_device;
static struct ckpt_device_ops tapped_device;

static void device_copy(struct ckpt_device *device, struct ckpt_copy *copy)
{
	int code = torture_event(&device_call, "", __builtin_frame_address(0));

	if (!code) {
		real_device->copy(device, copy);
		return;
	}
	copy->result = code;
	ckpt_inbox_push(device->env->inbox, &copy->job.node);
}

int ckpt_device_host_open(struct ckpt_env *env, struct ckpt_device **ret_device)
{
	int r = get_ckpt_device_host_open()(env, ret_device);

	if (r < 0 || !torture_armed())
		return r;
	real_device = (*ret_device)->ops;
	tapped_device = *real_device;
	tapped_device.copy = device_copy;
	(*ret_device)->ops = &tapped_device;
	return 0;
}

/*
 * The environment. None of its members can fail; what they answer may be odd: a clock that is an hour
 * later from one call to the next, a date of 1970, a number that was there before.
 */
static const struct torture_call env_now = {"env.now", TORTURE_TABLE, {-ETIME}};
static const struct torture_call env_wall = {"env.wall", TORTURE_TABLE, {-ERANGE}};
static const struct torture_call env_random = {"env.random", TORTURE_TABLE, {-ENODATA}};
static const struct torture_call env_run = {"env.run", TORTURE_TABLE, {0}};
static const struct ckpt_env_ops *real_env;
static struct ckpt_env_ops tapped_env;
static _Atomic uint64_t jumped_ns[TORTURE_RANKS]; /* each has a clock of its own */

static uint64_t odd_now(struct ckpt_env *env)
{
	if (torture_event(&env_now, "", __builtin_frame_address(0)))
		atomic_store(&jumped_ns[torture_rank()], UINT64_C(3600000000000));
	return real_env->now_ns(env) + atomic_load(&jumped_ns[torture_rank()]);
}

/* Waits by the same clock. */
void ckpt_inbox_wait(struct ckpt_inbox *inbox, uint64_t deadline_ns)
{
	uint64_t jumped = atomic_load(&jumped_ns[torture_rank()]);

	if (deadline_ns != UINT64_MAX)
		deadline_ns -= deadline_ns < jumped ? deadline_ns : jumped;
	get_ckpt_inbox_wait()(inbox, deadline_ns);
}

static uint64_t odd_wall(struct ckpt_env *env)
{
	bool odd = torture_event(&env_wall, "", __builtin_frame_address(0));

	return odd ? 0 : real_env->wall_ms(env);
}

static uint64_t odd_random(struct ckpt_env *env)
{
	bool odd = torture_event(&env_random, "", __builtin_frame_address(0));

	return odd ? 1 : real_env->random(env);
}

static void odd_run(struct ckpt_env *env, struct ckpt_job *job)
{
	(void)torture_event(&env_run, "", __builtin_frame_address(0));
	real_env->run(env, job);
}

int ckpt_env_os_open(unsigned threads, struct ckpt_inbox *inbox, struct ckpt_env_os **ret_env)
{
	int r = get_ckpt_env_os_open()(threads, inbox, ret_env);

	if (r < 0 || !torture_armed())
		return r;
	struct ckpt_env *env = ckpt_env_os_env(*ret_env);
	real_env = env->ops;
	tapped_env = (struct ckpt_env_ops){.name = real_env->name,
		.now_ns = odd_now,
		.age_ns = real_env->age_ns,
		.wall_ms = odd_wall,
		.random = odd_random,
		.run = odd_run};
	env->ops = &tapped_env;
	return 0;
}

int ckpt_core_init(struct ckpt_core *core, const struct ckpt_core_parts *parts,
	const struct ckpt_core_config *config, struct ckpt_error *err)
{
	struct ckpt_core_config with = *config;

	if (torture_odd(TORTURE_MANY))
		with.many = 1;
	if (torture_odd(TORTURE_LARGE))
		with.agree_bytes = 1;
	return get_ckpt_core_init()(core, parts, &with, err);
}
