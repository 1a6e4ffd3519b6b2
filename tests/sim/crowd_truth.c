/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of jobs of several ranks. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "crowd.h"
#include "format/naming.h"
#include "sim_inode.h"

/* Much less than any save's deadline. */
#define SOON_NS UINT64_C(3000000000)

struct crowd_record *crowd_record(struct crowd *crowd, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < crowd->record_count; i++)
		if (crowd->records[i].generation == generation && crowd->records[i].step == step)
			return &crowd->records[i];
	return NULL;
}

static struct crowd_record *make_record(struct crowd_member *member, uint64_t step)
{
	struct crowd *crowd = member->crowd;
	uint64_t generation = member->core.lineage->generation;
	struct crowd_record *r = crowd_record(crowd, generation, step);

	if (!r) {
		CKPT_ASSERT(crowd->record_count < CROWD_RECORDS);
		r = &crowd->records[crowd->record_count++];
		*r = (struct crowd_record){
			.generation = generation, .step = step, .begun_at = ++crowd->time};
	}
	return r;
}

void crowd_began(struct crowd_member *member, uint64_t version)
{
	struct crowd_record *r = make_record(member, member->step);

	r->ranks++;
	r->versions[member->rank] = version;
	r->odd = r->odd || crowd_is_odd(member);
	r->blind = r->blind || member->save->alike.mode == CKPT_REPLICA_DIGEST_NONE;
	member->record = r;
	member->begun_ns = member->crowd->sim.now_ns;
}

/* A commit that was begun after somebody else had the store. */
static bool fenced_out(const struct crowd *crowd, const struct crowd_record *r)
{
	for (uint64_t g = r->generation + 1; g < CKPT_COUNT(crowd->claimed_at); g++)
		if (crowd->claimed_at[g] && crowd->claimed_at[g] < r->begun_at)
			return true;
	return false;
}

static void note_told(struct crowd_member *member, struct crowd_record *r, enum crowd_told told,
	int code, const char *text)
{
	struct crowd *crowd = member->crowd;

	sim_tell(&crowd->sim, member->id, told == CROWD_DURABLE ? "acked" : "not saved", text,
		(int64_t)r->generation, (int64_t)r->step, code);
	r->told[member->rank] = told;
	if (told != CROWD_UNKNOWN && r->known_ns == 0)
		r->known_ns = crowd->sim.now_ns;
	if (told == CROWD_DURABLE && r->odd && !r->blind)
		sim_violation(&crowd->sim,
			"step %llu of generation %llu is committed, and one rank holds other bytes",
			(unsigned long long)r->step, (unsigned long long)r->generation);
	if (code == CKPT_EREPLICA && !r->odd)
		sim_violation(&crowd->sim,
			"step %llu of generation %llu: all ranks hold the same, and rank %u is "
			"told "
			"that they differ",
			(unsigned long long)r->step, (unsigned long long)r->generation,
			member->rank);
	if (told == CROWD_DURABLE) {
		crowd->durable += r->acked_at == 0;
		r->acked_at = r->acked_at ? r->acked_at : ++crowd->time;
		if (fenced_out(crowd, r))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was begun after its successor had "
				"claimed, and is acknowledged",
				(unsigned long long)r->step, (unsigned long long)r->generation);
	}
	if (told == CROWD_DURABLE && crowd->nodes)
		crowd_check_own(member);
	crowd->not_saved += told == CROWD_FAILED;
	if (told == CROWD_DURABLE && member->job->reused)
		sim_violation(&crowd->sim,
			"step %llu of generation %llu is acknowledged in the session of an earlier "
			"start",
			(unsigned long long)r->step, (unsigned long long)r->generation);
	if (!r->acked_at)
		return;
	for (uint32_t i = 0; i < crowd->world; i++)
		if (r->told[i] == CROWD_FAILED)
			sim_violation(&crowd->sim,
				"step %llu of generation %llu is durable, and rank %u was told "
				"that it is not",
				(unsigned long long)r->step, (unsigned long long)r->generation, i);
	for (uint32_t i = 0; i < crowd->world; i++)
		if (!r->passed[i])
			sim_violation(&crowd->sim,
				"step %llu of generation %llu is durable, and the gate of rank %u "
				"is closed",
				(unsigned long long)r->step, (unsigned long long)r->generation, i);
	if (r->ranks < crowd->world)
		sim_violation(&crowd->sim,
			"step %llu of generation %llu is durable, and %u of %u ranks saved it",
			(unsigned long long)r->step, (unsigned long long)r->generation, r->ranks,
			crowd->world);
}

