/* SPDX-License-Identifier: Apache-2.0 */
/* From the remote store into the local one, by an engine that only reads there. */
#include "engine/runtime/import.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/thread.h"
#include "engine/copy/claims_import.h"
#include "engine/lineage/select_step.h"
#include "engine/restore/restore.h"
#include "engine/runtime/commands.h"
#include "engine/runtime/runtime.h"

/* How many steps, newest first, may turn out to be damaged there. */
#define TRIES_MAX 16

/* Where what is brought goes. */
struct target {
	const char *path;
	bool node; /* it is the store of a node */
	const struct ckpt_restore_near *near;
};

/* What a store holds. */
struct holding {
	struct ckpt_engine *engine; /* open, to be read; NULL: there is no store */
	uint64_t claim;             /* the newest; 0: none */
	uint64_t generation;        /* of the newest step of its lineage; 0: none */
	uint64_t step;
};

/* A step that could not be read this time may be newer than what is chosen without it. */
static int check_unread(struct ckpt_engine *engine, struct ckpt_scan *scan,
	const struct ckpt_scan_step *chosen, struct ckpt_error *err)
{
	for (size_t i = 0; i < scan->step_count && &scan->steps[i] != chosen; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->state == CKPT_STEP_BROKEN && ckpt_select_may_be_good(s) &&
			ckpt_lineage_holds(scan, s->generation, s->step))
			return ckpt_fail(err, s->code,
				"the manifest of step %llu of %s cannot be read: %.600s",
				(unsigned long long)s->step, ckpt_runtime_core(engine)->parts.label,
				s->note);
	}
	return 0;
}

static int take_holding(struct holding *h, struct ckpt_lister *lister, struct ckpt_error *err)
{
	struct ckpt_scan *scan = &lister->scanner.scan;
	const struct ckpt_scan_step *s = ckpt_lineage_choose(scan, CKPT_STEP_LATEST, NULL);

	/* What came before a claim that cannot be read is not known: there may be something. */
	if (!s && lister->mark_result < 0)
		return ckpt_error_copy(&lister->command.error, err);
	h->claim = ckpt_scan_newest_claim(scan);
	h->generation = s ? s->generation : 0;
	h->step = s ? s->step : 0;
	return check_unread(h->engine, scan, s, err);
}

static int read_holding(struct holding *h, struct ckpt_error *err)
{
	struct ckpt_command *command =
		ckpt_runtime_command(h->engine, sizeof(struct ckpt_lister), ckpt_lister_clear, err);

	if (!command)
		return -ENOMEM;
	int r = ckpt_runtime_run(h->engine, command, ckpt_lister_body, err);
	if (r == 0)
		r = take_holding(h, CKPT_CONTAINER(command, struct ckpt_lister, command), err);
	ckpt_command_unref(command);
	return r;
}

/* No store there is an answer. */
static int look(const char *path, const struct ckpt_engine_opts *opts, struct ckpt_error *err,
	struct holding *ret_holding)
{
	struct ckpt_engine_opts reading = *opts;
	struct holding h = {0};

	reading.flags = CKPT_ENGINE_READ_ONLY;
	reading.remote = NULL;
	reading.world = 1;
	reading.rank = 0;
	reading.node_leader = 0;
	reading.session = NULL;
	reading.exchange = NULL;
	int r = ckpt_runtime_open(path, &reading, err, &h.engine);
	if (r == CKPT_ENOSTORE) {
		ckpt_error_clear(err);
		*ret_holding = h;
		return 0;
	}
	if (r == 0)
		r = read_holding(&h, err);
	if (r < 0 && h.engine)
		ckpt_runtime_close(h.engine);
	if (r == 0)
		*ret_holding = h;
	return r;
}

/*
 * Opens a step and lets it go. The code is that of the opening, CKPT_EOTHERNODE if no file of the step is here.
 * Result: whether there was an answer.
 */
static int try_step(struct ckpt_engine *engine, uint64_t step, struct ckpt_error *err,
	int *ret_code, uint64_t *ret_generation)
{
	struct ckpt_restore *restore = NULL;
	struct ckpt_latch *latch;
	uint32_t bits;

	int r = ckpt_restore_new(
		ckpt_runtime_core(engine), engine, step, CKPT_SINK_MEMORY, &restore);
	if (r < 0)
		return ckpt_fail(err, r, "out of memory");
	latch = ckpt_restore_latch(restore);
	ckpt_restore_post_open(restore);
	bits = ckpt_latch_wait(
		latch, CKPT_DONE_OPENED | CKPT_DONE_END, ckpt_runtime_patience_ms(engine));
	if (!(bits & (CKPT_DONE_OPENED | CKPT_DONE_END)))
		r = ckpt_runtime_no_answer(engine, err);
	*ret_code = (bits & CKPT_DONE_END) ? ckpt_restore_failure(restore)->code : 0;
	*ret_generation = ckpt_restore_chosen_generation(restore);
	ckpt_restore_post_cancel(restore);
	ckpt_restore_post_release(restore);
	(void)ckpt_latch_wait(latch, CKPT_DONE_GONE, ckpt_runtime_patience_ms(engine));
	ckpt_restore_unref(restore);
	return r;
}

