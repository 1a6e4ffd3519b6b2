/* SPDX-License-Identifier: Apache-2.0 */
/* A queue of requests, linked through the requests. */
#ifndef CKPT_IO_IO_QUEUE_H
#define CKPT_IO_IO_QUEUE_H

#include "io/io.h"

struct ckpt_io_queue {
	struct ckpt_io_req *head;
	struct ckpt_io_req *tail;
};

static inline void ckpt_io_queue_put(struct ckpt_io_queue *queue, struct ckpt_io_req *req)
{
	req->next = NULL;
	if (queue->tail)
		queue->tail->next = req;
	else
		queue->head = req;
	queue->tail = req;
}

static inline struct ckpt_io_req *ckpt_io_queue_take(struct ckpt_io_queue *queue)
{
	struct ckpt_io_req *req = queue->head;

	if (!req)
		return NULL;
	queue->head = req->next;
	if (!queue->head)
		queue->tail = NULL;
	req->next = NULL;
	return req;
}

#endif
