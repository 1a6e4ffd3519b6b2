/* SPDX-License-Identifier: Apache-2.0 */
/* One restore of a simulated program, compared with what was saved. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "user.h"
#include "world.h"

#define MILLISECOND UINT64_C(1000000)
/* Of a program that restores; of the runtime when it frees; and what a call may take beyond. */
#define PATIENCE    (10000 * MILLISECOND)
#define FREE_NS     (10000 * MILLISECOND)
#define SLACK       (2000 * MILLISECOND)

static struct sim_reading *reading_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct sim_reading, task);
}

static struct sim *sim_of(const struct sim_reading *r)
{
	return &r->user->proc->world->sim;
}

static uint32_t bits(struct sim_reading *r)
{
	return ckpt_latch_get(ckpt_restore_latch(r->restore));
}

/* What its program knew when it began, and who has come since. */
static struct oracle_view view_of(const struct sim_reading *r)
{
	struct oracle_view view = r->user->view;

	view.time = r->time;
	return view;
}

static void free_ranges(struct sim_reading *r)
{
	for (size_t i = 0; i < r->range_count; i++)
		free(r->ranges[i].data);
	r->range_count = 0;
}

void reading_drop(struct sim_reading *reading)
{
	sim_state_free(&reading->into);
	free_ranges(reading);
}

bool reading_active(const struct sim_reading *reading)
{
	return ckpt_task_active(&reading->task);
}

/* What it failed with, if it did, must be explained by what the oracle knows or what goes wrong. */
static int failed(struct sim_reading *r, int code)
{
	struct world *world = r->user->proc->world;
	struct oracle_view view = view_of(r);
	bool by_user = (code == -ECANCELED && r->gave_up) ||
		       (code == CKPT_ECLOSED && r->user->proc->core.closing);
	bool known = code == CKPT_ENOSTEP || code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE ||
		     code == CKPT_EFORMAT || code == CKPT_EQUARANTINED;

	sim_tell(&world->sim, r->user->proc->id, "not restored",
		r->restore ? ckpt_restore_failure(r->restore)->message : "", (int64_t)r->asked, 0,
		code);
	if (known && r->vouched && r->user->view.locks && code != CKPT_ENOSTEP &&
		r->vouched == 1 + r->user->proc->rank->oracle.hits &&
		r->vouched_generation == ckpt_restore_chosen_generation(r->restore))
		sim_violation(&world->sim, "step %llu was verified and found good, and is refused",
			(unsigned long long)r->asked);
	if (known) {
		const struct ckpt_error *error = ckpt_restore_failure(r->restore);
		const struct oracle_named named = {
			.generation = ckpt_restore_chosen_generation(r->restore),
			.step = ckpt_restore_chosen_step(r->restore),
			.said = error->file[0] &&
				(!ckpt_restore_chosen_generation(r->restore) ||
					error->step ==
						(int64_t)ckpt_restore_chosen_step(r->restore))};
		oracle_refused(&r->user->proc->rank->oracle, &view, r->asked, code, &named);
		world->counts.refused += code != CKPT_ENOSTEP;
	} else if (by_user && !r->give_up && code == -ECANCELED)
		user_judge(r->user, "restore", -ETIMEDOUT, NULL);
	/* Removed under its hands, by somebody whom its lock does not keep away. */
	else if (!by_user && !(code == -EBUSY && !view.locks))
		user_judge(r->user, r->verify ? "verify" : "restore", code,
			r->restore ? ckpt_restore_failure(r->restore) : NULL);
	return code;
}

static int bind_all(struct sim_reading *r)
{
	struct ckpt_target targets[SIM_TENSORS_MAX];

	sim_state_init(&r->into, &r->user->proc->rank->shapes[r->record->shape]);
	sim_state_poison(&r->into);
	sim_state_targets(&r->into, targets);
	return ckpt_restore_add_targets(r->restore, targets, r->into.shape->count, &r->error);
}

