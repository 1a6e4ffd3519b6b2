/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving a step: from tensors to a published manifest.
 *
 *	user thread:  new -> add ... -> prepare (layout, samples, eager copies) -> post
 *	core:         claim if need be -> mkdir, create | copy -> write, digest -> seal -> index -> sync
 *	              -> gate (fence) -> fenced by a later generation? -> publish -> LOCAL
 *
 * A save that fails lets its copies come back, tells the caller, and cleans up behind: abort record
 * first or files first, so that a commit and a missing shard never meet.
 */
#ifndef CKPT_ENGINE_SAVE_SAVE_H
#define CKPT_ENGINE_SAVE_SAVE_H

#include <ckpt/save.h>
#include "engine/core/core.h"
#include "engine/save/plan.h"

struct ckpt_upload_entry;

/* User's thread. `fenced`: hold the manifest back until the gate opens. `owner` is only kept. */
int ckpt_save_new(struct ckpt_core *core, struct ckpt_engine *owner, uint64_t step, bool fenced,
	uint32_t timeout_ms, struct ckpt_save **ret_save);
/* Checks and copies descriptions; all or none. Words into `err`. */
int ckpt_save_put_tensors(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count,
	struct ckpt_error *err);
int ckpt_save_put_alias(
	struct ckpt_save *save, const char *alias, const char *name, struct ckpt_error *err);
/*
 * Tensors that all ranks of a group hold: they are compared. Borrowed until prepare has returned; `copies`, or NULL, is
 * freed.
 */
int ckpt_save_put_replicas(struct ckpt_save *save, uint64_t group,
	const struct ckpt_tensor *tensors, size_t count, void *copies, struct ckpt_error *err);
/* -EINVAL: the group has no replicas. */
int ckpt_save_put_own(
	struct ckpt_save *save, uint64_t group, enum ckpt_own own, struct ckpt_error *err);
void ckpt_save_put_common(struct ckpt_save *save, const void *data, size_t length);
void ckpt_save_put_balance(struct ckpt_save *save, uint64_t balance);
int ckpt_save_put_meta(
	struct ckpt_save *save, const char *json, size_t length, struct ckpt_error *err);

/*
 * Lays the shard out, copies small eager tensors, takes the samples. `cache` holds the plan of an
 * earlier save or NULL: it is used again when the tensors are described alike, else freed; it is NULL
 * afterwards.
 */
int ckpt_save_prepare(struct ckpt_save *save, struct ckpt_plan **cache, struct ckpt_error *err);
/* Hands it to the core. The engine has seen to it that no other save is under way. */
void ckpt_save_post(struct ckpt_save *save);

/*
 * Instead of post: it has failed with this record, and nobody else will say so. Other ranks are told behind
 * the caller's back.
 */
void ckpt_save_refuse(struct ckpt_save *save, const struct ckpt_error *why);

/* Any thread, after post. */
/* Fenced, and nobody has opened its gate. */
bool ckpt_save_gate_closed(struct ckpt_save *save);
void ckpt_save_post_gate(struct ckpt_save *save);
void ckpt_save_post_cancel(struct ckpt_save *save);
/* Fails it with this record, unless it is published already, or was failed so before. */
void ckpt_save_post_failure(struct ckpt_save *save, const struct ckpt_error *why);

/*
 * User's thread, save/stream_fence.c: which streams of GPUs its work is in from now on, instead of those that were given
 * before. The copies come after what these have been given by the start.
 */
int ckpt_save_put_streams(struct ckpt_save *save, const struct ckpt_stream *streams, size_t count,
	struct ckpt_error *err);
/*
 * User's thread, after the post. The bit to wait for before the tensors (or the eager ones) may be changed, but
 * for what the streams do, which are held back then: ckpt_save_hold(). -ETIMEDOUT, or why a stream cannot be
 * held.
 */
uint32_t ckpt_save_copied_bit(const struct ckpt_save *save, bool eager);
int ckpt_save_hold(
	struct ckpt_save *save, enum ckpt_hold which, int timeout_ms, struct ckpt_error *err);
/*
 * User's thread, at the fence: reads the samples again, or sees to it that the devices do, behind what the
 * streams have been given so far. 0; CKPT_ETORN, worded into `err`; -ETIMEDOUT; why a stream cannot be
 * followed.
 */
int ckpt_save_check(struct ckpt_save *save, int timeout_ms, struct ckpt_error *err);

struct ckpt_latch *ckpt_save_latch(struct ckpt_save *save);
/* After LOCAL: what ranks differ in, "" if nothing. */
const char *ckpt_save_differ(struct ckpt_save *save);
const struct ckpt_error *ckpt_save_failure(const struct ckpt_save *save); /* after END */
void ckpt_save_describe(struct ckpt_save *save, struct ckpt_save_info *ret_info);
uint64_t ckpt_save_step(const struct ckpt_save *save);
struct ckpt_engine *ckpt_save_owner(const struct ckpt_save *save);
/* Whether it goes on to a remote store. */
bool ckpt_save_has_remote(const struct ckpt_save *save);
/* After LOCAL: the save's hold on what becomes of it in the remote store; NULL: it does not go there. */
struct ckpt_upload_entry *ckpt_save_upload(const struct ckpt_save *save);
bool ckpt_save_started(const struct ckpt_save *save); /* posted or refused */
bool ckpt_save_refused(const struct ckpt_save *save); /* it was never posted, and never will be */
bool ckpt_save_gone(struct ckpt_save *save);          /* the core has let go of it */
bool ckpt_save_forked(const struct ckpt_save *save);  /* made by the parent of this process */
/*
 * After GONE: takes the plan out, for the next save. NULL if it was taken, or never prepared, or if a thread is
 * just reading it at the fence: then it goes with the save.
 */
struct ckpt_plan *ckpt_save_take_plan(struct ckpt_save *save);

/*
 * A save is counted: its handle, the core while it runs, and every message on its way are one each.
 * The last to let go frees. NULL is ignored.
 */
struct ckpt_save *ckpt_save_ref(struct ckpt_save *save);
void ckpt_save_unref(struct ckpt_save *save);

#endif
