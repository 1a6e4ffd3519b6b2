/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what the ranks have described, as a reader of the step will. */
#include "engine/save/rank_schema.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/utf8.h"
#include "engine/lineage/lineage.h"
#include "engine/save/catalog_writer.h"
#include "engine/save/commit.h"
#include "engine/save/rank_schema_survey.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "engine/shard/load.h"
#include "format/sealed.h"

/* One of two texts that a manifest says, with the end. */
#define HALF_MAX 125

struct ckpt_rank_schema {
	struct ckpt_select pick; /* what the manifest is going to say */
	bool again;              /* they agree: only what several ranks write is compared */
	/* One of these two looks; what follows them is that one's. */
	struct ckpt_shard_load load;
	struct ckpt_schema_survey survey;
	const struct ckpt_task *task;
	const struct ckpt_shard_location *elsewhere;
	void (*halt)(struct ckpt_rank_schema *a, int code);
	struct ckpt_catalog_writer catalog_writer;
	struct ckpt_error err;
};

static struct ckpt_save *save_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_save, task);
}

bool ckpt_save_agreed(const struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;

	return core->saver->agreed &&
	       memcmp(core->saver->agreed, save->ranks->plans,
		       core->config.world * sizeof(*core->saver->agreed)) == 0;
}

/*
 * Whether what they describe is to be put into a catalog, which has not been tried in this generation. Where every
 * node has a store of its own nobody has all indexes.
 */
static bool lacks_catalog(const struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;

	return !core->config.node_store &&
	       core->saver->catalog.generation != core->lineage->generation;
}

static uint64_t bytes_at_once(const struct ckpt_save *save)
{
	uint64_t bytes = save->core->config.agree_bytes;

	return bytes ? bytes : CKPT_RANK_SCHEMA_BYTES_MAX;
}

/* Where every node has a store of its own, only what ranks of this node have written is read here. */
static bool is_here(const struct ckpt_save *save, const struct ckpt_manifest_rank *rank)
{
	const struct ckpt_core_config *config = &save->core->config;

	return !config->node_store || strcmp(rank->node, config->node) == 0;
}

static bool is_large(const struct ckpt_save *save)
{
	uint64_t bytes = 0;

	/* Each is bounded by the decoder of the records, and the world as well. */
	for (uint32_t i = 0; i < save->core->config.world; i++)
		if (is_here(save, &save->ranks->all[i]))
			bytes += save->ranks->all[i].index_bytes;
	return bytes > bytes_at_once(save);
}

static bool must_look(const struct ckpt_save *save)
{
	return !ckpt_save_agreed(save) || lacks_catalog(save);
}

static void say_unknown(const struct ckpt_save *save, const char *more, const char *why)
{
	char words[128];

	/* Of what is looked at for the first time it is not known that several ranks have any of it. */
	if (!must_look(save)) {
		(void)snprintf(words, sizeof(words),
			"what several ranks have written at step %llu could not be read",
			(unsigned long long)save->step);
		(void)ckpt_core_note_boxes(save->core, words);
	}
	ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
		"step %llu: whether %s was not looked at%s: %.800s", (unsigned long long)save->step,
		must_look(save) ? "all ranks mean the same tensors by the same names"
				: "ranks hold the same bytes of what several of them write",
		more, why);
}

static void halt_load(struct ckpt_rank_schema *a, int code)
{
	ckpt_shard_load_stop(&a->load, code);
}

static void start_load(struct ckpt_save *save)
{
	struct ckpt_rank_schema *a = save->ranks->agree;

	a->task = &a->load.task;
	a->elsewhere = &a->load.elsewhere;
	a->halt = halt_load;
	a->load.core = save->core;
	a->load.pick = &a->pick;
	a->load.commits = true;
	a->load.err = &a->err;
	a->load.waiter = &save->task;
	ckpt_shard_load_start_open(&a->load);
}

