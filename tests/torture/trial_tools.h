/* SPDX-License-Identifier: Apache-2.0 */
/* The programs, run inside of this one. */
#ifndef CKPT_TESTS_TRIAL_TOOLS_H
#define CKPT_TESTS_TRIAL_TOOLS_H

#include "kill/workload.h"

void trial_verify_tool(struct workload *d);
void trial_restore_tool(struct workload *d);
void trial_consolidate_tool(struct workload *d);

#endif
