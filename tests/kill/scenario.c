/* SPDX-License-Identifier: Apache-2.0 */
/*
 * usage: scenario list | prepare NAME ROOT | run NAME ROOT | aftermath ROOT
 *
 * `prepare` leaves a store to begin with; `run` is what is killed; `aftermath` looks at what is there
 * then, and commits one more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "kill/tracer.h"
#include "kill/workload.h"
#include "lib/scratch.h"

static void prepare_none(struct workload *d)
{
	(void)d;
}

static void prepare_three(struct workload *d)
{
	workload_open(d, 0);
	for (unsigned step = 1; step <= 3; step++)
		workload_save(d, step, step);
	workload_close(d);
}

static void prepare_bad(struct workload *d)
{
	prepare_three(d);
	const char *step = scratch_join(d->store, "g000001/step-0000000003");
	const char *shard = scratch_find(step, ".safetensors");
	if (!shard)
		shard = scratch_find(step, ".encoded");
	if (!shard)
		workload_die("no shard");
	scratch_flip(shard, 50000);
	workload_log(d, "bad 3\n");
}

/* What a process left behind that died in the middle of a save. */
static void prepare_left(struct workload *d)
{
	prepare_three(d);
	const char *manifest =
		scratch_find(scratch_join(d->store, "g000001/step-0000000003"), "manifest.json");
	if (!manifest || remove(manifest) < 0)
		workload_die("no manifest");
	workload_log(d, "let 3 0\n");
}

static void resume(struct workload *d, unsigned step)
{
	int r = workload_restore(d, CKPT_STEP_LATEST, true);

	if (r != (int)step)
		workload_die("resumed from %d, not %u: %s", r, step, ckpt_last_error());
	if (!workload_is(d, step))
		workload_die("step %u is not what was saved", step);
}

static void run_first(struct workload *d)
{
	workload_open(d, 0);
	workload_save(d, 1, 101);
	workload_close(d);
}

static void run_second(struct workload *d)
{
	workload_open(d, 0);
	workload_save(d, 1, 101);
	workload_save(d, 2, 102);
	workload_close(d);
}

/* The next begins when the last has been staged. */
static void run_overlapping(struct workload *d)
{
	struct ckpt_save *saves[4] = {NULL};

	workload_open(d, 0);
	for (unsigned i = 0; i < 4; i++) {
		if (i > 0)
			workload_must(ckpt_save_wait(
				saves[i - 1], CKPT_LEVEL_STAGED, WORKLOAD_TIMEOUT_MS));
		saves[i] = workload_start(d, i + 1, 101 + i);
		if (i > 0)
			workload_finish(d, saves[i - 1], i, 100 + i);
	}
	workload_finish(d, saves[3], 4, 104);
	workload_close(d);
}

static void run_retention(struct workload *d)
{
	d->opts.keep_last = 2;
	workload_open(d, 0);
	resume(d, 3);
	for (unsigned step = 4; step <= 6; step++) {
		workload_log(d, "let %u %u\n", step - 3, step - 1);
		workload_log(d, "let %u %u\n", step - 2, step);
		workload_save(d, step, 100 + step);
	}
	workload_must(ckpt_engine_drain(d->engine, WORKLOAD_TIMEOUT_MS));
	workload_close(d);
}

static void run_pinned(struct workload *d)
{
	d->opts.keep_last = 1;
	workload_open(d, 0);
	resume(d, 3);
	workload_must(ckpt_engine_pin(d->engine, 2));
	workload_log(d, "let 1 0\nlet 3 4\n");
	workload_save(d, 4, 104);
	workload_log(d, "let 4 5\n");
	workload_save(d, 5, 105);
	workload_close(d);
}

static void run_restore(struct workload *d)
{
	workload_open(d, 0);
	resume(d, 3);
	if (workload_restore(d, 1, false) != 1 || !workload_is(d, 1))
		workload_die("step 1 is not what was saved: %s", ckpt_last_error());
	workload_close(d);
}

static void run_resume(struct workload *d)
{
	workload_open(d, 0);
	resume(d, 3);
	workload_save(d, 4, 104);
	workload_close(d);
}

