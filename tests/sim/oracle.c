/* SPDX-License-Identifier: Apache-2.0 */
/* The reference model. */
#include "oracle.h"

#include <ckpt/error.h>
#include <stdio.h>

/* Of a claim that was seen: its owner may have died before it was durable. */
#define NOT_TOLD UINT64_MAX

void oracle_start(struct oracle *oracle, struct sim *sim)
{
	*oracle = (struct oracle){.sim = sim, .time = 1};
}

static struct oracle_gen *find_gen(struct oracle *oracle, uint64_t generation)
{
	for (size_t i = 0; i < oracle->gen_count; i++)
		if (oracle->gens[i].generation == generation)
			return &oracle->gens[i];
	return NULL;
}

static struct oracle_record *find_record(struct oracle *oracle, uint64_t generation, uint64_t step)
{
	for (size_t i = 0; i < oracle->record_count; i++)
		if (oracle->records[i].generation == generation && oracle->records[i].step == step)
			return &oracle->records[i];
	return NULL;
}

static bool newer(const struct oracle_record *a, const struct oracle_record *b)
{
	return a->generation != b->generation ? a->generation > b->generation : a->step > b->step;
}

/* In the lineage of `from`; NULL: nobody has claimed yet. */
static bool in_lineage(const struct oracle *oracle, const struct oracle_gen *from,
	const struct oracle_record *record)
{
	uint64_t limit = UINT64_MAX;

	while (from) {
		if (from->generation == record->generation)
			return record->step <= limit;
		limit = from->parent_step;
		from = from->parent_generation
			       ? find_gen((struct oracle *)oracle, from->parent_generation)
			       : NULL;
	}
	return false;
}

static bool harmed(const struct oracle *oracle, enum oracle_harm harm)
{
	return harm == ORACLE_DAMAGED || (harm == ORACLE_DOUBTED && !oracle->healed);
}

/* In the lineage of `from`, as far as claims that can be read tell. */
static bool in_known_lineage(const struct oracle *oracle, const struct oracle_gen *from,
	const struct oracle_record *record)
{
	const struct oracle_gen *gen = from;

	while (gen && gen->generation > record->generation) {
		if (gen->generation < ORACLE_GENS &&
			harmed(oracle, oracle->claims[gen->generation]))
			return false;
		gen = gen->parent_generation
			      ? find_gen((struct oracle *)oracle, gen->parent_generation)
			      : NULL;
	}
	return in_lineage(oracle, from, record);
}

bool oracle_shaken(const struct oracle *oracle)
{
	bool shaken = oracle->marker != ORACLE_WHOLE;

	for (size_t i = 0; i < ORACLE_GENS; i++)
		shaken |= oracle->claims[i] != ORACLE_WHOLE;
	return shaken;
}

/* A claim that nobody was told of: of a process that asked for one with this parent. */
static bool explain(struct oracle *oracle, const struct ckpt_claim *claim)
{
	for (size_t i = 0; i < oracle->gen_count; i++) {
		struct oracle_gen *gen = &oracle->gens[i];
		if (gen->generation == 0 && gen->parent_generation == claim->parent_generation &&
			gen->parent_step == claim->parent_step) {
			gen->generation = claim->generation;
			gen->told_at = NOT_TOLD;
			gen->seen_at = ++oracle->time;
			return true;
		}
	}
	return false;
}

void oracle_opened(struct oracle *oracle, struct oracle_view *view, const struct ckpt_scan *scan)
{
	view->newest = 0;
	for (size_t i = 0; i < scan->gen_count; i++) {
		const struct ckpt_scan_gen *seen = &scan->gens[i];
		if (!seen->claimed)
			continue;
		if (!find_gen(oracle, seen->generation) &&
			(seen->broken ? oracle->claims[seen->generation] == ORACLE_WHOLE
				      : !explain(oracle, &seen->claim)))
			sim_violation(oracle->sim, "generation %llu was claimed by nobody",
				(unsigned long long)seen->generation);
		view->newest = ckpt_max_u64(view->newest, seen->generation);
	}
	for (size_t i = 0; i < oracle->gen_count; i++) {
		struct oracle_gen *gen = &oracle->gens[i];
		if (gen->generation > view->newest && gen->told_at <= view->time)
			sim_violation(oracle->sim, "the claim of generation %llu is lost",
				(unsigned long long)gen->generation);
		/* Seen by another, and gone with a power cut; or this one looked earlier. */
		else if (gen->generation > view->newest && gen->told_at == NOT_TOLD &&
			 gen->seen_at <= view->time)
			gen->generation = 0;
	}
}

