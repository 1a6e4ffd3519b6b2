/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The upload queue: takes committed steps into the remote store, oldest first, behind everything else. It lives as long
 * as the engine. What cannot be sent now is tried again, for ever, with pauses that grow; the training never
 * waits for it.
 *
 * What is on its way is kept by retention until it is there, unless the disk is full.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_QUEUE_H
#define CKPT_ENGINE_COPY_UPLOAD_QUEUE_H

#include <stdatomic.h>
#include "engine/copy/record_writer.h"
#include "engine/copy/upload.h"
#include "engine/copy/upload_dest.h"
#include "engine/copy/upload_filter.h"

/* A step on its way. Counted: the upload queue has it until its end, and whoever waits for that. */
struct ckpt_upload_entry {
	/* Any thread, after END. */
	struct ckpt_latch latch;
	struct ckpt_error error; /* code 0: the remote store holds it, or need not */
	uint64_t generation;
	uint64_t step;

	/* The upload queue's. */
	atomic_uint owners;
	struct ckpt_upload_entry *next; /* by generation and step, ascending */
	uint64_t bytes;
	struct ckpt_staged_shard
		*left; /* of this rank's shard, in the pool; NULL: nothing is known of it */
	bool all;      /* of an earlier generation: who keeps the store sends for all */
	bool parent;   /* of a later generation: it is sent whatever retention there may say */
	bool newest; /* of what was here at the start: it counts as there only if it is not going */
	bool buried; /* its tombstone was there at the last try */
	bool stuck;  /* that its tombstone stays was said */
	bool overtaken;    /* a later one is there */
	bool known;        /* the last process has seen it there, by the record */
	bool ended;        /* somebody else has ended what was on its way, once */
	unsigned failures; /* of what is here */
	bool held;         /* that somebody else sends it was said */
	uint32_t held_rank;
	uint64_t held_ns;    /* somebody else sends the files of that rank since; 0: nobody does */
	uint64_t since_ns;   /* this rank has done its part since; 0: it has not */
	uint64_t outdone_ns; /* somebody else has taken over there since; 0: nobody has */
	uint64_t going_ns;   /* it has had a tombstone since; 0: it has none */
	uint64_t retry_ns;   /* not before */
};

struct ckpt_upload_queue {
	struct ckpt_core *core;
	struct ckpt_store *dest;
	uint64_t every; /* only steps that it divides; 0: all */
	struct ckpt_task task;
	struct ckpt_timer timer;
	struct ckpt_upload_entry *first;
	size_t count;
	int stop;                   /* not 0: it ends, with this code */
	int halted;                 /* not 0: it has given up for good, and why is in `error` */
	bool yielded;               /* the disk is full: nothing is kept any more */
	uint64_t placed_generation; /* newest claim when the remote place was last seen to */
	bool placed;
	bool sieved;             /* what a start need not send is off the list */
	unsigned failures;       /* in a row */
	uint64_t pause_ns;       /* nothing before */
	struct ckpt_error error; /* the last failure */
	struct ckpt_error lost;  /* of the first step that will not be there; code 0: none */
	struct ckpt_upload upload;
	struct ckpt_upload_dest place;
	struct ckpt_upload_filter upload_filter;
	struct ckpt_upload_entry *current; /* what `upload` is of; NULL: none */
	uint64_t current_generation;       /* newest claim that was there when it began */
	uint64_t begun;                    /* `bytes` when `upload` began */
	atomic_uint_fast64_t bytes;        /* verified and sent */
	struct ckpt_record_writer record_writer;
	struct ckpt_rate_limit rate_limit; /* of a remote store in a directory */
	atomic_uint_fast64_t bytes_left;   /* of them, from the pool */
	unsigned misled;                   /* times that other bytes were there */
};