/*
 * Where every node has a store of its own, that of a node which had nothing is told of the newest step when the job is
 * opened, so that none starts anew; the files are elsewhere. That it has the step is not true then.
 */
static int drop_hollow(struct holding *h, struct ckpt_error *err)
{
	uint64_t generation;
	int code = 0;

	if (h->generation == 0)
		return 0;
	int r = try_step(h->engine, h->step, err, &code, &generation);
	if (r == 0 && code == CKPT_EOTHERNODE)
		h->generation = h->step = 0;
	return r;
}

/*
 * Nodes were lost, and the newest step there is what the others can have. Of what is newer here they may have nothing.
 * False also if nobody knows: then it is asked for.
 */
static bool has_step(const struct holding *here, const struct holding *there)
{
	struct ckpt_error aside = {.size = sizeof(aside)};
	uint64_t generation = 0;
	int code = 0;

	ckpt_error_clear(&aside);
	return try_step(here->engine, there->step, &aside, &code, &generation) == 0 && code == 0 &&
	       generation == there->generation;
}

static bool is_ahead(const struct holding *there, const struct holding *here)
{
	if (there->generation == 0)
		return false;
	if (here->generation == 0 || there->claim != here->claim)
		return here->generation == 0 || there->claim > here->claim;
	return there->generation > here->generation ||
	       (there->generation == here->generation && there->step > here->step);
}

/* The step that is here is not asked for again, whatever is newer there. */
static bool is_same(const struct holding *there, const struct holding *here)
{
	return here->generation > 0 && there->generation == here->generation &&
	       there->step == here->step;
}

/* What is here is as good as what is older there, unless other nodes have lost theirs. */
static bool must_bring(const struct holding *there, const struct holding *here, bool lost_nodes)
{
	if (is_ahead(there, here))
		return !is_same(there, here);
	return lost_nodes && there->generation > 0 && !has_step(here, there);
}

static int set_dest(struct ckpt_restore *restore, const struct target *target,
	struct ckpt_engine *engine, struct ckpt_error *err)
{
	struct ckpt_core_place place;

	int r = ckpt_runtime_dest(engine, target->path, err, &place);
	if (r < 0)
		return r;
	place.claims = true;
	place.node = target->node;
	r = ckpt_restore_set_dest(restore, &place);
	if (r < 0) {
		(void)close(place.root);
		return ckpt_fail(err, r, "out of memory");
	}
	if (target->node && target->near && ckpt_restore_set_near(restore, target->near) < 0)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	return 0;
}

/* One of the steps there, unless it is here already. */
static int export_step(struct ckpt_engine *engine, uint64_t step, const struct target *target,
	struct ckpt_error *err, struct ckpt_import *bring)
{
	struct ckpt_restore *restore = NULL;

	int r = ckpt_restore_new(
		ckpt_runtime_core(engine), engine, step, CKPT_SINK_STORE, &restore);
	if (r < 0)
		return ckpt_fail(err, r, "out of memory");
	r = set_dest(restore, target, engine, err);
	if (r < 0) {
		ckpt_restore_unref(restore);
		return r;
	}
	ckpt_restore_post_open(restore);
	/* It ends: every request has a deadline of its own. */
	(void)ckpt_latch_wait(ckpt_restore_latch(restore), CKPT_DONE_END, -1);
	r = ckpt_restore_failure(restore)->code;
	if (r < 0)
		(void)ckpt_error_copy(ckpt_restore_failure(restore), err);
	bring->generation = ckpt_restore_chosen_generation(restore);
	bring->step = ckpt_restore_chosen_step(restore);
	bring->imported = r == 0 && !ckpt_restore_existed(restore);
	ckpt_restore_counters(restore, &bring->bytes, NULL);
	ckpt_restore_post_release(restore);
	(void)ckpt_latch_wait(ckpt_restore_latch(restore), CKPT_DONE_GONE, -1);
	ckpt_restore_unref(restore);
	return r;
}

/* Without a step: the claims that are there. */
static int bring_claims(
	struct ckpt_engine *engine, const struct target *target, struct ckpt_error *err)
{
	struct ckpt_command *command =
		ckpt_runtime_command(engine, sizeof(struct ckpt_claims_import), NULL, err);

	if (!command)
		return -ENOMEM;
	struct ckpt_claims_import *claims_import =
		CKPT_CONTAINER(command, struct ckpt_claims_import, command);
	int r = ckpt_runtime_dest(engine, target->path, err, &claims_import->place);
	int root = claims_import->place.root;
	if (r == 0) {
		claims_import->place.claims = true;
		claims_import->place.node = target->node;
		r = ckpt_runtime_run(engine, command, ckpt_claims_import_body, err);
		(void)close(root);
	}
	ckpt_command_unref(command);
	return r;
}

