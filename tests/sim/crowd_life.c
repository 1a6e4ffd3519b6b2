/* SPDX-License-Identifier: Apache-2.0 */
/* The program of one rank: open, resume, claim, save, close. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crowd.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
/* As long as the runtime waits for the answer to a command. */
#define CALL_NS     (10 * SECOND)
/* Beyond a deadline: for copies that must come back, and for the scheduler. */
#define SLACK       (2 * SECOND)

static struct crowd_member *member_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct crowd_member, life);
}

static struct sim *sim_of(const struct crowd_member *m)
{
	return &m->crowd->sim;
}

static void sleep_for(struct crowd_member *m, uint64_t ns)
{
	m->wake_ns = sim_of(m)->now_ns + ns;
}

void crowd_stir(struct crowd_job *job, struct crowd *crowd)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++)
		if (crowd->members[i] && crowd->members[i]->job == job)
			crowd->members[i]->poked = true;
}

/* It has come to the next step. */
static void count_step(struct crowd_member *m)
{
	m->saved++;
	crowd_stir(m->job, m->crowd);
}

/* Whether the others of its job are so far that it may go on to the next step. */
static bool may_go_on(const struct crowd_member *m)
{
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		const struct crowd_member *other = m->crowd->members[i];
		if (other && other->job == m->job && !other->leaves &&
			other->saved + m->crowd->lead <= m->saved)
			return false;
	}
	return true;
}

static bool slept(struct crowd_member *m)
{
	if (sim_of(m)->now_ns < m->wake_ns)
		return false;
	m->wake_ns = UINT64_MAX;
	return true;
}

static void expect(struct crowd_member *m, const char *what, uint64_t ns)
{
	m->waits = what;
	m->late_ns = sim_of(m)->now_ns + ns;
}

static void came(struct crowd_member *m)
{
	m->waits = NULL;
	m->late_ns = UINT64_MAX;
	m->wake_ns = UINT64_MAX;
}

/* Commands. */

static bool prepare(
	struct crowd_member *m, size_t size, void (*clear)(struct ckpt_command *command))
{
	CKPT_ASSERT(!m->command);
	m->command = ckpt_command_new(&m->core, size, clear);
	if (!m->command)
		m->failure = -ENOMEM;
	return m->command != NULL;
}

static void post(struct crowd_member *m, ckpt_task_fn *body, const char *what)
{
	sim_note(sim_of(m), m->id, what, "", m->rank, 0, 0);
	ckpt_command_post(m->command, body);
	expect(m, what, CALL_NS + SLACK);
	sleep_for(m, CALL_NS);
}

static bool answered(struct crowd_member *m)
{
	return (ckpt_latch_get(&m->command->latch) & CKPT_DONE_END) ||
	       sim_of(m)->now_ns >= m->wake_ns;
}

static int take(struct crowd_member *m)
{
	bool ended = ckpt_latch_get(&m->command->latch) & CKPT_DONE_END;
	int r = ended ? m->command->result : -ETIMEDOUT;
	const char *what = m->waits;

	came(m);
	if (r < 0)
		crowd_judge(m, what, r,
			ended && m->command->error.code ? m->command->error.message
							: ckpt_code_text(r));
	return r;
}

static void let_go(struct crowd_member *m)
{
	ckpt_command_unref(m->command);
	m->command = NULL;
}

/* Closing. */

int crowd_close_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	m->leaves = true;
	crowd_stir(m->job, m->crowd);
	if (m->crowd->nodes && m->job->careful && m->failure == 0) {
		/* What its store holds is known when nobody removes anything any more. */
		sleep_for(m, CALL_NS);
		CKPT_AWAIT(task, !m->core.gc || slept(m));
		came(m);
		crowd_check_kept(m);
	}
	m->closer = (struct ckpt_closer){0};
	(void)ckpt_command_init(&m->closer.command, &m->core);
	m->command = &m->closer.command;
	post(m, ckpt_closer_body, "close");
	CKPT_AWAIT(task, answered(m));
	r = take(m);
	if (r < 0) {
		m->left_behind = true;
		return 0;
	}
	ckpt_command_fini(m->command);
	m->command = NULL;
	if (m->save) {
		ckpt_plan_free(ckpt_save_take_plan(m->save));
		ckpt_save_unref(m->save);
		m->save = NULL;
	}
	ckpt_plan_free(m->cache);
	m->cache = NULL;
	m->closed = true;
	CKPT_TASK_END(task);
}

/* Saving. */

static uint32_t bits(const struct crowd_member *m)
{
	return ckpt_latch_get(ckpt_save_latch(m->save));
}

