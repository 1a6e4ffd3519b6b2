/* SPDX-License-Identifier: Apache-2.0 */
#include "kill/tracer.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define THREADS_MAX 256
#define REFUSED     125

struct tracer {
	pid_t pid;
	bool begun;
	struct tracer_end end;
	struct {
		pid_t tid;
		long call;
	} threads[THREADS_MAX];
};

static const long inner_calls[] = {SYS_futex, SYS_rt_sigprocmask, SYS_mmap, SYS_munmap,
	SYS_mprotect, SYS_madvise, SYS_brk, SYS_set_robust_list, SYS_rseq, SYS_getrandom,
	SYS_clone3, SYS_clone, SYS_gettid, SYS_sched_getaffinity, SYS_exit};

static bool is_inner(long call)
{
	for (size_t i = 0; i < sizeof(inner_calls) / sizeof(inner_calls[0]); i++)
		if (inner_calls[i] == call)
			return true;
	return false;
}

/* The call that a thread is in, as its entry told. */
static long *call_of(struct tracer *t, pid_t tid)
{
	unsigned i = 0;

	while (i < THREADS_MAX - 1 && t->threads[i].tid && t->threads[i].tid != tid)
		i++;
	t->threads[i].tid = tid;
	return &t->threads[i].call;
}

/* A thread stands before or behind a system call. True: here it is to end. */
static bool at_call(struct tracer *t, pid_t tid, uint64_t at)
{
	struct __ptrace_syscall_info info;
	long *call = call_of(t, tid);

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tid, (void *)sizeof(info), &info) <= 0)
		return false;
	bool entry = info.op == PTRACE_SYSCALL_INFO_ENTRY;
	if (entry)
		*call = (long)info.entry.nr;
	if (entry && *call == SYS_prctl && info.entry.args[0] == TRACER_BEGIN)
		t->begun = true;
	if (!t->begun || is_inner(*call) || *call == SYS_prctl)
		return false;
	t->end.stops++;
	t->end.call = *call;
	t->end.entry = entry;
	return t->end.stops == at;
}

static void child(char *const argv[])
{
	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(REFUSED);
	(void)raise(SIGSTOP);
	execv(argv[0], argv);
	_exit(126);
}

static void reap(struct tracer *t)
{
	int status;

	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 && errno != EINTR)
			return;
		if (tid > 0 && WIFSTOPPED(status))
			(void)ptrace(PTRACE_CONT, tid, NULL, NULL);
		if (tid == t->pid && !WIFSTOPPED(status))
			t->end.status = status;
	}
}

static void follow(struct tracer *t, uint64_t at)
{
	int status;

	for (;;) {
		pid_t tid = waitpid(-1, &status, __WALL);
		if (tid < 0 && errno == EINTR)
			continue;
		if (tid < 0)
			return;
		if (!WIFSTOPPED(status)) {
			if (tid == t->pid)
				t->end.status = status;
			continue;
		}
		int signal = WSTOPSIG(status);
		if (signal == (SIGTRAP | 0x80) && at_call(t, tid, at)) {
			(void)kill(t->pid, SIGKILL);
			t->end.killed = true;
			reap(t);
			return;
		}
		/* A new thread begins with a stop; what is an event is no signal. */
		if (signal == (SIGTRAP | 0x80) || signal == SIGTRAP || signal == SIGSTOP)
			signal = 0;
		(void)ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)signal);
	}
}

int tracer_run(char *const argv[], uint64_t at, struct tracer_end *ret_end)
{
	struct tracer t = {.pid = fork()};
	int status = 0;
	long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC |
		       PTRACE_O_EXITKILL;

	if (t.pid == 0)
		child(argv);
	if (t.pid < 0 || waitpid(t.pid, &status, 0) < 0)
		return -errno;
	if (!WIFSTOPPED(status))
		return -EPERM;
	if (ptrace(PTRACE_SETOPTIONS, t.pid, NULL, (void *)options) < 0 ||
		ptrace(PTRACE_SYSCALL, t.pid, NULL, NULL) < 0) {
		int r = -errno;
		(void)kill(t.pid, SIGKILL);
		reap(&t);
		return r;
	}
	follow(&t, at);
	*ret_end = t.end;
	return 0;
}
