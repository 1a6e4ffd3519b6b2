/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device and its two threads. Only the feeder enqueues copies, and only the waiter waits for events. A copy
 * passes from the submitter to the feeder, the waiter and the core, through queues under `lock`, and has one owner at a
 * time. No CUDA function is called under `lock`.
 */
#ifndef CKPT_DEVICE_CUDA_STATE_H
#define CKPT_DEVICE_CUDA_STATE_H

#include <errno.h>
#include <pthread.h>
#include "base/error.h"
#include "device/cuda_api.h"
#include "device/cuda_copy_plan.h"
#include "device/cuda_driver.h"
#include "device/cuda_launch_args.h"
#include "device/cuda_piece_size.h"
#include "device/cuda_relay.h"
#include "device/device.h"

/*
 * An enqueued copy. In a group, the event of the last one is for all. Reused: there are as many as were ever in flight
 * at once.
 */
struct ckpt_cuda_flight {
	struct ckpt_cuda_flight *next;
	struct ckpt_copy *copy;
	struct CUevent_st *event;
	struct ckpt_cuda_launch_args table; /* arguments of the copy's kernel */
	bool ends;        /* last of its group, and the following fields are set: */
	bool recorded;    /* the event is recorded; else the stream is waited for */
	unsigned entries; /* of the stream */
	uint64_t bytes;   /* see struct ckpt_cuda_done */
};

/* Copies that go into the stream together and share an event. See cuda_batch.h. */
struct ckpt_cuda_batch {
	struct ckpt_cuda_flight *first; /* linked by next, in the order of submission; NULL: none */
	struct ckpt_cuda_flight *last;
	uint64_t piece_max;
	/* The last piece, not enqueued yet: the next one may extend it on both sides. */
	struct ckpt_cuda_piece piece;  /* height 0: none */
	const char *tensor;            /* its tensor: no copy crosses the end of an allocation */
	struct ckpt_cuda_flight *from; /* first copy with bytes in it */
	struct ckpt_cuda_flight *to;   /* last copy with bytes in it */
	unsigned entries;              /* enqueued entries of the stream */
	unsigned runs;                 /* those that are one run */
	uint64_t bytes;                /* bytes of those */
};

/* A registration that a caller waits for. On the feeder, because a user's thread may have another GPU current. */
struct ckpt_cuda_errand {
	struct ckpt_cuda_errand *next;
	bool pin; /* else unpin */
	void *base;
	size_t size;
	struct ckpt_error *err;
	int result;
	bool done; /* guarded by lock */
};

struct ckpt_cuda_device {
	struct ckpt_device device;
	struct ckpt_cuda_api api;
	int index;
	unsigned forks; /* ckpt_fork_count() when it was opened */

	/* Created by the feeder before open returns, and destroyed by it when the waiter has ended. */
	struct CUstream_st *stream;
	struct CUevent_st *followed; /* recorded on a user's stream */
	struct CUevent_st *held;     /* recorded on ours */
	struct CUevent_st *eager;    /* recorded on ours, after the last eager copy */
	struct ckpt_cuda_kernels kernels;
	struct ckpt_cuda_pin *pinned; /* memory that users have had pinned */
	struct ckpt_cuda_relay relay;
	struct ckpt_cuda_batch group;
	pthread_t feeder;
	pthread_t waiter;
	/* Held to record one of these two and have a stream wait for it. */
	pthread_mutex_t user;

	pthread_mutex_t lock;
	pthread_cond_t to_feed; /* the feeder waits: copies, errands, closing */
	pthread_cond_t to_wait; /* the waiter waits: flights, closing */
	pthread_cond_t went_on; /* users wait: fed, errands, ready */
	/* Linked by job.next, oldest first; all below is guarded by lock. */
	struct ckpt_copy *copies;
	struct ckpt_copy *copies_last;
	struct ckpt_cuda_errand *errands;
	struct ckpt_cuda_flight *flights;
	struct ckpt_cuda_flight *flights_last;
	struct ckpt_cuda_flight *spare;
	uint64_t submitted;       /* number of copies */
	uint64_t submitted_eager; /* number up to the last eager one; 0: none */
	uint64_t fed;             /* of them completely enqueued with their event, or failed */
	uint64_t returned;        /* of them returned */
	uint64_t queued;          /* entries of the stream that may not be done */
	struct ckpt_cuda_piece_size pace;
	unsigned pins;
	unsigned ready; /* threads that are set up, or have failed to be */
	int start_result;
	struct ckpt_error start_error;
	bool closing;
	bool fed_all; /* the feeder takes no more copies */
	bool lost;
	char lost_text[256];
};

/* Whether it moves nothing, and leaves samples in its table. */
static inline bool ckpt_cuda_looks(const struct ckpt_copy *copy)
{
	return copy->direction == CKPT_COPY_SAMPLE || copy->direction == CKPT_COPY_COMPARE;
}

/* 0, or -ECANCELED: nothing more of it may be enqueued. Checked before each call that enqueues. */
static inline int ckpt_cuda_fail_stopped(const struct ckpt_copy *copy, struct ckpt_error *err)
{
	if (!copy->stop || !atomic_load(copy->stop))
		return 0;
	return ckpt_fail(err, -ECANCELED, "stopped before it was enqueued");
}

/* Whether it looks at this segment. */
static inline bool ckpt_cuda_looks_at(
	const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return segment->view.device == copy->device &&
	       (copy->direction == CKPT_COPY_SAMPLE || !segment->eager);
}

/* The threads' bodies. Both set themselves up and increment `ready`. */
void *ckpt_cuda_submit(void *argument);
void *ckpt_cuda_wait(void *argument);

/*
 * Sets CKPT_EDEVICE for an error of CUDA. `what`: the failed function. Clears the runtime's last error, which the next
 * caller would take for its own.
 */
int ckpt_cuda_fail(struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what);
/* The same on one of the device's threads; also checks whether the device is lost. */
int ckpt_cuda_fail_asking(
	struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what);
/*
 * Feeder: enqueues all of a copy's segments that are the device's. After a failure, what was enqueued still moves.
 * `table`: used by this copy alone until that is done.
 */
int ckpt_cuda_submit_segments(
	struct ckpt_cuda_device *d, struct ckpt_copy *copy, struct ckpt_cuda_launch_args *table);
/* Whether a segment can be copied from staging at all, see ckpt_device_takes(). */
int ckpt_cuda_takes(const struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	struct ckpt_error *err);
/* An error if the device is lost; else 0. */
int ckpt_cuda_fail_lost(struct ckpt_cuda_device *d, struct ckpt_error *err);

#endif
