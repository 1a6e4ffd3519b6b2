/* SPDX-License-Identifier: Apache-2.0 */
/* Looks after jobs, ranks and slots, and what memory they have. */
#include "registry.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/error.h"
#include "base/thread.h"

struct agent_remnant {
	struct agent_remnant *next;
	struct agent_process *process;
	uint64_t bytes;
};

void agent_registry_open(struct agent_registry *registry, const struct agent_manager *manager)
{
	*registry = (struct agent_registry){.manager = manager, .next_slot = 1};
}

/* Forgets remnants of processes that are gone, and of `unmapped`, which may be NULL; `all`: every one. */
static void sweep(struct agent_registry *registry, const struct agent_process *unmapped, bool all)
{
	struct agent_remnant **link = &registry->remnants;

	while (*link) {
		struct agent_remnant *remnant = *link;

		if (!all && remnant->process != unmapped && agent_process_lives(remnant->process)) {
			link = &remnant->next;
			continue;
		}
		*link = remnant->next;
		agent_process_let_go(remnant->process);
		ckpt_free(remnant);
	}
}

void agent_registry_close(struct agent_registry *registry)
{
	while (registry->jobs)
		agent_job_drop(registry, registry->jobs);
	sweep(registry, NULL, true);
}

void agent_registry_unmapped(struct agent_registry *registry, const struct agent_process *process)
{
	sweep(registry, process, false);
}

struct agent_job *agent_job_of(struct agent_registry *registry, const struct ckpt_peer_job *id)
{
	struct agent_job *job = registry->jobs;

	while (job && memcmp(&job->id, id, sizeof(*id)) != 0)
		job = job->next;
	if (job)
		return job;
	job = ckpt_alloc(sizeof(*job));
	if (!job)
		return NULL;
	job->id = *id;
	job->left_ns = ckpt_age_clock_ns();
	job->next = registry->jobs;
	registry->jobs = job;
	return job;
}

struct agent_rank *agent_rank_of(struct agent_job *job, uint32_t number)
{
	struct agent_rank *rank = job->ranks;

	while (rank && rank->number != number)
		rank = rank->next;
	if (rank)
		return rank;
	rank = ckpt_alloc(sizeof(*rank));
	if (!rank)
		return NULL;
	rank->job = job;
	rank->number = number;
	rank->next = job->ranks;
	job->ranks = rank;
	return rank;
}

int agent_slot_add(struct agent_registry *registry, struct agent_rank *rank, int fd,
	struct ckpt_error *err, struct agent_slot **ret_slot)
{
	struct agent_slot *slot = ckpt_alloc(sizeof(*slot));
	int r;

	CKPT_ASSERT(rank->count < CKPT_PEER_SLOTS_MAX);
	if (!slot)
		return ckpt_fail(err, -ENOMEM, "the agent has no memory for a slot");
	r = ckpt_peer_slot_file_check(fd, err, &slot->file);
	if (r == 0)
		r = ckpt_peer_slot_file_map(fd, &slot->file, false, true, err, &slot->header);
	if (r < 0) {
		ckpt_free(slot);
		return r;
	}
	slot->fd = fd;
	slot->rank = rank;
	rank->slots[rank->count++] = slot;
	if (slot->file.fixed.number >= registry->next_slot)
		registry->next_slot = slot->file.fixed.number + 1;
	*ret_slot = slot;
	return 0;
}

/* Whoever has it mapped keeps its memory. */
static void leave_remnant(struct agent_registry *registry, const struct agent_slot *slot)
{
	struct agent_remnant *remnant;

	if (!agent_process_lives(slot->process))
		return;
	remnant = ckpt_alloc(sizeof(*remnant));
	/* Then that memory is not counted, which is no harm but to who asks for the last of it. */
	if (!remnant)
		return;
	remnant->process = agent_process_use(slot->process);
	remnant->bytes = slot->file.bytes;
	remnant->next = registry->remnants;
	registry->remnants = remnant;
}

void agent_slot_drop(struct agent_registry *registry, struct agent_slot *slot)
{
	struct agent_rank *rank = slot->rank;
	unsigned i = 0;

	CKPT_ASSERT(slot->readers == 0);
	while (rank->slots[i] != slot)
		i++;
	rank->slots[i] = rank->slots[--rank->count];
	leave_remnant(registry, slot);
	agent_manager_forget(registry->manager, slot->file.fixed.number);
	agent_process_let_go(slot->process);
	ckpt_peer_slot_file_unmap(&slot->header);
	(void)close(slot->fd);
	ckpt_free(slot);
}

void agent_slot_write(struct agent_slot *slot, const struct ckpt_peer_slot_record *record)
{
	ckpt_peer_slot_put_record((uint8_t *)slot->header.base, record);
	slot->file.record = *record;
}