void oracle_claiming(
	struct oracle *oracle, unsigned owner, uint64_t parent_generation, uint64_t parent_step)
{
	CKPT_ASSERT(oracle->gen_count < ORACLE_GENS);
	oracle->gens[oracle->gen_count++] = (struct oracle_gen){
		.parent_generation = parent_generation, .parent_step = parent_step, .owner = owner};
}

void oracle_not_claimed(struct oracle *oracle, unsigned owner)
{
	for (size_t i = oracle->gen_count; i > 0; i--) {
		struct oracle_gen *gen = &oracle->gens[i - 1];
		if (gen->owner != owner || gen->generation)
			continue;
		*gen = oracle->gens[--oracle->gen_count];
		return;
	}
}

void oracle_claimed(
	struct oracle *oracle, struct oracle_view *view, unsigned owner, uint64_t generation)
{
	struct oracle_gen *seen = find_gen(oracle, generation);
	struct oracle_gen *mine = NULL;

	for (size_t i = 0; i < oracle->gen_count; i++) {
		const struct oracle_gen *gen = &oracle->gens[i];
		/* One that nobody was told of may be this process's own. */
		if (gen->owner != owner && gen->told_at != NOT_TOLD &&
			gen->generation > view->newest && gen->generation < generation)
			sim_violation(oracle->sim,
				"p%u has claimed generation %llu, and had not seen generation %llu",
				owner, (unsigned long long)generation,
				(unsigned long long)gen->generation);
	}
	view->newest = generation;
	if (seen && seen->told_at != NOT_TOLD)
		sim_violation(oracle->sim, "generation %llu was claimed twice, by p%u and p%u",
			(unsigned long long)generation, seen->owner, owner);
	/* Another may have seen it before its owner was told; whose it was, was a guess. */
	if (seen && seen->told_at == NOT_TOLD)
		seen->generation = 0;
	for (size_t i = oracle->gen_count; i > 0 && !mine; i--)
		if (oracle->gens[i - 1].owner == owner && !oracle->gens[i - 1].generation)
			mine = &oracle->gens[i - 1];
	CKPT_ASSERT(mine != NULL);
	mine->generation = generation;
	mine->told_at = ++oracle->time;
}

void oracle_saving(
	struct oracle *oracle, uint64_t generation, uint64_t step, uint64_t version, unsigned shape)
{
	CKPT_ASSERT(oracle->record_count < ORACLE_RECORDS);
	if (find_record(oracle, generation, step))
		sim_violation(oracle->sim, "step %llu of generation %llu is saved twice",
			(unsigned long long)step, (unsigned long long)generation);
	oracle->records[oracle->record_count++] = (struct oracle_record){.generation = generation,
		.step = step,
		.version = version,
		.shape = shape,
		.begun_at = ++oracle->time};
}

bool oracle_stays(const struct oracle_retention *retention, uint64_t step, bool lineage)
{
	for (size_t i = 0; i < retention->pin_count; i++)
		if (retention->pins[i] == step)
			return true;
	return lineage && retention->keep_every && step % retention->keep_every == 0;
}

bool oracle_reaches(
	const struct oracle *oracle, uint64_t generation, const struct oracle_record *record)
{
	return in_lineage(oracle, find_gen((struct oracle *)oracle, generation), record);
}

void oracle_leave(struct oracle *oracle, uint64_t generation)
{
	for (size_t i = 0; i < oracle->gen_count; i++)
		oracle->gens[i].left |=
			generation == UINT64_MAX || oracle->gens[i].generation == generation;
}

bool oracle_left(const struct oracle *oracle, uint64_t generation)
{
	const struct oracle_gen *gen = find_gen((struct oracle *)oracle, generation);

	return !gen || gen->left;
}

void oracle_live_on(struct oracle *oracle, uint64_t generation)
{
	struct oracle_gen *gen = find_gen(oracle, generation);

	if (gen)
		gen->lives_on = true;
}

bool oracle_lives_on(const struct oracle *oracle, uint64_t generation)
{
	const struct oracle_gen *gen = find_gen((struct oracle *)oracle, generation);

	return gen && gen->lives_on;
}

/* The first generation of a run; 0: one on the way is not known. */
static uint64_t beginning(const struct oracle *oracle, uint64_t generation)
{
	const struct oracle_gen *gen = find_gen((struct oracle *)oracle, generation);

	while (gen && gen->parent_generation)
		gen = find_gen((struct oracle *)oracle, gen->parent_generation);
	return gen ? gen->generation : 0;
}

