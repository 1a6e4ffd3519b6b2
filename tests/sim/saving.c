/* SPDX-License-Identifier: Apache-2.0 */
/* One save of a simulated training, with all that a user may do to it. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "audit.h"
#include "base/error.h"
#include "engine/lineage/lineage.h"
#include "engine/save/save_state.h"
#include "format/naming.h"
#include "user.h"
#include "world.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
/* Beyond the deadline of a save: for copies that must come back, and for the scheduler. */
#define SLACK       (2 * SECOND)

static struct sim_user *user_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct sim_user, saving);
}

static struct sim *sim_of(const struct sim_user *u)
{
	return &u->proc->world->sim;
}

static uint32_t bits(struct sim_user *u)
{
	return ckpt_latch_get(ckpt_save_latch(u->save));
}

static uint64_t timeout_ns(const struct sim_user *u)
{
	return u->proc->world->plan.timeout_ms * MILLISECOND;
}

/* Something of it there is copied behind the training, and so can be changed too early. */
static bool can_tear(const struct sim_user *u, bool gpu, uint64_t least)
{
	const struct sim_shape *shape = u->live.shape;

	for (size_t i = 0; i < shape->count; i++) {
		const struct sim_tensor *t = &shape->tensors[i];
		if (t->gpu == gpu && !t->eager && t->bytes >= least)
			return true;
	}
	return false;
}

static struct sim_gpu *gpu_of(const struct sim_user *u)
{
	return &u->proc->gpu;
}

static bool on_gpu(const struct sim_user *u)
{
	return sim_shape_on_gpu(u->live.shape);
}

/* Other bytes: in the memory of the CPU at once, in that of a GPU by kernels. */
static void compute(struct sim_user *u, unsigned parts, uint64_t version)
{
	sim_state_fill_parts(&u->live, parts & SIM_PART_HOST, version);
	if ((parts & SIM_PARTS_GPU) && on_gpu(u))
		sim_gpu_launch(gpu_of(u), &u->live, parts & SIM_PARTS_GPU, version);
}

static void compute_all(struct sim_user *u, uint64_t version)
{
	compute(u, SIM_PART_HOST | SIM_PARTS_GPU, version);
}

static void pick_ways(struct sim_user *u)
{
	struct sim *sim = sim_of(u);

	u->fenced = sim_chance(sim, 6000);
	u->cheats = u->fenced && sim_fault(sim, SIM_EARLY);
	u->cancels = sim_fault(sim, SIM_CANCEL);
	u->late = u->fenced && !u->cheats && sim_chance(sim, 2500) && sim_fault(sim, SIM_CANCEL);
	u->cheated = u->cheated_host = false;
	u->cancelled = false;
	u->too_late = false;
	u->acked = false;
	u->committed = false;
	u->computes_ns = sim_chance(sim, 4000) ? sim_below(sim, 12 * MILLISECOND) : 0;
	if (u->late)
		u->computes_ns = timeout_ns(u) + SECOND;
	if (u->config.careful)
		u->fenced = u->cheats = u->cancels = u->late = false;
	u->reshapes = !u->live.shape || sim_chance(sim, 1000);
}

/* The next step of the training: new bytes in every tensor. */
static void train(struct sim_user *u)
{
	struct world *world = u->proc->world;

	if (u->reshapes) {
		sim_state_free(&u->live);
		u->shape = (unsigned)sim_below(&world->sim, SIM_SHAPES);
		sim_state_init(&u->live, &u->proc->rank->shapes[u->shape]);
	}
	u->streamed = on_gpu(u) && sim_chance(&world->sim, 8500);
	/* Now and then a step that was saved already, or is older. */
	u->again = u->posted_ns && u->step == u->saved_step && u->step == u->last_step &&
		   sim_chance(&world->sim, 200);
	/* The first step of all may be step 0. */
	bool first = u->counts.posted == 0 && u->step == 0 && !u->resumed;
	u->step += u->again ? 0 : sim_between(&world->sim, first ? 0 : 1, 3);
	u->version = world->plan.delta ? ++world->next_version * SIM_SLOW_VERSIONS
				       : sim_random(&world->sim) >> 16;
	compute_all(u, u->version);
}

