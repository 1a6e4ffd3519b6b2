/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: the blocks of a save on their way through staging. Copies start in order as slots come free;
 * a block is written and digested as soon as it is staged, each without waiting for the other.
 */
#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/save/estimate.h"
#include "engine/save/save_state.h"
#include "staging/reader_quota.h"

static struct ckpt_lane *lane_of(const struct ckpt_save *save, size_t block)
{
	return block < save->plan->block_count ? save->lanes[block] : NULL;
}

static const struct ckpt_span *span_of(const struct ckpt_save *save, size_t block)
{
	return &save->plan->blocks[block].span;
}

static void free_lane(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;

	CKPT_ASSERT(!ckpt_task_active(&lane->task) && lane->digesting == lane->digested);
	CKPT_ASSERT(!lane->encoder);
	save->lanes[lane->block] = NULL;
	ckpt_copy_batch_clear(&lane->batch);
	ckpt_pool_put(save->core->parts.pool, lane->slot);
	ckpt_free(lane);
}

void ckpt_pipeline_try_release(struct ckpt_save *save, size_t block)
{
	struct ckpt_lane *lane = lane_of(save, block);

	if (!lane || save->hold || !lane->written || !lane->digested)
		return;
	if (block + 1 < save->plan->block_count && span_of(save, block + 1)->straddled) {
		const struct ckpt_lane *after = lane_of(save, block + 1);
		/* Blocks start in order here: no lane yet means that it is still to come. */
		if (block + 1 >= save->next || (after && !after->digested))
			return;
		/* The same chunk is encoded with it. */
		if (after && save->encoding && !after->encoded)
			return;
	}
	free_lane(lane);
}

/* Of the tensors in a chunk that have digests of their own, and that small ones share. */
static void digest_tensors(const struct ckpt_lane *lane, const struct ckpt_chunk *chunk)
{
	const struct ckpt_plan *plan = lane->save->plan;
	const struct ckpt_layout *layout = plan->layout;
	const struct ckpt_entry *last = layout->entries + layout->entry_count;
	const struct ckpt_entry *e = ckpt_layout_at(layout, chunk->offset);

	for (; e && e < last && e->offset < chunk->offset + chunk->length; e++) {
		if (!e->own)
			continue;
		struct ckpt_pieces p = ckpt_blocks_pieces(e->offset, e->nbytes,
			plan->blocks[lane->block].span.offset, plan->block_bytes,
			lane->before ? lane->before->slot->data : NULL, lane->slot->data);
		layout->digests[e->own - 1] =
			ckpt_digest_of_two(p.head, p.head_length, p.tail, p.tail_length);
	}
}

static void digest_work(struct ckpt_job *job)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(job, struct ckpt_lane, digest);
	struct ckpt_plan *plan = lane->save->plan;
	const struct ckpt_span *span = &plan->blocks[lane->block].span;

	for (size_t i = 0; i < span->chunk_count; i++) {
		struct ckpt_chunk *chunk = &plan->layout->chunks[span->first_chunk + i];
		struct ckpt_pieces p = ckpt_blocks_pieces(chunk->offset, chunk->length,
			span->offset, plan->block_bytes,
			lane->before ? lane->before->slot->data : NULL, lane->slot->data);
		chunk->digest = ckpt_digest_of_two(p.head, p.head_length, p.tail, p.tail_length);
		if (plan->layout->digest_count > 0)
			digest_tensors(lane, chunk);
	}
}

static void digest_done(struct ckpt_node *node)
{
	struct ckpt_job *job = CKPT_CONTAINER(node, struct ckpt_job, node);
	struct ckpt_lane *lane = CKPT_CONTAINER(job, struct ckpt_lane, digest);
	struct ckpt_save *save = lane->save;
	size_t block = lane->block;

	lane->digested = true;
	save->digested_count++;
	save->working--;
	ckpt_pipeline_try_release(save, block);
	if (block > 0)
		ckpt_pipeline_try_release(save, block - 1);
	ckpt_task_wake(&save->task);
}