bool oracle_same_run(
	const struct oracle *oracle, uint64_t generation, const struct oracle_record *record)
{
	uint64_t first = beginning(oracle, generation);

	return first && beginning(oracle, record->generation) == first;
}

/*
 * What retention may take from now on: whatever has keep_last others after it. A save whose outcome
 * nobody was told counts as one, for it may be there.
 */
static void retire(struct oracle *oracle, const struct oracle_gen *newest,
	const struct oracle_retention *retention)
{
	for (size_t i = 0; i < oracle->record_count; i++) {
		struct oracle_record *r = &oracle->records[i];
		uint64_t after = 0;
		if (!in_lineage(oracle, newest, r) || oracle_stays(retention, r->step, true))
			continue;
		for (size_t k = 0; k < oracle->record_count; k++) {
			const struct oracle_record *other = &oracle->records[k];
			after += newer(other, r) && in_lineage(oracle, newest, other);
		}
		if (after >= retention->keep_last)
			r->let_go = true;
	}
}

void oracle_committed(struct oracle *oracle, uint64_t generation, uint64_t step,
	const struct oracle_retention *retention)
{
	struct oracle_record *record = find_record(oracle, generation, step);

	CKPT_ASSERT(record != NULL);
	bool succeeded = false;
	for (size_t i = 0; i < oracle->gen_count; i++) {
		const struct oracle_gen *gen = &oracle->gens[i];
		if (gen->generation <= generation)
			continue;
		succeeded = true;
		if (gen->told_at < record->begun_at)
			sim_violation(oracle->sim,
				"step %llu of generation %llu was acknowledged, and generation "
				"%llu "
				"had been claimed before it was begun",
				(unsigned long long)step, (unsigned long long)generation,
				(unsigned long long)gen->generation);
	}
	record->acked_at = ++oracle->time;
	/* Once another has claimed, it looks at the claims before it removes, and stops. */
	if (succeeded)
		return;
	if (retention->keep_last > 0)
		retire(oracle, find_gen(oracle, generation), retention);
}

bool oracle_let_go(struct oracle *oracle, uint64_t generation, uint64_t step, bool gone)
{
	struct oracle_record *record = find_record(oracle, generation, step);
	bool before = record && record->let_go;

	if (record)
		record->let_go = gone;
	return before;
}

enum oracle_harm oracle_harm_of(const struct oracle *oracle, const struct oracle_record *record)
{
	enum oracle_harm harm = record->harm;

	for (size_t i = 0; oracle->chains && i < oracle->record_count; i++) {
		const struct oracle_record *other = &oracle->records[i];
		if (other->generation == record->generation && other->step < record->step &&
			other->harm > harm)
			harm = other->harm;
	}
	return harm;
}

bool oracle_whole(const struct oracle *oracle, uint64_t generation, uint64_t step)
{
	const struct oracle_record *r = find_record((struct oracle *)oracle, generation, step);

	return r && oracle_harm_of(oracle, r) == ORACLE_WHOLE && oracle->marker == ORACLE_WHOLE;
}

bool oracle_only(const struct oracle *oracle, const struct oracle_view *view, uint64_t generation,
	uint64_t step)
{
	const struct oracle_gen *newest = find_gen((struct oracle *)oracle, view->newest);

	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *r = &oracle->records[i];
		if ((r->generation != generation || r->step != step) &&
			in_lineage(oracle, newest, r))
			return false;
	}
	return true;
}

static void worsen(enum oracle_harm *harm, bool passing)
{
	*harm = passing && *harm != ORACLE_DAMAGED ? ORACLE_DOUBTED : ORACLE_DAMAGED;
}

void oracle_damaged(struct oracle *oracle, const char *path, bool passing)
{
	unsigned long long generation;
	unsigned long long step;

	oracle->hits++;
	oracle->any_damage = true;
	/* NOLINTBEGIN(cert-err34-c): paths that the product made, of numbers of a few digits */
	if (sscanf(path, "g%llu/step-%llu/", &generation, &step) == 2) {
		struct oracle_record *record = find_record(oracle, generation, step);
		if (record)
			worsen(&record->harm, passing);
	} else if (sscanf(path, "gens/%llu.json", &generation) == 1) {
		CKPT_ASSERT(generation < ORACLE_GENS);
		worsen(&oracle->claims[generation], passing);
	} else {
		worsen(&oracle->marker, passing);
	}
	/* NOLINTEND(cert-err34-c) */
}

void oracle_healed(struct oracle *oracle)
{
	oracle->healed = true;
}

