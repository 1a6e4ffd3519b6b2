/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for what the library's own parts say. */
#ifndef CKPT_TESTS_HANG_INBOX_H
#define CKPT_TESTS_HANG_INBOX_H

#include "base/inbox.h"
#include "base/latch.h"
#include "base/thread.h"
#include "lib/hang.h"

static inline void inbox_run(struct ckpt_inbox *inbox)
{
	struct ckpt_node *next;

	for (struct ckpt_node *node = ckpt_inbox_take(inbox); node; node = next) {
		next = node->next;
		node->run(node);
	}
}

/* On the test's thread, in the place of the core's; `run` runs what has come. */
#define await_inbox(inbox, condition, run)                                                         \
	do {                                                                                       \
		uint64_t await_end = ckpt_deadline(HANG_LIMIT_MS);                                 \
		while (!(condition)) {                                                             \
			if (ckpt_clock_ns() >= await_end)                                          \
				hang_limit(#condition, __FILE__, __LINE__);                        \
			ckpt_inbox_wait((inbox), await_end);                                       \
			run;                                                                       \
		}                                                                                  \
	} while (0)

#define await_latch(latch, bits)                                                                   \
	hang_unless(ckpt_latch_wait((latch), (bits), HANG_LIMIT_MS) & (bits))

#endif
