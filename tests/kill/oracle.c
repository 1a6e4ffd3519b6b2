/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must hold after a kill, whenever it came: what was acknowledged and not let go is there, bit for
 * bit; what is there is whole; the newest of it is chosen; and the work goes on.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kill/workload.h"

#define TRIES_MAX 8192
#define MORE      900

/* In the order of time, which is that of the lineage. */
struct attempt {
	unsigned step;
	unsigned seed;
	bool acked;
	bool let;
	unsigned by;
	bool gone;
	bool bad;
	bool worn;
	bool present;
};

struct history {
	struct attempt tries[TRIES_MAX];
	unsigned count;
	unsigned exported;
};

static void each(
	struct history *h, unsigned step, void (*mark)(struct attempt *, unsigned), unsigned x)
{
	for (unsigned i = 0; i < h->count; i++)
		if (h->tries[i].step == step)
			mark(&h->tries[i], x);
}

static void mark_let(struct attempt *t, unsigned by)
{
	t->by = t->let && t->by == 0 ? 0 : by;
	t->let = true;
}

static void mark_gone(struct attempt *t, unsigned x)
{
	(void)x;
	t->gone = true;
}

static void mark_bad(struct attempt *t, unsigned x)
{
	(void)x;
	t->bad = true;
}

static void mark_worn(struct attempt *t, unsigned x)
{
	(void)x;
	t->worn = true;
}

static void take_line(struct history *h, const char *line)
{
	char verb[16];
	unsigned a = 0;
	unsigned b = 0;
	int n = sscanf(
		line, "%15s %u %u", verb, &a, &b); /* NOLINT(cert-err34-c): written by workload.c */

	if (n == 3 && strcmp(verb, "try") == 0 && h->count < TRIES_MAX - 1)
		h->tries[h->count++] = (struct attempt){.step = a, .seed = b};
	else if (n == 3 && strcmp(verb, "ack") == 0) {
		for (unsigned i = 0; i < h->count; i++)
			h->tries[i].acked |= h->tries[i].step == a && h->tries[i].seed == b;
	} else if (n == 3 && strcmp(verb, "let") == 0)
		each(h, a, mark_let, b);
	else if (n == 2 && strcmp(verb, "gone") == 0)
		each(h, a, mark_gone, 0);
	else if (n == 2 && strcmp(verb, "bad") == 0)
		each(h, a, mark_bad, 0);
	else if (n == 2 && strcmp(verb, "worn") == 0)
		each(h, a, mark_worn, 0);
	else if (n == 2 && strcmp(verb, "export") == 0)
		h->exported = a;
	else if (strcmp(verb, "claim") != 0 && strcmp(verb, "end") != 0 &&
		 strcmp(verb, "told") != 0)
		workload_die("the log says \"%s\"", line);
}

static void read_log(struct history *h, const char *path)
{
	char line[80];
	FILE *f = fopen(path, "re");
	if (!f)
		workload_die("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), f))
		take_line(h, line);
	(void)fclose(f);
}

/* A committed step is what one attempt at it wrote, all of it. */
static void look_at_step(struct workload *d, struct history *h, unsigned step)
{
	bool bad = false;
	bool worn = false;

	for (unsigned i = 0; i < h->count; i++) {
		bad |= h->tries[i].step == step && h->tries[i].bad;
		worn |= h->tries[i].step == step && h->tries[i].worn;
	}
	int r = workload_verify(d, step);
	if (bad && r == CKPT_EINTEGRITY)
		return;
	if (r < 0 && !(worn && r == CKPT_EINTEGRITY))
		workload_die("step %u is committed and does not verify: %d: %s", step, r,
			ckpt_last_error());
	r = workload_restore(d, step, false);
	if (r != (int)step)
		workload_die("step %u is committed and not restored: %d: %s", step, r,
			ckpt_last_error());
	for (unsigned i = h->count; i > 0; i--) {
		struct attempt *t = &h->tries[i - 1];
		if (t->step == step && workload_is(d, t->seed)) {
			t->present = true;
			return;
		}
	}
	workload_die("step %u holds what nobody has saved", step);
}

/* Whether `step` has been committed, by what is there, or was damaged: it, or one that came after it. */
static bool was_committed(const struct history *h, unsigned step)
{
	bool passed = false;

	for (unsigned i = 0; i < h->count; i++) {
		passed |= h->tries[i].step == step;
		if (passed && (h->tries[i].present || h->tries[i].bad))
			return true;
	}
	return false;
}

static void look_at_all(struct workload *d, struct history *h)
{
	struct ckpt_catalog *catalog = NULL;

	for (unsigned i = 0; i < h->count; i++)
		h->tries[i].present = false;
	if (d->engine) {
		workload_must(ckpt_catalog_open(d->engine, &catalog));
		for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
			struct ckpt_step_info info = {.size = sizeof(info)};
			workload_must(ckpt_catalog_step(catalog, i, &info));
			if (info.state == CKPT_STEP_BROKEN)
				workload_die(
					"step %u is broken: %s", (unsigned)info.step, info.note);
			if (info.state == CKPT_STEP_COMMITTED && info.in_lineage)
				look_at_step(d, h, (unsigned)info.step);
		}
		ckpt_catalog_free(catalog);
	}
	for (unsigned i = 0; i < h->count; i++) {
		const struct attempt *t = &h->tries[i];
		bool may_miss =
			!t->acked || t->bad || (t->let && (!t->by || was_committed(h, t->by)));
		if (!t->present && !may_miss)
			workload_die("step %u was acknowledged and is not there", t->step);
		if (t->gone && t->present)
			workload_die("step %u was removed and is there", t->step);
	}
}

