/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether anything gets past the replacements: the system calls of a trial as ptrace() sees them, those
 * that a thread makes which is armed and not inside of a call that is counted.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "torture/torture.h"

#define CALLS 512

/* Those that are not counted, and why. */
static const struct {
	long number;
	bool tool;
	const char *why;
} expected[] = {
	{SYS_futex, false, "waiting for a lock, a condition or a thread: it cannot fail"},
	{SYS_clone, false, "the fork of the trial itself: threads are made otherwise"},
	{SYS_getpid, false, "cannot fail"},
	{SYS_sysinfo, false, "qsort() asks how much memory there is, and does without the answer"},
	{SYS_write, true, "what a program prints; tests/tools has streams that cannot be written"},
	{SYS_close, true, "of its output, at the end"},
	{SYS_openat, true, "jansson's seed for hashes, for which it has another source"},
	{SYS_ioctl, true, "whether a program's output is a terminal"},
	{SYS_rt_sigaction, true, "a program that catches signals: it cannot fail"},
};

static unsigned past[CALLS];

static bool is_expected(long number, bool tool)
{
	for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
		if (expected[i].number == number && (tool || !expected[i].tool))
			return true;
	return false;
}

static void look(pid_t tid)
{
	struct __ptrace_syscall_info info;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, (void *)sizeof(info), &info) <= 0 ||
		info.op != PTRACE_SYSCALL_INFO_ENTRY || info.entry.nr >= CALLS)
		return;
	for (int i = 0; i < TORTURE_SLOTS; i++) {
		struct torture_slot *slot = &torture->slots[i];
		if (atomic_load(&slot->tid) == tid && atomic_load(&slot->inside) == 0)
			past[info.entry.nr]++;
	}
}

/* Until its last thread has ended. The status of the process. */
static int follow(pid_t pid)
{
	int status = 0;
	int end = -1;

	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			return end;
		if (!WIFSTOPPED(status)) {
			if (tid == pid)
				end = status;
			continue;
		}
		int signal = WSTOPSIG(status);
		if (signal == (SIGTRAP | 0x80))
			look(tid);
		if (signal == (SIGTRAP | 0x80) || signal == SIGTRAP || signal == SIGSTOP)
			signal = 0;
		(void)ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)signal);
	}
}

int torture_bypass(void (*child)(unsigned scenario), unsigned scenario)
{
	long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL;
	pid_t pid = fork();
	int status = 0;
	int found = 0;

	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
			_exit(0);
		(void)raise(SIGSTOP);
		child(scenario);
		_exit(0);
	}
	if (pid < 0 || waitpid(pid, &status, 0) < 0 || !WIFSTOPPED(status))
		return -1;
	memset(past, 0, sizeof(past));
	(void)ptrace(PTRACE_SETOPTIONS, pid, NULL, (void *)options);
	(void)ptrace(PTRACE_SYSCALL, pid, NULL, NULL);
	status = follow(pid);
	for (int i = 0; i < TORTURE_SLOTS; i++)
		atomic_store(&torture->slots[i].tid, 0);
	if (status != 0)
		workload_die("%s, traced, ended with %#x", torture_trials[scenario].name, status);
	for (int i = 0; i < CALLS; i++) {
		if (past[i] == 0 || is_expected(i, torture_trials[scenario].tool))
			continue;
		(void)printf("%s: system call %d is made %u times past the count\n",
			torture_trials[scenario].name, i, past[i]);
		found++;
	}
	return found;
}
