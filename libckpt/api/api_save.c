/* SPDX-License-Identifier: Apache-2.0 */
/* Public functions of a save. */
#include <errno.h>
#include <string.h>
#include <ckpt/ckpt.h>

#include "api/copyin.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "engine/runtime/runtime.h"
#include "engine/copy/upload_queue.h"
#include "engine/save/save.h"

int ckpt_save_begin(struct ckpt_engine *engine, uint64_t step, const struct ckpt_save_opts *opts,
	struct ckpt_save **ret_save)
{
	struct ckpt_save_opts copy = {0};
	struct ckpt_error *err = ckpt_error_here();
	struct ckpt_save *save;

	if (!engine || !ret_save)
		return ckpt_fail(err, -EINVAL, "ckpt_save_begin: engine or ret_save is NULL");
	int r = ckpt_check_fork(engine);
	if (r == 0 && opts)
		r = ckpt_copy_in(&copy, sizeof(copy), opts, "ckpt_save_opts");
	if (r < 0)
		return r;
	if ((copy.flags & ~CKPT_SAVE_FENCED) || copy.timeout_ms > INT32_MAX)
		return ckpt_fail(err, -EINVAL, "ckpt_save_opts: flags 0x%x or timeout_ms %u",
			copy.flags, copy.timeout_ms);
	if (ckpt_runtime_core(engine)->config.read_only)
		return ckpt_fail(err, -EROFS, "the engine was opened read only");
	r = ckpt_runtime_check_step(engine, step, err);
	if (r < 0)
		return r;
	r = ckpt_save_new(ckpt_runtime_core(engine), engine, step, copy.flags & CKPT_SAVE_FENCED,
		copy.timeout_ms, &save);
	if (r < 0)
		return ckpt_fail(err, r, "out of memory");
	*ret_save = save;
	return 0;
}

static int check(struct ckpt_save *save)
{
	if (!save)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "save is NULL");
	if (ckpt_save_forked(save))
		return ckpt_fail(ckpt_error_here(), CKPT_EFORKED,
			"this save belongs to the parent of a fork");
	return 0;
}

/* This thread's error becomes the save's. */
static int failed(struct ckpt_save *save)
{
	(void)ckpt_error_copy(ckpt_save_failure(save), ckpt_error_here());
	return ckpt_save_failure(save)->code;
}

/* Descriptions can be changed until start. */
static int check_draft(struct ckpt_save *save)
{
	int r = check(save);

	if (r == 0 && ckpt_save_refused(save))
		r = failed(save);
	else if (r == 0 && ckpt_save_started(save))
		r = ckpt_fail(ckpt_error_here(), -EINVAL, "the save of step %llu has started",
			(unsigned long long)ckpt_save_step(save));
	return r;
}

int ckpt_save_add(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count)
{
	int r = check_draft(save);

	if (r < 0 || count == 0)
		return r;
	struct ckpt_tensor *copies = NULL;
	r = ckpt_copy_in_all((void **)&copies, sizeof(*tensors),
		offsetof(struct ckpt_tensor, global_shape), tensors, count, "ckpt_tensor");
	if (r == 0)
		r = ckpt_save_put_tensors(
			save, copies ? copies : tensors, count, ckpt_error_here());
	ckpt_free(copies);
	return r;
}

int ckpt_save_add_alias(struct ckpt_save *save, const char *alias, const char *name)
{
	int r = check_draft(save);

	if (r < 0)
		return r;
	if (!alias || !name)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "alias or name is NULL");
	return ckpt_save_put_alias(save, alias, name, ckpt_error_here());
}

int ckpt_save_set_meta(struct ckpt_save *save, const char *json, size_t length)
{
	int r = check_draft(save);

	if (r < 0)
		return r;
	if (!json)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "json is NULL");
	return ckpt_save_put_meta(save, json, length, ckpt_error_here());
}

int ckpt_save_set_common(struct ckpt_save *save, const void *data, size_t length)
{
	int r = check_draft(save);

	if (r < 0)
		return r;
	if (!data || length == 0)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "data is NULL, or of no length");
	ckpt_save_put_common(save, data, length);
	return 0;
}

int ckpt_save_set_balance(struct ckpt_save *save, uint64_t balance)
{
	int r = check_draft(save);

	if (r == 0)
		ckpt_save_put_balance(save, balance);
	return r;
}

int ckpt_save_add_replicas(
	struct ckpt_save *save, uint64_t group, const struct ckpt_tensor *tensors, size_t count)
{
	int r = check_draft(save);

