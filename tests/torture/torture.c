/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: torture [SCENARIO|all] [--kind alloc|table|syscall|thread] [--slice I/N] [--jobs N]
 *                [--quick|--each] [--unreached]
 *        torture SCENARIO --fail KEY:CODE:MODE ...     one run again
 *        torture SCENARIO --sites     what an undisturbed run comes by
 *        torture --list
 *
 * SCENARIO may be a pattern: 'job*'.
 * Runs each scenario undisturbed and writes down its sites; then makes each fail, with every code that it
 * may fail with: once, every time, and, from there on, every call of its kind that may fail so. Sites that
 * only come up behind a failure are made to fail after it. --each: each site in one scenario alone, with one
 * code, once, and from there on. --quick: from there on every other one; and of those that a rank has as a
 * lower one has them only one in eight. Calls in the library that nothing has come by, or made to fail, are
 * counted as unreached, if all of it was run; --unreached lists them in any case.
 */
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "lib/slice.h"
#include "torture/runs.h"

#define TRIES     3
#define SKIPPED   77
#define QUEUE_MAX 200000

static const char *const kinds[TORTURE_KINDS] = {"alloc", "table", "syscall", "thread"};

static struct {
	const char *only;
	int kind; /* -1: all */
	struct slice slice;
	unsigned jobs;
	bool quick; /* each, and fewer */
	bool each;
	bool sites;
	bool unreached;
	struct torture_plan fail[TORTURE_PLANS];
	unsigned fails;
} opts = {.kind = -1, .slice = {.of = 1}, .jobs = 1};

/* What is to be run. */
static struct planned {
	unsigned scenario;
	unsigned plans;
	struct torture_plan plan[TORTURE_PLANS];
} queue[QUEUE_MAX];
static unsigned queued;

/* Whether a ring has been used; a kernel may forbid it. */
static bool ring_seen(void)
{
	for (unsigned i = 0; i < TORTURE_SITES; i++)
		if (atomic_load(&torture_all->sites[i].ready) &&
			strcmp(torture_all->sites[i].call->name, "io_uring_submit_and_wait") == 0)
			return true;
	return false;
}

static bool is_soft(int code)
{
	return code < -0xffff;
}

static bool all_chosen(void)
{
	return !opts.only || strcmp(opts.only, "all") == 0;
}

static bool chosen(unsigned scenario)
{
	return all_chosen() || fnmatch(opts.only, torture_trials[scenario].name, 0) == 0;
}

static void plan(unsigned scenario, const struct torture_plan *plans, unsigned count)
{
	if (queued == QUEUE_MAX)
		workload_die("more than %d runs: choose a scenario", QUEUE_MAX);
	queue[queued] = (struct planned){.scenario = scenario, .plans = count};
	memcpy(queue[queued++].plan, plans, count * sizeof(*plans));
}

static void run(const struct planned *p)
{
	enum runs_end end = RUNS_MISSED;

	/* Threads come by in another order now and then, and a site with them. */
	for (int i = 0; i < TRIES && end == RUNS_MISSED; i++) {
		end = runs_once(p->scenario, p->plan, p->plans);
		torture_all->total.runs++;
	}
	torture_all->total.failed += end == RUNS_BAD;
	torture_all->total.missed += end == RUNS_MISSED;
}

/* By what it is, not by its number: another process may come by a site more or less. */
static bool in_slice(const struct planned *p)
{
	const struct torture_plan *last = &p->plan[p->plans - 1];
	uint64_t h = last->key + (uint64_t)last->code * 31 + (uint64_t)last->mode * 7 + p->scenario;

	return (h * UINT64_C(0x9e3779b97f4a7c15) >> 32) % opts.slice.of == opts.slice.at;
}

/* Takes one after the other: some runs wait for most of a minute, most for nothing. */
static void work_off(unsigned worker)
{
	unsigned i;

	runs_be(worker);
	while ((i = atomic_fetch_add(&torture_all->next, 1)) < queued)
		if (in_slice(&queue[i]))
			run(&queue[i]);
}

