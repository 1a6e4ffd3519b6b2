/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange that cores of one test share: a table of values, and each core's link to it. It loses requests, answers them
 * late or not at all, as the test says. As an exchange that a program serves, it gives a request up at its deadline, and
 * does nothing for one whose deadline is over. One that is not answered at all is not even given up.
 */
#ifndef CKPT_TESTS_BOARD_H
#define CKPT_TESTS_BOARD_H

#include "engine/core/core.h"
#include "exchange/exchange.h"

#define BOARD_VALUES  1008
#define BOARD_LATE_MS 150
#define BOARD_ALL     UINT32_MAX /* in the place of a rank */

enum board_fault {
	BOARD_WELL,
	BOARD_LOST,       /* nothing is done, and that is said */
	BOARD_UNANSWERED, /* it is done, and the answer says that it was not */
	BOARD_LATE,       /* done and answered late */
	BOARD_TWICE,      /* done once more when it is answered */
	BOARD_SILENT,     /* nothing is done or answered */
};

/* What a table of values does with requests. */
struct board {
	struct {
		char key[CKPT_EXCHANGE_KEY_MAX];
		char *data;
		uint64_t length;
	} values[BOARD_VALUES];
	size_t count;
	unsigned requests; /* so far */
	enum board_fault fault;
	unsigned from, to;            /* the requests that it happens to, counted from 1 */
	uint32_t rank;                /* of this rank alone; BOARD_ALL: of all */
	enum ckpt_exchange_verb verb; /* these alone; 0: all */
};

/* One rank's way to it: one request at a time. */
struct board_link {
	struct ckpt_exchange exchange;
	struct ckpt_exchange *inner; /* the rig's, closed with it */
	struct board *board;
	struct ckpt_core *core;
	struct ckpt_exchange_op *op;
	struct ckpt_timer timer;
	enum board_fault fault;
};

/* Empty, and without faults. */
void board_clear(struct board *board);
/* -EEXIST: another value is there. */
int board_put(struct board *board, const char *key, const void *data, uint64_t length);
/* Instead of the core's exchange, which it closes when it is closed. */
void board_link_make(struct board_link *link, struct board *board, struct ckpt_core *core);
/* The request that was not answered is lost. */
void board_link_let_go(struct board_link *link);

#endif
