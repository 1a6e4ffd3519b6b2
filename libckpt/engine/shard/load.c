/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranks' files, a few at a time. */
#include "engine/shard/load.h"

#include <errno.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"

static struct ckpt_shard_load_way *way_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_shard_load_way, task);
}

static uint32_t world_of(const struct ckpt_shard_load *g)
{
	return g->pick->manifest.world;
}

/* One rank's files. */

static void start_shard(struct ckpt_shard_load_way *w)
{
	struct ckpt_shard_load *g = w->load;

	w->shard = (struct ckpt_shard){.core = g->core,
		.generation = g->pick->chosen.generation,
		.step = g->pick->chosen.step,
		.rank = &g->pick->manifest.ranks[w->rank],
		.lister = &g->elsewhere.lister,
		.stop = &g->stop,
		.err = &w->err,
		.waiter = &w->task};
	ckpt_shard_init(&w->shard);
}

static int index_body(struct ckpt_task *task)
{
	struct ckpt_shard_load_way *w = way_of(task);

	CKPT_TASK_BEGIN(task);
	start_shard(w);
	ckpt_shard_start_index(&w->shard);
	CKPT_AWAIT(task, w->shard.task.finished);
	w->code = w->shard.task.result;
	if (w->code == 0) {
		CKPT_ASSERT(!w->load->indexes[w->rank]);
		w->load->indexes[w->rank] = w->shard.index;
		w->shard.index = NULL;
	}
	ckpt_shard_clear(&w->shard);
	return w->code;
	CKPT_TASK_END(task);
}

/* Whether other ranks on this node read some of the same, and the disk would be asked twice. */
static bool is_shared(const struct ckpt_shard_load_way *w)
{
	const uint64_t *shared = w->load->wanted[w->rank].shared;
	size_t words = w->shard.index->layout->chunk_count / 64 + 1;

	if (!w->load->core->config.sharing || !w->shard.file.direct)
		return false;
	for (size_t i = 0; i < words; i++)
		if (shared[i] != 0)
			return true;
	return false;
}

static void start_fetch(struct ckpt_shard_load_way *w)
{
	struct ckpt_shard_load *g = w->load;
	struct ckpt_shard_read_config config = {.core = g->core,
		.layout = w->shard.index->layout,
		.file = &w->shard.file,
		.encoded = w->shard.encoded,
		.cached = w->shard.cached.fd >= 0 ? &w->shard.cached : NULL,
		.generation = g->pick->chosen.generation,
		.step = g->pick->chosen.step,
		.rank = w->rank,
		.targets = &g->wanted[w->rank],
		.stop = &g->stop,
		.err = &w->err,
		.counter = g->counter,
		.waiter = &w->task,
		.idle = g->idle};

	ckpt_shard_read_start(&w->fetch, &config);
}

/* What was read of a file that is no good is read once more. */
static void start_over(struct ckpt_shard_load_way *w)
{
	struct ckpt_shard_load *g = w->load;

	g->sum += w->fetch.counted;
	g->recount = true;
	atomic_fetch_add(g->total, w->fetch.counted);
	ckpt_targets_rewind(&g->wanted[w->rank]);
}

static int shard_body(struct ckpt_task *task)
{
	struct ckpt_shard_load_way *w = way_of(task);

	CKPT_TASK_BEGIN(task);
	start_shard(w);
	w->shard.index = w->load->indexes[w->rank];
	ckpt_shard_start_open(&w->shard);
	CKPT_AWAIT(task, w->shard.task.finished);
	w->code = w->shard.task.result;
	while (w->code == 0) {
		if (is_shared(w)) {
			ckpt_shard_start_share(&w->shard);
			CKPT_AWAIT(task, w->shard.task.finished);
		}
		start_fetch(w);
		CKPT_AWAIT(task, w->fetch.task.finished);
		w->code = w->fetch.task.result;
		if (!ckpt_shard_is_bad_copy(w->code) || w->load->stop) {
			ckpt_shard_read_clear(&w->fetch);
			break;
		}
		start_over(w);
		ckpt_shard_read_clear(&w->fetch);
		ckpt_shard_start_other(&w->shard);
		CKPT_AWAIT(task, w->shard.task.finished);
		/* Of several files that are bad the code is that of the one that is told. */
		w->code = w->shard.task.result == -ENOENT ? w->err.code : w->shard.task.result;
	}
	ckpt_shard_start_shut(&w->shard);
	CKPT_AWAIT(task, w->shard.task.finished);
	w->shard.index = NULL;
	ckpt_shard_clear(&w->shard);
	return w->code;
	CKPT_TASK_END(task);
}

