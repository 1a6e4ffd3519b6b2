/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a simulated program: open, resume, claim, train, close. */
#include "user.h"

#include <errno.h>
#include <stdlib.h>

#include "audit.h"
#include "base/alloc.h"
#include "engine/lineage/lineage.h"
#include "format/naming.h"
#include "world.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)

static struct sim_user *user_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct sim_user, life);
}

static struct sim *sim_of(const struct sim_user *user)
{
	return &user->proc->world->sim;
}

static struct ckpt_core *core_of(struct sim_user *user)
{
	return &user->proc->core;
}

void user_sleep(struct sim_user *user, struct sim_wait *wait, uint64_t ns)
{
	wait->wake_ns = sim_of(user)->now_ns + ns;
}

bool user_slept(const struct sim_user *user, const struct sim_wait *wait)
{
	return sim_of(user)->now_ns >= wait->wake_ns;
}

void user_expect(struct sim_user *user, struct sim_wait *wait, const char *what, uint64_t ns)
{
	/* What a GPU still writes cannot be ended. A save only has it read, and ends all the same. */
	if (wait != &user->save_wait)
		ns += sim_gpu_rests_ns(&user->proc->gpu);
	*wait = (struct sim_wait){
		.wake_ns = UINT64_MAX, .deadline_ns = sim_of(user)->now_ns + ns, .what = what};
}

void user_hurry(struct sim_user *user, struct sim_wait *wait, const char *what, uint64_t ns)
{
	wait->what = what;
	wait->deadline_ns = ckpt_min_u64(wait->deadline_ns, sim_of(user)->now_ns + ns);
}

void user_done(struct sim_wait *wait)
{
	*wait = (struct sim_wait){.wake_ns = UINT64_MAX, .deadline_ns = UINT64_MAX};
}

void user_judge(struct sim_user *user, const char *what, int code, const struct ckpt_error *error)
{
	struct world *world = user->proc->world;
	const char *message = error && error->message[0] ? error->message : "no message";

	sim_note(&world->sim, user->proc->id, what, message, 0, 0, code);
	if (error && error->code < 0 && !error->message[0])
		sim_violation(
			&world->sim, "%s failed with %s and no message", what, ckpt_strerror(code));
	if (!world_may_fail(world, code))
		sim_violation(&world->sim,
			"%s of p%u failed with %s (%d), and nothing of the kind went wrong: %s",
			what, user->proc->id, ckpt_strerror(code), code, message);
}

/* As long as the runtime waits for the answer to a command; and for the last one of all. */
#define CALL_NS  (10 * SECOND)
#define CLOSE_NS (10 * SECOND)

/* A command, or NULL: then there is nothing but to go on without. */
static struct ckpt_command *prepare(
	struct sim_user *u, size_t size, void (*clear)(struct ckpt_command *command))
{
	CKPT_ASSERT(!u->command);
	u->command = ckpt_command_new(core_of(u), size, clear);
	return u->command;
}

static void post(struct sim_user *user, ckpt_task_fn *body, const char *what, uint64_t ns)
{
	sim_note(sim_of(user), user->proc->id, what, "", 0, 0, 0);
	ckpt_command_post(user->command, body);
	user_expect(user, &user->wait, what, ns + SECOND);
	user_sleep(user, &user->wait, ns);
}

static bool ended(const struct sim_user *user)
{
	return ckpt_latch_get(&user->command->latch) & CKPT_DONE_END;
}

/* The answer, or the user's patience is over. */
static bool answered(const struct sim_user *user)
{
	return ended(user) || user_slept(user, &user->wait);
}

/* The result: -ETIMEDOUT if the command has not ended. */
static int take(struct sim_user *user)
{
	int r = user->command->result;
	int said = user->command->error.code;

	if (!ended(user)) {
		sim_tell(sim_of(user), user->proc->id, "gives up", user->wait.what, 0, 0, 0);
		user->proc->world->counts.abandoned++;
		r = -ETIMEDOUT;
	} else if (r < 0 && said < 0 && r != said) {
		sim_violation(sim_of(user), "%s of p%u ended with %d, and its error says %d: %s",
			user->wait.what, user->proc->id, r, said, user->command->error.message);
	}
	user_done(&user->wait);
	return r;
}

