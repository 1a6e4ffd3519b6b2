/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a start need not send: retention in the remote store has let it go there, or would do so at once. Decided
 * by each rank that keeps a store, of the steps of earlier generations, once, before the first of them is sent.
 */
#ifndef CKPT_ENGINE_COPY_UPLOAD_FILTER_H
#define CKPT_ENGINE_COPY_UPLOAD_FILTER_H

#include "engine/core/core.h"
#include "engine/lineage/scan.h"

struct ckpt_upload_filter {
	struct ckpt_task task; /* await `finished`, look at `result` */
	struct ckpt_core *core;
	struct ckpt_store *dest;
	struct ckpt_error *err;
	struct ckpt_task *waiter;

	struct ckpt_scanner scanner; /* what is there */
};

/* Zeroed, but for what comes before the blank line. */
void ckpt_upload_filter_start(struct ckpt_upload_filter *upload_filter);
/* After 0. False: it is to be sent, or is there. */
bool ckpt_upload_filter_holds_back(
	struct ckpt_upload_filter *upload_filter, uint64_t generation, uint64_t step);
/* After the end. */
void ckpt_upload_filter_clear(struct ckpt_upload_filter *upload_filter);

#endif