static int bind_ranges(struct sim_reading *r)
{
	const struct sim_shape *shape = &r->user->proc->rank->shapes[r->record->shape];
	size_t count = (size_t)sim_between(sim_of(r), 1, CKPT_COUNT(r->ranges));

	for (size_t i = 0; i < count; i++) {
		size_t tensor = (size_t)sim_below(sim_of(r), shape->count);
		uint64_t bytes = shape->tensors[tensor].bytes;
		if (bytes == 0)
			continue;
		uint64_t offset = sim_below(sim_of(r), bytes);
		uint64_t length = sim_between(sim_of(r), 1, bytes - offset);
		char *data = sim_alloc(length);
		r->ranges[r->range_count].tensor = tensor;
		r->ranges[r->range_count].offset = offset;
		r->ranges[r->range_count].length = length;
		r->ranges[r->range_count++].data = data;
		struct ckpt_target target = {.size = sizeof(target),
			.name = shape->tensors[tensor].name,
			.offset = offset,
			.length = length,
			.data = data};
		if (shape->tensors[tensor].gpu && sim_chance(sim_of(r), 5000))
			target.device = CKPT_DEVICE_CUDA;
		int code = ckpt_restore_add_targets(r->restore, &target, 1, &r->error);
		if (code < 0)
			return code;
	}
	return 0;
}

/* The step is open: is it one that may be chosen, and does it describe what was saved? */
static int opened(struct sim_reading *r)
{
	struct world *world = r->user->proc->world;
	struct oracle_view view = view_of(r);

	r->generation = ckpt_restore_chosen_generation(r->restore);
	r->step = ckpt_restore_chosen_step(r->restore);
	r->record = oracle_chosen(
		&r->user->proc->rank->oracle, &view, r->asked, r->generation, r->step);
	if (!r->record)
		return -EPROTO;
	const struct ckpt_index *index = ckpt_restore_index(r->restore);
	char meta[64];
	(void)snprintf(
		meta, sizeof(meta), "{\"version\":%llu}", (unsigned long long)r->record->version);
	if (index && (!index->meta || strcmp(index->meta, meta) != 0))
		sim_violation(&world->sim, "step %llu came back with meta %s instead of %s",
			(unsigned long long)r->step, index->meta ? index->meta : "(none)", meta);
	int code = r->by_ranges ? bind_ranges(r) : bind_all(r);
	if (code < 0)
		user_judge(r->user, "bind", code, &r->error);
	return code;
}

/* Every byte. */
static void compare(struct sim_reading *r)
{
	struct world *world = r->user->proc->world;
	const struct sim_shape *shape = &r->user->proc->rank->shapes[r->record->shape];
	const char *name = r->by_ranges ? NULL : sim_state_check(&r->into, r->record->version);

	for (size_t i = 0; i < r->range_count; i++)
		if (!sim_state_check_range(shape, r->ranges[i].tensor, r->record->version,
			    r->ranges[i].offset, r->ranges[i].length, r->ranges[i].data))
			name = shape->tensors[r->ranges[i].tensor].name;
	if (name)
		sim_violation(&world->sim,
			"tensor %s of step %llu of generation %llu came back different", name,
			(unsigned long long)r->step, (unsigned long long)r->generation);
	world->counts.restored++;
	sim_tell(&world->sim, r->user->proc->id, "restored", "", (int64_t)r->generation,
		(int64_t)r->step, 0);
}

static void judge_end(struct sim_reading *r)
{
	struct oracle_view view = view_of(r);
	int code = ckpt_restore_failure(r->restore)->code;

	if (code < 0) {
		r->result = failed(r, code);
		return;
	}
	if (r->verify) {
		/* Found good: it must be one that was saved. */
		r->generation = ckpt_restore_chosen_generation(r->restore);
		r->step = ckpt_restore_chosen_step(r->restore);
		(void)oracle_chosen(
			&r->user->proc->rank->oracle, &view, r->asked, r->generation, r->step);
		r->good = true;
		return;
	}
	if (r->record)
		compare(r);
}

/*
 * As ckpt_restore_free(): waits until nothing is copied into the targets any more, which no disk can
 * hold up; for the core to let go, it waits a while.
 */
