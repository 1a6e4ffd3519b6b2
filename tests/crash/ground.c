/* SPDX-License-Identifier: Apache-2.0 */
#include "ground.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kill/workload.h"
#include "lib/hang.h"

#define SHUTDOWN     _IOR('X', 125, uint32_t)
#define NO_LOG_FLUSH 2u
#define TRIES        50

void ground_bind(void)
{
	pid_t parent = getppid();

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
}

static _Noreturn void skip(const char *what)
{
	(void)printf("skipped: %s: %s\n", what, strerror(errno));
	(void)fflush(stdout);
	_exit(GROUND_SKIPPED);
}

void ground_open(struct ground *ground, int backing, const char *fs, const char *dir)
{
	struct loop_config config = {
		.fd = (uint32_t)backing, .info = {.lo_flags = LO_FLAGS_AUTOCLEAR}};

	*ground = (struct ground){.fd = -1};
	(void)snprintf(ground->fs, sizeof(ground->fs), "%s", fs);
	(void)snprintf(ground->dir, sizeof(ground->dir), "%s", dir);
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	if (control < 0)
		skip("/dev/loop-control");
	/* Another process may take it first. */
	for (int i = 0; i < TRIES; i++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);
		if (number < 0)
			skip("loop devices");
		(void)snprintf(ground->device, sizeof(ground->device), "/dev/loop%d", number);
		ground->fd = open(ground->device, O_RDWR | O_CLOEXEC);
		if (ground->fd >= 0 && ioctl(ground->fd, LOOP_CONFIGURE, &config) == 0)
			break;
		if (ground->fd >= 0)
			(void)close(ground->fd);
		ground->fd = -1;
	}
	if (ground->fd < 0)
		skip("loop devices");
	(void)close(control);
}

void ground_close(struct ground *ground)
{
	(void)close(ground->fd);
}

int ground_mount(struct ground *ground)
{
	const char *options = strcmp(ground->fs, "xfs") == 0 ? "nouuid" : "";

	if (ioctl(ground->fd, BLKFLSBUF) < 0)
		return -errno;
	if (mount(ground->device, ground->dir, ground->fs, MS_NOATIME, options) < 0)
		return -errno;
	return 0;
}

/* The ring of a process that has died lets go of its files a little later. */
void ground_unmount(struct ground *ground)
{
	int r;

	await((r = umount2(ground->dir, 0)) == 0 || errno != EBUSY);
	if (r < 0)
		workload_die("%s cannot be unmounted: %s", ground->dir, strerror(errno));
}

void ground_shut_down(struct ground *ground)
{
	uint32_t how = NO_LOG_FLUSH;
	int fd = open(ground->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		workload_die("%s: %s", ground->dir, strerror(errno));
	if (ioctl(fd, SHUTDOWN, &how) < 0)
		skip("a file system cannot be shut down");
	(void)close(fd);
}

int ground_run(char *const *arguments, bool quiet)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
		int nothing = quiet ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
		if (nothing >= 0) {
			(void)dup2(nothing, 1);
			(void)dup2(nothing, 2);
		}
		execvp(arguments[0], arguments);
		_exit(127);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		workload_die("%s cannot be run", arguments[0]);
	return status;
}
