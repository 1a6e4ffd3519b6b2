/* SPDX-License-Identifier: Apache-2.0 */
/* What the targets of a shard share: what must hold of an index, and mutating one. */
#ifndef CKPT_TESTS_FUZZ_SHARD_H
#define CKPT_TESTS_FUZZ_SHARD_H

#include "format/index.h"
#include "fuzz.h"

/* Lengths of chunks, as section 7 of FORMAT.md cuts them. */
struct fuzz_cut {
	uint64_t chunk_bytes;
	uint64_t *lengths;
	size_t count; /* `max` + 1: there are more */
	size_t max;
};
void fuzz_cut_shard(
	struct fuzz_cut *cut, uint64_t header_bytes, const uint64_t *sizes, size_t count);

/* A decoded index keeps to section 8 and 17. */
void fuzz_check_index(const struct ckpt_index *index);
bool fuzz_same_index(const struct ckpt_index *one, const struct ckpt_index *other);

/* The digest at the end fits, and mostly the rest too. */
size_t fuzz_mutate_index(uint8_t *data, size_t size, size_t max, struct prng *prng);

#endif
