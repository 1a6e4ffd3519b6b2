/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What very many ranks hold of tensors of two dimensions, in three ways of cutting them. Nothing of it is data:
 * an index is what a rank would write.
 */
#ifndef CKPT_BENCHMARKS_LAYOUTS_H
#define CKPT_BENCHMARKS_LAYOUTS_H

#include "format/layout.h"
#include "format/manifest.h"

#define LAYOUTS_STAGES  16
#define LAYOUTS_COLUMNS 1024

/* By rows over all ranks; by rows over those of a stage; and as the first, at random. */
enum layouts_cut { LAYOUTS_FSDP, LAYOUTS_PIPELINE, LAYOUTS_UNEVEN, LAYOUTS_CUTS };

extern const char *const layouts_names[LAYOUTS_CUTS];

struct layouts {
	enum layouts_cut cut;
	unsigned world;
	unsigned tensors;
};

/* Of a tensor as a whole. */
int64_t layouts_rows(const struct layouts *layouts);
/* What a rank holds, in memory that the next one takes over. NULL: out of memory. */
struct ckpt_layout *layouts_of(const struct layouts *layouts, uint32_t rank);
/* Writes its index, as the file `path`, and sets what a manifest says of that: length, digest, and the shard's length. */
void layouts_write_index(const struct layouts *layouts, uint32_t rank, const char *path,
	struct ckpt_manifest_rank *record);

#endif