static bool owes_from(const struct oracle *oracle, const struct oracle_view *view,
	const struct oracle_gen *newest, const struct oracle_record *record)
{
	if (!record->acked_at || record->acked_at > view->time || record->let_go ||
		harmed(oracle, oracle_harm_of(oracle, record)) || harmed(oracle, oracle->marker))
		return false;
	return in_known_lineage(oracle, newest, record);
}

bool oracle_owes(const struct oracle *oracle, const struct oracle_view *view,
	const struct oracle_record *record)
{
	return owes_from(oracle, view, find_gen((struct oracle *)oracle, view->newest), record);
}

/* As what it is; or as bad, or as not to be read this time. */
static bool lists(const struct oracle *oracle, const struct ckpt_scan *scan,
	const struct oracle_record *record)
{
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->generation != record->generation || s->step != record->step)
			continue;
		return s->state == CKPT_STEP_COMMITTED ||
		       (s->state == CKPT_STEP_QUARANTINED &&
			       oracle_harm_of(oracle, record) != ORACLE_WHOLE) ||
		       (s->state == CKPT_STEP_BROKEN && s->code > CKPT_EINTEGRITY);
	}
	return false;
}

/* The newest generation that somebody was told of: what it has left behind may go while a slow reader looks. */
static uint64_t newest_told(const struct oracle *oracle)
{
	uint64_t newest = 0;

	for (size_t i = 0; i < oracle->gen_count; i++)
		if (oracle->gens[i].told_at < NOT_TOLD)
			newest = ckpt_max_u64(newest, oracle->gens[i].generation);
	return newest;
}

void oracle_listed(struct oracle *oracle, uint64_t since, const struct ckpt_scan *scan)
{
	struct oracle_view view = {.time = since};
	struct oracle_view now = {.time = since, .newest = newest_told(oracle)};

	for (size_t i = 0; i < scan->gen_count; i++)
		if (scan->gens[i].claimed)
			view.newest = scan->gens[i].generation;
	for (size_t i = 0; i < scan->step_count; i++) {
		const struct ckpt_scan_step *s = &scan->steps[i];
		if (s->state == CKPT_STEP_COMMITTED && !find_record(oracle, s->generation, s->step))
			sim_violation(oracle->sim,
				"step %llu of generation %llu is listed, and was never saved",
				(unsigned long long)s->step, (unsigned long long)s->generation);
	}
	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *r = &oracle->records[i];
		if (oracle_owes(oracle, &view, r) && oracle_owes(oracle, &now, r) &&
			!lists(oracle, scan, r))
			sim_violation(oracle->sim,
				"step %llu of generation %llu was acknowledged, and is not listed",
				(unsigned long long)r->step, (unsigned long long)r->generation);
	}
}

bool oracle_owes_step(const struct oracle *oracle, const struct oracle_view *view,
	uint64_t generation, uint64_t step)
{
	const struct oracle_record *r = find_record((struct oracle *)oracle, generation, step);
	struct oracle_view now = *view;

	now.time = oracle->time;
	return r && oracle_owes(oracle, &now, r);
}

uint64_t oracle_told(const struct oracle *oracle, uint64_t generation)
{
	const struct oracle_gen *gen = find_gen((struct oracle *)oracle, generation);

	return gen ? gen->told_at : UINT64_MAX;
}

bool oracle_succeeded(const struct oracle *oracle, unsigned owner, uint64_t generation)
{
	for (size_t i = 0; i < oracle->gen_count; i++) {
		const struct oracle_gen *gen = &oracle->gens[i];
		if (gen->generation > generation || (!gen->generation && gen->owner != owner))
			return true;
	}
	return false;
}

size_t oracle_owed(const struct oracle *oracle, const struct oracle_view *view)
{
	size_t count = 0;

	for (size_t i = 0; i < oracle->record_count; i++)
		count += oracle_harm_of(oracle, &oracle->records[i]) == ORACLE_WHOLE &&
			 oracle_owes(oracle, view, &oracle->records[i]);
	return count;
}

/* The newest that must be found; NULL: none. `asked` is a step, or all of them. */
static const struct oracle_record *owed(const struct oracle *oracle, const struct oracle_view *view,
	const struct oracle_gen *newest, uint64_t asked)
{
	const struct oracle_record *best = NULL;

	for (size_t i = 0; i < oracle->record_count; i++) {
		const struct oracle_record *r = &oracle->records[i];
		if (asked <= CKPT_STEP_MAX && r->step != asked)
			continue;
		/* Once it was marked bad it is given only to those who ask for it by its number. */
		if (asked > CKPT_STEP_MAX && oracle_harm_of(oracle, r) != ORACLE_WHOLE)
			continue;
		if (owes_from(oracle, view, newest, r) && (!best || newer(r, best)))
			best = r;
	}
	return best;
}