/* The same on every rank: who counts the steps is the training. */
static uint64_t next_step(const struct crowd_member *m)
{
	uint64_t drawn = sim_mix64(m->job->number * 1000 + m->saved);

	/* The first of all may be step 0. */
	bool first = m->chosen_generation == 0 && m->saved == 0;

	return m->step + (first ? drawn % 2 : 1 + drawn % 3);
}

bool crowd_is_odd(const struct crowd_member *m)
{
	uint64_t job = m->crowd->sim.seed * 64 + m->job->number;
	uint64_t drawn = sim_mix64(sim_mix64(job) + m->step);

	return !m->job->careful && drawn % 32 == 0 && drawn / 32 % m->crowd->world == m->rank;
}

/* What all ranks have alike, or should. */
static int give_replicas(struct crowd_member *m, struct ckpt_error *err)
{
	static uint64_t words[64];
	const int64_t count = CKPT_COUNT(words);
	const struct ckpt_tensor tensor = {.size = sizeof(tensor),
		.name = "alike",
		.dtype = CKPT_U64,
		.ndim = 1,
		.shape = &count,
		.data = words};

	for (size_t i = 0; i < CKPT_COUNT(words); i++)
		words[i] = sim_mix64(m->step * 1000 + i);
	/* In the first line, which every sample has. */
	words[3] ^= crowd_is_odd(m);
	int r = ckpt_save_put_replicas(m->save, 1, &tensor, 1, NULL, err);
	return r == 0 ? ckpt_save_prepare(m->save, &m->cache, err) : r;
}

static int put_together(struct crowd_member *m, uint64_t version, struct ckpt_error *err)
{
	struct ckpt_tensor tensors[SIM_TENSORS_MAX];
	char meta[64];

	int r = ckpt_save_new(&m->core, NULL, m->step, m->fenced, 0, &m->save);
	if (r < 0) {
		m->save = NULL;
		return r;
	}
	sim_state_tensors(&m->live, tensors);
	r = ckpt_save_put_tensors(m->save, tensors, m->live.shape->count, err);
	int length =
		snprintf(meta, sizeof(meta), "{\"version\":%llu}", (unsigned long long)version);
	if (r == 0)
		r = ckpt_save_put_meta(m->save, meta, (size_t)length, err);
	return r == 0 ? give_replicas(m, err) : r;
}

/* What ckpt_save_start() does with one that it cannot begin. */
static void refuse(
	struct crowd_member *m, struct ckpt_save *save, uint64_t step, const struct ckpt_error *why)
{
	crowd_refused(m, step, why->code, why->message);
	if (!save)
		return;
	ckpt_save_refuse(save, why);
	ckpt_save_unref(save);
}

/* False: without memory for it. */
static bool start_save(struct crowd_member *m)
{
	struct sim *sim = sim_of(m);
	struct ckpt_error err = {.size = sizeof(err)};
	uint64_t version = sim_random(sim) >> 16;

	ckpt_error_clear(&err);
	m->step = next_step(m);
	count_step(m);
	m->fenced = !m->job->careful && sim_chance(sim, 4000);
	sim_state_fill(&m->live, version);
	int r = put_together(m, version, &err);
	if (r == 0 && !m->job->careful && sim_chance(sim, 1000) && sim_fault(sim, SIM_CANCEL))
		r = ckpt_fail(&err, -ECANCELED, "the user does not want it any more");
	if (r < 0) {
		(void)ckpt_fail(&err, r, "%s", ckpt_code_text(r));
		crowd_judge(m, "prepare", r, err.message);
		refuse(m, m->save, m->step, &err);
		m->save = NULL;
		return false;
	}
	crowd_began(m, version);
	if (!m->fenced)
		crowd_passed(m);
	sim_tell(sim, m->id, "save", m->fenced ? "fenced" : "",
		(int64_t)m->core.lineage->generation, (int64_t)m->step, m->rank);
	ckpt_save_post(m->save);
	expect(m, "a save", m->crowd->timeout_ms * MILLISECOND + SLACK);
	return true;
}

static int train_body(struct ckpt_task *task);
static int end_save_body(struct ckpt_task *task);

/* The next step, while the last one still runs. */

static void skip_step(struct crowd_member *m)
{
	m->step = next_step(m);
	count_step(m);
}

static void rank_0_skips(struct crowd_member *m)
{
	struct ckpt_error err = {.size = sizeof(err)};
	struct ckpt_save *save = NULL;

	skip_step(m);
	ckpt_error_clear(&err);
	(void)ckpt_fail(&err, CKPT_ESKIPPED, "the save of step %llu still runs",
		(unsigned long long)ckpt_save_step(m->save));
	if (ckpt_save_new(&m->core, NULL, m->step, false, 0, &save) < 0)
		save = NULL;
	refuse(m, save, m->step, &err);
}