static int release_body(struct ckpt_task *task)
{
	struct sim_reading *r = reading_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_restore_post_release(r->restore);
	user_expect(r->user, &r->wait, "the end of a restore that is released", SLACK);
	CKPT_AWAIT(task, bits(r) & (CKPT_DONE_END | CKPT_DONE_GONE));
	user_expect(r->user, &r->wait, "release", FREE_NS + SLACK);
	user_sleep(r->user, &r->wait, FREE_NS);
	CKPT_AWAIT(task, (bits(r) & CKPT_DONE_GONE) || user_slept(r->user, &r->wait));
	if (!(bits(r) & CKPT_DONE_GONE))
		r->user->proc->world->counts.abandoned++;
	user_done(&r->wait);
	ckpt_restore_unref(r->restore);
	r->restore = NULL;
	reading_drop(r);
	CKPT_TASK_END(task);
}

/* Patience is over: it must end now, whatever its storage does. */
static int give_up_body(struct ckpt_task *task)
{
	struct sim_reading *r = reading_of(task);

	CKPT_TASK_BEGIN(task);
	sim_note(sim_of(r), r->user->proc->id, "gives up", "restore", 0, 0, 0);
	r->gave_up = true;
	ckpt_restore_post_cancel(r->restore);
	user_expect(r->user, &r->wait, "a restore that was given up", SLACK);
	CKPT_AWAIT(task, bits(r) & CKPT_DONE_END);
	user_done(&r->wait);
	judge_end(r);
	return ckpt_task_continue(task, release_body);
	CKPT_TASK_END(task);
}

static int run_body(struct ckpt_task *task)
{
	struct sim_reading *r = reading_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, (bits(r) & CKPT_DONE_END) || user_slept(r->user, &r->wait));
	if (!(bits(r) & CKPT_DONE_END))
		return ckpt_task_continue(task, give_up_body);
	user_done(&r->wait);
	judge_end(r);
	return ckpt_task_continue(task, release_body);
	CKPT_TASK_END(task);
}

static int reading_body(struct ckpt_task *task)
{
	struct sim_reading *r = reading_of(task);

	CKPT_TASK_BEGIN(task);
	r->result = ckpt_restore_new(&r->user->proc->core, NULL, r->asked,
		r->verify ? CKPT_SINK_NONE : CKPT_SINK_MEMORY, &r->restore);
	if (r->result < 0) {
		r->restore = NULL;
		user_judge(r->user, "restore", r->result, NULL);
		return 0;
	}
	sim_note(sim_of(r), r->user->proc->id, r->verify ? "verify" : "restore", "",
		(int64_t)r->asked, 0, 0);
	ckpt_restore_post_open(r->restore);
	user_expect(r->user, &r->wait, "restore", PATIENCE + SLACK);
	user_sleep(
		r->user, &r->wait, r->give_up ? sim_below(sim_of(r), 3 * MILLISECOND) : PATIENCE);
	if (r->verify)
		return ckpt_task_continue(task, run_body);
	CKPT_AWAIT(task,
		(bits(r) & (CKPT_DONE_END | CKPT_DONE_OPENED)) || user_slept(r->user, &r->wait));
	if (!(bits(r) & (CKPT_DONE_END | CKPT_DONE_OPENED)))
		return ckpt_task_continue(task, give_up_body);
	if (!(bits(r) & CKPT_DONE_END)) {
		r->result = opened(r);
		if (r->result < 0)
			return ckpt_task_continue(task, release_body);
		ckpt_restore_post_start(r->restore);
	}
	return ckpt_task_continue(task, run_body);
	CKPT_TASK_END(task);
}

static void reading_done(struct ckpt_task *task)
{
	ckpt_task_wake(&reading_of(task)->user->life);
}

void reading_start(struct sim_reading *reading, struct sim_user *user, uint64_t asked)
{
	CKPT_ASSERT(!reading_active(reading));
	reading->user = user;
	reading->asked = asked;
	reading->time = user->view.time;
	reading->result = 0;
	reading->gave_up = false;
	reading->good = false;
	reading->hits = user->proc->rank->oracle.hits;
	reading->record = NULL;
	reading->error = (struct ckpt_error){.size = sizeof(reading->error)};
	ckpt_task_start(&reading->task, &user->sched, reading_body, reading_done);
}
