/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: rivals STORES EVENTS SEED
 *
 * Four processes want one store, again and again, from when there is none: each opens it, resumes, claims,
 * saves a few steps, and closes. With every line that one of them writes, a seed decides whether one is
 * stopped, let go on, or killed. At no time do two hold a claim; who loses is told so; who wins goes on from
 * the newest step that was acknowledged; and all of these are there in the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kill/workload.h"
#include "lib/hang.h"
#include "lib/prng.h"
#include "lib/scratch.h"

#define RIVALS    4
#define STEPS_MAX 3
#define IDS_MAX   4096

struct rival {
	pid_t pid;
	unsigned id; /* a new one for each process */
	bool stopped;
};

struct arena {
	struct workload log; /* the parent's own lines */
	struct rival rivals[RIVALS];
	int events[2];
	atomic_bool *over; /* shared by all */
	unsigned ids;
	unsigned kills;
	unsigned stops;
	char *root;
};

/* A child's. */

static void tell(const struct arena *arena)
{
	if (write(arena->events[1], "", 1) != 1)
		_exit(2);
}

static bool is_refusal(int r)
{
	return r == CKPT_EINUSE || r == CKPT_EFENCED || r == CKPT_ENOTRESUMED;
}

/* One go at the store. */
static void contend(const struct arena *arena, struct workload *d, unsigned id, unsigned *seed)
{
	uint64_t generation = 0;

	d->opts.flags = 0;
	int r = ckpt_engine_open(d->store, &d->opts, &d->engine);
	if (r == 0) {
		int from = workload_restore(d, CKPT_STEP_LATEST, true);
		tell(arena);
		if (from < 0 && from != CKPT_ENOSTEP)
			workload_die("the latest: %d: %s", from, ckpt_last_error());
		r = ckpt_engine_claim(d->engine, &generation);
		if (r == 0) {
			unsigned step = from > 0 ? (unsigned)from : 0;
			workload_log(d, "claim %u %u %u\n", (unsigned)generation, step, id);
			tell(arena);
			for (unsigned i = 0; i < 1 + (id + *seed) % STEPS_MAX; i++, (*seed)++) {
				workload_save(d, ++step, id * 100 + *seed % 100);
				tell(arena);
			}
			workload_log(d, "end %u\n", id);
		}
		workload_close(d);
	}
	if (r < 0 && !is_refusal(r))
		workload_die("refused with %d: %s", r, ckpt_last_error());
	if (r < 0)
		workload_log(d, "told %u %d\n", id, -r);
	tell(arena);
}

static void be_rival(const struct arena *arena, unsigned id)
{
	struct workload workload;
	unsigned seed = 0;

	/* Those that are stopped, too, end with the test. */
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
	workload_init(&workload, arena->root);
	while (!atomic_load(arena->over))
		contend(arena, &workload, id, &seed);
	_exit(0);
}

/* The parent's. */

static void spawn(struct arena *arena, struct rival *rival)
{
	*rival = (struct rival){.id = ++arena->ids};
	rival->pid = fork();
	if (rival->pid < 0)
		workload_die("fork: %s", strerror(errno));
	if (rival->pid == 0)
		be_rival(arena, rival->id);
}

