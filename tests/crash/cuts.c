/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: cuts BASE BYTES FS DIR SEED CUTS
 *
 * Power cuts by the file system's own hand: a process trains (life.h) on the file system BASE, mounted at
 * DIR/disk; at some moment the file system is shut down, with nothing written any more, not even its
 * journal. Then it is mounted again and looked at (kill/aftermath.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash_disk.h"
#include "ground.h"
#include "life.h"

#define SHUTDOWN     _IOR('X', 125, uint32_t)
#define NO_LOG_FLUSH 2u
#define PATIENCE     120
#define SPAN_US      40000 /* how long a process lives, about */

struct cutter {
	struct wlog nothing;
	struct crash_disk disk; /* as it was made, again and again */
	struct ground ground;
	char log_path[300];
	unsigned early; /* the process was done before the power went */
	unsigned failed;
};

/* The life before the cut; of its last process only what it did up to then is there. */
static pid_t train(const struct cutter *c, uint64_t seed)
{
	pid_t child = fork();

	if (child != 0)
		return child;
	struct life life;
	pid_t parent = getppid();
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	int nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (nothing >= 0) /* it will complain when the disk is gone */
		(void)dup2(nothing, 2);
	life_init(&life, c->ground.dir, seed);
	for (;;)
		life_phase(&life, false);
}

static bool shut_down(const struct cutter *c)
{
	uint32_t how = NO_LOG_FLUSH;
	int fd = open(c->ground.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		deed_die("%s: %s", c->ground.dir, strerror(errno));
	int r = ioctl(fd, SHUTDOWN, &how);
	(void)close(fd);
	return r == 0;
}

static bool held(const struct cutter *c)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		struct deed deed;
		(void)alarm(PATIENCE);
		deed_init(&deed, c->ground.dir);
		deed_aftermath(&deed);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		deed_die("fork failed");
	return status == 0;
}

/* Nobody may end before the power goes: then something is wrong that no cut explains. */
static void end_training(struct cutter *c, pid_t child, bool gone)
{
	int status = -1;

	if (gone) {
		c->failed++;
		return;
	}
	(void)kill(child, SIGKILL);
	if (waitpid(child, &status, 0) != child)
		deed_die("waitpid: %s", strerror(errno));
}

static void cut_once(struct cutter *c, uint64_t seed)
{
	struct dice dice = {.state = seed};
	int status = -1;

	crash_disk_cut(&c->disk, 0, false, &dice);
	(void)unlink(c->log_path);
	int r = ground_mount(&c->ground);
	if (r < 0)
		deed_die("mount: %s", strerror(-r));
	pid_t child = train(c, dice_next(&dice));
	if (child < 0)
		deed_die("fork failed");
	life_pause(dice_below(&dice, SPAN_US));
	bool gone = waitpid(child, &status, WNOHANG) == child;
	if (!shut_down(c)) {
		(void)kill(child, SIGKILL);
		(void)printf(
			"skipped: %s cannot be shut down: %s\n", c->ground.fs, strerror(errno));
		(void)fflush(stdout);
		_exit(GROUND_SKIPPED);
	}
	end_training(c, child, gone);
	ground_unmount(&c->ground);
	r = ground_mount(&c->ground);
	if (r < 0)
		deed_die("mount after the cut: %s", strerror(-r));
	if (gone || !held(c)) {
		c->failed += !gone;
		(void)printf("cut %llu does not hold\n", (unsigned long long)seed);
	}
	ground_unmount(&c->ground);
}

int main(int argc, char **argv)
{
	static struct cutter c;
	static struct wlog_entry none;
	char dir[280];

	if (argc != 7)
		deed_die("usage: cuts BASE BYTES FS DIR SEED CUTS");
	ground_bind();
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	c.nothing = (struct wlog){.entries = &none, .count = 1};
	crash_disk_open(&c.disk, &c.nothing, argv[1], strtoull(argv[2], NULL, 0));
	(void)snprintf(dir, sizeof(dir), "%s/disk", argv[4]);
	(void)snprintf(c.log_path, sizeof(c.log_path), "%s/log", argv[4]);
	if (setenv("CKPT_TEST_LOG", c.log_path, 1) < 0)
		deed_die("out of memory");
	ground_open(&c.ground, c.disk.fd, argv[3], dir);
	uint64_t seed = strtoull(argv[5], NULL, 0);
	uint64_t count = strtoull(argv[6], NULL, 0);
	for (uint64_t i = 0; i < count; i++)
		cut_once(&c, seed + i);
	ground_close(&c.ground);
	crash_disk_close(&c.disk);
	(void)printf("counts cuts=%llu failed=%u\n", (unsigned long long)count, c.failed);
	return c.failed ? 1 : 0;
}
