/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_relay.h"

#include <stdint.h>

int ckpt_cuda_relay_reserve(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay)
{
	void *memory = NULL;
	int e;

	if (relay->memory)
		return CKPT_CUDA_SUCCESS;
	e = api->malloc(&memory, CKPT_CUDA_RELAY + CKPT_CUDA_WINDOW);
	if (e == CKPT_CUDA_SUCCESS)
		relay->memory = memory;
	return e;
}

char *ckpt_cuda_relay_at(const struct ckpt_cuda_relay *relay, const char *staged)
{
	/* cudaMalloc() aligns to more than a window. */
	return relay->memory + (uintptr_t)staged % CKPT_CUDA_WINDOW;
}

void ckpt_cuda_relay_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_relay *relay)
{
	if (relay->memory && api->free(relay->memory) != CKPT_CUDA_SUCCESS)
		(void)api->get_last_error();
	relay->memory = NULL;
}
