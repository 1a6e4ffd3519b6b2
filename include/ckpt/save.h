/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Saving one step.
 *
 *	ckpt_save_begin(engine, step, NULL, &save);
 *	ckpt_save_add(save, tensors, count);
 *	ckpt_save_start(save);
 *	... compute that does not change the tensors ...
 *	ckpt_save_fence(save, CKPT_FOREVER);
 *	... change the tensors ...
 *	ckpt_save_wait(save, CKPT_LEVEL_LOCAL, timeout_ms);
 *	ckpt_save_free(save);
 *
 * Threads: ckpt_save_wait(), _cancel(), _error() and _info() may be called from any thread. All other
 * functions of one save must be called by one thread at a time. Timeouts are in milliseconds, see
 * CKPT_FOREVER.
 *
 * Errors: all functions that return int also return -EINVAL for a NULL handle, and CKPT_EFORKED in a
 * child of fork(). The functions that describe a save (ckpt_save_add*() and ckpt_save_set_*(), except
 * ckpt_save_set_streams()) also return -EINVAL after ckpt_save_start(), and the error of a save that
 * has failed before it.
 */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Options of one save. */
struct ckpt_save_opts {
	uint32_t size;       /* sizeof(struct ckpt_save_opts) */
	uint32_t flags;      /* CKPT_SAVE_* */
	uint32_t timeout_ms; /* of this save, see save_timeout_ms; 0: that of the engine */
	uint32_t reserved;   /* 0 */
};

/*
 * Do not publish the manifest before ckpt_save_fence() has found the tensors unchanged. Without this
 * flag the save is published as soon as it is durable, and the caller must make sure that the tensors
 * do not change.
 */
#define CKPT_SAVE_FENCED 1u

/*
 * Makes a save of step `step`, at most CKPT_STEP_MAX. Steps of a generation must ascend. `opts` may be
 * NULL. The caller frees the save with ckpt_save_free().
 * Errors: CKPT_ESTEP, CKPT_EINUSE, CKPT_ECLOSED, -EROFS (the engine is read only), -EINVAL, -ENOMEM.
 */
CKPT_API int ckpt_save_begin(struct ckpt_engine *engine, uint64_t step,
	const struct ckpt_save_opts *opts, struct ckpt_save **ret_save);

/*
 * Adds `count` tensors, all or none. Names must be unique within the save; they are never used as
 * paths. See struct ckpt_tensor for what is borrowed.
 * Errors: -EINVAL (the message names the tensor and the field), -EEXIST (a name twice), -ENOMEM.
 */
CKPT_API int ckpt_save_add(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count);

/* Adds a further name, `alias`, of the tensor `name`, which was added before. The bytes are stored once. */
CKPT_API int ckpt_save_add_alias(struct ckpt_save *save, const char *alias, const char *name);

/*
 * Sets a JSON value (UTF-8, `length` bytes, copied) that is stored in the index unchanged. At most
 * 64 MiB and 32 levels deep. A save has one such value: a second call replaces it.
 * Errors: -EINVAL, -E2BIG, -ENOMEM.
 */
CKPT_API int ckpt_save_set_meta(struct ckpt_save *save, const char *json, size_t length);

/*
 * Sets bytes that all ranks must set to the same value, or not at all: for example the names of tensors that all have
 * and only one of them saves. They are compared, and not stored. If a rank has other bytes than rank 0, the step is
 * aborted on all ranks (CKPT_EMISMATCH), because a tensor that one rank leaves to another might be in no shard.
 * Errors: -EINVAL.
 */
CKPT_API int ckpt_save_set_common(struct ckpt_save *save, const void *data, size_t length);

/*
 * Sets a number of this rank (default 0). The numbers of all ranks must add up to 0, modulo 2^64. Otherwise the step is
 * aborted on all ranks (CKPT_EMISMATCH).
 *
 * This checks tensors that several ranks have and one of them saves: that one of them does save it, and that all of them
 * have it. Each rank that has a tensor subtracts a hash of its name, type and shape and of the set of these ranks. The rank
 * that saves it adds this hash as often as there are such ranks.
 */
CKPT_API int ckpt_save_set_balance(struct ckpt_save *save, uint64_t balance);

