/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_pins.h"

#include "base/alloc.h"

int ckpt_cuda_pins_add(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base, size_t size)
{
	struct ckpt_cuda_pin *pin;
	void *seen = NULL;
	/* Portable: pinned for every GPU of the process. Mapped: kernels reach it. */
	int e = api->host_register(
		base, size, CKPT_CUDA_HOST_REGISTER_PORTABLE | CKPT_CUDA_HOST_REGISTER_MAPPED);

	if (e != CKPT_CUDA_SUCCESS)
		return e;
	if (api->host_get_device_pointer(&seen, base, 0) != CKPT_CUDA_SUCCESS) {
		(void)api->get_last_error();
		return CKPT_CUDA_SUCCESS;
	}
	pin = ckpt_alloc(sizeof(*pin));
	if (pin) {
		*pin = (struct ckpt_cuda_pin){*pins, base, size, (uintptr_t)seen};
		*pins = pin;
	}
	return CKPT_CUDA_SUCCESS;
}

int ckpt_cuda_pins_remove(const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base)
{
	for (struct ckpt_cuda_pin **at = pins; *at; at = &(*at)->next) {
		struct ckpt_cuda_pin *pin = *at;

		if (pin->base != base)
			continue;
		*at = pin->next;
		ckpt_free(pin);
		break;
	}
	return api->host_unregister(base);
}

uint64_t ckpt_cuda_pins_find(const struct ckpt_cuda_pin *pins, const void *bytes, size_t size)
{
	uintptr_t at = (uintptr_t)bytes;

	for (; pins; pins = pins->next) {
		uintptr_t base = (uintptr_t)pins->base;

		if (at >= base && at - base <= pins->size && size <= pins->size - (at - base))
			return pins->seen + (at - base);
	}
	return 0;
}