/* Half of the time that the save has left: the step may be good, whether this is found out or not. */
static uint64_t survey_until(const struct ckpt_save *save)
{
	uint64_t now = ckpt_env_now(save->core->parts.env);
	uint64_t end = save->start_ns + save->timeout_ns - ckpt_save_margin_ns(save);

	return now < end ? now + (end - now) / 2 : now;
}

static void halt_survey(struct ckpt_rank_schema *a, int code)
{
	ckpt_schema_survey_stop(&a->survey, code);
}

static void start_survey(struct ckpt_save *save)
{
	struct ckpt_rank_schema *a = save->ranks->agree;

	a->task = &a->survey.task;
	a->elsewhere = &a->survey.elsewhere;
	a->halt = halt_survey;
	a->survey = (struct ckpt_schema_survey){.core = save->core,
		.pick = &a->pick,
		.window = bytes_at_once(save) / 4,
		.until_ns = survey_until(save),
		.only = a->again ? save->core->saver->shared : NULL,
		.err = &a->err,
		.waiter = &save->task};
	ckpt_schema_survey_start(&a->survey);
}

/* False: it is not to be found out. */
static bool start(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;

	ckpt_rank_schema_free(x->agree);
	x->agree = ckpt_alloc(sizeof(*x->agree));
	if (!x->agree) {
		say_unknown(save, "", "out of memory");
		return false;
	}
	struct ckpt_rank_schema *a = x->agree;
	ckpt_error_clear(&a->err);
	a->pick.chosen.generation = save->core->lineage->generation;
	a->pick.chosen.step = save->step;
	a->pick.manifest.world = save->core->config.world;
	a->pick.manifest.ranks = x->all;
	a->again = !must_look(save);
	if (a->again || is_large(save))
		start_survey(save);
	else
		start_load(save);
	return true;
}

static bool is_over(const struct ckpt_save *save)
{
	struct ckpt_rank_schema *a = save->ranks->agree;

	if (save->code)
		a->halt(a, save->code);
	return a->task->finished;
}

/* What several ranks have, and where it is to be found out. */
static struct ckpt_replica_check *replicas_of(struct ckpt_rank_schema *a)
{
	return a->task == &a->survey.task ? &a->survey.replicas : &a->load.replicas;
}

/*
 * They need not be looked at again, until one of them changes; but for those that write the same boxes, which become
 * different without that.
 */
static void remember(const struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	struct ckpt_replica_check *found = replicas_of(save->ranks->agree);

	ckpt_free(core->saver->shared);
	core->saver->shared = found->held;
	found->held = NULL;
	if (!core->saver->agreed)
		core->saver->agreed =
			ckpt_alloc_array(core->config.world, sizeof(*core->saver->agreed));
	/* Without memory it is looked at again. */
	if (core->saver->agreed)
		memcpy(core->saver->agreed, save->ranks->plans,
			core->config.world * sizeof(*core->saver->agreed));
	core->saver->catalog = (struct ckpt_saver_catalog){0};
}

/* What is too large, or takes too long, is so at every step; memory may be there at the next one. */
static bool is_hopeless(int code)
{
	return code == -E2BIG || code == -ETIME;
}

/* Nobody knows whether they agree, and it is not asked again before they describe something else. */
static void forgo(const struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;

	remember(save);
	core->saver->catalog.generation = core->lineage->generation;
	ckpt_free(core->saver->shared);
	core->saver->shared = NULL;
}

static bool is_unreadable(int code)
{
	return code == CKPT_EFORMAT || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE;
}

static void say_not_compared(const struct ckpt_save *save, const struct ckpt_replica_check *found)
{
	char words[160];

	ckpt_replica_check_word_unknown(found, words, sizeof(words));
	if (!ckpt_core_note_boxes(save->core, words))
		return;
	ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
		"step %llu: several ranks write the same part of a tensor, and whether it is the "
		"same on them is not found out: %s. Readers are given what one of them wrote. If "
		"it is each rank's "
		"own, or of its stage of a pipeline, give it a name of its own; if it is the same, "
		"put it on one mesh of all these ranks, so that one of them writes it, or (in C) "
		"mark "
		"it CKPT_TENSOR_SHARED",
		(unsigned long long)save->step, words);
}

