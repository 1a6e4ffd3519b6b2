/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors whose bytes follow from a number. */
#include "sim_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	uint32_t dtype;
	uint32_t item;
} types[] = {{CKPT_F32, 4}, {CKPT_BF16, 2}, {CKPT_U8, 1}, {CKPT_I64, 8}, {CKPT_F64, 8},
	{CKPT_C128, 16}, {CKPT_BOOL, 1}};

static void shape_tensor(struct sim *sim, struct sim_tensor *t, size_t number)
{
	size_t type = sim_below(sim, CKPT_COUNT(types));
	uint64_t bytes = sim_chance(sim, 2500)   ? sim_between(sim, 4096, 12288)
			 : sim_chance(sim, 1000) ? 0
						 : sim_between(sim, 1, 1500);

	(void)snprintf(t->name, sizeof(t->name), "layer.%zu.%s", number,
		sim_chance(sim, 5000) ? "weight" : "exp_avg");
	t->dtype = types[type].dtype;
	t->item = types[type].item;
	t->ndim = 2;
	t->shape[1] = (int64_t)sim_between(sim, 1, 64);
	t->shape[0] = (int64_t)(bytes / t->item) / t->shape[1];
	t->strides[1] = 1;
	t->strides[0] = t->shape[1] + (sim_chance(sim, 3000) ? (int64_t)sim_below(sim, 5) : 0);
	t->eager = sim_chance(sim, 2000);
	t->bytes = (uint64_t)(t->shape[0] * t->shape[1]) * t->item;
	t->room = (uint64_t)(t->shape[0] * t->strides[0]) * t->item;
}

void sim_shapes_pick(struct sim *sim, struct sim_shape shapes[SIM_SHAPES])
{
	shapes[0] = (struct sim_shape){.count = (size_t)sim_between(sim, 1, SIM_TENSORS_MAX)};
	for (size_t i = 0; i < shapes[0].count; i++)
		shape_tensor(sim, &shapes[0].tensors[i], i);
	/* The other one differs in a tensor or two. */
	shapes[1] = shapes[0];
	for (size_t i = sim_below(sim, shapes[1].count); i < shapes[1].count; i += 4)
		shape_tensor(sim, &shapes[1].tensors[i], i);
}

void sim_shapes_place(struct sim_shape shapes[SIM_SHAPES], uint64_t number)
{
	if (number % 3 != 0)
		return;
	for (size_t i = 0; i < SIM_SHAPES; i++) {
		number = sim_mix64(number);
		/* All of it, some of it, and of one shape perhaps nothing. */
		uint64_t share = number % 4 == 0 ? 10 : i > 0 && number % 4 == 1 ? 0 : 6;
		for (size_t k = 0; k < shapes[i].count; k++) {
			number = sim_mix64(number);
			shapes[i].tensors[k].gpu = number % 10 < share;
		}
	}
}

bool sim_shape_on_gpu(const struct sim_shape *shape)
{
	for (size_t i = 0; i < shape->count; i++)
		if (shape->tensors[i].gpu)
			return true;
	return false;
}

void sim_state_init(struct sim_state *state, const struct sim_shape *shape)
{
	*state = (struct sim_state){.shape = shape};
	for (size_t i = 0; i < shape->count; i++)
		state->memory[i] = sim_alloc(shape->tensors[i].room);
}

void sim_state_free(struct sim_state *state)
{
	for (size_t i = 0; i < SIM_TENSORS_MAX; i++)
		free(state->memory[i]);
	*state = (struct sim_state){0};
}

/* The version in which these eight bytes were last changed. */
static uint64_t changed(uint64_t version, size_t tensor, uint64_t number)
{
	uint64_t line = sim_mix64((tensor << 40) + number / 8) % 8;

	return version % SIM_SLOW_VERSIONS ? version : (version / SIM_SLOW_VERSIONS + line) / 8;
}

/* Eight bytes of a tensor's contents. */
static uint64_t word(
	const struct sim_shape *shape, uint64_t version, size_t tensor, uint64_t number)
{
	if (shape->slow)
		version = changed(version, tensor, number);
	return sim_mix64(version * UINT64_C(0x9e3779b97f4a7c15) + (tensor << 40) + number);
}

