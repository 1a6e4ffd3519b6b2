/* SPDX-License-Identifier: Apache-2.0 */
/* A save before it starts, as the user's thread describes it. */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/json_reader.h"
#include "base/thread.h"
#include "engine/save/save_state.h"
#include "format/dtype.h"
#include "format/index.h"
#include "format/sealed.h"

#define PAGE_ROOM     (UINT64_C(256) << 10)
#define DRAFT_TENSORS CKPT_TENSORS_MAX

/* Holds names, shapes and strides: many small allocations that live as long as the save. */
struct ckpt_arena_page {
	struct ckpt_arena_page *next;
	size_t used;
	size_t room;
	max_align_t data[];
};

static void *arena_take(struct ckpt_save *save, size_t size)
{
	struct ckpt_arena_page *page = save->words;

	size = ckpt_align_up(size, sizeof(int64_t));
	if (!page || page->room - page->used < size) {
		size_t room = ckpt_max_u64(PAGE_ROOM, size);
		page = ckpt_alloc(sizeof(*page) + room);
		if (!page)
			return NULL;
		page->room = room;
		page->next = save->words;
		save->words = page;
	}
	void *data = (char *)page->data + page->used;
	page->used += size;
	return data;
}

static void *arena_copy(struct ckpt_save *save, const void *data, size_t size)
{
	void *copy = arena_take(save, size);

	if (copy && size)
		memcpy(copy, data, size);
	return copy;
}

int ckpt_save_new(struct ckpt_core *core, struct ckpt_engine *owner, uint64_t step, bool fenced,
	uint32_t timeout_ms, struct ckpt_save **ret_save)
{
	struct ckpt_save *save = ckpt_alloc(sizeof(*save));

	if (!save)
		return -ENOMEM;
	int r = ckpt_latch_init(&save->latch);
	if (r < 0) {
		ckpt_free(save);
		return r;
	}
	save->core = core;
	save->owner = owner;
	save->forks = ckpt_fork_count();
	save->step = step;
	save->fenced = fenced;
	save->timeout_ns =
		(uint64_t)(timeout_ms ? timeout_ms : core->config.save_timeout_ms) * 1000000;
	save->error.size = sizeof(save->error);
	save->work.size = sizeof(save->work);
	ckpt_error_clear(&save->error);
	ckpt_error_clear(&save->work);
	save->object.fd = -1;
	atomic_init(&save->refs, 1);
	bool goes_on = ckpt_upload_queue_takes(core, step);
	if (goes_on)
		save->upload = ckpt_upload_entry_new();
	if (goes_on && !save->upload)
		r = -ENOMEM;
	else if (core->config.world > 1)
		r = ckpt_save_commit_new(save, core->config.rank, core->config.world, &save->ranks);
	if (r < 0) {
		ckpt_save_unref(save);
		return r;
	}
	*ret_save = save;
	return 0;
}

static struct ckpt_view view_of(const struct ckpt_tensor *t)
{
	return (struct ckpt_view){.data = (char *)(uintptr_t)t->data,
		.item = ckpt_dtype_bytes(t->dtype),
		.ndim = t->ndim,
		.shape = t->shape,
		.strides = t->strides};
}