/* What ckpt_save_start() does: rank 0 skips what comes too soon, and the others wait for its word. */
static int too_soon_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct ckpt_skipper *skipper;
	int r;

	CKPT_TASK_BEGIN(task);
	while (m->saved < m->job->saves && !(bits(m) & CKPT_DONE_END)) {
		sleep_for(m, sim_below(sim_of(m), 20 * MILLISECOND));
		CKPT_AWAIT(task, slept(m));
		CKPT_AWAIT(task, may_go_on(m) || (bits(m) & CKPT_DONE_END));
		if (bits(m) & CKPT_DONE_END)
			break;
		if (m->rank == 0) {
			rank_0_skips(m);
			continue;
		}
		if (!prepare(m, sizeof(*skipper), NULL))
			break;
		skipper = CKPT_CONTAINER(m->command, struct ckpt_skipper, command);
		skipper->step = next_step(m);
		skipper->patience_ns = (uint64_t)m->crowd->timeout_ms * MILLISECOND / 4 * 3;
		ckpt_command_post(m->command, ckpt_skipper_body);
		sleep_for(m, m->crowd->timeout_ms * MILLISECOND + CALL_NS);
		CKPT_AWAIT(task, answered(m));
		m->wake_ns = UINT64_MAX;
		r = ckpt_latch_get(&m->command->latch) & CKPT_DONE_END ? m->command->result : 0;
		if (r == CKPT_ESKIPPED) {
			skip_step(m);
			crowd_refused(m, m->step, r, m->command->error.message);
		}
		let_go(m);
		if (r == 0)
			break;
	}
	return ckpt_task_continue(task, end_save_body);
	CKPT_TASK_END(task);
}

static int end_save_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct sim *sim = sim_of(m);

	CKPT_TASK_BEGIN(task);
	/* Somebody changes his mind while the others may have been told already. */
	if (sim_fault(sim, SIM_CANCEL)) {
		m->wake_ns = sim->now_ns + sim_below(sim, 5 * MILLISECOND);
		CKPT_AWAIT(task, slept(m) || (bits(m) & CKPT_DONE_END));
		m->wake_ns = UINT64_MAX;
		ckpt_save_post_cancel(m->save);
	}
	CKPT_AWAIT(task, bits(m) & CKPT_DONE_END);
	came(m);
	/* What is left of it goes soon, or, if its end is not known yet, by its deadline. */
	sleep_for(m, (m->record->told[m->rank] == CROWD_UNKNOWN ? m->crowd->timeout_ms * MILLISECOND
								: 0) +
			     CALL_NS);
	CKPT_AWAIT(task,
		((bits(m) & CKPT_DONE_GONE) && !m->inbox.head) || sim_of(m)->now_ns >= m->wake_ns);
	came(m);
	if (!(bits(m) & CKPT_DONE_GONE)) {
		if (!crowd_hung(m->crowd))
			sim_violation(sim, "what is left of step %llu of rank %u does not go",
				(unsigned long long)m->step, m->rank);
		return ckpt_task_continue(task, crowd_close_body);
	}
	m->cache = ckpt_save_take_plan(m->save);
	ckpt_save_unref(m->save);
	m->save = NULL;
	return ckpt_task_continue(task, train_body);
	CKPT_TASK_END(task);
}

static int save_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct sim *sim = sim_of(m);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, bits(m) & (CKPT_DONE_STAGED | CKPT_DONE_END));
	if (m->fenced && !(bits(m) & CKPT_DONE_END)) {
		sleep_for(m, sim_below(sim, sim_chance(sim, 1000)
						    ? m->crowd->timeout_ms * MILLISECOND / 2
						    : 8 * MILLISECOND));
		CKPT_AWAIT(task, slept(m) || (bits(m) & CKPT_DONE_END));
		m->wake_ns = UINT64_MAX;
		if (sim_fault(sim, SIM_CANCEL)) {
			ckpt_save_post_cancel(m->save);
		} else {
			crowd_passed(m);
			ckpt_save_post_gate(m->save);
		}
	}
	return ckpt_task_continue(task, m->crowd->skips ? too_soon_body : end_save_body);
	CKPT_TASK_END(task);
}

static int train_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	CKPT_TASK_BEGIN(task);
	while (m->saved < m->job->saves && !m->core.lineage->fenced) {
		sleep_for(m, sim_below(sim_of(m), 3 * MILLISECOND));
		CKPT_AWAIT(task, slept(m));
		CKPT_AWAIT(task, may_go_on(m));
		if (start_save(m))
			return ckpt_task_continue(task, save_body);
	}
	return ckpt_task_continue(task, crowd_close_body);
	CKPT_TASK_END(task);
}

/* Claiming. */

