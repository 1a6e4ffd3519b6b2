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
 * Threads: begin, add, start, fail, fence and free from one thread at a time; wait, cancel, error and
 * info from any.
 */
#ifndef CKPT_SAVE_H
#define CKPT_SAVE_H

#include <ckpt/types.h>
#include <ckpt/error.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ckpt_save_opts {
	uint32_t size;       /* sizeof(struct ckpt_save_opts) */
	uint32_t flags;      /* CKPT_SAVE_* */
	uint32_t timeout_ms; /* of this attempt, see save_timeout_ms; 0: the engine's */
	uint32_t reserved;
};

/*
 * Hold the manifest back until ckpt_save_fence() has found the tensors unchanged. Without it the
 * save is published as soon as it is durable, and the caller answers for its tensors.
 */
#define CKPT_SAVE_FENCED 1u

/*
 * Begins step `step`. Steps of one generation must ascend. `opts` may be NULL.
 * Errors: CKPT_ESTEP, CKPT_EINUSE, CKPT_ECLOSED, CKPT_EFORKED, -EROFS (engine is read only), -ENOMEM.
 */
CKPT_API int ckpt_save_begin(struct ckpt_engine *engine, uint64_t step,
	const struct ckpt_save_opts *opts, struct ckpt_save **ret_save);

/*
 * Adds `count` tensors. Names must be unique within the save; they are data, never paths.
 * Errors: -EINVAL names the tensor and the field, -EEXIST, -ENOMEM. All or none is added.
 */
CKPT_API int ckpt_save_add(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count);

/* A second name for a tensor that was added: the bytes are stored once. */
CKPT_API int ckpt_save_add_alias(struct ckpt_save *save, const char *alias, const char *name);

/*
 * A JSON value (UTF-8) that travels in the index beside the tensors. It is stored as it is, byte for
 * byte. One per save; a second call replaces the first. At most 64 MiB, 32 levels deep.
 */
CKPT_API int ckpt_save_set_meta(struct ckpt_save *save, const char *json, size_t length);

/*
 * Bytes that all ranks must give alike, or none: say, the names of what they have in common and only one of
 * them saves. They are compared, and not stored. A rank that gives others than rank 0 does fails the step
 * for all (CKPT_EMISMATCH): what one of them relies on another to save would be in no shard. Errors: -EINVAL.
 */
CKPT_API int ckpt_save_set_common(struct ckpt_save *save, const void *data, size_t length);

/*
 * A number of this rank. The numbers of all ranks must add up to 0, modulo 2^64, or the step fails for all
 * (CKPT_EMISMATCH); that of a rank which does not call this is 0. It proves of tensors that several ranks hold, and one of
 * them saves, that each of them is saved by one of its holders, and that all of these have it: each holder subtracts a hash of
 * the tensor's name, type and shape and of which ranks hold it, and the rank that saves it adds this hash as often as there
 * are holders. What a rank takes for another's to save would be in no shard if that one lacked it.
 */
CKPT_API int ckpt_save_set_balance(struct ckpt_save *save, uint64_t balance);

/*
 * Tensors that this rank holds, and that the other ranks which name the same `group` hold as well: all of them, those
 * that this rank adds to the save and those that it leaves to another one. They are not saved by this. Digests of their
 * bytes are compared before the step is committed, and where ranks differ it fails for all of them (CKPT_EREPLICA;
 * see ckpt_engine_opts.replicas): what was saved would be one rank's. Of a tensor whose name, type and shape the newest
 * commit has not proved a digest is of every byte, and on a GPU of lines of every 256 KiB; else it is of a few lines
 * of every 8 MiB, at other places at every step, and, but on a GPU, of a 64th of the bytes, so that 64 commits in a row
 * compare all of them. If one rank has a tensor of a group on a GPU and another rank has it on the CPU, these two compare
 * only samples, of all tensors of that group. A rank that cannot digest, as it lacks the memory or its GPU fails,
 * logs that once, and the save goes on without. What the CPU can read is read by ckpt_save_start(), and until then the
 * array and all that it points to are borrowed. Of an empty tensor, and of one with CKPT_TENSOR_VARIES, only name, type and
 * shape are compared, so that a rank which lacks it is found. `group` is any number that all of them, and no others, give. At most
 * 16 groups; names of a group must be unique. With a world of 1 nothing is done. Errors: those of ckpt_save_add().
 */
