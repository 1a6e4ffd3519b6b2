/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of the exchange: what ranks tell each other about a step or a claim, sealed like every small
 * file of a store, and the keys that they go by. Pure.
 */
#ifndef CKPT_EXCHANGE_RANK_MESSAGES_H
#define CKPT_EXCHANGE_RANK_MESSAGES_H

#include "format/manifest.h"

/* Of what something failed with, the final NUL included. */
#define CKPT_REASON_CHARS         640
/* Of digests of what several ranks hold alike. */
#define CKPT_REPLICA_DIGEST_CHARS 772
/* Of how two ranks differ. */
#define CKPT_CLUE_CHARS           412

/* How something ended, and what. */
struct ckpt_verdict {
	int code; /* 0: well; else what it failed with */
	char reason[CKPT_REASON_CHARS];
	uint64_t generation; /* 0: a claim */
	uint64_t step;
	uint64_t nonce; /* of the claim of `generation` */
};

/* How a step ended, for all ranks. A commit: what its manifest says. */
struct ckpt_outcome {
	struct ckpt_verdict verdict;
	/* What the ranks hold alike was compared. Of a commit `verdict.reason` says what they differ in; "": nothing. */
	bool alike;
	/* Of groups of which ranks write copies of their own: they were compared, and which differ, see engine/ranks/replica_digest.h. */
	bool compared;
	uint64_t differ;
	bool open; /* it has failed, and may be there all the same: nobody may say that it is durable */
	char attempt[CKPT_ATTEMPT_CHARS];
	uint64_t bytes; /* of all shards */
	char clue
		[CKPT_CLUE_CHARS]; /* how ranks differ, where rank 0 has no names of it, see engine/ranks/replica_digest.h; "": no clue */
};

/* One rank's part of a step: durable, and then `rank` is what the manifest says; or failed. */
struct ckpt_rank_record {
	struct ckpt_verdict verdict;
	struct ckpt_manifest_rank rank;
	struct ckpt_digest
		plan; /* of names, types and boxes: what it describes, whatever the bytes are */
	struct ckpt_digest common; /* of what all ranks must have alike */
	uint64_t balance;          /* adds up to 0 with those of the other ranks */
	char alike
		[CKPT_REPLICA_DIGEST_CHARS]; /* digests of that, see engine/ranks/replica_digest.h; "": none */
};

/* Into an empty `out`. -ENOMEM. */
int ckpt_verdict_encode(const struct ckpt_verdict *verdict, struct ckpt_buf *out);
int ckpt_outcome_encode(const struct ckpt_outcome *outcome, struct ckpt_buf *out);
int ckpt_rank_record_encode(const struct ckpt_rank_record *record, struct ckpt_buf *out);
/* CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION; `key` is for messages. *ret stays as it was then. */
int ckpt_verdict_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_verdict *ret_verdict);
int ckpt_outcome_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_outcome *ret_outcome);
int ckpt_rank_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_rank_record *ret_record);
/* Whether both are about one step of one claim; if not, CKPT_EFORMAT: it was left by somebody else. */
int ckpt_verdict_check(const struct ckpt_verdict *verdict, const struct ckpt_verdict *asked,
	const char *key, struct ckpt_error *err);

/* A key, of CKPT_EXCHANGE_KEY_MAX bytes, for those who name keys. */
CKPT_PRINTF(2, 3) void ckpt_key_put(char *out, const char *fmt, ...);
/* Keys, of CKPT_EXCHANGE_KEY_MAX bytes. Claim `number` of the session; the try of it that failed. */
void ckpt_key_claim(char *out, uint32_t number);
void ckpt_key_claim_failed(char *out, uint32_t number, uint32_t attempt);
void ckpt_key_rank(char *out, uint64_t generation, uint64_t step, uint32_t rank);
void ckpt_key_outcome(char *out, uint64_t generation, uint64_t step);
void ckpt_key_manifest(char *out, uint64_t generation, uint64_t step);

#endif
