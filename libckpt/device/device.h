/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that tensors are in. Only device.c calls the members of the table. A device owns a copy from
 * ckpt_device_copy() until its node returns through the inbox.
 */
#ifndef CKPT_DEVICE_DEVICE_H
#define CKPT_DEVICE_DEVICE_H

#include <ckpt/types.h>
#include <stdatomic.h>
#include "base/env.h"
#include "base/error.h"

/*
 * A strided view of memory, row-major. A stride may be zero or negative; that of a dimension of one element is unused.
 * If elements overlap, scattering leaves the bytes of any of them.
 */
struct ckpt_view {
	char *data;
	uint32_t item; /* bytes of an element */
	uint32_t ndim;
	const int64_t *shape;
	const int64_t *strides; /* in elements; NULL: contiguous */
	uint32_t device;        /* device of the memory, see devices.h */
};

/* `length` of the view's row-major bytes from `offset`, and their staging. */
struct ckpt_segment {
	struct ckpt_view view;
	uint64_t offset;
	uint64_t length;
	char *staged;
	/*
	 * NULL; or when copying from staging: the shape of a row-major array, followed by the view's start in it.
	 * `offset` and `length` then count the array's bytes; bytes outside of the view are skipped.
	 */
	const int64_t *around;
	uint32_t tensor; /* number for the creator of the segment */
	uint64_t
		/* Sample of the view before the copy, see ckpt_segment_sample() and `torn`. */
		sample;
	/* Its owner may change it as soon as it is copied, so its sample is not compared. */
	bool eager;
};

enum ckpt_copy_direction {
	CKPT_COPY_TO_STAGING = 1,
	CKPT_COPY_FROM_STAGING = 2,
	/*
	 * Moves nothing: samples each segment's view, and does not read `staged`, which may be set meanwhile.
	 * CKPT_EUNSUPPORTED on a GPU without `samples`.
	 */
	CKPT_COPY_SAMPLE = 3,
	/* Samples all but eager segments again, and compares, see `torn`. */
	CKPT_COPY_COMPARE = 4,
	/*
	 * Moves nothing and has no segments: returns when no more of the copies submitted before is going to be
	 * enqueued. Those that are stopped then read only what is in the device's queue. For GPUs.
	 */
	CKPT_COPY_NOTHING = 5,
};

/* Segments that are copied together, usually a block. Segments of other devices are skipped. */
struct ckpt_copy {
	struct ckpt_job job; /* set node.run before: what the core does when all is copied */
	enum ckpt_copy_direction direction;
	struct ckpt_segment *segments; /* borrowed until done */
	size_t count;
	uint64_t seed;   /* seed of the samples */
	bool sampled;    /* to staging: compare the staged bytes with each segment's sample */
	bool eager;      /* counts for CKPT_HOLD_EAGER */
	uint32_t device; /* number of the device. Set by ckpt_device_copy() */
	/* NULL; or if it is true, nothing more is enqueued on a GPU: -ECANCELED. */
	const atomic_bool *stop;
	/* NULL, or receives the device's error; owned by the device until done. */
	struct ckpt_error *error;
	int64_t torn; /* index of the first segment that differs; -1: none. Set by the device */
	int result;   /* 0 or a negative code. Set by the device */
};

/* Which copies a stream waits for. */
enum ckpt_hold {
	CKPT_HOLD_ALL = 1,
	CKPT_HOLD_EAGER = 2,
};

struct ckpt_device;

struct ckpt_device_ops {
	const char *name; /* "host", "cuda" */
	/* Never blocks: completes through the inbox. */
	void (*copy)(struct ckpt_device *device, struct ckpt_copy *copy);
	/* Pins staging memory for fast copies (cudaHostRegister); NULL: nothing to do. */
	int (*pin)(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err);
	int (*unpin)(struct ckpt_device *device, void *base, size_t size);
	/* NULL: it can copy every segment. */
	int (*takes)(struct ckpt_device *device, const struct ckpt_segment *segment,
		struct ckpt_error *err);
	/* NULL: the caller's work is done when it returns, and copies are waited for. */
	int (*follow)(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err);
	int (*hold)(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
		int timeout_ms, struct ckpt_error *err);
	void (*close)(struct ckpt_device *device);
};

struct ckpt_device {
	const struct ckpt_device_ops *ops;
	struct ckpt_env *env;
	uint32_t number;        /* number in views, see devices.h */
	bool samples;           /* it can sample memory that the CPU cannot read */
	const char *no_samples; /* of a GPU: why it cannot, or NULL */
	char bus[32];           /* PCI address of a GPU; "": unknown */
};