/* All of them. */

static void way_done(struct ckpt_task *task)
{
	ckpt_task_wake(&way_of(task)->load->task);
}

static void start_way(struct ckpt_shard_load *g, struct ckpt_shard_load_way *w, uint32_t rank)
{
	w->load = g;
	w->busy = true;
	w->rank = rank;
	ckpt_error_clear(&w->err);
	ckpt_task_start(&w->task, &g->core->sched, g->way_body, way_done);
}

/* What a rank's shard cannot give is asked of others. -ENOMEM, -ENODATA. */
static int find_spares(struct ckpt_shard_load *g, uint32_t rank)
{
	if (!g->lost)
		g->lost = ckpt_alloc_array(world_of(g), sizeof(*g->lost));
	if (!g->again)
		g->again = ckpt_alloc_array(world_of(g), sizeof(*g->again));
	if (!g->lost || !g->again)
		return -ENOMEM;
	struct ckpt_fallback spare = {.tensor_map = g->tensor_map,
		.indexes = (const struct ckpt_index *const *)g->indexes,
		.lost = g->lost,
		.again = g->again};
	g->lost[rank] = true;
	return ckpt_fallback_move(&spare, rank, &g->wanted[rank]);
}

/* A copy that is not good is not the end, as long as another rank has one. */
static int take_failure(struct ckpt_shard_load *g, struct ckpt_shard_load_way *w)
{
	int code = w->task.result;

	if (g->way_body != shard_body || g->stop || world_of(g) == 1 ||
		!ckpt_shard_is_bad_copy(code))
		return code;
	int r = find_spares(g, w->rank);
	if (r == 0)
		ckpt_log(g->core->parts.log, CKPT_LOG_WARN,
			"%.900s; other ranks have the same, and their copies are read instead",
			w->err.message);
	if (r != -ENOMEM)
		return r == 0 ? 0 : code;
	ckpt_error_clear(&w->err);
	return ckpt_fail(
		&w->err, -ENOMEM, "out of memory for other copies of what rank %u holds", w->rank);
}

static void stop_ways(struct ckpt_shard_load *g, int code)
{
	if (!g->stop)
		g->stop = code;
	for (unsigned i = 0; i < g->way_count; i++)
		ckpt_task_wake(&g->ways[i].fetch.task);
	ckpt_task_wake(&g->task);
}

/* What a way has come to. One that gave up because another failed has nothing to tell. */
static void take_way(struct ckpt_shard_load *g, struct ckpt_shard_load_way *w)
{
	w->busy = false;
	if (w->task.result == 0 || (g->stop && (w->err.code == 0 || w->task.result == -ECANCELED)))
		return;
	int code = take_failure(g, w);
	if (code == 0)
		return;
	if (g->code == 0 || w->rank < g->code_rank) {
		g->code = code;
		g->code_rank = w->rank;
		*g->err = w->err;
	}
	stop_ways(g, g->code);
	/* What the other ways ask a server for is of no use any more. */
	ckpt_core_give_up(g->core);
}

/* Whether anything of a shard is wanted. That of a step of one rank is opened in any case. */
static bool is_wanted(const struct ckpt_shard_load *g, uint32_t rank)
{
	return world_of(g) == 1 || g->wanted[rank].count > 0;
}

