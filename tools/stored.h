/* SPDX-License-Identifier: Apache-2.0 */
/* How large the files of a step are, and how it is stored: --stored. */
#ifndef CKPT_TOOLS_STORED_H
#define CKPT_TOOLS_STORED_H

#include "cli.h"

/* Of the ranks that are here. */
struct stored {
	uint64_t bytes;      /* of their shards */
	uint64_t file_bytes; /* of their files */
	uint32_t encoded;    /* ranks with an encoded shard */
	uint32_t ranks;
	/* Of the chunks of encoded shards: by form and type; what no rank has is 0. */
	struct ckpt_stored_info chunks[CKPT_STORED_DIFFERENCE + 1][CKPT_DTYPE_END];
	json_t *by_rank; /* owned */
};

/* Reads the tables of all ranks that are here. Returns the library's code; free it in any case. */
int stored_read(
	const struct cli *cli, const struct ckpt_restore *restore, struct stored *ret_stored);
void stored_free(struct stored *stored);

/* How many times smaller the files are. */
double stored_ratio(uint64_t bytes, uint64_t file_bytes);
/* New reference. */
json_t *stored_object(const struct stored *stored);
void stored_print(const struct stored *stored);

#endif
