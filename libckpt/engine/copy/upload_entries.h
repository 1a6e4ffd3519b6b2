/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The steps on their way into the remote store: the list of the upload queue, and what others ask of it. What is sent
 * when is for copy/upload_queue.h.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_ENTRIES_H
#define CKPT_ENGINE_COPY_UPLOAD_ENTRIES_H

#include <stdatomic.h>
#include "engine/copy/upload.h"
#include "engine/copy/upload_dest.h"
#include "engine/copy/upload_filter.h"

struct ckpt_record_writer;

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
	struct ckpt_task *watcher; /* woken when a step is off the list; NULL: nobody is */
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
	struct ckpt_record_writer *record_writer;
	struct ckpt_rate_limit rate_limit; /* of a remote store in a directory */
	atomic_uint_fast64_t bytes_left;   /* of them, from the pool */
	unsigned misled;                   /* times that other bytes were there */
};

/* The newest step on its way, held for the caller; NULL: none. */
struct ckpt_upload_entry *ckpt_upload_queue_last(struct ckpt_core *core);
/*
 * Of a step that will be committed: what is durable is to be sent, and not to lack the memory for that. Any thread; NULL:
 * there is none.
 */
struct ckpt_upload_entry *ckpt_upload_entry_new(void);
void ckpt_upload_entry_unref(struct ckpt_upload_entry *entry); /* any thread; NULL is ignored */

/* Any thread: whether a step goes there. */
bool ckpt_upload_queue_takes(const struct ckpt_core *core, uint64_t step);
/* Whether retention is to keep it. */
bool ckpt_upload_queue_keeps(const struct ckpt_core *core, uint64_t generation, uint64_t step);
/* Its generation is there, and it sends what it has ... */
bool ckpt_upload_queue_sends(const struct ckpt_core *core);
/* ... which is nothing just now, or waits for a tombstone to go. */
bool ckpt_upload_queue_rests(const struct ckpt_core *core);

/* Of the upload queue's own files. */

bool ckpt_upload_entry_before(
	const struct ckpt_upload_entry *entry, uint64_t generation, uint64_t step);
/* The place in the list of a step, or where it would be. */
struct ckpt_upload_entry **ckpt_upload_queue_find(
	struct ckpt_upload_queue *upload_queue, uint64_t generation, uint64_t step);
/* The outcome of `entry` is known; its `error` has it. */
void ckpt_upload_queue_end_entry(
	struct ckpt_upload_queue *upload_queue, struct ckpt_upload_entry *entry);

#endif