/* What was planned, or this slice of it, by several workers. */
static void run_queue(void)
{
	pid_t workers[TORTURE_JOBS];
	int status = 0;
	unsigned here = 0;

	for (unsigned i = 0; i < queued; i++)
		here += in_slice(&queue[i]);
	(void)printf("%u of %u runs are to be made\n", here, queued);
	atomic_store(&torture_all->next, 0);
	for (unsigned j = 0; j < opts.jobs; j++) {
		workers[j] = fork();
		if (workers[j] == 0) {
			work_off(j);
			_exit(0);
		}
	}
	for (unsigned j = 0; j < opts.jobs; j++)
		if (workers[j] < 0 || waitpid(workers[j], &status, 0) < 0 || status != 0)
			workload_die("a worker ended with %#x", status);
	queued = 0;
}

static unsigned code_count(const struct torture_call *call)
{
	unsigned n = 0;

	while (n < TORTURE_CODES && call->codes[n])
		n++;
	return n;
}

/* Lines "FUNCTION CALLEE REASON": a call there that cannot fail, or that nothing here comes by. */
static char exempt[32768];

static void read_exempt(void)
{
	FILE *f = fopen(TORTURE_EXEMPT, "re");

	if (!f)
		workload_die("%s: %s", TORTURE_EXEMPT, strerror(errno));
	exempt[0] = '\n';
	exempt[1 + fread(exempt + 1, 1, sizeof(exempt) - 2, f)] = 0;
	(void)fclose(f);
}

static bool is_exempt(uintptr_t back, const char *callee)
{
	uintptr_t offset = 0;
	char line[200];

	(void)snprintf(line, sizeof(line), "\n%s %s ", torture_symbol(back, &offset), callee);
	return strstr(exempt, line) != NULL;
}

/* With every code, in every way. */
static void fail_fully(struct torture_site *site, unsigned scenario)
{
	for (unsigned i = 0; i < code_count(site->call); i++) {
		struct torture_plan p = {.key = site->key, .code = site->call->codes[i]};
		int last = is_soft(p.code) ? TORTURE_ONCE : TORTURE_ALL;
		for (int mode = TORTURE_ONCE; mode <= last; mode++) {
			p.mode = (enum torture_mode)mode;
			plan(scenario, &p, 1);
		}
	}
}

/* How many sites of a call have come up in this round. */
static unsigned turn_of(const struct torture_call *call)
{
	static struct {
		const struct torture_call *call;
		unsigned turns;
	} turns[128];
	unsigned i = 0;

	while (turns[i].call && turns[i].call != call && i < 127)
		i++;
	turns[i].call = call;
	return turns[i].turns++;
}

/* With its first code, once, and from there on; the first of a call with every code. */
static void fail_each(struct torture_site *site, unsigned scenario)
{
	unsigned turn = turn_of(site->call);
	struct torture_plan p = {.key = site->key, .mode = TORTURE_ONCE};

	for (unsigned i = 0; i < (turn < 2 ? code_count(site->call) : 1); i++) {
		p.code = site->call->codes[i];
		plan(scenario, &p, 1);
	}
	p.code = site->call->codes[0];
	p.mode = TORTURE_ALL;
	if ((turn % 2 || !opts.quick) && !is_soft(p.code))
		plan(scenario, &p, 1);
}

static bool wanted(const struct torture_site *site)
{
	return atomic_load(&site->ready) && code_count(site->call) > 0 &&
	       (opts.kind < 0 || site->call->kind == (enum torture_kind)opts.kind) &&
	       !(site->depth > 0 && is_exempt(site->frames[0], site->call->name));
}

/*
 * What a rank does as a lower one does it. In a hurry one in eight of these is made to fail. How a claim is
 * written is the same for all, and what comes after a failure is not: other nodes' leaders are told it again.
 */
static bool is_left_out(const struct torture_site *site)
{
	bool twin = false;

	if (strncmp(site->what, "gens", 4) == 0)
		return false;

	for (unsigned i = 0; i < TORTURE_SITES && opts.quick && site->rank > 0 && !twin; i++) {
		const struct torture_site *other = &torture_all->sites[i];
		twin = atomic_load(&other->ready) && other->rank < site->rank &&
		       other->stack == site->stack && atomic_load(&other->seen);
	}
	return twin && site->key >> 32 & 7;
}

