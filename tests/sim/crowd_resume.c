/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All ranks of a job get back the step that they go on from: together, or none does. Somebody comes late,
 * or not at all, changes his mind, or sees damage that nobody else sees.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/error.h"
#include "crowd.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      UINT64_C(1000000000)
#define SLACK       (2 * SECOND)
/* As long as somebody who frees a restore waits for the storage to let go of it. */
#define FREE_NS     (10 * SECOND)

static struct crowd_member *member_of(struct ckpt_task *task)
{
	return CKPT_CONTAINER(task, struct crowd_member, life);
}

static struct sim *sim_of(const struct crowd_member *m)
{
	return &m->crowd->sim;
}

static uint32_t bits(const struct crowd_member *m)
{
	return ckpt_latch_get(ckpt_restore_latch(m->restore));
}

static uint64_t timeout_ns(const struct crowd_member *m)
{
	return m->crowd->timeout_ms * MILLISECOND;
}

/* `ns` from now on it must have come, and at `patience_ns` its user goes. */
static void wait_for(struct crowd_member *m, const char *what, uint64_t ns, uint64_t patience_ns)
{
	m->waits = what;
	m->late_ns = sim_of(m)->now_ns + ns;
	m->wake_ns = sim_of(m)->now_ns + patience_ns;
}

static bool out_of_patience(const struct crowd_member *m)
{
	return sim_of(m)->now_ns >= m->wake_ns;
}

static void came(struct crowd_member *m)
{
	m->waits = NULL;
	m->late_ns = UINT64_MAX;
	m->wake_ns = UINT64_MAX;
}

static struct crowd_round *round_of(const struct crowd_member *m)
{
	return &m->job->rounds[m->round];
}

void crowd_shape(struct crowd_member *member, uint32_t rank, struct sim_shape *ret_shape)
{
	*ret_shape = member->crowd->shapes[rank % SIM_SHAPES];
	for (size_t i = 0; i < ret_shape->count; i++) {
		char name[sizeof(ret_shape->tensors[i].name)];
		(void)snprintf(name, sizeof(name), "r%u.%.24s", rank, ret_shape->tensors[i].name);
		memcpy(ret_shape->tensors[i].name, name, sizeof(name));
	}
}

/* What one rank reads wrong, and no other: of an index, or of a shard. */
static void blind(struct crowd_member *m, bool opened)
{
	struct ckpt_digest *digest;
	struct crowd_job *job = m->job;
	struct crowd_record *record;

	if (job->blind_rank != m->rank || job->blind_round != m->round || job->blinded)
		return;
	if (job->blind_index) {
		if (opened || !m->restore->pick.manifest.ranks)
			return;
		digest = &m->restore->pick.manifest.ranks[m->reads].index_digest;
	} else {
		if (!opened || (bits(m) & CKPT_DONE_END))
			return;
		struct ckpt_index *index = m->restore->load.indexes[m->reads];
		/* With a catalog it is read when the restore begins. */
		digest = index ? &index->layout->chunks[index->layout->chunk_count - 1].digest
			       : &m->restore->pick.manifest.ranks[m->reads].index_digest;
	}
	memset(digest, 0xee, sizeof(*digest));
	job->blinded = true;
	record = crowd_record(
		m->crowd, m->restore->pick.chosen.generation, m->restore->pick.chosen.step);
	if (record)
		record->blurred = true;
	sim_tell(sim_of(m), m->id, "sees damage", job->blind_index ? "index" : "shard", m->rank,
		(int64_t)m->restore->pick.chosen.step, 0);
}

void crowd_blind(struct crowd_member *member)
{
	if (member->restore && !(bits(member) & (CKPT_DONE_OPENED | CKPT_DONE_END)))
		blind(member, false);
}

static int bind(struct crowd_member *m)
{
	struct ckpt_target targets[SIM_TENSORS_MAX];
	struct ckpt_error err = {.size = sizeof(err)};

	ckpt_error_clear(&err);
	sim_state_free(&m->into);
	crowd_shape(m, m->reads, &m->reads_shape);
	sim_state_init(&m->into, &m->reads_shape);
	sim_state_poison(&m->into);
	sim_state_targets(&m->into, targets);
	if (m->refuses)
		targets[0].name = "nobody saved this";
	int r = ckpt_restore_add_targets(m->restore, targets, m->into.shape->count, &err);
	if (r < 0 && !m->refuses)
		crowd_judge(m, "bind", r, err.message);
	return r;
}

/* All is there, and it is what was saved. */
static void compare(struct crowd_member *m)
{
	uint64_t generation = ckpt_restore_chosen_generation(m->restore);
	uint64_t step = ckpt_restore_chosen_step(m->restore);
	const struct crowd_record *record = crowd_record(m->crowd, generation, step);
	const char *name = record ? sim_state_check(&m->into, record->versions[m->reads]) : "?";

	sim_tell(sim_of(m), m->id, "restored", "", (int64_t)generation, (int64_t)step, m->rank);
	if (name)
		sim_violation(sim_of(m),
			"tensor %s of step %llu of generation %llu came back "
			"different to rank %u",
			name, (unsigned long long)step, (unsigned long long)generation, m->rank);
	crowd_restored(m, generation, step);
}

