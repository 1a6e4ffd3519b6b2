/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GPU: two streams of work that each go in order and late, at moments that the scheduler picks. The engine's has
 * its copies; the user's has kernels, which write tensors. Memory is read and written only when work is done.
 */
#ifndef SIM_GPU_H
#define SIM_GPU_H

#include "device/device.h"
#include "sim_env.h"
#include "sim_state.h"

/* As views name it, and as users do. */
#define SIM_GPU_NUMBER 1
#define SIM_GPU_INDEX  0
/* The user's stream. */
#define SIM_GPU_STREAM 0x51u

struct sim_gpu {
	struct ckpt_device device;
	struct sim_env *env;
	struct sim_gpu_work *copies; /* oldest first */
	struct sim_gpu_work *kernels;
	uint64_t copies_given;
	uint64_t copies_done;
	uint64_t kernels_given;
	uint64_t kernels_done;
	uint64_t eager;    /* copies up to the last eager one */
	uint64_t followed; /* kernels that come before every copy from now on */
	uint64_t held;     /* copies that come before every kernel from now on */
	uint64_t still_ns; /* stands still until then */
};

void sim_gpu_init(struct sim_gpu *gpu, struct sim_env *env);

/*
 * A kernel that computes the tensors of `parts` (see sim_state_fill_parts()) of that version. The state stays what
 * it is until the kernel is done.
 */
void sim_gpu_launch(struct sim_gpu *gpu, struct sim_state *state, unsigned parts, uint64_t version);
/* All kernels are done. */
bool sim_gpu_computed(const struct sim_gpu *gpu);
/* Nothing of the engine's is with it. */
bool sim_gpu_copied(const struct sim_gpu *gpu);
/* How long it stands still from now on. */
uint64_t sim_gpu_rests_ns(const struct sim_gpu *gpu);

/* Streams that could do their next work now, and when one could; UINT64_MAX: there is none. */
unsigned sim_gpu_ready(const struct sim_gpu *gpu);
uint64_t sim_gpu_next(const struct sim_gpu *gpu);
/* The n-th of them does it. */
void sim_gpu_finish(struct sim_gpu *gpu, unsigned n);
/* Forgets all work: the process is dead. */
void sim_gpu_die(struct sim_gpu *gpu);

#endif