static void say_many(const struct ckpt_save *save)
{
	if (ckpt_core_note_unchecked(save->core, CKPT_UNCHECKED_MANY))
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"step %llu: whether several ranks write the same part of a tensor, and not "
			"the same bytes of it, was not found out for all that they write, as it is "
			"too much, or there was no memory for it",
			(unsigned long long)save->step);
}

/* A text that is too long ends behind a word, so that no name is cut. */
static void put_short(char out[HALF_MAX], const char *text)
{
	if (snprintf(out, HALF_MAX, "%s", text) < (int)HALF_MAX)
		return;
	out[HALF_MAX - sizeof("...")] = 0;
	char *space = strrchr(out, ' ');
	memcpy(space ? space : out, "...", sizeof("..."));
}

/* It is committed all the same, and what was found of replicas stands beside it. */
static void tolerate(const struct ckpt_save *save, const char *words)
{
	struct ckpt_save_commit *x = save->ranks;
	char before[CKPT_DIFFER_MAX];
	char one[HALF_MAX];
	char other[HALF_MAX];

	(void)snprintf(before, sizeof(before), "%s", x->differ);
	if (!*before) {
		(void)snprintf(x->differ, CKPT_DIFFER_MAX, "%s", words);
		return;
	}
	/* There may be no room for all of both. */
	ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
		"step %llu: %s, and one rank saves it for all; %s, and each of them saves its own",
		(unsigned long long)save->step, before, words);
	if (snprintf(x->differ, CKPT_DIFFER_MAX, "%s; and %s", before, words) >=
		(int)CKPT_DIFFER_MAX) {
		put_short(one, before);
		put_short(other, words);
		(void)snprintf(x->differ, CKPT_DIFFER_MAX, "%s; and %s", one, other);
	}
}

/* What tells a state that was never alike from one that has become different. */
static void word_before(const struct ckpt_save *save, char *out, size_t size)
{
	*out = 0;
	if (save->ranks->agree->again)
		(void)snprintf(out, size,
			" (they were alike at step %llu: one may have a memory that fails, or "
			"computes "
			"in another order)",
			(unsigned long long)save->core->saver->shared_step);
}

/* Equal boxes of several ranks must hold the same: a reader is given what one of them wrote. */
static int judge(struct ckpt_save *save)
{
	const struct ckpt_replica_check *found = replicas_of(save->ranks->agree);
	struct ckpt_core *core = save->core;
	char words[CKPT_REPLICA_CHECK_WORDS];
	char before[160];

	if (found->unknown > 0)
		say_not_compared(save, found);
	if (found->full)
		say_many(save);
	if (found->differing == 0) {
		core->saver->shared_step = save->step;
		return 0;
	}
	ckpt_replica_check_word(found, words, sizeof(words));
	if (core->config.tolerant) {
		tolerate(save, words);
		return 0;
	}
	word_before(save, before, sizeof(before));
	return ckpt_fail_at(&save->work, CKPT_EREPLICA,
		&(struct ckpt_where){.tier = "memory", .tensor = ckpt_replica_check_name(found)},
		"step %llu is of no rank: %s, and each of them saves its own under that name%s; "
		"give what is different other names (stages of a pipeline those of the whole "
		"model), say what is each rank's own (in Python: per_rank=), or have the step "
		"committed with a warning (replicas=\"warn\")",
		(unsigned long long)save->step, words, before);
}

