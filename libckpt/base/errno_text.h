/* SPDX-License-Identifier: Apache-2.0 */
/* The name and the phrase of every errno that Linux has, in English whatever the locale. */
#ifndef CKPT_BASE_ERRNO_TEXT_H
#define CKPT_BASE_ERRNO_TEXT_H

#include "base/compiler.h"

#define CKPT_ERRNO_END 134 /* above the greatest */

struct ckpt_errno {
	const char *name; /* "ENOSPC" */
	const char *text; /* "No space left on device" */
};

/* NULL for a number that has no name. */
const struct ckpt_errno *ckpt_errno_find(int number);

#endif
