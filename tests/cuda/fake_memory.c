/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the fake. An allocation of the device is mapped twice: where the caller is told that it is, nobody can
 * touch it; the fake's own engine has it elsewhere, with canaries around.
 */
#include "cuda/fake_inside.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE   ((size_t)4096)
#define CANARY 0xc7

/* From the host's address of pinned memory to the GPU's: no address of the host. */
#define MAPPED (UINT64_C(1) << 56)

struct allocation {
	struct allocation *next;
	char *view; /* what was mapped; the memory begins a page further on */
	char *shadow;
	size_t mapped;
	size_t size;
};

struct registration {
	struct registration *next;
	char *base;
	size_t size;
	unsigned flags;
};

static struct allocation *allocations;
static struct registration *registrations;
static size_t pinned_limit = SIZE_MAX;

static struct allocation *allocation_of(const void *device, size_t size)
{
	const char *at = device;

	for (struct allocation *a = allocations; a; a = a->next) {
		char *base = a->view + PAGE;
		if (at >= base && at <= base + a->size && size <= (size_t)(base + a->size - at))
			return a;
	}
	return NULL;
}

char *fake_shadow(const void *device, size_t size)
{
	struct allocation *a = allocation_of(device, size);

	return a ? a->shadow + ((const char *)device - a->view) : NULL;
}

bool fake_touches_device(const void *host, size_t size)
{
	const char *at = host;

	for (struct allocation *a = allocations; a; a = a->next)
		if (at < a->view + a->mapped && at + size > a->view)
			return true;
	return false;
}

bool fake_is_pinned(const void *host, size_t size)
{
	const char *at = host;

	for (struct registration *r = registrations; r; r = r->next)
		if (at >= r->base && at + size <= r->base + r->size)
			return true;
	return false;
}

char *fake_mapped(uint64_t device, size_t size)
{
	for (struct registration *r = registrations; r; r = r->next) {
		uint64_t base = MAPPED + (uintptr_t)r->base;

		if (r->flags & CKPT_CUDA_HOST_REGISTER_MAPPED && device >= base &&
			device - base <= r->size && size <= r->size - (device - base))
			return r->base + (device - base);
	}
	return NULL;
}

void fake_limit_pinned(size_t bytes)
{
	pinned_limit = bytes;
}

static void check_canaries(const struct allocation *a)
{
	for (size_t i = 0; i < a->mapped; i++) {
		if (i == PAGE)
			i += a->size;
		if ((unsigned char)a->shadow[i] == CANARY)
			continue;
		fake_forbid("a byte beside an allocation of %zu bytes was written", a->size);
		return;
	}
}

static void release(struct allocation *a)
{
	check_canaries(a);
	(void)munmap(a->view, a->mapped);
	(void)munmap(a->shadow, a->mapped);
	free(a);
}

void fake_forget_memory(void)
{
	while (allocations) {
		struct allocation *a = allocations;
		allocations = a->next;
		release(a);
	}
	while (registrations) {
		struct registration *r = registrations;
		registrations = r->next;
		free(r);
	}
	pinned_limit = SIZE_MAX;
}

EXPORT int cudaMalloc(void **device, size_t size);
EXPORT int cudaFree(void *device);
EXPORT int cudaHostRegister(void *base, size_t size, unsigned flags);
EXPORT int cudaHostUnregister(void *base);
EXPORT int cudaHostGetDevicePointer(void **device, void *host, unsigned flags);
EXPORT int cudaMemcpyAsync(
	void *to, const void *from, size_t count, int kind, struct CUstream_st *stream);
EXPORT int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
	size_t width, size_t height, int kind, struct CUstream_st *stream);

static struct allocation *allocate(size_t size)
{
	struct allocation *a = calloc(1, sizeof(*a));
	int fd = memfd_create("fake-cuda", MFD_CLOEXEC);

