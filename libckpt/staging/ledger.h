/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much staging memory each rank of a job on one node may have. Each rank writes a line to a file in memory: what it
 * needs, and what it has. All together use at most half of each bound's memory. Ranks that need less than an even share
 * leave the rest to those that need more.
 *
 * The file loses its name when all ranks have opened it. A dead rank has no lock on its line, which shows that it is
 * dead. Any thread, but one at a time.
 */
#ifndef CKPT_STAGING_LEDGER_H
#define CKPT_STAGING_LEDGER_H

#include "base/compiler.h"
#include "staging/memlimit.h"
#include <ckpt/error.h>

struct ckpt_ledger;

struct ckpt_ledger_config {
	const char *dir; /* local to this node; NULL: /dev/shm */
	const char *job; /* shared by the ranks of this job only */
	uint32_t ranks;  /* number of the job's ranks on this node, at least 1 */
	uint64_t have;   /* bytes that this rank has */
};

/* Sets `err`. */
int ckpt_ledger_open(const struct ckpt_ledger_config *config, struct ckpt_error *err,
	struct ckpt_ledger **ret_ledger);
/* Frees this rank's memory for the others. NULL is ignored. */
void ckpt_ledger_close(struct ckpt_ledger *ledger);

/*
 * To read the ledger and write our line: begin, then end. This rank holds `held` bytes that others cannot have.
 * -EAGAIN: another rank uses the ledger now. Other errors: it is unusable.
 */
int ckpt_ledger_begin(struct ckpt_ledger *ledger, uint64_t held);
/*
 * Between begin and end: the most that this rank may have in total if it needs `need` bytes. 0: it is unknown what is
 * available. Read `memory` after the begin, so that memory touched meanwhile counts as used by others.
 */
uint64_t ckpt_ledger_allow(
	struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory, uint64_t need);
/*
 * After that, with the same `memory`: this rank's share of what it needs. 0: it is unknown what is available. Others
 * may have more than their shares; then this rank is allowed less than its own. Each rank gives back only what exceeds
 * its share. If each also counted what others have not given back yet, all would give back everything.
 */
uint64_t ckpt_ledger_share(const struct ckpt_ledger *ledger, const struct ckpt_memlimit *memory);
/* Between begin and end: the ranks that have joined and are alive. */
unsigned ckpt_ledger_ranks(const struct ckpt_ledger *ledger);
/* Between begin and end: what all ranks hold. */
uint64_t ckpt_ledger_held(const struct ckpt_ledger *ledger);
/* This rank has `have` bytes, or will soon. */
int ckpt_ledger_end(struct ckpt_ledger *ledger, uint64_t have);

#endif
