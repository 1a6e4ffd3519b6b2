/* SPDX-License-Identifier: Apache-2.0 */
/* The programs, run inside of this one. */
#ifndef CKPT_TESTS_TRIAL_TOOLS_H
#define CKPT_TESTS_TRIAL_TOOLS_H

#include "kill/deed.h"

void trial_verify_tool(struct deed *d);
void trial_restore_tool(struct deed *d);
void trial_consolidate_tool(struct deed *d);

#endif
