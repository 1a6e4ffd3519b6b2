/* SPDX-License-Identifier: Apache-2.0 */
/* What several ranks hold alike and one of them saves is compared before a step is committed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "device/sample_mix.h"
#include "engine/save/save_state.h"
#include "engine/save/saver.h"

/* Space for the description in a failure that is sent to all ranks. */
#define WORDS_MAX 320

/* This rank cannot take the digests that the others take. */
static bool is_blind(const struct ckpt_save *save)
{
	uint64_t blind = save->alike.devices & ~ckpt_save_lookers(save);

	if (blind && ckpt_core_note_unchecked(save->core, CKPT_UNCHECKED_GPU))
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"%s: cannot check whether ranks differ in what they hold alike, because "
			"GPU %d cannot sample its memory: %s",
			save->core->parts.label, __builtin_ctzll(blind) - 1,
			ckpt_devices_get(
				save->core->parts.devices, (uint32_t)__builtin_ctzll(blind))
				->no_samples);
	return blind != 0;
}

static enum ckpt_replica_digest_mode mode_of(struct ckpt_save *save)
{
	if (is_blind(save))
		return CKPT_REPLICA_DIGEST_NONE;
	return ckpt_replica_digest_know(&save->alike, &save->core->saver->alike_proved)
		       ? CKPT_REPLICA_DIGEST_SAMPLES
		       : CKPT_REPLICA_DIGEST_FULL;
}

/* The other ranks compare what they have, and hear that this one has compared nothing. */
static void go_without(struct ckpt_save *save, const char *why)
{
	ckpt_replica_digest_go_without(&save->alike);
	if (ckpt_core_note_unchecked(save->core, CKPT_UNCHECKED_MEMORY))
		ckpt_log(save->core->parts.log, CKPT_LOG_WARN,
			"%s: cannot check whether this rank and others differ at step %llu: the "
			"step is saved without this check: %s",
			save->core->parts.label, (unsigned long long)save->step, why);
}

void ckpt_save_look_replicas(struct ckpt_save *save)
{
	if (save->alike.given_count > 0 && ckpt_replica_digest_look(&save->alike) < 0)
		go_without(save, "out of memory");
}

void ckpt_save_take_replicas(struct ckpt_save *save)
{
	if (save->alike.given_count == 0)
		return;
	/* The sampled lines depend only on what all ranks know. */
	save->alike_seed = ckpt_sample_mix(save->step);
	/* Rank 0 has no names of groups that it does not belong to, so any rank may need to keep them. */
	if (ckpt_replica_digest_take(&save->alike, mode_of(save), save->alike_seed, true) < 0)
		go_without(save, "out of memory");
}

static void sampled(struct ckpt_copy_batch *batch)
{
	struct ckpt_save *save = CKPT_CONTAINER(batch, struct ckpt_save, replicas);

	save->working--;
	ckpt_pipeline_say_staged(save);
	/* If a GPU is lost, the copies from it fail anyway. */
	if (batch->code == 0)
		ckpt_replica_digest_add_late(&save->alike);
	else if (!save->code)
		go_without(save, batch->error->message);
	ckpt_task_wake(&save->task);
}

void ckpt_replica_digest_start(struct ckpt_save *save)
{
	const struct ckpt_copy like = {.direction = CKPT_COPY_SAMPLE,
		.segments = save->alike.segments,
		.count = save->alike.segment_count,
		.seed = save->alike_seed,
		.eager = true,
		.stop = &save->stopped};

	if (save->alike.segment_count == 0)
		return;
	if (ckpt_copy_batch_reserve(&save->replicas, save->alike.devices) < 0) {
		go_without(save, "out of memory");
		return;
	}
	save->replicas.done = sampled;
	save->working++;
	ckpt_copy_batch_start(
		&save->replicas, save->core->parts.devices, save->alike.devices, &like);
}

void ckpt_save_report_replicas(const struct ckpt_save *save, char out[CKPT_REPLICA_DIGEST_TEXT])
{
	_Static_assert(
		CKPT_REPLICA_DIGEST_TEXT <= CKPT_REPLICA_DIGEST_CHARS, "a record has room for it");
	ckpt_replica_digest_encode(&save->alike, out);
}

/* Distinguishes state that never was alike from state that has become different. */
static void word_before(const struct ckpt_save *save,
	const struct ckpt_replica_digest_finding *found, char *out, size_t size)
{
	*out = 0;
	if (save->core->saver->any_alike && (save->alike.mode == CKPT_REPLICA_DIGEST_SAMPLES ||
						    (found->name_count > 0 && !found->fresh)))
		(void)snprintf(out, size,
			" (they were alike at step %llu: the memory of one may be faulty, or "
			"computes in another order)",
			(unsigned long long)save->core->saver->alike_step);
}