static const struct ckpt_error *reason(const struct sim_user *user, int code)
{
	return user->command && code != -ETIMEDOUT ? &user->command->error : NULL;
}

static void let_go(struct sim_user *user)
{
	if (user->command)
		ckpt_command_unref(user->command);
	user->command = NULL;
}

static bool busy(const struct sim_user *u)
{
	return ckpt_task_active(&u->saving) || reading_active(&u->aside);
}

/* Closing: everything that is under way ends, and everything comes back. */
static int close_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	user_sleep(u, &u->wait, CALL_NS);
	CKPT_AWAIT(task, u->hasty || !busy(u) || user_slept(u, &u->wait));
	user_done(&u->wait);
	/* As in the runtime, this one lies in memory that is there already. */
	u->closer = (struct ckpt_closer){0};
	(void)ckpt_command_init(&u->closer.command, core_of(u));
	u->command = &u->closer.command;
	post(u, ckpt_closer_body, "close", CLOSE_NS);
	CKPT_AWAIT(task, answered(u));
	r = take(u);
	if (r < 0) {
		user_judge(u, "close", r, NULL);
		u->left_behind = true;
		return 0;
	}
	ckpt_command_fini(u->command);
	u->command = NULL;
	CKPT_AWAIT(task, !busy(u));
	audit_counts(u);
	ckpt_plan_free(u->cache);
	u->cache = NULL;
	u->closed = true;
	CKPT_TASK_END(task);
}

/* A step that was saved once, or any. */
static uint64_t pick_step(struct sim_user *u)
{
	const struct oracle *oracle = &u->proc->rank->oracle;

	if (oracle->record_count == 0)
		return 1;
	return oracle->records[sim_below(sim_of(u), oracle->record_count)].step;
}

static bool damaged(int code)
{
	return code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE || code == CKPT_EFORMAT ||
	       code == CKPT_EQUARANTINED;
}

/* That it stays, or is not there, must have a reason. */
static void judge_refusal(struct sim_user *u, int code)
{
	struct world *world = u->proc->world;
	const struct ckpt_core *core = core_of(u);
	bool parent = core->lineage->adopted &&
		      core->lineage->parent_generation == u->saved_generation &&
		      core->lineage->parent_step == u->saved_step;
	bool read = u->used || !u->view.alone;

	if (u->proc->rank->oracle.any_damage || world_may_fail(world, -ENOMEM))
		return;
	if (code == CKPT_ENOSTEP && u->was_owed)
		sim_violation(&world->sim,
			"step %llu is to be removed, and is said not to be there",
			(unsigned long long)u->saved_step);
	/* What could not be read when the store was opened does not count as a good one. */
	if (code == -EBUSY && !read && !parent && u->was_owed && !world->sim.trouble_at &&
		oracle_owed(&u->proc->rank->oracle, &u->view) > 0)
		sim_violation(&world->sim, "step %llu is not removed, and nobody uses it",
			(unsigned long long)u->saved_step);
}

/* Somebody may read what it removes: itself, or another process of its store. */
static bool is_used(const struct sim_user *u)
{
	const struct sim_reading *aside = &u->aside;
	bool other = aside->asked <= CKPT_STEP_MAX && aside->asked != u->saved_step;

	return (reading_active(aside) && !other) || world_crowd(u->proc->rank) > 1;
}