static int check_tensor(const struct ckpt_tensor *t, struct ckpt_error *err)
{
	const char *name = t->name ? t->name : "";
	uint64_t elements = 1;

	if (!*name || strlen(name) >= CKPT_NAME_MAX)
		return ckpt_fail(err, -EINVAL, "a tensor's name must have 1 to %d bytes: \"%.80s\"",
			CKPT_NAME_MAX - 1, name);
	if (ckpt_dtype_bytes(t->dtype) == 0)
		return ckpt_fail(err, -EINVAL, "tensor %s: unknown dtype %u", name, t->dtype);
	if (t->ndim > CKPT_NDIM_MAX || (t->ndim && !t->shape))
		return ckpt_fail(err, -EINVAL,
			"tensor %s: ndim %u is greater than %d, or there is no shape", name,
			t->ndim, CKPT_NDIM_MAX);
	for (uint32_t i = 0; i < t->ndim; i++) {
		if (t->shape[i] < 0)
			return ckpt_fail(err, -EINVAL, "tensor %s: shape[%u] is negative", name, i);
		if (__builtin_mul_overflow(elements, (uint64_t)t->shape[i], &elements))
			return ckpt_fail(err, -EINVAL, "tensor %s: its shape overflows", name);
	}
	if (elements > CKPT_SHARD_BYTES_MAX)
		return ckpt_fail(err, -EINVAL, "tensor %s: its shape overflows", name);
	if (ckpt_layout_bad_box(t))
		return ckpt_fail(err, -EINVAL, "tensor %s %s", name, ckpt_layout_bad_box(t));
	if (elements && !t->data)
		return ckpt_fail(err, -EINVAL, "tensor %s: data is NULL", name);
	if (ckpt_devices_number(t->device, t->device_index) < 0)
		return ckpt_fail(err, -EINVAL, "tensor %s: unknown device kind %u, index %d", name,
			t->device, t->device_index);
	if (t->flags & ~(CKPT_TENSOR_EAGER | CKPT_TENSOR_SHARED | CKPT_TENSOR_VARIES))
		return ckpt_fail(err, -EINVAL, "tensor %s: unknown flags 0x%x", name, t->flags);
	struct ckpt_view view = view_of(t);
	int stray = elements ? ckpt_view_stray(&view) : -1;
	if (stray >= 0)
		return ckpt_fail(err, -EINVAL,
			"tensor %s: strides[%d] is %lld, which exceeds the address space", name,
			stray, (long long)t->strides[stray]);
	return 0;
}

static int copy_tensor(struct ckpt_save *save, const struct ckpt_tensor *from,
	struct ckpt_tensor *to, struct ckpt_error *err)
{
	size_t dims = from->ndim * sizeof(int64_t);
	int r = check_tensor(from, err);

	if (r < 0)
		return r;
	*to = *from;
	to->name = arena_copy(save, from->name, strlen(from->name) + 1);
	to->shape = arena_copy(save, from->shape, dims);
	to->strides = from->strides ? arena_copy(save, from->strides, dims) : NULL;
	to->global_shape = from->global_shape ? arena_copy(save, from->global_shape, dims) : NULL;
	to->global_start = from->global_start ? arena_copy(save, from->global_start, dims) : NULL;
	if (!to->name || !to->shape || (from->strides && !to->strides) ||
		(from->global_shape && !to->global_shape) ||
		(from->global_start && !to->global_start))
		return ckpt_fail(err, -ENOMEM, "out of memory");
	return 0;
}

int ckpt_save_put_tensors(struct ckpt_save *save, const struct ckpt_tensor *tensors, size_t count,
	struct ckpt_error *err)
{
	if (count > DRAFT_TENSORS - save->tensor_count)
		return ckpt_fail(err, -E2BIG, "a save holds at most %d tensors", DRAFT_TENSORS);
	size_t total = save->tensor_count + count;
	if (total > save->tensor_room) {
		size_t room = ckpt_max_u64(total, save->tensor_room * 2);
		struct ckpt_tensor *grown = ckpt_realloc_array(save->tensors, room, sizeof(*grown));
		if (!grown)
			return ckpt_fail(err, -ENOMEM, "out of memory");
		save->tensors = grown;
		save->tensor_room = room;
	}
	for (size_t i = 0; i < count; i++) {
		int r = copy_tensor(save, &tensors[i], &save->tensors[save->tensor_count + i], err);
		if (r < 0)
			return r;
	}
	save->tensor_count = total;
	return 0;
}

int ckpt_save_put_alias(
	struct ckpt_save *save, const char *alias, const char *name, struct ckpt_error *err)
{
	struct ckpt_alias *grown =
		ckpt_realloc_array(save->aliases, save->alias_count + 1, sizeof(*grown));

