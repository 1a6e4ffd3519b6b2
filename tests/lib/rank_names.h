/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FORMAT.md: no name of a rank's file is used twice. What removes a file that it has not made itself, a shard that somebody
 * else has begun, makes no file of that name again, nor does anybody rename one over another.
 */
#ifndef CKPT_TESTS_RANK_NAMES_H
#define CKPT_TESTS_RANK_NAMES_H

#include "io/io.h"

struct rank_name {
	struct rank_name *next;
	int root;
	bool own;  /* made here */
	bool gone; /* removed here */
	char path[];
};

/* Zero is empty. */
struct rank_names {
	struct rank_name *first;
};

/* A request that has been carried out. Asserts that it used no name again. */
void rank_names_note(struct rank_names *names, const struct ckpt_io_req *req);
void rank_names_clear(struct rank_names *names);

#endif
