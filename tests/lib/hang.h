/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting in a test: for a condition, however long it takes, up to one limit against what hangs. A test that
 * gives up says so in a line that begins with "hang limit: ".
 */
#ifndef CKPT_TESTS_HANG_H
#define CKPT_TESTS_HANG_H

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HANG_LIMIT_S  120
#define HANG_LIMIT_MS (HANG_LIMIT_S * 1000)

static inline void hang_say(const char *what, const char *file, int line)
{
	(void)fflush(stdout);
	(void)fprintf(stderr, "hang limit: %s, %s:%d\n", what, file, line);
}

/* Any thread, with or without cmocka. What hangs may still use what is the test's, so nothing is cleaned up. */
static inline _Noreturn void hang_limit(const char *what, const char *file, int line)
{
	hang_say(what, file, line);
	abort();
}

static inline time_t hang_clock(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec;
}

/* What a wait of HANG_LIMIT_MS has come to. */
#define hang_unless(reached)                                                                       \
	do {                                                                                       \
		if (!(reached))                                                                    \
			hang_limit(#reached, __FILE__, __LINE__);                                  \
	} while (0)

/* Looks a thousand times a second until it is so. */
#define await(condition)                                                                           \
	do {                                                                                       \
		time_t await_end = hang_clock() + HANG_LIMIT_S;                                    \
		while (!(condition)) {                                                             \
			if (hang_clock() > await_end)                                              \
				hang_limit(#condition, __FILE__, __LINE__);                        \
			(void)poll(NULL, 0, 1);                                                    \
		}                                                                                  \
	} while (0)

static inline void hang_alarm(int signal)
{
	static const char text[] = "hang limit: the end of this process\n";

	(void)signal;
	(void)!write(STDERR_FILENO, text, strlen(text));
	abort();
}

/* This process ends by then: for a child that nobody else watches, and for what waits without a limit. */
static inline void hang_watch(void)
{
	(void)signal(SIGALRM, hang_alarm);
	(void)alarm(HANG_LIMIT_S);
}

#endif
