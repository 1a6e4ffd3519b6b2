/* SPDX-License-Identifier: Apache-2.0 */
/* Which slot a rank may write to, and when what is in it counts. */
#ifndef CKPT_AGENT_FILL_H
#define CKPT_AGENT_FILL_H

#include "session.h"

void agent_fill(struct agent_session *session, const struct ckpt_peer_message *question);
void agent_seal(struct agent_session *session, const struct ckpt_peer_message *question);

#endif
