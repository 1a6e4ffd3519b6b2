/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that may block on the disk. It can be abandoned while the disk does not respond. */
#include "io/io_pool.h"

#include <errno.h>
#include <stdio.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "io/io_queue.h"

struct ckpt_io_pool {
	pthread_mutex_t lock;
	pthread_cond_t ready;
	pthread_cond_t ended;
	struct ckpt_io_queue queue; /* guarded by lock */
	unsigned running;           /* threads that have not ended; guarded by lock */
	bool closing;               /* guarded by lock */
	struct ckpt_inbox *inbox;
	unsigned threads;
	pthread_t workers[];
};

static struct ckpt_io_req *next_request(struct ckpt_io_pool *pool)
{
	struct ckpt_io_req *req;

	pthread_mutex_lock(&pool->lock);
	while (!(req = ckpt_io_queue_take(&pool->queue)) && !pool->closing)
		(void)pthread_cond_wait(&pool->ready, &pool->lock);
	pthread_mutex_unlock(&pool->lock);
	return req;
}

static void *worker(void *argument)
{
	struct ckpt_io_pool *pool = argument;
	struct ckpt_io_req *req;

	while ((req = next_request(pool))) {
		ckpt_io_exec(req);
		ckpt_inbox_push(pool->inbox, &req->node);
	}
	pthread_mutex_lock(&pool->lock);
	pool->running--;
	pthread_cond_signal(&pool->ended);
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

static int start_workers(struct ckpt_io_pool *pool, unsigned threads, const char *label)
{
	while (pool->threads < threads) {
		char name[16];

		(void)snprintf(name, sizeof(name), "%.12s-%u", label, pool->threads % 100);
		pthread_mutex_lock(&pool->lock);
		pool->running++;
		pthread_mutex_unlock(&pool->lock);
		int r = ckpt_thread_start(&pool->workers[pool->threads], name, worker, pool);
		if (r < 0) {
			pthread_mutex_lock(&pool->lock);
			pool->running--;
			pthread_mutex_unlock(&pool->lock);
			/* Fewer threads are slower, but work. */
			return pool->threads > 0 ? 0 : r;
		}
		pool->threads++;
	}
	return 0;
}

static void destroy(struct ckpt_io_pool *pool)
{
	(void)pthread_cond_destroy(&pool->ended);
	(void)pthread_cond_destroy(&pool->ready);
	(void)pthread_mutex_destroy(&pool->lock);
	ckpt_free(pool);
}

int ckpt_io_pool_open(unsigned threads, const char *name, struct ckpt_inbox *inbox,
	struct ckpt_io_pool **ret_pool)
{
	struct ckpt_io_pool *pool;

	CKPT_ASSERT(threads > 0 && threads <= CKPT_IO_DEPTH_MAX);
	pool = ckpt_alloc(sizeof(*pool) + threads * sizeof(pool->workers[0]));
	if (!pool)
		return -ENOMEM;
	pool->inbox = inbox;
	int r = -pthread_mutex_init(&pool->lock, NULL);
	if (r < 0)
		goto free_pool;
	r = ckpt_cond_init(&pool->ready);
	if (r < 0)
		goto destroy_lock;
	r = ckpt_cond_init(&pool->ended);
	if (r < 0)
		goto destroy_ready;
	r = start_workers(pool, threads, name);
	if (r < 0) {
		destroy(pool);
		return r;
	}
	*ret_pool = pool;
	return 0;

destroy_ready:
	(void)pthread_cond_destroy(&pool->ready);
destroy_lock:
	(void)pthread_mutex_destroy(&pool->lock);
free_pool:
	ckpt_free(pool);
	return r;
}

unsigned ckpt_io_pool_threads(const struct ckpt_io_pool *pool)
{
	return pool->threads;
}

void ckpt_io_pool_push(struct ckpt_io_pool *pool, struct ckpt_io_req *req)
{
	pthread_mutex_lock(&pool->lock);
	CKPT_ASSERT(!pool->closing);
	ckpt_io_queue_put(&pool->queue, req);
	pthread_cond_signal(&pool->ready);
	pthread_mutex_unlock(&pool->lock);
}

int ckpt_io_pool_close(struct ckpt_io_pool *pool, uint64_t deadline_ns)
{
	bool ended;

	if (!pool)
		return 0;
	pthread_mutex_lock(&pool->lock);
	pool->closing = true;
	pthread_cond_broadcast(&pool->ready);
	while (pool->running > 0 && ckpt_cond_wait_until(&pool->ended, &pool->lock, deadline_ns))
		;
	ended = pool->running == 0;
	if (!ended)
		pool->queue = (struct ckpt_io_queue){0};
	pthread_mutex_unlock(&pool->lock);
	if (!ended)
		return -ETIMEDOUT;
	for (unsigned i = 0; i < pool->threads; i++)
		(void)pthread_join(pool->workers[i], NULL);
	destroy(pool);
	return 0;
}
