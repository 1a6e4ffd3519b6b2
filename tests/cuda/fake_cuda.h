/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA runtime without a GPU, for tests: libcudart.so.12 and .13 with the functions that libckpt uses and some that
 * tests need, and a libcuda.so.1 beside them. Device memory is memory that the host cannot touch; streams are threads that a seed delays. What the
 * API forbids ends the process with a sentence. This is how a test controls it.
 */
#ifndef CKPT_TESTS_FAKE_CUDA_H
#define CKPT_TESTS_FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda_api.h"

enum fake_work { FAKE_COPIES = 1, FAKE_KERNELS = 2 };
enum fake_kind { FAKE_STREAMS, FAKE_EVENTS, FAKE_PINNED, FAKE_MEMORY, FAKE_MODULES, FAKE_KINDS };
/* Allowed, but hardly ever meant. */
enum fake_note {
	FAKE_UNPINNED, /* an asynchronous copy of host memory that is not pinned: its caller waited */
	FAKE_UNRECORDED, /* a wait for an event that was not recorded: nobody waited */
	FAKE_FULL,       /* a call that waited for room in a stream's queue */
	FAKE_NOTES
};

struct fake_cuda {
	/* Everything anew. No call may be under way. */
	void (*reset)(uint64_t seed);
	size_t (*live)(enum fake_kind kind);
	uint64_t (*notes)(enum fake_note note);
	/* Calls of a function; NULL: of all. */
	uint64_t (*calls)(const char *function);

	/* Device memory, at once. */
	void (*peek)(const void *device, void *out, size_t size);
	void (*poke)(void *device, const void *in, size_t size);
	/* A kernel: sets bytes. */
	int (*fill)(void *device, int byte, size_t size, struct CUstream_st *stream);

	/* Such work of all streams stands still until it is 0 again. */
	void (*stop)(unsigned work);
	/* So many copies run while copies are stopped. */
	void (*allow)(unsigned copies);
	/* Calls of the function do not go on until it is NULL again. */
	void (*block)(const char *function);
	/* Returns when one stands there. */
	void (*await_blocked)(void);
	/*
	 * The nth call of the function from now fails too. NULL: none. What destroys does so all the same, but for
	 * cudaHostUnregister().
	 */
	void (*fail_call)(const char *function, unsigned nth, int error);
	bool (*failed)(void); /* it has come to all of that */
	/* The device is gone after so many more copies and kernels: every call fails. */
	void (*die)(unsigned work, int error);
	/* Every call fails, but what was enqueued goes on, and what waits for it returns afterwards. */
	void (*lose)(int error);
	void (*limit_pinned)(size_t bytes);
	/* What a stream takes before a call waits for room: 1,024 entries, unless a test says another number. */
	void (*limit_queue)(unsigned entries);

	/* From now on every call is a mistake: the process ends. */
	void (*end)(void);
	/* What the API forbids is remembered instead of ending the process. */
	void (*forgive)(bool yes);
	const char *(*forbidden)(void); /* the last such thing, or "" */
};

/* Exported: the one symbol that NVIDIA's does not have. */
const struct fake_cuda *fake_cuda_control(void);

#endif
