/* SPDX-License-Identifier: Apache-2.0 */
/* What becomes of a step that was picked: into memory, or verified. Into another store: restore/sink_export.c. */
#include "engine/restore/sink.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/utf8.h"

void ckpt_sink_begin_rank(struct ckpt_restore *r, uint32_t rank)
{
	r->rank_bad = false;
	r->bad_before = false;
	r->shard = (struct ckpt_shard){.core = r->core,
		.generation = r->pick.chosen.generation,
		.step = r->pick.chosen.step,
		.rank = &r->pick.manifest.ranks[rank],
		.lister = &r->elsewhere.lister,
		.keep_bytes = r->sink == CKPT_SINK_STORE,
		.into = r->sink == CKPT_SINK_STORE ? &r->dest : NULL,
		.stop = &r->stop,
		.err = &r->why,
		.waiter = &r->sink_task};
	ckpt_shard_init(&r->shard);
}

void ckpt_sink_end_rank(struct ckpt_restore *r)
{
	ckpt_shard_read_clear(&r->fetch);
	ckpt_shard_clear(&r->shard);
}

/* What is read of a rank, but for headers that a quick look takes along. */
static uint64_t bytes_of(const struct ckpt_restore *r, const struct ckpt_manifest_rank *rank)
{
	return r->quick ? rank->index_bytes : rank->shard_bytes;
}

void ckpt_sink_count_all(struct ckpt_restore *r)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < r->pick.manifest.world; i++)
		if (ckpt_rankset_has(&r->dest_ranks, i) &&
			!ckpt_shard_location_has(&r->elsewhere, i))
			bytes += bytes_of(r, &r->pick.manifest.ranks[i]);
	atomic_store(&r->bytes_total, bytes);
}

void ckpt_sink_count_header(struct ckpt_restore *r)
{
	/* That of an encoded shard is read and counted like all the rest. */
	if (r->quick)
		atomic_fetch_add(&r->bytes_done, r->shard.rank->index_bytes);
	else if (!r->shard.encoded)
		atomic_fetch_add(&r->bytes_done, r->shard.index->layout->header_bytes);
}

void ckpt_sink_start_elsewhere(struct ckpt_restore *r)
{
	r->elsewhere = (struct ckpt_shard_location){
		.core = r->core, .pick = &r->pick, .err = &r->why, .waiter = &r->sink_task};
	ckpt_shard_location_start(&r->elsewhere);
}

int ckpt_sink_start_catalog(struct ckpt_restore *r)
{
	r->catalog = ckpt_catalog_map_reader_new(r->core, &r->pick, &r->why, &r->sink_task);
	return r->catalog ? 0 : ckpt_fail(&r->why, -ENOMEM, "out of memory");
}

bool ckpt_sink_passed(struct ckpt_restore *r, const struct ckpt_task *part)
{
	r->code = part->result;
	return r->code == 0;
}

/* What the manifest says, and what was found, unless the manifest names the same tensor. */
static void put_differ(struct ckpt_restore *r, const struct ckpt_replica_check *found,
	const char *words, const char *apart)
{
	const char *marked = r->pick.manifest.replicas;
	char name[90];

	(void)snprintf(name, sizeof(name), "'%.60s", found->first[0]);
	if (!*marked)
		(void)snprintf(
			r->differ, sizeof(r->differ), "%.*s%s", *apart ? 190 : 250, words, apart);
	else if (!strstr(marked, name))
		(void)snprintf(r->differ, sizeof(r->differ), "%.120s; and %.120s", marked, words);
	ckpt_utf8_line(r->differ);
}

/*
 * Equal boxes that differ. Nobody can say which of them is right, so the step is good; but somebody meant something
 * else. Of different nodes they may be what each node had of its own, if every node had a store: then only a
 * verification tells it.
 */
