/* SPDX-License-Identifier: Apache-2.0 */
/* A child process in worse circumstances than the test's. */
#ifndef CKPT_TESTS_CONFINE_H
#define CKPT_TESTS_CONFINE_H

#include <stddef.h>

#define CONFINE_SKIP 77

/*
 * Runs `body` in a child of this process and returns what it returned: 0 is good, CONFINE_SKIP: it
 * could not be tried. A child that is killed, or runs for a minute, counts as 99.
 */
int confine_run(int (*body)(void *), void *argument);

/* In the child, for all its threads. Each returns 0, or -1 when it cannot be had here. */
int confine_syscalls(const long *numbers, size_t count, int error); /* they fail with `error` */
int confine_memlock(size_t bytes); /* and takes CAP_IPC_LOCK away */
int confine_file_size(size_t bytes);
int confine_files(size_t count);
int confine_user(unsigned uid); /* no capabilities are left */

#endif
