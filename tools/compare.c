/* SPDX-License-Identifier: Apache-2.0 */
#include "compare.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define TARGETS_MAX 4096

/* Rows of one tensor, at `offset` in the buffers. */
struct part {
	struct compare_tensor *tensor;
	uint64_t first; /* element */
	uint64_t elements;
	uint64_t bytes;
	uint64_t offset;
	int64_t start[CKPT_NDIM_MAX];
	int64_t shape[CKPT_NDIM_MAX];
};

struct batch {
	struct part parts[TARGETS_MAX];
	struct ckpt_target targets[TARGETS_MAX];
	size_t count;
	uint64_t bytes;
};

static uint64_t rows_of(const struct compare_tensor *t)
{
	return t->info.ndim ? (uint64_t)t->info.shape[0] : 1;
}

static void add_part(struct batch *batch, struct compare_tensor *t, uint64_t row, uint64_t rows)
{
	struct part *part = &batch->parts[batch->count++];
	uint64_t row_bytes = t->info.nbytes / rows_of(t);
	uint64_t row_elements = t->elements / rows_of(t);

	*part = (struct part){.tensor = t,
		.first = row * row_elements,
		.elements = rows * row_elements,
		.bytes = rows * row_bytes,
		.offset = batch->bytes};
	for (uint32_t i = 0; i < t->info.ndim; i++)
		part->shape[i] = t->info.shape[i];
	if (t->info.ndim) {
		part->start[0] = (int64_t)row;
		part->shape[0] = (int64_t)rows;
	}
	batch->bytes += part->bytes;
}

/* Fills the next batch. False: there is none. */
static bool fill(struct compare *c, struct batch *batch)
{
	batch->count = 0;
	batch->bytes = 0;
	while (c->tensor < c->count && batch->count < TARGETS_MAX) {
		struct compare_tensor *t = &c->tensors[c->tensor];
		uint64_t left = t->elements ? rows_of(t) - c->row : 0;
		uint64_t row_bytes = left ? t->info.nbytes / rows_of(t) : 0;
		uint64_t room = c->batch_bytes > batch->bytes ? c->batch_bytes - batch->bytes : 0;
		uint64_t rows = left && room / row_bytes < left ? room / row_bytes : left;

		if (left && rows == 0 && batch->count > 0)
			break;
		if (left && rows == 0)
			rows = 1;
		if (left)
			add_part(batch, t, c->row, rows);
		c->row += rows;
		if (rows < left)
			break;
		c->row = 0;
		c->tensor++;
	}
	return batch->count > 0;
}

static int make_room(struct compare *c, uint64_t bytes)
{
	if (bytes <= c->buffer_bytes)
		return 0;
	c->buffer_bytes = 0;
	for (int i = 0; i < COMPARE_SIDES; i++) {
		free(c->buffers[i]);
		c->buffers[i] = malloc(bytes);
		if (!c->buffers[i])
			return -ENOMEM;
	}
	c->buffer_bytes = bytes;
	return 0;
}

static int read_side(struct compare *c, struct batch *batch, int side)
{
	struct ckpt_restore *restore = NULL;

	for (size_t i = 0; i < batch->count; i++) {
		const struct part *part = &batch->parts[i];
		const struct ckpt_tensor_info *info = &part->tensor->info;
		batch->targets[i] = (struct ckpt_target){.size = sizeof(struct ckpt_target),
			.dtype = info->dtype,
			.name = info->name,
			.data = c->buffers[side] + part->offset,
			.ndim = info->ndim,
			.shape = info->ndim ? part->shape : NULL,
			.start = info->ndim ? part->start : NULL};
	}
	int r = cli_open_step(c->cli, c->engines[side], c->steps[side], &restore);
	if (r == 0 && ckpt_restore_generation(restore) != c->generations[side])
		r = -ESTALE;
	if (r == 0)
		r = ckpt_restore_bind(restore, batch->targets, batch->count);
	if (r == 0)
		r = ckpt_restore_start(restore);
	if (r == 0)
		r = cli_wait(c->cli, restore, "comparing");
	ckpt_restore_free(restore);
	return r;
}

static void compare_part(const struct compare *c, const struct part *part)
{
	const char *a = c->buffers[0] + part->offset;
	const char *b = c->buffers[1] + part->offset;
	uint64_t size = part->bytes / part->elements;
	struct compare_tensor *t = part->tensor;

	if (memcmp(a, b, part->bytes) == 0)
		return;
	for (uint64_t i = 0; i < part->elements; i++) {
		if (memcmp(a + i * size, b + i * size, size) == 0)
			continue;
		if (t->differing++ == 0)
			t->first = part->first + i;
	}
}

static int run(struct compare *c, struct batch *batch)
{
	while (fill(c, batch)) {
		int r = make_room(c, batch->bytes);
		for (int side = 0; r == 0 && side < COMPARE_SIDES; side++)
			r = read_side(c, batch, side);
		if (r < 0)
			return r;
		for (size_t i = 0; i < batch->count; i++)
			compare_part(c, &batch->parts[i]);
	}
	return 0;
}

int compare_run(struct compare *compare)
{
	struct batch *batch = malloc(sizeof(*batch));
	int r = batch ? run(compare, batch) : -ENOMEM;

	free(batch);
	for (int i = 0; i < COMPARE_SIDES; i++)
		free(compare->buffers[i]);
	return r;
}
