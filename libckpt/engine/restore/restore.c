/* SPDX-License-Identifier: Apache-2.0 */
/* The handle of a restore, for user threads. */
#include "engine/restore/restore.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"
#include "engine/restore/restore_state.h"

int ckpt_restorer_open(struct ckpt_core *core)
{
	core->restorer = ckpt_alloc(sizeof(*core->restorer));
	return core->restorer ? 0 : -ENOMEM;
}

void ckpt_restorer_close(struct ckpt_core *core)
{
	CKPT_ASSERT(!core->restores);
	ckpt_free(core->restorer);
	core->restorer = NULL;
}

/*
 * Ranks of a job restore together; a verification or export is done alone. The number is the same on all ranks; 0:
 * alone.
 */
static uint32_t count(struct ckpt_core *core, enum ckpt_restore_sink sink)
{
	if (!core->exchange || core->config.read_only || sink != CKPT_SINK_MEMORY)
		return 0;
	return atomic_fetch_add(&core->restorer->begun, 1) + 1;
}

static int make_ranks(struct ckpt_restore *r, uint32_t number)
{
	int code = number > 0 ? ckpt_restore_sync_new(r->core, &r->ranks) : 0;

	if (r->ranks)
		r->ranks->number = number;
	return code;
}

int ckpt_restore_new(struct ckpt_core *core, struct ckpt_engine *owner, uint64_t step,
	enum ckpt_restore_sink sink, struct ckpt_restore **ret_restore)
{
	uint32_t number = count(core, sink);
	struct ckpt_restore *r = ckpt_alloc(sizeof(*r));

	if (!r)
		return -ENOMEM;
	atomic_store(&r->owners, 1);
	r->core = core;
	r->owner = owner;
	r->wanted = step;
	r->sink = sink;
	if (sink == CKPT_SINK_RECODE && !(r->recode = ckpt_alloc(sizeof(*r->recode)))) {
		ckpt_free(r);
		return -ENOMEM;
	}
	r->forks = ckpt_fork_count();
	r->dest.root = -1;
	r->pick.lock.fd = -1;
	ckpt_shard_init(&r->shard);
	ckpt_error_clear(&r->error);
	ckpt_error_clear(&r->why);
	int code = make_ranks(r, number);
	if (code == 0)
		code = ckpt_latch_init(&r->latch);
	if (code < 0) {
		ckpt_restore_sync_free(r->ranks);
		ckpt_free(r->recode);
		ckpt_free(r);
		return code;
	}
	code = -pthread_mutex_init(&r->lock, NULL);
	if (code < 0) {
		ckpt_latch_destroy(&r->latch);
		ckpt_restore_sync_free(r->ranks);
		ckpt_free(r->recode);
		ckpt_free(r);
		return code;
	}
	*ret_restore = r;
	return 0;
}

int ckpt_restore_set_dest(struct ckpt_restore *restore, const struct ckpt_core_place *place)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_STORE && !restore->dest_label);
	restore->dest_label = ckpt_strdup(place->label);
	if (!restore->dest_label)
		return -ENOMEM;
	restore->dest = *place;
	restore->dest.label = restore->dest_label;
	return 0;
}

int ckpt_restore_set_dest_ranks(struct ckpt_restore *restore, const uint32_t *ranks, size_t count)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_STORE);
	return ckpt_rankset_set(&restore->dest_ranks, ranks, count);
}

void ckpt_restore_set_dest_plain(struct ckpt_restore *restore)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_STORE);
	restore->dest_plain = true;
}

int ckpt_restore_set_near(struct ckpt_restore *restore, const struct ckpt_restore_near *near)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_STORE && restore->dest.node);
	restore->near_world = near->world;
	return near->count > 0 ? ckpt_rankset_set(&restore->near, near->ranks, near->count) : 0;
}

void ckpt_restore_set_encodes(struct ckpt_restore *restore)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_RECODE);
	restore->recode->encodes = true;
}

void ckpt_restore_set_quick(struct ckpt_restore *restore)
{
	CKPT_ASSERT(restore->sink == CKPT_SINK_NONE);
	restore->quick = true;
}

