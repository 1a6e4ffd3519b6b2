/* SPDX-License-Identifier: Apache-2.0 */
/* One outcome of a part of a restore. */
#include "engine/restore/vote.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "engine/lineage/lineage.h"

/* A restore that has failed elsewhere goes on for so long. */
#define READING_REST_NS UINT64_C(50000000)

static struct ckpt_restore_vote *vote_of(struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, struct ckpt_restore_vote, round);
}

static const struct ckpt_restore_vote *const_vote_of(const struct ckpt_round *round)
{
	return CKPT_CONTAINER(round, const struct ckpt_restore_vote, round);
}

static const char *part_text(const struct ckpt_restore_vote *v)
{
	static const char *const words[] = {[CKPT_RESTORE_OPENING] = "opened",
		[CKPT_RESTORE_READING] = "read",
		[CKPT_RESTORE_MENDING] = "repaired"};

	return words[v->part];
}

static void name_key(const struct ckpt_round *round, uint32_t rank, char *ret_key)
{
	const struct ckpt_restore_vote *v = const_vote_of(round);

	if (rank == CKPT_ROUND_OUTCOME)
		ckpt_key_restore_part(ret_key, v->number, v->part);
	else
		ckpt_key_restore_rank(ret_key, v->number, v->part, rank);
}

static int encode(const struct ckpt_round *round, const char *key, struct ckpt_buf *out)
{
	return ckpt_restore_record_encode(&const_vote_of(round)->vote, key, out);
}

static bool is_same_step(const struct ckpt_restore_record *a, const struct ckpt_restore_record *b)
{
	return a->world == b->world && a->generation == b->generation && a->step == b->step &&
	       strcmp(a->attempt, b->attempt) == 0;
}

/* One rank has come so far. */
static int take(struct ckpt_round *round, const struct ckpt_exchange_item *item, uint32_t rank)
{
	const struct ckpt_restore_vote *v = vote_of(round);
	const struct ckpt_restore_record *mine = &v->vote;
	struct ckpt_restore_record theirs;

	/* A code of damage would be laid at the step's door. */
	if (ckpt_restore_record_decode(item->data, item->length, item->key, &round->why, &theirs) <
		0)
		return -EIO;
	if (theirs.rank == rank && is_same_step(&theirs, mine))
		return 0;
	return ckpt_fail(&round->why, CKPT_EMISMATCH,
		"rank %u of %u ranks has %s step %llu of generation %llu, and rank 0 of %u step "
		"%llu of generation %llu",
		theirs.rank, theirs.world, part_text(v), (unsigned long long)theirs.step,
		(unsigned long long)theirs.generation, mine->world, (unsigned long long)mine->step,
		(unsigned long long)mine->generation);
}

static int receive(struct ckpt_round *round, const struct ckpt_exchange_item *item)
{
	struct ckpt_restore_vote *v = vote_of(round);
	const struct ckpt_core *core = round->core;
	struct ckpt_restore_record outcome = v->vote;

	int r = item ? ckpt_restore_record_decode(
			       item->data, item->length, item->key, &round->why, &outcome)
		     : 0;
	bool well = outcome.verdict.code == 0;
	/* Well for all is well for this rank, with what it has opened; though it has given up since. */
	if (r == 0 && (outcome.world != core->config.world ||
			      (well && !(round->passed && is_same_step(&outcome, &v->vote)))))
		r = ckpt_fail(&round->why, -EIO,
			"the ranks of %s do not agree about which step was %s: give every start of "
			"the job a session of its own",
			core->parts.label, part_text(v));
	if (r < 0)
		return r;
	v->outcome = outcome;
	return well;
}

static void fail(struct ckpt_round *round, int code)
{
	struct ckpt_restore_vote *v = vote_of(round);
	struct ckpt_verdict *verdict = &v->vote.verdict;

	v->vote.rank = round->core->config.rank;
	v->vote.world = round->core->config.world;
	memcpy(v->vote.run_id, round->core->lineage->marker.run_id, sizeof(v->vote.run_id));
	verdict->code = code;
	(void)snprintf(verdict->reason, sizeof(verdict->reason), "%.250s",
		round->why.code ? round->why.message : ckpt_code_text(code));
}

static void late(struct ckpt_round *round, const char *missing)
{
	const struct ckpt_restore_vote *v = vote_of(round);
	const struct ckpt_core_config *config = &round->core->config;

	if (!round->ready)
		(void)ckpt_fail(&round->why, -ETIMEDOUT,
			config->rank == 0
				? "rank %u has not opened the step in time"
				: "rank 0 has not said in time which step is restored, or rank %u "
				  "could not open it in time: begin the restore on all ranks",
			config->rank);
	else if (config->rank > 0)
		(void)ckpt_fail(&round->why, -ETIMEDOUT,
			"rank 0 has not said in time whether all ranks have %s the step: see what "
			"became of it",
			part_text(v));
	else
		(void)ckpt_fail(&round->why, -ETIMEDOUT,
			"of %u ranks these have not %s the step in time: %s: see what became of "
			"them, and begin a restore on all ranks",
			config->world, part_text(v), missing);
}

static const struct ckpt_round_ops vote_ops = {.name_key = name_key,
	.encode = encode,
	.take = take,
	.receive = receive,
	.fail = fail,
	.late = late};

int ckpt_restore_vote_init(struct ckpt_restore_vote *vote, uint32_t rank, uint32_t world)
{
	vote->round.ops = &vote_ops;
	return ckpt_round_init(&vote->round, rank, world);
}

void ckpt_restore_vote_clear(struct ckpt_restore_vote *vote)
{
	ckpt_round_clear(&vote->round);
}

void ckpt_restore_vote_start(struct ckpt_restore_vote *vote)
{
	/* As long as this rank reads, only a failure of another one may be there. */
	vote->round.rest_ns = vote->part == CKPT_RESTORE_READING ? READING_REST_NS : 0;
	ckpt_round_start(&vote->round);
}

void ckpt_restore_vote_cast(
	struct ckpt_restore_vote *vote, const struct ckpt_restore_record *record)
{
	if (!ckpt_round_is_open(&vote->round))
		return;
	vote->vote = *record;
	ckpt_round_put(&vote->round, record->verdict.code == 0);
}
