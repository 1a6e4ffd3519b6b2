/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where tensors live. One table; device.c holds the only calls of its members. A copy is owned by the
 * device from ckpt_device_copy() until its node comes back through the inbox.
 */
#ifndef CKPT_DEVICE_DEVICE_H
#define CKPT_DEVICE_DEVICE_H

#include <ckpt/types.h>
#include <stdatomic.h>
#include "base/env.h"
#include "base/error.h"

/*
 * A view of memory as elements, the last dimension fastest. A stride may be zero or negative; that of
 * a dimension of one element means nothing. Scattering to elements that overlap leaves any of theirs.
 */
struct ckpt_view {
	char *data;
	uint32_t item; /* bytes of an element */
	uint32_t ndim;
	const int64_t *shape;
	const int64_t *strides; /* in elements; NULL: contiguous */
	uint32_t device;        /* whose memory it is, see devices.h */
};

/* `length` bytes of the view's contiguous row-major bytes from `offset` <-> staging. */
struct ckpt_segment {
	struct ckpt_view view;
	uint64_t offset;
	uint64_t length;
	char *staged;
	/*
	 * NULL, or from staging: the shape of a row-major array, and behind it where in the array the
	 * view begins. `offset` and `length` are bytes of the array then; others than the view's are
	 * passed over.
	 */
	const int64_t *around;
	uint32_t tensor; /* its number, for whoever made the segment */
	uint64_t
		sample; /* of the view's lines before the copy, see ckpt_segment_sample() and `torn` */
	bool eager; /* its owner may change it as soon as it is copied: nobody compares its lines then */
};

enum ckpt_copy_direction {
	CKPT_COPY_TO_STAGING = 1,
	CKPT_COPY_FROM_STAGING = 2,
	/*
	 * Moves nothing: takes each segment's sample of the view, and does not look at `staged`, which may be set
	 * meanwhile. CKPT_EUNSUPPORTED of a GPU without `samples`.
	 */
	CKPT_COPY_SAMPLE = 3,
	/* The same again, but of eager ones: compares it with the sample, see `torn`. */
	CKPT_COPY_COMPARE = 4,
	/*
	 * Moves nothing and has no segments: comes back as soon as nothing more of the copies submitted before is going to
	 * be enqueued. Those of them that are stopped read only what the device's queue holds by then. Of GPUs.
	 */
	CKPT_COPY_NOTHING = 5,
};

/* A batch of segments that moves at once, usually a block. Those of other devices are passed over. */
struct ckpt_copy {
	struct ckpt_job job; /* set node.run before: what the core does when all is copied */
	enum ckpt_copy_direction direction;
	struct ckpt_segment *segments; /* borrowed until done */
	size_t count;
	uint64_t seed;   /* of the samples */
	bool sampled;    /* to staging: compare the staged bytes with each segment's sample */
	bool eager;      /* one of those that CKPT_HOLD_EAGER means */
	uint32_t device; /* its number. Set by ckpt_device_copy() */
	/* NULL, or when it is true a GPU's queue is given nothing more of this: -ECANCELED. */
	const atomic_bool *stop;
	struct ckpt_error *error; /* NULL, or where a device words why; the device's until done */
	int64_t torn; /* index of the first segment that differs; -1: none. Set by the device */
	int result;   /* 0 or a negative code. Set by the device */
};

/* Which copies a stream is held back for. */
enum ckpt_hold {
	CKPT_HOLD_ALL = 1,
	CKPT_HOLD_EAGER = 2,
};

struct ckpt_device;

struct ckpt_device_ops {
	const char *name; /* "host", "cuda" */
	/* Never blocks: completion through the inbox. */
	void (*copy)(struct ckpt_device *device, struct ckpt_copy *copy);
	/* Makes staging memory fit for fast copies (cudaHostRegister); NULL: nothing to do. */
	int (*pin)(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err);
	int (*unpin)(struct ckpt_device *device, void *base, size_t size);
	/* NULL: it takes every segment. */
	int (*takes)(struct ckpt_device *device, const struct ckpt_segment *segment,
		struct ckpt_error *err);
	/* NULL: what the caller does is done when it returns, and copies are waited for. */
	int (*follow)(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err);
	int (*hold)(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
		int timeout_ms, struct ckpt_error *err);
	void (*close)(struct ckpt_device *device);
};

struct ckpt_device {
	const struct ckpt_device_ops *ops;
	struct ckpt_env *env;
	uint32_t number;        /* by which views name it, see devices.h */
	bool samples;           /* takes them of memory that the CPU cannot read */
	const char *no_samples; /* a GPU's: why it does not, or NULL */
	char bus[32];           /* a GPU's address on the PCI bus; "": not known */
};