void crowd_told(struct crowd_member *member, enum crowd_told told, int code, const char *text)
{
	note_told(member, member->record, told, code, text);
}

void crowd_refused(struct crowd_member *member, uint64_t step, int code, const char *text)
{
	note_told(member, make_record(member, step), CROWD_FAILED, code, text);
}

void crowd_passed(struct crowd_member *member)
{
	member->record->passed[member->rank] = true;
}

/*
 * A failure is told, and a commit stands in the store. So nobody waits for his deadline, be his part done or
 * not, unless rank 0 has died with what it knew.
 */
void crowd_hurry(const struct crowd_member *m)
{
	struct crowd *crowd = m->crowd;
	const struct crowd_record *r = m->record;
	const uint64_t *fired = crowd->sim.fired;

	if (!m->save || !r || r->step != ckpt_save_step(m->save) || r->known_ns == 0 ||
		r->told[m->rank] != CROWD_NOTHING)
		return;
	if (crowd_hung(crowd) || fired[SIM_NO_MEMORY] || fired[SIM_JOB_SLOW] ||
		crowd_disks_stopped(crowd) || (r->acked_at == 0 && m->job->ending))
		return;
	if (crowd->sim.now_ns > ckpt_max_u64(r->known_ns, m->begun_ns) + SOON_NS)
		sim_violation(&crowd->sim,
			"how step %llu of generation %llu ended is known, and rank %u still waits",
			(unsigned long long)r->step, (unsigned long long)r->generation, m->rank);
}

void crowd_claimed(struct crowd_member *member)
{
	struct crowd *crowd = member->crowd;
	uint64_t g = member->core.lineage->generation;

	CKPT_ASSERT(g < CKPT_COUNT(crowd->claimed_at));
	for (unsigned i = 0; i < CROWD_MEMBERS; i++) {
		const struct crowd_member *other = crowd->members[i];
		if (other && other->core.lineage->generation == g && other->job != member->job)
			sim_violation(&crowd->sim, "generation %llu is of two jobs",
				(unsigned long long)g);
	}
	if (!crowd->claimed_at[g])
		crowd->claimed_at[g] = ++crowd->time;
	crowd->parents[g] = member->core.lineage->parent_generation;
	crowd->parent_steps[g] = member->core.lineage->parent_step;
	if (crowd->nodes)
		crowd_check_alike(crowd);
	sim_tell(&crowd->sim, member->id, "claimed", "", (int64_t)g, member->rank, 0);
}

/* Whether a restore that starts from the newest claim of `scan` may choose it. */
static bool in_lineage(struct ckpt_scan *scan, const struct crowd_record *r)
{
	const struct ckpt_scan_gen *gen = ckpt_scan_gen(scan, ckpt_scan_newest_claim(scan));
	uint64_t limit = UINT64_MAX;

	while (gen && gen->claimed) {
		if (gen->generation == r->generation)
			return r->step <= limit;
		limit = gen->claim.parent_step;
		gen = gen->claim.parent_generation
			      ? ckpt_scan_gen(scan, gen->claim.parent_generation)
			      : NULL;
	}
	return false;
}

/* Every store has it, and every rank's index is there, and is of what that rank had in this save. */
static void check_step(struct crowd *crowd, const struct crowd_record *r)
{
	char meta[64];

	for (unsigned i = 0; i < crowd->stores; i++) {
		const struct sim_inode *manifest = crowd_manifest(crowd, i, r);
		if (!manifest || crowd_is_abort(manifest))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was chosen, and %s in store %u",
				(unsigned long long)r->step, (unsigned long long)r->generation,
				manifest ? "is aborted" : "has no manifest", i);
	}
	for (uint32_t i = 0; i < crowd->world; i++) {
		const struct sim_inode *index = crowd_index(crowd, r, i);
		(void)snprintf(meta, sizeof(meta), "{\"version\":%llu}",
			(unsigned long long)r->versions[i]);
		if (!index || !memmem(index->cached, index->cached_size, meta, strlen(meta)))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu: the part of rank %u is %s",
				(unsigned long long)r->step, (unsigned long long)r->generation, i,
				index ? "another one's" : "not there");
	}
}

