/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: explore --seed S --states N [--limit L] [--drop RULE|all] [--slice I/N]
 *
 * The real engine trains on a simulated disk: processes that save, retain, remove, go back, die, and lose
 * the power. After everything that the disk does, every state that a power cut could leave of it is made,
 * and the real engine reads it: what was acknowledged must be there, bit for bit, and nothing by half. From
 * some of them a writer goes on. Seeds S and up, each a training, until N states were tried.
 *
 * --slice: an Nth of the states, of seeds of its own. --limit: states.h. --drop: a kind of sync is left out (drop_io.h), and some state must show it.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ckpt/error.h>

#include "drop_io.h"
#include "engine/lineage/lineage.h"
#include "lib/slice.h"
#include "recovery.h"
#include "sim/sim_memory.h"

#define BLOCK       4096
#define CHUNK       512
#define GOES_ON     64 /* one of so many states */
#define PROCESSES   4
#define SLICE_SEEDS 1000000

struct explorer {
	struct sim sim;
	struct sim_disk *disk;
	struct sim_shape shape;
	struct past past;
	struct states states;
	struct recovery recovery;
	struct drop_io drop;
	struct sim_io *io;
	const char *rule;
	uint64_t wanted;           /* states, of all seeds */
	unsigned left;             /* events until the process dies */
	uint64_t line[PAST_STEPS]; /* committed steps of the lineage, oldest first */
	size_t line_count;
};

static void found(struct states *states)
{
	struct explorer *x = states->user;

	recovery_read(&x->recovery, states);
	if (states->distinct % GOES_ON == 0 && !x->sim.failed)
		recovery_go_on(&x->recovery, states, states->hash);
}

/* Every state that there may be now. */
static void look_around(struct explorer *x)
{
	x->states.salt = x->past.edition;
	states_try_all(&x->states, x->disk);
}

static void advance_and_look(struct mill *mill)
{
	struct explorer *x = mill->user;
	uint64_t before = x->sim.events;

	(void)sim_disk_land(x->disk);
	mill_advance(mill);
	if (x->sim.events == before)
		return;
	look_around(x);
	if (x->sim.failed || x->left-- == 0 || x->states.tried >= x->wanted)
		mill->dead = true;
}

static void acked(struct mill *mill, uint64_t step)
{
	struct explorer *x = mill->user;

	sim_note(&x->sim, 1, "acked", "", (int64_t)step, 0, 0);
	past_ack(&x->past, step);
	look_around(x);
}

static void take_line(struct explorer *x, struct mill *mill)
{
	const struct ckpt_scan *scan = &mill->core.lineage->scan;

	x->line_count = 0;
	for (size_t i = scan->step_count; i > 0; i--) {
		const struct ckpt_scan_step *s = &scan->steps[i - 1];
		if (s->state != CKPT_STEP_COMMITTED || !s->in_lineage)
			continue;
		x->line[x->line_count++] = s->step;
		past_confirm(&x->past, s->step);
	}
}

/* What retention takes once `by`, which is the last of the line, is committed. */
static void let_go(struct explorer *x, uint64_t keep, uint64_t by)
{
	for (size_t i = 0; keep > 0 && i + keep < x->line_count; i++)
		if (!x->past.steps[x->line[i]].let || by == 0)
			past_let(&x->past, x->line[i], by);
}

static int go_on(struct explorer *x, struct mill *mill, uint64_t keep)
{
	struct sim_state into;
	uint64_t generation = 0;

	if (x->line_count == 0)
		return mill_claim(mill);
	size_t at = x->line_count - 1;
	bool back = at > 0 && sim_chance(&x->sim, 2000);
	if (back)
		at = sim_below(&x->sim, at);
	sim_state_init(&into, &x->shape);
	int64_t r = mill_restore(mill, back ? x->line[at] : CKPT_STEP_LATEST, &into, &generation);
	sim_state_free(&into);
	if (mill->dead)
		return MILL_DEAD;
	if (r != (int64_t)x->line[at])
		sim_violation(&x->sim, "resuming from %llu gives %lld",
			(unsigned long long)x->line[at], (long long)r);
	if (mill_adopt(mill, generation, x->line[at]) < 0)
		return MILL_DEAD;
	for (size_t i = at + 1; i < x->line_count; i++)
		past_let(&x->past, x->line[i], 0);
	x->line_count = at + 1;
	let_go(x, keep, 0);
	return mill_claim(mill);
}

static void remove_one(struct explorer *x, struct mill *mill)
{
	take_line(x, mill);
	if (x->line_count < 2)
		return;
	uint64_t step = x->line[sim_below(&x->sim, x->line_count - 1)];
	past_let(&x->past, step, 0);
	int r = mill_remove(mill, step);
	if (r == 0)
		past_gone(&x->past, step);
	/* Retention may be at it, or done with it. */
	else if (r != MILL_DEAD && r != CKPT_ENOSTEP && r != -EBUSY)
		sim_violation(&x->sim, "removing step %llu: %d", (unsigned long long)step, r);
}

