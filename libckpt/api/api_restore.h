/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification and an export share with a restore: making one. */
#ifndef CKPT_API_RESTORE_H
#define CKPT_API_RESTORE_H

#include "engine/restore/index_reader.h"
#include "engine/restore/restore.h"
#include "engine/runtime/runtime.h"

/* Checks the arguments and words what is wrong with them. */
int ckpt_api_restore_new(struct ckpt_engine *engine, uint64_t step, enum ckpt_restore_sink sink,
	struct ckpt_restore **ret_restore);
/* The step is open, and so many ranks wrote it. -EINVAL, -ERANGE, worded. */
int ckpt_api_check_rank(const struct ckpt_restore *restore, uint32_t rank);
/* Reads the index of a rank, and maybe its table. The caller releases the command. NULL: *ret_code says why, worded. */
struct ckpt_index_reader *ckpt_api_read_rank(
	const struct ckpt_restore *restore, uint32_t rank, bool with_table, int *ret_code);

#endif
