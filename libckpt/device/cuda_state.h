/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA device and its two threads. The feeder alone hands copies to the stream, the waiter alone waits for
 * events; a copy goes from the submitter to the feeder to the waiter to the core, through queues under `lock`, and is
 * nobody else's meanwhile. No function of CUDA is called under `lock`.
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
 * A copy behind the feeder. Of a group the last one's event is for all. Kept and used again: as many as were ever under
 * way at once.
 */
struct ckpt_cuda_flight {
	struct ckpt_cuda_flight *next;
	struct ckpt_copy *copy;
	struct CUevent_st *event;
	struct ckpt_cuda_launch_args table; /* what the copy's kernel was given */
	bool ends;        /* it is the last of its group, and these are of the group: */
	bool recorded;    /* the event is; else the stream is waited for */
	unsigned entries; /* in the stream */
	uint64_t bytes;   /* see struct ckpt_cuda_done */
};

/* Copies that go into the stream together and share an event. See cuda_batch.h. */
struct ckpt_cuda_batch {
	struct ckpt_cuda_flight
		*first; /* by next, in the order of submission; NULL: there is none */
	struct ckpt_cuda_flight *last;
	uint64_t piece_max;
	/* The last piece, which is not in the stream yet: the next one may follow it on both sides. */
	struct ckpt_cuda_piece piece;  /* height 0: there is none */
	const char *tensor;            /* it is of: no copy goes over the end of an allocation */
	struct ckpt_cuda_flight *from; /* it has bytes of this copy, and on */
	struct ckpt_cuda_flight *to;   /* to this one */
	unsigned entries;              /* given to the stream */
	unsigned runs;                 /* of them, pieces that are one run, */
	uint64_t bytes;                /* and theirs */
};

/* Registration, which a caller waits for. On the feeder: on a user's thread it might be of another GPU. */
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

	/* Made by the feeder before open returns, destroyed by it when the waiter has ended. */
	struct CUstream_st *stream;
	struct CUevent_st *followed; /* recorded on a user's stream */
	struct CUevent_st *held;     /* recorded on ours */
	struct CUevent_st *eager;    /* recorded on ours, behind the last eager copy */
	struct ckpt_cuda_kernels kernels;
	struct ckpt_cuda_pin *pinned; /* what users have had pinned */
	struct ckpt_cuda_relay relay;
	struct ckpt_cuda_batch group;
	pthread_t feeder;
	pthread_t waiter;
	/* Whoever records one of these two and has a stream wait for it. */
	pthread_mutex_t user;

	pthread_mutex_t lock;
	pthread_cond_t to_feed;   /* the feeder waits: copies, errands, closing */
	pthread_cond_t to_wait;   /* the waiter waits: flights, closing */
	pthread_cond_t went_on;   /* users wait: fed, errands, ready */
	struct ckpt_copy *copies; /* by job.next, oldest first; all below is guarded by lock */
	struct ckpt_copy *copies_last;
	struct ckpt_cuda_errand *errands;
	struct ckpt_cuda_flight *flights;
	struct ckpt_cuda_flight *flights_last;
	struct ckpt_cuda_flight *spare;
	uint64_t submitted;       /* copies */
	uint64_t submitted_eager; /* up to the last eager one; 0: there was none */
	uint64_t fed;      /* of them: all of it is in the stream and recorded, or it has failed */
	uint64_t returned; /* of them: given back */
	uint64_t queued;   /* entries of the stream that are not known to be done */
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

/* It moves nothing, and leaves samples in its table. */
static inline bool ckpt_cuda_looks(const struct ckpt_copy *copy)
{
	return copy->direction == CKPT_COPY_SAMPLE || copy->direction == CKPT_COPY_COMPARE;
}

/* 0, or -ECANCELED: nothing of it may be enqueued any more. Asked before each call that does. */
static inline int ckpt_cuda_fail_stopped(const struct ckpt_copy *copy, struct ckpt_error *err)
{
	if (!copy->stop || !atomic_load(copy->stop))
		return 0;
	return ckpt_fail(err, -ECANCELED, "stopped before it was enqueued");
}

/* Of which segments. */
static inline bool ckpt_cuda_looks_at(
	const struct ckpt_copy *copy, const struct ckpt_segment *segment)
{
	return segment->view.device == copy->device &&
	       (copy->direction == CKPT_COPY_SAMPLE || !segment->eager);
}

/* Their bodies. Both set themselves up and count themselves `ready`. */
void *ckpt_cuda_submit(void *argument);
void *ckpt_cuda_wait(void *argument);

/* Words an error of CUDA, as CKPT_EDEVICE. `what`: the function. Clears what the next caller would take for his. */
int ckpt_cuda_fail(struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what);
/* The same on one of the device's threads, which asks whether the device is lost with it. */
int ckpt_cuda_fail_asking(
	struct ckpt_cuda_device *d, struct ckpt_error *err, int error, const char *what);
/*
 * The feeder's: all of a copy's segments that are the device's, into the stream. What of them was enqueued before a
 * failure moves all the same. `table`: of the copy alone, until what was enqueued is done.
 */
int ckpt_cuda_submit_segments(
	struct ckpt_cuda_device *d, struct ckpt_copy *copy, struct ckpt_cuda_launch_args *table);
/* Whether a segment can be copied from staging at all, see ckpt_device_takes(). */
int ckpt_cuda_takes(const struct ckpt_cuda_device *d, const struct ckpt_segment *segment,
	struct ckpt_error *err);
/* An error if the device is lost; else 0. */
int ckpt_cuda_fail_lost(struct ckpt_cuda_device *d, struct ckpt_error *err);

#endif
