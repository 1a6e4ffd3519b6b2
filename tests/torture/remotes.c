/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/remotes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "lib/scratch.h"

#define TRIES_MAX 64
#define MORE      800 /* before that of the aftermath of the local store */

/* In the order of time, which is that of the lineage. */
struct attempt {
	unsigned step;
	unsigned seed;
	bool acked;
	bool bad;
	bool there;
	bool free;
	bool present; /* in the remote store */
};

static struct {
	struct attempt tries[TRIES_MAX];
	unsigned count;
} history;

/* Beside the store. */
static char *beside(const struct workload *d, const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%.*s/%s", (int)(strrchr(d->store, '/') - d->store), d->store, name) <
		0)
		workload_die("out of memory");
	return path;
}

char *remotes_path(const struct workload *d)
{
	return beside(d, "remote");
}

void remotes_settle(struct workload *d)
{
	static char url[1300];
	char *path = remotes_path(d);

	(void)snprintf(url, sizeof(url), "file://%s", path);
	free(path);
	d->opts.remote = url;
	/* One failure is overcome, and for two nobody waits long. */
	d->opts.remote_tries = 2;
}

void remotes_log(struct workload *d, const char *verb, unsigned step)
{
	char *path = beside(d, "remote-log");
	FILE *f = fopen(path, "ae");

	if (!f || fprintf(f, "%s %u 0\n", verb, step) < 0 || fclose(f) != 0)
		workload_die("%s: %s", path, strerror(errno));
	free(path);
}

static void take_line(const char *line)
{
	char verb[16];
	unsigned step = 0;
	unsigned seed = 0;
	int n = sscanf(line, "%15s %u %u", verb, &step, &seed); /* NOLINT(cert-err34-c) */

	if (n < 2 || history.count == TRIES_MAX)
		workload_die("the log says \"%s\"", line);
	if (strcmp(verb, "try") == 0)
		history.tries[history.count++] = (struct attempt){.step = step, .seed = seed};
	for (unsigned i = 0; i < history.count; i++) {
		struct attempt *t = &history.tries[i];
		if (t->step != step)
			continue;
		t->acked |= strcmp(verb, "ack") == 0 && t->seed == seed;
		t->bad |= strcmp(verb, "bad") == 0;
		t->there |= strcmp(verb, "there") == 0;
		t->free |= strcmp(verb, "free") == 0;
	}
}

static void read_log(const char *path)
{
	char line[80];
	FILE *f = fopen(path, "re");

	while (f && fgets(line, sizeof(line), f))
		take_line(line);
	if (f)
		(void)fclose(f);
	else if (errno != ENOENT)
		workload_die("%s: %s", path, strerror(errno));
}

static void read_logs(const struct workload *d)
{
	char *path = beside(d, "remote-log");

	history.count = 0;
	read_log(d->log_path);
	read_log(path);
	free(path);
}

/* What is there. */

static void look_at_step(struct workload *d, unsigned step)
{
	int r = workload_verify(d, step);

	if (r == 0)
		r = workload_restore(d, step, false);
	if (r != (int)step)
		workload_die("step %u is committed in the remote store, and not good: %d: %s", step,
			r, ckpt_last_error());
	for (unsigned i = history.count; i > 0; i--) {
		struct attempt *t = &history.tries[i - 1];
		if (t->step == step && workload_is(d, t->seed)) {
			t->present = true;
			return;
		}
	}
	workload_die("step %u of the remote store holds what nobody has saved", step);
}

static void look_at_steps(struct workload *d)
{
	struct ckpt_catalog *catalog = NULL;

	workload_must(ckpt_catalog_open(d->engine, &catalog));
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		workload_must(ckpt_catalog_step(catalog, i, &info));
		if (info.state == CKPT_STEP_BROKEN)
			workload_die("step %u of the remote store is broken: %s",
				(unsigned)info.step, info.note);
		/* One that was damaged here, and could not be mended, is passed over for good. */
		if (info.state == CKPT_STEP_COMMITTED && info.in_lineage)
			look_at_step(d, (unsigned)info.step);
	}
	ckpt_catalog_free(catalog);
}

/* The remote store by itself, as any other. `all`: what is durable is to be there, too. */
static void look(const struct workload *workload, bool all)
{
	struct workload d = *workload;

	d.opts.remote = NULL;
	d.opts.flags = CKPT_ENGINE_READ_ONLY;
	d.store = remotes_path(workload);
	int r = ckpt_engine_open(d.store, &d.opts, &d.engine);
	if (r < 0 && r != CKPT_ENOSTORE)
		workload_die("the remote store: %d: %s", r, ckpt_last_error());
	if (r == 0) {
		look_at_steps(&d);
		workload_close(&d);
	}
	free(d.store);
	for (unsigned i = 0; i < history.count; i++) {
		const struct attempt *t = &history.tries[i];
		if ((t->there || (all && t->acked)) && !t->free && !t->bad && !t->present)
			workload_die("step %u is not in the remote store", t->step);
	}
}

/* What was damaged here is mended with what is there, and may be asked for again. */
static int restore(struct workload *d)
{
	int r = workload_restore(d, CKPT_STEP_LATEST, true);

	return r == CKPT_EINTEGRITY ? workload_restore(d, CKPT_STEP_LATEST, true) : r;
}

static void go_on(struct workload *d)
{
	const struct attempt *newest = NULL;

	for (unsigned i = 0; i < history.count; i++)
		if (history.tries[i].acked || history.tries[i].there)
			newest = &history.tries[i];
	workload_open(d, 0);
	int r = restore(d);
	if (r == CKPT_ENOSTEP ? newest != NULL : r < 0)
		workload_die("the next start cannot resume: %d: %s", r, ckpt_last_error());
	if (newest && r < (int)newest->step && !newest->bad)
		workload_die(
			"step %u was durable, and the next start resumes from %d", newest->step, r);
	workload_save(d, MORE, MORE);
	workload_must(ckpt_engine_drain_remote(d->engine, WORKLOAD_TIMEOUT_MS));
	workload_close(d);
}

void remotes_aftermath(struct workload *d)
{
	const struct ckpt_engine_opts kept = d->opts;

	read_logs(d);
	look(d, false);
	remotes_settle(d);
	go_on(d);
	read_logs(d);
	look(d, true);
	d->opts = kept;
	workload_aftermath(d);
}
