/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeds of the simulated world.
 *
 *	sim --seeds A..B [--verbose] [--twice] [--quiet]
 *
 * A seed that fails prints its last events and the command that repeats it. Exit code 0: every seed
 * holds; 1: one does not; 2: usage.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "world.h"

#define SHOWN 60

static struct world *the_world;
static const char *the_program = "sim";

static void show(const struct world *world, const char *why)
{
	sim_print_history(&world->sim, SHOWN);
	(void)fprintf(stderr, "seed %llu: %s\nrepeat with: %s --seeds %llu --verbose\n",
		(unsigned long long)world->sim.seed, why, the_program,
		(unsigned long long)world->sim.seed);
}

/* An assertion or a bad access in the product: the history first, then as the system wants it. */
static void crashed(int number)
{
	(void)signal(number, SIG_DFL);
	show(the_world, number == SIGABRT ? "an assertion failed" : "a bad access");
	(void)raise(number);
}

struct totals {
	uint64_t runs;
	uint64_t failed;
	uint64_t events;
	uint64_t acked;
	uint64_t restored;
	uint64_t hash;
};

static bool run_seed(
	struct world *world, uint64_t seed, bool verbose, bool twice, struct totals *totals)
{
	bool good = world_run(world, seed, verbose);
	uint64_t hash = world->sim.hash;

	if (!good)
		show(world, world->sim.why);
	totals->runs++;
	totals->failed += !good;
	totals->events += world->sim.events;
	totals->acked += world->saves_acked;
	totals->restored += world->restores_checked;
	totals->hash = sim_mix64(totals->hash ^ hash);
	if (!twice || !good)
		return good;
	(void)world_run(world, seed, false);
	if (world->sim.hash == hash)
		return true;
	(void)fprintf(stderr, "seed %llu: two runs differ: %016llx and %016llx\n",
		(unsigned long long)seed, (unsigned long long)hash,
		(unsigned long long)world->sim.hash);
	totals->failed++;
	return false;
}

/* "A..B", both included, or "A". */
static bool parse_seeds(const char *text, uint64_t *ret_first, uint64_t *ret_last)
{
	char *end;

	errno = 0;
	*ret_first = strtoull(text, &end, 10);
	*ret_last = *ret_first;
	if (end == text || errno)
		return false;
	if (*end == '\0')
		return true;
	if (strncmp(end, "..", 2) != 0)
		return false;
	text = end + 2;
	*ret_last = strtoull(text, &end, 10);
	return end != text && *end == '\0' && !errno && *ret_last >= *ret_first;
}

static int usage(void)
{
	(void)fprintf(stderr,
		"usage: %s --seeds A..B [--verbose] [--twice] [--quiet] [--keep-going]\n",
		the_program);
	return 2;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"seeds", required_argument, NULL, 's'},
		{"verbose", no_argument, NULL, 'v'}, {"twice", no_argument, NULL, 't'},
		{"quiet", no_argument, NULL, 'q'}, {"keep-going", no_argument, NULL, 'k'},
		{NULL, 0, NULL, 0}};
	uint64_t first = 1;
	uint64_t last = 0;
	bool verbose = false;
	bool twice = false;
	bool quiet = false;
	bool keep_going = false;

	the_program = argv[0];
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 's' && !parse_seeds(optarg, &first, &last))
			return usage();
		verbose |= c == 'v';
		twice |= c == 't';
		quiet |= c == 'q';
		keep_going |= c == 'k';
		if (c == '?')
			return usage();
	}
	if (last < first || optind != argc)
		return usage();
	the_world = sim_alloc(sizeof(*the_world));
	(void)signal(SIGABRT, crashed);
	(void)signal(SIGSEGV, crashed);
	struct totals totals = {0};
	struct timespec begin;
	struct timespec end;
	(void)clock_gettime(CLOCK_MONOTONIC, &begin);
	for (uint64_t seed = first; seed <= last; seed++)
		if (!run_seed(the_world, seed, verbose, twice, &totals) && !keep_going)
			break;
	(void)clock_gettime(CLOCK_MONOTONIC, &end);
	double seconds =
		(double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9;
	if (!quiet)
		(void)printf("%llu runs (seeds %llu..%llu), %llu failed: %llu events, %llu saves "
			     "acknowledged, %llu restores compared, %.0f runs/s, hash %016llx\n",
			(unsigned long long)totals.runs, (unsigned long long)first,
			(unsigned long long)last, (unsigned long long)totals.failed,
			(unsigned long long)totals.events, (unsigned long long)totals.acked,
			(unsigned long long)totals.restored,
			seconds > 0 ? (double)totals.runs / seconds : 0.0,
			(unsigned long long)totals.hash);
	proc_end_all();
	free(the_world);
	return totals.failed ? 1 : 0;
}
