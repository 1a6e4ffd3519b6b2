/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error records. The place that decides an error words it, once, with ckpt_fail(); everything above
 * returns the code. The first failure in a record stays.
 */
#ifndef CKPT_BASE_ERROR_H
#define CKPT_BASE_ERROR_H

#include <ckpt/error.h>
#include "base/compiler.h"

/* Where it failed. Zero and NULL: not known. */
struct ckpt_where {
	const char *tier;
	const char *file;
	const char *tensor;
	bool has_offset;
	uint64_t offset;
};

void ckpt_error_clear(struct ckpt_error *err);

/* Records `code` and the sentence in `err` (NULL: dropped), unless it holds one; returns `code`. */
CKPT_PRINTF(3, 4) int ckpt_fail(struct ckpt_error *err, int code, const char *fmt, ...);

CKPT_PRINTF(4, 5)
int ckpt_fail_at(
	struct ckpt_error *err, int code, const struct ckpt_where *where, const char *fmt, ...);

/*
 * What a remote store has said of this failure: its words and status, with this `where`. False: `said` is of
 * another code, or of this machine, and its words say no more than the code.
 */
bool ckpt_fail_said(struct ckpt_error *err, int code, const struct ckpt_where *where,
	const struct ckpt_error *said);

/* What was read is missing, cut short, changed, or malformed. */
bool ckpt_code_is_damage(int code);

/* "No space left on device (ENOSPC)": the text of -errno and library codes in messages. */
const char *ckpt_code_text(int code);

/* This thread's record, behind ckpt_last_error(). Cleared by the call; hand it to ckpt_fail(). */
struct ckpt_error *ckpt_error_here(void);

/* Copies at most what the caller's ret->size says. Returns the code. */
int ckpt_error_copy(const struct ckpt_error *err, struct ckpt_error *ret_error);

#endif
