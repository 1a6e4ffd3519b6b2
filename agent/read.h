/* SPDX-License-Identifier: Apache-2.0 */
/* What there is to read, for any process of the user. */
#ifndef CKPT_AGENT_READ_H
#define CKPT_AGENT_READ_H

#include "session.h"

void agent_next(struct agent_session *session, const struct ckpt_peer_message *question);
void agent_fetch(struct agent_session *session, const struct ckpt_peer_message *question);
void agent_release(struct agent_session *session, const struct ckpt_peer_message *question);
void agent_tell_state(struct agent_session *session);

#endif
