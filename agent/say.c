/* SPDX-License-Identifier: Apache-2.0 */
/* Writes lines without waiting. SIGPIPE must be ignored. */
#include "say.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* With the newline. A pipe that is ready takes so much without waiting (PIPE_BUF). */
#define LINE_MAX_BYTES 2048

static void put(const char *line, size_t length)
{
	struct pollfd ready = {STDERR_FILENO, POLLOUT, 0};

	/* The journal is a socket, which may have room for less than a line. */
	if (send(STDERR_FILENO, line, length, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 ||
		errno != ENOTSOCK)
		return;
	/* O_NONBLOCK would be of others as well, who have the same pipe or terminal. */
	if (poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT))
		(void)!write(STDERR_FILENO, line, length);
}

void agent_say(const char *fmt, ...)
{
	char line[LINE_MAX_BYTES] = "ckptd: ";
	size_t length = strlen(line);
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(line + length, sizeof(line) - length - 1, fmt, args);
	va_end(args);
	if (n < 0)
		return;
	length = strlen(line);
	line[length++] = '\n';
	put(line, length);
}
