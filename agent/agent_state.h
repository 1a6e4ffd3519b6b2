/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of an agent share: all of it belongs to the loop. */
#ifndef CKPT_AGENT_AGENT_STATE_H
#define CKPT_AGENT_AGENT_STATE_H

#include "agent.h"
#include "maker.h"
#include "registry.h"

struct agent {
	struct agent_config config;
	struct agent_manager manager;
	struct agent_registry registry;
	struct agent_maker *maker;
	struct agent_session *sessions; /* also those that have ended */
	int epoll;
};

#endif