	if (r < 0 || count == 0)
		return r;
	struct ckpt_tensor *copies = NULL;
	r = ckpt_copy_in_all((void **)&copies, sizeof(*tensors),
		offsetof(struct ckpt_tensor, global_shape), tensors, count, "ckpt_tensor");
	if (r < 0)
		return r;
	return ckpt_save_put_replicas(
		save, group, copies ? copies : tensors, count, copies, ckpt_error_here());
}

int ckpt_save_set_own(struct ckpt_save *save, uint64_t group, enum ckpt_own own)
{
	int r = check_draft(save);

	if (r < 0)
		return r;
	if (own > CKPT_OWN_DIFFERS)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "own is %d, which is no enum ckpt_own",
			(int)own);
	return ckpt_save_put_own(save, group, own, ckpt_error_here());
}

int ckpt_save_replicas(struct ckpt_save *save, struct ckpt_error *ret_error)
{
	struct ckpt_error error = {.size = sizeof(error)};
	int r = check(save);

	if (r < 0 || !*ckpt_save_differ(save))
		return r;
	if (!ret_error)
		return CKPT_EREPLICA;
	ckpt_error_clear(&error);
	error.step = (int64_t)ckpt_save_step(save);
	(void)ckpt_fail_at(&error, CKPT_EREPLICA, &(struct ckpt_where){.tier = "local"}, "%s",
		ckpt_save_differ(save));
	return ckpt_error_copy(&error, ret_error);
}

int ckpt_save_set_streams(struct ckpt_save *save, const struct ckpt_stream *streams, size_t count)
{
	struct ckpt_stream *copies = NULL;
	int r = check(save);

	if (r == 0 && count > 0 && !streams)
		r = ckpt_fail(ckpt_error_here(), -EINVAL, "streams is NULL");
	if (r == 0 && count > 0)
		r = ckpt_copy_in_all((void **)&copies, sizeof(*streams), sizeof(*streams), streams,
			count, "ckpt_stream");
	if (r == 0)
		r = ckpt_save_put_streams(
			save, copies ? copies : streams, count, ckpt_error_here());
	ckpt_free(copies);
	return r;
}

int ckpt_save_ready(struct ckpt_save *save, int timeout_ms)
{
	bool over = true;
	int r = check_draft(save);

	if (r < 0)
		return r;
	if (timeout_ms < 0)
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"timeout_ms is %d: ckpt_save_start() waits as long as need be", timeout_ms);
	r = ckpt_runtime_ready(ckpt_save_owner(save), save, timeout_ms, ckpt_error_here(), &over);
	if (r < 0 && !over)
		return ckpt_fail(ckpt_error_here(), r, "step %llu cannot start yet",
			(unsigned long long)ckpt_save_step(save));
	return r;
}

int ckpt_save_start(struct ckpt_save *save)
{
	int r = check_draft(save);

	return r < 0 ? r : ckpt_runtime_start(ckpt_save_owner(save), save, ckpt_error_here());
}

/* Waits for `bits` or the end. 0: they are there. */
static int wait_bits(struct ckpt_save *save, uint32_t bits, int timeout_ms, const char *what)
{
	if (!ckpt_save_started(save) && !(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_END))
		return ckpt_fail(ckpt_error_here(), -EINVAL,
			"the save of step %llu was not started",
			(unsigned long long)ckpt_save_step(save));
	uint32_t set = ckpt_latch_wait(ckpt_save_latch(save), bits | CKPT_DONE_END, timeout_ms);
	if (set & bits)
		return 0;
	if (set & CKPT_DONE_END)
		return failed(save);
	return ckpt_fail(ckpt_error_here(), -ETIMEDOUT, "step %llu is not %s yet",
		(unsigned long long)ckpt_save_step(save), what);
}

int ckpt_save_wait_eager(struct ckpt_save *save, int timeout_ms)
{
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	int r = check(save);

	if (r == 0)
		r = wait_bits(save, ckpt_save_copied_bit(save, true) | CKPT_DONE_STAGED, timeout_ms,
			"copied");
	/* After the end nothing is copied any more, and there may be no engine. */
	if (r < 0 || (ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_END))
		return r;
	struct ckpt_error *err = ckpt_error_here();
	r = ckpt_save_hold(save, CKPT_HOLD_EAGER, ckpt_deadline_left_ms(deadline_ns), err);
	if (r < 0 && r != -ETIMEDOUT)
		ckpt_save_post_failure(save, err);
	return r;
}