/* The newest that verifies. When none does, why the newest does not is told. */
static int export_latest(struct ckpt_engine *engine, const struct target *target, unsigned tries,
	struct ckpt_error *err, struct ckpt_import *bring)
{
	struct ckpt_error why = {.size = sizeof(why)};
	int r = 0;

	for (unsigned back = 0; back < tries; back++) {
		struct ckpt_error *words = back == 0 ? err : &why;

		ckpt_error_clear(words);
		r = export_step(engine, CKPT_STEP_BACK(back), target, words, bring);
		/* A step of that name is here, and is not good: its opening says what is wrong with it. */
		if (r == -EEXIST) {
			ckpt_error_clear(err);
			return 0;
		}
		if (!ckpt_code_is_damage(r))
			break;
	}
	if (r == CKPT_ENOSTEP)
		return err->code;
	if (r < 0 && err->code != r)
		*err = why;
	return r;
}

/*
 * With what is here; not where somebody has to decide. Where nodes were lost, a node that goes on without the step there
 * has it given up for all: only if it is known not to be good.
 */
static bool may_go_on(const struct holding *here, int code, bool lost_nodes)
{
	if (here->generation == 0 || code == CKPT_EMISMATCH || code == CKPT_EINUSE)
		return false;
	return !lost_nodes || ckpt_code_is_damage(code);
}

int ckpt_runtime_import(const char *path, const struct ckpt_engine_opts *opts,
	const struct ckpt_restore_near *near, struct ckpt_error *err, struct ckpt_import *ret_bring)
{
	const struct target target = {
		.path = path, .node = (opts->flags & CKPT_ENGINE_NODE_STORE) != 0, .near = near};
	bool lost_nodes = (opts->flags & CKPT_ENGINE_LOST_NODES) != 0;
	uint64_t start_ns = ckpt_clock_ns();
	struct holding here = {0};
	struct holding there = {0};

	*ret_bring = (struct ckpt_import){0};
	ckpt_error_clear(&ret_bring->trouble);
	/* What is wrong with the local store is for its opening to say. */
	int r = look(path, opts, err, &here);
	if (r < 0) {
		ckpt_error_clear(err);
		return 0;
	}
	if (target.node)
		r = drop_hollow(&here, err);
	if (r < 0) {
		if (here.engine)
			ckpt_runtime_close(here.engine);
		/* Nobody knows whether it has the newest step. */
		if (lost_nodes)
			return r;
		ckpt_error_clear(err);
		return 0;
	}
	r = look(opts->remote, opts, err, &there);
	bool brings = r == 0 && must_bring(&there, &here, lost_nodes);
	if (here.engine)
		ckpt_runtime_close(here.engine);
	if (brings)
		r = export_latest(there.engine, &target,
			here.generation && !lost_nodes ? 1 : TRIES_MAX, err, ret_bring);
	else if (r == 0 && there.claim > here.claim)
		r = bring_claims(there.engine, &target, err);
	if (r < 0 && may_go_on(&here, r, lost_nodes)) {
		(void)ckpt_error_copy(err, &ret_bring->trouble);
		ckpt_error_clear(err);
		r = 0;
	}
	if (there.engine)
		ckpt_runtime_close(there.engine);
	ret_bring->took_ns = ckpt_clock_ns() - start_ns;
	return r;
}

static void log_import(
	const struct ckpt_import *bring, struct ckpt_log *log, const char *path, const char *remote)
{
	double seconds = (double)bring->took_ns / 1e9;
	double mib = (double)bring->bytes / (1 << 20);

	if (bring->trouble.code < 0)
		ckpt_log(log, CKPT_LOG_WARN,
			"%s cannot be asked whether it has newer steps than %s, which goes on from "
			"its own: %.700s",
			remote, path, bring->trouble.message);
	if (bring->imported)
		ckpt_log(log, CKPT_LOG_WARN,
			"step %llu of generation %llu was brought from %s into %s: %.1f MiB in "
			"%.3f s",
			(unsigned long long)bring->step, (unsigned long long)bring->generation,
			remote, path, mib, seconds);
}

/* Many ranks are to agree on who does it, and when: that is their program's. */
static bool brings(const struct ckpt_engine_opts *opts)
{
	return opts->remote && opts->world <= 1 &&
	       !(opts->flags &
		       (CKPT_ENGINE_READ_ONLY | CKPT_ENGINE_NEW_START | CKPT_ENGINE_NO_IMPORT));
}

int ckpt_import_open(const char *path, const struct ckpt_engine_opts *opts, struct ckpt_error *err,
	struct ckpt_engine **ret_engine)
{
	struct ckpt_import import = {0};
	int r = brings(opts) ? ckpt_runtime_import(path, opts, NULL, err, &import) : 0;

	if (r == 0)
		r = ckpt_runtime_open(path, opts, err, ret_engine);
	if (r == 0)
		log_import(&import, ckpt_runtime_log(*ret_engine), path, opts->remote);
	return r;
}
