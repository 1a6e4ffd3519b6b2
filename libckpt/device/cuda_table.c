/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_table.h"

#include "base/alloc.h"

/* Registration goes by pages; nobody else's may be in ours. */
#define PAGE ((size_t)4096)

/* To grow means to pin anew. */
#define SPANS_MIN ((size_t)512)

void ckpt_cuda_table_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_table *t)
{
	/* A failure concerns nobody: the device is lost, or closes. */
	if (t->pin && ckpt_cuda_pins_remove(api, &t->pin, t->pin->base) != CKPT_CUDA_SUCCESS)
		(void)api->get_last_error();
	ckpt_free(t->memory);
	*t = (struct ckpt_cuda_table){.memory = NULL};
}

static size_t pages_of(size_t bytes)
{
	return (bytes + PAGE - 1) / PAGE * PAGE;
}

int ckpt_cuda_table_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_table *t,
	size_t spans, const char **ret_what)
{
	size_t room = spans < SPANS_MIN ? SPANS_MIN : spans + spans / 2;
	size_t table = pages_of(room * sizeof(*t->spans));
	size_t size = table + pages_of(room * sizeof(*t->samples));
	char *base;
	int e;

	CKPT_ASSERT(spans <= INT32_MAX);
	t->count = 0;
	if (spans <= t->room)
		return CKPT_CUDA_SUCCESS;
	ckpt_cuda_table_free(api, t);
	*ret_what = "no memory for the table of a launch";
	t->memory = ckpt_alloc(size + PAGE);
	if (!t->memory)
		return CKPT_CUDA_MEMORY_ALLOCATION;
	base = (char *)t->memory + (PAGE - (uintptr_t)t->memory % PAGE) % PAGE;
	*ret_what = "the table of a launch cannot be pinned: cudaHostRegister";
	e = ckpt_cuda_pins_add(api, &t->pin, base, size);
	if (e == CKPT_CUDA_SUCCESS && !t->pin) {
		(void)api->host_unregister(base);
		e = CKPT_CUDA_INVALID_VALUE;
		*ret_what = "the table of a launch is not to be reached: cudaHostGetDevicePointer";
	}
	if (e != CKPT_CUDA_SUCCESS) {
		ckpt_cuda_table_free(api, t);
		return e;
	}
	t->spans = (void *)base;
	t->samples = (void *)(base + table);
	t->seen_spans = t->pin->seen;
	t->seen_samples = t->pin->seen + table;
	t->room = (uint32_t)room;
	return CKPT_CUDA_SUCCESS;
}

void ckpt_cuda_table_add(struct ckpt_cuda_table *t, const struct ckpt_cuda_span *span)
{
	CKPT_ASSERT(t->count < t->room);
	t->spans[t->count++] = *span;
}
