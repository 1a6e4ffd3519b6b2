/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/save/estimate.h"

#include "base/alloc.h"
#include "base/task_job.h"
#include "config.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"
#include "engine/shard/chunk_parts.h"

#define LEAST 8  /* chunks that are chosen */
#define MOST  64 /* of at most CKPT_CODEC_CHUNK_BYTES each */

/* The first part of a chunk, in the slot in which it was staged. */
struct sample {
	struct ckpt_chunk_part part;
	unsigned slot;
	uint64_t uses; /* of the slot, when it was put back */
	uint32_t at;   /* in it */
};

struct ckpt_estimate {
	struct ckpt_core *core;
	struct ckpt_task task;
	struct ckpt_task_job job;
	uint64_t step;
	size_t chosen;
	size_t next;
	struct sample samples[MOST];
	/* The worker's while the job is under way. */
	struct ckpt_codec *codec;
	uint8_t *out;
	uint64_t bytes; /* of those that were encoded */
	uint64_t bytes_stored;
};

static struct ckpt_estimate *estimate_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct ckpt_estimate, task);
}

static bool is_wanted(const struct ckpt_save *save)
{
	const struct ckpt_core *core = save->core;

	return CKPT_HAVE_CODEC && core->config.rank == 0 && core->config.encoders == 0 &&
	       save->hold && !save->code && !core->saver->estimated &&
	       save->plan->layout->bytes >= core->saver->estimate_min;
}

/* False: it does not lie in one slot. */
static bool choose(const struct ckpt_save *save, size_t chunk, struct sample *ret_sample)
{
	uint32_t block_bytes = save->plan->block_bytes;
	struct ckpt_chunk_parts parts;
	struct ckpt_chunk_part part;

	ckpt_chunk_parts_begin(&parts, save->plan->layout, chunk);
	if (!ckpt_chunk_parts_next(&parts, &part))
		return false;
	size_t block = (size_t)(part.offset / block_bytes);
	if ((part.offset + part.length - 1) / block_bytes != block)
		return false;
	const struct ckpt_slot *slot = save->lanes[block]->slot;
	*ret_sample = (struct sample){.part = part,
		.slot = slot->number,
		.uses = slot->uses,
		.at = (uint32_t)(part.offset % block_bytes)};
	/* The layout may be gone by then. */
	ret_sample->part.entry = NULL;
	return true;
}

void ckpt_estimate_choose(struct ckpt_save *save)
{
	size_t chunks = save->plan->layout->chunk_count;
	size_t count = ckpt_min_u64(ckpt_max_u64(chunks / 100, LEAST), MOST);
	struct ckpt_estimate *e = is_wanted(save) ? ckpt_alloc(sizeof(*e)) : NULL;

	if (!e)
		return;
	CKPT_ASSERT(!save->estimate);
	e->core = save->core;
	e->step = save->step;
	count = ckpt_min_u64(count, chunks);
	for (size_t i = 0; i < count; i++)
		e->chosen +=
			choose(save, (2 * i + 1) * chunks / (2 * count), &e->samples[e->chosen]);
	save->estimate = e;
}

static void free_estimate(struct ckpt_estimate *e)
{
	ckpt_codec_close(e->codec);
	ckpt_free(e->out);
	ckpt_free(e);
}

void ckpt_estimate_drop(struct ckpt_save *save)
{
	if (save->estimate)
		free_estimate(save->estimate);
	save->estimate = NULL;
}

static void encode_work(struct ckpt_job *job)
{
	struct ckpt_estimate *e = CKPT_CONTAINER(job, struct ckpt_estimate, job.job);
	const struct sample *s = &e->samples[e->next];
	const struct ckpt_codec_chunk chunk = {.count = s->part.length / s->part.width,
		.width = s->part.width,
		.kind = s->part.kind};

	if (!e->codec)
		e->codec = ckpt_codec_open(CKPT_SIMD_BEST);
	if (!e->out)
		e->out = ckpt_alloc(ckpt_encode_room(CKPT_CODEC_CHUNK_BYTES));
	if (!e->codec || !e->out)
		return;
	const char *data = ckpt_pool_slot(e->core->parts.pool, s->slot)->data;
	size_t size = ckpt_encode(e->codec, &chunk, data + s->at, e->out);
	e->bytes += s->part.length;
	e->bytes_stored += ckpt_min_u64(size, s->part.length);
}

static void say(const struct ckpt_estimate *e)
{
	ckpt_log(e->core->parts.log, CKPT_LOG_INFO,
		"encoding \"compact\" would have made the file of step %llu about %.2f times "
		"smaller, or more if it has master weights (by a sample of %.1f MiB)",
		(unsigned long long)e->step, (double)e->bytes / (double)e->bytes_stored,
		(double)e->bytes / (1 << 20));
}

static int estimate_body(struct ckpt_task *task)
{
	struct ckpt_estimate *e = estimate_of(task);
	struct ckpt_pool *pool = e->core->parts.pool;
	const struct sample *s;

	CKPT_TASK_BEGIN(task);
	for (; e->next < e->chosen; e->next++) {
		s = &e->samples[e->next];
		if (e->core->closing || !ckpt_pool_lend(pool, s->slot, s->uses))
			continue;
		ckpt_task_job_start_behind(&e->job, e->core->parts.env, task, encode_work);
		CKPT_AWAIT(task, e->job.done);
		ckpt_pool_take_back(pool, e->samples[e->next].slot);
	}
	if (e->bytes_stored > 0)
		say(e);
	return 0;
	CKPT_TASK_END(task);
}

static void estimate_done(struct ckpt_task *task)
{
	struct ckpt_estimate *e = estimate_of(task);
	struct ckpt_core *core = e->core;

	free_estimate(e);
	core->commands--;
	ckpt_task_wake(core->closer);
}

void ckpt_estimate_start(struct ckpt_save *save)
{
	struct ckpt_estimate *e = save->estimate;
	struct ckpt_core *core = save->core;

	if (!e)
		return;
	save->estimate = NULL;
	core->saver->estimated = true;
	core->commands++;
	ckpt_task_start(&e->task, &core->sched, estimate_body, estimate_done);
}