	if (!a || fd < 0)
		abort();
	a->size = size;
	a->mapped = 2 * PAGE + (size + PAGE - 1) / PAGE * PAGE;
	if (ftruncate(fd, (off_t)a->mapped) < 0)
		abort();
	a->view = mmap(NULL, a->mapped, PROT_NONE, MAP_SHARED, fd, 0);
	a->shadow = mmap(NULL, a->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (a->view == MAP_FAILED || a->shadow == MAP_FAILED)
		abort();
	(void)close(fd);
	memset(a->shadow, CANARY, a->mapped);
	return a;
}

int cudaMalloc(void **device, size_t size)
{
	int e = fake_enter(__func__);

	if (e == 0)
		e = fake_unsafe();
	if (e == 0) {
		struct allocation *a = allocate(size);

		a->next = allocations;
		allocations = a;
		fake.live[FAKE_MEMORY]++;
		*device = a->view + PAGE;
	}
	return fake_leave(e);
}

/* As the real one: waits for the device first. */
int cudaFree(void *device)
{
	int e = fake_enter(__func__);

	fake_await_all();
	for (struct allocation **at = &allocations; *at; at = &(*at)->next) {
		struct allocation *a = *at;
		if (a->view + PAGE != device)
			continue;
		*at = a->next;
		release(a);
		fake.live[FAKE_MEMORY]--;
		return fake_leave(e);
	}
	return fake_leave(CKPT_CUDA_INVALID_VALUE);
}

int cudaHostRegister(void *base, size_t size, unsigned flags)
{
	int e = fake_enter(__func__);
	char *at = base;
	size_t all = size;

	if (e == 0)
		e = fake_unsafe();
	if (e == 0 && (!base || size == 0 || fake_touches_device(base, size)))
		e = CKPT_CUDA_INVALID_VALUE;
	for (struct registration *r = registrations; r && e == 0; r = r->next) {
		if (at < r->base + r->size && at + size > r->base)
			e = CKPT_CUDA_HOST_ALREADY_REGISTERED;
		all += r->size;
	}
	if (e == 0 && all > pinned_limit)
		e = CKPT_CUDA_MEMORY_ALLOCATION;
	if (e == 0) {
		struct registration *r = calloc(1, sizeof(*r));
		if (!r)
			abort();
		*r = (struct registration){registrations, at, size, flags};
		registrations = r;
		fake.live[FAKE_PINNED]++;
	}
	return fake_leave(e);
}

int cudaHostUnregister(void *base)
{
	int e = fake_enter_waiting(__func__);

	if (e)
		return fake_leave(e);
	e = fake_gone();
	for (struct registration **at = &registrations; *at; at = &(*at)->next) {
		struct registration *r = *at;
		if (r->base != base)
			continue;
		if (fake_under_way(r->base, r->size))
			fake_forbid("memory is unpinned under a copy");
		*at = r->next;
		free(r);
		fake.live[FAKE_PINNED]--;
		return fake_leave(e);
	}
	return fake_leave(e ? e : CKPT_CUDA_HOST_NOT_REGISTERED);
}

int cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
	int e = fake_enter(__func__);
	uint64_t address = MAPPED + (uintptr_t)host;

	if (e == 0 && (flags != 0 || !fake_mapped(address, 1)))
		e = CKPT_CUDA_INVALID_VALUE;
	if (e == 0)
		*device = (void *)(uintptr_t)address;
	return fake_leave(e);
}

/* One copy. `op` has everything but where the host's rows end. */
static int add_copy(struct fake_op *op, struct CUstream_st *stream, const char *function)
{
	struct CUstream_st *s = fake_stream(stream, function);
	size_t device = (op->height - 1) * op->device_pitch + op->width;
	size_t host = (op->height - 1) * op->host_pitch + op->width;
	uint64_t added;

	if (!s)
		return CKPT_CUDA_INVALID_RESOURCE_HANDLE;
	if (s->capture)
		fake_forbid("%s() to a stream that is being captured", function);
	if (!fake_shadow(op->device, device) || fake_touches_device(op->host, host)) {
		fake_forbid("%s() of what is no device memory, or of that as the host's", function);
		return CKPT_CUDA_INVALID_VALUE;
	}
	added = fake_add(s, op);
	if (!fake_is_pinned(op->host, host)) {
		fake.notes[FAKE_UNPINNED]++;
		fake_await(s, added);
	}
	return 0;
}

/* Of `height` rows. */
static struct fake_op copy_op(void *to, size_t to_pitch, const void *from, size_t from_pitch,
	size_t width, size_t height, int kind)
{
	bool out = kind == CKPT_CUDA_DEVICE_TO_HOST;

	return (struct fake_op){.kind = FAKE_OP_COPY,
		.copy_kind = kind,
		.host = out ? to : (char *)from,
		.device = out ? (char *)from : to,
		.host_pitch = out ? to_pitch : from_pitch,
		.device_pitch = out ? from_pitch : to_pitch,
		.width = width,
		.height = height};
}

