/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of the exchange: messages of ranks about a step or a claim, sealed like every small file of a store, and their
 * keys. Pure.
 */
#ifndef CKPT_EXCHANGE_RANK_MESSAGES_H
#define CKPT_EXCHANGE_RANK_MESSAGES_H

#include "format/manifest.h"

/* Size of the reason of a failure, including the NUL. */
#define CKPT_REASON_CHARS         640
/* Size of digests of what several ranks hold alike. */
#define CKPT_REPLICA_DIGEST_CHARS 772
/* Size of the description of how two ranks differ. */
#define CKPT_CLUE_CHARS           412

/* Which step or claim ended, and how. */
struct ckpt_verdict {
	int code; /* 0: success; else the code of the failure */
	char reason[CKPT_REASON_CHARS];
	uint64_t generation; /* 0: of a claim */
	uint64_t step;
	uint64_t nonce; /* of the claim of `generation` */
};

/* The outcome of a step, for all ranks. For a commit: what its manifest contains. */
struct ckpt_outcome {
	struct ckpt_verdict verdict;
	/* The replicas were compared. For a commit, `verdict.reason` says which differ; "": none. */
	bool alike;
	/*
	 * Replicas of which ranks write their own copies were compared; says which groups differ, see
	 * engine/ranks/replica_digest.h.
	 */
	bool compared;
	uint64_t differ;
	/* It failed but may have been committed: no rank may report that it is durable. */
	bool open;
	char attempt[CKPT_ATTEMPT_CHARS];
	uint64_t bytes; /* of all shards */
	bool follow;    /* a commit: the next step may be stored as the difference to it */
	char clue
		/*
		 * How ranks differ, if rank 0 does not know the names, see engine/ranks/replica_digest.h; "": unknown.
		 */
		[CKPT_CLUE_CHARS];
};

/* The part of one rank in a step: durable, and then `rank` is its entry in the manifest; or failed. */
struct ckpt_rank_record {
	struct ckpt_verdict verdict;
	struct ckpt_manifest_rank rank;
	struct ckpt_digest plan;   /* digest of names, types and boxes */
	struct ckpt_digest common; /* digest of what all ranks must have alike */
	uint64_t balance;          /* the sum over all ranks is 0 */
	uint64_t stored; /* size of the shard's file, of a rank that stores differences; else 0 */
	uint64_t base;   /* 1 and the step that it is the difference to; 0: to none */
	char alike
		/* Its digests, see engine/ranks/replica_digest.h; "": none. */
		[CKPT_REPLICA_DIGEST_CHARS];
};

/* Appends to an empty `out`. -ENOMEM. */
int ckpt_verdict_encode(const struct ckpt_verdict *verdict, struct ckpt_buf *out);
int ckpt_outcome_encode(const struct ckpt_outcome *outcome, struct ckpt_buf *out);
int ckpt_rank_record_encode(const struct ckpt_rank_record *record, struct ckpt_buf *out);
/* CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION; then *ret is unchanged. `key` is for messages. */
int ckpt_verdict_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_verdict *ret_verdict);
int ckpt_outcome_decode(const void *data, size_t length, const char *key, struct ckpt_error *err,
	struct ckpt_outcome *ret_outcome);
int ckpt_rank_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_rank_record *ret_record);
/* Whether both are about the same step and claim; else CKPT_EFORMAT: another job has written it. */
int ckpt_verdict_check(const struct ckpt_verdict *verdict, const struct ckpt_verdict *asked,
	const char *key, struct ckpt_error *err);

/* Formats a key of CKPT_EXCHANGE_KEY_MAX bytes. */
CKPT_PRINTF(2, 3) void ckpt_key_put(char *out, const char *fmt, ...);
/* Keys of CKPT_EXCHANGE_KEY_MAX bytes: claim `number` of the session; its failed try. */
void ckpt_key_claim(char *out, uint32_t number);
void ckpt_key_claim_failed(char *out, uint32_t number, uint32_t attempt);
void ckpt_key_rank(char *out, uint64_t generation, uint64_t step, uint32_t rank);
void ckpt_key_outcome(char *out, uint64_t generation, uint64_t step);
void ckpt_key_manifest(char *out, uint64_t generation, uint64_t step);

#endif