/* Whether the ways have something to do for a rank. */
static bool is_due(const struct ckpt_shard_load *g, uint32_t rank)
{
	if (g->way_body == shard_body)
		return is_wanted(g, rank);
	return !g->indexes[rank] && !ckpt_shard_location_has(&g->elsewhere, rank) &&
	       (!g->catalog_map || g->wide || g->binder.ranks[rank].count > 0);
}

/* Goes on with as many ranks as there are ways for. True: all have ended. */
bool ckpt_shard_load_pump(struct ckpt_shard_load *g)
{
	bool busy = false;

	for (unsigned i = 0; i < g->way_count; i++)
		if (g->ways[i].busy && g->ways[i].task.finished)
			take_way(g, &g->ways[i]);
	for (unsigned i = 0; i < g->way_count; i++) {
		struct ckpt_shard_load_way *w = &g->ways[i];

		while (g->next < world_of(g) && !is_due(g, g->next))
			g->next++;
		if (!w->busy && !g->stop && g->next < world_of(g))
			start_way(g, w, g->next++);
		busy = busy || w->busy;
	}
	return !busy;
}

static int start_ways(struct ckpt_shard_load *g, ckpt_task_fn *body, unsigned most)
{
	g->way_body = body;
	g->next = 0;
	g->way_count = (unsigned)ckpt_min_u64(world_of(g), most);
	g->ways = ckpt_alloc_array(g->way_count, sizeof(*g->ways));
	if (!g->ways)
		g->way_count = 0;
	return g->ways ? 0 : ckpt_fail(g->err, -ENOMEM, "out of memory");
}

int ckpt_shard_load_start_indexes(struct ckpt_shard_load *load)
{
	return start_ways(load, index_body, CKPT_SHARD_LOAD_INDEXES);
}

int ckpt_shard_load_end_ways(struct ckpt_shard_load *load)
{
	ckpt_free(load->ways);
	load->ways = NULL;
	load->way_count = 0;
	return load->code ? load->code : load->stop;
}

/* Opening. */

const struct ckpt_manifest_rank *ckpt_shard_load_nodes(
	const struct ckpt_core *core, const struct ckpt_select *pick)
{
	/* A bucket is shared in any case, also by nodes that have stores of their own. */
	return core->parts.root >= 0 && core->lineage->marker.shared ? NULL : pick->manifest.ranks;
}

static void compare_replicas(struct ckpt_shard_load *g)
{
	const struct ckpt_index *const *indexes = (const struct ckpt_index *const *)g->indexes;
	struct ckpt_replica_check *r = &g->replicas;

	r->world = world_of(g);
	r->most = g->core->config.agree_boxes;
	r->ranks = ckpt_shard_load_nodes(g->core, g->pick);
	if (!g->commits) {
		ckpt_replica_check_compare(r, g->tensor_map, indexes);
		return;
	}
	for (uint32_t i = 0; i < world_of(g); i++)
		if (g->indexes[i])
			ckpt_replica_check_add(r, i, g->indexes[i]->layout);
	ckpt_replica_check_end(r);
}

static void unite_work(struct ckpt_job *job)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(job, struct ckpt_shard_load, job.job);

	const struct ckpt_index *const *indexes = (const struct ckpt_index *const *)g->indexes;

	g->job.result = ckpt_tensor_map_build(indexes, world_of(g), &g->job.error, &g->tensor_map);
	if (g->job.result == 0 && world_of(g) > 1 && ckpt_tensor_map_overlap(g->tensor_map))
		compare_replicas(g);
}

/* What is to be put together of many ranks is for a worker. */
static void start_unite(struct ckpt_shard_load *g)
{
	const struct ckpt_index *const *indexes = (const struct ckpt_index *const *)g->indexes;

	if (!ckpt_tensor_map_are_plain(indexes, world_of(g))) {
		ckpt_task_job_start(&g->job, g->core->parts.env, &g->task, unite_work);
		return;
	}
	ckpt_error_clear(&g->job.error);
	unite_work(&g->job.job);
	g->job.done = true;
}