static void save_some(struct explorer *x, struct mill *mill, uint64_t keep)
{
	uint64_t count = sim_between(&x->sim, 1, 3);
	struct sim_state state;

	sim_state_init(&state, &x->shape);
	for (uint64_t i = 0; i < count && !mill->dead; i++) {
		uint64_t version = sim_random(&x->sim) >> 16;
		sim_state_fill(&state, version);
		uint64_t step = past_begin(&x->past, version);
		x->line[x->line_count++] = step;
		let_go(x, keep, step);
		int r = mill_save(mill, step, &state, acked);
		if (r < 0 && r != MILL_DEAD)
			sim_violation(&x->sim, "step %llu cannot be saved: %d",
				(unsigned long long)step, r);
		if (sim_chance(&x->sim, 5000))
			(void)mill_drain(mill);
	}
	sim_state_free(&state);
}

static void train(struct explorer *x, struct mill *mill, bool anew, uint64_t keep)
{
	take_line(x, mill);
	if (anew) {
		/* None of them is of the lineage that begins. */
		for (uint64_t i = 1; i <= x->past.count; i++)
			past_let(&x->past, i, 0);
		x->line_count = 0;
	}
	int r = go_on(x, mill, keep);
	if (r < 0 && r != MILL_DEAD)
		sim_violation(&x->sim, "claiming: %d", r);
	if (r == 0 && !mill->dead)
		save_some(x, mill, keep);
	if (r == 0 && !mill->dead && sim_chance(&x->sim, 3000))
		remove_one(x, mill);
	if (!mill->dead && sim_chance(&x->sim, 5000))
		(void)mill_drain(mill);
	if (!mill->dead)
		(void)mill_close(mill);
}

static void run_process(struct explorer *x, unsigned number)
{
	bool anew = number > 0 && sim_chance(&x->sim, 1000);
	struct mill_setup setup = {.sim = &x->sim,
		.owner = number + 1,
		.keep_last = sim_below(&x->sim, 4),
		.anew = anew,
		.block_bytes = BLOCK,
		.chunk_bytes = CHUNK,
		.advance = advance_and_look};
	struct mill mill;

	x->left = sim_chance(&x->sim, 4000) ? (unsigned)sim_between(&x->sim, 1, 150) : UINT32_MAX;
	mill_init(&mill, &setup);
	mill.user = x;
	struct sim_io_config io = {.inbox = &mill.inbox,
		.owner = setup.owner,
		.root = MILL_ROOT,
		.align = 512,
		.direct = sim_chance(&x->sim, 5000)};
	mill.io = sim_io_new(&x->sim, x->disk, &io);
	drop_io_init(&x->drop, sim_io_of(mill.io), x->disk, setup.owner, x->rule);
	int r = mill_open(&mill, &setup, &x->drop.io);
	if (r == 0)
		train(x, &mill, anew, setup.keep_last);
	else if (r != MILL_DEAD)
		sim_violation(&x->sim, "the store cannot be opened: %d", r);
	sim_note(&x->sim, setup.owner, mill.dead ? "dies" : "exits", "", 0, 0, 0);
	if (mill.dead)
		sim_io_die(mill.io);
	else
		sim_io_forget(mill.io);
	mill_sweep(&mill);
	if (!x->sim.failed)
		look_around(x);
}

static void cut_power(struct explorer *x)
{
	struct sim_cut cut = sim_cut_pick(&x->sim);

	sim_note(&x->sim, 0, "power cut", "", 0, 0, 0);
	sim_disk_cut(x->disk, &cut);
	look_around(x);
}

/* Small: a header and two sectors of tensors. */
static void make_shape(struct sim_shape *shape)
{
	static const struct sim_tensor tensors[] = {
		{"weight", CKPT_F32, 4, 2, false, false, {10, 8}, {8, 1}, 320, 320},
		{"bias", CKPT_BF16, 2, 2, true, false, {1, 50}, {50, 1}, 100, 100},
		{"exp_avg", CKPT_U8, 1, 2, false, false, {30, 19}, {19, 1}, 570, 570},
	};

	*shape = (struct sim_shape){.count = CKPT_COUNT(tensors)};
	memcpy(shape->tensors, tensors, sizeof(tensors));
}

