/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts before memory is touched. What ranks were promised counts like what they have, so that no rank takes what another
 * one still waits for.
 */
#include "budget.h"

#include <errno.h>

#include "base/error.h"
#include "memory.h"
#include "staging/slot_memory.h"

#define PAGE_BYTES 4096

uint64_t agent_budget_slot(uint64_t capacity)
{
	uint64_t bytes = ckpt_peer_slot_bytes(ckpt_align_up(capacity, PAGE_BYTES));

	return bytes < CKPT_HUGE_PAGE ? bytes : ckpt_align_up(bytes, CKPT_HUGE_PAGE);
}

static int refuse_promise(const struct ckpt_peer_message *question, uint64_t taken, uint64_t claim,
	uint64_t memory, struct ckpt_error *err)
{
	char texts[5][AGENT_SIZE_TEXT];

	return ckpt_fail(err, -ENOMEM,
		"the job needs %s of memory on this node (%u ranks, each %u slots of %s) with what "
		"ranks "
		"have left that are not there any more, and of the %s that ckptd may use, %s are "
		"taken; "
		"start ckptd with --memory for %s or more, or use smaller shards",
		agent_size_text(claim, texts[0]), question->node_ranks ? question->node_ranks : 1,
		question->slots, agent_size_text(agent_budget_slot(question->capacity), texts[1]),
		agent_size_text(memory, texts[2]), agent_size_text(taken, texts[3]),
		agent_size_text(taken + claim, texts[4]));
}

/* A new generation begins without promises. */
static void promise(struct agent_rank *rank, const struct ckpt_peer_message *question)
{
	struct agent_job *job = rank->job;

	if (question->generation > job->generation) {
		job->node_ranks = 0;
		job->each = 0;
	}
	job->generation = question->generation;
	if (question->node_ranks > job->node_ranks)
		job->node_ranks = question->node_ranks;
	rank->generation = question->generation;
	rank->promised = question->slots * agent_budget_slot(question->capacity);
	job->each = ckpt_max_u64(job->each, rank->promised);
}

int agent_budget_promise(struct agent *agent, struct agent_rank *rank,
	const struct ckpt_peer_message *question, struct ckpt_error *err)
{
	struct agent_registry *registry = &agent->registry;
	const struct agent_job job_before = *rank->job;
	const struct agent_rank before = *rank;
	uint64_t others = agent_registry_used(registry) - agent_job_claim(rank->job);
	uint64_t memory = agent->config.memory;
	uint64_t claim;
	int r;

	promise(rank, question);
	claim = agent_job_claim(rank->job);
	if (claim > memory || others > memory - claim)
		r = refuse_promise(question, others, claim, memory, err);
	else
		r = agent_memory_look(agent_registry_unmade(registry),
			agent_budget_slot(question->capacity), err);
	if (r < 0) {
		*rank->job = job_before;
		*rank = before;
	}
	return r;
}

/* With the slot counted as if it were there, and without `old`. */
static int look(struct agent *agent, uint64_t bytes, uint64_t stays, struct ckpt_error *err)
{
	uint64_t used = agent_registry_used(&agent->registry) + stays;
	char texts[2][AGENT_SIZE_TEXT];

	if (used > agent->config.memory)
		return ckpt_fail(err, -ENOMEM,
			"with one more slot %s would be taken, and ckptd may use %s; end processes "
			"of older generations, which still have slots mapped, or start ckptd with "
			"more "
			"--memory",
			agent_size_text(used, texts[0]),
			agent_size_text(agent->config.memory, texts[1]));
	return agent_memory_look(agent_registry_unmade(&agent->registry) + stays, bytes, err);
}

int agent_budget_slot_fits(struct agent *agent, struct agent_rank *rank, struct agent_slot *old,
	struct ckpt_error *err)
{
	uint64_t bytes = agent_budget_slot(rank->capacity);
	/* Of a process that lives and has it mapped. */
	uint64_t stays = old && agent_process_lives(old->process) ? old->file.bytes : 0;
	int r;

	rank->ordered = bytes;
	rank->leaving = old ? old->file.bytes : 0;
	r = look(agent, bytes, stays, err);
	rank->leaving = 0;
	if (r < 0)
		rank->ordered = 0;
	return r;
}
