/* SPDX-License-Identifier: Apache-2.0 */
/* Directories for tests, below the working directory so that they lie on a real disk. */
#ifndef CKPT_TESTS_SCRATCH_H
#define CKPT_TESTS_SCRATCH_H

#include <stdbool.h>
#include <stddef.h>

/* Makes an empty directory and returns its path; exits if that fails. Freed by scratch_remove(). */
char *scratch_make(void);
/* The same in memory where there is /dev/shm: for tests that write much and ask nothing of the disk. */
char *scratch_make_in_memory(void);
/* Removes it with all that is in it. */
void scratch_remove(char *path);
/* Copies a directory, with all that is in it, to one that is not there. False: errno says why not. */
bool scratch_copy(const char *from, const char *to);
/* Writes a text to the file "/a/b" below `dir`, and makes its directories. */
void scratch_put(const char *dir, const char *path, const char *text);
/* "a/b" into a buffer that the next eight calls leave alone. */
const char *scratch_join(const char *a, const char *b);
/* The first name under `dir` (any depth) that ends in `suffix`, as a path; NULL if there is none. */
const char *scratch_find(const char *dir, const char *suffix);
/* Files and directories under `dir`, itself not counted. */
size_t scratch_count(const char *dir);
/* Turns over one bit of byte `offset`. */
void scratch_flip(const char *path, long offset);
/* Descriptors and threads of this process. A thread that was joined may be counted for a moment more. */
size_t scratch_descriptors(void);
size_t scratch_threads(void);
/* Waits until there are no more than `threads`, which may have been counted a moment too early. */
void scratch_threads_settle(size_t threads);
/* Waits until there are so many, which another thread closes. */
void scratch_descriptors_settle(size_t descriptors);

#endif