static void note_remove(struct sim_user *u, int code)
{
	if (code == 0 &&
		oracle_only(&u->proc->rank->oracle, &u->view, u->saved_generation, u->saved_step))
		sim_violation(sim_of(u), "step %llu was the only one, and is removed",
			(unsigned long long)u->saved_step);
	/* A successor may have found it half gone, and recorded that. */
	if (code == 0 && !oracle_succeeded(&u->proc->rank->oracle, u->proc->id, u->generation))
		audit_removed(sim_of(u), u->proc->rank->disk, u->saved_generation, u->saved_step);
	judge_refusal(u, code);
	if (code == -EBUSY || code == CKPT_ENOSTEP)
		(void)oracle_let_go(
			&u->proc->rank->oracle, u->saved_generation, u->saved_step, u->was_let_go);
	bool harm = damaged(code) && oracle_shaken(&u->proc->rank->oracle);
	if (code < 0 && code != -EBUSY && code != CKPT_ENOSTEP && !harm)
		user_judge(u, "remove", code, reason(u, code));
}

/* Removes the newest step that this process saved, if it may. */
static int remove_body(struct ckpt_task *task);
/* Pins a step of its own, or lets go of the last pin. */
static int pin_body(struct ckpt_task *task);
static int train_body(struct ckpt_task *task);
static int resume_body(struct ckpt_task *task);

static int remove_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	u->command = ckpt_delete_command_new(core_of(u), u->saved_step);
	if (!u->command)
		return ckpt_task_continue(task, train_body);
	u->was_owed = oracle_owes_step(
		&u->proc->rank->oracle, &u->view, u->saved_generation, u->saved_step);
	u->was_let_go =
		oracle_let_go(&u->proc->rank->oracle, u->saved_generation, u->saved_step, true);
	/* Of its own readings none begins before the answer; who comes meanwhile says so. */
	u->used = is_used(u);
	post(u, ckpt_delete_command_body, "remove", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	note_remove(u, take(u));
	let_go(u);
	return ckpt_task_continue(task, train_body);
	CKPT_TASK_END(task);
}

static int pin_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	struct oracle_retention *kept = &u->retention;
	struct ckpt_pinner *pinner;
	int r;

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(*pinner), NULL))
		return ckpt_task_continue(task, train_body);
	pinner = CKPT_CONTAINER(u->command, struct ckpt_pinner, command);
	u->pins = kept->pin_count < ORACLE_PINS / 2;
	u->pin = u->pins ? u->saved_step : kept->pins[kept->pin_count - 1];
	pinner->pin = u->pins;
	pinner->step = u->pin;
	/* From here on it may count, and may not. */
	if (!u->pins)
		kept->pin_count--;
	post(u, ckpt_pinner_body, "pin", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	r = take(u);
	if (r < 0)
		user_judge(u, "pin", r, reason(u, r));
	let_go(u);
	if (r == 0 && u->pins)
		kept->pins[kept->pin_count++] = u->pin;
	return ckpt_task_continue(task, train_body);
	CKPT_TASK_END(task);
}

/* Claims once more: it is told what it has. */
static int reclaim_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(struct ckpt_claimer), ckpt_claimer_clear))
		return ckpt_task_continue(task, train_body);
	post(u, ckpt_claim_body, "claim", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	r = take(u);
	if ((r < 0 && r != -ETIMEDOUT) || core_of(u)->lineage->generation != u->generation)
		sim_violation(sim_of(u), "p%u has generation %llu, and is told %d", u->proc->id,
			(unsigned long long)u->generation, r);
	let_go(u);
	return ckpt_task_continue(task, train_body);
	CKPT_TASK_END(task);
}

/* What it does between two saves, now and then. */
static ckpt_task_fn *pick_pause(struct sim_user *u)
{
	struct sim *sim = sim_of(u);

	if (u->config.careful || u->counts.posted == 0)
		return NULL;
	if (sim_chance(sim, 500))
		return remove_body;
	if (sim_chance(sim, 500))
		return pin_body;
	if (sim_chance(sim, 300))
		return resume_body;
	if (sim_chance(sim, 100))
		return reclaim_body;
	return NULL;
}