int cudaMemcpyAsync(void *to, const void *from, size_t count, int kind, struct CUstream_st *stream)
{
	int e = fake_enter(__func__);
	struct fake_op op = copy_op(to, count, from, count, count, 1, kind);

	if (e == 0 && count > 0)
		e = add_copy(&op, stream, __func__);
	return fake_leave(e);
}

int cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
	size_t height, int kind, struct CUstream_st *stream)
{
	int e = fake_enter(__func__);
	struct fake_op op = copy_op(to, to_pitch, from, from_pitch, width, height, kind);

	if (e == 0 && (to_pitch < width || from_pitch < width || to_pitch > INT32_MAX ||
			      from_pitch > INT32_MAX))
		e = CKPT_CUDA_INVALID_PITCH;
	if (e == 0 && width > 0 && height > 0)
		e = add_copy(&op, stream, __func__);
	return fake_leave(e);
}

EXPORT int cudaRuntimeGetVersion(int *version);
EXPORT int cudaDriverGetVersion(int *version);
EXPORT int cudaGetDeviceCount(int *count);
EXPORT int cudaSetDevice(int device);
EXPORT int cudaGetDevice(int *device);
EXPORT int cudaDeviceGetPCIBusId(char *id, int size, int device);
EXPORT int cudaGetLastError(void);
EXPORT const char *cudaGetErrorName(int error);
EXPORT const char *cudaGetErrorString(int error);

int cudaRuntimeGetVersion(int *version)
{
	*version = FAKE_CUDA_VERSION;
	return 0;
}

int cudaDriverGetVersion(int *version)
{
	*version = FAKE_CUDA_VERSION;
	return 0;
}

int cudaGetDeviceCount(int *count)
{
	int e = fake_enter(__func__);

	if (e == 0)
		*count = 2;
	return fake_leave(e);
}

int cudaSetDevice(int device)
{
	int e = fake_enter(__func__);

	if (e == 0 && (device < 0 || device > 1))
		e = CKPT_CUDA_INVALID_DEVICE;
	if (e == 0)
		*fake_current_device() = device;
	return fake_leave(e);
}

int cudaGetDevice(int *device)
{
	int e = fake_enter(__func__);

	if (e == 0)
		*device = *fake_current_device();
	return fake_leave(e);
}

/* In capitals, as the real one. */
int cudaDeviceGetPCIBusId(char *id, int size, int device)
{
	static const char *const ids[] = {"0000:3B:00.0", "0000:AF:00.0"};
	int e = fake_enter(__func__);

	if (e == 0 && (device < 0 || device > 1))
		e = CKPT_CUDA_INVALID_DEVICE;
	if (e == 0 && (!id || size <= (int)strlen(ids[device])))
		e = CKPT_CUDA_INVALID_VALUE;
	if (e == 0)
		memcpy(id, ids[device], strlen(ids[device]) + 1);
	return fake_leave(e);
}

int cudaGetLastError(void)
{
	int e;

	(void)fake_enter(__func__);
	e = fake_last_error(true);
	pthread_mutex_unlock(&fake.lock);
	return e;
}

static const struct {
	int error;
	const char *name;
	const char *text;
} errors[] = {
	{CKPT_CUDA_SUCCESS, "cudaSuccess", "no error"},
	{CKPT_CUDA_INVALID_VALUE, "cudaErrorInvalidValue", "invalid argument"},
	{CKPT_CUDA_MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", "out of memory"},
	{CKPT_CUDA_INVALID_PITCH, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
	{CKPT_CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice", "invalid device ordinal"},
	{CKPT_CUDA_INVALID_RESOURCE_HANDLE, "cudaErrorInvalidResourceHandle",
		"invalid resource handle"},
	{CKPT_CUDA_NOT_READY, "cudaErrorNotReady", "device not ready"},
	{CKPT_CUDA_ILLEGAL_ADDRESS, "cudaErrorIllegalAddress",
		"an illegal memory access was encountered"},
	{CKPT_CUDA_HOST_ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered",
		"part or all of the requested memory range is already mapped"},
	{CKPT_CUDA_HOST_NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered",
		"pointer does not correspond to a registered memory region"},
};

const char *cudaGetErrorName(int error)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			return errors[i].name;
	return "unrecognized error code";
}

const char *cudaGetErrorString(int error)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].error == error)
			return errors[i].text;
	return "unrecognized error code";
}
