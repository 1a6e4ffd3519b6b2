/* SPDX-License-Identifier: Apache-2.0 */
/* A rank comes and goes: who it is, what memory it gets, and which older processes end with that. */
#ifndef CKPT_AGENT_ATTACH_H
#define CKPT_AGENT_ATTACH_H

#include "session.h"

void agent_attach(struct agent_session *session, const struct ckpt_peer_message *question);
void agent_unmapped(struct agent_session *session);
void agent_detach(struct agent_session *session);

#endif
