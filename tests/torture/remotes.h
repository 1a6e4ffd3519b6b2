/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trials of a store whose steps go on to another one, a directory beside it. What the library has said of that
 * one is in a log of its own:
 *
 *	there STEP       the step is in the remote store
 *	free STEP        it may go from there, and need not be sent any more
 */
#ifndef CKPT_TESTS_REMOTES_H
#define CKPT_TESTS_REMOTES_H

#include "torture/torture.h"

/* The remote store of a deed: where it is; what is written down of it; and the options that name it. */
char *remotes_path(const struct workload *d);
void remotes_log(struct workload *d, const char *verb, unsigned step);
void remotes_settle(struct workload *d);

/*
 * What must hold afterwards. In the remote store is all that was said to be there, and what is there is whole.
 * The next start goes on from the newest step that either store has, and sends what is missing. Then what must
 * hold of any store holds of the local one.
 */
void remotes_aftermath(struct workload *d);

#endif
