/* SPDX-License-Identifier: Apache-2.0 */
#include "torture/nodes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "torture/jobs.h"

#define TRIES_MAX 64
#define MORE      900

/* In the order of time, which is that of the lineage. What is of a rank is by its number. */
struct attempt {
	unsigned step;
	unsigned seed;
	bool gone;
	bool acked[JOB_RANKS];
	bool away[JOB_RANKS];
	uint64_t present[JOB_RANKS]; /* in its node's store, of this generation */
};

static struct {
	struct attempt tries[TRIES_MAX];
	unsigned count;
} history;

static const char *const names[] = {"a", "b"};

unsigned nodes_ranks(void)
{
	return torture_trials[torture->scenario].nodes;
}

unsigned nodes_of(unsigned rank)
{
	return rank > 0;
}

char *nodes_store(const struct workload *d, unsigned node)
{
	char *path = NULL;

	if (asprintf(&path, "%s-%s", d->store, names[node]) < 0)
		workload_die("out of memory");
	return path;
}

static void tell(struct workload *d, const char *line, size_t length)
{
	char numbered[100];

	int n = snprintf(numbered, sizeof(numbered), "%u %.*s", d->opts.rank, (int)length, line);
	if (write(d->log, numbered, (size_t)n) != n)
		workload_die("log: %s", strerror(errno));
}

void nodes_settle(struct workload *d, unsigned rank)
{
	d->store = nodes_store(d, nodes_of(rank));
	d->tell = tell;
	d->opts.rank = rank;
	d->opts.node = names[nodes_of(rank)];
	d->opts.node_leader = nodes_of(rank);
}

static void take_line(const char *line)
{
	char verb[16];
	unsigned rank = 0;
	unsigned step = 0;
	unsigned seed = 0;
	int n = sscanf(line, "%u %15s %u %u", &rank, verb, &step, &seed); /* NOLINT(cert-err34-c) */

	if (n < 3 || rank >= JOB_RANKS || history.count == TRIES_MAX - 1)
		workload_die("the log says \"%s\"", line);
	if (strcmp(verb, "try") == 0)
		history.tries[history.count++] = (struct attempt){.step = step, .seed = seed};
	for (unsigned i = 0; i < history.count; i++) {
		struct attempt *t = &history.tries[i];
		if (t->step != step)
			continue;
		t->gone |= strcmp(verb, "gone") == 0;
		t->acked[rank] |= strcmp(verb, "ack") == 0 && t->seed == seed;
		t->away[rank] |= strcmp(verb, "away") == 0;
		if (strcmp(verb, "back") == 0 || strcmp(verb, "away") == 0)
			t->acked[rank] = false;
	}
}

static void read_log(const char *path)
{
	char line[80];
	FILE *f = fopen(path, "re");

	if (!f)
		workload_die("%s: %s", path, strerror(errno));
	while (fgets(line, sizeof(line), f))
		take_line(line);
	(void)fclose(f);
}

static bool any_of(const bool *ranks)
{
	bool any = false;

	for (unsigned i = 0; i < nodes_ranks(); i++)
		any |= ranks[i];
	return any;
}

/* What one rank finds. */

static int restore(struct job_rank *r, uint64_t step)
{
	struct ckpt_restore *handle = NULL;
	int code = ckpt_restore_open(r->workload.engine, step, &handle);

	if (code < 0)
		return code;
	if (job_bind(r, handle) && ckpt_restore_start(handle) == 0)
		code = ckpt_restore_wait(handle, WORKLOAD_TIMEOUT_MS);
	else
		code = ckpt_last_error_record(NULL);
	ckpt_restore_free(handle);
	return code;
}

static struct attempt *away_from(const struct job_rank *r, const struct ckpt_step_info *info)
{
	for (unsigned i = 0; i < history.count; i++)
		if (history.tries[i].step == info->step && history.tries[i].away[r->number])
			return &history.tries[i];
	return NULL;
}

/* A committed step is what one attempt at it wrote, all of this rank's. */
static void look_at_step(struct job_rank *r, const struct ckpt_step_info *info)
{
	struct attempt *away = away_from(r, info);

	if (away) {
		away->present[r->number] = info->generation;
		if (restore(r, away->step) != CKPT_EOTHERNODE)
			workload_die("step %u is gone from node %s, which does not say so: %s",
				away->step, r->workload.opts.node, ckpt_last_error());
		return;
	}
	int code = workload_verify(&r->workload, info->step);
	if (code == 0)
		code = restore(r, info->step);
	if (code < 0)
		workload_die("step %u is committed on node %s, and not good: %d: %s",
			(unsigned)info->step, r->workload.opts.node, code, ckpt_last_error());
	for (unsigned i = 0; i < history.count; i++) {
		struct attempt *t = &history.tries[i];
		if (t->step != info->step || !job_holds(r, t->seed))
			continue;
		t->present[r->number] = info->generation;
		return;
	}
	workload_die("step %u of node %s holds what nobody has saved", (unsigned)info->step,
		r->workload.opts.node);
}

static void look_at_all(struct job_rank *r)
{
	struct ckpt_catalog *catalog = NULL;

	workload_must(ckpt_catalog_open(r->workload.engine, &catalog));
	for (size_t i = 0; i < ckpt_catalog_count(catalog); i++) {
		struct ckpt_step_info info = {.size = sizeof(info)};
		workload_must(ckpt_catalog_step(catalog, i, &info));
		if (info.state == CKPT_STEP_BROKEN && !away_from(r, &info))
			workload_die("step %u of node %s is broken: %s", (unsigned)info.step,
				r->workload.opts.node, info.note);
		if (info.state == CKPT_STEP_COMMITTED && info.in_lineage)
			look_at_step(r, &info);
	}
	ckpt_catalog_free(catalog);
}

