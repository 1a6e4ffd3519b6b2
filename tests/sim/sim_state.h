/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated training has in memory: some tensors, every byte of which follows from a version
 * number, so that the oracle need not keep any.
 */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <ckpt/restore.h>
#include "sim.h"

#define SIM_TENSORS_MAX   10
#define SIM_SHAPES        2
/* Of a slow state: versions that are multiples of this follow each other, and others have nothing in common with them. */
#define SIM_SLOW_VERSIONS UINT64_C(8)

struct sim_tensor {
	char name[32];
	uint32_t dtype;
	uint32_t item;
	uint32_t ndim;
	bool eager;
	bool gpu; /* in the memory of a GPU */
	int64_t shape[2];
	int64_t strides[2]; /* in elements; rows may have a gap behind them */
	uint64_t bytes;     /* of its contents */
	uint64_t room;      /* of its memory */
};

/* The shapes that a run's state may have. */
struct sim_shape {
	size_t count;
	struct sim_tensor tensors[SIM_TENSORS_MAX];
	bool slow; /* from one version to the next an eighth of each state changes, in lines of 64 bytes */
};

struct sim_state {
	const struct sim_shape *shape;
	uint64_t version;
	char *memory[SIM_TENSORS_MAX];
};

/* Which tensors of a state. */
#define SIM_PART_HOST  1u
#define SIM_PART_GPU   2u /* those that are not eager */
#define SIM_PART_EAGER 4u /* of the GPU */
#define SIM_PARTS_GPU  (SIM_PART_GPU | SIM_PART_EAGER)

void sim_shapes_pick(struct sim *sim, struct sim_shape shapes[SIM_SHAPES]);
/* Puts some of the tensors of some of all shapes on a GPU, as the number says. */
void sim_shapes_place(struct sim_shape shapes[SIM_SHAPES], uint64_t number);
bool sim_shape_on_gpu(const struct sim_shape *shape);

void sim_state_init(struct sim_state *state, const struct sim_shape *shape);
void sim_state_free(struct sim_state *state);
/* Every byte of the tensors of these parts; and of all tensors. */
void sim_state_fill_parts(struct sim_state *state, unsigned parts, uint64_t version);
void sim_state_fill(struct sim_state *state, uint64_t version);
/* Overwritten, so that nothing of it can be mistaken for what was restored. */
void sim_state_poison(struct sim_state *state);
/* The first tensor that is not what `version` says; NULL: all is right. */
const char *sim_state_check(const struct sim_state *state, uint64_t version);
/* `length` bytes of a tensor's contents from `offset` are what `version` says. */
bool sim_state_check_range(const struct sim_shape *shape, size_t tensor, uint64_t version,
	uint64_t offset, uint64_t length, const char *bytes);

/* For a save, and for a restore of all of it. */
void sim_state_tensors(const struct sim_state *state, struct ckpt_tensor *ret_tensors);
void sim_state_targets(const struct sim_state *state, struct ckpt_target *ret_targets);

#endif
