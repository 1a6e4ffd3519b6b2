/* SPDX-License-Identifier: Apache-2.0 */
/* The real environment: the system's clocks and random source, and a pool of workers. */
#include "base/env.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "base/thread.h"

#define WORKERS_MAX    1024
#define NAME_MAX_CHARS 8 /* characters of a worker's name before its number */

struct job_list {
	struct ckpt_job *head;
	struct ckpt_job *tail;
};

struct ckpt_env_os {
	struct ckpt_env env;
	pthread_mutex_t lock;
	pthread_cond_t ready;
	struct job_list urgent; /* guarded by lock */
	struct job_list normal; /* guarded by lock */
	bool closing;           /* guarded by lock */
	unsigned threads;
	pthread_t workers[];
};

static uint64_t os_now_ns(struct ckpt_env *env)
{
	(void)env;
	return ckpt_clock_ns();
}

static uint64_t os_age_ns(struct ckpt_env *env)
{
	(void)env;
	return ckpt_age_clock_ns();
}

static uint64_t os_wall_ms(struct ckpt_env *env)
{
	struct timespec now;

	(void)env;
	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t os_random(struct ckpt_env *env)
{
	uint64_t value = 0;
	ssize_t got;

	(void)env;
	/* ckpt_env_os_open() has tried it, and so few bytes are never interrupted. */
	got = getrandom(&value, sizeof(value), 0);
	CKPT_ASSERT(got == (ssize_t)sizeof(value));
	return value;
}

static void push(struct job_list *list, struct ckpt_job *job)
{
	if (list->tail)
		list->tail->next = job;
	else
		list->head = job;
	list->tail = job;
}

static struct ckpt_job *pop(struct job_list *list)
{
	struct ckpt_job *job = list->head;

	if (!job)
		return NULL;
	list->head = job->next;
	if (!list->head)
		list->tail = NULL;
	job->next = NULL;
	return job;
}

static void os_run(struct ckpt_env *env, struct ckpt_job *job)
{
	struct ckpt_env_os *os = CKPT_CONTAINER(env, struct ckpt_env_os, env);

	pthread_mutex_lock(&os->lock);
	CKPT_ASSERT(!os->closing);
	push(job->urgent ? &os->urgent : &os->normal, job);
	pthread_cond_signal(&os->ready);
	pthread_mutex_unlock(&os->lock);
}

static const struct ckpt_env_ops os_ops = {
	.name = "os",
	.now_ns = os_now_ns,
	.age_ns = os_age_ns,
	.wall_ms = os_wall_ms,
	.random = os_random,
	.run = os_run,
};

/* The next job, or NULL when the pool closes and no job is left. */
static struct ckpt_job *next_job(struct ckpt_env_os *os)
{
	struct ckpt_job *job;

	pthread_mutex_lock(&os->lock);
	for (;;) {
		job = pop(&os->urgent);
		if (!job)
			job = pop(&os->normal);
		if (job || os->closing)
			break;
		(void)pthread_cond_wait(&os->ready, &os->lock);
	}
	pthread_mutex_unlock(&os->lock);
	return job;
}

static void *worker(void *argument)
{
	struct ckpt_env_os *os = argument;
	struct ckpt_job *job;

	while ((job = next_job(os))) {
		job->work(job);
		ckpt_inbox_push(os->env.inbox, &job->node);
	}
	return NULL;
}

static void end_workers(struct ckpt_env_os *os)
{
	pthread_mutex_lock(&os->lock);
	os->closing = true;
	pthread_cond_broadcast(&os->ready);
	pthread_mutex_unlock(&os->lock);
	for (unsigned i = 0; i < os->threads; i++)
		(void)pthread_join(os->workers[i], NULL);
}

static void put_name(char out[16], const char *name, unsigned number)
{
	(void)snprintf(out, 16, "%s-%u", name, number);
}

static int start_workers(struct ckpt_env_os *os, unsigned threads)
{
	for (unsigned i = 0; i < threads; i++) {
		char name[16];
		int r;

		put_name(name, "ckpt-work", i);
		r = ckpt_thread_start(&os->workers[i], name, worker, os);
		if (r < 0)
			return r;
		os->threads++;
	}
	return 0;
}

int ckpt_env_os_open(unsigned threads, struct ckpt_inbox *inbox, struct ckpt_env_os **ret_env)
{
	struct ckpt_env_os *os;
	uint64_t probe;
	int r;

	if (threads == 0 || threads > WORKERS_MAX)
		return -EINVAL;
	if (getrandom(&probe, sizeof(probe), 0) < 0)
		return -errno;
	os = ckpt_alloc(sizeof(*os) + threads * sizeof(os->workers[0]));
	if (!os)
		return -ENOMEM;
	os->env = (struct ckpt_env){.ops = &os_ops, .inbox = inbox};
	r = -pthread_mutex_init(&os->lock, NULL);
	if (r < 0)
		goto free_os;
	r = ckpt_cond_init(&os->ready);
	if (r < 0)
		goto destroy_lock;
	r = start_workers(os, threads);
	if (r < 0)
		goto stop_workers;
	*ret_env = os;
	return 0;

stop_workers:
	end_workers(os);
	(void)pthread_cond_destroy(&os->ready);
destroy_lock:
	(void)pthread_mutex_destroy(&os->lock);
free_os:
	ckpt_free(os);
	return r;
}

void ckpt_env_os_name(struct ckpt_env_os *os, const char *name)
{
	char text[16];

	CKPT_ASSERT(strlen(name) <= NAME_MAX_CHARS);
	for (unsigned i = 0; i < os->threads; i++) {
		put_name(text, name, i);
		(void)pthread_setname_np(os->workers[i], text);
	}
}

struct ckpt_env *ckpt_env_os_env(struct ckpt_env_os *os)
{
	return &os->env;
}

unsigned ckpt_env_os_threads(const struct ckpt_env_os *os)
{
	return os->threads;
}

void ckpt_env_os_close(struct ckpt_env_os *os)
{
	if (!os)
		return;
	end_workers(os);
	(void)pthread_cond_destroy(&os->ready);
	(void)pthread_mutex_destroy(&os->lock);
	ckpt_free(os);
}