/* From new to post. 0, or why not. */
static int put_together(struct sim_user *u, struct ckpt_error *err)
{
	struct ckpt_core *core = &u->proc->core;
	struct ckpt_tensor tensors[SIM_TENSORS_MAX];
	size_t count = u->live.shape->count;
	size_t first = (size_t)sim_below(sim_of(u), count + 1);
	char meta[64];

	u->begun++;
	int r = ckpt_save_new(core, NULL, u->step, u->fenced, 0, &u->save);
	if (r < 0) {
		u->save = NULL;
		return r;
	}
	sim_state_tensors(&u->live, tensors);
	r = ckpt_save_put_tensors(u->save, tensors, first, err);
	if (r == 0)
		r = ckpt_save_put_tensors(u->save, tensors + first, count - first, err);
	if (r == 0 && sim_chance(sim_of(u), 2000))
		r = ckpt_save_put_alias(u->save, "tied", tensors[0].name, err);
	int length =
		snprintf(meta, sizeof(meta), "{\"version\":%llu}", (unsigned long long)u->version);
	if (r == 0)
		r = ckpt_save_put_meta(u->save, meta, (size_t)length, err);
	if (r == 0 && u->streamed)
		r = ckpt_save_put_streams(u->save,
			&(struct ckpt_stream){.size = sizeof(struct ckpt_stream),
				.device = CKPT_DEVICE_CUDA,
				.device_index = SIM_GPU_INDEX,
				.handle = SIM_GPU_STREAM},
			1, err);
	if (r == 0)
		r = ckpt_save_prepare(u->save, &u->cache, err);
	return r;
}

/* Its bytes did not get to the disk. */
static bool of_the_shard(const struct ckpt_error *why)
{
	bool moved = strstr(why->message, "cannot write ") || strstr(why->message, "cannot sync ");

	return moved &&
	       (strstr(why->message, ".safetensors in ") || strstr(why->message, ".encoded in "));
}

static void after_end(struct sim_user *u)
{
	const struct ckpt_error *why = ckpt_save_failure(u->save);
	int code = why->code;
	struct world *world = u->proc->world;

	sim_tell(&world->sim, u->proc->id, u->acked ? "saved" : "not saved", why->message,
		(int64_t)u->generation, (int64_t)u->saved_step, code);
	if (u->acked == (code < 0))
		sim_violation(&world->sim, "step %llu is acknowledged, and its error is %d",
			(unsigned long long)u->saved_step, code);
	if (code < 0 && (why->step != (int64_t)u->saved_step || why->rank != 0))
		sim_violation(&world->sim,
			"the error of step %llu is said to be of step %lld, rank %lld",
			(unsigned long long)u->saved_step, (long long)why->step,
			(long long)why->rank);
	if (u->acked && u->again)
		sim_violation(&world->sim, "step %llu was saved twice in one generation",
			(unsigned long long)u->saved_step);
	if (u->acked && u->cheated)
		sim_violation(&world->sim,
			"step %llu was changed before its fence, and is acknowledged",
			(unsigned long long)u->saved_step);
	if (code >= 0)
		return;
	bool fenced = code == CKPT_EFENCED &&
		      oracle_succeeded(&u->proc->rank->oracle, u->proc->id, u->generation);
	bool expected = (code == -ECANCELED && u->cancelled) || (code == CKPT_ESTEP && u->again) ||
			(code == CKPT_ETORN && u->cheated) || (code == -ETIMEDOUT && u->late);
	bool closed = u->proc->core.closing && (code == -ECANCELED || code == CKPT_ECLOSED);
	if (!fenced && !expected && !closed)
		user_judge(u, "save", code, why);
	if (fenced)
		u->failure = code;
	world->counts.told += fenced;
	if (fenced && !u->proc->core.lineage->fenced)
		sim_violation(&world->sim, "p%u was told that it is succeeded, and forgets it",
			u->proc->id);
	/* What ended it beside that. */
	bool other =
		u->cancels || u->cheats || u->proc->core.closing ||
		world->sim.fired[SIM_DEVICE_FAIL] ||
		world->sim.now_ns >= u->posted_ns + (uint64_t)world->plan.timeout_ms * MILLISECOND;
	if (code == -EIO && !other && u->save->hold && !u->save->rewritten && of_the_shard(why))
		sim_violation(&world->sim,
			"the shard of step %llu failed, staging holds all of it, and it is not "
			"written again: %s",
			(unsigned long long)u->saved_step, why->message);
}

