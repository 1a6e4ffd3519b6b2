/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job whose nodes have a store each: ranks 0 and 1 on node a, 2 and 3 on node b, which see nothing of each
 * other's directory. All are in this process, each begun by a thread of its own.
 */
#ifndef CKPT_TESTS_API_NODE_JOB_H
#define CKPT_TESTS_API_NODE_JOB_H

#include "api/table.h"

#define WORLD 4
#define NODES 2
#define COUNT ((int64_t)20000)

#define STEP(number) "g000001/step-000000000" #number "/manifest.json"

struct job;

struct rank {
	struct job *job;
	uint32_t number;
	uint32_t node;
	struct table_service service;
	pthread_t thread;
	struct ckpt_engine *engine;
	struct ckpt_save *save;
	struct kit_vector vector;
	int result;
	char why[512];
	uint64_t step; /* that it is to save or has resumed */
	bool absent;   /* it saves nothing */
};

struct job {
	char *dir;
	char stores[NODES][200];
	struct table table;
	unsigned starts;
	uint32_t save_ms; /* until a save is given up; 0: long */
	uint64_t keep_last;
	bool one_name;
	char remote[300];            /* empty: none */
	uint64_t remote_bytes_per_s; /* of a node; 0: no bound */
	uint32_t flags;              /* beside that of stores on nodes */
	struct rank ranks[WORLD];
};

extern const char *const job_node_names[NODES];

int job_set_up(void **state);
int job_tear_down(void **state);

/* The same on all ranks at once. */
void job_each(struct job *job, void *(*body)(void *rank));
/* Of such a body: its result, and the library's words for it. */
void job_note(struct rank *rank, int result);
void job_all_must_work(const struct job *job);
void job_all_must_fail(const struct job *job, int code, const char *why);

/* A start of the job. What it comes to is noted; job_open(): it works. */
void job_try_open(struct job *job);
void job_open(struct job *job);
void job_close(struct job *job);
void job_try_save(struct job *job, uint64_t step);
void job_save(struct job *job, uint64_t step);
/* A start that saves steps 1 and 2, and ends. */
void job_save_two(struct job *job);

/* Restores the newest step and adopts it, or notes why not. A body for job_each(). */
void *job_resume_one(void *argument);
/* All ranks do; the step, which is the same on all of them. */
uint64_t job_resume(struct job *job);
void job_resume_in_vain(struct job *job, int code);
/* A start of the job, which goes on from that step. */
void job_must_resume(struct job *job, uint64_t step);

/* In the store of a node. The last four paths stay. */
char *job_path(const struct job *job, uint32_t node, const char *name);
bool job_exists(const struct job *job, uint32_t node, const char *name);
/* A file is the same in both stores. */
void job_must_be_alike(const struct job *job, const char *name);

#endif
