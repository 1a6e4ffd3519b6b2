/* SPDX-License-Identifier: Apache-2.0 */
/* The name and text of every errno of Linux, in English whatever the locale. */
#ifndef CKPT_BASE_ERRNO_TEXT_H
#define CKPT_BASE_ERRNO_TEXT_H

#include "base/compiler.h"

#define CKPT_ERRNO_END 134 /* one above the highest */

struct ckpt_errno {
	const char *name; /* "ENOSPC" */
	const char *text; /* "No space left on device" */
};

/* NULL for a number without a name. */
const struct ckpt_errno *ckpt_errno_find(int number);

#endif
