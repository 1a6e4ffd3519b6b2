/* SPDX-License-Identifier: Apache-2.0 */
/* Getting steps back, bringing them from the bucket, and removing them there. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/copy/claims_import.h"
#include "engine/gc/two_phase_delete.h"
#include "remote.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
/* Four tries of what takes three minutes at most, and some. */
#define CALL_NS     (3600 * SECOND)
#define GRACE_NS    (REMOTE_GRACE_S * SECOND)
#define SEND_NS     (300 * SECOND)
#define ROOT        (1 << 20) /* stands for the descriptor of the store's directory */

static struct sim *sim_of(const struct remote_proc *p)
{
	return &p->world->sim;
}

static uint32_t bits(const struct remote_proc *p)
{
	return ckpt_latch_get(ckpt_restore_latch(p->restore));
}

static int end_of(struct remote_proc *p, const char **ret_why)
{
	const struct ckpt_error *why = ckpt_restore_failure(p->restore);

	*ret_why = why->message;
	return why->code;
}

/* Restoring into memory. */

static const struct remote_record *chosen(const struct remote_proc *p)
{
	return remote_record(p->world, ckpt_restore_chosen_generation(p->restore),
		ckpt_restore_chosen_step(p->restore));
}

static int bind(struct remote_proc *p)
{
	struct ckpt_target targets[REMOTE_RANKS * SIM_TENSORS_MAX];
	struct ckpt_error err = {.size = sizeof(err)};
	size_t count = 0;

	ckpt_error_clear(&err);
	for (uint32_t rank = 0; rank < REMOTE_RANKS; rank++) {
		struct sim_state *into = &p->into[rank];
		sim_state_free(into);
		if (!remote_reads(p, chosen(p), rank))
			continue;
		sim_state_init(into, &p->world->rank_shapes[rank]);
		sim_state_poison(into);
		sim_state_targets(into, targets + count);
		count += into->shape->count;
	}
	int r = ckpt_restore_add_targets(p->restore, targets, count, &err);
	if (r < 0)
		remote_judge(p, "bind", r, err.message);
	return r;
}

static void compare(struct remote_proc *p)
{
	const struct remote_record *record = remote_record(p->world, p->generation, p->step);

	sim_tell(sim_of(p), p->id, "restored", "", (int64_t)p->generation, (int64_t)p->step, 0);
	for (uint32_t rank = 0; rank < REMOTE_RANKS; rank++) {
		if (!p->into[rank].shape)
			continue;
		const char *name =
			record ? sim_state_check(&p->into[rank], record->versions[rank]) : "?";
		if (name)
			sim_violation(sim_of(p),
				"tensor %s of step %llu of generation %llu came back different",
				name, (unsigned long long)p->step,
				(unsigned long long)p->generation);
	}
	p->world->restored++;
	remote_restored(p);
}

/* What the bucket has, and answers for, is not passed over; all else is. */
static void judge_same(struct remote_proc *p, uint64_t generation, uint64_t step)
{
	const struct remote_record *record = remote_record(p->world, generation, step);
	bool trouble = p->world->sim.trouble_at > 0;

	for (unsigned fault = SIM_NET_DROP; fault <= SIM_NET_DOWN; fault++)
		trouble = trouble || p->world->sim.fired[fault] > 0;
	if (!trouble && !(record && record->there))
		sim_violation(sim_of(p),
			"step %llu of generation %llu was passed over, and is the latest again",
			(unsigned long long)step, (unsigned long long)generation);
}

/* Whoever asks for the latest again is given an older one, or the same: then all ranks give up. */
static bool pass_over(struct remote_proc *p, const char *why)
{
	uint64_t generation = ckpt_restore_chosen_generation(p->restore);
	uint64_t step = ckpt_restore_chosen_step(p->restore);

	if (generation > 0 && generation == p->passed_generation && step == p->passed_step) {
		if (!p->job->sends)
			judge_same(p, generation, step);
		return false;
	}
	sim_tell(sim_of(p), p->id, "passes over", why, (int64_t)generation, (int64_t)step, 0);
	/* Not this one: what of it is here is to be sent first, and the next start brings it. */
	if (strstr(why, "run `ckpt upload`"))
		p->job->sends = true;
	p->world->passed_over++;
	p->passed_generation = generation;
	p->passed_step = step;
	return true;
}

