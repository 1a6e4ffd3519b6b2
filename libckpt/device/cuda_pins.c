/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_pins.h"

#include "base/alloc.h"

/* Its first and its last byte are what they should be apart. */
static bool is_shown(const struct ckpt_cuda_api *api, char *base, size_t size, uint64_t *ret_seen)
{
	void *first = NULL;
	void *last = NULL;

	if (api->host_get_device_pointer(&first, base, 0) == CKPT_CUDA_SUCCESS &&
		api->host_get_device_pointer(&last, base + size - 1, 0) == CKPT_CUDA_SUCCESS &&
		(uintptr_t)last - (uintptr_t)first == size - 1) {
		*ret_seen = (uintptr_t)first;
		return true;
	}
	(void)api->get_last_error();
	return false;
}

int ckpt_cuda_pins_add(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base, size_t size)
{
	uint64_t seen = 0;
	/* Portable: pinned for every GPU of the process. Mapped: kernels reach it. */
	int e = api->host_register(
		base, size, CKPT_CUDA_HOST_REGISTER_PORTABLE | CKPT_CUDA_HOST_REGISTER_MAPPED);
	bool own = e == CKPT_CUDA_SUCCESS;

	/* Twice for one GPU is a mistake. */
	if (!own &&
		(e != CKPT_CUDA_HOST_ALREADY_REGISTERED || ckpt_cuda_pins_find(*pins, base, size)))
		return e;
	if (!own)
		(void)api->get_last_error();
	if (!is_shown(api, base, size, &seen))
		return e;
	struct ckpt_cuda_pin *pin = ckpt_alloc(sizeof(*pin));
	if (!pin)
		return e;
	*pin = (struct ckpt_cuda_pin){*pins, base, size, seen, own};
	*pins = pin;
	return CKPT_CUDA_SUCCESS;
}

int ckpt_cuda_pins_remove(const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base)
{
	bool own = true;

	for (struct ckpt_cuda_pin **at = pins; *at; at = &(*at)->next) {
		struct ckpt_cuda_pin *pin = *at;

		if (pin->base != base)
			continue;
		own = pin->own;
		*at = pin->next;
		ckpt_free(pin);
		break;
	}
	return own ? api->host_unregister(base) : CKPT_CUDA_SUCCESS;
}

bool ckpt_cuda_pins_begin(const struct ckpt_cuda_pin *pins, const void *at)
{
	while (pins && pins->base != at)
		pins = pins->next;
	return pins != NULL;
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
