/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages to the core. Any thread pushes a node that it owns; the core takes all nodes, in order, and runs each on its
 * thread. Nodes are embedded in what they carry (a request, a job, a command), so a push allocates nothing and cannot
 * fail, and the owners bound the queue.
 */
#ifndef CKPT_BASE_INBOX_H
#define CKPT_BASE_INBOX_H

#include <pthread.h>
#include "base/compiler.h"

struct ckpt_node {
	struct ckpt_node *next;
	void (*run)(struct ckpt_node *node); /* on the core's thread, once per push */
};

struct ckpt_inbox {
	pthread_mutex_t lock;
	pthread_cond_t ready;
	struct ckpt_node *head; /* guarded by lock */
	struct ckpt_node *tail; /* guarded by lock */
};

int ckpt_inbox_init(struct ckpt_inbox *inbox);
void ckpt_inbox_destroy(struct ckpt_inbox *inbox);
/* Hands over `node`. Any thread. */
void ckpt_inbox_push(struct ckpt_inbox *inbox, struct ckpt_node *node);
/* Everything pushed so far, oldest first, or NULL. */
struct ckpt_node *ckpt_inbox_take(struct ckpt_inbox *inbox);
/* Waits until it is not empty, or until `deadline_ns` of the monotonic clock (UINT64_MAX: none). */
void ckpt_inbox_wait(struct ckpt_inbox *inbox, uint64_t deadline_ns);

#endif