/* Those that undisturbed runs come by. */
static void fail_known(void)
{
	static bool known[TORTURE_SITES];

	for (unsigned i = 0; i < TORTURE_SITES; i++)
		known[i] = wanted(&torture_all->sites[i]);
	for (unsigned i = 0; i < TORTURE_SITES; i++) {
		struct torture_site *site = &torture_all->sites[i];
		uint64_t seen = known[i] ? atomic_load(&site->seen) : 0;
		if (seen && is_left_out(site))
			continue;
		for (unsigned s = 0; s < torture_trial_count && seen; s++) {
			if (!(seen >> s & 1))
				continue;
			if (opts.each) {
				fail_each(site, s);
				break;
			}
			fail_fully(site, s);
		}
	}
	run_queue();
}

/* Those that came up behind a failure, until no new ones do. */
static void fail_hidden(void)
{
	bool more = true;

	for (int round = 0; more && round < 4; round++) {
		more = false;
		for (unsigned i = 0; i < TORTURE_SITES; i++) {
			struct torture_site *site = &torture_all->sites[i];
			struct torture_plan p[TORTURE_PLANS];
			unsigned n = site->origin_plans;
			if (!wanted(site) || atomic_load(&site->injected) > 0 || n == 0 ||
				n == TORTURE_PLANS || is_left_out(site))
				continue;
			memcpy(p, site->origin, sizeof(p));
			p[n] = (struct torture_plan){.key = site->key,
				.code = site->call->codes[0],
				.mode = TORTURE_ONCE};
			plan(site->origin_scenario, p, n + 1);
			more = true;
		}
		run_queue();
	}
}

struct reach {
	bool reached;
	bool failed;
	bool may_fail;
};

static struct reach reach_of(uintptr_t back)
{
	struct reach r = {false, false, false};

	for (unsigned i = 0; i < TORTURE_SITES; i++) {
		struct torture_site *s = &torture_all->sites[i];
		for (unsigned f = 0; atomic_load(&s->ready) && f < s->depth; f++) {
			if (s->frames[f] != back)
				continue;
			r.reached = true;
			r.failed |= atomic_load(&s->injected) > 0;
			r.may_fail |= code_count(s->call) > 0;
		}
	}
	return r;
}

/* Calls in the library that no run has made, or none made to fail. */
static unsigned list_unreached(void)
{
	size_t count;
	const struct torture_static *calls = torture_elf_calls(&count);
	unsigned unreached = 0;

	for (size_t i = 0; i < count; i++) {
		struct reach r = reach_of(calls[i].back);
		uintptr_t offset = 0;
		if (r.failed || (r.reached && !r.may_fail) ||
			is_exempt(calls[i].back, calls[i].callee))
			continue;
		const char *name = torture_symbol(calls[i].back, &offset);
		(void)printf("%s: %s() in %s+%#lx\n", r.reached ? "never failed" : "never reached",
			calls[i].callee, name, (unsigned long)offset);
		unreached++;
	}
	if (count > 0)
		(void)printf("%zu calls in the library\n", count);
	else
		(void)puts("what the library calls cannot be told on this processor");
	return unreached;
}

static void list_sites(void)
{
	for (unsigned i = 0; i < TORTURE_SITES; i++) {
		const struct torture_site *s = &torture_all->sites[i];
		uintptr_t offset = 0;
		if (!atomic_load(&s->ready))
			continue;
		(void)printf("%016llx %u %s(%s)", (unsigned long long)s->key, s->rank,
			s->call->name, s->what);
		for (unsigned f = 0; f < s->depth; f++)
			(void)printf(" %s", torture_symbol(s->frames[f], &offset));
		(void)putchar('\n');
	}
}

static int usage(void)
{
	(void)fputs("usage: torture [SCENARIO|all] [--kind alloc|table|syscall|thread] "
		    "[--slice I/N] [--jobs N] [--quick|--each] [--unreached]\n       torture "
		    "SCENARIO --fail "
		    "KEY:CODE:MODE ...\n"
		    "       torture --list\n",
		stderr);
	return 2;
}

static bool parse_fail(const char *text)
{
	char *end = NULL;
	struct torture_plan *plan = &opts.fail[opts.fails];

	if (opts.fails == TORTURE_PLANS)
		return false;
	plan->key = strtoull(text, &end, 16);
	if (*end != ':')
		return false;
	plan->code = (int)strtol(end + 1, &end, 10);
	if (*end != ':')
		return false;
	plan->mode = (enum torture_mode)strtol(end + 1, &end, 10);
	opts.fails++;
	return *end == 0;
}

