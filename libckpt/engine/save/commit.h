/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save of many ranks, from the point where this rank's part is durable and its gate open. Each rank
 * tells rank 0 what it has; rank 0 publishes the manifest of all, or an abort record, and tells the others
 * how it ended. Who does not hear that in time tries the register itself, with an abort record: whatever is
 * there then is the outcome. Engine-internal.
 *
 * Whoever fails before its part is told, or cannot begin at all, says so: a step that one rank was refused
 * is over for all of them, and soon. Whether a step is skipped rank 0 alone decides.
 */
#ifndef CKPT_ENGINE_SAVE_COMMIT_H
#define CKPT_ENGINE_SAVE_COMMIT_H

#include "engine/ranks/blob.h"
#include "engine/ranks/replica_digest.h"
#include "exchange/rank_messages.h"

struct ckpt_save;

/* Of what the manifest says that the ranks of a step differ in, with the end. */
#define CKPT_DIFFER_MAX sizeof(((struct ckpt_manifest *)NULL)->replicas)

struct ckpt_save_commit {
	struct ckpt_save *save; /* around it */
	struct ckpt_exchange_call call;
	struct ckpt_error why;          /* of the talk, until it is known to matter */
	struct ckpt_buf words;          /* what is being told */
	struct ckpt_manifest_rank *all; /* rank 0: by rank; `attempt` empty: not heard of */
	struct ckpt_digest *plans;      /* rank 0: of those who were heard of */
	struct ckpt_rank_schema *agree; /* NULL: nothing is compared */
	struct ckpt_replica_digest_received alike; /* rank 0: digests of what several hold alike */
	uint64_t balance; /* rank 0: of those who were heard of, added up */
	/* What they differ in, though the step is to be committed; "": nothing. Of rank 0 as short as a manifest holds it. */
	char differ[768];
	uint32_t heard;
	uint32_t from;     /* rank to ask for first */
	bool told;         /* this rank's part may be known to rank 0: its files may be named */
	bool settled;      /* there is no manifest that names the files, and there will be none */
	bool answered;     /* rank 0 has said how it ended: it asks for no part any more */
	int never;         /* 0: stops nothing */
	uint64_t asked_ns; /* others: since when the outcome is asked for */
	uint64_t look_ns;  /* others: when the register is read next */
	bool seen;         /* others: something was in it at the last look */
	struct ckpt_outcome outcome; /* of a commit: attempt and bytes */
	struct ckpt_task teller;     /* of a save that was refused */
	struct ckpt_save_commit *next_early;
	struct ckpt_task listener; /* others: has the talk until the part is told */
	int deaf;                  /* not 0: it hears no more */

	/* Where every node has a store of its own. */
	struct ckpt_blob blob;     /* the manifest */
	struct ckpt_verdict asked; /* why this rank would have it aborted */
	struct ckpt_timer pause;   /* until the node leader's manifest is looked for again */
	bool decided;              /* rank 0: the outcome is told */
};

/* -ENOMEM. */
int ckpt_save_commit_new(
	struct ckpt_save *save, uint32_t rank, uint32_t world, struct ckpt_save_commit **ret_ranks);
void ckpt_save_commit_free(struct ckpt_save_commit *ranks);

/*
 * Not rank 0: from now on it hears of a step that has failed or was skipped, while it still writes, or its gate
 * is closed, and stops. Until ckpt_save_deaf(), to be awaited by the save's task, is true.
 */
void ckpt_save_listen(struct ckpt_save *save);
bool ckpt_save_deaf(struct ckpt_save *save);

/* Bodies of the save's task. Rank 0: until all have been heard of, then ckpt_save_gate_body. */
int ckpt_save_collect_body(struct ckpt_task *task);
/* Another: until the outcome is known. */
int ckpt_save_follower_body(struct ckpt_task *task);
/* The register is taken: what it holds is the outcome. */
int ckpt_save_resolve_body(struct ckpt_task *task);
/*
 * Where every node has a store of its own (save/commit_nodes.c). Rank 0: the manifest is made. Another: that all is
 * committed was heard; nothing was heard, and outcome.verdict.reason says so; what was heard cannot be read.
 */
int ckpt_save_commit_nodes_body(struct ckpt_task *task);
int ckpt_save_receive_body(struct ckpt_task *task);
int ckpt_save_ask_body(struct ckpt_task *task);
int ckpt_save_undecided_body(struct ckpt_task *task);
/* How the save goes on with the outcome that its talk has heard. */
int ckpt_save_take_outcome(struct ckpt_task *task);
/* The manifest that was sent is of this step, a commit, and names what this rank has. Words into `work`. */
int ckpt_save_check_manifest(struct ckpt_save *save, const void *data, size_t length);
/* After the end of the save: the others are told, if they may be waiting. */
int ckpt_save_notify_body(struct ckpt_task *task);

/*
 * Core: one that was never begun has ended; tells the others in the background, if they may have begun it.
 * Takes a reference over. One of before the first claim waits for the claim that is under way.
 */
void ckpt_save_notify_refusal(struct ckpt_save *save);
/* A claim has ended. */
void ckpt_save_wake_early(struct ckpt_core *core);

/* save/commit_follower.c, save/commit_resolve.c: the step is of no rank, and no manifest of it will be there. */
int ckpt_save_aborted(struct ckpt_save *save, int code, const char *reason);
/* One item, and a deadline; `err` is where the talk words what it failed with. */
void ckpt_save_prepare_talk(struct ckpt_save *save, struct ckpt_task *waiter, const int *stop,
	uint64_t deadline_ns, struct ckpt_error *err);
/* Tells ranks->words. */
void ckpt_save_notify(struct ckpt_save *save);
/* Which step of which claim. */
void ckpt_save_name_subject(const struct ckpt_save *save, struct ckpt_verdict *verdict);
/* Before the save's own deadline: so much earlier rank 0 gives up, and the others hear of it in time. */
uint64_t ckpt_save_margin_ns(const struct ckpt_save *save);

/*
 * Not rank 0, policy CKPT_BUSY_SKIP: waits until the last save is over, or rank 0 has said that it skips
 * `step`: CKPT_ESKIPPED. 0: neither was said, or the time is over.
 */
struct ckpt_skipper {
	struct ckpt_command command;
	struct ckpt_exchange_call call;
	uint64_t step;
	uint64_t patience_ns;
	int stop;
};

int ckpt_skipper_body(struct ckpt_task *task);
/* A save is over: whoever waits for that goes on. */
void ckpt_skipper_wake(struct ckpt_core *core);

#endif