static void read_aside(struct sim_user *u)
{
	struct sim *sim = sim_of(u);

	if (u->config.careful || reading_active(&u->aside) || !sim_chance(sim, 1500))
		return;
	u->aside.by_ranges = sim_chance(sim, 5000);
	u->aside.verify = sim_chance(sim, 2000);
	u->aside.give_up = sim_fault(sim, SIM_CANCEL);
	u->disturbs = true;
	reading_start(&u->aside, u, sim_chance(sim, 3000) ? CKPT_STEP_LATEST : pick_step(u));
}

/* Nothing and nobody has kept its node leader from what it does after every commit. */
static bool is_quiet(struct sim_user *u)
{
	const struct world *world = u->proc->world;

	if (u->counts.acked == 0 || u->counts.last_acked != u->saved_step)
		return false;
	if (u->put_off == u->counts.acked)
		return false;
	/* What was pinned while it was at work may have come too late, and may not. */
	if (u->retention.pin_count != u->retained.pin_count)
		return false;
	if (u->config.careful)
		return true;
	return !u->disturbs && !world->sim.trouble_at && !world->plan.readers &&
	       !world->plan.rivals && !world->plan.zombies && !world_may_fail(world, -ENOMEM) &&
	       u->view.alone && !u->proc->core.lineage->fenced;
}

static int train_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	ckpt_task_fn *pause;

	CKPT_TASK_BEGIN(task);
	while (u->saved < u->config.saves && !u->failure) {
		user_sleep(u, &u->wait, sim_below(sim_of(u), 4 * MILLISECOND));
		CKPT_AWAIT(task, user_slept(u, &u->wait));
		user_done(&u->wait);
		saving_start(u);
		read_aside(u);
		if (!u->config.careful && sim_chance(sim_of(u), 200)) {
			user_sleep(u, &u->wait, sim_below(sim_of(u), 3 * MILLISECOND));
			CKPT_AWAIT(task, user_slept(u, &u->wait));
			u->hasty = true;
			return ckpt_task_continue(task, close_body);
		}
		/* As long as the next one would wait for this one. */
		user_sleep(u, &u->wait, u->proc->world->plan.timeout_ms * MILLISECOND + CALL_NS);
		CKPT_AWAIT(task, !ckpt_task_active(&u->saving) || user_slept(u, &u->wait));
		user_done(&u->wait);
		if (ckpt_task_active(&u->saving)) {
			u->proc->world->counts.abandoned++;
			u->hasty = true;
			break;
		}
		u->saved++;
		pause = u->failure ? NULL : pick_pause(u);
		if (pause && (pause != resume_body || !reading_active(&u->aside)))
			return ckpt_task_continue(task, pause);
	}
	if (u->failure || !is_quiet(u))
		return ckpt_task_continue(task, close_body);
	user_expect(u, &u->wait, "what retention removes", 600 * SECOND);
	CKPT_AWAIT(task, !core_of(u)->gc);
	user_done(&u->wait);
	if (is_quiet(u))
		audit_store(sim_of(u), u->proc->rank, u->generation, &u->retained);
	return ckpt_task_continue(task, close_body);
	CKPT_TASK_END(task);
}

/* One that was taken for dead has removed what this one goes on from, before it looked at the claims. */
static bool parent_gone(struct sim_user *u)
{
	const struct ckpt_core *core = core_of(u);
	char path[CKPT_PATH_MAX];

	if (!core->lineage->adopted)
		return false;
	ckpt_name_manifest(path, core->lineage->parent_generation, core->lineage->parent_step);
	return !sim_disk_exists(u->proc->rank->disk, path);
}

