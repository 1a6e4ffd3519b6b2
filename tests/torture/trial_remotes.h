/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of a store whose steps go on to a remote one (remotes.h). */
#ifndef CKPT_TESTS_TRIAL_REMOTES_H
#define CKPT_TESTS_TRIAL_REMOTES_H

#include "torture/torture.h"

/* Three steps in both stores; in the remote one alone; in both, and the local third one is damaged. */
void trial_prepare_remote(struct workload *d);
void trial_prepare_remote_only(struct workload *d);
void trial_prepare_remote_bad(struct workload *d);

/* Two steps go there by themselves. */
void trial_remote(struct workload *d);
/* What is there already, and not in the remote store, goes first. */
void trial_remote_resume(struct workload *d);
/* What is damaged here is mended. */
void trial_remote_repair(struct workload *d);
/* The newest one stays there. */
void trial_remote_retention(struct workload *d);

#endif
