/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bases of an encoded shard, opened: files of the same rank in earlier steps, with which its chunks are decoded. Each is
 * found by its index, as the shard of a step is, so that it may have been repaired or be stored plain.
 */
#ifndef CKPT_ENGINE_SHARD_BASES_H
#define CKPT_ENGINE_SHARD_BASES_H

#include "engine/shard/chain.h"
#include "engine/shard/shard.h"

/* Its own. */
struct ckpt_base {
	struct ckpt_manifest_rank rank;
	struct ckpt_rank_lister lister;
	struct ckpt_shard shard;
	struct ckpt_encoded *plain; /* what `shard` is, if it is stored plain */
};

struct ckpt_bases {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	/* The shard that has them. What is pointed to outlives this. */
	struct ckpt_store *store;
	const char *path;
	uint64_t generation;
	uint64_t step;
	uint32_t rank;
	const struct ckpt_layout *layout;
	const struct ckpt_encoded *encoded;
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	struct ckpt_chain chain; /* after success */
	unsigned count;

	/* Its own. */
	struct ckpt_base *items;
	unsigned at;
	struct ckpt_error why;
};

/* Zeroed, but for what comes before the first blank line. One after the other, each awaited. */

/*
 * Opens all of them. The codes are those of ckpt_shard_start_open(), and CKPT_EFORMAT for bases that cannot be those of the
 * shard.
 */
void ckpt_bases_start_open(struct ckpt_bases *bases);
/* Closes those that are open. Always succeeds. */
void ckpt_bases_start_shut(struct ckpt_bases *bases);

/* The file of base k, counted from 1. */
static inline struct ckpt_object *ckpt_bases_file(const struct ckpt_bases *bases, unsigned k)
{
	return &bases->items[k - 1].shard.file;
}

/* They have been shut, or were never opened. */
void ckpt_bases_clear(struct ckpt_bases *bases);

#endif
