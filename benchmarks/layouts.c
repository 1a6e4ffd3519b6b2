/* SPDX-License-Identifier: Apache-2.0 */
#include "layouts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <ckpt/types.h>
#include "base/digest.h"
#include "bench_tool.h"
#include "format/index.h"

const char *const layouts_names[LAYOUTS_CUTS] = {"fsdp", "pipeline", "uneven"};

int64_t layouts_rows(const struct layouts *o)
{
	return 3 * (int64_t)o->world;
}

/* Where rank `rank` begins in a tensor that is cut at random; within a row and a half of an even cut. */
static int64_t uneven_start(const struct layouts *o, unsigned tensor, uint32_t rank)
{
	uint64_t key[2] = {tensor, rank};

	if (rank == 0 || rank == o->world)
		return 3 * (int64_t)rank;
	return 3 * (int64_t)rank + (int64_t)(ckpt_hash64(key, sizeof(key), 1) % 3) - 1;
}

/* False: it holds nothing of it. */
static bool box_of(
	const struct layouts *o, unsigned tensor, uint32_t rank, int64_t start[2], int64_t shape[2])
{
	uint32_t stage = o->world / LAYOUTS_STAGES;

	start[1] = 0;
	shape[1] = LAYOUTS_COLUMNS;
	if (o->cut == LAYOUTS_UNEVEN) {
		start[0] = uneven_start(o, tensor, rank);
		shape[0] = uneven_start(o, tensor, rank + 1) - start[0];
		return true;
	}
	if (o->cut == LAYOUTS_PIPELINE && rank / stage != tensor * LAYOUTS_STAGES / o->tensors)
		return false;
	shape[0] = o->cut == LAYOUTS_PIPELINE ? 3 * LAYOUTS_STAGES : 3;
	start[0] = shape[0] * (o->cut == LAYOUTS_PIPELINE ? rank % stage : rank);
	return true;
}

struct ckpt_layout *layouts_of(const struct layouts *o, uint32_t rank)
{
	static struct ckpt_layout layout;
	static int64_t(*dims)[2];
	static int64_t whole[2];
	static char(*names)[64];

	if (!dims) {
		dims = calloc(2 * (size_t)o->tensors, sizeof(*dims));
		names = calloc(o->tensors, sizeof(*names));
		layout.entries = calloc(o->tensors, sizeof(*layout.entries));
		if (!dims || !names || !layout.entries)
			return NULL;
		for (unsigned i = 0; i < o->tensors; i++)
			(void)snprintf(names[i], sizeof(names[i]),
				"model.layers.%04u.self_attn.q_proj.weight", i);
	}
	whole[0] = layouts_rows(o);
	whole[1] = LAYOUTS_COLUMNS;
	layout.entry_count = 0;
	layout.bytes = layout.header_bytes = 4096;
	layout.chunk_bytes = CKPT_CHUNK_BYTES;
	for (unsigned i = 0; i < o->tensors; i++) {
		if (!box_of(o, i, rank, dims[2 * i], dims[2 * i + 1]))
			continue;
		struct ckpt_entry *e = &layout.entries[layout.entry_count++];
		*e = (struct ckpt_entry){.name = names[i],
			.dtype = CKPT_BF16,
			.ndim = 2,
			.shape = dims[2 * i + 1],
			.global_shape = whole,
			.global_start = dims[2 * i],
			.offset = layout.bytes,
			.nbytes = (uint64_t)dims[2 * i + 1][0] * LAYOUTS_COLUMNS * 2};
		layout.bytes += e->nbytes;
	}
	return &layout;
}

void layouts_write_index(
	const struct layouts *o, uint32_t rank, const char *path, struct ckpt_manifest_rank *record)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_layout *layout = layouts_of(o, rank);
	struct ckpt_buf out = {0};

	bench_must(layout ? 0 : -ENOMEM, NULL, "layout");
	bench_must(ckpt_layout_cut(layout, &err), &err, "layout");
	bench_must(ckpt_index_encode(layout, rank, NULL, 0, &out, &err), &err, "index");
	record->index_bytes = out.len;
	record->index_digest = ckpt_digest_of(out.data, out.len);
	record->shard_bytes = layout->bytes;
	bench_write_file(path, out.data, out.len);
	ckpt_buf_free(&out);
	free(layout->chunks);
	layout->chunks = NULL;
	layout->chunk_count = 0;
}
