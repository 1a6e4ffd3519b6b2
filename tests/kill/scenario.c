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

#include "kill/deed.h"
#include "kill/tracer.h"
#include "lib/scratch.h"

static void prepare_none(struct deed *d)
{
	(void)d;
}

static void prepare_three(struct deed *d)
{
	deed_open(d, 0);
	for (unsigned step = 1; step <= 3; step++)
		deed_save(d, step, step);
	deed_close(d);
}

static void prepare_bad(struct deed *d)
{
	prepare_three(d);
	const char *shard =
		scratch_find(scratch_join(d->store, "g000001/step-0000000003"), ".safetensors");
	if (!shard)
		deed_die("no shard");
	scratch_flip(shard, 50000);
	deed_log(d, "bad 3\n");
}

/* What a process left behind that died in the middle of a save. */
static void prepare_left(struct deed *d)
{
	prepare_three(d);
	const char *manifest =
		scratch_find(scratch_join(d->store, "g000001/step-0000000003"), "manifest.json");
	if (!manifest || remove(manifest) < 0)
		deed_die("no manifest");
	deed_log(d, "let 3 0\n");
}

static void resume(struct deed *d, unsigned step)
{
	int r = deed_restore(d, CKPT_STEP_LATEST, true);

	if (r != (int)step)
		deed_die("resumed from %d, not %u: %s", r, step, ckpt_last_error());
	if (!deed_is(d, step))
		deed_die("step %u is not what was saved", step);
}

static void run_first(struct deed *d)
{
	deed_open(d, 0);
	deed_save(d, 1, 101);
	deed_close(d);
}

static void run_second(struct deed *d)
{
	deed_open(d, 0);
	deed_save(d, 1, 101);
	deed_save(d, 2, 102);
	deed_close(d);
}

/* The next begins when the last has been staged. */
static void run_overlapping(struct deed *d)
{
	struct ckpt_save *saves[4] = {NULL};

	deed_open(d, 0);
	for (unsigned i = 0; i < 4; i++) {
		if (i > 0)
			deed_must(ckpt_save_wait(saves[i - 1], CKPT_LEVEL_STAGED, DEED_TIMEOUT_MS));
		saves[i] = deed_start(d, i + 1, 101 + i);
		if (i > 0)
			deed_finish(d, saves[i - 1], i, 100 + i);
	}
	deed_finish(d, saves[3], 4, 104);
	deed_close(d);
}

static void run_retention(struct deed *d)
{
	d->opts.keep_last = 2;
	deed_open(d, 0);
	resume(d, 3);
	for (unsigned step = 4; step <= 6; step++) {
		deed_log(d, "let %u %u\n", step - 3, step - 1);
		deed_log(d, "let %u %u\n", step - 2, step);
		deed_save(d, step, 100 + step);
	}
	deed_must(ckpt_engine_drain(d->engine, DEED_TIMEOUT_MS));
	deed_close(d);
}

static void run_pinned(struct deed *d)
{
	d->opts.keep_last = 1;
	deed_open(d, 0);
	resume(d, 3);
	deed_must(ckpt_engine_pin(d->engine, 2));
	deed_log(d, "let 1 0\nlet 3 4\n");
	deed_save(d, 4, 104);
	deed_log(d, "let 4 5\n");
	deed_save(d, 5, 105);
	deed_close(d);
}

static void run_restore(struct deed *d)
{
	deed_open(d, 0);
	resume(d, 3);
	if (deed_restore(d, 1, false) != 1 || !deed_is(d, 1))
		deed_die("step 1 is not what was saved: %s", ckpt_last_error());
	deed_close(d);
}

static void run_resume(struct deed *d)
{
	deed_open(d, 0);
	resume(d, 3);
	deed_save(d, 4, 104);
	deed_close(d);
}

/* Steps 2 and 3 are rolled back, and 2 is made again. */
static void run_older(struct deed *d)
{
	deed_open(d, 0);
	if (deed_restore(d, 1, true) != 1)
		deed_die("step 1: %s", ckpt_last_error());
	deed_log(d, "let 2 0\nlet 3 0\n");
	deed_save(d, 2, 102);
	deed_save(d, 3, 103);
	deed_close(d);
}

static void run_export(struct deed *d)
{
	deed_open(d, CKPT_ENGINE_READ_ONLY);
	deed_must(deed_export(d, 2));
	deed_log(d, "export 2\n");
	deed_close(d);
}

static void run_quarantine(struct deed *d)
{
	deed_open(d, 0);
	int r = deed_restore(d, CKPT_STEP_LATEST, true);
	if (r != CKPT_EINTEGRITY)
		deed_die("the damaged step: %d: %s", r, ckpt_last_error());
	resume(d, 2);
	deed_save(d, 4, 104);
	deed_close(d);
}

static void run_remove(struct deed *d)
{
	deed_open(d, 0);
	resume(d, 3);
	deed_must(ckpt_engine_claim(d->engine, &(uint64_t){0}));
	for (unsigned step = 1; step <= 2; step++) {
		deed_log(d, "let %u 0\n", step);
		deed_must(ckpt_catalog_remove(d->engine, step));
		deed_log(d, "gone %u\n", step);
	}
	deed_close(d);
}

static void run_closing(struct deed *d)
{
	deed_open(d, 0);
	deed_save(d, 1, 101);
	struct ckpt_save *save = deed_start(d, 2, 102);
	deed_close(d);
	if (ckpt_save_wait(save, CKPT_LEVEL_LOCAL, 0) == 0)
		deed_log(d, "ack 2 102\n");
	ckpt_save_free(save);
}

static void run_anew(struct deed *d)
{
	deed_open(d, CKPT_ENGINE_NEW_START);
	deed_log(d, "let 1 0\nlet 2 0\nlet 3 0\n");
	deed_save(d, 1, 101);
	deed_save(d, 2, 102);
	deed_close(d);
}

/* Settles what the dead one has left. */
static void run_settle(struct deed *d)
{
	deed_open(d, 0);
	resume(d, 2);
	deed_save(d, 4, 104);
	deed_close(d);
}

static const struct {
	const char *name;
	void (*prepare)(struct deed *d);
	void (*run)(struct deed *d);
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
	struct deed deed;

	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (size_t i = 0; i < count; i++)
			(void)puts(scenarios[i].name);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "aftermath") == 0) {
		deed_init(&deed, argv[2]);
		deed_aftermath(&deed);
		return 0;
	}
	for (size_t i = 0; argc == 4 && i < count; i++) {
		if (strcmp(argv[2], scenarios[i].name) != 0)
			continue;
		deed_init(&deed, argv[3]);
		if (strcmp(argv[1], "prepare") == 0) {
			scenarios[i].prepare(&deed);
		} else {
			/* For the tracer: from here on it counts. */
			(void)prctl(TRACER_BEGIN, 0, 0, 0, 0);
			scenarios[i].run(&deed);
		}
		return 0;
	}
	deed_die("usage: scenario list | prepare NAME ROOT | run NAME ROOT | aftermath ROOT");
}