/* The bucket has the rest of the step that was to be restored. */
static bool sends_first(const struct remote_proc *p)
{
	/* One that asks once more, because it was not told which step it was, waits for the others in vain. */
	return remote_is_rank(p) && p->job->sends &&
	       (p->failure == CKPT_EOTHERNODE || p->failure == -ETIMEDOUT);
}

/* The newest step was lost with a node, and somebody has removed the one that the bucket had: the job starts anew. */
static bool is_all_lost(const struct remote_proc *p, int code)
{
	const struct remote *world = p->world;

	for (size_t i = 0; i < world->record_count; i++)
		if (world->records[i].there)
			return false;
	return code == CKPT_EQUARANTINED && remote_is_rank(p) && world->passed_over > 0 &&
	       world->pruned > 0;
}

static void take_restore(struct remote_proc *p)
{
	const char *why;
	int r = end_of(p, &why);

	remote_came(p);
	p->failure = r;
	p->generation = p->step = 0;
	p->again = false;
	if (r == CKPT_ENOSTEP || is_all_lost(p, r)) {
		p->core.config.new_start = r != CKPT_ENOSTEP;
		p->failure = 0;
		remote_restored(p);
	} else if (r < 0) {
		p->again = remote_passes_over(p) && pass_over(p, why);
		if (!p->again && !sends_first(p))
			remote_judge(p, "restore", r, why);
	} else {
		p->generation = ckpt_restore_chosen_generation(p->restore);
		p->step = ckpt_restore_chosen_step(p->restore);
		compare(p);
	}
}

/* A careful reader: the next one that is owed; CKPT_STEP_LATEST at the end. False: it is done. */
static bool next_asked(struct remote_proc *p)
{
	const struct remote *world = p->world;

	while (p->next_record < world->record_count) {
		const struct remote_record *r = &world->records[p->next_record++];
		p->asked = r->step;
		if (remote_owes(world, r))
			return true;
	}
	p->asked = CKPT_STEP_LATEST;
	return p->next_record++ == world->record_count;
}

static int again_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_restore_post_release(p->restore);
	remote_expect(p, "the end of a restore", CALL_NS);
	CKPT_AWAIT(task, bits(p) & CKPT_DONE_GONE);
	remote_came(p);
	ckpt_restore_unref(p->restore);
	p->restore = NULL;
	return ckpt_task_continue(task, remote_read_body);
	CKPT_TASK_END(task);
}

/* As `ckpt upload` would. */
static int send_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	remote_sleep(p, SEND_NS);
	CKPT_AWAIT(task, remote_slept(p));
	remote_came(p);
	return ckpt_task_continue(task, remote_close_body);
	CKPT_TASK_END(task);
}

int remote_read_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	p->asked = CKPT_STEP_LATEST;
	if (p->kind == REMOTE_READ && p->careful && !next_asked(p)) {
		p->world->read_last = true;
		return ckpt_task_continue(task, remote_close_body);
	}
	p->began_at = ++p->world->time;
	if (ckpt_restore_new(&p->core, NULL, p->asked, CKPT_SINK_MEMORY, &p->restore) < 0) {
		p->restore = NULL;
		p->failure = -ENOMEM;
		return ckpt_task_continue(task, remote_close_body);
	}
	ckpt_restore_post_open(p->restore);
	remote_expect(p, "an opening", CALL_NS);
	CKPT_AWAIT(task, bits(p) & (CKPT_DONE_OPENED | CKPT_DONE_END));
	if (!(bits(p) & CKPT_DONE_END)) {
		p->failure = bind(p);
		if (p->failure)
			return ckpt_task_continue(task, remote_after(p));
		ckpt_restore_post_start(p->restore);
		remote_expect(p, "a restore", CALL_NS);
		CKPT_AWAIT(task, bits(p) & CKPT_DONE_END);
	}
	take_restore(p);
	if (p->again && !sim_of(p)->failed)
		return ckpt_task_continue(task, again_body);
	if (p->kind == REMOTE_READ && p->careful && !sim_of(p)->failed)
		return ckpt_task_continue(task, again_body);
	return ckpt_task_continue(task, sends_first(p) ? send_body : remote_after(p));
	CKPT_TASK_END(task);
}

