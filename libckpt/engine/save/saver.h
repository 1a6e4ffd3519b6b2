/* SPDX-License-Identifier: Apache-2.0 */
/* What the saves of an engine have in common: what this rank has told the others, and what the ranks have agreed on. */
#ifndef CKPT_ENGINE_SAVE_SAVER_H
#define CKPT_ENGINE_SAVE_SAVER_H

#include "engine/core/core.h"
#include "engine/ranks/replica_digest.h"
#include "engine/save/delta_run.h"
#include "engine/save/encoders.h"
#include "engine/save/staged_base.h"

/* Shards with fewer bytes say little about what encoding saves. */
#define CKPT_ESTIMATE_MIN (UINT64_C(64) << 20)

struct ckpt_save_commit;
struct ckpt_skipper;

/* A step for which this rank has a key in the exchange. */
struct ckpt_told {
	uint64_t generation;
	uint64_t step;
	uint64_t
		blob; /* rank 0: length of its manifest, which the nodes were sent; 0: they were not */
};

/* Rank 0: what the indexes of all ranks say together, for readers of very many (FORMAT.md 19). */
struct ckpt_saver_catalog {
	uint64_t generation; /* that it is of, or was tried in; 0: none */
	struct ckpt_digest digest;
	uint64_t bytes; /* 0: there is none */
};

/* The core's thread, but for what has a lock. */
struct ckpt_saver {
	struct ckpt_told told[CKPT_EXCHANGE_BATCH]; /* oldest first */
	size_t told_count;
	size_t refusals;                /* being told */
	struct ckpt_save_commit *early; /* of them, those that wait for the claim under way */
	struct ckpt_skipper *skipper;   /* waits for the end of core->save; NULL: nobody */

	/* Rank 0: the plans of all ranks, if they are not to be compared again; NULL: none. */
	struct ckpt_digest *agreed;
	struct ckpt_saver_catalog catalog; /* of these plans */
	/* Rank 0: bits of the ranks that write a box which another one writes as well, by these plans; NULL: none. */
	uint64_t *shared;
	uint64_t shared_step; /* the newest in which they had the same bytes; valid if shared */
	/* Of what several ranks hold alike: all bytes were compared, in a step that was committed. */
	struct ckpt_replica_digest_proved alike_proved;
	struct ckpt_replica_digest_owned alike_owned;
	struct ckpt_encoders encoders; /* empty: shards are stored plain */
	bool said_plain;               /* that there was no memory to encode one */
	bool said_no_masters;          /* that there was none for the search for master weights */
	uint64_t estimate_min;         /* bytes of a plain shard of which save/estimate.c is told */
	bool estimated;
	struct ckpt_staged_base *base; /* of the last committed step; NULL: none */
	struct ckpt_delta_run run;     /* that it ends */
	bool no_room_told;             /* that there is no room for a base was said, */
	bool not_alone_told;           /* and that ranks differ in which steps have none */
	uint64_t alike_step; /* the newest in which they were found equal; valid if any_alike */
	bool any_alike;
};

/* Makes core->saver. -ENOMEM. */
int ckpt_saver_open(struct ckpt_core *core);
/* When nothing is under way. What was not opened is not closed. */
void ckpt_saver_close(struct ckpt_core *core);
/* Whether the save under way may be stored as the difference to a step, or to one that needs it. */
bool ckpt_save_needs(const struct ckpt_core *core, uint64_t generation, uint64_t step);
/* This rank has told the others something about a step. */
void ckpt_saver_note_told(struct ckpt_saver *saver, uint64_t generation, uint64_t step);

#endif
