/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a trial has the library do. Any call may fail; an answer that is not true ends the run. With nothing
 * made to fail, nothing may.
 */
#ifndef CKPT_TESTS_ERRANDS_H
#define CKPT_TESTS_ERRANDS_H

#include "torture/torture.h"

/* The state of a deed. */
extern const char *const errand_names[WORKLOAD_TENSORS];
extern const int64_t errand_counts[WORKLOAD_TENSORS];

/* Passes `good` on; in an undisturbed run it must be. */
bool errand_outcome(bool good, const char *what, unsigned step);

/* Whether a wait has come to its own end, for nothing. */
bool errand_endless(int r);

/*
 * The deadline of a save, and of ranks that wait for each other. Where a call is made to fail a rank may wait in
 * vain, and gives up soon; in an undisturbed run only what hangs comes to it.
 */
uint32_t errand_deadline_ms(void);

bool errand_open(struct workload *d, uint32_t flags);
void errand_close(struct workload *d);
/* NULL: it did not come about. */
struct ckpt_save *errand_start(struct workload *d, unsigned step, unsigned seed, uint32_t flags);
/* Waits until it is there. 0, or the error; -ETIMEDOUT: nothing came of it. */
int errand_reach(struct ckpt_save *save, enum ckpt_level level);
/* Waits for what became of it, 0 or its error, and frees it. */
int errand_end(struct workload *d, struct ckpt_save *save, unsigned step, unsigned seed);
/* True: it is durable. `save` may be NULL. */
bool errand_finish(struct workload *d, struct ckpt_save *save, unsigned step, unsigned seed);
bool errand_save(struct workload *d, unsigned step, unsigned seed);
bool errand_bind(struct workload *d, struct ckpt_restore *restore);
/* Restores `step`, which is to be `expected`, saved with seed `seed`. */
bool errand_restore(
	struct workload *d, uint64_t step, unsigned expected, unsigned seed, bool adopt);
/* From the latest, which is to be this one. */
bool errand_resume(struct workload *d, unsigned step);
/* Boxes of what a trial that is `boxed` has saved, in gathered pieces and from strided memory. */
void errand_box(struct workload *d);
/* For its end; -ETIMEDOUT: there is none. */
int errand_wait(struct ckpt_restore *restore);
void errand_verify(struct workload *d, uint64_t step, bool bad);
/* Exports `step`, which is good, to where the deed says. */
void errand_export(struct workload *d, uint64_t step);
/* Lists so many steps, of which 3 is the latest. */
void errand_list(struct workload *d, size_t expected);
/* Looks at what the step before the latest holds. */
void errand_inspect(struct workload *d);

#endif
