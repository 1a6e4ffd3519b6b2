/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fake CUDA runtime share: one lock, one condition. */
#ifndef CKPT_TESTS_FAKE_INSIDE_H
#define CKPT_TESTS_FAKE_INSIDE_H

#include <pthread.h>
#include "cuda/fake_cuda.h"
#include "device/cuda_grid.h"
#include "lib/prng.h"

/*
 * What a stream takes before a call waits for room. NVIDIA's number is not documented, and of this order: the
 * conformance test asks a real one for half of it.
 */
#define FAKE_QUEUE 1024

#define EXPORT __attribute__((visibility("default")))

enum fake_op_kind {
	FAKE_OP_COPY,
	FAKE_OP_FILL,
	FAKE_OP_KERNEL,
	FAKE_OP_RECORD,
	FAKE_OP_WAIT,
	FAKE_OP_HOST
};

enum fake_kernel { FAKE_SAMPLE, FAKE_GATHER, FAKE_SCATTER, FAKE_GATHER_GRID, FAKE_SCATTER_GRID };

struct fake_op {
	struct fake_op *next;
	enum fake_op_kind kind;
	/* FAKE_OP_COPY; `host` and `device` in the direction `copy_kind`. FAKE_OP_FILL: device, byte, width. */
	int copy_kind;
	char *host;
	char *device;
	size_t host_pitch;
	size_t device_pitch;
	size_t width;
	size_t height;
	int byte;
	/* FAKE_OP_KERNEL, in the GPU's addresses. */
	enum fake_kernel kernel;
	uint32_t threads;
	uint32_t spans;
	uint64_t table;
	uint64_t samples;
	struct ckpt_cuda_grid grid;
	uint64_t first;
	uint32_t items;
	/* FAKE_OP_RECORD, FAKE_OP_WAIT: up to which record. */
	struct CUevent_st *event;
	uint64_t record;
	/* FAKE_OP_HOST */
	void (*function)(void *user);
	void *user;
};

struct CUstream_st {
	struct CUstream_st *next;
	int device;
	unsigned flags;
	uintptr_t
		number; /* CKPT_CUDA_STREAM_LEGACY, CKPT_CUDA_STREAM_PER_THREAD; 0: it was created */
	pthread_t creator; /* of the latter: whose it is */
	pthread_t thread;
	struct prng prng;
	struct fake_op *head;
	struct fake_op *tail;
	uint64_t added;
	uint64_t finished;
	bool destroyed;
	bool ending;
	int capture; /* CKPT_CUDA_CAPTURE_... */
	int capture_mode;
	pthread_t capturer;
};

struct CUevent_st {
	struct CUevent_st *next;
	int device;
	uint64_t recorded; /* calls of record */
	uint64_t done;     /* the last of them that the device has come to */
	bool destroyed;
};

struct fake_state {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct CUstream_st *streams; /* destroyed ones too, so that their use is noticed */
	struct CUevent_st *events;
	struct prng prng;
	size_t live[FAKE_KINDS];
	uint64_t notes[FAKE_NOTES];
	unsigned stopped;
	unsigned allowed; /* copies that run all the same */
	bool dead;        /* what was enqueued is not done any more */
	int death;
	int loss;           /* not 0: what was enqueued is done all the same */
	uint64_t die_after; /* copies and kernels; UINT64_MAX: never */
	uint64_t queue;     /* what a stream takes; FAKE_QUEUE, or what a test wants */
};

extern struct fake_state fake;

/* Every function of the API: takes the lock; not 0: the error that it shall return. */
int fake_enter(const char *function);
/* The same for one that waits for the device, whatever has become of it. */
int fake_enter_waiting(const char *function);
/* Under the lock: the error of all calls, or 0. */
int fake_gone(void);
/* Lets go of the lock, and keeps the error for cudaGetLastError(). Returns it. */
int fake_leave(int error);
int fake_last_error(bool clear);
/* A call that may be unsafe while a stream is captured: 0, or the error; the capture is spoilt. */
int fake_unsafe(void);
int *fake_thread_mode(void);
int *fake_current_device(void); /* the calling thread's */

/* Something that the API forbids. */
__attribute__((format(printf, 1, 2))) void fake_forbid(const char *fmt, ...);

/* Under the lock: */
struct CUstream_st *fake_stream(struct CUstream_st *stream, const char *function);
struct CUevent_st *fake_event(struct CUevent_st *event, const char *function);
/* Adds a copy of `op`; returns how many were added to the stream with it. */
uint64_t fake_add(struct CUstream_st *stream, const struct fake_op *op);
void fake_await(struct CUstream_st *stream, uint64_t added);
void fake_await_all(void);
bool fake_under_way(const char *base, size_t size);
bool fake_kernels_under_way(int device);
/* Whether the runtime has made anything for the calling thread's GPU. */
bool fake_has_context(void);
void fake_end_streams(void);

/* Device memory as the fake's own engine sees it; NULL: not all of it is device memory. */
char *fake_shadow(const void *device, size_t size);
bool fake_touches_device(const void *host, size_t size);
bool fake_is_pinned(const void *host, size_t size);
/* Pinned memory by the address that the GPU has it under, which is not the host's; NULL: that is none. */
char *fake_mapped(uint64_t device, size_t size);
void fake_limit_pinned(size_t bytes);
void fake_forget_memory(void);

void fake_run_kernel(const struct fake_op *op);
/* Host memory that it reads or writes is there. */
bool fake_kernel_uses(const struct fake_op *op, const char *base, size_t size);
void fake_forget_modules(void);

#endif