	if (!grown)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	save->aliases = grown;
	struct ckpt_alias *a = &grown[save->alias_count];
	a->name = arena_copy(save, alias, strlen(alias) + 1);
	a->target = arena_copy(save, name, strlen(name) + 1);
	if (!a->name || !a->target)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	save->alias_count++;
	return 0;
}

/* Copies the shapes and strides of GPU tensors, which are read after the call has returned. */
static struct ckpt_tensor *copy_for_gpus(struct ckpt_save *save, const struct ckpt_tensor *tensors,
	size_t count, struct ckpt_error *err)
{
	struct ckpt_tensor *copies = ckpt_alloc_array(count, sizeof(*copies));

	if (!copies) {
		(void)ckpt_fail(err, -ENOMEM, "out of memory");
		return NULL;
	}
	for (size_t i = 0; i < count; i++)
		if (copy_tensor(save, &tensors[i], &copies[i], err) < 0) {
			ckpt_free(copies);
			return NULL;
		}
	return copies;
}

int ckpt_save_put_replicas(struct ckpt_save *save, uint64_t group,
	const struct ckpt_tensor *tensors, size_t count, void *copies, struct ckpt_error *err)
{
	bool gpus = false;
	int r = 0;

	for (size_t i = 0; i < count && r == 0; i++) {
		r = check_tensor(&tensors[i], err);
		gpus = gpus || tensors[i].device != CKPT_DEVICE_HOST;
	}
	if (r == 0 && save->ranks && gpus) {
		void *owned = copy_for_gpus(save, tensors, count, err);
		ckpt_free(copies);
		copies = owned;
		tensors = owned;
		r = owned ? 0 : err->code;
	}
	if (r < 0 || !save->ranks) {
		ckpt_free(copies);
		return r;
	}
	return ckpt_replica_digest_give(&save->alike, group, tensors, count, copies, err);
}

int ckpt_save_put_own(
	struct ckpt_save *save, uint64_t group, enum ckpt_own own, struct ckpt_error *err)
{
	if (!save->ranks || ckpt_replica_digest_set_own(&save->alike, group, own))
		return 0;
	return ckpt_fail(
		err, -EINVAL, "no replicas of group %llu were added", (unsigned long long)group);
}

void ckpt_save_put_common(struct ckpt_save *save, const void *data, size_t length)
{
	save->common = ckpt_digest_of(data, length);
}

void ckpt_save_put_balance(struct ckpt_save *save, uint64_t balance)
{
	save->balance = balance;
}

int ckpt_save_put_meta(
	struct ckpt_save *save, const char *json, size_t length, struct ckpt_error *err)
{
	if (length > CKPT_META_MAX)
		return ckpt_fail(err, -E2BIG, "meta has %zu bytes, but at most %llu are allowed",
			length, (unsigned long long)CKPT_META_MAX);
	int r = ckpt_json_scan(json, length, CKPT_META_VALUES, CKPT_META_DEPTH, "meta", err);
	if (r < 0)
		return r;
	char *copy = ckpt_memdup(json, length);
	if (!copy)
		return ckpt_fail(err, -ENOMEM, "out of memory");
	ckpt_free(save->meta);
	save->meta = copy;
	save->meta_bytes = length;
	return 0;
}

static bool inlines(const struct ckpt_tensor *t)
{
	return (t->flags & CKPT_TENSOR_EAGER) && t->device == CKPT_DEVICE_HOST;
}

/*
 * Copies small eager tensors of the CPU at once: their owner can continue, and their blocks need not be written first.
 */
