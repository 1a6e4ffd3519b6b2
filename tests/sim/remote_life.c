/* SPDX-License-Identifier: Apache-2.0 */
/* What all programs do, and the training: open, resume, claim, save, wait for the bucket, close. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "engine/copy/remote_gc.h"
#include "remote.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
#define SLACK       (2 * SECOND)
/* A call of the bucket is tried for three minutes, and an opening is several. */
#define CALL_NS     (3600 * SECOND)
#define CLOSE_NS    (60 * SECOND)
#define SAVE_NS     (40 * SECOND)
/* What is tried again is tried each minute; for the end of a removal four of retention's graces are waited. */
#define REMOTE_NS   (5 * CKPT_REMOTE_GC_GRACE_S * SECOND)

struct remote_proc *remote_proc_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct remote_proc, life);
}

static struct sim *sim_of(const struct remote_proc *p)
{
	return &p->world->sim;
}

void remote_sleep(struct remote_proc *p, uint64_t ns)
{
	p->wake_ns = sim_of(p)->now_ns + ns;
}

bool remote_slept(struct remote_proc *p)
{
	if (sim_of(p)->now_ns < p->wake_ns)
		return false;
	p->wake_ns = UINT64_MAX;
	return true;
}

void remote_expect(struct remote_proc *p, const char *what, uint64_t ns)
{
	p->waits = what;
	p->late_ns = sim_of(p)->now_ns + ns;
}

void remote_came(struct remote_proc *p)
{
	p->waits = NULL;
	p->late_ns = UINT64_MAX;
	p->wake_ns = UINT64_MAX;
}

bool remote_prepare(struct remote_proc *p, size_t size, void (*clear)(struct ckpt_command *command))
{
	CKPT_ASSERT(!p->command);
	p->command = ckpt_command_new(&p->core, size, clear);
	if (!p->command)
		p->failure = -ENOMEM;
	return p->command != NULL;
}

void remote_post(struct remote_proc *p, ckpt_task_fn *body, const char *what, uint64_t ns)
{
	sim_note(sim_of(p), p->id, what, "", p->kind, 0, 0);
	ckpt_command_post(p->command, body);
	remote_expect(p, what, ns + SLACK);
	remote_sleep(p, ns);
}

bool remote_answered(struct remote_proc *p)
{
	return (ckpt_latch_get(&p->command->latch) & CKPT_DONE_END) ||
	       sim_of(p)->now_ns >= p->wake_ns;
}

int remote_take(struct remote_proc *p)
{
	bool ended = ckpt_latch_get(&p->command->latch) & CKPT_DONE_END;
	int r = ended ? p->command->result : -ETIMEDOUT;
	const char *what = p->waits;

	remote_came(p);
	if (r < 0)
		remote_judge(p, what, r,
			ended && p->command->error.code ? p->command->error.message
							: ckpt_code_text(r));
	return r;
}

void remote_let_go(struct remote_proc *p)
{
	ckpt_command_unref(p->command);
	p->command = NULL;
}

/* The way there has failed, or may have. */
static bool network_failed(const struct remote *world)
{
	const uint64_t *fired = world->sim.fired;

	return fired[SIM_NET_DROP] || fired[SIM_NET_REPLY] || fired[SIM_NET_LATE] ||
	       fired[SIM_NET_TWICE] || fired[SIM_NET_ERROR] || fired[SIM_NET_STALL] ||
	       fired[SIM_NET_DOWN];
}

static bool may_fail(const struct remote_proc *p, int code)
{
	const struct remote *world = p->world;

	switch (code) {
	case -ETIMEDOUT:
	case CKPT_ENETWORK:
		return network_failed(world) || world->sim.fired[SIM_FREEZE] > 0;
	case CKPT_ESKIPPED:
	case CKPT_ECLOSED:
	case -ENOMEM:
		return false;
	case CKPT_EFENCED:
		return world->moved || p->kind == REMOTE_PRUNE;
	case CKPT_ENOSTORE:
	case CKPT_ENOSTEP:
		return p->kind != REMOTE_TRAIN;
	case -EAGAIN:
	case -EBUSY:
		return p->kind == REMOTE_PRUNE;
	case -ENOENT:
		/* It went under its hands. */
		return world->pruned > 0 && p->kind != REMOTE_TRAIN;
	default:
		return false;
	}
}