CKPT_API int ckpt_save_add_replicas(
	struct ckpt_save *save, uint64_t group, const struct ckpt_tensor *tensors, size_t count);

/* Whether a rank writes copies of its own of what a group of ckpt_save_add_replicas() holds, and why. */
enum ckpt_own {
	CKPT_OWN_NONE = 0,    /* it writes none, and relies on what another rank writes */
	CKPT_OWN_UNKNOWN = 1, /* it does, because it does not know whether the ranks differ */
	CKPT_OWN_DIFFERS = 2  /* it does, because the ranks differ */
};

/*
 * What this rank does about a group that it has given to ckpt_save_add_replicas(): CKPT_OWN_NONE if this is not
 * called. A group of which every rank writes copies of its own (under names that no other rank has) may differ. One of
 * which any rank writes none must be alike. The ranks need not say the same. Errors: -EINVAL.
 */
CKPT_API int ckpt_save_set_own(struct ckpt_save *save, uint64_t group, enum ckpt_own own);

/*
 * Which streams of GPUs the caller's work is in, from now on: those that computed the tensors, before
 * ckpt_save_start(); those that will change them, before ckpt_save_wait_eager() and ckpt_save_fence(). The
 * copies come after all that these streams had been given at the start. The two calls do not wait for a GPU
 * then: they hold the streams back, on the GPU, until the copies are made, and return when every copy is in the
 * GPU's queue. A save of tensors on a GPU without a stream waits there for the copies, and its caller must have
 * synchronised before the start. A stream that is being captured into a CUDA graph cannot take part
 * (CKPT_EUNSUPPORTED). Streams of other GPUs are ignored. Errors: -EINVAL, -E2BIG, -ENOMEM.
 */
CKPT_API int ckpt_save_set_streams(
	struct ckpt_save *save, const struct ckpt_stream *streams, size_t count);

/*
 * Waits for what ckpt_save_start() would wait for, and not longer than so: for the last save, by the busy
 * policy, and for the first claim, which with many ranks is that of rank 0. 0: it need not wait now.
 * -ETIMEDOUT: not yet; ask again as often as you like. If ckpt_save_start() would fail, this does, and the
 * save has failed (ckpt_save_error()), with that error, which may be -ETIMEDOUT as well.
 */
CKPT_API int ckpt_save_ready(struct ckpt_save *save, int timeout_ms);

/*
 * Starts. The tensors are copied behind the caller's back from now on, eager ones first. Claims the
 * generation on the first save.
 * Errors: CKPT_ESKIPPED and -ETIMEDOUT (the last save still runs), CKPT_ENOTRESUMED, CKPT_EINUSE,
 * CKPT_EFENCED, CKPT_EDEVICE (a GPU that cannot be used); the save has then failed with that error. What
 * ckpt_save_fail() was given, if it was called before. With many ranks a step that one of them was refused is
 * over for all: they are told, their saves fail with CKPT_EABORTED (CKPT_ESKIPPED, CKPT_EFENCED, CKPT_EMISMATCH
 * and CKPT_EREPLICA are those of all), and none may try it again in this generation.
 */
CKPT_API int ckpt_save_start(struct ckpt_save *save);

/*
 * Waits until the tensors marked CKPT_TENSOR_EAGER have been copied. Of those on a GPU the streams wait, see
 * ckpt_save_set_streams(); with any tensor there it is worth a call without eager ones as well: what the
 * streams are given next cannot overtake the sample of what is saved.
 */
CKPT_API int ckpt_save_wait_eager(struct ckpt_save *save, int timeout_ms);

