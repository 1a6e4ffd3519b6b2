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

#include "lib/scratch.h"

#define TIMEOUT_MS 30000

/* Fails with the library's own sentence. */
#define must_work(call)                                                                            \
	do {                                                                                       \
		int must_r = (call);                                                               \
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

/* An engine with small blocks and a small pool, on the backend that CKPT_TEST_IO names. */
struct ckpt_engine_opts kit_opts(void);
struct ckpt_engine *kit_open(const char *path, uint32_t flags);

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