/* True: the next older one is tried. */
static bool take_end(struct crowd_member *m)
{
	bool ended = bits(m) & CKPT_DONE_END;
	const struct ckpt_error *why = ckpt_restore_failure(m->restore);
	int code = ended ? why->code : -ETIMEDOUT;

	m->failure = code;
	m->chosen_generation = m->chosen_step = 0;
	if (code == 0) {
		compare(m);
		m->chosen_generation = ckpt_restore_chosen_generation(m->restore);
		m->chosen_step = ckpt_restore_chosen_step(m->restore);
		return false;
	}
	sim_tell(sim_of(m), m->id, "not restored", ended ? why->message : "", m->rank, 0, code);
	if (code == CKPT_ENOSTEP || code == CKPT_EQUARANTINED) {
		/* Nothing but what somebody has seen damage in: it starts anew. */
		m->core.config.new_start = code == CKPT_EQUARANTINED;
		crowd_restored(m, 0, 0);
		m->failure = 0;
		return false;
	}
	crowd_not_restored(m, code, ended ? why->message : ckpt_code_text(code));
	return (code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE) && m->round + 1 < CROWD_ROUNDS;
}

static ckpt_task_fn begin_body;

static int let_go_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	CKPT_TASK_BEGIN(task);
	ckpt_restore_post_cancel(m->restore);
	ckpt_restore_post_release(m->restore);
	wait_for(m, "the end of a restore", FREE_NS + SLACK, FREE_NS);
	/* Nothing is copied any more: that waits for nobody. */
	CKPT_AWAIT(task, bits(m) & CKPT_DONE_END);
	CKPT_AWAIT(task, (bits(m) & CKPT_DONE_GONE) || out_of_patience(m));
	came(m);
	ckpt_restore_unref(m->restore);
	m->restore = NULL;
	if (m->again) {
		m->round++;
		return ckpt_task_continue(task, begin_body);
	}
	return ckpt_task_continue(task, m->failure ? crowd_close_body : crowd_chosen_body);
	CKPT_TASK_END(task);
}

static int read_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	CKPT_TASK_BEGIN(task);
	sim_note(sim_of(m), m->id, "opened", "", m->rank,
		(int64_t)ckpt_restore_chosen_step(m->restore), 0);
	m->failure = bind(m);
	if (m->failure) {
		m->again = false;
		m->job->turned = true;
		return ckpt_task_continue(task, let_go_body);
	}
	blind(m, true);
	m->wake_ns = sim_of(m)->now_ns + sim_below(sim_of(m), 3 * MILLISECOND);
	CKPT_AWAIT(task, out_of_patience(m));
	if (!sim_fault(sim_of(m), SIM_CANCEL))
		ckpt_restore_post_start(m->restore);
	/* The others may never come, and one of them may have to wait for its storage. */
	wait_for(m, "a restore", 8 * timeout_ns(m) + SLACK, 4 * timeout_ns(m));
	if (sim_fault(sim_of(m), SIM_CANCEL)) {
		m->wake_ns = sim_of(m)->now_ns + sim_below(sim_of(m), 5 * MILLISECOND);
		CKPT_AWAIT(task, (bits(m) & CKPT_DONE_END) || out_of_patience(m));
		m->wake_ns = UINT64_MAX;
		m->job->turned = true;
		ckpt_restore_post_cancel(m->restore);
	}
	CKPT_AWAIT(task, (bits(m) & CKPT_DONE_END) || out_of_patience(m));
	m->job->turned = m->job->turned || !(bits(m) & CKPT_DONE_END);
	came(m);
	m->again = take_end(m);
	return ckpt_task_continue(task, let_go_body);
	CKPT_TASK_END(task);
}

static int begin_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);
	struct sim *sim = sim_of(m);

	CKPT_TASK_BEGIN(task);
	m->wake_ns = sim->now_ns + sim_below(sim, 3 * MILLISECOND);
	CKPT_AWAIT(task, out_of_patience(m));
	came(m);
	/* The others wait for it in vain. */
	if (!m->job->careful && sim_chance(sim, 60)) {
		m->job->turned = m->job->absent = true;
		m->failure = -EPERM;
		return ckpt_task_continue(task, crowd_close_body);
	}
	m->reads = crowd_place(m->crowd, m->rank)->first +
		   (uint32_t)sim_below(sim, crowd_place(m->crowd, m->rank)->count);
	m->refuses = !m->job->careful && sim_chance(sim, 60);
	round_of(m)->view = m->rank == 0 ? ++m->crowd->time : round_of(m)->view;
	m->failure =
		ckpt_restore_new(&m->core, NULL, CKPT_STEP_LATEST, CKPT_SINK_MEMORY, &m->restore);
	if (m->failure < 0) {
		m->restore = NULL;
		m->job->turned = m->job->absent = true;
		return ckpt_task_continue(task, crowd_close_body);
	}
	ckpt_restore_post_open(m->restore);
	wait_for(m, "an opening", timeout_ns(m) + SLACK, ckpt_max_u64(timeout_ns(m), 10 * SECOND));
	CKPT_AWAIT(task, (bits(m) & (CKPT_DONE_OPENED | CKPT_DONE_END)) || out_of_patience(m));
	came(m);
	if (!(bits(m) & CKPT_DONE_END) && (bits(m) & CKPT_DONE_OPENED))
		return ckpt_task_continue(task, read_body);
	m->job->turned = m->job->turned || !(bits(m) & CKPT_DONE_END);
	m->again = take_end(m);
	return ckpt_task_continue(task, let_go_body);
	CKPT_TASK_END(task);
}

int crowd_resume_body(struct ckpt_task *task)
{
	struct crowd_member *m = member_of(task);

	m->round = 0;
	return ckpt_task_continue(task, begin_body);
}