void ckpt_restore_unref(struct ckpt_restore *restore)
{
	if (!restore || atomic_fetch_sub(&restore->owners, 1) > 1)
		return;
	CKPT_ASSERT(restore->posted == 0 || restore->gone);
	for (uint32_t i = 0; restore->looked && i < restore->pick.manifest.world; i++)
		ckpt_index_free(restore->looked[i]);
	ckpt_free(restore->looked);
	ckpt_free(restore->repairer);
	ckpt_shard_load_clear(&restore->load);
	ckpt_replica_check_clear(&restore->replicas);
	ckpt_findings_clear(&restore->findings);
	ckpt_shard_read_clear(&restore->fetch);
	ckpt_step_copy_clear(&restore->step_copy);
	ckpt_free(restore->recode);
	ckpt_shard_clear(&restore->shard);
	ckpt_shard_location_clear(&restore->elsewhere);
	ckpt_catalog_map_reader_free(restore->catalog);
	ckpt_select_clear(&restore->pick);
	ckpt_restore_sync_free(restore->ranks);
	if (restore->dest.root >= 0)
		(void)close(restore->dest.root);
	ckpt_free(restore->dest_label);
	ckpt_rankset_clear(&restore->dest_ranks);
	ckpt_rankset_clear(&restore->near);
	(void)pthread_mutex_destroy(&restore->lock);
	ckpt_latch_destroy(&restore->latch);
	ckpt_free(restore);
}

/* Each post is made once, and none after GONE, when the core may no longer exist. */
static void post(struct ckpt_restore *r, unsigned what, struct ckpt_node *node,
	void (*run)(struct ckpt_node *node))
{
	pthread_mutex_lock(&r->lock);
	CKPT_ASSERT(what == CKPT_POST_OPEN || r->posted);
	if (!r->gone && !(r->posted & what)) {
		r->posted |= what;
		r->on_way++;
		node->run = run;
		ckpt_inbox_push(r->core->parts.env->inbox, node);
	}
	pthread_mutex_unlock(&r->lock);
}

void ckpt_restore_post_open(struct ckpt_restore *restore)
{
	CKPT_ASSERT(restore->sink != CKPT_SINK_STORE || restore->dest_label);
	atomic_fetch_add(&restore->owners, 1);
	post(restore, CKPT_POST_OPEN, &restore->open_node, ckpt_restore_fsm_open);
}

void ckpt_restore_post_start(struct ckpt_restore *restore)
{
	post(restore, CKPT_POST_START, &restore->start_node, ckpt_restore_fsm_start);
}

void ckpt_restore_post_cancel(struct ckpt_restore *restore)
{
	post(restore, CKPT_POST_CANCEL, &restore->cancel_node, ckpt_restore_fsm_cancel);
}

void ckpt_restore_post_release(struct ckpt_restore *restore)
{
	post(restore, CKPT_POST_RELEASE, &restore->release_node, ckpt_restore_fsm_release);
}

struct ckpt_engine *ckpt_restore_owner(const struct ckpt_restore *restore)
{
	return restore->owner;
}

bool ckpt_restore_forked(const struct ckpt_restore *restore)
{
	return restore->forks != ckpt_fork_count();
}

struct ckpt_latch *ckpt_restore_latch(struct ckpt_restore *restore)
{
	return &restore->latch;
}

const struct ckpt_error *ckpt_restore_failure(const struct ckpt_restore *restore)
{
	return &restore->error;
}

/*
 * Whether the latch has answered `bit`. Casts away const for the lock only. In a forked child a thread that does not
 * exist may hold it.
 */
static bool answered(const struct ckpt_restore *restore, uint32_t bit)
{
	struct ckpt_latch *latch = (struct ckpt_latch *)&restore->latch;

	return !ckpt_restore_forked(restore) && (ckpt_latch_get(latch) & bit) != 0;
}

uint32_t ckpt_restore_rank_count(const struct ckpt_restore *restore)
{
	return answered(restore, CKPT_DONE_OPENED) ? restore->pick.manifest.world : 0;
}

const char *ckpt_restore_differ(const struct ckpt_restore *restore)
{
	const char *marked = restore->pick.manifest.replicas;

	if (!answered(restore, CKPT_DONE_OPENED | CKPT_DONE_END))
		return "";
	return *restore->differ ? restore->differ : marked;
}

const struct ckpt_index *ckpt_restore_rank_index(const struct ckpt_restore *restore, uint32_t rank)
{
	CKPT_ASSERT(rank < ckpt_restore_rank_count(restore));
	/* With a catalog, the needed indexes are read while the restore runs. */
	if (!restore->load.catalog_map)
		return restore->load.indexes[rank];
	pthread_mutex_t *lock = (pthread_mutex_t *)&restore->lock;
	pthread_mutex_lock(lock);
	const struct ckpt_index *index = restore->looked ? restore->looked[rank] : NULL;
	pthread_mutex_unlock(lock);
	return index;
}

uint32_t ckpt_restore_first_rank(const struct ckpt_restore *restore)
{
	uint32_t rank = 0;

	while (ckpt_shard_location_has(&restore->load.elsewhere, rank))
		rank++;
	return rank;
}