/*
 * Never in a child of fork(): it has neither who would make the copy nor who would take it back. Submitting one there
 * is a bug of the caller's; on a GPU it ends the process. There pin, unpin, follow and hold return CKPT_EFORKED for a
 * GPU, and close does nothing.
 */
void ckpt_device_copy(struct ckpt_device *device, struct ckpt_copy *copy);
/*
 * Before the first copy into [base, base+size), and after the last. Staging that is not pinned may make the
 * device's queue, and so a hold, wait for its copies, and costs a GPU some memory (cuda_relay.h). Of several GPUs that
 * pin the same the first unpins it last. To pin again what could not be unpinned fails.
 */
int ckpt_device_pin(struct ckpt_device *device, void *base, size_t size, struct ckpt_error *err);
int ckpt_device_unpin(struct ckpt_device *device, void *base, size_t size);
/*
 * Whether the device can copy such a segment from staging, wherever that is: 0, or CKPT_EUNSUPPORTED. On any thread,
 * once it is open. `staged` is not looked at.
 */
int ckpt_device_takes(
	struct ckpt_device *device, const struct ckpt_segment *segment, struct ckpt_error *err);
/*
 * On the thread of the user, whose stream of work this is (a cudaStream_t; of the host: ignored). No work that is
 * being captured into a graph is touched: that is an error. The streams 0, 1 and 2, of which each GPU has its own,
 * are those of this device, whatever GPU is current in the thread.
 *
 * Follow: what the stream has been given so far comes before every copy that is submitted from now on.
 *
 * Hold: what the stream is given from now on waits, on the device, for every copy submitted so far, or for the
 * eager ones and those before them. The caller waits until each is in the device's queue; -ETIMEDOUT when that takes
 * longer (-1: no end). On any failure nothing is held.
 *
 * That queue is the driver's, of about a thousand entries (CUDA says no number). Copies that lie side by side are joined,
 * and many share an event (cuda_piece_size.h), so that 10 GB of large tensors take half of it. With more, as of a thousand
 * tensors that no kernel copies, a hold waits until the device has made all but those, and a follow until there is room
 * for its wait.
 */
int ckpt_device_follow(struct ckpt_device *device, uintptr_t stream, struct ckpt_error *err);
int ckpt_device_hold(struct ckpt_device *device, uintptr_t stream, enum ckpt_hold which,
	int timeout_ms, struct ckpt_error *err);
/* No copy may be under way, and nothing be pinned. NULL is ignored. */
void ckpt_device_close(struct ckpt_device *device);

/* Copies by the workers of the environment. */
int ckpt_device_host_open(struct ckpt_env *env, struct ckpt_device **ret_device);

/* What a worker does for a host copy; the simulator calls it too, when it decides. */
void ckpt_host_copy_work(struct ckpt_job *job);

/* `length` of the view's contiguous bytes from `offset`, gathered to `out` or scattered from `in`. */
void ckpt_view_gather(const struct ckpt_view *view, uint64_t offset, uint64_t length, char *out);
void ckpt_view_scatter(
	const struct ckpt_view *view, uint64_t offset, uint64_t length, const char *in);
/* The same for bytes of the array `around` that the view is a box of; see struct ckpt_segment. */
void ckpt_view_scatter_box(const struct ckpt_view *view, const int64_t *around, uint64_t offset,
	uint64_t length, const char *in);
/* Row-major without gaps: gather and scatter are one memcpy. */
bool ckpt_view_contiguous(const struct ckpt_view *view);
/* Precondition: no dimension is negative, and the size fits 64 bits. */
uint64_t ckpt_view_bytes(const struct ckpt_view *view);
/*
 * The first dimension with whose stride the elements span more than a pointer can; -1: none, and only
 * then may the functions above be called. No dimension may be negative.
 */
int ckpt_view_stray(const struct ckpt_view *view);
/*
 * Whether two elements share memory, by strides that need not be zero. Precondition: it does not stray. True as
 * well if its dimensions are so entangled that it cannot be found out.
 */
bool ckpt_view_shares(const struct ckpt_view *view);

/*
 * A hash over a few lines (64 bytes) of a segment, at places that `seed` and the segment decide: the
 * first and last line and up to two between. `staged` false: of the view, which must be memory of the CPU;
 * true: of the staged bytes. A device compares with the latter, whoever has taken the former.
 */
uint64_t ckpt_segment_sample(const struct ckpt_segment *segment, uint64_t seed, bool staged);
/* Its sample, of the view, is wanted soon: the processor may fetch the lines. */
void ckpt_segment_expect(const struct ckpt_segment *segment, uint64_t seed);

#endif
