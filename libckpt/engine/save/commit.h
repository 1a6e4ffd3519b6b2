/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A save of many ranks, from the point where this rank's part is durable and its gate open. Each rank reports its part
 * to
 * rank 0, which publishes the manifest of all, or an abort record, and reports the outcome. A rank that does not hear
 * it
 * in time tries to publish an abort record: the outcome is whatever the register then contains. Internal to the engine.
 *
 * A rank that fails before it has reported its part, or cannot begin, reports that: then the step fails for all ranks,
 * and soon. Rank 0 alone decides whether a step is skipped.
 */
#ifndef CKPT_ENGINE_SAVE_COMMIT_H
#define CKPT_ENGINE_SAVE_COMMIT_H

#include "engine/ranks/blob.h"
#include "engine/ranks/replica_digest.h"
#include "exchange/rank_messages.h"

struct ckpt_save;

/* Size of the manifest's text about differences between ranks, including the NUL. */
#define CKPT_DIFFER_MAX sizeof(((struct ckpt_manifest *)NULL)->replicas)

struct ckpt_save_commit {
	struct ckpt_save *save; /* contains this */
	struct ckpt_exchange_call call;
	struct ckpt_error why;          /* error of an exchange call, until it matters */
	struct ckpt_buf words;          /* what is being sent */
	struct ckpt_manifest_rank *all; /* rank 0: by rank; `attempt` empty: not received yet */
	struct ckpt_digest *plans;      /* rank 0: of the ranks received so far */
	struct ckpt_rank_schema *agree; /* NULL: nothing is compared */
	/* Rank 0: received digests of what several ranks hold alike. */
	struct ckpt_replica_digest_received alike;
	uint64_t balance; /* rank 0: sum over the ranks received so far */
	uint64_t stored;  /* likewise, of the sizes of their files */
	bool based;       /* rank 0: one of them is the difference to an earlier step */
	/* How ranks differ though the step is to be committed; "": not. On rank 0 short enough for a manifest. */
	char differ[768];
	uint32_t heard;
	uint32_t from;     /* rank to ask for first */
	bool told;         /* rank 0 may know this rank's part, and name its files */
	bool settled;      /* no manifest names the files, and none will */
	bool answered;     /* rank 0 has reported the outcome: it needs no part any more */
	int never;         /* always 0 */
	uint64_t asked_ns; /* others: since when they have asked for the outcome */
	uint64_t look_ns;  /* others: when the register is read next */
	bool seen;         /* others: the register was not empty when last read */
	struct ckpt_outcome outcome; /* of a commit: attempt and bytes */
	struct ckpt_task teller;     /* reports a save that was refused */
	struct ckpt_save_commit *next_early;
	struct ckpt_task listener; /* others: uses the call until the part is reported */
	int deaf;                  /* not 0: the listener must end */

	/* Used if every node has its own store. */
	struct ckpt_blob blob;     /* the manifest */
	struct ckpt_verdict asked; /* why this rank would abort the step */
	struct ckpt_timer pause;   /* until it looks for the node leader's manifest again */
	bool decided;              /* rank 0: the outcome was reported */
};

/* -ENOMEM. */
int ckpt_save_commit_new(
	struct ckpt_save *save, uint32_t rank, uint32_t world, struct ckpt_save_commit **ret_ranks);
void ckpt_save_commit_free(struct ckpt_save_commit *ranks);

/*
 * Not rank 0: from now on, while it still writes or its gate is closed, it hears if the step has failed or was skipped,
 * and then stops. Lasts until ckpt_save_deaf(), which the save's task awaits, is true.
 */
void ckpt_save_listen(struct ckpt_save *save);
bool ckpt_save_deaf(struct ckpt_save *save);

/* Bodies of the save's task. Rank 0: receives the parts of all ranks, then continues with ckpt_save_gate_body. */
int ckpt_save_collect_body(struct ckpt_task *task);
/* Other ranks: until the outcome is known. */
int ckpt_save_follower_body(struct ckpt_task *task);
/* The register is not empty: its contents are the outcome. */
int ckpt_save_resolve_body(struct ckpt_task *task);
/*
 * Used if every node has its own store (save/commit_nodes.c). Rank 0: the manifest is complete. Other ranks: a commit
 * was reported; nothing was heard, with the reason in outcome.verdict.reason; the outcome cannot be read.
 */
int ckpt_save_commit_nodes_body(struct ckpt_task *task);
int ckpt_save_receive_body(struct ckpt_task *task);
int ckpt_save_ask_body(struct ckpt_task *task);
int ckpt_save_undecided_body(struct ckpt_task *task);
/* Continues the save with the received outcome. */
int ckpt_save_take_outcome(struct ckpt_task *task);
/* Checks that the received manifest is a commit of this step and names this rank's files. Sets `work`. */
int ckpt_save_check_manifest(struct ckpt_save *save, const void *data, size_t length);
/* After the end of the save: informs the other ranks if they may be waiting. */
int ckpt_save_notify_body(struct ckpt_task *task);

/*
 * Core: a save that was never begun has ended; informs the other ranks in the background if they may have begun it.
 * Takes over a reference. Before the first claim it waits for the running claim.
 */
void ckpt_save_notify_refusal(struct ckpt_save *save);
/* A claim has ended. */
void ckpt_save_wake_early(struct ckpt_core *core);

/*
 * save/commit_follower.c, save/commit_resolve.c: the step has failed for all ranks, and no manifest of it will exist.
 */
int ckpt_save_aborted(struct ckpt_save *save, int code, const char *reason);
/* Prepares a call with one item and a deadline; `err` receives its error. */
void ckpt_save_prepare_talk(struct ckpt_save *save, struct ckpt_task *waiter, const int *stop,
	uint64_t deadline_ns, struct ckpt_error *err);
/* Sends ranks->words. */
void ckpt_save_notify(struct ckpt_save *save);
/* Sets which step of which claim it is about. */
void ckpt_save_name_subject(const struct ckpt_save *save, struct ckpt_verdict *verdict);
/* How long before the save's own deadline rank 0 gives up, so that the others hear of it in time. */
uint64_t ckpt_save_margin_ns(const struct ckpt_save *save);

/*
 * Not rank 0, policy CKPT_BUSY_SKIP: waits until the last save is over, or rank 0 has reported that it skips `step`:
 * CKPT_ESKIPPED. 0: the last save is over, or the time is.
 */
struct ckpt_skipper {
	struct ckpt_command command;
	struct ckpt_exchange_call call;
	uint64_t step;
	uint64_t patience_ns;
	int stop;
};

int ckpt_skipper_body(struct ckpt_task *task);
/* A save is over: wakes all waiting skippers. */
void ckpt_skipper_wake(struct ckpt_core *core);

#endif