static void contents(const struct sim_shape *shape, uint64_t version, size_t tensor,
	uint64_t offset, uint64_t length, char *out)
{
	uint64_t end = offset + length;

	for (uint64_t at = offset; at < end;) {
		uint64_t value = word(shape, version, tensor, at / 8);
		uint64_t skip = at % 8;
		uint64_t n = ckpt_min_u64(8 - skip, end - at);
		if (n == 8)
			memcpy(out, &value, 8);
		else
			memcpy(out, (const char *)&value + skip, n);
		out += n;
		at += n;
	}
}

static unsigned part_of(const struct sim_tensor *t)
{
	if (!t->gpu)
		return SIM_PART_HOST;
	return t->eager ? SIM_PART_EAGER : SIM_PART_GPU;
}

void sim_state_fill_parts(struct sim_state *state, unsigned parts, uint64_t version)
{
	for (size_t i = 0; i < state->shape->count; i++) {
		const struct sim_tensor *t = &state->shape->tensors[i];
		if (!(parts & part_of(t)))
			continue;
		uint64_t row = (uint64_t)t->shape[1] * t->item;
		uint64_t pitch = (uint64_t)t->strides[0] * t->item;
		for (uint64_t r = 0; r < (uint64_t)t->shape[0]; r++)
			contents(state->shape, version, i, r * row, row,
				state->memory[i] + r * pitch);
	}
}

void sim_state_fill(struct sim_state *state, uint64_t version)
{
	state->version = version;
	sim_state_fill_parts(state, SIM_PART_HOST | SIM_PARTS_GPU, version);
}

void sim_state_poison(struct sim_state *state)
{
	state->version = 0;
	for (size_t i = 0; i < state->shape->count; i++)
		memset(state->memory[i], 0xab, state->shape->tensors[i].room);
}

bool sim_state_check_range(const struct sim_shape *shape, size_t tensor, uint64_t version,
	uint64_t offset, uint64_t length, const char *bytes)
{
	char *right = sim_alloc(length);

	CKPT_ASSERT(tensor < shape->count);
	contents(shape, version, tensor, offset, length, right);
	bool same = memcmp(right, bytes, length) == 0;
	free(right);
	return same;
}

const char *sim_state_check(const struct sim_state *state, uint64_t version)
{
	for (size_t i = 0; i < state->shape->count; i++) {
		const struct sim_tensor *t = &state->shape->tensors[i];
		uint64_t row = (uint64_t)t->shape[1] * t->item;
		uint64_t pitch = (uint64_t)t->strides[0] * t->item;
		for (uint64_t r = 0; r < (uint64_t)t->shape[0]; r++)
			if (!sim_state_check_range(state->shape, i, version, r * row, row,
				    state->memory[i] + r * pitch))
				return t->name;
	}
	return NULL;
}

void sim_state_tensors(const struct sim_state *state, struct ckpt_tensor *ret_tensors)
{
	for (size_t i = 0; i < state->shape->count; i++) {
		const struct sim_tensor *t = &state->shape->tensors[i];
		ret_tensors[i] = (struct ckpt_tensor){.size = sizeof(*ret_tensors),
			.flags = t->eager ? CKPT_TENSOR_EAGER : 0,
			.device = t->gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST,
			.name = t->name,
			.dtype = t->dtype,
			.ndim = t->ndim,
			.shape = t->shape,
			.strides = t->strides,
			.data = state->memory[i]};
	}
}

void sim_state_targets(const struct sim_state *state, struct ckpt_target *ret_targets)
{
	for (size_t i = 0; i < state->shape->count; i++) {
		const struct sim_tensor *t = &state->shape->tensors[i];
		ret_targets[i] = (struct ckpt_target){.size = sizeof(*ret_targets),
			.device = t->gpu ? CKPT_DEVICE_CUDA : CKPT_DEVICE_HOST,
			.dtype = t->dtype,
			.name = t->name,
			.data = state->memory[i],
			.ndim = t->ndim,
			.shape = t->shape,
			.strides = t->strides};
	}
}