/* Nobody and nothing has kept the save that failed from being cleaned up. */
static bool is_alone_to_blame(struct sim_user *u)
{
	const struct world *world = u->proc->world;
	const struct oracle *oracle = &u->proc->rank->oracle;

	return ckpt_save_failure(u->save)->code < 0 && !u->save->committed && !u->save->rewritten &&
	       !u->again && !u->proc->core.lineage->fenced &&
	       !oracle_succeeded(oracle, u->proc->id, u->generation) && !oracle->any_damage &&
	       !world->counts.lies && !world_may_fail(world, -ENOMEM);
}

static int finish_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, bits(u) & CKPT_DONE_END);
	user_done(&u->save_wait);
	after_end(u);
	/* Too late, or once more. */
	if (u->cancels)
		ckpt_save_post_cancel(u->save);
	/* Copies are back once the end is told, or their outcome matters to nobody: the memory is the user's. */
	compute_all(u, u->version + 2);
	/* When the storage lets go of it, nobody can say. */
	u->save_wait.what = "what is left of a save";
	/* What was posted holds the save until it is looked at. */
	CKPT_AWAIT(task, (bits(u) & CKPT_DONE_GONE) && !u->proc->inbox.head);
	user_done(&u->save_wait);
	if (is_alone_to_blame(u))
		audit_failed(sim_of(u), u->proc->rank->disk, u->generation, u->saved_step, u->told);
	u->cache = ckpt_save_take_plan(u->save);
	ckpt_save_unref(u->save);
	u->save = NULL;
	CKPT_TASK_END(task);
}

/* False: the save has failed with why not, as ckpt_save_fence() does it, and its end is to be waited for. */
static bool went_well(struct sim_user *u, int code, const struct ckpt_error *err)
{
	if (code == 0)
		return true;
	user_judge(u, "fence", code, err);
	ckpt_save_post_failure(u->save, err);
	return false;
}

/* What of the tensors the CPU can read. False: the save has failed. */
static bool check_host(struct sim_user *u)
{
	struct ckpt_error err = {.size = sizeof(err)};

	int r = ckpt_save_check_samples(u->save, &err);
	if (r == CKPT_ETORN && u->cheated_host) {
		ckpt_save_post_failure(u->save, &err);
		/* Whoever says it twice has said it once; so for all that is posted. */
		ckpt_save_post_failure(u->save, &err);
		return false;
	}
	if (r < 0)
		sim_violation(
			sim_of(u), "a fence found a change that nobody made: %s", err.message);
	if (u->cheated_host)
		sim_violation(sim_of(u), "a change before the fence of step %llu went unnoticed",
			(unsigned long long)u->saved_step);
	return true;
}

static bool ended(struct sim_user *u)
{
	return bits(u) & CKPT_DONE_END;
}

static bool hold(struct sim_user *u, enum ckpt_hold which)
{
	struct ckpt_error err = {.size = sizeof(err)};

	return went_well(u, ckpt_save_hold(u->save, which, 0, &err), &err);
}

/* From here on the training may change everything. */
static int go_on(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	compute_all(u, u->version + 1);
	return ckpt_task_continue(task, finish_body);
}