static void start_elsewhere(struct ckpt_shard_load *g)
{
	g->elsewhere = (struct ckpt_shard_location){
		.core = g->core, .pick = g->pick, .err = g->err, .waiter = &g->task};
	ckpt_shard_location_start(&g->elsewhere);
}

static int take_elsewhere(const struct ckpt_shard_load *g)
{
	if (g->elsewhere.task.result < 0 || g->stop)
		return g->stop ? g->stop : g->elsewhere.task.result;
	if (!ckpt_shard_location_has_all(&g->elsewhere))
		return 0;
	return ckpt_shard_location_fail(
		&g->elsewhere, 0, NULL, "no rank of the step has its files here", g->err);
}

int ckpt_shard_load_open_all_body(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(task, struct ckpt_shard_load, task);

	int r;

	CKPT_TASK_BEGIN(task);
	r = ckpt_shard_load_start_indexes(g);
	if (r < 0)
		return r;
	CKPT_AWAIT(task, ckpt_shard_load_pump(g));
	r = ckpt_shard_load_end_ways(g);
	if (r < 0)
		return r;
	start_unite(g);
	CKPT_AWAIT(task, g->job.done);
	r = ckpt_task_job_take(&g->job, g->err);
	if (r < 0)
		return r;
	g->names = g->tensor_map->names;
	if (ckpt_target_binder_init(&g->binder, g->tensor_map, world_of(g)) < 0)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	g->binder.elsewhere = &g->elsewhere;
	return g->stop;
	CKPT_TASK_END(task);
}

static int open_body(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(task, struct ckpt_shard_load, task);

	int r;

	CKPT_TASK_BEGIN(task);
	start_elsewhere(g);
	CKPT_AWAIT(task, g->elsewhere.task.finished);
	r = take_elsewhere(g);
	if (r < 0)
		return r;
	g->indexes = ckpt_alloc_array(world_of(g), sizeof(struct ckpt_index *));
	if (!g->indexes)
		return ckpt_fail(g->err, -ENOMEM, "out of memory");
	return ckpt_task_continue(task, ckpt_shard_load_is_narrow(g)
						? ckpt_shard_load_open_narrow_body
						: ckpt_shard_load_open_all_body);
	CKPT_TASK_END(task);
}

/* Filling. */

/*
 * Puts what is wanted of each shard in order, sees whether GPUs can take it, and counts the bytes of its chunks: for a worker, as many boxes
 * of many chunks take their time.
 */
static void seal_work(struct ckpt_job *job)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(job, struct ckpt_shard_load, job.job);

	for (uint32_t i = 0; i < world_of(g); i++) {
		uint64_t bytes = 0;

		if (!is_wanted(g, i))
			continue;
		const struct ckpt_layout *layout = g->indexes[i]->layout;
		if (ckpt_targets_seal(&g->wanted[i], layout, &bytes) < 0) {
			g->job.error.rank = (int32_t)i;
			g->job.result = ckpt_fail(&g->job.error, -ENOMEM, "out of memory");
			return;
		}
		g->sum += bytes;
		g->job.result = ckpt_targets_check(
			&g->wanted[i], layout, g->core->parts.devices, &g->job.error);
		if (g->job.result < 0) {
			g->job.error.rank = (int32_t)i;
			return;
		}
	}
}

static void clear_wanted(const struct ckpt_shard_load *g, struct ckpt_targets *wanted)
{
	if (!wanted || wanted == g->binder.ranks)
		return;
	for (uint32_t i = 0; i < world_of(g); i++)
		ckpt_targets_clear(&wanted[i]);
	ckpt_free(wanted);
}

/* What was moved to other ranks is wanted now. False: nothing was. */
static bool go_round(struct ckpt_shard_load *g)
{
	if (!g->again)
		return false;
	clear_wanted(g, g->wanted);
	g->wanted = g->again;
	g->again = NULL;
	return true;
}

/* Of a copy that was bad some was counted, or none. */
static void count_all(struct ckpt_shard_load *g)
{
	if (g->lost || g->recount)
		atomic_store(g->counter, g->sum);
}