static void bury(const struct rival *rival, bool killed)
{
	int status = 0;

	if (waitpid(rival->pid, &status, 0) != rival->pid)
		workload_die("waitpid: %s", strerror(errno));
	if (killed ? !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL : status != 0)
		workload_die("rival %u ended with %#x", rival->id, status);
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Of its first thread, which is the one that writes lines. */
static char state_of(pid_t pid)
{
	char path[32];
	char text[256] = "";

	(void)snprintf(path, sizeof(path), "/proc/%ld/stat", (long)pid);
	FILE *f = fopen(path, "re");
	if (!f || !fgets(text, sizeof(text), f))
		workload_die("%s: %s", path, strerror(errno));
	(void)fclose(f);
	const char *name_end = strrchr(text, ')');
	return name_end && name_end[1] ? name_end[2] : '?';
}

/*
 * From here on it writes no line: one that came behind its end would bring it to life again. waitpid() does
 * not say so: while a ring's thread ends, the kernel waits in it for that ring's workers, and these have
 * stopped; the process as a whole never does.
 */
static void halt(const struct rival *rival)
{
	(void)kill(rival->pid, SIGSTOP);
	await(strchr("TZ", state_of(rival->pid)));
	if (state_of(rival->pid) != 'T')
		workload_die("rival %u has ended", rival->id);
}

static unsigned running(const struct arena *arena)
{
	unsigned n = 0;

	for (unsigned i = 0; i < RIVALS; i++)
		n += !arena->rivals[i].stopped;
	return n;
}

/* What befalls one of them now. */
static void meddle(struct arena *arena, struct prng *prng)
{
	struct rival *rival = &arena->rivals[prng_below(prng, RIVALS)];
	uint64_t what = prng_below(prng, 24);

	if (what < 6 && !rival->stopped && running(arena) > 1) {
		(void)kill(rival->pid, SIGSTOP);
		rival->stopped = true;
		arena->stops++;
	} else if (what < 12 && rival->stopped) {
		(void)kill(rival->pid, SIGCONT);
		rival->stopped = false;
	} else if (what == 12) {
		halt(rival);
		workload_log(&arena->log, "end %u\n", rival->id);
		(void)kill(rival->pid, SIGKILL);
		bury(rival, true);
		arena->kills++;
		spawn(arena, rival);
	}
}

/* Reads the log in its order, which is that of time. */

struct referee {
	bool ended[IDS_MAX];
	unsigned holder;
	unsigned generation;
	unsigned newest; /* acknowledged */
	unsigned claims;
	unsigned acked;
	unsigned told;
};

static void judge_line(struct referee *ref, const char *line)
{
	char verb[16] = "";
	unsigned a = 0;
	unsigned b = 0;
	unsigned c = 0;

	(void)sscanf(line, "%15s %u %u %u", verb, &a, &b, &c); /* NOLINT(cert-err34-c) */
	if (strcmp(verb, "claim") == 0) {
		if (ref->holder && !ref->ended[ref->holder])
			workload_die("%u claims, and %u lives", c, ref->holder);
		if (a <= ref->generation)
			workload_die("generation %u is claimed after %u", a, ref->generation);
		if (b < ref->newest)
			workload_die("%u goes on from step %u, and %u was acknowledged", c, b,
				ref->newest);
		ref->holder = c;
		ref->ended[c] = false;
		ref->generation = a;
		ref->claims++;
	} else if (strcmp(verb, "ack") == 0) {
		if (b / 100 != ref->holder)
			workload_die("%u commits step %u in the generation of %u", b / 100, a,
				ref->holder);
		ref->newest = a;
		ref->acked++;
	} else if (strcmp(verb, "end") == 0) {
		ref->ended[a] = true;
	} else if (strcmp(verb, "told") == 0) {
		ref->told++;
	}
}

static void judge(const struct arena *arena, struct referee *ref)
{
	char line[80];
	FILE *f = fopen(scratch_join(arena->root, "log"), "re");

	if (!f)
		workload_die("log: %s", strerror(errno));
	while (fgets(line, sizeof(line), f))
		judge_line(ref, line);
	(void)fclose(f);
}

/* One store, from nothing to its end. */
static void play(struct arena *arena, uint64_t events, struct prng *prng, struct referee *total)
{
	static struct referee referee;
	char byte;

	arena->root = scratch_make_in_memory();
	arena->ids = 0;
	atomic_store(arena->over, false);
	if (pipe2(arena->events, O_CLOEXEC) < 0)
		workload_die("pipe: %s", strerror(errno));
	workload_init(&arena->log, arena->root);
	for (unsigned i = 0; i < RIVALS; i++)
		spawn(arena, &arena->rivals[i]);
	for (uint64_t i = 0; i < events && arena->ids < IDS_MAX - 1; i++) {
		struct pollfd stirs = {.fd = arena->events[0], .events = POLLIN};
		hang_unless(poll(&stirs, 1, HANG_LIMIT_MS) == 1);
		if (read(arena->events[0], &byte, 1) != 1)
			workload_die("no rival stirs");
		if (waitpid(-1, NULL, WNOHANG) != 0)
			workload_die("a rival has ended by itself");
		meddle(arena, prng);
	}
	atomic_store(arena->over, true);
	for (unsigned i = 0; i < RIVALS; i++) {
		(void)kill(arena->rivals[i].pid, SIGCONT);
		bury(&arena->rivals[i], false);
	}
	referee = (struct referee){0};
	judge(arena, &referee);
	workload_aftermath(&arena->log);
	workload_free(&arena->log);
	(void)close(arena->events[0]);
	(void)close(arena->events[1]);
	scratch_remove(arena->root);
	total->claims += referee.claims;
	total->acked += referee.acked;
	total->told += referee.told;
}

int main(int argc, char **argv)
{
	static struct arena arena;
	static struct referee total;
	double begun = now();

	if (argc != 4)
		workload_die("usage: rivals STORES EVENTS SEED");
	uint64_t stores = strtoull(argv[1], NULL, 10);
	struct prng prng = {.state = strtoull(argv[3], NULL, 10)};
	arena.over = mmap(NULL, sizeof(*arena.over), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (arena.over == MAP_FAILED)
		workload_die("mmap: %s", strerror(errno));
	for (uint64_t i = 0; i < stores; i++)
		play(&arena, strtoull(argv[2], NULL, 10), &prng, &total);
	(void)printf(
		"rivals: %u claims of %llu stores, %u steps acknowledged, %u times told to stay "
		"out; %u stopped, %u killed; %.1f s\n",
		total.claims, (unsigned long long)stores, total.acked, total.told, arena.stops,
		arena.kills, now() - begun);
	if (total.claims < 2 || total.told == 0)
		workload_die("nobody has contended");
	(void)printf("counts stores=%llu claims=%u acknowledged=%u refused=%u failed=0\n",
		(unsigned long long)stores, total.claims, total.acked, total.told);
	return 0;
}