const struct ckpt_index *ckpt_restore_index(const struct ckpt_restore *restore)
{
	return ckpt_restore_rank_count(restore) > 0
		       ? ckpt_restore_rank_index(restore, ckpt_restore_first_rank(restore))
		       : NULL;
}

int ckpt_restore_put_index(struct ckpt_restore *restore, uint32_t rank, struct ckpt_index *index)
{
	int r = 0;

	pthread_mutex_lock(&restore->lock);
	if (!restore->looked)
		restore->looked =
			ckpt_alloc_array(restore->pick.manifest.world, sizeof(struct ckpt_index *));
	if (!restore->looked)
		r = -ENOMEM;
	else if (!restore->looked[rank])
		restore->looked[rank] = index;
	else
		ckpt_index_free(index); /* another thread was faster, and its index may be in use */
	pthread_mutex_unlock(&restore->lock);
	if (r < 0)
		ckpt_index_free(index);
	return r;
}

struct ckpt_restore *ckpt_restore_ref(struct ckpt_restore *restore)
{
	atomic_fetch_add(&restore->owners, 1);
	return restore;
}

int ckpt_restore_rank_other_node(
	const struct ckpt_restore *restore, uint32_t rank, struct ckpt_error *err)
{
	char what[64];

	CKPT_ASSERT(rank < ckpt_restore_rank_count(restore));
	if (!ckpt_shard_location_has(&restore->load.elsewhere, rank))
		return 0;
	(void)snprintf(what, sizeof(what), "what rank %u saved is not here", rank);
	return ckpt_shard_location_fail(&restore->load.elsewhere, rank, NULL, what, err);
}

const char *ckpt_restore_rank_node_name(const struct ckpt_restore *restore, uint32_t rank)
{
	CKPT_ASSERT(rank < ckpt_restore_rank_count(restore));
	return restore->pick.manifest.ranks[rank].node;
}

uint64_t ckpt_restore_chosen_step(const struct ckpt_restore *restore)
{
	return atomic_load(&restore->chosen_step);
}

uint64_t ckpt_restore_chosen_generation(const struct ckpt_restore *restore)
{
	return atomic_load(&restore->chosen_generation);
}

uint32_t ckpt_restore_shared_number(const struct ckpt_restore *restore)
{
	return restore->ranks ? restore->ranks->number : 0;
}

void ckpt_restore_counters(
	const struct ckpt_restore *restore, uint64_t *ret_done, uint64_t *ret_total)
{
	if (ret_done)
		*ret_done = atomic_load(&restore->bytes_done);
	if (ret_total)
		*ret_total = atomic_load(&restore->bytes_total);
}

/* The tensors of the step. After OPENED; NULL if there are none. */
static const struct ckpt_layout *names_of(const struct ckpt_restore *restore)
{
	return ckpt_restore_rank_count(restore) > 0 ? restore->load.names : NULL;
}

size_t ckpt_restore_name_count(const struct ckpt_restore *restore)
{
	const struct ckpt_layout *names = names_of(restore);

	return names ? names->entry_count + names->alias_count : 0;
}

/* Sets the ranks that hold an entry of names_of(), and its place. */
static void tell_place(const struct ckpt_restore *restore, const struct ckpt_entry *entry,
	struct ckpt_tensor_info *ret_info)
{
	size_t count = 0;

	if (restore->load.catalog_map) {
		ret_info->rank = ckpt_catalog_map_first(restore->load.catalog_map, entry);
		ret_info->offset = UINT64_MAX;
		return;
	}
	const struct ckpt_part *parts =
		ckpt_tensor_map_parts(restore->load.tensor_map, entry, &count);
	ret_info->rank = parts->rank;
	ret_info->offset = parts->entry->offset;
	ret_info->pieces = 1;
	for (size_t i = 1; i < count; i++)
		ret_info->pieces += !ckpt_part_same(&parts[i - 1], &parts[i]);
}

int ckpt_restore_name(
	const struct ckpt_restore *restore, size_t index, struct ckpt_tensor_info *ret_info)
{
	if (index >= ckpt_restore_name_count(restore))
		return -ERANGE;
	const struct ckpt_layout *names = names_of(restore);
	const struct ckpt_alias *alias =
		index < names->entry_count ? NULL : &names->aliases[index - names->entry_count];
	const struct ckpt_entry *entry =
		alias ? ckpt_layout_find(names, alias->target) : &names->entries[index];

	CKPT_ASSERT(entry);
	*ret_info = (struct ckpt_tensor_info){.size = ret_info->size,
		.dtype = entry->dtype,
		.ndim = entry->ndim,
		.name = alias ? alias->name : entry->name,
		.shape = entry->shape,
		.nbytes = entry->nbytes,
		.alias_of = alias ? entry->name : NULL};
	tell_place(restore, entry, ret_info);
	return 0;
}