/*
 * Names the tensors that all ranks of a group must have with equal bytes: those that this rank adds to the save, and those
 * that it leaves to another rank. They are compared, and not saved by this call. If ranks differ, the step is aborted on all
 * ranks (CKPT_EREPLICA), see ckpt_engine_opts.replicas. `group` is a number that all ranks of the group use, and no other
 * rank. At most 16 groups. Names must be unique within a group. With a world of 1 nothing is compared.
 *
 * Digests are compared before the step is committed:
 * - If the newest commit has not compared a tensor of the same name, type and shape: on the CPU all bytes, on a GPU some
 *   lines of every 256 KiB.
 * - Otherwise a few lines of every 8 MiB, at other places at every step; and on the CPU also a 64th of the bytes, so that
 *   64 commits in a row compare all bytes.
 * - If one rank has a tensor of the group on a GPU and another rank has it on the CPU, these two compare only samples, of
 *   all tensors of the group.
 * - Of an empty tensor, and of one with CKPT_TENSOR_VARIES, only name, type and shape. So a rank that lacks it is found.
 * A rank that cannot compute digests (no memory, or its GPU fails) logs that once, and the save continues without them.
 *
 * The array and all that it points to are borrowed until ckpt_save_start() returns, which reads what the CPU can read.
 * Errors: those of ckpt_save_add().
 */
CKPT_API int ckpt_save_add_replicas(
	struct ckpt_save *save, uint64_t group, const struct ckpt_tensor *tensors, size_t count);

/* Whether a rank saves its own copies of the tensors of a group of ckpt_save_add_replicas(), and why. */
enum ckpt_own {
	CKPT_OWN_NONE = 0,    /* no: another rank saves them */
	CKPT_OWN_UNKNOWN = 1, /* yes, because it is not known whether the ranks differ */
	CKPT_OWN_DIFFERS = 2  /* yes, because the ranks differ */
};

/*
 * Sets whether this rank saves its own copies of a group, under names that no other rank has. Call it after
 * ckpt_save_add_replicas().
 * The default is CKPT_OWN_NONE. If every rank of the group does, they may differ. If any rank does not, they must be equal.
 * The ranks may set different values. Errors: -EINVAL.
 */
CKPT_API int ckpt_save_set_own(struct ckpt_save *save, uint64_t group, enum ckpt_own own);

/*
 * Sets the GPU streams of the caller, until the next call; the array is copied. Before ckpt_save_start(): the streams that
 * compute the tensors. Before ckpt_save_wait_eager() and ckpt_save_fence(): the streams that will change them.
 *
 * The copies run after all work that these streams had at ckpt_save_start(). ckpt_save_wait_eager() and ckpt_save_fence()
 * then do not wait for a GPU: they make the streams wait, on the GPU, until the copies are done, and return when all copies
 * are in the queue of the GPU. Without streams these calls wait for the copies, and the caller must synchronise with the
 * GPU before ckpt_save_start(). Streams of GPUs that have no tensor of the save are ignored.
 * Errors: CKPT_EUNSUPPORTED (a stream is being captured into a CUDA graph), -EINVAL, -E2BIG, -ENOMEM.
 */
CKPT_API int ckpt_save_set_streams(
	struct ckpt_save *save, const struct ckpt_stream *streams, size_t count);

/*
 * Waits for what ckpt_save_start() would wait for: the previous save (see enum ckpt_busy), and the first claim, which with
 * many ranks is that of rank 0. Returns 0 if ckpt_save_start() will not wait, or -ETIMEDOUT if it would; the call may be
 * repeated. If ckpt_save_start() would fail, this call fails with the same error, and the save has failed. That error may
 * be -ETIMEDOUT, too: ckpt_save_error() tells which.
 */
CKPT_API int ckpt_save_ready(struct ckpt_save *save, int timeout_ms);

/*
 * Starts the save. The tensors are copied in the background, eager ones first. The first save of an engine claims the
 * generation.
 *
 * Errors: CKPT_ESKIPPED and -ETIMEDOUT (the previous save is still running), CKPT_ENOTRESUMED, CKPT_EINUSE, CKPT_EFENCED,
 * CKPT_EDEVICE (a GPU cannot be used), or the code given to ckpt_save_fail() before. The save has then failed with that
 * error.
 *
 * With many ranks, a step that fails here on one rank is aborted on all. The others fail with CKPT_EABORTED (CKPT_ESKIPPED,
 * CKPT_EFENCED, CKPT_EMISMATCH and CKPT_EREPLICA are the same on all ranks). The step cannot be saved again in this
 * generation.
 */
CKPT_API int ckpt_save_start(struct ckpt_save *save);

/*
 * Waits until the tensors with CKPT_TENSOR_EAGER are copied. For tensors on a GPU the streams wait instead, see
 * ckpt_save_set_streams(). If any tensor is on a GPU, call it even without eager tensors: the next work on the streams then
 * cannot run before the sample that ckpt_save_fence() compares.
 * Errors: -ETIMEDOUT, or the error of the save.
 */