static int claimed(struct sim_user *u, int r)
{
	struct world *world = u->proc->world;
	struct sim_rank *rank = u->proc->rank;
	bool others =
		!u->view.alone || oracle_succeeded(&rank->oracle, u->proc->id, u->view.newest);

	/* Nobody starts beside what there is to be resumed. */
	if (r == 0 && u->careless && oracle_owed(&u->proc->rank->oracle, &u->view) > 0)
		sim_violation(&world->sim,
			"p%u has claimed, and has not resumed from what was acknowledged",
			u->proc->id);
	if (r == CKPT_ENOTRESUMED)
		oracle_not_claimed(&u->proc->rank->oracle, u->proc->id);
	if (r == CKPT_ENOTRESUMED && u->careless)
		return r;
	if (r == 0) {
		u->generation = core_of(u)->lineage->generation;
		oracle_claimed(&rank->oracle, &u->view, u->proc->id, u->generation);
		sim_tell(&world->sim, u->proc->id, "claimed", "", (int64_t)u->generation, 0, 0);
		return 0;
	}
	bool harm = (r == CKPT_ENOTRESUMED && rank->oracle.any_damage) ||
		    (damaged(r) && oracle_shaken(&rank->oracle));
	/* Its own claim, if it cannot be read, is taken for that of another one. */
	if (r == CKPT_EINUSE && !others && !oracle_shaken(&rank->oracle) && !parent_gone(u))
		sim_violation(&world->sim, "p%u is alone, and its claim finds another process",
			u->proc->id);
	/* What was there when it opened may be another one's past by now. */
	else if (!harm && r != CKPT_EINUSE && !(others && r == CKPT_ENOTRESUMED))
		user_judge(u, "claim", r, reason(u, r));
	world->counts.told += r == CKPT_EINUSE;
	if (harm)
		rank->anew = true;
	return r;
}

/* Two at once, as far as this one can see. */
static void meet_rivals(struct sim_user *u)
{
	struct sim_rank *rank = u->proc->rank;
	struct world *world = u->proc->world;

	for (unsigned i = 0; i < WORLD_SEATS; i++) {
		const struct sim_proc *other = world->procs[rank->number * WORLD_SEATS + i];
		if (!other || other == u->proc || other->user.config.reader)
			continue;
		rank->rivalled |= other->user.claiming || other->user.generation;
		world->counts.races += other->user.claiming;
		if (other->user.generation)
			oracle_live_on(&rank->oracle, other->user.generation);
	}
}

#define CLAIMS_MAX 4

static int claim_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	struct ckpt_core *core = core_of(u);

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(struct ckpt_claimer), ckpt_claimer_clear)) {
		u->failure = -ENOMEM;
		return ckpt_task_continue(task, close_body);
	}
	/* One that was given up is under way, or has got it. */
	if (!core->lineage->claiming && !core->lineage->generation)
		oracle_claiming(&u->proc->rank->oracle, u->proc->id,
			core->lineage->adopted ? core->lineage->parent_generation : 0,
			core->lineage->adopted ? core->lineage->parent_step : 0);
	u->claiming = true;
	/* Retention that meets a claim of its own process waits for the next commit. */
	if (core->gc)
		u->put_off = u->counts.acked;
	meet_rivals(u);
	post(u, ckpt_claim_body, "claim", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	u->failure = take(u);
	u->failure = claimed(u, u->failure);
	let_go(u);
	u->claiming = false;
	if (u->careless && u->failure == CKPT_ENOTRESUMED) {
		u->careless = false;
		u->failure = 0;
		return ckpt_task_continue(task, resume_body);
	}
	u->careless = false;
	/* What may be there although it failed must not be in the way of the next one. */
	if ((u->failure == -EIO || u->failure == -ETIMEDOUT || u->failure == -EBUSY) &&
		++u->claims < CLAIMS_MAX) {
		user_sleep(u, &u->wait, u->failure == -EIO ? 0 : 3 * SECOND);
		CKPT_AWAIT(task, user_slept(u, &u->wait));
		user_done(&u->wait);
		return ckpt_task_continue(task, claim_body);
	}
	return ckpt_task_continue(task, u->failure ? close_body : train_body);
	CKPT_TASK_END(task);
}

