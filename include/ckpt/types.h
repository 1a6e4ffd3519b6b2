/* SPDX-License-Identifier: Apache-2.0 */
/* Types and constants that all headers use. */
#ifndef CKPT_TYPES_H
#define CKPT_TYPES_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define CKPT_API __attribute__((visibility("default")))
#else
#define CKPT_API
#endif

struct ckpt_engine;
struct ckpt_save;
struct ckpt_restore;
struct ckpt_catalog;
struct ckpt_exchange_server;

/* In place of a step number: the newest step of the lineage that is not quarantined. */
#define CKPT_STEP_LATEST  UINT64_MAX
/* The k-th step before the newest one; k is less than 2^32. CKPT_STEP_BACK(0) is CKPT_STEP_LATEST. */
#define CKPT_STEP_BACK(k) (UINT64_MAX - (uint64_t)(k))
/* The largest number of a step. */
#define CKPT_STEP_MAX     UINT64_C(9999999999)

/* Most dimensions of a tensor, and most bytes of its name with the final NUL. */
#define CKPT_NDIM_MAX 16
#define CKPT_NAME_MAX 1024

/* As a timeout in milliseconds: wait without limit. A timeout of 0 returns at once. */
#define CKPT_FOREVER (-1)

/* What a save has reached. The levels are independent of each other. */
enum ckpt_level {
	CKPT_LEVEL_STAGED = 1,     /* all tensors are copied: their memory may be changed again */
	CKPT_LEVEL_LOCAL = 2,      /* durable in the local store, and the manifest is published */
	CKPT_LEVEL_REPLICATED = 3, /* in the memory of a peer; not supported by this version */
	CKPT_LEVEL_REMOTE = 4      /* durable in the remote store */
};

/*
 * Element types. Types that safetensors has are stored under its names. The others (marked +) are
 * stored as U8, and the index has their type. The numbers are part of the ABI, not of the format.
 */
enum ckpt_dtype {
	CKPT_BOOL = 1,
	CKPT_U8 = 2,
	CKPT_I8 = 3,
	CKPT_U16 = 4,
	CKPT_I16 = 5,
	CKPT_U32 = 6,
	CKPT_I32 = 7,
	CKPT_U64 = 8,
	CKPT_I64 = 9,
	CKPT_F16 = 10,
	CKPT_BF16 = 11,
	CKPT_F32 = 12,
	CKPT_F64 = 13,
	CKPT_F8_E4M3 = 14,     /* torch.float8_e4m3fn */
	CKPT_F8_E5M2 = 15,     /* torch.float8_e5m2 */
	CKPT_F8_E8M0 = 16,     /* torch.float8_e8m0fnu */
	CKPT_C64 = 17,         /* two 32-bit floats */
	CKPT_C128 = 18,        /* + two 64-bit floats */
	CKPT_C32 = 19,         /* + two 16-bit floats */
	CKPT_F8_E4M3FNUZ = 20, /* + */
	CKPT_F8_E5M2FNUZ = 21, /* + */
	CKPT_F4_X2 = 22,       /* torch.float4_e2m1fn_x2: two values a byte; stored as F4 */
	CKPT_DTYPE_END = 23
};

/* The memory of a tensor. */
enum ckpt_device_kind {
	CKPT_DEVICE_HOST = 0, /* CPU memory */
	CKPT_DEVICE_CUDA = 1
};

/*
 * A stream of a GPU (cudaStream_t). The default streams (handles 0 to 2) are those of the GPU `device_index`,
 * whichever GPU is current in the calling thread.
 */
struct ckpt_stream {
	uint32_t size;        /* sizeof(struct ckpt_stream) */
	uint32_t device;      /* CKPT_DEVICE_CUDA */
	int32_t device_index; /* number of the GPU */
	uint32_t reserved;    /* 0 */
	uintptr_t handle;     /* the cudaStream_t */
};

/*
 * The tensor is copied before ckpt_save_wait_eager() returns. For tensors that are changed before
 * ckpt_save_fence() is called.
 */
#define CKPT_TENSOR_EAGER 1u

/*
 * Other ranks may write the same box of this tensor, and must write the same bytes. Rank 0 compares such boxes before
 * it commits the step. A tensor of less than a chunk (1 MiB) shares a digest with its neighbours in the shard. With this
 * flag it also gets its own digest, so that it can be compared whatever its neighbours are. The index is 44 bytes longer
 * for that.
 */
#define CKPT_TENSOR_SHARED 2u

/*
 * Other ranks may have other bytes in this tensor, by design: statistics of the batches of each rank, for example. Its
 * bytes are never compared with those of another rank. ckpt_save_add_replicas() compares its name, type and shape only.
 */
#define CKPT_TENSOR_VARIES 4u

/*
 * A tensor to save, or the box of a larger tensor that this rank has. The call that gets the structure copies
 * everything that it points to, except `data`. `data` is borrowed: it must stay mapped and unchanged until the save is
 * STAGED. For memory of a GPU the order of the work on its streams ensures this, see ckpt_save_set_streams().
 *
 * If a save fails before it is STAGED, the GPU gets no more work that reads `data` after the failure is reported. Work
 * that it got before may still run. So memory of a GPU must stay allocated until that work has ended: cudaFree() waits
 * for it, and it has ended when the next save has started or the engine is closed. A failure is reported in time even if
 * a GPU hangs, except while a CUDA call of the library waits because the queue of the driver is full.
 */
struct ckpt_tensor {
	uint32_t size;  /* sizeof(struct ckpt_tensor) */
	uint32_t flags; /* CKPT_TENSOR_* */
	const char *name;
	uint32_t dtype; /* enum ckpt_dtype */
	uint32_t ndim;  /* 0 for a scalar */
	const int64_t *shape;
	const int64_t *strides; /* in elements; NULL: contiguous, row-major */
	const void *data;       /* element [0,0,...]; NULL only if there are no elements */
	uint32_t device;        /* enum ckpt_device_kind */
	int32_t device_index;
	const int64_t *global_shape; /* shape of the whole tensor; NULL: this is the whole */
	const int64_t *global_start; /* start of the box in the whole; NULL: 0 in every dimension */
};

/* A tensor of a step, as a whole. The pointers are valid until the handle of the restore is freed. */
struct ckpt_tensor_info {
	uint32_t size; /* sizeof(struct ckpt_tensor_info), set by the caller */
	uint32_t dtype;
	uint32_t ndim;
	uint32_t rank; /* that wrote it, or its first piece, into its shard */
	const char *name;
	const int64_t *shape;
	uint64_t nbytes;      /* of the whole */
	uint64_t offset;      /* of its first byte in that shard; UINT64_MAX: index not read */
	const char *alias_of; /* the tensor whose bytes it shares; NULL: it has its own */
	uint32_t pieces;      /* different boxes in the shards; 1: stored whole; 0: not counted */
	uint32_t reserved;
};

#endif