void remote_judge(struct remote_proc *p, const char *what, int code, const char *message)
{
	sim_tell(sim_of(p), p->id, what, message, p->kind, 0, code);
	if (p->careful || !(may_fail(p, code) || remote_may_blame(p, code)))
		sim_violation(sim_of(p), "%s of p%u failed with %s (%d): %s", what, p->id,
			ckpt_strerror(code), code, message);
}

/* Closing. */

static void drop_held(struct remote_proc *p)
{
	for (size_t i = 0; i < REMOTE_HELD; i++) {
		ckpt_upload_entry_unref(p->held[i].entry);
		p->held[i].entry = NULL;
	}
}

int remote_close_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	int r;

	CKPT_TASK_BEGIN(task);
	p->leaves = true;
	if (p->failure || p->saved < p->saves)
		remote_job_break(p);
	remote_job_stir(p);
	if (p->restore) {
		ckpt_restore_post_release(p->restore);
		remote_expect(p, "the end of a restore", CLOSE_NS * 2);
		CKPT_AWAIT(task, ckpt_latch_get(ckpt_restore_latch(p->restore)) & CKPT_DONE_GONE);
		remote_came(p);
		ckpt_restore_unref(p->restore);
		p->restore = NULL;
	}
	p->closer = (struct ckpt_closer){0};
	(void)ckpt_command_init(&p->closer.command, &p->core);
	p->command = &p->closer.command;
	remote_post(p, ckpt_closer_body, "close", CLOSE_NS);
	CKPT_AWAIT(task, remote_answered(p));
	r = remote_take(p);
	if (r < 0) {
		p->left_behind = true;
		return 0;
	}
	ckpt_command_fini(p->command);
	p->command = NULL;
	if (p->save) {
		ckpt_plan_free(ckpt_save_take_plan(p->save));
		ckpt_save_unref(p->save);
		p->save = NULL;
	}
	ckpt_plan_free(p->cache);
	p->cache = NULL;
	drop_held(p);
	p->closed = true;
	CKPT_TASK_END(task);
}

/* Saving. */

static uint32_t bits(const struct remote_proc *p)
{
	return ckpt_latch_get(ckpt_save_latch(p->save));
}

static int put_together(struct remote_proc *p, struct ckpt_error *err)
{
	struct ckpt_tensor tensors[SIM_TENSORS_MAX];

	int r = ckpt_save_new(&p->core, NULL, p->step, false, 0, &p->save);
	if (r < 0) {
		p->save = NULL;
		return r;
	}
	sim_state_tensors(&p->live, tensors);
	r = ckpt_save_put_tensors(p->save, tensors, p->live.shape->count, err);
	return r == 0 ? ckpt_save_prepare(p->save, &p->cache, err) : r;
}

static bool start_save(struct remote_proc *p)
{
	struct sim *sim = sim_of(p);
	struct ckpt_error err = {.size = sizeof(err)};
	uint64_t version = sim_random(sim) >> 16;

	ckpt_error_clear(&err);
	p->step = remote_is_rank(p) ? remote_next_step(p) : p->step + 1 + sim_below(sim, 3);
	p->saved++;
	sim_state_fill(&p->live, version);
	int r = put_together(p, &err);
	if (r < 0) {
		remote_judge(p, "prepare", r, err.message);
		return false;
	}
	remote_began(p, version);
	sim_tell(sim, p->id, "save", "", (int64_t)p->core.lineage->generation, (int64_t)p->step, 0);
	ckpt_save_post(p->save);
	remote_expect(p, "a save", SAVE_NS + SLACK);
	return true;
}

static bool holds_any(const struct remote_proc *p)
{
	for (size_t i = 0; i < REMOTE_HELD; i++)
		if (p->held[i].entry)
			return true;
	return false;
}