int ckpt_shard_load_read_body(struct ckpt_task *task)
{
	struct ckpt_shard_load *g = CKPT_CONTAINER(task, struct ckpt_shard_load, task);

	int r;

	CKPT_TASK_BEGIN(task);
	g->wanted = g->binder.ranks;
	do {
		ckpt_task_job_start(&g->job, g->core->parts.env, task, seal_work);
		CKPT_AWAIT(task, g->job.done);
		r = ckpt_task_job_take(&g->job, g->err);
		if (r < 0)
			return r;
		atomic_store(g->total, g->sum);
		r = start_ways(g, shard_body, CKPT_SHARD_LOAD_SHARDS);
		if (r < 0)
			return r;
		CKPT_AWAIT(task, ckpt_shard_load_pump(g));
		r = ckpt_shard_load_end_ways(g);
		if (ckpt_shard_is_bad_copy(r) && ckpt_shard_load_may_widen(g)) {
			ckpt_shard_load_widen(g);
			return ckpt_task_continue(task, ckpt_shard_load_narrow_body);
		}
		if (r < 0)
			return r;
	} while (go_round(g));
	count_all(g);
	return 0;
	CKPT_TASK_END(task);
}

static int fill_body(struct ckpt_task *task)
{
	const struct ckpt_shard_load *g = CKPT_CONTAINER(task, struct ckpt_shard_load, task);

	return ckpt_task_continue(
		task, g->catalog_map ? ckpt_shard_load_narrow_body : ckpt_shard_load_read_body);
}

static void load_done(struct ckpt_task *task)
{
	ckpt_task_wake(CKPT_CONTAINER(task, struct ckpt_shard_load, task)->waiter);
}

void ckpt_shard_load_start_open(struct ckpt_shard_load *load)
{
	ckpt_task_start(&load->task, &load->core->sched, open_body, load_done);
}

void ckpt_shard_load_start_fill(struct ckpt_shard_load *load)
{
	ckpt_task_start(&load->task, &load->core->sched, fill_body, load_done);
}

void ckpt_shard_load_stop(struct ckpt_shard_load *load, int code)
{
	load->halted = true;
	stop_ways(load, code);
}

unsigned ckpt_shard_load_copies(const struct ckpt_shard_load *load)
{
	unsigned copies = 0;

	for (unsigned i = 0; i < load->way_count; i++)
		copies += load->ways[i].fetch.copies;
	return copies;
}

int ckpt_shard_load_bind(struct ckpt_shard_load *load, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err)
{
	int r = ckpt_target_binder_add(&load->binder, targets, count, err);

	return r == 0 && load->catalog_map ? ckpt_shard_load_ask(load, targets, count, err) : r;
}

void ckpt_shard_load_reset(struct ckpt_shard_load *load)
{
	clear_wanted(load, load->wanted);
	clear_wanted(load, load->again);
	ckpt_free(load->lost);
	load->wanted = NULL;
	load->again = NULL;
	load->lost = NULL;
	load->sum = 0;
	load->recount = false;
	ckpt_target_binder_clear(&load->binder);
	ckpt_tensor_map_free(load->tensor_map);
	load->tensor_map = NULL;
}

void ckpt_shard_load_clear(struct ckpt_shard_load *load)
{
	CKPT_ASSERT(!ckpt_task_active(&load->task));
	ckpt_shard_load_reset(load);
	ckpt_pending_targets_clear(&load->asked);
	for (uint32_t i = 0; load->indexes && i < world_of(load); i++)
		ckpt_index_free(load->indexes[i]);
	ckpt_free(load->indexes);
	load->indexes = NULL;
	ckpt_catalog_map_reader_free(load->reader);
	load->reader = NULL;
	ckpt_catalog_map_free(load->catalog_map);
	load->catalog_map = NULL;
	ckpt_shard_location_clear(&load->elsewhere);
	ckpt_replica_check_clear(&load->replicas);
}
