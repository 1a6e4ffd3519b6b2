/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The process that keeps the descriptors of slots, where systemd does not: it does nothing else, so it does not crash. The
 * agent is its child. If that is killed, or crashes, it starts another one, which finds its slots again.
 */
#ifndef CKPT_AGENT_KEEPER_H
#define CKPT_AGENT_KEEPER_H

#include <ckpt/error.h>
#include "manager.h"

/* What the child does: it serves, and returns the exit code of the process. `manager`: see agent_manager_open(). */
typedef int agent_keeper_child(
	void *user, const char *manager, const struct agent_kept *kept, unsigned kept_count);

/*
 * Keeps for children until one ends by itself, or this process gets SIGTERM or SIGINT, which it passes on. They and SIGCHLD
 * are blocked. The socket of the protocol is made in `dir`. Returns the exit code of the last child, or sets `err`.
 */
int agent_keeper_run(
	const char *dir, agent_keeper_child *child, void *user, struct ckpt_error *err);

#endif