/* Whether a process that sees this claim as the newest may choose `r`. Says why not. */
static bool may_choose(struct oracle *oracle, const struct oracle_view *view,
	const struct oracle_gen *newest, uint64_t asked, const struct oracle_record *r, char *why,
	size_t size)
{
	if (!in_lineage(oracle, newest, r)) {
		(void)snprintf(why, size, "not in the lineage of generation %llu",
			(unsigned long long)(newest ? newest->generation : 0));
		return false;
	}
	if (asked != CKPT_STEP_LATEST)
		return true;
	/* By what was asked for: several may have asked whose numbers nobody was told. */
	const struct oracle_record *best = owed(oracle, view, newest, asked);
	if (!best || !newer(best, r))
		return true;
	(void)snprintf(why, size, "but step %llu of generation %llu was acknowledged after it",
		(unsigned long long)best->step, (unsigned long long)best->generation);
	return false;
}

const struct oracle_record *oracle_chosen(struct oracle *oracle, const struct oracle_view *view,
	uint64_t asked, uint64_t generation, uint64_t step)
{
	const struct oracle_record *r = find_record(oracle, generation, step);
	char why[160] = "";

	if (!r)
		(void)snprintf(why, sizeof(why), "which was never saved");
	else if (asked <= CKPT_STEP_MAX && asked != step)
		(void)snprintf(
			why, sizeof(why), "but asked for was step %llu", (unsigned long long)asked);
	else if (may_choose(
			 oracle, view, find_gen(oracle, view->newest), asked, r, why, sizeof(why)))
		return r;
	/* Somebody may have claimed meanwhile; or whose the newest is, nobody was told and this one could not read. */
	bool unknown = !view->alone || (view->newest && !find_gen(oracle, view->newest));
	for (size_t i = 0; r && unknown && i < oracle->gen_count; i++) {
		const struct oracle_gen *gen = &oracle->gens[i];
		char ignored[160];
		if ((gen->generation > view->newest || !gen->generation) &&
			may_choose(oracle, view, gen, asked, r, ignored, sizeof(ignored)))
			return r;
	}
	sim_violation(oracle->sim, "step %llu of generation %llu was chosen, %s",
		(unsigned long long)step, (unsigned long long)generation, why);
	return NULL;
}

/* Damage that is spoken of must be there, and be named. */
static void judge_damage(struct oracle *oracle, int code, const struct oracle_named *named)
{
	const struct oracle_record *r =
		named->generation ? find_record(oracle, named->generation, named->step) : NULL;

	if (!oracle->any_damage)
		sim_violation(oracle->sim, "nothing was damaged, but a restore says: %s",
			ckpt_strerror(code));
	else if (code == CKPT_EQUARANTINED)
		return;
	else if (!r && !oracle_shaken(oracle))
		sim_violation(oracle->sim, "a restore says %s, and not of which step",
			ckpt_strerror(code));
	/* Beside the marker of another run every step is a stranger. */
	else if (r && oracle_harm_of(oracle, r) == ORACLE_WHOLE &&
		 !(code == CKPT_EINTEGRITY && harmed(oracle, oracle->marker)))
		sim_violation(oracle->sim,
			"step %llu of generation %llu was not damaged, but a restore says: %s",
			(unsigned long long)r->step, (unsigned long long)r->generation,
			ckpt_strerror(code));
	else if (!named->said)
		sim_violation(oracle->sim, "an error about damage (%s) does not say of what",
			ckpt_strerror(code));
}

void oracle_refused(struct oracle *oracle, const struct oracle_view *view, uint64_t asked, int code,
	const struct oracle_named *named)
{
	bool damage = code != CKPT_ENOSTEP;

	if (damage)
		judge_damage(oracle, code, named);
	/* There need not be as many as somebody wants to go back. */
	bool back = asked > CKPT_STEP_MAX && asked != CKPT_STEP_LATEST;
	const struct oracle_record *missed =
		back ? NULL : owed(oracle, view, find_gen(oracle, view->newest), asked);
	/* The newest may be damaged and the next one good: it is asked for again. */
	if (!missed || !view->alone || (damage && asked > CKPT_STEP_MAX))
		return;
	sim_violation(oracle->sim,
		"step %llu of generation %llu was acknowledged, and cannot be restored: %s",
		(unsigned long long)missed->step, (unsigned long long)missed->generation,
		ckpt_strerror(code));
}
