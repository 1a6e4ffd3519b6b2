/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: killer calls|events PROGRAM POINTS [SCENARIO [POINT]] [--slice I/N]
 *
 * Runs every scenario of PROGRAM (scenario.c), or one, undisturbed once, and counts: `calls`, its system
 * calls; `events`, what passes between core and disk (tap_kill.c). Then kills it at POINTS of them, spread
 * over all, or with 0 at each; or at one. --slice: at every Nth of these, from the Ith
 * (slice.h). Each time another process looks at what is left. In memory,
 * unless CKPT_TEST_KILL_DISK is set.
 */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kill/tracer.h"
#include "lib/prng.h"
#include "lib/scratch.h"
#include "lib/slice.h"

#define SKIPPED 77

static const char *program;
static bool by_call;
static struct slice slice;
static char *root;
static char template[600];
static char work[600];
static uint64_t kills;
static uint64_t places;
static uint64_t ends; /* ran to their end: threads make a run shorter or longer */

__attribute__((format(printf, 1, 2), noreturn)) static void die(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	(void)vfprintf(stderr, fmt, args);
	va_end(args);
	(void)fprintf(stderr, "\nwhat is left is in %s\n", root);
	exit(1);
}

static void begin_anew(void)
{
	scratch_remove(strdup(work));
	if (!scratch_copy(template, work))
		die("cannot copy %s: %s", template, strerror(errno));
}

/* Runs a verb of the program to its end; its status, as of wait(). */
static int run(const char *verb, const char *name, const char *where, uint64_t at)
{
	char number[32];
	pid_t child = fork();
	int status = -1;

	if (child == 0) {
		char *argv[] = {(char *)program, (char *)verb, (char *)(name ? name : where),
			name ? (char *)where : NULL, NULL};
		(void)snprintf(number, sizeof(number), "%llu", (unsigned long long)at);
		(void)setenv("CKPT_TEST_KILL_AT", number, 1);
		execv(program, argv);
		_exit(126);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		continue;
	return status;
}

static void look(const char *name, uint64_t at, const char *where)
{
	int status = run("aftermath", NULL, work, 0);

	if (status != 0)
		die("%s, killed at %llu (%s): status %#x of the aftermath", name,
			(unsigned long long)at, where, status);
}

/* One run of a scenario. Returns how many points it passed. */
static uint64_t run_to(const char *name, uint64_t at)
{
	char where[80] = "an event";
	uint64_t count = 0;

	begin_anew();
	if (by_call) {
		struct tracer_end end;
		char *argv[] = {(char *)program, "run", (char *)name, work, NULL};
		int r = tracer_run(argv, at, &end);
		if (r < 0) {
			(void)printf("skipped: tracing is not permitted: %s\n", strerror(-r));
			scratch_remove(root);
			exit(SKIPPED);
		}
		if (!end.killed && end.status != 0)
			die("%s, not killed, ended with %#x", name, end.status);
		(void)snprintf(where, sizeof(where), "%s system call %ld",
			end.entry ? "before" : "after", end.call);
		count = end.stops;
		kills += end.killed;
		ends += at > 0 && !end.killed;
	} else {
		int status = run("run", name, work, at);
		bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (!killed && status != 0)
			die("%s, not killed, ended with %#x", name, status);
		kills += killed;
		ends += at > 0 && !killed;
	}
	look(name, at, where);
	return count;
}

static uint64_t read_count(const char *path)
{
	char line[32] = "";
	FILE *f = fopen(path, "re");

	if (!f || !fgets(line, sizeof(line), f))
		die("%s has no count", path);
	(void)fclose(f);
	return strtoull(line, NULL, 10);
}

static void run_scenario(const char *name, uint64_t points, uint64_t only)
{
	char path[700];

	(void)snprintf(path, sizeof(path), "%s/count", root);
	scratch_remove(strdup(template));
	if (mkdir(template, 0755) < 0 || run("prepare", name, template, 0) != 0)
		die("%s: not prepared", name);
	if (only) {
		(void)run_to(name, only);
		return;
	}
	/* The aftermath counts too: look at the run alone. */
	uint64_t total;
	if (by_call) {
		total = run_to(name, 0);
	} else {
		begin_anew();
		(void)setenv("CKPT_TEST_KILL_COUNT", path, 1);
		if (run("run", name, work, 0) != 0)
			die("%s, not disturbed, failed", name);
		(void)unsetenv("CKPT_TEST_KILL_COUNT");
		look(name, 0, "at its end");
		total = read_count(path);
	}
	places += total;
	if (points == 0 || points > total)
		points = total;
	struct prng prng = {.state = total};
	for (uint64_t i = 0; i < points; i++) {
		uint64_t from = 1 + i * total / points;
		uint64_t to = 1 + (i + 1) * total / points;
		uint64_t at = from + prng_below(&prng, to - from);
		if (slice_has(&slice, i))
			(void)run_to(name, at);
	}
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
	double begun = now();
	unsigned scenarios = 0;
	char names[32][32];
	char command[1024];

	if (argc > 4 && strcmp(argv[argc - 2], "--slice") == 0) {
		if (!slice_parse(&slice, argv[argc - 1]))
			die("--slice takes I/N");
		argc -= 2;
	}
	if (argc < 4 || argc > 6)
		die("usage: killer calls|events PROGRAM POINTS [SCENARIO [POINT]] [--slice I/N]");
	by_call = strcmp(argv[1], "calls") == 0;
	program = argv[2];
	root = getenv("CKPT_TEST_KILL_DISK") ? scratch_make() : scratch_make_in_memory();
	(void)snprintf(template, sizeof(template), "%s/template", root);
	(void)snprintf(work, sizeof(work), "%s/work", root);
	int pipes[2];
	if (pipe(pipes) < 0)
		die("pipe: %s", strerror(errno));
	pid_t child = fork();
	if (child == 0) {
		(void)dup2(pipes[1], 1);
		execl(program, program, "list", (char *)NULL);
		_exit(126);
	}
	(void)close(pipes[1]);
	FILE *list = fdopen(pipes[0], "r");
	while (list && scenarios < 32 && fgets(command, sizeof(command), list))
		(void)snprintf(names[scenarios++], sizeof(names[0]), "%.*s",
			(int)strcspn(command, "\n"), command);
	(void)fclose(list);
	(void)waitpid(child, NULL, 0);
	for (unsigned i = 0; i < scenarios; i++)
		if (argc < 5 || strcmp(names[i], argv[4]) == 0)
			run_scenario(names[i], strtoull(argv[3], NULL, 10),
				argc == 6 ? strtoull(argv[5], NULL, 10) : 0);
	double seconds = now() - begun;
	(void)printf("kill points, %s: %llu kills of %llu places in %u scenarios, %.1f s (%.1f/s); "
		     "%llu runs ended first\n",
		argv[1], (unsigned long long)kills, (unsigned long long)places, scenarios, seconds,
		(double)kills / seconds, (unsigned long long)ends);
	if (kills == 0 || scenarios == 0)
		die("nothing was killed");
	scratch_remove(root);
	(void)printf("counts kills=%llu ended=%llu failed=0\n", (unsigned long long)kills,
		(unsigned long long)ends);
	return 0;
}
