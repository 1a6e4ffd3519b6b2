/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of user threads: commands that they wait for, and whose turn it is. */
#include <errno.h>

#include "base/error.h"
#include "base/thread.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/runtime_state.h"

#define PATIENCE_MIN_MS 10000 /* a store with thousands of steps takes a while to read */

struct ckpt_command *ckpt_runtime_command(struct ckpt_engine *engine, size_t size,
	void (*clear)(struct ckpt_command *command), struct ckpt_error *err)
{
	struct ckpt_command *command = ckpt_command_new(&engine->core, size, clear);

	if (!command)
		(void)ckpt_fail(err, -ENOMEM, "out of memory");
	return command;
}

int ckpt_runtime_patience_ms(const struct ckpt_engine *engine)
{
	return (int)ckpt_max_u64(engine->core.config.save_timeout_ms, PATIENCE_MIN_MS);
}

int ckpt_runtime_no_answer(struct ckpt_engine *engine, struct ckpt_error *err)
{
	return ckpt_fail_at(err, -ETIMEDOUT,
		&(struct ckpt_where){.tier = "local", .file = engine->label},
		"the storage of %s has not answered within %d s: see whether its disk hangs",
		engine->label, ckpt_runtime_patience_ms(engine) / 1000);
}

bool ckpt_runtime_has_ended(struct ckpt_command *command, int timeout_ms)
{
	return (ckpt_latch_wait(&command->latch, CKPT_DONE_END, timeout_ms) & CKPT_DONE_END) != 0;
}

int ckpt_runtime_result(
	struct ckpt_engine *engine, struct ckpt_command *command, struct ckpt_error *err)
{
	int r = command->result;

	if (r < 0 && command->error.code < 0)
		(void)ckpt_error_copy(&command->error, err);
	else if (r < 0)
		(void)ckpt_fail(err, r, "%s: %s", engine->label, ckpt_code_text(r));
	return r;
}

int ckpt_runtime_run(struct ckpt_engine *engine, struct ckpt_command *command, ckpt_task_fn *body,
	struct ckpt_error *err)
{
	CKPT_ASSERT(command->core == &engine->core);
	ckpt_command_post(command, body);
	if (!ckpt_runtime_has_ended(command, ckpt_runtime_patience_ms(engine)))
		return ckpt_runtime_no_answer(engine, err);
	return ckpt_runtime_result(engine, command, err);
}

bool ckpt_runtime_take_turn_within(struct ckpt_engine *engine, int timeout_ms)
{
	uint64_t deadline = ckpt_deadline(timeout_ms);
	bool mine;

	(void)pthread_mutex_lock(&engine->lock);
	while (engine->turn && ckpt_cond_wait_until(&engine->turn_over, &engine->lock, deadline))
		;
	mine = !engine->turn;
	engine->turn = true;
	(void)pthread_mutex_unlock(&engine->lock);
	return mine;
}

int ckpt_runtime_take_turn(struct ckpt_engine *engine, struct ckpt_error *err)
{
	return ckpt_runtime_take_turn_within(engine, ckpt_runtime_patience_ms(engine))
		       ? 0
		       : ckpt_runtime_no_answer(engine, err);
}

void ckpt_runtime_end_turn(struct ckpt_engine *engine)
{
	(void)pthread_mutex_lock(&engine->lock);
	engine->turn = false;
	(void)pthread_cond_signal(&engine->turn_over);
	(void)pthread_mutex_unlock(&engine->lock);
}

int ckpt_runtime_stats(
	struct ckpt_engine *engine, struct ckpt_error *err, struct ckpt_stats *ret_stats)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_reporter), NULL, err);
	if (!command)
		return -ENOMEM;
	int r = ckpt_runtime_run(engine, command, ckpt_reporter_body, err);
	if (r == 0) {
		*ret_stats = CKPT_CONTAINER(command, struct ckpt_reporter, command)->stats;
		ret_stats->threads += ckpt_env_os_threads(engine->env);
		ret_stats->saves_skipped += atomic_load(&engine->saves_skipped);
		ret_stats->saves_waited = atomic_load(&engine->saves_waited);
		ret_stats->saves_waited_ns = atomic_load(&engine->saves_waited_ns);
	}
	ckpt_command_unref(command);
	return r;
}
