/* SPDX-License-Identifier: Apache-2.0 */
/* A CUDA runtime without a GPU (tests/cuda), and a state with tensors on its GPU and on the CPU, which share blocks. */
#ifndef CKPT_TESTS_CUDA_KIT_H
#define CKPT_TESTS_CUDA_KIT_H

#include "api/kit.h"

#include <stdbool.h>

#include "cuda/fake_cuda.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Of one tensor; a few blocks of 256 KiB. */
#define CUDA_LARGE 700001
#define CUDA_SMALL 33

extern const struct fake_cuda *fake;
extern struct cuda_calls {
	int (*malloc)(void **device, size_t size);
	int (*free)(void *device);
	int (*set_device)(int device);
	int (*stream_create)(struct CUstream_st **stream, unsigned flags, int priority);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*stream_synchronize)(struct CUstream_st *stream);
	int (*begin_capture)(struct CUstream_st *stream, int mode);
	int (*end_capture)(struct CUstream_st *stream, void **graph);
	int (*graph_destroy)(void *graph);
} cuda;

struct cuda_part {
	const char *name;
	int64_t bytes;
	bool gpu;
	char *data; /* where it is */
	char *seen; /* memory of the CPU, as large */
};

struct cuda_world {
	char *dir;
	struct ckpt_engine *engine;
	struct ckpt_engine *second; /* of a test; the teardown closes it if the test has not */
	struct CUstream_st *compute;
	bool unpinned; /* no memory can be */
	struct cuda_part parts[6];
};

/* Loads the runtime of the version that CKPT_TEST_CUDA says, as PyTorch does; fills `fake` and `cuda`. */
void cuda_kit_load(void);

/* For cmocka. Whatever has happened, in the end nothing of the engine's is left in the runtime. */
int cuda_kit_setup(void **state);
int cuda_kit_teardown(void **state);

void cuda_kit_fill(struct cuda_part *part, unsigned seed);
struct ckpt_stream cuda_kit_stream(const struct cuda_world *w);
/* Not started. `eager`: that tensor is. */
struct ckpt_save *cuda_kit_begin(
	struct cuda_world *w, uint64_t step, bool streams, const char *eager);
/* Waits until it is durable, and frees it. */
int cuda_kit_finish(struct ckpt_save *save);
/* Saves with the stream, from begin to end. */
int cuda_kit_save(struct cuda_world *w, uint64_t step);
/* What the step holds, into memory of the CPU, is what `seen` is. */
void cuda_kit_check(struct cuda_world *w, uint64_t step);
/* The step goes to where the tensors are, which hold something else by now. */
int cuda_kit_restore(struct cuda_world *w, uint64_t step);
void cuda_kit_check_back(const struct cuda_world *w);

#endif
