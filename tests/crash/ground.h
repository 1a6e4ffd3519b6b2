/* SPDX-License-Identifier: Apache-2.0 */
/* File systems on loop devices that go when their last user does, however that ends. */
#ifndef CRASH_GROUND_H
#define CRASH_GROUND_H

#include <stdbool.h>
#include <stdint.h>

struct ground {
	int fd; /* the loop device */
	char device[32];
	char dir[256];
	char fs[16];
};

#define GROUND_SKIPPED 77

/* Dies with its parent. Call it first: everything here ends with the program then. */
void ground_bind(void);
/* Puts a loop device over `backing`. Ends the program, with 77, where there are none. */
void ground_open(struct ground *ground, int backing, const char *fs, const char *dir);
void ground_close(struct ground *ground);
/* 0 or -errno. The device is read afresh. */
int ground_mount(struct ground *ground);
/* Waits until nobody uses it any more. */
void ground_unmount(struct ground *ground);
/* At once, with nothing written any more. Ends the program, with 77, where that is not to be had. */
void ground_shut_down(struct ground *ground);
/* Runs a program to its end, its output thrown away if `quiet`. Its status, as of waitpid(). */
int ground_run(char *const *arguments, bool quiet);

#endif
