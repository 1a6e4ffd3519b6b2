/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a shard looks like: which tensor lies where, and where chunks are cut. Pure: the same tensors
 * give the same layout, whatever order they came in.
 *
 * The shard is one safetensors file. Its first bytes, up to `header_bytes` (a multiple of 4096), are
 * the header. Tensors follow without holes, by descending element size and then by name (strcmp).
 * No chunk is longer than chunk_bytes. The header is cut by itself: it is chunk 0, and the next ones
 * too if it is longer than that. A tensor of at least chunk_bytes is cut by itself, from its start;
 * consecutive smaller ones share a chunk as long as their sum stays within chunk_bytes. Empty tensors
 * take none.
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
	int64_t *shape;        /* of the box that this shard holds */
	int64_t *global_shape; /* of the whole tensor; NULL: the box is the whole */
	int64_t *global_start; /* where the box begins in it; NULL: at zero */
	uint64_t offset;       /* of the first byte, in the shard */
	uint64_t nbytes;
	uint32_t source; /* number under which the caller gave it to ckpt_layout_build() */
	uint32_t own;    /* 1 + the place of its own digest in `digests`; 0: it has none */
	bool varies;     /* other ranks may have other bytes of it */
};

struct ckpt_alias {
	char *name;
	char *target; /* name of the entry that it stands for */
};

struct ckpt_chunk {
	uint64_t offset; /* in the shard */
	uint32_t length; /* never 0 */
	struct ckpt_digest digest;
};

struct ckpt_layout {
	uint64_t bytes; /* of the whole shard */
	uint64_t header_bytes;
	char *header; /* header_bytes of it; NULL after decoding an index */
	uint64_t chunk_bytes;
	struct ckpt_entry *entries; /* in the order of the shard */
	size_t entry_count;
	struct ckpt_alias *aliases; /* by name */
	size_t alias_count;
	struct ckpt_chunk *chunks; /* without holes from 0 to `bytes` */
	size_t chunk_count;
	struct ckpt_digest *digests; /* of single tensors that share a chunk, see `own` */
	size_t digest_count;
	char *texts;   /* memory that all names and targets point into */
	int64_t *dims; /* the same for shapes and starts */
};

/*
 * Lays out `count` tensors (name, dtype, ndim, shape, global shape and start of each are read, and CKPT_TENSOR_SHARED and
 * CKPT_TENSOR_VARIES of its flags) and `alias_count` aliases. chunk_bytes is at most CKPT_CHUNK_BYTES_MAX. Digests are zero. A box that is
 * the whole is none, and a start at zero is none. Errors: -EINVAL (names the tensor: unknown dtype,
 * negative or overflowing shape, box that is not within its whole, name empty, too long, not UTF-8, or
 * "__metadata__"; an alias of what is no tensor), -EEXIST (two with one name), -E2BIG, -ENOMEM.
 */
int ckpt_layout_build(const struct ckpt_tensor *tensors, size_t count,
	const struct ckpt_alias *aliases, size_t alias_count, uint64_t chunk_bytes,
	struct ckpt_error *err, struct ckpt_layout **ret_layout);

/* NULL is ignored. */
void ckpt_layout_free(struct ckpt_layout *layout);

/* The entry of that name or alias; NULL if there is none. O(log n). */
const struct ckpt_entry *ckpt_layout_find(const struct ckpt_layout *layout, const char *name);

/* Whether a tensor of so many bytes has a digest of its own. A larger one has chunks of its own. */
static inline bool ckpt_layout_has_own(
	const struct ckpt_layout *layout, const struct ckpt_tensor *tensor, uint64_t nbytes)
{
	return (tensor->flags & CKPT_TENSOR_SHARED) && !(tensor->flags & CKPT_TENSOR_VARIES) &&
	       nbytes > 0 && nbytes < layout->chunk_bytes;
}

/* The last entry that begins at or before byte `offset` and is not empty; NULL in the header. */
const struct ckpt_entry *ckpt_layout_at(const struct ckpt_layout *layout, uint64_t offset);

/* The chunk that holds byte `offset`, which is less than layout->bytes. */
size_t ckpt_layout_chunk_at(const struct ckpt_layout *layout, uint64_t offset);

/* Cuts entries[] into chunks by the rule above; used by build, and by the decoder to check. */
int ckpt_layout_cut(struct ckpt_layout *layout, struct ckpt_error *err);
/* How many chunks that gives. O(entries), whatever the sizes. */
uint64_t ckpt_layout_cuts(const struct ckpt_layout *layout);

/* The order of entries in a shard: as strcmp() of (element size, descending; name). */
int ckpt_layout_order(const struct ckpt_entry *a, const struct ckpt_entry *b);

/* A name that two of the entries and aliases have; NULL: none. Both are in order. O(n). */
const char *ckpt_layout_twice(const struct ckpt_layout *layout);

/* An alias that stands for what is no tensor; NULL: none. Names are unique. */
const struct ckpt_alias *ckpt_layout_loose(const struct ckpt_layout *layout);

/* Bytes of a box. False: a dtype that is none, a negative size, or more than a shard may have. */
bool ckpt_layout_box_bytes(
	uint32_t dtype, const int64_t *shape, uint32_t ndim, uint64_t *ret_nbytes);

/* Why a tensor cannot be the box that it says, whose dtype and shape are good; NULL: it can. */
const char *ckpt_layout_bad_box(const struct ckpt_tensor *tensor);

/* Why a name cannot be one of a tensor: "is empty"; NULL: it can. */
const char *ckpt_layout_bad_name(const char *name, size_t length);

#endif
