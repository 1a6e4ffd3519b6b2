/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/encoders.h"

#include "base/alloc.h"

void ckpt_encoders_init(struct ckpt_encoders *encoders, size_t limit, uint32_t block_bytes,
	uint64_t chunk_bytes, uint32_t align)
{
	/* The first chunk that ends in a block may begin in the block before. */
	*encoders = (struct ckpt_encoders){.limit = limit,
		.align = align,
		.bytes = ckpt_align_up(
			block_bytes + chunk_bytes + ckpt_chunk_encode_room(0), align)};
}

static void free_encoder(struct ckpt_encoder *encoder)
{
	ckpt_chunk_scratch_close(&encoder->scratch);
	ckpt_free(encoder->memory);
	ckpt_free(encoder);
}

void ckpt_encoders_fini(struct ckpt_encoders *encoders)
{
	struct ckpt_encoder *next;

	for (struct ckpt_encoder *e = encoders->idle; e; e = next) {
		next = e->next;
		free_encoder(e);
		encoders->made--;
	}
	CKPT_ASSERT(encoders->made == 0);
	encoders->idle = NULL;
}

/* What a base saves makes a chain, so it has to be more than this share. */
#define BASE_MARGIN 0.25

/* Without memory for it, what this encoder encodes is predicted from nothing. */
static void add_base(struct ckpt_encoder *encoder)
{
	if (ckpt_chunk_scratch_add_base(&encoder->scratch) == 0)
		ckpt_codec_set_margin(encoder->scratch.codec, BASE_MARGIN);
}

static struct ckpt_encoder *make_encoder(const struct ckpt_encoders *encoders)
{
	struct ckpt_encoder *encoder = ckpt_alloc(sizeof(*encoder));

	if (!encoder)
		return NULL;
	encoder->memory = ckpt_alloc(encoders->bytes + encoders->align);
	if (!encoder->memory || ckpt_chunk_scratch_open(&encoder->scratch) < 0) {
		free_encoder(encoder);
		return NULL;
	}
	if (encoders->bases)
		add_base(encoder);
	uintptr_t at = (uintptr_t)encoder->memory;
	encoder->out = (uint8_t *)encoder->memory + (ckpt_align_up(at, encoders->align) - at);
	return encoder;
}

struct ckpt_encoder *ckpt_encoders_take(struct ckpt_encoders *encoders)
{
	struct ckpt_encoder *encoder = encoders->idle;

	if (encoder) {
		encoders->idle = encoder->next;
		return encoder;
	}
	if (encoders->made == encoders->limit)
		return NULL;
	encoder = make_encoder(encoders);
	encoders->made += encoder != NULL;
	return encoder;
}

void ckpt_encoders_give(struct ckpt_encoders *encoders, struct ckpt_encoder *encoder)
{
	encoder->next = encoders->idle;
	encoders->idle = encoder;
}

bool ckpt_encoders_secure(struct ckpt_encoders *encoders)
{
	if (encoders->made > 0)
		return true;
	struct ckpt_encoder *encoder = ckpt_encoders_take(encoders);
	if (encoder)
		ckpt_encoders_give(encoders, encoder);
	return encoder != NULL;
}
