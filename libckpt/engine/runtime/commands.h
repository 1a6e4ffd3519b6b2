/* SPDX-License-Identifier: Apache-2.0 */
/* The small commands: list the store afresh, adopt a parent, pin, report, close. */
#ifndef CKPT_ENGINE_RUNTIME_COMMANDS_H
#define CKPT_ENGINE_RUNTIME_COMMANDS_H

#include "engine/copy/record_reader.h"
#include "engine/core/core.h"
#include "engine/lineage/scan.h"

struct ckpt_upload_entry;

/* Reads the store again; `scanner.scan` is the caller's after END, marked unless `mark_result` < 0. */
struct ckpt_lister {
	struct ckpt_command command;
	bool remote; /* also what it remembers of its remote store */
	struct ckpt_scanner scanner;
	int mark_result;
	struct ckpt_record_reader
		reader; /* if asked for: `record`, if `found`, is the caller's, too */
};
int ckpt_lister_body(struct ckpt_task *task);
void ckpt_lister_clear(struct ckpt_command *command);

/*
 * Makes (generation, step) the parent of the next claim; a generation that was claimed before is left
 * behind. -EBUSY while a save is under way.
 */
struct ckpt_adopter {
	struct ckpt_command command;
	uint64_t generation;
	uint64_t step;
};
int ckpt_adopter_body(struct ckpt_task *task);

struct ckpt_pinner {
	struct ckpt_command command;
	uint64_t step;
	bool pin; /* else unpin */
};
int ckpt_pinner_body(struct ckpt_task *task);

/* Everything that the core and what it owns have counted. */
struct ckpt_reporter {
	struct ckpt_command command;
	struct ckpt_stats stats;
};
int ckpt_reporter_body(struct ckpt_task *task);

/*
 * The newest step on its way to the remote store, held: whoever takes `entry` sets NULL. If there is none, the result
 * is why the first of those failed that will not be there.
 */
struct ckpt_last_upload {
	struct ckpt_command command;
	struct ckpt_upload_entry *entry;
};
int ckpt_last_upload_body(struct ckpt_task *task);
void ckpt_last_upload_clear(struct ckpt_command *command);

/* Stops what is under way and waits until it has ended; then gives the holder's lock back. */
struct ckpt_closer {
	struct ckpt_command command;
	struct ckpt_store_op op;
};
int ckpt_closer_body(struct ckpt_task *task);

#endif
