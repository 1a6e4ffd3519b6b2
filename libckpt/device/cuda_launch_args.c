/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_launch_args.h"

#include "base/alloc.h"

/* Registration works on pages, which must contain nothing else. */
#define PAGE ((size_t)4096)

/* Growing means pinning again. */
#define SPANS_MIN ((size_t)512)
#define GRIDS_MIN ((size_t)64)

void ckpt_cuda_launch_args_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_launch_args *t)
{
	ckpt_cuda_host_register_free(api, &t->pin);
	ckpt_free(t->memory);
	*t = (struct ckpt_cuda_launch_args){.memory = NULL};
}

static size_t pages_of(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

int ckpt_cuda_launch_args_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_launch_args *t,
	size_t spans, size_t grids, const char **ret_what)
{
	size_t room = ckpt_max_u64(ckpt_max_u64(spans + spans / 2, SPANS_MIN), t->room);
	size_t grid_room = ckpt_max_u64(ckpt_max_u64(grids + grids / 2, GRIDS_MIN), t->grid_room);
	size_t table = pages_of(room * sizeof(*t->spans));
	size_t samples = pages_of(room * sizeof(*t->samples));
	size_t size = table + samples + pages_of(grid_room * sizeof(*t->grids));
	char *base;
	int e;

	CKPT_ASSERT(spans <= INT32_MAX && grids <= spans);
	t->count = 0;
	t->grid_count = 0;
	if (spans <= t->room && grids <= t->grid_room)
		return CKPT_CUDA_SUCCESS;
	ckpt_cuda_launch_args_free(api, t);
	*ret_what = "out of memory for the table of a kernel launch";
	t->memory = ckpt_alloc(size + PAGE);
	if (!t->memory)
		return CKPT_CUDA_MEMORY_ALLOCATION;
	base = (char *)t->memory + (PAGE - (uintptr_t)t->memory % PAGE) % PAGE;
	*ret_what = "cannot pin the table of a kernel launch: cudaHostRegister";
	e = ckpt_cuda_host_register_add(api, &t->pin, base, size);
	if (e == CKPT_CUDA_SUCCESS && !t->pin->seen) {
		e = CKPT_CUDA_INVALID_VALUE;
		*ret_what = "cannot map the table of a kernel launch: cudaHostGetDevicePointer";
	}
	if (e != CKPT_CUDA_SUCCESS) {
		ckpt_cuda_launch_args_free(api, t);
		return e;
	}
	t->spans = (void *)base;
	t->samples = (void *)(base + table);
	t->seen_spans = t->pin->seen;
	t->grids = (void *)(base + table + samples);
	t->seen_samples = t->pin->seen + table;
	t->seen_grids = t->seen_samples + samples;
	t->room = (uint32_t)room;
	t->grid_room = (uint32_t)grid_room;
	return CKPT_CUDA_SUCCESS;
}

void ckpt_cuda_launch_args_add(struct ckpt_cuda_launch_args *t, const struct ckpt_cuda_span *span)
{
	CKPT_ASSERT(t->count < t->room);
	t->spans[t->count++] = *span;
}

void ckpt_cuda_launch_args_add_grid(struct ckpt_cuda_launch_args *t, struct ckpt_cuda_span *span,
	const struct ckpt_cuda_grid *grid)
{
	CKPT_ASSERT(t->grid_count < t->grid_room);
	t->grids[t->grid_count] = *grid;
	span->grid = t->seen_grids + t->grid_count++ * sizeof(*grid);
	ckpt_cuda_launch_args_add(t, span);
}
