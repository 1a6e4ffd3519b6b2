/* SPDX-License-Identifier: Apache-2.0 */
/* Claiming a generation: once, by atomic create, locked from its first moment. */
#ifndef CKPT_ENGINE_CLAIM_H
#define CKPT_ENGINE_CLAIM_H

#include "engine/core.h"

struct ckpt_claimer {
	struct ckpt_command command;
	struct ckpt_store_op op;
	struct ckpt_buf buf;
	struct ckpt_claim claim;
	struct ckpt_object lock;
	char path[CKPT_PATH_MAX];
	struct ckpt_task work;
	uint64_t newest; /* claim that is there; 0: none */
};

/*
 * Claims, if this core has not claimed yet; `claim` says what. -EBUSY while another one has not ended.
 * Afterwards what dead generations left behind is settled in the background.
 */
int ckpt_claim_body(struct ckpt_task *task);
/* After END. */
void ckpt_claimer_clear(struct ckpt_command *command);

#endif