static int adopt_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	struct ckpt_adopter *adopter;

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(*adopter), NULL)) {
		u->failure = -ENOMEM;
		return ckpt_task_continue(task, close_body);
	}
	adopter = CKPT_CONTAINER(u->command, struct ckpt_adopter, command);
	adopter->generation = u->reading.generation;
	adopter->step = u->reading.step;
	post(u, ckpt_adopter_body, "adopt", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	u->failure = take(u);
	if (u->failure)
		user_judge(u, "adopt", u->failure, reason(u, u->failure));
	let_go(u);
	u->step = u->last_step = u->reading.step;
	u->resumed = true;
	return ckpt_task_continue(task, u->failure ? close_body : claim_body);
	CKPT_TASK_END(task);
}

static uint64_t pick_asked(struct sim_user *u)
{
	struct sim *sim = sim_of(u);

	if (u->config.careful || u->tries > 0 || sim_chance(sim, 8500))
		return CKPT_STEP_LATEST;
	return sim_chance(sim, 5000) ? CKPT_STEP_BACK(sim_below(sim, 3)) : pick_step(u);
}

/* The newest, or an older one; the next older one if that is damaged; or from the start. */
static int resume_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	if (u->config.anew && !u->generation)
		return ckpt_task_continue(task, claim_body);
	if (!u->config.careful && !u->generation && !u->hurried) {
		u->hurried = true;
		u->careless = sim_chance(sim_of(u), 500);
		if (u->careless)
			return ckpt_task_continue(task, claim_body);
	}
	u->reading.by_ranges = false;
	u->reading.verify = false;
	u->reading.give_up = false;
	for (u->tries = 0; u->tries < 12; u->tries++) {
		reading_start(&u->reading, u, pick_asked(u));
		CKPT_AWAIT(task, !reading_active(&u->reading));
		if (u->reading.result == 0)
			return ckpt_task_continue(task, adopt_body);
		if (u->reading.result == CKPT_ENOSTEP && u->reading.asked == CKPT_STEP_LATEST)
			break;
		bool gone = u->reading.result == -EBUSY && !u->view.locks;
		if (!gone && u->reading.result != CKPT_ENOSTEP && !damaged(u->reading.result)) {
			u->failure = u->reading.result;
			return ckpt_task_continue(task, close_body);
		}
	}
	if (u->tries == 12 && u->config.careful && oracle_owed(&u->proc->rank->oracle, &u->view))
		sim_violation(sim_of(u), "damaged steps stand before good ones");
	/* Within a generation there is nothing to claim anew. */
	if (u->generation)
		return ckpt_task_continue(task, close_body);
	return ckpt_task_continue(task, claim_body);
	CKPT_TASK_END(task);
}

/* The next step that must be there, or that the disk has lied about; NULL: all were looked at. */
static const struct oracle_record *next_record(struct sim_user *u)
{
	const struct oracle *oracle = &u->proc->rank->oracle;

	while (u->next_record < oracle->record_count) {
		const struct oracle_record *r = &oracle->records[u->next_record++];
		if (oracle_harm_of(oracle, r) != ORACLE_WHOLE || oracle_owes(oracle, &u->view, r))
			return r;
	}
	return NULL;
}

/* What was found good is asked for at once. */
static void take_at_its_word(struct sim_user *u)
{
	u->reading.verify = u->reading.give_up = u->reading.by_ranges = false;
	u->reading.vouched = 1 + u->reading.hits;
	u->reading.vouched_generation = u->reading.generation;
	reading_start(&u->reading, u, u->reading.step);
}

/*
 * The last process of a run restores all that must be there, and verifies what may be damaged, before it
 * goes on as any other.
 */
static int inspect_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	const struct oracle_record *r;

	CKPT_TASK_BEGIN(task);
	while ((r = next_record(u))) {
		u->reading.verify = oracle_harm_of(&u->proc->rank->oracle, r) != ORACLE_WHOLE;
		reading_start(&u->reading, u, r->step);
		CKPT_AWAIT(task, !reading_active(&u->reading));
		if (!u->reading.good)
			continue;
		take_at_its_word(u);
		CKPT_AWAIT(task, !reading_active(&u->reading));
		u->reading.vouched = 0;
	}
	return ckpt_task_continue(task, resume_body);
	CKPT_TASK_END(task);
}