/* The fence, as ckpt_save_fence() does it once everything is copied, or is to be before what the streams do. */
static int pass_fence_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	struct ckpt_error err = {.size = sizeof(err)};

	CKPT_TASK_BEGIN(task);
	if (u->fenced && !check_host(u))
		return go_on(task);
	if (u->fenced && ckpt_save_looks(u->save)) {
		if (!went_well(u, ckpt_save_follow(u->save, &err), &err))
			return ckpt_task_continue(task, finish_body);
		ckpt_save_post_look(u->save);
		ckpt_save_post_look(u->save);
		CKPT_AWAIT(task, (bits(u) & CKPT_DONE_LOOKED) || ended(u));
		if (ended(u))
			return go_on(task);
	}
	if (!hold(u, CKPT_HOLD_ALL))
		return ckpt_task_continue(task, finish_body);
	if (u->fenced) {
		ckpt_save_post_gate(u->save);
		ckpt_save_post_gate(u->save);
	}
	return go_on(task);
	CKPT_TASK_END(task);
}

static bool copied(struct sim_user *u, bool eager)
{
	return bits(u) & (ckpt_save_copied_bit(u->save, eager) | CKPT_DONE_STAGED);
}

static int fence_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, copied(u, false) || ended(u));
	if (u->fenced && u->computes_ns > 0) {
		user_sleep(u, &u->save_wait, u->computes_ns);
		CKPT_AWAIT(task, user_slept(u, &u->save_wait) || ended(u));
		u->save_wait.wake_ns = UINT64_MAX;
	}
	/* Who names no stream waits for what is in it. */
	CKPT_AWAIT(task, u->streamed || sim_gpu_computed(gpu_of(u)) || ended(u));
	if (!ended(u))
		return ckpt_task_continue(task, pass_fence_body);
	if (copied(u, false))
		return go_on(task);
	return ckpt_task_continue(task, finish_body);
	CKPT_TASK_END(task);
}

static void post(struct sim_user *u)
{
	struct world *world = u->proc->world;

	u->saved_step = u->last_step = u->step;
	/* A step that is saved again may be of the generation before. */
	if (!u->again)
		u->saved_generation = u->generation;
	u->saved_version = u->version;
	u->posted_ns = world->sim.now_ns;
	u->told = 0;
	if (!u->again)
		oracle_saving(&u->proc->rank->oracle, u->generation, u->step, u->version, u->shape);
	sim_tell(&world->sim, u->proc->id, "save", u->fenced ? "fenced" : "",
		(int64_t)u->generation, (int64_t)u->step, 0);
	u->counts.posted++;
	ckpt_save_post(u->save);
	user_expect(u, &u->save_wait, "a save", timeout_ns(u) + SLACK);
}

/* Before it may: all of it, or of the GPU alone, which the fence's thread cannot see. */
static void cheat(struct sim_user *u)
{
	bool gpu = on_gpu(u) && sim_chance(sim_of(u), 5000) && can_tear(u, true, sizeof(uint64_t));

	sim_note(sim_of(u), u->proc->id, "too early", gpu ? "on the GPU" : "", 0, 0, 0);
	u->cheated_host = !gpu && can_tear(u, false, 1);
	u->cheated = u->cheated_host || can_tear(u, true, 1);
	compute(u, gpu ? SIM_PARTS_GPU : SIM_PART_HOST | SIM_PARTS_GPU, ~u->version);
}

/* Beside a save that is under way: what the user does wrong, and that it changes its mind. */
static int beside_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	uint64_t deadline_ns;

	CKPT_TASK_BEGIN(task);
	if (u->cheats || u->cancels) {
		deadline_ns = u->save_wait.deadline_ns;
		/* At once: before a GPU has taken the samples, if nothing keeps that apart. */
		user_sleep(u, &u->save_wait,
			on_gpu(u) && sim_chance(sim_of(u), 5000)
				? 0
				: sim_below(sim_of(u), MILLISECOND));
		u->save_wait.deadline_ns = deadline_ns;
		CKPT_AWAIT(task, user_slept(u, &u->save_wait) || ended(u));
		u->save_wait.wake_ns = UINT64_MAX;
	}
	if (u->cheats && !ended(u))
		cheat(u);
	if (u->cancels && !ended(u)) {
		sim_note(sim_of(u), u->proc->id, "cancel", "", 0, 0, 0);
		u->cancelled = true;
		ckpt_save_post_cancel(u->save);
		ckpt_save_post_cancel(u->save);
		user_hurry(u, &u->save_wait, "a save that was cancelled", SLACK);
	}
	return ckpt_task_continue(task, fence_body);
	CKPT_TASK_END(task);
}