static bool parse_pair(const char *word, const char *value)
{
	char *end = NULL;

	if (strcmp(word, "--kind") == 0) {
		for (int k = 0; k < TORTURE_KINDS; k++)
			if (strcmp(value, kinds[k]) == 0)
				opts.kind = k;
		return opts.kind >= 0;
	}
	if (strcmp(word, "--slice") == 0)
		return slice_parse(&opts.slice, value);
	if (strcmp(word, "--jobs") == 0) {
		opts.jobs = (unsigned)strtoul(value, &end, 10);
		return *end == 0 && opts.jobs > 0 && opts.jobs <= TORTURE_JOBS;
	}
	return strcmp(word, "--fail") == 0 && parse_fail(value);
}

static bool parse(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		if (strcmp(argv[i], "--quick") == 0)
			opts.quick = opts.each = true;
		else if (strcmp(argv[i], "--each") == 0)
			opts.each = true;
		else if (strcmp(argv[i], "--sites") == 0)
			opts.sites = true;
		else if (strcmp(argv[i], "--unreached") == 0)
			opts.unreached = true;
		else if (argv[i][0] != '-' && !opts.only)
			opts.only = argv[i];
		else if (i + 1 == argc || !parse_pair(argv[i], argv[i + 1]))
			return false;
		else
			i++;
	}
	return true;
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static unsigned sites_of(int kind)
{
	unsigned n = 0;

	for (unsigned i = 0; i < TORTURE_SITES; i++)
		n += atomic_load(&torture_all->sites[i].ready) &&
		     (kind < 0 || torture_all->sites[i].call->kind == (enum torture_kind)kind);
	return n;
}

/* Undisturbed, twice: what threads do differs. And once to see whether anything is not counted. */
static void look_round(void)
{
	for (unsigned s = 0; s < torture_trial_count; s++) {
		if (!chosen(s))
			continue;
		runs_prepare(s);
		for (int i = 0; i < 2; i++) {
			if (runs_once(s, NULL, 0) != RUNS_GOOD)
				exit(1);
			torture_all->total.runs++;
		}
		unsigned events = atomic_load(&torture->events);
		(void)printf("%s: %u calls\n", torture_trials[s].name, events);
		int past = opts.fails ? 0 : runs_bypass(s);
		if (past < 0)
			(void)printf("%s: tracing is not permitted, so what passes the count is "
				     "not known\n",
				torture_trials[s].name);
		torture_all->total.failed += past > 0;
	}
}

int main(int argc, char **argv)
{
	double begun = now();
	unsigned unreached = 0;

	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (unsigned s = 0; s < torture_trial_count; s++)
			(void)puts(torture_trials[s].name);
		return 0;
	}
	if (!parse(argc, argv))
		return usage();
	(void)setvbuf(stdout, NULL, _IOLBF, 0);
	torture_sites_init();
	torture_elf_load();
	read_exempt();
	runs_begin();
	look_round();
	if (torture_all->total.runs == 0)
		return usage();
	if (opts.sites) {
		list_sites();
	} else if (opts.fails) {
		for (unsigned s = 0; s < torture_trial_count; s++)
			if (chosen(s))
				plan(s, opts.fail, opts.fails);
		run_queue();
	} else {
		fail_known();
		fail_hidden();
	}
	bool whole =
		!opts.fails && !opts.sites && opts.kind < 0 && opts.slice.of == 1 && all_chosen();
#ifdef TORTURE_SANITIZED
	/* Its library is another one, with allocations that are failed elsewhere. */
	whole = false;
#endif
	if (whole)
		unreached = list_unreached();
	else if (opts.unreached)
		(void)list_unreached();
	for (int k = 0; k < TORTURE_KINDS; k++)
		(void)printf("%s: %u sites\n", kinds[k], sites_of(k));
	(void)printf("%llu runs did not come by their site; %.1f s\n",
		(unsigned long long)torture_all->total.missed, now() - begun);
	(void)printf("counts sites=%u runs=%llu failed=%llu", sites_of(-1),
		(unsigned long long)torture_all->total.runs,
		(unsigned long long)torture_all->total.failed);
	(void)printf(whole ? " unreached=%u\n" : "\n", unreached);
	runs_end();
	if (unreached && !torture_all->total.failed && !ring_seen()) {
		(void)puts("skipped: the kernel gives no ring, and what is done with one is not "
			   "reached");
		return SKIPPED;
	}
	return torture_all->total.failed || unreached ? 1 : 0;
}