/* Into core->upload queue, if the core's parts name a remote place. -ENOMEM. */
int ckpt_upload_queue_open(struct ckpt_core *core, uint64_t every);
/* Once the store has been read: takes up what was committed and may not be there. */
void ckpt_upload_queue_begin(struct ckpt_core *core);
/* Any thread: whether a step goes there. */
bool ckpt_upload_queue_takes(const struct ckpt_core *core, uint64_t step);
/*
 * A step was committed just now; `entry` becomes its own, and stays the caller's, too. NULL: it does not go there.
 * `left` is given away.
 */
void ckpt_upload_queue_add(struct ckpt_core *core, struct ckpt_upload_entry *entry,
	uint64_t generation, uint64_t step, uint64_t bytes, struct ckpt_staged_shard *left);
/* Whether retention is to keep it. */
bool ckpt_upload_queue_keeps(const struct ckpt_core *core, uint64_t generation, uint64_t step);
/* The disk is full: retention may have everything but what is being sent just now. */
void ckpt_upload_queue_yield(struct ckpt_core *core);
/* A claim was made: it goes there before anything else. What it goes on from is on the list again. */
void ckpt_upload_queue_note_claim(struct ckpt_core *core);
/* Its generation is there, and it sends what it has ... */
bool ckpt_upload_queue_sends(const struct ckpt_core *core);
/* ... which is nothing just now, or waits for a tombstone to go. */
bool ckpt_upload_queue_rests(const struct ckpt_core *core);
/* Ends soon; ckpt_upload_queue_ended() then, and core->closer is woken. What it had is told CKPT_ECLOSED. */
void ckpt_upload_queue_stop(struct ckpt_core *core);
bool ckpt_upload_queue_ended(const struct ckpt_core *core);
/* After the end. */
void ckpt_upload_queue_close(struct ckpt_core *core);
/* Counts what is on its way. */
void ckpt_upload_queue_report(const struct ckpt_core *core, struct ckpt_stats *stats);

/* The newest step on its way, held for the caller; NULL: none. */
struct ckpt_upload_entry *ckpt_upload_queue_last(struct ckpt_core *core);
/*
 * Of a step that will be committed: what is durable is to be sent, and not to lack the memory for that. Any thread; NULL:
 * there is none.
 */
struct ckpt_upload_entry *ckpt_upload_entry_new(void);
void ckpt_upload_entry_unref(struct ckpt_upload_entry *entry); /* any thread; NULL is ignored */

/* Of the upload queue's own files. */

/* The list. */
bool ckpt_upload_entry_before(
	const struct ckpt_upload_entry *entry, uint64_t generation, uint64_t step);
/* The place in the list of a step, or where it would be. */
struct ckpt_upload_entry **ckpt_upload_queue_find(
	struct ckpt_upload_queue *upload_queue, uint64_t generation, uint64_t step);
/* The outcome of `entry` is known; its `error` has it. */
void ckpt_upload_queue_end_entry(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry);
void ckpt_upload_queue_end_all(
	struct ckpt_upload_queue *upload_queue, const struct ckpt_error *why);

/* With lost_nodes: the job has gone on from an older step, and nobody has all parts of this one. */
bool ckpt_upload_queue_is_lost(
	const struct ckpt_upload_queue *upload_queue, const struct ckpt_upload_entry *entry);
void ckpt_upload_queue_end_lost(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry);

/* What becomes of a try. */
void ckpt_upload_queue_take_upload(struct ckpt_upload_queue *upload_queue);
/* upload queue->error, of which nothing can be done but what its kind allows. `entry` NULL: of the place. */
void ckpt_upload_queue_take_failure(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry, int code);
void ckpt_upload_queue_succeed(struct ckpt_upload_queue *upload_queue);
/* Nothing is sent any more, for upload queue->error. */
void ckpt_upload_queue_halt(struct ckpt_upload_queue *upload_queue, int code);
/* What was kept here because it was on its way no longer is. */
void ckpt_upload_queue_ask_retention(struct ckpt_upload_queue *upload_queue);

#endif