/* Who has opened to read only changes nothing. */
static int intrude_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(struct ckpt_claimer), ckpt_claimer_clear))
		return ckpt_task_continue(task, close_body);
	post(u, ckpt_claim_body, "claim", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	r = take(u);
	if (r != -EROFS && r != -ETIMEDOUT)
		sim_violation(sim_of(u), "reader p%u may claim", u->proc->id);
	let_go(u);
	u->command = ckpt_delete_command_new(core_of(u), pick_step(u));
	if (!u->command)
		return ckpt_task_continue(task, close_body);
	post(u, ckpt_delete_command_body, "remove", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	r = take(u);
	if (r != -EROFS && r != -ETIMEDOUT)
		sim_violation(sim_of(u), "reader p%u may remove", u->proc->id);
	let_go(u);
	return ckpt_task_continue(task, close_body);
	CKPT_TASK_END(task);
}

static int read_body(struct ckpt_task *task);

static void listed(struct sim_user *u, int r)
{
	struct oracle *oracle = &u->proc->rank->oracle;
	struct ckpt_lister *lister = CKPT_CONTAINER(u->command, struct ckpt_lister, command);

	if (r == 0)
		oracle_listed(oracle, u->listing_since, &lister->scanner.scan);
	else if (!damaged(r) || oracle->marker == ORACLE_WHOLE)
		user_judge(u, "list", r, reason(u, r));
}

static int list_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(struct ckpt_lister), ckpt_lister_clear))
		return ckpt_task_continue(task, read_body);
	u->listing_since = u->proc->rank->oracle.time;
	post(u, ckpt_lister_body, "list", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	listed(u, take(u));
	let_go(u);
	return ckpt_task_continue(task, read_body);
	CKPT_TASK_END(task);
}

static int read_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);
	struct sim *sim = sim_of(u);

	CKPT_TASK_BEGIN(task);
	while (u->saved < u->config.saves) {
		user_sleep(u, &u->wait, sim_below(sim, 4 * MILLISECOND));
		CKPT_AWAIT(task, user_slept(u, &u->wait));
		user_done(&u->wait);
		u->saved++;
		if (sim_chance(sim, 3000))
			return ckpt_task_continue(task, list_body);
		u->reading.by_ranges = sim_chance(sim, 3000);
		u->reading.verify = sim_chance(sim, 3000);
		u->reading.give_up = sim_fault(sim, SIM_CANCEL);
		reading_start(
			&u->reading, u, sim_chance(sim, 5000) ? CKPT_STEP_LATEST : pick_step(u));
		CKPT_AWAIT(task, !reading_active(&u->reading));
		if (!u->reading.good)
			continue;
		take_at_its_word(u);
		CKPT_AWAIT(task, !reading_active(&u->reading));
		u->reading.vouched = 0;
	}
	return ckpt_task_continue(task, sim_chance(sim, 3000) ? intrude_body : close_body);
	CKPT_TASK_END(task);
}

static int opened(struct sim_user *u, int r)
{
	struct world *world = u->proc->world;
	struct oracle *oracle = &u->proc->rank->oracle;
	struct sim_proc *other = world_other_writer(u->proc->rank, u->proc);
	/* Held before this one looked, and still. */
	bool held = other && other->node == u->proc->node && !other->core.closing &&
		    other->user.generation &&
		    oracle_told(oracle, other->user.generation) <= u->view.time;

	if (r == 0) {
		oracle_opened(oracle, &u->view, &core_of(u)->lineage->scan);
		if (held && other->user.generation == u->view.newest && !u->config.reader)
			sim_violation(&world->sim,
				"p%u opened the store that p%u holds on the same machine",
				u->proc->id, other->id);
		return 0;
	}
	bool in_use = r == CKPT_EINUSE && !u->view.alone;
	bool harm = damaged(r) && oracle->marker != ORACLE_WHOLE;
	bool no_store = r == CKPT_ENOSTORE && u->config.reader && u->view.newest == 0;
	if (!in_use && !no_store && !harm)
		user_judge(u, "open", r, reason(u, r));
	world->counts.told += in_use;
	return r;
}

