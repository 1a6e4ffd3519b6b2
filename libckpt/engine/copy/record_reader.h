/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what a store remembers of its remote store: the newest record that verifies. */
#ifndef CKPT_ENGINE_COPY_RECORD_READER_H
#define CKPT_ENGINE_COPY_RECORD_READER_H

#include "format/remote_record.h"
#include "store/store.h"

struct ckpt_record_reader {
	/* Await `finished`. The result is 0, or why the store could not be listed. */
	struct ckpt_task task;
	bool found; /* `record` is valid */
	struct ckpt_remote_record record;
	int code;        /* of the newest one, if that is not it; 0: there is none at all */
	uint64_t newest; /* greatest number that any has; 0: none */
	struct ckpt_listing names; /* of the store's directory */

	/* Its own. */
	struct ckpt_store *store;
	struct ckpt_task *waiter;
	struct ckpt_store_op op;
	uint64_t number;
	unsigned tries;
};

/* `waiter` is woken at the end. */
void ckpt_record_reader_start(struct ckpt_record_reader *reader, struct ckpt_store *store,
	struct ckpt_sched *sched, struct ckpt_task *waiter);
/* The greatest number of a record in `names` that is below `below`; 0: none. */
uint64_t ckpt_record_before(const struct ckpt_listing *names, uint64_t below);
/*
 * The next name in `names` after `name` (NULL: from the first) of a record whose number is below `below`, or of what a
 * process has left of one that it did not publish; NULL: none.
 */
const char *ckpt_record_next_old(
	const struct ckpt_listing *names, const char *name, uint64_t below);
/* Frees what was not taken. */
void ckpt_record_reader_clear(struct ckpt_record_reader *reader);

#endif