/* Bringing. */

static struct ckpt_core_place here(const struct remote_proc *p)
{
	return (struct ckpt_core_place){
		.root = ROOT, .label = "/store", .claims = true, .node = p->world->nodes};
}

/* Without a step: what there is of the run. */
static int claims_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);

	CKPT_TASK_BEGIN(task);
	if (!remote_prepare(p, sizeof(struct ckpt_claims_import), NULL))
		return ckpt_task_continue(task, remote_close_body);
	CKPT_CONTAINER(p->command, struct ckpt_claims_import, command)->place = here(p);
	remote_post(p, ckpt_claims_import_body, "bring claims", CALL_NS);
	CKPT_AWAIT(task, remote_answered(p));
	p->failure = remote_take(p);
	remote_let_go(p);
	p->world->homes[p->home].ready[p->store] = p->failure == 0;
	return ckpt_task_continue(task, remote_close_body);
	CKPT_TASK_END(task);
}

static bool take_imported(struct remote_proc *p)
{
	const char *why;
	int r = end_of(p, &why);

	remote_came(p);
	p->generation = r == CKPT_ENOSTEP ? 0 : ckpt_restore_chosen_generation(p->restore);
	p->step = r == CKPT_ENOSTEP ? 0 : ckpt_restore_chosen_step(p->restore);
	if (r < 0 && r != CKPT_ENOSTEP && r != -EEXIST) {
		p->failure = r;
		remote_judge(p, "bring", r, why);
		return false;
	}
	sim_tell(sim_of(p), p->id, "brought", "", (int64_t)p->generation, (int64_t)p->step, r);
	remote_restored(p);
	p->world->imported += p->generation > 0;
	p->world->homes[p->home].ready[p->store] = p->generation > 0;
	return p->generation == 0;
}

/* Which ranks have this store, where each node has one. */
static int set_near(struct remote_proc *p)
{
	const struct remote *world = p->world;
	uint32_t ranks[REMOTE_RANKS];
	struct ckpt_restore_near near = {.ranks = ranks, .world = world->ranks};

	for (uint32_t rank = 0; rank < world->ranks; rank++)
		if (rank % world->homes[p->home].stores == p->store)
			ranks[near.count++] = rank;
	/* As the Python bindings do: a start before that may have begun to bring all. */
	bool only = world->nodes && world->lost_count > 0;
	return only ? ckpt_restore_set_near(p->restore, &near) : 0;
}

int remote_bring_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct ckpt_core_place place = here(p);
	bool nothing;

	CKPT_TASK_BEGIN(task);
	p->asked = CKPT_STEP_LATEST;
	p->began_at = ++p->world->time;
	p->world->homes[p->home].looked_at[p->store] = p->began_at;
	if (ckpt_restore_new(&p->core, NULL, CKPT_STEP_LATEST, CKPT_SINK_STORE, &p->restore) < 0 ||
		ckpt_restore_set_dest(p->restore, &place) < 0 || set_near(p) < 0) {
		p->failure = -ENOMEM;
		return ckpt_task_continue(task, remote_close_body);
	}
	ckpt_restore_post_open(p->restore);
	remote_expect(p, "bringing", CALL_NS);
	CKPT_AWAIT(task, bits(p) & CKPT_DONE_END);
	nothing = take_imported(p);
	ckpt_restore_post_release(p->restore);
	remote_expect(p, "the end of bringing", CALL_NS);
	p->asked = nothing;
	CKPT_AWAIT(task, bits(p) & CKPT_DONE_GONE);
	remote_came(p);
	ckpt_restore_unref(p->restore);
	p->restore = NULL;
	return ckpt_task_continue(task, p->asked == 1 ? claims_body : remote_close_body);
	CKPT_TASK_END(task);
}

