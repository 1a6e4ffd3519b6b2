/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the index of one rank of an open step, for callers that need what the rank saved beside its tensors; and, if
 * they ask how these are stored, the table of its shard.
 */
#ifndef CKPT_ENGINE_RESTORE_INDEX_READER_H
#define CKPT_ENGINE_RESTORE_INDEX_READER_H

#include "engine/restore/restore.h"
#include "engine/shard/shard.h"

struct ckpt_index_reader {
	struct ckpt_command command;
	struct ckpt_restore *restore; /* with a reference, which the command releases */
	uint32_t rank;
	bool with_table;
	struct ckpt_index *index;     /* set on success; a caller that takes it sets NULL */
	struct ckpt_encoded *encoded; /* with_table: that of an encoded shard; NULL: it is plain */
	uint64_t file_bytes;          /* with_table: of the shard */

	/* Private. */
	struct ckpt_shard shard;
	struct ckpt_rank_lister lister;
	int stop;
	int code;
};

/* For ckpt_runtime_command(). */
void ckpt_index_reader_clear(struct ckpt_command *command);
/* CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, CKPT_ECLOSED, -ENOMEM, system errors. */
int ckpt_index_reader_body(struct ckpt_task *task);

#endif