/*
 * Must not be called in a forked child, which has neither the threads that copy nor the one that receives the result.
 * On a GPU that ends the process. There pin, unpin, follow and hold return CKPT_EFORKED for a GPU, and close does
 * nothing.
 */
void ckpt_device_copy(struct ckpt_device *device, struct ckpt_copy *copy);
/*
 * Called before the first copy into [base, base+size), and after the last. If staging is not pinned, the device's
 * queue, and so a hold, may wait for its copies, and a GPU needs some memory (cuda_relay.h). If several GPUs pin the
 * same memory, the first must unpin it last. Memory that could not be unpinned cannot be pinned again.
 */
int ckpt_device_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err);
int ckpt_device_unpin(struct ckpt_device *device, void *base, size_t size);
/*
 * Whether the device can copy such a segment from staging, at any address: 0, or CKPT_EUNSUPPORTED. Any thread, once it
 * is open. Does not read `staged`.
 */
int ckpt_device_takes(
	struct ckpt_device *device, const struct ckpt_segment *segment, struct ckpt_error *err);
/*
 * Called on a user's thread; `stream` is its cudaStream_t (ignored for the host). A stream that is being captured into
 * a
 * graph is an error. Streams 0, 1 and 2, of which each GPU has its own, are those of this device, whatever GPU is
 * current
 * in the thread.
 *
 * Follow: all work that is on the stream now precedes every copy that is submitted from now on.
 *
 * Hold: later work on the stream waits, on the device, for every copy submitted so far, or for the eager ones and those
 * before them. The caller waits until these are in the device's queue; -ETIMEDOUT if that takes longer (-1: no limit).
 * After a failure nothing is held.
 *
 * That queue is the driver's, of about a thousand entries (CUDA documents no number). Adjacent copies are joined, and
 * many share an event (cuda_piece_size.h), so that 10 GB of large tensors use half of it. With more, such as thousands
 * of
 * tensors that no kernel copies, a hold waits until the device has made all copies but those in the queue, and a follow
 * until there is space for its wait.
 */
int ckpt_device_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err);
int ckpt_device_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err);
/* No copy is in flight, and nothing is pinned. NULL is ignored. */
void ckpt_device_close(struct ckpt_device *device);

/* A host device; workers of the environment make its copies. */
int ckpt_device_host_open(struct ckpt_env *env, struct ckpt_device **ret_device);

/* The work of a host copy; the simulator calls it, too. */
void ckpt_host_copy_work(struct ckpt_job *job);

/* Gathers `length` of the view's row-major bytes from `offset` to `out`, or scatters them from `in`. */
void ckpt_view_gather(const struct ckpt_view *view, uint64_t offset, uint64_t length, char *out);
void ckpt_view_scatter(
	const struct ckpt_view *view, uint64_t offset, uint64_t length, const char *in);
/* The same for bytes of the array `around`, of which the view is a box; see struct ckpt_segment. */
void ckpt_view_scatter_box(const struct ckpt_view *view, const int64_t *around, uint64_t offset,
	uint64_t length, const char *in);
/* Whether it is row-major without gaps, so that gather and scatter are one memcpy. */
bool ckpt_view_contiguous(const struct ckpt_view *view);
/* No dimension is negative, and the size fits in 64 bits. */
uint64_t ckpt_view_bytes(const struct ckpt_view *view);
/*
 * The first dimension whose stride exceeds the address space; -1: none, and only then may the functions above be
 * called. No dimension is negative.
 */
int ckpt_view_stray(const struct ckpt_view *view);
/*
 * Whether two elements share memory. Requires that no stride strays. Also true if the dimensions are too complex to
 * find out.
 */
bool ckpt_view_shares(const struct ckpt_view *view);

/*
 * A hash over a few lines (64 bytes) of a segment, at places that depend on `seed` and the segment: the first and last
 * line, and up to two between. `staged` false: of the view, in CPU memory; true: of the staged bytes. A device compares
 * the latter with a sample taken before.
 */
uint64_t ckpt_segment_sample(const struct ckpt_segment *segment, uint64_t seed, bool staged);
/* Its view will be sampled soon: prefetches the lines. */
void ckpt_segment_expect(const struct ckpt_segment *segment, uint64_t seed);

#endif
