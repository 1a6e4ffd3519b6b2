/* SPDX-License-Identifier: Apache-2.0 */
/* The agent of a node: serves slots of memory to the ranks of its user. */
#ifndef CKPT_AGENT_AGENT_H
#define CKPT_AGENT_AGENT_H

#include "directory.h"
#include "manager.h"

struct agent_config {
	uint64_t memory;   /* bytes that slots may have together */
	uint64_t linger_s; /* how long slots stay that no rank has */
};

/*
 * Serves the directory's socket until SIGTERM or SIGINT, which are blocked. `kept` are the descriptors that the manager has
 * kept; they are taken. Returns 0, or sets `err`.
 */
int agent_run(const struct agent_config *config, const struct agent_directory *directory,
	const char *manager, const struct agent_kept *kept, unsigned kept_count,
	struct ckpt_error *err);

#endif
