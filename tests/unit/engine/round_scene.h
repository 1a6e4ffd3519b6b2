/* SPDX-License-Identifier: Apache-2.0 */
/* Three ranks of a round, or one of a thousand, in virtual time; for the tests of rounds. The ranks share a table of values. */
#ifndef CKPT_TESTS_ROUND_SCENE_H
#define CKPT_TESTS_ROUND_SCENE_H

#include "engine/ranks/round.h"
#include "lib/board.h"
#include "lib/core_rig.h"

#define RANKS      3
#define MANY       1000
/* Of 1600 ms: the leader waits 1100 ms, the others 1300 ms, and 300 ms more if nothing is answered. */
#define TIMEOUT_MS 1600
#define LEADER_MS  1100
#define OTHER_MS   1300
#define LIMIT_MS   300
/* How long a failure is put. */
#define PUT_MS     200
/* Of the owner, until a rank has put its value. */
#define REST_MS    50
#define OPEN       1 /* no outcome yet */

struct voter {
	struct ckpt_round round;
	struct ckpt_task owner; /* waits until it is decided */
	int code;               /* of its value */
	char reason[128];
	int outcome;   /* OPEN, or that of all ranks */
	bool keeps;    /* the test releases it, and not the owner */
	bool complete; /* the owner was woken with the values of all */
	bool alone;
	char said[128]; /* the outcome's reason */
};

struct scene {
	char *dir;
	uint32_t world;
	uint32_t opened;
	struct core_rig rig[RANKS];
	struct board_link link[RANKS];
	struct voter voter[RANKS];
	struct board board;
	bool started[RANKS];
	uint64_t ms; /* since the round began */
	uint64_t decided_ms[RANKS];
	unsigned turn_at; /* a rank changes its mind after this request; 0: none does */
	uint32_t turner;
	uint32_t turners; /* so many do: it, and those that follow it */
	bool closes;      /* the engine of that rank closes instead */
	bool held;        /* rank 0's round, and its owner releases it when it is complete */
};

int set_up(void **state);
int set_up_many(void **state);
int tear_down(void **state);

/* The round of one rank; with the deadline of a round that begins now; of all ranks, on a new table. */
void start(struct scene *s, uint32_t rank, uint64_t deadline_ns);
void start_alone(struct scene *s, uint32_t rank);
void start_all(struct scene *s);
/* A rank's value, unless its round is over. */
void put(struct scene *s, uint32_t rank, int code, const char *reason);
/* That it went well, on all ranks. */
void put_all(struct scene *s);
void sleep_ms(struct scene *s, uint64_t ms);
/* From request `from` on, of one rank or of RANKS. */
void die(struct scene *s, uint32_t rank, unsigned from, enum board_fault fault);
/* The exchange is there again. What it was asked before is lost. */
void let_go(struct scene *s);
/* Everything ends. */
void finish(struct scene *s);

/*
 * One outcome for all who have received it; a success has the values of all. A rank that is answered nothing has a
 * failure of its own. What the outcome is of the others.
 */
int check_outcome(const struct scene *s, bool dead);
int outcome_of(const struct scene *s);
/* How many requests a round takes in which nothing goes wrong. */
unsigned count_requests(struct scene *s);

/* The key of a rank's value. Puts such a value; whether there is one. */
void name_key(const struct ckpt_round *round, uint32_t rank, char *ret_key);
void put_value(struct scene *s, uint32_t rank);
bool is_on_board(const struct scene *s, uint32_t rank);

#endif