/* By one process that reads the store of its node. */
static void look(struct job_rank *r)
{
	struct workload *d = &r->workload;
	const struct ckpt_engine_opts kept = d->opts;

	for (unsigned i = 0; i < history.count; i++)
		history.tries[i].present[r->number] = 0;
	d->opts.rank = d->opts.world = d->opts.node_leader = 0;
	d->opts.flags = CKPT_ENGINE_READ_ONLY;
	d->engine = NULL;
	int code = ckpt_engine_open(d->store, &d->opts, &d->engine);
	if (code < 0 && code != CKPT_ENOSTORE)
		workload_die("open node %s: %d: %s", d->opts.node, code, ckpt_last_error());
	if (d->engine) {
		look_at_all(r);
		workload_close(d);
	}
	d->opts = kept;
	for (unsigned i = 0; i < history.count; i++) {
		const struct attempt *t = &history.tries[i];
		if (t->acked[r->number] && !t->present[r->number])
			workload_die("step %u is durable for rank %u, and is not there", t->step,
				r->number);
		if (t->gone && t->present[r->number])
			workload_die(
				"step %u is over, and is there for rank %u", t->step, r->number);
	}
	(void)job_all(r, true);
}

/* What they find together. */

static size_t read_manifest(
	const struct workload *d, unsigned rank, const struct attempt *t, char *out, size_t size)
{
	char *store = nodes_store(d, nodes_of(rank));
	char path[1300];

	(void)snprintf(path, sizeof(path), "%s/g%06u/step-%010u/manifest.json", store,
		(unsigned)t->present[rank], t->step);
	FILE *f = fopen(path, "re");
	if (!f)
		workload_die("%s: %s", path, strerror(errno));
	size_t length = fread(out, 1, size, f);
	(void)fclose(f);
	free(store);
	return length;
}

/* One manifest for all, to the byte. */
static void compare(const struct workload *d)
{
	char one[16384];
	char two[16384];

	for (unsigned i = 0; i < history.count; i++) {
		const struct attempt *t = &history.tries[i];
		if (!t->present[0] || !t->present[1])
			continue;
		size_t length = read_manifest(d, 0, t, one, sizeof(one));
		if (read_manifest(d, 1, t, two, sizeof(two)) != length ||
			memcmp(one, two, length) != 0)
			workload_die("step %u has two manifests", t->step);
	}
}

/* NULL: there is nothing in any store. */
static const struct attempt *newest(void)
{
	const struct attempt *found = NULL;

	for (unsigned i = 0; i < history.count; i++)
		for (unsigned k = 0; k < nodes_ranks(); k++)
			if (history.tries[i].present[k])
				found = &history.tries[i];
	return found;
}

static void save_more(struct job_rank *r)
{
	if (!job_save(r, MORE, MORE))
		workload_die("the work does not go on: %s", ckpt_last_error());
	job_close(r);
}

/* All that anybody was told is durable is there for all, and the newest of what is there is the latest. */
static void resume(struct job_rank *r)
{
	const struct attempt *latest = newest();
	bool away = latest && any_of(latest->away);
	int expected = !latest ? CKPT_ENOSTEP : away ? CKPT_EOTHERNODE : 0;

	if (!job_open(r))
		workload_die("open to go on: %s", ckpt_last_error());
	for (unsigned i = 0; i < history.count; i++) {
		const struct attempt *t = &history.tries[i];
		if (!any_of(t->acked) || any_of(t->away))
			continue;
		int code = job_restore(r, t->step, t->step, t->seed);
		if (code < 0)
			workload_die(
				"step %u is durable, and the next start cannot restore it: %d: %s",
				t->step, code, ckpt_last_error());
	}
	int code = job_restore(
		r, CKPT_STEP_LATEST, latest ? latest->step : 0, latest ? latest->seed : 0);
	if (code != expected)
		workload_die("the latest is step %u, and restoring it says %d: %s",
			latest ? latest->step : 0, code, ckpt_last_error());
	if (away)
		job_close(r);
	else
		save_more(r);
}

static void begin_anew(struct job_rank *r)
{
	if (!job_open_as(r, CKPT_ENGINE_NODE_STORE | CKPT_ENGINE_NEW_START))
		workload_die("open to begin anew: %s", ckpt_last_error());
	save_more(r);
}

static void run(struct workload *d, const char *session, void (*body)(struct job_rank *r))
{
	job_run(d,
		&(struct job_opts){
			.session = session, .served = true, .timeout_ms = WORKLOAD_TIMEOUT_MS},
		body);
}

/* What was before a new start is not of its lineage. */
static void forget_all(void)
{
	for (unsigned i = 0; i < history.count; i++)
		if (history.tries[i].step != MORE)
			memset(history.tries[i].acked, 0, sizeof(history.tries[i].acked));
}

void nodes_aftermath(struct workload *d)
{
	read_log(d->log_path);
	run(d, "look", look);
	compare(d);
	run(d, "after", resume);
	const struct attempt *latest = newest();
	bool anew = latest && any_of(latest->away);
	if (anew)
		run(d, "anew", begin_anew);
	history.count = 0;
	read_log(d->log_path);
	if (anew)
		forget_all();
	run(d, "look", look);
	compare(d);
}