static int alias_order(const void *key, const void *alias)
{
	return strcmp(key, ((const struct ckpt_alias *)alias)->name);
}

/* A rank that is elsewhere may hold it. */
static int fail_elsewhere(
	const struct ckpt_restore *restore, const char *name, struct ckpt_error *err)
{
	const struct ckpt_shard_location *e = &restore->load.elsewhere;
	char what[256];

	(void)snprintf(
		what, sizeof(what), "no rank whose files are here holds a tensor '%.160s'", name);
	return ckpt_shard_location_fail(e, ckpt_shard_location_first(e), name, what, err);
}

int ckpt_restore_name_find(const struct ckpt_restore *restore, const char *name,
	struct ckpt_error *err, size_t *ret_index)
{
	const struct ckpt_layout *layout = names_of(restore);
	const struct ckpt_entry *entry = layout ? ckpt_layout_find(layout, name) : NULL;

	if (!entry && layout && restore->load.elsewhere.count > 0)
		return fail_elsewhere(restore, name, err);
	if (!entry)
		return ckpt_fail_at(err, CKPT_EMISMATCH, &(struct ckpt_where){.tensor = name},
			"step %llu has no tensor '%.200s'",
			(unsigned long long)ckpt_restore_chosen_step(restore), name);
	if (strcmp(entry->name, name) == 0) {
		*ret_index = (size_t)(entry - layout->entries);
		return 0;
	}
	const struct ckpt_alias *alias = bsearch(
		name, layout->aliases, layout->alias_count, sizeof(*layout->aliases), alias_order);
	CKPT_ASSERT(alias);
	*ret_index = layout->entry_count + (size_t)(alias - layout->aliases);
	return 0;
}

/* Opens the GPUs of targets that are accepted. Once the engine has closed, nothing is copied any more. */
static int open_gpus(struct ckpt_restore *restore, const struct ckpt_target *targets, size_t count,
	struct ckpt_error *err)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < count; i++) {
		int number = ckpt_devices_number(targets[i].device, targets[i].device_index);

		if (number > 0)
			mask |= UINT64_C(1) << number;
	}
	if (mask == 0 || answered(restore, CKPT_DONE_END))
		return 0;
	return ckpt_devices_need(restore->core->parts.devices, mask, err);
}

int ckpt_restore_add_targets(struct ckpt_restore *restore, const struct ckpt_target *targets,
	size_t count, struct ckpt_error *err)
{
	if (ckpt_restore_rank_count(restore) == 0 || restore->sink != CKPT_SINK_MEMORY)
		return ckpt_fail(err, -EINVAL, "the restore is not open: targets cannot be bound");
	pthread_mutex_lock(&restore->lock);
	bool started = (restore->posted & CKPT_POST_START) != 0;
	pthread_mutex_unlock(&restore->lock);
	if (started)
		return ckpt_fail(err, -EBUSY, "the restore has been started: bind before that");
	int r = open_gpus(restore, targets, count, err);
	if (r == 0)
		r = ckpt_shard_load_bind(&restore->load, targets, count, err);
	if (restore->ranks) {
		/* If this ends the restore, the other ranks must hear why. */
		pthread_mutex_lock(&restore->lock);
		ckpt_error_clear(&restore->ranks->refused);
		if (r < 0)
			restore->ranks->refused = *err;
		pthread_mutex_unlock(&restore->lock);
	}
	return r;
}

bool ckpt_restore_agreed(const struct ckpt_restore *restore)
{
	return !restore->ranks || (answered(restore, CKPT_DONE_END) && restore->error.code == 0);
}

bool ckpt_restore_has_targets(const struct ckpt_restore *restore)
{
	return restore->sink == CKPT_SINK_MEMORY;
}

struct ckpt_restore_recoded ckpt_restore_recoded(const struct ckpt_restore *restore)
{
	if (!restore->recode || !answered(restore, CKPT_DONE_END))
		return (struct ckpt_restore_recoded){0};
	return (struct ckpt_restore_recoded){.ranks = restore->recode->ranks,
		.bytes_before = restore->recode->bytes_before,
		.bytes_after = restore->recode->bytes_after};
}

bool ckpt_restore_existed(const struct ckpt_restore *restore)
{
	return restore->ended && restore->step_copy.there;
}

size_t ckpt_restore_finding_count(const struct ckpt_restore *restore)
{
	return answered(restore, CKPT_DONE_END) ? restore->findings.count : 0;
}

const struct ckpt_finding *ckpt_restore_finding(const struct ckpt_restore *restore, size_t index)
{
	CKPT_ASSERT(index < restore->findings.count);
	return &restore->findings.items[index];
}
