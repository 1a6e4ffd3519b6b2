/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs whose nodes have a store each. Rank 0 is alone on node a; all others are on node b, which rank 1 keeps.
 * Each line of the log begins with the rank that says so, and there are two more:
 *
 *	away STEP        what it wrote on its node was taken away on purpose
 *	back STEP        its node was put back to before it knew that this is durable
 */
#ifndef CKPT_TESTS_NODES_H
#define CKPT_TESTS_NODES_H

#include "torture/torture.h"

/* The ranks of the trial that is made, if it is one of such a job; else 0. */
unsigned nodes_ranks(void);
unsigned nodes_of(unsigned rank);
/* The store of a node; to be freed. */
char *nodes_store(const struct workload *d, unsigned node);
/* Gives the deed of a rank the store of its node, which is to be freed. */
void nodes_settle(struct workload *d, unsigned rank);

/*
 * What must hold afterwards. In each store is all that one of its ranks was told is durable, and nothing that
 * one of any node was told is over; what is there is whole. The next start of the job finds all of it on all
 * nodes, resumes from the newest, and goes on.
 */
void nodes_aftermath(struct workload *d);

#endif
