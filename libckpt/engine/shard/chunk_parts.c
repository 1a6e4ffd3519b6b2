/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/shard/chunk_parts.h"

#include "format/dtype.h"

/* The elements of a tensor as the codec takes them. A complex number is two of its components. */
static void element_of(uint32_t dtype, unsigned *ret_width, enum ckpt_chunk_kind *ret_kind)
{
	*ret_width = ckpt_dtype_bytes(dtype);
	switch (dtype) {
	case CKPT_F32:
	case CKPT_F64:
	case CKPT_F8_E4M3:
	case CKPT_F8_E5M2:
	case CKPT_F8_E4M3FNUZ:
	case CKPT_F8_E5M2FNUZ:
		*ret_kind = CKPT_KIND_FLOAT;
		break;
	case CKPT_C64:
	case CKPT_C128:
		*ret_width /= 2;
		*ret_kind = CKPT_KIND_FLOAT;
		break;
	case CKPT_BF16:
		*ret_kind = CKPT_KIND_BF16;
		break;
	case CKPT_F16:
		*ret_kind = CKPT_KIND_F16;
		break;
	case CKPT_C32:
		*ret_width /= 2;
		*ret_kind = CKPT_KIND_F16;
		break;
	default:
		*ret_kind = CKPT_KIND_INT;
	}
}

void ckpt_chunk_parts_begin(
	struct ckpt_chunk_parts *parts, const struct ckpt_layout *layout, size_t chunk)
{
	const struct ckpt_chunk *c = &layout->chunks[chunk];
	const struct ckpt_entry *entry = ckpt_layout_at(layout, c->offset);

	*parts = (struct ckpt_chunk_parts){
		.layout = layout, .at = c->offset, .end = c->offset + c->length};
	if (entry) {
		parts->entry = (size_t)(entry - layout->entries);
		return;
	}
	parts->run =
		(struct ckpt_chunk_part){.offset = c->offset, .width = 1, .kind = CKPT_KIND_INT};
	parts->run_end = parts->end;
	parts->at = parts->end;
}

/* What the chunk holds of the tensor at parts->at, as a part of any length. False: no tensor is left. */
static bool next_piece(
	struct ckpt_chunk_parts *p, struct ckpt_chunk_part *ret_piece, uint64_t *ret_end)
{
	const struct ckpt_layout *layout = p->layout;

	while (p->at < p->end && layout->entries[p->entry].nbytes == 0)
		p->entry++;
	if (p->at == p->end)
		return false;
	CKPT_ASSERT(p->entry < layout->entry_count);
	const struct ckpt_entry *e = &layout->entries[p->entry];
	CKPT_ASSERT(p->at >= e->offset && p->at < e->offset + e->nbytes);
	*ret_end = ckpt_min_u64(e->offset + e->nbytes, p->end);
	*ret_piece = (struct ckpt_chunk_part){.offset = p->at, .entry = e};
	element_of(e->dtype, &ret_piece->width, &ret_piece->kind);
	/* Where chunks are cut within elements there are only bytes. */
	if ((p->at - e->offset) % ret_piece->width != 0 ||
		(*ret_end - p->at) % ret_piece->width != 0) {
		ret_piece->width = 1;
		ret_piece->kind = CKPT_KIND_INT;
	}
	return true;
}

/* Finds the next run of elements that are alike. */
static bool next_run(struct ckpt_chunk_parts *p)
{
	struct ckpt_chunk_part piece;
	uint64_t end;

	if (!next_piece(p, &p->run, &p->run_end))
		return false;
	bool small = p->run_end - p->at < CKPT_CHUNK_PART_SHARED;
	p->at = p->run_end;
	p->entry++;
	while (small && next_piece(p, &piece, &end)) {
		if (end - p->at >= CKPT_CHUNK_PART_SHARED || piece.width != p->run.width ||
			piece.kind != p->run.kind)
			break;
		p->run.entry = NULL;
		p->run_end = end;
		p->at = end;
		p->entry++;
	}
	return true;
}

bool ckpt_chunk_parts_next(struct ckpt_chunk_parts *parts, struct ckpt_chunk_part *ret_part)
{
	struct ckpt_chunk_part *run = &parts->run;

	if (run->offset == parts->run_end && !next_run(parts))
		return false;
	*ret_part = *run;
	ret_part->length =
		(uint32_t)ckpt_min_u64(parts->run_end - run->offset, CKPT_CODEC_CHUNK_BYTES);
	run->offset += ret_part->length;
	return true;
}
