/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the index of one rank of an open step, for who asks what that rank saved beside its tensors. */
#ifndef CKPT_ENGINE_INDEXER_H
#define CKPT_ENGINE_INDEXER_H

#include "engine/restore.h"
#include "engine/shard.h"

struct ckpt_indexer {
	struct ckpt_command command;
	struct ckpt_restore *restore; /* with a reference, which goes with the command */
	uint32_t rank;
	struct ckpt_index *index; /* when it has ended well; whoever takes it sets NULL */

	/* Its own. */
	struct ckpt_shard shard;
	int stop;
};

/* For ckpt_runtime_command(). */
void ckpt_indexer_clear(struct ckpt_command *command);
/* CKPT_EINCOMPLETE, CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION, CKPT_ECLOSED, -ENOMEM, system errors. */
int ckpt_indexer_body(struct ckpt_task *task);

#endif