/* What they have come to. A step that cannot be read is none; one that was not looked at may be good. */
static int take(struct ckpt_save *save)
{
	const struct ckpt_rank_schema *a = save->ranks->agree;
	int r = a->task->result;

	if (save->code)
		return save->code;
	if (is_unreadable(r))
		return ckpt_fail_at(&save->work, r == CKPT_EFORMAT ? CKPT_EMISMATCH : r,
			&(struct ckpt_where){.tier = "local",
				.tensor = a->err.tensor[0] ? a->err.tensor : NULL,
				.file = a->err.file[0] ? a->err.file : NULL},
			"step %llu is of no rank, as nobody could read it: %.800s",
			(unsigned long long)save->step, a->err.message);
	if (r < 0) {
		/* What is compared at every save is so at the next one, too. */
		bool hopeless = is_hopeless(r) && !a->again;
		say_unknown(save,
			hopeless ? ", nor is it at later ones that are described alike" : "",
			a->err.code ? a->err.message : ckpt_code_text(r));
		if (hopeless)
			forgo(save);
		return 0;
	}
	r = judge(save);
	if (r < 0 || a->again)
		return r;
	remember(save);
	ckpt_log(save->core->parts.log, CKPT_LOG_DEBUG,
		"step %llu: all ranks %smean the same tensors by the same names",
		(unsigned long long)save->step,
		save->core->config.node_store ? "of this node " : "");
	return 0;
}

/* Files are not there: their rank has given up, and then the register says why. */
static int missing_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_name_manifest(save->path, save->core->lineage->generation, save->step);
	save->op.err = NULL;
	ckpt_store_get(save->core->store, &save->op, save->path, CKPT_SEALED_MAX);
	CKPT_AWAIT(task, save->op.done);
	ckpt_free(save->op.data);
	save->op.data = NULL;
	save->op.err = &save->work;
	if (save->op.result == 0 && !save->code)
		return ckpt_task_continue(task, ckpt_save_resolve_body);
	ckpt_save_stop(save, CKPT_EINCOMPLETE);
	return ckpt_task_continue(task, ckpt_save_end_body);
	CKPT_TASK_END(task);
}

/* They agree, and all indexes are here. */
static bool has_all(const struct ckpt_save *save)
{
	const struct ckpt_rank_schema *a = save->ranks->agree;

	return a->task->result == 0 && a->elsewhere->count == 0 && ckpt_save_agreed(save);
}

static void start_catalog_writer(struct ckpt_save *save)
{
	struct ckpt_rank_schema *a = save->ranks->agree;

	a->catalog_writer = (struct ckpt_catalog_writer){.core = save->core,
		.indexes = (const struct ckpt_index *const *)a->load.indexes,
		.builder = a->survey.builder,
		.waiter = &save->task};
	ckpt_catalog_writer_start(&a->catalog_writer);
}

static int catalog_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);

	CKPT_TASK_BEGIN(task);
	start_catalog_writer(save);
	CKPT_AWAIT(task, save->ranks->agree->catalog_writer.task.finished);
	ckpt_rank_schema_free(save->ranks->agree);
	save->ranks->agree = NULL;
	return ckpt_task_continue(task, ckpt_save_gate_body);
	CKPT_TASK_END(task);
}

int ckpt_save_rank_schema_body(struct ckpt_task *task)
{
	struct ckpt_save *save = save_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if ((!must_look(save) && !save->core->saver->shared) || !start(save))
		return ckpt_task_continue(task, ckpt_save_gate_body);
	CKPT_AWAIT(task, is_over(save));
	r = take(save);
	if (r == 0 && has_all(save) && lacks_catalog(save))
		return ckpt_task_continue(task, catalog_body);
	ckpt_rank_schema_free(save->ranks->agree);
	save->ranks->agree = NULL;
	if (r == CKPT_EINCOMPLETE)
		return ckpt_task_continue(task, missing_body);
	if (r < 0) {
		ckpt_save_doubt_alike(save, r);
		ckpt_save_stop(save, r);
		return ckpt_task_continue(task, ckpt_save_end_body);
	}
	return ckpt_task_continue(task, ckpt_save_gate_body);
	CKPT_TASK_END(task);
}

void ckpt_rank_schema_free(struct ckpt_rank_schema *agree)
{
	if (!agree)
		return;
	/* Before the manifest's ranks, which are the save's. */
	ckpt_shard_load_clear(&agree->load);
	ckpt_schema_survey_clear(&agree->survey);
	ckpt_catalog_writer_clear(&agree->catalog_writer);
	ckpt_free(agree);
}
