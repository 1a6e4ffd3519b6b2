/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all reads of encoded shards in an engine share: decoders, and a bound of the stored bytes that they hold.
 *
 * Nobody waits in a circle. A read that holds no stored bytes may hold those of one block, whatever the others hold. A
 * block that has its stored bytes needs nothing more but a decoder, for itself and for the blocks before it, which have
 * theirs. A decoder is lent to a job that was given to the workers, and comes back when that ends: it waits for nothing.
 * The core's thread.
 */
#ifndef CKPT_ENGINE_SHARD_DECODERS_H
#define CKPT_ENGINE_SHARD_DECODERS_H

#include "engine/core/core.h"
#include "engine/shard/chunk_decode.h"

#define CKPT_DECODERS_MAX 8

/* Of one read. Zero: it has not joined. */
struct ckpt_decoder_share {
	struct ckpt_core *core;
	struct ckpt_task *task; /* woken when something has come back */
	uint64_t shard;         /* its number */
	uint64_t chunk_bytes;   /* of its largest chunk */
	bool based;             /* its chunks may have a base */
	uint64_t bytes;         /* stored bytes that it holds */
	struct ckpt_decoder_share *next;
};

/*
 * Before anything else; core->decoders is there as long as one has joined. `based`: chunks may have a base. -ENOMEM.
 */
int ckpt_decoders_join(struct ckpt_decoder_share *share, struct ckpt_core *core,
	const struct ckpt_layout *layout, bool based, struct ckpt_task *task);
/* It holds nothing. One that has not joined is ignored. */
void ckpt_decoders_leave(struct ckpt_decoder_share *share);

/* *ret_decoder NULL: all are lent, and `task` is woken when one comes back. -ENOMEM: there is no memory for even one. */
int ckpt_decoders_lend(struct ckpt_decoder_share *share, struct ckpt_chunk_decoder **ret_decoder);
void ckpt_decoders_give_back(
	struct ckpt_decoder_share *share, const struct ckpt_chunk_decoder *decoder);

/* Whether it may hold so many more stored bytes, those of one block. False: `task` is woken when others let go of some. */
bool ckpt_decoders_may_hold(const struct ckpt_decoder_share *share, uint64_t bytes);
void ckpt_decoders_hold(struct ckpt_decoder_share *share, uint64_t bytes);
void ckpt_decoders_let_go(struct ckpt_decoder_share *share, uint64_t bytes);

#endif
