/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encoded shards made of plain ones: with the functions of format/ and codec/ and the rule of the parts, and nothing of
 * what saves. Chunks lie in a random order, with gaps. Programs that use it need codec_dep.
 */
#ifndef CKPT_TESTS_ENCODE_FIXTURE_H
#define CKPT_TESTS_ENCODE_FIXTURE_H

#include "base/buf.h"
#include "format/encoded.h"
#include "lib/prng.h"
#include "lib/store_fixture.h"

/* What came of it. */
struct encode_fixture {
	size_t plain; /* chunks that are stored as they are */
	size_t parts;
	size_t refs;
	uint64_t bytes; /* of the file */
	long middle;    /* a byte of it that belongs to a chunk in the middle of the shard */
};

/* The file of a shard with this layout. */
void encode_fixture(const struct ckpt_layout *layout, const char *shard, struct prng *prng,
	struct ckpt_buf *out, struct encode_fixture *ret_made);
/* Puts an encoded shard in the place of the rank's plain one. */
void encode_fixture_rank(const struct fixture_step *step, uint32_t rank, struct prng *prng,
	struct encode_fixture *ret_made);
/* Path of the encoded shard, and its name below the store. The next calls write over the texts. */
const char *encode_fixture_path(const struct fixture_step *step, uint32_t rank);
const char *encode_fixture_name(const struct fixture_step *step, uint32_t rank);

#endif
