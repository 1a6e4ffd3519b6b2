/* SPDX-License-Identifier: Apache-2.0 */
/* What ends a process, tried in a child. */
#ifndef CKPT_TESTS_CHILD_H
#define CKPT_TESTS_CHILD_H

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* The signal that ended a child which called this, 0 if it came back; -1: it could not be tried. */
static inline int child_signal(void (*body)(void *user), void *user)
{
	const struct rlimit no_core = {0, 0};
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		(void)setrlimit(RLIMIT_CORE, &no_core);
		/* The sanitizers and cmocka have handlers of their own. */
		(void)signal(SIGABRT, SIG_DFL);
		(void)signal(SIGSEGV, SIG_DFL);
		(void)close(STDERR_FILENO);
		body(user);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	if (WIFSIGNALED(status))
		return WTERMSIG(status);
	return WEXITSTATUS(status) == 0 ? 0 : -1;
}

#endif
