/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: cuts BASE BYTES FS DIR SEED CUTS
 *
 * Power cuts by the file system's own hand: a process trains (life.h) on the file system BASE, mounted at
 * DIR/disk; at some moment, so many lines of its log and microseconds later, the file system is shut down,
 * with nothing written any more, not even its journal. Then it is mounted again and looked at (kill/oracle.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "crash_disk.h"
#include "ground.h"
#include "lib/hang.h"
#include "life.h"

#define LINES   16
#define SPAN_US 8000

struct cutter {
	struct wlog nothing;
	struct crash_disk disk; /* as it was made, again and again */
	struct ground ground;
	char log_path[300];
	int lines[2];   /* a pipe: a byte for every line of the log */
	bool any_ack;   /* before the cut at hand */
	unsigned acked; /* cuts after something was acknowledged */
	unsigned failed;
};

static struct cutter *the_cutter;

static void tell(struct workload *workload, const char *line, size_t length)
{
	if (write(workload->log, line, length) != (ssize_t)length ||
		write(the_cutter->lines[1], line, 1) != 1)
		workload_die("log: %s", strerror(errno));
}

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
	life.workload.tell = tell;
	(void)close(c->lines[0]);
	for (;;)
		life_phase(&life, false);
}

/* Until so many lines were written, and a little. False: the process has ended before. */
static bool read_on(struct cutter *c, uint64_t lines, uint64_t us)
{
	char line;

	(void)close(c->lines[1]);
	for (uint64_t i = 0; i < lines; i++) {
		if (read(c->lines[0], &line, 1) != 1)
			return false;
		/* "ack", and no other begins so. */
		c->acked += line == 'a' && !c->any_ack;
		c->any_ack |= line == 'a';
	}
	life_pause(us);
	return true;
}

static bool held(const struct cutter *c)
{
	int status = -1;
	pid_t child = fork();

	if (child == 0) {
		struct workload workload;
		hang_watch();
		workload_init(&workload, c->ground.dir);
		workload_aftermath(&workload);
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		workload_die("fork failed");
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
		workload_die("waitpid: %s", strerror(errno));
}

/* What the processes had said up to then. */
static void show_log(const struct cutter *c)
{
	char line[80];
	FILE *f = fopen(c->log_path, "re");

	while (f && fgets(line, sizeof(line), f))
		(void)printf("\t%s", line);
	if (f)
		(void)fclose(f);
}

static void cut_once(struct cutter *c, uint64_t seed)
{
	struct prng prng = {.state = seed};
	int status = -1;

	crash_disk_cut(&c->disk, 0, false, &prng);
	(void)unlink(c->log_path);
	int r = ground_mount(&c->ground);
	if (r < 0)
		workload_die("mount: %s", strerror(-r));
	c->any_ack = false;
	if (pipe2(c->lines, O_CLOEXEC) < 0)
		workload_die("pipe: %s", strerror(errno));
	pid_t child = train(c, prng_next(&prng));
	if (child < 0)
		workload_die("fork failed");
	uint64_t lines = prng_below(&prng, LINES);
	uint64_t us = prng_below(&prng, SPAN_US);
	bool alive = read_on(c, lines, us);
	bool gone = waitpid(child, &status, alive ? WNOHANG : 0) == child;
	(void)close(c->lines[0]);
	ground_shut_down(&c->ground);
	end_training(c, child, gone);
	ground_unmount(&c->ground);
	r = ground_mount(&c->ground);
	if (r < 0)
		workload_die("mount after the cut: %s", strerror(-r));
	if (gone || !held(c)) {
		c->failed += !gone;
		(void)printf("cut %llu does not hold%s\n", (unsigned long long)seed,
			gone ? ": the training ended before it" : "");
		show_log(c);
	}
	ground_unmount(&c->ground);
}

int main(int argc, char **argv)
{
	static struct cutter c;
	static struct wlog_entry none;
	char dir[280];

	if (argc != 7)
		workload_die("usage: cuts BASE BYTES FS DIR SEED CUTS");
	the_cutter = &c;
	ground_bind();
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	c.nothing = (struct wlog){.entries = &none, .count = 1};
	crash_disk_open(&c.disk, &c.nothing, argv[1], strtoull(argv[2], NULL, 0));
	(void)snprintf(dir, sizeof(dir), "%s/disk", argv[4]);
	(void)snprintf(c.log_path, sizeof(c.log_path), "%s/log", argv[4]);
	if (setenv("CKPT_TEST_LOG", c.log_path, 1) < 0)
		workload_die("out of memory");
	ground_open(&c.ground, c.disk.fd, argv[3], dir);
	uint64_t seed = strtoull(argv[5], NULL, 0);
	uint64_t count = strtoull(argv[6], NULL, 0);
	for (uint64_t i = 0; i < count; i++)
		cut_once(&c, seed + i);
	ground_close(&c.ground);
	crash_disk_close(&c.disk);
	(void)printf("counts cuts=%llu acked=%u failed=%u\n", (unsigned long long)count, c.acked,
		c.failed);
	return c.failed ? 1 : 0;
}
