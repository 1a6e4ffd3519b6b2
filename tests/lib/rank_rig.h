/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one job, each on a rig of its own, on one store and one exchange, all on the thread of the test.
 */
#ifndef CKPT_TESTS_RANK_RIG_H
#define CKPT_TESTS_RANK_RIG_H

#include "lib/core_rig.h"

#define RANK_RIG_RANKS 3

struct rank_rig {
	char *dir;
	struct core_rig rank[RANK_RIG_RANKS];
	struct ckpt_save *save[RANK_RIG_RANKS];
	bool open[RANK_RIG_RANKS];
};

/* What a rank that is not there tells of a step. */
struct rank_rig_word {
	uint32_t rank;
	uint32_t as; /* under the key of this rank */
	int code;
	uint64_t generation, step, nonce; /* added to what is right */
	uint64_t index_bytes;
};

/* For cmocka: nobody is there yet; all are gone. */
int rank_rig_setup(void **state);
int rank_rig_teardown(void **state);

void rank_rig_open(struct rank_rig *s, uint32_t rank, uint32_t world, uint32_t timeout_ms);
/* `world` ranks, of which the first `count` are there and have claimed. */
void rank_rig_open_all(struct rank_rig *s, uint32_t count, uint32_t world, uint32_t timeout_ms);
/* The clock goes on for all, in steps in which a word may go from one to the other and back. */
void rank_rig_sleep(struct rank_rig *s, uint64_t ms);

/* A save of one rank; begun, it has been posted. */
void rank_rig_prepare(struct rank_rig *s, uint32_t rank, uint64_t step);
void rank_rig_begin(struct rank_rig *s, uint32_t rank, uint64_t step);
/* One that cannot even begin: its end is checked. */
void rank_rig_refuse(struct rank_rig *s, uint32_t rank, uint64_t step, int code, const char *why);
bool rank_rig_ended(const struct rank_rig *s, uint32_t rank);
/* Its code; its words are the rank's last ones. */
int rank_rig_end(struct rank_rig *s, uint32_t rank);
const char *rank_rig_message(const struct rank_rig *s, uint32_t rank);
void rank_rig_check_says(const struct rank_rig *s, uint32_t rank, const char *text);

/* Puts a value into the exchange, as another rank would. */
void rank_rig_put(struct rank_rig *s, const char *key, const struct ckpt_buf *value);
void rank_rig_tell(struct rank_rig *s, uint64_t step, struct rank_rig_word word);
/* Paths of what was told under a key, and of a manifest of generation 1. */
const char *rank_rig_told(const struct rank_rig *s, const char *key);
const char *rank_rig_manifest(const struct rank_rig *s, uint64_t step);

#endif