static void note_replicas(struct ckpt_restore *r, const struct ckpt_replica_check *found)
{
	const char *apart =
		found->near ? "" : ", on different nodes, each of which may have its own";
	char words[CKPT_REPLICA_CHECK_WORDS];

	if (found->full)
		ckpt_log(r->core->parts.log, CKPT_LOG_WARN,
			"step %llu: not all of what several ranks have written was compared, as it "
			"is too much, or there was no memory for it",
			(unsigned long long)r->pick.chosen.step);
	/* After a cancel the caller may read the words at any time. */
	if (found->differing == 0 || r->stop)
		return;
	ckpt_replica_check_word(found, words, sizeof(words));
	if (found->near || r->sink == CKPT_SINK_NONE)
		put_differ(r, found, words, apart);
	if (r->sink == CKPT_SINK_NONE)
		return;
	ckpt_log(r->core->parts.log, CKPT_LOG_WARN,
		"step %llu: %s%s: readers are given what one of them wrote; what is each rank's "
		"own needs a name of its own",
		(unsigned long long)r->pick.chosen.step, words, apart);
}

/* Into memory. */

static void start_load(struct ckpt_restore *r)
{
	r->load.core = r->core;
	r->load.pick = &r->pick;
	r->load.err = &r->why;
	r->load.counter = &r->bytes_done;
	r->load.total = &r->bytes_total;
	r->load.waiter = &r->sink_task;
	r->load.idle = &r->task;
	ckpt_shard_load_start_open(&r->load);
}

static int memory_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	start_load(r);
	CKPT_AWAIT(task, r->load.task.finished);
	if (r->load.task.result < 0)
		return r->load.task.result;
	note_replicas(r, &r->load.replicas);
	if (r->ranks) {
		ckpt_restore_sync_vote(r);
		/* A failure stops it. */
		CKPT_AWAIT(task, r->stop || ckpt_restore_sync_passed(r));
		if (r->stop)
			return r->stop;
		ckpt_restore_sync_read(r);
	}
	ckpt_core_answer(r->core, &r->latch, CKPT_DONE_OPENED);
	CKPT_AWAIT(task, r->started || r->stop);
	if (r->stop)
		return r->stop;
	ckpt_shard_load_start_fill(&r->load);
	CKPT_AWAIT(task, r->load.task.finished);
	return r->load.task.result;
	CKPT_TASK_END(task);
}

/* Verified. */

int ckpt_sink_note(struct ckpt_restore *restore)
{
	int r = 0;

	restore->rank_bad = true;
	if (!restore->stop) {
		restore->why.step = (int64_t)restore->pick.chosen.step;
		r = ckpt_findings_add(
			&restore->findings, restore->pick.chosen.generation, &restore->why);
	}
	ckpt_error_clear(&restore->why);
	return r;
}

/* What is wrong with a rank is a finding; memory that there is not is a failure. */
static int note_failure(struct ckpt_restore *r, int code)
{
	if (code == -ENOMEM || r->stop)
		return code;
	/* All is well, or the fetch has noted its own. */
	if (r->why.code == 0)
		return 0;
	return ckpt_sink_note(r);
}

static void start_fetch(struct ckpt_restore *r)
{
	const struct ckpt_shard_read_config config = {.core = r->core,
		.layout = r->shard.index->layout,
		.file = &r->shard.file,
		.encoded = r->shard.encoded,
		.generation = r->pick.chosen.generation,
		.step = r->pick.chosen.step,
		.rank = r->shard.rank->rank,
		.findings = &r->findings,
		.stop = &r->stop,
		.err = &r->why,
		.counter = &r->bytes_done,
		.waiter = &r->sink_task};

	ckpt_shard_read_start(&r->fetch, &config);
}

static int note_good(struct ckpt_restore *r)
{
	struct ckpt_error good;

	ckpt_error_clear(&good);
	good.step = (int64_t)r->pick.chosen.step;
	good.rank = (int32_t)r->shard.rank->rank;
	ckpt_name_rank_file(good.file, r->pick.chosen.generation, r->pick.chosen.step,
		r->shard.rank->rank, r->shard.name.form, r->shard.name.attempt);
	return ckpt_findings_add(&r->findings, r->pick.chosen.generation, &good);
}

/* Last of all, so that they take no room from what is wrong. */
static int note_elsewhere(struct ckpt_restore *r)
{
	for (uint32_t i = 0; i < r->pick.manifest.world; i++) {
		struct ckpt_error away;
		char what[64];

		if (!ckpt_shard_location_has(&r->elsewhere, i))
			continue;
		if (ckpt_findings_full(&r->findings))
			return 0;
		ckpt_error_clear(&away);
		(void)snprintf(what, sizeof(what), "rank %u is not verified here", i);
		(void)ckpt_shard_location_fail(&r->elsewhere, i, NULL, what, &away);
		int code = ckpt_findings_add_elsewhere(&r->findings, r->pick.chosen.generation,
			&away, r->pick.manifest.ranks[i].node);
		if (code < 0)
			return code;
	}
	return 0;
}

