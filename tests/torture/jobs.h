/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two ranks, or of more, in one process, each with a thread that goes through the same errands. What
 * one of them is told must go together with what the others are. A step holds what a deed saves alone: a part
 * of the first tensor is each rank's, and the others they all have. In a trial with nodes (nodes.h) each rank
 * has the store of its node, and gets back what it has saved itself.
 */
#ifndef CKPT_TESTS_JOBS_H
#define CKPT_TESTS_JOBS_H

#include "torture/errands.h"

#define JOB_RANKS TORTURE_RANKS

struct job;

struct job_rank {
	struct job *job;
	unsigned number;
	struct workload workload; /* with a state of its own */
	struct workload want;     /* what that should be */
	struct ckpt_exchange_server *server;
	uint64_t generation; /* of the step that was restored */
};

struct job_opts {
	const char *session;
	bool served; /* the exchange is a table that this process serves, not files in the store */
	bool skips;
	bool copies; /* all ranks have all of every tensor */
	bool deaf; /* served: rank 0 hears how a reading has ended after it has told that itself */
	bool in_turn;    /* rank 0 begins to read when the others have ended */
	unsigned absent; /* so many more ranks never come */
	bool refused;    /* none is to be opened */
	uint32_t timeout_ms;
};

/* Runs `body` for all ranks at once. */
void job_run(struct workload *d, const struct job_opts *opts, void (*body)(struct job_rank *r));

/* All come to this; whether it is well with all. */
bool job_all(struct job_rank *r, bool good);

/* Either all are open then, or none is. */
bool job_open(struct job_rank *r);
bool job_open_as(struct job_rank *r, uint32_t flags);
void job_close(struct job_rank *r);

/* This rank begins a step. 0, or why it did not begin; the save is there all the same, unless it is NULL. */
int job_begin(struct job_rank *r, unsigned step, unsigned seed, uint32_t flags,
	struct ckpt_save **ret_save);
/* All do. */
int job_start(struct job_rank *r, unsigned step, unsigned seed, uint32_t flags,
	struct ckpt_save **ret_save);
/* Frees it, once it has ended. What became of it goes to `said`. */
void job_end(struct job_rank *r, struct ckpt_save *save, unsigned step, unsigned seed, int said);
/* Whether to go on: with what fails for good a job ends when the first thing is not as it should be. */
bool job_goes_on(struct job_rank *r, bool good);

/* A step that is to be committed. Whether to go on. */
bool job_save(struct job_rank *r, unsigned step, unsigned seed);
/* A body of job_run(): steps 1 to 3, with which a trial begins. */
void job_save_three(struct job_rank *r);
/*
 * A step that is to be of no rank: rank 1 says that it has failed, if `fails`; else something is wrong with it
 * that is seen, unless rank 0 cannot look.
 */
bool job_spoil(struct job_rank *r, unsigned step, unsigned seed, bool fails);

/* Restores together. 0: `expected`, saved with `seed`, on all. */
int job_restore(struct job_rank *r, uint64_t step, unsigned expected, unsigned seed);
/* Binds what this rank is to get back; whether it has that, of what was saved with `seed`. */
bool job_bind(struct job_rank *r, struct ckpt_restore *restore);
bool job_holds(struct job_rank *r, unsigned seed);

#endif
