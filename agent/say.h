/* SPDX-License-Identifier: Apache-2.0 */
/* What the agent and its keeper say on stderr. They hold other people's memory, so nobody who does not read stops them. */
#ifndef CKPT_AGENT_SAY_H
#define CKPT_AGENT_SAY_H

#include "base/compiler.h"

/* One line, after "ckptd: ". It is lost if nobody can take it now. */
CKPT_PRINTF(1, 2)
void agent_say(const char *fmt, ...);

#endif
