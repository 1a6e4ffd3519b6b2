/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold of a store that something was done to: a verification of what was touched never says
 * that all is well, and names file, chunk and tensor; what was not touched is well; no restore hands out
 * a byte that was not saved.
 */
#ifndef CKPT_TESTS_JUDGE_H
#define CKPT_TESTS_JUDGE_H

#include "damage/victim.h"

struct judge {
	struct victim *victim;
	struct ckpt_engine *reader; /* stays open over many damages; NULL: opened for each */
	bool brief;                 /* verify the touched step only */
	uint64_t judged;
	uint64_t unchanged; /* what was done changed no byte */
	uint64_t named;     /* damage in tensors' bytes, each named */
	uint64_t older;     /* restores that gave an older step, whole */
	uint64_t whole;     /* restores that gave the newest, whole */
	char what[160];     /* was done, for people */
};

/* Looks at the store as it lies. Ends the program where something does not hold. */
void judge_look(struct judge *judge);
/* Restores one tensor of the newest step alone: possible if, and only if, its chunks are as they were. */
void judge_one(struct judge *judge, unsigned tensor);
/* A writer comes: it resumes from what can be had, saves one more step, and that one is good. */
void judge_writer(struct judge *judge);

#endif
