/* SPDX-License-Identifier: Apache-2.0 */
/* The core's inbox: a list with a lock, taken as a whole. */
#include "base/inbox.h"

#include "base/thread.h"

int ckpt_inbox_init(struct ckpt_inbox *inbox)
{
	int r;

	*inbox = (struct ckpt_inbox){0};
	r = pthread_mutex_init(&inbox->lock, NULL);
	if (r != 0)
		return -r;
	r = ckpt_cond_init(&inbox->ready);
	if (r < 0)
		(void)pthread_mutex_destroy(&inbox->lock);
	return r;
}

void ckpt_inbox_destroy(struct ckpt_inbox *inbox)
{
	CKPT_ASSERT(!inbox->head);
	(void)pthread_cond_destroy(&inbox->ready);
	(void)pthread_mutex_destroy(&inbox->lock);
}

void ckpt_inbox_push(struct ckpt_inbox *inbox, struct ckpt_node *node)
{
	CKPT_ASSERT(node->run);
	node->next = NULL;
	pthread_mutex_lock(&inbox->lock);
	if (inbox->tail)
		inbox->tail->next = node;
	else
		inbox->head = node;
	inbox->tail = node;
	/* With the lock held: once it is released, the inbox may be freed. */
	pthread_cond_signal(&inbox->ready);
	pthread_mutex_unlock(&inbox->lock);
}

struct ckpt_node *ckpt_inbox_take(struct ckpt_inbox *inbox)
{
	struct ckpt_node *all;

	pthread_mutex_lock(&inbox->lock);
	all = inbox->head;
	inbox->head = NULL;
	inbox->tail = NULL;
	pthread_mutex_unlock(&inbox->lock);
	return all;
}

void ckpt_inbox_wait(struct ckpt_inbox *inbox, uint64_t deadline_ns)
{
	pthread_mutex_lock(&inbox->lock);
	while (!inbox->head) {
		if (!ckpt_cond_wait_until(&inbox->ready, &inbox->lock, deadline_ns))
			break;
	}
	pthread_mutex_unlock(&inbox->lock);
}