/* Retention may have let it go: it does not know what will be seen as damaged later. */
static bool may_be_expired(const struct crowd *crowd, const struct crowd_record *r)
{
	uint64_t newer = 0;

	for (size_t i = 0; i < crowd->record_count; i++) {
		const struct crowd_record *other = &crowd->records[i];
		newer += other->acked_at &&
			 (other->generation > r->generation ||
				 (other->generation == r->generation && other->step > r->step));
	}
	return crowd->keep_last > 0 && newer >= crowd->keep_last;
}

/* Whether `r` must have been chosen by a restore that began at `view`, if nothing newer was. */
static bool is_owed(const struct crowd *crowd, const struct crowd_record *r, uint64_t view)
{
	return r->acked_at && r->acked_at <= view && !r->blurred && !may_be_expired(crowd, r);
}

void crowd_chose(struct crowd_member *member, struct ckpt_scan *scan)
{
	struct crowd *crowd = member->crowd;
	const struct crowd_job *chosen = member->job->generation ? member->job : NULL;

	sim_tell(&crowd->sim, member->id, "chose", "", (int64_t)member->job->generation,
		(int64_t)member->job->step, 0);
	for (size_t i = 0; i < crowd->record_count; i++) {
		const struct crowd_record *r = &crowd->records[i];
		bool newer = !chosen || r->generation > chosen->generation ||
			     (r->generation == chosen->generation && r->step > chosen->step);
		if (newer && is_owed(crowd, r, member->job->view) && in_lineage(scan, r))
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was acknowledged, and is not chosen",
				(unsigned long long)r->step, (unsigned long long)r->generation);
		if (crowd->nodes && r->acked_at && !r->blurred && in_lineage(scan, r))
			crowd_check_imported(crowd, r);
	}
	if (!chosen)
		return;
	const struct crowd_record *r = crowd_record(crowd, chosen->generation, chosen->step);
	if (!r || r->ranks < crowd->world) {
		sim_violation(&crowd->sim,
			"step %llu of generation %llu was chosen, and not all ranks saved it",
			(unsigned long long)chosen->step, (unsigned long long)chosen->generation);
		return;
	}
	for (uint32_t i = 0; i < crowd->world; i++)
		if (r->told[i] == CROWD_FAILED)
			sim_violation(&crowd->sim,
				"step %llu of generation %llu was chosen, and rank %u was told "
				"that it failed",
				(unsigned long long)r->step, (unsigned long long)r->generation, i);
	check_step(crowd, r);
	if (crowd->nodes)
		crowd_check_alike(crowd);
}

/* Nobody's end, and nothing but what the exchange can make good, has come between the ranks of a round. */
static bool is_whole(const struct crowd_member *member)
{
	const struct crowd *crowd = member->crowd;

	for (unsigned i = 0; i < SIM_FAULTS; i++)
		if (crowd->sim.fired[i] && i != SIM_CANCEL)
			return false;
	return !crowd->stormed && crowd->weather.lost == 0 && crowd->jobs == 1;
}

static void check_round(struct crowd_member *member)
{
	const struct crowd_round *round = &member->job->rounds[member->round];

	if (round->well > 0 && round->failed > 0 && !member->job->turned &&
		(member->job->careful || is_whole(member)))
		sim_violation(&member->crowd->sim,
			"restore %u: %u ranks have restored a step, and %u have failed",
			member->round, round->well, round->failed);
}

