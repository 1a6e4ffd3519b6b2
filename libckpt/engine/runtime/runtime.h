/* SPDX-License-Identifier: Apache-2.0 */
/* An engine as programs have it: a core with a real thread, real files and real workers. */
#ifndef CKPT_ENGINE_RUNTIME_RUNTIME_H
#define CKPT_ENGINE_RUNTIME_RUNTIME_H

#include <ckpt/engine.h>
#include "engine/core/core.h"
#include "engine/save/save.h"

struct ckpt_engine;

/* `opts` is complete and checked. Imports nothing, see import.h. Words into `err`. */
int ckpt_runtime_open(const char *path, const struct ckpt_engine_opts *opts, struct ckpt_error *err,
	struct ckpt_engine **ret_engine);
void ckpt_runtime_close(struct ckpt_engine *engine);

/*
 * Where another store shall be: a directory, which is made durably if it is not there, or in a bucket. The
 * descriptor is the caller's, the bucket the engine's; the label is `dest`.
 */
int ckpt_runtime_dest(struct ckpt_engine *engine, const char *dest, struct ckpt_error *err,
	struct ckpt_core_place *ret_place);

struct ckpt_core *ckpt_runtime_core(struct ckpt_engine *engine);
struct ckpt_log *ckpt_runtime_log(struct ckpt_engine *engine);
int ckpt_runtime_eventfd(const struct ckpt_engine *engine);
/* enum ckpt_unchecked, and of which boxes; "" if of none. Any thread. */
enum ckpt_own ckpt_runtime_own(struct ckpt_engine *engine, uint64_t group);
uint64_t ckpt_runtime_unchecked(const struct ckpt_engine *engine, const char **ret_boxes);
bool ckpt_runtime_forked(const struct ckpt_engine *engine);

/* A command for ckpt_runtime_run(); see ckpt_command_new(). NULL: out of memory, worded into `err`. */
struct ckpt_command *ckpt_runtime_command(struct ckpt_engine *engine, size_t size,
	void (*clear)(struct ckpt_command *command), struct ckpt_error *err);
/*
 * Posts a command and waits for its end, with patience: storage that hangs holds nobody for ever. Returns its
 * result, which alone may be read then, or -ETIMEDOUT; its failure is copied to `err`. The caller still has its
 * reference.
 */
int ckpt_runtime_run(struct ckpt_engine *engine, struct ckpt_command *command, ckpt_task_fn *body,
	struct ckpt_error *err);

/* How long the storage may take to answer a call: save_timeout_ms, and ten seconds at least. */
int ckpt_runtime_patience_ms(const struct ckpt_engine *engine);
/* Words -ETIMEDOUT: it does not. */
int ckpt_runtime_no_answer(struct ckpt_engine *engine, struct ckpt_error *err);

/* Claims, if that has not been done. */
int ckpt_runtime_claim(
	struct ckpt_engine *engine, struct ckpt_error *err, uint64_t *ret_generation);
/* Forgets the generation: the next claim has this parent. */
int ckpt_runtime_adopt(
	struct ckpt_engine *engine, uint64_t generation, uint64_t step, struct ckpt_error *err);

/* Whether `step` may follow; see ckpt_save_begin(). */
int ckpt_runtime_check_step(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err);
/*
 * Starts a save by the busy policy: waits for the last one or refuses, claims, prepares, posts. On
 * failure the save has failed too, and knows why.
 */
int ckpt_runtime_start(struct ckpt_engine *engine, struct ckpt_save *save, struct ckpt_error *err);
/* See ckpt_save_ready(). -ETIMEDOUT and `*ret_over` false: not yet. */
int ckpt_runtime_ready(struct ckpt_engine *engine, struct ckpt_save *save, int timeout_ms,
	struct ckpt_error *err, bool *ret_over);
/* Fails a save that has not started. Where nothing is claimed yet, that is begun: the others must hear of it. */
void ckpt_runtime_refuse(
	struct ckpt_engine *engine, struct ckpt_save *save, const struct ckpt_error *why);
/* Waits for the save under way. */
int ckpt_runtime_drain(struct ckpt_engine *engine, int timeout_ms, struct ckpt_error *err);
/* See ckpt_engine_drain_remote(). */
int ckpt_runtime_drain_remote(struct ckpt_engine *engine, int timeout_ms, struct ckpt_error *err);

int ckpt_runtime_stats(
	struct ckpt_engine *engine, struct ckpt_error *err, struct ckpt_stats *ret_stats);

#endif
