/* SPDX-License-Identifier: Apache-2.0 */
/* A ckpt_io whose requests fail, move too little or take their time, as a table of rules says. */
#ifndef CKPT_TESTS_IO_FAULT_H
#define CKPT_TESTS_IO_FAULT_H

#include "lib/io_tap.h"

#define IO_FAULT_RULES  16
#define IO_FAULT_ALWAYS 0xffffffffu

/* Zero means any, none, or one. Of several rules that match, the first counts. */
struct io_fault_rule {
	enum ckpt_io_op op;
	const char *path; /* part of the path */
	unsigned nth;     /* the first that is hit, counted from 1 */
	unsigned count;   /* how many are hit */
	int error;    /* the answer, instead of doing it: -errno, or bytes that were not moved */
	bool late;    /* ... after doing it */
	bool nothing; /* a transfer moves nothing, successfully */
	uint64_t shorten; /* a transfer moves this much at most */
	bool hold;        /* it waits for io_tap_release() */
	bool hold_answer; /* it is done, and its answer waits for that */
};

struct io_fault {
	struct io_tap tap; /* &tap.io is what the code under test gets */
	struct io_fault_rule rules[IO_FAULT_RULES];
	unsigned seen[IO_FAULT_RULES]; /* requests that matched */
	unsigned hits[IO_FAULT_RULES]; /* of them, changed */
	unsigned rule_count;
	unsigned requests; /* of any kind, so far */
	unsigned fail_at;  /* the request of this number, counted from 1, fails with fail_error */
	int fail_error;
};

void io_fault_init(struct io_fault *fault, struct ckpt_io *inner);
/* Returns the number of the rule, for `seen` and `hits`. */
unsigned io_fault_add(struct io_fault *fault, struct io_fault_rule rule);
/* Forgets all rules and counts. */
void io_fault_clear(struct io_fault *fault);

#endif