static int claim_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	CKPT_TASK_BEGIN(task);
	if (!prepare(m, sizeof(struct ckpt_claimer), ckpt_claimer_clear))
		return ckpt_task_continue(task, crowd_close_body);
	post(m, ckpt_claim_body, "claim");
	CKPT_AWAIT(task, answered(m));
	m->failure = take(m);
	let_go(m);
	if (m->failure == 0 && m->astray)
		sim_violation(sim_of(m), "rank %u goes on from another step than rank 0", m->rank);
	if (m->failure)
		return ckpt_task_continue(task, crowd_close_body);
	crowd_claimed(m);
	crowd_shape(m, m->rank, &m->shape);
	sim_state_init(&m->live, &m->shape);
	return ckpt_task_continue(task, train_body);
	CKPT_TASK_END(task);
}

static int adopt_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct ckpt_adopter *adopter;

	CKPT_TASK_BEGIN(task);
	if (m->chosen_generation == 0)
		return ckpt_task_continue(task, claim_body);
	if (!prepare(m, sizeof(*adopter), NULL))
		return ckpt_task_continue(task, crowd_close_body);
	adopter = CKPT_CONTAINER(m->command, struct ckpt_adopter, command);
	adopter->generation = m->chosen_generation;
	adopter->step = m->chosen_step;
	/* Somebody has told this rank to resume from another one. */
	m->astray = m->rank > 0 && !m->job->careful && sim_chance(sim_of(m), 100);
	m->crowd->strays += m->astray;
	adopter->step += m->astray;
	post(m, ckpt_adopter_body, "adopt");
	CKPT_AWAIT(task, answered(m));
	m->failure = take(m);
	let_go(m);
	m->step = m->chosen_step;
	return ckpt_task_continue(task, m->failure ? crowd_close_body : claim_body);
	CKPT_TASK_END(task);
}

/* Rank 0 looks whether that is where to go on from. */
static int look_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct ckpt_lister *lister;

	CKPT_TASK_BEGIN(task);
	m->job->view = m->job->rounds[m->round].view;
	m->job->generation = m->chosen_generation;
	m->job->step = m->chosen_step;
	if (!prepare(m, sizeof(*lister), ckpt_lister_clear))
		return ckpt_task_continue(task, crowd_close_body);
	post(m, ckpt_lister_body, "list");
	CKPT_AWAIT(task, answered(m));
	m->failure = take(m);
	lister = CKPT_CONTAINER(m->command, struct ckpt_lister, command);
	if (m->failure == 0)
		crowd_chose(m, &lister->scanner.scan);
	let_go(m);
	return ckpt_task_continue(task, m->failure ? crowd_close_body : adopt_body);
	CKPT_TASK_END(task);
}

int crowd_chosen_body(struct ckpt_task *task)
{
	return ckpt_task_continue(task, member_of(task)->rank == 0 ? look_body : adopt_body);
}

static int life_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	CKPT_TASK_BEGIN(task);
	if (!prepare(m, sizeof(struct ckpt_opener), ckpt_opener_clear))
		return ckpt_task_continue(task, crowd_close_body);
	post(m, ckpt_open_body, "open");
	CKPT_AWAIT(task, answered(m));
	m->failure = take(m);
	let_go(m);
	return ckpt_task_continue(task, m->failure ? crowd_close_body : crowd_resume_body);
	CKPT_TASK_END(task);
}

void crowd_life_start(struct crowd_member *member)
{
	member->poked = true;
	came(member);
	ckpt_task_start(&member->life, &member->sched, life_body, NULL);
}

void crowd_observe(struct crowd_member *member)
{
	const struct ckpt_error *why;

	crowd_blind(member);
	if (!member->save || !member->record ||
		member->record->step != ckpt_save_step(member->save))
		return;
	enum crowd_told before = member->record->told[member->rank];
	uint32_t now = bits(member);
	if (now & CKPT_DONE_END)
		member->late_ns = UINT64_MAX;
	if (before == CROWD_NOTHING && (now & CKPT_DONE_LOCAL)) {
		crowd_told(member, CROWD_DURABLE, 0, "");
	} else if (before == CROWD_NOTHING && (now & CKPT_DONE_END)) {
		why = ckpt_save_failure(member->save);
		/* Rank 0 may have published it all the same; the others say so. */
		bool unknown = member->save->publish_tried && !member->save->ranks->settled;
		crowd_told(member, unknown ? CROWD_UNKNOWN : CROWD_FAILED, why->code, why->message);
		if (!unknown || member->job->careful)
			crowd_judge(member, "save", why->code, why->message);
	} else if (before == CROWD_UNKNOWN && member->save->committed) {
		crowd_told(member, CROWD_DURABLE, 0, "late");
	}
}
