/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine knows of its store and of its generation. */
#ifndef CKPT_ENGINE_LINEAGE_LINEAGE_H
#define CKPT_ENGINE_LINEAGE_LINEAGE_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

/* Used by the core's thread only. */
struct ckpt_lineage {
	/* What the store contained when it was last read, updated by this engine's own changes. */
	struct ckpt_marker marker;
	struct ckpt_scan scan;

	/* The generation. */
	uint64_t generation;        /* 0: not claimed */
	bool adopted;               /* a parent was chosen by a restore */
	uint64_t parent_generation; /* 0: none */
	uint64_t parent_step;
	struct ckpt_object holder; /* lock on the newest claim: the predecessor's, then its own */
	/* A later generation was seen: nothing may be published any more. */
	bool fenced;
	bool claiming;
	/* Rank 0: some node's store, or its own, had a step of the lineage when they were opened. */
	bool elsewhere;
	uint64_t newest_elsewhere; /* newest claim in any node's store when they were opened */
	uint64_t tried_generation; /* number of a claim that failed but may exist; 0: none */
	uint64_t tried_nonce;
	bool holds_claim; /* `holder` is the lock of the tried claim */
	uint64_t nonce;   /* of the claim of `generation` */
	uint64_t
		/* Generation that rank 0 has claimed and this rank could not join; 0: none. */
		heard_generation;
	uint64_t heard_nonce;
	uint32_t claims;      /* claims made in this session */
	uint32_t claim_tries; /* tries of the next claim */
	bool claim_untold;    /* rank 0 has claimed, and the others may not know it */
	bool claim_telling;
	uint64_t last_step; /* newest step begun in this generation; valid if any_step */
	bool any_step;
	/* Rank 0: sessions that existed when it opened the store, possibly its own. */
	struct ckpt_listing sessions;
};

/* Allocates core->lineage. -ENOMEM. */
int ckpt_lineage_open(struct ckpt_core *core);
/* Requires that nothing is under way. Does nothing if ckpt_lineage_open() was not called. */
void ckpt_lineage_close(struct ckpt_core *core);

#endif
