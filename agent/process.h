/* SPDX-License-Identifier: Apache-2.0 */
/* The process at the other end of a connection: whether it is gone, and with it what it has mapped. */
#ifndef CKPT_AGENT_PROCESS_H
#define CKPT_AGENT_PROCESS_H

#include "base/compiler.h"

struct agent_process {
	unsigned users;
	uint32_t pid; /* 0: of another PID namespace */
	int pidfd; /* -1: the kernel has none for it, and it counts as gone when its connection ends */
};

/* NULL: out of memory. */
struct agent_process *agent_process_of(int socket);
struct agent_process *agent_process_use(struct agent_process *process);
/* NULL is ignored. */
void agent_process_let_go(struct agent_process *process);
/* False also if nobody can know. NULL: false. */
bool agent_process_lives(const struct agent_process *process);

#endif
