/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory slots may have: by the agent's configuration, and by the machine and its control groups. */
#ifndef CKPT_AGENT_MEMORY_H
#define CKPT_AGENT_MEMORY_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* "1.5 GiB" into `text`. */
#define AGENT_SIZE_TEXT 32
const char *agent_size_text(uint64_t bytes, char text[AGENT_SIZE_TEXT]);

/* What is available to this process, and in *ret_bound what limits it. UINT64_MAX: unknown. */
uint64_t agent_memory_available(const char **ret_bound);
/* What slots may have if nobody says it: half of what there is, with the `kept` bytes that slots have already. */
uint64_t agent_memory_default(uint64_t available, uint64_t kept);
/* Whether `bytes` can be had now, as slots of `slot` bytes each. -ENOMEM; sets `err`. */
int agent_memory_look(uint64_t bytes, uint64_t slot, struct ckpt_error *err);

#endif
