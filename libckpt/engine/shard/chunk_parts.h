/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a chunk that are encoded each by itself, by the layout alone (FORMAT.md, section 23). Pure.
 *
 * A part is a run of elements of one width and kind. Small tensors of one width and kind share a part; a larger one has
 * parts of its own.
 */
#ifndef CKPT_ENGINE_SHARD_CHUNK_PARTS_H
#define CKPT_ENGINE_SHARD_CHUNK_PARTS_H

#include "codec/codec.h"
#include "format/layout.h"

/* A tensor with fewer bytes in the chunk shares a part with its neighbours. */
#define CKPT_CHUNK_PART_SHARED (UINT32_C(16) << 10)

/* What a part is decoded with: the byte before it. */
enum ckpt_part_help {
	CKPT_PART_ALONE = 0,
	CKPT_PART_MASTER = 1, /* fp32 values that it was rounded from */
	CKPT_PART_BASE = 2,   /* the same elements in the base of the chunk */
	CKPT_PART_HELP_END
};

struct ckpt_chunk_part {
	uint64_t offset; /* in the shard */
	uint32_t
		length; /* a multiple of `width`, never 0 and never more than CKPT_CODEC_CHUNK_BYTES */
	unsigned width;
	enum ckpt_chunk_kind kind;
	/* The tensor that all of it is of; NULL: the header, or perhaps several. */
	const struct ckpt_entry *entry;
};

struct ckpt_chunk_parts {
	const struct ckpt_layout *layout;
	size_t entry;               /* that the next run begins in */
	uint64_t at;                /* where the next run begins */
	uint64_t end;               /* of the chunk */
	struct ckpt_chunk_part run; /* what is left of the run that is cut; length 0: nothing */
	uint64_t run_end;
};

void ckpt_chunk_parts_begin(
	struct ckpt_chunk_parts *parts, const struct ckpt_layout *layout, size_t chunk);
/* The next part, in order and without holes. False: there is none. */
bool ckpt_chunk_parts_next(struct ckpt_chunk_parts *parts, struct ckpt_chunk_part *ret_part);

/*
 * Who decodes a chunk keeps the two chunks that it needed last of those that this one refers to, and decodes no more than so
 * many for it: a file cannot make it do more, and who writes one keeps to it (FORMAT.md, section 23).
 */
#define CKPT_KEPT_REFS       2
#define CKPT_REF_DECODES_MAX 128

/* Zero is empty. */
struct ckpt_kept_refs {
	size_t chunks[CKPT_KEPT_REFS]; /* number, and one more; 0: none */
	unsigned last;                 /* the one that was needed last */
	unsigned decodes;
};

/* The chunk is needed: it is kept at *ret_at. False: it has to be decoded. */
static inline bool ckpt_kept_refs_need(struct ckpt_kept_refs *kept, size_t chunk, unsigned *ret_at)
{
	for (unsigned i = 0; i < CKPT_KEPT_REFS; i++)
		if (kept->chunks[i] == chunk + 1) {
			*ret_at = kept->last = i;
			return true;
		}
	*ret_at = kept->last = !kept->last;
	kept->chunks[kept->last] = chunk + 1;
	kept->decodes++;
	return false;
}

#endif
