/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of one job, each on a rig of its own, on one store and one exchange, all on the thread of the test.
 */
#ifndef CKPT_TESTS_CREW_H
#define CKPT_TESTS_CREW_H

#include "lib/core_rig.h"

#define CREW_RANKS 3

struct crew {
	char *dir;
	struct core_rig rank[CREW_RANKS];
	struct ckpt_save *save[CREW_RANKS];
	bool open[CREW_RANKS];
};

/* What a rank that is not there tells of a step. */
struct crew_word {
	uint32_t rank;
	uint32_t as; /* under the key of this rank */
	int code;
	uint64_t generation, step, nonce; /* added to what is right */
	uint64_t index_bytes;
};

/* For cmocka: nobody is there yet; all are gone. */
int crew_setup(void **state);
int crew_teardown(void **state);

void crew_open(struct crew *s, uint32_t rank, uint32_t world, uint32_t timeout_ms);
/* `world` ranks, of which the first `count` are there and have claimed. */
void crew_open_all(struct crew *s, uint32_t count, uint32_t world, uint32_t timeout_ms);
/* The clock goes on for all, in steps in which a word may go from one to the other and back. */
void crew_sleep(struct crew *s, uint64_t ms);

/* A save of one rank; begun, it has been posted. */
void crew_prepare(struct crew *s, uint32_t rank, uint64_t step);
void crew_begin(struct crew *s, uint32_t rank, uint64_t step);
/* One that cannot even begin: its end is checked. */
void crew_refuse(struct crew *s, uint32_t rank, uint64_t step, int code, const char *why);
bool crew_ended(const struct crew *s, uint32_t rank);
/* Its code; its words are the rank's last ones. */
int crew_end(struct crew *s, uint32_t rank);
const char *crew_message(const struct crew *s, uint32_t rank);
void crew_check_says(const struct crew *s, uint32_t rank, const char *text);

/* Puts a value into the exchange, as another rank would. */
void crew_put(struct crew *s, const char *key, const struct ckpt_buf *value);
void crew_tell(struct crew *s, uint64_t step, struct crew_word word);
/* Paths of what was told under a key, and of a manifest of generation 1. */
const char *crew_told(const struct crew *s, const char *key);
const char *crew_manifest(const struct crew *s, uint64_t step);

#endif