/* Removing. */

static bool act(struct remote_proc *p, enum ckpt_two_phase_delete_act what)
{
	p->command = ckpt_two_phase_command_new(&p->core);
	if (!p->command)
		return false;
	struct ckpt_two_phase_delete *two_phase =
		&CKPT_CONTAINER(p->command, struct ckpt_two_phase_command, command)->two_phase;
	two_phase->act = what;
	two_phase->newest = p->judged;
	two_phase->generation = p->generation;
	two_phase->step = p->step;
	sim_tell(sim_of(p), p->id, "bury", "", (int64_t)p->generation, (int64_t)p->step, what);
	remote_post(p, ckpt_two_phase_command_body, "bury", CALL_NS);
	return true;
}

/* One of those before the newest of the lineage, now and then that, or what another one has marked. */
static bool choose(struct remote_proc *p, struct ckpt_scan *scan)
{
	const struct ckpt_scan_step *newest = ckpt_lineage_choose(scan, CKPT_STEP_LATEST, NULL);
	bool any = sim_chance(sim_of(p), 2000);
	size_t count = 0;

	p->judged = ckpt_scan_newest_claim(scan);
	for (size_t i = 0; i < scan->step_count && newest; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if ((s == newest && !any) || (s->state != CKPT_STEP_COMMITTED && !s->deleting) ||
			s->generation > newest->generation ||
			(s->generation == newest->generation && s->step > newest->step))
			continue;
		if (sim_below(sim_of(p), ++count) == 0) {
			p->generation = s->generation;
			p->step = s->step;
		}
	}
	return count > 0;
}

static int remove_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	bool changed = sim_chance(sim_of(p), 1500);

	CKPT_TASK_BEGIN(task);
	remote_sleep(p, GRACE_NS);
	CKPT_AWAIT(task, remote_slept(p));
	remote_came(p);
	if (!act(p, changed ? CKPT_TWO_PHASE_DELETE_UNMARK : CKPT_TWO_PHASE_DELETE_REMOVE))
		return ckpt_task_continue(task, remote_close_body);
	p->removes = true;
	CKPT_AWAIT(task, remote_answered(p));
	p->removes = false;
	p->failure = remote_take(p);
	p->world->pruned += p->failure == 0;
	remote_let_go(p);
	/* It was another one's: that is waited for once more. */
	return ckpt_task_continue(task, p->failure == -EAGAIN ? remove_body : remote_close_body);
	CKPT_TASK_END(task);
}

int remote_prune_body(struct ckpt_task *task)
{
	struct remote_proc *p = remote_proc_of(task);
	struct ckpt_lister *lister;
	bool any;

	CKPT_TASK_BEGIN(task);
	if (!remote_prepare(p, sizeof(*lister), ckpt_lister_clear))
		return ckpt_task_continue(task, remote_close_body);
	remote_post(p, ckpt_lister_body, "list", CALL_NS);
	CKPT_AWAIT(task, remote_answered(p));
	p->failure = remote_take(p);
	lister = CKPT_CONTAINER(p->command, struct ckpt_lister, command);
	any = p->failure == 0 && lister->mark_result == 0 && choose(p, &lister->scanner.scan);
	remote_let_go(p);
	if (!any || !act(p, CKPT_TWO_PHASE_DELETE_MARK))
		return ckpt_task_continue(task, remote_close_body);
	CKPT_AWAIT(task, remote_answered(p));
	p->failure = remote_take(p);
	remote_let_go(p);
	return ckpt_task_continue(task, p->failure ? remote_close_body : remove_body);
	CKPT_TASK_END(task);
}