/* Marked by an earlier one, noted, taken over, removed: each a grace after the last. */
static int kept_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	remote_sleep(p, 5 * REMOTE_GRACE_S * SECOND);
	CKPT_AWAIT(task, remote_slept(p));
	remote_check_kept(p);
	return ckpt_task_continue(task, remote_close_body);
	CKPT_TASK_END(task);
}

/* All that it has saved is in the bucket, or will not be. */
static int wait_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct sim *sim = sim_of(p);

	CKPT_TASK_BEGIN(task);
	if (p->careful)
		remote_expect(p, "the bucket", REMOTE_NS);
	else
		remote_sleep(p, sim_below(sim, sim_chance(sim, 5000) ? SECOND : 600 * SECOND));
	CKPT_AWAIT(task, (!holds_any(p) && (!p->careful || !p->core.upload_queue->first)) ||
				 remote_slept(p));
	remote_came(p);
	if (p->careful)
		remote_check_drained(p);
	if (p->saved < p->saves)
		return ckpt_task_continue(task, remote_train_body);
	return ckpt_task_continue(task, p->careful && p->rank == 0 && p->world->remote_keep_last
						? kept_body
						: remote_close_body);
	CKPT_TASK_END(task);
}

static int save_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct sim *sim = sim_of(p);

	CKPT_TASK_BEGIN(task);
	CKPT_AWAIT(task, (bits(p) & CKPT_DONE_END) && (bits(p) & CKPT_DONE_GONE));
	remote_came(p);
	p->cache = ckpt_save_take_plan(p->save);
	ckpt_save_unref(p->save);
	p->save = NULL;
	p->record = NULL;
	if (p->saved >= p->saves || sim_chance(sim, 3000))
		return ckpt_task_continue(task, wait_body);
	return ckpt_task_continue(task, remote_train_body);
	CKPT_TASK_END(task);
}

int remote_train_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct sim *sim = sim_of(p);

	CKPT_TASK_BEGIN(task);
	remote_sleep(p, sim_below(sim, sim_chance(sim, 8000) ? 300 * MILLISECOND : 20 * SECOND));
	CKPT_AWAIT(task, remote_slept(p));
	p->arrived = p->saved + 1;
	remote_job_stir(p);
	CKPT_AWAIT(task, remote_all_arrived(p));
	if (p->core.lineage->fenced || !start_save(p))
		return ckpt_task_continue(task, remote_close_body);
	return ckpt_task_continue(task, save_body);
	CKPT_TASK_END(task);
}

/* Resuming. */

static int claim_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct ckpt_adopter *adopter;

	CKPT_TASK_BEGIN(task);
	if (p->generation > 0) {
		if (!remote_prepare(p, sizeof(*adopter), NULL))
			return ckpt_task_continue(task, remote_close_body);
		adopter = CKPT_CONTAINER(p->command, struct ckpt_adopter, command);
		adopter->generation = p->generation;
		adopter->step = p->step;
		remote_post(p, ckpt_adopter_body, "adopt", CALL_NS);
		CKPT_AWAIT(task, remote_answered(p));
		p->failure = remote_take(p);
		remote_let_go(p);
		if (p->failure)
			return ckpt_task_continue(task, remote_close_body);
	}
	if (!remote_prepare(p, sizeof(struct ckpt_claimer), ckpt_claimer_clear))
		return ckpt_task_continue(task, remote_close_body);
	remote_post(p, ckpt_claim_body, "claim", CALL_NS);
	CKPT_AWAIT(task, remote_answered(p));
	p->failure = remote_take(p);
	remote_let_go(p);
	if (p->failure)
		return ckpt_task_continue(task, remote_close_body);
	remote_claimed(p);
	sim_state_init(&p->live, &p->world->rank_shapes[p->rank]);
	return ckpt_task_continue(task, remote_train_body);
	CKPT_TASK_END(task);
}

