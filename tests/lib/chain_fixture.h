/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps that are stored with bases: written by the encoder of the library, chunk by chunk, each with the step before it as
 * its base. What saves is not used. Programs that use it need codec_dep.
 */
#ifndef CKPT_TESTS_CHAIN_FIXTURE_H
#define CKPT_TESTS_CHAIN_FIXTURE_H

#include "format/encoded.h"
#include "format/index.h"
#include "lib/store_fixture.h"

/* Zero is a chain without steps. */
struct chain_fixture {
	/* Of the last step. */
	struct ckpt_index *index;
	char *shard;
	struct ckpt_encoded table;     /* its own memory: `chunks` and `refs` */
	struct ckpt_encoded_base last; /* it, as the next one names it */
	bool plain;                    /* it is stored plain */
	/* Chunks of all steps so far. */
	size_t same;
	size_t based;
	size_t refs;
};

/*
 * Commits the step, of one rank, and stores its shard encoded, with the last step as its base, if there is one. Steps have the
 * same tensors and ascend. At most 17 of them.
 */
void chain_fixture_add(struct chain_fixture *chain, const struct fixture_step *step);
/* The same of the first one, which stays plain. */
void chain_fixture_begin_plain(struct chain_fixture *chain, const struct fixture_step *step);
/* Writes the shard of the last step anew, with chain->table as it is now: its chunks are where they were. */
void chain_fixture_put_table(struct chain_fixture *chain, const struct fixture_step *step);
void chain_fixture_clear(struct chain_fixture *chain);

#endif
