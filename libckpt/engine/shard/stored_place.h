/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which the stored chunks of an encoded shard stand in its file, which need not be theirs. */
#ifndef CKPT_ENGINE_SHARD_STORED_PLACE_H
#define CKPT_ENGINE_SHARD_STORED_PLACE_H

#include <stddef.h>
#include <stdint.h>

struct ckpt_stored_place {
	uint64_t offset; /* of the stored bytes, in the file */
	size_t item;     /* whose they are */
};

/* By offset. Items that share one keep their order. */
void ckpt_stored_place_sort(struct ckpt_stored_place *places, size_t count);

#endif
