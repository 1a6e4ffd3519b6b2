/* SPDX-License-Identifier: Apache-2.0 */
/* One run: a trial in a process of its own with what is planned made to fail, and a look at what it leaves. */
#ifndef CKPT_TESTS_RUNS_H
#define CKPT_TESTS_RUNS_H

#include "torture/torture.h"

enum runs_end {
	RUNS_GOOD,
	RUNS_MISSED, /* the first planned site was not come by */
	RUNS_BAD,    /* it has been said what */
};

void runs_begin(void);
void runs_end(void);
/* This process makes the runs of one of several workers. */
void runs_be(unsigned worker);
/* Leaves a store for the trial to begin with. */
void runs_prepare(unsigned scenario);
enum runs_end runs_once(unsigned scenario, const struct torture_plan *plan, unsigned plans);
/* The system calls of an undisturbed run that nothing counts; -1: it cannot be told here. */
int runs_bypass(unsigned scenario);

#endif
