/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_host_register.h"

#include "base/alloc.h"

/* The first and last byte are as far apart on the GPU as on the host. */
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

static const struct ckpt_cuda_pin *find(
	const struct ckpt_cuda_pin *pins, const void *bytes, size_t size)
{
	uintptr_t at = (uintptr_t)bytes;

	for (; pins; pins = pins->next) {
		uintptr_t base = (uintptr_t)pins->base;

		if (at >= base && at - base <= pins->size && size <= pins->size - (at - base))
			break;
	}
	return pins;
}

static bool overlaps(const struct ckpt_cuda_pin *pins, const void *base, size_t size)
{
	uintptr_t at = (uintptr_t)base;

	while (pins &&
		(at >= (uintptr_t)pins->base + pins->size || (uintptr_t)pins->base >= at + size))
		pins = pins->next;
	return pins != NULL;
}

int ckpt_cuda_host_register_add(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base, size_t size)
{
	struct ckpt_cuda_pin *pin;

	/*
	 * Pinning twice for one GPU is an error. Or it could not be unpinned: then the GPU still uses the previous
	 * pages.
	 */
	if (overlaps(*pins, base, size))
		return CKPT_CUDA_HOST_ALREADY_REGISTERED;
	/* Allocated before pinning, because the start of every registration must be known. */
	pin = ckpt_alloc(sizeof(*pin));
	if (!pin)
		return CKPT_CUDA_MEMORY_ALLOCATION;
	/* Portable: pinned for all GPUs of the process. Mapped: accessible to kernels. */
	int e = api->host_register(
		base, size, CKPT_CUDA_HOST_REGISTER_PORTABLE | CKPT_CUDA_HOST_REGISTER_MAPPED);
	bool own = e == CKPT_CUDA_SUCCESS;

	if (!own && e != CKPT_CUDA_HOST_ALREADY_REGISTERED)
		goto free_pin;
	if (!own)
		(void)api->get_last_error();
	*pin = (struct ckpt_cuda_pin){*pins, base, size, 0, own};
	/* What another GPU has pinned can be used only if it can be mapped for this one. */
	if (!is_shown(api, base, size, &pin->seen) && !own)
		goto free_pin;
	*pins = pin;
	return CKPT_CUDA_SUCCESS;

free_pin:
	ckpt_free(pin);
	return e;
}

int ckpt_cuda_host_register_remove(
	const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins, void *base)
{
	struct ckpt_cuda_pin **at = pins;
	struct ckpt_cuda_pin *pin;
	int e = CKPT_CUDA_SUCCESS;

	while (*at && (*at)->base != base)
		at = &(*at)->next;
	pin = *at;
	if (!pin || pin->own)
		e = api->host_unregister(base);
	if (!pin || (e != CKPT_CUDA_SUCCESS && e != CKPT_CUDA_HOST_NOT_REGISTERED))
		return e;
	*at = pin->next;
	ckpt_free(pin);
	return e;
}

void ckpt_cuda_host_register_free(const struct ckpt_cuda_api *api, struct ckpt_cuda_pin **pins)
{
	while (*pins) {
		struct ckpt_cuda_pin *pin = *pins;

		if (pin->own && api->host_unregister(pin->base) != CKPT_CUDA_SUCCESS)
			(void)api->get_last_error();
		*pins = pin->next;
		ckpt_free(pin);
	}
}

bool ckpt_cuda_host_register_begin(const struct ckpt_cuda_pin *pins, const void *at)
{
	while (pins && pins->base != at)
		pins = pins->next;
	return pins != NULL;
}

uint64_t ckpt_cuda_host_register_find(
	const struct ckpt_cuda_pin *pins, const void *bytes, size_t size)
{
	const struct ckpt_cuda_pin *pin = find(pins, bytes, size);

	return pin && pin->seen ? pin->seen + ((uintptr_t)bytes - (uintptr_t)pin->base) : 0;
}
