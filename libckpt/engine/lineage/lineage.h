/* SPDX-License-Identifier: Apache-2.0 */
/* What an engine knows of its store and of the generation that it has, or is about to have. */
#ifndef CKPT_ENGINE_LINEAGE_LINEAGE_H
#define CKPT_ENGINE_LINEAGE_LINEAGE_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

/* The core's thread. */
struct ckpt_lineage {
	/* What the store held when it was last read, and what this engine has done since. */
	struct ckpt_marker marker;
	struct ckpt_scan scan;

	/* The generation. */
	uint64_t generation;        /* 0: not claimed */
	bool adopted;               /* a parent was chosen by a restore */
	uint64_t parent_generation; /* 0: none */
	uint64_t parent_step;
	struct ckpt_object holder; /* lock on the newest claim: its predecessor's, then its own */
	bool fenced;               /* a later generation was seen: nothing is published any more */
	bool claiming;
	bool elsewhere; /* rank 0: the store of some node, or its own, had a step of the lineage then */
	uint64_t newest_elsewhere; /* claim in the store of any node when they were opened */
	uint64_t
		tried_generation; /* of a claim that failed and may be there all the same; 0: none */
	uint64_t tried_nonce;
	bool holds_claim; /* `holder` is of the one that was tried */
	uint64_t nonce;   /* of the claim of `generation` */
	uint64_t
		heard_generation; /* that rank 0 has claimed, and this rank could not join; 0: none */
	uint64_t heard_nonce;
	uint32_t claims;      /* of this session that were made */
	uint32_t claim_tries; /* of the next one */
	bool claim_untold;    /* rank 0 has claimed, and the others may not know */
	bool claim_telling;
	uint64_t last_step; /* newest step begun in this generation; valid if any_step */
	bool any_step;
	struct ckpt_listing sessions; /* rank 0: that were there when it came, its own perhaps */
};

/* Makes core->lineage. -ENOMEM. */
int ckpt_lineage_open(struct ckpt_core *core);
/* When nothing is under way. What was not opened is not closed. */
void ckpt_lineage_close(struct ckpt_core *core);

#endif