/* As ckpt_save_wait_eager(), before anything is computed; then what is eager may be changed. */
static int eager_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, copied(u, true) || ended(u));
	if (!ended(u) && !hold(u, CKPT_HOLD_EAGER))
		return ckpt_task_continue(task, finish_body);
	if (sim_chance(sim_of(u), 3000))
		compute(u, SIM_PART_EAGER, u->version + 3);
	return ckpt_task_continue(task, beside_body);
	CKPT_TASK_END(task);
}

static int saving_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	struct ckpt_error err = {.size = sizeof(err)};
	int r;

	CKPT_TASK_BEGIN(task);
	pick_ways(u);
	/* Memory is not given back before the GPU is done with it. */
	CKPT_AWAIT(task, !u->reshapes || sim_gpu_computed(gpu_of(u)));
	train(u);
	CKPT_AWAIT(task, u->streamed || sim_gpu_computed(gpu_of(u)));
	r = put_together(u, &err);
	if (r < 0) {
		user_judge(u, "prepare", r, &err);
		ckpt_save_unref(u->save);
		u->save = NULL;
		return 0;
	}
	post(u);
	return ckpt_task_continue(task, on_gpu(u) ? eager_body : beside_body);
	CKPT_TASK_END(task);
}

static void saving_done(struct ckpt_task *task)
{
	ckpt_task_wake(&user_of(task)->life);
}

void saving_start(struct sim_user *user)
{
	CKPT_ASSERT(!ckpt_task_active(&user->saving) && !user->save);
	ckpt_task_start(&user->saving, &user->sched, saving_body, saving_done);
}

/* A cancel that finds the manifest on its way comes too late: the deadline counts as before. */
static void observe_publishing(struct sim_user *u)
{
	if (u->save->publishing && u->cancelled && !u->too_late) {
		u->too_late = true;
		u->save_wait.deadline_ns = sim_of(u)->now_ns + timeout_ns(u) + SLACK;
	}
}

void user_observe(struct sim_user *u)
{
	struct world *world = u->proc->world;
	char path[CKPT_PATH_MAX];

	if (!u->save || !u->posted_ns || u->committed || u->saved_step != ckpt_save_step(u->save))
		return;
	if (!u->told && (bits(u) & CKPT_DONE_END))
		u->told = world->sim.events;
	observe_publishing(u);
	u->acked = bits(u) & CKPT_DONE_LOCAL;
	bool late = u->save->committed && (bits(u) & CKPT_DONE_END) && !u->acked;
	if ((!u->acked && !late) || u->again)
		return;
	/* Past its deadline it is there without anybody being told; otherwise that would be a lie. */
	if (ckpt_save_failure(u->save)->code < 0 &&
		!(late && ckpt_save_failure(u->save)->code == -ETIMEDOUT))
		sim_violation(&world->sim,
			"step %llu was published after its owner was told that it failed",
			(unsigned long long)u->saved_step);
	u->committed = true;
	world->counts.acked += u->acked;
	world->counts.gpu += u->acked && on_gpu(u);
	world->counts.based += u->acked && u->save->run.count > 0;
	u->counts.acked++;
	u->counts.last_acked = u->saved_step;
	u->retained = u->retention;
	oracle_committed(&u->proc->rank->oracle, u->generation, u->saved_step, &u->retention);
	/* Alone, it knows of everything that there is. */
	if (u->view.alone)
		u->view.time = u->proc->rank->oracle.time;
	ckpt_name_step(path, u->generation, u->saved_step);
	sim_disk_seal(u->proc->rank->disk, path);
	sim_tell(&world->sim, u->proc->id, "acked", "", (int64_t)u->generation,
		(int64_t)u->saved_step, 0);
	world_excite(world);
}
