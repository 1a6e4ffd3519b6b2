/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error records. The function that decides on an error sets its message, once, with ckpt_fail(); its callers return the
 * code. A record keeps its first error.
 */
#ifndef CKPT_BASE_ERROR_H
#define CKPT_BASE_ERROR_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* Where it failed. Zero and NULL: unknown. */
struct ckpt_where {
	const char *tier;
	const char *file;
	const char *tensor;
	bool has_offset;
	uint64_t offset;
};

void ckpt_error_clear(struct ckpt_error *err);

/* Sets `code` and the message in `err` (NULL: ignored), unless it already has an error; returns `code`. */
CKPT_PRINTF(3, 4) int ckpt_fail(struct ckpt_error *err, int code, const char *fmt, ...);

CKPT_PRINTF(4, 5)
int ckpt_fail_at(
	struct ckpt_error *err, int code, const struct ckpt_where *where, const char *fmt, ...);

/*
 * Takes the remote store's error `said`, with its message and status, and adds `where`. False: `said` has another code,
 * or is of this machine, where its message adds nothing.
 */
bool ckpt_fail_said(struct ckpt_error *err, int code, const struct ckpt_where *where,
	const struct ckpt_error *said);

/* Whether the code means that what was read is missing, cut short, changed or malformed. */
bool ckpt_code_is_damage(int code);

/* "No space left on device (ENOSPC)": the text of -errno and library codes, for messages. */
const char *ckpt_code_text(int code);

/* This thread's record, which ckpt_last_error() returns. It is cleared; pass it to ckpt_fail(). */
struct ckpt_error *ckpt_error_here(void);

/* Copies at most ret->size bytes. Returns the code. */
int ckpt_error_copy(const struct ckpt_error *err, struct ckpt_error *ret_error);

#endif
