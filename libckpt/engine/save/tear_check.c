/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of a save's tensors: some cache lines are hashed at its start and at its fence, to detect changes. */
#include <errno.h>

#include "base/error.h"
#include "engine/save/save_state.h"

#define AHEAD 4

/* Each sampled line is a cache miss, so some are prefetched while others are hashed. */
static uint64_t sample(const struct ckpt_save *save, size_t segment)
{
	const struct ckpt_plan *plan = save->plan;
	size_t later = segment + AHEAD;

	if (later < plan->segment_count && plan->segments[later].view.device == 0)
		ckpt_segment_expect(&plan->segments[later], save->seed);
	return ckpt_segment_sample(&plan->segments[segment], save->seed, false);
}

void ckpt_save_take_samples(struct ckpt_save *save)
{
	struct ckpt_plan *plan = save->plan;

	for (size_t i = 0; i < plan->segment_count; i++)
		if (plan->segments[i].view.device == 0)
			plan->segments[i].sample = sample(save, i);
}

static int fail_torn(
	const struct ckpt_save *save, const struct ckpt_segment *segment, struct ckpt_error *err)
{
	const char *name = segment->tensor == CKPT_PLAN_HEADER
				   ? "the header"
				   : save->tensors[segment->tensor].name;

	return ckpt_fail_at(err, CKPT_ETORN,
		&(struct ckpt_where){.tier = "memory",
			.tensor = name,
			.has_offset = true,
			.offset = segment->offset},
		"tensor %s was changed between the save of step %llu and its fence: wait for the "
		"fence (wait_staged) before changing it, or mark it eager",
		name, (unsigned long long)save->step);
}

static int check_plan(const struct ckpt_save *save, struct ckpt_error *err)
{
	const struct ckpt_plan *plan = save->plan;

	for (size_t i = 0; i < plan->segment_count; i++) {
		const struct ckpt_segment *s = &plan->segments[i];
		if (s->view.device == 0 && !s->eager && sample(save, i) != s->sample)
			return fail_torn(save, s, err);
	}
	return 0;
}

/* The save may fail meanwhile, and another thread may start the next one and take the plan. */
int ckpt_save_check_samples(struct ckpt_save *save, struct ckpt_error *err)
{
	int r = 0;

	if (!(atomic_fetch_add(&save->plan_users, 1) & CKPT_PLAN_TAKEN))
		r = check_plan(save, err);
	atomic_fetch_sub(&save->plan_users, 1);
	return r;
}

/* Bits of the devices that take samples themselves. */
uint64_t ckpt_save_lookers(const struct ckpt_save *save)
{
	uint64_t mask = 0;

	for (uint64_t left = save->devices & ~UINT64_C(1); left; left &= left - 1) {
		uint32_t number = (uint32_t)__builtin_ctzll(left);
		if (ckpt_devices_get(save->core->parts.devices, number)->samples)
			mask |= UINT64_C(1) << number;
	}
	return mask;
}

bool ckpt_save_looks(const struct ckpt_save *save)
{
	return ckpt_save_lookers(save) != 0;
}

static void start(
	struct ckpt_save *save, struct ckpt_copy_batch *batch, enum ckpt_copy_direction direction)
{
	const struct ckpt_copy like = {.direction = direction,
		.segments = save->plan->segments,
		.count = save->plan->segment_count,
		.seed = save->seed,
		.eager = true,
		.stop = &save->stopped};

	ckpt_copy_batch_start(batch, save->core->parts.devices, ckpt_save_lookers(save), &like);
}

static void take(struct ckpt_save *save, const struct ckpt_copy_batch *batch)
{
	if (batch->code < 0)
		ckpt_save_stop(
			save, ckpt_fail(&save->work, batch->code,
				      "cannot check whether tensors of step %llu were changed: %s",
				      (unsigned long long)save->step, batch->error->message));
	else if (batch->torn >= 0)
		ckpt_save_stop(
			save, fail_torn(save, &save->plan->segments[batch->torn], &save->work));
	ckpt_task_wake(&save->task);
}

static void sampled(struct ckpt_copy_batch *batch)
{
	struct ckpt_save *save = CKPT_CONTAINER(batch, struct ckpt_save, sampling);

	save->working--;
	take(save, batch);
}

static void looked(struct ckpt_copy_batch *batch)
{
	struct ckpt_save *save = CKPT_CONTAINER(batch, struct ckpt_save, look);

	save->looking = false;
	take(save, batch);
	ckpt_core_answer(save->core, &save->latch, CKPT_DONE_LOOKED);
}

int ckpt_samples_start(struct ckpt_save *save)
{
	uint64_t devices = ckpt_save_lookers(save);

	if (!devices)
		return 0;
	if (ckpt_copy_batch_reserve(&save->sampling, devices) < 0 ||
		ckpt_copy_batch_reserve(&save->look, devices) < 0)
		return ckpt_fail(&save->work, -ENOMEM, "out of memory");
	save->sampling.done = sampled;
	save->working++;
	start(save, &save->sampling, CKPT_COPY_SAMPLE);
	return 0;
}

static void look_run(struct ckpt_node *node)
{
	struct ckpt_save *save = CKPT_CONTAINER(node, struct ckpt_save, look_node);

	/* Whoever waits for LOOKED also waits for the end. */
	if (!save->code && !save->ended) {
		save->look.done = looked;
		save->looking = true;
		start(save, &save->look, CKPT_COPY_COMPARE);
		if (!save->look_waited)
			ckpt_core_answer(save->core, &save->latch, CKPT_DONE_LOOKED);
	}
	ckpt_save_unref(save);
}

void ckpt_save_post_look(struct ckpt_save *save)
{
	if (atomic_exchange(&save->look_posted, true))
		return;
	(void)ckpt_save_ref(save);
	save->look_waited = ckpt_save_copied_bit(save, false) == CKPT_DONE_STAGED;
	save->look_node.run = look_run;
	ckpt_inbox_push(save->core->parts.env->inbox, &save->look_node);
}