int ckpt_save_judge_replicas(struct ckpt_save *save)
{
	struct ckpt_save_commit *x = save->ranks;
	char own[CKPT_REPLICA_DIGEST_TEXT];
	char words[WORDS_MAX];
	char before[160];

	ckpt_replica_digest_encode(&save->alike, own);
	int r = ckpt_replica_digest_receive(&x->alike, 0, own, "rank 0", &save->work);
	if (r < 0)
		return r;
	const struct ckpt_replica_digest_finding found =
		ckpt_replica_digest_compare(&x->alike, &save->alike);
	x->outcome.alike = x->alike.count > 0 && !x->alike.mixed;
	/* Samples alone are not enough to stop writing copies. */
	x->outcome.compared = x->alike.split.compared && !x->alike.mixed;
	x->outcome.differ = x->alike.split.differ;
	ckpt_replica_digest_forget(&x->alike);
	if (found.groups == 0)
		return 0;
	if (found.name_count == 0)
		ckpt_replica_digest_clue_encode(&found.clue, x->outcome.clue);
	/* The next samples may miss the difference, so every byte is compared again. */
	ckpt_replica_digest_unprove(&save->core->saver->alike_proved);
	if (x->balance != 0) {
		ckpt_replica_digest_word_lack(&found, x->differ, CKPT_DIFFER_MAX);
		return 0;
	}
	if (save->core->config.tolerant) {
		/* Then all ranks compare every byte again. Differences in boxes do not need that. */
		x->outcome.alike = false;
		x->outcome.compared = false;
		ckpt_replica_digest_word(&found, x->differ, CKPT_DIFFER_MAX);
		return 0;
	}
	ckpt_replica_digest_word(&found, words, sizeof(words));
	word_before(save, &found, before, sizeof(before));
	return ckpt_fail_at(&save->work, CKPT_EREPLICA,
		&(struct ckpt_where){
			.tier = "memory", .tensor = found.name_count > 0 ? found.names[0] : NULL},
		"step %llu fails on all ranks: %s, and one rank would save it for all%s; mark what "
		"is each rank's own (in Python: per_rank=), or have the step committed with a "
		"warning (replicas=\"warn\")",
		(unsigned long long)save->step, words, before);
}

void ckpt_save_doubt_alike(struct ckpt_save *save, int code)
{
	if (code == CKPT_EREPLICA || code == CKPT_EMISMATCH)
		ckpt_replica_digest_unprove(&save->core->saver->alike_proved);
}

bool ckpt_save_explain_replicas(const struct ckpt_save *save, const char *text,
	struct ckpt_replica_digest_finding *ret_finding)
{
	_Static_assert(CKPT_REPLICA_DIGEST_CLUE <= CKPT_CLUE_CHARS, "an outcome has room for it");
	struct ckpt_replica_digest_clue clue;

	if (!ckpt_replica_digest_clue_decode(text, &clue))
		return false;
	*ret_finding = ckpt_replica_digest_explain(&clue, &save->alike);
	return ret_finding->name_count > 0;
}

void ckpt_save_note_replicas(struct ckpt_save *save)
{
	struct ckpt_core *core = save->core;
	const struct ckpt_save_commit *x = save->ranks;

	if (!x)
		return;
	if (x->differ[0])
		ckpt_log(core->parts.log, CKPT_LOG_WARN,
			"step %llu is committed, although %s: readers get what one of them wrote",
			(unsigned long long)save->step, x->differ);
	/* Also if this rank has compared nothing: all ranks must count the same commits. */
	if (x->outcome.alike)
		ckpt_replica_digest_next_turn(&core->saver->alike_proved);
	if (save->alike.mode == CKPT_REPLICA_DIGEST_NONE)
		return;
	ckpt_replica_digest_learn_own(&core->saver->alike_owned, &save->alike,
		&(struct ckpt_replica_digest_split){
			.compared = x->outcome.compared, .differ = x->outcome.differ});
	/* If ranks have different proofs, only samples were compared: then all start again. */
	if (!x->outcome.alike)
		ckpt_replica_digest_unprove(&core->saver->alike_proved);
	else if (save->alike.mode == CKPT_REPLICA_DIGEST_FULL)
		ckpt_replica_digest_prove(&core->saver->alike_proved, &save->alike);
	if (x->outcome.alike) {
		core->saver->any_alike = true;
		core->saver->alike_step = save->step;
	}
}

const char *ckpt_save_differ(struct ckpt_save *save)
{
	bool local = ckpt_latch_get(&save->latch) & CKPT_DONE_LOCAL;

	return local && save->ranks ? save->ranks->differ : "";
}