/* Steps 2 and 3 are rolled back, and 2 is made again. */
static void run_older(struct workload *d)
{
	workload_open(d, 0);
	if (workload_restore(d, 1, true) != 1)
		workload_die("step 1: %s", ckpt_last_error());
	workload_log(d, "let 2 0\nlet 3 0\n");
	workload_save(d, 2, 102);
	workload_save(d, 3, 103);
	workload_close(d);
}

static void run_export(struct workload *d)
{
	workload_open(d, CKPT_ENGINE_READ_ONLY);
	workload_must(workload_export(d, 2));
	workload_log(d, "export 2\n");
	workload_close(d);
}

static void run_quarantine(struct workload *d)
{
	workload_open(d, 0);
	int r = workload_restore(d, CKPT_STEP_LATEST, true);
	if (r != CKPT_EINTEGRITY)
		workload_die("the damaged step: %d: %s", r, ckpt_last_error());
	resume(d, 2);
	workload_save(d, 4, 104);
	workload_close(d);
}

static void run_remove(struct workload *d)
{
	workload_open(d, 0);
	resume(d, 3);
	workload_must(ckpt_engine_claim(d->engine, &(uint64_t){0}));
	for (unsigned step = 1; step <= 2; step++) {
		workload_log(d, "let %u 0\n", step);
		workload_must(ckpt_catalog_remove(d->engine, step));
		workload_log(d, "gone %u\n", step);
	}
	workload_close(d);
}

static void run_closing(struct workload *d)
{
	workload_open(d, 0);
	workload_save(d, 1, 101);
	struct ckpt_save *save = workload_start(d, 2, 102);
	workload_close(d);
	if (ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0) == 0)
		workload_log(d, "ack 2 102\n");
	ckpt_save_free(save);
}

static void run_anew(struct workload *d)
{
	workload_open(d, CKPT_ENGINE_NEW_START);
	workload_log(d, "let 1 0\nlet 2 0\nlet 3 0\n");
	workload_save(d, 1, 101);
	workload_save(d, 2, 102);
	workload_close(d);
}

/* Settles what the dead one has left. */
static void run_settle(struct workload *d)
{
	workload_open(d, 0);
	resume(d, 2);
	workload_save(d, 4, 104);
	workload_close(d);
}

static const struct {
	const char *name;
	void (*prepare)(struct workload *d);
	void (*run)(struct workload *d);
} scenarios[] = {
	{"first", prepare_none, run_first},
	{"second", prepare_none, run_second},
	{"overlapping", prepare_none, run_overlapping},
	{"retention", prepare_three, run_retention},
	{"pinned", prepare_three, run_pinned},
	{"restore", prepare_three, run_restore},
	{"resume", prepare_three, run_resume},
	{"older", prepare_three, run_older},
	{"export", prepare_three, run_export},
	{"quarantine", prepare_bad, run_quarantine},
	{"remove", prepare_three, run_remove},
	{"closing", prepare_none, run_closing},
	{"anew", prepare_three, run_anew},
	{"settle", prepare_left, run_settle},
};

int main(int argc, char **argv)
{
	size_t count = sizeof(scenarios) / sizeof(scenarios[0]);
	struct workload workload;

	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (size_t i = 0; i < count; i++)
			(void)puts(scenarios[i].name);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "aftermath") == 0) {
		workload_init(&workload, argv[2]);
		workload_aftermath(&workload);
		return 0;
	}
	for (size_t i = 0; argc == 4 && i < count; i++) {
		if (strcmp(argv[2], scenarios[i].name) != 0)
			continue;
		workload_init(&workload, argv[3]);
		if (strcmp(argv[1], "prepare") == 0) {
			scenarios[i].prepare(&workload);
		} else {
			/* For the tracer: from here on it counts. */
			(void)prctl(TRACER_BEGIN, 0, 0, 0, 0);
			scenarios[i].run(&workload);
		}
		return 0;
	}
	workload_die("usage: scenario list | prepare NAME ROOT | run NAME ROOT | aftermath ROOT");
}
