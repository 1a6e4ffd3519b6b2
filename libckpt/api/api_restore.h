/* SPDX-License-Identifier: Apache-2.0 */
/* What a verification and an export share with a restore: making one. */
#ifndef CKPT_API_RESTORE_H
#define CKPT_API_RESTORE_H

#include "engine/restore/restore.h"
#include "engine/runtime/runtime.h"

/* Checks the arguments and words what is wrong with them. */
int ckpt_api_restore_new(struct ckpt_engine *engine, uint64_t step, enum ckpt_restore_sink sink,
	struct ckpt_restore **ret_restore);

#endif