static int adopt(struct agent_registry *registry, int fd, struct ckpt_error *err)
{
	struct ckpt_peer_slot_file file;
	struct agent_slot *slot = NULL;
	struct agent_rank *rank = NULL;
	struct agent_job *job;
	int r = ckpt_peer_slot_file_check(fd, err, &file);

	if (r < 0)
		return r;
	if (agent_slot_find(registry, file.fixed.number))
		return ckpt_fail(err, -EEXIST, "there is another slot with its number");
	job = agent_job_of(registry, &file.fixed.job);
	if (job)
		rank = agent_rank_of(job, file.fixed.rank);
	if (!rank)
		return ckpt_fail(err, -ENOMEM, "the agent has no memory for a slot");
	if (rank->count == CKPT_PEER_SLOTS_MAX)
		return ckpt_fail(err, -ENOSPC, "its rank has as many slots as it can have");
	r = agent_slot_add(registry, rank, fd, err, &slot);
	if (r < 0)
		return r;
	CKPT_ASSERT(slot);
	job->generation = ckpt_max_u64(job->generation, file.record.generation);
	job->generation = ckpt_max_u64(
		job->generation, ckpt_peer_slot_fence((const uint8_t *)slot->header.base));
	rank->wanted = rank->count;
	rank->capacity = file.fixed.capacity;
	return 0;
}

bool agent_registry_adopt(
	struct agent_registry *registry, const struct agent_kept *kept, struct ckpt_error *err)
{
	if (strncmp(kept->name, "slot-", 5) == 0 && adopt(registry, kept->fd, err) == 0)
		return true;
	(void)close(kept->fd);
	return false;
}

struct agent_slot *agent_slot_after(
	const struct agent_registry *registry, const struct ckpt_peer_job *job, uint64_t after)
{
	struct agent_slot *found = NULL;

	for (struct agent_job *j = registry->jobs; j; j = j->next) {
		if (job && memcmp(&j->id, job, sizeof(*job)) != 0)
			continue;
		for (struct agent_rank *rank = j->ranks; rank; rank = rank->next)
			for (unsigned i = 0; i < rank->count; i++) {
				struct agent_slot *slot = rank->slots[i];
				uint64_t number = slot->file.fixed.number;

				if (number > after && (!found || number < found->file.fixed.number))
					found = slot;
			}
	}
	return found;
}

struct agent_slot *agent_slot_find(const struct agent_registry *registry, uint64_t number)
{
	struct agent_slot *slot;

	if (number == 0)
		return NULL;
	slot = agent_slot_after(registry, NULL, number - 1);
	return slot && slot->file.fixed.number == number ? slot : NULL;
}

static uint64_t bytes_of(const struct agent_rank *rank)
{
	uint64_t bytes = 0;

	for (unsigned i = 0; i < rank->count; i++)
		bytes += rank->slots[i]->file.bytes;
	return bytes;
}

uint64_t agent_job_bytes(const struct agent_job *job)
{
	uint64_t bytes = 0;

	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next)
		bytes += bytes_of(rank);
	return bytes;
}

/*
 * Ranks that have not come yet may be those whose slots are there, or others: nobody knows before they come. The larger of
 * both counts. So ranks that are gone, to another node, count as soon as others have come in their place.
 */
uint64_t agent_job_claim(const struct agent_job *job)
{
	uint64_t here = 0;
	uint64_t away = 0;
	uint64_t to_come = job->node_ranks;

	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next) {
		uint64_t bytes = bytes_of(rank) + rank->ordered - rank->leaving;

		if (rank->generation < job->generation || rank->promised == 0) {
			away += bytes;
			continue;
		}
		here += ckpt_max_u64(bytes, rank->promised);
		to_come -= to_come > 0;
	}
	return here + ckpt_max_u64(away, to_come * job->each);
}

uint64_t agent_registry_used(struct agent_registry *registry)
{
	uint64_t bytes = 0;

	sweep(registry, NULL, false);
	for (const struct agent_remnant *r = registry->remnants; r; r = r->next)
		bytes += r->bytes;
	for (const struct agent_job *job = registry->jobs; job; job = job->next)
		bytes += agent_job_claim(job);
	return bytes;
}

uint64_t agent_registry_unmade(const struct agent_registry *registry)
{
	uint64_t bytes = 0;

	for (const struct agent_job *job = registry->jobs; job; job = job->next) {
		uint64_t claim = agent_job_claim(job);

		bytes += claim - ckpt_min_u64(claim, agent_job_bytes(job));
	}
	return bytes;
}

bool agent_job_busy(const struct agent_job *job)
{
	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next) {
		if (rank->session)
			return true;
		for (unsigned i = 0; i < rank->count; i++)
			if (rank->slots[i]->readers > 0)
				return true;
	}
	return false;
}

bool agent_job_held(const struct agent_job *job)
{
	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next)
		for (unsigned i = 0; i < rank->count; i++)
			if (agent_process_lives(rank->slots[i]->process))
				return true;
	return false;
}

bool agent_job_ended(const struct agent_job *job)
{
	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next)
		if (!rank->ended && rank->count > 0)
			return false;
	return true;
}

void agent_job_fence(const struct agent_job *job)
{
	for (const struct agent_rank *rank = job->ranks; rank; rank = rank->next)
		for (unsigned i = 0; i < rank->count; i++)
			ckpt_peer_slot_put_fence(
				(uint8_t *)rank->slots[i]->header.base, job->generation);
}

void agent_job_drop(struct agent_registry *registry, struct agent_job *job)
{
	struct agent_job **link = &registry->jobs;

	CKPT_ASSERT(!agent_job_busy(job));
	while (*link != job)
		link = &(*link)->next;
	*link = job->next;
	while (job->ranks) {
		struct agent_rank *rank = job->ranks;

		while (rank->count > 0)
			agent_slot_drop(registry, rank->slots[0]);
		job->ranks = rank->next;
		ckpt_free(rank);
	}
	ckpt_free(job);
}
