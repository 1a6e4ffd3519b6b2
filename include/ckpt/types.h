/* SPDX-License-Identifier: Apache-2.0 */
/* Types that every part of the interface shares. */
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

/* Where a step is asked for: the newest of the lineage that has not been quarantined. */
#define CKPT_STEP_LATEST  UINT64_MAX
/* The k-th step before the newest of the lineage: CKPT_STEP_BACK(0) is the newest; k below 2^32. */
#define CKPT_STEP_BACK(k) (UINT64_MAX - (uint64_t)(k))
/* The greatest number that a step may have. */
#define CKPT_STEP_MAX     UINT64_C(9999999999)

/* Greatest number of dimensions of a tensor, and of bytes of its name, the final NUL included. */
#define CKPT_NDIM_MAX 16
#define CKPT_NAME_MAX 1024

/* Wait without end, where a timeout in milliseconds is asked for. Zero asks without waiting. */
#define CKPT_FOREVER (-1)

/* A fact about a save. Each is independent of the others. */
enum ckpt_level {
	CKPT_LEVEL_STAGED = 1,     /* the source memory may be changed again */
	CKPT_LEVEL_LOCAL = 2,      /* durable on the local store; its manifest is published */
	CKPT_LEVEL_REPLICATED = 3, /* in a peer's memory */
	CKPT_LEVEL_REMOTE = 4      /* durable in the remote store */
};

/*
 * Element types. Those that safetensors knows are stored under its name; the others (marked +) are
 * stored as U8, with the true type in the index. The numbers are part of the ABI, not of the format.
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
	CKPT_F4_X2 = 22,       /* torch.float4_e2m1fn_x2: a byte of two; stored as F4 */
	CKPT_DTYPE_END = 23
};

/* Where the bytes of a tensor are. */
enum ckpt_device_kind {
	CKPT_DEVICE_HOST = 0, /* memory of the CPU */
	CKPT_DEVICE_CUDA = 1
};

/*
 * A stream of a GPU, a cudaStream_t: work that the GPU does in order. The default streams (0 to 2) are those of the
 * GPU that is named, whichever is current in the calling thread.
 */
struct ckpt_stream {
	uint32_t size;   /* sizeof(struct ckpt_stream) */
	uint32_t device; /* CKPT_DEVICE_CUDA */
	int32_t device_index;
	uint32_t reserved; /* 0 */
	uintptr_t handle;
};

/*
 * Copy this tensor before ckpt_save_wait_eager() returns, because something else than the fenced
 * optimizer changes it.
 */
#define CKPT_TENSOR_EAGER 1u

/*
 * Other ranks may write the same box of this tensor, and are to write the same bytes: ranks that hold copies of each
 * other and do not share out who writes what. Rank 0 compares such boxes before a step is committed. A tensor that is
 * smaller than a chunk (1 MiB) shares a digest with the tensors beside it. With this flag it also gets one of its own, so
 * that it can be compared whatever lies beside it. That makes the index 44 bytes longer.
 */
#define CKPT_TENSOR_SHARED 2u

/*
 * Other ranks may have other bytes of this tensor, and that is as it is meant to be: statistics of the batches that each
 * rank has seen. Its bytes are never compared with those of another rank. In ckpt_save_add_replicas() only its name, type
 * and shape count.
 */
#define CKPT_TENSOR_VARIES 4u

/*
 * A tensor that a save is to hold. Everything it points to but `data` is copied by the call that it
 * is handed to. `data` is borrowed: it must stay mapped and unchanged until the save is STAGED. On a
 * GPU that is a matter of the order of its work, see ckpt_save_set_streams(). When a save fails before it was STAGED, and
 * that is told, the GPU is given no work any more that reads `data`; what it was given may still be to come. So memory
 * of a GPU must stay allocated until it has come past that, for which cudaFree() waits; it has when the next save has
 * started, or the engine is closed. A failure is told in time though a GPU hangs, unless a call of ours waits for
 * room in the driver's queue, which is full: not before that call has returned.
 */
struct ckpt_tensor {
	uint32_t size;  /* sizeof(struct ckpt_tensor) */
	uint32_t flags; /* CKPT_TENSOR_* */
	const char *name;
	uint32_t dtype; /* enum ckpt_dtype */
	uint32_t ndim;  /* 0 for a scalar */
	const int64_t *shape;
	const int64_t *strides; /* in elements; NULL: contiguous, row-major */
	const void *data;       /* element [0,0,...]; NULL only when there are no elements */
	uint32_t device;        /* enum ckpt_device_kind */
	int32_t device_index;
	const int64_t
		*global_shape; /* of the tensor that this is a box of; NULL: this is all of it */
	const int64_t *global_start; /* where the box begins in it; NULL: at 0 in every dimension */
};

/*
 * A tensor that a step holds, the whole of it. Pointers are valid as long as the handle that it was
 * asked of.
 */
struct ckpt_tensor_info {
	uint32_t size; /* sizeof(struct ckpt_tensor_info), set by the caller */
	uint32_t dtype;
	uint32_t ndim;
	uint32_t rank; /* of the process that wrote it, or its first piece */
	const char *name;
	const int64_t *shape;
	uint64_t nbytes;
	uint64_t
		offset; /* of that one's first byte in its shard, bytes; UINT64_MAX: its index was not read */
	const char *alias_of; /* the tensor whose bytes it shares; NULL if it is stored itself */
	uint32_t
		pieces; /* different boxes of it that the ranks hold; 1: it is stored whole; 0: not counted */
	uint32_t reserved;
};

#endif