/* A step is whole without its catalog; one that is there must be good. */
static int note_catalog(struct ckpt_restore *r)
{
	int code = r->catalog->task.result;

	if (code != -ENOENT)
		return note_failure(r, code);
	ckpt_log(r->core->parts.log, CKPT_LOG_WARN,
		"%s: step %llu is whole without it, and readers read the indexes of all %u ranks",
		r->why.message, (unsigned long long)r->pick.chosen.step, r->pick.manifest.world);
	ckpt_error_clear(&r->why);
	return 0;
}

static bool has_catalog(const struct ckpt_restore *r)
{
	return r->catalog && r->catalog->catalog_map;
}

static void compare_work(struct ckpt_job *job)
{
	struct ckpt_restore *r = CKPT_CONTAINER(job, struct ckpt_restore, compare_job);
	struct ckpt_catalog_map_reader *catalog = r->catalog;

	if (has_catalog(r))
		(void)ckpt_catalog_map_compare(
			catalog->catalog_map, r->shard.index, catalog->path, &catalog->job_error);
	if (r->pick.manifest.world > 1)
		ckpt_replica_check_add(&r->replicas, r->rank, r->shard.index->layout);
}

static void compare_back(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_restore *r = CKPT_CONTAINER(job, struct ckpt_restore, compare_job);

	r->compared = true;
	ckpt_task_wake(&r->sink_task);
}

/* What the catalog and other ranks say of what this rank holds: for a worker, as it goes over all tensors. */
static void start_compare(struct ckpt_restore *r)
{
	/* An index that is another rank's is no word about this one. */
	r->compared = r->code < 0 || (!has_catalog(r) && r->pick.manifest.world == 1);
	if (r->compared)
		return;
	r->compare_job = (struct ckpt_job){.work = compare_work, .urgent = true};
	r->compare_job.node.run = compare_back;
	ckpt_env_run(r->core->parts.env, &r->compare_job);
}

/* A catalog that is wrong is so once: its ranks shall not hide what is wrong with others. */
static int take_compare(struct ckpt_restore *r)
{
	if (r->code < 0 || !has_catalog(r) || r->catalog->job_error.code == 0)
		return r->code;
	r->why = r->catalog->job_error;
	ckpt_catalog_map_reader_free(r->catalog);
	r->catalog = NULL;
	return note_failure(r, r->why.code);
}

/* The code for a verification that went to its end. Of what is not here at all nothing can be said. */
static int verdict(struct ckpt_restore *r)
{
	int code = note_elsewhere(r);

	note_replicas(r, &r->replicas);
	if (code < 0)
		return code;
	if (ckpt_shard_location_has_all(&r->elsewhere))
		return ckpt_shard_location_fail(&r->elsewhere, 0, NULL,
			"nothing was verified: no rank of the step has its files here", &r->why);
	ckpt_findings_sort(&r->findings);
	const struct ckpt_error *first = ckpt_findings_first(&r->findings);
	if (!first)
		return 0;
	r->why = *first;
	return first->code;
}

static ckpt_task_fn verify_rank_body;

static int verify_end_rank_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	r->code = note_failure(r, r->code);
	if (r->code == 0 && !r->rank_bad) {
		/* Another file of it was bad. The log says so. */
		ckpt_findings_cut(&r->findings, r->findings_before);
		if (!r->bad_before)
			r->code = note_good(r);
	}
	ckpt_shard_start_shut(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	ckpt_sink_end_rank(r);
	if (r->code < 0)
		return r->code;
	r->rank++;
	return ckpt_findings_full(&r->findings) ? verdict(r)
						: ckpt_task_continue(task, verify_rank_body);
	CKPT_TASK_END(task);
}

/* Whether another file of the rank may be good, where the findings are about this one. Says in `why` what they begin with. */
static bool may_try_other(struct ckpt_restore *r)
{
	size_t first = ckpt_max_u64(r->findings_before, r->findings_first);

	if (!r->rank_bad || r->code < 0 || r->stop || r->findings.count == first ||
		ckpt_findings_full(&r->findings) ||
		!ckpt_shard_is_bad_copy(r->findings.items[first].error.code))
		return false;
	r->why = r->findings.items[first].error;
	return true;
}

