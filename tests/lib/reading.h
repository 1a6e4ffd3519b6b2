/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of reading share: a crafted store of three steps (10, 20, 30 of generation 1) with
 * tensors of every kind, and a rig with a pool of four slots on it.
 */
#ifndef CKPT_TESTS_READING_H
#define CKPT_TESTS_READING_H

#include "lib/rig.h"
#include "lib/scratch.h"
#include "lib/store_fixture.h"

#define READING_TENSORS 9
#define READING_BLOCK   UINT32_C(65536)
#define READING_CHUNK   UINT32_C(16384)
#define READING_STEPS   3

struct reading {
	char *dir;
	struct fixture_step steps[READING_STEPS];
	struct ckpt_tensor tensors[READING_TENSORS]; /* of the last step that was committed */
	char *bytes[READING_TENSORS];
	uint64_t nbytes[READING_TENSORS];
	struct rig rig;
};

/* Memory for all tensors, and for the alias. */
struct reading_copy {
	const struct reading *of;
	char *data[READING_TENSORS + 1];
};

int reading_setup(void **state);
int reading_teardown(void **state);
/* Opens the rig that the test has closed. */
void reading_open(struct reading *t, bool read_only);
/* Commits a step whose bytes its number decides. */
void reading_commit(struct reading *t, const struct fixture_step *step);
/* Puts step 30 back as it was, without a note, and opens the rig anew. */
void reading_repair(struct reading *t);
/* The bytes that a tensor has at a step. Valid until the next call for another step. */
const char *reading_bytes(struct reading *t, const char *name, uint64_t step);

void reading_bind_all(
	const struct reading *t, struct ckpt_restore *restore, struct reading_copy *copy);
/* The same, where it may fail. */
int reading_try_bind(
	const struct reading *t, struct ckpt_restore *restore, struct reading_copy *copy);
/* Compares all of it with what the step holds, and frees it. */
void reading_check_all(struct reading *t, struct reading_copy *copy, uint64_t step);
/* No byte of this chunk has arrived. */
void reading_check_untouched(const struct reading_copy *copy, const struct ckpt_layout *layout,
	const struct ckpt_chunk *chunk);
/* No byte at all has. */
void reading_check_pristine(const struct reading_copy *copy);
void reading_free_copy(struct reading_copy *copy);

/* Whether the lock that removing needs could be had. Taken and given back. */
bool reading_may_remove(const struct fixture_step *step);
/* Takes that lock. The descriptor that holds it. */
int reading_lock(const struct fixture_step *step);

/* The n-th allocation from now fails. */
void reading_fail_allocation(size_t n);
/* No more failures. True: there was one. */
bool reading_allow_allocations(void);

#endif