static int inline_eager(struct ckpt_save *save, struct ckpt_error *err)
{
	uint64_t total = 0;

	for (size_t i = 0; i < save->tensor_count; i++) {
		const struct ckpt_tensor *t = &save->tensors[i];
		struct ckpt_view view = view_of(t);
		if (inlines(t))
			total += ckpt_align_up(ckpt_view_bytes(&view), 64);
		if (total > CKPT_SAVE_INLINE_BYTES)
			return 0;
	}
	if (total == 0)
		return 0;
	save->inlined = ckpt_alloc(total);
	if (!save->inlined)
		return ckpt_fail(err, -ENOMEM, "out of memory for %llu bytes of eager tensors",
			(unsigned long long)total);
	char *at = save->inlined;
	for (size_t i = 0; i < save->tensor_count; i++) {
		struct ckpt_tensor *t = &save->tensors[i];
		if (!inlines(t))
			continue;
		struct ckpt_view view = view_of(t);
		uint64_t bytes = ckpt_view_bytes(&view);
		ckpt_view_gather(&view, 0, bytes, at);
		t->data = at;
		t->strides = NULL;
		t->flags &= ~CKPT_TENSOR_EAGER;
		at += ckpt_align_up(bytes, 64);
	}
	return 0;
}

int ckpt_save_prepare(struct ckpt_save *save, struct ckpt_plan **cache, struct ckpt_error *err)
{
	struct ckpt_core *core = save->core;
	struct ckpt_plan *plan = *cache;

	*cache = NULL;
	save->start_ns = ckpt_env_now(core->parts.env);
	save->seed = ckpt_env_random(core->parts.env);
	if (plan && !ckpt_plan_fits(plan, save->tensors, save->tensor_count, save->aliases,
			    save->alias_count)) {
		ckpt_plan_free(plan);
		plan = NULL;
	}
	if (!plan) {
		int r = ckpt_plan_build(save->tensors, save->tensor_count, save->aliases,
			save->alias_count, core->config.chunk_bytes, core->config.block_bytes, err,
			&plan);
		if (r < 0)
			return r;
	}
	save->plan = plan;
	atomic_store(&save->bytes, plan->layout->bytes);
	save->encodes = core->config.encoders > 0;
	if (!save->encodes)
		atomic_store(&save->bytes_stored, plan->layout->bytes);
	int r = inline_eager(save, err);
	if (r < 0)
		return r;
	ckpt_plan_aim(plan, save->tensors);
	ckpt_save_look_replicas(save);
	save->devices = plan->devices | save->alike.devices;
	r = ckpt_devices_need(core->parts.devices, save->devices, err);
	if (r < 0)
		return r;
	ckpt_save_take_replicas(save);
	ckpt_save_take_samples(save);
	return ckpt_save_follow(save, err);
}

static void refusal_run(struct ckpt_node *node)
{
	ckpt_save_notify_refusal(CKPT_CONTAINER(node, struct ckpt_save, post_node));
}

void ckpt_save_refuse(struct ckpt_save *save, const struct ckpt_error *why)
{
	CKPT_ASSERT(why->code < 0 && !ckpt_save_started(save));
	/* The other ranks hear of a step that was begun before from its own save. */
	bool tell = save->ranks && why->code != CKPT_ESTEP;

	save->error = *why;
	save->error.step = (int64_t)save->step;
	save->refused = true;
	if (tell) {
		ckpt_free(save->ranks->all);
		save->ranks->all = NULL;
		(void)ckpt_save_ref(save);
	}
	atomic_store(&save->started, true);
	ckpt_latch_set(&save->latch, CKPT_DONE_END | CKPT_DONE_GONE);
	if (tell) {
		save->post_node.run = refusal_run;
		ckpt_inbox_push(save->core->parts.env->inbox, &save->post_node);
	}
}

bool ckpt_save_gate_closed(struct ckpt_save *save)
{
	/* A failed save waits for nothing, whether the core knows of it or not. */
	return save->fenced && !atomic_load(&save->gate_posted) &&
	       !atomic_load(&save->verdict_posted) &&
	       !(ckpt_latch_get(&save->latch) & CKPT_DONE_END);
}

