/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The used parts of the CUDA Runtime API and the Driver API, so that no toolkit is needed to build. Only functions with
 * the same ABI in CUDA 12 and 13. Names and values follow NVIDIA's documentation (driver_types.h).
 */
#ifndef CKPT_DEVICE_CUDA_API_H
#define CKPT_DEVICE_CUDA_API_H

#include <stddef.h>

/* cudaStream_t and cudaEvent_t, CUmodule and CUfunction are pointers to these; a CUstream is a cudaStream_t. */
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;

/* cudaError_t */
enum {
	CKPT_CUDA_SUCCESS = 0,                      /* cudaSuccess */
	CKPT_CUDA_INVALID_VALUE = 1,                /* cudaErrorInvalidValue */
	CKPT_CUDA_MEMORY_ALLOCATION = 2,            /* cudaErrorMemoryAllocation */
	CKPT_CUDA_INVALID_PITCH = 12,               /* cudaErrorInvalidPitchValue */
	CKPT_CUDA_INSUFFICIENT_DRIVER = 35,         /* cudaErrorInsufficientDriver */
	CKPT_CUDA_NO_DEVICE = 100,                  /* cudaErrorNoDevice */
	CKPT_CUDA_INVALID_DEVICE = 101,             /* cudaErrorInvalidDevice */
	CKPT_CUDA_INVALID_RESOURCE_HANDLE = 400,    /* cudaErrorInvalidResourceHandle */
	CKPT_CUDA_NOT_READY = 600,                  /* cudaErrorNotReady */
	CKPT_CUDA_ILLEGAL_ADDRESS = 700,            /* cudaErrorIllegalAddress */
	CKPT_CUDA_HOST_ALREADY_REGISTERED = 712,    /* cudaErrorHostMemoryAlreadyRegistered */
	CKPT_CUDA_HOST_NOT_REGISTERED = 713,        /* cudaErrorHostMemoryNotRegistered */
	CKPT_CUDA_STREAM_CAPTURE_UNSUPPORTED = 900, /* cudaErrorStreamCaptureUnsupported */
	CKPT_CUDA_STREAM_CAPTURE_INVALIDATED = 901, /* cudaErrorStreamCaptureInvalidated */
	CKPT_CUDA_STREAM_CAPTURE_IMPLICIT = 906,    /* cudaErrorStreamCaptureImplicit */
};

enum {
	CKPT_CUDA_HOST_TO_DEVICE = 1, /* cudaMemcpyHostToDevice */
	CKPT_CUDA_DEVICE_TO_HOST = 2, /* cudaMemcpyDeviceToHost */
};

enum {
	CKPT_CUDA_STREAM_NON_BLOCKING = 1,    /* cudaStreamNonBlocking */
	CKPT_CUDA_EVENT_BLOCKING_SYNC = 1,    /* cudaEventBlockingSync */
	CKPT_CUDA_EVENT_DISABLE_TIMING = 2,   /* cudaEventDisableTiming */
	CKPT_CUDA_HOST_REGISTER_PORTABLE = 1, /* cudaHostRegisterPortable */
	CKPT_CUDA_HOST_REGISTER_MAPPED = 2,   /* cudaHostRegisterMapped */
};

/* Handles with a special meaning, each for the calling thread's current GPU. 0 is one of the two. */
enum {
	CKPT_CUDA_STREAM_LEGACY = 1,     /* cudaStreamLegacy */
	CKPT_CUDA_STREAM_PER_THREAD = 2, /* cudaStreamPerThread */
};

/* cudaStreamCaptureStatus */
enum {
	CKPT_CUDA_CAPTURE_NONE = 0,        /* cudaStreamCaptureStatusNone */
	CKPT_CUDA_CAPTURE_ACTIVE = 1,      /* cudaStreamCaptureStatusActive */
	CKPT_CUDA_CAPTURE_INVALIDATED = 2, /* cudaStreamCaptureStatusInvalidated */
};

/* cudaStreamCaptureMode */
enum {
	CKPT_CUDA_MODE_GLOBAL = 0,       /* cudaStreamCaptureModeGlobal */
	CKPT_CUDA_MODE_THREAD_LOCAL = 1, /* cudaStreamCaptureModeThreadLocal */
	CKPT_CUDA_MODE_RELAXED = 2,      /* cudaStreamCaptureModeRelaxed */
};

/* The functions, each with its name in the library; cuda_load.c has the list. They return a cudaError_t. */
struct ckpt_cuda_api {
	int (*runtime_get_version)(int *version);
	int (*driver_get_version)(int *version);
	int (*get_device_count)(int *count);
	int (*set_device)(int device);
	int (*get_device)(int *device);
	int (*get_last_error)(void);
	const char *(*get_error_name)(int error);
	const char *(*get_error_string)(int error);
	int (*thread_exchange_stream_capture_mode)(int *mode);
	int (*stream_create_with_priority)(
		struct CUstream_st **stream, unsigned flags, int priority);
	int (*stream_destroy)(struct CUstream_st *stream);
	int (*stream_synchronize)(struct CUstream_st *stream);
	int (*stream_wait_event)(
		struct CUstream_st *stream, struct CUevent_st *event, unsigned flags);
	int (*stream_is_capturing)(struct CUstream_st *stream, int *status);
	int (*event_create_with_flags)(struct CUevent_st **event, unsigned flags);
	int (*event_destroy)(struct CUevent_st *event);
	int (*event_record)(struct CUevent_st *event, struct CUstream_st *stream);
	int (*event_query)(struct CUevent_st *event);
	int (*event_synchronize)(struct CUevent_st *event);
	/* Memory of the calling thread's GPU. */
	int (*malloc)(void **device, size_t size);
	int (*free)(void *device);
	int (*memcpy_async)(
		void *to, const void *from, size_t count, int kind, struct CUstream_st *stream);
	int (*memcpy_2d_async)(void *to, size_t to_pitch, const void *from, size_t from_pitch,
		size_t width, size_t height, int kind, struct CUstream_st *stream);
	int (*host_register)(void *base, size_t size, unsigned flags);
	int (*host_unregister)(void *base);
	int (*host_get_device_pointer)(void **device, void *host, unsigned flags);
	/* NULL if the runtime lacks it, which is no failure. */
	int (*device_get_pci_bus_id)(char *id, int size, int device);
};

/* Functions of the driver; cuda_driver.c has the list. They return a CUresult, with the numbers of cudaError_t. */
struct ckpt_cuda_driver {
	int (*module_load_data)(struct CUmod_st **module, const void *image);
	int (*module_get_function)(
		struct CUfunc_st **function, struct CUmod_st *module, const char *name);
	int (*module_unload)(struct CUmod_st *module);
	int (*launch_kernel)(struct CUfunc_st *function, unsigned grid_x, unsigned grid_y,
		unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
		unsigned shared, struct CUstream_st *stream, void **arguments, void **extra);
	int (*get_error_name)(int error, const char **name);
	int (*get_error_string)(int error, const char **text);
};

#endif
