/* SPDX-License-Identifier: Apache-2.0 */
#include "lib/confine.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lib/hang.h"

#define SYSCALLS_MAX 16

int confine_run(int (*body)(void *), void *argument)
{
	(void)fflush(NULL);
	pid_t child = fork();

	if (child < 0)
		return 99;
	if (child == 0) {
		hang_watch();
		/* Without the exit of a sanitizer, to which what a child leaves behind is a leak. */
		(void)syscall(SYS_exit_group, body(argument));
	}
	int status = 0;
	if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
		return 99;
	return WEXITSTATUS(status);
}

int confine_syscalls(const long *numbers, size_t count, int error)
{
	struct sock_filter filter[SYSCALLS_MAX + 3];
	size_t n = 0;

	if (count > SYSCALLS_MAX)
		return -1;
	filter[n++] = (struct sock_filter)BPF_STMT(
		BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < count; i++)
		filter[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
			(unsigned)numbers[i], (unsigned char)(count - i), 0);
	filter[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	filter[n++] =
		(struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error);
	struct sock_fprog program = {.len = (unsigned short)n, .filter = filter};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) ==
			       0
		       ? 0
		       : -1;
}

static int drop_capabilities(unsigned keep_not)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];

	if (syscall(SYS_capget, &header, data) < 0)
		return -1;
	for (int i = 0; i < 2; i++) {
		unsigned mask = keep_not / 32 == (unsigned)i ? ~(1u << keep_not % 32) : ~0u;
		data[i].effective &= mask;
		data[i].permitted &= mask;
		data[i].inheritable &= mask;
	}
	return (int)syscall(SYS_capset, &header, data);
}

static int set_limit(__rlimit_resource_t which, size_t value)
{
	struct rlimit limit = {.rlim_cur = value, .rlim_max = value};

	return setrlimit(which, &limit);
}

int confine_memlock(size_t bytes)
{
	if (set_limit(RLIMIT_MEMLOCK, bytes) < 0)
		return -1;
	return drop_capabilities(CAP_IPC_LOCK);
}

int confine_file_size(size_t bytes)
{
	if (signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
		return -1;
	return set_limit(RLIMIT_FSIZE, bytes);
}

int confine_files(size_t count)
{
	return set_limit(RLIMIT_NOFILE, count);
}

int confine_user(unsigned uid)
{
	return setresuid(uid, uid, uid);
}
