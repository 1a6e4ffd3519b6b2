/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of ranks about a restore: the step that rank 0 has chosen, that a rank has finished a part of the restore,
 * and the result of that part for all. Pure.
 */
#ifndef CKPT_EXCHANGE_RESTORE_MESSAGES_H
#define CKPT_EXCHANGE_RESTORE_MESSAGES_H

#include "exchange/rank_messages.h"

/*
 * Parts of a restore that the ranks end together. The last one exists only if every node has a store and one is
 * damaged.
 */
enum ckpt_restore_part { CKPT_RESTORE_OPENING, CKPT_RESTORE_READING, CKPT_RESTORE_MENDING };

struct ckpt_restore_record {
	struct ckpt_verdict verdict;
	uint32_t rank; /* the sender; of a failure, the rank that failed */
	uint32_t world;
	uint64_t wanted;     /* a number, LATEST or BACK(k) */
	uint64_t generation; /* 0: not chosen yet */
	uint64_t step;
	char attempt[CKPT_ATTEMPT_CHARS]; /* empty: not chosen yet */
	char run_id[CKPT_RUN_ID_CHARS];
};

/* Appends to an empty `out`. The key is part of it, so that a value is not accepted under another key. -ENOMEM. */
int ckpt_restore_record_encode(
	const struct ckpt_restore_record *record, const char *key, struct ckpt_buf *out);
/* CKPT_EINTEGRITY, CKPT_EFORMAT, CKPT_EVERSION; then *ret is unchanged. */
int ckpt_restore_record_decode(const void *data, size_t length, const char *key,
	struct ckpt_error *err, struct ckpt_restore_record *ret_record);

/* Keys of CKPT_EXCHANGE_KEY_MAX bytes. `number` counts the restores of a session. */
void ckpt_key_restore(char *out, uint32_t number);
void ckpt_key_restore_part(char *out, uint32_t number, enum ckpt_restore_part part);
void ckpt_key_restore_rank(char *out, uint32_t number, enum ckpt_restore_part part, uint32_t rank);

/* A rank's first value in a session, and its key. If another value is there, the rank was not the first. */
int ckpt_hello_encode(uint64_t nonce, struct ckpt_buf *out);
void ckpt_key_hello(char *out, uint32_t rank);

#endif
