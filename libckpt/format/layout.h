/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of a shard: where each tensor lies, and where chunks end. Pure: the same tensors give the same layout, in
 * whatever order they are passed.
 *
 * A shard is one safetensors file. Its first `header_bytes` bytes (a multiple of 4096) are the header. Tensors follow
 * without gaps, by descending element size, then by name (strcmp). No chunk is longer than chunk_bytes. The header has
 * its own chunk 0, and more if it is longer. A tensor of at least chunk_bytes has its own chunks, from its start;
 * consecutive smaller ones share a chunk as long as their sum is at most chunk_bytes. Empty tensors have none.
 */
#ifndef CKPT_FORMAT_LAYOUT_H
#define CKPT_FORMAT_LAYOUT_H

#include <ckpt/types.h>
#include <ckpt/error.h>
#include "base/digest.h"

#define CKPT_CHUNK_BYTES     (UINT64_C(1) << 20)
#define CKPT_CHUNK_BYTES_MAX (UINT64_C(1) << 30)
#define CKPT_CHUNKS_MAX      (UINT64_C(1) << 24)
#define CKPT_HEADER_ALIGN    4096
#define CKPT_HEADER_MAX      UINT64_C(100000000) /* what safetensors' own readers accept */
#define CKPT_TENSORS_MAX     1000000             /* aliases included */
#define CKPT_SHARD_BYTES_MAX (UINT64_C(1) << 46)

struct ckpt_entry {
	char *name;
	uint32_t dtype;
	uint32_t ndim;
	int64_t *shape;        /* of the box in this shard */
	int64_t *global_shape; /* of the whole tensor; NULL: the box is the whole */
	int64_t *global_start; /* start of the box in it; NULL: zeros */
	uint64_t offset;       /* of its first byte, in the shard */
	uint64_t nbytes;
	uint32_t source; /* index in the array passed to ckpt_layout_build() */
	uint32_t own;    /* 1 + index of its own digest in `digests`; 0: it has none */
	bool varies;     /* its bytes may differ between ranks */
};

struct ckpt_alias {
	char *name;
	char *target; /* name of its entry */
};

struct ckpt_chunk {
	uint64_t offset; /* in the shard */
	uint32_t length; /* never 0 */
	struct ckpt_digest digest;
};

struct ckpt_layout {
	uint64_t bytes; /* of the whole shard */
	uint64_t header_bytes;
	char *header; /* header_bytes long; NULL after decoding an index */
	uint64_t chunk_bytes;
	struct ckpt_entry *entries; /* in the order of the shard */
	size_t entry_count;
	struct ckpt_alias *aliases; /* sorted by name */
	size_t alias_count;
	struct ckpt_chunk *chunks; /* without gaps from 0 to `bytes` */
	size_t chunk_count;
	struct ckpt_digest *digests; /* of single tensors that share a chunk, see `own` */
	size_t digest_count;
	char *texts;   /* all names and targets point into it */
	int64_t *dims; /* all shapes and starts point into it */
};

/*
 * Makes the layout of `count` tensors (reads name, dtype, ndim, shape, global shape and start of each, and
 * CKPT_TENSOR_SHARED and CKPT_TENSOR_VARIES of its flags) and `alias_count` aliases. chunk_bytes is at most
 * CKPT_CHUNK_BYTES_MAX. Digests are zero. A box that is the whole tensor, and a start of zeros, are stored as NULL.
 * -EINVAL names the tensor: unknown dtype, negative or overflowing shape, box outside of the tensor, name empty, too
 * long, not UTF-8, or "__metadata__"; an alias of no tensor. -EEXIST (a name occurs twice), -E2BIG, -ENOMEM.
 */
int ckpt_layout_build(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, uint64_t chunk_bytes,
	struct ckpt_error *err, struct ckpt_layout **ret_layout);

/* NULL is ignored. */
void ckpt_layout_free(struct ckpt_layout *layout);

/* The entry of that name or alias; NULL: there is none. O(log n). */
const struct ckpt_entry *ckpt_layout_find(const struct ckpt_layout *layout, const char *name);

/* Whether a tensor of that size has its own digest. A larger one has its own chunks. */
static inline bool ckpt_layout_has_own(
	const struct ckpt_layout *layout, const struct ckpt_tensor *tensor, uint64_t nbytes)
{
	return (tensor->flags & CKPT_TENSOR_SHARED) && !(tensor->flags & CKPT_TENSOR_VARIES) &&
	       nbytes > 0 && nbytes < layout->chunk_bytes;
}

/* The last non-empty entry that begins at or before byte `offset`; NULL in the header. */
const struct ckpt_entry *ckpt_layout_at(const struct ckpt_layout *layout, uint64_t offset);

/* The chunk that contains byte `offset`, which is less than layout->bytes. */
size_t ckpt_layout_chunk_at(const struct ckpt_layout *layout, uint64_t offset);

/* Cuts entries[] into chunks by the rule above; used by build, and by the decoder to check. */
int ckpt_layout_cut(struct ckpt_layout *layout, struct ckpt_error *err);
/* The number of these chunks. O(entries), whatever the sizes. */
uint64_t ckpt_layout_cuts(const struct ckpt_layout *layout);

/* The order of entries in a shard, like strcmp(): by element size, descending, then by name. */
int ckpt_layout_order(const struct ckpt_entry *a, const struct ckpt_entry *b);

/* A name that occurs twice among entries and aliases; NULL: none. Both must be sorted. O(n). */
const char *ckpt_layout_twice(const struct ckpt_layout *layout);

/* An alias whose target is no tensor; NULL: none. Names are unique. */
const struct ckpt_alias *ckpt_layout_loose(const struct ckpt_layout *layout);

/* Bytes of a box. False: an invalid dtype, a negative size, or more than a shard may have. */
bool ckpt_layout_box_bytes(
	uint32_t dtype, const int64_t *shape, uint32_t ndim, uint64_t *ret_nbytes);

/* Why the box of a tensor with valid dtype and shape is invalid; NULL: it is valid. */
const char *ckpt_layout_bad_box(const struct ckpt_tensor *tensor);

/* Why a name is invalid for a tensor: "is empty"; NULL: it is valid. */
const char *ckpt_layout_bad_name(const char *name, size_t length);

#endif