/* Whether there is another file. Of several bad ones the findings are those of the first. */
static bool take_other(struct ckpt_restore *r)
{
	if (r->findings_first > r->findings_before)
		ckpt_findings_cut(&r->findings, r->findings_first);
	r->findings_first = r->findings.count;
	if (r->shard.task.result == 0) {
		r->rank_bad = false;
		atomic_fetch_add(&r->bytes_total, atomic_load(&r->bytes_done) - r->done_before);
		return true;
	}
	if (r->shard.task.result == -ENOENT)
		ckpt_error_clear(&r->why);
	else
		r->code = r->shard.task.result;
	return false;
}

/* The file of the rank's shard that is open: its header, and every chunk unless it is to be quick. */
static int verify_shard_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	r->done_before = atomic_load(&r->bytes_done);
	ckpt_shard_start_header(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	/* What follows a bad header may be good or bad: that is to be found, too. */
	ckpt_sink_count_header(r);
	r->code = note_failure(r, r->shard.task.result);
	if (r->code == 0 && !r->quick && !ckpt_findings_full(&r->findings)) {
		start_fetch(r);
		CKPT_AWAIT(task, r->fetch.task.finished);
		r->code = note_failure(r, r->fetch.task.result);
		r->rank_bad = r->rank_bad || r->fetch.noted > 0;
		ckpt_shard_read_clear(&r->fetch);
	}
	if (!may_try_other(r))
		return ckpt_task_continue(task, verify_end_rank_body);
	ckpt_shard_start_other(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	return ckpt_task_continue(task, take_other(r) ? verify_shard_body : verify_end_rank_body);
	CKPT_TASK_END(task);
}

/* One rank after the other: its index, its shard's size, and then the shard. */
static int verify_rank_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	while (r->rank < r->pick.manifest.world && ckpt_shard_location_has(&r->elsewhere, r->rank))
		r->rank++;
	if (r->rank == r->pick.manifest.world)
		return verdict(r);
	ckpt_sink_begin_rank(r, r->rank);
	ckpt_shard_start_index(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	r->code = r->shard.task.result;
	start_compare(r);
	CKPT_AWAIT(task, r->compared);
	r->code = take_compare(r);
	r->findings_before = r->findings.count;
	r->findings_first = 0;
	/* What its shard comes to is told by itself. */
	r->bad_before = r->rank_bad;
	r->rank_bad = false;
	if (r->code < 0)
		return ckpt_task_continue(task, verify_end_rank_body);
	ckpt_shard_start_open(&r->shard);
	CKPT_AWAIT(task, r->shard.task.finished);
	r->code = r->shard.task.result;
	return ckpt_task_continue(task, r->code < 0 ? verify_end_rank_body : verify_shard_body);
	CKPT_TASK_END(task);
}

static int verify_body(struct ckpt_task *task)
{
	struct ckpt_restore *r = ckpt_sink_restore(task);

	CKPT_TASK_BEGIN(task);
	ckpt_sink_start_elsewhere(r);
	CKPT_AWAIT(task, r->elsewhere.task.finished);
	if (!ckpt_sink_passed(r, &r->elsewhere.task) || r->stop)
		return r->stop ? r->stop : r->code;
	ckpt_sink_count_all(r);
	r->replicas.world = r->pick.manifest.world;
	r->replicas.ranks = ckpt_shard_load_nodes(r->core, &r->pick);
	if (r->pick.manifest.catalog_bytes > 0) {
		if (ckpt_sink_start_catalog(r) < 0)
			return -ENOMEM;
		CKPT_AWAIT(task, r->catalog->task.finished);
		r->code = note_catalog(r);
		if (r->code < 0 || r->stop)
			return r->stop ? r->stop : r->code;
	}
	r->rank = 0;
	return ckpt_task_continue(task, verify_rank_body);
	CKPT_TASK_END(task);
}

ckpt_task_fn *ckpt_sink_of(enum ckpt_restore_sink sink)
{
	if (sink == CKPT_SINK_MEMORY)
		return memory_body;
	if (sink == CKPT_SINK_RECODE)
		return ckpt_sink_recode_body;
	return sink == CKPT_SINK_NONE ? verify_body : ckpt_sink_export_body;
}