/* The training has its step back, from the store of its machine. */
static int resumed_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	if (p->restore) {
		ckpt_restore_post_release(p->restore);
		remote_expect(p, "the end of a restore", CLOSE_NS);
		CKPT_AWAIT(task, ckpt_latch_get(ckpt_restore_latch(p->restore)) & CKPT_DONE_GONE);
		remote_came(p);
		ckpt_restore_unref(p->restore);
		p->restore = NULL;
	}
	return ckpt_task_continue(task, p->failure ? remote_close_body : claim_body);
	CKPT_TASK_END(task);
}

static int opened_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	switch (p->kind) {
	case REMOTE_BRING:
		return ckpt_task_continue(task, remote_bring_body);
	case REMOTE_PRUNE:
		return ckpt_task_continue(task, remote_prune_body);
	default:
		return ckpt_task_continue(task, remote_read_body);
	}
}

static int life_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	if (!remote_prepare(p, sizeof(struct ckpt_opener), ckpt_opener_clear))
		return ckpt_task_continue(task, remote_close_body);
	remote_post(p, ckpt_open_body, "open", CALL_NS);
	CKPT_AWAIT(task, remote_answered(p));
	p->failure = remote_take(p);
	remote_let_go(p);
	return ckpt_task_continue(task, p->failure ? remote_close_body : opened_body);
	CKPT_TASK_END(task);
}

void remote_life_start(struct remote_proc *p)
{
	p->poked = true;
	remote_came(p);
	ckpt_task_start(&p->life, &p->sched, life_body, NULL);
}

/* After a restore: the training goes on, a reader looks for the next. */
ckpt_task_fn *remote_after(const struct remote_proc *p)
{
	if (p->kind == REMOTE_TRAIN)
		return resumed_body;
	return remote_close_body;
}

static void hold(struct remote_proc *p)
{
	struct ckpt_upload_entry *entry = ckpt_save_upload(p->save);
	size_t at = 0;

	while (at < REMOTE_HELD && p->held[at].entry)
		at++;
	if (!entry || at == REMOTE_HELD)
		return;
	atomic_fetch_add(&entry->owners, 1);
	p->held[at].entry = entry;
	p->held[at].record = p->record;
}

/* Rank 0 alone hears of a successor: what it does not keep here for the bucket any more the others miss one day. */
static bool may_not_be_sent(
	const struct remote_proc *p, const struct remote_record *record, int code)
{
	switch (code) {
	case 0:
	case CKPT_ECLOSED:
		return true;
	case CKPT_EFENCED:
		return p->world->moved;
	case CKPT_ENOSTEP:
		return record->marked || (p->rank > 0 && p->job->lost);
	case CKPT_EINCOMPLETE:
		/* ... while they send it, where no locks reach. Who was not told sends nothing before the next start. */
		return record->told < record->ranks || (p->rank > 0 && p->job->lost);
	default:
		return false;
	}
}

void remote_observe(struct remote_proc *p)
{
	if (p->save && p->record && (bits(p) & CKPT_DONE_END)) {
		p->late_ns = UINT64_MAX;
		if (bits(p) & CKPT_DONE_LOCAL) {
			p->world->committed++;
			p->record->told++;
			sim_tell(sim_of(p), p->id, "committed", "", (int64_t)p->record->generation,
				(int64_t)p->record->step, 0);
			hold(p);
		} else {
			remote_judge(p, "save", ckpt_save_failure(p->save)->code,
				ckpt_save_failure(p->save)->message);
		}
		p->record = NULL;
	}
	for (size_t i = 0; i < REMOTE_HELD; i++) {
		struct ckpt_upload_entry *e = p->held[i].entry;
		if (!e || !(ckpt_latch_get(&e->latch) & CKPT_DONE_END))
			continue;
		if (e->error.code == 0)
			remote_confirmed(p, p->held[i].record);
		else if (e->error.code != CKPT_ECLOSED)
			sim_tell(sim_of(p), p->id, "not sent", e->error.message,
				(int64_t)e->generation, (int64_t)e->step, e->error.code);
		if (!may_not_be_sent(p, p->held[i].record, e->error.code))
			sim_violation(sim_of(p), "step %llu is not sent: %s",
				(unsigned long long)e->step, e->error.message);
		ckpt_upload_entry_unref(e);
		p->held[i].entry = NULL;
	}
}
