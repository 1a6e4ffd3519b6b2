/* SPDX-License-Identifier: Apache-2.0 */
/* Trials of jobs whose nodes have a store each (nodes.h). */
#ifndef CKPT_TESTS_TRIAL_NODES_H
#define CKPT_TESTS_TRIAL_NODES_H

#include "torture/torture.h"

/* Three steps in both stores. */
void trial_prepare_nodes(struct workload *d);
/* And a fourth one of a later start, which node b has not heard of, nor of that start. */
/* Nor does it know that the second one is durable. */
void trial_prepare_nodes_behind(struct workload *d);
/* Both stores are there, and nothing in them. */
void trial_prepare_nodes_new(struct workload *d);
/* Node b has lost its store, but for a file that is damaged. */
void trial_prepare_nodes_empty(struct workload *d);
/* There is one that was made for all nodes. */
void trial_prepare_nodes_strange(struct workload *d);

void trial_nodes(struct workload *d);
void trial_nodes_resume(struct workload *d);
void trial_nodes_empty(struct workload *d);
/* One of many ranks is given that: all hear of it, and none waits for the others. */
void trial_nodes_refused(struct workload *d);
/* Rank 0 comes to a step when it is over. */
void trial_nodes_late(struct workload *d);
/* One process reads what node b has. */
void trial_nodes_one(struct workload *d);

#endif
