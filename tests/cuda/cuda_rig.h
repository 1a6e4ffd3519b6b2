/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime, the fake one unless it is asked for the real one, and a device of the library on it. */
#ifndef CKPT_TESTS_CUDA_RIG_H
#define CKPT_TESTS_CUDA_RIG_H

#include "cuda/fake_cuda.h"
#include "device/device_cuda.h"
#include "lib/test.h"

/* What tests need of the runtime and the library does not. */
struct cuda_extras {
	int (*launch_host_func)(
		struct CUstream_st *stream, void (*function)(void *user), void *user);
	int (*begin_capture)(struct CUstream_st *stream, int mode);
	int (*end_capture)(struct CUstream_st *stream, void **graph);
	int (*graph_destroy)(void *graph);
};

struct cuda_rig {
	struct ckpt_inbox inbox;
	struct ckpt_env env;
	struct ckpt_cuda_api api;
	struct cuda_extras extra;
	const struct fake_cuda *fake; /* NULL: the runtime is a real one */
	struct ckpt_device *device;   /* NULL until it is opened */
	struct ckpt_error err;
	unsigned done;           /* copies that came back */
	_Atomic uint64_t now_ns; /* the environment's clock, which stands unless a test moves it */
};

/* One for the process, on the fake runtime of CUDA 12, or 13 if `CKPT_TEST_CUDA` is 13. */
struct cuda_rig *cuda_rig_fake(void);
/* On a real one; NULL: there is none. */
struct cuda_rig *cuda_rig_real(void);

void cuda_rig_open(struct cuda_rig *rig);
/* Closes the device and sees that nothing of it is left in the fake. */
void cuda_rig_close(struct cuda_rig *rig);

/* A copy of one segment each, whose node counts in rig->done. */
void cuda_rig_copy(struct cuda_rig *rig, struct ckpt_copy *copy, enum ckpt_copy_direction direction,
	struct ckpt_segment *segments, size_t count);
/* Runs what comes through the inbox until so many copies are back. */
void cuda_rig_await(struct cuda_rig *rig, unsigned done);

/* Pages, as staging has them. */
char *cuda_rig_pages(size_t size);
void cuda_rig_pages_free(char *pages, size_t size);
void *cuda_rig_device_memory(struct cuda_rig *rig, size_t size);

/* A gate in a stream: what is behind it waits until it is opened. */
struct cuda_gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	bool open;
};
void cuda_gate_add(struct cuda_rig *rig, struct cuda_gate *gate, struct CUstream_st *stream);
void cuda_gate_open(struct cuda_gate *gate);

#define assert_cuda(call) assert_int_equal((call), CKPT_CUDA_SUCCESS)

#endif