struct ckpt_plan *ckpt_save_take_plan(struct ckpt_save *save)
{
	struct ckpt_plan *plan = save->plan;
	unsigned nobody = 0;

	if (!plan || !atomic_compare_exchange_strong(&save->plan_users, &nobody, CKPT_PLAN_TAKEN))
		return NULL;
	save->plan = NULL;
	ckpt_free(save->inlined);
	save->inlined = NULL;
	return plan;
}

struct ckpt_save *ckpt_save_ref(struct ckpt_save *save)
{
	atomic_fetch_add(&save->refs, 1);
	return save;
}

void ckpt_save_unref(struct ckpt_save *save)
{
	if (!save || atomic_fetch_sub(&save->refs, 1) != 1)
		return;
	while (save->words) {
		struct ckpt_arena_page *next = save->words->next;
		ckpt_free(save->words);
		save->words = next;
	}
	ckpt_plan_free(save->plan);
	ckpt_buf_free(&save->index);
	ckpt_buf_free(&save->manifest);
	ckpt_save_commit_free(save->ranks);
	ckpt_free(save->inlined);
	ckpt_free(save->lanes);
	ckpt_free(save->order);
	ckpt_free(save->tensors);
	ckpt_free(save->aliases);
	ckpt_free(save->streams);
	ckpt_copy_batch_clear(&save->sampling);
	ckpt_copy_batch_clear(&save->look);
	ckpt_copy_batch_clear(&save->replicas);
	ckpt_replica_digest_clear(&save->alike);
	ckpt_copy_batch_clear(&save->halt);
	ckpt_free(save->meta);
	ckpt_upload_entry_unref(save->upload);
	ckpt_latch_destroy(&save->latch);
	ckpt_free(save);
}

struct ckpt_latch *ckpt_save_latch(struct ckpt_save *save)
{
	return &save->latch;
}

const struct ckpt_error *ckpt_save_failure(const struct ckpt_save *save)
{
	return &save->error;
}

uint64_t ckpt_save_step(const struct ckpt_save *save)
{
	return save->step;
}

struct ckpt_engine *ckpt_save_owner(const struct ckpt_save *save)
{
	return save->owner;
}

bool ckpt_save_has_remote(const struct ckpt_save *save)
{
	return save->upload != NULL;
}

struct ckpt_upload_entry *ckpt_save_upload(const struct ckpt_save *save)
{
	return save->upload;
}

bool ckpt_save_started(const struct ckpt_save *save)
{
	return atomic_load(&save->started);
}

bool ckpt_save_refused(const struct ckpt_save *save)
{
	return ckpt_save_started(save) && save->refused;
}

bool ckpt_save_gone(struct ckpt_save *save)
{
	return (ckpt_latch_get(&save->latch) & CKPT_DONE_GONE) != 0;
}

bool ckpt_save_forked(const struct ckpt_save *save)
{
	return save->forks != ckpt_fork_count();
}

void ckpt_save_describe(struct ckpt_save *save, struct ckpt_save_info *ret_info)
{
	uint32_t bits = ckpt_latch_get(&save->latch);

	*ret_info = (struct ckpt_save_info){.size = sizeof(*ret_info),
		.staged = (bits & CKPT_DONE_STAGED) != 0,
		.local = (bits & CKPT_DONE_LOCAL) != 0,
		.failed = (bits & CKPT_DONE_END) && save->error.code < 0,
		.step = save->step,
		.generation = atomic_load(&save->generation),
		.bytes = atomic_load(&save->bytes),
		.bytes_staged = atomic_load(&save->bytes_staged),
		.bytes_written = atomic_load(&save->bytes_written),
		.bytes_stored = atomic_load(&save->bytes_stored),
		.eager_ns = atomic_load(&save->eager_ns),
		.stage_ns = atomic_load(&save->stage_ns),
		.local_ns = atomic_load(&save->local_ns),
		.starved_ns = atomic_load(&save->starved_ns),
		.durable_ns = atomic_load(&save->durable_ns)};
}
