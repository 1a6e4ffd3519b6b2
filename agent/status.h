/* SPDX-License-Identifier: Apache-2.0 */
/* ckptd --status: what the agent of a directory has. */
#ifndef CKPT_AGENT_STATUS_H
#define CKPT_AGENT_STATUS_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* Prints it to standard output, as JSON or for people. Sets `err`: -ENOENT and -ECONNREFUSED mean that there is no agent. */
int agent_status(const char *dir, bool json, struct ckpt_error *err);

#endif
