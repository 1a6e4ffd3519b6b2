/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs seeds of a simulated world. Every program of them is used like this:
 *
 *	sim --seeds A..B [--only KIND,...] [--verbose] [--twice] [--quiet] [--keep-going]
 *	    [--limit SECONDS] [--slice I/N]
 *
 * --slice: every Nth seed, from the Ith. A seed that fails is run again without one kind of trouble after the other, and prints the shortest
 * history that still fails, and the command that repeats it. Exit code 0: every seed holds; 1: one does
 * not; 2: usage.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "lib/slice.h"
#include "sim_main.h"

#define SHOWN 40

struct options {
	uint64_t first;
	uint64_t last;
	struct slice slice;
	struct sim_options sim;
	bool twice;
	bool quiet;
	bool keep_going;
	unsigned limit;
};

static const struct sim_program *the_world;
static const char *the_program = "sim";

static void print_only(uint64_t without)
{
	const char *before = " --only ";

	for (unsigned i = 0; i < SIM_FAULTS; i++)
		if (!(without >> i & 1)) {
			(void)fprintf(stderr, "%s%s", before, sim_fault_name(i));
			before = ",";
		}
}

static void show(const char *why)
{
	const struct sim *sim = the_world->sim();

	sim_print_history(sim, SHOWN);
	(void)fprintf(stderr, "seed %llu: %s\nrepeat with: %s --seeds %llu",
		(unsigned long long)sim->seed, why, the_program, (unsigned long long)sim->seed);
	if (sim->without)
		print_only(sim->without);
	(void)fputs(" --verbose\n", stderr);
}

/* An assertion or a bad access in the product: the history first, then as the system wants it. */
static void crashed(int number)
{
	(void)signal(number, SIG_DFL);
	show(number == SIGABRT        ? "an assertion failed"
		: number == SIGVTALRM ? "it does not end"
				      : "a bad access");
	(void)raise(number);
}

/* Of its own time, for one seed: whoever loops without an event is found by nothing else. 0: no limit. */
static void set_limit(unsigned seconds)
{
	struct itimerval limit = {.it_value.tv_sec = seconds};

	(void)setitimer(ITIMER_VIRTUAL, &limit, NULL);
}

/*
 * A seed that fails, with as few kinds of trouble as it still fails with, and as few events. Kinds are
 * left out one after the other, their numbers drawn all the same, so that the rest stays as it was up
 * to the first that is missing.
 */
static uint64_t shrink(uint64_t seed, uint64_t without)
{
	uint64_t fewest = the_world->sim()->events;

	for (bool again = true; again;) {
		again = false;
		for (unsigned i = 0; i < SIM_FAULTS; i++) {
			const struct sim_options less = {.without = without | UINT64_C(1) << i};
			if ((without >> i & 1) || the_world->run(seed, &less) ||
				the_world->sim()->events > fewest * 2)
				continue;
			without = less.without;
			fewest = the_world->sim()->events;
			again = true;
		}
	}
	return without;
}

struct totals {
	uint64_t runs;
	uint64_t failed;
	uint64_t events;
	uint64_t hash;
};

static bool run_seed(uint64_t seed, const struct options *options, struct totals *totals)
{
	bool good = the_world->run(seed, &options->sim);
	uint64_t hash = the_world->sim()->hash;

	the_world->count();
	totals->runs++;
	totals->events += the_world->sim()->events;
	totals->hash = sim_mix64(totals->hash ^ hash);
	if (!good) {
		struct sim_options less = options->sim;
		totals->failed++;
		if (!options->sim.verbose && !options->quiet) {
			less.without = shrink(seed, less.without);
			(void)the_world->run(seed, &less);
		}
		show(the_world->sim()->why);
		return false;
	}
	if (!options->twice)
		return true;
	(void)the_world->run(seed, &(struct sim_options){.without = options->sim.without});
	if (the_world->sim()->hash == hash)
		return true;
	(void)fprintf(stderr, "seed %llu: two runs differ: %016llx and %016llx\n",
		(unsigned long long)seed, (unsigned long long)hash,
		(unsigned long long)the_world->sim()->hash);
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

/* Names of kinds, with commas between them: all others do not happen. */
static bool parse_only(const char *text, uint64_t *without)
{
	*without = (UINT64_C(1) << SIM_FAULTS) - 1;
	while (*text) {
		size_t length = strcspn(text, ",");
		unsigned kind = 0;
		while (kind < SIM_FAULTS && (strncmp(sim_fault_name(kind), text, length) != 0 ||
						    sim_fault_name(kind)[length] != '\0'))
			kind++;
		if (kind == SIM_FAULTS)
			return false;
		*without &= ~(UINT64_C(1) << kind);
		text += length + (text[length] == ',');
	}
	return true;
}

static bool parse(int argc, char **argv, struct options *options)
{
	static const struct option names[] = {{"seeds", required_argument, NULL, 's'},
		{"verbose", no_argument, NULL, 'v'}, {"twice", no_argument, NULL, 't'},
		{"quiet", no_argument, NULL, 'q'}, {"keep-going", no_argument, NULL, 'k'},
		{"only", required_argument, NULL, 'o'}, {"limit", required_argument, NULL, 'l'},
		{"slice", required_argument, NULL, 'i'}, {NULL, 0, NULL, 0}};

	*options = (struct options){.first = 1};
	for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
		if (c == 's' && !parse_seeds(optarg, &options->first, &options->last))
			return false;
		if (c == 'o' && !parse_only(optarg, &options->sim.without))
			return false;
		if (c == 'i' && !slice_parse(&options->slice, optarg))
			return false;
		options->sim.verbose |= c == 'v';
		options->twice |= c == 't';
		options->quiet |= c == 'q';
		options->keep_going |= c == 'k';
		if (c == 'l')
			options->limit = (unsigned)strtoul(optarg, NULL, 10);
		if (c == '?')
			return false;
	}
	return options->last >= options->first && optind == argc;
}

static void print_totals(const struct options *options, const struct totals *t, double seconds)
{
	typedef unsigned long long ull;

	(void)printf("%llu runs (seeds %llu..%llu), %llu failed: %llu events, %.0f runs/s, hash "
		     "%016llx\n",
		(ull)t->runs, (ull)options->first, (ull)options->last, (ull)t->failed,
		(ull)t->events, seconds > 0 ? (double)t->runs / seconds : 0.0, (ull)t->hash);
	(void)printf("counts seeds=%llu failed=%llu events=%llu", (ull)t->runs, (ull)t->failed,
		(ull)t->events);
	the_world->print();
	(void)printf("\n");
}

static double now(void)
{
	struct timespec time;

	(void)clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int sim_main(int argc, char **argv, const struct sim_program *program)
{
	struct options options;
	struct totals totals = {0};

	the_program = argv[0];
	the_world = program;
	if (!parse(argc, argv, &options)) {
		(void)fprintf(stderr,
			"usage: %s --seeds A..B [--only KIND,...] [--verbose] [--twice] [--quiet] "
			"[--keep-going] [--limit SECONDS] [--slice I/N]\n",
			the_program);
		return 2;
	}
	(void)signal(SIGABRT, crashed);
	(void)signal(SIGSEGV, crashed);
	(void)signal(SIGVTALRM, crashed);
	double begin = now();
	for (uint64_t seed = options.first; seed <= options.last; seed++) {
		if (!slice_has(&options.slice, seed - options.first))
			continue;
		set_limit(options.limit);
		if (!run_seed(seed, &options, &totals) && !options.keep_going)
			break;
	}
	if (!options.quiet)
		print_totals(&options, &totals, now() - begin);
	return totals.failed ? 1 : 0;
}
