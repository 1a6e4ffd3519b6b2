/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in which the blocks of a save are encoded. It is made when it is first needed, and kept from save to save. */
#ifndef CKPT_ENGINE_SAVE_ENCODERS_H
#define CKPT_ENGINE_SAVE_ENCODERS_H

#include "engine/shard/chunk_encode.h"

struct ckpt_encoder {
	struct ckpt_chunk_scratch scratch;
	uint8_t *out; /* aligned; room for the chunks that end in a block, and to pad them */
	void *memory;
	struct ckpt_encoder *next;
};

/* The core's thread. */
struct ckpt_encoders {
	size_t limit;
	size_t made;
	size_t bytes; /* of `out` */
	uint32_t align;
	bool bases; /* chunks may be predicted from those of an earlier step */
	struct ckpt_encoder *idle;
};

void ckpt_encoders_init(struct ckpt_encoders *encoders, size_t limit, uint32_t block_bytes,
	uint64_t chunk_bytes, uint32_t align);
/* All are back. */
void ckpt_encoders_fini(struct ckpt_encoders *encoders);

/* One that is idle. NULL: all are in use, or there is no memory for one more. */
struct ckpt_encoder *ckpt_encoders_take(struct ckpt_encoders *encoders);
void ckpt_encoders_give(struct ckpt_encoders *encoders, struct ckpt_encoder *encoder);
/* Sees to it that there is one, idle or in use, so that waiting for it has an end. False: there is no memory for it. */
bool ckpt_encoders_secure(struct ckpt_encoders *encoders);

#endif
