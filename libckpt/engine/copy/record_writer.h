/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record writer: writes into the store where its steps go on to, and what the upload queue knows of that. Whoever keeps the
 * store has one. It runs behind the upload queue, at most every few seconds, and nobody waits for it but an end. What it
 * has written is for people, for `ckpt upload`, and for the next upload queue's own record; nothing is sent, kept or removed
 * by it.
 *
 * Each record is a new file. Those before it go when it is durable.
 */
#ifndef CKPT_ENGINE_COPY_RECORD_WRITER_H
#define CKPT_ENGINE_COPY_RECORD_WRITER_H

#include "base/buf.h"
#include "engine/copy/record_reader.h"
#include "engine/core/core.h"

struct ckpt_record_writer {
	struct ckpt_core *core;
	struct ckpt_task task;

	/* What is known, beside the list of the upload queue. */
	uint64_t uploaded_generation; /* newest step that is there; 0: none */
	uint64_t uploaded_step;
	uint64_t uploaded_wall_ms;
	struct ckpt_record_step absent[CKPT_RECORD_ABSENT_MAX];
	size_t absent_count;
	uint64_t absent_more;
	struct ckpt_record_step left_out; /* the newest of these; generation 0: none */
	/* The oldest that went off the list unsent; of those after it nothing is known. Generation 0: none. */
	struct ckpt_record_step unsent;
	struct ckpt_error error; /* code 0: the last try did well, or there was none */
	uint64_t tries;          /* that have failed in a row */
	uint64_t since_ms;       /* the first of them */
	uint64_t next_ms;
	uint64_t
		failed_before_ms; /* since when tries of the last process had failed; 0: they had not */

	/* Its own. */
	struct ckpt_timer timer;
	struct ckpt_record_reader reader;
	struct ckpt_store_op op;
	struct ckpt_buf buf;  /* being written */
	struct ckpt_buf last; /* to be written at the end */
	uint64_t number;      /* of the record that is being written */
	const char *old;      /* name of the one that is being removed */
	uint64_t next_ns;     /* nothing is written before */
	bool dirty;           /* something has changed since the last one was put together */
	bool caught_up;       /* what the last process has written has been looked at */
	bool stop;
	bool failing; /* the last could not be written, which was said */
};

/* The upload queue begins, with its list as it is. Nothing is written if the remote store has no name to remember. */
void ckpt_record_writer_start(struct ckpt_record_writer *record_writer, struct ckpt_core *core);
/* The list has changed. */
void ckpt_record_writer_touch(struct ckpt_record_writer *record_writer);
/* The generation was claimed: the record is of it from now on, and soon. */
void ckpt_record_writer_claimed(struct ckpt_record_writer *record_writer);
/* A step is there, also one that was absent before. */
void ckpt_record_writer_there(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step);
/* It will not be, because of `code`; 0: somebody removes it there. */
void ckpt_record_writer_absent(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step, int code);
/* It is off the list, and was not sent: that is for the next process. */
void ckpt_record_writer_unsent(
	struct ckpt_record_writer *record_writer, uint64_t generation, uint64_t step);
/* A try has failed, the `tries`-th in a row; the next is at `next_ns` of the environment's clock, or (0) never. */
void ckpt_record_writer_failed(struct ckpt_record_writer *record_writer,
	const struct ckpt_error *error, uint64_t tries, uint64_t next_ns);
/* One has not. */
void ckpt_record_writer_succeeded(struct ckpt_record_writer *record_writer);
/* Writes what is left to write, of the list as it is now, and ends; core->closer is woken. */
void ckpt_record_writer_stop(struct ckpt_record_writer *record_writer);
bool ckpt_record_writer_ended(const struct ckpt_record_writer *record_writer);
/* After the end. */
void ckpt_record_writer_close(struct ckpt_record_writer *record_writer);

#endif