/* Starts the digests of the chunks that end in a block, once all their bytes are staged. */
static void try_digest(struct ckpt_save *save, size_t block)
{
	struct ckpt_lane *lane = lane_of(save, block);

	if (!lane || !lane->staged || lane->digesting)
		return;
	if (span_of(save, block)->straddled) {
		/* Started before this one, unless all are kept, and kept until this one is digested. */
		lane->before = lane_of(save, block - 1);
		CKPT_ASSERT(lane->before || save->hold);
		if (!lane->before || !lane->before->staged)
			return;
	}
	lane->digesting = true;
	lane->digest.work = digest_work;
	lane->digest.node.run = digest_done;
	save->working++;
	ckpt_env_run(save->core->parts.env, &lane->digest);
}

static void copy_fed(struct ckpt_copy_batch *batch)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(batch, struct ckpt_lane, batch);

	lane->fed = true;
	ckpt_task_wake(&lane->task);
}

static void copy_done(struct ckpt_copy_batch *batch)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(batch, struct ckpt_lane, batch);

	lane->copied = true;
	ckpt_task_wake(&lane->task);
}

static void start_copy(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;
	const struct ckpt_plan_block *block = &save->plan->blocks[lane->block];
	struct ckpt_segment *segments = &save->plan->segments[block->first_segment];
	const struct ckpt_copy like = {.direction = CKPT_COPY_TO_STAGING,
		.segments = segments,
		.count = block->segment_count,
		.seed = save->seed,
		.sampled = true,
		.eager = block->eager,
		.stop = &save->stopped};
	char *at = lane->slot->data;

	for (size_t i = 0; i < block->segment_count; i++) {
		segments[i].staged = at;
		at += segments[i].length;
	}
	lane->batch.fed = copy_fed;
	lane->batch.done = copy_done;
	save->copying += block->devices & 1;
	ckpt_copy_batch_start(&lane->batch, save->core->parts.devices, block->devices, &like);
}

static void torn(struct ckpt_save *save, const struct ckpt_segment *segment)
{
	const char *name = segment->tensor == CKPT_PLAN_HEADER
				   ? "the header"
				   : save->tensors[segment->tensor].name;

	ckpt_save_stop(save, ckpt_fail_at(&save->work, CKPT_ETORN,
				     &(struct ckpt_where){.tier = "memory",
					     .tensor = name,
					     .has_offset = true,
					     .offset = segment->offset},
				     "tensor %s was changed before its copy for step %llu was "
				     "complete: wait for "
				     "the fence (wait_staged) before changing it, or mark it eager",
				     name, (unsigned long long)save->step));
}

static void look_at_copy(const struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;
	const struct ckpt_copy_batch *batch = &lane->batch;

	if (batch->code < 0)
		ckpt_save_stop(
			save, ckpt_fail(&save->work, batch->code, "cannot copy to staging: %s",
				      batch->error ? batch->error->message
						   : ckpt_code_text(batch->code)));
	else if (batch->torn >= 0)
		torn(save, &batch->parts[0].copy.segments[batch->torn]);
}

/* The CPU has nothing to do with the tensors any more. */
static void count_fed(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;
	const struct ckpt_plan_block *block = &save->plan->blocks[lane->block];

	save->copying -= block->devices & 1;
	look_at_copy(lane);
	if (save->code) {
		ckpt_save_answer_end(save);
		return;
	}
	save->fed_count++;
	if (block->eager && --save->eager_left == 0) {
		atomic_store(&save->eager_ns, ckpt_env_now(save->core->parts.env) - save->start_ns);
		ckpt_core_answer(save->core, &save->latch, CKPT_DONE_EAGER);
	}
	if (save->fed_count == save->plan->block_count)
		ckpt_core_answer(save->core, &save->latch, CKPT_DONE_FED);
}

