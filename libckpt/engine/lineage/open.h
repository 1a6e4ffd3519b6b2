/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a store: marker, scan, and the lock on the newest claim that tells whether its holder lives. */
#ifndef CKPT_ENGINE_LINEAGE_OPEN_H
#define CKPT_ENGINE_LINEAGE_OPEN_H

#include "engine/lineage/opener.h"

/* Post it first, and once. Zeroed but for command_init. */
int ckpt_open_body(struct ckpt_task *task);
/* After END. */
void ckpt_opener_clear(struct ckpt_command *command);

#endif
