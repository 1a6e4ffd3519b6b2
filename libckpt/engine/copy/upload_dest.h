/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the remote place a store of this run: its marker, and the claims of the generations that are here. Both
 * are the bytes of the local store, so whoever restores from there goes on with the same lineage, and a job that
 * goes on from another copy finds out that it is not alone.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_DEST_H
#define CKPT_ENGINE_COPY_UPLOAD_DEST_H

#include "engine/core/core.h"

struct ckpt_upload_dest {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *dest;
	const int *stop; /* not 0: give up, with this code */
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	/* Its own. */
	struct ckpt_store_op op;
	struct ckpt_error said;    /* by the remote store, of its failures */
	struct ckpt_listing there; /* claims in the remote store */
	uint64_t newest;           /* of them */
	size_t at;                 /* in the claims that are here */
	char *bytes;
	uint64_t length;
	char path[CKPT_PATH_MAX];
};

/*
 * Zeroed, but for what comes before the blank line. CKPT_EMISMATCH: it is the store of another run, or no store and
 * not empty. CKPT_EFENCED: a later generation than any here is there, or another one of the same number.
 * -EAGAIN: rank 0 has not made it a store yet. Else what the storage says.
 */
void ckpt_upload_dest_start(struct ckpt_upload_dest *place);

#endif