void ckpt_pipeline_say_staged(struct ckpt_save *save)
{
	/* Without a stream that is held back, whoever hears it changes what GPUs have yet to sample. */
	if (save->code || save->staged_count < save->plan->block_count || save->replicas.left > 0)
		return;
	uint64_t since_ns = ckpt_env_now(save->core->parts.env) - save->start_ns;

	atomic_store(&save->stage_ns, since_ns);
	save->core->stats.last_stage_ns = since_ns;
	ckpt_core_answer(save->core, &save->latch, CKPT_DONE_STAGED);
}

/* A copy has come back. */
static void count_staged(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;

	look_at_copy(lane);
	if (save->code)
		return;
	lane->staged = true;
	save->staged_count++;
	atomic_fetch_add(&save->bytes_staged, span_of(save, lane->block)->length);
	ckpt_pipeline_say_staged(save);
	try_digest(save, lane->block);
	try_digest(save, lane->block + 1);
	ckpt_encoding_note_staged(save, lane->block);
}

int ckpt_pipeline_write_failed(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;

	save->file_failed = true;
	/* Without the whole shard in staging there is no second try. */
	if (!save->hold)
		ckpt_save_stop(save, lane->op.result);
	return lane->op.result;
}

void ckpt_pipeline_note_written(struct ckpt_lane *lane)
{
	struct ckpt_save *save = lane->save;

	lane->written = true;
	save->written_count++;
	atomic_fetch_add(&save->bytes_written, span_of(save, lane->block)->length);
}

static int lane_write_body(struct ckpt_task *task)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(task, struct ckpt_lane, task);
	struct ckpt_save *save = lane->save;
	const struct ckpt_span *span = span_of(save, lane->block);
	uint64_t padded;

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, save->file_open || save->code);
	if (save->code)
		return save->code;
	padded = ckpt_align_up(span->length, save->core->store->align);
	memset(lane->slot->data + span->length, 0, padded - span->length);
	ckpt_store_op_init(&lane->op, task, &save->work);
	ckpt_store_write(save->core->store, &lane->op, &save->object, lane->slot->data, padded,
		span->offset, (int)lane->slot->number);
	CKPT_AWAIT(task, lane->op.done);
	if (lane->op.result < 0)
		return ckpt_pipeline_write_failed(lane);
	ckpt_pipeline_note_written(lane);
	CKPT_TASK_END(task);
}

static ckpt_task_fn *write_body_of(const struct ckpt_save *save)
{
	return save->encoding ? ckpt_encoding_lane_body : lane_write_body;
}

static int lane_body(struct ckpt_task *task)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(task, struct ckpt_lane, task);

	CKPT_TASK_BEGIN(task);
	/* Stopped before its turn: the end may have been told, and the tensors be gone. */
	if (lane->save->code)
		return lane->save->code;
	start_copy(lane);
	CKPT_AWAIT(task, lane->fed);
	count_fed(lane);
	CKPT_AWAIT(task, lane->copied);
	count_staged(lane);
	if (lane->save->code)
		return lane->save->code;
	return ckpt_task_continue(task, write_body_of(lane->save));
	CKPT_TASK_END(task);
}

static void lane_done(struct ckpt_task *task)
{
	struct ckpt_lane *lane = CKPT_CONTAINER(task, struct ckpt_lane, task);
	struct ckpt_save *save = lane->save;

	save->working--;
	ckpt_encoding_lane_done(lane);
	ckpt_pipeline_try_release(save, lane->block);
	ckpt_task_wake(&save->task);
}

