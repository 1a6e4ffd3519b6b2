/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A round: each rank puts one value, rank 0 decides once it has all of them, and every rank receives the outcome.
 *
 * The outcome is a key of the exchange that is put once. Rank 0 puts it when every rank has put that its part went well.
 * A rank that fails, or whose deadline comes, puts its failure under the same key. The first value there is the outcome
 * for all ranks, also for the one that has put something else. So a rank that dies and a message that is lost end the
 * round at a deadline, with one outcome. Only a rank that the exchange does not answer ends it with a failure of its own:
 * it cannot know what the others have received. It puts that failure for an eighth of save_timeout_ms, and for 10 s at
 * most, because its caller waits for it. If the exchange is away for longer, the others end at their deadline, and rank 0
 * names the rank as missing.
 *
 * The owner names the keys and encodes the values, by a table of functions. The round is the owner's memory; it is in use
 * from ckpt_round_start() until `task.finished`.
 */
#ifndef CKPT_ENGINE_RANKS_ROUND_H
#define CKPT_ENGINE_RANKS_ROUND_H

#include "engine/ranks/exchange_call.h"

/* In the place of a rank: the outcome. */
#define CKPT_ROUND_OUTCOME       UINT32_MAX
/* Of a list of missing ranks. */
#define CKPT_ROUND_MISSING_CHARS 128

struct ckpt_round;

/* All run on the core's thread. A function that fails words the reason into `why` of the round. */
struct ckpt_round_ops {
	/* The key of the value of `rank`, or of the outcome: CKPT_EXCHANGE_KEY_MAX bytes. */
	void (*name_key)(const struct ckpt_round *round, uint32_t rank, char *ret_key);
	/* This rank's value, as it is now, into an empty `out`. Rank 0 puts its value as the outcome. -ENOMEM. */
	int (*encode)(const struct ckpt_round *round, const char *key, struct ckpt_buf *out);
	/* Rank 0: what another rank has put. Below 0: the round fails with this code. */
	int (*take)(struct ckpt_round *round, const struct ckpt_exchange_item *item, uint32_t rank);
	/*
	 * The outcome. 1: it went well; 0: it is a failure; below 0: it is not one of this round, which is a failure of this
	 * rank.
	 * `item` NULL: the failure that this rank has is the outcome here, and what the others receive is not known.
	 */
	int (*receive)(struct ckpt_round *round, const struct ckpt_exchange_item *item);
	/* This rank has failed, for the reason in `why`: encode() gives that from now on. */
	void (*fail)(struct ckpt_round *round, int code);
	/*
	 * Words why the deadline came. `missing`, of rank 0: the ranks that have put nothing, such as "3, 17 and 5 more",
	 * or "and at least 55 more" if more are missing than one question names.
	 */
	void (*late)(struct ckpt_round *round, const char *missing);
};

struct ckpt_round {
	struct ckpt_task task; /* await `finished` before the memory goes */

	/* Set by the owner before it starts. */
	const struct ckpt_round_ops *ops;
	struct ckpt_core *core;
	struct ckpt_task *waiter; /* woken when it is complete or decided, and at the end */
	uint64_t deadline_ns; /* UINT64_MAX: ckpt_round_deadline() when this rank puts its value */
	uint64_t rest_ns;     /* between two questions while this rank has put nothing, at least */
	bool held; /* rank 0: the outcome is put after ckpt_round_release(), and not as soon as the round is complete */

	/* For the owner. */
	bool decided; /* receive() was called with the outcome */
	bool ready;   /* this rank's value can be put, or is there */
	bool passed;  /* this rank has put that it went well, though it may have failed since */
	struct ckpt_error why;

	/* Its own. */
	bool failed; /* this rank's value is a failure */
	bool put;    /* not rank 0: its value is there */
	bool well;   /* the outcome is that it went well */
	bool alone; /* it is decided without an answer of the exchange, by a failure of this rank */
	bool refusing;    /* what is being put as the outcome is a failure */
	bool *heard;      /* rank 0: which ranks have put their value; NULL on the others */
	uint32_t missing; /* rank 0: so many have not */
	uint32_t from;    /* rank 0: who is asked for first */
	int interrupt; /* not 0: the call under way gives up, as this rank has something new to put */
	int never;     /* 0: stops nothing */
	struct ckpt_exchange_call call;
	struct ckpt_timer limit; /* the exchange does not even answer */
	struct ckpt_buf words;   /* what is being put */
};

/* Of a zeroed round. Allocates what must not be lacking later. -ENOMEM: it can still put a failure, as one without this. */
int ckpt_round_init(struct ckpt_round *round, uint32_t rank, uint32_t world);
void ckpt_round_clear(struct ckpt_round *round);
/*
 * When this rank gives up, if it begins now: a part of save_timeout_ms, or of how long the caller waits. Rank 0 is the
 * first, because it knows who is missing; the others hear of that before their own deadline.
 */
uint64_t ckpt_round_deadline(const struct ckpt_core *core);
uint64_t ckpt_round_deadline_within(const struct ckpt_core *core, uint64_t within_ns);
void ckpt_round_start(struct ckpt_round *round);
/* Whether this rank may put something: it has not failed yet, and the outcome is not known. */
bool ckpt_round_is_open(const struct ckpt_round *round);
/*
 * This rank's value is there to be encoded. Of an open round, and once; but a rank that has put that it went well may
 * put a failure later, which counts if it comes before the outcome.
 */
void ckpt_round_put(struct ckpt_round *round, bool well);
/* Rank 0: the ranks that it has not heard of, in the words that late() is given. "": it has heard of all. */
void ckpt_round_list_missing(const struct ckpt_round *round, char *out, size_t size);
/* Rank 0, of a round that is held: it has the values of all ranks, and the outcome is not known. */
bool ckpt_round_is_complete(const struct ckpt_round *round);
/* Of a complete round: rank 0's value, as it is now, is put as the outcome. Without it the owner puts a failure. */
void ckpt_round_release(struct ckpt_round *round);

#endif