/*
 * Waits until all tensors have been copied, then reads a sample of their lines again. What differs
 * from what was there at ckpt_save_start() fails the save with CKPT_ETORN and names the tensor.
 * After 0, the caller may change the tensors, and enqueue work that changes those on a GPU: the streams
 * wait for the copies there. What was changed on a GPU is found out behind the caller's back, and fails the save
 * with CKPT_ETORN as well; it is looked for once, by the first call that comes so far. Calling it again is
 * harmless.
 */
CKPT_API int ckpt_save_fence(struct ckpt_save *save, int timeout_ms);

/*
 * Fails the save, unless its manifest is being published already: `code` and `why` become its error.
 * The caller saw a change. One that has not started has failed on return, and cannot start. With many
 * ranks the others are told; so the engine must be open. Before the first claim they can be told only when
 * rank 0 has claimed, which is begun, or waited for behind the caller's back: with ckpt_save_ready() before
 * it, they have been told even if the engine is closed next.
 */
CKPT_API int ckpt_save_fail(struct ckpt_save *save, int code, const char *tensor, const char *why);

/*
 * Waits until the save has reached `level`: 0, the error it failed with, -ETIMEDOUT, or CKPT_ELEVEL
 * at once for a level that is not configured. A timeout of 0 asks without waiting. Once the manifest
 * is being published, a cancel and ckpt_save_fail() come too late: what becomes of it is the outcome.
 * If the storage has not said so by the save's own timeout, the save has failed with -ETIMEDOUT, and
 * the step may turn out to be there all the same: the error says that it is not known.
 */
CKPT_API int ckpt_save_wait(struct ckpt_save *save, enum ckpt_level level, int timeout_ms);

/*
 * Asks to give up. Returns at once; wait for the outcome, which is -ECANCELED, or success if the
 * manifest was published first.
 */
CKPT_API void ckpt_save_cancel(struct ckpt_save *save);

/*
 * Why the save failed. Returns its code, 0 if it has not failed; `ret_error` may be NULL. The call
 * itself fails with -EINVAL (`save` is NULL) or CKPT_EFORKED, and leaves `ret_error` alone then, as
 * it does when there is no failure.
 */
CKPT_API int ckpt_save_error(struct ckpt_save *save, struct ckpt_error *ret_error);

/*
 * CKPT_EREPLICA if the save was committed although ranks differ in what they hold alike (CKPT_REPLICAS_WARN); else
 * 0. `ret_error` may be NULL; it says what differs.
 */
CKPT_API int ckpt_save_replicas(struct ckpt_save *save, struct ckpt_error *ret_error);

struct ckpt_save_info {
	uint32_t size;   /* sizeof(struct ckpt_save_info), set by the caller */
	uint32_t staged; /* 1: STAGED was reached */
	uint32_t local;  /* 1: LOCAL was reached */
	uint32_t failed; /* 1: see ckpt_save_error() */
	uint64_t step;
	uint64_t generation;
	uint64_t bytes; /* of the shard */
	uint64_t bytes_staged;
	uint64_t bytes_written;
	uint64_t eager_ns;   /* start until the eager tensors were copied */
	uint64_t stage_ns;   /* start until STAGED */
	uint64_t local_ns;   /* start until LOCAL */
	uint64_t starved_ns; /* of that, time in which no staging slot was free */
	uint64_t durable_ns; /* start until this rank's shard and index were durable */
};

/* Errors: CKPT_EFORKED, -EINVAL (`save` or `ret_info` is NULL, or its size is not set). */
CKPT_API int ckpt_save_info(struct ckpt_save *save, struct ckpt_save_info *ret_info);

/*
 * Frees the handle. A save that still runs goes on to its end; its tensors must stay as they are
 * until it is STAGED all the same. NULL is ignored.
 */
CKPT_API void ckpt_save_free(struct ckpt_save *save);

#ifdef __cplusplus
}
#endif

#endif
