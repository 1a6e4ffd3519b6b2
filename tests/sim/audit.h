/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold besides what is restored: that what may go goes, that nothing is left undecided, and
 * that an engine counts what it does.
 */
#ifndef AUDIT_H
#define AUDIT_H

#include "oracle.h"
#include "sim_disk.h"
#include "user.h"

struct sim_rank;

/*
 * Nothing goes wrong any more, and the holder of the newest generation has nothing to remove: what
 * retention lets go is gone, and every step of a generation before it is decided.
 */
void audit_store(struct sim *sim, const struct sim_rank *rank, uint64_t generation,
	const struct oracle_retention *retention);

/*
 * At any moment, and after any power cut: a manifest that commits is there only as long as all that it
 * names is.
 */
void audit_visible(struct sim *sim, struct sim_disk *disk, const struct oracle *oracle);

/*
 * A save has failed, and its core has let go of it: there is its record, and nothing else. `since`: the
 * event at which it began to clean up.
 */
void audit_failed(
	struct sim *sim, struct sim_disk *disk, uint64_t generation, uint64_t step, uint64_t since);

/* A step was removed, and its user was told so. */
void audit_removed(struct sim *sim, struct sim_disk *disk, uint64_t generation, uint64_t step);

/* All saves have ended. */
void audit_counts(struct sim_user *user);

#endif
