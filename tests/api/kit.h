/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the public interface share: a small state, and one-line saves and restores. */
#ifndef CKPT_TESTS_API_KIT_H
#define CKPT_TESTS_API_KIT_H

#include <ckpt/ckpt.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "lib/hang.h"
#include "lib/scratch.h"

/* Of a wait; and of what no test waits for. */
#define TIMEOUT_MS HANG_LIMIT_MS
#define LONG_MS    (2u * HANG_LIMIT_MS)

static inline int kit_in_time(int r, const char *call, const char *file, int line)
{
	if (r == -ETIMEDOUT)
		hang_limit(call, file, line);
	return r;
}
/* The result of a call that does not come to its timeout unless something hangs. */
#define in_time(call) kit_in_time((call), #call, __FILE__, __LINE__)

/* Fails with the library's own sentence. */
#define must_work(call)                                                                            \
	do {                                                                                       \
		int must_r = in_time(call);                                                        \
		if (must_r < 0)                                                                    \
			fail_msg("%s: %d: %s", #call, must_r, ckpt_last_error());                  \
	} while (0)

/* A vector of `count` floats that `seed` decides. */
struct kit_vector {
	char name[64];
	int64_t count;
	float *data;
};

void kit_fill(struct kit_vector *vector, const char *name, int64_t count, unsigned seed);
void kit_clear(struct kit_vector *vector);
struct ckpt_tensor kit_tensor(const struct kit_vector *vector);

/*
 * An engine with small blocks and a small pool, on the backend that CKPT_TEST_IO names. It stores what it saves as
 * CKPT_TEST_ENCODING says.
 */
struct ckpt_engine_opts kit_opts(void);
/* How the files of shards end that such an engine writes. */
const char *kit_shard_suffix(void);
struct ckpt_engine *kit_open(const char *path, uint32_t flags);

/* Waits until it is durable or has failed, by its own deadline maybe. Its result. */
#define kit_wait(save) kit_wait_at((save), __FILE__, __LINE__)
int kit_wait_at(struct ckpt_save *save, const char *file, int line);
#define kit_wait_restore(restore) kit_wait_restore_at((restore), __FILE__, __LINE__)
int kit_wait_restore_at(struct ckpt_restore *restore, const char *file, int line);
/* Saves vectors as `step` and waits until they are durable. Returns the save's result. */
int kit_save(struct ckpt_engine *engine, uint64_t step, const struct kit_vector *vectors, size_t n);
/* Starts a save without waiting; its handle. */
struct ckpt_save *kit_start(struct ckpt_engine *engine, uint64_t step, uint32_t flags,
	const struct kit_vector *vectors, size_t n);
/* Restores `step` and compares with the vectors, bit for bit. Returns the restore's result. */
int kit_compare(
	struct ckpt_engine *engine, uint64_t step, const struct kit_vector *vectors, size_t n);
/* Restores the newest step of the store, adopts it, and returns its number; 0: nothing there. */
uint64_t kit_resume(struct ckpt_engine *engine);

#endif