static int start_lane(struct ckpt_save *save, struct ckpt_slot *slot)
{
	size_t block = save->order ? save->order[save->next] : save->next;
	struct ckpt_lane *lane = ckpt_alloc(sizeof(*lane));

	if (!lane || ckpt_copy_batch_reserve(&lane->batch, save->plan->blocks[block].devices) < 0) {
		ckpt_free(lane);
		ckpt_pool_put(save->core->parts.pool, slot);
		return ckpt_fail(&save->work, -ENOMEM, "out of memory");
	}
	lane->save = save;
	lane->slot = slot;
	lane->block = block;
	save->next++;
	save->lanes[lane->block] = lane;
	save->working++;
	ckpt_task_start(&lane->task, &save->core->sched, lane_body, lane_done);
	return 0;
}

static void count_starved(struct ckpt_save *save, bool starved)
{
	uint64_t now_ns = ckpt_env_now(save->core->parts.env);

	if (starved && !save->starved_since) {
		save->starved_since = now_ns;
		save->core->stats.pool_starved++;
	} else if (!starved && save->starved_since) {
		atomic_fetch_add(&save->starved_ns, now_ns - save->starved_since);
		save->starved_since = 0;
	}
}

/* Whoever holds every block may not wait for the last one: what is lent is its own as soon as it is back. */
static void owe(const struct ckpt_save *save)
{
	if (save->hold)
		ckpt_pool_owe(
			save->core->parts.pool, (unsigned)(save->plan->block_count - save->next));
}

static int pump_body(struct ckpt_task *task)
{
	struct ckpt_save *save = CKPT_CONTAINER(task, struct ckpt_save, pump);
	struct ckpt_slot *slot;

	while (!save->code && save->next < save->plan->block_count) {
		slot = ckpt_pool_get(save->core->parts.pool);
		if (!save->hold)
			count_starved(save, slot == NULL);
		if (!slot)
			return CKPT_TASK_PENDING;
		int r = start_lane(save, slot);
		if (r < 0)
			ckpt_save_stop(save, r);
		owe(save);
	}
	return 0;
}

static void pump_done(struct ckpt_task *task)
{
	struct ckpt_save *save = CKPT_CONTAINER(task, struct ckpt_save, pump);

	ckpt_pool_set_waiter(save->core->parts.pool, NULL);
	/* One that was stopped leaves the rest to those who read. */
	ckpt_pool_owe(save->core->parts.pool, 0);
	ckpt_reader_quotas_wake(ckpt_pool_shares(save->core->parts.pool));
	ckpt_task_wake(&save->task);
}

/* With room for the whole shard the blocks that somebody waits for come first. */
static int order_blocks(struct ckpt_save *save)
{
	const struct ckpt_plan *plan = save->plan;
	size_t n = 0;

	for (size_t i = 0; i < plan->block_count; i++)
		save->eager_left += plan->blocks[i].eager;
	if (save->eager_left == 0 || !save->hold)
		return 0;
	save->order = ckpt_alloc_array(plan->block_count, sizeof(*save->order));
	if (!save->order)
		return -ENOMEM;
	for (int eager = 1; eager >= 0; eager--)
		for (size_t i = 0; i < plan->block_count; i++)
			if (plan->blocks[i].eager == (eager == 1))
				save->order[n++] = i;
	return 0;
}

static uint64_t gpus_of(const struct ckpt_save *save)
{
	return save->devices & ~UINT64_C(1);
}

static void halted(struct ckpt_copy_batch *batch)
{
	struct ckpt_save *save = CKPT_CONTAINER(batch, struct ckpt_save, halt);

	save->halting = false;
	ckpt_save_answer_end(save);
	ckpt_task_wake(&save->task);
}

void ckpt_pipeline_halt(struct ckpt_save *save)
{
	const struct ckpt_copy like = {.direction = CKPT_COPY_NOTHING};

	atomic_store(&save->stopped, true);
	/* Nothing of it is with anybody. */
	if (!gpus_of(save) || (save->working == 0 && !save->looking))
		return;
	save->halt.done = halted;
	save->halting = true;
	ckpt_copy_batch_start(&save->halt, save->core->parts.devices, gpus_of(save), &like);
}