static int life_body(struct ckpt_task *task)
{
	struct sim_user *u = user_of(task);

	CKPT_TASK_BEGIN(task);
	if (!prepare(u, sizeof(struct ckpt_opener), ckpt_opener_clear)) {
		u->failure = -ENOMEM;
		return ckpt_task_continue(task, close_body);
	}
	u->view.time = u->proc->rank->oracle.time;
	post(u, ckpt_open_body, "open", CALL_NS);
	CKPT_AWAIT(task, answered(u));
	u->failure = take(u);
	u->failure = opened(u, u->failure);
	let_go(u);
	if (u->failure)
		return ckpt_task_continue(task, close_body);
	if (u->config.reader)
		return ckpt_task_continue(task, read_body);
	return ckpt_task_continue(task, u->config.careful ? inspect_body : resume_body);
	CKPT_TASK_END(task);
}

void user_start(struct sim_user *user, struct sim_proc *proc, const struct sim_user_config *config)
{
	const struct world *world = proc->world;

	*user = (struct sim_user){.proc = proc, .config = *config};
	user->retention = (struct oracle_retention){
		.keep_last = world->plan.keep_last, .keep_every = world->plan.keep_every};
	user->view.alone = true;
	user->view.locks = true;
	user_done(&user->wait);
	user_done(&user->save_wait);
	user_done(&user->reading.wait);
	user_done(&user->aside.wait);
	user->poked = true;
	ckpt_task_start(&user->life, &user->sched, life_body, NULL);
}

void user_turn(struct sim_user *user)
{
	user->poked = false;
	ckpt_task_wake(&user->life);
	ckpt_task_wake(&user->saving);
	ckpt_task_wake(&user->reading.task);
	ckpt_task_wake(&user->aside.task);
	ckpt_sched_run(&user->sched);
}

uint64_t user_next_ns(const struct sim_user *user)
{
	uint64_t next_ns = user->wait.wake_ns;

	next_ns = ckpt_min_u64(next_ns, user->save_wait.wake_ns);
	next_ns = ckpt_min_u64(next_ns, user->reading.wait.wake_ns);
	return ckpt_min_u64(next_ns, user->aside.wait.wake_ns);
}

static void check_wait(struct sim_user *user, const struct sim_wait *wait)
{
	if (sim_of(user)->now_ns > wait->deadline_ns)
		sim_violation(sim_of(user), "%s of p%u has not ended by its deadline", wait->what,
			user->proc->id);
}

void user_check(struct sim_user *user)
{
	check_wait(user, &user->wait);
	check_wait(user, &user->save_wait);
	check_wait(user, &user->reading.wait);
	check_wait(user, &user->aside.wait);
}

static void excuse_wait(struct sim_wait *wait, uint64_t ns)
{
	if (wait->deadline_ns != UINT64_MAX)
		wait->deadline_ns += ns;
}

void user_excuse(struct sim_user *user, uint64_t ns)
{
	excuse_wait(&user->wait, ns);
	excuse_wait(&user->save_wait, ns);
	excuse_wait(&user->reading.wait, ns);
	excuse_wait(&user->aside.wait, ns);
}

void user_excuse_restores(struct sim_user *user, uint64_t ns)
{
	excuse_wait(&user->reading.wait, ns);
	excuse_wait(&user->aside.wait, ns);
}

void user_drop(struct sim_user *user)
{
	sim_state_free(&user->live);
	reading_drop(&user->reading);
	reading_drop(&user->aside);
}