static bool any_bad(const struct history *h)
{
	bool bad = false;

	for (unsigned i = 0; i < h->count; i++)
		bad |= h->tries[i].bad;
	return bad;
}

/* The newest of what is there is what a restore of the latest gives; 0: there is nothing. */
static unsigned resume(struct workload *d, const struct history *h, bool adopt)
{
	const struct attempt *newest = NULL;

	for (unsigned i = 0; i < h->count; i++)
		if (h->tries[i].present)
			newest = &h->tries[i];
	int r = workload_restore(d, CKPT_STEP_LATEST, adopt);
	if (r == CKPT_EINTEGRITY && any_bad(h))
		r = workload_restore(d, newest ? newest->step : CKPT_STEP_LATEST, adopt);
	if (!newest) {
		if (r != CKPT_ENOSTEP)
			workload_die(
				"there is nothing, and the latest is %d: %s", r, ckpt_last_error());
		return 0;
	}
	if (r != (int)newest->step || !workload_is(d, newest->seed))
		workload_die("the latest is %d, not what was saved as %u: %s", r, newest->step,
			ckpt_last_error());
	return newest->step;
}

static int try_open(struct workload *d, const char *path, uint32_t flags)
{
	d->opts.flags = flags;
	d->engine = NULL;
	return ckpt_engine_open(path, &d->opts, &d->engine);
}

/* The copy is whole or not there; if it was not, it can be made now. */
static void look_at_copy(struct workload *d, struct history *h)
{
	struct stat st;

	if (stat(d->dest, &st) < 0) {
		if (h->exported)
			workload_die("the exported store is not there");
		return;
	}
	if (try_open(d, d->store, CKPT_ENGINE_READ_ONLY) < 0)
		workload_die("the store: %s", ckpt_last_error());
	int r = workload_export(d, 2);
	if (r < 0)
		workload_die("exporting again: %d: %s", r, ckpt_last_error());
	if (r == 0 && h->exported)
		workload_die("the step was exported, and could be once more");
	workload_close(d);
	workload_must(try_open(d, d->dest, CKPT_ENGINE_READ_ONLY));
	workload_must(workload_verify(d, 2));
	if (workload_restore(d, 2, false) != 2 || !workload_is(d, 2))
		workload_die("the exported step is not what was saved: %s", ckpt_last_error());
	workload_close(d);
}

void workload_aftermath(struct workload *workload)
{
	static struct history h;

	h = (struct history){0};
	read_log(&h, workload->log_path);
	int r = try_open(workload, workload->store, CKPT_ENGINE_READ_ONLY);
	if (r < 0 && r != CKPT_ENOSTORE)
		workload_die("open: %d: %s", r, ckpt_last_error());
	look_at_all(workload, &h);
	if (workload->engine) {
		(void)resume(workload, &h, false);
		workload_close(workload);
	}
	look_at_copy(workload, &h);
	workload->opts.keep_last = 0;
	if (try_open(workload, workload->store, 0) < 0)
		workload_die("open to go on: %s", ckpt_last_error());
	bool acked = false;
	for (unsigned i = 0; i < h.count; i++)
		acked |= h.tries[i].acked;
	/* Only what was let go is there then: a start of its own goes on as one. */
	if (resume(workload, &h, true) == 0 && acked) {
		workload_close(workload);
		workload_open(workload, CKPT_ENGINE_NEW_START);
	}
	h.tries[h.count++] = (struct attempt){.step = MORE, .seed = MORE, .acked = true};
	workload_save(workload, MORE, MORE);
	workload_close(workload);
	workload_open(workload, CKPT_ENGINE_READ_ONLY);
	look_at_all(workload, &h);
	(void)resume(workload, &h, false);
	workload_close(workload);
}