int ckpt_pipeline_start(struct ckpt_save *save)
{
	struct ckpt_pool *pool = save->core->parts.pool;
	size_t count = save->plan->block_count;

	save->hold = ckpt_pool_free(pool) + ckpt_pool_lent(pool) >= count;
	ckpt_save_take_base(save);
	/* Stopping it must not fail. */
	if (ckpt_copy_batch_reserve(&save->halt, gpus_of(save)) < 0)
		return ckpt_fail(&save->work, -ENOMEM, "out of memory");
	save->lanes = ckpt_alloc_array(count, sizeof(struct ckpt_lane *));
	if (!save->lanes || order_blocks(save) < 0)
		return ckpt_fail(&save->work, -ENOMEM, "out of memory");
	ckpt_encoding_start(save);
	ckpt_replica_digest_start(save);
	int r = ckpt_samples_start(save);
	if (r < 0)
		return r;
	if (save->eager_left == 0)
		ckpt_core_answer(save->core, &save->latch, CKPT_DONE_EAGER);
	if (save->hold) {
		ckpt_pool_sort(pool);
		while (r == 0 && save->next < count && ckpt_pool_free(pool) > 0)
			r = start_lane(save, ckpt_pool_get(pool));
		if (r < 0 || save->next == count)
			return r;
		owe(save);
	}
	ckpt_pool_set_waiter(pool, &save->pump);
	ckpt_task_start(&save->pump, &save->core->sched, pump_body, pump_done);
	return 0;
}

void ckpt_pipeline_rewrite(struct ckpt_save *save)
{
	CKPT_ASSERT(save->hold && save->working == 0);
	save->written_count = 0;
	for (size_t i = 0; i < save->plan->block_count; i++) {
		struct ckpt_lane *lane = save->lanes[i];
		lane->written = false;
		save->working++;
		ckpt_task_start(&lane->task, &save->core->sched, write_body_of(save), lane_done);
	}
	if (save->encoding)
		ckpt_encoding_restart(save);
}

/* What goes on to the remote store need not be read again as long as it lies there. Without memory it is. */
static void note_staged_shard(struct ckpt_save *save)
{
	/* An encoded shard goes on from its file. */
	if (!save->hold || save->code || save->encoding ||
		!ckpt_upload_queue_takes(save->core, save->step))
		return;
	save->staged_shard = ckpt_pipeline_staged_shard(save);
}

struct ckpt_staged_shard *ckpt_pipeline_staged_shard(const struct ckpt_save *save)
{
	size_t count = save->plan->block_count;
	struct ckpt_staged_shard *staged = ckpt_staged_shard_new(count);

	for (size_t i = 0; staged && i < count; i++) {
		staged->blocks[i].slot = save->lanes[i]->slot->number;
		staged->blocks[i].uses = save->lanes[i]->slot->uses;
	}
	return staged;
}

void ckpt_pipeline_release_all(struct ckpt_save *save)
{
	CKPT_ASSERT(ckpt_pipeline_quiet(save));
	note_staged_shard(save);
	if (save->lanes)
		ckpt_estimate_choose(save);
	ckpt_encoding_note_next_base(save);
	for (size_t i = 0; save->lanes && i < save->plan->block_count; i++)
		if (save->lanes[i])
			free_lane(save->lanes[i]);
	ckpt_encoding_end(save);
	/* The last to be put back is the first to be taken: not what the next step is predicted from. */
	ckpt_save_drop_base(save);
}

bool ckpt_pipeline_finished(const struct ckpt_save *save)
{
	return save->written_count == save->plan->block_count &&
	       save->digested_count == save->plan->block_count && save->sampling.left == 0 &&
	       save->replicas.left == 0;
}

bool ckpt_pipeline_quiet(const struct ckpt_save *save)
{
	CKPT_ASSERT(save->copying <= save->working);
	return save->working == 0 && !ckpt_task_active(&save->pump);
}
