/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much staging memory each rank of a job on one node may have. The ranks write a line each into a file in memory,
 * which says what a rank needs and what it has. All of them together have at most half of each bound's memory. Who
 * needs less than an even share leaves the rest to those who need more.
 *
 * The file has no name any more once all ranks have come. A rank that has died has no lock on its line, which is how
 * the others know. Not for two threads at once; any thread.
 */
#ifndef CKPT_STAGING_LEDGER_H
#define CKPT_STAGING_LEDGER_H

#include "base/compiler.h"
#include "staging/memlimit.h"
#include <ckpt/error.h>

struct ckpt_ledger;

struct ckpt_ledger_config {
	const char *dir; /* of this node alone; NULL: /dev/shm */
	const char *job; /* what only the ranks of this job have in common */
	uint32_t ranks;  /* of the job that are taken to be on this node, 1 at least */
	uint64_t have;   /* bytes that this one has */
};

/* Words into `err`. */
int ckpt_ledger_open(const struct ckpt_ledger_config *config, struct ckpt_error *err,
	struct ckpt_ledger **ret_ledger);
/* The others have what this one had. NULL is ignored. */
void ckpt_ledger_close(struct ckpt_ledger *ledger);

/*
 * To read it, and to write one's own line: begin, then end. This rank holds `held` bytes of memory that others cannot
 * have. -EAGAIN: another rank has the ledger just now. Other errors: it cannot be used.
 */
int ckpt_ledger_begin(struct ckpt_ledger *ledger, uint64_t held);
/*
 * Between these: the most that this rank may have in all, if it needs `need` bytes. 0: what is available is not known.
 * `memory` was read after the begin: what is touched meanwhile then counts as used by others.
 */
uint64_t ckpt_ledger_allow(
	struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory, uint64_t need);
/*
 * After that, with the same `memory`: this rank's share of what it needs. 0: what is available is not known. Others may
 * have more than their shares, and this one is then allowed less than its own. Each gives back no more than what it has
 * beyond its share: if all of them counted what the others have not given back yet, each would give back everything.
 */
uint64_t ckpt_ledger_share(const struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory);
/* Between these: the ranks that have come and are alive. */
unsigned ckpt_ledger_ranks(const struct ckpt_ledger *ledger);
/* Between these: what all ranks hold. */
uint64_t ckpt_ledger_held(const struct ckpt_ledger *ledger);
/* This rank has `have` bytes, or is about to. */
int ckpt_ledger_end(struct ckpt_ledger *ledger, uint64_t have);

#endif