int ckpt_save_fence(struct ckpt_save *save, int timeout_ms)
{
	struct ckpt_error *err = ckpt_error_here();
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	int r = check(save);

	if (r == 0)
		r = wait_bits(save, ckpt_save_copied_bit(save, false), timeout_ms, "staged");
	if (r < 0)
		return r;
	if (ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_END)
		return ckpt_save_failure(save)->code < 0 ? failed(save) : 0;
	bool closed = ckpt_save_gate_closed(save);
	if (closed)
		r = ckpt_save_check(save, ckpt_deadline_left_ms(deadline_ns), err);
	if (r == 0)
		r = ckpt_save_hold(save, CKPT_HOLD_ALL, ckpt_deadline_left_ms(deadline_ns), err);
	if (r < 0 && r != -ETIMEDOUT)
		ckpt_save_post_failure(save, err);
	if (r == 0 && closed)
		ckpt_save_post_gate(save);
	return r;
}

int ckpt_save_fail(struct ckpt_save *save, int code, const char *tensor, const char *why)
{
	struct ckpt_error verdict = {.size = sizeof(verdict)};
	int r = check(save);

	if (r < 0)
		return r;
	if (code >= 0 || !why)
		return ckpt_fail(ckpt_error_here(), -EINVAL, "ckpt_save_fail: code or why");
	ckpt_error_clear(&verdict);
	(void)ckpt_fail_at(&verdict, code, &(struct ckpt_where){.tier = "memory", .tensor = tensor},
		"%s", why);
	if (!ckpt_save_started(save))
		ckpt_runtime_refuse(ckpt_save_owner(save), save, &verdict);
	else if (!ckpt_save_gone(save))
		ckpt_save_post_failure(save, &verdict);
	return 0;
}

static int wait_remote(struct ckpt_save *save, int timeout_ms)
{
	uint64_t deadline_ns = ckpt_deadline(timeout_ms);
	unsigned long long step = ckpt_save_step(save);

	if (!ckpt_save_has_remote(save))
		return ckpt_fail(ckpt_error_here(), CKPT_ELEVEL,
			"step %llu goes to no remote store: wait for CKPT_LEVEL_LOCAL", step);
	int r = wait_bits(save, CKPT_DONE_LOCAL, timeout_ms, "durable");
	if (r < 0)
		return r;
	struct ckpt_upload_entry *upload = ckpt_save_upload(save);
	if (!(ckpt_latch_wait_until(&upload->latch, CKPT_DONE_END, deadline_ns) & CKPT_DONE_END))
		return ckpt_fail(ckpt_error_here(), -ETIMEDOUT,
			"step %llu is not in the remote store yet; if that fails, the log says why",
			step);
	if (upload->error.code < 0)
		(void)ckpt_error_copy(&upload->error, ckpt_error_here());
	return upload->error.code;
}

int ckpt_save_wait(struct ckpt_save *save, enum ckpt_level level, int timeout_ms)
{
	int r = check(save);

	if (r < 0)
		return r;
	switch (level) {
	case CKPT_LEVEL_STAGED:
		return wait_bits(save, CKPT_DONE_STAGED, timeout_ms, "staged");
	case CKPT_LEVEL_LOCAL:
		return wait_bits(save, CKPT_DONE_LOCAL, timeout_ms, "durable");
	case CKPT_LEVEL_REPLICATED:
		return ckpt_fail(ckpt_error_here(), CKPT_ELEVEL,
			"this store has no peers: wait for CKPT_LEVEL_LOCAL");
	case CKPT_LEVEL_REMOTE:
		return wait_remote(save, timeout_ms);
	}
	return ckpt_fail(ckpt_error_here(), -EINVAL, "level %d is not known", (int)level);
}

void ckpt_save_cancel(struct ckpt_save *save)
{
	if (!save || ckpt_save_forked(save) || ckpt_save_gone(save) || !ckpt_save_started(save))
		return;
	ckpt_save_post_cancel(save);
}

int ckpt_save_error(struct ckpt_save *save, struct ckpt_error *ret_error)
{
	int r = check(save);

	if (r < 0)
		return r;
	if (!(ckpt_latch_get(ckpt_save_latch(save)) & CKPT_DONE_END))
		return 0;
	if (ckpt_save_failure(save)->code == 0)
		return 0;
	return ret_error ? ckpt_error_copy(ckpt_save_failure(save), ret_error)
			 : ckpt_save_failure(save)->code;
}

int ckpt_save_info(struct ckpt_save *save, struct ckpt_save_info *ret_info)
{
	struct ckpt_save_info info;
	int r = check(save);

	if (r < 0)
		return r;
	ckpt_save_describe(save, &info);
	return ckpt_copy_out(ret_info, &info, sizeof(info), "ckpt_save_info");
}

void ckpt_save_free(struct ckpt_save *save)
{
	if (save && !ckpt_save_forked(save))
		ckpt_save_unref(save);
}