static void explore_seed(struct explorer *x, uint64_t seed)
{
	sim_start(&x->sim, seed, &(struct sim_options){0});
	sim_memory_start(NULL);
	x->past = (struct past){0};
	make_shape(&x->shape);
	x->disk = sim_disk_new(&x->sim);
	x->states.sim = &x->sim;
	x->states.user = x;
	x->states.found = found;
	states_forget(&x->states);
	x->recovery.sim = &x->sim;
	x->recovery.past = &x->past;
	x->recovery.shape = &x->shape;
	sim_state_init(&x->recovery.into, &x->shape);
	unsigned processes = (unsigned)sim_between(&x->sim, 2, PROCESSES);
	for (unsigned i = 0; i < processes && !x->sim.failed && x->states.tried < x->wanted; i++) {
		run_process(x, i);
		if (!x->sim.failed && sim_chance(&x->sim, 4000))
			cut_power(x);
	}
	sim_state_free(&x->recovery.into);
	sim_disk_free(x->disk);
}

static void show(const struct explorer *x, const char *why)
{
	sim_print_history(&x->sim, 60);
	(void)printf("seed %llu does not hold: %s\nrepeat: explore --seed %llu --limit %llu\n",
		(unsigned long long)x->sim.seed, why, (unsigned long long)x->sim.seed,
		(unsigned long long)x->states.limit);
	(void)fflush(stdout);
}

static struct explorer *the_explorer;

static void crashed(int number)
{
	(void)signal(number, SIG_DFL);
	show(the_explorer, number == SIGABRT ? "an assertion failed" : "a bad access");
	(void)raise(number);
}

static int report(const struct explorer *x, uint64_t first, uint64_t seed, double seconds)
{
	const struct states *s = &x->states;
	int failed = x->sim.failed;

	if (failed && !x->rule)
		show(x, x->sim.why);
	if (x->rule)
		(void)printf("without the sync \"%s\": %s, after %llu seeds\n", x->rule,
			failed ? x->sim.why : "nothing was found",
			(unsigned long long)(seed - first + 1));
	(void)printf("%.0f states a second\n", seconds > 0 ? (double)s->tried / seconds : 0.0);
	(void)printf("counts states=%llu distinct=%llu moments=%llu sampled=%llu went_on=%llu "
		     "seeds=%llu failed=%d\n",
		(unsigned long long)s->tried, (unsigned long long)s->distinct,
		(unsigned long long)s->moments, (unsigned long long)s->sampled,
		(unsigned long long)x->recovery.went_on, (unsigned long long)(seed - first + 1),
		failed);
	return x->rule ? !failed : failed;
}

static int explore(uint64_t first, uint64_t states, uint64_t limit, const char *rule)
{
	struct explorer *x = sim_alloc(sizeof(*x));
	struct timespec begin;
	struct timespec end;
	uint64_t seed = first;

	the_explorer = x;
	(void)signal(SIGABRT, crashed);
	(void)signal(SIGSEGV, crashed);
	x->rule = rule;
	x->wanted = states;
	x->states.limit = limit;
	(void)clock_gettime(CLOCK_MONOTONIC, &begin);
	for (;; seed++) {
		explore_seed(x, seed);
		if (x->sim.failed || x->states.tried >= states)
			break;
	}
	(void)clock_gettime(CLOCK_MONOTONIC, &end);
	int r = report(x, first, seed,
		(double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec) / 1e9);
	sim_pool_close_all();
	states_forget(&x->states);
	free(x);
	return r;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {{"seed", required_argument, NULL, 's'},
		{"states", required_argument, NULL, 'n'}, {"limit", required_argument, NULL, 'l'},
		{"drop", required_argument, NULL, 'd'}, {"slice", required_argument, NULL, 'i'},
		{NULL, 0, NULL, 0}};
	struct slice slice = {.of = 1};
	uint64_t seed = 1;
	uint64_t states = 100000;
	uint64_t limit = 4096;
	const char *rule = NULL;
	bool wrong = false;

	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		if (c == 's')
			seed = strtoull(optarg, NULL, 0);
		else if (c == 'n')
			states = strtoull(optarg, NULL, 0);
		else if (c == 'l')
			limit = strtoull(optarg, NULL, 0);
		else if (c == 'd')
			rule = optarg;
		else if (c == 'i' && slice_parse(&slice, optarg))
			seed += slice.at * SLICE_SEEDS;
		else
			wrong = true;
	}
	if (wrong || optind != argc) {
		(void)fputs("usage: explore --seed S --states N [--limit L] [--drop RULE|all] "
			    "[--slice I/N]\n",
			stderr);
		return 2;
	}
	states /= slice.of;
	if (!rule || strcmp(rule, "all") != 0)
		return explore(seed, states, limit, rule);
	int worst = 0;
	for (size_t i = 0; drop_rules[i]; i++)
		worst |= explore(seed, states, limit, drop_rules[i]);
	return worst;
}
