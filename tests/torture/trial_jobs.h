/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPT_TESTS_TRIAL_JOBS_H
#define CKPT_TESTS_TRIAL_JOBS_H

#include "kill/workload.h"

/* Three steps of two ranks; the third damaged; the third damaged, and whole with the other rank. */
void trial_prepare_job(struct workload *d);
void trial_prepare_job_bad(struct workload *d);
void trial_prepare_copies(struct workload *d);

void trial_job(struct workload *d);
void trial_job_served(struct workload *d);
void trial_job_skip(struct workload *d);
void trial_job_resume(struct workload *d);
void trial_job_both(struct workload *d);
void trial_job_named(struct workload *d);
/* Rank 0 of more ranks than one asks for at once, of which nobody else is there. */
void trial_job_absent(struct workload *d);
/* One process reads what two ranks have written. */
void trial_spare(struct workload *d);
/* The same, and the catalog of the first steps is gone. */
void trial_prepare_uncataloged(struct workload *d);
/* Three steps that are gone, and what stood beside them. */
void trial_prepare_emptied(struct workload *d);
void trial_many(struct workload *d);
void trial_many_copied(struct workload *d);
/* The files of one rank, and then those of the other one. */
void trial_ranks_copied(struct workload *d);

#endif