void crowd_restored(struct crowd_member *member, uint64_t generation, uint64_t step)
{
	struct crowd_round *round = &member->job->rounds[member->round];

	if (round->well > 0 && (round->generation != generation || round->step != step))
		sim_violation(&member->crowd->sim,
			"restore %u: rank %u has got back step %llu of generation %llu, and "
			"another "
			"one step %llu of generation %llu",
			member->round, member->rank, (unsigned long long)step,
			(unsigned long long)generation, (unsigned long long)round->step,
			(unsigned long long)round->generation);
	if (generation > 0 && generation == member->job->bad_generation &&
		step == member->job->bad_step)
		sim_violation(&member->crowd->sim,
			"restore %u: rank %u is given step %llu of generation %llu, which all were "
			"told is damaged",
			member->round, member->rank, (unsigned long long)step,
			(unsigned long long)generation);
	if (generation > 0 && member->job->reused)
		sim_violation(&member->crowd->sim,
			"rank %u has got back step %llu of generation %llu in the session of an "
			"earlier start",
			member->rank, (unsigned long long)step, (unsigned long long)generation);
	round->generation = generation;
	round->step = step;
	round->well++;
	member->crowd->restored += generation > 0;
	check_round(member);
}

/* One of the stores has removed the step already, and so it is of no use to any rank. */
static bool is_let_go(const struct crowd_member *member)
{
	struct crowd_record *r =
		crowd_record(member->crowd, ckpt_restore_chosen_generation(member->restore),
			ckpt_restore_chosen_step(member->restore));

	if (!member->crowd->nodes || !r || !crowd_is_let_go(member->crowd, r))
		return false;
	r->blurred = true;
	return true;
}

void crowd_not_restored(struct crowd_member *member, int code, const char *message)
{
	struct crowd *crowd = member->crowd;
	bool damage = code == CKPT_EINTEGRITY || code == CKPT_EINCOMPLETE;

	member->job->rounds[member->round].failed++;
	check_round(member);
	if (!message[0])
		sim_violation(&crowd->sim, "a restore of p%u failed with %d and no message",
			member->id, code);
	if (damage && !member->job->blinded && !is_let_go(member))
		sim_violation(&crowd->sim, "nothing is damaged, and rank %u is told: %s",
			member->rank, message);
	if (code == -ETIMEDOUT && member->job->turned && !member->job->absent && is_whole(member))
		sim_violation(&crowd->sim,
			"restore %u: rank %u has waited for one that had turned back: %s",
			member->round, member->rank, message);
	crowd->went_back += damage;
	if (damage) {
		member->job->bad_generation = ckpt_restore_chosen_generation(member->restore);
		member->job->bad_step = ckpt_restore_chosen_step(member->restore);
	}
	if (!damage && !member->job->turned)
		crowd_judge(member, "restore", code, message);
}

bool crowd_hung(const struct crowd *crowd)
{
	const uint64_t *fired = crowd->sim.fired;

	return fired[SIM_HANG] || fired[SIM_STUCK] || fired[SIM_SLOW] || fired[SIM_FREEZE] ||
	       crowd->stormed;
}

/* Nothing has gone wrong but that the exchange loses and delays, and users who change their mind. */
static bool is_quiet(const struct crowd *crowd)
{
	for (unsigned i = 0; i < SIM_FAULTS; i++)
		if (crowd->sim.fired[i] && i != SIM_CANCEL)
			return false;
	return !crowd->stormed && !crowd->strays && crowd->jobs == 1;
}

void crowd_judge(struct crowd_member *member, const char *what, int code, const char *message)
{
	struct crowd *crowd = member->crowd;
	struct sim *sim = &crowd->sim;
	bool changed =
		crowd->sim.fired[SIM_CANCEL] && (code == -ECANCELED || code == CKPT_EABORTED);

	/* One that came too soon; or of ranks that differ. */
	if ((crowd->skips && code == CKPT_ESKIPPED) || code == CKPT_EREPLICA)
		return;

	sim_note(sim, member->id, what, message, 0, 0, code);
	if (!message[0])
		sim_violation(
			sim, "%s of p%u failed with %d and no message", what, member->id, code);
	if (member->job->careful || (is_quiet(crowd) && !changed && !member->job->turned))
		sim_violation(sim, "%s of rank %u failed with %d, and nothing went wrong: %s", what,
			member->rank, code, message);
}