CKPT_API int ckpt_save_wait_eager(struct ckpt_save *save, int timeout_ms);

/*
 * Waits until all tensors are copied, and compares a sample of their bytes with that at ckpt_save_start(). If it differs,
 * the save fails with CKPT_ETORN, and the error names the tensor. After it has returned 0, the caller may change the
 * tensors, and enqueue GPU work that changes them: the streams wait for the copies. Samples on a GPU are compared in the
 * background, once, and a difference fails the save with CKPT_ETORN as well. The call may be repeated.
 * Errors: -ETIMEDOUT, or the error of the save.
 */
CKPT_API int ckpt_save_fence(struct ckpt_save *save, int timeout_ms);

/*
 * Makes the save fail with the code `code` (negative) and the message `why`, unless its manifest is already being
 * published. For a caller that has detected a change of `tensor`, which may be NULL. A save that has not started has failed
 * when the call returns, and cannot start. Errors: -EINVAL.
 *
 * With many ranks it also informs the other ranks, so the engine must be open. Before the first claim that is possible
 * only when rank 0 has claimed, which happens in the background. If ckpt_save_ready() has returned 0 before this call, the
 * other ranks are informed even if the engine is closed next.
 */
CKPT_API int ckpt_save_fail(struct ckpt_save *save, int code, const char *tensor, const char *why);

/*
 * Waits up to timeout_ms until the save has reached `level`. Returns 0, the error of the save, -ETIMEDOUT, or CKPT_ELEVEL
 * if that level is not configured.
 *
 * Once the manifest is being published, ckpt_save_cancel() and ckpt_save_fail() have no effect. If the storage does not
 * answer by the timeout of the save itself, the save fails with -ETIMEDOUT. The step may exist all the same; the error says
 * that this is not known.
 */
CKPT_API int ckpt_save_wait(struct ckpt_save *save, enum ckpt_level level, int timeout_ms);

/*
 * Requests cancellation of a save that has started, and returns at once. ckpt_save_wait() then returns -ECANCELED, or 0 if
 * the manifest was published first.
 */
CKPT_API void ckpt_save_cancel(struct ckpt_save *save);

/*
 * Returns the code of the error that the save failed with, and copies the error to `ret_error`, which may be NULL. Returns
 * 0 if the save has not failed. The call itself fails with -EINVAL (`save` is NULL) or CKPT_EFORKED. In these three cases
 * `ret_error` is not changed.
 */
CKPT_API int ckpt_save_error(struct ckpt_save *save, struct ckpt_error *ret_error);

/*
 * Returns CKPT_EREPLICA if the save was committed although ranks differ (CKPT_REPLICAS_WARN), otherwise 0. `ret_error` may
 * be NULL; it gets what differs.
 */
CKPT_API int ckpt_save_replicas(struct ckpt_save *save, struct ckpt_error *ret_error);

/* The progress of a save. Times are in nanoseconds. */
struct ckpt_save_info {
	uint32_t size;   /* sizeof(struct ckpt_save_info), set by the caller */
	uint32_t staged; /* 1: CKPT_LEVEL_STAGED is reached */
	uint32_t local;  /* 1: CKPT_LEVEL_LOCAL is reached */
	uint32_t failed; /* 1: it has failed, see ckpt_save_error() */
	uint64_t step;
	uint64_t generation;
	uint64_t bytes; /* size of the shard */
	uint64_t bytes_staged;
	uint64_t bytes_written; /* the part of `bytes` that is in the file */
	uint64_t eager_ns;      /* start to the copies of the eager tensors */
	uint64_t stage_ns;      /* start to STAGED */
	uint64_t local_ns;      /* start to LOCAL */
	uint64_t starved_ns;    /* part of that in which no staging slot was free */
	uint64_t durable_ns;    /* start to the durable shard and index of this rank */
	uint64_t bytes_stored;  /* size of the file, see enum ckpt_encoding; 0: not known yet */
};

/* Copies the progress. Errors: CKPT_EFORKED, -EINVAL (`save` or `ret_info` is NULL, or `size` is not set). */
CKPT_API int ckpt_save_info(struct ckpt_save *save, struct ckpt_save_info *ret_info);

/*
 * Frees the handle. A running save continues to its end, and its tensors must stay unchanged until it is STAGED. NULL is
 * ignored.
 */
CKPT_API void ckpt_save_free(struct ckpt_save *save);

#ifdef __cplusplus
}
#endif

#endif
